"""OpenTelemetry: spans and metrics of statements, caches and jobs.

Each statement of the application is one span.  If it was executed on several
servers, it has a child span for each of them.  ::

    from sqla_shard.ext.opentelemetry import instrument

    instrument(cluster)

Names follow the semantic conventions of OpenTelemetry for database clients.
Spans have ``db.system.name``, ``db.operation.name``, ``db.query.summary``
(also the name of the span) and ``db.query.text``: the statement without
values, databases and literals.  A span of one database has ``db.namespace``; a
span of one server has ``server.address`` and ``server.port``.  Further
attributes are:

``sqla_shard.keyspace``
    name of the keyspace.
``sqla_shard.shard_count``, ``sqla_shard.shards``
    number of virtual shards of the statement, and the first 100 of them.
``sqla_shard.fan_out``
    number of servers; on SQLite, of files.
``sqla_shard.scattered``
    whether it was executed on all shards with ``scatter()``.
``sqla_shard.server``
    name of the server in the topology.
``sqla_shard.lazy_load``
    attribute that the ORM loaded lazily, such as ``Pin.comments``.

The metrics are ``db.client.operation.duration`` (seconds),
``db.client.response.returned_rows``, ``sqla_shard.fan_out`` (servers), and
those of :doc:`/reference/metrics` with the same names, and ``sqla_shard.``
before each label: ``sqla_shard.statement.duration`` has ``sqla_shard.server``.
Pools and topology are reported only if one cluster is instrumented, not the
class.

Metrics of caches are the counts of :class:`~sqla_shard.cache.RegionStats`, by
region (``sqla_shard.cache.region``): ``sqla_shard.cache.hits``, ``.misses``,
``.fills``, ``.lease_losses``, ``.blocked``, ``.unfillable``, ``.errors``,
``.unreadable``, ``.waits``, ``.gave_up``, ``.invalidations``, ``.outbox``,
``.bytes_read``, ``.bytes_written`` and ``.seconds``.

A failed statement has the class of its error (``error.type``) and the error
code of the server (``db.response.status_code``), but not the message, which
contains parameters of the statement.

Spans are created when the statement has ended.  So all child spans start at
the same time, like the statements on the servers.  On SQLite, where they run
one after another, only their durations are correct.  Instrumentation of
SQLAlchemy or of the driver additionally reports each statement on a server.

The run of a job continues the trace of the transaction that has enqueued it: the W3C
``traceparent`` of the current span is stored with the job.  It is a span
of kind CONSUMER, named ``process`` and the task; the statements of the task
are spans inside.  Its attributes are ``sqla_shard.task``,
``sqla_shard.queue``, ``sqla_shard.job`` (keyspace, shard and number),
``sqla_shard.attempt`` and ``sqla_shard.ending``.

The metrics of jobs, by task and queue, are ``sqla_shard.job.duration`` (seconds; also
by ``sqla_shard.ending``; its count is the rate), ``sqla_shard.job.retries``
(attempts after the first) and, without attributes,
``sqla_shard.job.lost_claims``.

:func:`instrument_queues` adds the sizes of the queues, which are read from
all shards for each export: call it in one or two processes, for example in a
worker.  These are:

``sqla_shard.queue.jobs``
    number of jobs, by ``sqla_shard.queue`` and ``sqla_shard.state`` (``due``,
    ``scheduled``, ``running``, ``expired``, ``failed``, ``done``); at most
    10,000 are counted of each shard.
``sqla_shard.queue.oldest``
    seconds for which the oldest due job has been due, by queue.
``sqla_shard.queue.unread_servers``
    number of servers whose jobs are not in the other two.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from time import monotonic, time_ns
from typing import Any

try:
    from opentelemetry import context, metrics, trace
    from opentelemetry.trace.propagation.tracecontext import (
        TraceContextTextMapPropagator,
    )
except ImportError as _error:
    from sqla_shard.exc import MissingExtraError

    raise MissingExtraError(
        package="OpenTelemetry", extra="opentelemetry", reason=str(_error)
    ) from _error

from sqlalchemy import event, make_url

from sqla_shard.cluster.cluster import all_caches, Cluster
from sqla_shard.engine import ServerReport, StatementReport
from sqla_shard.engine.rendering import SCHEMA
from sqla_shard.exc.base import code_of
from sqla_shard.jobs import ClaimedJob, JobReport
from sqla_shard.jobs.queues import queue_counts, QueueCount
from sqla_shard.monitor.metrics import (
    APPLICATION,
    Metric,
    metric,
    observations,
    Recorder,
)

__all__ = ["Instrumentation", "instrument", "instrument_queues"]

_STATES = ("due", "scheduled", "running", "expired", "failed", "done")

#: Seconds for which the metrics of one export share their reads.
_FRESH = 2.0

#: Baggage is left out: it may have values that are not to be stored.
_PROPAGATOR = TraceContextTextMapPropagator()


class JobInstrumentation:
    """Listener of the jobs of a cluster.

    :param target: a cluster, or the class for all clusters.
    """

    def __init__(
        self,
        target: Cluster | type[Cluster],
        tracer: trace.Tracer,
        meter: metrics.Meter,
    ) -> None:
        self._tracer = tracer
        self._target = target
        duration = metric("job.duration")
        self._duration = meter.create_histogram(
            duration.name,
            unit=duration.unit,
            description=duration.help,
            explicit_bucket_boundaries_advisory=list(duration.buckets),
        )
        self._retries = _counter(meter, metric("job.retries"))
        self._lost = _counter(meter, metric("job.lost_claims"))
        self._spans: dict[int, tuple[trace.Span, Any]] = {}
        self._listeners: dict[str, Callable[..., None]] = {
            "before_enqueue": self._inject,
            "before_job": self._begin,
            "after_job": self._end,
            "job_claims_lost": self._count_lost,
        }
        for name, listener in self._listeners.items():
            event.listen(target, name, listener)

    def uninstrument(self) -> None:
        """Stop recording spans and metrics."""
        for name, listener in self._listeners.items():
            if event.contains(self._target, name, listener):
                event.remove(self._target, name, listener)

    def _inject(self, cluster: Cluster, task: str, carrier: dict[str, str]) -> None:
        _PROPAGATOR.inject(carrier)

    def _begin(self, cluster: Cluster, job: ClaimedJob) -> None:
        span = self._tracer.start_span(
            f"process {job.task}",
            context=_PROPAGATOR.extract(dict(job.context)),
            kind=trace.SpanKind.CONSUMER,
            attributes={
                "sqla_shard.task": job.task,
                "sqla_shard.queue": job.queue,
                "sqla_shard.job": str(job),
                "sqla_shard.attempt": job.attempt,
            },
        )
        token = context.attach(trace.set_span_in_context(span))
        self._spans[id(job)] = span, token

    def _end(self, cluster: Cluster, report: JobReport) -> None:
        job = report.job
        common = {"sqla_shard.task": job.task, "sqla_shard.queue": job.queue}
        ending = {"sqla_shard.ending": report.ending}
        self._duration.record(report.seconds, {**common, **ending})
        if job.attempt > 1:
            self._retries.add(1, common)
        if report.ending == "lost":
            self._lost.add(1)
        if (found := self._spans.pop(id(job), None)) is None:
            return  # It began before the instrumentation.
        span, token = found
        context.detach(token)
        span.set_attributes(ending)
        if report.error:
            # Its message may contain values: the type only.
            kind = report.error.partition(":")[0]
            span.set_status(trace.Status(trace.StatusCode.ERROR, kind))
        span.end()

    def _count_lost(self, cluster: Cluster, jobs: tuple[str, ...]) -> None:
        self._lost.add(len(jobs))


class _Queues:
    """The sizes of the queues of a cluster, read once for an export."""

    def __init__(self, cluster: Cluster) -> None:
        # Meters never release callbacks, which must not keep it alive.
        self._cluster = weakref.ref(cluster)
        self._read_at = -_FRESH
        self._counts: list[QueueCount] = []
        self._unread = 0

    def _read(self) -> list[QueueCount]:
        cluster = self._cluster()
        if cluster is None:
            return []
        if monotonic() - self._read_at >= _FRESH:
            self._counts, unreachable = queue_counts(cluster)
            self._unread = len(unreachable)
            self._read_at = monotonic()
        return self._counts

    def jobs(self, options: Any) -> Iterable[metrics.Observation]:
        """Return the numbers of jobs."""
        return [
            metrics.Observation(
                getattr(one, state),
                {"sqla_shard.queue": one.queue, "sqla_shard.state": state},
            )
            for one in self._read()
            for state in _STATES
        ]

    def oldest(self, options: Any) -> Iterable[metrics.Observation]:
        """Return the ages of the oldest due jobs; 0 if none is due."""
        return [
            metrics.Observation(
                0.0 if one.oldest is None else one.oldest.total_seconds(),
                {"sqla_shard.queue": one.queue},
            )
            for one in self._read()
        ]

    def unreachable(self, options: Any) -> Iterable[metrics.Observation]:
        """Return the number of servers that were not read."""
        self._read()
        return [metrics.Observation(self._unread)]


def instrument_queues(
    cluster: Cluster, meter_provider: metrics.MeterProvider | None = None
) -> None:
    """Report the sizes of the queues, and the age of their oldest jobs.

    :param cluster: the cluster, which is read for each export.
    :param meter_provider: the meter provider; by default the global one.
    """
    meter = metrics.get_meter("sqla_shard", meter_provider=meter_provider)
    queues = _Queues(cluster)
    for name, read in (
        ("queue.jobs", queues.jobs),
        ("queue.oldest", queues.oldest),
        ("queue.unread_servers", queues.unreachable),
    ):
        one = metric(name)
        meter.create_observable_gauge(
            one.name, [read], unit=one.unit, description=one.help
        )


def _counter(meter: metrics.Meter, one: Metric) -> metrics.Counter:
    return meter.create_counter(one.name, unit=one.unit, description=one.help)


_NAME = "sqla_shard"

_MOST_SHARDS = 100

_MOST_SUMMARY = 255

_DURATIONS = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10]

#: The metrics that have attributes of their own; those of jobs are above.
_OWN = ("sqla_shard.fan_out", "sqla_shard.cache.", "sqla_shard.job.")

_ROWS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000]

_OPERATION = re.compile(r"[\s(]*([A-Za-z]+)")

_TABLE = re.compile(re.escape(SCHEMA) + r"\.[`\"]?(\w+)")

# The pattern does not match digits in names and parameters.
_NUMBER = r"|(?<![\w.:?$`\"])\.?\d[\w.]*"

# In MySQL a backslash escapes a quote, and double quotes delimit strings.  One
# that does not end is masked, too.
_MYSQL_LITERAL = re.compile(
    r"""'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|['"].*""" + _NUMBER, re.DOTALL
)

