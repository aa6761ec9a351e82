"""What readers and writers of the cache of sessions share: few rows."""

from __future__ import annotations

from typing import Any

from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.orm import Mapped
from sqlalchemy.orm import mapped_column

from sqla_shard import blob_field
from sqla_shard import Cluster
from sqla_shard import MappingMixin
from sqla_shard import ObjectMixin
from sqla_shard.cache import Cached

__all__ = [
    "PIN",
    "REGION",
    "SHARDS",
    "Bag",
    "Base",
    "Board",
    "Item",
    "Marks",
    "Pin",
    "cached_classes",
    "prepare",
]

PIN = 1
SHARDS = 4
REGION = "checked"


class Base(DeclarativeBase):
    pass


class Pin(ObjectMixin, Base, type_id=PIN):
    """Its version is the sum of both, which only grow."""

    __tablename__ = "cache_pins"
    version: Mapped[int] = mapped_column(default=1)
    flushed: Mapped[int] = blob_field(default=0)


class Item(ObjectMixin, Base, type_id=2):
    """Comes, and goes for good."""

    __tablename__ = "cache_items"
    mark: Mapped[str] = mapped_column(String(40), index=True)


class Board(ObjectMixin, Base, type_id=3):
    """Has lists."""

    __tablename__ = "cache_boards"
    title: Mapped[str] = blob_field(default="")


class Bag(MappingMixin, Base, source=Board, target=Pin):
    """Targets come, and go for good."""

    __tablename__ = "cache_bags"


class Marks(MappingMixin, Base, source=Board, target=Pin):
    """Target 0 moves up; the number of that behind it is the version."""

    __tablename__ = "cache_marks"


def cached_classes() -> dict[Any, Any]:
    """Return what ``configure_cache`` takes; lists are whole at times."""
    lists = Cached(region=REGION, rows=8)
    return {Pin: REGION, Item: REGION, Bag: lists, Marks: lists}


def prepare(cluster: Cluster) -> tuple[list[int], list[int]]:
    """Make tables and rows; return the ids of pins and of boards."""
    from tests.shared.cache_session_work import target

    cluster.create_all(Base.metadata)
    pins, boards = [], []
    for shard_id in range(SHARDS):
        with cluster.begin(shard_id=shard_id) as session:
            pin, board = Pin(), Board()
            session.add_all([pin, board])
            session.flush()
            pins.append(pin.id)
            if shard_id % 2:
                Marks.append_many(session, board.id, [target(1), target(0)])
                boards.append(board.id)
    return pins, boards
