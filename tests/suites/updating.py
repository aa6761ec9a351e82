"""UPDATE and DELETE as statements."""

from __future__ import annotations

import pytest
from sqlalchemy import bindparam, delete, func, select, text, update
from sqlalchemy.orm import Bundle

from sqla_shard import exc, scatter
from tests.models.clusters import PINS
from tests.models.layouts import pack
from tests.models.models import BOARD, COMMENT, Comment, PIN, Pin, Setting
from tests.suites.inserting import Changing, pins_of, SHARDS


class Updating(Changing):
    @pytest.mark.parametrize("how", ["auto", "evaluate", "fetch", False])
    def test_one_shard(self, session, log, pins, how):
        pin = session.get(Pin, pins[0])
        other = session.get(Pin, pins[1])
        log.take()
        done = session.execute(
            update(Pin).where(Pin.id == pins[0]).values(title="new"),
            execution_options={"synchronize_session": how},
        )
        assert done.rowcount == 1
        assert set(log.take()) == {0}
        if how is False:
            session.refresh(pin)
        assert (pin.title, other.title) == ("new", "p1")

    @pytest.mark.parametrize("how", ["evaluate", "fetch"])
    def test_several_shards(self, many, log, pins, how):
        held = many.get_many(Pin, pins)
        log.take()
        done = many.execute(
            update(Pin)
            .where(Pin.id.in_(pins), Pin.n == 1)
            .values(n=Pin.n + 10, title="new"),
            execution_options={"synchronize_session": how},
        )
        assert done.rowcount == 3
        assert set(log.take()) == {0, 5, 18}
        assert [pin.n for pin in held] == [0, 11] * 3
        assert [pin.title for pin in held] == ["p0", "new"] * 3

    @pytest.mark.parametrize("how", ["auto", "evaluate", "fetch"])
    @pytest.mark.parametrize("shard_id", [None, 5])
    def test_objects_change_with_their_rows(self, many, pins, how, shard_id):
        held = many.get_many(Pin, pins)
        chosen = {} if shard_id is None else {"shard_id": shard_id}
        made = update(Pin).where(Pin.n < 100).values(n=Pin.n + 1)
        many.execute(
            made if chosen else made.options(scatter()),
            bind_arguments=chosen,
            execution_options={"synchronize_session": how},
        )
        changed = [shard_id in (None, shard) for shard in SHARDS for _ in (0, 1)]
        want = [n + more for n, more in zip([0, 1] * 3, changed, strict=True)]
        assert [pin.__dict__["n"] for pin in held] == want
        many.expire_all()
        assert [pin.n for pin in held] == want

    def test_by_primary_key(self, many, log, pins):
        held = many.get_many(Pin, pins)
        rows = [{"id": i, "title": f"t{i}"} for i in pins]
        many.execute(update(Pin), rows)
        assert [pin.title for pin in held] == [r["title"] for r in rows]
        many.expire_all()
        assert [pin.title for pin in held] == [r["title"] for r in rows]
        log.take()
        with pytest.raises(exc.NoShardKeyError):
            many.execute(update(Pin), [{"title": "x"}])
        with pytest.raises(exc.WrongTypeError):
            many.execute(update(Pin), [{"id": 5, "title": "x"}])
        assert log.executions == ()

    def test_one_shard_of_many_rows(self, session, log, pins):
        rows = [{"id": i, "title": "t"} for i in pins[2:4]]
        session.execute(update(Pin), rows)
        assert set(log.take()) == {5}

    def test_many_parameter_sets(self, many, log, pins):
        table = Pin.__table__
        made = (
            update(table)
            .where(table.c.local_id == bindparam("b_id"))
            .values(title=bindparam("b_title"))
        )
        rows = [{"b_id": i, "b_title": f"t{i}"} for i in pins]
        many.execute(made, rows)
        assert set(log.take()) == {0, 5, 18}
        titles = many.scalars(select(Pin.title).where(Pin.id.in_(pins)))
        assert sorted(titles) == sorted(r["b_title"] for r in rows)
        gone = delete(table).where(table.c.local_id == bindparam("b_id"))
        many.execute(
            delete(Comment.__table__).where(Comment.__table__.c.pin_id.in_(pins))
        )
        many.execute(gone, [{"b_id": i} for i in pins[1:5]])
        found = many.scalars(select(Pin.id).where(Pin.id.in_(pins)))
        assert sorted(found) == [pins[0], pins[5]]

    def test_core(self, session, log, pins):
        table = Pin.__table__
        made = update(table).where(table.c.local_id == pins[4])
        assert session.execute(made.values(title="new")).rowcount == 1
        assert log.take() == {18: 1}
        with pytest.raises(exc.NoShardKeyError):
            session.execute(update(table).values(title="new"))
        assert log.executions == ()

    def test_values_when_executed(self, session, log, pins):
        made = update(Pin).where(Pin.id == bindparam("which"))
        session.execute(made, {"which": pins[0], "title": "new"})
        assert session.get(Pin, pins[0]).title == "new"
        assert set(log.take()) == {0}

    def test_to_a_count_of_its_own_children(self, many, pins):
        count = (
            select(func.count(Comment.id))
            .where(Comment.pin_id == Pin.id)
            .scalar_subquery()
        )
        many.execute(
            update(Pin).where(Pin.id.in_(pins)).values(n=count + 40),
            execution_options={"synchronize_session": False},
        )
        assert [p.n for p in many.get_many(Pin, pins)] == [41] * 6

    def test_of_the_global_keyspace(self, session, log):
        session.add(Setting(name="u", value="1"))
        session.flush()
        done = session.execute(update(Setting).values(value="2"))
        assert done.rowcount == 1
        assert session.get(Setting, "u").value == "2"
        # SQLAlchemy takes no rows for no parameters.
        session.execute(update(Setting.__table__).values(value="3"), [])
        session.expire_all()
        assert session.get(Setting, "u").value == "3"
        assert log.take() == {}

    @pytest.mark.parametrize(
        "made",
        [
            lambda c: update(Comment).values(pin_id=pack(5, PIN, 1)),
            lambda c: update(Comment).values({"pin_id": pack(5, PIN, 1)}),
            lambda c: update(Comment).values({Comment.pin_id: pack(5, PIN, 1)}),
            lambda c: update(c).values(pin_id=pack(5, PIN, 1)),
            lambda c: update(c).ordered_values((c.c.pin_id, pack(5, PIN, 1))),
            lambda c: update(Comment).values(pin_id=Comment.reply_to_id),
            lambda c: update(Comment).values(n=Comment.pin_id),
            lambda c: update(Comment).values(
                pin_id=bindparam("x", pack(0, PIN, 1), type_=Comment.n.type)
            ),
        ],
    )
    def test_an_object_does_not_move(self, session, log, pins, made):
        where = Comment.pin_id == pins[0]
        statement = made(Comment.__table__).where(where)
        with pytest.raises(exc.ShardError) as caught:
            session.execute(statement)
        assert isinstance(caught.value, exc.UnsupportedStatementError)
        assert log.executions == ()

    def test_an_object_does_not_move_when_executed(self, session, log, pins):
        made = update(Comment).where(Comment.pin_id == bindparam("w"))
        with pytest.raises(exc.UnsupportedStatementError, match="move"):
            session.execute(made, {"w": pins[0], "pin_id": pins[2]})
        row = {"id": pack(0, COMMENT, 1), "pin_id": pins[2]}
        with pytest.raises(exc.ShardError):
            session.execute(update(Comment), [row])
        row = {"id": pack(0, PIN, 1), "home_id": pack(5, BOARD, 1)}
        with pytest.raises(exc.ShardError):
            session.execute(update(Pin), [row])
        assert log.executions == ()

    def test_to_another_parent_of_the_same_shard(self, session, log, pins):
        done = session.execute(
            update(Comment).where(Comment.pin_id == pins[0]).values(pin_id=pins[1])
        )
        assert done.rowcount == 1
        made = select(Comment.pin_id).where(Comment.pin_id.in_(pins[:2]))
        assert session.scalars(made).all() == [pins[1]] * 2


