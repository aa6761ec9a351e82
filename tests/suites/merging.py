"""The rules of the merge, one by one, on shards of three servers."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from types import SimpleNamespace

import pytest
from sqlalchemy import (
    bindparam,
    desc,
    distinct,
    event,
    exists,
    func,
    Integer,
    JSON,
    lambda_stmt,
    LargeBinary,
    literal,
    select,
    String,
    text,
    tuple_,
    type_coerce,
)
from sqlalchemy.exc import InvalidRequestError, MultipleResultsFound, NoResultFound
from sqlalchemy.orm import (
    contains_eager,
    joinedload,
    lazyload,
    selectinload,
    subqueryload,
)

from sqla_shard import scatter
from sqla_shard.exc import (
    NoShardKeyError,
    ScatterLimitError,
    ScatterUnsupportedError,
    UnsupportedStatementError,
)
from sqla_shard.session import INCLUDE_INACTIVE
from sqla_shard.testing import StatementLog
from tests.models.clusters import PINS
from tests.models.layouts import pack
from tests.models.merged_models import Base, Gem, Mark, SHOP, Shop, WARE, Ware

#: Two of one server, and one each of two others on MariaDB.
_SHARDS = (0, 1, 17, 31)


cluster = PINS.on_backend()


@pytest.fixture(scope="module")
def data(cluster):
    """Add a shop of four wares on each of some shards.

    Wares of all shards take turns in ``number``: 0, 1, 2 .. 15.
    """
    cluster.create_all(Base.metadata)
    shops, wares = [], []
    with cluster.begin(cross_shard="unordered") as session:
        for at, shard in enumerate(_SHARDS):
            shop = Shop(id=pack(shard, SHOP, 1), name=f"shop {at}")
            session.add(shop)
            shops.append(shop.id)
            for k in range(4):
                ware = Ware(
                    id=pack(shard, WARE, k + 1),
                    shop_id=shop.id,
                    number=at + 4 * k,
                    name="aB"[k % 2] + str(k),
                    sold=k == 0,
                    day=dt.date(2024, 1 + k, 1) if at else None,
                )
                session.add(ware)
                wares.append(ware.id)
                session.add(Mark(ware_id=ware.id, name="x", number=k))
                session.add(Mark(ware_id=ware.id, name="y", number=-k))
    return SimpleNamespace(shops=shops, wares=wares)


def _numbers(session, statement, *args):
    return [number for (number,) in session.execute(statement, *args)]


def _selects(log):
    """Count the SELECTs of wares by server."""
    return Counter(
        event.server for event in log.executions if "wares" in event.statement
    )


_BY_NUMBER = select(Ware.number).order_by(Ware.number).options(scatter())


class Merging:
    """
    :cvar named: statements by shard for wares of all four shards.
    :cvar everywhere: statements for all 32 shards.
    """

    named: int
    everywhere: int

    @pytest.fixture
    def session(self, cluster, data):
        with cluster.session() as session:
            yield session

    # -- statements sent

    @pytest.mark.parametrize(
        "change",
        [
            lambda s: s.order_by(Ware.number.desc()).limit(3),
            lambda s: s.order_by(Ware.number),
            lambda s: s.limit(3),
            lambda s: s.distinct(),
            lambda s: s.with_only_columns(func.count(Ware.id)),
            lambda s: s.with_only_columns(func.avg(Ware.number)),
            lambda s: s.group_by(Ware.number),
        ],
    )
    def test_one_statement_for_each_server(self, session, data, change):
        made = change(select(Ware.number))
        with StatementLog() as log:
            session.execute(made.where(Ware.id.in_(data.wares))).all()
            counts = _selects(log)
            assert set(counts.values()) == {1}
            assert len(counts) == self.named
        with StatementLog() as log:
            session.execute(made.options(scatter())).all()
            counts = _selects(log)
            assert set(counts.values()) == {1}
            assert len(counts) == self.everywhere

    def test_servers_sort_and_limit(self, session):
        with StatementLog() as log:
            assert _numbers(session, _BY_NUMBER.limit(2)) == [0, 1]
        sent = [e.statement for e in log.executions if "wares" in e.statement]
        assert len(sent) == self.everywhere
        assert all("ORDER BY" in text and "LIMIT" in text for text in sent)

    def test_the_compiled_cache_does_not_grow(self, session, data, rng):
        made = select(Ware).order_by(Ware.number).limit(3)
        cache = {}

        def read(ids):
            statement = made.where(Ware.id.in_(ids))
            options = {"compiled_cache": cache}
            session.scalars(statement, execution_options=options).all()

        for _ in range(40):
            count = rng.randint(2, 16)
            ids = rng.sample(data.wares, count)
            if len({i >> 46 for i in ids}) > 1:
                read(ids)
        # One for each engine; a SQLite file has one of its own.
        assert 1 <= len(cache) <= self.named

    def test_get_many_compiles_once(self, session, data, rng):
        cache = {}
        for _ in range(40):
            session.expunge_all()
            ids = rng.sample(data.wares, rng.randint(1, 16))
            options = {"compiled_cache": cache}
            found = session.get_many(Ware, ids, execution_options=options)
            assert [ware.id for ware in found] == ids
        # However many shards they are on.
        assert 1 <= len(cache) <= self.named

    # -- order and limit

    def test_order_of_all_shards(self, session):
        assert _numbers(session, _BY_NUMBER) == list(range(16))
        down = _BY_NUMBER.order_by(None).order_by(Ware.number.desc())
        assert _numbers(session, down.limit(3)) == [15, 14, 13]

    def test_a_limit_is_of_all_shards(self, session, data):
        assert _numbers(session, _BY_NUMBER.limit(5)) == [0, 1, 2, 3, 4]
        assert _numbers(session, _BY_NUMBER.limit(0)) == []
        assert len(_numbers(session, _BY_NUMBER.limit(99))) == 16
        some = select(Ware.number).options(scatter()).limit(6)
        assert len(set(_numbers(session, some))) == 6

    def test_a_limit_that_is_bound(self, session):
        limit = bindparam("most", type_=Integer)
        made = _BY_NUMBER.limit(limit)
        assert _numbers(session, made, {"most": 2}) == [0, 1]
        assert _numbers(session, made, {"most": 4}) == [0, 1, 2, 3]

    def test_a_limit_that_is_computed_is_refused(self, session):
        with pytest.raises(ScatterUnsupportedError, match="pass an int"):
            session.execute(_BY_NUMBER.limit(func.abs(2)))

    def test_offset_is_refused_unless_it_is_allowed(self, session):
        with pytest.raises(ScatterUnsupportedError, match="scatter_page"):
            session.execute(_BY_NUMBER.limit(2).offset(1))
        few = _BY_NUMBER.options(scatter(max_offset=3))
        assert _numbers(session, few.limit(2).offset(3)) == [3, 4]
        with pytest.raises(ScatterLimitError, match="max_offset=3"):
            session.execute(few.limit(2).offset(4))
        assert _numbers(session, _BY_NUMBER.limit(2).offset(0)) == [0, 1]
        with pytest.raises(ValueError, match="max_offset=-1"):
            scatter(max_offset=-1)

    def test_an_offset_is_of_all_shards(self, session):
        made = _BY_NUMBER.options(scatter(max_offset=100))
        assert _numbers(session, made.offset(13)) == [13, 14, 15]
        assert _numbers(session, made.limit(3).offset(15)) == [15]
        assert _numbers(session, made.limit(3).offset(16)) == []
        assert _numbers(session, made.limit(0).offset(3)) == []
        assert _numbers(session, made.limit(2**63 - 1).offset(14)) == [14, 15]
        skipped = bindparam("skipped", type_=Integer)
        rest = made.limit(2).offset(skipped)
        assert _numbers(session, rest, {"skipped": 5}) == [5, 6]
        assert _numbers(session, rest, {"skipped": 7}) == [7, 8]
        names = made.with_only_columns(Ware.name).order_by(None).distinct()
        names = names.order_by(Ware.name).limit(2).offset(1)
        names = names.options(scatter(max_offset=1))
        assert session.scalars(names).all() == ["B3", "a0"]
        groups = select(Ware.name, func.count()).group_by(Ware.name)
        groups = groups.order_by(Ware.name.desc()).offset(3)
        groups = groups.options(scatter(max_offset=3))
        assert session.execute(groups).all() == [("B1", 4)]

    def test_offset_and_other_limits(self, session):
        few = scatter(max_offset=9, max_rows=2)
        made = _BY_NUMBER.options(few)
        assert _numbers(session, made.limit(2).offset(9)) == [9, 10]
        with pytest.raises(ScatterLimitError, match="max_rows=2"):
            session.execute(made.limit(3).offset(9))
        with pytest.raises(ScatterLimitError, match="max_rows=2"):
            session.execute(made.offset(9))
        locked = _BY_NUMBER.options(few).offset(1).with_for_update()
        with pytest.raises(ScatterUnsupportedError, match="FOR UPDATE"):
            session.execute(locked)

    def test_offset_and_members_of_collections(self, session):
        made = select(Shop).order_by(Shop.id).options(scatter(max_offset=2))
        shops = made.offset(2)
        with pytest.raises(ScatterUnsupportedError, match="selectinload"):
            session.scalars(shops.options(joinedload(Shop.wares)))
        load = shops.options(selectinload(Shop.wares))
        found = session.scalars(load).all()
        assert [shop.name for shop in found] == ["shop 2", "shop 3"]
        assert [len(shop.wares) for shop in found] == [4, 4]

    def test_keysets_of_tuples(self, session):
        key = tuple_(Ware.name, Ware.id)
        shown = select(Ware.name, Ware.id).options(scatter())
        down = shown.order_by(Ware.name.desc(), Ware.id.desc())
        up = shown.order_by(Ware.name, Ware.id)
        rows = session.execute(up).all()
        for at, row in enumerate(rows):
            after = session.execute(up.where(key > tuple(row)).limit(3))
            assert after.all() == rows[at + 1 : at + 4]
            before = session.execute(down.where(key < tuple(row)).limit(3))
            assert before.all() == rows[max(at - 3, 0) : at][::-1]
        name, found = rows[0]
        with pytest.raises(UnsupportedStatementError) as caught:
            session.execute(up.where(key > tuple_(name, found)))
        assert "tuple_(Class.n, Class.id) > (n, id)" in str(caught.value)

    # -- how many, and whether any

    def test_rows_of_a_subquery_are_counted(self, session):
        def count(inner, **limits):
            inner = inner.options(scatter(**(limits or {"max_offset": 9})))
            made = select(func.count()).select_from(inner.subquery())
            return session.scalar(made)

        wares = select(Ware)
        assert count(wares) == 16
        assert count(wares.order_by(Ware.number).limit(5)) == 5
        assert count(wares.limit(50)) == 16
        assert count(wares.offset(9)) == 7
        assert count(wares.limit(4).offset(9)) == 4
        assert count(wares.limit(9).offset(9)) == 7
        assert count(wares.offset(0)) == 16
        assert count(wares.where(Ware.number > 99).offset(5)) == 0
        names = wares.with_only_columns(Ware.name)
        assert count(names.distinct()) == 4
        assert count(names.distinct().limit(3)) == 3
        assert count(names.distinct().offset(3)) == 1
        assert count(names.group_by(Ware.name)) == 4
        most = names.group_by(Ware.name).having(func.sum(Ware.number) > 30)
        found = session.execute(most.options(scatter())).all()
        assert 0 < count(most) == len(found) < 4
        assert count(wares.with_only_columns(func.count())) == 1
        shops = wares.join(Ware.shop).where(Shop.name > "shop 1")
        assert count(shops) == 8
        assert count(shops.with_only_columns(Shop.name).distinct()) == 2
        assert count(wares.options(selectinload(Ware.marks)).limit(3)) == 3
        with pytest.raises(ScatterLimitError, match="max_offset"):
            count(wares.offset(10))
        with pytest.raises(ScatterUnsupportedError, match="scatter_page"):
            count(wares.offset(1), max_rows=99)
        with pytest.raises(ScatterUnsupportedError, match="in Python"):
            count(names.group_by(Ware.name).distinct())

    def test_inactive_objects_are_not_counted(self, cluster, data):
        with cluster.session(cross_shard="unordered") as session:
            for ware in data.wares:
                session.add(Gem(ware_id=ware, number=ware & 1))
            session.flush()
            gems = session.scalars(select(Gem).options(scatter())).all()
            for gem in gems[::2]:
                gem.deactivate()
            session.flush()
            left = select(Gem.ware_id).options(scatter())
            ways = (left, left.distinct(), left.limit(5), left.limit(99))
            for made, want in zip(ways, (8, 8, 5, 8), strict=True):
                inner = made.subquery()
                counted = select(func.count()).select_from(inner)
                assert session.scalar(counted) == want
            everything = select(Gem.ware_id).distinct().options(scatter())
            for inner in (everything.subquery(), everything.cte()):
                counted = select(func.count()).select_from(inner)
                assert session.scalar(counted) == 8
                counted = counted.execution_options(**{INCLUDE_INACTIVE: True})
                assert session.scalar(counted) == 16
            for gem in gems[1::2]:
                gem.deactivate()
            session.flush()
            assert not session.scalar(select(left.exists()))
            session.rollback()

    def test_a_page_of_rows_and_their_number(self, session):
        # The statements of Flask-SQLAlchemy's paginate().
        wares = select(Ware).where(Ware.number >= 3).order_by(Ware.number)
        wares = wares.options(scatter(max_offset=100))
        page = session.scalars(wares.limit(4).offset(8)).all()
        assert [ware.number for ware in page] == [11, 12, 13, 14]
        inner = wares.options(lazyload("*")).order_by(None).subquery()
        total = select(func.count()).select_from(inner)
        assert session.scalar(total) == 13
        assert session.query(Ware).options(scatter()).count() == 16
        names = session.query(Ware.name).distinct().options(scatter())
        assert names.count() == 4

    def test_whether_there_is_a_row(self, session, data):
        some = select(Ware).where(Ware.number == 7).options(scatter())
        none = select(Ware).where(Ware.number == 99).options(scatter())
        for made in (some, some.limit(1), some.distinct()):
            assert session.scalar(select(made.exists())) == True  # noqa: E712  # SQLite has 1
            assert not session.scalar(select(~made.exists()))
        assert not session.scalar(select(none.exists()))
        assert session.scalar(select(~none.exists()))
        both = select(exists(none.subquery().select()).label("one"))
        assert not session.scalar(both.options(scatter()))
        row = select(~some.exists(), some.exists().label("found"))
        with pytest.raises(ScatterUnsupportedError, match="combination"):
            session.execute(row)
        query = session.query(Ware).options(scatter())
        found = session.query(query.exists()).options(scatter())
        assert found.scalar()
        for number, want in (7, [("yes",)]), (99, []):
            inner = query.filter(Ware.number == number)
            shown = session.query(literal("yes")).filter(inner.exists())
            assert shown.options(scatter()).all() == want
        named = select(Ware).where(Ware.id.in_(data.wares), Ware.number == 7)
        assert session.scalar(select(named.exists()))

    def test_exists_that_needs_all_shards_is_refused(self, session):
        wares = select(Ware.name)
        for inner, construct in (
            (wares.offset(3), "OFFSET"),
            (wares.group_by(Ware.name).having(func.count() > 3), "HAVING"),
        ):
            with pytest.raises(ScatterUnsupportedError) as caught:
                session.scalar(select(inner.options(scatter()).exists()))
            assert caught.value.construct == construct

    def test_several_keys_and_nulls(self, session, data):
        made = select(Ware.day, Ware.name, Ware.id).options(scatter())
        made = made.order_by(Ware.day.desc(), Ware.name, Ware.id.desc())
        rows = [tuple(row) for row in session.execute(made)]
        want = sorted(rows, key=lambda row: row[2], reverse=True)
        want.sort(key=lambda row: row[1].encode())
        want.sort(key=lambda row: (row[0] is not None, row[0]), reverse=True)
        assert rows == want
        assert [row[0] for row in rows[-4:]] == [None] * 4

    def test_names_of_labels(self, session):
        count = func.count().label("found")
        made = select(Ware.sold.label("gone"), count).group_by("gone")
        for order in ("found", desc("found"), count, count.desc()):
            rows = session.execute(made.order_by(order).options(scatter()))
            counts = [row.found for row in rows]
            assert counts in ([4, 12], [12, 4])
            down = "DESC" in str(order)
            assert counts == sorted(counts, reverse=down)

    @pytest.mark.parametrize("all_shards", [True, False])
    def test_labels_of_ids_are_sorted_by_their_index(self, session, data, all_shards):
        """Not by the label's expression, for which a shard sorts all its rows."""
        label = Ware.id.label("shown")
        made = select(label, Ware.number).limit(3)
        named = {"bind_arguments": {"shard_id": _SHARDS[1]}}
        options = {} if all_shards else named
        for order in (label, "shown", label.desc(), desc("shown"), desc(label)):
            statement = made.order_by(order)
            if all_shards:
                statement = statement.options(scatter())
            with StatementLog() as log:
                found = [row.shown for row in session.execute(statement, **options)]
            wanted = data.wares if all_shards else data.wares[4:8]
            down = "DESC" in str(order) or "DESC" in str(statement)
            assert found == sorted(wanted, reverse=down)[:3]
            sent = [e.statement for e in log.executions if "wares" in e.statement]
            assert sent
            assert not any("ORDER BY shown" in text for text in sent)

    def test_lambda_statements(self, session, data):
        for ids in (data.wares[:1], data.wares[2:9], data.wares):
            found = session.scalars(
                lambda_stmt(
                    lambda: (
                        select(Ware.id)
                        .where(Ware.id.in_(ids))  # noqa: B023  # called at once
                        .order_by(Ware.number)
                    )
                )
            )
            want = sorted(ids, key=lambda i: (i & 7, i))
            assert found.all() == want

    def test_lambda_statements_that_scatter(self, session, data):
        made = lambda_stmt(lambda: select(Ware.id).options(scatter()))
        outside = lambda_stmt(lambda: select(Ware.id)).options(scatter())
        added = lambda_stmt(lambda: select(Ware.id))
        added += lambda found: found.options(scatter(max_rows=10_000))
        for statement in (made, outside, added, made):
            assert sorted(session.scalars(statement)) == sorted(data.wares)
        ordered = lambda_stmt(lambda: select(Ware.id).order_by(Ware.id))
        page = session.scatter_page(ordered, 2)
        assert page.items == sorted(data.wares)[:2]
        few = lambda_stmt(lambda: select(Ware.id).options(scatter(max_rows=2)))
        with pytest.raises(ScatterLimitError):
            session.scalars(few)
        with pytest.raises(NoShardKeyError):
            session.scalars(lambda_stmt(lambda: select(Ware.id)))

    @pytest.mark.parametrize(
        ("key", "word"),
        [
            (text("number"), "pass the column itself"),
            (text("1"), "pass the column itself"),
            (type_coerce(Ware.name, LargeBinary), "cast()"),
            (type_coerce(Ware.name, JSON), "cast()"),
            # The column of a lookup's keys is such a one.
            (type_coerce(type_coerce(Ware.name, LargeBinary(9)), String), "cast()"),
            (func.soundex(Ware.name), "are"),
        ],
    )
    def test_orders_that_only_servers_know(self, session, key, word):
        made = select(Ware.id).order_by(key).limit(2).options(scatter())
        with pytest.raises(ScatterUnsupportedError) as caught:
            session.execute(made)
        assert word in str(caught.value)

    # -- refusals, and similar statements that work

    def test_locking(self, session):
        locked = _BY_NUMBER.with_for_update()
        assert _numbers(session, locked) == list(range(16))
        skipping = _BY_NUMBER.with_for_update(skip_locked=True)
        for limited in (locked.limit(1), skipping.limit(1)):
            with pytest.raises(ScatterUnsupportedError, match="one shard at"):
                session.execute(limited)
        # The remedy that the message names.
        on_shard = {"shard_id": 17}
        found = session.scalars(skipping.limit(2), bind_arguments=on_shard)
        assert found.all() == [2, 6]

    def test_from_statement(self, session, data):
        inner = select(Ware).where(Ware.id.in_(data.wares))
        found = session.scalars(select(Ware).from_statement(inner)).all()
        assert {ware.id for ware in found} == set(data.wares)
        for changed in (inner.limit(2), inner.order_by(Ware.number)):
            with pytest.raises(ScatterUnsupportedError, match="select"):
                session.scalars(select(Ware).from_statement(changed))

    def test_sql_as_text(self, session):
        made = select(Ware.id, text("count(*)")).options(scatter())
        with pytest.raises(ScatterUnsupportedError, match="text"):
            session.execute(made)

    @pytest.mark.parametrize(
        ("column", "word"),
        [
            (func.sum(distinct(Ware.number)), "count(), sum()"),
            (func.group_concat(Ware.name), "count(), sum()"),
            (func.max(Ware.name) + "x", "compute in Python"),
            (func.sum(Ware.number / 3) + 1, "compute in Python"),
            (func.median(Ware.number) + 1, "median() may read"),
            (func.row_number().over(order_by=Ware.id), "PARTITION BY"),
        ],
    )
    def test_columns_that_cannot_be_combined(self, session, column, word):
        with pytest.raises(ScatterUnsupportedError) as caught:
            session.execute(select(column).options(scatter()))
        assert word in str(caught.value)

    @pytest.mark.filterwarnings("ignore:Column-expression-level")
    def test_distinct_of_a_column(self, session):
        made = select(distinct(Ware.name)).options(scatter())
        with pytest.raises(ScatterUnsupportedError) as caught:
            session.execute(made)
        assert "select(...).distinct()" in str(caught.value)
        made = select(Ware.name).distinct().options(scatter())
        assert sorted(session.scalars(made)) == ["B1", "B3", "a0", "a2"]

    def test_ids_are_counted_once(self, session):
        made = select(func.count(distinct(Mark.ware_id))).options(scatter())
        assert session.scalar(made) == 16

    # -- objects

    def test_relationships_are_sorted(self, session, data):
        made = select(Shop).order_by(Shop.id).options(scatter())
        for load in (selectinload, joinedload):
            session.expunge_all()
            shops = session.scalars(made.options(load(Shop.wares))).unique()
            numbers = [[w.number for w in shop.wares] for shop in shops]
            assert numbers == [[at + 12, at + 8, at + 4, at] for at in range(4)]

    def test_joined_collections_with_a_limit(self, session, data):
        made = select(Shop).order_by(Shop.id.desc()).options(scatter())
        load = made.options(joinedload(Shop.wares))
        shops = session.scalars(load).unique().all()
        assert [len(shop.wares) for shop in shops] == [4] * 4
        with pytest.raises(ScatterUnsupportedError, match="selectinload"):
            session.scalars(load.limit(2)).unique().all()
        load = made.limit(2).options(selectinload(Shop.wares))
        assert [s.id for s in session.scalars(load)] == data.shops[:1:-1]

    def test_a_joined_reference_with_a_limit(self, session):
        made = select(Ware).order_by(Ware.number.desc()).limit(3)
        made = made.options(scatter(), joinedload(Ware.shop))
        names = [ware.shop.name for ware in session.scalars(made)]
        assert names == ["shop 3", "shop 2", "shop 1"]

    def test_subqueries_that_load(self, session):
        load = select(Shop).options(scatter(), subqueryload(Shop.wares))
        shops = session.scalars(load).all()
        assert sorted(len(shop.wares) for shop in shops) == [4] * 4
        session.expunge_all()
        with pytest.raises(ScatterUnsupportedError, match="selectinload"):
            session.scalars(load.order_by(Shop.id).limit(2)).all()

    def test_contains_eager(self, session):
        made = (
            select(Shop)
            .join(Shop.wares)
            .where(Ware.number > 3)
            .order_by(Shop.id, Ware.number)
            .options(scatter(), contains_eager(Shop.wares))
        )
        shops = session.scalars(made).unique().all()
        assert [[w.number for w in shop.wares] for shop in shops] == [
            [at + 4, at + 8, at + 12] for at in range(4)
        ]

    def test_queries(self, session, data):
        query = session.query(Ware).options(scatter())
        assert query.count() == 16
        assert query.order_by(Ware.number.desc()).first().number == 15
        assert [w.number for w in query.order_by(Ware.number)[:2]] == [0, 1]
        assert query.filter(Ware.number == 7).one().number == 7
        with pytest.raises(MultipleResultsFound):
            query.filter(Ware.sold).one()
        with pytest.raises(NoResultFound):
            query.filter(Ware.number == 99).one()

    # -- how rows are read

    def test_hidden_columns_are_not_seen(self, session):
        made = select(Ware.number, Ware.name.label("called"))
        made = made.order_by(Ware.number).options(scatter())
        result = session.execute(made)
        assert list(result.keys()) == ["number", "called"]
        row = result.first()
        assert row._fields == ("number", "called")
        assert tuple(row) == (0, row.called)
        assert dict(row._mapping) == {"number": 0, "called": row.called}
        assert session.execute(made).mappings().first() == row._mapping
        assert session.scalars(made).first() == 0
        assert session.execute(made).scalars("called").first() == row.called
        assert session.execute(made).columns("called").first() == (row[1],)
        frozen = session.execute(made).freeze()
        assert frozen().first() == row
        names = select(Ware.name).distinct().order_by(Ware.name)
        assert list(session.execute(names.options(scatter())).keys()) == ["name"]

    @pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 99])
    def test_no_row_is_lost(self, session, size):
        want = list(range(16))
        parts = session.scalars(_BY_NUMBER).partitions(size)
        assert [n for part in parts for n in part] == want
        options = {"yield_per": size}
        streamed = session.scalars(_BY_NUMBER, execution_options=options)
        assert list(streamed) == want
        result = session.execute(_BY_NUMBER)
        found = []
        while part := result.fetchmany(size):
            found += [number for (number,) in part]
        assert found == want
        objects = select(Ware).order_by(Ware.number).options(scatter())
        parts = session.scalars(objects).unique().partitions(size)
        assert [ware.number for part in parts for ware in part] == want

    def test_unique_rows_of_all_shards(self, session):
        joined = select(Ware).join(Mark, Mark.ware_id == Ware.id)
        joined = joined.order_by(Ware.number).options(scatter())
        wares = session.scalars(joined)
        assert [w.number for w in wares] == sorted([*range(16), *range(16)])
        wares = session.scalars(joined).unique().all()
        assert [w.number for w in wares] == list(range(16))

    def test_one_row_of_all_shards(self, session):
        seven = _BY_NUMBER.where(Ware.number == 7)
        assert session.scalars(seven).one() == 7
        assert session.scalar(seven) == 7
        assert session.execute(seven).scalar_one() == 7
        for read in ("one", "one_or_none", "scalar_one", "scalar_one_or_none"):
            with pytest.raises(MultipleResultsFound):
                getattr(session.execute(_BY_NUMBER), read)()
        joined = select(Shop).options(scatter(), joinedload(Shop.wares))
        with pytest.raises(InvalidRequestError, match="unique"):
            session.scalars(joined).all()

    # -- limits

    def _reads_no_more(self, session, made):
        seen = []

        def see(cluster, report):
            seen.append(report)

        event.listen(session.cluster, "after_statement", see)
        try:
            for each in made, made.order_by(Ware.id), made.offset(1):
                many = each.limit(bindparam("n"))
                few = many.options(scatter(max_rows=1, max_offset=1))
                with pytest.raises(ScatterLimitError):
                    session.execute(few, {"n": 9})
                read = [server.rows for server in seen[-1].servers]
                assert max(read) <= 3
                every = many.options(scatter(max_rows=16, max_offset=1))
                assert len(session.execute(every, {"n": 99}).all()) >= 15
            groups = made.group_by(Ware.id)
            for each in groups, groups.limit(9), groups.order_by(func.count()):
                with pytest.raises(ScatterLimitError):
                    session.execute(each.options(scatter(max_rows=1)))
                assert all(
                    server.rows <= 2 * len(server.shards) for server in seen[-1].servers
                )
            every = groups.limit(2).order_by(func.count(), Ware.id)
            found = session.scalars(every.options(scatter(max_rows=2))).all()
            assert found == sorted(session.scalars(made.options(scatter())))[:2]
            for each in (
                select(made.cte()),
                made.where(Ware.id.in_(select(Ware.id).limit(9).subquery().select())),
                made.with_for_update(),
                made.limit(9),
                made.offset(1),
                made.union(made).limit(9),
            ):
                with pytest.raises(ScatterLimitError):
                    session.execute(
                        each.options(scatter(max_rows=1)),
                        bind_arguments={"shard_id": 0},
                    )
                assert [server.rows for server in seen[-1].servers] == [2]
        finally:
            event.remove(session.cluster, "after_statement", see)

    def test_limits_of_scatter(self, session, data):
        made = select(Ware.id).where(Ware.id.in_(data.wares))
        with pytest.raises(ScatterLimitError):
            session.execute(made.options(scatter(max_shards=3)))
        assert len(session.execute(made.options(scatter(max_shards=4))).all())
        with pytest.raises(ScatterLimitError):
            session.execute(made.options(scatter(max_rows=15)))
        few = made.order_by(Ware.id).limit(2).options(scatter(max_rows=2))
        assert session.scalars(few).all() == data.wares[:2]
        self._reads_no_more(session, made)
        counted = select(func.count(Ware.id)).options(scatter(max_rows=1))
        assert session.scalar(counted) == 16
        groups = select(Ware.sold).group_by(Ware.sold)
        made = groups.options(scatter(max_rows=2))
        assert len(session.execute(made).all()) == 2
        with pytest.raises(ScatterLimitError):
            session.execute(groups.options(scatter(max_rows=1)))

    @pytest.mark.parametrize("load", [selectinload, subqueryload])
    def test_limits_of_scatter_are_not_those_of_eager_loads(self, session, data, load):
        count = len(session.scalars(select(Shop.id).options(scatter())).all())
        shops = select(Shop).options(scatter(max_rows=count), load(Shop.wares))
        found = session.scalars(shops).unique().all()
        assert len(found) == count < sum(len(shop.wares) for shop in found)
