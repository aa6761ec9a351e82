"""Names in the plan of a deletion of columns that no search reads."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, func, Table
from sqlalchemy.orm import column_property, DeclarativeBase, Mapped, mapped_column

from sqla_shard import blob_field, LookupMixin, MappingMixin, ObjectMixin, ObjectRef
from sqla_shard.contrib import Feed, Follows
from sqla_shard.lookup import normalization
from sqla_shard.models.deletion import never_searched


class Base(DeclarativeBase):
    pass


class User(ObjectMixin, Base, type_id=3):
    __tablename__ = "users"


class Board(ObjectMixin, Base, type_id=2, colocate_with="user_id"):
    __tablename__ = "boards"
    user_id: Mapped[int] = blob_field(ref=User)
    about: Mapped[int | None] = mapped_column(ObjectRef())
    cover_id: Mapped[int | None] = mapped_column(ObjectRef(2))
    cover = column_property(func.coalesce(cover_id, about, type_=ObjectRef(2)))


class Pin(ObjectMixin, Base, type_id=1, colocate_with="board_id"):
    __tablename__ = "pins"
    board_id: Mapped[int] = blob_field(ref=Board)


class Members(MappingMixin, Base, source=Board, target=User, spread=4, spread_over=4):
    added_by: Mapped[int | None] = mapped_column(ObjectRef(3))


class Name(LookupMixin, Base, target=User, normalize=normalization.exact):
    given_by: Mapped[int | None] = mapped_column(ObjectRef(3))


class Vote(Base):
    """Its rows are deleted with the user."""

    __tablename__ = "votes"
    user_id: Mapped[int] = mapped_column(ObjectRef(3, colocated=True), primary_key=True)
    day: Mapped[int] = mapped_column(primary_key=True)


class Log(Base):
    __tablename__ = "log"
    number: Mapped[int] = mapped_column(primary_key=True)
    user_id: Mapped[int] = mapped_column(ObjectRef(3))


def table(name, kind):
    Table(
        name,
        Base.metadata,
        Column("number", BigInteger, primary_key=True),
        Column("owner_id", kind, primary_key=True),
    )


table("audit", ObjectRef(3))
table("notes", ObjectRef(colocated=True))
table("marks", ObjectRef(3, colocated=True))

NAMED = {
    User: {
        *("Members.added_by", "Name.given_by", "Log.user_id", "audit.owner_id"),
        *("Board.about", "notes.owner_id"),
    },
    Board: {"Board.about", "Board.cover_id", "notes.owner_id"},
    Pin: {"Board.about", "notes.owner_id"},
}


def test_columns_of_all_tables_that_may_name_an_object():
    for entity, names in NAMED.items():
        assert {*never_searched(entity)} == names | {"arguments of jobs"}


def test_tables_of_a_follow_graph_are_searched():
    # Names of operations are those of the process, where the pinboard has its own.
    follows = Follows(
        Base, user=User, board=Board, owner="user_id", name="searched_follows"
    )
    Feed(Base, follows=follows, post=Pin, name="searched_feed")
    test_columns_of_all_tables_that_may_name_an_object()
