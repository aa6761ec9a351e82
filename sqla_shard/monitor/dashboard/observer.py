"""The fleet as one process sees it, for the pages.

An :class:`Observer` reads only while a page is looked at, each value at most
once in its time, and in a thread of its own.  It changes nothing; the pages
call the queue of :mod:`sqla_shard.jobs` for the changes that are allowed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, UTC
from functools import partial
from typing import Any, Literal, TypeVar

from alembic.config import Config

from sqla_shard.cache import RegionStats
from sqla_shard.cache.stores.memcached import NodeStats
from sqla_shard.cluster.cluster import Cluster
from sqla_shard.cluster.explain import Explanation
from sqla_shard.engine.unreachable import unreachable_lines, UnreachableServer
from sqla_shard.exc import FleetSetupError, ShardError
from sqla_shard.fleet import Accounts, Fleet, FleetPlan, FleetStatus, status
from sqla_shard.fleet.content_checks import fill_of
from sqla_shard.fleet.facts import FleetFacts
from sqla_shard.fleet.fleet import pair_named
from sqla_shard.fleet.journal import Record
from sqla_shard.fleet.runner import operation_of
from sqla_shard.jobs import JobPage, jobs_of, JobState, QueueCount, QueueLimit
from sqla_shard.jobs.queues import limits, queue_counts, task_counts, TaskCount
from sqla_shard.monitor import LoadReport, meter_of, report_load
from sqla_shard.monitor.cached_reading import CachedReading, Reading
from sqla_shard.monitor.dashboard.readings import (
    Change,
    digest_of,
    PairState,
    read_rollouts,
    Rollout,
    ServerReader,
    Sizes,
    TopologyHistory,
)
from sqla_shard.monitor.dashboard.statements import (
    explain_sql,
    invalid,
    is_sql,
    object_id_of,
    StatementReader,
)
from sqla_shard.monitor.load import ShardLoad
from sqla_shard.monitor.load_stores import LoadStore
from sqla_shard.outbox.invalidations import by_region, outbox_size, Waiting
from sqla_shard.topology import DEFAULT_PLACEHOLDERS, Keyspace, MAX_SHARDS
from sqla_shard.topology.urls import address_of
from sqla_shard.util.processes import in_children

#: Seconds for which a page waits for a value that is not there yet.
PATIENCE = 2.5

#: Number of failed jobs of a queue, or of jobs of a state, that are listed.
_JOBS = 50

#: Number of objects and lists of a shard.
_KEYS = 8

#: Number of values of single shards and queues that are remembered.
_REMEMBERED = 64

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class QueuesView:
    """The queues of all shards.

    :ivar limits: what was set for queues, by name; None if unreachable.
    :ivar unreachable: a line for each server that was not read.
    """

    counts: Sequence[QueueCount]
    limits: Mapping[str, QueueLimit]
    unreachable: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class CacheView:
    """The row cache.

    :ivar regions: statistics of this process, by region.
    :ivar nodes: the nodes of each region; None if its backend has none.
    :ivar waiting: pending invalidations of each region.
    :ivar unreachable: a line for each server whose outbox was not read.
    """

    regions: Sequence[RegionStats]
    nodes: Mapping[str, Sequence[NodeStats] | None]
    waiting: Mapping[str, Waiting]
    unreachable: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class TableView:
    """A table of a virtual shard.

    :ivar rows: an estimate; None if it is not known.
    :ivar next_id: next value of AUTO_INCREMENT; None without such a column.
    :ivar fill: used part of the ids; None without such a column.
    :ivar is_own: whether it is a table of this package.
    """

    name: str
    bytes: int
    rows: int | None
    next_id: int | None
    fill: float | None
    is_own: bool


class Observer:
    """The state of a cluster and its fleet, for the pages.

    :param cluster: the cluster; the caller closes it.
    :param fleet: the fleet, whose journal has the operations; None leaves
        their page out.
    :param location: location of the topology, for its history; by default
        that of the fleet.
    :param models: mapped classes, or declarative bases, whose names can be
        used in statements that are explained.
    :param alembic: alembic's configurations of the application.
    :param load: where the processes of the application publish samples of
        their statements; by default the samples of this process, if it has
        a meter.
    :param accounts: accounts of an operator, to read the servers with; by
        default the account of the application.
    :param environ: values of the placeholders in URLs; by default the
        environment variables.
    :param placeholders: allowed names in ``${NAME}``.
    :param timeout: seconds to wait for the state of a server.
    :raises StatementTextError: if two models have the same name.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        fleet: Fleet | None = None,
        location: str | None = None,
        models: Iterable[type] = (),
        alembic: Sequence[Config] = (),
        load: LoadStore | None = None,
        accounts: Accounts | None = None,
        environ: Mapping[str, str] | None = None,
        placeholders: Collection[str] = DEFAULT_PLACEHOLDERS,
        timeout: float = 2.0,
    ) -> None:
        self.cluster = cluster
        self.fleet = fleet
        self._statements = StatementReader(models)
        self._load_store = load
        if location is None and fleet is not None:
            location = fleet.location
        self.history: TopologyHistory = TopologyHistory(cluster, location, placeholders)
        environ = os.environ if environ is None else environ
        self._timeout = timeout
        self._reader = reader = ServerReader(environ, accounts)
        self._states = CachedReading(
            "servers",
            lambda: reader.states(cluster.topology, timeout=timeout),
            fresh=2.0,
            # A server that hangs must not delay the display of others.
            share=1.0,
        )
        self._sizes = CachedReading(
            "sizes",
            lambda: reader.sizes(cluster.topology, timeout=15 * timeout),
            fresh=60.0,
        )
        self._rollouts = CachedReading(
            "revisions", partial(read_rollouts, cluster, alembic), fresh=10.0
        )
        self._queues = CachedReading("queues", self._read_queues, fresh=3.0)
        self._load = CachedReading("load", self._read_load, fresh=2.0)
        self._cache = CachedReading("cache", self._read_cache, fresh=5.0)
        self._changes = CachedReading("history", self.history.read, fresh=5.0)
        self._found: dict[tuple[Any, ...], CachedReading[Any]] = {}
        self._operations: CachedReading[OperationsView] | None = None
        if fleet is not None:
            self._operations = CachedReading(
                "operations", partial(read_operations, fleet), fresh=1.0
            )
        self.after_fork()
        in_children(self)

    def after_fork(self) -> None:
        """Replace the lock, which a thread of the parent may hold."""
        self._lock = threading.Lock()

    @property
    def models(self) -> Sequence[str]:
        """The names of the classes that statements can use."""
        return sorted(self._statements.models)

    # -- values of pages --------------------------------------------------

    def states(self, wait: float = PATIENCE) -> Reading[tuple[PairState, ...]]:
        """Return the state of every server."""
        return self._states.get(wait)

    def sizes(self, wait: float = PATIENCE) -> Reading[Sizes]:
        """Return the sizes of all databases."""
        return self._sizes.get(wait)

    def rollouts(self, wait: float = PATIENCE) -> Reading[tuple[Rollout, ...]]:
        """Return the revisions of all shards."""
        return self._rollouts.get(wait)

    def queues(self, wait: float = PATIENCE) -> Reading[QueuesView]:
        """Return the queues of jobs."""
        return self._queues.get(wait)

    @property
    def has_load(self) -> bool:
        """Whether statements are sampled somewhere."""
        return self._load_store is not None or meter_of(self.cluster) is not None

    def load(self, wait: float = PATIENCE) -> Reading[LoadReport]:
        """Return the load of all shards that have any; empty if unknown."""
        return self._load.get(wait) if self.has_load else Reading()

    def load_of(self, keyspace: str, shard_id: int) -> ShardLoad | None:
        """Return the load of a shard; None if it has none, or is unknown."""
        report = self.load().value
        for one in () if report is None else report.shards:
            if (one.keyspace, one.shard_id) == (keyspace, shard_id):
                return one
        return None

    def cache(self, wait: float = PATIENCE) -> Reading[CacheView]:
        """Return the row cache."""
        return self._cache.get(wait)

    def changes(self, wait: float = PATIENCE) -> Reading[tuple[Change, ...]]:
        """Return the versions of the topology."""
        return self._changes.get(wait)

    def operations(self, wait: float = PATIENCE) -> Reading[OperationsView]:
        """Return the operations of the fleet; empty without a fleet."""
        if self._operations is None:
            return Reading()
        return self._operations.get(wait)

    def expire_jobs(self) -> None:
        """Read the queues again, after a change."""
        self._queues.expire()
        with self._lock:
            for key in [key for key in self._found if key[0] != "tables"]:
                del self._found[key]

    def digest(self, topic: str) -> str:
        """Return a text that differs when a page should be drawn again.

        :param topic: name of the page; that of the fleet has what its shards
            are coloured by.
        """
        read = _TOPICS.get(topic)
        epoch = self.cluster.topology.version
        return digest_of(epoch, *(read(self) if read else ()))

    # -- on demand --------------------------------------------------------

    def explain(self, text: str, keyspace: str | None) -> Explanation:
        """Return the route of an id or a statement; runs nothing.

        :param text: the id, an expression of SQLAlchemy, or SQL.
        :param keyspace: name of the keyspace of an id; required if several
            contain objects.
        :raises ShardError: if it is none of these, or its shard is not open,
            or if SQLAlchemy does not accept the expression.
        """
        number = object_id_of(text)
        if number is not None:
            return self.cluster.explain(number, keyspace=keyspace)
        if is_sql(text):
            return explain_sql(self.cluster, text)
        statement = self._statements.read(text)
        try:
            return self.cluster.explain(statement)
        except ShardError:
            raise
        except Exception as error:
            raise invalid(text, error) from error

    def tables(self, keyspace: Keyspace, shard_id: int) -> Reading[list[TableView]]:
        """Return the tables of a shard."""
        return self._on_demand(
            ("tables", keyspace.name, shard_id),
            partial(self._read_tables, keyspace, shard_id),
        )

    def jobs(self, queue: str, state: JobState) -> Reading[JobPage]:
        """Return the first jobs of a queue with a state."""
        return self._on_demand(
            ("jobs", queue, state),
            partial(jobs_of, self.cluster, queue, [state], limit=_JOBS),
        )

    def tasks(
        self, queue: str
    ) -> Reading[tuple[list[TaskCount], list[UnreachableServer]]]:
        """Return the numbers of jobs by task, and unreachable servers."""
        return self._on_demand(
            ("tasks", queue), partial(task_counts, self.cluster, queue)
        )

    def _on_demand(self, key: tuple[Any, ...], read: Callable[[], T]) -> Reading[T]:
        with self._lock:
            cached = self._found.pop(key, None) or CachedReading(
                key[0], read, fresh=2.0
            )
            # The one that was used last is the last that is dropped.
            self._found[key] = cached
            if len(self._found) > _REMEMBERED:
                del self._found[next(iter(self._found))]
        return cached.get(PATIENCE)

    # -- reading ----------------------------------------------------------

    def _read_tables(self, keyspace: Keyspace, shard_id: int) -> list[TableView]:
        topology = self.cluster.topology
        server = keyspace.server_for(shard_id)
        pair = pair_named(topology, f"{keyspace.name}/{server.name}")
        facts = FleetFacts(topology=topology, pairs=())
        address = address_of(server.primary)
        has_rows = address is not None and address.family == "mysql"
        return [
            TableView(
                name=one.table,
                bytes=one.bytes,
                rows=one.rows if has_rows else None,
                next_id=one.next_id,
                fill=None if one.next_id is None else fill_of(one, facts),
                is_own=one.table.startswith("sqla_shard_"),
            )
            for one in self._reader.tables(
                pair, keyspace.database_for(shard_id), timeout=self._timeout
            )
        ]

    def _read_queues(self) -> QueuesView:
        counts, unreachable = queue_counts(self.cluster)
        lines = unreachable_lines(unreachable)
        by_queue = {} if unreachable else {o.queue: o for o in limits(self.cluster)}
        return QueuesView(counts=counts, limits=by_queue, unreachable=lines)

    def _read_load(self) -> LoadReport:
        snapshots = []
        if self._load_store is not None:
            snapshots += self._load_store.snapshots()
        elif (meter := meter_of(self.cluster)) is not None:
            snapshots.append(meter.snapshot())
        return report_load(snapshots, self.cluster.topology, top=MAX_SHARDS, keys=_KEYS)

    def _read_cache(self) -> CacheView:
        sizes, unreachable = outbox_size(self.cluster)
        cache = self.cluster.cache
        nodes: dict[str, Sequence[NodeStats] | None] = {}
        for name, region in {} if cache is None else cache.regions.items():
            stats: Any = getattr(region.store, "stats", None)
            nodes[name] = None if stats is None else stats()
        return CacheView(
            regions=[] if cache is None else cache.stats(),
            nodes=nodes,
            waiting=by_region(sizes),
            unreachable=unreachable_lines(unreachable),
        )


