"""The cluster: a topology, its engines, and sessions over them."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from time import monotonic, time_ns
from typing import (
    Any,
    Concatenate,
    overload,
    ParamSpec,
    TYPE_CHECKING,
    TypeVar,
    TypeVarTuple,
)

from sqlalchemy import MetaData, select
from sqlalchemy.event import dispatcher, Events
from sqlalchemy.event.registry import EventTarget

from sqla_shard.cluster.active_topology import ActiveTopology, FromSources
from sqla_shard.cluster.creation import create_all
from sqla_shard.cluster.event_loops import (
    AsyncSessionContext,
    AsyncShardSession,
    LoopEngines,
    Loops,
    to_the_end,
)
from sqla_shard.cluster.explain import explain, Explanation
from sqla_shard.cluster.health import deadline, Health, health_of, of_newest
from sqla_shard.cluster.retries import Retries, run, run_awaited
from sqla_shard.dialects.base import PasswordFunction, Passwords
from sqla_shard.dialects.polling import Pipelining
from sqla_shard.engine import (
    by_server,
    Engines,
    EngineStats,
    Lanes,
    Places,
    Sampling,
    StatementReport,
    StatementReports,
)
from sqla_shard.engine.rendering import Place
from sqla_shard.exc import OptionError, RoutingError
from sqla_shard.outbox import (
    count_pending,
    Pending,
    pending,
    PendingCount,
    repair,
    RepairReport,
    tables,
)
from sqla_shard.outbox.pending_operations import KEEP
from sqla_shard.outbox.scan import scan
from sqla_shard.outbox.transaction_keys import (
    CommittedKey,
    find_halves,
    find_key,
    forget,
    HalfCommit,
    MINUTE,
)
from sqla_shard.session import (
    CrossShard,
    PlacementPolicy,
    RandomPlacement,
    ShardSession,
)
from sqla_shard.session.commit import CommitReport
from sqla_shard.session.paging import Seal, seal_of
from sqla_shard.session.placement import IdService
from sqla_shard.session.session import SessionContext
from sqla_shard.topology import Topology
from sqla_shard.topology.follow import Fixed, Follower, SourceReport
from sqla_shard.types.compression import DICTIONARIES
from sqla_shard.util.logs import careful_log

if TYPE_CHECKING:
    from sqla_shard.cache import Cache, Cached
    from sqla_shard.outbox.invalidations import DrainReport

P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_log = careful_log(__name__)

#: The clusters of this process that have a cache.  A dictionary: other threads
#: open clusters while a WeakSet is iterated, which then raises an error.
_with_cache: weakref.WeakKeyDictionary[Cluster, None] = weakref.WeakKeyDictionary()


def all_caches() -> list[Cache]:
    """Return the caches of all clusters of this process."""
    alive = [reference() for reference in _with_cache.keyrefs()]
    return [one.cache for one in alive if one is not None and one.cache is not None]


class Cluster(FromSources, EventTarget):
    """A sharded database, as an application sees it.

    ::

        cluster = Cluster.from_file("topology.toml")
        with cluster.begin() as session:
            session.add(User(name="maker"))

    The constructor opens no connection: a session connects to a server when it
    first uses the server.  One cluster serves all threads and event loops of a
    process; after a fork the child opens connections of its own.

    :param topology: where the shards are.
    :param driver: driver for ``mysql://`` URLs that do not name one.
    :param async_driver: driver for all ``mysql`` URLs in asynchronous
        sessions; for SQLite files these use aiosqlite.
    :param placement: chooses the shard of new roots.
    :param engine_options: arguments of :func:`sqlalchemy.create_engine`, such
        as ``pool_size``; each server has its own engine.  Unless
        ``connect_args`` or the URL say otherwise, drivers wait 10 seconds for
        a connection and 30 for each response
        (:doc:`/explanation/time-limits`).
    :param async_engine_options: the same for asynchronous sessions, where
        each event loop has pools of its own; ``engine_options`` by default.
    :param session_options: arguments of every session, such as
        ``expire_on_commit``.
    :param environ: values of the placeholders in URLs; by default the
        environment variables.
    :param threads: maximum number of threads that wait for servers, in
        addition to the threads of the sessions: one for each server but the
        first, for what is not polled.
    :param polling: whether the thread of the session sends to all servers
        and polls their sockets, where the driver can do so, such as PyMySQL;
        otherwise threads wait.
    :param deferred_rollback: whether a session that has only read, without
        locks, ends without waiting for the response to its ROLLBACK, where
        the driver can be polled.
    :param password: function that returns the password of a server, called
        with a :class:`~sqla_shard.ServerLogin` when a connection is opened;
        those of the URLs are not used then.  It is called once for each
        server and account, and again after error 1045, which a server sends
        for a wrong password.  It may block: asynchronous sessions call it in
        a thread.  See :doc:`/howto/passwords`.
    :param scatters: whether statements may be sent to all shards, by
        :func:`~sqla_shard.scatter`.
    :param comments: add a comment with the shards to each statement of a
        session, for the logs of servers.
    :param grace: seconds for which transactions may still use a server
        that has left the topology.
    :param bookmark_keys: secrets that sign the bookmarks of pages, each a
        string of 16 bytes or more, or ``"${NAME}"`` for a value of
        ``environ``: the first signs, all are accepted (:ref:`bookmark-keys`).
        Without them a bookmark can be forged.
    :raises BookmarkKeyError: if one of the keys cannot be used.
    """

    dispatch: dispatcher[Cluster]

    def __init__(
        self,
        topology: Topology,
        *,
        driver: str = "pymysql",
        async_driver: str = "asyncmy",
        placement: PlacementPolicy | None = None,
        engine_options: Mapping[str, Any] | None = None,
        async_engine_options: Mapping[str, Any] | None = None,
        session_options: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
        password: PasswordFunction | None = None,
        threads: int = 32,
        polling: bool = True,
        deferred_rollback: bool = True,
        scatters: bool = True,
        comments: bool = False,
        grace: float = 30.0,
        bookmark_keys: Sequence[str | bytes] = (),
    ) -> None:
        #: Whether statements may be sent to all shards, by ``scatter()``; it
        #: can be set at any time.
        self.scatters = scatters
        #: Returns the time for ids that begin with it, in nanoseconds since
        #: 1970; it can be set at any time.
        self.id_clock: Callable[[], int] = time_ns
        #: Issues the ids of classes with ``id_source = "service"``; it can be
        #: set at any time.
        self.id_service: IdService | None = None
        self._comments = comments
        self.placement: PlacementPolicy = placement or RandomPlacement()
        environ = os.environ if environ is None else environ
        self._seal = seal_of(bookmark_keys, environ)
        #: Takes samples of the statements, for :mod:`sqla_shard.monitor`.
        self.sampling: Sampling = Sampling()
        passwords = None if password is None else Passwords(password)
        options = engine_options or {}
        self._engines = Engines(
            driver=driver,
            options=options,
            environ=environ,
            lanes=Lanes(threads),
            grace=grace,
            pipelining=Pipelining(polls=polling, defers=deferred_rollback),
            sampling=self.sampling,
            passwords=passwords,
        )
        if async_engine_options is not None:
            options = async_engine_options
        self._loops = Loops(
            self,
            partial(
                LoopEngines,
                driver=async_driver,
                options=options,
                environ=environ,
                grace=grace,
                sampling=self.sampling,
                passwords=passwords,
            ),
            request_topology=self._refresh_topology,
        )
        self._engines.request_topology = self._refresh_topology
        self._active = ActiveTopology(
            topology, self._engines, self._loops, self._call_listeners
        )
        self._session_options = dict(session_options or {})
        self._closing: dict[Callable[[], object], None] = {}
        DICTIONARIES.add_source(self)

    # -- Topology

    def update_topology(self, topology: Topology) -> bool:
        """Use a newer topology from now on, without a source.

        Running transactions use the topology that they began with.  Servers
        that are not in the new one are drained.

        :returns: False if it is already in use.
        :raises StaleTopologyError: if the topology is not newer.
        :raises TopologyRefusedError: if it would lose shards or data of the
            one in use.
        :raises MissingDriverError: if a URL in it names a driver that is not
            installed.
        :raises ValueError: if the cluster follows a source.
        """
        return self._active.update(topology)

    def _call_listeners(self, old: Topology, new: Topology) -> None:
        for listener in self.dispatch.topology_changed:
            try:
                listener(self, old, new)
            except Exception:  # The other listeners must still be called.
                _log.exception(
                    "a listener failed for the topology of epoch %d",
                    new.epoch,
                    extra={"action": "tell of topology", "epoch": new.epoch},
                )

    def job_context(self, task: str) -> dict[str, str]:
        """Return what listeners of ``before_enqueue`` store with a job.

        :param task: name of its task.
        """
        carrier: dict[str, str] = {}
        for listener in self.dispatch.before_enqueue:
            listener(self, task, carrier)
        return carrier

    def listens(self, name: str) -> bool:
        """Return whether an event has listeners."""
        return bool(getattr(self.dispatch, name))

    def notify(self, name: str, *arguments: Any) -> None:
        """Call the listeners of an event of a session."""
        for listener in getattr(self.dispatch, name):
            listener(self, *arguments)

    @property
    def places(self) -> Places:
        """The current shard locations."""
        return self._active.places

    @property
    def topology(self) -> Topology:
        """The topology in use."""
        return self.places.topology

    @property
    def watch(self) -> StatementReports | None:
        """Listeners and comments for the statements of sessions."""
        listeners = self.dispatch.after_statement
        if not listeners and not self._comments:
            return None
        return StatementReports(
            partial(listeners, self) if listeners else None, self._comments
        )

    @property
    def seal(self) -> Seal:
        """The object that signs and checks the bookmarks of pages."""
        return self._seal

    # -- Sessions

    def session(
        self, *, class_: type[ShardSession] = ShardSession, **kwargs: Any
    ) -> ShardSession:
        """Return a new session; use it as a context manager.

        :param class_: a subclass of :class:`ShardSession`.
        :param kwargs: ``shard_id``, ``cross_shard``, or as for
            :class:`sqlalchemy.orm.Session`.
        """
        return class_(cluster=self, **{**self._session_options, **kwargs})

    def begin(self, *, cross_shard: CrossShard = None, **kwargs: Any) -> SessionContext:
        """Return a context manager: a session, committed at the end.

        An exception rolls back; the session is closed either way.

        :param cross_shard: ``"ordered"`` or ``"unordered"`` allows the
            transaction to write several shards; ``"logged"`` allows it to
            leave operations that are applied on them.
        """
        return SessionContext(self.session(cross_shard=cross_shard, **kwargs))

    # With the options of run() a type checker knows only the positional
    # arguments of fn: it cannot tell the others from options.
    @overload
    def run(
        self,
        fn: Callable[Concatenate[ShardSession, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T: ...

    @overload
    def run(
        self,
        fn: Callable[[ShardSession, *Ts], T],
        *args: *Ts,
        attempts: int | None = ...,
        timeout: float = ...,
        key: str | None = ...,
        cross_shard: CrossShard = ...,
    ) -> T: ...

    def run(  # type: ignore[misc]  # its options are not those of fn
        self,
        fn: Callable[..., T],
        *args: Any,
        attempts: int | None = None,
        timeout: float = 30.0,
        key: str | None = None,
        cross_shard: CrossShard = None,
        **kwargs: Any,
    ) -> T:
        """Run ``fn(session, *args, **kwargs)`` in a transaction.

        It is repeated, with a new session, when that is safe: after a
        deadlock, a lock wait timeout, a stale object, a server that has
        become read-only, a shard that has moved, or a connection lost before
        COMMIT was sent.  So ``fn`` should do nothing that cannot be
        repeated, and return no object that needs the session.

        Type checkers check the arguments of ``fn``.  They refuse keyword
        arguments of it beside options; use :func:`functools.partial`.

        :param attempts: maximum number of attempts; None for no limit
            except ``timeout``.
        :param timeout: seconds after which no further attempt begins.
        :param key: a unique name of this transaction, such as ``"order-17"``:
            it is written in the transaction, and read if the outcome of COMMIT
            is unknown (:doc:`/howto/retry`).
        :param cross_shard: as for :meth:`begin`; a key is possible with
            ``"logged"``, and with ``"ordered"``, where it shows the partial
            commits of a killed process (:meth:`find_halves`).
        :returns: what ``fn`` returns.
        :raises RetriesExhaustedError: if no attempt is left.
        :raises CommitUnknownError: if the outcome of COMMIT is unknown; the
            transaction is not repeated.  With a key: if the outcome could not
            be looked up in time.
        :raises KeyUsedError: if an earlier transaction with the key has
            committed, on the shard that this one has written first.
        :raises ValueError: if the key is not valid.
        :raises OptionError: if ``fn`` is ``async def``.
        """
        return run(
            lambda session: fn(session, *args, **kwargs),
            partial(self.begin, cross_shard=cross_shard),
            self.session,
            Retries(
                self._engines.backends,
                attempts=attempts,
                timeout=timeout,
                follower=self._follower,
                repeats=partial(self.notify, "transaction_repeated"),
            ),
            key,
        )

    # -- Asynchronous sessions and methods

    def async_session(self, **kwargs: Any) -> AsyncShardSession:
        """Return a new asynchronous session; use it with ``async with``.

        By default its objects keep their values at COMMIT
        (``expire_on_commit=False``): reading an expired attribute would need
        a query, which an attribute cannot await.

        :param kwargs: as for :meth:`session`.
        """
        return AsyncShardSession(
            cluster=self._loops,
            **{"expire_on_commit": False, **self._session_options, **kwargs},
        )

    def async_begin(
        self, *, cross_shard: CrossShard = None, **kwargs: Any
    ) -> AsyncSessionContext:
        """Return a context manager: :meth:`begin` for ``async with``.

        A task that is cancelled meanwhile waits for the end of COMMIT, and
        is cancelled after it.

        :param cross_shard: ``"ordered"`` or ``"unordered"`` allows the
            transaction to write several shards; ``"logged"`` allows it to
            leave operations that are applied on them.
        """
        return AsyncSessionContext(
            self.async_session(cross_shard=cross_shard, **kwargs)
        )

    @overload
    async def async_run(
        self,
        fn: Callable[Concatenate[AsyncShardSession, P], Awaitable[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T: ...

    @overload
    async def async_run(
        self,
        fn: Callable[[AsyncShardSession, *Ts], Awaitable[T]],
        *args: *Ts,
        attempts: int | None = ...,
        timeout: float = ...,
        key: str | None = ...,
        cross_shard: CrossShard = ...,
    ) -> T: ...

    async def async_run(  # type: ignore[misc]  # see run()
        self,
        fn: Callable[..., Awaitable[T]],
        *args: Any,
        attempts: int | None = None,
        timeout: float = 30.0,
        key: str | None = None,
        cross_shard: CrossShard = None,
        **kwargs: Any,
    ) -> T:
        """Await ``fn(session, *args, **kwargs)`` in a transaction.

        Repeated under the same conditions as :meth:`run`, with the same
        exceptions.

        :param attempts: maximum number of attempts; None for no limit
            except ``timeout``.
        :param timeout: seconds after which no further attempt begins.
        :param key: a unique name of this transaction.
        :param cross_shard: as for :meth:`begin`.
        :returns: what ``fn`` returns.
        """
        return await run_awaited(
            lambda session: fn(session, *args, **kwargs),
            partial(self.async_begin, cross_shard=cross_shard),
            self.async_session,
            Retries(
                self._loops.backends,
                attempts=attempts,
                timeout=timeout,
                follower=self._follower,
                repeats=partial(self.notify, "transaction_repeated"),
            ),
            key,
        )

    async def async_call(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Await ``fn(*args, places=..., **kwargs)``.

        The function is synchronous code; its statements are awaited, over
        the connections of this event loop.
        """
        return await self._loops.run(fn, *args, **kwargs)

    async def async_create_all(
        self, metadata: MetaData, *, keyspace: str | None = None
    ) -> None:
        """Create the missing tables; see :meth:`create_all`."""
        await self._loops.run(create_all, metadata, keyspace=keyspace)

    async def async_warm(self, connections: int = 1) -> None:
        """Open connections of this event loop to every server now.

        :param connections: number of connections to each server.
        """
        await self._loops.run(
            lambda places: of_newest(
                lambda: self._loops.places, lambda one: one.warm(connections)
            )
        )

    async def async_health(self, timeout: float = 2.0) -> Health:
        """Check every server; see :meth:`health`.

        :param timeout: seconds.
        :raises ValueError: if the timeout is not above 0 and at most 3600.
        """
        end = deadline(timeout)
        answers = await self._loops.run(
            lambda places: of_newest(
                lambda: self._loops.places, lambda one: one.check(timeout)
            )
        )
        while not self._follower.has_read and monotonic() < end:
            # A new child process has not read the source yet.
            await asyncio.sleep(0.02)
        return health_of(self._follower.report(), answers)

    async def aclose(self, timeout: float = 10.0) -> bool:
        """Let transactions of this event loop end, then close everything.

        New sessions get :exc:`~sqla_shard.exc.ClusterClosedError`,
        synchronous ones too.  Connections of other event loops are closed
        when they are returned, or when their loop ends.

        :param timeout: seconds to wait for running transactions.
        :returns: whether all ended in time.
        """
        return await to_the_end(self._aclose(timeout))

    async def _aclose(self, timeout: float) -> bool:
        DICTIONARIES.remove_source(self)
        self._follower.close_soon()
        ended = await self._loops.aclose(timeout)
        self._close_rest()
        if not any(stats.busy for stats in self._engines.stats()):
            return self._engines.close(0) and ended
        # close() waits for sessions of other threads.
        return await asyncio.to_thread(self._engines.close, timeout) and ended

    # -- Monitoring

    def explain(
        self, what: Any, parameters: Any = None, *, keyspace: str | None = None
    ) -> Explanation:
        """Return the route of an id or a statement, without executing it.

        :param what: an object id, or a SELECT, UPDATE or DELETE.
        :param parameters: parameters of the statement, if it has any.
        :param keyspace: name of the keyspace of an id, if several keyspaces
            contain objects; a statement is in the keyspace of its classes.
        :returns: the explanation; ``str()`` of it is a readable report.
        :raises InvalidIdError: if ``what`` is neither.
        """
        return explain(
            what,
            parameters,
            self.places,
            self.placement,
            keyspace=keyspace,
            scatters=self.scatters,
        )

    def stats(self) -> list[EngineStats]:
        """Return the state of the pool of every server in use.

        Each event loop has pools of its own.
        """
        return self._engines.stats() + self._loops.stats()

    def health(self, timeout: float = 2.0) -> Health:
        """Return the state of the source and of every server.

        All servers are pinged at the same time, each over a new connection,
        which is closed afterwards.  The source is not read: the result has
        its last state.  A child process that has not read it yet waits for
        that.  If a newer topology removes a server meanwhile, all servers of
        that one are pinged, for as long again.

        :param timeout: seconds; a server that has not responded by then is
            reported as down.
        :raises ValueError: if the timeout is not above 0 and at most 3600.
        """
        end = deadline(timeout)
        answers = of_newest(lambda: self.places, lambda places: places.check(timeout))
        self._follower.wait_read(max(end - monotonic(), 0))
        return health_of(self._follower.report(), answers)

    def source_report(self) -> SourceReport:
        """Return the state of the topology source, without reading it."""
        return self._follower.report()

    @property
    def _follower(self) -> Fixed | Follower:
        return self._active.follower

    def _refresh_topology(self) -> None:
        # Called after an error of a server: the topology may have changed.
        self._follower.refresh()

    def create_all(self, metadata: MetaData, *, keyspace: str | None = None) -> None:
        """Create the missing tables of every virtual shard.

        For development and tests; missing databases are also created.

        :param keyspace: create only the tables of this keyspace.
        """
        create_all(metadata, self.places, keyspace)

    def warm(self, connections: int = 1) -> None:
        """Open connections to every server now, in parallel.

        :param connections: number of connections to each server.
        """
        of_newest(lambda: self.places, lambda places: places.warm(connections))

    # -- Operations and transaction keys

    def pending(self) -> list[Pending]:
        """Return the pending operations, oldest first.

        A healthy cluster has only recent ones; see :meth:`repair`.

        :returns: at most 200 operations of each shard; :meth:`count_pending`
            counts all of them.
        """
        return pending(self)

    def count_pending(self) -> list[PendingCount]:
        """Return the number of pending calls of each operation, on all shards.

        :returns: the numbers by name of the operation, in the order of the
            names.
        :raises SQLAlchemyError: if a server cannot be read.
        """
        return count_pending(self)

    def repair(self, *, keep: timedelta = KEEP, now: bool = False) -> RepairReport:
        """Apply pending operations.

        The command ``sqla-shard repair`` calls this repeatedly.  The
        modules that define the operations must have been imported.

        :param keep: retention time of the record of an applied operation: a
            process that is suspended for longer while it applies one would
            apply it a second time.
        :param now: also apply operations that are not due yet: those that
            their own process or another worker may still apply, and those that
            failed recently.
        :raises ValueError: if ``keep`` is not valid.
        """
        return repair(self, keep=keep, now=now)

    def find_key(self, key: str) -> list[CommittedKey]:
        """Return the shards on which a key of :meth:`run` has committed.

        This shows the outcome of a transaction whose process was killed.  All
        shards are read without locks: a transaction that is about to commit is
        not found yet.  Nor is a deleted key, or the key of a transaction that
        wrote nothing.

        :returns: usually one shard; several if transactions with the same key
            have written different shards first; empty if none has committed.
        :raises ValueError: if the key is not valid.
        :raises SQLAlchemyError: if a server cannot be read, or a shard
            does not have the table.
        """
        return find_key(self, key)

    def find_halves(self, older_than: timedelta = MINUTE) -> list[HalfCommit]:
        """Return partially committed transactions of :meth:`run`.

        Their process was killed between two COMMITs of ``run(key=...,
        cross_shard="ordered")``; without a key they cannot be found.  They are
        listed until their key is deleted.

        :param older_than: minimum age; must be longer than the COMMITs of one
            transaction take.
        :returns: the transactions, oldest first.
        :raises ValueError: if the age is not valid.
        :raises SQLAlchemyError: if a server cannot be read, or a shard
            does not have the table.
        """
        return find_halves(self, older_than)

    def forget_keys(self, older_than: timedelta, *, batch: int = 1000) -> int:
        """Delete old keys of :meth:`run` on every shard.

        A transaction that is repeated with a deleted key is executed a second
        time: choose an age above that of everything that may still be
        repeated, such as a message in a queue.

        :param older_than: minimum age of a key, by the clocks of the servers.
        :param batch: maximum number of keys that a transaction deletes.
        :returns: the number of deleted keys.
        :raises ValueError: if an argument is not valid.
        """
        return forget(self.places, older_than, batch)

    async def async_forget_keys(
        self, older_than: timedelta, *, batch: int = 1000
    ) -> int:
        """Delete old keys on every shard; see :meth:`forget_keys`."""
        count: int = await self._loops.run(forget, older_than=older_than, batch=batch)
        return count

    # -- Compressed blobs

    def load_dictionary(self, dictionary_id: int) -> tuple[bytes | None, Sequence[str]]:
        """Return the content of a dictionary of compressed blobs.

        Reading a compressed blob calls it once for each dictionary.

        :returns: the content, None if no virtual shard has it; and the
            servers that could not be read.
        """
        places = self.places
        first = {
            group[0].address
            for keyspace in places.topology.keyspaces.values()
            for group in by_server(places.all_places(keyspace))
        }
        stored = tables.DICTIONARIES.c
        statement = select(stored.content).where(stored.id == dictionary_id)

        def read(session: ShardSession, group: Sequence[Place]) -> list[bytes]:
            # One shard after another: each has the whole dictionary.
            for place in group:
                content = session.execute(
                    statement, bind_arguments={"place": place}
                ).scalar()
                if content is not None:
                    return [bytes(content)]
            return []

        def read_first(session: ShardSession, group: Sequence[Place]) -> list[bytes]:
            return read(session, [place for place in group if place.address in first])

        unreachable: list[str] = []
        for way in (read_first, read):
            contents, failed = scan(
                self,
                way,
                lambda place, error: True,
                purpose="dictionary",
                kinds=("objects",),
            )
            if contents:
                return contents[0], []
            unreachable = [shard.server for shard in failed]
        return None, unreachable

    # -- Row cache

    #: The cache; None before :meth:`configure_cache`.
    cache: Cache | None = None

    def configure_cache(
        self,
        regions: Mapping[str, Any],
        *,
        classes: Mapping[Any, str | Cached],
        prefix: str,
    ) -> Cache:
        """Configure the row cache; see :doc:`/howto/cache`.

        Every process that writes has to call it with the same arguments:
        otherwise its writes would leave stale rows in the caches.  They can
        be read from a file with :func:`~sqla_shard.cache.load_cache`.

        :param regions: for each name the arguments of
            ``CacheRegion.configure()`` of dogpile.cache, or a configured
            region.
        :param classes: for each object or mapping class whose rows are cached,
            the name of a region, or a :class:`~sqla_shard.cache.Cached`.
        :param prefix: prefix of all keys; the same for all processes of an
            application.
        :returns: the cache; it is available as ``cluster.cache``.
        :raises OptionError: if an argument is not valid, or the
            cluster has a cache already.
        :raises CacheClassError: if rows of a class cannot be cached.
        :raises MissingExtraError: if a required package is not installed.
        """
        # Import the modules only if there is a cache.
        from sqla_shard.cache import Cache

        if self.cache is not None:
            # Pending invalidations belong to that cache.
            raise OptionError(
                "is already configured: a cluster has one cache; create "
                "another cluster",
                option="cluster.cache",
                value=self.cache,
            )
        self.cache = cache = Cache(regions, classes, prefix)
        _with_cache[self] = None
        return cache

    def _close_rest(self) -> None:
        for function in list(self._closing):
            function()
        if self.cache is not None:
            self.cache.close()

    def repair_cache(self) -> DrainReport:
        """Apply pending invalidations of the row cache.

        The command ``sqla-shard cache repair`` calls this repeatedly.

        :raises OptionError: if the cluster has no cache.
        """
        from sqla_shard.outbox.invalidations import drain

        cache = self.cache
        if cache is None:
            raise OptionError(
                "is not configured; call configure_cache() first",
                option="cluster.cache",
                value=None,
            )
        stores = {name: one.store for name, one in cache.regions.items()}
        return drain(self, stores)

    # -- Closing

    def close(self, timeout: float = 10.0) -> bool:
        """Let running transactions end, then close every connection.

        New sessions get :exc:`~sqla_shard.exc.ClusterClosedError`.  After a
        second of waiting, a warning says how many connections to which servers
        are in use.

        Asynchronous code calls :meth:`aclose`.  This method does not wait for
        asynchronous sessions: their connections are closed when they are
        returned, or when their event loop ends.

        :param timeout: seconds to wait for running transactions.
        :returns: whether all ended in time.
        """
        DICTIONARIES.remove_source(self)
        self._follower.close_soon()
        self._loops.shut()
        drained = self._engines.close(timeout)
        self._follower.close(1.0)
        self._close_rest()
        return drained

    def call_at_close(self, function: Callable[[], object]) -> None:
        """Call a function each time that the cluster is closed.

        It is called in the thread, or the event loop, that closes it.
        """
        self._closing[function] = None

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def __repr__(self) -> str:
        spaces = ", ".join(
            f"{keyspace.name} ({keyspace.shards} shards)"
            for keyspace in self.topology.keyspaces.values()
        )
        return f"<Cluster epoch {self.topology.epoch}: {spaces}>"


