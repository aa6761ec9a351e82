"""Lists whose sources and targets are in different keyspaces."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import DeclarativeBase, Mapped, selectinload

from sqla_shard import blob_field, Cluster, exc, MappingMixin, ObjectMixin, pack
from sqla_shard.testing import sqlite_topology
from tests.models.clusters import ShardLog


class Base(DeclarativeBase):
    pass


class BoardHasPins(
    MappingMixin, Base, source="Board", target="Pin", keyspace="objects"
):
    """Comes before its classes, so it says its keyspace."""


class Board(ObjectMixin, Base, type_id=2, keyspace="objects"):
    __tablename__ = "boards"
    title: Mapped[str] = blob_field()


class Pin(ObjectMixin, Base, type_id=1, keyspace="far"):
    __tablename__ = "pins"
    title: Mapped[str] = blob_field()


class PinHasBoards(MappingMixin, Base, source=Pin, target=Board):
    """The other way round."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: Any) -> Iterator[Cluster]:
    document = sqlite_topology(tmp_path_factory.mktemp("spaces"), 2, 8)
    far = deepcopy(document["keyspaces"]["objects"])
    far["database"] = "far{shard:05d}"
    far["shards"] = 4
    far["servers"] = far["servers"][:1]
    document["keyspaces"]["far"] = far
    with Cluster.from_topology(document) as cluster:
        cluster.create_all(Base.metadata)
        yield cluster


def stored(cluster, made, shard_id):
    with cluster.begin(shard_id=shard_id) as session:
        session.add(made)
        session.flush()
        return made.id


def test_a_list_is_where_its_source_is(cluster):
    board = stored(cluster, Board(title="b"), 7)
    added = [stored(cluster, Pin(title=f"{i}"), i) for i in range(4)]
    with cluster.begin() as session, ShardLog() as log:
        assert BoardHasPins.append_many(session, board, added) == added
        BoardHasPins.move(session, board, added[3], before=added[0])
        assert set(log.take()) == {7}
    with cluster.session() as session:
        page = BoardHasPins.page(session, board, targets=True)
        assert [row.target.title for row in page] == ["2", "1", "0", "3"]
        pages = BoardHasPins.pages(session, [board], targets=True)
        assert [row.target.title for row in pages[board]] == list("2103")
    with cluster.session() as session:
        rows = session.scalars(
            select(BoardHasPins)
            .where(BoardHasPins.board_id == board)
            .options(selectinload(BoardHasPins.target))
        )
        assert {row.target.id for row in rows} == set(added)


def test_the_other_way_round(cluster):
    board = stored(cluster, Board(title="b"), 7)
    pin = stored(cluster, Pin(title="p"), 3)
    with cluster.begin() as session:
        PinHasBoards.append(session, pin, board)
        (row,) = PinHasBoards.page(session, pin, targets=True)
        assert row.target.title == "b"
        assert row.source.title == "p"


def test_shards_of_each_keyspace(cluster):
    board, pin = pack(7, 2, 1), pack(7, 1, 1)
    with cluster.begin() as session:
        with pytest.raises(exc.UnknownShardError):
            BoardHasPins.append(session, board, pin)
        with pytest.raises(exc.UnknownShardError):
            PinHasBoards.append(session, pin, board)
        with pytest.raises(exc.UnknownShardError):
            PinHasBoards.count(session, pin)
