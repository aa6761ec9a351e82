"""Plain models: the keyspace of a class that is not an object class.

A plain SQLAlchemy model lives in the global keyspace, if there is exactly
one; nothing has to be changed in it.  Where there are several, or for a
keyspace of kind ``mod``, the class names its own::

    class Base(KeyspaceMixin, DeclarativeBase): ...

    class Country(Base, keyspace="reference"): ...

Its subclasses inherit it, and so do the secondary tables of its many-to-many
relationships; ``assign_keyspace`` does the same for any other table.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import event
from sqlalchemy import Table
from sqlalchemy.orm import Mapper

from sqla_shard.exc import ClassDefinitionError
from sqla_shard.orm.creation import whole_or_not_at_all
from sqla_shard.orm.uniqueness import check_unique
from sqla_shard.routing import declare
from sqla_shard.routing import TableSpec

__all__ = ["KeyspaceMixin", "assign_keyspace"]

_CHOICE = "__sqla_shard_keyspace__"
_KINDS = ("global", "mod")


class KeyspaceMixin:
    """Gives plain models the class keyword ``keyspace=``.

    It stands before the declarative base, or before ``DeclarativeBase`` in
    the definition of that base.

    :param keyspace: name of a keyspace of kind ``global``, or of ``kind``.
    :param kind: kind of that keyspace, ``global`` or ``mod``.
    :raises ClassDefinitionError: when the kind is another, or a base class
        with the same table is in another keyspace.
    """

    def __init_subclass__(
        cls,
        *,
        keyspace: str | None = None,
        kind: str = "global",
        **kwargs: Any,
    ) -> None:
        if keyspace is not None:
            if kind not in _KINDS:
                raise ClassDefinitionError(
                    f"kind={kind!r}: plain models are in keyspaces of kind "
                    f"{' or '.join(_KINDS)}",
                    class_name=cls.__name__,
                )
            _check_same(cls, (keyspace, kind))
            setattr(cls, _CHOICE, (keyspace, kind))
        super().__init_subclass__(**kwargs)


def _check_same(cls: type[Any], choice: tuple[str, str]) -> None:
    for base in cls.__mro__[1:]:
        if "__mapper__" in base.__dict__:
            theirs = getattr(base, _CHOICE, None)
            if theirs != choice:
                where = "none" if theirs is None else repr(theirs[0])
                raise ClassDefinitionError(
                    f"keyspace={choice[0]!r}, but its base {base.__name__}, "
                    f"whose table its rows are in too, names {where}; name "
                    "the keyspace in the base alone",
                    class_name=cls.__name__,
                )


def assign_keyspace(
    table: Table, keyspace: str, *, kind: str = "global"
) -> Table:
    """Put a table that no class is mapped to into a keyspace.

    :param keyspace: its name.
    :param kind: kind of that keyspace, ``global`` or ``mod``.
    :returns: the table.
    """
    declare(table, TableSpec(kind=kind, keyspace=keyspace))
    return table


@whole_or_not_at_all
def _assign(mapper: Mapper[Any], cls: type[Any]) -> None:
    choice = getattr(cls, _CHOICE, None)
    if choice is not None:
        table: Any = mapper.local_table
        assign_keyspace(table, choice[0], kind=choice[1])
        # A class without a table of its own is in that of its base.
        if choice[1] == "mod" and mapper.inherits is None:
            check_unique(table)


def _assign_secondary(mapper: Mapper[Any], cls: type[Any]) -> None:
    choice = getattr(cls, _CHOICE, None)
    if choice is None:
        return
    for relation in mapper.relationships:
        secondary: Any = relation.secondary
        if secondary is not None:
            assign_keyspace(secondary, choice[0], kind=choice[1])


event.listen(
    KeyspaceMixin, "after_mapper_constructed", _assign, propagate=True
)
event.listen(
    KeyspaceMixin, "mapper_configured", _assign_secondary, propagate=True
)
