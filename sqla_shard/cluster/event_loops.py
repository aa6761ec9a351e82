"""The asynchronous session, and the engines of each event loop.

There is one implementation of everything.  :class:`AsyncShardSession` awaits
the methods of a :class:`~sqla_shard.session.ShardSession`, which runs in a
greenlet, and its connections are awaited instead of waited for.

A connection of an asynchronous driver belongs to the event loop that opened
it.  So each loop has engines and pools of its own; a session uses those of the
loop that is running when it needs its first connection.  One cluster serves
several loops: one in each of several threads, or one after another, as in
tests.

The engines of a loop are closed when it ends: ``asyncio.run()``, and every
runner built on it, closes the asynchronous generators of a loop, one of which
closes the engines.  If a loop was closed in another way, its connections are
closed when the next loop creates its engines.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from time import monotonic
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TYPE_CHECKING, TypeVar

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Mapper
from sqlalchemy.util import greenlet_spawn

from sqla_shard.dialects import Backend
from sqla_shard.engine import (
    Answer,
    AwaitedLanes,
    Engines,
    EngineStats,
    no_answer,
    Places,
    StatementReports,
)
from sqla_shard.engine.registry import LOOK
from sqla_shard.exc import NoEventLoopError
from sqla_shard.session import PlacementPolicy, ShardSession
from sqla_shard.session.paging import Page, Seal
from sqla_shard.session.placement import IdService
from sqla_shard.session.session import SessionContext
from sqla_shard.topology import Topology

if TYPE_CHECKING:
    from sqla_shard import Cluster
    from sqla_shard.cache import Cache


T = TypeVar("T")

P = ParamSpec("P")


class LoopEngines(Engines):
    """The engines of one event loop; no other loop uses them.

    :param options: arguments of :class:`~sqla_shard.engine.Engines`, without
        ``lanes``.
    """

    asynchronous = True

    def __init__(self, **options: Any) -> None:
        self._awaited = AwaitedLanes()
        super().__init__(lanes=self._awaited, **options)
        self._all_back = asyncio.Event()
        self._disposing: set[asyncio.Task[None]] = set()

    def checked_in(self, record: Any) -> None:
        """Count a connection as idle or closed; called by listeners."""
        # No lock: the garbage collector calls it too, at any time.
        self.in_use.discard(weakref.ref(record))
        if self.retired.engines:
            self._drop_idle()
        if not self.in_use:
            self._all_back.set()

    def in_parallel(
        self, jobs: Sequence[Callable[[], T]], purpose: str, most: int = 64
    ) -> list[T]:
        """Run a job for each server at the same time, without threads."""
        waiting = deque(enumerate(jobs))
        results: dict[int, T] = {}

        def lane() -> None:
            while waiting:
                index, job = waiting.popleft()
                results[index] = job()

        self._awaited.run([lane] * min(most, len(jobs)))
        return [results[index] for index in range(len(jobs))]

    def _ask_all(
        self, jobs: Sequence[Callable[[], Answer]], timeout: float
    ) -> list[Answer]:
        futures = self._awaited.attempt(jobs, timeout)
        return [
            future.result() if future.done() else no_answer(timeout)
            for future in futures
        ]

    async def aclose(self, timeout: float) -> bool:
        """Refuse new sessions, wait for running ones, close all connections.

        :param timeout: seconds to wait for connections in use; those that
            remain are closed when they are returned.
        :returns: whether all were returned in time.
        """
        self.shut()
        deadline = monotonic() + timeout
        while self.in_use and (seconds := deadline - monotonic()) > 0:
            self._all_back.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._all_back.wait(), min(seconds, LOOK))
        await self._dispose()
        return not self.in_use

    async def until_the_loop_ends(self) -> AsyncGenerator[None, None]:
        """Close all engines when the event loop ends this generator."""
        try:
            yield
        finally:
            # Connections that are in use are closed at checkin.
            self.pools_connections = False
            await self._dispose()

    async def _dispose(self) -> None:
        for engine in (*self, *list(self.retired.engines)):
            await AsyncEngine(engine).dispose()

    def _dispose_idle(self, engine: Engine) -> None:
        # The event loop has only a weak reference to a task.
        task = asyncio.ensure_future(AsyncEngine(engine).dispose())
        self._disposing.add(task)
        task.add_done_callback(self._disposing.discard)

    def give_up(self) -> None:
        """Close the open connections, after the event loop was closed."""
        for backend, connection in self.open_connections.take():
            backend.give_up(connection)

    def after_fork(self) -> None:
        """Give up, in a child process, the connections of the parent."""
        # Never freed: finalizers would write to the connections of the parent.
        _abandoned.append(self)
        for backend, connection in self.open_connections.take():
            backend.abandon(connection)


_abandoned: list[LoopEngines] = []


@dataclass
class _Loop:
    engines: LoopEngines
    places: Places
    guard: AsyncGenerator[None, None]


def _of_cluster(name: str) -> Any:
    """Return a property: an attribute of the cluster of synchronous sessions."""
    return property(attrgetter(f"_cluster.{name}"))


class Loops:
    """The engines of all event loops; the cluster of asynchronous sessions.

    :param cluster: the cluster of synchronous sessions.
    :param open_: creates the engines of a loop.
    :param request_topology: see :attr:`.Engines.request_topology`.
    """

    def __init__(
        self,
        cluster: Cluster,
        open_: Callable[[], LoopEngines],
        *,
        request_topology: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._request_topology = request_topology
        self._new_engines = open_
        self._closed = False
        self._process = os.getpid()
        self._known: dict[asyncio.AbstractEventLoop, _Loop] = {}

    @property
    def _loops(self) -> dict[asyncio.AbstractEventLoop, _Loop]:
        if self._process != os.getpid():
            # The loops of a parent process do not run in a child.
            self._process, self._known = os.getpid(), {}
        return self._known

    @property
    def synchronous(self) -> Cluster:
        """The cluster of synchronous sessions."""
        return self._cluster

    # What a session asks of either kind of cluster.
    placement: PlacementPolicy = _of_cluster("placement")
    id_clock: Callable[[], int] = _of_cluster("id_clock")
    id_service: IdService | None = _of_cluster("id_service")
    scatters: bool = _of_cluster("scatters")
    cache: Cache | None = _of_cluster("cache")
    seal: Seal = _of_cluster("seal")
    watch: StatementReports | None = _of_cluster("watch")
    job_context: Callable[[str], dict[str, str]] = _of_cluster("job_context")
    listens: Callable[[str], bool] = _of_cluster("listens")
    notify: Callable[..., None] = _of_cluster("notify")

    @property
    def places(self) -> Places:
        """The current shard locations, for the running event loop.

        :raises NoEventLoopError: if no event loop is running.
        """
        running = self._running()
        topology = self._cluster.places.topology
        if running.places.topology is not topology:
            self._follow(running, topology)
        return running.places

    def follow(self, topology: Topology) -> None:
        """Let every loop use a newer topology."""
        for loop, entry in list(self._loops.items()):
            # The loop may have been closed meanwhile.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._follow, entry, topology)

    def _follow(self, running: _Loop, topology: Topology) -> None:
        """Use a newer topology; called in the thread of the loop."""
        if running.places.topology.version < topology.version:
            running.places = Places(topology, running.engines)
            running.engines.follow(topology)

    def _running(self) -> _Loop:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError as error:
            raise NoEventLoopError(
                "an asynchronous session needs a server, but no event loop "
                "is running in this thread; use it in a coroutine"
            ) from error
        # No lock: the engines of a loop are looked up in its own thread only.
        running = self._loops.get(loop)
        if running is None:
            self._give_up_closed()
            running = self._loops[loop] = self._begin()
        return running

    def _begin(self) -> _Loop:
        engines = self._new_engines()
        topology = self._cluster.places.topology
        engines.follow(topology)
        engines.request_topology = self._request_topology
        if self._closed:
            engines.shut()
        guard = engines.until_the_loop_ends()
        # The first step registers the generator with the loop, and awaits
        # nothing.
        first_step: Any = guard.__anext__()
        with contextlib.suppress(StopIteration):
            first_step.send(None)
        return _Loop(engines, Places(topology, engines), guard)

    def _give_up_closed(self) -> None:
        for loop in list(self._loops):
            if loop.is_closed():
                entry = self._loops.pop(loop, None)
                if entry is not None:
                    entry.engines.give_up()

    async def run(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run ``fn`` with the places of this loop, in a greenlet.

        :param args: arguments of ``fn``; ``places`` is passed by name.
        """
        return await greenlet_spawn(fn, *args, places=self.places, **kwargs)

    def backends(self) -> set[Backend]:
        """Return the kinds of the servers in use by this loop."""
        return self._running().engines.backends()

    def stats(self) -> list[EngineStats]:
        """Return the state of every pool of every loop that is open."""
        return [
            stats
            for loop, entry in list(self._loops.items())
            if not loop.is_closed()
            for stats in entry.engines.stats()
        ]

    def shut(self) -> None:
        """Refuse new sessions; close connections when they are returned."""
        self._closed = True
        for entry in list(self._loops.values()):
            entry.engines.shut()
        self._give_up_closed()

    async def aclose(self, timeout: float) -> bool:
        """Close the engines of this loop; refuse new sessions in other loops.

        :param timeout: seconds to wait for connections in use.
        :returns: whether all were returned in time.
        """
        self.shut()
        running = self._running()
        ended = await running.engines.aclose(timeout)
        await running.guard.aclose()
        return ended


