"""Soft delete, and the time that the server keeps."""

from __future__ import annotations

import pickle
from datetime import datetime, timedelta, timezone, UTC

import pytest
from sqlalchemy import delete, exists, func, insert, select, text, union_all, update
from sqlalchemy.orm import aliased, joinedload, selectinload, subqueryload

from sqla_shard import Cluster, scatter
from sqla_shard.exc import BlobValueError
from tests.models.objects import Part, Thing
from tests.models.objects_harness import (
    on_servers,
    raw,
    set_raw,
    Suite,
    thing,
    tick,
    updates,
)
from tests.models.returning import inserted

UTC = UTC
SHARD = 1
ASKED = {"include_inactive": True}


def hidden(cluster: Cluster, **fields) -> int:
    """Insert an inactive thing and return its id."""
    new = thing(cluster, shard_id=SHARD, **fields)
    with cluster.begin() as session:
        session.get(Thing, new).deactivate()
    return new


class HidingSuite(Suite):
    @pytest.fixture
    def ids(self, cluster) -> list[int]:
        """An active thing, an inactive one, an active one."""
        return [
            thing(cluster, shard_id=SHARD, text="a"),
            hidden(cluster, text="b"),
            thing(cluster, shard_id=SHARD, text="c"),
        ]

    def test_get(self, session, ids, log):
        _, off, _ = ids
        assert session.get(Thing, off) is None
        held = session.get(Thing, off, execution_options=ASKED)
        assert held.text == "b"
        # Now it is in the identity map, and still not shown.
        assert session.get(Thing, off) is None
        assert session.get(Thing, off, with_for_update=True) is None
        assert session.get(Thing, (off,), populate_existing=True) is None
        log.clear()
        assert session.get(Thing, off, execution_options=ASKED) is held
        assert not log.statements

    def test_get_many(self, session, ids):
        found = session.get_many(Thing, ids)
        assert [f and f.text for f in found] == ["a", None, "c"]
        found = session.get_many(Thing, ids, execution_options=ASKED)
        assert [f and f.text for f in found] == ["a", "b", "c"]
        found = session.get_many(Thing, ids)
        assert [f and f.text for f in found] == ["a", None, "c"]

    def test_select(self, session, ids):
        one = aliased(Thing)
        here = Thing.id.in_(ids)
        for statement in (
            select(Thing.text).where(here),
            select(one.text).where(one.id.in_(ids)),
            select(Thing).where(here).with_only_columns(Thing.text),
            select(func.max(Thing.text)).where(here).group_by(Thing.id),
            union_all(*(select(Thing.text).where(Thing.id == i) for i in ids)),
            select(select(Thing.text).where(here).subquery().c.text),
            select(Thing.text).where(
                here, exists().where(one.id == Thing.id, one.text >= "a")
            ),
            select(Thing.text)
            .where(here)
            .join(one, one.id == Thing.id)
            .order_by(one.text),
        ):
            found = session.scalars(statement).all()
            assert sorted(found) == ["a", "c"], str(statement)
            found = session.scalars(statement, execution_options=ASKED).all()
            assert sorted(found) == ["a", "b", "c"], str(statement)
            again = statement.execution_options(include_inactive=True)
            assert sorted(session.scalars(again)) == ["a", "b", "c"]

    def test_entities(self, session, ids):
        statement = select(Thing).where(Thing.id.in_(ids))
        for _ in range(2):
            found = session.scalars(statement).all()
            assert sorted(t.text for t in found) == ["a", "c"]
            found = session.scalars(statement, execution_options=ASKED).all()
            assert sorted(t.text for t in found) == ["a", "b", "c"]
        assert len(session.query(Thing).where(Thing.id.in_(ids)).all()) == 2

    def test_counts(self, session, ids):
        statement = select(func.count()).select_from(Thing).where(Thing.id.in_(ids))
        assert session.scalar(statement) == 2
        assert session.scalar(statement, execution_options=ASKED) == 3

    def test_counts_of_distinct_rows_over_shards(self, cluster, session):
        """No inactive object is counted, on any shard."""
        for shard_id in (SHARD, SHARD + 1):
            with cluster.begin() as other:
                kept = Thing(shard_id=shard_id, text="kept", note="x")
                off = Thing(shard_id=shard_id, text="off", note="x")
                other.add_all([kept, off])
                other.flush()
                off.deactivate()
        here = Thing.note == "x"
        for inner in (
            select(Thing.text).where(here).distinct(),
            select(Thing.text).where(here).group_by(Thing.text),
            select(Thing.text, func.count())
            .where(here)
            .group_by(Thing.text)
            .having(func.count() > 1),
            select(func.lower(Thing.text)).where(here).distinct(),
        ):
            statement = select(func.count()).select_from(inner.subquery())
            statement = statement.options(scatter())
            assert session.scalar(statement) == 1, str(inner)
            found = session.scalar(statement, execution_options=ASKED)
            assert found == 2, str(inner)

    def test_join_sees_no_hidden_side(self, cluster, session, ids):
        with cluster.begin() as other:
            for each in other.get_many(Thing, ids, execution_options=ASKED):
                each.parts.append(Part(name=f"{each.text}1"))
                each.parts.append(Part(name=f"{each.text}2"))
                other.flush()
                each.parts[1].deactivate()
        inner = select(Part.name).join(Part.thing).where(Part.thing_id.in_(ids))
        assert sorted(session.scalars(inner)) == ["a1", "c1"]
        outer = (
            select(Thing.text, Part.name)
            .outerjoin(Thing.parts)
            .where(Thing.id.in_(ids))
        )
        assert sorted(session.execute(outer).all()) == [("a", "a1"), ("c", "c1")]
        found = session.execute(outer, execution_options=ASKED).all()
        assert len(found) == 6

    @pytest.mark.parametrize("load", [None, joinedload, selectinload, subqueryload])
    def test_relationships(self, cluster, session, load):
        new = thing(cluster, shard_id=SHARD)
        with cluster.begin() as other:
            owner = other.get(Thing, new)
            owner.parts.extend(Part(name=name) for name in "abc")
            other.flush()
            owner.parts[1].deactivate()
            ids = [part.id for part in owner.parts]
        options = [] if load is None else [load(Thing.parts)]
        statement = select(Thing).where(Thing.id == new).options(*options)
        found = session.scalars(statement).unique().one()
        assert [part.name for part in found.parts] == ["a", "c"]
        session.expunge_all()
        found = session.scalars(statement, execution_options=ASKED).unique().one()
        if load is not None:
            assert [part.name for part in found.parts] == ["a", "b", "c"]
        # The child's side: a hidden parent.
        session.expunge_all()
        with cluster.begin() as other:
            other.get(Thing, new).deactivate()
        session.rollback()
        options = [] if load is None else [load(Part.thing)]
        part = session.scalars(
            select(Part).where(Part.id == ids[0]).options(*options)
        ).one()
        assert part.thing is None
        assert part.thing_id == new

    def test_hidden_parent_in_the_session(self, cluster, session):
        """A hidden object in the session is the parent of its children."""
        new = hidden(cluster)
        with cluster.begin() as other:
            other.add(Part(name="p", thing_id=new))
            other.flush()
        part = session.scalars(select(Part).where(Part.thing_id == new)).one()
        held = session.get(Thing, new, execution_options=ASKED)
        assert part.thing is held

    def test_restore(self, cluster, session, ids):
        off = session.get(Thing, ids[1], execution_options=ASKED)
        assert off.active is False
        off.restore()
        assert off.active is True
        assert session.get(Thing, ids[1]) is off
        session.commit()
        assert session.get(Thing, ids[1]) is off
        assert "active" not in raw(cluster, Thing, ids[1])
        off.restore()
        assert not session.dirty

    def test_deactivate_twice_or_new(self, cluster, session, log):
        new = Thing(shard_id=SHARD)
        assert new.active is True
        new.restore()
        new.deactivate()
        new.deactivate()
        assert new.active is False
        session.add(new)
        session.commit()
        assert session.get(Thing, new.id) is None
        assert raw(cluster, Thing, new.id)["active"] is False
        log.clear()
        new.deactivate()
        session.commit()
        assert not updates(log)
        new.active = True
        session.commit()
        assert session.get(Thing, new.id) is new
        assert "active" not in raw(cluster, Thing, new.id)

    def test_object_that_a_select_has_loaded(self, cluster, session, ids):
        """It was loaded with the condition, and can still be refreshed."""
        statement = select(Thing).where(Thing.id == ids[0])
        found = session.scalars(statement).one()
        found.deactivate()
        session.commit()
        assert (found.text, found.active) == ("a", False)
        session.refresh(found)
        assert session.scalars(statement).all() == []
        session.expunge(found)
        restored = pickle.loads(pickle.dumps(found))
        session.add(restored)
        session.expire(restored)
        assert restored.parts == []
        restored.restore()
        session.commit()
        assert session.get(Thing, ids[0]) is restored

    @pytest.mark.parametrize("is_pickled", [True, False])
    def test_lazy_load_has_the_condition_once(self, cluster, session, log, is_pickled):
        new = thing(cluster, shard_id=SHARD)
        with cluster.begin() as other:
            owner = other.get(Thing, new)
            owner.parts.extend(Part(name=name) for name in "ab")
            other.flush()
            owner.parts[0].deactivate()
        found = session.scalars(select(Thing).where(Thing.id == new)).one()
        if is_pickled:
            session.expunge(found)
            found = pickle.loads(pickle.dumps(found))
            session.add(found)
        log.clear()
        assert [part.name for part in found.parts] == ["b"]
        assert log.statements[-1].count("$.active") == 1
        session.expunge_all()
        found = session.get(Thing, new)
        log.clear()
        assert [part.name for part in found.parts] == ["b"]
        assert log.statements[-1].count("$.active") == 1

    def test_unflushed(self, session, ids):
        found = session.get(Thing, ids[0])
        found.deactivate()
        with session.no_autoflush:
            assert session.get(Thing, ids[0]) is None
            assert session.get_many(Thing, ids[:1]) == [None]
        session.rollback()
        assert session.get(Thing, ids[0]) is found

    def test_refresh_of_a_hidden_object(self, session, ids):
        found = session.get(Thing, ids[1], execution_options=ASKED)
        session.refresh(found)
        session.expire(found)
        assert found.text == "b"
        found.text = "bb"
        session.commit()
        assert (found.text, found.active) == ("bb", False)
        session.refresh(found, with_for_update=True)
        assert found.kind is None

    def test_merge_of_a_hidden_object(self, cluster, session, ids):
        merged = session.merge(Thing(id=ids[1], text="merged"))
        session.commit()
        document = raw(cluster, Thing, ids[1])
        assert (document["text"], document["active"]) == ("merged", False)
        assert merged.active is False
        assert session.get(Thing, ids[1]) is None

    def test_update_and_delete_take_hidden_rows_too(self, cluster, session, ids):
        found = session.execute(update(Thing).where(Thing.id.in_(ids)).values(kind="k"))
        assert found.rowcount == 3
        only = update(Thing).where(Thing.id.in_(ids), Thing.active).values(kind="l")
        assert session.execute(only).rowcount == 2
        found = session.execute(delete(Thing).where(Thing.id.in_(ids), ~Thing.active))
        assert found.rowcount == 1
        session.commit()
        assert raw(cluster, Thing, ids[1]) is None
        found = session.get_many(Thing, ids)
        assert [t and t.kind for t in found] == ["l", None, "l"]

    def test_active_in_sql(self, session, ids):
        statement = (
            select(Thing.text)
            .where(Thing.id.in_(ids))
            .order_by(Thing.text)
            .execution_options(include_inactive=True)
        )
        for condition, expected in (
            (Thing.active, ["a", "c"]),
            (~Thing.active, ["b"]),
            (Thing.active == False, ["b"]),  # noqa: E712
            (Thing.active.is_(True), ["a", "c"]),
            (Thing.active.is_(False), ["b"]),
            (Thing.active.in_([True, False]), ["a", "b", "c"]),
        ):
            found = session.scalars(statement.where(condition)).all()
            assert found == expected, str(condition)
        found = session.scalars(statement.with_only_columns(Thing.active)).all()
        assert found == [True, False, True]
        rows = session.execute(
            select(Thing.active, func.count())
            .where(Thing.id.in_(ids))
            .group_by(Thing.active)
            .execution_options(include_inactive=True)
        ).all()
        assert sorted(rows) == [(False, 1), (True, 2)]

    @pytest.mark.parametrize("value", [0, "false", None, True, 1, [], {"a": False}])
    def test_only_false_is_inactive(self, cluster, session, value):
        new = thing(cluster, shard_id=SHARD)
        set_raw(cluster, Thing, new, {"active": value})
        statement = select(Thing.id).where(Thing.id == new)
        assert session.scalars(statement).all() == [new]
        assert session.get(Thing, new).active is True

    def test_the_server_reads_it(self, cluster, session, ids):
        function = "JSON_VALUE" if on_servers(cluster) else "json_extract"
        found = session.execute(
            text(f"SELECT local_id FROM things WHERE {function}(data, '$.active') = 0"),
            bind_arguments={"shard_id": SHARD},
        ).scalars()
        assert ids[1] & (2**36 - 1) in list(found)

    def test_locking_read(self, session, ids):
        statement = select(Thing).where(Thing.id.in_(ids)).with_for_update()
        assert len(session.scalars(statement).all()) == 2

    def test_the_criterion_is_added_once(self, session, ids, log):
        session.scalars(select(Thing).where(Thing.id.in_(ids))).all()
        assert log.statements[-1].count("$.active") == 1
        session.scalars(
            select(Thing).where(Thing.id.in_(ids)), execution_options=ASKED
        ).all()
        assert log.statements[-1].count("$.active") == 0

    def test_cache(self, cluster, ids):
        """One entry with the condition, one without."""
        with cluster.session() as session:
            engine = session.connection(bind_arguments={"shard_id": SHARD}).engine
            before = len(engine._compiled_cache)
            for _ in range(5):
                for number in range(3):
                    statement = select(Thing.kind).where(Thing.id.in_(ids[:number]))
                    session.execute(statement)
                    session.execute(statement, execution_options=ASKED)
            assert len(engine._compiled_cache) - before <= 2


