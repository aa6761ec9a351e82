"""The asynchronous session: SQLAlchemy's own, around a ShardSession.

There is one implementation of everything.  :class:`AsyncShardSession` awaits
the methods of a :class:`~sqla_shard.session.ShardSession`, which runs in a
greenlet, and :mod:`sqla_shard.cluster.event_loops` gives it connections that
are awaited instead of waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapper
from sqlalchemy.util import greenlet_spawn

from sqla_shard.session import ShardSession
from sqla_shard.session.session import SessionContext

__all__ = ["AsyncSessionContext", "AsyncShardSession", "to_the_end"]

P = ParamSpec("P")
T = TypeVar("T")


def _awaited(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return a method that awaits the method of the inner session."""

    @wraps(method)
    async def awaited(session: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        # By its name: a subclass of the inner session may override it.
        inner: Any = getattr(session.sync_session, method.__name__)
        result: T = await greenlet_spawn(partial(inner, *args, **kwargs))
        return result

    return awaited


class AsyncShardSession(AsyncSession):
    """A session over the virtual shards of a cluster, for event loops.

    ``cluster.async_session()`` and ``cluster.async_begin()`` return it.  As
    with every :class:`~sqlalchemy.ext.asyncio.AsyncSession`, one task uses
    it at a time, and lazy loading raises
    :exc:`sqlalchemy.exc.MissingGreenlet`.

    :ivar sync_session: the :class:`ShardSession` inside, which
        ``run_sync(fn)`` hands to ``fn``.
    """

    sync_session_class = ShardSession
    sync_session: ShardSession

    async def get(
        self, entity: type[T] | Mapper[T], ident: Any, **kwargs: Any
    ) -> T | None:
        """Return the object of an id; see :meth:`ShardSession.get`."""
        # The inherited method passes every option; a get() without options is
        # faster.
        return await greenlet_spawn(self.sync_session.get, entity, ident, **kwargs)

    get_many = _awaited(ShardSession.get_many)
    scatter_page = _awaited(ShardSession.scatter_page)

    async def __aexit__(self, *details: object) -> None:
        await to_the_end(self.close(), cut=True)


class AsyncSessionContext:
    """A context manager of a session and its transaction.

    :param session: a new session.
    :ivar cancelled: whether the task was cancelled during COMMIT.
    """

    def __init__(self, session: AsyncShardSession) -> None:
        self._session = session
        self._context = SessionContext(session.sync_session)
        self.cancelled = False

    async def __aenter__(self) -> AsyncShardSession:
        # No server is connected to yet: there is nothing to await.
        self._context.__enter__()
        return self._session

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await to_the_end(
            greenlet_spawn(self._context.__exit__, kind, error, trace),
            cut=kind is not None,
            on_cancel=self._cancelled,
        )

    def _cancelled(self) -> None:
        self.cancelled = True


async def to_the_end(
    ending: Coroutine[Any, Any, T],
    *,
    cut: bool = False,
    on_cancel: Callable[[], None] | None = None,
) -> T:
    """Await a coroutine to its end, even in a task that is cancelled.

    A COMMIT that is interrupted may or may not have taken effect, and a
    connection that is not returned is lost to its pool.

    :param cut: cancel the coroutine with the task, and await its end; the
        server rolls back when the connection is closed.
    :param on_cancel: called when the task is cancelled.
    :raises CancelledError: after the end of the coroutine, if the task was
        cancelled meanwhile.
    """
    task = asyncio.ensure_future(ending)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
            if on_cancel is not None:
                on_cancel()
            if cut:
                task.cancel()
    if cancelled is not None:
        if not task.cancelled():
            # An error is raised instead of the cancellation.
            task.result()
        raise cancelled
    return task.result()
