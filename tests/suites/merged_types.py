"""Columns of kinds that few applications have, over shards."""

from __future__ import annotations

import uuid

import pytest
from sqlalchemy import (
    cast,
    Column,
    distinct,
    func,
    insert,
    Integer,
    MetaData,
    select,
    String,
    Table,
    Uuid,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_shard import scatter, SCHEMA
from sqla_shard.exc import ScatterUnsupportedError
from sqla_shard.types import ShardedId
from tests.models.clusters import PINS
from tests.models.layouts import LAYOUT, pack

STAMP = 21
_SHARDS = (0, 1, 17, 31)


class _Base(DeclarativeBase):
    id_layout = LAYOUT


class Stamp(_Base):
    __tablename__ = "stamps"

    id: Mapped[int] = mapped_column("local_id", ShardedId(STAMP), primary_key=True)
    code: Mapped[uuid.UUID | None] = mapped_column(Uuid)
    letters: Mapped[uuid.UUID | None] = mapped_column(Uuid(native_uuid=False))
    year: Mapped[int | None] = mapped_column(
        Integer().with_variant(mysql.YEAR(), "mysql", "mariadb")
    )
    bits: Mapped[int | None] = mapped_column(
        Integer().with_variant(mysql.BIT(9), "mysql", "mariadb")
    )


cluster = PINS.on_backend()


@pytest.fixture(scope="module")
def filled(cluster):
    """Add rows, two of each value, on different shards."""
    cluster.create_all(_Base.metadata)
    values = [
        (uuid.uuid5(uuid.NAMESPACE_DNS, str(k)), 1970 + 9 * k, 37 * k)
        for k in range(10)
    ]
    rows = [*values, *values[::-1], (None, None, None)]
    with cluster.begin(cross_shard="unordered") as session:
        for at, (code, year, bits) in enumerate(rows):
            shard = _SHARDS[at % 4]
            session.add(
                Stamp(
                    id=pack(shard, STAMP, at + 1),
                    code=code,
                    letters=code,
                    year=year,
                    bits=bits,
                )
            )
    return values


#: SQLite has no SET.
_TAGGED = Table(
    "tagged",
    MetaData(),
    Column("local_id", ShardedId(STAMP), primary_key=True),
    Column("tags", mysql.SET("x", "a", "m")),
    schema=SCHEMA,
)


class MergedTypes:
    @pytest.mark.parametrize("at", [1, 2])
    def test_numbers(self, cluster, filled, at):
        column = (None, Stamp.year, Stamp.bits)[at]
        wanted = sorted(value[at] for value in filled)
        with cluster.session() as session:
            made = select(column).order_by(column).options(scatter())
            twice = [value for value in wanted for _ in range(2)]
            assert session.scalars(made).all() == [None, *twice]
            down = select(column).order_by(column.desc()).limit(5)
            found = session.scalars(down.options(scatter())).all()
            assert found == twice[::-1][:5]
            self._are_distinguished(session, column, wanted)

    def test_uuids(self, cluster, filled):
        wanted = sorted((value[0] for value in filled), key=str)
        twice = [value for value in wanted for _ in range(2)]
        with cluster.session() as session:
            made = select(Stamp.letters).order_by(Stamp.letters)
            found = session.scalars(made.options(scatter())).all()
            assert found == [None, *twice]
            spelled = select(Stamp.code).order_by(cast(Stamp.code, String(36)))
            found = session.scalars(spelled.options(scatter())).all()
            assert found == [None, *twice]
            for column in (Stamp.code, Stamp.letters):
                self._are_distinguished(session, column, wanted)

    def _are_distinguished(self, session, column, wanted):
        groups = select(column, func.count()).group_by(column)
        found = session.execute(groups.options(scatter())).all()
        assert {row[0]: row[1] for row in found} == {
            None: 1,
            **dict.fromkeys(wanted, 2),
        }
        assert len(found) == 11
        alike = select(column).distinct().options(scatter())
        assert len(session.scalars(alike).all()) == 11
        counted = select(func.count(distinct(column))).options(scatter())
        assert session.scalar(counted) == 10


# MySQL has no such types.
@pytest.mark.only_on("mariadb")
class MergedTypesOfMariaDB:
    """Types that only MariaDB has."""

    def test_its_own_uuids_are_sorted_in_an_order_of_its_own(self, cluster, filled):
        made = select(Stamp.id).order_by(Stamp.code).options(scatter())
        with (
            cluster.session() as session,
            pytest.raises(ScatterUnsupportedError, match=r"String\(36\)"),
        ):
            session.execute(made)

    def test_sets(self, cluster):
        cluster.create_all(_TAGGED.metadata)
        tags = _TAGGED.c.tags
        # In the order of their bits.
        wanted = [set(), {"x"}, {"a"}, {"m"}, {"a", "m"}, {"x", "a", "m"}]
        with cluster.session(cross_shard="unordered") as session:
            session.execute(
                insert(_TAGGED),
                [
                    {"local_id": pack(_SHARDS[k % 4], STAMP, k + 1), "tags": t}
                    for k, t in enumerate([*wanted, *wanted[::-1]])
                ],
            )
            made = select(tags).order_by(tags).options(scatter())
            found = session.scalars(made).all()
            assert found == [one for one in wanted for _ in range(2)]
            groups = select(tags, func.count()).group_by(tags).order_by(tags)
            found = session.execute(groups.options(scatter())).all()
            assert found == [(one, 2) for one in wanted]
            with pytest.raises(ScatterUnsupportedError, match=r"cast\(\)"):
                session.execute(select(func.max(tags)).options(scatter()))
            session.rollback()
