"""Traces of statements on real servers, and the linter there."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from sqlalchemy import event, select, text
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError

from sqla_shard import scatter
from sqla_shard.exc import RetriesExhaustedError
from sqla_shard.ext.opentelemetry import instrument
from sqla_shard.testing import ShardLint
from tests.models.clusters import at, on_servers, SHARDS
from tests.models.models import Comment, Pin

pytestmark = pytest.mark.live

cluster = on_servers("observing")


@pytest.fixture
def pins(cluster):
    found = []
    for shard in range(0, SHARDS, 4):
        with cluster.begin() as session:
            pin = at(shard, Pin(title="p"))
            session.add(pin)
            session.flush()
            found.append(pin.id)
    return found


@pytest.fixture
def reports(cluster):
    found = []

    def listen(cluster, report):
        found.append(report)

    event.listen(cluster, "after_statement", listen)
    yield found
    event.remove(cluster, "after_statement", listen)


@pytest.fixture
def spans(cluster):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    running = instrument(cluster, provider)
    yield exporter
    running.uninstrument()
    provider.shutdown()


def test_rows_inserted_with_returning_are_one_report(cluster, pins, reports):
    # To SQLAlchemy many sets of parameters, to the server one statement.
    del reports[:]
    with cluster.begin() as session:
        session.add_all([Comment(pin_id=pins[1], body=f"b{n}") for n in range(5)])
    (report,) = reports
    assert report.writes
    assert report.shards == (4,)
    assert report.session is session
    assert report.error is None
    with cluster.session() as session:
        assert len(session.get(Pin, pins[1]).comments) == 5


def test_a_span_for_each_server(cluster, pins, spans):
    spans.clear()
    with cluster.session() as session:
        assert all(session.get_many(Pin, pins))
    found = spans.get_finished_spans()
    (outer,) = [span for span in found if span.parent is None]
    inner = [span for span in found if span.parent is not None]
    servers = cluster.topology.keyspaces["objects"].servers
    assert outer.attributes["sqla_shard.fan_out"] == len(servers)
    assert outer.attributes["db.response.returned_rows"] == len(pins)
    assert outer.attributes["db.system.name"] == "mysql"
    assert "`" not in outer.name
    assert {span.name for span in inner} == {
        f"SELECT pins on {server.name}" for server in servers
    }
    rows = [span.attributes["db.response.returned_rows"] for span in inner]
    assert sum(rows) == len(pins)
    for span in inner:
        assert span.kind is SpanKind.CLIENT
        assert span.attributes["server.address"] == "127.0.0.1"
        assert span.attributes["server.port"] > 1024
        assert outer.start_time < span.end_time <= outer.end_time


def test_errors_of_the_server_are_reported(cluster, spans):
    statement = text("SELECT x, \"secret\" FROM missing WHERE y = 'a\\'b'")
    with cluster.session() as session, pytest.raises(ProgrammingError):
        session.execute(statement, bind_arguments={"shard_id": 1})
    (span,) = spans.get_finished_spans()
    assert span.attributes["db.response.status_code"] == "1146"
    assert span.attributes["error.type"] == "pymysql.err.ProgrammingError"
    assert span.attributes["db.query.text"] == ("SELECT x, ? FROM missing WHERE y = ?")
    assert span.attributes["db.response.status_code"] == "1146"


SECRET = "4711-secret"


def test_spans_of_servers_have_no_values(cluster, pins, spans, caplog):
    """The server's statement is part of the message of its error."""
    spans.clear()
    statement = (
        select(Pin)
        .where(Pin.id.in_(pins), Pin.title == SECRET)
        .where(text("missing = :x").bindparams(x=SECRET))
    )
    with cluster.session() as session, pytest.raises(DBAPIError):
        session.execute(statement).all()
    found = spans.get_finished_spans()
    failed = [span for span in found if span.events]
    # That of the statement, and that of the first server, which SQLAlchemy
    # itself executes the statement on; the others may not have been asked.
    assert found[0] in failed
    assert found[-1] in failed
    assert found[0].parent.span_id == found[-1].context.span_id
    for span in found:
        assert SECRET not in span.to_json()
    for span in failed:
        assert span.attributes["db.response.status_code"] == "1054"
        assert span.status.description.endswith("OperationalError: 1054")
    assert SECRET not in caplog.text


@pytest.mark.parametrize(("key", "code"), [("47110815", 1062), ("4711-secret", 1292)])
def test_values_that_a_server_quotes_do_not_leave(cluster, spans, key, code):
    statement = text(
        "INSERT INTO pins (local_id, title) VALUES "
        "(CAST(:key AS SIGNED), 'x'), (CAST(:key AS SIGNED), 'y')"
    )
    with cluster.session() as session, pytest.raises(DBAPIError) as raised:
        session.execute(statement, {"key": key}, bind_arguments={"shard_id": 1})
    assert raised.value.orig.args[0] == code
    assert key in raised.value.orig.args[1]
    (span,) = spans.get_finished_spans()
    assert span.attributes["db.response.status_code"] == str(code)
    assert key not in span.to_json()


def test_attempts_are_logged_without_values(cluster, pins, caplog):
    def work(session):
        session.execute(
            text("SELECT 1 FROM pins WHERE title = :x AND SLEEP(0) = 0"),
            {"x": SECRET},
            bind_arguments={"shard_id": 1},
        )
        raise OperationalError(
            "SELECT :x", {"x": SECRET}, Exception(1213, "Deadlock found")
        )

    with (
        caplog.at_level("DEBUG", logger="sqla_shard"),
        pytest.raises(RetriesExhaustedError) as raised,
    ):
        cluster.run(work, attempts=2)
    assert "Deadlock found" in caplog.text
    assert SECRET not in caplog.text
    assert SECRET not in str(raised.value)
    assert "Deadlock found" in str(raised.value)


def test_the_linter_hears_of_threads_and_servers(cluster, pins):
    with ShardLint(cluster, max_shards=4) as lint:
        with cluster.session() as session:
            for pin_id in pins:
                session.get(Pin, pin_id)
            session.expunge_all()
            session.get_many(Pin, pins)
            session.scalars(select(Pin.id).options(scatter())).all()
        with cluster.begin(cross_shard="unordered") as session:
            session.add(at(1, Pin(title="p")))
            session.flush()
            session.add(at(2, Pin(title="p")))
    assert [finding.kind for finding in lint.findings] == [
        "n_plus_one",
        "fan_out",
        "scatter",
        "cross_shard_write",
    ]
    assert {finding.line.file for finding in lint.findings} == {__file__}
