"""The tables of an application as a declaration says they will be.

:class:`Future` is a :class:`~sqla_shard.planning.Supposition`: with it, the
router reads a statement of the unsharded application as if the primary keys
were object ids, and the foreign keys references to objects.  Its answers are
those that the router gives for the sharded application.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from sqlalchemy import Column, MetaData, Table
from sqlalchemy.sql.elements import BindParameter, ClauseElement
from sqlalchemy.sql.functions import ReturnTypeFromArgs
from sqlalchemy.sql.selectable import ScalarSelect

from sqla_shard.exc import DeclarationError
from sqla_shard.ids import DEFAULT_LAYOUT
from sqla_shard.migrate.declaration import (
    Declaration,
    Item,
    Lookup,
    MappingTable,
    Owned,
    Owner,
    Reference,
)
from sqla_shard.planning import ANY_VALUE, Colocation, TableSpec
from sqla_shard.planning.clauses import unlabelled
from sqla_shard.types import IdType, ObjectRef, ShardedId
from sqla_shard.util.sqlalchemy_helpers import sorted_tables

_GLOBAL = TableSpec(kind="global")


@dataclass(frozen=True, kw_only=True)
class FutureTable:
    """One table of the future.

    :ivar table: the table as it is.
    :ivar spec: the routing metadata that it will have.
    :ivar kinds: the types of columns that will hold ids, by name.
    :ivar lookups: the types of columns with a lookup, by name.
    :ivar id_column: name of the column with the row's own id, if any.
    :ivar parent_column: name of the column with the id of the row that it is
        colocated with, if any.
    """

    table: Table
    spec: TableSpec
    kinds: Mapping[str, IdType] = field(default_factory=dict)
    lookups: Mapping[str, IdType] = field(default_factory=dict)
    id_column: str | None = None
    parent_column: str | None = None

    @property
    def routing_columns(self) -> tuple[str, ...]:
        """The columns that name the shard of a row."""
        return tuple(
            f"{self.table.key}.{name}"
            for name, kind in self.kinds.items()
            if kind.routes
        )


@dataclass(frozen=True, kw_only=True)
class ForeignKeyFinding:
    """A foreign key that cannot be a constraint on shards.

    :ivar column: the column, as ``messages.sender_id``.
    :ivar target: the column that it refers to.
    :ivar reason: why there will be no constraint.
    """

    column: str
    target: str
    reason: str


class Future:
    """The tables of a metadata as a declaration says they will be.

    :param declaration: the declaration.
    :param metadata: the tables of the application.
    :raises DeclarationError: if the declaration does not fit the tables.
    """

    def __init__(self, declaration: Declaration, metadata: MetaData) -> None:
        self.declaration = declaration
        self.metadata = metadata
        builder = _Builder(declaration, metadata)
        self.tables: dict[str, FutureTable] = builder.build()
        #: The tables whose rows are objects, by type id.
        self.types: dict[int, str] = builder.types
        self._has_lookups = any(declaration.of(Lookup))
        self._inverses = [m for m in declaration.of(MappingTable) if m.inverse]

    # -- the supposition

    def spec_of(self, table: Any) -> TableSpec:
        """Return the routing metadata that a table will have."""
        future_table = self.tables.get(_key(table))
        return _GLOBAL if future_table is None else future_table.spec

    def kind_of(self, element: Any) -> Any:
        """Return the type that an expression will have."""
        if type(element) is Column and isinstance(element.table, Table):
            return self._kind_of_column(element)
        element = unlabelled(element)
        if isinstance(element, BindParameter):
            return ANY_VALUE
        if isinstance(element, ScalarSelect):
            columns = list(element.element.selected_columns)
            return self.kind_of(columns[0]) if len(columns) == 1 else None
        if isinstance(element, ReturnTypeFromArgs):
            for argument in element.clauses:
                return self.kind_of(argument)
        column = _base_column(element)
        if column is not None:
            return self._kind_of_column(column)
        return getattr(element, "type", None)

    def _kind_of_column(self, column: Any) -> Any:
        future_table = self.tables.get(_key(column.table))
        kind = None if future_table is None else future_table.kinds.get(column.name)
        return column.type if kind is None else kind

    # -- other ways to route

    @cached_property
    def views(self) -> tuple[tuple[str, Future], ...]:
        """Futures in which other columns route, with the reason.

        A statement that this future refuses, and one of these accepts, reads
        an inverse mapping table, or a lookup first.
        """
        views = []
        if self._inverses:
            views.append(("inverse", self._inverted()))
        if self._has_lookups:
            views.append(("lookup", self._looked_up()))
            if self._inverses:
                views.append(("lookup", self._inverted()._looked_up()))
        return tuple(views)

    def _copy(self, tables: dict[str, FutureTable]) -> Future:
        copy = Future.__new__(Future)
        copy.__dict__.update(self.__dict__)
        copy.__dict__.pop("views", None)
        copy.tables = tables
        return copy

    def _looked_up(self) -> Future:
        return self._copy(
            {
                name: replace(one, kinds={**one.kinds, **one.lookups})
                for name, one in self.tables.items()
            }
        )

    def _inverted(self) -> Future:
        tables = dict(self.tables)
        for mapping in self._inverses:
            one = tables[mapping.table]
            source, target = (one.kinds[mapping.source], one.kinds[mapping.target])
            kinds = {
                **one.kinds,
                mapping.source: ObjectRef(source.type_id),
                mapping.target: ObjectRef(target.type_id, colocated=True),
            }
            spec = replace(
                one.spec,
                type_id=target.type_id,
                id_index=_index(one.table, mapping.target),
            )
            tables[mapping.table] = replace(one, kinds=kinds, spec=spec)
        return self._copy(tables)

    # -- facts about the tables

    def undeclared(self) -> list[str]:
        """Return the tables that the declaration does not name, in order."""
        named = {item.table for item in self.declaration.items}
        return sorted(name for name in self.metadata.tables if name not in named)

    def foreign_keys(self) -> list[ForeignKeyFinding]:
        """Return the foreign keys that cannot be constraints on shards."""
        return [
            ForeignKeyFinding(
                column=f"{table.key}.{column.name}",
                target=f"{key.column.table.key}.{key.column.name}",
                reason=reason,
            )
            for table in sorted_tables(self.metadata)
            for column in table.columns
            for key in column.foreign_keys
            if (reason := self._lost(table, column, key.column))
        ]

    def _lost(self, table: Table, column: Any, target: Any) -> str:
        here, there = self.spec_of(table), self.spec_of(target.table)
        if here.kind == there.kind == "global":
            return ""
        if here.kind != there.kind:
            return "the tables are in different keyspaces"
        if there.reference is not None:
            return ""
        kind = self.kind_of(column)
        if isinstance(kind, ShardedId):
            return ""
        if isinstance(kind, IdType) and kind.routes:
            return "a mapping table has no constraints"
        return "the rows may have different owners, on different shards"


def _key(table: Any) -> str:
    return str(getattr(table, "key", None) or getattr(table, "name", ""))


def _base_column(element: Any) -> Any:
    """Return the column of a table that an expression shows, or None."""
    if not isinstance(element, ClauseElement):
        return None
    for base in getattr(element, "base_columns", ()):
        shown = unlabelled(base)
        if isinstance(shown, Column) and isinstance(shown.table, Table):
            return shown
        if shown is not element and shown is not base:
            return _base_column(shown)
    return None


def _index(table: Table, name: str) -> int | None:
    """Return the position of a column in the primary key, or None."""
    names = [column.name for column in table.primary_key]
    return names.index(name) if name in names else None


class _Builder:
    """Computes the tables of the future."""

    def __init__(self, declaration: Declaration, metadata: MetaData) -> None:
        self._declaration = declaration
        self._metadata = metadata
        self._problems: list[str] = []
        self._type_ids: dict[str, int] = {}
        self._parents: dict[str, str] = {}
        self.types: dict[int, str] = {}

    def build(self) -> dict[str, FutureTable]:
        self._check_names()
        self._number()
        for one in self._declaration.of(Owned):
            self._find_parent(one)
        self._raise()
        tables = {
            item.table: self._future(item)
            for item in self._declaration.items
            if not isinstance(item, Lookup)
        }
        for lookup in self._declaration.of(Lookup):
            self._add_lookup(tables, lookup)
        self._raise()
        for name, table in self._metadata.tables.items():
            tables.setdefault(
                name,
                FutureTable(table=table, spec=_GLOBAL, kinds=self._references(table)),
            )
        return tables

    def _raise(self) -> None:
        if self._problems:
            raise DeclarationError(self._problems)

    def _table(self, name: str) -> Table:
        return self._metadata.tables[name]

    def _check_names(self) -> None:
        for item in self._declaration.items:
            table = self._metadata.tables.get(item.table)
            if table is None:
                self._problems.append(
                    f"there is no table {item.table!r} in the metadata"
                )
                continue
            for column in _columns(item):
                if column not in table.columns:
                    self._problems.append(
                        f"table {item.table!r} has no column {column!r}"
                    )
            if isinstance(item, Owner) and self._id_of(item) is None:
                self._problems.append(
                    f"the primary key of {item.table!r} has several columns; "
                    f"name the one that identifies a row, as in "
                    f"Owner('{item.table}.id')"
                )
        self._raise()

    def _id_of(self, item: Owner | Owned) -> str | None:
        if isinstance(item, Owner) and item.column is not None:
            return item.column
        key = self._table(item.table).primary_key
        return str(key.columns[0].name) if len(key) == 1 else None

    def _number(self) -> None:
        items = [*self._declaration.of(Owner), *self._declaration.of(Owned)]
        taken = {item.type_id for item in items if item.type_id is not None}
        free = (i for i in range(1, DEFAULT_LAYOUT.max_type_id + 1) if i not in taken)
        for item in items:
            type_id = item.type_id if item.type_id is not None else next(free)
            if (
                type(type_id) is not int
                or not 1 <= type_id <= DEFAULT_LAYOUT.max_type_id
            ):
                self._problems.append(
                    f"{item.table}: type_id must be from 1 to "
                    f"{DEFAULT_LAYOUT.max_type_id}"
                )
            elif type_id in self.types:
                self._problems.append(
                    f"{item.table} has the type_id {type_id} of {self.types[type_id]}"
                )
            self._type_ids[item.table] = type_id
            self.types[type_id] = item.table

    def _find_parent(self, item: Owned) -> None:
        """Find the table of the row that an owned row is colocated with."""
        parent = item.parent
        if parent is None:
            column = self._table(item.table).columns[item.colocate_with]
            parents = [key.column.table.key for key in column.foreign_keys]
            if not parents:
                self._problems.append(
                    f"{item.table}.{item.colocate_with} has no foreign key; "
                    "name the table with parent="
                )
                return
            parent = str(parents[0])
        if parent not in self._type_ids:
            self._problems.append(
                f"{item.table} is colocated with {parent!r}, which is neither "
                "an Owner nor Owned"
            )
        self._parents[item.table] = parent
        seen = {item.table}
        while parent is not None:
            if parent in seen:
                self._problems.append(
                    f"{item.table} is colocated with itself, by {parent!r}"
                )
                break
            seen.add(parent)
            parent = self._parents.get(parent)

    def _future(self, item: Item) -> FutureTable:
        table = self._table(item.table)
        kinds = self._references(table)
        if isinstance(item, Owner):
            column, type_id = self._id_of(item), self._type_ids[item.table]
            kinds[str(column)] = ShardedId(type_id)
            return FutureTable(
                table=table,
                spec=TableSpec(
                    kind="objects",
                    id_index=_index(table, str(column)),
                    type_id=type_id,
                    layout=DEFAULT_LAYOUT,
                ),
                kinds=kinds,
                id_column=column,
            )
        if isinstance(item, Owned):
            return self._owned(item, table, kinds)
        if isinstance(item, MappingTable):
            return self._mapping(item, table, kinds)
        if isinstance(item, Reference):
            return FutureTable(
                table=table,
                spec=TableSpec(kind="objects", reference=item.table),
                kinds=kinds,
            )
        return FutureTable(table=table, spec=_GLOBAL, kinds=kinds)

    def _owned(
        self, item: Owned, table: Table, kinds: dict[str, IdType]
    ) -> FutureTable:
        parent = self._type_ids[self._parents[item.table]]
        column = self._id_of(item)
        type_id = self._type_ids[item.table]
        index: int | None = None
        if column is not None and column != item.colocate_with:
            kinds[column] = ShardedId(type_id)
            index = 0
        else:
            # The rows have no id of their own.
            column, type_id = None, parent
            index = _index(table, item.colocate_with)
        kinds[item.colocate_with] = ShardedId(parent)
        for name in item.same_shard:
            other = kinds.get(name)
            if other is not None and other.type_id is not None:
                kinds[name] = ShardedId(other.type_id)
        return FutureTable(
            table=table,
            spec=TableSpec(
                kind="objects",
                id_index=index,
                type_id=type_id,
                layout=DEFAULT_LAYOUT,
                colocation=Colocation(
                    field=item.colocate_with,
                    read=lambda _: None,
                    type_ids=lambda: (parent,),
                ),
            ),
            kinds=kinds,
            id_column=column,
            parent_column=item.colocate_with,
        )

    def _mapping(
        self, item: MappingTable, table: Table, kinds: dict[str, IdType]
    ) -> FutureTable:
        for name in (item.source, item.target):
            if name not in kinds:
                self._problems.append(
                    f"{item.table}.{name} has no foreign key to an Owner, "
                    "nor to an Owned table"
                )
                return FutureTable(table=table, spec=_GLOBAL)
        source = kinds[item.source].type_id
        kinds[item.source] = ObjectRef(source, colocated=True)
        return FutureTable(
            table=table,
            spec=TableSpec(
                kind="objects",
                id_index=_index(table, item.source),
                type_id=source,
                layout=DEFAULT_LAYOUT,
                commits_late=True,
            ),
            kinds=kinds,
            parent_column=item.source,
        )

    def _references(self, table: Table) -> dict[str, IdType]:
        """Return the types of the foreign keys to objects."""
        types: dict[str, IdType] = {}
        for column in table.columns:
            for key in column.foreign_keys:
                type_id = self._type_ids.get(str(key.column.table.key))
                if type_id is not None:
                    types[str(column.name)] = ObjectRef(type_id)
        return types

    def _add_lookup(self, found: dict[str, FutureTable], lookup: Lookup) -> None:
        one = found.get(lookup.table)
        type_id = self._type_ids.get(lookup.table)
        if one is None or type_id is None:
            self._problems.append(
                f"the lookup of {lookup.table}.{lookup.column} needs objects: "
                f"declare {lookup.table!r} as Owner or Owned"
            )
            return
        kind = ObjectRef(type_id, colocated=True)
        lookups = {**one.lookups, lookup.column: kind}
        found[lookup.table] = replace(one, lookups=lookups)


def _columns(item: Item) -> Iterator[str]:
    """Yield the columns that an item names."""
    if isinstance(item, MappingTable):
        yield from (item.source, item.target)
        if item.order_by is not None:
            yield item.order_by
    elif isinstance(item, Owned):
        yield item.colocate_with
        yield from item.same_shard
    elif isinstance(item, (Lookup, Owner)) and item.column is not None:
        yield item.column
