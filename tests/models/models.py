"""Classes on virtual shards, and the same classes on one plain database.

``Board``, ``Pin``, ``Comment`` and ``Tag`` have columns of every kind that
can hold an id; ``Note`` is an object class, whose parent's id is in the
blob; ``Setting`` is a plain model of a global keyspace.  :data:`PLAIN` has
their mirror images, where every id is one plain 64-bit integer.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, func, select, String
from sqlalchemy.orm import (
    column_property,
    DeclarativeBase,
    foreign,
    Mapped,
    mapped_column,
    relationship,
    remote,
)

from sqla_shard import blob_field, ObjectMixin
from sqla_shard.planning import Colocation, declare, TableSpec
from sqla_shard.types import full_id, ObjectRef, ShardedId
from tests.models.layouts import LAYOUT

PIN, BOARD, COMMENT, NOTE = 1, 2, 3, 5


class Base(DeclarativeBase):
    id_layout = LAYOUT


class Board(Base):
    __tablename__ = "boards"

    id: Mapped[int] = mapped_column("local_id", ShardedId(BOARD), primary_key=True)
    name: Mapped[str] = mapped_column(String(40))
    n: Mapped[int | None]


class Pin(Base):
    __tablename__ = "pins"

    id: Mapped[int] = mapped_column("local_id", ShardedId(PIN), primary_key=True)
    title: Mapped[str] = mapped_column(String(50))
    n: Mapped[int | None]
    #: On any shard.
    board_id: Mapped[int | None] = mapped_column(ObjectRef(BOARD))
    #: On the pin's own shard, stored as a whole id.
    home_id: Mapped[int | None] = mapped_column(ObjectRef(BOARD, colocated=True))
    #: On the pin's own shard, stored as a local id.
    root_id: Mapped[int | None] = mapped_column(
        ShardedId(PIN), ForeignKey("pins.local_id")
    )
    comments: Mapped[list[Comment]] = relationship(
        back_populates="pin", cascade="all, delete-orphan", order_by="Comment.id"
    )
    #: Nothing leads back from a tag.
    tags: Mapped[list[Tag]] = relationship(cascade="all, delete-orphan")
    board: Mapped[Board | None] = relationship(
        primaryjoin=lambda: foreign(Pin.board_id) == Board.id, viewonly=True
    )
    root: Mapped[Pin | None] = relationship(
        remote_side=lambda: Pin.id, back_populates="replies"
    )
    replies: Mapped[list[Pin]] = relationship(back_populates="root")


class Comment(Base):
    __tablename__ = "comments"

    id: Mapped[int] = mapped_column("local_id", ShardedId(COMMENT), primary_key=True)
    pin_id: Mapped[int] = mapped_column(ShardedId(PIN), ForeignKey("pins.local_id"))
    body: Mapped[str] = mapped_column(String(50))
    n: Mapped[int | None]
    reply_to_id: Mapped[int | None] = mapped_column(
        ShardedId(COMMENT), ForeignKey("comments.local_id")
    )
    pin: Mapped[Pin] = relationship(back_populates="comments")


class Tag(Base):
    """A mapping row: the id that routes is one of two key columns."""

    __tablename__ = "tags"

    pin_id: Mapped[int] = mapped_column(
        ShardedId(PIN), ForeignKey("pins.local_id"), primary_key=True
    )
    name: Mapped[str] = mapped_column(String(20), primary_key=True)
    n: Mapped[int | None]


class Note(ObjectMixin, Base, type_id=NOTE, colocate_with="pin_id"):
    __tablename__ = "notes"

    pin_id: Mapped[int] = blob_field(ref=PIN)
    text: Mapped[str] = blob_field()
    n: Mapped[int | None] = blob_field(default=None)


class Setting(Base):
    __tablename__ = "settings"

    name: Mapped[str] = mapped_column(String(20), primary_key=True)
    value: Mapped[str] = mapped_column(String(50))


def _colocate(entity: Any, field: str, type_id: int | None, **spec: Any):
    declare(
        entity.__table__,
        TableSpec(
            kind="objects",
            id_index=0,
            type_id=type_id,
            layout=LAYOUT,
            colocation=Colocation(
                field=field,
                read=lambda instance: instance.__dict__.get(field),
                type_ids=lambda: (PIN,),
            ),
        ),
    )


_colocate(Comment, "pin_id", COMMENT)

SHARDED = SimpleNamespace(
    Board=Board, Pin=Pin, Comment=Comment, Tag=Tag, Note=Note, full=full_id
)


# -- the mirror


class PlainBase(DeclarativeBase):
    type_annotation_map = {int: BigInteger}  # noqa: RUF012  # SQLAlchemy's


def _plain_id() -> Any:
    return mapped_column("local_id", BigInteger, primary_key=True)


class PlainBoard(PlainBase):
    __tablename__ = "boards"

    id: Mapped[int] = _plain_id()
    name: Mapped[str] = mapped_column(String(40))
    n: Mapped[int | None]


class PlainPin(PlainBase):
    __tablename__ = "pins"

    id: Mapped[int] = _plain_id()
    title: Mapped[str] = mapped_column(String(50))
    n: Mapped[int | None]
    board_id: Mapped[int | None]
    home_id: Mapped[int | None]
    root_id: Mapped[int | None]
    comments: Mapped[list[PlainComment]] = relationship(
        primaryjoin=lambda: PlainPin.id == foreign(PlainComment.pin_id),
        back_populates="pin",
    )
    root: Mapped[PlainPin | None] = relationship(
        primaryjoin=lambda: foreign(PlainPin.root_id) == remote(PlainPin.id),
        back_populates="replies",
    )
    replies: Mapped[list[PlainPin]] = relationship(
        primaryjoin=lambda: PlainPin.id == remote(foreign(PlainPin.root_id)),
        back_populates="root",
    )


class PlainComment(PlainBase):
    __tablename__ = "comments"

    id: Mapped[int] = _plain_id()
    pin_id: Mapped[int]
    body: Mapped[str] = mapped_column(String(50))
    n: Mapped[int | None]
    reply_to_id: Mapped[int | None]
    pin: Mapped[PlainPin] = relationship(
        primaryjoin=lambda: PlainPin.id == foreign(PlainComment.pin_id),
        back_populates="comments",
    )


class PlainTag(PlainBase):
    __tablename__ = "tags"

    pin_id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(20), primary_key=True)
    n: Mapped[int | None]


class PlainNote(PlainBase):
    __tablename__ = "notes"

    id: Mapped[int] = _plain_id()
    pin_id: Mapped[int]
    text: Mapped[str] = mapped_column(String(50))
    n: Mapped[int | None]


PLAIN = SimpleNamespace(
    Board=PlainBoard,
    Pin=PlainPin,
    Comment=PlainComment,
    Tag=PlainTag,
    Note=PlainNote,
    full=lambda column: column,
)


def _counted(models: Any) -> Any:
    pin, comment = models.Pin, models.Comment
    return (
        select(func.count(comment.id))
        .where(comment.pin_id == pin.id)
        .correlate(pin)
        .scalar_subquery()
    )


for _models in (SHARDED, PLAIN):
    _models.Pin.comment_count = column_property(_counted(_models), deferred=True)
