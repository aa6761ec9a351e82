"""Caches of functions of an application: decorators, keys and encoding.

The key of a result consists of the prefix of the cache, ``f``, and the format
of the function with the id.  The value has the function, its version, and the
generation of the server of the id, as for rows; see :mod:`.columns`.

Modules are imported before a cluster has a cache, and there may be several
clusters: decorated functions are found here by the class of their ids.

.. code-block:: python

    @cached_objects("objects", format="user:%d", version=1, of=User)
    def user_get_many(session, user_ids): ...


    @cached_list("lists", format="b:p:%d", version=1, of=BoardHasPins)
    def get_board_pins(session, board_id, offset, limit): ...

Callers do not change.  The functions are called without the cache if the
cluster has none, in a transaction that has written, and with
``session.uses_cache`` set to False.
"""

from __future__ import annotations

import inspect
import json
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial, wraps
from math import isfinite
from typing import Any, NamedTuple, ParamSpec, Protocol, TYPE_CHECKING, TypeVar
from weakref import ref, WeakKeyDictionary

from sqlalchemy.ext.asyncio import async_scoped_session, AsyncSession
from sqlalchemy.orm import scoped_session
from sqlalchemy.util import await_only, greenlet_spawn

from sqla_shard.cache.columns import (
    check_id,
    check_rows,
    digest,
    is_mapping,
    mapper_of,
    parse_json,
    place_of,
)
from sqla_shard.cache.protocol import read_through
from sqla_shard.cache.rows import generation_of
from sqla_shard.cache.stores import check_seconds, sleep_of, store_of
from sqla_shard.engine.rendering import Place
from sqla_shard.exc import CachedFunctionError, CacheKeyError, OptionError
from sqla_shard.outbox.tables import check_keys
from sqla_shard.session import ShardSession
from sqla_shard.session.get import usable_cache
from sqla_shard.util import sqlalchemy_private as private

if TYPE_CHECKING:
    from sqla_shard.cache import Cache


#: A format: the placeholder of the id, and other characters of keys.
_KEY_FORMAT = re.compile(r"[!-$&-~]*%([ds])[!-$&-~]*")
_LONGEST_FORMAT = 100
#: A change makes all stored results unreadable.
_LAYOUT = 1

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)