class TimestampSuite(Suite):
    def test_insert(self, cluster, session):
        before = datetime.now(UTC) - timedelta(seconds=2)
        found = session.get(Thing, thing(cluster))
        assert before < found.ts < datetime.now(UTC) + timedelta(seconds=2)
        assert found.ts.tzinfo is UTC

    def test_update(self, cluster, session):
        found = session.get(Thing, thing(cluster, kind="k"))
        seen = [found.ts]
        for change in (
            lambda: setattr(found, "text", "x"),
            lambda: found.tags.append("x"),
            lambda: setattr(found, "kind", "l"),
            lambda: found.deactivate(),
            lambda: session.execute(
                update(Thing).where(Thing.id == found.id).values(kind="m")
            ),
        ):
            tick(seen[-1])
            change()
            session.commit()
            seen.append(found.ts)
        assert seen == sorted(set(seen))
        assert {moment.tzinfo for moment in seen} == {UTC}

    def test_flush_shows_it(self, cluster, session):
        found = session.get(Thing, thing(cluster))
        before = found.ts
        tick(before)
        found.text = "x"
        session.flush()
        assert found.ts > before

    def test_reading_does_not_change_it(self, cluster, session):
        new = thing(cluster)
        before = session.get(Thing, new).ts
        tick(before)
        found = session.get(Thing, new, with_for_update=True)
        found.text = found.text
        session.commit()
        session.refresh(found)
        assert found.ts == before

    def test_no_change_of_another_object(self, cluster, session):
        ids = [thing(cluster, shard_id=SHARD) for _ in range(2)]
        one, two = session.get_many(Thing, ids)
        before = two.ts
        tick(before)
        one.text = "x"
        session.commit()
        assert one.ts > two.ts == before

    def test_the_client_does_not_write_it(self, cluster, session, log):
        long_ago = datetime(2000, 1, 1, tzinfo=UTC)
        new = Thing(ts=long_ago)
        session.add(new)
        session.commit()
        assert new.ts.year > 2000
        inserted = new.ts
        new.ts = long_ago
        log.clear()
        session.commit()
        assert not updates(log)
        assert new.ts == inserted
        new.ts = long_ago
        new.text = "x"
        new.kind = "k"
        session.commit()
        assert new.ts >= inserted

    def test_in_sql(self, cluster, session):
        new = thing(cluster, shard_id=SHARD)
        moment = session.get(Thing, new).ts
        statement = select(Thing.ts).where(Thing.id == new)
        for condition, is_true in (
            (Thing.ts == moment, True),
            (Thing.ts > moment, False),
            (Thing.ts <= moment, True),
            (Thing.ts.between(moment, moment), True),
            (Thing.ts < moment + timedelta(microseconds=1), True),
            (Thing.ts == moment.astimezone(timezone(timedelta(hours=5))), True),
        ):
            found = session.scalars(statement.where(condition)).all()
            assert found == [moment] * is_true
        assert (
            session.scalar(select(func.max(Thing.ts)).where(Thing.id == new)) == moment
        )
        with pytest.raises(BlobValueError, match="not a datetime with"):
            session.scalars(statement.where(Thing.ts > datetime(2024, 1, 1)))

    def test_bulk_insert(self, cluster, session):
        before = datetime.now(UTC) - timedelta(seconds=2)
        rows = [{"text": "a"}, {"text": "b"}]
        found = [one.ts for one in inserted(session, insert(Thing), rows)]
        session.commit()
        assert all(before < ts < datetime.now(UTC) for ts in found)