class AsyncShardSession(AsyncSession):
    """A session over the virtual shards of a cluster, for event loops.

    ``cluster.async_session()`` and ``cluster.async_begin()`` return it.  As
    with every :class:`~sqlalchemy.ext.asyncio.AsyncSession`, one task uses
    it at a time, and lazy loading raises
    :exc:`sqlalchemy.exc.MissingGreenlet`.

    :ivar sync_session: the :class:`ShardSession` inside, which
        ``run_sync(fn)`` hands to ``fn``.
    """

    sync_session_class: type[ShardSession] = ShardSession
    sync_session: ShardSession

    async def get(
        self, entity: type[T] | Mapper[T], ident: Any, **kwargs: Any
    ) -> T | None:
        """Return the object of an id; see :meth:`ShardSession.get`."""
        # The inherited method passes every option; a get() without options is
        # faster.
        return await greenlet_spawn(self.sync_session.get, entity, ident, **kwargs)

    if TYPE_CHECKING:

        async def run_sync(
            self,
            fn: Callable[Concatenate[ShardSession, P], T],
            *arg: P.args,
            **kw: P.kwargs,
        ) -> T:
            """Await ``fn(sync_session, *arg, **kw)``."""

    async def get_many(
        self,
        entity: type[T],
        ids: Iterable[int],
        *,
        options: Sequence[Any] = (),
        execution_options: Any = None,
    ) -> list[T | None]:
        """Return the objects of several ids; see :meth:`ShardSession.get_many`."""
        given = {"options": options, "execution_options": execution_options}
        return await greenlet_spawn(self.sync_session.get_many, entity, ids, **given)

    async def scatter_page(
        self,
        statement: Any,
        limit: int,
        after: str | None = None,
        *,
        parameters: Any = None,
    ) -> Page[Any]:
        """Return a page of a SELECT; see :meth:`ShardSession.scatter_page`."""
        return await greenlet_spawn(
            self.sync_session.scatter_page,
            statement,
            limit,
            after,
            parameters=parameters,
        )

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
        self.cancelled: bool = False

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
