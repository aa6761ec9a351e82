"""The engines of a process or an event loop, by server, and where shards are."""

from __future__ import annotations

import re
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from operator import call
from time import monotonic
from typing import Any, ClassVar, TypeVar

from sqlalchemy import Connection, Engine, make_url
from sqlalchemy.engine import URL
from sqlalchemy.pool import QueuePool
from sqlalchemy.sql.compiler import IdentifierPreparer

from sqla_shard.dialects import Backend, backend_for, check_driver
from sqla_shard.dialects.base import Passwords, PasswordSource
from sqla_shard.dialects.polling import PIPELINING, Pipelining
from sqla_shard.engine.hooks import listen, listen_to_probe, OpenConnections, Retired
from sqla_shard.engine.lanes import AwaitedLanes, Lanes
from sqla_shard.engine.plans import Sampling
from sqla_shard.engine.pools import (
    Answer,
    answer_of,
    CountedPool,
    EngineStats,
    in_threads,
    is_cold,
    server_name,
    warm,
)
from sqla_shard.engine.rendering import Place
from sqla_shard.exc import (
    ClusterClosedError,
    IdLayoutMismatchError,
    ServerRetiredError,
    ServerUnreachableError,
    ShardError,
)
from sqla_shard.ids import check_shard_id, IdLayout
from sqla_shard.topology import fill, Keyspace, Server, server_names, Topology
from sqla_shard.util.logs import careful_log
from sqla_shard.util.processes import in_children
from sqla_shard.util.weak_keys import WeakKeys

T = TypeVar("T")

_log = careful_log(__name__)

#: Seconds for which close() waits without a word.
_SILENT = 1.0

#: Seconds after which the connections in use are counted again: one that Ctrl-C
#: has ended returns without notice.
LOOK = 0.2

#: Maximum number of places in memory; each takes about 230 bytes.
_MAX_PLACES = 8192

_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")


def urls_of(topology: Topology) -> set[str]:
    """Return the URLs of all servers, as in the topology."""
    return {
        text
        for keyspace in topology.keyspaces.values()
        for server in keyspace.servers
        for text in (server.primary, server.standby)
        if text is not None
    }


def _names_of(topology: Topology) -> dict[str, str]:
    """Return the name of each server for reports, by its URL."""
    names = server_names(topology)
    by_url = {}
    for keyspace in topology.keyspaces.values():
        for server in keyspace.servers:
            name = names[keyspace.name, server.name]
            by_url[server.primary] = name
            if server.standby is not None:
                by_url.setdefault(server.standby, f"{name} (standby)")
    return by_url


def filled(text: str, environ: Mapping[str, str]) -> URL:
    """Return the URL of a server with its secrets.

    :param text: the URL as in the topology.
    :param environ: values of the placeholders.
    :raises TopologyError: if a placeholder has no value.
    """
    url = make_url(text)
    return url.set(
        username=_filled(url.username, environ), password=_filled(url.password, environ)
    )


def _filled(text: str | None, environ: Mapping[str, str]) -> str | None:
    return None if text is None else fill(text, environ)


