"""Regions: the stores of cached rows, their lifetimes, and their configuration.

A region is a ``CacheRegion`` of dogpile.cache, configured as usual, and a
:class:`.Store` on the servers of its backend.  The application can use the
``CacheRegion`` itself: its values and those of the store are separate.

dogpile.cache is imported when a region is opened.

A TOML file may have the configuration of a cache.  Other programs that write
rows of the application must invalidate the same keys on the same nodes::

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
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TYPE_CHECKING

from sqla_shard import exc
from sqla_shard.cache.columns import Cached, check_prefix, check_rows
from sqla_shard.cache.protocol import Times
from sqla_shard.cache.stores import check_seconds, LONGEST, Store
from sqla_shard.outbox.tables import LONGEST_REGION
from sqla_shard.util.json_values import parsed_toml
from sqla_shard.util.logs import careful_log
from sqla_shard.util.masking import MASK

if TYPE_CHECKING:
    import dogpile.cache
    from dogpile.cache import CacheRegion


BACKEND = "sqla_shard.memcached"
"""The name of the backend of this library."""

REGION_NAME = re.compile(rf"[A-Za-z0-9_.-]{{1,{LONGEST_REGION}}}")
"""The pattern of region names."""

_MEMORY, _REDIS = "dogpile.cache.memory", "dogpile.cache.redis"
_BACKENDS = (BACKEND, _REDIS, _MEMORY)
_THEIRS = frozenset(
    ["backend", "expiration_time", "arguments", "wrap", "region_invalidator"]
)
_OURS = frozenset(["expire_nothing", "lease", "tombstone", "wait"])
#: Arguments of the backends.  For a newer one, configure a ``CacheRegion``:
#: its arguments are not checked.
_ARGUMENTS = {
    _MEMORY: ("cache_dict",),
    _REDIS: (
        *("url", "host", "port", "db", "username", "password", "ssl"),
        *("socket_timeout", "socket_connect_timeout", "socket_keepalive"),
        *("socket_keepalive_options", "connection_pool", "connection_kwargs"),
        *("redis_expiration_time", "distributed_lock", "thread_local_lock"),
        *("lock_timeout", "lock_sleep", "lock_blocking", "lock_prefix"),
        "lock_blocking_timeout",
    ),
}
_DEFAULTS = Times()
_STORE = "_sqla_shard_store"

_log = careful_log(__name__)
_lock = threading.Lock()

_NUMBERS = ("expiration_time", "expire_nothing", "lease", "tombstone", "wait")
_SETTINGS = ("backend", "arguments", *_NUMBERS)
_TABLES = frozenset(["regions", "classes", "prefix"])


@dataclass(frozen=True, kw_only=True)
class Region:
    """An open region.

    :ivar name: its name in the application.
    :ivar store: the store of its items.
    :ivar times: the lifetimes of its items.
    :ivar region: the ``CacheRegion`` of dogpile.cache.
    """

    name: str
    store: Store
    times: Times
    region: Any


def open_region(
    name: str, config: Mapping[str, Any] | dogpile.cache.CacheRegion
) -> Region:
    """Open a region.

    The ``expiration_time`` of dogpile.cache is the lifetime of a value, in
    full seconds or as a ``timedelta``.  If it is missing or means "never"
    (None, 0 or -1), it is an hour: a stale value must expire.

    :param name: its name in the application.
    :param config: the arguments of ``CacheRegion.configure()``, of which
        ``backend`` is required, and ``expire_nothing``, ``lease``,
        ``tombstone`` and ``wait``, see :class:`~.protocol.Times`; or a
        configured region.
    :raises sqla_shard.exc.OptionError: if an option is not valid, or the
        backend not supported.
    :raises sqla_shard.exc.MissingExtraError: if a package is missing.
    """
    region_class = _load_dogpile()
    if isinstance(config, region_class):
        given: dict[str, Any] = {}
        region = config
        times = _times(given, _check_configured(name, region).expiration_time)
    elif isinstance(config, Mapping):
        given = dict(config)
        _check_names(name, given)
        times = _times(given, given.get("expiration_time"))
        region = _configure(name, given, times)
    else:
        raise exc.OptionError(
            "is neither the configuration of a region nor a CacheRegion",
            option=f"regions[{name!r}]",
            value=config,
        )
    store = _store_of(name, region, max(times.tombstone, _DEFAULTS.tombstone))
    longest = store.longest
    if times.tombstone > longest:
        raise exc.OptionError(
            f"is longer than {longest}, the argument 'longest' of the "
            f"backend of region {name!r}: use longest={times.tombstone}",
            option="tombstone",
            value=times.tombstone,
        )
    return Region(name=name, store=store, times=times, region=region)


def store_of(region: dogpile.cache.CacheRegion) -> Store:
    """Return the store on the servers of a region.

    All callers get the same store: two stores in the memory of one process
    would not share tombstones.  The store bypasses the proxies of the region
    (``wrap``): they see the values of the application, but no rows.

    :raises sqla_shard.exc.OptionError: if the backend is not supported.
    :raises sqla_shard.exc.MissingExtraError: if a package is missing.
    """
    _load_dogpile()
    return _store_of(region.name or "", region, _DEFAULTS.tombstone)


def _store_of(name: str, region: CacheRegion, longest: int) -> Store:
    from dogpile.cache.proxy import ProxyBackend

    backend: Any = _check_configured(name, region).backend
    while isinstance(backend, ProxyBackend):
        _log.warning(
            "region %r: rows bypass the proxy %s",
            name,
            type(backend).__name__,
            extra={"action": "cache"},
        )
        backend = backend.proxied
    with _lock:
        store: Store | None = vars(backend).get(_STORE)
        if store is None:
            store = _make_store(backend, region, longest)
            setattr(backend, _STORE, store)
    return store


def _make_store(backend: Any, region: CacheRegion, longest: int) -> Store:
    from dogpile.cache.backends.memory import MemoryBackend
    from dogpile.cache.backends.redis import RedisBackend

    from sqla_shard.cache.stores.dogpile import DogpileMemoryStore, MemcachedBackend
    from sqla_shard.cache.stores.redis import RedisStore

    if isinstance(backend, MemcachedBackend):
        return backend.store
    if isinstance(backend, RedisBackend):
        options = {"longest": longest}
        if backend.socket_timeout is not None:
            options["timeout"] = backend.socket_timeout
        return RedisStore(backend.writer_client, **options)
    # With a serializer, the values of the store would differ from those of the
    # region.
    if isinstance(backend, MemoryBackend) and region.serializer is None:
        return DogpileMemoryStore(backend)
    raise _backend_error(type(backend).__name__)


def _backend_error(backend: object) -> exc.OptionError:
    names = ", ".join(_BACKENDS)
    return exc.OptionError(
        "cannot store rows: it needs leases (compare and set), on servers "
        f"that show whether they have lost items. Use {names} without a "
        "serializer",
        option="backend",
        value=backend,
    )


def _load_dogpile() -> type[CacheRegion]:
    try:
        from dogpile.cache import CacheRegion, register_backend
    except ImportError as error:
        raise exc.MissingExtraError(
            package="dogpile.cache", extra="cache", reason=str(error)
        ) from None
    # Register it even if there is an entry point: installations of earlier
    # versions have none.
    register: Callable[[str, str, str], None] = register_backend
    register(BACKEND, "sqla_shard.cache.stores.dogpile", "MemcachedBackend")
    return CacheRegion


def _check_configured(name: str, region: CacheRegion) -> CacheRegion:
    if not region.is_configured:
        raise exc.OptionError(
            "is not configured: call its configure() first",
            option=f"regions[{name!r}]",
            value=region,
        )
    return region


def _configure(name: str, given: Mapping[str, Any], times: Times) -> CacheRegion:
    from dogpile.cache import CacheRegion

    backend = given["backend"]
    options = {key: given[key] for key in _THEIRS & given.keys()}
    arguments = _check_arguments(backend, options.pop("arguments", None))
    if backend == BACKEND and times.tombstone > _DEFAULTS.tombstone:
        arguments.setdefault("longest", times.tombstone)
    options.update(expiration_time=times.expire, arguments=arguments)
    try:
        return CacheRegion(name=name).configure(**options)
    except ImportError as error:
        if backend != _REDIS:
            raise
        raise exc.MissingExtraError(
            package="redis", extra="redis", reason=str(error)
        ) from None
    except exc.OptionError:
        raise
    except TypeError as error:
        reason = str(error)
    except ValueError:
        # Do not show the message: for a URL without a host it has the
        # password.
        reason = "one has an invalid value; check each part of a url"
    raise exc.OptionError(
        f"refuses its arguments: {reason}", option="backend", value=backend
    )


def _check_arguments(backend: str, given: Any) -> dict[str, Any]:
    """Return a copy of the arguments; refuse unknown ones.

    dogpile.cache would ignore unknown arguments.
    """
    from sqla_shard.cache.stores.dogpile import MemcachedBackend

    if not isinstance(given, (Mapping, type(None))):
        raise exc.OptionError(
            f"must be a mapping of arguments of {backend}",
            option="arguments",
            value=given,
        )
    arguments = dict(given or {})
    known = _ARGUMENTS.get(backend, MemcachedBackend.arguments)
    for argument in arguments.keys() - known:
        raise exc.OptionError(
            f"is not an argument of {backend}; valid are {', '.join(known)}",
            option=f"arguments[{argument!r}]",
            # It may be a password with a misspelt name.
            value=MASK,
        )
    port = arguments.get("port", 1)
    if backend == _REDIS and type(port) is not int:
        # The client would raise in the first transaction.
        raise exc.OptionError(
            "must be the number of a port", option="arguments['port']", value=port
        )
    return arguments


def _check_names(name: str, given: Mapping[str, Any]) -> None:
    for option in given:
        if option not in _THEIRS | _OURS:
            known = ", ".join(sorted(_THEIRS | _OURS))
            raise exc.OptionError(
                f"is not a setting of region {name!r}; valid are {known}",
                option=str(option),
                value=given[option],
            )
    # Check it before the backend is created, which may create files.
    if given.get("backend") not in _BACKENDS:
        raise _backend_error(given.get("backend"))


def _times(given: Mapping[str, Any], expire: Any) -> Times:
    times = {name: given[name] for name in _OURS & given.keys()}
    for option in times.keys() - {"wait"}:
        check_seconds(option, times[option])
    wait = times.get("wait", 0.0)
    if type(wait) not in (int, float) or not 0 <= wait <= LONGEST:
        raise exc.OptionError("must be a number of seconds", option="wait", value=wait)
    if isinstance(expire, timedelta):
        expire = expire.total_seconds()
    if isinstance(expire, float) and expire.is_integer():
        expire = int(expire)
    if expire is None or (expire in (0, -1) and type(expire) is int):
        expire = _DEFAULTS.expire
    times["expire"] = check_seconds("expiration_time", expire)
    return Times(**times)


# -- configuration in a file
#
# The application and ``sqla-shard`` must give nodes the same names; otherwise
# they would use two nodes for one key.


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
    document = read_cache(path)
    file = os.fspath(path)
    if document.prefix is None:
        raise _error(
            'is missing; write prefix = "NAME", above the tables, as all '
            "processes of the application have it",
            file,
            "prefix",
        )
    if document.classes is None:
        raise _error(
            'is missing; write a table [classes] with a line "MODULE:CLASS" '
            '= "REGION" for each class that is cached',
            file,
            "classes",
        )
    return {
        "regions": document.regions,
        "classes": document.classes,
        "prefix": document.prefix,
    }


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
    classes: dict[Any, Cached] = {}
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
        classes[cls] = cached
    return classes


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
        value: Any = importlib.import_module(module)
    except ImportError as error:
        raise refuse(
            f"the module {module!r} cannot be imported: {error}; name a "
            "module that can be imported"
        ) from error
    for part in path.split("."):
        value = getattr(value, part, None)
    if not isinstance(value, type):
        raise refuse(
            f"{module!r} has no class {path!r}; it may be in the middle of "
            "its import (a circular import)"
        )
    return value
