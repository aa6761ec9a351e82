"""The warning of unique constraints that hold on each shard only."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import (
    Column,
    ForeignKey,
    func,
    Index,
    MetaData,
    String,
    UniqueConstraint,
)
from sqlalchemy.exc import SAWarning
from sqlalchemy.orm import (
    configure_mappers,
    DeclarativeBase,
    Mapped,
    mapped_column,
    registry,
    relationship,
)

from sqla_shard import (
    KeyspaceMixin,
    LookupMixin,
    MappingMixin,
    ObjectMixin,
    ObjectRef,
    ShardedId,
)
from sqla_shard.exc import UniquePerShardWarning
from sqla_shard.models import normalization

MEANT = {"unique_per_shard": True}


@pytest.fixture
def base() -> Iterator[Any]:
    class Base(DeclarativeBase):
        registry = registry()

    yield Base
    Base.registry.dispose()


def object_class(base: Any, **attributes: Any) -> Any:
    """Return a class that is colocated with users."""
    return type(
        "Board",
        (ObjectMixin, base),
        {
            "__tablename__": "boards",
            "user_id": mapped_column(ObjectRef(3)),
            "name": mapped_column(String(20)),
            **attributes,
        },
        type_id=2,
        colocate_with="user_id",
    )


def child_class(base: Any, **attributes: Any) -> Any:
    """Return a class of rows on the shard of a user."""
    type("User", (ObjectMixin, base), {"__tablename__": "users"}, type_id=3)
    return type(
        "Label",
        (base,),
        {
            "__tablename__": "labels",
            "user_id": mapped_column(ForeignKey("users.local_id"), primary_key=True),
            "number": mapped_column(primary_key=True, type_=String(9)),
            "name": mapped_column(String(20)),
            **attributes,
        },
    )


def mapping_class(base: Any, **attributes: Any) -> Any:
    user = type("User", (ObjectMixin, base), {"__tablename__": "users"}, type_id=3)
    return type(
        "UserLikesPosts",
        (MappingMixin, base),
        {"name": mapped_column(String(20)), **attributes},
        source=user,
        target="Post",
    )


def lookup_class(base: Any, **attributes: Any) -> Any:
    type("User", (ObjectMixin, base), {"__tablename__": "users"}, type_id=3)
    return type(
        "UserEmail",
        (LookupMixin, base),
        {"name": mapped_column(String(20)), **attributes},
        target="User",
        normalize=normalization.exact,
    )


CLASSES = [object_class, child_class, mapping_class, lookup_class]


def arguments(*constraints: Any) -> dict[str, Any]:
    return {"__table_args__": constraints}


def column(**kwargs: Any) -> dict[str, Any]:
    return {"name": mapped_column(String(20), **kwargs)}


def expression(**kwargs: Any) -> dict[str, Any]:
    name = Column("name", String(20))
    index = Index("by_name", func.lower(name), unique=True, **kwargs)
    return {"name": name, "__table_args__": (index,)}


@pytest.mark.parametrize("make", CLASSES)
@pytest.mark.parametrize(
    ("written", "remedy"),
    [
        (column, "mapped_column(..., unique=True, "),
        (
            lambda **kw: arguments(UniqueConstraint("name", **kw)),
            "UniqueConstraint(..., ",
        ),
        (
            lambda **kw: arguments(Index("x", "name", unique=True, **kw)),
            "Index(..., unique=True, ",
        ),
        (expression, "Index(..., unique=True, "),
    ],
    ids=["column", "constraint", "index", "expression"],
)
def test_uniqueness_that_two_shards_can_break_warns_unless_intended(
    base: Any, make: Any, written: Any, remedy: str
) -> None:
    unique = {"unique": True} if written is column else {}
    with pytest.warns(UniquePerShardWarning) as caught:
        make(base, **written(**unique))
    (warning,) = caught
    assert warning.filename == __file__
    assert isinstance(warning.message, SAWarning)
    message = str(warning.message)
    assert re.match(r"\((name|lower\(\w+\.name\))\) of table", message)
    assert "each virtual shard only" in message
    assert "LookupMixin" in message
    assert f'{remedy}info={{"unique_per_shard": True}})' in message

    base.registry.dispose()
    base.metadata.clear()
    base.metadata.info.clear()
    make(base, **written(info=MEANT, **unique))


def test_an_index_of_a_column_too(base: Any) -> None:
    with pytest.warns(UniquePerShardWarning, match=r"unique=True, info"):
        object_class(base, **column(unique=True, index=True))


def test_a_column_that_names_the_shard_makes_it_hold_everywhere(base: Any) -> None:
    child_class(base, **arguments(UniqueConstraint("user_id", "name")))
    object_class(
        base,
        other_id=mapped_column(ShardedId(3), ForeignKey("users.local_id")),
        **arguments(
            UniqueConstraint("user_id", "name"),
            Index("x", "name", "other_id", unique=True),
            Index("y", "name"),
        ),
    )


def test_a_descending_column_of_an_index_too(base: Any) -> None:
    owner = Column("user_id", ObjectRef(3))
    made = object_class(base, user_id=owner)
    table = made.__table__
    Index("x", table.c.name, table.c.user_id.desc(), unique=True)
    with pytest.warns(UniquePerShardWarning):
        # It has one value for many ids.
        Index("y", table.c.name, func.abs(table.c.user_id), unique=True)


def test_primary_keys_never_warn(base: Any) -> None:
    for make in (child_class, object_class):
        make(base)


def test_the_columns_of_a_mapping_and_a_lookup(base: Any) -> None:
    mapping_class(base, **arguments(UniqueConstraint("user_id", "sequence")))
    type(
        "Email",
        (LookupMixin, base),
        {
            "name": mapped_column(String(20)),
            **arguments(UniqueConstraint("key", "name")),
        },
        target="User",
        normalize=normalization.exact,
    )


def test_an_id_of_another_shard_does_not_help(base: Any) -> None:
    with pytest.warns(UniquePerShardWarning, match=r"\(other_id, name\) of"):
        object_class(
            base,
            other_id=mapped_column(ObjectRef(3)),
            **arguments(UniqueConstraint("other_id", "name")),
        )


def test_the_message_names_the_column_that_helps(base: Any) -> None:
    with pytest.warns(UniquePerShardWarning, match="add 'user_id', the column"):
        object_class(base, **column(unique=True))
    with pytest.warns(UniquePerShardWarning) as caught:
        type(
            "User",
            (ObjectMixin, base),
            {"__tablename__": "users", **column(unique=True)},
            type_id=3,
        )
    assert "to the constraint" not in str(caught[0].message)


def test_constraints_that_are_added_later(base: Any) -> None:
    table = object_class(base).__table__
    Index("meant", table.c.name, unique=True, info=MEANT)
    Index("plain", table.c.name)
    with pytest.warns(UniquePerShardWarning) as caught:
        Index("x", table.c.name, unique=True)
    assert caught[0].filename == __file__
    with pytest.warns(UniquePerShardWarning):
        table.append_constraint(UniqueConstraint("name"))


def test_a_copy_of_the_table_says_nothing_again(base: Any) -> None:
    with pytest.warns(UniquePerShardWarning):
        made = object_class(base, **column(unique=True))
    made.__table__.to_metadata(MetaData())


def test_a_foreign_key_to_a_class_that_comes_later(base: Any) -> None:
    class Label(base):
        __tablename__ = "labels"
        user_id = mapped_column(ForeignKey("users.local_id"), primary_key=True)
        name = mapped_column(String(20), unique=True)
        user = relationship("User")

    class User(ObjectMixin, base, type_id=3):
        __tablename__ = "users"

    with pytest.warns(UniquePerShardWarning, match="labels"):
        configure_mappers()
    configure_mappers()


def test_plain_models_of_the_global_keyspace_may_be_unique(base: Any) -> None:
    class Customer(base):
        __tablename__ = "customers"
        id = mapped_column(primary_key=True, type_=String(9))
        email = mapped_column(String(200), unique=True)

    class Country(KeyspaceMixin, base, keyspace="main"):
        __tablename__ = "countries"
        id = mapped_column(primary_key=True, type_=String(9))
        name = mapped_column(String(200), unique=True)


def test_those_of_mod_shards_are_not_unique(base: Any) -> None:
    with pytest.warns(UniquePerShardWarning, match="emails"):

        class Email(KeyspaceMixin, base, keyspace="lookup", kind="mod"):
            __tablename__ = "emails"
            id: Mapped[int] = mapped_column(primary_key=True)
            address = mapped_column(String(40), unique=True)
            kind = mapped_column(String(9))
            __mapper_args__ = {  # noqa: RUF012  # as SQLAlchemy documents it
                "polymorphic_on": kind,
                "polymorphic_identity": "a",
            }

    class Other(Email):
        __mapper_args__ = {"polymorphic_identity": "b"}  # noqa: RUF012  # as above


@pytest.mark.parametrize("make", CLASSES)
def test_a_warning_that_is_an_error_leaves_no_class_behind(
    base: Any, make: Any
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UniquePerShardWarning):
            make(base, **column(unique=True))
    left = {mapper.class_.__name__ for mapper in base.registry.mappers}
    assert left <= {"User"}
    assert set(base.metadata.tables) <= {"users"}
    configure_mappers()