def _of_states(observer: Observer) -> tuple[Any, ...]:
    reading = observer.states(0.0)
    return (
        reading.error,
        *(
            (one.address, one.problems, one.lag)
            for pair in reading.value or ()
            for one in pair.servers
        ),
    )


def _of_sizes(observer: Observer) -> tuple[Any, ...]:
    return (*_of_hot(observer), observer.sizes(0.0).version)


def _of_revisions(observer: Observer) -> tuple[Any, ...]:
    return (*_of_hot(observer), observer.rollouts(0.0).version)


def _of_hot(observer: Observer) -> tuple[Any, ...]:
    # Not the rates, with which a large map would be drawn every two seconds.
    load = observer.load(0.0).value
    hot = () if load is None else [(o.keyspace, o.shard_id) for o in load.hot]
    return (*_of_states(observer), hot)


def _of_load(observer: Observer) -> tuple[Any, ...]:
    return (*_of_states(observer), observer.load(0.0).version)


def _of_server(observer: Observer) -> tuple[Any, ...]:
    return (*_of_sizes(observer), observer.rollouts(0.0).version)


def _of_shard(observer: Observer) -> tuple[Any, ...]:
    return (*_of_load(observer), observer.rollouts(0.0).version)


def _of_queues(observer: Observer) -> tuple[Any, ...]:
    reading = observer.queues(0.0)
    return reading.error, reading.version


