"""A file that says which regions a cache has, for all who use it.

The application and ``sqla-shard`` have to name the same nodes in the same
words, or they would look for a key in two places::

    [regions.pins]
    backend = "sqla_shard.memcached"
    expiration_time = 3600

    [regions.pins.arguments]
    servers = ["10.0.0.1:11211", "10.0.0.2:11211"]

What else is in it, :mod:`.settings` reads.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqla_shard import exc
from sqla_shard.cache.regions import REGION_NAME
from sqla_shard.internal import LONGEST_REGION

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["kind_of", "load_regions", "read", "regions_of"]

_NUMBERS = (
    "expiration_time",
    "expire_nothing",
    "lease",
    "tombstone",
    "wait",
)
_KNOWN = ("backend", "arguments", *_NUMBERS)
_TABLES = frozenset(["regions", "classes", "prefix"])


def load_regions(path: str | os.PathLike[str]) -> dict[str, Mapping[str, Any]]:
    """Return the regions that a TOML file configures, by name.

    What ``Cluster.configure_cache()`` takes besides, the file may have, too
    (:func:`load_cache`); it is not looked at.  Whether a backend can do what
    is needed is known when a region is opened.

    :param path: the file.
    :raises CacheConfigError: when it cannot be read, is not TOML, or has
        something in it that is no setting of a region.
    """
    file = os.fspath(path)
    return regions_of(file, read(file))


def regions_of(
    file: str, document: Mapping[str, Any]
) -> dict[str, Mapping[str, Any]]:
    """Return the regions of what was read of a file.

    :raises CacheConfigError: when they are no regions.
    """
    regions = document.get("regions")
    if not isinstance(regions, dict) or not regions:
        raise exc.CacheConfigError(
            "there is none; write a table [regions.NAME] for each, with its "
            "backend",
            path=file,
            key="regions",
        )
    for name, region in regions.items():
        _check(file, name, region)
    return dict(regions)


def read(file: str) -> dict[str, Any]:
    """Return what a file says, as it is.

    :raises CacheConfigError: when it cannot be read, is not TOML, or has a
        key that nobody reads.
    """
    document = _parse(file)
    for key in document.keys() - _TABLES:
        raise exc.CacheConfigError(
            "is not known; a file has tables [regions.NAME], and may have a "
            "prefix and a table [classes]",
            path=file,
            key=key,
        )
    return document


def _parse(file: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(file).read_text("utf-8"))
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8 at byte {error.start}; save it as UTF-8"
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}; name another"
    except RecursionError:
        reason = "is nested too deeply"
    except ValueError as error:
        reason = f"{error}; correct the syntax"
    # Raised here, so that the parser's error, which has the whole text with
    # the passwords in it, is not the context of ours.
    raise exc.CacheConfigError(reason, path=file, key="file")


def _check(file: str, name: str, region: object) -> None:
    def refuse(reason: str, *keys: str) -> exc.CacheConfigError:
        key = ".".join(("regions", name, *keys))
        return exc.CacheConfigError(reason, path=file, key=key)

    if not REGION_NAME.fullmatch(name):
        raise refuse(
            f"is no name; use 1 to {LONGEST_REGION} letters, digits, dots, "
            "dashes and underscores"
        )
    if not isinstance(region, dict):
        raise refuse(
            f"is a {kind_of(region)}, and no table; write [regions.NAME]"
        )
    for key, value in region.items():
        if key not in _KNOWN:
            raise refuse(
                f"is no setting of a region; there are {', '.join(_KNOWN)}",
                key,
            )
        if key in _NUMBERS and type(value) not in (int, float):
            raise refuse(f"is a {kind_of(value)}; write seconds", key)
    backend = region.get("backend")
    if not isinstance(backend, str) or not backend:
        raise refuse(
            'is missing, or no text; name one, such as "sqla_shard.memcached"',
            "backend",
        )
    if not isinstance(region.get("arguments", {}), dict):
        raise refuse(
            "is no table; write the arguments of the backend below "
            f"[regions.{name}.arguments]",
            "arguments",
        )


def kind_of(value: object) -> str:
    """Return what TOML calls it, and not what it is: a password, say."""
    return {
        str: "text",
        bool: "boolean",
        int: "number",
        float: "number",
        list: "list",
        dict: "table",
    }.get(type(value), "time")
