"""The linter by itself: its findings, and the lines that it names."""

from __future__ import annotations

import asyncio
import inspect
import threading
from types import FrameType

import pytest
from flask import Flask
from jinja2 import DictLoader, Environment, FileSystemLoader
from sqlalchemy import delete, event, func, select, text, update
from sqlalchemy.orm import selectinload
from sqlalchemy.util import greenlet_spawn

from sqla_shard import Cluster, scatter
from sqla_shard.testing import ShardLint
from tests.models.clusters import at, on_sqlite, SHARDS
from tests.models.models import Board, Comment, Note, Pin, Setting

cluster = on_sqlite()


@pytest.fixture
def pins(cluster):
    """Eight pins on eight shards, each with a board and a comment."""
    found = []
    for shard in range(8):
        with cluster.begin() as session:
            board = at(shard + 8, Board(name="b"))
            pin = at(shard, Pin(title="p"))
            with cluster.begin() as other:
                other.add(board)
                other.flush()
                pin.board_id = board.id
            pin.comments.append(Comment(body="c"))
            session.add(pin)
            session.flush()
            found.append(pin.id)
    return found


def here() -> int:
    """Return the line of the caller."""
    frame = inspect.currentframe()
    assert frame is not None
    caller = frame.f_back
    assert isinstance(caller, FrameType)
    return caller.f_lineno


def only(lint: ShardLint):
    """Return the one finding; check that its line is in this file."""
    (finding,) = lint.findings
    assert finding.line.file == __file__
    with pytest.raises(AssertionError) as caught:
        lint.check()
    assert str(finding) in str(caught.value)
    return finding


class TestScatter:
    def test_is_found(self, cluster):
        with ShardLint(cluster) as lint, cluster.session() as session:
            session.scalars(select(Pin.id).options(scatter())).all()
            line = here() - 1
        finding = only(lint)
        assert finding.kind == "scatter"
        assert finding.line.number == line
        assert finding.line.function == "test_is_found"
        assert f"all {SHARDS} shards of 'objects':" in finding.what + ":"
        assert "session.scalars(select(Pin.id)" in str(finding)

    def test_each_time_counts(self, cluster):
        with ShardLint() as lint, cluster.session() as session:
            for _ in range(3):
                session.scalars(select(Pin.id).options(scatter())).all()
        finding = only(lint)
        assert finding.count == 3
        assert ", 3 times" in finding.what

    def test_ids_in_where_are_no_finding(self, cluster, pins):
        with ShardLint() as lint, cluster.session() as session:
            where = Pin.id.in_(pins)
            session.scalars(select(Pin).where(where).options(scatter())).all()
        assert lint.findings == []
        lint.check()

    @pytest.mark.parametrize("make", [update, delete])
    def test_writes_are_found(self, cluster, make):
        statement = make(Pin).where(Pin.n == -1)
        if make is update:
            statement = statement.values(n=-2)
        statement = statement.options(scatter())
        session = cluster.begin(cross_shard="unordered")
        with ShardLint() as lint, session as session:
            session.execute(statement)
        found = {finding.kind: finding for finding in lint.findings}
        assert set(found) == {"scatter", "cross_shard_write"}
        assert found["scatter"].count == SHARDS


class TestFanOut:
    def test_is_found_past_the_limit(self, cluster, pins):
        with ShardLint(max_shards=7) as lint, cluster.session() as session:
            session.get_many(Pin, pins[:7])
            session.expunge_all()
            session.get_many(Pin, pins)
            line = here() - 1
        finding = only(lint)
        assert (finding.kind, finding.line.number) == ("fan_out", line)
        assert "on 8 shards, and at most 7 are allowed" in finding.what

    def test_has_no_limit_by_default(self, cluster, pins):
        with ShardLint() as lint, cluster.session() as session:
            session.get_many(Pin, pins)
        assert lint.findings == []


