"""Reading: its results, and the exact number of statements of each shard.

``{17: 2}`` means two statements on shard 17 and none on any other.
"""

from __future__ import annotations

from collections import deque

import pytest
from sqlalchemy import inspect, select
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import (
    aliased,
    contains_eager,
    defer,
    immediateload,
    joinedload,
    lazyload,
    load_only,
    raiseload,
    selectinload,
    subqueryload,
    undefer,
    with_loader_criteria,
)

from sqla_shard import exc
from tests.models.clusters import PINS, ShardLog
from tests.models.layouts import LAYOUT, pack, unpack
from tests.models.models import BOARD, COMMENT, Comment, PIN, Pin, Setting, Tag
from tests.suites.semantics import sample

MISSING = pack(5, PIN, 12345)


class Reading:
    """The test module has fixtures ``cluster`` and ``data``."""

    @pytest.fixture
    def session(self, cluster, data):
        with cluster.session() as session:
            yield session

    @pytest.fixture
    def log(self, session):
        with ShardLog() as log:
            yield log


class Get(Reading):
    def test_one_statement_on_one_shard_and_then_none(self, session, log, data):
        for object_id in data.ids:
            pin = session.get(Pin, object_id)
            assert (pin.id, pin.title) == (object_id, data.titles[object_id])
            assert log.take() == {unpack(object_id).shard_id: 1}
            assert session.get(Pin, object_id) is pin
            assert log.take() == {}

    def test_absent(self, session, log):
        assert session.get(Pin, MISSING) is None
        assert log.take() == {5: 1}

    def test_expired(self, session, log, data):
        pin = session.get(Pin, data.ids[0])
        session.expire(pin)
        log.take()
        assert session.get(Pin, data.ids[0]) is pin
        assert pin.title == data.titles[data.ids[0]]
        assert log.take() == {0: 1}

    @pytest.mark.parametrize("shape", ["tuple", "list", "dict"])
    def test_other_forms_of_the_key(self, session, log, data, shape):
        key = data.ids[4]
        forms = {"tuple": (key,), "list": [key], "dict": {"id": key}}
        assert session.get(Pin, forms[shape]).id == key
        assert log.take() == {1: 1}

    def test_options_of_get(self, session, log, data):
        key = data.ids[9]
        pin = session.get(Pin, key, options=[selectinload(Pin.comments)])
        assert log.take() == {17: 2}
        assert len(pin.comments) == 2
        pin.title = "changed in memory"
        with session.no_autoflush:
            again = session.get(Pin, key, populate_existing=True)
        assert again is pin
        assert pin.title == data.titles[key]
        assert log.take() == {17: 1}

    def test_with_for_update(self, session, log, data):
        pin = session.get(Pin, data.ids[0])
        log.take()
        assert session.get(Pin, data.ids[0], with_for_update=True) is pin
        assert log.take() == {0: 1}

    def test_get_one(self, session, log, data):
        assert session.get_one(Pin, data.ids[3]).id == data.ids[3]
        assert log.take() == {1: 1}
        with pytest.raises(Exception, match="No row was found"):
            session.get_one(Pin, MISSING)

    def test_a_key_of_two_columns(self, session, log, data):
        session.add(Tag(pin_id=data.ids[3], name="x", n=1))
        session.flush()
        session.expunge_all()
        log.take()
        tag = session.get(Tag, (data.ids[3], "x"))
        assert (tag.pin_id, tag.n) == (data.ids[3], 1)
        assert log.take() == {1: 1}
        assert session.get(Tag, (data.ids[3], "x")) is tag
        assert session.get(Tag, {"pin_id": data.ids[4], "name": "x"}) is None
        assert log.take() == {1: 1}

    def test_a_class_of_the_global_keyspace(self, session, log):
        assert session.get(Setting, "none") is None
        assert len(log.executions) == 1
        assert log.take() == {}

    @pytest.mark.parametrize(
        ("key", "error"),
        [
            (None, exc.InvalidIdError),
            ("68719476737", exc.InvalidIdError),
            (True, exc.InvalidIdError),
            (1.5, exc.InvalidIdError),
            (-1, exc.InvalidIdError),
            (1 << 63, exc.InvalidIdError),
            (LAYOUT.max_id + 1, exc.InvalidIdError),
            ({"local_id": pack(1, PIN, 1)}, exc.InvalidIdError),
            (5, exc.WrongTypeError),
            (pack(1, BOARD, 1), exc.WrongTypeError),
            (pack(32, PIN, 1), exc.UnknownShardError),
        ],
    )
    def test_invalid_ids_are_refused(self, session, log, key, error):
        with pytest.raises(error) as caught:
            session.get(Pin, key)
        assert type(caught.value) is error
        assert log.executions == ()

    def test_an_id_has_its_name(self, session, data):
        assert session.get(Pin, {"id": data.ids[0]}).id == data.ids[0]

    def test_what_is_no_class_is_refused(self, session, data):
        refused = pytest.raises(exc.UnsupportedStatementError, match="class")
        for one in Pin.id, Pin(), aliased(Pin), Pin.__table__, "Pin", None:
            for get in session.get, session.get_one:
                with refused:
                    get(one, data.ids[0])
            with refused:
                session.get_many(one, data.ids[:1])

    def test_identity_token_is_refused(self, session, data):
        with pytest.raises(exc.UnsupportedStatementError):
            session.get(Pin, data.ids[0], identity_token=0)

    @pytest.mark.parametrize("is_loaded", [False, True])
    def test_another_shard_is_refused(self, session, data, is_loaded):
        object_id = data.ids[0]
        shard_id = unpack(object_id).shard_id
        given = {"shard_id": shard_id}
        if is_loaded:
            found = session.get(Pin, object_id, bind_arguments=given)
            assert found.id == object_id
        for other in (shard_id ^ 1, float(shard_id), bool(shard_id), str(shard_id)):
            with pytest.raises(exc.UnsupportedStatementError, match="its id"):
                session.get(Pin, object_id, bind_arguments={"shard_id": other})