class ClusterEvents(Events[Cluster]):
    """Events of a :class:`Cluster`, for :func:`sqlalchemy.event.listen`.

    ::

        @event.listens_for(cluster, "after_statement")
        def count(cluster, report):
            metrics.histogram("fan_out", report.fan_out)
    """

    _target_class_doc = "SomeCluster"
    _dispatch_target = Cluster

    def after_statement(self, cluster: Cluster, report: StatementReport) -> None:
        """Called after a statement, whether it failed or not.

        It is called in the thread of the session, before objects are loaded
        from the rows; exceptions of the listener are raised there.
        """

    def commit_ended(self, cluster: Cluster, report: CommitReport) -> None:
        """Called after the COMMITs of a transaction, whatever the outcome.

        It is called in the thread of the session; exceptions of the listener
        are raised there, although the transaction may have been committed.
        """

    def transaction_repeated(
        self, cluster: Cluster, error: Exception, attempt: int
    ) -> None:
        """Called before :meth:`Cluster.run` repeats a transaction.

        :param error: the error of the last attempt.
        :param attempt: its number, from 1.
        """

    def statement_refused(self, cluster: Cluster, error: RoutingError) -> None:
        """Called after a statement was refused, which has sent nothing.

        It is called in the thread of the session, below the line of the
        application that has executed the statement.
        """

    def connection_obtained(
        self, cluster: Cluster, server: str, seconds: float
    ) -> None:
        """Called after a transaction has got a connection to a server.

        :param server: name of the server, as in :meth:`Cluster.stats`.
        :param seconds: time for which the transaction has waited: for the
            pool, and for a new connection.
        """

    def topology_changed(self, cluster: Cluster, old: Topology, new: Topology) -> None:
        """Called when a newer topology is in use.

        It is called once for each topology, in the order of epochs, in a
        thread of the cluster; exceptions are only logged.  The source is not
        read until the listener returns: leave long work to another thread.
        After ten seconds ``cluster.health()`` is ``"stale"``.
        """

    def before_enqueue(
        self, cluster: Cluster, task: str, carrier: dict[str, str]
    ) -> None:
        """Called before jobs of a task are inserted.

        Exceptions of the listener are raised by ``enqueue()``.

        :param carrier: what a listener adds to it, such as ``traceparent``,
            is stored with the jobs; workers get it as ``job.context``.
        """

    def before_job(self, cluster: Cluster, job: Any) -> None:
        """Called before a worker calls the task of a job.

        It is called in the thread, or in the task of the event loop, that
        runs the job; exceptions are only logged.

        :param job: a :class:`~sqla_shard.jobs.ClaimedJob`.
        """

    def after_job(self, cluster: Cluster, report: Any) -> None:
        """Called after a task has returned or failed, where it was called.

        A job whose task returns its result outside a transaction is
        acknowledged later.  Exceptions of the listener are only logged.

        :param report: a :class:`~sqla_shard.jobs.JobReport`.
        """

    def job_claims_lost(self, cluster: Cluster, jobs: tuple[str, ...]) -> None:
        """Called when what a worker writes for jobs was refused.

        Their claims had expired, and other workers may have run them.
        Exceptions of the listener are only logged.
        """