class Engines:
    """The engines of a process, by server.

    :param driver: name of the driver for ``mysql://`` URLs without a driver.
    :param options: keyword arguments for
        :func:`sqlalchemy.create_engine`, such as ``pool_size``.
    :param environ: values of the placeholders in URLs.
    :param lanes: threads, or the event loop, that wait for several servers.
    :param grace: number of seconds for which transactions may use a server
        that was removed from the topology.
    :param pipelining: how connections wait for responses where the driver
        can be polled.
    :param sampling: takes samples of statements; by default, none.
    :param passwords: the passwords of the servers; None for those of the
        URLs.
    """

    #: Whether an event loop waits for the servers.
    asynchronous: ClassVar[bool] = False

    def __init__(
        self,
        *,
        driver: str,
        options: Mapping[str, Any],
        environ: Mapping[str, str],
        lanes: Lanes | AwaitedLanes,
        grace: float = 30.0,
        pipelining: Pipelining = PIPELINING,
        sampling: Sampling | None = None,
        passwords: Passwords | None = None,
    ) -> None:
        #: The newest topology that was passed to :meth:`follow`.
        self.topology: Topology | None = None
        #: The shard of each engine for only one database, by its URL.
        self.only_places: dict[URL, Place] = {}
        #: Function that is called after an error that a new topology may
        #: explain; it must not block.
        self.request_topology: Callable[[], None] = _nothing
        #: Threads, or the event loop, that wait for several servers.
        self.lanes = lanes
        self.sampling: Sampling = Sampling() if sampling is None else sampling
        self._driver = driver
        self._pipelining = pipelining
        # The listener in hooks.py resets connections.
        self._options = {"pool_reset_on_return": None, **options}
        if not self.asynchronous:
            self._options.setdefault("poolclass", CountedPool)
        self._environ = environ
        self._passwords = passwords
        self._servers: dict[str, tuple[URL, Backend]] = {}
        self._engines: dict[URL, Engine] = {}
        self._backends: dict[URL, Backend] = {}
        # Kinds remain after a server is removed: its last errors are
        # classified later.
        self._kinds: dict[type[Backend], Backend] = {}
        self._names: dict[URL, dict[str, None]] = {}
        self._report_names: tuple[Topology, dict[str, str]] | None = None
        #: The engines of the connections in use, by record.
        self.in_use: WeakKeys[Engine] = WeakKeys()
        #: Connections of the driver, which a child process must close.
        self.open_connections: OpenConnections = OpenConnections()
        #: The engines of servers that were removed from the topology.
        self.retired: Retired = Retired(grace)
        #: The topology's URLs of the server of each engine.
        self._texts: dict[URL, set[str]] = {}
        self.closed: bool = False
        #: Whether a connection that is checked in stays in its pool.
        self.pools_connections: bool = True
        self._start()
        in_children(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        # The garbage collector may return a connection at any time, even in a
        # thread that holds this lock.
        self._returned = threading.Condition(threading.RLock())

    def locate(
        self, server: Server, database: str, *, standby: bool = False
    ) -> tuple[Engine, str, Backend]:
        """Return the engine of a server, a schema, and the backend.

        :param standby: whether to use the standby, if there is one.
        :raises ClusterClosedError: after :meth:`close`.
        :raises ServerRetiredError: if the server was removed from the
            topology.
        """
        name, text = server.name, server.primary
        if standby and server.standby is not None:
            name, text = f"{name} (standby)", server.standby
        # Open it under the lock: otherwise another thread could follow a
        # topology without this server, and the engine would never be closed.
        with self._lock:
            if self.closed:
                raise ClusterClosedError(
                    "the cluster is closed; open a new one with "
                    "Cluster.from_file() or Cluster.from_topology()"
                )
            if self.retired.is_gone(text):
                raise ServerRetiredError(server=name)
            # Once for each server: there may be thousands of databases on it.
            if text not in self._servers:
                self._servers[text] = self._read(text)
            url, backend = self._servers[text]
            url, schema = backend.locate(url, database)
            engine = self._engines.get(url)
            if engine is None:
                self._names[url] = {}
                engine = self._open(url, backend)
                self._texts[url] = set()
                listen(engine, self, backend, self._names[url])
                self._engines[url] = engine
                self._backends[url] = backend
                self._kinds[type(backend)] = backend
            # Two keyspaces may have the same server.
            self._names[url][name] = None
            self._texts[url].add(text)
            return engine, schema, self._backends[url]

    def filled(self, text: str) -> URL:
        """Return the URL of a server with its secrets.

        :param text: the URL as in the topology.
        :raises TopologyError: if a placeholder has no value.
        """
        return filled(text, self._environ)

    def password_of(self, text: str, names: Iterable[str]) -> PasswordSource | None:
        """Return the password of a server, if a function returns it.

        :param text: the URL as in the topology.
        :param names: names of the server.
        """
        passwords = self._passwords
        if passwords is None:
            return None
        return passwords.of(self.filled(text), names)

    def _open(self, url: URL, backend: Backend, timeout: float | None = None) -> Engine:
        passwords = self._passwords
        password = None
        if passwords is not None:
            password = passwords.of(url, self._names.get(url, ()))
        return backend.open(url, self._options, timeout=timeout, password=password)

    def _read(self, text: str) -> tuple[URL, Backend]:
        """Return the URL of a server with its secrets, and its backend."""
        url = self.filled(text)
        if self._passwords is not None:
            url = url._replace(password=None)
        backend = backend_for(
            url.drivername,
            driver=self._driver,
            asynchronous=self.asynchronous,
            pipelining=self._pipelining,
        )
        return url, backend

    def checked_in(self, record: Any) -> None:
        """Count a connection as idle or closed; called by listeners."""
        with self._returned:
            self.in_use.discard(weakref.ref(record))
            if self.retired.engines:
                self._drop_idle()
            self._returned.notify_all()

    def check(self, topology: Topology) -> None:
        """Refuse a topology with servers that this process cannot connect to.

        Servers that do not respond are not refused.

        :raises MissingDriverError: if a driver is not installed.
        :raises TopologyError: if a placeholder has no value.
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
        """Allow the servers of the next topology, if they were removed."""
        with self._lock:
            self.retired.let_in(urls_of(topology))

    def follow(self, topology: Topology) -> None:
        """Use a newer topology; drain the servers that were removed.

        Idle connections to these servers are closed now, and connections in
        use when they are returned.  No new connection is opened; after the
        grace period the open ones can only end their transactions.
        """
        texts = urls_of(topology)
        with self._lock:
            # Include unused servers: a transaction with the previous topology
            # could still connect to one.
            known = urls_of(self.topology) if self.topology else set()
            known.update(self._servers)
            self.topology = topology
            self.retired.let_in(texts)
            self.retired.refuse(known - texts)
            for text in known - texts:
                self._servers.pop(text, None)
            unused = [
                url for url, names in self._texts.items() if names and not names & texts
            ]
            retired = [self._retire(url) for url in unused]
        for engine in retired:
            self._dispose_idle(engine)
        with self._returned:
            self._drop_idle()

    def _retire(self, url: URL) -> Engine:
        engine = self._engines.pop(url)
        del self._texts[url], self._backends[url]
        self.only_places.pop(url, None)
        busy = self.in_use.values()
        self.retired.add(engine, self._names.pop(url), busy.count(engine))
        return engine

    def _dispose_idle(self, engine: Engine) -> None:
        engine.dispose()

    def _drop_idle(self) -> None:
        """Drop the engines of removed servers that are not in use."""
        self.retired.forget(self.in_use.values())

    def in_parallel(
        self, jobs: Sequence[Callable[[], T]], purpose: str, most: int = 64
    ) -> list[T]:
        """Run jobs for many servers at the same time.

        :param purpose: part of the names of the threads.
        :param most: maximum number of jobs that run at the same time.
        :returns: the results of the jobs, in order.
        """
        if not jobs:
            return []
        with ThreadPoolExecutor(
            min(most, len(jobs)), f"sqla-shard-{purpose}"
        ) as executor:
            return list(executor.map(call, jobs))

    def new_engine(
        self,
        engine: Engine,
        *,
        timeout: float | None = None,
        translates_errors: bool = False,
    ) -> Engine:
        """Return a new engine for the server of another engine.

        The new engine has no listeners for sessions, and the caller must
        dispose it: :meth:`close` does not.

        :param timeout: see :meth:`.Backend.open`.
        :param translates_errors: whether the engine raises
            :exc:`~sqla_shard.exc.ServerUnreachableError` and the like.
        """
        backend = self._backends.get(engine.url)
        if backend is None:
            raise ServerRetiredError(server=server_name(engine.url))
        opened = self._open(engine.url, backend, timeout)
        names = self._names.get(engine.url, ()) if translates_errors else None
        listen_to_probe(opened, self, backend, names)
        return opened

    def ask(self, engines: Sequence[Engine], timeout: float) -> list[Answer]:
        """Probe several servers at the same time.

        :param timeout: seconds.
        :returns: for each engine, None or its error.
        """
        return self._ask_all(
            [partial(self._answer, engine, timeout) for engine in engines], timeout
        )

    def _ask_all(
        self, jobs: Sequence[Callable[[], Answer]], timeout: float
    ) -> list[Answer]:
        # The engines of an event loop await the answers.
        return in_threads(jobs, timeout)

    def _answer(self, engine: Engine, timeout: float) -> Answer:
        try:
            if self.closed:
                raise ClusterClosedError("the cluster is closed")
            own = self.new_engine(engine, timeout=timeout, translates_errors=True)
        except ShardError as error:
            return error
        answer = answer_of(own, timeout)
        if isinstance(answer, ServerUnreachableError):
            # The server is down, and idle connections to it are lost: sessions
            # would use them when the server is up again.
            self._dispose_idle(engine)
        return answer

    @contextmanager
    def visit(self, engine: Engine) -> Iterator[Connection]:
        """Yield a new connection, which is closed afterwards.

        A connection of the pool would retain its settings, such as the
        default database.
        """
        own = self.new_engine(engine)
        try:
            with own.connect() as connection:
                yield connection
        finally:
            own.dispose()

    def connect_together(
        self, engines: Iterable[Engine], timeout: float | None
    ) -> dict[Engine, Exception | None]:
        """Open connections to several servers at the same time.

        The connections are returned to the pools.  A pool that has an idle
        connection, or its maximum of connections, is skipped.

        :param timeout: seconds to wait; None for no limit.  With a timeout no
            pool is skipped, since an idle connection may be too old, and
            need to be opened again.
        :returns: the errors by engine; None if an attempt has not ended in
            time.
        """
        cold = list(engines)
        if timeout is None:
            cold = [engine for engine in cold if is_cold(engine.pool)]
            if len(cold) == 1:
                return {}
        if not cold:
            return {}
        # In threads, also for drivers whose sockets are polled: pools block
        # a thread, and its other calls would hold connections meanwhile.
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
        """Return the name, or the names, of the server of an engine."""
        names = self._names.get(engine.url) or self.retired.engines.get(engine)
        return ", ".join(names) if names else server_name(engine.url)

    def report_name(self, engine: Engine) -> str:
        """Return the name of the server of an engine in reports.

        See :func:`.server_names`.  A server that has left the topology has
        the names that it had.
        """
        topology = self.topology
        if topology is not None:
            if self._report_names is None or (self._report_names[0] is not topology):
                self._report_names = topology, _names_of(topology)
            names = self._report_names[1]
            for text in list(self._texts.get(engine.url, ())):
                if text in names:
                    return names[text]
        return self.name_of(engine)

    def backends(self) -> set[Backend]:
        """Return the backends of the servers that were used."""
        kinds = list(self._kinds.values())
        return set(kinds)

    def stats(self) -> list[EngineStats]:
        """Return the state of every pool that was opened."""
        busy = self.in_use.values()
        entries = []
        retired = list(self.retired.engines)
        for engine in [*list(self._engines.values()), *retired]:
            pool = engine.pool
            # A NullPool has no idle connections.
            idle = pool.checkedin() if isinstance(pool, QueuePool) else 0
            entries.append(
                EngineStats(
                    server=self.report_name(engine),
                    address=server_name(engine.url),
                    idle=idle,
                    busy=busy.count(engine),
                    asynchronous=self.asynchronous,
                    retired=engine in retired,
                )
            )
        return sorted(entries, key=lambda stats: (stats.server, stats.address))

    def shut(self) -> None:
        """Refuse new checkouts; close connections when they are returned."""
        self.closed = True
        self.pools_connections = False

    def close(self, timeout: float) -> bool:
        """Refuse new checkouts, wait for connections in use, dispose all.

        :param timeout: seconds to wait for connections to be returned;
            others are closed when they are returned.
        :returns: whether all connections were returned in time.
        """
        self.shut()
        deadline = monotonic() + timeout
        drained = self._wait_returned(min(timeout, _SILENT))
        if not drained and timeout > _SILENT:
            _log.warning(
                "close() waits up to %g s for connections that sessions have "
                "not returned (%s); close the sessions before the cluster",
                timeout,
                ", ".join(self._in_use()),
                extra={"action": "close"},
            )
            drained = self._wait_returned(deadline - monotonic())
        # Threads that wait for a connection get one, and are refused, before
        # the pools are disposed.
        ended = self.lanes.drain(max(deadline - monotonic(), 0))
        with self._lock:
            for engine in (*self._engines.values(), *list(self.retired.engines)):
                engine.dispose()
        self.lanes.close(wait=drained and ended)
        return drained

    def _in_use(self) -> list[str]:
        """Return the number of connections in use of each server."""
        busy = self.in_use.values()
        counts = Counter(server_name(engine.url) for engine in busy)
        return [f"{count} to {name}" for name, count in sorted(counts.items())]

    def _wait_returned(self, seconds: float) -> bool:
        """Return whether all connections were returned in time."""
        deadline = monotonic() + seconds
        with self._returned:
            while self.in_use and (remaining := deadline - monotonic()) > 0:
                self._returned.wait(min(remaining, LOOK))
            return not self.in_use

    def after_fork(self) -> None:
        """Drop the connections of the parent in a child process.

        Idle connections are dropped too: otherwise the garbage collector
        would close them later.
        """
        opened = self.open_connections.take()
        self.in_use = WeakKeys()
        self._start()
        for engine in (*self._engines.values(), *list(self.retired.engines)):
            engine.dispose(close=False)
        self.retired.engines.clear()
        for backend, connection in opened:
            backend.abandon(connection)

    def __repr__(self) -> str:
        names = sorted(map(server_name, list(self._engines)))
        servers = ", ".join(names)
        return f"<Engines of {servers or 'no server yet'}>"


def _nothing() -> None:
    """Do nothing on errors of servers."""


class Places:
    """The locations of the virtual shards of one topology.

    Places are created on first use; a few thousand of them stay in memory.
    """

    def __init__(self, topology: Topology, engines: Engines) -> None:
        self.topology = topology
        self.engines = engines
        #: Generations of shards by address, for sqla_shard.cache; valid for
        #: this topology only.
        self.generations: dict[tuple[str, int], str] = {}
        self._places: dict[tuple[str, int], Place] = {}
        #: Engines that serve all databases of a server, by its name and URL,
        #: since an engine has all names of its server.
        self._shared: dict[tuple[str, str], tuple[Engine, Backend]] = {}
        self._keyspaces: dict[tuple[str | None, str], Keyspace] = {}

    def keyspace(
        self, name: str | None, kind: str, layout: IdLayout | None = None
    ) -> Keyspace:
        """Return a keyspace by name, or the only one of its kind.

        :param layout: layout of the ids that a class has; None to not compare
            it with that of the keyspace.
        :raises UnknownKeyspaceError: if there is no such keyspace, or several.
        :raises IdLayoutMismatchError: if the keyspace has another layout.
        """
        keyspace = self._keyspaces.get((name, kind))
        if keyspace is None:
            if name is None:
                keyspace = self.topology.sole(kind)  # type: ignore[arg-type]  # checked there
            else:
                keyspace = self.topology.keyspace(name)
            self._keyspaces[name, kind] = keyspace
        if layout is not keyspace.id_layout and layout is not None:
            check_layout(keyspace, layout)
        return keyspace

    def place(self, keyspace: Keyspace, shard_id: int) -> Place:
        """Return the location of a virtual shard.

        :raises UnknownShardError: if the shard is not open.
        :raises InvalidIdError: if ``shard_id`` is not an int from 0 to 65535.
        """
        if type(shard_id) is not int:
            # True and 1.0 are equal to 1, and a list is not hashable.
            shard_id = check_shard_id(shard_id)
        key = keyspace.name, shard_id
        place = self._places.get(key)
        if place is None:
            if len(self._places) >= _MAX_PLACES:
                # 65,536 places would take most of the memory of a topology;
                # places in use are created again.
                self._places.clear()
            server = keyspace.server_for(check_shard_id(shard_id))
            place = self.place_on(keyspace, server, shard_id)
            self._places[key] = place
            if place.engine.url.database is not None:
                self.engines.only_places[place.engine.url] = place
        return place

    def several(self, keyspace: Keyspace, shard_ids: Iterable[int]) -> list[Place]:
        """Return the locations of shards, in their order; see :meth:`place`.

        :param shard_ids: numbers of shards, which are not checked.
        """
        # Statements may be for all shards: avoid a call for each of them.
        name, known = keyspace.name, self._places.get
        return [
            known((name, shard_id)) or self.place(keyspace, shard_id)
            for shard_id in shard_ids
        ]

    def place_on(self, keyspace: Keyspace, server: Server, shard_id: int) -> Place:
        """Return where a shard would be if the given server had it."""
        engine, schema, backend = self._locate(server, keyspace.database_for(shard_id))
        return Place(
            keyspace=keyspace.name,
            shard_id=shard_id,
            server=server.name,
            schema=_quoted(schema, engine.dialect.identifier_preparer),
            engine=engine,
            backend=backend,
        )

    def _locate(self, server: Server, database: str) -> tuple[Engine, str, Backend]:
        """Return the engine of a server, as :meth:`Engines.locate` does."""
        key = server.name, server.primary
        # A server of a replaced topology may have been removed.
        if self.engines.topology is self.topology:
            shared = self._shared.get(key)
            if shared is not None:
                return shared[0], database, shared[1]
        engine, schema, backend = self.engines.locate(server, database)
        if engine.url.database is None:
            self._shared[key] = engine, backend
        return engine, schema, backend

    def all_places(self, keyspace: Keyspace) -> list[Place]:
        """Return the places of every open shard, in order."""
        return self.several(keyspace, range(keyspace.shards))

    def servers(self) -> Iterator[tuple[str, Place]]:
        """Yield the servers by name, with the first shard of each."""
        for keyspace in self.topology.keyspaces.values():
            for server in keyspace.servers:
                lowest = server.shards[0].first if server.shards else 0
                yield server.name, self.place(keyspace, lowest)

    def check(self, timeout: float) -> dict[str, Answer]:
        """Probe all servers at the same time.

        :param timeout: seconds.
        :returns: by name of the server, see :func:`.server_names`: None, or
            the error.
        :raises ServerRetiredError: if a newer topology has removed a server.
        """
        known = server_names(self.topology)
        # A server of several keyspaces is probed only once.
        names: dict[Engine, str] = {}
        try:
            for _, place in self.servers():
                name = known[place.keyspace, place.server]
                names.setdefault(place.engine, name)
        except ClusterClosedError as error:
            return dict.fromkeys(known.values(), error)
        by_name: dict[str, Answer] = {}
        answers = self.engines.ask(list(names), timeout)
        for answer in answers:
            if isinstance(answer, ServerRetiredError):
                raise answer
        # The keyspaces of a server of SQLite have engines of their own.
        for name, answer in zip(names.values(), answers, strict=True):
            by_name[name] = by_name.get(name) or answer
        return by_name

    def warm(self, connections: int) -> None:
        """Open connections to every server of the topology, in parallel.

        :param connections: number of connections to each server.
        """
        engines = {place.engine for _, place in self.servers()}
        self.engines.in_parallel(
            [partial(warm, engine, connections) for engine in engines], "warm"
        )


def check_layout(keyspace: Keyspace, layout: IdLayout) -> None:
    """Check that a class has the id layout of its keyspace.

    :raises IdLayoutMismatchError: if it has another layout.
    """
    if keyspace.kind == "objects" and layout != keyspace.id_layout:
        raise IdLayoutMismatchError(
            keyspace=keyspace.name,
            keyspace_layout=str(keyspace.id_layout),
            class_layout=str(layout),
        )


def by_server(places: Iterable[Place]) -> list[list[Place]]:
    """Return places grouped by engine, in their order."""
    groups: dict[Engine, list[Place]] = {}
    for place in places:
        groups.setdefault(place.engine, []).append(place)
    return list(groups.values())


def _quoted(name: str, preparer: IdentifierPreparer) -> str:
    """Return the quoted name for SQL statements.

    ``quote()`` of the preparer would store each name in memory while the
    engine exists: for 65,536 shards, more than all other data.
    """
    if _PLAIN.fullmatch(name) and name not in preparer.reserved_words:
        return name
    return preparer.quote_identifier(name)
