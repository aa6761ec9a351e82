"""Models of the readers and writers in tests of the sessions' cache."""

from __future__ import annotations

from typing import Any

from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_shard import blob_field, Cluster, MappingMixin, no_cache, ObjectMixin
from sqla_shard.cache import Cached, cached_objects
from tests.models.layouts import LAYOUT

PIN = 1
SHARDS = 4
REGION = "checked"
#: Of pins on two servers.
PAIRS = 8


class Base(DeclarativeBase):
    id_layout = LAYOUT


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


@cached_objects(REGION, format="sums:%s")
def sums(session: Any, names: list[str]) -> dict[str, int]:
    """Return the sums of the versions of pins, whose ids have commas."""
    found = {}
    for name in names:
        ids = [int(one) for one in name.split(",")]
        pins = session.get_many(Pin, ids, options=[no_cache()])
        found[name] = sum(pin.version + pin.flushed for pin in pins)
    return found


def prepare(cluster: Cluster) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """Make tables and rows.

    :returns: the ids of pins and of boards; and those of pins on the first
        server and on the last, by twos.
    """
    from tests.servers.cache_session_work import target

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
    pairs = []
    for _ in range(PAIRS):
        both = []
        for shard_id in (0, SHARDS - 1):
            with cluster.begin(shard_id=shard_id) as session:
                pin = Pin()
                session.add(pin)
                session.flush()
                both.append(pin.id)
        pairs.append((both[0], both[1]))
    return pins, boards, pairs
