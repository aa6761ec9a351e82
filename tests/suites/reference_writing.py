"""Writing reference tables: the one way, and those that are refused."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from sqla_shard import Cluster
from sqla_shard.exc import (
    ReferenceIncompleteError,
    ReferenceRowsError,
    ReferenceSizeError,
    ReferenceWriteError,
)
from tests.models.layouts import pack
from tests.models.reference_models import (
    contents,
    COUNTRIES,
    Country,
    Rate,
    SHARDS,
    Shop,
    spoil,
    Suite,
    User,
)


def same(cluster: Cluster, cls: Any) -> list[tuple[Any, ...]]:
    """Return the rows, which all shards have."""
    first, *others = contents(cluster, cls)
    assert all(other == first for other in others)
    return first


class Written(Suite):
    """The test module has a fixture ``cluster``."""

    def test_everywhere(self, cluster: Cluster) -> None:
        rows = same(cluster, Country)
        assert rows == [
            ("de", "Germany", Decimal("357.60"), []),
            ("fr", "France", None, ["eu", {"a": 1}]),
            ("no", "Norway % ? 'quoted' \\ ∅", None, []),
        ]

    def test_replaced(self, cluster: Cluster) -> None:
        se = Country(code="se", name="Sweden")
        Country.replace(cluster, [COUNTRIES[0] | {"name": "D"}, se])
        assert [row[:2] for row in same(cluster, Country)] == [
            ("de", "D"),
            ("se", "Sweden"),
        ]
        Country.replace(cluster, [])
        assert same(cluster, Country) == []

    def test_rows_that_were_read_are_written_again(self, cluster: Cluster) -> None:
        before = same(cluster, Country)
        with cluster.session() as session:
            every = session.scalars(select(Country)).all()
            session.expire(every[0])
            Country.replace(cluster, every)
        assert same(cluster, Country) == before

    def test_some(self, cluster: Cluster) -> None:
        Country.upsert(
            cluster, [{"code": "fr", "name": "F"}, {"code": "se", "name": "S"}]
        )
        assert [row[:2] for row in same(cluster, Country)] == [
            ("de", "Germany"),
            ("fr", "F"),
            ("no", COUNTRIES[2]["name"]),
            ("se", "S"),
        ]
        with pytest.raises(ReferenceRowsError, match="a list"):
            Country.delete(cluster, "fr")
        Country.delete(cluster, ["fr", "de", "xx"])
        assert [row[0] for row in same(cluster, Country)] == ["no", "se"]

    def test_keys_of_two_columns(self, cluster: Cluster) -> None:
        days = [date(2026, month, 1) for month in range(1, 13)]
        Rate.replace(
            cluster, [{"level": i, "since": day} for i in range(99) for day in days]
        )
        assert len(same(cluster, Rate)) == 99 * 12
        Rate.delete(cluster, [(i, day) for i in range(1, 99) for day in days])
        assert same(cluster, Rate) == [(0, day) for day in days]
        Rate.upsert(cluster, [{"level": 0, "since": days[0]}])
        assert len(same(cluster, Rate)) == 12
        with cluster.session() as session:
            assert session.get(Rate, (0, days[3])) is not None

    def test_only_differences_are_written(self, cluster: Cluster) -> None:
        user = self.new_user(cluster, 3, "de")
        with cluster.begin() as session:
            session.add(Shop(user_id=user, country_code="de"))
        # With its foreign key, a shard refuses to have the row deleted.
        Country.upsert(cluster, [COUNTRIES[0] | {"name": "D"}])
        assert same(cluster, Country)[0][1] == "D"
        with pytest.raises(ReferenceIncompleteError) as caught:
            Country.delete(cluster, ["de"])
        assert list(caught.value.errors) == [3]
        assert isinstance(caught.value.errors[3], IntegrityError)
        assert len(caught.value.done) == SHARDS - 1
        Country.upsert(cluster, [COUNTRIES[0]])
        assert len(same(cluster, Country)) == 3

    def test_damaged_rows_are_repaired(self, cluster: Cluster) -> None:
        before = same(cluster, Country)
        spoil(cluster, 2, "DELETE FROM country")
        spoil(cluster, 5, "UPDATE country SET name = 'x', area = 1")
        spoil(cluster, 7, "UPDATE country SET code = 'xx' WHERE code = 'de'")
        Country.upsert(cluster, [])
        assert same(cluster, Country) == before

    def test_with_asyncio(self, cluster: Cluster) -> None:
        async def main() -> None:
            await Country.async_upsert(cluster, [{"code": "x", "name": "X"}])
            await Country.async_delete(cluster, ["de", "no"])
            async with cluster.async_session() as session:
                found = await session.scalars(
                    select(Country.code).order_by(Country.code)
                )
                assert found.all() == ["fr", "x"]
                one = await session.get(Country, "x")
                assert one is not None
                assert one.name == "X"
            await asyncio.gather(
                *(
                    Country.async_replace(cluster, [{"code": code, "name": code}])
                    for code in "abc"
                )
            )

        asyncio.run(main())
        ((code, name, *_),) = same(cluster, Country)
        assert code == name
        assert code in "abc"


class Refused(Suite):
    """The test module has a fixture ``cluster``."""

    def test_the_unit_of_work(self, cluster: Cluster) -> None:
        with cluster.session() as session:
            session.add(Country(code="xx", name="X"))
            with pytest.raises(ReferenceWriteError) as caught:
                session.flush()
            assert caught.value.reference == "Country"
            assert "Country.replace(" in str(caught.value)
        with cluster.session() as session:
            session.get_one(Country, "de").name = "D"
            with pytest.raises(ReferenceWriteError):
                session.commit()
        with cluster.session() as session:
            session.delete(session.get_one(Country, "de"))
            with pytest.raises(ReferenceWriteError):
                session.flush()
        with cluster.session() as session:
            session.merge(Country(code="de", name="D"))
            with pytest.raises(ReferenceWriteError):
                session.flush()
        with cluster.session() as session:
            session.add(User(name="x", country=Country(code="x", name="X")))
            with pytest.raises(ReferenceWriteError):
                session.flush()
        assert same(cluster, Country)[0][1] == "Germany"

    def test_an_object_takes_one_that_is_there(self, cluster: Cluster) -> None:
        with cluster.begin() as session:
            user = User(name="x", country=session.get_one(Country, "no"))
            session.add(user)
            session.flush()
            assert user.country_code == "no"

    @pytest.mark.parametrize("arguments", [{}, {"shard_id": 3}])
    def test_statements(self, cluster: Cluster, arguments: Any) -> None:
        table = Country.__table__
        row = {"code": "x", "name": "X", "labels": []}
        # As on MySQL, where it sets columns of joined tables.
        mine = update(User.__table__).where(
            User.country_code == table.c.code, User.id == pack(3, 3, 1)
        )
        some: Any
        for some, *rows in (
            (insert(Country), [{"code": "x", "name": "X"}]),
            (insert(table), row),
            (insert(table).values(row),),
            (insert(table).from_select(["code"], select(User.country_code)),),
            (update(Country).values(name="X"),),
            (update(Country), [{"code": "de", "name": "X"}]),
            (update(table).where(table.c.code == "de").values(name="X"),),
            (mine.values({Country.__table__.c.name: "X"}),),
            (mine.ordered_values((Country.__table__.c.name, "X")),),
            (delete(Country),),
            (delete(table).where(table.c.code == "de"),),
        ):
            with cluster.begin() as session, pytest.raises(ReferenceWriteError):
                session.execute(some, *rows, bind_arguments=dict(arguments))
        assert len(same(cluster, Country)) == 3

    @pytest.mark.parametrize(
        ("rows", "reason"),
        [
            ([{"code": "a", "nome": "A"}], "'nome' is not one of code, name"),
            ([{"code": "a", "labels": 1}], "'labels' is not one of"),
            ([{"name": "A"}], "its key is NULL"),
            ([Country(name="A")], "its key is NULL"),
            ([{"code": "a"}, Country(code="a")], "two of the rows"),
            (["a"], "a mapping or an object"),
        ],
    )
    def test_rows(self, cluster: Cluster, rows: Any, reason: str) -> None:
        for method in (Country.replace, Country.upsert):
            with pytest.raises(ReferenceRowsError) as caught:
                method(cluster, rows)
            assert reason in str(caught.value)

    def test_keys(self, cluster: Cluster) -> None:
        for cls, key in ((Country, ("a", "b")), (Country, None), (Rate, 1)):
            with pytest.raises(ReferenceRowsError):
                cls.delete(cluster, [key])

    def test_too_many(self, cluster: Cluster) -> None:
        many = [{"level": i, "since": date(2026, 1, 1)} for i in range(10_001)]
        with pytest.raises(ReferenceSizeError) as caught:
            Rate.replace(cluster, many)
        assert (caught.value.rows, caught.value.most) == (10_001, 10_000)
        Rate.replace(cluster, [{"level": 1, "since": date(2025, 1, 1)}])
        with pytest.raises(ReferenceSizeError):
            Rate.upsert(cluster, many[1:])
        assert len(same(cluster, Rate)) == 1

    def test_refusals_of_the_lowest_shard(self, cluster: Cluster) -> None:
        before = same(cluster, Country)
        with pytest.raises(IntegrityError):
            Country.upsert(cluster, [{"code": "a"}])
        assert same(cluster, Country) == before


def together(jobs: Sequence[Callable[[], Any]]) -> list[Any]:
    """Begin jobs at the same moment; return what each has returned."""
    barrier = threading.Barrier(len(jobs))

    def begin(job: Callable[[], Any]) -> Any:
        barrier.wait(60)
        return job()

    with ThreadPoolExecutor(len(jobs)) as executor:
        return list(executor.map(begin, jobs))


class Racing(Suite):
    """The test module has a fixture ``cluster``."""

    rounds = 5

    @pytest.mark.parametrize("start", ["empty", "full"])
    def test_all_shards_end_equal(
        self, cluster: Cluster, rng: random.Random, start: str
    ) -> None:
        writers = 3
        sets = [
            [
                {"code": f"{i:02d}", "name": f"{writer}-{rng.random()}"}
                for i in rng.sample(range(30), rng.randrange(1, 20))
            ]
            for writer in range(writers)
        ]
        for _ in range(self.rounds):
            if start == "empty":
                Country.replace(cluster, [])
            assert together(
                [partial(Country.replace, cluster, rows) for rows in sets]
            ) == [None] * len(sets)
            found = {row[0]: row[1] for row in same(cluster, Country)}
            assert found in [{r["code"]: r["name"] for r in s} for s in sets]
