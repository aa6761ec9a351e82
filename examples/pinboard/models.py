"""Users have boards, boards have pins, and both are in an order.

Three object classes on one shard each, three mapping tables beside them, and
one ordinary table: nobody has an id to sign in with, so names are looked up
in the global keyspace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.orm import Mapped
from sqlalchemy.orm import mapped_column

from sqla_shard import blob_field
from sqla_shard import MappingMixin
from sqla_shard import ObjectMixin
from sqla_shard import ObjectRef

__all__ = [
    "Base",
    "Board",
    "BoardHasPins",
    "BoardHasRemovedPins",
    "Person",
    "Pin",
    "User",
    "UserHasBoards",
]


class Base(DeclarativeBase):
    """Holds the tables of this example."""


class User(ObjectMixin, Base, type_id=3):
    """A root: its shard is chosen when it is written, once and for all."""

    __tablename__ = "users"

    name: Mapped[str] = blob_field()
    about: Mapped[str] = blob_field(default="")


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


class UserHasBoards(MappingMixin, Base, source=User, target=Board):
    """The boards of a user, the newest on top."""


class BoardHasPins(MappingMixin, Base, source=Board, target=Pin):
    """The pins of a board, in the order they were dragged to.

    A removed pin keeps its row, so that it is restored to its place.
    """


class BoardHasRemovedPins(MappingMixin, Base, source=Board, target=Pin):
    """The pins that were removed from a board, the latest first.

    Without it, finding them would mean to read every pin of the shard.
    """

    if TYPE_CHECKING:
        pin_id: Mapped[int]


class Person(Base):
    """A name to choose, and the id that it stands for.

    In the global keyspace, where names can be unique.
    """

    __tablename__ = "people"

    name: Mapped[str] = mapped_column(String(50), primary_key=True)
    user_id: Mapped[int] = mapped_column(ObjectRef(3))
    about: Mapped[str] = mapped_column(String(200))
