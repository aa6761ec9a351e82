"""``session.merge()`` copies changed fields, and nothing else."""

from __future__ import annotations

import pytest
from sqlalchemy import select
from sqlalchemy.orm import selectinload

from sqla_shard.exc import BlobValueError, StaleDataError
from tests.models.objects import Board, Part, Pin, Size, Thing
from tests.models.objects_harness import (
    raw,
    remove_raw,
    stored,
    Suite,
    thing,
    tick,
    updates,
)
from tests.suites.objects_lifecycle import change, detached


class MergeSuite(Suite):
    def test_changes_of_a_detached_object(self, cluster, session, log):
        new = thing(cluster, text="a", tags=["x"], note="n", kind="k")
        given = detached(cluster, new)
        given.text = "b"
        given.tags.append("y")
        del given.note
        merged = session.merge(given)
        assert merged is not given
        assert (merged.text, merged.tags, merged.note) == ("b", ["x", "y"], None)
        merged.tags.append("z")
        assert given.tags == ["x", "y"]
        log.clear()
        session.commit()
        assert len(updates(log)) == 1
        assert raw(cluster, Thing, new)["tags"] == ["x", "y", "z"]

    def test_unchanged_detached_object_overwrites_nothing(self, cluster, session, log):
        new = thing(cluster, text="a", tags=["x"])
        given = detached(cluster, new)
        change(cluster, new, text="theirs", tags=["t"])
        log.clear()
        merged = session.merge(given)
        session.commit()
        assert not updates(log)
        assert (merged.text, merged.tags) == ("theirs", ["t"])

    def test_other_fields_than_another_writer(self, cluster, session):
        new = thing(cluster, text="a", note="n", tags=["x"])
        given = detached(cluster, new)
        given.text = "mine"
        change(cluster, new, note="theirs", tags=["t"], count=5)
        merged = session.merge(given)
        assert (merged.text, merged.note, merged.tags) == ("mine", "theirs", ["t"])
        session.commit()
        assert (merged.text, merged.note, merged.count) == ("mine", "theirs", 5)

    def test_the_same_field_as_another_writer(self, cluster, session):
        new = thing(cluster, text="a", count=1)
        given = detached(cluster, new)
        given.text = "mine"
        given.count = 2
        change(cluster, new, text="theirs", count=2)
        with pytest.raises(StaleDataError) as caught:
            session.merge(given)
        assert caught.value.fields == ("count", "text")
        assert caught.value.object_id == new
        session.rollback()
        assert raw(cluster, Thing, new)["text"] == "theirs"

    def test_over_changes_of_the_session(self, cluster, session):
        """As in SQLAlchemy, merged values overwrite them."""
        new = thing(cluster, text="a", note="n")
        given = detached(cluster, new)
        given.text = "given"
        with session.no_autoflush:
            found = session.get(Thing, new)
            found.text = "session"
            found.note = "session"
            assert session.merge(given) is found
        assert (found.text, found.note) == ("given", "session")
        session.commit()
        assert (found.text, found.note) == ("given", "session")

    def test_new_object_with_an_id(self, cluster, session):
        """It has the fields that it was given, and knows no others."""
        new = thing(cluster, text="a", tags=["x"], note="n", kind="k")
        merged = session.merge(Thing(id=new, text="b", size=Size(1)))
        assert (merged.text, merged.tags, merged.note) == ("b", ["x"], "n")
        assert (merged.size, merged.kind) == (Size(1), "k")
        session.commit()
        assert raw(cluster, Thing, new)["tags"] == ["x"]
        merged = session.merge(Thing(id=new))
        session.commit()
        assert merged.text == "b"
        given = Thing(id=new)
        assert given.tags == []
        given.tags.append("y")
        merged = session.merge(given)
        session.commit()
        assert (merged.tags, merged.text) == (["y"], "b")

    def test_new_object_keeps_its_parent(self, cluster, session):
        board = stored(cluster, Board, title="t")
        pin = stored(cluster, Pin, board_id=board, link="x")
        merged = session.merge(Pin(id=pin, link="y"))
        session.commit()
        assert (merged.link, merged.board_id) == ("y", board)

    def test_whole_blob_replaces(self, cluster, session):
        new = thing(cluster, text="a", tags=["x"])
        session.merge(Thing(id=new, data={"text": "b"}))
        session.commit()
        assert raw(cluster, Thing, new) == {"text": "b"}

    def test_object_that_is_not_there(self, cluster, session):
        given = Thing(text="new", tags=["x"], shard_id=2)
        merged = session.merge(given)
        given.tags.append("given")
        session.commit()
        assert raw(cluster, Thing, merged.id)["tags"] == ["x"]
        assert given.id is None
        gone = thing(cluster, text="a", tags=["x"])
        given = detached(cluster, gone)
        remove_raw(cluster, Thing, gone)
        given.tags.append("y")
        again = session.merge(given)
        session.commit()
        assert again.id == gone
        assert raw(cluster, Thing, gone)["tags"] == ["x", "y"]
        again.tags.append("z")
        session.commit()
        assert raw(cluster, Thing, gone)["tags"] == ["x", "y", "z"]

    def test_does_not_write_ts(self, cluster, session, log):
        new = thing(cluster, text="a")
        given = detached(cluster, new)
        tick(given.ts)
        change(cluster, new, text="b")
        changed = detached(cluster, new).ts
        log.clear()
        merged = session.merge(given)
        session.commit()
        assert not updates(log)
        assert merged.ts == changed
        given.kind = "k"
        session.merge(given)
        session.commit()
        assert merged.ts >= changed
        assert merged.ts > given.ts

    def test_is_not_fooled_by_the_blob_of_another_object(self, cluster, session):
        ids = [
            thing(cluster, text="a", tags=["x"], shard_id=1),
            thing(cluster, text="b", note="n", shard_id=1),
        ]
        one, two = session.get_many(Thing, ids)
        two.data = one.data
        session.commit()
        assert (two.text, two.tags, two.note) == ("a", ["x"], None)
        new = Thing(text="c")
        two.data = new.data
        session.commit()
        assert raw(cluster, Thing, two.id) == {"text": "c"}

    def test_relationship_with_a_hidden_child(self, cluster, session, log):
        """It is not removed from a collection that does not contain it."""
        owner = thing(cluster, shard_id=1)
        with cluster.begin() as other:
            found = other.get(Thing, owner)
            found.parts.extend(Part(name=name) for name in "abc")
            other.flush()
            found.parts[1].deactivate()
            ids = [part.id for part in found.parts]
        for asked in (False, True):
            with cluster.session() as other:
                given = other.get(Thing, owner)
                if asked:
                    given = other.scalars(
                        select(Thing)
                        .where(Thing.id == owner)
                        .options(selectinload(Thing.parts))
                        .execution_options(
                            include_inactive=True, populate_existing=True
                        )
                    ).one()
                names = [part.name for part in given.parts]
                assert names == (["a", "b", "c"] if asked else ["a", "c"])
                other.expunge_all()
            log.clear()
            session.merge(given)
            session.commit()
            assert not updates(log)
        found = session.get_many(
            Part, ids, execution_options={"include_inactive": True}
        )
        assert [part.thing_id for part in found] == [owner] * 3

    def test_refuses_what_a_field_cannot_hold(self):
        with pytest.raises(BlobValueError):
            Thing(id=1, text=5)

    def test_without_load(self, cluster, session, log):
        new = thing(cluster, text="a", tags=["x"])
        given = detached(cluster, new)
        log.clear()
        merged = session.merge(given, load=False)
        assert merged.tags == ["x"]
        assert not log.statements
        merged.tags.append("y")
        assert merged in session.dirty
        session.commit()
        assert raw(cluster, Thing, new)["tags"] == ["x", "y"]
