"""All that a cluster needs to have a cache, from one file.

Programs beside the application write its rows, too, and have to say so to the
same nodes, under the same keys::

    prefix = "pinboard"

    [regions.objects]
    backend = "sqla_shard.memcached"

    [regions.objects.arguments]
    servers = ["10.0.0.1:11211", "10.0.0.2:11211"]

    [classes]
    "pinboard.models:Pin" = "objects"
    "pinboard.models:BoardHasPins" = {region = "objects", rows = 200}
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqla_shard import exc
from sqla_shard.cache.classes import Cached
from sqla_shard.cache.classes import check_prefix
from sqla_shard.cache.classes import check_rows
from sqla_shard.cache.config import kind_of
from sqla_shard.cache.config import read
from sqla_shard.cache.config import regions_of

__all__ = ["CacheFile", "load_cache", "read_cache"]

_NAME = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_CLASS = re.compile(rf"({_NAME}):({_NAME})")
_KNOWN = ("region", "version", "rows")


@dataclass(frozen=True, kw_only=True)
class CacheFile:
    """What a file says of a cache.

    :ivar regions: by name.
    :ivar classes: those that are kept; None where there is no such table.
    :ivar prefix: of the keys; None where there is none.
    """

    regions: Mapping[str, Mapping[str, Any]]
    classes: Mapping[Any, Cached] | None
    prefix: str | None


def load_cache(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the arguments of ``Cluster.configure_cache()`` from a TOML file.

    The modules of its classes are imported.

    :param path: the file; besides its regions it has a ``prefix`` and a
        table ``[classes]``.
    :returns: ``regions``, ``classes`` and ``prefix``.
    :raises CacheConfigError: when it cannot be read, lacks one of the three,
        or has something in it that is no setting of them; when a module
        cannot be imported, or has no such class.
    """
    found = read_cache(path)
    file = os.fspath(path)
    if found.prefix is None:
        raise exc.CacheConfigError(
            'is missing; write prefix = "NAME", above the tables, as all '
            "processes of the application have it",
            path=file,
            key="prefix",
        )
    if found.classes is None:
        raise exc.CacheConfigError(
            'is missing; write a table [classes] with a line "MODULE:CLASS" '
            '= "REGION" for each class whose rows are kept',
            path=file,
            key="classes",
        )
    return {
        "regions": found.regions,
        "classes": found.classes,
        "prefix": found.prefix,
    }


def read_cache(path: str | os.PathLike[str]) -> CacheFile:
    """Return what a TOML file says of a cache, which need not be all.

    :raises CacheConfigError: see :func:`load_cache`.
    """
    file = os.fspath(path)
    document = read(file)
    regions = regions_of(file, document)
    prefix = document.get("prefix")
    if prefix is not None:
        try:
            check_prefix(prefix)
        except exc.CacheOptionError as error:
            raise exc.CacheConfigError(
                str(error), path=file, key="prefix"
            ) from error
    classes = document.get("classes")
    if classes is not None:
        classes = _classes(file, classes, regions)
    return CacheFile(regions=regions, classes=classes, prefix=prefix)


def _classes(
    file: str, table: object, regions: Mapping[str, Any]
) -> dict[Any, Cached]:
    if not isinstance(table, dict):
        raise exc.CacheConfigError(
            f"is a {kind_of(table)}, and no table; write [classes]",
            path=file,
            key="classes",
        )
    # All of what is written there first: an import does who knows what.
    kept = {
        name: _how(file, f"classes.{name}", value, regions)
        for name, value in table.items()
    }
    found: dict[Any, Cached] = {}
    names: dict[Any, str] = {}
    for name, how in kept.items():
        cls = _imported(file, name)
        if cls in names:
            raise exc.CacheConfigError(
                f"is the class that {names[cls]!r} names; leave one out",
                path=file,
                key=f"classes.{name}",
            )
        names[cls] = name
        found[cls] = how
    return found


def _how(
    file: str, key: str, value: object, regions: Mapping[str, Any]
) -> Cached:
    """Return how a class is kept."""

    def refuse(reason: str, *keys: str) -> exc.CacheConfigError:
        return exc.CacheConfigError(
            reason, path=file, key=".".join((key, *keys))
        )

    if isinstance(value, str):
        value = {"region": value}
    if not isinstance(value, dict):
        raise refuse(
            f"is a {kind_of(value)}; write the name of a region, or "
            '{region = "NAME"}'
        )
    for name in value.keys() - set(_KNOWN):
        raise refuse(
            f"is no setting of a class; there are {', '.join(_KNOWN)}", name
        )
    region = value.get("region")
    if not isinstance(region, str) or region not in regions:
        known = ", ".join(map(repr, regions))
        said = "is missing" if region is None else f"{region!r} is no region"
        raise refuse(f"{said}; there are {known}", "region")
    for name in ("version", "rows"):
        if type(value.get(name, 1)) is not int:
            raise refuse(
                f"is a {kind_of(value[name])}; write a whole number", name
            )
    if "rows" in value:
        try:
            check_rows(value["rows"])
        except exc.CacheOptionError as error:
            raise refuse(str(error), "rows") from error
    return Cached(**value)


def _imported(file: str, name: str) -> type[Any]:
    """Return the class that ``module:Class`` names."""

    def refuse(reason: str) -> exc.CacheConfigError:
        return exc.CacheConfigError(reason, path=file, key=f"classes.{name}")

    match = _CLASS.fullmatch(name)
    if match is None:
        raise refuse('names no class; write "package.module:Class"')
    module, path = match.groups()
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise refuse(
            f"the module {module!r} cannot be imported: {error}; name one "
            "that Python finds from here"
        ) from error
    for part in path.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type):
        raise refuse(
            f"{module!r} has no class {path!r}, or not yet, where it is "
            "just being imported; name one that it has"
        )
    return found
