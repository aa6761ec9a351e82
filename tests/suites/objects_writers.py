"""Several writers of one object: no acknowledged change is ever lost."""

from __future__ import annotations

import json
import threading
from datetime import datetime, UTC
from typing import Any

import pytest
from sqlalchemy import select

from sqla_shard.exc import BlobValueError, StaleDataError
from tests.models.objects import Board, Renamed, Size, Thing
from tests.models.objects_harness import (
    on_servers,
    raw,
    set_raw,
    stored,
    Suite,
    thing,
    updates,
)

UTC = UTC
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
        assert [raw(cluster, Thing, i)["text"] for i in ids] == ["x", "theirs", "x"]

    def test_the_same_value_of_both_is_a_conflict(self, cluster, two):
        # Each may have counted one further: both would be right to expect 2.
        one, a, other, b = two(count=0)
        a.count += 1
        b.count += 1
        one.commit()
        with pytest.raises(StaleDataError, match="'count'"):
            other.commit()
        assert raw(cluster, Thing, a.id)["count"] == 1

    def test_one_and_true_are_different_values(self, cluster, two):
        """Equal to Python, they are not one and the same JSON."""
        one, a, other, b = two(free=1, tree={"x": 0}, note="n")
        a.free, a.tree = True, {"x": False}
        b.note = "two"
        one.commit()
        other.commit()
        document = raw(cluster, Thing, a.id)
        assert document["free"] is True
        assert document["tree"]["x"] is False
        assert document["note"] == "two"
        a.free = 1.0
        b.free = False
        one.commit()
        with pytest.raises(StaleDataError, match="'free'"):
            other.commit()

    def test_the_row_is_gone(self, cluster, two):
        one, a, other, b = two(text="x")
        new = a.id
        one.delete(a)
        b.note = "n"
        one.commit()
        with pytest.raises(StaleDataError, match="was deleted") as caught:
            other.commit()
        assert caught.value.fields == ()
        other.rollback()
        assert raw(cluster, Thing, new) is None

    def test_changes_in_place(self, cluster, two):
        one, a, other, b = two(tags=["t"], times=[T0], size=Size(1), scores={"a": 1})
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
        assert raw(cluster, Thing, b.id) == {**document, "new": [1], "text": "two"}

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
        """A read repeats the first value; concurrent changes are merged."""
        one, a, other, b = two(text="x", note="n", tags=["t"])
        a.text = "one"
        a.tags.append("one")
        one.commit()
        old = "x" if on_servers(cluster) else "one"
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
                select(Thing.id).where(Thing.id == new, Thing.data == found.data)
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
            assert begun.wait(60)
            one.commit()
            thread.join(60)
            assert not thread.is_alive()
        document = raw(cluster, Thing, new)
        assert (document["text"], document["note"]) == ("one", "two")
