"""What a caller says of the place of a statement, in ``bind_arguments``.

``{"shard_id": n}`` and ``{"keyspace": name}`` are obeyed, or refused where the
tables of the statement are somewhere else: a statement that went elsewhere
without a word would write to, or read from, a table of the same name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Table
from sqlalchemy.ext.horizontal_shard import set_shard_id
from sqlalchemy.orm import ORMExecuteState
from sqlalchemy.sql import visitors

from sqla_shard.exc import KeyspaceMismatchError
from sqla_shard.exc import NoShardKeyError
from sqla_shard.ids import check_shard_id
from sqla_shard.rendering import Place
from sqla_shard.routing import check
from sqla_shard.routing import is_placed
from sqla_shard.routing import keyspace_of
from sqla_shard.routing import name_of
from sqla_shard.routing import spec_of
from sqla_shard.session.contract import Scope
from sqla_shard.topology import Keyspace
from sqla_shard.topology import Topology

__all__ = ["check_keyspace", "named_place"]


def named_place(context: ORMExecuteState, scope: Scope) -> Place | None:
    """Return the place that a statement is told; None if it tells its own.

    :raises KeyspaceMismatchError: when its tables are in another keyspace.
    :raises NoShardKeyError: for a keyspace without a shard, or a shard
        without a keyspace, of a table of which neither is known.
    :raises UnknownKeyspaceError: when there is no such keyspace.
    :raises UnknownShardError: when the shard is not open.
    """
    name = context.bind_arguments.get("keyspace")
    shard_id = _named_shard(context)
    if name is None and shard_id is None:
        return None
    tables = tuple(dict.fromkeys(_tables_of(context.statement)))
    if name is None:
        if context.is_relationship_load and _are_global(tables):
            # set_shard_id() of the statement that it is loaded for.
            return None
        keyspace = _keyspace_of(tables, scope, shard_id)
    else:
        keyspace = scope.places.keyspace(name, "")
        check_keyspace(tables, keyspace, scope.places.topology)
        if shard_id is None and keyspace.kind != "global":
            if any(map(is_placed, tables)):
                return None
            raise NoShardKeyError(
                f"keyspace {name!r} has shards, and the statement does not "
                'tell its own; say bind_arguments={"keyspace": '
                f'"{name}", "shard_id": n}}',
                tables=_names(tables),
            )
    check(context.statement)
    return scope.places.place(keyspace, shard_id or 0)


def check_keyspace(
    tables: Iterable[Any], keyspace: Keyspace, topology: Topology
) -> None:
    """Refuse a keyspace for tables that are in another.

    Tables of which nothing is known may be in any.

    :raises KeyspaceMismatchError: for such tables.
    """
    elsewhere: dict[str, list[str]] = {}
    for table in filter(is_placed, tables):
        spec = spec_of(table)
        theirs = name_of(spec, topology)
        if theirs is None and spec.kind != keyspace.kind:
            theirs = spec.kind
        if theirs not in (None, keyspace.name):
            elsewhere.setdefault(theirs, []).append(table.name)
    if elsewhere:
        raise KeyspaceMismatchError(
            {name: tuple(found) for name, found in elsewhere.items()},
            named=keyspace.name,
        )


def _named_shard(context: ORMExecuteState) -> int | None:
    """Return the shard that the caller names, if any."""
    shard_id: int | None = context.bind_arguments.get("shard_id")
    if shard_id is None:
        for option in context._non_compile_orm_options:
            if isinstance(option, set_shard_id):
                return check_shard_id(option.shard_id)  # type: ignore[arg-type]  # SQLAlchemy's is any text
    return shard_id


def _keyspace_of(
    tables: tuple[Any, ...], scope: Scope, shard_id: int | None
) -> Keyspace:
    """Return the keyspace of a statement that names its shard alone."""
    if not tables:
        return scope.places.keyspace(None, "objects")
    if not any(map(is_placed, tables)):
        names = _names(tables)
        raise NoShardKeyError(
            f"shard {shard_id} is named, and nothing tells the keyspace of "
            f"{', '.join(map(repr, names))}: no object class has the table. "
            'Say bind_arguments={"keyspace": name, "shard_id": n}, or leave '
            "out the shard for a table of the global keyspace",
            tables=names,
        )
    return keyspace_of(tables, scope.places)


def _are_global(tables: tuple[Any, ...]) -> bool:
    return all(spec_of(table).kind == "global" for table in tables)


def _tables_of(statement: Any) -> Any:
    for element in visitors.iterate(statement):
        if isinstance(element, Table):
            yield element


def _names(tables: Iterable[Any]) -> tuple[str, ...]:
    return tuple(str(table.name) for table in tables)
