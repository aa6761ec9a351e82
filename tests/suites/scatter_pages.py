"""``session.scatter_page()``: pages of rows of all shards."""

from __future__ import annotations

import datetime as dt
import random
import struct
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import bindparam, func, literal, Numeric, select, String, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, with_loader_criteria

from sqla_shard import blob_field, Cluster, full_id, MappingMixin, ObjectMixin, scatter
from sqla_shard.exc import (
    InvalidBookmarkError,
    NoShardKeyError,
    ScatterLimitError,
    ScatterUnsupportedError,
    UnsupportedStatementError,
)
from sqla_shard.session.scatter_pages import _keys, StatementBookmarks
from tests.models.backends import Clusters
from tests.models.layouts import LAYOUT, pack

_SHARDS = 8
_COUNT = 240


class PagesBase(DeclarativeBase):
    id_layout = LAYOUT


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


_ID = pack(1, 101, 5)


def _written(values: Sequence[tuple[str, str]]) -> bytes:
    out = b">"
    for tag, value in values:
        body = value.encode("utf-8", "surrogatepass")
        out += struct.pack(">cH", tag.encode(), len(body)) + body
    return out


def forged(session: Any, statement: Any, values: Any) -> str:
    """Return a forged bookmark, made with knowledge of the code.

    :param values: pairs of a form and a text.
    """
    marks = StatementBookmarks(session, statement, _keys(statement))
    return session.cluster.seal.seal(_written(values), marks.subject)


_GOOD = ("i", str(_ID))
#: Columns to order by, and values that their rows cannot have.
_FORGED: list[tuple[Any, list[tuple[str, str]]]] = [
    *(
        ((Thing.n,), [wrong, _GOOD])
        for wrong in (
            ("n", "1e999999999"),
            ("n", "1" * 5000),
            ("n", "NaN"),
            ("n", "Infinity"),
            ("i", "1" * 5000),
            ("i", "1" * 66),
            ("i", "01"),
            ("i", " 1"),
            ("i", "+1"),
            ("i", "1_0"),
            ("i", "\u0661"),
            ("i", ""),
            ("f", "1e999"),
            ("f", "inf"),
            ("f", "nan"),
            ("f", "1.50"),
            ("d", "2020-01-01"),
            ("l", "5"),
            ("x", "5"),
            ("-", "5"),
            ("s", "\ud800"),
        )
    ),
    *(
        ((Thing.day,), [wrong, _GOOD])
        for wrong in (
            ("d", "2020-02-31"),
            ("d", "0000-01-01"),
            ("d", "20200101"),
            ("t", "2020-01-01T25:00:00"),
            ("t", "2020-01-01T10:00:00+00:00"),
            ("l", "99999999999999999999"),
            ("l", "9999999999999"),
            ("-", ""),
        )
    ),
    *(
        ((Thing.name,), [wrong, _GOOD])
        for wrong in (("n", "1"), ("d", "2020-01-01"), ("s", "\ud800"))
    ),
    *(
        ((), [wrong])
        for wrong in (
            ("-", ""),
            ("s", "x"),
            ("f", "1.5"),
            ("i", "5"),
            ("i", "0"),
            ("i", "-5"),
            ("i", str(pack(1, 102, 5))),
            ("i", str(2**62)),
            ("i", str(2**64)),
        )
    ),
    ((Thing.n,), [_GOOD]),
    ((Thing.n,), [("i", "1"), _GOOD, _GOOD]),
]