class FunctionCache:
    """The cache of a function of an application.

    :param function: the function.
    :param region: name of the region.
    :param format: format of the keys.
    :param version: a new version makes earlier results unreadable.
    :param expire: seconds after which a result expires; None for the
        ``expiration_time`` of the region.
    :param of: the class of the ids; None if there is none.
    :param parts: other properties; a change of one makes results unreadable.
    :raises OptionError: if an option is not valid.
    :raises CacheClassError: if ``of`` cannot be cached.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        region: str,
        *,
        format: str,  # noqa: A002  # as in Pinterest's
        version: int,
        expire: int | None,
        of: Any,
        parts: Sequence[Any],
    ) -> None:
        self.function = function
        self.identity: tuple[str, str] = function.__module__, function.__qualname__
        self.name: str = ".".join(self.identity)
        if not isinstance(region, str):
            raise OptionError(
                "must be the name of a region", option="region", value=region
            )
        self.region = region
        self.format = format
        self.id_type: type[Any] = _id_type(format)
        if type(version) is not int:
            raise OptionError("must be an integer", option="version", value=version)
        if expire is not None:
            check_seconds("expire", expire)
        self.expire = expire
        self.table: Any = None
        if of is not None:
            is_mapping(of)
            if self.id_type is not int:
                raise OptionError(
                    f"does not accept ids of {of.__name__}, which are "
                    "integers: use %d, or omit of=",
                    option="format",
                    value=format,
                )
            self.table = mapper_of(of).local_table
            self._of = of.__name__
        self._digest = digest(_LAYOUT, self.identity, format, version, *parts).encode(
            "ascii"
        )

    def check(self, ids: Iterable[Any]) -> None:
        """Check ids, with and without a cache.

        :raises CachedFunctionError: if an id is not of the type of the format.
        :raises CacheKeyError: if an id has characters that keys cannot have.
        :raises InvalidIdError: if an id is not an id of the class.
        """
        for one in ids:
            # %d accepts 1.5 and True, and %s any value.
            if type(one) is not self.id_type:
                raise CachedFunctionError(
                    f"was called with {one!r:.100}; its format "
                    f"{self.format!r} needs an id of type "
                    f"{self.id_type.__name__}",
                    function=self.name,
                )
            if self.table is not None:
                check_id(self.table, self._of, one)
            elif self.id_type is str:
                if not one:
                    raise CacheKeyError(key=one)
                check_keys([self.format % one])

    def key(self, cache: Cache, one: Any) -> str:
        """Return the key of an id."""
        return f"{cache.prefix}:f:{self.format % one}"

    def place(self, session: ShardSession, one: Any) -> Place | None:
        """Return the shard location of an id; None if there is no class."""
        if self.table is None:
            return None
        return place_of(session, self.table, self._of, one)

    def tag(self, session: ShardSession, one: Any) -> bytes:
        """Return the first bytes of a readable value.

        They are the digest of the version, and the generation of the server.
        """
        place = self.place(session, one)
        if place is None:
            return self._digest + b"::"
        generation = generation_of(session.places, place)
        return self._digest + f":{generation}:".encode("ascii")

    def invalidate(self, session: Any, ids: Any) -> None:
        """Invalidate results with the COMMIT of a transaction.

        The transaction need not write anything itself.

        :param session: the session; begins a transaction if there is none.
        :param ids: one id, or several.
        :raises CachedFunctionError: if an id is not of the type of the format.
        :raises OptionError: if the cache does not have the region.
        """
        session = with_transaction(session)
        many = [ids] if isinstance(ids, (int, str)) else list(ids)
        self.check(many)
        cache = session.cluster.cache
        if cache is None:
            return
        cache.region(self.region)
        check_keys(self.key(cache, one) for one in many)
        for one in many:
            self.record(session, cache, one, self.place(session, one))

    def record(
        self, session: ShardSession, cache: Cache, one: Any, place: Place | None
    ) -> None:
        """Record the result of an id, for invalidation with the COMMIT.

        :param place: the shard location of the id; None if there is no class.
        """
        entry = self.region, self.key(cache, one)
        session.log.invalidate(entry, place, is_made=True)


def _id_type(format_: Any) -> type[Any]:
    found = None
    if isinstance(format_, str) and len(format_) <= _LONGEST_FORMAT:
        found = _KEY_FORMAT.fullmatch(format_)
    if found is None:
        raise OptionError(
            "is not a valid format of keys: use %d or %s once, for the id, "
            f"and up to {_LONGEST_FORMAT - 2} other ASCII characters, without "
            "spaces and %",
            option="format",
            value=format_,
        )
    return int if found[1] == "d" else str


# -- registry

#: Weak references, as modules may be reloaded.  The tuples are replaced and
#: never changed: other threads read them without the lock.
_known: list[tuple[ref[FunctionCache], ...]] = [()]
_by_table: WeakKeyDictionary[Any, tuple[ref[FunctionCache], ...]] = WeakKeyDictionary()
_lock = threading.Lock()


def register(cached: FunctionCache) -> None:
    """Register the cache of a function.

    :raises OptionError: if another function has the same format.
    """
    with _lock:
        for known in _alive_caches(_known[0]):
            if known.format == cached.format and not _is_reloaded(known, cached):
                raise OptionError(
                    f"is already the format of {known.name}(): each function "
                    "would remove the other's results; use another format, "
                    "and define a function once, at the top of a module",
                    option="format",
                    value=cached.format,
                )
        _known[0] = _with_cache(_known[0], cached)
        if cached.table is not None:
            others = _by_table.get(cached.table, ())
            _by_table[cached.table] = _with_cache(others, cached)


def _with_cache(
    refs: Iterable[ref[FunctionCache]], cached: FunctionCache
) -> tuple[ref[FunctionCache], ...]:
    return (*map(ref, _alive_caches(refs)), ref(cached))


def _alive_caches(refs: Iterable[ref[FunctionCache]]) -> list[FunctionCache]:
    caches = [one() for one in refs]
    return [one for one in caches if one is not None]


def _is_reloaded(known: FunctionCache, cached: FunctionCache) -> bool:
    """Return whether a function was defined again by a reloaded module."""
    # Two closures of the same code may have different variables, and would
    # read each other's results.
    same_code = known.function.__code__ is cached.function.__code__
    return known.identity == cached.identity and not same_code


def functions_of(table: Any, cache: Cache) -> Sequence[FunctionCache]:
    """Return the functions of a class whose regions are in a cache.

    :param table: the table of the class.
    """
    refs = _by_table.get(table)
    if not refs:
        return ()
    return [one for one in _alive_caches(refs) if one.region in cache.regions]


# -- sessions


def shard_session(session: Any) -> ShardSession:
    """Return the ``ShardSession`` of a session, or of a registry of sessions.

    :raises TypeError: if it is another object.
    """
    if isinstance(session, (scoped_session, async_scoped_session)):
        session = session()
    session = getattr(session, "sync_session", session)
    if not isinstance(session, ShardSession):
        raise TypeError(
            f"{session!r:.100} is neither a ShardSession nor an AsyncShardSession"
        )
    return session


def with_transaction(session: Any) -> ShardSession:
    """Return the :func:`shard_session`; begin a transaction if needed."""
    own_session = shard_session(session)
    own_session._check_process()
    # Begin the transaction, as a statement would: shard locations and
    # recorded keys belong to it.
    private.autobegin(own_session)
    return own_session


# -- Results, from the cache or from the functions.
#
# A function may read any server, and objects that its session has loaded.  A
# result is stored only if all that it reads is newer than its lease.


#: The result for an id that is not in a mapping.
ABSENT: Any = object()

_encode = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False
).encode


class ListPrefix(NamedTuple):
    """The first items of a list.

    :ivar items: the items, as the function returns them.
    :ivar is_whole: whether the list has no other items.
    """

    items: list[Any]
    is_whole: bool


def read(session: ShardSession, cache: Cache, source: _Source) -> dict[Any, Any]:
    """Return results for the ids of a source: cached or loaded ones.

    :param cache: the cache; reads of the session may use it.
    """
    cached = source.cached
    region = cache.region(cached.region)
    values: dict[str, Any] = read_through(
        store_of(region.store, session),
        list(source.ids),
        source,
        region.times,
        leases=_is_fresh(session),
        tally=cache.tally(cached.region),
        sleep=sleep_of(session),
        still=lambda: _is_fresh(session),
    )
    return {source.ids[key]: one for key, one in values.items()}


def _is_fresh(session: ShardSession) -> bool:
    """Return whether a function would read only the latest commits."""
    # The session does not read a loaded object again.
    states = session.identity_map.all_states()
    return session.reads_latest() and all(state.expired for state in states)


@contextmanager
def _from_database(session: ShardSession) -> Iterator[None]:
    """Read rows from the database, and not from the cache.

    Cached rows may be stale while their invalidation is pending in the
    outbox; a result that is computed from them would be stale for longer.
    """
    before, session.uses_cache = session.uses_cache, False
    try:
        yield
    finally:
        session.uses_cache = before


class _Source:
    """The ids of one call; a :class:`~.protocol.Source`."""

    def __init__(
        self,
        cached: FunctionCache,
        session: ShardSession,
        cache: Cache,
        ids: Sequence[Any],
        call: Callable[..., Any],
    ) -> None:
        self.cached = cached
        self._session = session
        self._call = call
        self._expire = cached.expire or cache.region(cached.region).times.expire
        self.ids: dict[str, Any] = {cached.key(cache, one): one for one in ids}
        self._tags = {k: cached.tag(session, i) for k, i in self.ids.items()}
        self._fresh: set[str] = set()

    def decode(self, values: Mapping[str, bytes]) -> dict[str, Any]:
        decoded = {}
        for key, value in values.items():
            tag = self._tags[key]
            if value.startswith(tag):
                # Load values again that cannot be decoded.
                with suppress(RecursionError, TypeError, ValueError):
                    decoded[key] = self._decode_result(parse_json(value[len(tag) :]))
        return decoded

    def encode(self, key: str, loaded: Any) -> tuple[bytes, int] | None:
        body = self._encode_result(loaded) if key in self._fresh else None
        if body is None:
            return None
        return self._tags[key] + self._encode_json(key, body), self._expire

    def load(self, keys: Sequence[str], leased: Collection[str]) -> Mapping[str, Any]:
        wanted = set(keys)
        # Use the order of the caller, and not that of the nodes.
        ids = {key: one for key, one in self.ids.items() if key in wanted}
        with _from_database(self._session) if leased else nullcontext():
            loaded = self._load(ids)
        # If the transaction has written, its results may be rolled back.
        if self._session.log.first is None:
            self._fresh.update(keys)
        return loaded

    def _load(self, ids: Mapping[str, Any]) -> Mapping[str, Any]:
        raise NotImplementedError

    def _decode_result(self, body: Any) -> Any:
        """Return the result of decoded JSON; see :meth:`_encode_result`.

        :raises ValueError: if it is not an encoded result.
        """
        raise NotImplementedError

    def _encode_result(self, loaded: Any) -> Any:
        raise NotImplementedError

    def _encode_json(self, key: str, body: Any) -> bytes:
        try:
            return _encode(body).encode("utf-8")
        except (RecursionError, ValueError) as error:
            raise self._function_error(
                f"has returned for {self.ids[key]!r:.100} a value that cannot "
                f"be JSON: {error}"
            ) from error

    def _check(self, one: Any, value: Any) -> None:
        """Refuse a result that JSON would change."""
        try:
            odd = _describe_non_json(value)
        except RecursionError:
            odd = "something that contains itself"
        if odd is not None:
            raise self._function_error(
                f"has returned {odd} for {one!r:.100}; cached results must be "
                "JSON values: None, bool, int, float, str, and lists or dicts "
                "of these"
            )

    def _function_error(self, message: str) -> CachedFunctionError:
        return CachedFunctionError(message, function=self.cached.name)


def _split_flag(body: Any) -> tuple[bool, Any]:
    """Return a flag and the value after it."""
    if type(body) is not list:
        raise ValueError("not a list")
    flag, value = body
    if type(flag) is not int or flag not in (0, 1):
        raise ValueError("neither 0 nor 1")
    return bool(flag), value


def _describe_non_json(value: Any) -> str | None:
    """Describe the part of a value that is not JSON; None if all of it is."""
    kind = type(value)
    items: Collection[Any] = ()
    if kind is list:
        items = value
    elif kind is dict:
        for key in value:
            if type(key) is not str:
                return f"a dict with the key {key!r:.100}"
        items = value.values()
    elif kind is float:
        return None if isfinite(value) else f"the float {value}"
    elif value is not None and kind not in (bool, int, str):
        return f"a value of type {kind.__name__}"
    for item in items:
        odd = _describe_non_json(item)
        if odd is not None:
            return odd
    return None


class Values(_Source):
    """The results of a function for each of several ids.

    :ivar is_list: whether the function returns a list, in the order of ids,
        and not a mapping; None if unknown.
    """

    is_list: bool | None = None

    def _decode_result(self, body: Any) -> Any:
        is_list, value = _split_flag(body)
        if value is None:
            raise ValueError("a value that is never cached")
        known = self.is_list
        if known is not None and known is not is_list:
            raise ValueError("a list and a mapping")
        self.is_list = is_list
        return value

    def _encode_result(self, loaded: Any) -> Any:
        # None is not cached: the id of an INSERT is unknown before, so that it
        # could not invalidate the result.
        if loaded is None or loaded is ABSENT:
            return None
        return [int(bool(self.is_list)), loaded]

    def _load(self, ids: Mapping[str, Any]) -> Mapping[str, Any]:
        requested = list(ids.values())
        returned = self._call(requested)
        if isinstance(returned, Mapping):
            self.is_list = False
            known = set(requested)
            unknown = [one for one in returned if one not in known]
            if unknown:
                raise self._function_error(
                    f"has returned the key {unknown[0]!r:.100}, which is not "
                    "one of the ids of the call"
                )
            found = {one: returned.get(one, ABSENT) for one in requested}
        elif isinstance(returned, list):
            self.is_list = True
            if len(returned) != len(requested):
                raise self._function_error(
                    f"was called with {len(requested)} ids and has returned "
                    f"{len(returned)} values; return None for ids that are "
                    "not found"
                )
            found = dict(zip(requested, returned, strict=True))
        else:
            raise self._function_error(
                f"has returned a {type(returned).__name__}; return a mapping "
                "by id, or a list in the order of the ids"
            )
        for one, value in found.items():
            if value is not ABSENT:
                self._check(one, value)
        return {key: found[one] for key, one in ids.items()}


class Prefixes(_Source):
    """The first items of a list.

    :ivar rows: maximum number of items.
    """

    rows = 0

    def _decode_result(self, body: Any) -> Any:
        is_whole, items = _split_flag(body)
        if type(items) is not list or len(items) > self.rows:
            raise ValueError("not the items of a list")
        return ListPrefix(items, is_whole)

    def _encode_result(self, loaded: Any) -> Any:
        return [int(loaded.is_whole), loaded.items]

    def _load(self, ids: Mapping[str, Any]) -> Mapping[str, Any]:
        found = {}
        for key, one in ids.items():
            items = self._call(one, 0, self.rows)
            if not isinstance(items, list):
                raise self._function_error(
                    f"has returned a {type(items).__name__}; return a list"
                )
            if len(items) > self.rows:
                raise self._function_error(
                    f"has returned {len(items)} items, with a limit of {self.rows}"
                )
            self._check(one, items)
            found[key] = ListPrefix(items, len(items) < self.rows)
        return found


class CachedFunction(Protocol[P, R_co]):
    """A function whose results are cached."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Return the result of the function, or a cached one."""
        ...

    def invalidate(self, session: Any, ids: Any) -> None:
        """Invalidate results with the COMMIT of a transaction.

        The transaction need not write anything itself.  Do not await it.

        :param session: the session; begins a transaction if there is none.
        :param ids: one id, or several.
        :raises CachedFunctionError: if an id is not of the type of the format.
        :raises OptionError: if the cache does not have the region.
        """
        ...


