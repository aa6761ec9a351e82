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

from sqlalchemy import Result
from sqlalchemy.orm import FromStatement
from sqlalchemy.orm import ORMExecuteState
from sqlalchemy.sql.dml import Delete
from sqlalchemy.sql.dml import Insert
from sqlalchemy.sql.dml import Update
from sqlalchemy.sql.elements import TextClause
from sqlalchemy.sql.lambdas import LambdaElement

from sqla_shard.exc import NoShardKeyError
from sqla_shard.exc import ScatterDisabledError
from sqla_shard.exc import ScatterLimitError
from sqla_shard.exc import UnsupportedStatementError
from sqla_shard.merging import of_groups
from sqla_shard.merging import plan
from sqla_shard.rendering import Place
from sqla_shard.rendering import TRANSLATE
from sqla_shard.routing import check
from sqla_shard.routing import columns_set
from sqla_shard.routing import constant
from sqla_shard.routing import Decision
from sqla_shard.routing import keyspace_of
from sqla_shard.routing import route
from sqla_shard.routing import spec_of
from sqla_shard.scattering import limits_of
from sqla_shard.scattering import Merge
from sqla_shard.scattering import OPTION
from sqla_shard.scattering import overlap
from sqla_shard.scattering import Plan
from sqla_shard.scattering import Scatter
from sqla_shard.session.arguments import named_place
from sqla_shard.session.connecting import connect
from sqla_shard.session.contract import OUR_OWN
from sqla_shard.session.contract import Scope
from sqla_shard.session.inserting import check_rows
from sqla_shard.session.inserting import encoded
from sqla_shard.session.inserting import group_rows
from sqla_shard.session.inserting import rows_of
from sqla_shard.session.inserting import updated_rows
from sqla_shard.session.nearest import nearest
from sqla_shard.session.stale import check_count
from sqla_shard.session.stale import check_matching
from sqla_shard.session.stale import note_bulk
from sqla_shard.session.stale import note_matching
from sqla_shard.session.views import bulk_on

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
    places = bind_arguments.get("places")
    if places is not None:
        _send(context, scope, places, limits=bind_arguments.get("limits"))
        return None
    statement: Any = context.statement
    if isinstance(statement, LambdaElement):
        # lambda_stmt() shows what it stands for by this name alone.
        statement = context.statement = statement._resolved
    if isinstance(statement, (Insert, Update, Delete)):
        _check_guards(context, statement)
    elif isinstance(statement, FromStatement) and statement.element.is_dml:
        raise UnsupportedStatementError(
            "from_statement() of an INSERT, UPDATE or DELETE would send it "
            "as if it read; execute the statement itself, which returns "
            "objects by returning(Class)",
            construct="from_statement()",
        )
    place = named_place(context, scope)
    if isinstance(statement, Insert):
        return _insert(context, scope, place)
    if isinstance(statement, TextClause) and place is None:
        # As a text, SELECT 1 would need a database to be used first.
        known = constant(statement)
        if known is not None:
            statement = context.statement = known
    many = isinstance(context.parameters, list)
    if isinstance(statement, Update) and many and context.is_orm_statement:
        given: Any = context.parameters
        rows = updated_rows(scope, statement, given, place)
        return _by_shard(context, scope, rows)
    if many and place is None and isinstance(statement, (Update, Delete)):
        return _each_row(context, scope)
    limits = limits_of(statement)
    if limits is not None and context.is_relationship_load:
        # Some loaders hand on all options of the statement that they load
        # for, and so what limits that.
        limits = Scatter()
    if place is not None:
        if isinstance(statement, (Update, Delete)):
            return _write(context, scope, (place,), scattered=False)
        context.statement = of_groups(statement)
        _send(context, scope, (place,), limits=limits)
        return None
    places, decision = _decided(context, scope, limits)
    if isinstance(statement, (Update, Delete)):
        _check_write(limits)
        return _write(context, scope, places, scattered=decision.scattered)
    merge = None
    if len(places) > 1:
        planned = plan(
            statement,
            context.parameters,
            decision.spread,
            keeps_order=context.is_relationship_load,
            max_offset=0 if limits is None else limits.max_offset,
        )
        statement = planned.statement
        merge = planned.merge
    context.statement = of_groups(statement)
    _send(
        context,
        scope,
        places,
        merge=merge,
        limits=limits,
        scattered=decision.scattered,
    )
    return None


