"""Spans and metrics of jobs, for OpenTelemetry.

A job continues the trace of the transaction that has enqueued it: the W3C
``traceparent`` of the current span is stored with the job.  The run is a span
of kind CONSUMER, named ``process`` and the task; the statements of the task
are spans inside.  Its attributes are ``sqla_shard.task``,
``sqla_shard.queue``, ``sqla_shard.job`` (keyspace, shard and number),
``sqla_shard.attempt`` and ``sqla_shard.ending``.

The metrics, by task and queue, are ``sqla_shard.job.duration`` (seconds; also
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

import weakref
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any

from opentelemetry import context, metrics, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from sqlalchemy import event

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.jobs import ClaimedJob, JobReport
from sqla_shard.jobs.queues import queue_counts, QueueCount
from sqla_shard.monitor.definitions import Metric, metric

__all__ = ["JobInstrumentation", "instrument_queues"]

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
