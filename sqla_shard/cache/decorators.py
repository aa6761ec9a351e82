"""Decorators that cache results of an application's own functions.

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
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, ParamSpec, Protocol, TypeVar

from sqlalchemy.ext.asyncio import async_scoped_session, AsyncSession
from sqlalchemy.util import await_only, greenlet_spawn

from sqla_shard.cache.columns import check_rows
from sqla_shard.cache.functions import (
    ABSENT,
    FunctionCache,
    ListPrefix,
    Prefixes,
    read,
    register,
    shard_session,
    Values,
    with_transaction,
)
from sqla_shard.exc import CachedFunctionError
from sqla_shard.session.row_cache import usable_cache
from sqla_shard.util import sqlalchemy_private as private

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)


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
    return partial(_decorate, make=make, signature=signature, reader=_Objects)


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


class _Call:
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
            one.kind not in _POSITIONAL for one in parameters
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
    reader: Callable[[_Call, FunctionCache], Callable[..., Any]],
) -> Any:
    """Return the replacement of a function; register its cache.

    :param signature: the number of parameters, and their description.
    :param make: returns the cache of the function.
    :param reader: returns the reader of the cache.
    """
    call = _Call(function, *signature)
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


class _Objects:
    """Reads the results for several ids."""

    def __init__(self, call: _Call, cached: FunctionCache) -> None:
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

    def __init__(self, call: _Call, cached: FunctionCache, rows: int) -> None:
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
