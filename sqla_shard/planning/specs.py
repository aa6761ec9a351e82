"""The routing metadata of a table: its keyspace and its shard key.

It is stored in ``Table.info``, so that a Core statement is routed like
an ORM statement of the mapped class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from sqlalchemy import Table
from sqlalchemy.exc import NoReferenceError

from sqla_shard.ids import IdLayout
from sqla_shard.topology import Topology
from sqla_shard.types import IdType
from sqla_shard.util import sqlalchemy_private as private

_INFO = "sqla_shard"
_NEW_IDS = "sqla_shard_new_ids"


@dataclass(frozen=True, kw_only=True)
class Colocation:
    """The field that ties an object to the shard of its parent.

    :ivar field: attribute that holds the parent's id.
    :ivar read: returns the attribute's value for an object, None if it is not
        set or not loaded; it never loads.
    :ivar type_ids: returns the type ids that the parent may have; empty
        for any.  A callable, because a class may be named before it exists.
    """

    field: str
    read: Callable[[Any], Any]
    type_ids: Callable[[], tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """The keyspace and the shard key of a table.

    :ivar kind: kind of the keyspace.
    :ivar keyspace: name of the keyspace; None for the only one of the kind.
    :ivar id_index: position of the id that routes in the primary key; None
        if it has none.
    :ivar type_id: type id of the objects; None if rows are not objects.
    :ivar layout: layout of the ids that name the shards of rows; None if no
        id does.
    :ivar colocation: the field that colocates; None for roots.
    :ivar encode_row: turns a dictionary of attributes of a mapper, given to
        a bulk INSERT, into one of mapped columns.
    :ivar before_rows: called before the rows of a bulk INSERT are sent, with
        the session, the table, the location and the rows; None for no call.
    :ivar loaded_as: returns the attributes to load for a list of attributes
        of an object; None if they are the same.
    :ivar discard: discards unflushed changes of attributes that are loaded
        with others, if those have changes too; returns the attributes that
        are loaded alone, or None if it did nothing.
    :ivar is_shown: returns whether reads return an object that is not
        requested by id; None for all.
    :ivar check: raises an error for an object that was loaded from a cache
        and cannot be read; None for no check.
    :ivar commits_late: whether its rows are committed after the rows of other
        tables, if a transaction writes to several servers in order.
    :ivar guard: called with each INSERT, UPDATE and DELETE of a caller;
        raises an error for a statement that would bypass other writes.
    :ivar places_of: returns the locations that a row with a primary key may
        have, the one of its INSERT first, in a table without an id that names
        the shard; None for all other tables.
    :ivar reference: name of the class of a reference table, which has the
        same rows on every shard; None for any other table.
    """

    kind: str
    keyspace: str | None = None
    id_index: int | None = None
    type_id: int | None = None
    layout: IdLayout | None = None
    colocation: Colocation | None = None
    encode_row: Callable[[Any, dict[str, Any]], dict[str, Any]] | None = None
    before_rows: Callable[[Any, Any, Any, Any], None] | None = None
    loaded_as: Callable[[Any, list[str]], list[str]] | None = None
    discard: Callable[[Any, list[str]], list[str] | None] | None = None
    is_shown: Callable[[Any], bool] | None = None
    check: Callable[[Any], None] | None = None
    commits_late: bool = False
    # Each class has a separate function, so that specs would never be equal.
    guard: Callable[[Any], None] | None = field(default=None, compare=False)
    places_of: Callable[[Any, Any], Any] | None = field(default=None, compare=False)
    reference: str | None = None

    def shard_of(self, row_id: Any, name: str = "") -> int:
        """Return the shard that the id of a row names.

        :param name: name of the class, for the message.
        :raises InvalidIdError: if it is not an id.
        :raises WrongTypeError: if it is an id of another type.
        """
        assert self.layout is not None  # noqa: S101  # an id names the shard
        return self.layout.shard_of(row_id, self.type_id, name)


_NOTHING_KNOWN = TableSpec(kind="global")


#: The type of a value that may be compared with any column of a
#: :class:`Supposition`.
ANY_VALUE = object()


class Supposition(Protocol):
    """Tables as they would be, for statements that are only planned."""

    def spec_of(self, table: Any) -> TableSpec:
        """Return the routing metadata that a table would have."""
        ...

    def kind_of(self, element: Any) -> Any:
        """Return the type that an expression would have."""
        ...


_supposed: ContextVar[Supposition | None] = ContextVar(
    "sqla_shard_supposed", default=None
)


@contextmanager
def supposing(what: Supposition) -> Iterator[None]:
    """Route the statements in the block as if tables were different."""
    # A token would be lost by an interrupt right after set().
    before = _supposed.get()
    try:
        _supposed.set(what)
        yield
    finally:
        _supposed.set(before)


def supposed() -> bool:
    """Return whether statements are routed by a :class:`Supposition`."""
    return _supposed.get() is not None


def kind_of(element: Any) -> Any:
    """Return the type of an expression; None if it has no type."""
    what = _supposed.get()
    if what is not None:
        return what.kind_of(element)
    return getattr(element, "type", None)


def declare(table: Table, spec: TableSpec) -> None:
    """Set the routing metadata of a table."""
    table.info[_INFO] = spec


def spec_of(table: Any) -> TableSpec:
    """Return the routing metadata of a table.

    A table without a declaration is in an objects keyspace if its primary key
    holds an id that routes, or if it has a foreign key to a row of the same
    shard, as a link table has; otherwise it is in a global keyspace.
    """
    what = _supposed.get()
    if what is not None:
        return what.spec_of(table)
    # table() of SQLAlchemy has no metadata.
    if not isinstance(table, Table):
        return _NOTHING_KNOWN
    spec: TableSpec | None = table.info.get(_INFO)
    if spec is None:
        spec = _inferred(table)
        # A foreign key has no type until the other table is defined.
        if not any(private.is_null_type(column.type) for column in table.columns):
            table.info[_INFO] = spec
    return spec


#: Returns ids for new rows; called with the session, the location and the
#: number of rows.
NewIds = Callable[[Any, Any, int], Sequence[int]]


def declare_new_ids(table: Table, new_ids: NewIds) -> None:
    """Set the function that issues the ids of new rows of a table."""
    table.info[_NEW_IDS] = new_ids


def new_ids_of(table: Any) -> NewIds | None:
    """Return the function that issues ids.

    :returns: None if the server gives ids to rows, or the application has to.
    """
    if not isinstance(table, Table):
        return None
    new_ids: NewIds | None = table.info.get(_NEW_IDS)
    return new_ids


def is_placed(table: Any) -> bool:
    """Return whether the keyspace of a table is known."""
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
                layout=kind.layout,
            )
    for column in table.columns:
        if column.foreign_keys and routes(column):
            return TableSpec(
                kind="objects",
                keyspace=_keyspace_of(column),
                layout=kind_of(column).layout,
            )
    return _NOTHING_KNOWN


def _keyspace_of(column: Any) -> str | None:
    """Return the keyspace of the table that a foreign key refers to."""
    for key in column.foreign_keys:
        # The other table may belong to code that is not imported here.
        with suppress(NoReferenceError):
            if key.column.table is not column.table:
                return spec_of(key.column.table).keyspace
    return None


def routes(column: Any) -> bool:
    """Return whether the id in a column names the shard of its row."""
    kind = kind_of(column)
    return isinstance(kind, IdType) and kind.routes


def routing_column(table: Any) -> Any:
    """Return the column whose id names the shard of a row.

    :param table: a table of an objects keyspace.
    """
    return table.primary_key.columns[spec_of(table).id_index]


def has_objects(table: Any) -> bool:
    """Return whether each row of a table is an object, which has an id."""
    return spec_of(table).id_index == 0 and len(table.primary_key) == 1


def name_of(spec: TableSpec, topology: Topology) -> str | None:
    """Return the name of the keyspace that a table is in.

    :returns: None if the table does not name a keyspace, and the topology does
        not have exactly one of its kind.
    """
    if spec.keyspace is not None:
        return spec.keyspace
    keyspaces = topology.keyspaces.values()
    alike = [keyspace.name for keyspace in keyspaces if keyspace.kind == spec.kind]
    return alike[0] if len(alike) == 1 else None


def columns_set(statement: Any) -> list[Any]:
    """Return the columns that an INSERT or UPDATE sets, or their names."""
    return [
        *dict(private.values(statement) or ()),
        *dict(private.ordered_values(statement) or ()),
    ]