class TestCrossShardWrite:
    def test_is_found_at_the_flush(self, cluster):
        session = cluster.begin(cross_shard="unordered")
        with ShardLint() as lint, session as session:
            session.add(at(3, Board(name="b")))
            session.flush()
            session.add(at(5, Board(name="b")))
            session.add(at(6, Pin(title="p")))
            session.flush()
            line = here() - 1
        finding = only(lint)
        assert (finding.kind, finding.line.number) == ("cross_shard_write", line)
        assert "writes shards 5, 6 of 'objects'" in finding.what
        assert "has written shard 3 of 'objects'" in finding.what
        assert finding.line.text == "session.flush()"

    def test_another_keyspace_is_another_shard(self, cluster):
        session = cluster.begin(cross_shard="unordered")
        with ShardLint() as lint, session as session:
            session.add(at(0, Board(name="b")))
            session.flush()
            session.add(Setting(name="cross", value="v"))
            session.flush()
        assert "shard 0 of 'main'" in only(lint).what

    def test_textual_sql_is_found(self, cluster):
        session = cluster.begin(cross_shard="unordered")
        with ShardLint() as lint, session as session:
            for shard in (1, 2):
                session.execute(
                    text("UPDATE pins SET n = 1 WHERE n = -1"),
                    bind_arguments={"shard_id": shard},
                )
        assert only(lint).kind == "cross_shard_write"

    def test_permission_alone_is_no_finding(self, cluster):
        session = cluster.begin(cross_shard="unordered")
        with ShardLint() as lint, session as session:
            for _ in range(9):
                session.add(at(3, Board(name="b")))
                session.flush()
            session.commit()
            session.add(at(4, Board(name="b")))
        assert lint.findings == []

    def test_a_rolled_back_write_is_no_finding(self, cluster):
        session = cluster.begin(cross_shard="unordered")
        with ShardLint() as lint, session as session:
            with session.begin_nested() as savepoint:
                session.add(at(3, Board(name="b")))
                session.flush()
                savepoint.rollback()
            session.add(at(4, Board(name="b")))
        assert lint.findings == []