def _of_cache(observer: Observer) -> tuple[Any, ...]:
    reading = observer.cache(0.0)
    return reading.error, reading.version


def _of_pools(observer: Observer) -> tuple[Any, ...]:
    states = observer.states(0.0).value or ()
    counts = [
        (one.address, one.connected, one.running)
        for pair in states
        for one in pair.servers
    ]
    return (*_of_states(observer), counts, observer.cluster.stats())


def _of_operations(observer: Observer) -> tuple[Any, ...]:
    reading = observer.operations(0.0)
    return reading.error, reading.version


def _of_history(observer: Observer) -> tuple[Any, ...]:
    reading = observer.changes(0.0)
    return reading.error, reading.version


def _of_rollouts(observer: Observer) -> tuple[Any, ...]:
    reading = observer.rollouts(0.0)
    return reading.error, reading.version


#: Values of the digest of a page: only displayed values are read.
_TOPICS = {
    "fleet": _of_load,
    "fleet-size": _of_sizes,
    "fleet-rows": _of_sizes,
    "fleet-load": _of_load,
    "fleet-revision": _of_revisions,
    "server": _of_server,
    "shard": _of_shard,
    "history": _of_history,
    "schema": _of_rollouts,
    "jobs": _of_queues,
    "queue": _of_queues,
    "cache": _of_cache,
    "pools": _of_pools,
    "operations": _of_operations,
}


