"""INSERT as a statement."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import delete, event, insert, literal, select, update

from sqla_shard import exc, full_id
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
from tests.models.returning import has_returning, inserted

SHARDS = (0, 5, 18)


def pins_of() -> Any:
    """Return a fixture: the ids of two pins on each of some shards."""

    @pytest.fixture(scope="module")
    def pins(cluster: Any) -> list[int]:
        with cluster.begin(cross_shard="unordered") as session:
            made = [at(i, Pin(title=f"p{k}", n=k)) for i in SHARDS for k in (0, 1)]
            session.add_all(made)
            session.flush()
            for pin in made:
                pin.comments = [Comment(body="x", n=0)]
            session.flush()
            return sorted(pin.id for pin in made)

    return pins


class Changing:
    @pytest.fixture
    def session(self, cluster, pins):
        """A session that is rolled back."""
        with cluster.session() as session:
            yield session

    @pytest.fixture
    def many(self, cluster, pins):
        """One that may write several shards; it is rolled back."""
        with cluster.session(cross_shard="unordered") as session:
            yield session

    @pytest.fixture
    def log(self, pins):
        with ShardLog() as log:
            yield log


def shards_of(ids: Any) -> list[int]:
    return [unpack(i).shard_id for i in ids]


class Inserting(Changing):
    def test_rows_of_children_go_to_their_parents(self, many, log, pins):
        rows = [{"pin_id": i, "body": str(i), "n": 1} for i in pins]
        many.execute(insert(Comment), rows)
        assert log.take() == {0: 1, 5: 1, 18: 1}
        made = select(Comment.pin_id, Comment.body).where(
            Comment.pin_id.in_(pins), Comment.n == 1
        )
        assert sorted(map(tuple, many.execute(made))) == [(i, str(i)) for i in pins]

    def test_new_and_changed_objects_are_flushed_to_their_own_shards(self, many, pins):
        """By the autoflush of an INSERT and of an UPDATE by ids, and by listeners."""
        here, there = pins[0], pins[-1]
        many.add(new := at(unpack(there).shard_id, Pin(title="new", n=7)))
        many.get(Pin, there).n = 8
        many.execute(insert(Comment), [{"pin_id": here, "body": "bulk", "n": 9}])
        at_there = {"shard_id": unpack(there).shard_id}
        numbers = select(Pin.n).where(Pin.n.in_([7, 8]))
        found = many.scalars(numbers, bind_arguments=at_there)
        assert sorted(found) == [7, 8]
        assert unpack(new.id).shard_id == at_there["shard_id"]
        new.n = 8
        many.execute(update(Pin), [{"id": here, "n": 9}])
        assert list(many.scalars(numbers, bind_arguments=at_there)) == [8, 8]
        event.listen(
            many, "do_orm_execute", lambda state: state.is_insert and many.flush()
        )
        new.n = 7
        with many.no_autoflush:
            rows = [{"pin_id": here, "body": "core", "n": 9}]
            many.execute(insert(Comment.__table__), rows)
        assert sorted(many.scalars(numbers, bind_arguments=at_there)) == [7, 8]
        # The ids of shard 0 are like local ids; a flush may read them, too.
        ids = select(Pin.id).where(Pin.id == here)
        event.listen(many, "before_flush", lambda *given: many.scalars(ids).one())
        new.n = 8
        many.execute(insert(Comment), [{"pin_id": there, "body": "bulk", "n": 9}])
        assert not many.dirty

    def test_listeners_read_objects_of_shard_0(self, many, pins):
        """Their ids are like local ids, which other shards return of new rows."""
        here, there = pins[0], pins[-1]
        found = []

        def read(state):
            if state.is_insert or state.is_update:
                found.append(many.scalars(select(Pin.id).where(Pin.id == here)).one())
                found.append(many.get(Pin, here, populate_existing=True).id)

        event.listen(many, "do_orm_execute", read)
        many.execute(insert(Comment), [{"pin_id": there, "body": "b", "n": 9}])
        many.execute(insert(Comment).values(pin_id=there, body="b", n=9))
        many.execute(insert(Comment.__table__), [{"pin_id": there, "body": "b"}])
        many.execute(update(Pin), [{"id": there, "n": 9}])
        many.execute(update(Pin).where(Pin.id == there).values(n=9))
        assert found == [here] * 10

    def test_rows_with_ids_of_their_own(self, many, log):
        ids = [pack(i, PIN, 500 + k) for k in (1, 2) for i in (3, 0)]
        many.execute(insert(Pin), [{"id": i, "title": "own"} for i in ids])
        assert log.take() == {0: 1, 3: 1}
        assert [p.id for p in many.get_many(Pin, ids)] == ids

    def test_rows_of_mapping_tables(self, many, log, pins):
        rows = [{"pin_id": i, "name": "x", "n": 1} for i in pins]
        many.execute(insert(Tag), rows)
        assert log.take() == {0: 1, 5: 1, 18: 1}
        assert all(many.get(Tag, (i, "x")).n == 1 for i in pins)

    def test_rows_of_objects_with_a_blob(self, many, log, pins):
        rows = [{"pin_id": i, "text": "t", "n": 7} for i in pins]
        many.execute(insert(Note), rows)
        assert log.take() == {0: 1, 5: 1, 18: 1}
        found = many.scalars(
            select(Note).where(Note.pin_id.in_(pins), Note.n == 7)
        ).all()
        assert sorted(note.pin_id for note in found) == pins

    def test_each_root_on_a_shard_of_its_own(self, many, log, pins):
        rows = [{"title": f"own {k}", "shard_id": k % 3} for k in range(9)]
        ids = many.scalars(insert(Pin).returning(Pin.id), rows).all()
        assert log.take() == {0: 1, 1: 1, 2: 1}
        found = many.get_many(Pin, ids)
        assert log.take() == {0: 1, 1: 1, 2: 1}
        shards = {pin.title: unpack(pin.id).shard_id for pin in found}
        assert shards == {f"own {k}": k % 3 for k in range(9)}
        # The caller's rows are left as they are.
        assert rows[4] == {"title": "own 4", "shard_id": 1}
        # By Core, and with some that go where roots go.
        many.execute(insert(Board.__table__), [{"name": "a", "shard_id": 3}])
        assert log.take() == {3: 1}
        rows = [{"name": "b", "shard_id": 4}, {"name": "c"}]
        many.execute(insert(Board), rows)
        assert log.take() == {4: 1, 0: 1}

    def test_the_shard_of_a_row_is_that_of_its_id_and_parent(self, many, log, pins):
        many.execute(insert(Note), [{"pin_id": pins[0], "text": "t", "shard_id": 0}])
        many.execute(insert(Pin), {"id": pack(2, PIN, 9), "title": "t", "shard_id": 2})
        assert log.take() == {0: 1, 2: 1}
        for entity, row in (
            (Comment, {"pin_id": pins[0], "body": "b"}),
            (Note, {"pin_id": pins[0], "text": "t"}),
            (Pin, {"id": pack(2, PIN, 10), "title": "t"}),
        ):
            with pytest.raises(exc.ColocationError, match="shard 1"):
                many.execute(insert(entity), [{**row, "shard_id": 1}])
        with pytest.raises(exc.ColocationError, match="shard 1"):
            many.execute(
                insert(Pin),
                {"title": "t", "shard_id": 1},
                bind_arguments={"shard_id": 2},
            )
        assert log.take() == {}

    def test_rows_of_an_invalid_shard(self, many, log):
        with pytest.raises(exc.UnknownShardError, match="99"):
            many.execute(insert(Pin), [{"title": "t", "shard_id": 99}])
        for wrong in ("1", True, 1.0, None):
            with pytest.raises(exc.PlacementError, match="shard_id="):
                many.execute(insert(Pin), [{"title": "t", "shard_id": wrong}])
        assert log.take() == {}

    def test_two_shards_in_one_transaction(self, session, log):
        rows = [{"title": "t", "shard_id": k} for k in (1, 2)]
        with pytest.raises(exc.CrossShardWriteError):
            session.execute(insert(Pin), rows)
        assert log.take() == {}

    def test_roots_share_one_shard(self, session, log):
        session.execute(insert(Pin), [{"title": str(k)} for k in range(20)])
        (shard_id,) = log.take()
        session.execute(insert(Board), [{"name": "b"}])
        assert set(log.take()) == {shard_id}
        pin = Pin(title="c")
        session.add(pin)
        session.flush()
        assert unpack(pin.id).shard_id == shard_id

    @pytest.mark.parametrize("shard_id", [0, 9])
    def test_roots_on_a_shard_that_is_named(self, cluster, session, log, shard_id):
        session.execute(
            insert(Pin),
            [{"title": "a"}, {"title": "b"}],
            bind_arguments={"shard_id": shard_id},
        )
        assert log.take() == {shard_id: 1}
        session.rollback()
        with cluster.session(shard_id=shard_id) as other:
            new = other.execute(insert(Pin).values(title="c")).inserted_primary_key
            assert shards_of(new) == [shard_id]

    def test_one_row(self, session, log, pins):
        made = insert(Comment).values(pin_id=pins[0], body="1")
        (new,) = session.execute(made).inserted_primary_key
        assert (unpack(new).shard_id, unpack(new).type_id) == (0, COMMENT)
        assert session.get(Comment, new).pin_id == pins[0]
        session.execute(insert(Comment).values(n=3), {"pin_id": pins[1], "body": "2"})
        made = select(Comment.id).where(Comment.pin_id == pins[1])
        assert max(session.scalars(made)) > new
        assert set(log.take()) == {0}

    def test_several_rows_in_one_statement(self, session, log, pins):
        rows = [{"pin_id": pins[2], "body": str(k)} for k in range(3)]
        session.execute(insert(Comment).values(rows))
        assert log.take() == {5: 1}
        rows[0]["pin_id"] = pins[0]
        with pytest.raises(exc.UnsupportedStatementError, match="several"):
            session.execute(insert(Comment).values(rows))
        assert log.executions == ()

    def test_returning_ids_and_columns(self, session, log):
        rows = [{"title": f"r{k}", "n": k} for k in range(5)]
        there = {"bind_arguments": {"shard_id": 18}}
        made = insert(Pin).returning(Pin.id)
        ids = session.scalars(made, rows, **there).all()
        assert log.take() == {18: 1}
        assert {unpack(i)[:2] for i in ids} == {(18, PIN)}
        found = session.get_many(Pin, ids)
        assert sorted(pin.title for pin in found) == [row["title"] for row in rows]
        log.take()
        made = insert(Pin).returning(Pin.id, Pin.title)
        if not has_returning(session.cluster):
            with pytest.raises(exc.UnsupportedStatementError, match="add_all"):
                session.execute(made, rows, **there)
            assert log.executions == ()
            return
        found = session.execute(made, rows, **there).all()
        assert sorted(title for _, title in found) == [row["title"] for row in rows]
        assert log.take() == {18: 1}

    def test_returning_objects(self, session, log):
        (pin,) = inserted(
            session, insert(Pin).values(title="r"), bind_arguments={"shard_id": 18}
        )
        assert session.get(Pin, pin.id) is pin
        pin.title = "s"
        session.flush()
        reads = 0 if has_returning(session.cluster) else 1
        assert log.take() == {18: 2 + reads}
        pins = inserted(session, insert(Pin), [{"title": str(k)} for k in range(10)])
        assert all(p in session for p in pins)
        assert {unpack(p.id).shard_id for p in pins} == {18}

    def test_returning_in_the_order_of_the_rows(self, session, many, pins):
        made = insert(Pin).returning(Pin.id, sort_by_parameter_order=True)
        rows = [{"title": str(k)} for k in range(30)]
        ids = session.scalars(made, rows).all()
        assert [pin.title for pin in session.get_many(Pin, ids)] == [
            row["title"] for row in rows
        ]
        made = insert(Comment).returning(Comment.id, sort_by_parameter_order=True)
        rows = [{"pin_id": i, "body": "1"} for i in pins]
        with pytest.raises(exc.ScatterUnsupportedError):
            many.execute(made, rows)

    def test_returning_from_several_shards(self, many, log, pins):
        made = insert(Comment).returning(Comment.id)
        rows = [{"pin_id": i, "body": "1"} for i in pins]
        ids = many.scalars(made, rows).all()
        assert log.take() == {0: 1, 5: 1, 18: 1}
        found = many.get_many(Comment, ids)
        assert sorted(one.pin_id for one in found) == pins
        assert all(
            unpack(one.id).shard_id == unpack(one.pin_id).shard_id for one in found
        )

    def test_core(self, many, log, pins):
        table = Comment.__table__
        many.execute(insert(table), [{"pin_id": i, "body": "1"} for i in pins])
        assert log.take() == {0: 1, 5: 1, 18: 1}
        made = insert(table).values({table.c.pin_id: pins[0], "body": "2"})
        (new,) = many.execute(made).inserted_primary_key
        assert unpack(new)[:2] == (0, COMMENT)

    def test_rows_of_several_tables(self, session, log):
        session.execute(insert(Setting), [{"name": "a", "value": "b"}])
        assert session.get(Setting, "a").value == "b"
        assert log.take() == {}

    @pytest.mark.parametrize(
        ("entity", "row", "error"),
        [
            (Comment, {"body": "1"}, exc.ColocationError),
            (Comment, {"body": "1", "pin_id": None}, exc.ColocationError),
            (Comment, {"body": "1", "pin_id": pack(0, BOARD, 1)}, exc.ColocationError),
            (Comment, {"body": "1", "pin_id": "7"}, exc.InvalidIdError),
            (Comment, {"body": "1", "pin_id": pack(32, PIN, 1)}, exc.UnknownShardError),
            (
                Comment,
                {"id": pack(1, COMMENT, 9), "pin_id": pack(0, PIN, 1)},
                exc.ColocationError,
            ),
            (Pin, {"id": pack(0, BOARD, 1), "title": "a"}, exc.WrongTypeError),
            (
                Pin,
                {"id": pack(0, PIN, 9), "title": "a", "root_id": pack(1, 1, 1)},
                exc.ColocationError,
            ),
            (
                Pin,
                {"id": pack(0, PIN, 9), "title": "a", "home_id": pack(1, 2, 1)},
                exc.ColocationError,
            ),
            (Tag, {"name": "x"}, exc.PlacementError),
        ],
    )
    @pytest.mark.parametrize("core", [False, True], ids=["orm", "core"])
    def test_rows_that_cannot_be_placed(self, session, log, entity, row, error, core):
        target = entity.__table__ if core else entity
        if core and "id" in row:
            row = {**row, "local_id": row["id"]}
            del row["id"]
        for made in (
            lambda: session.execute(insert(target), [row]),
            lambda: session.execute(insert(target), row),
            lambda: session.execute(insert(target).values(row)),
        ):
            with pytest.raises(error):
                made()
        assert log.executions == ()

    @pytest.mark.parametrize("entity", [Comment, Note, Tag])
    def test_a_shard_that_is_named_and_wrong(self, session, log, pins, entity):
        rows = {
            Comment: {"body": "1", "pin_id": pins[0]},
            Note: {"text": "1", "pin_id": pins[0]},
            Tag: {"name": "1", "pin_id": pins[0]},
        }
        on_shard = {"shard_id": 5}
        for made, given in (
            (insert(entity), [rows[entity]]),
            (insert(entity), rows[entity]),
        ):
            with pytest.raises(exc.ColocationError, match="shard 5"):
                session.execute(made, given, bind_arguments=on_shard)
        assert log.executions == ()

    def test_from_select(self, session, log, pins):
        rows = select(Pin.id, literal("copied"), Pin.n)
        made = insert(Comment).from_select(
            ["pin_id", "body", "n"], rows.where(Pin.id == pins[1])
        )
        with pytest.raises(exc.NoShardKeyError):
            session.execute(made)
        assert log.executions == ()
        session.execute(made, bind_arguments={"shard_id": 0})
        assert log.take() == {0: 1}
        found = session.scalars(
            select(Comment.pin_id).where(
                Comment.pin_id == pins[1], Comment.body == "copied"
            )
        )
        assert found.all() == [pins[1]]

    def test_from_select_in_another_form(self, session, log):
        bare = select(Board.id, Board.name)
        made = insert(Pin).from_select(["board_id", "title"], bare)
        with pytest.raises(exc.UnsupportedStatementError, match="full_id"):
            session.execute(made, bind_arguments={"shard_id": 0})
        assert log.executions == ()
        session.add(at(0, Board(name="b")))
        session.flush()
        whole = select(full_id(Board.id), Board.name)
        made = insert(Pin).from_select(["board_id", "title"], whole)
        session.execute(made, bind_arguments={"shard_id": 0})
        found = session.scalars(
            select(Pin.board_id).where(Pin.board_id.is_not(None)),
            bind_arguments={"shard_id": 0},
        ).all()
        assert {unpack(i)[:2] for i in found} == {(0, BOARD)}

    @pytest.mark.parametrize("rows", [[], (), ({"n": 1},), [None], [[{"n": 1}]], "n"])
    @pytest.mark.parametrize("statement", [insert, update, delete])
    def test_no_rows(self, session, statement, rows):
        for written in Pin, Pin.__table__:
            with pytest.raises(exc.UnsupportedStatementError, match="that is not emp"):
                session.execute(statement(written), rows)

    @pytest.mark.parametrize(
        "name", ["bulk_save_objects", "bulk_insert_mappings", "bulk_update_mappings"]
    )
    def test_the_legacy_methods_are_refused(self, session, name):
        with pytest.raises(exc.UnsupportedStatementError, match="of any keyspace"):
            getattr(session, name)(Pin, [])


cluster = PINS.on_backend()
pins = pins_of()