def cached_objects(
    region: str,
    *,
    format: str,  # noqa: A002  # as in Pinterest's
    version: int = 1,
    expire: int | None = None,
    of: Any = None,
) -> Callable[[Callable[P, R]], CachedFunction[P, R]]:
    """Cache the results of a function for each of several ids.

    The function takes a session and ids, and returns a mapping by id, or a
    list in the order of the ids; it is called with the ids that are not
    cached.  None, and ids that are not in the mapping, are not cached.
    It may be ``async def``, with an :class:`~sqla_shard.AsyncShardSession`.

    :param region: name of a region of ``cluster.cache``.
    :param format: format of the keys, with ``%d`` or ``%s`` for the id; each
        function needs a different one.
    :param version: a new version makes earlier results unreadable; raise it
        when the meaning of the results changes.
    :param expire: seconds after which a result expires; by default the
        ``expiration_time`` of the region.
    :param of: the object class of the ids, or the mapping class whose source
        ids they are: a write to such a row invalidates the result.
    :raises OptionError: if an option is not valid, or another function
        has the format.
    :raises CacheClassError: if ``of`` is neither of them.
    :raises CachedFunctionError: if the function has other parameters.
    """
    options = {"format": format, "version": version, "expire": expire, "of": of}
    make = partial(FunctionCache, region=region, parts=["objects"], **options)
    signature = 2, "a session and ids"
    return partial(_decorate, make=make, signature=signature, reader=_ResultReader)


