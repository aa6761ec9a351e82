"""The configuration of a cache in a TOML file.

Other programs that write rows of the application must invalidate the same keys
on the same nodes::

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
from pathlib import Path
from typing import Any

from sqla_shard import exc
from sqla_shard.cache.columns import Cached, check_prefix, check_rows
from sqla_shard.cache.regions import REGION_NAME
from sqla_shard.outbox.tables import LONGEST_REGION
from sqla_shard.util.json_values import parsed_toml

# -- regions
#
# The application and ``sqla-shard`` must give nodes the same names; otherwise
# they would use two nodes for one key.

_NUMBERS = ("expiration_time", "expire_nothing", "lease", "tombstone", "wait")
_SETTINGS = ("backend", "arguments", *_NUMBERS)
_TABLES = frozenset(["regions", "classes", "prefix"])


def _error(reason: str, file: str, key: str) -> exc.CacheConfigError:
    return exc.CacheConfigError(reason, path=file, key=key)


def load_regions(path: str | os.PathLike[str]) -> dict[str, Mapping[str, Any]]:
    """Return the regions that a TOML file configures, by name.

    Other arguments of ``Cluster.configure_cache()`` in the file are ignored
    (see :func:`load_cache`).  Backends are checked when a region is opened.

    :param path: the file.
    :raises CacheConfigError: if it cannot be read, is not TOML, or has an
        unknown setting of a region.
    """
    file = os.fspath(path)
    return regions_of(file, read(file))


def regions_of(file: str, document: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the regions of a document, by name.

    :raises CacheConfigError: if they are missing or not valid.
    """
    regions = document.get("regions")
    if not isinstance(regions, dict) or not regions:
        raise _error(
            "is missing; write a table [regions.NAME] for each region, with "
            "its backend",
            file,
            "regions",
        )
    for name, region in regions.items():
        _check(file, name, region)
    return dict(regions)


def read(file: str) -> dict[str, Any]:
    """Return the document of a TOML file.

    :raises CacheConfigError: if it cannot be read, is not TOML, or has a key
        that is not valid.
    """
    document = _parse(file)
    for key in document.keys() - _TABLES:
        raise _error(
            "is not a valid key; a file has tables [regions.NAME], and may "
            "have a prefix and a table [classes]",
            file,
            key,
        )
    return document


def _parse(file: str) -> dict[str, Any]:
    try:
        return parsed_toml(Path(file).read_text("utf-8"))
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8 at byte {error.start}; save it as UTF-8"
    except OSError as error:
        why = error.strerror or error
        reason = f"cannot be read: {why}; name another file"
    except ValueError as error:
        reason = f"{error}; correct the syntax"
    # Raise it here, so that the parser's error, which has the whole file with
    # its passwords, is not the context of this error.
    raise _error(reason, file, "file")


def _check(file: str, name: str, region: object) -> None:
    def refuse(reason: str, *keys: str) -> exc.CacheConfigError:
        key = ".".join(("regions", name, *keys))
        return _error(reason, file, key)

    if not REGION_NAME.fullmatch(name):
        raise refuse(
            f"is not a valid region name; use 1 to {LONGEST_REGION} letters, "
            "digits, dots, dashes and underscores"
        )
    if not isinstance(region, dict):
        raise refuse(f"is a {kind_of(region)}; write a table [regions.NAME]")
    for key, value in region.items():
        if key not in _SETTINGS:
            raise refuse(
                f"is not a setting of a region; valid are {', '.join(_SETTINGS)}", key
            )
        if key in _NUMBERS and type(value) not in (int, float):
            raise refuse(f"is a {kind_of(value)}; write seconds", key)
    backend = region.get("backend")
    if not isinstance(backend, str) or not backend:
        raise refuse(
            'is missing, or not a string; name one, such as "sqla_shard.memcached"',
            "backend",
        )
    if not isinstance(region.get("arguments", {}), dict):
        raise refuse(
            "must be a table; write the arguments of the backend below "
            f"[regions.{name}.arguments]",
            "arguments",
        )


def kind_of(value: object) -> str:
    """Return the TOML name of the type of a value, which may be secret."""
    return {
        str: "string",
        bool: "boolean",
        int: "number",
        float: "number",
        list: "list",
        dict: "table",
    }.get(type(value), "time")


