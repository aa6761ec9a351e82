"""Decorators that keep what an application's own functions return.

.. code-block:: python

    @cached_objects("objects", format="user:%d", version=1, of=User)
    def user_get_many(session, user_ids): ...


    @cached_list("lists", format="b:p:%d", version=1, of=BoardHasPins)
    def get_board_pins(session, board_id, offset, limit): ...

Calls look as before.  Where the cluster of the session has no cache, the
functions are called; so they are in a transaction that has written, and with
``session.uses_cache`` set to False.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from collections.abc import Sequence
from functools import wraps
from typing import Any
from typing import ParamSpec
from typing import Protocol
from typing import TypeVar

from sqlalchemy.ext.asyncio import async_scoped_session
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.util import await_only
from sqlalchemy.util import greenlet_spawn

from sqla_shard.cache.classes import check_rows
from sqla_shard.cache.functions import begun
from sqla_shard.cache.functions import KeptFunction
from sqla_shard.cache.functions import register
from sqla_shard.cache.functions import scope_of
from sqla_shard.cache.results import ABSENT
from sqla_shard.cache.results import Prefix
from sqla_shard.cache.results import Prefixes
from sqla_shard.cache.results import read
from sqla_shard.cache.results import Values
from sqla_shard.exc import CachedFunctionError
from sqla_shard.session.contract import open_cache

__all__ = ["CachedFunction", "cached_list", "cached_objects"]

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)


class CachedFunction(Protocol[P, R_co]):
    """A function whose results are kept."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Return what the function returns, or has returned before."""
        ...

    def invalidate(self, session: Any, ids: Any) -> None:
        """Have results invalidated with the COMMIT of a transaction.

        The transaction need not write anything itself.  Not to be awaited.

        :param session: its transaction begins, if need be.
        :param ids: one id, or several.
        :raises CachedFunctionError: when one is not what the format takes.
        :raises CacheOptionError: when the cache has no such region.
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
    """Keep what a function returns for each of several ids.

    The function takes a session and ids, and returns a mapping by id, or a
    list in the order of the ids; it is called with those that are not kept.
    None and what the mapping leaves out is not kept.  It may be ``async
    def``, with an :class:`~sqla_shard.AsyncShardSession`.

    :param region: name of a region of ``cluster.cache``.
    :param format: of the keys, with ``%d`` or ``%s`` for the id; no two
        functions have the same.
    :param version: another one makes what was kept before unreadable; raise
        it when the function returns something else than before.
    :param expire: seconds that a result is kept; else those of the region.
    :param of: the object class that the ids are of, or the mapping class
        that they are sources of: a result is invalidated when such a row is
        written.
    :raises CacheOptionError: when an option makes no sense, or another
        function has the format.
    :raises CacheClassError: when ``of`` is neither.
    :raises CachedFunctionError: when the function has other parameters.
    """

    def decorate(function: Callable[P, R]) -> CachedFunction[P, R]:
        call = _Call(function, 2, "a session and ids")
        kept = KeptFunction(
            function,
            region,
            format=format,
            version=version,
            expire=expire,
            of=of,
            parts=["objects"],
        )
        made: CachedFunction[P, R] = _wrapped(call, kept, _Objects(call, kept))
        return made

    return decorate


def cached_list(
    region: str,
    *,
    format: str,  # noqa: A002  # as in Pinterest's
    version: int = 1,
    expire: int | None = None,
    rows: int = 500,
    of: Any = None,
) -> Callable[[Callable[P, R]], CachedFunction[P, R]]:
    """Keep the first items that a function returns of a list.

    The function takes a session, an id, an offset and a limit, and returns
    a list.  It is called with offset 0 and limit ``rows``, and has to return
    so many if there are: fewer say that these are all.  What lies behind
    them is asked of the function each time.

    :param region: as for :func:`cached_objects`, and so are the others.
    :param rows: how many items are kept, 1 to 10,000.
    :raises CacheOptionError: when an option makes no sense, or another
        function has the format.
    :raises CacheClassError: when ``of`` is no class that rows are kept of.
    :raises CachedFunctionError: when the function has other parameters.
    """

    def decorate(function: Callable[P, R]) -> CachedFunction[P, R]:
        call = _Call(function, 4, "a session, an id, an offset and a limit")
        kept = KeptFunction(
            function,
            region,
            format=format,
            version=version,
            expire=expire,
            of=of,
            parts=["list", check_rows(rows)],
        )
        made: CachedFunction[P, R] = _wrapped(
            call, kept, _List(call, kept, rows)
        )
        return made

    return decorate


class _Call:
    """How a function is called.

    :param number: of its parameters.
    :param what: they are.
    :raises CachedFunctionError: when it has others.
    """

    def __init__(
        self, function: Callable[..., Any], number: int, what: str
    ) -> None:
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

    def bound(self, args: Any, kwargs: Any) -> Sequence[Any]:
        """Return all arguments, in order.

        :raises TypeError: as the function would.
        """
        if len(args) == self._number and not kwargs:
            return tuple(args)
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.args

    def check(self, session: Any) -> None:
        """Refuse a session of the other kind.

        :raises CachedFunctionError: when it is.
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
        """Call the function, in the greenlet of a session where it waits."""
        returned = self.function(*args)
        return await_only(returned) if self.is_async else returned


