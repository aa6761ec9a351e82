"""Bulk statements whose autoflush writes link tables of the global keyspace.

On a server that has a shard and that keyspace: they share its connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Column, ForeignKey, insert, select, Table, update
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from sqla_shard import Cluster, ObjectMixin
from sqla_shard.testing.server_fleet import ServerFleet

pytestmark = pytest.mark.live


class Base(DeclarativeBase):
    pass


LINKS = Table(
    "links",
    Base.metadata,
    Column("page_id", ForeignKey("pages.id"), primary_key=True),
    Column("label_id", ForeignKey("labels.id"), primary_key=True),
)


class Label(Base):
    __tablename__ = "labels"
    id: Mapped[int] = mapped_column(primary_key=True)


class Page(Base):
    __tablename__ = "pages"
    id: Mapped[int] = mapped_column(primary_key=True)
    labels: Mapped[list[Label]] = relationship(secondary=LINKS)


class Pin(ObjectMixin, Base, type_id=1):
    __tablename__ = "pins"
    n: Mapped[int]


@pytest.fixture
def cluster(fleet: ServerFleet[Any]) -> Iterator[Cluster]:
    document = fleet.topology_mapping(
        shards=4, database="db_links{shard:05d}", main="db_links_main"
    )
    with Cluster.from_topology(document, environ=fleet.environ) as cluster:
        cluster.create_all(Base.metadata)
        yield cluster
    fleet.drop_databases(document)


def test_rows_are_where_they_belong(cluster: Cluster) -> None:
    with cluster.begin(cross_shard="unordered") as session:
        pins = [Pin(n=0, shard_id=shard) for shard in range(4)]
        session.add_all([*pins, Page(id=1), Label(id=2)])
        session.flush()
        ids = [pin.id for pin in pins]
    with cluster.begin(cross_shard="unordered") as session:
        page = session.get_one(Page, 1)
        for number, ident in enumerate(ids, 1):
            page.labels = [session.get_one(Label, 2)] if number % 2 else []
            session.execute(update(Pin), [{"id": ident, "n": number}])
            page.labels = [] if number % 2 else [session.get_one(Label, 2)]
            session.execute(insert(Pin), [{"n": 5, "shard_id": number - 1}])
    with cluster.session() as session:
        assert [pin.n for pin in session.get_many(Pin, ids)] == [1, 2, 3, 4]
        assert session.scalars(select(LINKS.c.label_id)).all() == [2]
