"""One engine and one pool for each physical server.

An engine is opened on first use and serves every virtual shard of its
server.  :class:`Engines` owns them all; :class:`Places` says, for one
topology, which of them has a shard.

Fork: a child process finds every pool empty and opens connections of its
own.  Connections that were in use when the parent forked are given up in the
child without a word to the server, since the parent goes on using them.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any
from typing import ClassVar
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy import Engine
from sqlalchemy import event
from sqlalchemy import make_url
from sqlalchemy import text
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import Pool
from sqlalchemy.pool import PoolResetState
from sqlalchemy.pool import QueuePool

from sqla_shard.dialects import Backend
from sqla_shard.dialects import backend_for
from sqla_shard.dialects import Failure
from sqla_shard.exc import ClusterClosedError
from sqla_shard.exc import ServerUnreachableError
from sqla_shard.ids import check_shard_id
from sqla_shard.rendering import Place
from sqla_shard.scattering import AwaitedLanes
from sqla_shard.scattering import execute_everywhere
from sqla_shard.scattering import execute_many
from sqla_shard.scattering import get_ready
from sqla_shard.scattering import Lanes
from sqla_shard.scattering import render_event
from sqla_shard.topology import fill
from sqla_shard.topology import Keyspace
from sqla_shard.topology import Server
from sqla_shard.topology import Topology

__all__ = ["EngineStats", "Engines", "Places"]

T = TypeVar("T")

_PROCESS = "sqla_shard.process"
#: Whether the transaction of a connection has ended, with nothing after it.
_ENDED = "sqla_shard.ended"


@dataclass(frozen=True, kw_only=True)
class EngineStats:
    """The pool of one server at one moment.

    :ivar server: host and port, or the file; never a password.
    :ivar idle: open connections waiting in the pool.
    :ivar busy: connections in use.
    :ivar asynchronous: whether it is of asynchronous sessions, which have
        pools of their own.
    """

    server: str
    idle: int
    busy: int
    asynchronous: bool = False


class Engines:
    """The engines of a process, by server.

    :param driver: for ``mysql://`` URLs that name none.
    :param options: keyword arguments for
        :func:`sqlalchemy.create_engine`, such as ``pool_size``.
    :param environ: values of the placeholders in URLs.
    :param on_open: called with each new engine, to add listeners.
    :param lanes: where to wait for several servers at the same time.
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
    ) -> None:
        #: What waits for several servers.
        self.lanes = lanes
        self._driver = driver
        # See _Reset for what takes its place.
        self._options = {"pool_reset_on_return": None, **options}
        self._on_open = on_open
        self._environ = environ
        self._engines: dict[URL, Engine] = {}
        self._backends: dict[URL, Backend] = {}
        self._names: dict[URL, dict[str, None]] = {}
        self._busy: dict[int, tuple[Engine, Backend, Any]] = {}
        self._closed = False
        #: Whether a connection that comes back is kept for the next user.
        self._keeps = True
        self._start()
        _registries.add(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._returned = threading.Condition(threading.Lock())

    def locate(
        self, server: Server, database: str
    ) -> tuple[Engine, str, Backend]:
        """Return the engine of a server, its schema of a database, its kind.

        :raises ClusterClosedError: after :meth:`close`.
        """
        url = make_url(server.primary)
        url = url.set(
            username=_filled(url.username, self._environ),
            password=_filled(url.password, self._environ),
        )
        backend = backend_for(
            url.drivername,
            driver=self._driver,
            asynchronous=self.asynchronous,
        )
        url, schema = backend.locate(url, database)
        with self._lock:
            if self._closed:
                raise ClusterClosedError(
                    "the cluster is closed; open a new one with "
                    "Cluster.from_file() or Cluster.from_topology()"
                )
            engine = self._engines.get(url)
            if engine is None:
                engine = backend.open(url, self._options)
                self._names[url] = {}
                self._listen(engine, backend, self._names[url])
                self._engines[url] = engine
                self._backends[url] = backend
            # Servers of two keyspaces may be one and the same.
            self._names[url][server.name] = None
        return engine, schema, self._backends[url]

    def _listen(
        self, engine: Engine, backend: Backend, names: Iterable[str]
    ) -> None:
        event.listen(
            engine, "before_cursor_execute", render_event, retval=True
        )
        event.listen(
            engine,
            "do_execute",
            partial(execute_everywhere, lanes=self.lanes),
        )
        event.listen(engine, "do_executemany", execute_many)
        event.listen(engine, "do_execute_no_params", get_ready)

        def checkout(connection: Any, record: Any, fairy: Any) -> None:
            if self._closed:
                raise ClusterClosedError("the cluster is closed")
            record.info[_PROCESS] = os.getpid()
            self._busy[id(record)] = engine, backend, connection

        def checkin(connection: Any, record: Any) -> None:
            try:
                if not self._keeps:
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
        _Reset(engine, backend)
        event.listen(
            engine, "handle_error", partial(_unreachable, names, backend)
        )
        self._on_open(engine)

    def _came_back(self, record: Any) -> None:
        with self._returned:
            self._busy.pop(id(record), None)
            self._returned.notify_all()

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
            cold = [engine for engine in cold if _is_cold(engine.pool)]
            if len(cold) == 1:
                return {}
        if not cold:
            return {}
        futures = self.lanes.attempt(
            [partial(_warm, engine, 1) for engine in cold], timeout, cold
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
        return ", ".join(self._names[engine.url])

    def backends(self) -> set[Backend]:
        """Return the kinds of the servers in use."""
        return set(self._backends.values())

    def stats(self) -> list[EngineStats]:
        """Return the state of every pool that was opened."""
        busy = [engine for engine, _, _ in list(self._busy.values())]
        found = []
        for url, engine in list(self._engines.items()):
            pool = engine.pool
            # A NullPool, if somebody chose it, keeps nothing.
            idle = pool.checkedin() if isinstance(pool, QueuePool) else 0
            found.append(
                EngineStats(
                    server=_name(url),
                    idle=idle,
                    busy=busy.count(engine),
                    asynchronous=self.asynchronous,
                )
            )
        return sorted(found, key=lambda stats: stats.server)

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
            for engine in self._engines.values():
                engine.dispose()
        self.lanes.close(wait=drained and ended)
        return drained

    def after_fork(self) -> None:
        """Forget, in a child process, the connections of the parent."""
        busy = list(self._busy.values())
        self._busy = {}
        self._start()
        for engine in self._engines.values():
            engine.dispose(close=False)
        for _, backend, connection in busy:
            backend.abandon(connection)

    def __repr__(self) -> str:
        servers = ", ".join(sorted(_name(url) for url in self._engines))
        return f"<Engines of {servers or 'no server yet'}>"


def _unreachable(
    names: Iterable[str], backend: Backend, context: ExceptionContext
) -> Exception | None:
    """Name the server that has gone away, or cannot be connected to."""
    error = context.sqlalchemy_exception
    if error is None or isinstance(error, ServerUnreachableError):
        return None
    original: Any = context.original_exception
    gone = context.is_disconnect
    if context.connection is None:
        gone = backend.classify(original) is Failure.LOST
    if not gone:
        return None
    return ServerUnreachableError(server=", ".join(names), error=error)


class _Reset:
    """Rolls back what comes back to the pool, but in its own process.

    The pool's own reset would send ROLLBACK over a socket that the parent
    process is using, from the finalizer of a session that a child
    inherited; and once more where the session has just sent one.
    """

    def __init__(self, engine: Engine, backend: Backend) -> None:
        self._dialect = engine.dialect
        self._backend = backend
        event.listen(engine, "before_cursor_execute", self._used)
        event.listen(engine, "rollback", self._ended)
        event.listen(engine, "commit", self._ended)
        event.listen(engine, "handle_error", self._failed)
        event.listen(engine, "checkout", self._taken)
        event.listen(engine, "reset", self)

    def _used(
        self,
        connection: Connection,
        cursor: Any,
        statement: str,
        parameters: Any,
        context: Any,
        executemany: bool,
    ) -> None:
        connection.info[_ENDED] = False

    def _failed(self, context: ExceptionContext) -> None:
        connection = context.connection
        # It may have been COMMIT or ROLLBACK itself.
        if connection is not None and not (
            connection.closed or connection.invalidated
        ):
            connection.info[_ENDED] = False

    def _ended(self, connection: Connection) -> None:
        if not connection.invalidated:
            connection.info[_ENDED] = True

    def _taken(self, connection: Any, record: Any, fairy: Any) -> None:
        # Who takes it from the pool past SQLAlchemy is not seen above.
        record.info[_ENDED] = False

    def __call__(
        self, connection: Any, record: Any, state: PoolResetState
    ) -> None:
        if state.transaction_was_reset or not state.asyncio_safe:
            return
        if record.info.get(_ENDED) and not (
            # Begun by a cursor of the driver, past SQLAlchemy.
            self._backend.in_transaction(connection)
        ):
            return
        if record.info.get(_PROCESS) == os.getpid():
            self._dialect.do_rollback(connection)


def _filled(text: str | None, environ: Mapping[str, str]) -> str | None:
    return None if text is None else fill(text, environ)


def _name(url: URL) -> str:
    if url.host is None:
        return str(url.database)
    return f"{url.host}:{url.port or 3306}"


class Places:
    """Where the virtual shards of one topology are.

    Finding a place costs a dictionary lookup once it was used; nothing is
    built for shards that are not.
    """

    def __init__(self, topology: Topology, engines: Engines) -> None:
        self.topology = topology
        self.engines = engines
        self._places: dict[tuple[str, int], Place] = {}
        self._keyspaces: dict[tuple[str | None, str], Keyspace] = {}

    def keyspace(self, name: str | None, kind: str) -> Keyspace:
        """Return a keyspace by name, or the only one of its kind.

        :raises UnknownKeyspaceError: when there is none, or several.
        """
        found = self._keyspaces.get((name, kind))
        if found is None:
            if name is None:
                found = self.topology.sole(kind)  # type: ignore[arg-type]  # checked there
            else:
                found = self.topology.keyspace(name)
            self._keyspaces[name, kind] = found
        return found

    def place(self, keyspace: Keyspace, shard_id: int) -> Place:
        """Return where a virtual shard is.

        :raises UnknownShardError: when the shard is not open.
        """
        key = keyspace.name, shard_id
        place = self._places.get(key)
        if place is None:
            server = keyspace.server_for(check_shard_id(shard_id))
            engine, schema, backend = self.engines.locate(
                server, keyspace.database_for(shard_id)
            )
            place = self._places[key] = Place(
                keyspace=keyspace.name,
                shard_id=shard_id,
                server=server.name,
                schema=engine.dialect.identifier_preparer.quote(schema),
                engine=engine,
                backend=backend,
            )
        return place

    def all_places(self, keyspace: Keyspace) -> list[Place]:
        """Return the places of every open shard, in order."""
        return [self.place(keyspace, i) for i in range(keyspace.shards)]

    def servers(self) -> Iterator[tuple[str, Place]]:
        """Yield the servers by name, with the first shard of each."""
        for keyspace in self.topology.keyspaces.values():
            for server in keyspace.servers:
                lowest = server.shards[0].first if server.shards else 0
                yield server.name, self.place(keyspace, lowest)

    def check(self) -> dict[str, Exception | None]:
        """Ask every server for a sign of life, all at the same time.

        :returns: by server name, None or what is wrong.
        """
        servers = dict(self.servers())
        answers = self.engines.at_once(
            [partial(_ask, place) for place in servers.values()], "check"
        )
        return dict(zip(servers, answers, strict=True))

    def warm(self, connections: int) -> None:
        """Open connections to every server of the topology, in parallel.

        :param connections: how many to each.
        """
        engines = {place.engine for _, place in self.servers()}
        self.engines.at_once(
            [partial(_warm, engine, connections) for engine in engines], "warm"
        )


def _ask(place: Place) -> Exception | None:
    try:
        with place.engine.connect() as connection:
            connection.execute(text("SELECT 1"))
    except (SQLAlchemyError, OSError) as error:
        # OSError where SQLite cannot make the directory of its files.
        return error
    return None


def _is_cold(pool: Pool) -> bool:
    """Tell whether the next session would have to wait for a connection."""
    return (
        isinstance(pool, QueuePool)
        and not pool.checkedin()
        and pool.overflow() < 0
    )


def _warm(engine: Engine, count: int) -> None:
    held = []
    try:
        for _ in range(count):
            held.append(engine.connect())
    finally:
        for connection in held:
            connection.close()


_registries: weakref.WeakSet[Engines] = weakref.WeakSet()


def _after_fork() -> None:
    for registry in list(_registries):
        registry.after_fork()


os.register_at_fork(after_in_child=_after_fork)
