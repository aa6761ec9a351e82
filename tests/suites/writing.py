"""One transaction and its shards: refusals and savepoints."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import delete, Engine, event, insert, select, text, update

from sqla_shard import exc
from tests.models.clusters import at, PINS, ShardLog
from tests.models.layouts import pack, unpack
from tests.models.models import Comment, Note, PIN, Pin, Setting


def pair() -> Any:
    """Return a fixture: the ids of pins on shards 3 and 20."""

    @pytest.fixture
    def pins(cluster: Any) -> list[int]:
        found = []
        for shard_id in (3, 20):
            with cluster.begin(shard_id=shard_id) as session:
                pin = Pin(title="a", comments=[Comment(body="1")])
                session.add(pin)
                session.flush()
                found.append(pin.id)
        return found

    return pins


def shard_of(instance: Any) -> int:
    return unpack(instance.id).shard_id


def _by_flush(session, pins):
    session.add(at(20, Pin(title="b")))
    session.flush()


def _by_change(session, pins):
    session.get(Pin, pins[1]).title = "b"
    session.flush()


def _by_delete(session, pins):
    session.delete(session.get(Pin, pins[1]))
    session.flush()


def _by_child(session, pins):
    pin = session.get(Pin, pins[1])
    pin.comments.append(Comment(body="2"))
    session.flush()


def _by_blob(session, pins):
    session.add(Note(pin_id=pins[1], text="t"))
    session.flush()


def _by_autoflush(session, pins):
    session.add(at(20, Pin(title="b")))
    session.scalars(select(Pin).where(Pin.id == pins[0])).all()


def _by_commit(session, pins):
    session.add(at(20, Pin(title="b")))
    session.commit()


def _by_update(session, pins):
    session.execute(update(Pin).where(Pin.id == pins[1]).values(n=1))


def _by_update_of_both(session, pins):
    session.execute(update(Pin).where(Pin.id.in_(pins)).values(n=1))


def _by_delete_statement(session, pins):
    session.execute(delete(Comment).where(Comment.pin_id == pins[1]))


def _by_rows(session, pins):
    rows = [{"pin_id": i, "body": "2"} for i in pins]
    session.execute(insert(Comment), rows)


def _by_rows_by_key(session, pins):
    session.execute(update(Pin), [{"id": i, "n": 1} for i in pins])


def _by_core(session, pins):
    table = Comment.__table__
    session.execute(insert(table).values(pin_id=pins[1], body="2"))


def _by_named_shard(session, pins):
    session.execute(insert(Pin).values(title="b"), bind_arguments={"shard_id": 20})


def _by_text(session, pins):
    session.execute(text("DELETE FROM comments"), bind_arguments={"shard_id": 20})


def _by_connection(session, pins):
    connection = session.connection(bind_arguments={"shard_id": 20})
    connection.execute(update(Pin.__table__).values(n=1))


def _by_text_on_connection(session, pins):
    connection = session.connection(bind_arguments={"shard_id": 20})
    connection.execute(text("DELETE FROM comments"))


def _by_global_row(session, pins):
    session.add(Setting(name="w", value="1"))
    session.flush()


_WAYS = [
    _by_flush,
    _by_change,
    _by_delete,
    _by_child,
    _by_blob,
    _by_autoflush,
    _by_commit,
    _by_update,
    _by_update_of_both,
    _by_delete_statement,
    _by_rows,
    _by_rows_by_key,
    _by_core,
    _by_named_shard,
    _by_text,
    _by_connection,
    _by_text_on_connection,
    _by_global_row,
]


@contextmanager
def sent() -> Iterator[list[str]]:
    """Collect the changes that a driver was given."""
    found: list[str] = []

    def after(connection, cursor, statement, parameters, context, many):
        if statement.startswith(("INSERT", "UPDATE", "DELETE")):
            found.append(statement)

    event.listen(Engine, "after_cursor_execute", after)
    try:
        yield found
    finally:
        event.remove(Engine, "after_cursor_execute", after)


class SecondShard:
    @pytest.mark.parametrize("way", _WAYS, ids=lambda way: way.__name__)
    def test_refused_before_it_is_sent(self, cluster, pins, way):
        with cluster.session() as session:
            session.get(Pin, pins[0]).title = "first"
            session.flush()
            with sent() as changes, pytest.raises(exc.CrossShardWriteError) as caught:
                way(session, pins)
            assert changes == []
        first, second = caught.value.first, caught.value.second
        assert first[0] == 3
        assert f"Pin {pins[0]}" in first[1]
        assert second[0] == (0 if way is _by_global_row else 20)
        assert first[1] in str(caught.value)
        assert second[1] in str(caught.value)
        again = pickle.loads(pickle.dumps(caught.value))
        assert (again.first, again.second) == (first, second)

    @pytest.mark.parametrize("way", _WAYS, ids=lambda way: way.__name__)
    def test_allowed_on_request(self, cluster, pins, way):
        with cluster.begin(cross_shard="unordered") as session:
            session.get(Pin, pins[0]).title = "first"
            session.flush()
            way(session, pins)
            session.rollback()

    def test_both_in_one_flush(self, cluster, pins):
        with cluster.session() as session, sent() as changes:
            first, second = session.get_many(Pin, pins)
            first.title = second.title = "new"
            with pytest.raises(exc.CrossShardWriteError) as caught:
                session.flush()
            assert changes == []
        for pin_id in pins:
            assert f"Pin {pin_id}" in str(caught.value)

    def test_a_refused_statement_binds_nothing(self, cluster, pins):
        with cluster.session() as session:
            wrong, right = at(3, Pin(title="a")), at(20, Pin(title="b"))
            session.add_all([wrong, right])
            with pytest.raises(exc.CrossShardWriteError):
                session.flush()
            session.expunge(wrong)
            session.flush()
            assert shard_of(right) == 20
        with cluster.session() as session:
            rows = [{"pin_id": i, "body": "2"} for i in pins]
            with pytest.raises(exc.CrossShardWriteError):
                session.execute(insert(Comment), rows)
            session.execute(insert(Comment), rows[1:])

    def test_the_first_shard_goes_on(self, cluster, pins):
        with cluster.session() as session:
            session.get(Pin, pins[0]).title = "first"
            session.flush()
            with pytest.raises(exc.CrossShardWriteError):
                _by_update(session, pins)
            session.get(Pin, pins[0]).n = 5
            session.commit()
            session.execute(update(Pin).where(Pin.id == pins[1]).values(n=6))
            session.commit()
        with cluster.session() as session:
            assert [p.n for p in session.get_many(Pin, pins)] == [5, 6]

    def test_reading_is_free(self, cluster, pins):
        with cluster.session() as session:
            session.get(Pin, pins[0]).title = "first"
            session.flush()
            assert session.get(Pin, pins[1]).title == "a"
            found = session.connection({"shard_id": 20})
            assert found.scalar(text("SELECT count(*) FROM pins")) > 0
            session.scalars(select(Pin).where(Pin.id.in_(pins)).with_for_update()).all()
            session.commit()

    @pytest.mark.parametrize("how", ["session", "begin", "session.begin"])
    def test_ways_to_ask(self, cluster, pins, how):
        if how == "session":
            session = cluster.session(cross_shard="unordered")
        elif how == "begin":
            context = cluster.begin(cross_shard="unordered")
            session = context.__enter__()
        else:
            session = cluster.session()
            session.begin(cross_shard="unordered")
        _by_update_of_both(session, pins)
        session.commit()
        if how == "session.begin":
            # It was for that transaction alone.
            with pytest.raises(exc.CrossShardWriteError):
                _by_update_of_both(session, pins)
        session.close()
        with cluster.session() as session:
            assert [p.n for p in session.get_many(Pin, pins)] == [1, 1]

    def test_no_other_way(self, cluster):
        with pytest.raises(ValueError, match="unordered"):
            cluster.session(cross_shard="XA")
        session = cluster.session()
        with pytest.raises(ValueError, match="unordered"):
            session.begin(cross_shard=True)
        session.close()

    def test_one_transaction_per_server(self, cluster, pins):
        with ShardLog() as log, cluster.begin(cross_shard="unordered") as session:
            session.add_all([at(i, Pin(title="a")) for i in (3, 4, 20)])
            session.flush()
            rows = [{"pin_id": i, "body": "2"} for i in pins]
            session.execute(insert(Comment), rows)
            session.commit()
        engines = {
            cluster.places.place(cluster.topology.keyspace("objects"), i).engine
            for i in (3, 4, 20)
        }
        for kind in ("checkout", "begin", "commit"):
            assert log.count(kind) == len(engines)
        assert len(log.connections) == len(engines)
        assert log.count("rollback") == 0


class Savepoints:
    def test_rolled_back_frees_the_shard(self, cluster, pins):
        with cluster.begin() as session:
            with session.begin_nested() as nested:
                session.get(Pin, pins[0]).title = "undone"
                session.flush()
                nested.rollback()
            session.get(Pin, pins[1]).title = "done"
        with cluster.session() as session:
            titles = [p.title for p in session.get_many(Pin, pins)]
        assert titles == ["a", "done"]

    def test_released_keeps_the_shard(self, cluster, pins):
        with cluster.session() as session:
            with session.begin_nested():
                session.get(Pin, pins[0]).title = "done"
            session.get(Pin, pins[1]).title = "refused"
            with pytest.raises(exc.CrossShardWriteError):
                session.flush()

    def test_one_inside_the_other(self, cluster, pins):
        with cluster.session() as session:
            outer = session.begin_nested()
            inner = session.begin_nested()
            session.add(at(5, Pin(title="undone")))
            session.flush()
            inner.commit()
            with pytest.raises(exc.CrossShardWriteError):
                _by_update(session, pins)
            outer.rollback()
            _by_update(session, pins)
            inner = session.begin_nested()
            session.get(Pin, pins[1]).title = "undone"
            session.flush()
            inner.rollback()
            # Statements before the savepoint still bind.
            with pytest.raises(exc.CrossShardWriteError):
                session.execute(update(Pin).where(Pin.id == pins[0]).values(n=1))

    def test_an_error_inside(self, cluster, pins):
        with cluster.begin() as session:
            nested = session.begin_nested()
            _by_update(session, pins)
            with pytest.raises(exc.CrossShardWriteError):
                session.execute(update(Pin).where(Pin.id == pins[0]).values(n=1))
            nested.rollback()
            session.get(Pin, pins[0]).title = "after"
        with cluster.session() as session:
            first, second = session.get_many(Pin, pins)
            assert (first.title, second.n) == ("after", None)

    def test_over_several_servers(self, cluster, pins):
        with cluster.begin(cross_shard="unordered") as session:
            session.get(Pin, pins[0]).title = "kept"
            session.flush()
            with session.begin_nested() as nested:
                for pin in session.get_many(Pin, pins):
                    pin.n = 7
                # A shard, and a connection, that are first used inside.
                session.add(at(9, Pin(id=pack(9, PIN, 900), title="undone")))
                session.flush()
                nested.rollback()
            assert [p.n for p in session.get_many(Pin, pins)] == [None, None]
        with cluster.session() as session:
            first, second = session.get_many(Pin, pins)
            assert (first.title, second.title) == ("kept", "a")
            assert session.get(Pin, pack(9, PIN, 900)) is None

    def test_objects_of_a_savepoint(self, cluster):
        with cluster.session() as session:
            nested = session.begin_nested()
            pin = Pin(title="undone")
            session.add(pin)
            session.flush()
            nested.rollback()
            assert pin not in session
            pin.id = None
            session.add(at(11, pin))
            session.flush()
            assert shard_of(pin) == 11

    def test_after_a_rollback_all_is_new(self, cluster, pins):
        with cluster.session() as session:
            _by_change(session, pins)
            session.rollback()
            session.get(Pin, pins[0]).title = "first"
            session.commit()
            assert session.get(Pin, pins[0]).title == "first"
            assert session.get(Pin, pins[1]).title == "a"

    def test_after_a_failed_flush(self, cluster):
        with cluster.session() as session:
            child, parent = Comment(body="1"), at(6, Pin(title="a"))
            session.add_all([child, parent])
            with pytest.raises(exc.ColocationError):
                session.flush()
            child.pin = parent
            session.flush()
            assert shard_of(child) == shard_of(parent) == 6
        with cluster.session() as session:
            # The parent that a child had in a refused flush is forgotten.
            child = Comment(body="1", pin_id=pack(1, PIN, 1))
            session.add_all([child, at(2, Pin(title="a"))])
            with pytest.raises(exc.CrossShardWriteError):
                session.flush()
            child.pin_id = None
            child.pin = at(2, Pin(title="b"))
            session.flush()
            assert shard_of(child) == 2


cluster = PINS.on_backend()
pins = pair()
