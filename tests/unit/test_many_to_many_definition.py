"""Many-to-many relationships that are refused when they are configured."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from sqlalchemy import BigInteger, Column, ForeignKey, inspect, Table
from sqlalchemy.orm import (
    configure_mappers,
    DeclarativeBase,
    Mapped,
    mapped_column,
    registry,
    relationship,
)

from sqla_shard import (
    blob_field,
    KeyspaceMixin,
    MappingMixin,
    ObjectMixin,
    ReferenceMixin,
    ShardedId,
)
from sqla_shard.exc import ManyToManyError
from sqla_shard.planning import spec_of


@pytest.fixture
def base():
    class Base(DeclarativeBase):
        registry = registry()

    yield Base
    Base.registry.dispose()


def link(base: Any, one: str, other: str, *types: Any) -> Table:
    return Table(
        "links",
        base.metadata,
        Column("one_id", *types, ForeignKey(one), primary_key=True),
        Column("other_id", *types, ForeignKey(other), primary_key=True),
    )


def user_of(base: Any, other: str = "Board") -> Any:
    class User(ObjectMixin, base, type_id=3):
        __tablename__ = "users"
        boards = relationship(other, secondary="links")

    return User


def refused() -> ManyToManyError:
    with pytest.raises(ManyToManyError) as caught:
        configure_mappers()
    again = pickle.loads(pickle.dumps(caught.value))  # ours
    assert (str(again), again.secondary) == (str(caught.value), "links")
    return caught.value


def code_of(error: ManyToManyError) -> str:
    return str(error).split("\n")[-1]


def test_two_roots(base):
    user = user_of(base)

    class Board(ObjectMixin, base, type_id=2):
        __tablename__ = "boards"

    link(base, "users.local_id", "boards.local_id")
    error = refused()
    assert (error.class_name, error.relationship) == ("User", "boards")
    assert "neither has colocate_with" in str(error)
    # The code in the message is valid.
    exec(  # noqa: S102  # what the message says
        code_of(error),
        {"MappingMixin": MappingMixin, "Base": base, "User": user, "Board": Board},
    )


def test_a_root_and_itself(base):
    class User(ObjectMixin, base, type_id=3):
        __tablename__ = "users"
        following = relationship(
            "User",
            secondary="links",
            primaryjoin="User.id == links.c.one_id",
            secondaryjoin="User.id == links.c.other_id",
        )

    link(base, "users.local_id", "users.local_id")
    error = refused()
    assert "two objects of User" in str(error)
    found: dict[str, Any] = {"MappingMixin": MappingMixin, "Base": base, "User": User}
    exec(code_of(error), found)  # noqa: S102  # what the message says
    names = inspect(found["UserHasFollowing"]).local_table.columns.keys()
    assert names == ["user_id", "other_user_id", "sequence"]


def test_classes_of_one_parent(base):
    class User(ObjectMixin, base, type_id=3):
        __tablename__ = "users"

    class Post(ObjectMixin, base, type_id=4, colocate_with="user_id"):
        __tablename__ = "posts"
        user_id: Mapped[int] = blob_field(ref="User")
        labels = relationship("Label", secondary="links")

    class Label(ObjectMixin, base, type_id=5, colocate_with="owner_id"):
        __tablename__ = "labels"
        owner_id: Mapped[int] = mapped_column(
            ShardedId(3), ForeignKey("users.local_id")
        )

    table = link(base, "posts.local_id", "labels.local_id")
    configure_mappers()
    assert (spec_of(table).kind, spec_of(table).id_index) == ("objects", 0)


def test_a_child_of_any_class(base):
    class Post(ObjectMixin, base, type_id=4, colocate_with="home_id"):
        __tablename__ = "posts"
        home_id: Mapped[int] = blob_field()
        labels = relationship("Label", secondary="links")

    class Label(ObjectMixin, base, type_id=5):
        __tablename__ = "labels"

    link(base, "posts.local_id", "labels.local_id")
    configure_mappers()


def test_reading_alone_is_not_refused(base):
    class User(ObjectMixin, base, type_id=3):
        __tablename__ = "users"
        boards = relationship("Board", secondary="links", viewonly=True)

    class Board(ObjectMixin, base, type_id=2):
        __tablename__ = "boards"

    link(base, "users.local_id", "boards.local_id")
    configure_mappers()


def test_a_class_of_a_global_keyspace(base):
    user_of(base, "Tag")

    class Tag(base):
        __tablename__ = "tags"
        id: Mapped[int] = mapped_column(primary_key=True)

    link(base, "users.local_id", "tags.id")
    error = refused()
    assert "Tag is in a keyspace of kind 'global'" in str(error)
    assert "ReferenceMixin" in str(error)


def test_two_classes_of_a_global_keyspace(base):
    class Page(KeyspaceMixin, base, keyspace="main"):
        __tablename__ = "pages"
        id: Mapped[int] = mapped_column(primary_key=True)
        tags = relationship("Tag", secondary="links")

    class Tag(KeyspaceMixin, base, keyspace="main"):
        __tablename__ = "tags"
        id: Mapped[int] = mapped_column(primary_key=True)

    table = link(base, "pages.id", "tags.id")
    configure_mappers()
    assert spec_of(table).kind == "global"


def test_a_reference_table(base):
    user_of(base, "Topic")

    class Topic(ReferenceMixin, base):
        id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)

    table = link(base, "users.local_id", "topic.id")
    configure_mappers()
    assert spec_of(table).kind == "objects"


def test_two_keyspaces(base):
    class User(ObjectMixin, base, type_id=3, keyspace="people"):
        __tablename__ = "users"
        boards = relationship("Board", secondary="links")

    class Board(
        ObjectMixin, base, type_id=2, keyspace="things", colocate_with="user_id"
    ):
        __tablename__ = "boards"
        user_id: Mapped[int] = blob_field(ref=User)

    link(base, "users.local_id", "boards.local_id")
    assert "['people', 'things']" in str(refused())


def test_the_keyspace_of_link_rows(base):
    class User(ObjectMixin, base, type_id=3, keyspace="people"):
        __tablename__ = "users"
        boards = relationship("Board", secondary="links")

    class Board(
        ObjectMixin, base, type_id=2, keyspace="people", colocate_with="user_id"
    ):
        __tablename__ = "boards"
        user_id: Mapped[int] = blob_field(ref=User)

    table = link(base, "users.local_id", "boards.local_id")
    assert spec_of(table).keyspace == "people"
    configure_mappers()


def test_a_column_of_another_type(base):
    user = user_of(base)

    class Board(ObjectMixin, base, type_id=2, colocate_with="user_id"):
        __tablename__ = "boards"
        user_id: Mapped[int] = blob_field(ref=user)

    link(base, "users.local_id", "boards.local_id", BigInteger)
    assert 'Column("one_id", ForeignKey("users.local_id"), primary_key=True)' in str(
        refused()
    )


def test_a_table_that_is_requested_too_early(base):
    table = link(base, "users.local_id", "boards.local_id")
    assert spec_of(table).kind == "global"
    user = user_of(base)

    class Board(ObjectMixin, base, type_id=2, colocate_with="user_id"):
        __tablename__ = "boards"
        user_id: Mapped[int] = blob_field(ref=user)

    assert spec_of(table).kind == "objects"
