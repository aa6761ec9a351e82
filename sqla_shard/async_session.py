"""The asynchronous session: SQLAlchemy's own, around a ShardSession.

There is one implementation of everything.  :class:`AsyncShardSession` awaits
the methods of a :class:`~sqla_shard.session.ShardSession`, which runs in a
greenlet, and :mod:`sqla_shard.loops` gives it connections that are awaited
instead of waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from collections.abc import Coroutine
from collections.abc import Iterable
from collections.abc import Sequence
from types import TracebackType
from typing import Any
from typing import TypeVar

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapper
from sqlalchemy.util import greenlet_spawn

from sqla_shard.paging import Page
from sqla_shard.session import ShardSession
from sqla_shard.session.begun import Begun

__all__ = ["AsyncBegun", "AsyncShardSession", "to_the_end"]

T = TypeVar("T")


class AsyncShardSession(AsyncSession):
    """A session over the virtual shards of a cluster, for event loops.

    ``cluster.async_session()`` and ``cluster.async_begin()`` return it.  As
    with every :class:`~sqlalchemy.ext.asyncio.AsyncSession`, one task uses
    it at a time, and what would load lazily raises
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
        # Not the inherited one, which passes on every option that there is:
        # a plain get() is prepared for having none.
        return await greenlet_spawn(
            self.sync_session.get, entity, ident, **kwargs
        )

    async def get_many(
        self,
        entity: type[T],
        ids: Iterable[int],
        *,
        options: Sequence[Any] = (),
        execution_options: Any = None,
    ) -> list[T | None]:
        """Return the objects of ids; see :meth:`ShardSession.get_many`.

        All servers work on it at the same time.
        """
        return await greenlet_spawn(
            self.sync_session.get_many,
            entity,
            ids,
            options=options,
            execution_options=execution_options,
        )

    async def scatter_page(
        self,
        statement: Any,
        limit: int,
        after: str | None = None,
        *,
        parameters: Any = None,
    ) -> Page[Any]:
        """Return a page of rows; see :meth:`ShardSession.scatter_page`."""
        return await greenlet_spawn(
            self.sync_session.scatter_page,
            statement,
            limit,
            after,
            parameters=parameters,
        )

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await to_the_end(self.close(), cut=True)


class AsyncBegun:
    """A session and its transaction, for ``async with``.

    :param session: a new session.
    :ivar cancelled: whether the task was cancelled during COMMIT.
    """

    def __init__(self, session: AsyncShardSession) -> None:
        self._session = session
        self._begun = Begun(session.sync_session)
        self.cancelled = False

    async def __aenter__(self) -> AsyncShardSession:
        # Begins on no server yet: there is nothing to await.
        self._begun.__enter__()
        return self._session

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await to_the_end(
            greenlet_spawn(self._begun.__exit__, kind, error, trace),
            cut=kind is not None,
            told=self._cancelled,
        )

    def _cancelled(self) -> None:
        self.cancelled = True


async def to_the_end(
    ending: Coroutine[Any, Any, T],
    *,
    cut: bool = False,
    told: Callable[[], None] | None = None,
) -> T:
    """Await something to its end, even in a task that is cancelled.

    A COMMIT that is cut off may or may not have taken effect, and a
    connection that is not returned is lost to its pool.

    :param cut: cancel it when the task is, and await what it does then: a
        server rolls back by itself when its connection is closed.
    :param told: called when the task is cancelled.
    :raises CancelledError: after it, when the task was cancelled meanwhile.
    """
    task = asyncio.ensure_future(ending)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
            if told is not None:
                told()
            if cut:
                task.cancel()
    if cancelled is not None:
        if not task.cancelled():
            # An error is told in place of the cancellation.
            task.result()
        raise cancelled
    return task.result()
