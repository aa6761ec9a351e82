"""The unit of work: the statements of a flush, and their shards."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import event, func, inspect, select, text
from sqlalchemy.orm import make_transient
from sqlalchemy.orm.exc import StaleDataError

from sqla_shard import exc
from tests.models.clusters import at, PINS, ShardLog
from tests.models.layouts import pack, unpack
from tests.models.models import (
    BOARD,
    Board,
    COMMENT,
    Comment,
    Note,
    PIN,
    Pin,
    Setting,
    Tag,
)


class _Writing:
    @pytest.fixture
    def session(self, cluster):
        """A session that is rolled back."""
        with cluster.session() as session:
            yield session

    @pytest.fixture
    def many(self, cluster):
        """A session that may write several shards; it is rolled back."""
        with cluster.session(cross_shard="unordered") as session:
            yield session

    @pytest.fixture
    def log(self):
        with ShardLog() as log:
            yield log


def stored(cluster: Any, shard_id: int, instance: Any) -> int:
    """Store an object on a shard; return its id."""
    with cluster.begin(shard_id=shard_id) as session:
        session.add(instance)
        session.flush()
        return instance.id


def shard_of(instance: Any) -> int:
    return unpack(instance.id).shard_id


class Flushing(_Writing):
    def test_insert_update_delete_on_one_shard(self, cluster, log):
        with cluster.begin() as session:
            pin = Pin(title="a", n=1)
            session.add(pin)
            session.flush()
            key, shard_id = pin.id, shard_of(pin)
            assert unpack(key).type_id == PIN
            assert inspect(pin).key == (Pin, (key,), None)
            assert log.take() == {shard_id: 1}
            pin.n = 2
        assert log.take() == {shard_id: 1}
        with cluster.begin() as session:
            found = session.get(Pin, key)
            assert (found is pin, found.n) == (False, 2)
            log.take()
            session.delete(found)
        # The children are read, to be deleted too.
        assert set(log.take()) == {shard_id}
        with cluster.session() as session:
            assert session.get(Pin, key) is None

    @pytest.mark.parametrize("shard_id", [0, 1, 16, 31])
    def test_every_shard(self, cluster, log, shard_id):
        pin = Pin(title="a", comments=[Comment(body="b")])
        key = stored(cluster, shard_id, pin)
        assert unpack(key).shard_id == shard_id
        assert log.take() == {shard_id: 2}
        with cluster.session() as session:
            (comment,) = session.get(Pin, key).comments
            assert shard_of(comment) == shard_id
            assert comment.pin_id == key

    def test_nothing_changed_and_nothing_is_sent(self, cluster, log):
        key = stored(cluster, 3, Pin(title="a"))
        with cluster.begin() as session:
            found = session.get(Pin, key)
            log.take()
            found.title = "a"
            session.flush()
            assert log.take() == {}

    def test_an_id_of_its_own_names_the_shard(self, session, log):
        pin = Pin(id=pack(7, PIN, 4711), title="restored")
        session.add(pin)
        session.flush()
        assert set(log.take()) == {7}
        session.expire_all()
        assert session.get(Pin, pack(7, PIN, 4711)) is pin
        assert pin.title == "restored"

    def test_ids_of_many_rows_at_once(self, session, log):
        pins = [at(9, Pin(title=str(k))) for k in range(300)]
        session.add_all(pins)
        session.flush()
        assert set(log.take()) == {9}
        assert len({pin.id for pin in pins}) == 300
        session.expire_all()
        found = session.get_many(Pin, [pin.id for pin in pins])
        assert [pin.title for pin in found] == [str(k) for k in range(300)]

    def test_interleaved_shards(self, many, log):
        pins = [at(k % 4, Pin(title=str(k))) for k in range(40)]
        many.add_all(pins)
        many.flush()
        assert [shard_of(pin) for pin in pins] == [k % 4 for k in range(40)]
        assert set(log.take()) == {0, 1, 2, 3}
        for shard_id in range(4):
            titles = many.scalars(
                select(Pin.title).where(
                    Pin.id.in_([p.id for p in pins if shard_of(p) == shard_id])
                )
            )
            assert {int(t) % 4 for t in titles} == {shard_id}

    def test_update_of_a_row_that_is_gone(self, session):
        pin = Pin(id=pack(2, PIN, 999), title="a")
        session.add(pin)
        session.flush()
        connection = session.connection(bind_arguments={"shard_id": 2})
        connection.execute(text("DELETE FROM pins WHERE local_id = 999"))
        pin.title = "b"
        with pytest.raises(StaleDataError):
            session.flush()

    def test_handlers_of_a_flush_are_on_the_shard(self, session, log):
        seen = []

        def before_insert(mapper, connection, target):
            seen.append(connection.scalar(select(Pin.__table__.c.n)))
            connection.execute(Board.__table__.insert().values(name="by a handler"))

        session.add(at(6, Pin(title="first", n=66)))
        session.flush()
        event.listen(Pin, "before_insert", before_insert)
        try:
            session.add(at(6, Pin(title="second")))
            session.flush()
        finally:
            event.remove(Pin, "before_insert", before_insert)
        assert seen == [66]
        assert set(log.take()) == {6}

    def test_a_plain_model_too(self, cluster, session):
        session.add(Setting(name="x", value="y"))
        session.flush()
        assert session.get(Setting, "x").value == "y"
        session.add(at(3, Pin(title="a")))
        with pytest.raises(exc.CrossShardWriteError):
            session.flush()

    def test_commit_and_go_on(self, cluster, log):
        with cluster.session() as session:
            pin = at(4, Pin(title="a"))
            session.add(pin)
            session.flush()
            key = pin.id
            session.commit()
            log.take()
            assert pin.title == "a"
            assert log.take() == {4: 1}
            # The shard of the last transaction does not bind the next one.
            session.add(at(5, Pin(title="b")))
            session.commit()
            session.delete(pin)
            session.commit()
            assert session.get(Pin, key) is None

    def test_detached_and_attached(self, session, log):
        pin = at(8, Pin(title="a"))
        session.add(pin)
        session.flush()
        session.expunge(pin)
        session.add(pin)
        pin.title = "b"
        log.take()
        session.flush()
        assert log.take() == {8: 1}


class Pending(_Writing):
    """Parents and children that are flushed together."""

    @pytest.mark.parametrize("shard_id", [0, 12, 31])
    def test_children_follow_their_parent(self, session, log, shard_id):
        pin = at(shard_id, Pin(title="a"))
        pin.comments = [Comment(body="1"), Comment(body="2")]
        pin.tags = [Tag(name="x"), Tag(name="y")]
        session.add(pin)
        session.flush()
        assert set(log.take()) == {shard_id}
        assert {c.pin_id for c in pin.comments} == {pin.id}
        assert {t.pin_id for t in pin.tags} == {pin.id}
        assert session.get(Tag, (pin.id, "x")) in pin.tags

    def test_each_child_follows_its_own(self, many, log):
        pins = [at(k, Pin(title="a")) for k in (5, 3, 17, 0)]
        for pin in pins:
            pin.comments = [Comment(body="1")]
            pin.tags = [Tag(name="x")]
        many.add_all(pins)
        many.flush()
        assert set(log.take()) == {0, 3, 5, 17}
        for pin in pins:
            assert shard_of(pin.comments[0]) == shard_of(pin)
            assert pin.tags[0].pin_id == pin.id

    def test_a_child_that_leads_to_its_parent(self, session):
        comment = Comment(body="1", pin=at(13, Pin(title="a")))
        session.add(comment)
        session.flush()
        assert shard_of(comment) == shard_of(comment.pin) == 13

    def test_children_of_a_parent_that_is_there(self, many, log):
        pins = [at(k, Pin(title="a")) for k in (2, 20)]
        many.add_all(pins)
        many.flush()
        log.take()
        for pin in pins:
            pin.comments.append(Comment(body="1"))
            pin.tags.append(Tag(name="x"))
        many.flush()
        assert set(log.take()) == {2, 20}
        assert [shard_of(p.comments[0]) for p in pins] == [2, 20]

    def test_a_tree_of_one_class(self, session):
        root = at(11, Pin(title="root"))
        leaf = Pin(title="leaf", root=Pin(title="branch", root=root))
        session.add(leaf)
        session.flush()
        assert shard_of(leaf) == shard_of(leaf.root) == shard_of(root) == 11
        assert leaf.root.root_id == root.id

    def test_objects_whose_parent_is_in_the_blob(self, session):
        pin = at(14, Pin(title="a"))
        session.add(pin)
        session.flush()
        note = Note(pin_id=pin.id, text="t")
        session.add(note)
        session.flush()
        assert note.shard_id == 14
        assert session.scalars(
            select(Note.text).where(Note.pin_id == pin.id)
        ).all() == ["t"]

    def test_deleted_with_its_children(self, cluster, log):
        pin = Pin(title="a", comments=[Comment(body="1")])
        pin.tags = [Tag(name="x")]
        key = stored(cluster, 10, pin)
        with cluster.begin() as session:
            session.delete(session.get(Pin, key))
        assert set(log.take()) == {10}
        with cluster.session() as session:
            assert session.get(Tag, (key, "x")) is None
            made = select(Comment).where(Comment.pin_id == key)
            assert session.scalars(made).all() == []

    def test_an_orphan_is_deleted(self, session):
        pin = at(10, Pin(title="a", comments=[Comment(body="1")]))
        session.add(pin)
        session.flush()
        comment = pin.comments.pop()
        session.flush()
        assert session.get(Comment, comment.id) is None


class Colocation(_Writing):
    """Refused placements of rows; no statement is sent then."""

    @pytest.fixture
    def pins(self, cluster):
        with cluster.begin(cross_shard="unordered") as session:
            pins = [at(k, Pin(title="a")) for k in (1, 2)]
            session.add_all(pins)
            session.flush()
            return [pin.id for pin in pins]

    def refused(self, session, log, instance, match, error=None):
        session.add(instance)
        log.take()
        with pytest.raises(error or exc.ColocationError, match=match) as caught:
            session.flush()
        assert log.executions == ()
        session.rollback()
        return caught.value

    def test_no_parent(self, session, log):
        error = self.refused(session, log, Comment(body="1"), "None")
        assert (error.class_name, error.field) == ("Comment", "pin_id")
        assert error.value is None
        self.refused(session, log, Tag(name="x"), "pin_id", exc.PlacementError)

    def test_a_parent_that_is_not_flushed(self, session, log):
        pin = Pin(title="a")
        session.add(pin)
        self.refused(session, log, Comment(body="1", pin_id=pin.id), "flush")

    def test_a_parent_of_another_class(self, session, log):
        wrong = pack(1, BOARD, 1)
        error = self.refused(
            session, log, Comment(body="1", pin_id=wrong), f"type {BOARD}"
        )
        assert error.value == wrong

    def test_a_parent_that_is_no_id(self, session, log):
        for wrong in ("1", True, -1, 1.5):
            self.refused(
                session,
                log,
                Comment(body="1", pin_id=wrong),
                "not an object id",
                exc.InvalidIdError,
            )

    def test_a_shard_or_an_id_apart_from_the_parent(self, session, log, pins):
        comment = at(2, Comment(body="1", pin_id=pins[0]))
        self.refused(session, log, comment, "shard 1")
        comment = Comment(id=pack(2, COMMENT, 1), body="1", pin_id=pins[0])
        self.refused(session, log, comment, "shard 1")

    def test_an_id_of_another_shard(self, session, log, pins):
        pin = session.get(Pin, pins[0])
        log.take()
        pin.id = pack(2, PIN, 99)
        # The row would stay, under an id that no longer finds it.
        with pytest.raises(exc.ColocationError, match="cannot move") as caught:
            session.flush()
        assert caught.value.field == "id"
        assert log.executions == ()

    def test_an_expression_as_an_id(self, session, log, pins):
        pin = session.get(Pin, pins[0])
        log.take()
        pin.id = func.abs(Pin.id)
        with pytest.raises(exc.InvalidIdError, match="abs"):
            session.flush()
        assert log.executions == ()

    def test_a_parent_moved_to_another_shard(self, session, log, pins):
        comment = Comment(body="1", pin_id=pins[0])
        session.add(comment)
        session.commit()
        _ = comment.pin_id
        log.take()
        comment.pin_id = pins[1]
        with pytest.raises(exc.ColocationError, match="cannot move"):
            session.flush()
        assert log.executions == ()

    def test_a_parent_moved_by_a_relationship(self, session, log, pins):
        comment = Comment(body="1", pin_id=pins[0])
        session.add(comment)
        session.commit()
        other = session.get(Pin, pins[1])
        _ = comment.pin
        log.take()
        comment.pin = other
        with pytest.raises(exc.ShardError):
            session.flush()
        assert not [e for e in log.statements if e.startswith("UPDATE")]

    def test_a_local_reference_to_another_shard(self, session, log, pins):
        pin = at(1, Pin(title="a", root_id=pins[1]))
        error = self.refused(session, log, pin, "own shard")
        assert error.field == "root_id"
        pin = at(1, Pin(title="a", root_id=pack(1, BOARD, 1)))
        self.refused(session, log, pin, f"type {BOARD}")

    def test_a_parent_on_another_shard_by_a_relationship(self, session, log, pins):
        parent = session.get(Pin, pins[1])
        with session.no_autoflush:
            pin = at(1, Pin(title="a", root=parent))
            self.refused(session, log, pin, "shard 2")

    def test_a_whole_reference_to_another_shard(self, session, log):
        # home_id says where the row is; a wrong one would never be found.
        pin = at(1, Pin(title="a", home_id=pack(2, BOARD, 1)))
        self.refused(session, log, pin, "shard 2")

    def test_an_id_of_another_class(self, session, log):
        pin = Pin(id=pack(1, BOARD, 1), title="a")
        self.refused(session, log, pin, "type", exc.WrongTypeError)

    def test_a_shard_that_is_not_open(self, session, log):
        pin = at(32, Pin(title="a"))
        self.refused(session, log, pin, "32", exc.UnknownShardError)
        pin = Pin(id=pack(8000, PIN, 1), title="a")
        self.refused(session, log, pin, "8000", exc.UnknownShardError)


class Merging(_Writing):
    def test_a_transient_object(self, cluster, log):
        key = stored(cluster, 15, Pin(title="a", n=1))
        with cluster.begin() as session:
            log.take()
            merged = session.merge(Pin(id=key, title="b"))
            assert log.take() == {15: 1}
            assert merged.n == 1
        assert log.take() == {15: 1}
        with cluster.session() as session:
            assert session.get(Pin, key).title == "b"

    def test_a_detached_object_with_children(self, cluster, log):
        with cluster.begin(shard_id=0) as session:
            pin = Pin(title="a", comments=[Comment(body="1")])
            session.add(pin)
            session.flush()
            session.refresh(pin)
            _ = pin.comments
            session.expunge_all()
        pin.comments[0].body = "2"
        pin.comments.append(Comment(body="3"))
        with cluster.begin() as session:
            session.merge(pin)
        assert set(log.take()) == {0}
        with cluster.session() as session:
            bodies = [c.body for c in session.get(Pin, pin.id).comments]
        assert bodies == ["2", "3"]

    def test_missing_rows_are_inserted(self, session, log):
        merged = session.merge(Pin(id=pack(21, PIN, 5), title="a"))
        session.flush()
        assert set(log.take()) == {21}
        assert merged in session
        new = session.merge(Board(name="b"))
        session.flush()
        assert shard_of(new) == 21

    def test_without_loading(self, cluster, log):
        with cluster.begin(shard_id=3) as session:
            pin = Pin(title="a")
            session.add(pin)
            session.flush()
            session.refresh(pin)
            session.expunge_all()
        with cluster.session() as session:
            log.take()
            merged = session.merge(pin, load=False)
            assert merged.title == "a"
            assert log.take() == {}

    def test_made_transient_and_added_again(self, cluster, session):
        pin = at(3, Pin(title="a"))
        session.add(pin)
        session.flush()
        session.expunge(pin)
        make_transient(pin)
        pin.id = None
        session.rollback()
        at(4, pin)
        session.add(pin)
        session.flush()
        assert shard_of(pin) == 4


cluster = PINS.on_backend()
