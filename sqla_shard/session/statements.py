"""What happens to a statement between ``execute`` and the server.

:func:`prepare` listens to ``do_orm_execute``.  It decides on the shards and
edits the execution in place, so that SQLAlchemy goes on with it as with any
other; only an INSERT of several rows, or an UPDATE or DELETE on several
shards, is taken apart into one execution per shard.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection
from sqlalchemy import Engine
from sqlalchemy import Result
from sqlalchemy import Table
from sqlalchemy.ext.horizontal_shard import set_shard_id
from sqlalchemy.orm import ORMExecuteState
from sqlalchemy.sql import visitors
from sqlalchemy.sql.dml import Delete
from sqlalchemy.sql.dml import Insert
from sqlalchemy.sql.dml import Update

from sqla_shard.exc import NoShardKeyError
from sqla_shard.rendering import OPTION
from sqla_shard.rendering import Place
from sqla_shard.rendering import Plan
from sqla_shard.rendering import TRANSLATE
from sqla_shard.routing import check
from sqla_shard.routing import Decision
from sqla_shard.routing import keyspace_of
from sqla_shard.routing import route
from sqla_shard.scatter import overlap
from sqla_shard.session.contract import Scope
from sqla_shard.session.inserting import check_rows
from sqla_shard.session.inserting import group_rows
from sqla_shard.session.inserting import rows_of
from sqla_shard.session.inserting import updated_rows
from sqla_shard.session.views import bound_to
from sqla_shard.topology import Keyspace

__all__ = ["prepare"]


def prepare(context: ORMExecuteState) -> Result[Any] | None:
    """Send a statement to its shards.

    :raises RoutingError: when they cannot be told, or it is refused.
    """
    scope: Any = context.session
    scope.check_process()
    bind_arguments = context.bind_arguments
    place = bind_arguments.get("place")
    if place is not None:
        _send(context, scope, (place,))
        return None
    statement: Any = context.statement
    told = _told_shard(context)
    if isinstance(statement, Insert):
        return _insert(context, scope, told)
    many = isinstance(context.parameters, list)
    if isinstance(statement, Update) and many and context.is_orm_statement:
        given: Any = context.parameters
        rows = updated_rows(scope, statement, given)
        return _by_shard(context, scope, rows)
    if many and told is None and isinstance(statement, (Update, Delete)):
        return _each_row(context, scope)
    if told is not None:
        places: Sequence[Place] = (_told_place(context, scope, told),)
    else:
        places = _decided(context, scope)
    if len(places) > 1 and isinstance(statement, (Update, Delete)):
        return _each_shard(context, scope, places)
    _send(context, scope, places)
    return None


def _told_shard(context: ORMExecuteState) -> int | None:
    """Return the shard that the caller names, if any."""
    shard_id: int | None = context.bind_arguments.get("shard_id")
    if shard_id is None:
        for option in context._non_compile_orm_options:
            if isinstance(option, set_shard_id):
                return int(option.shard_id)
    return shard_id


def _told_place(
    context: ORMExecuteState, scope: Scope, shard_id: int
) -> Place:
    check(context.statement)
    keyspace = _keyspace(context, scope, "objects")
    return scope.places.place(keyspace, shard_id)


def _keyspace(
    context: ORMExecuteState, scope: Scope, default: str
) -> Keyspace:
    """Return the keyspace of a statement that names its shard."""
    name = context.bind_arguments.get("keyspace")
    if name is not None:
        return scope.places.keyspace(name, "")
    tables = tuple(_tables_of(context.statement))
    if tables:
        return keyspace_of(tables, scope.places)
    return scope.places.keyspace(None, default)


def _tables_of(statement: Any) -> Any:
    for element in visitors.iterate(statement):
        if isinstance(element, Table):
            yield element


def _decided(context: ORMExecuteState, scope: Scope) -> Sequence[Place]:
    places = scope.places
    name = context.bind_arguments.get("keyspace")
    if name is not None:
        return (places.place(places.keyspace(name, ""), 0),)
    decision: Decision = route(
        context.statement,
        context.parameters,
        places,
        keeps_order=context.is_relationship_load,
    )
    context.parameters = decision.parameters
    if decision.shards:
        keyspace = decision.keyspace
        return [places.place(keyspace, i) for i in decision.shards]
    return (_anywhere(scope, decision),)


def _anywhere(scope: Scope, decision: Decision) -> Place:
    """Return where to ask for rows that cannot be.

    The answer is empty, but has its columns, and a count its zero.
    """
    first = scope.log.first
    if first is not None and first[0].keyspace == decision.keyspace.name:
        return first[0]
    return scope.places.place(decision.keyspace, 0)


def _send(
    context: ORMExecuteState, scope: Scope, places: Sequence[Place]
) -> None:
    """Let the execution go on, with its plan."""
    context.bind_arguments["place"] = places[0]
    plan = Plan(places, _connections(scope, places), scope.log.wrote)
    context.update_execution_options(
        **{OPTION: plan, "schema_translate_map": TRANSLATE}
    )


def _connections(
    scope: Scope, places: Sequence[Place]
) -> Sequence[Connection]:
    """Return the connection to each of several places."""
    if len(places) == 1:
        return ()
    by_engine: dict[Engine, Connection] = {}
    # In the same order for all sessions: of two that wait for the last
    # connections of two pools, each could have what the other needs.
    for place in sorted(places, key=lambda place: id(place.engine)):
        if place.engine not in by_engine:
            by_engine[place.engine] = scope.root_connection(place)
    return [by_engine[place.engine] for place in places]


def _each_shard(
    context: ORMExecuteState, scope: Scope, places: Sequence[Place]
) -> Result[Any]:
    """Run an UPDATE or DELETE once on each shard, on all servers at once."""
    _log(context, scope, places)
    options: dict[str, Any] = {}
    if not places[0].backend.waits:
        each = [_invoke(context, scope, place) for place in places]
        return _merged(each)
    if context.is_orm_statement and context.update_delete_options._autoflush:
        # A flush cannot be begun by two lanes.
        scope._autoflush()
        options["autoflush"] = False
    jobs = [
        partial(_invoke, context, scope, place, options) for place in places
    ]
    connections = _connections(scope, places)
    return _merged(overlap(jobs, connections, scope.places.engines.lanes))


def _each_row(context: ORMExecuteState, scope: Scope) -> Result[Any]:
    """Run an UPDATE or DELETE with each of many parameter sets."""
    grouped: dict[Place, list[Any]] = {}
    given: Any = context.parameters
    for row in given:
        decision = route(context.statement, row, scope.places)
        for shard_id in decision.shards:
            place = scope.places.place(decision.keyspace, shard_id)
            grouped.setdefault(place, []).append(decision.parameters)
    if not grouped:
        grouped[_anywhere(scope, decision)] = given
    _log(context, scope, grouped)
    results = []
    for place, rows in grouped.items():
        context.parameters = rows
        results.append(_invoke(context, scope, place))
    return _merged(results)


def _log(
    context: ORMExecuteState, scope: Scope, places: Iterable[Place]
) -> None:
    """Take note of writes to all places before the first one is sent."""
    statement: Any = context.statement
    with scope.log.all_or_none():
        for place in places:
            scope.log.wrote(place, f"rows of {statement.table.name}")


def _invoke(
    context: ORMExecuteState,
    scope: Scope,
    place: Place,
    options: Mapping[str, Any] | None = None,
) -> Result[Any]:
    plan = Plan((place,), (), scope.log.wrote)
    return context.invoke_statement(
        bind_arguments={**context.bind_arguments, "place": place},
        execution_options={
            OPTION: plan,
            "schema_translate_map": TRANSLATE,
            **(options or {}),
        },
    )


def _merged(parts: Sequence[Result[Any]]) -> Result[Any]:
    first, *rest = parts
    return first.merge(*rest) if rest else first


def _insert(
    context: ORMExecuteState, scope: Scope, told: int | None
) -> Result[Any]:
    statement: Any = context.statement
    keyspace = keyspace_of((statement.table,), scope.places)
    if keyspace.kind == "global":
        place = scope.places.place(keyspace, 0)
        return _by_shard(context, scope, {place: context.parameters})
    if keyspace.kind == "mod" and told is None:
        raise NoShardKeyError(
            f"the shard of a row of {statement.table.name!r} cannot be "
            'told; say bind_arguments={"shard_id": n}',
            tables=(statement.table.name,),
        )
    check(statement)
    if told is not None:
        place = scope.places.place(keyspace, told)
        check_rows(scope, statement, context.parameters, told)
        rows = rows_of(statement, context.parameters)
        return _by_shard(context, scope, {place: rows})
    return _by_shard(
        context, scope, group_rows(scope, statement, context.parameters)
    )


def _by_shard(
    context: ORMExecuteState, scope: Scope, rows: dict[Place, Any]
) -> Result[Any]:
    """Run an INSERT or bulk UPDATE with the rows of each shard."""
    _log(context, scope, rows)
    given: Any = context.parameters
    results = []
    for place, part in rows.items():
        if isinstance(part, list):
            context.parameters = part if isinstance(given, list) else part[0]
        before, scope.bulk = scope.bulk, place
        plan = Plan((place,), (), scope.log.wrote)
        try:
            with bound_to(scope.root_connection(place), place, plan):
                results.append(_invoke(context, scope, place))
        finally:
            scope.bulk = before
    return _merged(results)
