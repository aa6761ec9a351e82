"""Object classes that share a table: which can be defined, and which not."""

from __future__ import annotations

from dataclasses import fields
from inspect import signature
from typing import Any, ClassVar

import pytest
from sqlalchemy import case, column, inspect, select, String
from sqlalchemy.orm import (
    DeclarativeBase,
    declared_attr,
    Mapped,
    mapped_column,
    MappedAsDataclass,
)

from sqla_shard import blob_field, LookupMixin, ObjectMixin, ObjectRef, pack, ShardedId
from sqla_shard.cache.columns import Columns
from sqla_shard.exc import BlobValueError, CacheClassError, ClassDefinitionError
from sqla_shard.models import normalization
from sqla_shard.models.lookup_table import link
from sqla_shard.planning import spec_of

ON = {"polymorphic_on": "kind", "polymorphic_identity": "item"}
BOOK = {"polymorphic_identity": "book"}


@pytest.fixture
def base() -> Any:
    return type("Base", (DeclarativeBase,), {})


@pytest.fixture
def item(base: Any) -> Any:
    class Item(ObjectMixin, base, type_id=1, max_bytes=500):
        __tablename__ = "items"
        kind: Mapped[str] = mapped_column(String(10))
        name: Mapped[str] = blob_field()
        __mapper_args__ = ON

    return Item


def test_a_class_in_the_table_of_another(base, item):
    class Book(item):
        pages: Mapped[int] = blob_field(default=0)
        isbn: Mapped[str | None] = mapped_column(String(20))
        __mapper_args__ = BOOK

    assert list(base.metadata.tables) == ["items"]
    assert list(item.__sqla_shard__.fields) == ["name"]
    assert list(Book.__sqla_shard__.fields) == ["name", "pages"]
    assert spec_of(Book.__table__).type_id == 1
    book = Book(name="a", pages=2, isbn="x")
    assert (book.kind, book.data) == ("book", {"name": "a", "pages": 2})
    assert not hasattr(item(name="b"), "pages")
    assert "items.kind IN" in str(select(Book))
    assert "items.kind IN" not in str(select(item))


def test_references_to_it(base, item):
    class Book(item):
        __mapper_args__ = BOOK

    class Shelf(ObjectMixin, base, type_id=2):
        __tablename__ = "shelves"
        first: Mapped[int] = blob_field(ref=Book)
        last: Mapped[int] = blob_field(ref="Book")

    shelf = Shelf(first=pack(1, 1, 5), last=pack(1, 1, 6))
    assert unpacked(shelf.data) == {"first": 5, "last": 6}
    for name in ("first", "last"):
        with pytest.raises(BlobValueError, match="of type 2"):
            setattr(shelf, name, pack(1, 2, 5))

    class BookByName(LookupMixin, base, target="Book", normalize=normalization.exact):
        pass

    assert link(BookByName).type_id == 1
    assert link(BookByName).target is Book


def unpacked(data: dict[str, int]) -> dict[str, int]:
    return {key: value - pack(1, 1, 0) for key, value in data.items()}


def test_dataclasses():
    base = type("Base", (MappedAsDataclass, DeclarativeBase), {})

    class Item(ObjectMixin, base, type_id=1):
        __tablename__ = "items"
        kind: Mapped[str] = mapped_column(String(10), init=False)
        name: Mapped[str] = blob_field()
        __mapper_args__ = ON

    class Book(Item):
        pages: Mapped[int] = blob_field(default=0)
        isbn: Mapped[str | None] = mapped_column(String(20), default=None)
        __mapper_args__ = BOOK

    assert list(signature(Book).parameters) == ["name", "pages", "isbn"]
    assert [f.name for f in fields(Book)] == [*["id", "kind", "name", "pages", "isbn"]]
    book = Book("a", isbn="x")
    assert repr(book).endswith(
        "Book(id=None, kind='book', name='a', pages=0, isbn='x')"
    )
    assert book.data == {"name": "a"}


def test_it_is_not_cached(item):
    class Book(item):
        __mapper_args__ = BOOK

    for cls in (item, Book):
        with pytest.raises(CacheClassError, match="has subclasses"):
            Columns(inspect(cls), 1)


def test_no_discriminator(base):
    class Item(ObjectMixin, base, type_id=1):
        __tablename__ = "items"

    with pytest.raises(ClassDefinitionError, match="give Item a column"):

        class Book(Item):
            pages: Mapped[int] = blob_field(default=0)

    # The other way that the message names.
    class Shared(ObjectMixin, base):
        __abstract__ = True
        pages: Mapped[int] = blob_field(default=0)

    class Film(Shared, type_id=2):
        __tablename__ = "films"

    assert Film(pages=1).pages == 1


@pytest.mark.parametrize(
    "on", ["kind", case((column("code") == "b", "book"), else_="item")]
)
def test_invalid_columns(base, on):
    match = r"polymorphic_on=.* is not a column.*add one"
    with pytest.raises(ClassDefinitionError, match=match):

        class Item(ObjectMixin, base, type_id=1):
            __tablename__ = "items"
            kind: Mapped[str] = blob_field()
            code: Mapped[str] = mapped_column(String(10))
            __mapper_args__: ClassVar[Any] = {**ON, "polymorphic_on": on}

    assert not base.metadata.tables


@pytest.mark.parametrize("where", ["class", "mixin"])
def test_a_table_of_its_own(base, item, where):
    """Joined-table inheritance."""

    class Mixin:
        @declared_attr.directive
        def __tablename__(cls) -> str:  # noqa: N805  # as SQLAlchemy has it
            return "books"

    bases = (Mixin, item) if where == "mixin" else (item,)
    named = {"__tablename__": "books"} if where == "class" else {}
    with pytest.raises(ClassDefinitionError, match="its own table in addition"):
        type(item)("Book", bases, {**named, "__mapper_args__": BOOK})
    assert list(base.metadata.tables) == ["items"]


@pytest.mark.parametrize(
    "keyword",
    [{"type_id": 2}, {"colocate_with": "name"}, {"keyspace": "a"}],
    ids=lambda keyword: next(iter(keyword)),
)
def test_arguments_of_the_base_class(item, keyword):
    with pytest.raises(ClassDefinitionError, match="set in Item only"):

        class Book(item, **keyword):
            __mapper_args__ = BOOK


def test_sharded_columns_are_defined_in_the_base_class(base, item):
    for kind in (ShardedId(3), ObjectRef(3, colocated=True)):
        with pytest.raises(ClassDefinitionError, match="define it in Item"):

            class Book(item):
                owner_id: Mapped[int | None] = mapped_column(kind)
                __mapper_args__ = BOOK

    assert "owner_id" not in item.__table__.c

    # Columns that name no shard may be in any class.
    class Film(item):
        seen_by: Mapped[int | None] = mapped_column(ObjectRef(3))
        __mapper_args__ = BOOK

    assert "seen_by" in item.__table__.c


def test_names_that_are_taken(item):
    class Book(item):
        pages: Mapped[int] = blob_field(default=0)
        __mapper_args__ = BOOK

    for name in ("name", "kind"):
        with pytest.raises(ClassDefinitionError, match=f"{name} is an attr"):
            type(item)(
                "Film",
                (item,),
                {
                    name: blob_field(),
                    "__annotations__": {name: Mapped[str]},
                    "__module__": __name__,
                },
            )
    with pytest.raises(ClassDefinitionError, match="pages is an attr"):

        class Novel(Book):
            pages: Mapped[str] = blob_field()
