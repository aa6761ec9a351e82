"""Fields, columns and tables of object classes; plain models."""

from __future__ import annotations

import gc
from datetime import date
from typing import Any, Optional, TYPE_CHECKING

import pytest
from sqlalchemy import BigInteger, create_engine, ForeignKey
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import (
    configure_mappers,
    declarative_base,
    DeclarativeBase,
    Mapped,
    mapped_column,
    relationship,
)
from sqlalchemy.schema import CreateTable

from sqla_shard import blob_field, KeyspaceMixin, ObjectMixin, pack
from sqla_shard.exc import BlobValueError, ClassDefinitionError, ColocationError
from sqla_shard.planning import spec_of
from sqla_shard.types import ObjectRef, ShardedId

if TYPE_CHECKING:
    from decimal import Decimal


def make_base(**namespace: Any) -> Any:
    return type("Base", (DeclarativeBase,), namespace)


@pytest.fixture
def base() -> Any:
    return make_base()


def is_clean(base: Any) -> bool:
    """Tell whether a refused class has left nothing behind."""
    gc.collect()
    return not base.metadata.tables and not list(base.registry.mappers)


# -- annotations


def test_forms_of_annotations(base):
    class Pin(ObjectMixin, base, type_id=1):
        __tablename__ = "pins"
        a: Mapped[str] = blob_field(default="")
        b: Mapped["str"] = blob_field(default="")  # noqa: UP037
        c: Mapped["str | None"] = blob_field(default=None)  # noqa: UP037
        d: Mapped[Optional[int]] = blob_field(default=None)  # noqa: UP045
        e: Mapped[Optional["date"]] = blob_field(default=None)  # noqa: UP037, UP045
        f: Mapped["list[date]"] = blob_field(default_factory=list)  # noqa: UP037
        g: int = blob_field(default=0)
        h = blob_field(type_=list[int], default_factory=list)
        i: "Mapped[date | None]" = blob_field(default=None)  # noqa: UP037
        #: Named like its type.
        date: Mapped[date] = blob_field(default=date(2024, 1, 1))

    new = Pin(a="1", b="2", c=None, d=3, e=date(2024, 1, 2), g=5, h=[6])
    new.f.append(date(2024, 1, 3))
    assert new.date == date(2024, 1, 1)
    for field in "ab":
        with pytest.raises(BlobValueError, match=f"Pin.{field}"):
            setattr(new, field, 5)


def test_annotations_that_cannot_be_resolved(base):
    class Local:
        pass

    with pytest.raises(ClassDefinitionError) as caught:

        class One(ObjectMixin, base, type_id=1):
            __tablename__ = "one"
            field: Mapped[Local] = blob_field()

    assert caught.value.class_name == "One"
    assert "'Mapped[Local]' of field cannot be resolved" in str(caught.value)
    assert "blob_field(type_=...)" in str(caught.value)
    with pytest.raises(ClassDefinitionError, match="TYPE_CHECKING"):

        class Two(ObjectMixin, base, type_id=1):
            __tablename__ = "two"
            price: Mapped[Decimal] = blob_field()

    with pytest.raises(ClassDefinitionError, match="cannot be resolved"):

        class Three(ObjectMixin, base, type_id=1):
            __tablename__ = "three"
            price: Mapped["list["] = blob_field()  # noqa: F722

    with pytest.raises(ClassDefinitionError, match=r"set.*cannot be stored"):

        class Four(ObjectMixin, base, type_id=1):
            __tablename__ = "four"
            tags: Mapped[set[str]] = blob_field()

    with pytest.raises(ClassDefinitionError, match="tags has no type annotation"):

        class Five(ObjectMixin, base, type_id=1):
            __tablename__ = "five"
            tags = blob_field()

    assert is_clean(base)


# -- defaults and aliases


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"default": None}, "default of Pin.x: None"),
        ({"default": 5}, "default of Pin.x: 5"),
        ({"default": []}, "shared by all.*default_factory=list"),
        ({"default": {}}, "shared by all.*default_factory=dict"),
        ({"default": dict}, "class dict, not a value; use default_factory=dict"),
        ({"default": "", "default_factory": str}, "give one"),
        ({"default_factory": ""}, "not callable"),
        ({"aliases": "old"}, "tuple of str"),
        ({"aliases": [5]}, "tuple of str"),
        ({"aliases": ["x"]}, "'x' of x is already used by x"),
        ({"aliases": ["a", "a"]}, "'a' of x is already used by x"),
        ({"aliases": ["y"]}, "'y' of y is already used by x"),
        ({"aliases": ["z"]}, "'z' of y is already used by x"),
        ({"aliases": ["active"]}, "used by soft delete"),
        ({"aliases": ['a"b']}, "double quote"),
        ({"aliases": ["a\nb"]}, "unprintable"),
        ({"aliases": ["a__sqla_shard__"]}, "stands for the database"),
    ],
)
def test_impossible_settings(base, settings, message):
    with pytest.raises(ClassDefinitionError, match=message):

        class Pin(ObjectMixin, base, type_id=1):
            __tablename__ = "pins"
            x: Mapped[str] = blob_field(**settings)
            y: Mapped[str] = blob_field(default="", aliases=["z"])

    assert is_clean(base)


