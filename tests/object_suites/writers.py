"""Several writers of one object: no acknowledged change is ever lost."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from datetime import timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import HealthCheck
from hypothesis import settings
from hypothesis import strategies as st
from sqlalchemy import select

from sqla_shard import Cluster
from sqla_shard.exc import BlobValueError
from sqla_shard.exc import StaleDataError
from tests.object_suites.harness import on_mariadb
from tests.object_suites.harness import raw
from tests.object_suites.harness import remove_raw
from tests.object_suites.harness import set_raw
from tests.object_suites.harness import stored
from tests.object_suites.harness import Suite
from tests.object_suites.harness import thing
from tests.object_suites.harness import updates
from tests.object_suites.models import Board
from tests.object_suites.models import Renamed
from tests.object_suites.models import Size
from tests.object_suites.models import Thing

UTC = timezone.utc
T0 = datetime(2024, 1, 1, tzinfo=UTC)
T1 = datetime(2025, 1, 1, tzinfo=UTC)


class WriterSuite(Suite):
    """Two sessions, each in its own transaction; neither takes a lock."""

    @pytest.fixture
    def two(self, cluster):
        """Open two sessions that have read the same object."""
        with cluster.session() as one, cluster.session() as two:

            def open_both(**fields: Any) -> tuple:
                new = thing(cluster, **fields)
                return one, one.get(Thing, new), two, two.get(Thing, new)

            yield open_both

    def test_two_fields(self, cluster, two):
        one, a, other, b = two(text="x", note="n", count=1)
        a.text = "one"
        b.note = "two"
        del b.count
        one.commit()
        other.commit()
        assert (b.text, b.note, b.count) == ("one", "two", 0)
        document = raw(cluster, Thing, a.id)
        assert (document["text"], document["note"]) == ("one", "two")
        assert "count" not in document
        assert (a.text, a.note) == ("one", "two")

    def test_the_same_field(self, cluster, two):
        one, a, other, b = two(text="x", note="n", count=1)
        a.text, a.count = "one", 2
        b.text, b.count, b.note = "two", 3, "m"
        one.commit()
        with pytest.raises(StaleDataError) as caught:
            other.commit()
        error = caught.value
        assert (error.class_name, error.object_id) == ("Thing", a.id)
        assert error.fields == ("count", "text")
        assert "'count', 'text'" in str(error)
        other.rollback()
        document = raw(cluster, Thing, a.id)
        assert (document["text"], document["count"]) == ("one", 2)
        assert document["note"] == "n"
        assert (b.text, b.count, b.note) == ("one", 2, "n")
        b.text = "two"
        other.commit()
        assert raw(cluster, Thing, a.id)["text"] == "two"

    def test_nothing_of_a_stale_flush_is_written(self, cluster):
        ids = [thing(cluster, text="x", shard_id=1) for _ in range(3)]
        with cluster.session() as session:
            found = session.get_many(Thing, ids)
            with cluster.begin() as other:
                other.get(Thing, ids[1]).text = "theirs"
            for each in found:
                each.text = "mine"
            session.add(Thing(text="new", shard_id=1))
            with pytest.raises(StaleDataError):
                session.commit()
        assert [raw(cluster, Thing, i)["text"] for i in ids] == [
            "x",
            "theirs",
            "x",
        ]

    def test_the_same_value_of_both_is_a_conflict(self, cluster, two):
        # Each may have counted one further: both would be right to expect 2.
        one, a, other, b = two(count=0)
        a.count += 1
        b.count += 1
        one.commit()
        with pytest.raises(StaleDataError, match="'count'"):
            other.commit()
        assert raw(cluster, Thing, a.id)["count"] == 1

    def test_one_true_and_one_are_not_the_same_value(self, two):
        one, a, other, b = two(free=0)
        a.free, b.free = 1, True
        one.commit()
        with pytest.raises(StaleDataError, match="'free'"):
            other.commit()

    def test_the_row_is_gone(self, cluster, two):
        one, a, other, b = two(text="x")
        new = a.id
        one.delete(a)
        b.note = "n"
        one.commit()
        with pytest.raises(StaleDataError, match="is gone") as caught:
            other.commit()
        assert caught.value.fields == ()
        other.rollback()
        assert raw(cluster, Thing, new) is None

    def test_changes_in_place(self, cluster, two):
        one, a, other, b = two(
            tags=["t"], times=[T0], size=Size(1), scores={"a": 1}
        )
        a.tags.append("one")
        a.size.w = 2
        b.times.append(T1)
        b.scores["b"] = 2
        one.commit()
        other.commit()
        assert (b.tags, b.size) == (["t", "one"], Size(2))
        assert (b.times, b.scores) == ([T0, T1], {"a": 1, "b": 2})
        a.tags.append("again")
        b.tags.append("two")
        one.commit()
        with pytest.raises(StaleDataError, match="'tags'"):
            other.commit()

    def test_held_containers_of_what_the_other_changed(self, two):
        """They are not part of the object any more, and say so."""
        one, a, other, b = two(
            tags=["t"], times=[T0], size=Size(1), tree={"x": {"y": []}}
        )
        held = b.tags, b.times, b.size, b.tree["x"]["y"]
        a.tags.append("one")
        a.times.append(T1)
        a.size.w = 2
        a.tree["z"] = 1
        one.commit()
        b.text = "two"
        other.flush()
        assert (b.tags, b.times) == (["t", "one"], [T0, T1])
        assert (b.size, b.tree["z"]) == (Size(2), 1)
        for field, change in (
            ("tags", lambda: held[0].append("lost")),
            ("times", lambda: held[1].append(T1)),
            ("size", lambda: setattr(held[2], "w", 9)),
            ("tree", lambda: held[3].append(1)),
        ):
            with pytest.raises(StaleDataError, match=f"'{field}'"):
                change()
        assert not other.dirty
        b.tags.append("two")
        b.times.append(T0)
        other.commit()
        assert b.tags == ["t", "one", "two"]
        assert b.times == [T0, T1, T0]

    def test_held_defaults_that_the_other_stored(self, cluster, two):
        one, a, other, b = two()
        set_raw(cluster, Thing, a.id, {})
        one.rollback()
        other.rollback()
        held = b.tags, b.times
        a.tags.append("one")
        a.times.append(T1)
        one.commit()
        b.text = "two"
        other.flush()
        for container, value in zip(held, ("lost", T0), strict=True):
            with pytest.raises(StaleDataError):
                container.append(value)
        assert (b.tags, b.times) == (["one"], [T1])

    def test_ordinary_columns(self, cluster, two, log):
        one, a, other, b = two(text="x", kind="k", rank=1)
        a.text, a.kind = "one", "one"
        b.note, b.rank = "two", 2
        one.commit()
        log.clear()
        other.commit()
        assert (b.text, b.note, b.kind, b.rank) == ("one", "two", "one", 2)
        b.kind = "l"
        log.clear()
        other.commit()
        assert len(updates(log)) == 1
        assert "data" not in updates(log)[0]
        # They are SQLAlchemy's affair: the last one wins.
        a.kind, b.kind = "one", "two"
        one.commit()
        other.commit()
        assert b.kind == "two"

    def test_column_and_field_in_one_flush(self, cluster, two):
        one, a, other, b = two(text="x", kind="k")
        a.text, a.kind = "one", "one"
        b.text, b.kind = "two", "two"
        one.commit()
        with pytest.raises(StaleDataError):
            other.commit()
        other.rollback()
        assert (b.text, b.kind) == ("one", "one")

    def test_number_of_statements(self, cluster, two, log):
        one, a, other, b = two(text="x", note="n")
        log.clear()
        a.text = "one"
        one.flush()
        assert len(log.executions) == 1
        (sent,) = log.statements
        assert sent.startswith("UPDATE")
        assert "kind" not in sent
        one.commit()
        log.clear()
        b.note = "two"
        other.flush()
        kinds = [s.split()[0] for s in log.statements if "things" in s]
        assert kinds == ["UPDATE", "SELECT", "UPDATE"]
        other.commit()
        a.text, b.text = "a", "b"
        one.commit()
        log.clear()
        with pytest.raises(StaleDataError):
            other.flush()
        kinds = [s.split()[0] for s in log.statements if "things" in s]
        assert kinds == ["UPDATE", "SELECT"]

    def test_one_update_for_each_of_many(self, cluster, log):
        ids = [thing(cluster, shard_id=1) for _ in range(5)]
        with cluster.begin() as session:
            for found in session.get_many(Thing, ids):
                found.text, found.kind = "t", "k"
                found.tags.append("x")
            log.clear()
            session.flush()
            assert len([s for s in updates(log) if "data" in s]) == 5
            log.clear()
            session.flush()
            assert not log.statements

    def test_whole_blob(self, cluster, two):
        one, a, other, b = two(text="x", note="n", tags=["t"])
        a.text = "one"
        before = dict(b.data)
        b.data = {**before, "note": "two"}
        one.commit()
        other.commit()
        assert (b.text, b.note, b.tags) == ("one", "two", ["t"])
        a.text = "again"
        b.data = {"note": "alone"}
        one.commit()
        with pytest.raises(StaleDataError, match="'text'"):
            other.commit()

    def test_soft_delete(self, cluster, two):
        one, a, other, b = two(text="x")
        a.deactivate()
        b.text = "two"
        one.commit()
        other.commit()
        document = raw(cluster, Thing, a.id)
        assert (document["active"], document["text"]) == (False, "two")
        assert b.active is False

    def test_another_program(self, cluster, two):
        """That spells the same JSON differently, or adds keys."""
        _, _, other, b = two(text="x")
        document = raw(cluster, Thing, b.id)
        set_raw(
            cluster,
            Thing,
            b.id,
            json.dumps({"new": [1], **document}, indent=2, sort_keys=True),
        )
        b.text = "two"
        other.commit()
        assert raw(cluster, Thing, b.id) == {
            **document,
            "new": [1],
            "text": "two",
        }

    def test_not_json_any_more(self, cluster, two):
        _, _, other, b = two(text="x")
        set_raw(cluster, Thing, b.id, "[1]")
        b.text = "two"
        with pytest.raises(BlobValueError, match="not an object"):
            other.commit()

    def test_alias_and_present_name(self, cluster, session):
        """An older and a newer program, one field under two names."""
        board = stored(cluster, Board, title="t")
        new = stored(cluster, Renamed, home_id=board)
        set_raw(cluster, Renamed, new, {"board": board, "labels": ["a"]})
        found = session.get(Renamed, new)
        held = found.tags
        set_raw(cluster, Renamed, new, {"board": board, "labels": ["b"]})
        found.tags = ["mine"]
        with pytest.raises(StaleDataError, match="'labels'"):
            session.commit()
        session.rollback()
        assert found.tags == ["b"]
        assert held == ["a"]
        times = found.times
        set_raw(
            cluster,
            Renamed,
            new,
            {
                "board": board,
                "labels": ["b"],
                "moments": ["2025-01-01T00:00:00.000000+00:00"],
            },
        )
        found.title = "mine"
        session.flush()
        assert found.times == [T1]
        with pytest.raises(StaleDataError):
            times.append(T0)

    def test_lock_then_change(self, cluster, two):
        one, a, other, b = two(count=1)
        other.rollback()
        a.count = 2
        one.commit()
        other.refresh(b, with_for_update=True)
        b.count += 1
        other.commit()
        assert raw(cluster, Thing, a.id)["count"] == 3

    def test_repeatable_read(self, cluster, two):
        """What was read first stays; what is written is put together."""
        one, a, other, b = two(text="x", note="n", tags=["t"])
        a.text = "one"
        a.tags.append("one")
        one.commit()
        old = "x" if on_mariadb(cluster) else "one"
        statement = select(Thing.text).where(Thing.id == a.id)
        with other.no_autoflush:
            assert other.scalars(statement).one() == old
        b.note = "two"
        other.flush()
        assert other.scalars(statement).one() == "one"
        assert (b.text, b.tags) == ("one", ["t", "one"])
        other.refresh(b)
        assert (b.text, b.note) == ("one", "two")
        other.commit()

    def test_rollback_after_putting_together(self, cluster, two):
        one, a, other, b = two(text="x", note="n")
        savepoint = other.begin_nested()
        a.text = "one"
        one.commit()
        b.note = "two"
        other.flush()
        assert b.text == "one"
        savepoint.rollback()
        assert b.note == "n"
        b.note = "three"
        other.commit()
        document = raw(cluster, Thing, a.id)
        assert (document["text"], document["note"]) == ("one", "three")

    def test_a_comparison_is_no_write(self, cluster, session):
        """Binding the blob to a statement does not mark it written."""
        new = thing(cluster, text="x")
        found = session.get(Thing, new)
        found.text = "y"
        with session.no_autoflush:
            session.scalars(
                select(Thing.id).where(
                    Thing.id == new, Thing.data == found.data
                )
            ).all()
        session.commit()
        assert raw(cluster, Thing, new)["text"] == "y"

    def test_a_writer_waits_for_another(self, cluster):
        new = thing(cluster, text="x", note="n")
        with cluster.session() as one, cluster.session() as other:
            a, b = one.get(Thing, new), other.get(Thing, new)
            a.text = "one"
            one.flush()  # holds the lock
            b.note = "two"
            begun = threading.Event()

            def write() -> None:
                begun.set()
                other.commit()

            thread = threading.Thread(target=write)
            thread.start()
            assert begun.wait(10)
            one.commit()
            thread.join(20)
            assert not thread.is_alive()
        document = raw(cluster, Thing, new)
        assert (document["text"], document["note"]) == ("one", "two")


# -- random interleavings ---------------------------------------------------

_sessions = st.integers(0, 2)
_fields = st.sampled_from(["text", "note", "tags", "times", "tree"])
STEPS = st.lists(
    st.one_of(
        st.tuples(_sessions, st.just("set"), _fields, st.integers(0, 2)),
        st.tuples(_sessions, st.just("add"), _fields, st.integers(0, 2)),
        st.tuples(_sessions, st.just("delete"), _fields, st.just(0)),
        st.tuples(
            _sessions,
            st.sampled_from(["flush", "commit", "commit", "rollback"]),
            st.just(""),
            st.just(0),
        ),
    ),
    min_size=4,
    max_size=40,
)


class Model:
    """One session, as it ought to be.

    :ivar base: the row as the session knows it; None where it would have to
        read it again.
    :ivar mine: its own values.
    """

    def __init__(self, cluster: Cluster, object_id: int, expires: bool):
        self.session = cluster.session(expire_on_commit=expires)
        self.object_id = object_id
        self.expires = expires
        self.base: dict | None = None
        self.mine: dict = {}
        self.held: Thing | None = None

    def load(self, row: dict) -> Thing:
        # Held, or the session would forget it and read it again.
        self.held = self.session.get(Thing, self.object_id)
        if self.base is None:
            self.base = json.loads(json.dumps(row))
            self.mine = json.loads(json.dumps(row))
        return self.held

    def flushed(self, row: dict) -> dict | None:
        """Return the row after a flush; None if that is refused."""
        if self.base is None:
            return dict(row)
        merged = dict(row)
        for field in {*self.base, *self.mine}:
            before, after = self.base.get(field), self.mine.get(field)
            if before == after:
                continue
            if row.get(field) not in (before, after):
                return None
            if field in self.mine:
                merged[field] = after
            else:
                merged.pop(field, None)
        return merged


def _values(field: str, number: int) -> tuple[Any, Any]:
    """Return a value of a field, and its JSON."""
    if field == "tags":
        return [str(number)], [str(number)]
    if field == "times":
        value = T0.replace(year=2000 + number)
        return [value], [value.isoformat(timespec="microseconds")]
    if field == "tree":
        return {"n": number}, {"n": number}
    return str(number), str(number)


class InterleavingSuite(Suite):
    @given(STEPS, st.booleans())
    @settings(
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            # The suite runs on several kinds of servers.
            HealthCheck.differing_executors,
            HealthCheck.too_slow,
        ],
    )
    def test_random_interleavings(self, cluster, steps, expires):
        """Against a model of one writer after another."""
        new = thing(cluster, shard_id=1)
        # Without defaults; NULL and missing are the same to the model.
        set_raw(cluster, Thing, new, {})
        row: dict = {}
        pending: dict | None = None
        holder: Model | None = None
        models = [Model(cluster, new, expires) for _ in range(3)]
        try:
            for index, action, field, number in steps:
                model = models[index]
                if action in ("set", "add", "delete"):
                    found = model.load(row)
                    self.change(model, found, action, field, number)
                    continue
                if action == "rollback":
                    if model.session.in_transaction():
                        model.base = None
                    model.session.rollback()
                    if holder is model:
                        holder = pending = None
                    continue
                if holder not in (None, model):
                    continue  # it would wait for the lock, for ever here
                before = row if pending is None else pending
                merged = model.flushed(before)
                if merged is None:
                    with pytest.raises(StaleDataError):
                        model.session.flush()
                    model.session.rollback()
                    model.base = None
                    holder = pending = None
                    continue
                wrote = model.base != model.mine
                model.session.flush()
                if model.base is not None and wrote:
                    holder, pending = model, merged
                    model.base = json.loads(json.dumps(merged))
                    model.mine = json.loads(json.dumps(merged))
                if action == "commit":
                    model.session.commit()
                    row = merged if holder is model else row
                    if holder is model:
                        holder = pending = None
                    if expires:
                        model.base = None
                    assert raw(cluster, Thing, new) == row
            for model in models:
                model.session.rollback()
            assert raw(cluster, Thing, new) == row
        finally:
            for model in models:
                model.session.close()
            remove_raw(cluster, Thing, new)

    def change(self, model, found, action, field, number) -> None:
        value, json_value = _values(field, number)
        if action == "delete":
            delattr(found, field)
            model.mine.pop(field, None)
        elif action == "set" or field in ("text", "note"):
            setattr(found, field, value)
            model.mine[field] = json_value
        elif field == "tree":
            found.tree[str(number)] = value
            model.mine.setdefault("tree", {})[str(number)] = json_value
        else:
            getattr(found, field).extend(value)
            model.mine.setdefault(field, []).extend(json_value)


# -- threads ----------------------------------------------------------------


class RacingSuite(Suite):
    """Real threads at one row."""

    writers = 20
    rounds = 5

    def race(self, work) -> None:
        start = threading.Barrier(self.writers, timeout=30)

        def run(number: int) -> None:
            start.wait()
            for round_ in range(self.rounds):
                work(number, round_)

        with ThreadPoolExecutor(self.writers) as pool:
            for done in [pool.submit(run, n) for n in range(self.writers)]:
                done.result(timeout=60)

    def test_read_modify_write_under_a_lock(self, cluster):
        new = thing(cluster, tags=[])

        def work(number: int, round_: int) -> None:
            with cluster.begin() as session:
                found = session.get(Thing, new, with_for_update=True)
                found.count += 1
                found.tags.append(f"{number}.{round_}")

        self.race(work)
        self.check(cluster, new)

    def test_read_modify_write_repeated(self, cluster):
        new = thing(cluster, tags=[])

        def work(number: int, round_: int) -> None:
            def change(session) -> None:
                found = session.get(Thing, new)
                found.count += 1
                found.tags.append(f"{number}.{round_}")

            cluster.run(change, attempts=10_000, timeout=60)

        self.race(work)
        self.check(cluster, new)

    def test_each_its_own_field(self, cluster):
        """Nobody waits for a retry, nothing is lost."""
        new = thing(cluster)

        def work(number: int, round_: int) -> None:
            with cluster.begin() as session:
                found = session.get(Thing, new)
                mine = found.data.setdefault(f"writer {number}", [])
                mine.append(round_)

        self.race(work)
        document = raw(cluster, Thing, new)
        for number in range(self.writers):
            assert document[f"writer {number}"] == [*range(self.rounds)]

    def check(self, cluster, new: int) -> None:
        document = raw(cluster, Thing, new)
        assert document["count"] == self.writers * self.rounds
        assert sorted(document["tags"]) == sorted(
            f"{number}.{round_}"
            for number in range(self.writers)
            for round_ in range(self.rounds)
        )