def _write(
    context: ORMExecuteState,
    scope: Scope,
    places: Sequence[Place],
    *,
    scattered: bool,
) -> Result[Any] | None:
    """Send an UPDATE or DELETE."""
    if not _is_ours(context) and check_matching(scope, context.statement):
        if isinstance(context.parameters, list):
            return _merged(_one_by_one(context, scope, places))
        return _noted(
            context, scope, places, context.parameters, scattered=scattered
        )
    if len(places) == 1:
        _send(context, scope, places, scattered=scattered)
        return None
    return _each_shard(context, scope, places, scattered=scattered)


def _noted(
    context: ORMExecuteState,
    scope: Scope,
    places: Sequence[Place],
    parameters: Any,
    *,
    scattered: bool,
) -> Result[Any]:
    """Send an UPDATE or DELETE of rows that are kept.

    :param parameters: the one set that it is sent with.
    """
    noted = note_matching(scope, context.statement, parameters, places)
    result = _each_shard(context, scope, places, scattered=scattered)
    check_count(context.statement, result, noted)
    return result


def _one_by_one(
    context: ORMExecuteState, scope: Scope, places: Sequence[Place]
) -> list[Result[Any]]:
    """Send an UPDATE or DELETE once with each of its parameter sets.

    What one of them writes may be what the next one is looking for.
    """
    results = []
    given: Any = context.parameters
    for row in given:
        context.parameters = [row]
        results.append(_noted(context, scope, places, row, scattered=False))
    return results


def _is_ours(context: ORMExecuteState) -> bool:
    """Tell whether this package has made the statement."""
    return not OUR_OWN.keys().isdisjoint(context.execution_options)


def _check_guards(
    context: ORMExecuteState, statement: Insert | Update | Delete
) -> None:
    """Ask the guards of the tables that a caller's statement writes.

    :raises ShardError: what one of them raises.
    """
    if _is_ours(context):
        return
    # An UPDATE of MySQL may set columns of the tables that it joins.
    tables = [getattr(c, "table", None) for c in columns_set(statement)]
    for table in dict.fromkeys((statement.table, *tables)):
        guard = spec_of(table).guard
        if guard is not None:
            guard(statement)


def _check_write(limits: Scatter | None) -> None:
    """Refuse limits that make sense for reads only."""
    if limits is None:
        return
    for name, given in (
        ("timeout", limits.timeout),
        ("max_rows", limits.max_rows),
        ("max_offset", limits.max_offset),
        ("on_error", limits.on_error != "raise"),
    ):
        if given:
            raise UnsupportedStatementError(
                f"scatter({name}=) is for SELECT: an UPDATE or DELETE that "
                "ends on some shards only would be half-done; leave it out",
                construct=f"scatter({name}=)",
            )


def _decided(
    context: ORMExecuteState, scope: Scope, limits: Scatter | None
) -> tuple[Sequence[Place], Decision]:
    """Return where a statement goes, and why."""
    places = scope.places
    decision: Decision = route(
        context.statement,
        context.parameters,
        places,
        scatter=limits is not None,
    )
    context.parameters = decision.parameters
    if decision.scattered and not scope.cluster.scatters:
        raise ScatterDisabledError(
            "scatter() is turned off for this cluster, and nothing in the "
            "statement tells its shards: name ids in WHERE, or set "
            "cluster.scatters = True"
        )
    shards = decision.shards
    if not shards:
        return (_anywhere(scope, decision),), decision
    most = None if limits is None else limits.max_shards
    if most is not None and len(shards) > most:
        raise ScatterLimitError(
            limit="max_shards", allowed=most, found=len(shards)
        )
    keyspace = decision.keyspace
    return [places.place(keyspace, i) for i in shards], decision


def _anywhere(scope: Scope, decision: Decision) -> Place:
    """Return where to ask for rows that cannot be, or are everywhere.

    Of the former the answer is empty, but has its columns, and a count its
    zero.
    """
    if decision.anywhere:
        return nearest(scope, decision.keyspace)
    first = scope.log.first
    if first is not None and first[0].keyspace == decision.keyspace.name:
        return first[0]
    return scope.places.place(decision.keyspace, 0)