class TestNPlusOne:
    def test_get_in_a_loop(self, cluster, pins):
        with ShardLint() as lint, cluster.session() as session:
            for pin_id in pins:
                session.get(Pin, pin_id)
            line = here() - 1
        finding = only(lint)
        assert (finding.kind, finding.line.number) == ("n_plus_one", line)
        assert finding.count == 8
        assert "8 times in one session" in finding.what
        assert "(shards 0, 1, 2, 3, 4, 5, 6, 7)" in finding.what
        assert "get_many" in finding.remedy
        assert "__sqla_shard__" not in str(finding)

    def test_count_in_a_loop(self, cluster, pins):
        with ShardLint() as lint, cluster.session() as session:
            for pin_id in pins:
                found = select(func.count()).where(Pin.id == pin_id)
                assert session.scalar(found) == 1
        finding = only(lint)
        assert (finding.kind, finding.count) == ("n_plus_one", 8)
        assert "get_many" not in finding.remedy
        assert "group_by" in finding.remedy

    @pytest.mark.parametrize("name", ["comments", "board", "tags"])
    def test_lazy_loads_are_named(self, cluster, pins, name):
        with ShardLint() as lint, cluster.session() as session:
            found = session.get_many(Pin, pins)
            for pin in found:
                getattr(pin, name)
            line = here() - 1
        finding = only(lint)
        assert finding.line.number == line
        assert f"Pin.{name} was loaded lazily 8 times" in finding.what
        assert f"selectinload(Pin.{name})" in finding.remedy

    def test_the_remedy_is_one(self, cluster, pins):
        with ShardLint() as lint, cluster.session() as session:
            options = [
                selectinload(Pin.comments),
                selectinload(Pin.board),
                selectinload(Pin.tags),
            ]
            for pin in session.get_many(Pin, pins, options=options):
                assert pin.comments
                assert pin.board
        assert lint.findings == []

    def test_expired_attributes(self, cluster, pins):
        with ShardLint() as lint, cluster.session() as session:
            found = session.get_many(Pin, pins)
            session.commit()
            assert [pin.title for pin in found] == ["p"] * 8
        finding = only(lint)
        assert "expired or deferred attributes of Pin" in finding.what
        assert "expire_on_commit" in finding.remedy

    def test_as_often_as_allowed_is_no_finding(self, cluster, pins):
        with ShardLint(max_repeats=8) as lint, cluster.session() as session:
            for pin_id in pins:
                session.get(Pin, pin_id)
        assert lint.findings == []
        with ShardLint(max_repeats=7) as lint, cluster.session() as session:
            for pin_id in pins:
                session.get(Pin, pin_id)
        assert only(lint).count == 8

    def test_other_lines_other_statements_and_other_sessions_are_no_finding(
        self, cluster, pins
    ):
        with ShardLint() as lint:
            with cluster.session() as session:
                for pin_id in pins[:4]:
                    session.get(Pin, pin_id)
                for pin_id in pins[4:]:
                    session.get(Pin, pin_id)
                session.expunge_all()
                for index, pin_id in enumerate(pins):
                    columns = (Pin.id,) if index % 2 else (Pin.title,)
                    session.execute(select(*columns).where(Pin.id == pin_id))
            for pin_id in pins:
                with cluster.session() as session:
                    session.get(Pin, pin_id)
        assert lint.findings == []

    def test_requests_that_share_a_session_are_apart(self, cluster, pins):
        app = Flask(__name__)
        with ShardLint() as lint, cluster.session() as session:
            for pin_id in pins:
                with app.test_request_context():
                    session.get(Pin, pin_id)
        assert lint.findings == []
        with (
            ShardLint() as lint,
            cluster.session() as session,
            app.test_request_context(),
        ):
            for pin_id in pins:
                session.get(Pin, pin_id)
        assert only(lint).count == 8

    def test_writes_in_a_loop_are_no_finding(self, cluster, pins):
        with ShardLint() as lint, cluster.begin() as session:
            for _ in range(9):
                session.add(Note(pin_id=pins[0], text="t"))
                session.flush()
            for n in range(9):
                session.execute(update(Pin).where(Pin.id == pins[0]).values(n=n))
        assert lint.findings == []


class TestLines:
    def test_code_that_others_call(self, cluster, pins):
        def title(session, pin_id):
            return session.get(Pin, pin_id).title

        line = here() - 2
        with ShardLint() as lint, cluster.session() as session:
            assert [title(session, pin_id) for pin_id in pins] == ["p"] * 8
        assert only(lint).line.number == line
        assert only(lint).line.function == "title"

    def test_other_threads(self, cluster, pins):
        errors = []

        def work():
            try:
                with cluster.session() as session:
                    for pin_id in pins:
                        session.get(Pin, pin_id)
            except BaseException as error:
                errors.append(error)
                raise

        with ShardLint() as lint:
            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert not errors
        # One finding for each session.
        assert [f.count for f in lint.findings] == [8] * 4
        assert {f.line.function for f in lint.findings} == {"work"}

    def test_coroutines(self, cluster, pins):
        async def read(session):
            for pin_id in pins:
                await greenlet_spawn(session.get, Pin, pin_id)

        with ShardLint() as lint, cluster.session() as session:
            asyncio.run(read(session))
        finding = only(lint)
        assert finding.line.function == "read"
        assert finding.line.text.startswith("await greenlet_spawn")

    def test_asynchronous_sessions(self, cluster, pins):
        async def read():
            async with cluster.async_session() as session:
                for pin_id in pins:
                    await session.get(Pin, pin_id)
                await session.scalars(select(Pin.id).options(scatter()))

        with ShardLint(cluster) as lint:
            asyncio.run(read())
        assert [finding.kind for finding in lint.findings] == ["n_plus_one", "scatter"]
        assert [finding.line.text for finding in lint.findings] == [
            "await session.get(Pin, pin_id)",
            "await session.scalars(select(Pin.id).options(scatter()))",
        ]

    def test_templates(self, cluster, pins, tmp_path):
        source = "<ul>\n{% for pin in pins %}\n{{ pin.comments }}\n{% endfor %}"
        (tmp_path / "pins.html").write_text(source)
        page = Environment(loader=FileSystemLoader(tmp_path), autoescape=True)
        with ShardLint() as lint, cluster.session() as session:
            found = session.get_many(Pin, pins)
            page.get_template("pins.html").render(pins=found)
        (finding,) = lint.findings
        assert finding.line.file == str(tmp_path / "pins.html")
        assert (finding.line.number, finding.line.text) == (3, "{{ pin.comments }}")

    def test_source_that_is_no_file(self, cluster):
        page = Environment(loader=DictLoader({"x": "{{ run() }}"}), autoescape=True)
        with ShardLint() as lint, cluster.session() as session:
            statement = select(Pin.id).options(scatter())
            run = session.scalars
            page.get_template("x").render(run=lambda: run(statement).all())
        assert only(lint).line.function == "<lambda>"
        program = "session.scalars(statement).all()"
        with ShardLint() as lint, cluster.session() as session:
            exec(program, {"session": session, "statement": statement})  # noqa: S102  # written above
        (finding,) = lint.findings
        assert finding.line.text == ""
        assert "<string>:1: scatter" in lint.text()


