"""The shard of each row of an INSERT or a bulk UPDATE.

A row of an INSERT is a dictionary, not an object; it is placed by the same
rules: its own id, its parent's, or the shard of the transaction's roots.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from sqlalchemy.sql.elements import BindParameter

from sqla_shard.exc import NoShardKeyError
from sqla_shard.exc import UnsupportedStatementError
from sqla_shard.ids import check_type
from sqla_shard.rendering import Place
from sqla_shard.routing import spec_of
from sqla_shard.routing import TableSpec
from sqla_shard.session.contract import Scope
from sqla_shard.session.placement import parent_shard

__all__ = ["group_rows", "rows_of", "updated_rows"]

Row = dict[str, Any]


def rows_of(statement: Any, parameters: Any) -> list[Row] | None:
    """Return the rows that are given as parameters, ready for columns.

    Fields that a class keeps in a blob are put into it.
    """
    if parameters is None:
        return None
    rows = parameters if isinstance(parameters, list) else [parameters]
    encode = spec_of(statement.table).encode_row
    orm = statement._propagate_attrs.get("compile_state_plugin") == "orm"
    if encode is None or not orm:
        return list(rows)
    return [encode(dict(row)) for row in rows]


def group_rows(
    scope: Scope, statement: Any, parameters: Any
) -> dict[Place, Any]:
    """Return the rows of an INSERT by place.

    :raises NoShardKeyError: for INSERT .. FROM SELECT.
    :raises PlacementError: when a row's shard cannot be told.
    """
    table = statement.table
    if statement.select is not None:
        raise NoShardKeyError(
            f"INSERT INTO {table.name} .. FROM SELECT does not tell its "
            'shard; say bind_arguments={"shard_id": n}',
            tables=(table.name,),
        )
    spec = spec_of(table)
    own = _own_values(statement)
    if parameters is None or any(own):
        places = [_place_of_row(scope, table, spec, row) for row in own]
        if len(set(places)) > 1:
            raise UnsupportedStatementError(
                "the rows of one INSERT .. VALUES are on several shards; "
                "use session.execute(insert(Class), rows)",
                construct="VALUES",
            )
        return {places[0]: rows_of(statement, parameters)}
    grouped: dict[Place, list[Row]] = {}
    given = parameters if isinstance(parameters, list) else [parameters]
    ready = rows_of(statement, parameters) or []
    for row, encoded in zip(given, ready, strict=True):
        place = _place_of_row(scope, table, spec, row)
        grouped.setdefault(place, []).append(encoded)
    return dict(grouped)


def _own_values(statement: Any) -> list[Row]:
    """Return the values inside a statement, by column or attribute name."""
    multi = statement._multi_values
    sources = multi[0] if multi else [statement._values or {}]
    return [
        {
            getattr(key, "key", key): _literal(value)
            for key, value in source.items()
        }
        for source in sources
    ]


def _literal(value: Any) -> Any:
    if isinstance(value, BindParameter):
        return value.effective_value
    return value


def _place_of_row(
    scope: Scope, table: Any, spec: TableSpec, row: Mapping[str, Any]
) -> Place:
    keyspace = scope.places.keyspace(spec.keyspace, spec.kind)
    shard_id = _told_by_row(table, spec, row)
    if shard_id is None:
        shard_id = _shard_of_roots(scope, table, spec)
    return scope.places.place(keyspace, shard_id)


def _told_by_row(
    table: Any, spec: TableSpec, row: Mapping[str, Any]
) -> int | None:
    if spec.id_index is not None:
        column = list(table.primary_key)[spec.id_index]
        for name in ("id", column.key, column.name):
            if row.get(name) is not None:
                return check_type(row[name], spec.type_id, table.name).shard_id
    if spec.colocation is not None:
        field = spec.colocation.field
        value = row.get(field)
        if value is None and isinstance(row.get("data"), Mapping):
            value = row["data"].get(field)
        return parent_shard(spec, table.name, value)
    return None


def _shard_of_roots(scope: Scope, table: Any, spec: TableSpec) -> int:
    if scope.root_shard_id is not None:
        return scope.root_shard_id
    keyspace = scope.places.keyspace(spec.keyspace, spec.kind)
    first = scope.log.first
    if first is not None and first[0].keyspace == keyspace.name:
        return first[0].shard_id
    chosen = scope.cluster.placement(keyspace=keyspace, cls=type(table))
    # The rest of the transaction's roots, and of these rows, follow.
    scope.log.wrote(
        scope.places.place(keyspace, chosen), f"rows of {table.name}"
    )
    return chosen


def updated_rows(
    scope: Scope, statement: Any, rows: Sequence[Row]
) -> dict[Place, Any]:
    """Return the rows of a bulk UPDATE by place; each names its id.

    :raises NoShardKeyError: when a row does not.
    """
    spec = spec_of(statement.table)
    places = scope.places
    keyspace = places.keyspace(spec.keyspace, spec.kind)
    if keyspace.kind == "global":
        return {places.place(keyspace, 0): list(rows)}
    grouped: dict[Place, list[Row]] = {}
    for row in rows:
        column = list(statement.table.primary_key)[spec.id_index or 0]
        names = {"id", column.key, column.name} & set(row)
        shard_id = _told_by_row(statement.table, spec, row) if names else None
        if shard_id is None:
            raise NoShardKeyError(
                f"a row of this UPDATE of {statement.table.name} has no id",
                tables=(statement.table.name,),
            )
        place = places.place(keyspace, shard_id)
        grouped.setdefault(place, []).append(row)
    return dict(grouped)