class GetMany(Reading):
    def test_order_duplicates_and_none(self, session, log, data):
        i = data.ids
        asked = [i[8], i[0], MISSING, i[8], i[10], i[1]]
        found = session.get_many(Pin, asked)
        assert [pin and pin.id for pin in found] == [
            i[8],
            i[0],
            None,
            i[8],
            i[10],
            i[1],
        ]
        assert found[0] is found[3]
        assert log.take() == {0: 1, 2: 1, 5: 1, 17: 1}

    def test_loaded_objects_are_not_read_again(self, session, log, data):
        held = session.get(Pin, data.ids[0])
        log.take()
        found = session.get_many(Pin, iter([data.ids[0], data.ids[5]]))
        assert found[0] is held
        assert log.take() == {1: 1}
        assert session.get_many(Pin, [data.ids[5], data.ids[0]]) == [found[1], held]
        assert log.take() == {}

    def test_expired_objects_are_read_again(self, session, log, data):
        held = session.get(Pin, data.ids[0])
        session.expire(held)
        log.take()
        assert session.get_many(Pin, [data.ids[0]]) == [held]
        assert log.take() == {0: 1}
        assert held.title == data.titles[data.ids[0]]
        assert log.take() == {}

    def test_populate_existing(self, session, log, data):
        held = session.get(Pin, data.ids[0])
        held.title = "changed in memory"
        log.take()
        with session.no_autoflush:
            session.get_many(
                Pin, data.ids[:2], execution_options={"populate_existing": True}
            )
        assert held.title == data.titles[data.ids[0]]
        assert log.take() == {0: 1}

    def test_options(self, session, log, data):
        ids = [data.ids[0], data.ids[11]]
        found = session.get_many(Pin, ids, options=[selectinload(Pin.comments)])
        assert log.take() == {0: 2, 17: 2}
        assert [len(pin.comments) for pin in found] == [2, 2]
        assert log.take() == {}

    def test_nothing(self, session, log):
        assert session.get_many(Pin, []) == []
        for wrong in (None, 5, "", b"ab", object()):
            with pytest.raises(exc.InvalidIdError, match="takes a list of ids"):
                session.get_many(Pin, wrong)
        assert log.executions == ()

    @pytest.mark.parametrize(
        ("bad", "error"),
        [
            (pack(1, BOARD, 1), exc.WrongTypeError),
            (7, exc.WrongTypeError),
            (None, exc.InvalidIdError),
            ("1", exc.InvalidIdError),
            (pack(32, PIN, 1), exc.UnknownShardError),
        ],
    )
    def test_one_bad_id_and_nothing_is_sent(self, session, log, data, bad, error):
        with pytest.raises(error):
            session.get_many(Pin, [data.ids[0], bad])
        assert log.executions == ()

    def test_only_for_objects(self, session):
        with pytest.raises(exc.UnsupportedStatementError, match="get_many"):
            session.get_many(Setting, ["a"])
        with pytest.raises(exc.UnsupportedStatementError, match="get_many"):
            session.get_many(Tag, [(1, "x")])


