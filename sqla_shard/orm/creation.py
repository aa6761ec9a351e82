"""What the creation of every kind of class on virtual shards has in common.

A class that is refused leaves nothing behind, so that it can be corrected
and defined again, as in a notebook.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import is_dataclass
from functools import wraps
from typing import Any

from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.orm import DeclarativeBaseNoMeta
from sqlalchemy.orm import MappedAsDataclass
from sqlalchemy.orm import Mapper

from sqla_shard.exc import ClassDefinitionError

__all__ = ["check_bases", "check_table", "is_abstract", "whole_or_not_at_all"]

#: A handler of SQLAlchemy's ``after_mapper_constructed``.
Handler = Callable[[Mapper[Any], Any], None]


def is_abstract(cls: type[Any]) -> bool:
    """Tell whether a class is mapped by its subclasses only."""
    return bool(cls.__dict__.get("__abstract__")) or not {
        DeclarativeBase,
        DeclarativeBaseNoMeta,
    }.isdisjoint(cls.__bases__)


def check_bases(cls: type[Any]) -> None:
    """Refuse bases that a class cannot have.

    :raises ClassDefinitionError: for a mapped class or a dataclass.
    """
    for base in cls.__mro__[1:]:
        if "__mapper__" in base.__dict__:
            raise ClassDefinitionError(
                f"its base {base.__name__} is mapped to a table of its own; "
                "share columns, fields and methods through a base with "
                "__abstract__ = True",
                class_name=cls.__name__,
            )
        if base is MappedAsDataclass or is_dataclass(base):
            raise ClassDefinitionError(
                f"its base {base.__name__} is a dataclass, whose __init__ "
                "knows nothing of the attributes that this class gets; make "
                "it an ordinary class",
                class_name=cls.__name__,
            )


def check_table(cls: type[Any], table: Any, key: Sequence[str]) -> None:
    """Refuse a table that could not be on a virtual shard.

    :param key: names of the columns that are its primary key.
    :raises ClassDefinitionError: for another key, or a schema.
    """
    if table.schema is not None:
        raise ClassDefinitionError(
            f"its table is in schema {table.schema!r}; the schema is the "
            "virtual shard's database, which an id in each row names",
            class_name=cls.__name__,
        )
    names = [column.name for column in table.primary_key]
    if names != list(key):
        raise ClassDefinitionError(
            f"its primary key is ({', '.join(names)}); it must be "
            f"({', '.join(key)}) alone",
            class_name=cls.__name__,
        )


def whole_or_not_at_all(finish: Handler) -> Handler:
    """Undo the mapping of a class when its handler refuses it.

    Otherwise create_all() would create the table, the corrected class could
    not have the name, and as long as a traceback holds the class, all other
    mappers would fail with it.
    """

    @wraps(finish)
    def handler(mapper: Mapper[Any], cls: Any) -> None:
        try:
            finish(mapper, cls)
        except BaseException:
            _forget(mapper)
            raise

    return handler


def _forget(mapper: Mapper[Any]) -> None:
    table: Any = mapper.local_table
    table.metadata.remove(table)
    manager = mapper.class_manager
    # What registry.dispose() does, which has no form for a single class.
    mapper.registry._managers.pop(manager, None)
    mapper.registry._dispose_manager_and_mapper(manager)
