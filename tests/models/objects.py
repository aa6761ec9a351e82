"""The classes of the suites."""

from __future__ import annotations

import dataclasses
import enum
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from sqla_shard import blob_field, ObjectMixin
from sqla_shard.types import JSONBlob, ShardedId
from tests.models.layouts import LAYOUT

THING, PART, SMALL, PIN, BOARD, RENAMED = 4, 6, 7, 1, 2, 8


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2**40


class Mixed(enum.Enum):
    TEXT = "1"
    NUMBER = 1
    FLAG = False


@dataclasses.dataclass
class Size:
    w: int
    h: int = 3


@dataclasses.dataclass(frozen=True)
class Point:
    x: float
    y: float = 0.0
    labels: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Shape:
    name: str
    sizes: list[Size] = dataclasses.field(default_factory=list)
    origin: Point | None = None
    made: datetime | None = None


class Base(DeclarativeBase):
    id_layout = LAYOUT


class Thing(ObjectMixin, Base, type_id=THING):
    """A root with a field of every type, and two ordinary columns."""

    __tablename__ = "things"

    text: Mapped[str] = blob_field(default="")
    note: Mapped[str | None] = blob_field(default=None)
    count: Mapped[int] = blob_field(default=0)
    ratio: Mapped[float] = blob_field(default=0.0)
    flag: Mapped[bool] = blob_field(default=True)
    price: Mapped[Decimal | None] = blob_field(default=None)
    at: Mapped[datetime | None] = blob_field(default=None)
    day: Mapped[date | None] = blob_field(default=None)
    uid: Mapped[UUID | None] = blob_field(default=None)
    color: Mapped[Color] = blob_field(default=Color.RED)
    level: Mapped[Level | None] = blob_field(default=None)
    mixed: Mapped[Mixed | None] = blob_field(default=None)
    mode: Mapped[Literal["a", "b"]] = blob_field(default="a")
    limit: Mapped[int | None] = blob_field(default=10)
    size: Mapped[Size | None] = blob_field(default=None)
    point: Mapped[Point | None] = blob_field(default=None)
    shape: Mapped[Shape | None] = blob_field(default=None)
    tags: Mapped[list[str]] = blob_field(default_factory=list)
    scores: Mapped[dict[str, int]] = blob_field(default_factory=dict)
    times: Mapped[list[datetime]] = blob_field(default_factory=list)
    prices: Mapped[dict[str, Decimal]] = blob_field(default_factory=dict)
    sizes: Mapped[list[Size]] = blob_field(default_factory=list)
    free: Mapped[Any] = blob_field(default=None)
    tree: Mapped[dict[str, Any]] = blob_field(default_factory=dict)

    kind: Mapped[str | None] = mapped_column(String(20))
    rank: Mapped[int | None]

    parts: Mapped[list[Part]] = relationship(back_populates="thing", order_by="Part.id")


class Part(ObjectMixin, Base, type_id=PART, colocate_with="thing_id"):
    """A child with an ordinary foreign key."""

    __tablename__ = "parts"

    thing_id: Mapped[int] = mapped_column(
        ShardedId(THING), ForeignKey("things.local_id")
    )
    name: Mapped[str] = blob_field()
    thing: Mapped[Thing] = relationship(back_populates="parts")


class Board(ObjectMixin, Base, type_id=BOARD):
    """A root with a required field."""

    __tablename__ = "boards"

    title: Mapped[str] = blob_field()


class Pin(ObjectMixin, Base, type_id=PIN, colocate_with="board_id"):
    """A child whose parent's id is in the blob."""

    __tablename__ = "pins"

    board_id: Mapped[int] = blob_field(ref=Board)
    link: Mapped[str] = blob_field()
    seen_with: Mapped[int | None] = blob_field(ref="Pin", default=None)


class Renamed(ObjectMixin, Base, type_id=RENAMED, colocate_with="home_id"):
    """Its fields had other names once."""

    __tablename__ = "renamed"

    home_id: Mapped[int] = blob_field(ref=Board, aliases=("board", "parent id"))
    title: Mapped[str] = blob_field(
        default="untitled", aliases=("it's 100% \\ `old`?", "%s :x {0}")
    )
    size: Mapped[int | None] = blob_field(default=None, aliases=("größe 😀",))
    tags: Mapped[list[str]] = blob_field(default_factory=list, aliases=("labels",))
    times: Mapped[list[datetime]] = blob_field(
        default_factory=list, aliases=("moments",)
    )


class Small(ObjectMixin, Base, type_id=SMALL, max_bytes=200):
    """A blob that is soon too large."""

    __tablename__ = "small"

    text: Mapped[str] = blob_field(default="")


class Draft(Base):
    """A plain model with a blob of its own."""

    __tablename__ = "drafts"

    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str] = mapped_column(String(50))
    body: Mapped[dict[str, Any] | None] = mapped_column(JSONBlob())
    small: Mapped[dict[str, Any] | None] = mapped_column(JSONBlob(100))
