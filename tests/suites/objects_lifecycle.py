"""Objects between sessions, transactions and processes."""

from __future__ import annotations

import copy
import pickle
from datetime import datetime, UTC

import pytest
from sqlalchemy import inspect, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import load_only, make_transient, make_transient_to_detached
from sqlalchemy.orm.exc import DetachedInstanceError

from sqla_shard import Cluster
from sqla_shard.exc import PlacementError, StaleDataError
from tests.models.objects import Board, Size, Thing
from tests.models.objects_harness import raw, Suite, thing, tick

UTC = UTC
T0 = datetime(2024, 1, 1, tzinfo=UTC)


def detached(cluster: Cluster, object_id: int) -> Thing:
    with cluster.session() as session:
        found = session.get(Thing, object_id)
        session.expunge(found)
    return found


def change(cluster: Cluster, object_id: int, **fields) -> None:
    """Be another writer."""
    with cluster.begin() as session:
        found = session.get(Thing, object_id)
        for field, value in fields.items():
            setattr(found, field, value)


class TransactionSuite(Suite):
    def test_rollback_restores(self, cluster, session):
        new = thing(cluster, text="a", tags=["x"], size=Size(1), times=[T0])
        found = session.get(Thing, new)
        for is_flushed in (False, True):
            found.text = "b"
            found.tags.append("y")
            found.size.w = 9
            found.times.clear()
            found.kind = "k"
            if is_flushed:
                session.flush()
            session.rollback()
            assert (found.text, found.tags) == ("a", ["x"])
            assert (found.size, found.times) == (Size(1), [T0])
            assert found.kind is None
            assert not session.dirty
        assert raw(cluster, Thing, new)["text"] == "a"
        found.text = "c"
        session.commit()
        assert raw(cluster, Thing, new)["text"] == "c"

    def test_rollback_of_a_new_object(self, cluster, session):
        new = Thing(tags=["x"])
        session.add(new)
        session.flush()
        new.tags.append("y")
        session.flush()
        session.rollback()
        assert inspect(new).transient
        new.id = None
        new.tags.append("z")
        session.add(new)
        session.commit()
        assert raw(cluster, Thing, new.id)["tags"] == ["x", "y", "z"]
        new.text = "t"
        session.commit()
        assert raw(cluster, Thing, new.id)["text"] == "t"

    @pytest.mark.parametrize("expires", [True, False])
    def test_savepoint(self, cluster, expires):
        new = thing(cluster, text="a", tags=["x"])
        with cluster.session(expire_on_commit=expires) as session:
            found = session.get(Thing, new)
            found.text = "b"
            with session.begin_nested():
                found.text = "c"
                found.tags.append("y")
            assert (found.text, found.tags) == ("c", ["x", "y"])
            savepoint = session.begin_nested()
            found.text = "d"
            found.tags.append("z")
            session.flush()
            found.tags.append("zz")
            savepoint.rollback()
            assert (found.text, found.tags) == ("c", ["x", "y"])
            savepoint = session.begin_nested()
            found.tags.append("lost")  # never flushed
            savepoint.rollback()
            assert found.tags == ["x", "y"]
            found.tags.append("w")
            session.commit()
            assert (found.text, found.tags) == ("c", ["x", "y", "w"])
        assert raw(cluster, Thing, new)["tags"] == ["x", "y", "w"]

    def test_savepoint_then_rollback_of_everything(self, cluster, session):
        new = thing(cluster, text="a")
        found = session.get(Thing, new)
        with session.begin_nested():
            found.text = "b"
        session.rollback()
        assert found.text == "a"
        found.text = "c"
        session.commit()
        assert raw(cluster, Thing, new)["text"] == "c"

    def test_object_of_a_savepoint_that_is_rolled_back(self, cluster, session):
        savepoint = session.begin_nested()
        new = Thing(tags=["x"])
        session.add(new)
        session.flush()
        savepoint.rollback()
        assert new not in session
        new.id = None
        session.add(new)
        new.tags.append("y")
        session.commit()
        assert raw(cluster, Thing, new.id)["tags"] == ["x", "y"]

    def test_flush_that_fails_after_an_update(self, cluster, session):
        """Changes sent by a failed flush do not count as written."""
        one = thing(cluster, text="a", shard_id=1)
        found = session.get(Thing, one)
        board = Board(title="t", shard_id=1)
        session.add(board)
        session.flush()
        savepoint = session.begin_nested()
        found.text = "b"
        twice = Board(id=board.id, title="again")
        session.add(twice)
        with pytest.warns(match="conflicts with persistent instance"):  # noqa: SIM117
            with pytest.raises(IntegrityError):
                session.flush()
        savepoint.rollback()
        assert found.text == "a"
        found.text = "b"
        session.commit()
        assert raw(cluster, Thing, one)["text"] == "b"

    def test_without_expire_on_commit(self, cluster, log, backend):
        new = thing(cluster, text="a", tags=["x"])
        with cluster.session(expire_on_commit=False) as session:
            found = session.get(Thing, new)
            held = found.tags
            for tag in "yzw":
                held.append(tag)
                session.commit()
                log.clear()
                assert found.tags is held
                assert not log.statements
            assert raw(cluster, Thing, new)["tags"] == ["x", "y", "z", "w"]
            found.text = "b"
            session.rollback()
            assert (found.text, found.tags) == ("a", ["x", "y", "z", "w"])
        assert found.tags == ["x", "y", "z", "w"]
        with cluster.session(expire_on_commit=False) as session:
            added = Thing(tags=["x"])
            session.add(added)
            session.commit()
            if backend.kind == "mysql":
                # An INSERT does not return it there.
                session.refresh(added, ["ts"])
        assert (added.tags, added.count) == (["x"], 0)
        assert added.ts.tzinfo is UTC

    def test_refresh(self, cluster, session):
        new = thing(cluster, text="a", tags=["x"], note="n")
        found = session.get(Thing, new)
        session.rollback()
        change(cluster, new, text="b", tags=["y"])
        found.note = "never written"
        with session.no_autoflush:
            session.refresh(found)
        assert (found.text, found.tags, found.note) == ("b", ["y"], "n")
        session.refresh(found, ["data"])
        session.refresh(found, with_for_update=True)
        found.tags.append("z")
        session.commit()
        assert raw(cluster, Thing, new)["tags"] == ["y", "z"]

    @pytest.mark.parametrize("names", [None, ["data"], ["ts", "data"]])
    def test_expire(self, cluster, session, names):
        new = thing(cluster, tags=["x"], size=Size(1))
        found = session.get(Thing, new)
        found.tags.append("never written")
        found.size.w = 9
        session.expire(found, names)
        assert (found.tags, found.size) == (["x"], Size(1))
        found.tags.append("y")
        session.commit()
        assert raw(cluster, Thing, new)["tags"] == ["x", "y"]

    def test_populate_existing(self, cluster, session):
        new = thing(cluster, text="a")
        found = session.get(Thing, new)
        session.rollback()
        found.text  # noqa: B018
        session.commit()
        change(cluster, new, text="b")
        again = session.get(Thing, new, populate_existing=True)
        assert again is found
        assert found.text == "b"

    def test_deferred_blob(self, cluster, session, log):
        new = thing(cluster, text="a")
        found = session.scalars(
            select(Thing)
            .where(Thing.id == new)
            .options(load_only(Thing.kind))
            .execution_options(include_inactive=True)
        ).one()
        assert "data" not in inspect(found).dict
        found.kind = "k"
        session.flush()
        assert "data" not in inspect(found).dict
        found.text = "b"
        session.commit()
        assert raw(cluster, Thing, new)["text"] == "b"
        assert found.kind == "k"

    def test_assigning_the_blob_unread(self, cluster, session):
        """Even then the flush has the old values."""
        new = thing(cluster, text="a")
        found = session.get(Thing, new)
        session.expire(found)
        found.data = {"text": "b"}
        session.commit()
        assert raw(cluster, Thing, new) == {"text": "b"}

    def test_delete(self, cluster, session):
        new = thing(cluster, text="a")
        found = session.get(Thing, new)
        found.text = "b"
        session.delete(found)
        session.commit()
        assert raw(cluster, Thing, new) is None
        assert session.get(Thing, new) is None