def test_default_as_it_is_read_back(base):
    class Pin(ObjectMixin, base, type_id=1):
        __tablename__ = "pins"
        ratio: Mapped[float] = blob_field(default=1)

    assert repr(Pin().ratio) == "1.0"


# -- references and colocation


def test_references(base):
    class User(ObjectMixin, base, type_id=3):
        __tablename__ = "users"

    class Elsewhere(ObjectMixin, make_base(), type_id=7):
        __tablename__ = "elsewhere"

    class Pin(ObjectMixin, base, type_id=1):
        __tablename__ = "pins"
        by_class: Mapped[int | None] = blob_field(ref=User, default=None)
        by_name: Mapped[int | None] = blob_field(ref="Later", default=None)
        by_number: Mapped[int | None] = blob_field(ref=9, default=None)
        itself: Mapped[int | None] = blob_field(ref="Pin", default=None)
        other: Mapped[int | None] = blob_field(ref=Elsewhere, default=None)
        unknown: Mapped[int | None] = blob_field(ref="Usr", default=None)

    pin = Pin()
    with pytest.raises(ClassDefinitionError, match="refers to 'Later'"):
        pin.by_name = pack(1, 2, 3)

    class Later(ObjectMixin, base, type_id=2):
        __tablename__ = "later"

    for field, type_id in {
        "by_class": 3,
        "by_name": 2,
        "by_number": 9,
        "itself": 1,
        "other": 7,
    }.items():
        setattr(pin, field, pack(5, type_id, 1))
        assert getattr(pin, field) == pack(5, type_id, 1)
        assert getattr(Pin, field).type.type_id == type_id
        with pytest.raises(BlobValueError, match=f"Pin.{field}.*type 4"):
            setattr(pin, field, pack(5, 4, 1))
    with pytest.raises(ClassDefinitionError) as caught:
        pin.unknown = pack(1, 2, 3)
    assert "there are Pin, Later, User" in str(caught.value)


@pytest.mark.parametrize("ref", [0, -1, 1024, True, 1.5, str, object(), []])
def test_impossible_references(base, ref):
    with pytest.raises(ClassDefinitionError, match="parent_id refers to"):

        class Pin(ObjectMixin, base, type_id=1):
            __tablename__ = "pins"
            parent_id: Mapped[int] = blob_field(ref=ref)


def test_references_are_integers(base):
    for annotation in (str, list[int], float, bool):
        with pytest.raises(ClassDefinitionError, match="which is an int"):

            class Pin(ObjectMixin, base, type_id=1):
                __tablename__ = "pins"
                parent_id = blob_field(ref=3, type_=annotation)


def test_colocation_by_field(base):
    class Pin(ObjectMixin, base, type_id=1, colocate_with="any_id"):
        __tablename__ = "pins"
        any_id: Mapped[int] = blob_field()

    colocation = spec_of(Pin.__table__).colocation
    assert colocation.type_ids() == (1,)
    assert colocation.read(Pin()) is None
    with pytest.raises(ColocationError, match="type 5, not of 1"):
        Pin(any_id=pack(1, 5, 1))

    class Other(ObjectMixin, base, type_id=5):
        __tablename__ = "other"

    new = Pin(any_id=pack(1, 5, 1))
    assert colocation.read(new) == pack(1, 5, 1)


def test_colocation_by_column(base):
    class User(ObjectMixin, base, type_id=3):
        __tablename__ = "users"

    class Whole(ObjectMixin, base, type_id=1, colocate_with="user_id"):
        __tablename__ = "whole"
        user_id: Mapped[int] = mapped_column(ObjectRef(3))

    class Anything(ObjectMixin, base, type_id=5, colocate_with="parent_id"):
        __tablename__ = "anything"
        parent_id: Mapped[int] = mapped_column(ObjectRef())

    class Local(ObjectMixin, base, type_id=2, colocate_with="user_id"):
        __tablename__ = "local"
        user_id: Mapped[int] = mapped_column(
            "owner", ShardedId(3), ForeignKey("users.local_id")
        )
        user: Mapped[User] = relationship()

    for cls, field, types in (
        (Whole, "user_id", (3,)),
        (Anything, "parent_id", ()),
        (Local, "user_id", (3,)),
    ):
        colocation = spec_of(cls.__table__).colocation
        assert colocation.field == field
        assert colocation.type_ids() == types
        assert colocation.read(cls(**{field: pack(1, 3, 1)})) == pack(1, 3, 1)
    assert Whole.__table__.c.user_id.type.routes


