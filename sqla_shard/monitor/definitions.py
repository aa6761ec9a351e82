"""The table of metrics: names, kinds, units, labels and meanings.

The names are those of OpenTelemetry.  In Prometheus the dots are underscores,
the unit is appended, and counters end in ``_total``:
``sqla_shard.statement.duration`` is ``sqla_shard_statement_duration_seconds``.

Labels have few values: names of servers and keyspaces of the topology, classes
of errors, and at most 100 lines of the application.  No label has an id, a
value or the text of a statement.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