_NAME = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_CLASS = re.compile(rf"({_NAME}):({_NAME})")
_OPTIONS = ("region", "version", "rows")


@dataclass(frozen=True, kw_only=True)
class CacheFile:
    """The configuration of a cache, read from a file.

    :ivar regions: the configurations of regions, by name.
    :ivar classes: the cached classes; None if there is no table ``classes``.
    :ivar prefix: the prefix of the keys; None if it is missing.
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
    :raises CacheConfigError: if it cannot be read, lacks one of the three, or
        has an unknown setting; if a module cannot be imported, or does not
        define the class.
    """
    found = read_cache(path)
    file = os.fspath(path)
    if found.prefix is None:
        raise _error(
            'is missing; write prefix = "NAME", above the tables, as all '
            "processes of the application have it",
            file,
            "prefix",
        )
    if found.classes is None:
        raise _error(
            'is missing; write a table [classes] with a line "MODULE:CLASS" '
            '= "REGION" for each class that is cached',
            file,
            "classes",
        )
    return {"regions": found.regions, "classes": found.classes, "prefix": found.prefix}


def read_cache(path: str | os.PathLike[str]) -> CacheFile:
    """Return the configuration in a TOML file, which may be incomplete.

    :raises CacheConfigError: see :func:`load_cache`.
    """
    file = os.fspath(path)
    document = read(file)
    regions = regions_of(file, document)
    prefix = document.get("prefix")
    if prefix is not None:
        try:
            check_prefix(prefix)
        except exc.OptionError as error:
            raise _error(str(error), file, "prefix") from error
    classes = document.get("classes")
    if classes is not None:
        classes = _classes(file, classes, regions)
    return CacheFile(regions=regions, classes=classes, prefix=prefix)


def _classes(file: str, table: object, regions: Mapping[str, Any]) -> dict[Any, Cached]:
    if not isinstance(table, dict):
        raise _error(f"is a {kind_of(table)}; write a table [classes]", file, "classes")
    # All values are checked first: an import may have side effects.
    options = {
        name: _options_of(file, f"classes.{name}", value, regions)
        for name, value in table.items()
    }
    found: dict[Any, Cached] = {}
    names: dict[Any, str] = {}
    for name, cached in options.items():
        cls = _import_class(file, name)
        if cls in names:
            raise _error(
                f"is the same class as {names[cls]!r}; remove one of the two",
                file,
                f"classes.{name}",
            )
        names[cls] = name
        found[cls] = cached
    return found


def _options_of(
    file: str, key: str, value: object, regions: Mapping[str, Any]
) -> Cached:
    """Return the options of a class."""

    def refuse(reason: str, *keys: str) -> exc.CacheConfigError:
        return _error(reason, file, ".".join((key, *keys)))

    if isinstance(value, str):
        value = {"region": value}
    if not isinstance(value, dict):
        raise refuse(
            f'is a {kind_of(value)}; write the name of a region, or {{region = "NAME"}}'
        )
    for name in value.keys() - set(_OPTIONS):
        raise refuse(
            f"is not a setting of a class; valid are {', '.join(_OPTIONS)}", name
        )
    region = value.get("region")
    if not isinstance(region, str) or region not in regions:
        known = ", ".join(map(repr, regions))
        reason = "is missing" if region is None else f"{region!r} is not a region"
        raise refuse(f"{reason}; the file has {known}", "region")
    for name in ("version", "rows"):
        if type(value.get(name, 1)) is not int:
            raise refuse(f"is a {kind_of(value[name])}; write an integer", name)
    if "rows" in value:
        try:
            check_rows(value["rows"])
        except exc.OptionError as error:
            raise refuse(str(error), "rows") from error
    return Cached(**value)


def _import_class(file: str, name: str) -> type[Any]:
    """Return the class that ``module:Class`` names."""

    def refuse(reason: str) -> exc.CacheConfigError:
        return _error(reason, file, f"classes.{name}")

    match = _CLASS.fullmatch(name)
    if match is None:
        raise refuse('is not a class; write "package.module:Class"')
    module, path = match.groups()
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise refuse(
            f"the module {module!r} cannot be imported: {error}; name a "
            "module that can be imported"
        ) from error
    for part in path.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type):
        raise refuse(
            f"{module!r} has no class {path!r}; it may be in the middle of "
            "its import (a circular import)"
        )
    return found