class Deleting(Changing):
    @pytest.mark.parametrize("how", ["auto", "evaluate", "fetch", False])
    def test_one_shard(self, session, log, pins, how):
        held = session.scalars(
            select(Comment).where(Comment.pin_id.in_(pins[:2]))
        ).all()
        log.take()
        done = session.execute(
            delete(Comment).where(Comment.pin_id == pins[0]),
            execution_options={"synchronize_session": how},
        )
        assert done.rowcount == 1
        assert set(log.take()) == {0}
        if how is not False:
            assert [c in session for c in held] == [c.pin_id != pins[0] for c in held]

    def test_several_shards(self, many, log, pins):
        done = many.execute(delete(Comment).where(Comment.pin_id.in_(pins)))
        assert done.rowcount == 6
        assert set(log.take()) == {0, 5, 18}

    def test_objects_of_other_shards_stay(self, session, pins):
        held = session.get_many(Pin, pins)
        gone = delete(Comment).where(Comment.n == 0)
        kept = [pin.comments[0] for pin in held]
        session.execute(gone, bind_arguments={"shard_id": 5})
        assert [one in session for one in kept] == [True] * 2 + [False] * 2 + [True] * 2

    def test_nothing_can_match(self, session, log):
        done = session.execute(delete(Comment).where(Comment.id.in_([])))
        assert done.rowcount == 0

    def test_textual(self, session, log, pins):
        made = text("UPDATE pins SET n = 5")
        for wrong in (99, "", False, 0.0, []):
            with pytest.raises(exc.ShardError, match="shard"):
                session.execute(made, bind_arguments={"shard_id": wrong})
        assert log.executions == ()
        session.execute(made, bind_arguments={"shard_id": 5})
        found = session.scalars(select(Pin.n).where(Pin.id.in_(pins)))
        assert sorted(found) == [0, 0, 1, 1, 5, 5]

    def test_a_bundle_of_columns(self, session, pins):
        bundle = Bundle("pair", Pin.id, Pin.title)
        row = session.execute(select(bundle).where(Pin.id == pins[0])).one()
        assert tuple(row.pair) == (pins[0], "p0")


cluster = PINS.on_backend()
pins = pins_of()