def _wrapped(call: _Call, kept: KeptFunction, reads: Any) -> Any:
    """Return what takes the place of the function."""
    register(kept)
    wrapper: Any
    if call.is_async:

        @wraps(call.function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            bound = call.bound(args, kwargs)
            call.check(bound[0])
            return await greenlet_spawn(reads, *bound)

    else:

        @wraps(call.function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            bound = call.bound(args, kwargs)
            call.check(bound[0])
            return reads(*bound)

    wrapper.invalidate = kept.invalidate
    return wrapper


def _open(session: Any) -> Any:
    """Return the cache, if what the session reads may be there."""
    if open_cache(scope_of(session)) is None:
        return None
    # As a statement would; what it writes is not in the cache.
    scope = begun(session)
    scope._autoflush()
    return open_cache(scope)


class _Objects:
    """Answers calls that ask for several ids."""

    def __init__(self, call: _Call, kept: KeptFunction) -> None:
        self._call = call
        self._kept = kept
        #: What it has returned last in this process.
        self._is_list: bool | None = None

    def __call__(self, session: Any, ids: Any) -> Any:
        asked = list(ids)
        self._kept.check(asked)
        caching = _open(session) if asked else None
        if caching is None:
            return self._call(session, asked)
        source = Values(
            self._kept,
            scope_of(session),
            caching,
            asked,
            lambda some: self._call(session, some),
        )
        source.is_list = self._is_list
        values = read(scope_of(session), caching, source)
        self._is_list = source.is_list
        if source.is_list:
            return [values[one] for one in asked]
        return {
            one: values[one]
            for one in dict.fromkeys(asked)
            if values[one] is not ABSENT
        }


class _List:
    """Answers calls that ask for a part of a list."""

    def __init__(self, call: _Call, kept: KeptFunction, rows: int) -> None:
        self._call = call
        self._kept = kept
        self._rows = rows

    def __call__(self, session: Any, one: Any, offset: Any, limit: Any) -> Any:
        self._kept.check([one])
        caching = None
        if self._is_near(offset, limit):
            caching = _open(session)
        if caching is not None:
            source = Prefixes(
                self._kept,
                scope_of(session),
                caching,
                [one],
                lambda *some: self._call(session, *some),
            )
            source.rows = self._rows
            prefix: Prefix = read(scope_of(session), caching, source)[one]
            if prefix.is_whole or offset + limit <= len(prefix.items):
                return prefix.items[offset : offset + limit]
        return self._call(session, one, offset, limit)

    def _is_near(self, offset: Any, limit: Any) -> bool:
        """Tell whether a page begins in what is kept."""
        # What the function makes of others, such as None, is its own.
        if type(offset) is not int or type(limit) is not int:
            return False
        return 0 <= offset < self._rows and limit >= 0
