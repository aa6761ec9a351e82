"""Object classes: each has a table on every virtual shard."""

from sqla_shard import ObjectMixin, blob_field
from sqlalchemy.orm import DeclarativeBase, Mapped


class Base(DeclarativeBase):
    """The tables of the application."""


class User(ObjectMixin, Base, type_id=1):
    """A user, on any shard."""

    __tablename__ = "users"
    name: Mapped[str] = blob_field()


class Board(ObjectMixin, Base, type_id=2, colocate_with="user_id"):
    """A board, on the shard of its user."""

    __tablename__ = "boards"
    user_id: Mapped[int] = blob_field(ref=User)
    title: Mapped[str] = blob_field()
