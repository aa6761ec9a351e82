"""Models with every kind of column, key and default that revisions show."""

from __future__ import annotations

import enum
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from sqlalchemy import (
    CHAR,
    Computed,
    DateTime,
    Double,
    Enum,
    false,
    ForeignKey,
    func,
    Index,
    JSON,
    LargeBinary,
    Numeric,
    SmallInteger,
    String,
    Text,
    text,
    true,
    UniqueConstraint,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_shard import (
    blob_field,
    JSONBlob,
    MappingMixin,
    ObjectMixin,
    ObjectRef,
    Sequence38,
    ShardedId,
)
from sqla_shard.types import UTCTimestamp


class Base(DeclarativeBase):
    pass


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Thing(ObjectMixin, Base, type_id=4):
    __tablename__ = "things"

    name: Mapped[str] = blob_field()
    title: Mapped[str] = mapped_column(String(50), server_default="it's %s")
    empty: Mapped[str] = mapped_column(String(5), server_default="")
    code: Mapped[str | None] = mapped_column(CHAR(7))
    count: Mapped[int] = mapped_column(server_default="3", index=True)
    small: Mapped[int] = mapped_column(SmallInteger, server_default=text("0"))
    on: Mapped[bool] = mapped_column(server_default=true())
    off: Mapped[bool] = mapped_column(server_default=false())
    price: Mapped[Decimal] = mapped_column(Numeric(10, 2), server_default=text("1.50"))
    huge: Mapped[Decimal | None] = mapped_column(Numeric(38, 0))
    share: Mapped[float] = mapped_column(server_default=text("0.5"))
    exact: Mapped[float | None] = mapped_column(Double)
    born: Mapped[date | None]
    at: Mapped[time | None]
    seen: Mapped[datetime | None]
    made: Mapped[datetime] = mapped_column(server_default=text("CURRENT_TIMESTAMP"))
    fine: Mapped[datetime | None] = mapped_column(
        DateTime().with_variant(mysql.DATETIME(fsp=3), "mysql", "mariadb"),
        server_default=func.now(3),
    )
    facts: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    colour: Mapped[Colour] = mapped_column(server_default="RED")
    shape: Mapped[str | None] = mapped_column(
        Enum("round", "square", native_enum=False, length=10)
    )
    words: Mapped[str | None] = mapped_column(Text)
    raw: Mapped[bytes | None] = mapped_column(LargeBinary)
    key: Mapped[UUID | None] = mapped_column(
        unique=True, info={"unique_per_shard": True}
    )
    twice: Mapped[int | None] = mapped_column(Computed("small * 2"))
    moment: Mapped[datetime | None] = mapped_column(UTCTimestamp)
    friend_id: Mapped[int | None] = mapped_column(ObjectRef(4))
    place: Mapped[int | None] = mapped_column(Sequence38)

    __table_args__ = (
        UniqueConstraint(
            "title", "count", name="uq_things_title", info={"unique_per_shard": True}
        ),
        Index("ix_things_colour", "colour", "born"),
    )


class Note(ObjectMixin, Base, type_id=5, colocate_with="thing_id", max_bytes=60_000):
    __tablename__ = "notes"

    thing_id: Mapped[int] = blob_field(ref=Thing)


class Archive(ObjectMixin, Base, type_id=6, max_bytes=100_000_000):
    __tablename__ = 'it\'s "50%" of it'


class Label(Base):
    """A row on the shard of an object, with a foreign key to it."""

    __tablename__ = "labels"

    thing_id: Mapped[int] = mapped_column(
        ShardedId(4),
        ForeignKey("things.local_id", ondelete="CASCADE"),
        primary_key=True,
    )
    name: Mapped[str] = mapped_column(String(20), primary_key=True)
    more: Mapped[dict[str, Any] | None] = mapped_column(JSONBlob)


class ThingHasNotes(MappingMixin, Base, source="Thing", target=Note):
    pass


class Setting(Base):
    """Of the global keyspace."""

    __tablename__ = "settings"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(30), unique=True)