class Loading(Reading):
    """Attributes and relationships."""

    def test_refresh_and_expire(self, session, log, data):
        for object_id in data.ids[::3]:
            shard_id = unpack(object_id).shard_id
            pin = session.get(Pin, object_id)
            log.take()
            session.refresh(pin)
            assert log.take() == {shard_id: 1}
            session.refresh(pin, ["title"])
            assert log.take() == {shard_id: 1}
            session.expire(pin)
            assert pin.title == data.titles[object_id]
            assert log.take() == {shard_id: 1}
            session.expire(pin, ["n"])
            assert pin.n is None
            assert log.take() == {shard_id: 1}

    @pytest.mark.parametrize("name", ["get", "get_many"])
    def test_expired_objects_are_read_by_their_options(self, session, data, name):
        made = select(Pin).where(Pin.id.in_(data.ids))
        pins = session.scalars(made.options(raiseload(Pin.comments))).all()
        for pin in pins:
            key = pin.id if name == "get" else [pin.id]
            session.expire(pin)
            getattr(session, name)(Pin, key)
            assert pin.title == data.titles[pin.id]
            with pytest.raises(InvalidRequestError, match="raise"):
                _ = pin.comments

    def test_expired_objects_are_read_together(self, session, log, data):
        mine = select(Pin).where(Pin.id.in_(data.ids))
        titles = {*data.titles.values()}
        only = with_loader_criteria(Pin, Pin.title.in_(titles))
        pins = session.scalars(mine.options(raiseload(Pin.comments), only)).all()
        pins[0].title = "of no title above"
        session.flush()
        session.expire_all()
        log.take()
        assert {*session.get_many(Pin, data.ids)} == {*pins}
        assert {*log.take().values()} == {1}
        assert not any(inspect(pin).expired for pin in pins)
        for pin in pins:
            with pytest.raises(InvalidRequestError, match="raise"):
                _ = pin.comments

    def test_expired_objects_of_a_relationship_are_read_together(
        self, session, log, data
    ):
        made = select(Comment).where(Comment.pin_id.in_(data.ids))
        path = joinedload(Comment.pin).raiseload(Pin.comments)
        comments = session.scalars(made.options(path)).all()
        pins = {comment.pin for comment in comments}
        session.expire_all()
        log.take()
        ids = [inspect(pin).identity[0] for pin in pins]
        assert {*session.get_many(Pin, ids)} == pins
        assert {*log.take().values()} == {1}
        for pin in pins:
            with pytest.raises(InvalidRequestError, match="raise"):
                _ = pin.comments

    def test_expire_all_reads_each_object_from_its_shard(self, session, log, data):
        pins = session.get_many(Pin, data.ids[::3])
        session.expire_all()
        log.take()
        assert [p.title for p in pins] == [data.titles[i] for i in data.ids[::3]]
        assert log.take() == {0: 1, 1: 1, 2: 1, 17: 1}

    def test_refresh_with_for_update(self, session, log, data):
        pin = session.get(Pin, data.ids[0])
        log.take()
        session.refresh(pin, with_for_update=True)
        assert log.take() == {0: 1}

    def test_deferred_columns(self, session, log, data):
        made = select(Pin).where(Pin.id.in_(data.ids))
        pins = session.scalars(made.options(load_only(Pin.n))).all()
        log.take()
        pin = min(pins, key=lambda p: p.id)
        assert pin.title == data.titles[pin.id]
        assert log.take() == {0: 1}
        session.expunge_all()
        made = made.options(defer(Pin.title), raiseload(Pin.comments))
        pin = session.scalars(made).first()
        log.take()
        assert pin.title == data.titles[pin.id]
        assert list(log.take().values()) == [1]
        with pytest.raises(Exception, match="raise"):
            _ = pin.comments

    def test_a_column_that_is_a_subquery(self, session, log, data):
        pin = session.get(Pin, data.ids[0])
        assert pin.comment_count == 2
        assert log.take() == {0: 2}
        session.expunge_all()
        made = select(Pin).where(Pin.id.in_(data.ids))
        pins = session.scalars(made.options(undefer(Pin.comment_count))).all()
        assert [p.comment_count for p in pins] == [2] * 12
        assert log.take() == {0: 1, 1: 1, 2: 1, 17: 1}

    def test_lazy_children(self, session, log, data):
        for object_id in data.ids[::3]:
            shard_id = unpack(object_id).shard_id
            pin = session.get(Pin, object_id)
            log.take()
            assert [c.pin_id for c in pin.comments] == [object_id] * 2
            assert log.take() == {shard_id: 1}
            # And back, from the identity map.
            assert pin.comments[0].pin is pin
            assert log.take() == {}

    def test_lazy_parent(self, session, log):
        comment = session.get(Comment, pack(0, COMMENT, 1))
        log.take()
        assert comment.pin.id == comment.pin_id
        assert log.take() == {0: 1}

    def test_lazy_parent_on_another_shard(self, session, log, data):
        for object_id in data.ids[::4]:
            pin = session.get(Pin, object_id)
            there = unpack(pin.board_id).shard_id
            assert there in (3, 18)
            session.expunge_all()
            pin = session.get(Pin, object_id)
            log.take()
            assert pin.board.id == pin.board_id
            assert log.take() == {there: 1}

    def test_no_parent_and_no_statement(self, session, log, data):
        pin = session.get(Pin, data.ids[0])
        log.take()
        assert pin.root_id is pin.root is None
        assert log.take() == {}

    def test_an_object_that_refers_to_its_like(self, session, log, data):
        parent = session.get(Pin, data.ids[0])
        child = session.get(Pin, data.ids[1])
        child.root = parent
        session.flush()
        assert child.root_id == parent.id
        session.expire_all()
        log.take()
        assert [p.id for p in parent.replies] == [child.id]
        assert child.root is parent
        assert set(log.take()) == {0}

    @pytest.mark.parametrize(
        ("option", "each", "later"),
        [
            (selectinload(Pin.comments), 2, False),
            (joinedload(Pin.comments), 1, False),
            (subqueryload(Pin.comments), 2, False),
            (immediateload(Pin.comments), 4, False),
            (lazyload(Pin.comments), 1, True),
        ],
        ids=["selectin", "joined", "subquery", "immediate", "lazy"],
    )
    def test_eager_children(self, session, log, data, option, each, later):
        made = select(Pin).where(Pin.id.in_(data.ids)).options(option)
        pins = session.scalars(made).unique().all()
        assert log.take() == dict.fromkeys((0, 1, 2, 17), each)
        assert sorted(p.id for p in pins) == data.ids
        for pin in pins:
            assert [c.pin_id for c in pin.comments] == [pin.id] * 2
            assert pin.comments == sorted(pin.comments, key=lambda c: c.id)
        lazily = dict.fromkeys((0, 1, 2, 17), 3) if later else {}
        assert log.take() == lazily

    def test_eager_children_are_unique(self, session, data):
        # Rows of an object that were loaded from different statements.
        made = select(Pin).where(Pin.id.in_(data.ids))
        made = made.options(joinedload(Pin.comments))
        assert len(list(session.scalars(made).unique())) == len(data.ids)
        assert len(session.query(Pin).filter(Pin.id.in_(data.ids)).all()) == 12

    def test_eager_parents(self, session, log, data):
        made = select(Comment).where(Comment.pin_id.in_(data.ids))
        for option, each in (
            (joinedload(Comment.pin), 1),
            (selectinload(Comment.pin), 2),
            (subqueryload(Comment.pin), 2),
        ):
            session.expunge_all()
            comments = session.scalars(made.options(option)).all()
            assert log.take() == dict.fromkeys((0, 1, 2, 17), each)
            assert all(c.pin.id == c.pin_id for c in comments)
            assert log.take() == {}

    def test_eager_parents_on_other_shards(self, session, log, data):
        made = select(Pin).where(Pin.id.in_(data.ids))
        made = made.options(selectinload(Pin.board))
        pins = session.scalars(made).all()
        assert log.take() == dict.fromkeys((0, 1, 2, 17, 3, 18), 1)
        assert all(p.board.id == p.board_id for p in pins)
        assert log.take() == {}

    @pytest.mark.parametrize("option", [joinedload, subqueryload])
    def test_a_join_to_other_shards_is_refused(self, session, log, data, option):
        made = select(Pin).where(Pin.id == data.ids[0])
        with pytest.raises(exc.UnsupportedStatementError, match="full_id"):
            session.scalars(made.options(option(Pin.board))).all()
        assert 3 not in log.take()

    def test_two_levels(self, session, log, data):
        made = select(Pin).where(Pin.id.in_(data.ids[:6]))
        made = made.options(
            selectinload(Pin.comments).joinedload(Comment.pin), selectinload(Pin.board)
        )
        pins = session.scalars(made).all()
        assert log.take() == {0: 2, 1: 2, 3: 1, 18: 1}
        assert all(c.pin is p for p in pins for c in p.comments)
        assert log.take() == {}

    def test_contains_eager(self, session, log, data):
        made = (
            select(Pin)
            .join(Pin.comments)
            .where(Pin.id.in_(data.ids), Comment.body == "x")
            .options(contains_eager(Pin.comments))
        )
        pins = session.scalars(made).unique().all()
        assert log.take() == {0: 1, 1: 1, 2: 1, 17: 1}
        assert [[c.body for c in p.comments] for p in pins] == [["x"]] * 12

    def test_every_iterable_is_a_list_of_ids(self, session, data):
        # They are one cached statement to SQLAlchemy, in whatever order.
        ids = data.ids
        forms = [list, tuple, set, dict.fromkeys, iter, deque]
        for form in (*reversed(forms), *forms):
            made = select(Pin).where(Pin.id.in_(form(ids)))
            assert {pin.id for pin in session.scalars(made)} == set(ids), form
            made = select(Pin).where(Pin.id.in_(ids), Pin.id.not_in(form(ids[1:])))
            assert [pin.id for pin in session.scalars(made)] == ids[:1], form

    def test_options_of_the_mapper_for_many_rows(self, session, log, data):
        # Chunks of selectinload are routed one by one.
        made = select(Pin).where(Pin.id.in_(data.ids * 200))
        made = made.options(selectinload(Pin.comments))
        assert len(session.scalars(made).all()) == len(data.ids)
        assert log.take() == {0: 2, 1: 2, 2: 2, 17: 2}


cluster = PINS.on_backend()
data = sample()
