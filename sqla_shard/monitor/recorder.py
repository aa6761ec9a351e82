"""Metrics of a cluster in one process, for any library of metrics.

:class:`Recorder` listens to the events of a cluster and passes measurements to
a :class:`Sink`; :func:`observations` reads what has a state, such as pools.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, TYPE_CHECKING

from sqlalchemy import event

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.engine import StatementReport
from sqla_shard.exc import RoutingError
from sqla_shard.exc.base import code_of
from sqla_shard.monitor.definitions import APPLICATION, Metric, metric
from sqla_shard.session.commit import CommitReport
from sqla_shard.topology import server_names, Topology
from sqla_shard.util.source_lines import calling_line
from sqla_shard.util.sqlalchemy_helpers import stop_listening

if TYPE_CHECKING:
    from sqla_shard.jobs import JobReport

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