# -- Operations of the fleet: the pending one, its steps, and the past ones.


_PAST = 10


@dataclass(frozen=True, kw_only=True)
class StepView:
    """A step of an operation.

    :ivar is_critical: whether writes are stopped while it runs.
    """

    name: str
    text: str
    state: Literal["done", "current", "waiting"]
    is_critical: bool


@dataclass(frozen=True, kw_only=True)
class OperationView:
    """An operation of the journal.

    :ivar is_paused: whether its server takes no writes now; of a pending
        operation only.
    :ivar pause: seconds for which no write was possible, as measured; None if
        unknown, or not stopped.
    """

    id: str
    title: str
    state: str
    holder: str
    started: datetime
    problem: str | None
    steps: tuple[StepView, ...]
    costs: tuple[str, ...]
    is_paused: bool = False
    pause: float | None = None


@dataclass(frozen=True, kw_only=True)
class OperationsView:
    """The operations of a fleet.

    :ivar pending: the pending one; None if there is none.
    :ivar past: those that have ended, the latest first.
    """

    status: FleetStatus
    pending: OperationView | None
    past: tuple[OperationView, ...]


def read_operations(fleet: Fleet) -> OperationsView:
    """Return the operations of a fleet; connects to no database.

    :raises TopologyUnavailableError: if the journal cannot be read.
    """
    entries = status(fleet)
    pending = None
    if entries.pending is not None:
        pending = _view(fleet, entries.pending.record, is_pending=True)
    return OperationsView(
        status=entries,
        pending=pending,
        past=tuple(
            _view(fleet, one, is_pending=False) for one in fleet.journal.history(_PAST)
        ),
    )


def _view(fleet: Fleet, record: Record, *, is_pending: bool) -> OperationView:
    plan = FleetPlan.from_dict(record.plan)
    critical = _critical(fleet, plan)
    steps = tuple(
        StepView(
            name=name,
            text=text,
            state=_state(record, name, is_pending),
            is_critical=name in critical,
        )
        for name, text in plan.steps
    )
    return OperationView(
        id=record.id,
        title=record.title,
        state=record.state,
        holder=record.holder,
        started=datetime.fromtimestamp(record.started, UTC),
        problem=record.problem,
        steps=steps,
        costs=plan.costs,
        pause=record.pause,
        # Critical steps are written into the journal as one: the first.
        is_paused=is_pending
        and any(one.state == "current" and one.is_critical for one in steps),
    )


def _state(
    record: Record, name: str, is_pending: bool
) -> Literal["done", "current", "waiting"]:
    if name in record.done:
        return "done"
    if is_pending and name == record.step:
        return "current"
    return "waiting"


def _critical(fleet: Fleet, plan: FleetPlan) -> frozenset[str]:
    """Return the names of the steps during which writes are stopped."""
    try:
        with operation_of(fleet, plan) as operation:
            steps = operation.steps()
    except FleetSetupError:
        # An operation of another version of this package.
        return frozenset()
    return frozenset(one.name for one in steps if one.critical)