class ScatterPages:
    """The test module has fixtures ``cluster`` and ``filled``."""

    #: Random orders that are tried.
    orders = 40

    def test_every_row_once_in_order(self, filled, rng):
        with filled.session() as session:
            for _ in range(self.orders):
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
                shown = [tuple(getattr(thing, f.key) for f in some) for thing in got]
                assert _folded(shown) == _folded(keys), order

    def test_conditions_limits_and_columns(self, filled):
        made = select(Thing.name, Thing.n).where(Thing.n > 1).order_by(Thing.n.desc())
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
            (select(Thing).order_by(Thing.n.nulls_last()), "NULLS FIRST or LAST"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_statements_without_pages(self, filled, made, construct):
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

    def test_a_bookmark_is_of_one_condition(self, filled):
        made = select(Thing).order_by(Thing.n)
        alike = [
            made.where(Thing.n > 1),
            made.where(Thing.n > 2),
            made.where(Thing.n > Decimal(1)),
            made.where(Thing.name > "1"),
            made.where(Thing.n.in_([1, 2])),
            made.where(Thing.n.in_([1, 2, 3])),
            made.where(Thing.title == "x"),
            made.where(Thing.at < dt.datetime(2020, 1, 1, 2)),
            made.where(Thing.price > text("0")),
            made.where(Thing.price > text("0.00")),
            made.options(with_loader_criteria(Thing, Thing.n > 0)),
            made.join(ThingHasThings, ThingHasThings.whole_id == full_id(Thing.id)),
        ]
        with filled.session() as session:
            ids = [
                thing.id
                for thing in session.scalars(select(Thing).options(scatter()).limit(4))
            ]
            alike += [
                made.where(Thing.id.in_(ids[:2])),
                made.where(Thing.id.in_(ids[1:3])),
                made.where(Thing.id >= ids[0]),
                made.where(Thing.id >= ids[1]),
            ]
            pages = [session.scatter_page(one, 1) for one in alike]
            # Another session, as of another process: nothing of the first one
            # is part of a bookmark, nor of what else is selected.
            # As a set of texts is, in another process.
            texts = [str(number) for number in range(20)]
            first = made.where(Thing.name.in_(texts) | (Thing.n >= 0))
            again = made.where(Thing.name.in_(texts[::-1]) | (Thing.n >= 0))
            bookmark = session.scatter_page(first, 1).next
            assert session.scatter_page(again, 1, after=bookmark).items
        with filled.session() as session:
            for index, one in enumerate(alike):
                for other, page in enumerate(pages):
                    if page.next is None:
                        continue
                    if other == index:
                        session.scatter_page(one, 1, page.next)
                        continue
                    with pytest.raises(InvalidBookmarkError, match="condit"):
                        session.scatter_page(one, 1, page.next)
        assert sum(page.next is not None for page in pages) > 8

    def test_a_bookmark_is_of_one_set_of_parameters(self, filled):
        made = select(Thing).where(Thing.n > bindparam("low")).order_by(Thing.n)
        with filled.session() as session:
            page = session.scatter_page(made, 3, parameters={"low": 1})
            more = session.scatter_page(made, 3, page.next, parameters={"low": 1})
            assert len(more) == 3
            with pytest.raises(InvalidBookmarkError):
                session.scatter_page(made, 3, page.next, parameters={"low": 2})

    def test_forged_values(self, filled):
        with filled.session() as session:
            for fields, values in _FORGED:
                made = select(Thing).order_by(*fields)
                with pytest.raises(InvalidBookmarkError, match="no position"):
                    session.scatter_page(made, 5, forged(session, made, values))
            # Valid values are accepted.
            made = select(Thing).order_by(Thing.n)
            some = forged(session, made, [("i", "2"), _GOOD])
            assert session.scatter_page(made, 5, some)

    def test_forged_bytes(self, filled, rng):
        made = select(Thing).order_by(Thing.n, Thing.name.desc(), Thing.at)
        with filled.session() as session:
            good = session.scatter_page(made, 5)
            marks = StatementBookmarks(session, made, _keys(made))
            payload = session.cluster.seal.unseal(good.next, marks.subject)
            for wrong in (
                b"",
                b"?",
                b"[",
                b"[" * 5900,
                payload[:-1],
                payload + b"i",
                payload + payload[1:],
                b'["n","1e999999999"]',
            ):
                bookmark = session.cluster.seal.seal(wrong, marks.subject)
                with pytest.raises(InvalidBookmarkError):
                    session.scatter_page(made, 5, bookmark)
            for _ in range(300):
                wrong = bytearray(payload)
                for _ in range(rng.choice([1, 1, 2, 5])):
                    wrong[rng.randrange(len(wrong))] = rng.randrange(256)
                bookmark = session.cluster.seal.seal(wrong, marks.subject)
                with suppress(InvalidBookmarkError):
                    session.scatter_page(made, 5, bookmark)

    def test_clusters_with_keys(self, filled):
        made = select(Thing).order_by(Thing.n)
        old, new = "an old key of the cluster", "a new key of the cluster"
        topology = filled.topology
        marks = {}
        for keys in ([], [old], [new, old], [new]):
            with (
                Cluster.from_topology(topology, bookmark_keys=keys) as cluster,
                cluster.session() as session,
            ):
                marks[tuple(keys)] = session.scatter_page(made, 5).next
        accepted = {
            (): {()},
            (old,): {(old,)},
            (new, old): {(old,), (new, old), (new,)},
            (new,): {(new, old), (new,)},
        }
        for keys, right in accepted.items():
            with (
                Cluster.from_topology(topology, bookmark_keys=keys) as cluster,
                cluster.session() as session,
            ):
                for signed, bookmark in marks.items():
                    if signed in right:
                        assert session.scatter_page(made, 5, bookmark)
                        continue
                    with pytest.raises(
                        InvalidBookmarkError,
                        match="signed" if () in (signed, keys) else "altered",
                    ):
                        session.scatter_page(made, 5, bookmark)
                shown = f"{cluster!r} {cluster.health()} {vars(cluster)}"
                assert "key of the cluster" not in shown

    def test_values_that_have_no_text(self, filled):
        made = select(Thing).where(Thing.n > object()).order_by(Thing.n)
        with (
            filled.session() as session,
            pytest.raises(UnsupportedStatementError, match="type object"),
        ):
            session.scatter_page(made, 5)

    def test_order_by_more_than_a_url_takes(self, cluster, filled):
        made = select(Thing).order_by(
            *[Thing.title + literal("x" * i) for i in range(1, 9)]
        )
        with filled.session(cross_shard="unordered") as session:
            for title in ("😀" * 200, "😀" * 201):
                thing = random_thing(random.Random(1))
                thing.title = title
                session.add(thing)
            session.flush()
            long = made.where(func.length(Thing.title) >= 200)
            with pytest.raises(ScatterUnsupportedError, match="URL"):
                session.scatter_page(long, 1)
            session.rollback()

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
        tuple(v.rstrip(" ") if isinstance(v, str) else v for v in row) for row in rows
    ]


cluster = Clusters(PagesBase.metadata, 8).on_backend()
filled = things()