def cached_list(
    region: str,
    *,
    format: str,  # noqa: A002  # as in Pinterest's
    version: int = 1,
    expire: int | None = None,
    rows: int = 500,
    of: Any = None,
) -> Callable[[Callable[P, R]], CachedFunction[P, R]]:
    """Cache the first items that a function returns of a list.

    The function takes a session, an id, an offset and a limit, and returns
    a list.  It is called with offset 0 and limit ``rows``; if it returns
    fewer items, the list has no others.  For pages after the first ``rows``
    items the function is called each time.

    :param region: see :func:`cached_objects`, as for the other parameters.
    :param rows: maximum number of cached items, 1 to 10,000.
    :raises OptionError: if an option is not valid, or another function
        has the format.
    :raises CacheClassError: if ``of`` cannot be cached.
    :raises CachedFunctionError: if the function has other parameters.
    """
    options = {"format": format, "version": version, "expire": expire, "of": of}
    parts = ["list", check_rows(rows)]
    make = partial(FunctionCache, region=region, parts=parts, **options)
    signature = 4, "a session, an id, an offset and a limit"
    reader = partial(_List, rows=rows)
    return partial(_decorate, make=make, signature=signature, reader=reader)


class _Signature:
    """The signature of a function.

    :param number: the number of its parameters.
    :param what: a description of the parameters, for messages.
    :raises CachedFunctionError: if it has other parameters.
    """

    def __init__(self, function: Callable[..., Any], number: int, what: str) -> None:
        self.function = function
        if not inspect.isfunction(function):
            raise CachedFunctionError(
                f"is a {type(function).__name__}; decorate a function, below "
                "other decorators",
                function=getattr(function, "__qualname__", repr(function)),
            )
        self.name = f"{function.__module__}.{function.__qualname__}"
        self._number = number
        self._signature = inspect.signature(function)
        parameters = self._signature.parameters.values()
        if len(parameters) != number or any(
            parameter.kind not in _POSITIONAL for parameter in parameters
        ):
            raise CachedFunctionError(
                f"takes {self._signature}; a cached function takes {what}",
                function=self.name,
            )
        self.is_async = inspect.iscoroutinefunction(function)

    def bind(self, args: Any, kwargs: Any) -> Sequence[Any]:
        """Return all arguments, in order.

        :raises TypeError: if they do not match the signature.
        """
        if len(args) == self._number and not kwargs:
            return tuple(args)
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.args

    def check(self, session: Any) -> None:
        """Refuse a sync session for an async function, and vice versa.

        :raises CachedFunctionError: if the session is of the other kind.
        """
        is_async = isinstance(session, (AsyncSession, async_scoped_session))
        if is_async and not self.is_async:
            raise CachedFunctionError(
                "cannot await; call it in `await session.run_sync(...)`, or "
                "write it with async def",
                function=self.name,
            )
        if self.is_async and not is_async:
            raise CachedFunctionError(
                f"takes an AsyncShardSession, not a {type(session).__name__}",
                function=self.name,
            )

    def __call__(self, *args: Any) -> Any:
        """Call the function; await it if it is a coroutine function."""
        returned = self.function(*args)
        return await_only(returned) if self.is_async else returned


