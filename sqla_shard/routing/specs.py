"""What the package knows of a table: its keyspace, and what finds a row.

The facts are kept in ``Table.info``, so that a Core statement is routed like
an ORM statement of the mapped class.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import field
from typing import Any

from sqlalchemy import Table
from sqlalchemy.exc import NoReferenceError

from sqla_shard.topology import Topology
from sqla_shard.types import IdType

__all__ = [
    "Colocation",
    "TableSpec",
    "columns_set",
    "declare",
    "has_objects",
    "name_of",
    "routes",
    "routing_column",
    "spec_of",
]

_INFO = "sqla_shard"


@dataclass(frozen=True, kw_only=True)
class Colocation:
    """The field that ties an object to the shard of its parent.

    :ivar field: attribute that holds the parent's id.
    :ivar read: returns its value for an object, None where it is not set
        or not loaded; it never loads.
    :ivar type_ids: returns the type ids that the parent may have; empty
        for any.  A callable, because a class may be named before it exists.
    """

    field: str
    read: Callable[[Any], Any]
    type_ids: Callable[[], tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """Where the rows of a table live.

    :ivar kind: kind of its keyspace.
    :ivar keyspace: name of the keyspace; None for the only one of the kind.
    :ivar id_index: position, in the primary key, of the id that names the
        shard; None in a global keyspace, and where no key column does so.
    :ivar type_id: type of its objects; None for other tables.
    :ivar colocation: None for roots.
    :ivar encode_row: turns a dictionary of attributes of a mapper, given to
        a bulk INSERT, into one of mapped columns.
    :ivar loaded_as: returns the attributes that are read for those of a
        list, of an object; None where they are the same.
    :ivar is_shown: tells whether reads show an object that they are not
        asked for in particular; None for all.
    :ivar check: raises an error for an object that was loaded from a cache
        and cannot be read; None for no check.
    :ivar commits_late: whether the COMMIT of its rows comes after that of
        others, where a transaction writes several servers in order.
    :ivar guard: called with each INSERT, UPDATE and DELETE of a caller;
        raises for those that would leave out something else.
    :ivar reference: name of the class, of a table that has the same rows
        on every shard; None for others.
    """

    kind: str
    keyspace: str | None = None
    id_index: int | None = None
    type_id: int | None = None
    colocation: Colocation | None = None
    encode_row: Callable[[Any, dict[str, Any]], dict[str, Any]] | None = None
    loaded_as: Callable[[Any, list[str]], list[str]] | None = None
    is_shown: Callable[[Any], bool] | None = None
    check: Callable[[Any], None] | None = None
    commits_late: bool = False
    # Each class has one of its own, so that none is equal to another.
    guard: Callable[[Any], None] | None = field(default=None, compare=False)
    reference: str | None = None


_NOTHING_KNOWN = TableSpec(kind="global")


def declare(table: Table, spec: TableSpec) -> None:
    """Record the facts of a table."""
    table.info[_INFO] = spec


def spec_of(table: Any) -> TableSpec:
    """Return the facts of a table.

    A table that nothing was declared of is in an objects keyspace if its
    primary key holds an id that routes, or a foreign key to a row of the
    same shard, such as those of a link table; else in a global keyspace.
    """
    # table() without columns of a Table says nothing of itself.
    if not isinstance(table, Table):
        return _NOTHING_KNOWN
    found: TableSpec | None = table.info.get(_INFO)
    if found is None:
        found = _inferred(table)
        # A foreign key has no type until the other table is defined.
        if not any(column.type._isnull for column in table.columns):
            table.info[_INFO] = found
    return found


def is_placed(table: Any) -> bool:
    """Tell whether anything says which keyspace a table is in."""
    return spec_of(table) != _NOTHING_KNOWN


def _inferred(table: Table) -> TableSpec:
    for index, column in enumerate(table.primary_key):
        kind = column.type
        if isinstance(kind, IdType) and kind.routes:
            return TableSpec(
                kind="objects",
                keyspace=_keyspace_of(column),
                id_index=index,
                type_id=kind.type_id,
            )
    for column in table.columns:
        if column.foreign_keys and routes(column):
            return TableSpec(kind="objects", keyspace=_keyspace_of(column))
    return _NOTHING_KNOWN


def _keyspace_of(column: Any) -> str | None:
    """Return the keyspace of the table that a foreign key leads to."""
    for key in column.foreign_keys:
        # The other table may belong to code that is not imported here.
        with suppress(NoReferenceError):
            if key.column.table is not column.table:
                return spec_of(key.column.table).keyspace
    return None


def routes(column: Any) -> bool:
    """Tell whether the id in a column names the shard of its row."""
    return isinstance(column.type, IdType) and column.type.routes


def routing_column(table: Any) -> Any:
    """Return the column whose id names the shard of a row.

    :param table: of a keyspace of objects.
    """
    return table.primary_key.columns[spec_of(table).id_index]


def has_objects(table: Any) -> bool:
    """Tell whether each row of a table is an object, which has an id."""
    return spec_of(table).id_index == 0 and len(table.primary_key) == 1


def name_of(spec: TableSpec, topology: Topology) -> str | None:
    """Return the name of the keyspace that a table is in.

    :returns: None where it cannot be told: the table names none, and the
        topology has not exactly one of its kind.
    """
    if spec.keyspace is not None:
        return spec.keyspace
    keyspaces = topology.keyspaces.values()
    alike = [one.name for one in keyspaces if one.kind == spec.kind]
    return alike[0] if len(alike) == 1 else None


def columns_set(statement: Any) -> list[Any]:
    """Return the columns that an INSERT or UPDATE sets, or their names."""
    return [
        *dict(getattr(statement, "_values", None) or ()),
        *dict(getattr(statement, "_ordered_values", None) or ()),
    ]
