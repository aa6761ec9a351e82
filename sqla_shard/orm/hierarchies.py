"""Classes that share the table of an object class.

Single-table inheritance, as SQLAlchemy has it: a column tells of which class
a row is, and an id is that of the first class, whose type it has::

    class Item(ObjectMixin, Base, type_id=1):
        __tablename__ = "items"
        kind: Mapped[str] = mapped_column(String(10))
        name: Mapped[str] = blob_field()
        __mapper_args__ = {
            "polymorphic_on": "kind", "polymorphic_identity": "item"
        }

    class Book(Item):
        pages: Mapped[int] = blob_field(default=0)
        __mapper_args__ = {"polymorphic_identity": "book"}

Where an object lives is told by the first class alone.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping
from typing import Any
from typing import NoReturn

from sqlalchemy import Column
from sqlalchemy import inspect
from sqlalchemy.orm import MappedColumn

from sqla_shard.exc import ClassDefinitionError
from sqla_shard.routing import routes

__all__ = ["check_root", "check_subclass", "first_class"]


def first_class(cls: type[Any]) -> Any:
    """Return the object class whose table a class is to share, or None."""
    found = None
    for base in cls.__mro__[1:]:
        if "__sqla_shard__" in base.__dict__ and "__mapper__" in base.__dict__:
            found = base
    return found


def check_root(cls: Any, fields: Collection[str]) -> None:
    """Refuse what could not tell the class of a row.

    :param fields: names of the blob fields.
    :raises ClassDefinitionError: for a ``polymorphic_on`` that is no column.
    """
    arguments = getattr(cls, "__mapper_args__", None)
    if not isinstance(arguments, Mapping):
        return
    on = arguments.get("polymorphic_on")
    if on is None or (
        isinstance(on, (str, Column, MappedColumn)) and on not in fields
    ):
        return
    raise ClassDefinitionError(
        f"polymorphic_on={on!r} is no column, and SQLAlchemy has to know the "
        "class of a row before it reads a blob; add one, such as kind: "
        "Mapped[str] = mapped_column(String(20))",
        class_name=cls.__name__,
    )


def check_subclass(
    cls: Any, first: Any, fields: Collection[str], given: Mapping[str, Any]
) -> None:
    """Refuse what classes of one table cannot have.

    :param first: the class whose table it is.
    :param fields: names of the blob fields that the class adds.
    :param given: the class keywords.
    :raises ClassDefinitionError: for another table, or what is said by the
        first class.
    """
    name = first.__name__
    if inspect(first).polymorphic_on is None:
        _refuse(
            cls,
            f"its base {name} is mapped to a table of its own, and nothing "
            f"would tell the classes of its rows apart: give {name} a column, "
            "such as kind: Mapped[str], and __mapper_args__ = "
            '{"polymorphic_on": "kind", "polymorphic_identity": ...}; or '
            "share columns, fields and methods through a base with "
            "__abstract__ = True, and give each class a table",
        )
    said = [key for key, value in given.items() if value is not None]
    if said:
        _refuse(
            cls,
            f"{', '.join(said)} is for the whole table, and said by {name}; "
            "leave it out",
        )
    _check_attributes(cls, first)
    # Of siblings, too: their rows have one document, and in SQL the field of
    # one would be read of the other's rows.
    for mapper in inspect(first).self_and_descendants:
        for key in fields:
            if mapper.class_ is not cls and mapper.has_property(key):
                _refuse(
                    cls,
                    f"{key} is an attribute of {mapper.class_.__name__}; "
                    "call it something else",
                )


def _check_attributes(cls: Any, first: Any) -> None:
    """Refuse a table of the class's own, and columns that tell its shard."""
    name = first.__name__
    own = [base for base in cls.__mro__ if base not in first.__mro__]
    own = [base for base in own if "__mapper__" not in base.__dict__]
    if any({"__tablename__", "__table__"} & vars(b).keys() for b in own):
        _refuse(
            cls,
            f"it has a table beside that of its base {name}, and an object is "
            "one row: leave __tablename__ out, and its fields are in the blob "
            f"of {name}; or give it a base with __abstract__ = True, and a "
            "type_id",
        )
    for base in own:
        for key, value in vars(base).items():
            column = getattr(value, "column", value)
            if isinstance(column, Column) and routes(column):
                _refuse(
                    cls,
                    f"{key} refers to objects of its own shard, which is told "
                    f"for all classes of the table: define it in {name}",
                )


def _refuse(cls: Any, problem: str) -> NoReturn:
    raise ClassDefinitionError(problem, class_name=cls.__name__)