_LITERAL = re.compile(r"'(?:[^']|'')*'" + _NUMBER)


def instrument(
    cluster: Cluster | type[Cluster] = Cluster,
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
) -> Instrumentation:
    """Record spans and metrics of statements.

    :param cluster: a cluster, or the class :class:`~sqla_shard.Cluster` for
        all clusters of the process.
    :param tracer_provider: the tracer provider; by default the global one.
    :param meter_provider: the meter provider; by default the global one.
    :returns: an object whose ``uninstrument()`` stops the recording.
    """
    return Instrumentation(cluster, tracer_provider, meter_provider)


class Instrumentation:
    """Listener of a cluster; see :func:`instrument` for the parameters."""

    def __init__(
        self,
        cluster: Cluster | type[Cluster],
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        self._target = cluster
        self._tracer = trace.get_tracer(_NAME, None, tracer_provider)
        meter = metrics.get_meter(_NAME, meter_provider=meter_provider)
        self._duration = meter.create_histogram(
            "db.client.operation.duration",
            unit="s",
            description="Duration of database client operations.",
            explicit_bucket_boundaries_advisory=_DURATIONS,
        )
        self._rows = meter.create_histogram(
            "db.client.response.returned_rows",
            unit="{row}",
            description="Rows returned by a statement.",
            explicit_bucket_boundaries_advisory=_ROWS,
        )
        fan_out = metric("fan_out")
        self._fan_out = meter.create_histogram(
            fan_out.name,
            unit=fan_out.unit,
            description=fan_out.help,
            explicit_bucket_boundaries_advisory=list(fan_out.buckets),
        )
        self._has_ended = False
        # Meters never release callbacks, which must not keep a cluster
        # alive.
        owner = weakref.ref(self)
        for one in APPLICATION:
            if one.name.startswith("sqla_shard.cache."):
                name = one.name.rpartition(".")[2]
                meter.create_observable_counter(
                    one.name,
                    [partial(_observe, owner, name)],
                    unit=one.unit,
                    description=one.help,
                )
            elif one.kind == "gauge":
                meter.create_observable_gauge(
                    one.name,
                    [partial(_observe_gauge, owner, one)],
                    unit=one.unit,
                    description=one.help,
                )
        self._recorder = Recorder(cluster, _Meter(meter))
        event.listen(cluster, "after_statement", self._report)
        self._jobs = JobInstrumentation(cluster, self._tracer, meter)

    def uninstrument(self) -> None:
        """Stop recording spans and metrics."""
        self._has_ended = True
        self._jobs.uninstrument()
        self._recorder.stop()
        if event.contains(self._target, "after_statement", self._report):
            event.remove(self._target, "after_statement", self._report)

    def _observe_gauge(self, one: Metric) -> Iterable[metrics.Observation]:
        """Return the values of a gauge, of one cluster only."""
        target = self._target
        if self._has_ended or isinstance(target, type):
            return []
        return [
            metrics.Observation(found.value, _attributes(one, found.labels))
            for found in observations(target)
            if found.metric is one
        ]

    def _observe(self, name: str) -> Iterable[metrics.Observation]:
        """Return the counts of the caches, by region."""
        if self._has_ended:
            return []
        target = self._target
        # Clusters of a process may have regions with the same name.
        sums: dict[str, float] = {}
        for cache in all_caches() if isinstance(target, type) else [target.cache]:
            for stats in () if cache is None else cache.stats():
                before = sums.get(stats.name, 0)
                sums[stats.name] = before + getattr(stats, name)
        return [
            metrics.Observation(count, {"sqla_shard.cache.region": region})
            for region, count in sums.items()
        ]

    def _report(self, cluster: Cluster, report: StatementReport) -> None:
        end = time_ns()
        common = _common(cluster, report)
        self._trace(cluster, report, common, end)
        measured = {**common, **_failure(report.error)}
        measured.pop("db.response.status_code", None)
        self._duration.record(report.seconds, measured)
        self._fan_out.record(report.fan_out, measured)
        if report.rows is not None and not report.writes:
            self._rows.record(report.rows, measured)

    def _trace(
        self,
        cluster: Cluster,
        report: StatementReport,
        common: dict[str, Any],
        end: int,
    ) -> None:
        start = end - int(report.seconds * 1e9)
        summary = common["db.query.summary"]
        several = report.fan_out > 1
        attributes = {**common, **_of_statement(report, common["db.system.name"])}
        if not several:
            attributes.update(_of_server(cluster, report, report.servers[0]))
        span = self._tracer.start_span(
            summary, kind=trace.SpanKind.CLIENT, attributes=attributes, start_time=start
        )
        if several and span.is_recording():
            inside = trace.set_span_in_context(span)
            for server in report.servers:
                child = self._tracer.start_span(
                    f"{summary} on {server.server}",
                    context=inside,
                    kind=trace.SpanKind.CLIENT,
                    attributes={**common, **_of_server(cluster, report, server)},
                    start_time=start,
                )
                ended = min(start + int(server.seconds * 1e9), end)
                _end(child, server.error, ended)
        _end(span, report.error, end)


def _observe(
    owner: weakref.ref[Instrumentation], name: str, options: metrics.CallbackOptions
) -> Iterable[metrics.Observation]:
    found = owner()
    return [] if found is None else found._observe(name)


def _observe_gauge(
    owner: weakref.ref[Instrumentation], one: Metric, options: metrics.CallbackOptions
) -> Iterable[metrics.Observation]:
    found = owner()
    return [] if found is None else found._observe_gauge(one)


def _attributes(one: Metric, labels: Sequence[str]) -> dict[str, str]:
    return {
        f"sqla_shard.{name}": value
        for name, value in zip(one.labels, labels, strict=True)
    }


class _Meter:
    """The instruments of a meter; see :class:`.Sink`."""

    def __init__(self, meter: metrics.Meter) -> None:
        self._counters: dict[str, metrics.Counter] = {}
        self._histograms: dict[str, metrics.Histogram] = {}
        for one in APPLICATION:
            if one.name.startswith(_OWN):
                continue
            if one.kind == "counter":
                self._counters[one.name] = meter.create_counter(
                    one.name, unit=one.unit, description=one.help
                )
            elif one.kind == "histogram":
                self._histograms[one.name] = meter.create_histogram(
                    one.name,
                    unit=one.unit,
                    description=one.help,
                    explicit_bucket_boundaries_advisory=list(one.buckets),
                )

    def add(self, one: Metric, amount: float, *labels: str) -> None:
        """Increase a counter."""
        counter = self._counters.get(one.name)
        if counter is not None:
            counter.add(amount, _attributes(one, labels))

    def record(self, one: Metric, value: float, *labels: str) -> None:
        """Add a value to a histogram."""
        histogram = self._histograms.get(one.name)
        if histogram is not None:
            histogram.record(value, _attributes(one, labels))


def _end(span: trace.Span, error: BaseException | None, end: int) -> None:
    if error is not None:
        found = _failure(error)
        span.set_attributes(found)
        # Do not use record_exception(): message and stack trace contain
        # values of the statement, some of which servers quote.
        kind = found["error.type"]
        span.add_event("exception", {"exception.type": kind}, timestamp=end)
        code = found.get("db.response.status_code")
        text = kind if code is None else f"{kind}: {code}"
        span.set_status(trace.Status(trace.StatusCode.ERROR, text))
    span.end(end)


def _common(cluster: Cluster, report: StatementReport) -> dict[str, Any]:
    """Return the attributes of spans and metrics, which have few values."""
    keyspace = cluster.topology.keyspaces.get(report.keyspace)
    system = "other_sql"
    if keyspace is not None:
        system, _, _ = _address(keyspace.servers[0].primary)
    operation, summary, _ = _read(report.statement, system)
    return {
        "db.system.name": system,
        "db.operation.name": operation,
        "db.query.summary": summary,
        "sqla_shard.keyspace": report.keyspace,
        "sqla_shard.scattered": report.scattered,
    }


def _of_statement(report: StatementReport, system: str) -> dict[str, Any]:
    shards = report.shards
    found: dict[str, Any] = {
        "db.query.text": _read(report.statement, system)[2],
        "sqla_shard.shard_count": len(shards),
        "sqla_shard.shards": shards[:_MOST_SHARDS],
        "sqla_shard.fan_out": report.fan_out,
    }
    if report.rows is not None and not report.writes:
        found["db.response.returned_rows"] = report.rows
    if report.loads is not None:
        found["sqla_shard.lazy_load"] = report.loads
    return found


def _of_server(
    cluster: Cluster, report: StatementReport, server: ServerReport
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "sqla_shard.server": server.server,
        "sqla_shard.shard_count": len(server.shards),
        "sqla_shard.shards": server.shards[:_MOST_SHARDS],
    }
    if server.rows is not None and not report.writes:
        found["db.response.returned_rows"] = server.rows
    keyspace = cluster.topology.keyspaces.get(report.keyspace)
    if keyspace is None:
        return found
    if len(server.shards) == 1 and server.shards[0] in keyspace.shard_ids:
        found["db.namespace"] = keyspace.database_for(server.shards[0])
    for known in keyspace.servers:
        # Compare names: the topology may have changed since the session
        # started.
        if known.name == server.server:
            _, host, port = _address(known.primary)
            if host is not None:
                found["server.address"] = host
            if port is not None:
                found["server.port"] = port
            break
    return found


def _failure(error: BaseException | None) -> dict[str, Any]:
    """Return the attributes of an error."""
    if error is None:
        return {}
    kind = type(error)
    found = {"error.type": f"{kind.__module__}.{kind.__qualname__}"}
    code = code_of(error)
    if code is not None:
        found["db.response.status_code"] = code
    return found


@lru_cache(maxsize=1024)
def _read(statement: str, system: str) -> tuple[str, str, str]:
    """Return the operation, the summary and the masked SQL of a statement."""
    literal = _LITERAL if system == "sqlite" else _MYSQL_LITERAL
    match = _OPERATION.match(statement)
    operation = match[1].upper() if match else "SQL"
    tables = dict.fromkeys(_TABLE.findall(statement))
    summary = " ".join([operation, *tables])[:_MOST_SUMMARY]
    text = literal.sub("?", statement.replace(f"{SCHEMA}.", ""))
    return operation, summary, text


@lru_cache(maxsize=1024)
def _address(primary: str) -> tuple[str, str | None, int | None]:
    """Return the database system of a server, its host and its port."""
    url = make_url(primary)
    system = url.get_backend_name()
    if url.host is None:
        return system, None, None
    return system, url.host, url.port or 3306
