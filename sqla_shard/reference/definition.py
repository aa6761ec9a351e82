"""What happens when a reference class is created.

:func:`define` runs before SQLAlchemy maps the class, :func:`finish` after
that: it refuses what could not be the same everywhere, and tells routing
about the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from sqlalchemy import UniqueConstraint
from sqlalchemy.orm import Mapper

from sqla_shard.exc import ClassDefinitionError
from sqla_shard.exc import ReferenceWriteError
from sqla_shard.orm.creation import check_first_mapped
from sqla_shard.orm.creation import check_members
from sqla_shard.orm.creation import check_schema
from sqla_shard.orm.creation import is_abstract
from sqla_shard.orm.creation import own_definition
from sqla_shard.orm.creation import snake
from sqla_shard.orm.creation import whole_or_not_at_all
from sqla_shard.routing import declare
from sqla_shard.routing import TableSpec
from sqla_shard.types import IdType

__all__ = ["define", "finish", "table_of"]

_TABLE = "__sqla_shard_reference__"


def define(cls: type[Any], mixin: type[Any], *, keyspace: str | None) -> None:
    """Check a class that is about to be mapped.

    :raises ClassDefinitionError: when it could not work.
    """
    if is_abstract(cls):
        if keyspace is not None:
            raise ClassDefinitionError(
                "it is abstract, so keyspace belongs to the classes that "
                "inherit from it",
                class_name=cls.__name__,
            )
        return
    if getattr(cls, "metadata", None) is None:
        raise ClassDefinitionError(
            "it has no declarative base: class "
            f"{cls.__name__}(ReferenceMixin, Base)",
            class_name=cls.__name__,
        )
    check_first_mapped(cls)
    check_members(cls, mixin, (), "reference")
    if not any("__tablename__" in base.__dict__ for base in cls.__mro__):
        cls.__tablename__ = snake(cls.__name__)
    cls.__sqla_shard_keyspace_name__ = keyspace


@whole_or_not_at_all
def finish(mapper: Mapper[Any], cls: Any) -> None:
    """Handle ``after_mapper_constructed``: tell routing about the table.

    :raises ClassDefinitionError: when the class cannot work.
    """
    table: Any = mapper.local_table
    check_schema(cls, table)
    for reason in _faults(table):
        raise ClassDefinitionError(reason, class_name=cls.__name__)
    keyspace = cls.__sqla_shard_keyspace_name__
    declare(
        table,
        TableSpec(
            kind="objects",
            keyspace=keyspace,
            guard=partial(_refuse, cls.__name__),
            reference=cls.__name__,
        ),
    )
    setattr(cls, _TABLE, table)


def _refuse(name: str, statement: Any) -> None:
    """Refuse to write on one shard what all have to have the same.

    :raises ReferenceWriteError: always.
    """
    raise ReferenceWriteError(reference=name)


def table_of(cls: Any) -> Any:
    """Return the table of a reference class.

    :raises ClassDefinitionError: when the class is abstract.
    """
    return own_definition(cls, _TABLE)


def _faults(table: Any) -> Iterator[str]:
    """Yield what in a table could not be the same on every shard."""
    generated = table.autoincrement_column
    if generated is not None:
        yield (
            f"the server would number its rows, on each shard for itself: "
            f"say mapped_column(primary_key=True, autoincrement=False) for "
            f"{generated.name!r}, and give each row its key"
        )
    for column in table.c:
        if isinstance(column.type, IdType) and column.type.routes:
            yield (
                f"its column {column.name!r} refers to an object of the "
                "row's own shard, and the row is on every shard; use "
                "ObjectRef() without a foreign key"
            )
        default = column.default
        if column.server_default is not None or (
            default is not None
            and not (default.is_scalar or default.is_callable)
        ):
            # server_default is that of Computed and Identity, too.
            yield (
                f"the server would make values of its column "
                f"{column.name!r}, on each shard others: rows are written "
                "in full; use default= with a value or a function"
            )
    for foreign in table.foreign_keys:
        yield (
            f"its column {foreign.parent.name!r} has a foreign key: each "
            "table is written by itself, and the row that it refers to may "
            "come later; leave it out, and give relationship() a "
            "primaryjoin with foreign()"
        )
    if any(isinstance(c, UniqueConstraint) for c in table.constraints) or any(
        index.unique for index in table.indexes
    ):
        yield (
            "something beside its primary key is unique: two rows that "
            "exchange such values could not be written one by one; check "
            "the rows that you write instead"
        )
