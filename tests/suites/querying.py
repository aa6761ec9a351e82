"""Statements as they are written with SQLAlchemy's own means."""

from __future__ import annotations

import pytest
from sqlalchemy import (
    bindparam,
    ColumnDefault,
    DDL,
    exists,
    func,
    literal,
    null,
    or_,
    select,
    Sequence,
    text,
)
from sqlalchemy.orm import aliased, with_parent
from sqlalchemy.schema import CreateTable

from sqla_shard import exc, scatter, ShardSession
from tests.models.clusters import PINS
from tests.models.layouts import pack
from tests.models.models import BOARD, Board, Comment, PIN, Pin, Setting, Tag
from tests.suites.reading import Reading
from tests.suites.semantics import sample

MISSING = pack(5, PIN, 12345)


class ByStatement(Reading):
    def test_entities_and_columns(self, session, log, data):
        made = select(Pin, Pin.id, Pin.title).where(Pin.id.in_(data.ids))
        for pin, object_id, title in session.execute(made):
            assert pin.id == object_id
            assert title == data.titles[object_id]
        assert log.take() == {0: 1, 1: 1, 2: 1, 17: 1}

    def test_only_the_shards_that_are_named(self, session, log, data):
        i = data.ids
        for where, want in (
            (Pin.id == i[0], {0: 1}),
            (Pin.id.in_(i[:6]), {0: 1, 1: 1}),
            ((Pin.id == i[0]) | (Pin.id == i[9]), {0: 1, 17: 1}),
            ((Pin.id.in_(i)) & (Pin.id.in_(i[:3])), {0: 1}),
            (with_parent(session.get(Pin, i[3]), Pin.comments), {1: 1}),
        ):
            log.take()
            entity = Comment if "comments" in str(where) else Pin
            session.scalars(select(entity).where(where)).all()
            assert log.take() == want

    def test_distinct_rows_in_the_order_of_their_ids(self, session, data):
        every, of_one = data.ids, data.ids[:3]
        alias = aliased(Pin)
        for ids in (every, of_one):
            made = select(Pin.id).where(Pin.id.in_(ids)).distinct()
            back = made.order_by(Pin.id.desc())
            assert session.scalars(made.order_by(Pin.id)).all() == sorted(ids)
            first = sorted(ids)[::-1][:2]
            assert session.scalars(back.limit(2)).all() == first
            objects = select(Pin).where(Pin.id.in_(ids)).distinct()
            found = session.scalars(objects.order_by(Pin.id)).all()
            assert [pin.id for pin in found] == sorted(ids)
            made = select(alias.id, alias.title).where(alias.id.in_(ids))
            rows = session.execute(made.distinct().order_by(alias.title, alias.id))
            wanted = sorted((data.titles[i], i) for i in ids)
            assert [(title, i) for i, title in rows] == wanted

    def test_aliases_and_joins(self, session, log, data):
        a, b = aliased(Comment), aliased(Comment)
        made = (
            select(a.id, b.id)
            .join(b, a.pin_id == b.pin_id)
            .where(a.pin_id.in_(data.ids), a.id < b.id)
        )
        assert len(session.execute(made).all()) == len(data.ids)
        assert log.take() == {0: 1, 1: 1, 2: 1, 17: 1}

    def test_outer_join(self, session, log, data):
        made = (
            select(Pin.id, Tag.name)
            .outerjoin(Tag, Tag.pin_id == Pin.id)
            .where(Pin.id.in_(data.ids))
        )
        assert sorted(map(tuple, session.execute(made))) == [
            (i, None) for i in data.ids
        ]
        assert log.take() == {0: 1, 1: 1, 2: 1, 17: 1}

    def test_core(self, session, log, data):
        table = Pin.__table__
        made = select(table.c.local_id, table.c.title)
        rows = session.execute(made.where(table.c.local_id.in_(data.ids)))
        assert dict(map(tuple, rows)) == data.titles
        assert log.take() == {0: 1, 1: 1, 2: 1, 17: 1}
        with pytest.raises(exc.NoShardKeyError):
            session.execute(made)
        assert log.executions == ()

    def test_textual_sql_needs_a_shard(self, session, log):
        made = text("SELECT count(*) FROM pins")
        with pytest.raises(exc.ShardError):
            session.execute(select(Pin).from_statement(text("SELECT * FROM pins")))
        assert log.executions == ()
        found = session.scalar(made, bind_arguments={"shard_id": 17})
        assert found == 3
        assert len(log.executions) == 1

    def test_aggregates_computed_by_a_server(self, session, data):
        made = select(
            func.count() + 1,
            func.count(Pin.title.distinct()),
            func.round(func.avg(func.length(Pin.title)), 2),
        ).where(Pin.id.in_(data.ids))
        titles = [data.titles[i] for i in data.ids]
        count, different, mean = session.execute(made).one()
        assert count == len(titles) + 1
        assert different == len(set(titles))
        assert float(mean) == round(sum(map(len, titles)) / len(titles), 2)

    def test_constants_are_known_to_every_server(self, session, log, data):
        ping = text("SELECT 1")
        assert session.scalar(ping) == 1
        assert session.execute(text(" select 1;\n")).scalar_one() == 1
        assert session.scalar(select(1)) == 1
        assert session.execute(select(literal("up"), null())).one() == ("up", None)
        assert session.scalar(func.upper("up")) == "UP"
        # One server is asked, once for each of them.
        assert len(log.executions) == 5
        on_shard = {"shard_id": 17}
        assert session.scalar(ping, bind_arguments=on_shard) == 1
        with pytest.raises(exc.ShardError):
            session.execute(text("SELECT 1 FROM pins"))

    def test_get_bind_of_an_application(self, session, data):
        seen = []

        class Routed(ShardSession):
            def get_bind(self, mapper=None, clause=None):
                seen.append(mapper and mapper.class_)
                return super().get_bind(mapper, clause=clause)

        class Later(Routed):
            pass

        for made in Routed, Later:
            with made(cluster=session.cluster) as own:
                pin = own.get(Pin, data.ids[0])
                assert seen.pop() is Pin
                assert own.get_many(Pin, data.ids[9:])
                assert seen.pop() is Pin
                titles = select(Pin.title).options(scatter())
                assert len(own.scalars(titles).all()) == len(data.ids)
                pin.title = "routed"
                own.flush()
                own.refresh(pin)
                assert pin.title == "routed"

    def test_what_is_no_statement_is_refused(self, session, log):
        shards = {}, {"shard_id": 17}
        for given in (
            Sequence("s"),
            select(Sequence("s").next_value()),
            ColumnDefault(5),
            DDL("CREATE TABLE made (n INT)"),
            CreateTable(Pin.__table__),
        ):
            for shard in shards:
                with pytest.raises(exc.UnsupportedStatementError):
                    session.execute(given, bind_arguments=shard)
            found = session.cluster.explain(given).refusal
            assert isinstance(found, exc.UnsupportedStatementError)
        assert log.executions == ()

    def test_connection_of_a_shard(self, session, data):
        connection = session.connection(bind_arguments={"shard_id": 17})
        assert connection.scalar(text("SELECT count(*) FROM pins")) == 3
        table = Pin.__table__
        found = connection.scalars(select(table.c.local_id))
        assert sorted(found) == data.ids[9:]
        again = session.connection(bind_arguments={"shard_id": 17})
        assert again is connection

    def test_query(self, session, log, data):
        i = data.ids
        query = session.query(Pin).filter(Pin.id == i[9])
        assert query.one().id == i[9]
        assert query.count() == 1
        assert query.first().title == data.titles[i[9]]
        assert query.exists() is not None
        assert session.query(query.exists()).scalar()
        assert log.take() == {17: 4}
        found = session.query(Pin.title).filter(Pin.id.in_(i)).all()
        assert sorted(t for (t,) in found) == sorted(data.titles.values())
        assert log.take() == {0: 1, 1: 1, 2: 1, 17: 1}
        with pytest.warns(DeprecationWarning, match="legacy"):
            assert session.query(Pin).get(i[0]).id == i[0]
        assert log.take() == {0: 1}
        with pytest.raises(exc.NoShardKeyError):
            session.query(Pin).all()
        assert log.executions == ()
        query = session.query(Pin).filter(Pin.id.in_(i))
        assert query.count() == len(i)
        assert log.take() == {0: 1, 1: 1, 2: 1, 17: 1}
        assert query.order_by(Pin.title.desc()).first().title == "p2_2"
        with pytest.raises(exc.ScatterUnsupportedError):
            query.order_by(Pin.id)[1:3]

    def test_query_update_and_delete(self, session, log, data):
        query = session.query(Pin).filter(Pin.id == data.ids[0])
        assert query.update({"n": 4}) == 1
        assert session.get(Pin, data.ids[0]).n == 4
        comments = session.query(Comment).filter_by(pin_id=data.ids[0])
        assert comments.delete() == 2
        assert set(log.take()) == {0}

    def test_exists_and_correlated_subqueries(self, session, log, data):
        count = (
            select(func.count(Comment.id))
            .where(Comment.pin_id == Pin.id)
            .scalar_subquery()
        )
        made = select(Pin.id, count).where(
            Pin.id.in_(data.ids), exists().where(Comment.pin_id == Pin.id)
        )
        assert sorted(map(tuple, session.execute(made))) == [(i, 2) for i in data.ids]
        assert log.take() == {0: 1, 1: 1, 2: 1, 17: 1}

    def test_streaming(self, session, log, data):
        made = select(Pin).where(Pin.id.in_(data.ids))
        found = []
        streamed = made.execution_options(stream_results=True, yield_per=2)
        for part in session.scalars(streamed).partitions():
            found += [pin.id for pin in part]
        assert sorted(found) == data.ids
        assert log.take() == {0: 1, 1: 1, 2: 1, 17: 1}
        one = made.where(Pin.id.in_(data.ids[:3]))
        one = one.execution_options(yield_per=1)
        assert sorted(p.id for p in session.scalars(one)) == data.ids[:3]
        assert log.take() == {0: 1}

    def test_locking(self, session, log, data):
        made = select(Pin).where(Pin.id.in_(data.ids[:3])).with_for_update()
        assert len(session.scalars(made).all()) == 3
        assert log.take() == {0: 1}

    def test_locking_on_several_shards(self, session, log, data):
        made = select(Pin).where(Pin.id.in_(data.ids)).with_for_update()
        assert len(session.scalars(made).all()) == len(data.ids)
        assert log.take() == {0: 1, 1: 1, 2: 1, 17: 1}

    def test_no_row_can_match(self, session, log):
        assert session.scalars(select(Pin).where(Pin.id.in_([]))).all() == []
        made = select(func.count()).where(Pin.id.in_([]))
        assert session.scalar(made) == 0
        assert sum(log.take().values()) == 2

    def test_rows_of_the_global_keyspace(self, session, log):
        session.add(Setting(name="a", value="b"))
        session.flush()
        assert session.scalars(select(Setting.value)).all() == ["b"]
        assert session.query(Setting).count() == 1
        assert log.take() == {}

    @pytest.mark.parametrize(
        "made",
        [
            select(Pin),
            select(Pin).where(Pin.title == "x"),
            select(Pin).where(Pin.board_id == pack(3, BOARD, 1)),
            select(Pin).join(Pin.comments),
            select(func.count()).select_from(Pin),
            select(Tag).where(Tag.name == "x"),
            select(Pin, Board).where(Pin.id == MISSING),
        ],
        ids=str,
    )
    def test_nothing_is_sent_to_all_shards(self, session, log, made):
        with pytest.raises(exc.NoShardKeyError) as caught:
            session.execute(made)
        assert caught.value.tables
        assert log.executions == ()

    def test_one_parameter_of_two_lists(self, session, data):
        ids = bindparam("ids", expanding=True)
        own, board = Pin.id.in_(ids), Pin.home_id.in_(ids)
        # Ids of pins are no ids of boards, whichever list is read last.
        for first, last in ((own, board), (board, own)):
            with pytest.raises(exc.WrongTypeError):
                session.execute(select(Pin.id).where(first, last), {"ids": data.ids})
        twice = select(Pin.id).where(or_(own, Pin.id.in_(ids)))
        found = session.scalars(twice, {"ids": data.ids}).all()
        assert sorted(found) == sorted(data.ids)

    @pytest.mark.parametrize("column", [Pin.id, Pin.title])
    def test_an_iterator_is_no_list(self, session, log, data, column):
        ids = bindparam("ids", expanding=True)
        made = select(Pin.id).where(column.in_(ids)).options(scatter())
        with pytest.raises(exc.ParameterValueError, match="use a list"):
            session.execute(made, {"ids": iter(data.ids)})
        assert log.executions == ()

    def test_two_keyspaces_in_one_statement(self, session, log, data):
        made = select(Pin, Setting).where(Pin.id == data.ids[0])
        with pytest.raises(exc.KeyspaceMismatchError):
            session.execute(made)
        assert log.executions == ()


cluster = PINS.on_backend()
data = sample()
