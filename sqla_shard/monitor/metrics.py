"""The metrics of a cluster, and a recorder of its events and states."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TYPE_CHECKING

from sqlalchemy import event

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.engine import StatementReport
from sqla_shard.exc import RoutingError
from sqla_shard.exc.base import code_of
from sqla_shard.session.commit import CommitReport
from sqla_shard.topology import server_names, Topology
from sqla_shard.util.source_lines import calling_line
from sqla_shard.util.sqlalchemy_helpers import stop_listening

if TYPE_CHECKING:
    from sqla_shard.jobs import JobReport

# -- The table of metrics: names, kinds, units, labels and meanings.
#
# The names are those of OpenTelemetry.  In Prometheus the dots are
# underscores, the unit is appended, and counters end in `_total`:
# `sqla_shard.statement.duration` is
# `sqla_shard_statement_duration_seconds`.
#
# Labels have few values: names of servers and keyspaces of the topology,
# classes of errors, and at most 100 lines of the application.  No label has
# an id, a value or the text of a statement.

Kind = Literal["counter", "gauge", "histogram"]

"""The kind of a metric."""

_UNITS = {"s": "seconds", "By": "bytes"}

DURATIONS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5, 10, 30)

"""Upper bounds of the histograms of statements, in seconds."""

JOB_DURATIONS = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600)

"""Upper bounds of the histograms of jobs, in seconds."""

WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128)

"""Upper bounds of the histogram of servers."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """The definition of a metric.

    :ivar name: name in OpenTelemetry.
    :ivar kind: ``"counter"``, ``"gauge"`` or ``"histogram"``.
    :ivar unit: unit as in UCUM: ``"s"``, ``"By"``, or a thing in braces.
    :ivar help: meaning.
    :ivar labels: names of the labels.
    :ivar buckets: upper bounds of a histogram.
    """

    name: str
    kind: Kind
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def prometheus_name(self) -> str:
        """The name in Prometheus."""
        parts = [self.name.replace(".", "_")]
        unit = _UNITS.get(self.unit)
        if unit is not None and not parts[0].endswith(unit):
            parts.append(unit)
        if self.kind == "counter":
            parts.append("total")
        return "_".join(parts)


def _counter(name: str, unit: str, text: str, *labels: str) -> Metric:
    return Metric(
        name=f"sqla_shard.{name}", kind="counter", unit=unit, help=text, labels=labels
    )


def _gauge(name: str, unit: str, text: str, *labels: str) -> Metric:
    return Metric(
        name=f"sqla_shard.{name}", kind="gauge", unit=unit, help=text, labels=labels
    )


def _histogram(
    name: str, unit: str, buckets: tuple[float, ...], text: str, *labels: str
) -> Metric:
    return Metric(
        name=f"sqla_shard.{name}",
        kind="histogram",
        unit=unit,
        help=text,
        labels=labels,
        buckets=buckets,
    )


#: Metrics that each process of an application has.
APPLICATION = (
    _histogram(
        "statement.duration",
        "s",
        DURATIONS,
        "Time from sending a statement to a server until its last row.",
        *("keyspace", "server", "operation"),
    ),
    _counter(
        "statement.errors",
        "{error}",
        "Errors of statements on a server, by class.",
        *("keyspace", "server", "error"),
    ),
    _counter(
        "statement.scatters",
        "{statement}",
        "Statements to all shards, by line of the application.",
        *("keyspace", "site"),
    ),
    _counter(
        "statement.refusals",
        "{statement}",
        "Statements that were refused before they were sent.",
        *("error", "site"),
    ),
    _histogram(
        "fan_out", "{server}", WIDTHS, "Servers that executed a statement.", "keyspace"
    ),
    _histogram(
        "connection.wait",
        "s",
        DURATIONS,
        "Time for which a transaction has waited for a connection.",
        "server",
    ),
    _gauge(
        "pool.connections",
        "{connection}",
        "Open connections of this process, by state: busy or idle.",
        *("server", "state"),
    ),
    _counter(
        "transaction.commits",
        "{transaction}",
        "Ended transactions: committed, read, failed, unknown or partial.",
        "outcome",
    ),
    _counter(
        "transaction.retries",
        "{transaction}",
        "Repetitions of transactions by Cluster.run, by cause.",
        "error",
    ),
    _gauge("topology.epoch", "{epoch}", "Epoch of the topology that the process uses."),
    _gauge(
        "topology.age",
        "s",
        "Time since the source has confirmed the topology of the process.",
    ),
    _gauge(
        "topology.stale",
        "1",
        "1 if the source of the topology cannot be read, 0 if it can.",
    ),
    _counter("cache.hits", "{key}", "Keys found in the cache.", "region"),
    _counter("cache.misses", "{key}", "Keys read from the database.", "region"),
    _counter("cache.fills", "{value}", "Values written to the cache.", "region"),
    _counter(
        "cache.lease_losses",
        "{value}",
        "Values not cached due to a write meanwhile.",
        "region",
    ),
    _counter(
        "cache.blocked",
        "{key}",
        "Misses due to a tombstone or a restarted node.",
        "region",
    ),
    _counter(
        "cache.unfillable",
        "{key}",
        "Misses of transactions that cannot fill.",
        "region",
    ),
    _counter(
        "cache.errors", "{key}", "Misses due to a node that did not respond.", "region"
    ),
    _counter(
        "cache.unreadable", "{value}", "Values of another version or server.", "region"
    ),
    _counter(
        "cache.waits",
        "{key}",
        "Misses that another client was about to fill.",
        "region",
    ),
    _counter("cache.gave_up", "{key}", "Waits that timed out.", "region"),
    _counter("cache.invalidations", "{key}", "Tombstones written.", "region"),
    _counter(
        "cache.outbox", "{key}", "Tombstones that could not be written.", "region"
    ),
    _counter("cache.bytes_read", "By", "Bytes of values read.", "region"),
    _counter("cache.bytes_written", "By", "Bytes of values written.", "region"),
    _counter("cache.seconds", "s", "Time spent on the cache.", "region"),
    _histogram(
        "job.duration",
        "s",
        JOB_DURATIONS,
        "Duration of the runs of jobs.",
        *("task", "queue", "ending"),
    ),
    _counter("job.retries", "{attempt}", "Attempts after the first.", "task", "queue"),
    _counter("job.lost_claims", "{job}", "Jobs whose claim was lost."),
)

#: Metrics of the servers, which ``sqla-shard exporter`` has.
FLEET = (
    _gauge(
        "server.up",
        "{server}",
        "1 if the server has responded in time, 0 if not.",
        *("server", "role"),
    ),
    _gauge(
        "server.round_trip",
        "s",
        "Time of a SELECT without tables on an open connection.",
        *("server", "role"),
    ),
    _gauge(
        "server.read_only",
        "{server}",
        "1 if the server refuses writes.",
        *("server", "role"),
    ),
    _gauge(
        "server.connections",
        "{connection}",
        "Connections of all clients to the server.",
        *("server", "role"),
    ),
    _gauge(
        "server.connection_limit",
        "{connection}",
        "Highest number of connections of the server.",
        *("server", "role"),
    ),
    _gauge(
        "server.replication_runs",
        "{server}",
        "1 if the standby receives and applies, 0 if not.",
        "server",
    ),
    _gauge(
        "server.lag", "s", "Time by which the standby is behind its primary.", "server"
    ),
    _gauge(
        "operation.pending", "{operation}", "Pending operations, by name.", "operation"
    ),
    _gauge(
        "operation.failed",
        "{operation}",
        "Pending operations whose last attempt has failed, by name.",
        "operation",
    ),
    _gauge(
        "operation.oldest",
        "s",
        "Age of the oldest pending operation, by name.",
        "operation",
    ),
    _gauge("outbox.pending", "{key}", "Pending invalidations of the cache.", "region"),
    _gauge(
        "outbox.oldest",
        "s",
        "Age of the oldest pending invalidation of the cache.",
        "region",
    ),
    _gauge("queue.jobs", "{job}", "Jobs of a queue, by state.", "queue", "state"),
    _gauge(
        "queue.oldest", "s", "Time for which the oldest due job has been due.", "queue"
    ),
    _gauge("queue.unread_servers", "{server}", "Servers whose jobs were not counted."),
    _gauge(
        "schema.shards",
        "{shard}",
        "Virtual shards at a revision; the revision is empty without one.",
        *("keyspace", "revision"),
    ),
    _gauge(
        "schema.unfinished",
        "{shard}",
        "Virtual shards with a revision that was interrupted, or is running.",
        "keyspace",
    ),
    _gauge("published.epoch", "{epoch}", "Epoch of the published topology."),
    _gauge(
        "load.share",
        "1",
        "Share of the statements of the keyspace, for the largest shards.",
        *("keyspace", "shard", "operation"),
    ),
    _gauge(
        "load.hot",
        "{shard}",
        "Shards with far more statements than the others.",
        *("keyspace", "operation"),
    ),
    _gauge(
        "exporter.read",
        "{part}",
        "1 if this part of the metrics was read in time, 0 if not.",
        "part",
    ),
)

#: All metrics, by name.
METRICS = {one.name: one for one in (*APPLICATION, *FLEET)}


def metric(name: str) -> Metric:
    """Return the metric ``sqla_shard.<name>``."""
    return METRICS[f"sqla_shard.{name}"]


# -- Metrics of a cluster in one process, for any library of metrics.
#
# Recorder listens to the events of a cluster and passes measurements to a
# Sink; observations reads what has a state, such as pools.

#: Maximum number of lines of the application in labels.
_MOST_SITES = 100

_OTHERS = "other"

_DURATION = metric("statement.duration")

_ERRORS = metric("statement.errors")

_SCATTERS = metric("statement.scatters")

_REFUSALS = metric("statement.refusals")

_FAN_OUT = metric("fan_out")

_WAIT = metric("connection.wait")

_COMMITS = metric("transaction.commits")

_RETRIES = metric("transaction.retries")

_JOB_DURATION = metric("job.duration")

_JOB_RETRIES = metric("job.retries")

_JOB_LOST = metric("job.lost_claims")

_CACHE = tuple(one for one in APPLICATION if one.name.startswith("sqla_shard.cache."))


class Sink(Protocol):
    """A library of metrics."""

    def add(self, one: Metric, amount: float, *labels: str) -> None:
        """Increase a counter."""
        ...

    def record(self, one: Metric, value: float, *labels: str) -> None:
        """Add a value to a histogram."""
        ...


class Observation(NamedTuple):
    """The value of a gauge, or the total of a counter, at a moment."""

    metric: Metric
    value: float
    labels: tuple[str, ...] = ()


class Recorder:
    """Listens to a cluster, and passes measurements to a sink.

    :param target: a cluster, or the class for all clusters of the process.
    """

    def __init__(self, target: Cluster | type[Cluster], sink: Sink) -> None:
        self._target = target
        self._sink = sink
        self._names: tuple[Topology, dict[tuple[str, str], str]] | None = None
        self._sites: set[str] = set()
        self._listeners: dict[str, Callable[..., None]] = {
            "after_statement": self._statement,
            "commit_ended": self._commit,
            "transaction_repeated": self._retry,
            "statement_refused": self._refusal,
            "connection_obtained": self._wait,
            "after_job": self._job,
            "job_claims_lost": self._lost_claims,
        }
        try:
            for name, listener in self._listeners.items():
                event.listen(target, name, listener)
        except BaseException:
            # Nobody could stop it.
            self.stop()
            raise

    def stop(self) -> None:
        """Stop listening."""
        for name, listener in self._listeners.items():
            stop_listening(self._target, name, listener)

    def _statement(self, cluster: Cluster, report: StatementReport) -> None:
        keyspace = report.keyspace
        operation = "write" if report.writes else "read"
        names = self._server_names(cluster.topology)
        for one in report.servers:
            name = names.get((keyspace, one.server), one.server)
            self._sink.record(_DURATION, one.seconds, keyspace, name, operation)
            if one.error is not None:
                kind = type(one.error).__name__
                self._sink.add(_ERRORS, 1, keyspace, name, kind)
        self._sink.record(_FAN_OUT, report.fan_out, keyspace)
        if report.scattered:
            self._sink.add(_SCATTERS, 1, keyspace, self._site())

    def _server_names(self, topology: Topology) -> dict[tuple[str, str], str]:
        known = self._names
        if known is None or known[0] is not topology:
            known = self._names = topology, server_names(topology)
        return known[1]

    def _site(self) -> str:
        """Return the line of the application, of which there may be many."""
        site = str(calling_line())
        if site not in self._sites:
            if len(self._sites) >= _MOST_SITES:
                return _OTHERS
            self._sites.add(site)
        return site

    def _commit(self, cluster: Cluster, report: CommitReport) -> None:
        self._sink.add(_COMMITS, 1, report.outcome)

    def _retry(self, cluster: Cluster, error: Exception, attempt: int) -> None:
        code = code_of(error)
        kind = type(error).__name__
        self._sink.add(_RETRIES, 1, kind if code is None else f"{kind} {code}")

    def _refusal(self, cluster: Cluster, error: RoutingError) -> None:
        self._sink.add(_REFUSALS, 1, type(error).__name__, self._site())

    def _wait(self, cluster: Cluster, server: str, seconds: float) -> None:
        self._sink.record(_WAIT, seconds, server)

    def _job(self, cluster: Cluster, report: JobReport) -> None:
        job = report.job
        self._sink.record(
            _JOB_DURATION, report.seconds, job.task, job.queue, report.ending
        )
        if job.attempt > 1:
            self._sink.add(_JOB_RETRIES, 1, job.task, job.queue)
        if report.ending == "lost":
            self._sink.add(_JOB_LOST, 1)

    def _lost_claims(self, cluster: Cluster, jobs: tuple[str, ...]) -> None:
        self._sink.add(_JOB_LOST, len(jobs))


def observations(cluster: Cluster) -> Iterator[Observation]:
    """Yield the values of the gauges, and the counts of the cache."""
    connections: Counter[tuple[str, str]] = Counter()
    for stats in cluster.stats():
        connections[stats.server, "busy"] += stats.busy
        connections[stats.server, "idle"] += stats.idle
    for labels, count in connections.items():
        yield Observation(metric("pool.connections"), count, labels)
    source = cluster.source_report()
    yield Observation(metric("topology.epoch"), source.epoch)
    yield Observation(metric("topology.age"), source.age)
    yield Observation(metric("topology.stale"), source.state == "stale")
    if cluster.cache is not None:
        for region in cluster.cache.stats():
            for one in _CACHE:
                count = getattr(region, one.name.rpartition(".")[2])
                yield Observation(one, count, (region.name,))


class Totals:
    """Turns totals into the amounts by which they have increased."""

    def __init__(self) -> None:
        self.after_fork()

    def after_fork(self) -> None:
        """Forget the totals of the parent process."""
        self._lock = threading.Lock()
        self._before: dict[Any, float] = {}

    def increase(self, one: Observation) -> float:
        """Return the increase of a total since the last call."""
        key = one.metric.name, one.labels
        with self._lock:
            before = self._before.get(key, 0.0)
            self._before[key] = max(one.value, before)
        return max(one.value - before, 0.0)
