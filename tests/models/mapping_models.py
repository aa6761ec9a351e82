"""Classes with ordered lists, and clusters that have their tables."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_shard import blob_field, Cluster, MappingMixin, ObjectMixin
from tests.models.backends import Clusters
from tests.models.clusters import ShardLog
from tests.models.layouts import LAYOUT, pack

PIN, BOARD, USER = 1, 2, 3
SHARDS = 64


class Base(DeclarativeBase):
    id_layout = LAYOUT


class UserFollowsUser(
    MappingMixin,
    Base,
    source="User",
    target="User",
    source_column="follower_id",
    target_column="followee_id",
):
    """Given by name, before the class is there."""


class User(ObjectMixin, Base, type_id=USER):
    __tablename__ = "users"
    name: Mapped[str] = blob_field()


class Board(ObjectMixin, Base, type_id=BOARD):
    __tablename__ = "boards"
    title: Mapped[str] = blob_field()


class Pin(ObjectMixin, Base, type_id=PIN):
    __tablename__ = "pins"
    title: Mapped[str] = blob_field()


class BoardHasPins(MappingMixin, Base, source=Board, target=Pin):
    pass


class BoardHasRatedPins(MappingMixin, Base, source=Board, target=Pin):
    """With columns of its own."""

    stars: Mapped[int] = mapped_column(default=3)
    remark: Mapped[str | None] = mapped_column("note", String(40))


class NarrowList(
    MappingMixin, Base, source=Board, target=Pin, respace_to=2, narrow_below=2
):
    """Is re-spaced often."""


_numbers = itertools.count(1000)


def pins(count: int, shards: int = SHARDS) -> list[int]:
    """Return ids of pins that were never inserted, on many shards."""
    return [
        pack(number % shards, PIN, number)
        for number in itertools.islice(_numbers, count)
    ]


def new_board(cluster: Cluster, shard_id: int = 5) -> int:
    """Insert a board and return its id."""
    with cluster.begin(shard_id=shard_id) as session:
        board = Board(title="Boats")
        session.add(board)
        session.flush()
        return board.id


def new_pins(cluster: Cluster, count: int, shards: int = SHARDS) -> list[int]:
    """Insert pins, each on another shard, and return their ids."""
    found = []
    for shard_id in range(count):
        with cluster.begin(shard_id=shard_id % shards) as session:
            pin = Pin(title=f"pin {shard_id}")
            session.add(pin)
            session.flush()
            found.append(pin.id)
    return found


def put(cluster: Cluster, cls: Any, source_id: int, rows: dict[int, int]) -> None:
    """Insert rows with these sequences."""
    definition = cls.__sqla_shard_mapping__
    with cluster.begin() as session:
        session.add_all(
            cls(
                **{
                    definition.source.column: source_id,
                    definition.target.column: target_id,
                    "sequence": sequence,
                }
            )
            for target_id, sequence in rows.items()
        )


def shown(cluster: Cluster, cls: Any, source_id: int) -> list[int]:
    """Return the ids of a list, newest first, as committed."""
    with cluster.session() as session:
        name = cls.__sqla_shard_mapping__.target.column
        return [getattr(row, name) for row in cls.iterate(session, source_id)]


def sequences(cluster: Cluster, cls: Any, source_id: int) -> dict[int, int]:
    """Return the sequences of a list by target, newest first."""
    with cluster.session() as session:
        name = cls.__sqla_shard_mapping__.target.column
        return {
            getattr(row, name): row.sequence for row in cls.iterate(session, source_id)
        }


class Suite:
    """The test module has a fixture ``cluster``."""

    @pytest.fixture
    def session(self, cluster):
        with cluster.session() as session:
            yield session

    @pytest.fixture
    def log(self, session):
        with ShardLog() as log:
            yield log

    @pytest.fixture
    def board(self, cluster):
        return new_board(cluster)


#: Clusters with these tables.
LISTS = Clusters(Base.metadata, SHARDS)
lists_on_sqlite = LISTS.on_sqlite
lists_on_servers = LISTS.on_servers
