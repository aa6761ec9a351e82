"""Spans and measurements of jobs, as an exporter gets them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode
from sqlalchemy import event

from sqla_shard import Cluster
from sqla_shard.ext.opentelemetry import instrument, instrument_queues
from sqla_shard.jobs import claims, Worker
from sqla_shard.testing import sqlite_topology
from tests.models.job_models import add, expire, fails, JOB_CLUSTERS, rows, take
from tests.sqlite.test_opentelemetry import Telemetry
from tests.suites.jobs import Suite

cluster = JOB_CLUSTERS.on_sqlite()


@pytest.fixture
def telemetry(cluster: Cluster) -> Iterator[Telemetry]:
    found = Telemetry()
    running = instrument(cluster, found.tracers, found.meters)
    yield found
    running.uninstrument()
    found.tracers.shutdown()
    found.meters.shutdown()


def runs(telemetry: Telemetry) -> list[Any]:
    return [s for s in telemetry.spans() if s.kind is SpanKind.CONSUMER]


class TestJobs(Suite):
    def test_a_job_continues_the_trace(self, cluster, near, telemetry):
        tracer = trace.get_tracer("tests", tracer_provider=telemetry.tracers)
        with tracer.start_as_current_span("request") as request:
            job = add.enqueue_now(cluster, near, near=near)
            with cluster.begin() as session:
                calls = [{"counter_id": near}] * 2
                add.enqueue_many(session, calls, near=near)
        telemetry.spans()
        assert Worker(cluster, ["adding"]).run(until_empty=True).succeeded == 3
        spans = telemetry.spans()
        consumers = [s for s in spans if s.kind is SpanKind.CONSUMER]
        context = request.get_span_context()
        assert len(consumers) == 3
        for span in consumers:
            assert span.name == "process tests.add"
            assert span.parent.span_id == context.span_id
            assert span.context.trace_id == context.trace_id
        # Threads of the worker end their jobs in any order.
        by_job = {s.attributes["sqla_shard.job"]: s for s in consumers}
        assert dict(by_job[str(job)].attributes) == {
            "sqla_shard.task": "tests.add",
            "sqla_shard.queue": "adding",
            "sqla_shard.job": str(job),
            "sqla_shard.attempt": 1,
            "sqla_shard.ending": "succeeded",
        }
        inside = [s for s in spans if s.name == "UPDATE counters"]
        assert {s.parent.span_id for s in inside} == {
            s.context.span_id for s in consumers
        }
        (point,) = telemetry.points("sqla_shard.job.duration")
        assert point.count == 3
        assert point.attributes["sqla_shard.ending"] == "succeeded"

    def test_without_a_trace_nothing_is_stored(self, cluster, near, telemetry):
        add.enqueue_now(cluster, near, near=near)
        assert [row.context for row in rows(cluster)] == [None]
        Worker(cluster, ["adding"]).run(until_empty=True)
        (span,) = runs(telemetry)
        assert span.parent is None

    def test_failures_and_retries(self, cluster, near, telemetry):
        fails.enqueue_now(cluster, near, near=near)
        Worker(cluster, ["failing"]).run(until_empty=True)
        found = runs(telemetry)
        assert [s.attributes["sqla_shard.attempt"] for s in found] == [1, 2, 3]
        for span in found:
            assert span.status.status_code is StatusCode.ERROR
            assert span.status.description == "RuntimeError"
        (point,) = telemetry.points("sqla_shard.job.retries")
        assert (point.value, dict(point.attributes)) == (
            2,
            {"sqla_shard.task": "tests.fails", "sqla_shard.queue": "failing"},
        )

    def test_lost_claims(self, cluster, near, telemetry):
        @event.listens_for(cluster, "before_job")
        def lose(cluster, job):
            expire(cluster, job)

        try:
            add.enqueue_now(cluster, near, near=near)
            assert Worker(cluster, ["adding"]).run(until_empty=True).lost == 1
        finally:
            event.remove(cluster, "before_job", lose)
        (point,) = telemetry.points("sqla_shard.job.lost_claims")
        assert point.value == 1

    def test_a_listener_that_fails(self, cluster, near, caplog):
        @event.listens_for(cluster, "after_job")
        def fail(cluster, report):
            raise RuntimeError(report.ending)

        try:
            add.enqueue_now(cluster, near, near=near)
            report = Worker(cluster, ["adding"]).run(until_empty=True)
        finally:
            event.remove(cluster, "after_job", fail)
        assert report.succeeded == 1
        assert "a listener of an event of jobs failed" in caplog.text

    def test_queues(self, cluster, near, telemetry):
        instrument_queues(cluster, telemetry.meters)
        add.enqueue_now(cluster, near, near=near)
        add.enqueue_now(cluster, near, near=near, run_after=60)
        with cluster.begin() as session:
            (job,) = take(session, near)
            claims.fail(session, job, "an error", 0, is_final=True)
        points = telemetry.points("sqla_shard.queue.jobs")
        found = {
            p.attributes["sqla_shard.state"]: p.value
            for p in points
            if p.attributes["sqla_shard.queue"] == "adding"
        }
        assert (found["due"], found["scheduled"], found["failed"]) == (0, 1, 1)
        (oldest,) = telemetry.points("sqla_shard.queue.oldest")
        assert oldest.value == 0
        (unread,) = telemetry.points("sqla_shard.queue.unread_servers")
        assert unread.value == 0


def test_a_meter_does_not_keep_a_cluster_alive(tmp_path: Path) -> None:
    found = Telemetry()
    one = Cluster.from_topology(sqlite_topology(tmp_path, 1, 2))
    instrument_queues(one, found.meters)
    one.close()
    gone = weakref.ref(one)
    del one
    gc.collect()
    assert gone() is None
    assert found.points("sqla_shard.queue.jobs") == []
