"""Spans and measurements of statements, as an exporter gets them."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from dataclasses import fields

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode
from sqlalchemy import insert, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from sqla_shard import Cluster, pack, scatter
from sqla_shard.ext.opentelemetry import instrument
from tests.models.clusters import at, on_sqlite, SHARDS
from tests.models.models import Board, Comment, PIN, Pin

cluster = on_sqlite()


class Telemetry:
    """Providers that store spans and metrics in memory."""

    def __init__(self, **options):
        self._spans = InMemorySpanExporter()
        self.tracers = TracerProvider(**options)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self._reader = InMemoryMetricReader()
        self.meters = MeterProvider([self._reader])

    def spans(self):
        """Return the spans since last asked, as they began."""
        found = self._spans.get_finished_spans()
        self._spans.clear()
        return sorted(found, key=lambda span: span.start_time)

    def outermost(self):
        return [span for span in self.spans() if span.parent is None]

    def points(self, name):
        data = self._reader.get_metrics_data()
        if data is None:
            return []
        return [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


@pytest.fixture
def telemetry(cluster):
    found = Telemetry()
    running = instrument(cluster, found.tracers, found.meters)
    yield found
    running.uninstrument()
    found.tracers.shutdown()
    found.meters.shutdown()


@pytest.fixture
def pins(cluster):
    found = []
    for shard in (2, 3, 20):
        with cluster.begin() as session:
            pin = at(shard, Pin(title="secret"))
            session.add(pin)
            session.flush()
            found.append(pin.id)
    return found


def test_one_shard(cluster, pins, telemetry):
    telemetry.spans()
    with cluster.session() as session:
        session.get(Pin, pins[0])
    (span,) = telemetry.spans()
    assert span.name == "SELECT pins"
    assert span.kind is SpanKind.CLIENT
    assert span.status.status_code is StatusCode.UNSET
    attributes = dict(span.attributes)
    query = attributes.pop("db.query.text")
    assert query.startswith("SELECT pins.")
    assert "FROM pins" in query
    assert "__sqla_shard__" not in query
    assert str(pins[0]) not in query
    assert attributes == {
        "db.system.name": "sqlite",
        "db.operation.name": "SELECT",
        "db.query.summary": "SELECT pins",
        "db.namespace": "db00002",
        "sqla_shard.keyspace": "objects",
        "sqla_shard.server": "server1",
        "sqla_shard.shard_count": 1,
        "sqla_shard.shards": (2,),
        "sqla_shard.fan_out": 1,
        "sqla_shard.scattered": False,
    }


def test_several_shards_are_spans_inside(cluster, pins, telemetry):
    telemetry.spans()
    with cluster.session() as session:
        session.get_many(Pin, pins)
    spans = telemetry.spans()
    (outer,) = [span for span in spans if span.parent is None]
    inner = [span for span in spans if span.parent is not None]
    assert outer.attributes["sqla_shard.shards"] == (2, 3, 20)
    assert outer.attributes["db.response.returned_rows"] == 3
    assert "db.namespace" not in outer.attributes
    assert {span.parent.span_id for span in inner} == {outer.context.span_id}
    # On SQLite a shard is a file, with a connection of its own.
    assert sorted((span.name, span.attributes["db.namespace"]) for span in inner) == [
        ("SELECT pins on server1", "db00002"),
        ("SELECT pins on server1", "db00003"),
        ("SELECT pins on server2", "db00020"),
    ]
    for span in inner:
        assert span.attributes["db.response.returned_rows"] == 1
        assert outer.start_time == span.start_time
        assert span.start_time <= span.end_time <= outer.end_time


def test_scatter(cluster, telemetry):
    with cluster.session() as session:
        session.scalars(select(Pin.id).options(scatter())).all()
    (outer,) = telemetry.outermost()
    assert outer.attributes["sqla_shard.scattered"] is True
    assert outer.attributes["sqla_shard.shard_count"] == SHARDS
    assert outer.attributes["sqla_shard.fan_out"] == SHARDS


def test_span_belongs_to_what_is_around_it(cluster, pins, telemetry):
    telemetry.spans()
    tracer = trace.get_tracer("tests", tracer_provider=telemetry.tracers)

    def work():
        with tracer.start_as_current_span("request"), cluster.session() as session:
            session.get(Pin, pins[0])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spans = telemetry.spans()
    requests = {s.context.span_id: s for s in spans if s.name == "request"}
    inside = {s.parent.span_id: s for s in spans if s.name == "SELECT pins"}
    assert len(requests) == len(inside) == 4
    for span_id, request in requests.items():
        span = inside[span_id]
        assert request.start_time <= span.start_time
        assert span.end_time <= request.end_time


def test_lazy_loads_are_named(cluster, pins, telemetry):
    with cluster.session() as session:
        pin = session.get(Pin, pins[0])
        telemetry.spans()
        assert pin.comments == []
        session.commit()
        assert pin.title
    loads = [s.attributes["sqla_shard.lazy_load"] for s in telemetry.spans()]
    assert loads == ["Pin.comments", "Pin"]


def test_writes_have_no_rows(cluster, pins, telemetry):
    telemetry.spans()
    with cluster.begin() as session:
        session.add_all([Comment(pin_id=pins[0], body=f"b{n}") for n in range(3)])
    spans = telemetry.outermost()
    assert {span.name for span in spans} == {"INSERT comments"}
    assert not any("db.response.returned_rows" in s.attributes for s in spans)
    with cluster.session() as session:
        assert len(session.get(Pin, pins[0]).comments) == 3


def test_literals_do_not_leave(cluster, telemetry):
    statement = text(
        "SELECT local_id, '$.a''b' FROM pins "
        "WHERE title = 'sec\\' AND title <> 'ret' AND n IN (41, 4.2, -7)"
    )
    with cluster.session() as session:
        where = {"shard_id": 1}
        session.execute(statement, bind_arguments=where).all()
    span, *_ = telemetry.outermost()
    assert span.name == "SELECT"
    assert span.attributes["db.query.text"] == (
        "SELECT local_id, ? FROM pins "
        "WHERE title = ? AND title <> ? AND n IN (?, ?, -?)"
    )


def test_errors(cluster, telemetry):
    statement = text("SELECT x FROM missing")
    with cluster.session() as session, pytest.raises(OperationalError):
        session.execute(statement, bind_arguments={"shard_id": 1})
    (span,) = telemetry.spans()
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "sqlite3.OperationalError: SQLITE_ERROR"
    assert span.attributes["error.type"] == "sqlite3.OperationalError"
    (recorded,) = span.events
    assert recorded.name == "exception"
    assert dict(recorded.attributes) == {"exception.type": "sqlite3.OperationalError"}
    (point,) = telemetry.points("db.client.operation.duration")
    assert point.attributes["error.type"] == "sqlite3.OperationalError"


SECRET = "4711-secret"


@pytest.mark.parametrize(
    "shards", [[2], [2, 20], range(SHARDS)], ids=["one", "two", "all"]
)
def test_values_of_a_failed_statement_do_not_leave(cluster, telemetry, shards, caplog):
    """The message of each error shows the parameters."""
    ids = [pack(shard, PIN, 1) for shard in shards]
    statement = (
        select(Pin)
        .where(Pin.id.in_(ids), Pin.title == SECRET)
        .where(text("missing = :x").bindparams(x=SECRET))
    )
    with cluster.session() as session, pytest.raises(DBAPIError) as raised:
        session.execute(statement).all()
    spans = telemetry.spans()
    assert any(span.events for span in spans)
    # All that SQLAlchemy says of it is in none of them.
    assert raised.value.orig.args[0] == "no such column: missing"
    for span in spans:
        assert SECRET not in span.to_json()
        assert "no such column" not in span.to_json()
    assert SECRET not in caplog.text


def test_values_that_a_constraint_has_refused_do_not_leave(cluster, telemetry):
    with cluster.session() as session, pytest.raises(IntegrityError):
        session.execute(
            insert(Pin), [{"id": pack(2, PIN, 1), "title": None, "n": 47110815}]
        )
    (span,) = telemetry.spans()
    assert span.status.status_code is StatusCode.ERROR
    assert "47110815" not in span.to_json()


def test_measurements(cluster, pins, telemetry):
    with cluster.session() as session:
        session.get(Pin, pins[0])
        session.get(Pin, pins[1])
        session.expunge_all()
        session.get_many(Pin, pins)

    def reads(name):
        (point,) = [
            point
            for point in telemetry.points(name)
            if point.attributes["db.operation.name"] == "SELECT"
            and not point.attributes["sqla_shard.scattered"]
        ]
        return point

    fan_out = reads("sqla_shard.fan_out")
    assert (fan_out.count, fan_out.sum, fan_out.max) == (3, 1 + 1 + 3, 3)
    assert fan_out.explicit_bounds[:3] == (1, 2, 4)
    duration = reads("db.client.operation.duration")
    assert duration.count == 3
    assert 0 < duration.min <= duration.max < 60
    rows = reads("db.client.response.returned_rows")
    # Of a statement for one shard, SQLite does not tell how many there are.
    assert (rows.count, rows.sum) == (1, 3)
    assert dict(rows.attributes) == {
        "db.system.name": "sqlite",
        "db.operation.name": "SELECT",
        "db.query.summary": "SELECT pins",
        "sqla_shard.keyspace": "objects",
        "sqla_shard.scattered": False,
    }


_MEMORY = {"backend": "dogpile.cache.memory"}


@pytest.fixture
def cache(cluster):
    yield cluster.configure_cache(
        {"objects": _MEMORY, "idle": _MEMORY}, classes={Pin: "objects"}, prefix="test"
    )
    cluster.cache = None


def counted(telemetry, name):
    return {
        point.attributes["sqla_shard.cache.region"]: point.value
        for point in telemetry.points(f"sqla_shard.cache.{name}")
    }


def test_counts_of_the_cache(cluster, cache, pins, telemetry):
    for _ in range(3):
        with cluster.session() as session:
            session.get_many(Pin, pins)
    with cluster.begin() as session:
        session.get(Pin, pins[0]).title = "other"
    for stats in cache.stats():
        for count in fields(stats):
            if count.name not in ("name", "classes"):
                value = getattr(stats, count.name)
                assert counted(telemetry, count.name)[stats.name] == value
    assert counted(telemetry, "hits") == {"objects": 7, "idle": 0}
    assert counted(telemetry, "misses") == {"objects": 3, "idle": 0}
    # Of the insert of each pin, and of the change.
    assert counted(telemetry, "invalidations")["objects"] == 4


def test_without_a_cache_nothing_is_counted(cluster, pins, telemetry):
    assert counted(telemetry, "hits") == {}


def test_caches_of_all_clusters_are_added_up(cluster, cache, pins):
    telemetry = Telemetry()
    running = instrument(meter_provider=telemetry.meters)
    before = counted(telemetry, "misses")["objects"]
    with Cluster.from_topology(cluster.topology) as other:
        other.configure_cache(
            {"objects": _MEMORY}, classes={Pin: "objects"}, prefix="other"
        )
        for one in (cluster, other):
            with one.session() as session:
                session.get(Pin, pins[0])
        assert counted(telemetry, "misses")["objects"] == before + 2
    running.uninstrument()
    assert counted(telemetry, "misses") == {}


def test_a_meter_keeps_no_cluster(cluster):
    telemetry = Telemetry()
    other = Cluster.from_topology(cluster.topology)
    instrument(other, telemetry.tracers, telemetry.meters)
    other.close()
    gone = weakref.ref(other)
    del other
    gc.collect()
    assert gone() is None
    assert counted(telemetry, "hits") == {}


def test_unsampled_spans_cost_none_inside(cluster, pins):
    telemetry = Telemetry(sampler=ALWAYS_OFF)
    running = instrument(cluster, telemetry.tracers, telemetry.meters)
    try:
        with cluster.session() as session:
            session.get_many(Pin, pins)
    finally:
        running.uninstrument()
    assert telemetry.spans() == []
    assert telemetry.points("sqla_shard.fan_out")


def test_all_clusters_of_the_process(no_listeners, cluster):
    telemetry = Telemetry()
    # The linter listens to all clusters of a process once a test has used it.
    listeners = list(cluster.dispatch.after_statement)
    running = instrument(
        tracer_provider=telemetry.tracers, meter_provider=telemetry.meters
    )
    assert list(cluster.dispatch.after_statement) != listeners
    with Cluster.from_topology(cluster.topology) as other:
        for one in (cluster, other):
            with one.begin() as session:
                session.add(at(1, Board(name="b")))
        assert len(telemetry.outermost()) == 2
        running.uninstrument()
        running.uninstrument()
        with other.begin() as session:
            session.add(at(1, Board(name="b")))
        assert telemetry.spans() == []
    assert list(cluster.dispatch.after_statement) == listeners


def test_without_providers_it_does_nothing(cluster, pins):
    running = instrument(cluster)
    try:
        with cluster.session() as session:
            assert all(session.get_many(Pin, pins))
    finally:
        running.uninstrument()


def test_says_how_to_install_what_is_missing():
    program = (
        "import sys\n"
        "sys.modules['opentelemetry'] = None\n"
        "try:\n"
        "    import sqla_shard.ext.opentelemetry\n"
        "except ImportError as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("MissingExtraError OpenTelemetry")
    assert "pip install 'sqla-shard[opentelemetry]'" in done.stdout
