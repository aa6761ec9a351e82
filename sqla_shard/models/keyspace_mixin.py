"""Keyspaces of plain models, which are not object classes.

A plain SQLAlchemy model is in the global keyspace if there is exactly one,
without any change.  If there are several, or for a keyspace of kind ``mod``,
the class names its keyspace::

    class Base(KeyspaceMixin, DeclarativeBase): ...

    class Country(Base, keyspace="reference"): ...

Its subclasses inherit it, and so do the secondary tables of its many-to-many
relationships; ``assign_keyspace`` does the same for any other table.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import event, Table
from sqlalchemy.orm import Mapper

from sqla_shard.exc import ClassDefinitionError
from sqla_shard.models.class_checks import check_unique, whole_or_not_at_all
from sqla_shard.models.id_sources import adopt_layout
from sqla_shard.planning import declare, TableSpec

_CHOICE = "__sqla_shard_keyspace__"
_KINDS = ("global", "mod")


class KeyspaceMixin:
    """Adds the class keyword ``keyspace=`` to plain models.

    It precedes the declarative base, or ``DeclarativeBase`` in the definition
    of that base.

    :param keyspace: name of the keyspace.
    :param kind: kind of the keyspace, ``global`` or ``mod``.
    :raises ClassDefinitionError: for another kind, or when a base class with
        the same table is in another keyspace.
    """

    def __init_subclass__(
        cls, *, keyspace: str | None = None, kind: str = "global", **kwargs: Any
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
                    f"whose table it shares, has {where}; set the keyspace in "
                    "the base only",
                    class_name=cls.__name__,
                )


def assign_keyspace(table: Table, keyspace: str, *, kind: str = "global") -> Table:
    """Assign a table without a mapped class to a keyspace.

    :param keyspace: name of the keyspace.
    :param kind: kind of the keyspace, ``global`` or ``mod``.
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
        adopt_layout(cls, table)
        # A class without its own table was checked with its base.
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


event.listen(KeyspaceMixin, "after_mapper_constructed", _assign, propagate=True)
event.listen(KeyspaceMixin, "mapper_configured", _assign_secondary, propagate=True)