class TestListening:
    def test_only_to_the_clusters_that_are_named(self, cluster):
        with Cluster.from_topology(cluster.topology) as other:
            with ShardLint(other) as lint, cluster.session() as session:
                session.scalars(select(Pin.id).options(scatter())).all()
            assert lint.findings == []
            with ShardLint(other) as lint, other.session() as session:
                session.scalars(select(Pin.id).options(scatter())).all()
            assert only(lint).kind == "scatter"

    def test_nothing_is_left_behind(self, no_listeners, cluster):
        assert cluster.watch is None
        with ShardLint():
            assert cluster.watch is not None
        assert cluster.watch is None
        with ShardLint(cluster):
            assert cluster.watch is not None
        assert cluster.watch is None

    def test_listeners_of_others_are_not_removed(self, cluster):
        heard = []

        def listen(cluster, report):
            heard.append(report.statement)

        event.listen(cluster, "after_statement", listen)
        try:
            with ShardLint() as lint, cluster.session() as session:
                session.scalars(select(Pin.id).options(scatter())).all()
            with cluster.session() as session:
                session.scalars(select(Pin.id).options(scatter())).all()
        finally:
            event.remove(cluster, "after_statement", listen)
        assert len(heard) == 2
        assert only(lint).count == 1


class TestAllowing:
    def test_for_all(self, cluster, pins):
        with (
            ShardLint(allow=["n_plus_one", "scatter"]) as lint,
            cluster.session() as session,
        ):
            for pin_id in pins:
                session.get(Pin, pin_id)
            session.scalars(select(Pin.id).options(scatter())).all()
        assert lint.findings == []

    def test_for_a_part(self, cluster, pins):
        with ShardLint() as lint, cluster.session() as session:
            with lint.allow("scatter"), lint.allow("scatter", "n_plus_one"):
                session.scalars(select(Pin.id).options(scatter())).all()
            with lint.allow("n_plus_one"):
                for pin_id in pins:
                    session.get(Pin, pin_id)
            assert lint.findings == []
            session.scalars(select(Pin.id).options(scatter())).all()
        assert only(lint).count == 1

    @pytest.mark.parametrize("allow", [["scater"], "scatter"])
    def test_unknown_kinds_are_refused(self, allow):
        with pytest.raises(ValueError, match="sca"):
            ShardLint(allow=allow)
        with pytest.raises(ValueError, match="nothing"):
            ShardLint().allow("nothing").__enter__()

    @pytest.mark.parametrize("name", ["max_repeats", "max_shards"])
    @pytest.mark.parametrize("value", [0, -1, "5", True])
    def test_limits_are_numbers(self, name, value):
        with pytest.raises(ValueError, match=f"{name}=.*from 1"):
            ShardLint(**{name: value})
