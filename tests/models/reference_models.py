"""Reference classes, objects that refer to them, and clusters with both."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Date, ForeignKey, JSON, Numeric, select, SmallInteger, String
from sqlalchemy.orm import DeclarativeBase, foreign, Mapped, mapped_column, relationship

from sqla_shard import blob_field, Cluster, ObjectMixin, ReferenceMixin, ShardSession
from tests.models.backends import Clusters

SHARDS = 8


class Base(DeclarativeBase):
    pass


class Country(ReferenceMixin, Base):
    code: Mapped[str] = mapped_column(String(2), primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    area: Mapped[Decimal | None] = mapped_column(Numeric(10, 2))
    tags: Mapped[Any] = mapped_column("labels", JSON, default=list)


class Rate(ReferenceMixin, Base):
    """With a key of two columns, and nothing else."""

    __tablename__ = "rates"
    level: Mapped[int] = mapped_column(SmallInteger, primary_key=True)
    since: Mapped[date] = mapped_column(Date, primary_key=True)


class User(ObjectMixin, Base, type_id=3):
    __tablename__ = "users"
    name: Mapped[str] = blob_field()
    country_code: Mapped[str | None] = mapped_column(String(2))
    country: Mapped[Country | None] = relationship(
        primaryjoin=lambda: foreign(User.country_code) == Country.code
    )


class Shop(ObjectMixin, Base, type_id=4, colocate_with="user_id"):
    """With a foreign key."""

    __tablename__ = "shops"
    user_id: Mapped[int] = blob_field(ref=User)
    country_code: Mapped[str] = mapped_column(ForeignKey("country.code"))
    country: Mapped[Country] = relationship()


COUNTRIES: list[dict[str, Any]] = [
    {"code": "de", "name": "Germany", "area": Decimal("357.60")},
    {"code": "fr", "name": "France", "area": None, "tags": ["eu", {"a": 1}]},
    {"code": "no", "name": "Norway % ? 'quoted' \\ ∅"},
]


def contents(cluster: Cluster, cls: Any) -> list[list[tuple[Any, ...]]]:
    """Return the rows of each shard, as the shard itself has them."""
    table = cls.__table__
    found = []
    for shard_id in range(cluster.topology.keyspace("objects").shards):
        with cluster.session() as session:
            rows = session.execute(
                select(table).order_by(*table.primary_key),
                bind_arguments={"shard_id": shard_id},
            ).all()
        found.append([tuple(row) for row in rows])
    return found


def spoil(cluster: Cluster, shard_id: int, text: str) -> None:
    """Change something on one shard, past all that would refuse it."""
    with cluster.begin() as session:
        session.connection({"shard_id": shard_id}).exec_driver_sql(text)


#: Clusters with these tables.
REFERENCES = Clusters(Base.metadata, SHARDS)


class Suite:
    """The test module has a fixture ``cluster``."""

    @pytest.fixture(autouse=True)
    def countries(self, cluster: Cluster) -> None:
        with cluster.begin(cross_shard="unordered") as session:
            for shard_id in range(SHARDS):
                place = {"shard_id": shard_id}
                for table in (Shop, User, Country, Rate):
                    session.connection(place).execute(table.__table__.delete())
        Country.replace(cluster, COUNTRIES)

    @pytest.fixture
    def session(self, cluster: Cluster) -> Iterator[ShardSession]:
        with cluster.session() as session:
            yield session

    def new_user(self, cluster: Cluster, shard_id: int, code: str | None) -> int:
        """Insert a user on a shard; return the id."""
        with cluster.begin(shard_id=shard_id) as session:
            user = User(name=f"{code}{shard_id}", country_code=code)
            session.add(user)
            session.flush()
            return user.id