class DetachedSuite(Suite):
    def test_pickle(self, cluster, session):
        new = thing(cluster, tags=["x"], size=Size(1), times=[T0])
        found = detached(cluster, new)
        assert found.times == [T0]
        restored = pickle.loads(pickle.dumps(found))
        assert (restored.id, restored.tags) == (new, ["x"])
        assert (restored.size, restored.times) == (Size(1), [T0])
        session.add(restored)
        restored.tags.append("y")
        restored.size.w = 5
        assert restored in session.dirty
        session.commit()
        assert raw(cluster, Thing, new)["tags"] == ["x", "y"]
        assert found.tags == ["x"]

    def test_pickle_with_changes(self, cluster, session):
        new = thing(cluster, text="a", tags=["x"])
        with cluster.session() as other:
            found = other.get(Thing, new)
            found.tags.append("y")
            found.text = "b"
            dumped = pickle.dumps(found)
        change(cluster, new, note="kept")
        session.add(pickle.loads(dumped))
        session.commit()
        document = raw(cluster, Thing, new)
        assert (document["tags"], document["text"]) == (["x", "y"], "b")
        assert document["note"] == "kept"

    def test_pickle_of_a_new_object(self, cluster, session):
        new = pickle.loads(pickle.dumps(Thing(tags=["x"], size=Size(1))))
        new.tags.append("y")
        session.add(new)
        session.commit()
        assert raw(cluster, Thing, new.id)["tags"] == ["x", "y"]

    def test_copies_of_values_are_independent(self, cluster, session):
        found = session.get(Thing, thing(cluster, tags=["x"], size=Size(1)))
        for copied in (
            copy.copy(found.tags),
            copy.deepcopy(found.tags),
            list(found.tags),
            pickle.loads(pickle.dumps(found.tags)),
        ):
            copied.append("y")
        copy.deepcopy(found.size).w = 9
        copy.deepcopy(found.data)["text"] = "y"
        assert not session.dirty

    def test_detached_object(self, cluster, session):
        new = thing(cluster, text="a", tags=["x"])
        found = detached(cluster, new)
        found.text = "b"
        found.tags.append("y")
        assert (found.text, found.tags, found.active) == ("b", ["x", "y"], True)
        session.add(found)
        assert found in session.dirty
        session.commit()
        assert raw(cluster, Thing, new)["tags"] == ["x", "y"]
        session.expire(found)
        session.expunge(found)
        with pytest.raises(DetachedInstanceError):
            found.text  # noqa: B018
        with pytest.raises(DetachedInstanceError):
            found.text = "c"

    def test_expunge_and_add(self, cluster, session):
        new = thing(cluster, tags=["x"])
        found = session.get(Thing, new)
        found.tags.append("y")
        session.expunge(found)
        session.commit()
        assert raw(cluster, Thing, new)["tags"] == ["x"]
        found.tags.append("z")
        session.add(found)
        session.commit()
        assert raw(cluster, Thing, new)["tags"] == ["x", "y", "z"]

    def test_detached_changes_meet_another_writer(self, cluster, session):
        new = thing(cluster, text="a", note="n")
        found = detached(cluster, new)
        found.text = "mine"
        change(cluster, new, note="theirs")
        session.add(found)
        session.commit()
        assert (found.text, found.note) == ("mine", "theirs")
        found = detached(cluster, new)
        found.text = "mine again"
        change(cluster, new, text="theirs")
        session.expunge_all()
        session.add(found)
        with pytest.raises(StaleDataError) as caught:
            session.commit()
        assert caught.value.fields == ("text",)

    def test_make_transient(self, cluster, session):
        new = thing(cluster, text="a", tags=["x"])
        found = detached(cluster, new)
        before = found.ts
        tick(before)
        make_transient(found)
        found.id = None
        found.tags.append("y")
        session.add(found)
        session.commit()
        assert found.id != new
        assert raw(cluster, Thing, found.id)["tags"] == ["x", "y"]
        assert raw(cluster, Thing, new)["tags"] == ["x"]
        assert found.ts > before
        found.text = "b"
        session.commit()
        assert raw(cluster, Thing, found.id)["text"] == "b"

    def test_make_transient_to_detached(self, cluster, session):
        new = thing(cluster, text="a")
        found = Thing(id=new)
        make_transient_to_detached(found)
        session.add(found)
        assert found.text == "a"
        found.text = "b"
        session.commit()
        assert raw(cluster, Thing, new)["text"] == "b"

    def test_a_new_object_made_detached_notices_its_next_field(self, cluster, session):
        found = Thing(id=thing(cluster, text="a"), text="a")
        make_transient_to_detached(found)
        session.add(found)
        assert found not in session.dirty
        found.note = "b"
        assert found in session.dirty

    def test_a_default_that_was_read_is_no_longer_written(self, cluster, session):
        new = Thing()
        default = new.tags
        new.note = "a"
        new.tags = ["x"]
        default.append("y")
        session.add(new)
        session.commit()
        assert raw(cluster, Thing, new.id)["tags"] == ["x"]
        assert raw(cluster, Thing, new.id)["note"] == "a"

    def test_shard_id(self, cluster, session):
        new = Thing(shard_id=3)
        assert new.shard_id == 3
        new.shard_id = 2
        session.add(new)
        session.flush()
        assert (new.shard_id, new.id >> 46) == (2, 2)
        new.shard_id = 2
        with pytest.raises(PlacementError, match="cannot be moved"):
            new.shard_id = 3
