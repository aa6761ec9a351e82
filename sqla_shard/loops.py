"""The engines of each event loop.

A connection of an asynchronous driver belongs to the event loop that opened
it.  So each loop has engines and pools of its own, found by the loop that is
running when a session needs its first connection.  One cluster serves
several loops: one in each of several threads, or one after another, as tests
have them.

They are closed when their loop ends: ``asyncio.run()``, like every runner
that is built on it, tells the asynchronous generators of a loop that it is
over, and one of them is ours.  Of a loop that was closed without that, the
connections are given up when the next one asks for its engines.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import AsyncGenerator
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from typing import TypeVar

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import greenlet_spawn

from sqla_shard.dialects import Backend
from sqla_shard.engines import Answer
from sqla_shard.engines import Engines
from sqla_shard.engines import EngineStats
from sqla_shard.engines import no_answer
from sqla_shard.engines import Places
from sqla_shard.exc import NoEventLoopError
from sqla_shard.paging import Seal
from sqla_shard.scattering import AwaitedLanes
from sqla_shard.scattering import Watch
from sqla_shard.session import PlacementPolicy
from sqla_shard.session.contract import Caching
from sqla_shard.session.contract import Home
from sqla_shard.topology import Topology

__all__ = ["LoopEngines", "Loops"]

T = TypeVar("T")


class LoopEngines(Engines):
    """The engines of one event loop, which alone uses them.

    :param options: for :class:`~sqla_shard.engines.Engines`, without
        ``lanes``.
    """

    asynchronous = True

    def __init__(self, **options: Any) -> None:
        self._awaited = AwaitedLanes()
        super().__init__(lanes=self._awaited, **options)
        self._all_back = asyncio.Event()
        self._disposing: set[asyncio.Task[None]] = set()

    def _came_back(self, record: Any) -> None:
        # No lock: the garbage collector calls it too, at any time.
        self._busy.pop(id(record), None)
        self._forget_idle()
        if not self._busy:
            self._all_back.set()

    def at_once(
        self, jobs: Sequence[Callable[[], T]], purpose: str, most: int = 64
    ) -> list[T]:
        """Do something on many servers at the same time, without threads."""
        left = deque(enumerate(jobs))
        results: dict[int, T] = {}

        def lane() -> None:
            while left:
                index, job = left.popleft()
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
        """Let nothing new begin, wait for what is in use, close all.

        :param timeout: seconds to wait for connections to come back; those
            that do not are closed when they do.
        :returns: whether all came back in time.
        """
        self.shut()
        self._all_back.clear()
        if self._busy:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._all_back.wait(), timeout)
        await self._dispose()
        return not self._busy

    async def until_the_loop_ends(self) -> AsyncGenerator[None, None]:
        """Close all when the event loop ends this generator."""
        try:
            yield
        finally:
            # What still runs may go on; its connections are not kept.
            self._keeps = False
            await self._dispose()

    async def _dispose(self) -> None:
        for engine in (*self, *self._retired):
            await AsyncEngine(engine).dispose()

    def _dispose_idle(self, engine: Engine) -> None:
        # The task is kept: the event loop itself only knows it weakly.
        task = asyncio.ensure_future(AsyncEngine(engine).dispose())
        self._disposing.add(task)
        task.add_done_callback(self._disposing.discard)

    def give_up(self) -> None:
        """Close what is open, after the event loop was closed."""
        for backend, connection in self._open.values():
            backend.give_up(connection)
        self._open.clear()

    def after_fork(self) -> None:
        """Give up, in a child process, the connections of the parent."""
        # Kept for ever: finalizers would speak to the parent's servers.
        _abandoned.append(self)
        for backend, connection in self._open.values():
            backend.abandon(connection)


_abandoned: list[LoopEngines] = []


@dataclass
class _Loop:
    engines: LoopEngines
    places: Places
    guard: AsyncGenerator[None, None]


class Loops:
    """What asynchronous sessions have in place of the cluster.

    :param home: the cluster.
    :param open_: makes the engines of a loop.
    :param trouble: see :attr:`Engines.trouble`.
    """

    def __init__(
        self,
        home: Home,
        open_: Callable[[], LoopEngines],
        *,
        trouble: Callable[[], None],
    ) -> None:
        self._home = home
        self._trouble = trouble
        self._new_engines = open_
        self._closed = False
        self._process = os.getpid()
        self._known: dict[asyncio.AbstractEventLoop, _Loop] = {}

    @property
    def _loops(self) -> dict[asyncio.AbstractEventLoop, _Loop]:
        if self._process != os.getpid():
            # No loop of a parent process runs here.
            self._process, self._known = os.getpid(), {}
        return self._known

    @property
    def placement(self) -> PlacementPolicy:
        """The policy for new roots."""
        return self._home.placement

    @property
    def scatters(self) -> bool:
        """Whether statements may go to all shards."""
        return self._home.scatters

    @property
    def caching(self) -> Caching | None:
        """What keeps rows outside of the database."""
        return self._home.caching

    @property
    def seal(self) -> Seal:
        """What makes and opens bookmarks."""
        return self._home.seal

    @property
    def watch(self) -> Watch | None:
        """What else is done with the statements of its sessions."""
        return self._home.watch

    @property
    def places(self) -> Places:
        """Where the shards are now, for the event loop that is running.

        :raises NoEventLoopError: when none is.
        """
        found = self._running()
        topology = self._home.places.topology
        if found.places.topology is not topology:
            self._follow(found, topology)
        return found.places

    def follow(self, topology: Topology) -> None:
        """Have every loop take a newer topology, soon."""
        for loop, found in list(self._loops.items()):
            # One that was closed meanwhile has nothing left to follow with.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._follow, found, topology)

    def _follow(self, found: _Loop, topology: Topology) -> None:
        """Take a newer topology, in the thread of its loop."""
        if found.places.topology.version < topology.version:
            found.places = Places(topology, found.engines)
            found.engines.follow(topology)

    def _running(self) -> _Loop:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError as error:
            raise NoEventLoopError(
                "an asynchronous session needs a server, but no event loop "
                "is running in this thread; use it in a coroutine"
            ) from error
        # A loop is only ever looked up from its own thread: no lock.
        found = self._loops.get(loop)
        if found is None:
            self._give_up_closed()
            found = self._loops[loop] = self._begin()
        return found

    def _begin(self) -> _Loop:
        engines = self._new_engines()
        topology = self._home.places.topology
        engines.follow(topology)
        engines.trouble = self._trouble
        if self._closed:
            engines.shut()
        guard = engines.until_the_loop_ends()
        # Its first step makes it known to the loop, and awaits nothing.
        first_step: Any = guard.__anext__()
        with contextlib.suppress(StopIteration):
            first_step.send(None)
        return _Loop(engines, Places(topology, engines), guard)

    def _give_up_closed(self) -> None:
        for loop in list(self._loops):
            if loop.is_closed():
                found = self._loops.pop(loop, None)
                if found is not None:
                    found.engines.give_up()

    async def run(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run ``fn`` with the places of this loop, in a greenlet.

        :param args: for ``fn``; ``places`` is given by name.
        """
        return await greenlet_spawn(fn, *args, places=self.places, **kwargs)

    def backends(self) -> set[Backend]:
        """Return the kinds of the servers in use by this loop."""
        return self._running().engines.backends()

    def stats(self) -> list[EngineStats]:
        """Return the state of every pool of every loop that is open."""
        return [
            stats
            for loop, found in list(self._loops.items())
            if not loop.is_closed()
            for stats in found.engines.stats()
        ]

    def shut(self) -> None:
        """Let nothing new begin; what comes back is closed."""
        self._closed = True
        for found in list(self._loops.values()):
            found.engines.shut()
        self._give_up_closed()

    async def aclose(self, timeout: float) -> bool:
        """Close the engines of this loop, let those of others begin nothing.

        :param timeout: seconds to wait for connections to come back.
        :returns: whether all came back in time.
        """
        self.shut()
        found = self._running()
        ended = await found.engines.aclose(timeout)
        await found.guard.aclose()
        return ended