def _send(
    context: ORMExecuteState,
    scope: Scope,
    places: Sequence[Place],
    *,
    merge: Merge | None = None,
    limits: Scatter | None = None,
    scattered: bool = False,
) -> None:
    """Let the execution go on, with its plan."""
    if len(places) == 1 and limits is None:
        going = Plan(places, (), scope.log.wrote, watch=scope.watch)
    else:
        going = connect(scope, places, merge, limits, scattered=scattered)
    if going.watch is not None:
        going.loads = _loads(context)
    context.bind_arguments["place"] = going.places[0]
    context.update_execution_options(
        **{OPTION: going, "schema_translate_map": TRANSLATE}
    )


def _loads(context: ORMExecuteState) -> str | None:
    """Return what the ORM loads without having been asked to."""
    if not context.is_select:
        return None
    if context.is_column_load:
        mapper = context.bind_mapper
        return None if mapper is None else mapper.class_.__name__
    path = context.loader_strategy_path
    if context.lazy_loaded_from is None or path is None:
        return None
    return str(path[-1])


def _each_shard(
    context: ORMExecuteState,
    scope: Scope,
    places: Sequence[Place],
    *,
    scattered: bool,
) -> Result[Any]:
    """Run an UPDATE or DELETE once on each shard, on all servers at once."""
    _log(context, scope, places)
    options: dict[str, Any] = {}
    if not places[0].backend.waits:
        each = [
            _invoke(context, scope, place, scattered=scattered)
            for place in places
        ]
        return _merged(each)
    if context.is_orm_statement and context.update_delete_options._autoflush:
        # A flush cannot be begun by two lanes.
        scope._autoflush()
        options["autoflush"] = False
    jobs = [
        partial(_invoke, context, scope, place, options, scattered=scattered)
        for place in places
    ]
    connections = connect(scope, places, None, None).connections
    with scope.usage.overlapping():
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
    is_kept = check_matching(scope, context.statement)
    _log(context, scope, grouped)
    results = []
    for place, rows in grouped.items():
        context.parameters = rows
        if is_kept:
            results += _one_by_one(context, scope, (place,))
        else:
            results.append(_invoke(context, scope, place))
    return _merged(results)


def _log(
    context: ORMExecuteState, scope: Scope, places: Iterable[Place]
) -> None:
    """Take note of writes to all places before the first one is sent."""
    statement: Any = context.statement
    with scope.log.all_or_none():
        for place in places:
            table = statement.table
            scope.log.wrote(place, f"rows of {table.name}", table)


def _invoke(
    context: ORMExecuteState,
    scope: Scope,
    place: Place,
    options: Mapping[str, Any] | None = None,
    *,
    scattered: bool = False,
) -> Result[Any]:
    going = Plan(
        (place,),
        (),
        scope.log.wrote,
        scattered=scattered,
        watch=scope.watch,
    )
    return context.invoke_statement(
        bind_arguments={**context.bind_arguments, "place": place},
        execution_options={
            OPTION: going,
            "schema_translate_map": TRANSLATE,
            **(options or {}),
        },
    )


def _merged(parts: Sequence[Result[Any]]) -> Result[Any]:
    first, *rest = parts
    return first.merge(*rest) if rest else first


def _insert(
    context: ORMExecuteState, scope: Scope, place: Place | None
) -> Result[Any]:
    statement: Any = context.statement
    kind = spec_of(statement.table).kind
    if kind == "global":
        if place is None:
            keyspace = keyspace_of((statement.table,), scope.places)
            place = scope.places.place(keyspace, 0)
        return _by_shard(context, scope, {place: context.parameters})
    if kind == "mod" and place is None:
        raise NoShardKeyError(
            f"the shard of a row of {statement.table.name!r} cannot be "
            'told; say bind_arguments={"shard_id": n}',
            tables=(statement.table.name,),
        )
    check(statement)
    statement, parameters = encoded(statement, context.parameters)
    context.statement, context.parameters = statement, parameters
    if place is None:
        rows = group_rows(scope, statement, parameters)
    else:
        check_rows(scope, statement, parameters, place.shard_id)
        rows = {place: rows_of(statement, parameters)}
    return _by_shard(context, scope, rows)


def _by_shard(
    context: ORMExecuteState, scope: Scope, rows: dict[Place, Any]
) -> Result[Any]:
    """Run an INSERT or bulk UPDATE with the rows of each shard."""
    if not _is_ours(context):
        note_bulk(scope, context.statement, rows)
    _log(context, scope, rows)
    given: Any = context.parameters
    results = []
    for place, part in rows.items():
        if isinstance(part, list):
            context.parameters = part if isinstance(given, list) else part[0]
        with bulk_on(scope, place):
            results.append(_invoke(context, scope, place))
    return _merged(results)
