"""Reference classes that can be created, and those that cannot."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from sqlalchemy import (
    Computed,
    ForeignKey,
    func,
    Identity,
    Index,
    Integer,
    String,
    UniqueConstraint,
)
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, MappedAsDataclass

from sqla_shard import blob_field, ObjectMixin, ObjectRef, ReferenceMixin, ShardedId
from sqla_shard.dialects.sql import Upsert
from sqla_shard.exc import ClassDefinitionError
from sqla_shard.models.reference import rows_by_key
from sqla_shard.planning import spec_of, TableSpec


@pytest.fixture
def base() -> Any:
    return type("Base", (DeclarativeBase,), {})


@pytest.fixture
def user(base: Any) -> Any:
    class User(ObjectMixin, base, type_id=3):
        __tablename__ = "users"
        name: Mapped[str] = blob_field()

    return User


def make(base: Any, name: str = "BigCity", **keywords: Any) -> Any:
    namespace = {
        "code": mapped_column(String(8), primary_key=True),
        **keywords.pop("namespace", {}),
    }
    return type(ReferenceMixin)(name, (ReferenceMixin, base), namespace, **keywords)


def test_a_table(base):
    cls = make(base, keyspace="near")
    assert cls.__tablename__ == "big_city"
    assert spec_of(cls.__table__) == TableSpec(
        kind="objects", keyspace="near", reference="BigCity"
    )


def test_a_name_and_columns_of_its_own(base):
    class City(ReferenceMixin, base):
        __tablename__ = "cities"
        number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
        mayor_id: Mapped[int | None] = mapped_column(ObjectRef())

    assert City.__table__.name == "cities"


def test_an_abstract_base(base):
    class Named(ReferenceMixin, base):
        __abstract__ = True
        code: Mapped[str] = mapped_column(String(8), primary_key=True)

    class City(Named, keyspace="near"):
        pass

    assert City.__tablename__ == "city"
    assert spec_of(City.__table__).keyspace == "near"
    with pytest.raises(ClassDefinitionError, match="is abstract"):
        rows_by_key(Named, [])
    with pytest.raises(ClassDefinitionError, match="is abstract"):

        class Other(ReferenceMixin, base, keyspace="near"):
            __abstract__ = True


def test_a_dataclass():
    class Base(MappedAsDataclass, DeclarativeBase):
        pass

    class City(ReferenceMixin, Base):
        code: Mapped[str] = mapped_column(String(8), primary_key=True)
        name: Mapped[str] = mapped_column(default="?")

    assert rows_by_key(City, [City(code="a"), {"code": "b", "name": "c"}]) == {
        ("a",): ("a", "?"),
        ("b",): ("b", "c"),
    }


def test_defaults(base):
    cls = make(
        base,
        namespace={
            "one": mapped_column(Integer, default=1),
            "two": mapped_column("zwei", String(9), default=lambda: "two"),
            "three": mapped_column(String(9)),
        },
    )
    rows = rows_by_key(cls, [cls(code="a"), {"code": "b", "one": 2}])
    assert list(rows.values()) == [("a", 1, "two", None), ("b", 2, "two", None)]


@pytest.mark.parametrize(
    ("namespace", "message"),
    [
        ({"code": mapped_column(Integer, primary_key=True)}, "its keys would"),
        ({"__table_args__": {"schema": "x"}}, "in schema 'x'"),
        ({"x": mapped_column(ForeignKey("users.local_id"))}, "foreign key"),
        ({"x": mapped_column(ForeignKey("big_city.code"))}, "foreign key"),
        ({"x": mapped_column(ShardedId(3))}, "use ObjectRef"),
        ({"x": mapped_column(String(9), server_default="y")}, "values of its"),
        ({"x": mapped_column(String(9), default=func.now())}, "values of its"),
        ({"x": mapped_column(Integer, Computed("1"))}, "values of its"),
        ({"x": mapped_column(Integer, Identity())}, "values of its"),
        ({"x": mapped_column(String(9), unique=True)}, "a unique"),
        (
            {"x": mapped_column(String(9)), "__table_args__": (UniqueConstraint("x"),)},
            "a unique",
        ),
        (
            {
                "x": mapped_column(String(9)),
                "__table_args__": (Index("by_x", "x", unique=True),),
            },
            "a unique",
        ),
        ({"replace": mapped_column(String(9))}, "every reference class"),
        ({"delete": 3}, "every reference class"),
    ],
)
def test_invalid_definitions(base, user, namespace, message):
    with pytest.raises(ClassDefinitionError, match=message) as caught:
        make(base, namespace=namespace)
    assert caught.value.class_name == "BigCity"
    del caught
    gc.collect()
    # It can be corrected.
    assert "big_city" not in base.metadata.tables
    make(base)


def test_no_base():
    with pytest.raises(ClassDefinitionError, match="no declarative base"):
        type(ReferenceMixin)("City", (ReferenceMixin,), {})


def test_a_base_that_is_mapped(base):
    cls = make(base)
    with pytest.raises(ClassDefinitionError, match="mapped to a table"):
        type(ReferenceMixin)("Other", (cls,), {})


def test_an_upsert_names_every_column(base):
    cls = make(base, namespace={"key": mapped_column(String(9))})

    def compiled(dialect: Any) -> str:
        text = str(Upsert(cls.__table__).compile(dialect=dialect))
        return " ".join(text.split())

    assert compiled(mysql.dialect()) == (
        "INSERT INTO big_city (code, `key`) VALUES (%s, %s) "
        "ON DUPLICATE KEY UPDATE code = VALUES(code), `key` = VALUES(`key`)"
    )
    assert compiled(sqlite.dialect()) == (
        'INSERT INTO big_city (code, "key") VALUES (?, ?) ON CONFLICT (code) '
        'DO UPDATE SET code = excluded.code, "key" = excluded."key"'
    )
