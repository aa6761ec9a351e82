"""Users have boards, and boards have pins.

Plain SQLAlchemy models, except for three things: ``ObjectMixin`` gives them
64-bit ids that contain the shard, ``type_id`` is part of these ids, and
``colocate_with`` stores an object on the shard of its parent.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import DeclarativeBase, Mapped

from sqla_shard import blob_field, ObjectMixin


class Base(DeclarativeBase):
    """Holds the tables of this example."""


class User(ObjectMixin, Base, type_id=3):
    """A root: its shard is chosen when it is written, once and for all."""

    __tablename__ = "users"

    name: Mapped[str] = blob_field()


class Board(ObjectMixin, Base, type_id=2, colocate_with="user_id"):
    """Lives on the shard of its user."""

    __tablename__ = "boards"

    user_id: Mapped[int] = blob_field(ref=User)
    title: Mapped[str] = blob_field()
    details: Mapped[str] = blob_field(default="")


class Pin(ObjectMixin, Base, type_id=1, colocate_with="board_id"):
    """Lives on the shard of its board, which is that of the user."""

    __tablename__ = "pins"

    board_id: Mapped[int] = blob_field(ref=Board)
    link: Mapped[str] = blob_field()
    title: Mapped[str] = blob_field(default="")
    details: Mapped[str] = blob_field(default="")
    tags: Mapped[list[str]] = blob_field(default_factory=list)
    added: Mapped[datetime | None] = blob_field(default=None)
