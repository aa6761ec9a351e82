"""The engines of a process, or of an event loop, by server."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from time import monotonic
from typing import Any
from typing import ClassVar
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy import Engine
from sqlalchemy import event
from sqlalchemy.engine import URL
from sqlalchemy.pool import QueuePool

from sqla_shard.dialects import Backend
from sqla_shard.dialects import backend_for
from sqla_shard.dialects import check_driver
from sqla_shard.engines.asking import Answer
from sqla_shard.engines.asking import answer_of
from sqla_shard.engines.asking import in_threads
from sqla_shard.engines.connections import Errors
from sqla_shard.engines.connections import PROCESS
from sqla_shard.engines.connections import Reset
from sqla_shard.engines.pools import EngineStats
from sqla_shard.engines.pools import is_cold
from sqla_shard.engines.pools import server_name
from sqla_shard.engines.pools import warm
from sqla_shard.engines.retiring import Retired
from sqla_shard.engines.urls import filled
from sqla_shard.engines.urls import urls_of
from sqla_shard.exc import ClusterClosedError
from sqla_shard.exc import ServerRetiredError
from sqla_shard.exc import ServerUnreachableError
from sqla_shard.exc import ShardError
from sqla_shard.forking import in_children
from sqla_shard.rendering import Place
from sqla_shard.scattering import AwaitedLanes
from sqla_shard.scattering import execute_everywhere
from sqla_shard.scattering import execute_many
from sqla_shard.scattering import get_ready
from sqla_shard.scattering import Lanes
from sqla_shard.scattering import render_event
from sqla_shard.topology import Server
from sqla_shard.topology import Topology

__all__ = ["Engines"]

T = TypeVar("T")


class Engines:
    """The engines of a process, by server.

    :param driver: for ``mysql://`` URLs that name none.
    :param options: keyword arguments for
        :func:`sqlalchemy.create_engine`, such as ``pool_size``.
    :param environ: values of the placeholders in URLs.
    :param on_open: called with each new engine, to add listeners.
    :param lanes: where to wait for several servers at the same time.
    :param grace: seconds for which transactions may go on with a server that
        has left the topology.
    """

    #: Whether an event loop waits for the servers.
    asynchronous: ClassVar[bool] = False

    def __init__(
        self,
        *,
        driver: str,
        options: Mapping[str, Any],
        environ: Mapping[str, str],
        on_open: Callable[[Engine], None],
        lanes: Lanes | AwaitedLanes,
        grace: float = 30.0,
    ) -> None:
        #: The newest topology that :meth:`follow` was told of.
        self.topology: Topology | None = None
        #: By URL, the shards whose databases have engines of their own.
        self.alone: dict[URL, Place] = {}
        #: Called when an error of a server may be the sign of a new topology.
        self.trouble: Callable[[], None] = _nothing
        #: What waits for several servers.
        self.lanes = lanes
        self._driver = driver
        # See Reset for what takes its place.
        self._options = {"pool_reset_on_return": None, **options}
        self._on_open = on_open
        self._environ = environ
        self._servers: dict[str, tuple[URL, Backend]] = {}
        self._engines: dict[URL, Engine] = {}
        self._backends: dict[URL, Backend] = {}
        # Kept when a server leaves: its last errors are told afterwards.
        self._kinds: dict[type[Backend], Backend] = {}
        self._names: dict[URL, dict[str, None]] = {}
        self._busy: dict[int, Engine] = {}
        self._open: dict[int, tuple[Backend, Any]] = {}
        self._retired = Retired(grace)
        #: The URLs of the topology that an engine was located by.
        self._texts: dict[URL, set[str]] = {}
        self._closed = False
        #: Whether a connection that comes back is kept for the next user.
        self._keeps = True
        self._start()
        in_children(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        # The garbage collector may give a connection back at any time, also
        # in a thread that holds this lock.
        self._returned = threading.Condition(threading.RLock())

    def locate(
        self, server: Server, database: str, *, standby: bool = False
    ) -> tuple[Engine, str, Backend]:
        """Return the engine of a server, its schema of a database, its kind.

        :param standby: whether that of its standby, which it must have.
        :raises ClusterClosedError: after :meth:`close`.
        :raises ServerRetiredError: when it has left the topology.
        """
        name, text = server.name, server.primary
        if standby and server.standby is not None:
            name, text = f"{name} (standby)", server.standby
        # All of it: a topology that is taken meanwhile, by another thread,
        # would leave an engine behind for a server that it has not.
        with self._lock:
            if self._closed:
                raise ClusterClosedError(
                    "the cluster is closed; open a new one with "
                    "Cluster.from_file() or Cluster.from_topology()"
                )
            if self._retired.is_gone(text):
                raise ServerRetiredError(server=name)
            # Once for each server: there may be thousands of databases on it.
            if text not in self._servers:
                self._servers[text] = self._read(text)
            url, backend = self._servers[text]
            url, schema = backend.locate(url, database)
            engine = self._engines.get(url)
            if engine is None:
                engine = backend.open(url, self._options)
                self._names[url] = {}
                self._texts[url] = set()
                self._listen(engine, backend, self._names[url])
                self._engines[url] = engine
                self._backends[url] = backend
                self._kinds[type(backend)] = backend
            # Servers of two keyspaces may be one and the same.
            self._names[url][name] = None
            self._texts[url].add(text)
            return engine, schema, self._backends[url]

    def _read(self, text: str) -> tuple[URL, Backend]:
        """Return the URL of a server with its secrets, and its kind."""
        url = filled(text, self._environ)
        backend = backend_for(
            url.drivername,
            driver=self._driver,
            asynchronous=self.asynchronous,
        )
        return url, backend

    def _listen(
        self, engine: Engine, backend: Backend, names: Iterable[str]
    ) -> None:
        self._note_open(engine, backend)
        leaving = self._retired.watch(engine)
        errors = Errors(self, names, backend)
        event.listen(
            engine, "before_cursor_execute", render_event, retval=True
        )
        event.listen(
            engine,
            "do_execute",
            partial(execute_everywhere, lanes=self.lanes, explain=errors.told),
        )
        event.listen(engine, "do_executemany", execute_many)
        event.listen(engine, "do_execute_no_params", get_ready)

        def checkout(connection: Any, record: Any, fairy: Any) -> None:
            if self._closed:
                raise ClusterClosedError("the cluster is closed")
            leaving.check()
            record.info[PROCESS] = os.getpid()
            self._busy[id(record)] = engine

        def checkin(connection: Any, record: Any) -> None:
            try:
                if not self._keeps or engine in self._retired:
                    # The pool that it goes back to is not used any more.
                    record.close()
            finally:
                self._came_back(record)

        def detach(connection: Any, record: Any) -> None:
            # It never comes back.
            self._came_back(record)

        event.listen(engine, "checkout", checkout)
        event.listen(engine, "checkin", checkin)
        event.listen(engine, "detach", detach)
        Reset(engine, backend)
        event.listen(engine, "handle_error", errors)
        self._on_open(engine)

    def _note_open(self, engine: Engine, backend: Backend) -> None:
        """Know the connections of an engine, which a child must close."""

        # Not when it is opened: where a listener of others refuses it then,
        # nothing tells that it was closed.
        def taken(connection: Any, record: Any, fairy: Any) -> None:
            self._open[id(connection)] = backend, connection

        def closed(connection: Any, record: Any = None) -> None:
            self._open.pop(id(connection), None)

        event.listen(engine, "checkout", taken)
        event.listen(engine, "close", closed)
        event.listen(engine, "close_detached", closed)

    def _came_back(self, record: Any) -> None:
        with self._returned:
            self._busy.pop(id(record), None)
            self._forget_idle()
            self._returned.notify_all()

    # -- servers that leave

    def check(self, topology: Topology) -> None:
        """Refuse a topology with servers that cannot be connected to here.

        Not those that do not answer, which may come back.

        :raises MissingDriverError: when a driver is not installed.
        :raises TopologyError: when a placeholder has no value.
        """
        with self._lock:
            new = [t for t in urls_of(topology) if t not in self._servers]
        urls = {}
        for text in new:
            url, backend = self._read(text)
            url, _ = backend.locate(url, "")
            urls[url.drivername] = url
        for url in urls.values():
            check_driver(url)

    def expect(self, topology: Topology) -> None:
        """Let in the servers of a topology that is about to be used.

        One that has left before may be among them.
        """
        with self._lock:
            self._retired.let_in(urls_of(topology))

    def follow(self, topology: Topology) -> None:
        """Take a newer topology: drain the servers that it has no more.

        Idle connections to them are closed now, those in use when they come
        back.  No new one is opened, and after a while nothing more is sent
        over the old ones but the end of their transaction.

        :param topology: it has replaced another one, if any.
        """
        texts = urls_of(topology)
        with self._lock:
            # Of those, too, that nobody has used yet: a transaction that has
            # begun before could be the first.
            known = urls_of(self.topology) if self.topology else set()
            known.update(self._servers)
            self.topology = topology
            self._retired.let_in(texts)
            self._retired.note(known - texts)
            for text in known - texts:
                self._servers.pop(text, None)
            left = [
                url
                for url, names in self._texts.items()
                if names and not names & texts
            ]
            retired = [self._retire(url) for url in left]
        for engine in retired:
            self._dispose_idle(engine)
        with self._returned:
            self._forget_idle()

    def _retire(self, url: URL) -> Engine:
        engine = self._engines.pop(url)
        del self._texts[url], self._backends[url]
        self.alone.pop(url, None)
        busy = list(self._busy.values())
        self._retired.add(engine, self._names.pop(url), busy.count(engine))
        return engine

    def _dispose_idle(self, engine: Engine) -> None:
        engine.dispose()

    def _forget_idle(self) -> None:
        """Forget the engines of servers that nobody uses any more."""
        if self._retired:
            self._retired.forget(set(self._busy.values()))

    def at_once(
        self, jobs: Sequence[Callable[[], T]], purpose: str, most: int = 64
    ) -> list[T]:
        """Do something on many servers at the same time.

        :param purpose: part of the names of the threads.
        :param most: how many jobs run at the same time.
        :returns: the results of the jobs, in order.
        """
        if not jobs:
            return []
        with ThreadPoolExecutor(
            min(most, len(jobs)), f"sqla-shard-{purpose}"
        ) as executor:
            return list(executor.map(lambda job: job(), jobs))

    def apart(self, engine: Engine, *, timeout: float | None = None) -> Engine:
        """Return a new engine for the server of another, for the caller.

        Nothing of what sessions need listens to it, and it is not closed
        with the others.

        :param timeout: see :meth:`.Backend.open`.
        """
        backend = self._backends.get(engine.url)
        if backend is None:
            raise ServerRetiredError(server=server_name(engine.url))
        found = backend.open(engine.url, self._options, timeout=timeout)
        self._note_open(found, backend)
        return found

    def ask(self, engines: Sequence[Engine], timeout: float) -> list[Answer]:
        """Ask several servers for a sign of life, at the same time.

        :param timeout: seconds.
        :returns: for each None, or what is wrong with it.
        """
        return self._ask_all(
            [partial(self._answer, engine, timeout) for engine in engines],
            timeout,
        )

    def _ask_all(
        self, jobs: Sequence[Callable[[], Answer]], timeout: float
    ) -> list[Answer]:
        return in_threads(jobs, timeout)

    def _answer(self, engine: Engine, timeout: float) -> Answer:
        try:
            if self._closed:
                raise ClusterClosedError("the cluster is closed")
            own = self.apart(engine, timeout=timeout)
        except ShardError as error:
            return error
        names = self._names.get(engine.url, ())
        backend = self._backends[engine.url]
        event.listen(own, "handle_error", Errors(self, names, backend))
        answer = answer_of(own, timeout)
        if isinstance(answer, ServerUnreachableError):
            # It is down, and idle connections to it are dead: sessions would
            # meet them when it is back.
            self._dispose_idle(engine)
        return answer

    @contextmanager
    def visit(self, engine: Engine) -> Iterator[Connection]:
        """Yield a connection for one visit, closed afterwards.

        A connection of the pool would keep what is set on it, such as the
        database that it is in.
        """
        own = self.apart(engine)
        try:
            with own.connect() as connection:
                yield connection
        finally:
            own.dispose()

    def connect_together(
        self, engines: Iterable[Engine], timeout: float | None
    ) -> dict[Engine, Exception | None]:
        """Open connections to several servers at the same time.

        They go to the pools, for whoever asks first.  Where a pool has one
        already, or must not have more, nothing is done.

        :param timeout: seconds to wait; None for as long as it takes.  With
            a timeout every pool is asked for a connection: what it has may
            be found too old and be opened again, which takes its time.
        :returns: for each engine that failed, its error, or None where it
            has not ended in time.
        """
        cold = list(engines)
        if timeout is None:
            cold = [engine for engine in cold if is_cold(engine.pool)]
            if len(cold) == 1:
                return {}
        if not cold:
            return {}
        futures = self.lanes.attempt(
            [partial(warm, engine, 1) for engine in cold], timeout, cold
        )
        failed: dict[Engine, Exception | None] = {}
        for engine, future in zip(cold, futures, strict=True):
            if not future.done() or future.cancelled():
                failed[engine] = None
            elif isinstance(error := future.exception(), Exception):
                failed[engine] = error
        return failed

    def __iter__(self) -> Iterator[Engine]:
        return iter(list(self._engines.values()))

    def name_of(self, engine: Engine) -> str:
        """Return the name of the server of an engine, or its names."""
        names = self._names.get(engine.url) or self._retired.names_of(engine)
        return ", ".join(names) if names else server_name(engine.url)

    def backends(self) -> set[Backend]:
        """Return the kinds of the servers that were used so far."""
        return set(self._kinds.values())

    def stats(self) -> list[EngineStats]:
        """Return the state of every pool that was opened."""
        busy = list(self._busy.values())
        found = []
        retired = set(self._retired)
        for engine in [*list(self._engines.values()), *retired]:
            pool = engine.pool
            # A NullPool, if somebody chose it, keeps nothing.
            idle = pool.checkedin() if isinstance(pool, QueuePool) else 0
            found.append(
                EngineStats(
                    server=self.name_of(engine),
                    address=server_name(engine.url),
                    idle=idle,
                    busy=busy.count(engine),
                    asynchronous=self.asynchronous,
                    retired=engine in retired,
                )
            )
        return sorted(found, key=lambda stats: (stats.server, stats.address))

    def shut(self) -> None:
        """Let nothing new begin; what comes back is closed."""
        self._closed = True
        self._keeps = False

    def close(self, timeout: float) -> bool:
        """Let nothing new begin, wait for what is in use, dispose all.

        :param timeout: seconds to wait for connections to come back; those
            that do not are closed when they do.
        :returns: whether all came back in time.
        """
        self.shut()
        deadline = monotonic() + timeout
        with self._returned:
            while self._busy and (left := deadline - monotonic()) > 0:
                self._returned.wait(left)
            drained = not self._busy
        # Those that wait for a connection get it, and are refused, before
        # there is none to come any more.
        ended = self.lanes.drain(max(deadline - monotonic(), 0))
        with self._lock:
            for engine in (*self._engines.values(), *self._retired):
                engine.dispose()
        self.lanes.close(wait=drained and ended)
        return drained

    def after_fork(self) -> None:
        """Give up, in a child process, the connections of the parent.

        The idle ones, too: nothing says when the garbage collector would.
        """
        open_, self._open = self._open, {}
        self._busy = {}
        self._start()
        for engine in (*self._engines.values(), *self._retired):
            engine.dispose(close=False)
        self._retired.clear()
        for backend, connection in open_.values():
            backend.abandon(connection)

    def __repr__(self) -> str:
        servers = ", ".join(sorted(server_name(url) for url in self._engines))
        return f"<Engines of {servers or 'no server yet'}>"


def _nothing() -> None:
    """Ask nobody for a new topology."""
