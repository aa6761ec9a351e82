"""Classes of an ordinary application, and of one with two databases."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import Column, ForeignKey, ForeignKeyConstraint, String, Table
from sqlalchemy.ext.associationproxy import association_proxy
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import (
    column_property,
    DeclarativeBase,
    Mapped,
    mapped_column,
    relationship,
)

from sqla_shard import blob_field, KeyspaceMixin, ObjectMixin
from sqla_shard.models.keyspace_mixin import assign_keyspace
from sqla_shard.types import UTCTimestamp


class PlainBase(DeclarativeBase):
    pass


author_tags = Table(
    "author_tags",
    PlainBase.metadata,
    Column("author_id", ForeignKey("authors.id"), primary_key=True),
    Column("tag_id", ForeignKey("tags.id"), primary_key=True),
)


class Author(PlainBase):
    __tablename__ = "authors"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(50), unique=True)
    version: Mapped[int] = mapped_column(default=1)
    books: Mapped[list[Book]] = relationship(
        back_populates="author", cascade="all, delete-orphan", order_by="Book.number"
    )
    tags: Mapped[list[Tag]] = relationship(
        secondary=author_tags, back_populates="authors", order_by="Tag.id"
    )
    tag_names = association_proxy("tags", "name")
    __mapper_args__: ClassVar[dict[str, Any]] = {"version_id_col": version}

    @hybrid_property
    def shout(self) -> str:
        return self.name + "!"


class Tag(PlainBase):
    __tablename__ = "tags"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(50))
    authors: Mapped[list[Author]] = relationship(
        secondary=author_tags, back_populates="tags"
    )

    def __init__(self, name: str) -> None:
        self.name = name


class Book(PlainBase):
    """A composite key, whose parts are given by the application."""

    __tablename__ = "books"

    author_id: Mapped[int] = mapped_column(ForeignKey("authors.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str] = mapped_column(String(50))
    author: Mapped[Author] = relationship(back_populates="books")
    pages: Mapped[list[Page]] = relationship(cascade="all, delete-orphan")


class Page(PlainBase):
    __tablename__ = "pages"
    __table_args__ = (
        ForeignKeyConstraint(
            ["author_id", "book"], ["books.author_id", "books.number"]
        ),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    author_id: Mapped[int]
    book: Mapped[int]


class Employee(PlainBase):
    __tablename__ = "employees"

    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(20))
    name: Mapped[str] = mapped_column(String(50))
    boss_id: Mapped[int | None] = mapped_column(ForeignKey("employees.id"))
    staff: Mapped[list[Employee]] = relationship()
    __mapper_args__: ClassVar[dict[str, Any]] = {
        "polymorphic_on": "kind",
        "polymorphic_identity": "employee",
    }


class Engineer(Employee):
    __tablename__ = "engineers"

    id: Mapped[int] = mapped_column(ForeignKey("employees.id"), primary_key=True)
    language: Mapped[str] = mapped_column(String(20))
    __mapper_args__: ClassVar[dict[str, Any]] = {"polymorphic_identity": "engineer"}


class Intern(Employee):
    """In its parent's table."""

    school: Mapped[str | None] = mapped_column(String(20))
    __mapper_args__: ClassVar[dict[str, Any]] = {"polymorphic_identity": "intern"}


class Seen(PlainBase):
    """Types of ours on a plain model."""

    __tablename__ = "seen"

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime | None] = mapped_column(UTCTimestamp())
    number: Mapped[int] = mapped_column(default=3)
    twice: Mapped[int] = column_property(number * 2)


class Item(ObjectMixin, PlainBase, type_id=9):
    """An object class of the same declarative base."""

    __tablename__ = "items"

    title: Mapped[str] = blob_field(default="")


class ReferenceBase(KeyspaceMixin, DeclarativeBase):
    pass


class Country(ReferenceBase, keyspace="reference"):
    __tablename__ = "countries"

    code: Mapped[str] = mapped_column(String(2), primary_key=True)
    name: Mapped[str] = mapped_column(String(50))
    kind: Mapped[str] = mapped_column(String(10), default="country")
    languages: Mapped[list[Language]] = relationship(secondary="country_languages")
    __mapper_args__: ClassVar[dict[str, Any]] = {
        "polymorphic_on": "kind",
        "polymorphic_identity": "country",
    }


class Island(Country):
    """Inherits the keyspace, in a table of its own."""

    __tablename__ = "islands"

    code: Mapped[str] = mapped_column(ForeignKey("countries.code"), primary_key=True)
    coast: Mapped[int]
    __mapper_args__: ClassVar[dict[str, Any]] = {"polymorphic_identity": "island"}


class Abstract(ReferenceBase, keyspace="reference"):
    __abstract__ = True


class Language(Abstract):
    __tablename__ = "languages"

    code: Mapped[str] = mapped_column(String(2), primary_key=True)


class Account(ReferenceBase, keyspace="main"):
    __tablename__ = "accounts"

    id: Mapped[int] = mapped_column(primary_key=True)


class Stone(ObjectMixin, ReferenceBase, type_id=3, keyspace="objects"):
    __tablename__ = "stones"

    name: Mapped[str] = blob_field()


assign_keyspace(
    Table(
        "country_languages",
        ReferenceBase.metadata,
        Column("country", ForeignKey("countries.code"), primary_key=True),
        Column("language", ForeignKey("languages.code"), primary_key=True),
    ),
    "reference",
)


class NowhereBase(DeclarativeBase):
    """For a table that is never created: nothing says where."""


class Anywhere(NowhereBase):
    __tablename__ = "anywhere"

    id: Mapped[int] = mapped_column(primary_key=True)


class NoPlainBase(DeclarativeBase):
    pass


class Lonely(ObjectMixin, NoPlainBase, type_id=1):
    __tablename__ = "lonely"

    name: Mapped[str] = blob_field()
