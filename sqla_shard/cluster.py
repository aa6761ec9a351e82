"""The front door: a topology, its engines, and sessions over them."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import Any
from typing import TypeVar

from sqlalchemy import MetaData
from sqlalchemy.event import dispatcher
from sqlalchemy.event.registry import EventTarget

from sqla_shard.async_session import AsyncBegun
from sqla_shard.async_session import AsyncShardSession
from sqla_shard.async_session import to_the_end
from sqla_shard.creating import create_all
from sqla_shard.current import Current
from sqla_shard.dialects import Backend
from sqla_shard.engines import Engines
from sqla_shard.engines import EngineStats
from sqla_shard.engines import Places
from sqla_shard.explaining import explain
from sqla_shard.explaining import Explanation
from sqla_shard.following import Fixed
from sqla_shard.following import Follower
from sqla_shard.following import SourceReport
from sqla_shard.health import deadline
from sqla_shard.health import Health
from sqla_shard.health import health_of
from sqla_shard.keeping import Keeping
from sqla_shard.loops import LoopEngines
from sqla_shard.loops import Loops
from sqla_shard.paging import Seal
from sqla_shard.paging import seal_of
from sqla_shard.running import Limits
from sqla_shard.running import run
from sqla_shard.running import run_awaited
from sqla_shard.scattering import Lanes
from sqla_shard.scattering import Watch
from sqla_shard.session import CrossShard
from sqla_shard.session import PlacementPolicy
from sqla_shard.session import RandomPlacement
from sqla_shard.session import ShardSession
from sqla_shard.session.begun import Begun
from sqla_shard.session.transactions import watch
from sqla_shard.sourcing import FromSources
from sqla_shard.topology import Topology
from sqla_shard.upkeep import Upkeep

__all__ = ["Cluster"]

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Cluster(FromSources, Upkeep, Keeping, EventTarget):
    """A sharded database, as an application sees it.

    ::

        cluster = Cluster.from_file("topology.toml")
        with cluster.begin() as session:
            session.add(User(name="maker"))

    Making one opens nothing: a server is connected to when a session first
    needs it.  One cluster serves all threads and event loops of a process;
    after a fork the child opens connections of its own.

    :param topology: where the shards are.
    :param driver: for ``mysql://`` URLs that name none.
    :param async_driver: for all ``mysql`` URLs in asynchronous sessions;
        SQLite files have aiosqlite there.
    :param placement: chooses the shard of new roots.
    :param engine_options: for :func:`sqlalchemy.create_engine`, such as
        ``pool_size``; they hold for each server.  Unless ``connect_args``
        among them or the URL say otherwise, drivers wait 10 seconds for a
        connection and 30 for each answer (:doc:`/explanation/time-limits`).
    :param async_engine_options: the same for asynchronous sessions, where
        each event loop has pools of its own; ``engine_options`` by default.
    :param session_options: for every session, such as
        ``expire_on_commit``.
    :param environ: values of the placeholders in URLs; the environment
        variables by default.
    :param threads: how many may wait for servers at the same time, beside
        those of the sessions: a statement for several servers takes one for
        each but the first.
    :param scatters: whether statements may go to all shards, by
        :func:`~sqla_shard.scatter`.
    :param comments: let the SQL of sessions say in a comment where it goes,
        for the logs of servers.
    :param grace: seconds for which transactions may go on with a server
        that has left the topology.
    :param bookmark_keys: secrets that sign the bookmarks of pages, each a
        text of 16 bytes or more, or ``"${NAME}"`` for that of ``environ``:
        the first signs, all are accepted (:ref:`bookmark-keys`).  Without
        them a bookmark can be made up.
    :raises BookmarkKeyError: when one of them cannot be used.
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
        threads: int = 32,
        scatters: bool = True,
        comments: bool = False,
        grace: float = 30.0,
        bookmark_keys: Sequence[str | bytes] = (),
    ) -> None:
        #: Whether statements may go to all shards, by ``scatter()``; it can
        #: be set at any time.
        self.scatters = scatters
        self._comments = comments
        self.placement = placement or RandomPlacement()
        environ = os.environ if environ is None else environ
        self._seal = seal_of(bookmark_keys, environ)
        options = engine_options or {}
        self._engines = Engines(
            driver=driver,
            options=options,
            environ=environ,
            on_open=watch,
            lanes=Lanes(threads),
            grace=grace,
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
                on_open=watch,
                grace=grace,
            ),
            trouble=self._ask,
        )
        self._engines.trouble = self._ask
        self._current = Current(
            topology, self._engines, self._loops, self._tell
        )
        self._session_options = dict(session_options or {})

    # -- the topology

    def update_topology(self, topology: Topology) -> bool:
        """Use a newer topology from now on, without a source.

        Transactions keep the one that they began with.  Servers that it has
        no more are drained.

        :returns: False where it is the one in use.
        :raises StaleTopologyError: when it is not newer.
        :raises TopologyRefusedError: when it would lose what the one in use
            has.
        :raises MissingDriverError: when it names a driver that is not there.
        :raises ValueError: when the cluster follows a source.
        """
        return self._current.update(topology)

    def _tell(self, old: Topology, new: Topology) -> None:
        for listener in self.dispatch.topology_changed:
            try:
                listener(self, old, new)
            except Exception:  # one must not stop the others
                _log.exception(
                    "a listener has failed for the topology of epoch %d",
                    new.epoch,
                    extra={"action": "tell of topology", "epoch": new.epoch},
                )

    @property
    def places(self) -> Places:
        """Where the shards are now."""
        return self._current.places

    @property
    def topology(self) -> Topology:
        """Where the shards are now."""
        return self.places.topology

    @property
    def watch(self) -> Watch | None:
        """What else is done with the statements of its sessions."""
        listeners = self.dispatch.after_statement
        if not listeners and not self._comments:
            return None
        return Watch(
            partial(listeners, self) if listeners else None, self._comments
        )

    @property
    def seal(self) -> Seal:
        """What makes and opens the bookmarks of pages."""
        return self._seal

    # -- sessions

    def session(
        self, *, class_: type[ShardSession] = ShardSession, **kwargs: Any
    ) -> ShardSession:
        """Return a new session; use it as a context manager.

        :param class_: a subclass of yours.
        :param kwargs: ``shard_id``, ``cross_shard``, or as for
            :class:`sqlalchemy.orm.Session`.
        """
        return class_(cluster=self, **{**self._session_options, **kwargs})

    def begin(self, *, cross_shard: CrossShard = None, **kwargs: Any) -> Begun:
        """Return a context manager: a session, committed at the end.

        An exception rolls back; the session is closed either way.

        :param cross_shard: ``"ordered"`` or ``"unordered"`` lets the
            transaction write several shards, ``"logged"`` leave operations
            to be done on them.
        """
        return Begun(self.session(cross_shard=cross_shard, **kwargs))

    def run(
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

        :param attempts: how often at most; None for as often as ``timeout``
            allows.
        :param timeout: seconds after which no further attempt begins.
        :param key: names this transaction and no other, such as
            ``"order-17"``: it is written with it, and read where the outcome
            of COMMIT is unknown (:doc:`/howto/retry`).
        :param cross_shard: as for :meth:`begin`; a key goes with
            ``"logged"``, and with ``"ordered"``, where it tells what a killed
            process has left half (:meth:`find_halves`).
        :returns: what ``fn`` returns.
        :raises RetriesExhaustedError: when that was not enough.
        :raises CommitUnknownError: when the outcome of COMMIT is unknown;
            it is not repeated.  With a key: when it could not be found out
            in time.
        :raises KeyUsedError: when a transaction with the key has committed
            before, on the shard that this one has written first.
        :raises ValueError: when the key cannot be one.
        """
        return run(
            lambda session: fn(session, *args, **kwargs),
            partial(self.begin, cross_shard=cross_shard),
            self.session,
            self._limits(self._engines.backends, attempts, timeout),
            key,
        )

    def _limits(
        self,
        backends: Callable[[], set[Backend]],
        attempts: int | None,
        timeout: float,
    ) -> Limits:
        return Limits(
            backends=backends,
            attempts=attempts,
            timeout=timeout,
            feed=self._feed,
        )

    # -- sessions in event loops

    def async_session(self, **kwargs: Any) -> AsyncShardSession:
        """Return a new asynchronous session; use it with ``async with``.

        Unless told otherwise its objects keep their values at COMMIT
        (``expire_on_commit=False``): reading an expired one would have to
        wait for the server, and reading an attribute cannot.

        :param kwargs: as for :meth:`session`.
        """
        return AsyncShardSession(
            cluster=self._loops,
            **{"expire_on_commit": False, **self._session_options, **kwargs},
        )

    def async_begin(
        self, *, cross_shard: CrossShard = None, **kwargs: Any
    ) -> AsyncBegun:
        """Return a context manager: :meth:`begin` for ``async with``.

        COMMIT is waited for even by a task that is cancelled meanwhile; it
        goes on being cancelled after it.

        :param cross_shard: ``"ordered"`` or ``"unordered"`` lets the
            transaction write several shards, ``"logged"`` leave operations
            to be done on them.
        """
        return AsyncBegun(
            self.async_session(cross_shard=cross_shard, **kwargs)
        )

    async def async_run(
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

        Repeated as by :meth:`run`, which says when, and what is raised.

        :param attempts: how often at most; None for as often as ``timeout``
            allows.
        :param timeout: seconds after which no further attempt begins.
        :param key: names this transaction and no other.
        :param cross_shard: as for :meth:`begin`.
        :returns: what ``fn`` returns.
        """
        return await run_awaited(
            lambda session: fn(session, *args, **kwargs),
            partial(self.async_begin, cross_shard=cross_shard),
            self.async_session,
            self._limits(self._loops.backends, attempts, timeout),
            key,
        )

    async def async_call(
        self, fn: Callable[..., T], *args: Any, **kwargs: Any
    ) -> T:
        """Await ``fn(*args, places=..., **kwargs)``.

        The function is written as other code is; what it sends is awaited,
        over the connections of this event loop.
        """
        return await self._loops.run(fn, *args, **kwargs)

    async def async_create_all(
        self, metadata: MetaData, *, keyspace: str | None = None
    ) -> None:
        """Create the missing tables; see :meth:`create_all`."""
        await self._loops.run(create_all, metadata, keyspace=keyspace)

    async def async_warm(self, connections: int = 1) -> None:
        """Open connections of this event loop to every server now.

        :param connections: how many to each.
        """
        await self._loops.run(lambda places: places.warm(connections))

    async def async_health(self, timeout: float = 2.0) -> Health:
        """Ask every server for a sign of life; see :meth:`health`.

        :param timeout: seconds.
        :raises ValueError: when it is no number of seconds above 0.
        """
        end = deadline(timeout)
        answers = await self._loops.run(lambda places: places.check(timeout))
        while not self._feed.has_asked and monotonic() < end:
            # In a process that was forked a moment ago.
            await asyncio.sleep(0.02)
        return health_of(self._feed.report(), answers)

    async def aclose(self, timeout: float = 10.0) -> bool:
        """Let transactions of this event loop end, then close everything.

        New sessions get :exc:`~sqla_shard.exc.ClusterClosedError`,
        synchronous ones too.  Connections of other event loops are closed
        when they come back, or when their loop ends.

        :param timeout: seconds to wait for running transactions.
        :returns: whether all ended in time.
        """
        return await to_the_end(self._aclose(timeout))

    async def _aclose(self, timeout: float) -> bool:
        self._feed.close_soon()
        ended = await self._loops.aclose(timeout)
        self._close_cache()
        if not any(stats.busy for stats in self._engines.stats()):
            return self._engines.close(0) and ended
        # It waits for sessions of other threads.
        return await asyncio.to_thread(self._engines.close, timeout) and ended

    # -- looking

    def explain(self, what: Any, parameters: Any = None) -> Explanation:
        """Tell where an id or a statement goes, and why; runs nothing.

        :param what: an object id, or a SELECT, UPDATE or DELETE.
        :param parameters: of the statement, if it has any.
        :returns: data; ``str()`` of it is for reading.
        :raises InvalidIdError: when it is neither.
        """
        return explain(
            what,
            parameters,
            self.places,
            self.placement,
            scatters=self.scatters,
        )

    def stats(self) -> list[EngineStats]:
        """Return the state of the pool of every server in use.

        Each event loop has pools of its own.
        """
        return self._engines.stats() + self._loops.stats()

    def health(self, timeout: float = 2.0) -> Health:
        """Tell how things stand with the source and with every server.

        All servers are asked for a sign of life at the same time, each over
        a connection of its own, which is closed afterwards.  The source is
        not asked: what its thread has found last is told, and in a child
        process that has not asked it yet, that is waited for.

        :param timeout: seconds; a server that has not answered by then is
            told of as such.
        :raises ValueError: when it is no number of seconds above 0.
        """
        end = deadline(timeout)
        answers = self.places.check(timeout)
        self._feed.wait_asked(max(end - monotonic(), 0))
        return health_of(self._feed.report(), answers)

    def source_report(self) -> SourceReport:
        """Tell how things stand with the source; nobody is asked."""
        return self._feed.report()

    @property
    def _feed(self) -> Fixed | Follower:
        return self._current.feed

    def _ask(self) -> None:
        # A server has acted as one does that a newer topology has not.
        self._feed.refresh()

    # -- the servers

    def create_all(
        self, metadata: MetaData, *, keyspace: str | None = None
    ) -> None:
        """Create the missing tables of every virtual shard.

        For development and tests; databases are created too.

        :param keyspace: create only the tables of this keyspace.
        """
        create_all(metadata, self.places, keyspace)

    def warm(self, connections: int = 1) -> None:
        """Open connections to every server now, in parallel.

        :param connections: how many to each.
        """
        self.places.warm(connections)

    def close(self, timeout: float = 10.0) -> bool:
        """Let running transactions end, then close every connection.

        New sessions get :exc:`~sqla_shard.exc.ClusterClosedError`.

        Asynchronous code calls :meth:`aclose`.  This does not wait for its
        sessions: their connections are closed when they come back, or when
        their event loop ends.

        :param timeout: seconds to wait for running transactions.
        :returns: whether all ended in time.
        """
        self._feed.close_soon()
        self._loops.shut()
        drained = self._engines.close(timeout)
        self._feed.close(1.0)
        self._close_cache()
        return drained

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