def test_colocation_of_a_class_with_relationships_to_later_ones(base):
    """Finding the column does not configure the mappers."""

    class Pin(ObjectMixin, base, type_id=1, colocate_with="board_id"):
        __tablename__ = "pins"
        board_id: Mapped[int] = mapped_column(
            ShardedId(2), ForeignKey("boards.local_id")
        )
        board: Mapped[Any] = relationship("Board")

    class Board(ObjectMixin, base, type_id=2):
        __tablename__ = "boards"

    configure_mappers()
    assert Pin(board=Board()).board is not None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "names neither a blob field nor a column"),
        ("number", "column number that colocates is of type"),
        ("text", "write text: Mapped\\[int\\]"),
        ("id", "column id that colocates"),
        ("data", "column data that colocates"),
        ("owner", "names neither"),
        ("parents", "names neither"),
    ],
)
def test_impossible_colocation(base, name, message):
    with pytest.raises(ClassDefinitionError, match=message):

        class Pin(ObjectMixin, base, type_id=1, colocate_with=name):
            __tablename__ = "pins"
            number: Mapped[int]
            text: Mapped[str] = blob_field(default="")
            owner_id: Mapped[int] = mapped_column("owner", BigInteger)
            parents: Mapped[list[Any]] = relationship("Nobody")

    assert is_clean(base)


# -- the table in the database


def test_the_table(base):
    class User(ObjectMixin, base, type_id=3):
        __tablename__ = "users"

    class Note(ObjectMixin, base, type_id=4, max_bytes=60_000):
        __tablename__ = "notes"

    ddl = str(CreateTable(User.__table__).compile(dialect=mysql.dialect()))
    assert "local_id BIGINT NOT NULL AUTO_INCREMENT" in ddl
    assert "data MEDIUMTEXT CHARACTER SET utf8mb4" in ddl
    assert (
        "ts TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) "
        "ON UPDATE CURRENT_TIMESTAMP(6)"
    ) in ddl
    ddl = str(CreateTable(Note.__table__).compile(dialect=mysql.dialect()))
    assert "data TEXT CHARACTER SET utf8mb4" in ddl


def test_trigger_of_a_table_with_an_awkward_name(base):
    class Order(ObjectMixin, base, type_id=3):
        __tablename__ = 'order "100%"'

    engine = create_engine("sqlite://")
    base.metadata.create_all(engine)
    with engine.begin() as connection:
        triggers = connection.exec_driver_sql(
            "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        ).scalars()
        assert list(triggers) == ['order "100%"_ts']
        table = '"order ""100%"""'
        connection.exec_driver_sql(f"INSERT INTO {table} (data) VALUES ('a')")
        connection.exec_driver_sql(f"UPDATE {table} SET ts = 'x'")
        connection.exec_driver_sql(f"UPDATE {table} SET data = 'b'")
        ts = connection.exec_driver_sql(f"SELECT ts FROM {table}").scalar()
    assert ts != "x"
    engine.dispose()


# -- plain models


def test_keyspace_of_plain_models():
    class Base(KeyspaceMixin, DeclarativeBase):
        pass

    class Country(Base, keyspace="reference"):
        __tablename__ = "countries"
        key: Mapped[int] = mapped_column(primary_key=True)

    class Island(Country):
        __tablename__ = "islands"
        key: Mapped[int] = mapped_column(ForeignKey("countries.key"), primary_key=True)

    class Bucket(Base, keyspace="lookup", kind="mod"):
        __tablename__ = "buckets"
        key: Mapped[int] = mapped_column(primary_key=True)

    class Free(Base):
        __tablename__ = "free"
        key: Mapped[int] = mapped_column(primary_key=True)

    found = {
        cls.__name__: (spec_of(cls.__table__).keyspace, spec_of(cls.__table__).kind)
        for cls in (Country, Island, Bucket, Free)
    }
    assert found == {
        "Country": ("reference", "global"),
        "Island": ("reference", "global"),
        "Bucket": ("lookup", "mod"),
        "Free": (None, "global"),
    }
    with pytest.raises(ClassDefinitionError, match="kind='objects'"):

        class Wrong(Base, keyspace="objects", kind="objects"):
            __tablename__ = "wrong"
            key: Mapped[int] = mapped_column(primary_key=True)

    with pytest.raises(ClassDefinitionError, match="its base Island"):

        class Atoll(Island, keyspace="elsewhere"):
            pass

    with pytest.raises(ClassDefinitionError, match="has none"):

        class Freer(Free, keyspace="elsewhere"):
            pass

    assert "wrong" not in Base.metadata.tables


def test_keyspace_with_a_generated_base():
    base = declarative_base(cls=KeyspaceMixin)

    class Country(base, keyspace="reference"):
        __tablename__ = "countries"
        key: Mapped[int] = mapped_column(primary_key=True)

    assert spec_of(Country.__table__).keyspace == "reference"
