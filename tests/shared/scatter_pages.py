"""``session.scatter_page()``: pages of rows of all shards."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import func
from sqlalchemy import Numeric
from sqlalchemy import select
from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.orm import Mapped
from sqlalchemy.orm import mapped_column

from sqla_shard import blob_field
from sqla_shard import Cluster
from sqla_shard import full_id
from sqla_shard import MappingMixin
from sqla_shard import ObjectMixin
from sqla_shard import scatter
from sqla_shard.exc import InvalidBookmarkError
from sqla_shard.exc import NoShardKeyError
from sqla_shard.exc import ScatterLimitError
from sqla_shard.exc import ScatterUnsupportedError
from sqla_shard.exc import UnsupportedStatementError

__all__ = ["PagesBase", "ScatterPages", "things"]

_SHARDS = 8
_COUNT = 240


class PagesBase(DeclarativeBase):
    pass


class Thing(ObjectMixin, PagesBase, type_id=101):
    __tablename__ = "things"
    name: Mapped[str] = mapped_column(String(30))
    n: Mapped[int | None]
    price: Mapped[Decimal] = mapped_column(Numeric(10, 2))
    weight: Mapped[float]
    at: Mapped[dt.datetime | None]
    day: Mapped[dt.date]
    title: Mapped[str | None] = blob_field(default=None)


class ThingHasThings(
    MappingMixin,
    PagesBase,
    source=Thing,
    target=Thing,
    source_column="whole_id",
    target_column="part_id",
):
    __tablename__ = "thing_has_things"


_FIELDS = (
    Thing.name,
    Thing.n,
    Thing.price,
    Thing.weight,
    Thing.at,
    Thing.day,
    Thing.title,
    Thing.id,
)


def random_thing(rng: random.Random) -> Thing:
    return Thing(
        shard_id=rng.randrange(_SHARDS),
        name=rng.choice(["a", "A", "ä", "b ", "b", "c\t", "c", ""]),
        n=rng.choice([None, 1, 2, 3]),
        price=Decimal(rng.randrange(5)) / 4,
        weight=rng.choice([1.1, rng.random(), -0.0, 1e300]),
        at=rng.choice([None, dt.datetime(2020, 1, 1, 1, 1, rng.randrange(3))]),
        day=dt.date(2020, 1, rng.randint(1, 3)),
        title=rng.choice([None, "x", "y", "Ö"]),
    )


def things() -> Any:
    """Return a fixture: some things on every shard."""

    @pytest.fixture(scope="module")
    def filled(cluster: Cluster, request: Any) -> Cluster:
        seed = request.config.getoption("hypothesis_seed")
        rng = random.Random(f"things {seed}")
        with cluster.begin(cross_shard="unordered") as session:
            session.add_all([random_thing(rng) for _ in range(_COUNT)])
        return cluster

    return filled


def walk(session: Any, statement: Any, sizes: Any) -> list[Any]:
    """Return the rows of all pages."""
    found: list[Any] = []
    after = None
    while True:
        size = sizes()
        page = session.scatter_page(statement, size, after)
        assert len(page) <= size
        found += page
        after = page.next
        if after is None:
            return found


class ScatterPages:
    """The test module has fixtures ``cluster`` and ``filled``."""

    def test_every_row_once_in_order(self, filled, rng):
        with filled.session() as session:
            for _ in range(40):
                some = rng.sample(_FIELDS, rng.randint(0, 4))
                order = [rng.choice([f.asc, f.desc])() for f in some]
                made = select(Thing).order_by(*order)
                got = walk(session, made, lambda: rng.choice([1, 9, 50, 500]))
                assert len({thing.id for thing in got}) == _COUNT == len(got)
                # Ties are in no order there, so only the keys are compared.
                want = session.execute(
                    select(*some, Thing.id).order_by(*order).options(scatter())
                )
                keys = [tuple(row[:-1]) for row in want]
                shown = [
                    tuple(getattr(thing, f.key) for f in some) for thing in got
                ]
                assert _folded(shown) == _folded(keys), order

    def test_conditions_limits_and_columns(self, filled):
        made = (
            select(Thing.name, Thing.n)
            .where(Thing.n > 1)
            .order_by(Thing.n.desc())
        )
        with filled.session() as session:
            page = session.scatter_page(made, 5)
            assert [row.n for row in page] == [3] * 5
            assert page.items[0]._fields == ("name", "n")
            every = walk(session, made, lambda: 7)
            assert all(row.n > 1 for row in every)
            total = select(func.count(Thing.id)).where(Thing.n > 1)
            assert len(every) == session.scalar(total.options(scatter()))
            few = made.options(scatter(max_shards=3))
            with pytest.raises(ScatterLimitError):
                session.scatter_page(few, 5)
            some = made.options(scatter(max_rows=5, timeout=30))
            assert len(session.scatter_page(some, 5)) == 5
            with pytest.raises(ScatterLimitError):
                session.scatter_page(some, 6)
            partly = made.options(scatter(on_error="partial"))
            with pytest.raises(UnsupportedStatementError):
                session.scatter_page(partly, 5)
            ids = [t.id for t in session.scatter_page(select(Thing), 3)]
            named = select(Thing.id).where(Thing.id.in_(ids))
            assert walk(session, named, lambda: 1) == sorted(ids)
            with pytest.raises(NoShardKeyError):
                session.execute(made)

    def test_an_empty_page_and_a_last_one(self, filled):
        none = select(Thing).where(Thing.n > 99)
        with filled.session() as session:
            page = session.scatter_page(none, 10)
            assert not page
            assert page.next is None
            whole = session.scatter_page(select(Thing), _COUNT)
            assert len(whole) == _COUNT
            assert whole.next is None

    def test_rows_that_arrive_and_go_meanwhile(self, cluster, filled, rng):
        made = select(Thing).order_by(Thing.price.desc(), Thing.name)
        with filled.session() as session:
            before = [thing.id for thing in walk(session, made, lambda: 100)]
        with filled.session() as session:
            first = session.scatter_page(made, 60)
            shown = [thing.id for thing in first]
        with filled.begin(cross_shard="unordered") as session:
            fresh = [random_thing(rng) for _ in range(30)]
            session.add_all(fresh)
            session.flush()
            new = {thing.id for thing in fresh}
            # The very row that the bookmark remembers, and one behind it.
            gone = {shown[-1], before[70]}
            for object_id in gone:
                session.delete(session.get(Thing, object_id))
        with filled.session() as session:
            after = first.next
            while after is not None:
                page = session.scatter_page(made, 17, after)
                shown += [thing.id for thing in page]
                after = page.next
        assert len(shown) == len(set(shown))
        kept = [i for i in shown if i not in new]
        assert kept == [i for i in before if i not in gone - {shown[59]}]
        with filled.begin(cross_shard="unordered") as session:
            for object_id in new:
                session.delete(session.get(Thing, object_id))
            for _ in gone:
                session.add(random_thing(rng))

    def test_backwards_while_rows_arrive_and_go(self, cluster, filled, rng):
        made = select(Thing).order_by(Thing.n, Thing.id)
        with cluster.begin(cross_shard="unordered") as session:
            session.add_all([random_thing(rng) for _ in range(20)])
            page = session.scatter_page(made, 7)
            second = session.scatter_page(made, 7, page.next)
            third = session.scatter_page(made, 7, second.next)
            first_of_third = third.items[0]
            session.delete(first_of_third)
            for gone in second.items[-2:]:
                session.delete(gone)
            session.flush()
            back = session.scatter_page(made, 7, third.previous)
            assert list(back) == [*page.items[-2:], *second.items[:5]]
            # On with what follows it now.
            again = session.scatter_page(made, 6, back.next)
            assert list(again) == third.items[1:]
            for gone in [*page.items, *second.items[:5]]:
                session.delete(gone)
            session.flush()
            none = session.scatter_page(made, 7, third.previous)
            assert (none.items, none.previous) == ([], None)
            start = session.scatter_page(made, 6, none.next)
            assert list(start) == third.items[1:]
            assert start.previous is None
            session.rollback()

    def test_before_a_page_that_is_empty_now(self, cluster, filled):
        made = select(Thing).order_by(Thing.id)
        with cluster.session(cross_shard="unordered") as session:
            all_of_them = session.scalars(made.options(scatter())).all()
            page = session.scatter_page(made, len(all_of_them) - 2)
            for gone in all_of_them[-2:]:
                session.delete(gone)
            session.flush()
            end = session.scatter_page(made, 5, page.next)
            assert (end.items, end.next) == ([], None)
            last = session.scatter_page(made, 5, end.previous)
            assert list(last) == all_of_them[-7:-2]
            assert last.next is None
            session.rollback()

    def test_joined_rows_have_both_keys(self, filled):
        with filled.begin(cross_shard="unordered") as session:
            wholes = session.scatter_page(select(Thing), 6).items
            parts = [thing.id for thing in wholes]
            for whole in wholes:
                ThingHasThings.append_many(session, whole.id, parts)
        made = (
            select(Thing.id, ThingHasThings.part_id)
            .join(ThingHasThings, ThingHasThings.whole_id == full_id(Thing.id))
            .order_by(Thing.n)
        )
        with filled.session() as session:
            got = walk(session, made, lambda: 5)
        assert len(got) == 36
        assert {tuple(row) for row in got} == {
            (whole, part) for whole in parts for part in parts
        }

    @pytest.mark.parametrize(
        ("made", "construct"),
        [
            (select(Thing).limit(3), "LIMIT"),
            (select(Thing).offset(3), "OFFSET"),
            (select(Thing).distinct(), "DISTINCT"),
            (select(Thing.n).group_by(Thing.n), "GROUP BY"),
            (select(func.count(Thing.id)), "an aggregate"),
            (select(Thing).with_for_update(), "FOR UPDATE"),
            (select(select(Thing).subquery()), "a subquery in FROM"),
            (
                select(Thing).order_by(Thing.n.nulls_last()),
                "NULLS FIRST or LAST",
            ),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_what_has_no_pages(self, filled, made, construct):
        with (
            filled.session() as session,
            pytest.raises(ScatterUnsupportedError) as caught,
        ):
            session.scatter_page(made, 5)
        assert caught.value.construct == construct

    def test_arguments_are_checked(self, filled):
        made = select(Thing).order_by(Thing.n)
        other = select(Thing).order_by(Thing.name)
        with filled.session() as session:
            for limit in (0, -1, True, "5", 2.0):
                with pytest.raises(ValueError, match="limit="):
                    session.scatter_page(made, limit)
            bookmark = session.scatter_page(made, 5).next
            for wrong in (1, "", "x" * 40, bookmark[:-2], bookmark + "A"):
                with pytest.raises(InvalidBookmarkError):
                    session.scatter_page(made, 5, after=wrong)
            with pytest.raises(InvalidBookmarkError, match=r"things\.name"):
                session.scatter_page(other, 5, after=bookmark)

    def test_texts_that_are_too_long(self, filled):
        with filled.session(cross_shard="unordered") as session:
            long = random_thing(random.Random(1))
            long.title = "ÿ" * 500
            session.add(long)
            session.add(random_thing(random.Random(2)))
            session.flush()
            made = select(Thing).order_by(Thing.title.desc())
            with pytest.raises(ScatterUnsupportedError, match=r"func\.left"):
                session.scatter_page(made, 1)
            session.rollback()


def _folded(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Make alike what MariaDB's order takes for equal."""
    return [
        tuple(v.rstrip(" ") if isinstance(v, str) else v for v in row)
        for row in rows
    ]