def _decorate(
    function: Callable[..., Any],
    *,
    signature: tuple[int, str],
    make: Callable[..., FunctionCache],
    reader: Callable[[_Signature, FunctionCache], Callable[..., Any]],
) -> Any:
    """Return the replacement of a function; register its cache.

    :param signature: the number of parameters, and their description.
    :param make: returns the cache of the function.
    :param reader: returns the reader of the cache.
    """
    call = _Signature(function, *signature)
    cached = make(function)
    reads = reader(call, cached)
    register(cached)
    wrapper: Any
    if call.is_async:

        @wraps(call.function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            bound = call.bind(args, kwargs)
            call.check(bound[0])
            return await greenlet_spawn(reads, *bound)

    else:

        @wraps(call.function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            bound = call.bind(args, kwargs)
            call.check(bound[0])
            return reads(*bound)

    wrapper.invalidate = cached.invalidate
    return wrapper


def _open(session: Any) -> Any:
    """Return the cache; None if reads of the session must not use it."""
    if usable_cache(shard_session(session)) is None:
        return None
    # Flush as a statement would; after a flush that writes, the cache is not
    # used.
    session = with_transaction(session)
    private.autoflush(session)
    return usable_cache(session)


class _ResultReader:
    """Reads the results for several ids."""

    def __init__(self, call: _Signature, cached: FunctionCache) -> None:
        self._call = call
        self._cached = cached
        #: Whether the last result in this process was a list.
        self._is_list: bool | None = None

    def __call__(self, session: Any, ids: Any) -> Any:
        requested = list(ids)
        self._cached.check(requested)
        cache = _open(session) if requested else None
        if cache is None:
            return self._call(session, requested)
        source = Values(
            self._cached,
            shard_session(session),
            cache,
            requested,
            lambda ids: self._call(session, ids),
        )
        source.is_list = self._is_list
        values = read(shard_session(session), cache, source)
        self._is_list = source.is_list
        if source.is_list:
            return [values[one] for one in requested]
        return {
            one: values[one]
            for one in dict.fromkeys(requested)
            if values[one] is not ABSENT
        }


class _List:
    """Reads a part of a list."""

    def __init__(self, call: _Signature, cached: FunctionCache, rows: int) -> None:
        self._call = call
        self._cached = cached
        self._rows = rows

    def __call__(self, session: Any, one: Any, offset: Any, limit: Any) -> Any:
        self._cached.check([one])
        cache = None
        if self._begins_in_cache(offset, limit):
            cache = _open(session)
        if cache is not None:
            source = Prefixes(
                self._cached,
                shard_session(session),
                cache,
                [one],
                lambda *arguments: self._call(session, *arguments),
            )
            source.rows = self._rows
            prefix: ListPrefix = read(shard_session(session), cache, source)[one]
            if prefix.is_whole or offset + limit <= len(prefix.items):
                return prefix.items[offset : offset + limit]
        return self._call(session, one, offset, limit)

    def _begins_in_cache(self, offset: Any, limit: Any) -> bool:
        """Return whether a page begins in the cached items."""
        # Other arguments, such as None, are passed to the function.
        if type(offset) is not int or type(limit) is not int:
            return False
        return 0 <= offset < self._rows and limit >= 0
