"""The listener that routes each statement of a session.

:func:`prepare` listens to ``do_orm_execute``.  It decides on the shards and
edits the execution in place, and SQLAlchemy continues with it.  Only an INSERT
of several rows, and an UPDATE or DELETE on several shards, is split into one
execution per shard.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TYPE_CHECKING

from sqlalchemy import BinaryExpression, Boolean, literal, Result, Table
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.ext.horizontal_shard import set_shard_id
from sqlalchemy.orm import FromStatement, ORMExecuteState
from sqlalchemy.sql import visitors
from sqlalchemy.sql.dml import Delete, Insert, Update
from sqlalchemy.sql.elements import TextClause
from sqlalchemy.sql.lambdas import LambdaElement
from sqlalchemy.sql.operators import custom_op
from sqlalchemy.sql.selectable import TextualSelect
from sqlalchemy.types import NullType

from sqla_shard.engine import check_layout, limits_of, OPTION, overlap, Scatter
from sqla_shard.engine.merge import Merge
from sqla_shard.engine.rendering import Place, TRANSLATE
from sqla_shard.exc import (
    KeyspaceMismatchError,
    NoShardKeyError,
    ScatterDisabledError,
    ScatterLimitError,
    UnsupportedStatementError,
)
from sqla_shard.ids import check_shard_id
from sqla_shard.planning import (
    as_statement,
    by_id_columns,
    capped,
    check,
    columns_set,
    constant,
    Decision,
    is_placed,
    keyspace_of,
    name_of,
    of_groups,
    plan,
    route,
    sorted_by_shown,
    spec_of,
    Spread,
)
from sqla_shard.session.commit import (
    check_count,
    check_matching,
    invalidate_matching,
    invalidate_rows,
)
from sqla_shard.session.connections import any_place, bulk_on, connect
from sqla_shard.session.flush import check_tables, links_of
from sqla_shard.session.insert import (
    check_rows,
    encode_insert,
    group_rows,
    prepare_rows,
    rows_of,
    updated_rows,
    with_ids,
    with_inline_ids,
)
from sqla_shard.session.placement import lacks_issued_id
from sqla_shard.topology import Keyspace, Topology
from sqla_shard.util import sqlalchemy_private as private

if TYPE_CHECKING:
    from sqla_shard import ShardSession

#: Execution options of the package's own writes to tables with a guard.
OUR_OWN = {"sqla_shard_own": True}


# A caller may pass ``{"shard_id": n}`` and ``{"keyspace": name}`` as
# ``bind_arguments``, and with SQL as text ``{"mapper": Class}``.  They are
# refused if the tables of the statement are elsewhere: the statement would use
# a table of the same name in another keyspace.


def named_place(context: ORMExecuteState, session: ShardSession) -> Place | None:
    """Return the shard that the caller of ``execute`` names, if any.

    :raises KeyspaceMismatchError: if its tables are in another keyspace.
    :raises NoShardKeyError: if the caller names only a keyspace, or only a
        shard, and the table has no known keyspace.
    :raises UnknownKeyspaceError: if there is no such keyspace.
    :raises UnknownShardError: if the shard is not open.
    """
    name = context.bind_arguments.get("keyspace")
    shard_id = _named_shard(context)
    mapper = context.bind_arguments.get("mapper")
    if mapper is not None and isinstance(
        context.statement, (TextClause, TextualSelect)
    ):
        # Nothing else names the tables of SQL as text.
        return session.place_for(mapper, shard_id, keyspace=name)
    if name is None and shard_id is None:
        return None
    tables = tuple(dict.fromkeys(_tables_of(context.statement)))
    if name is None:
        if context.is_relationship_load and all(
            spec_of(table).kind == "global" for table in tables
        ):
            # By set_shard_id(), an option of the parent statement.
            return None
        keyspace = _keyspace_of(tables, session, shard_id)
    else:
        keyspace = session.places.keyspace(name, "")
        check_keyspace(tables, keyspace, session.places.topology)
        if shard_id is None and keyspace.kind != "global":
            if any(map(is_placed, tables)):
                return None
            raise NoShardKeyError(
                f"keyspace {name!r} has shards, and that of the statement "
                'cannot be determined; pass bind_arguments={"keyspace": '
                f'"{name}", "shard_id": n}}',
                tables=_names(tables),
            )
    check(context.statement)
    return session.places.place(keyspace, 0 if shard_id is None else shard_id)


def check_keyspace(
    tables: Iterable[Any], keyspace: Keyspace, topology: Topology
) -> None:
    """Refuse a keyspace for tables that are in another.

    Tables without a known keyspace are accepted.

    :raises KeyspaceMismatchError: if a table is in another keyspace.
    :raises IdLayoutMismatchError: if the ids of a table have another layout.
    """
    elsewhere: dict[str, list[str]] = {}
    for table in filter(is_placed, tables):
        spec = spec_of(table)
        theirs = name_of(spec, topology)
        if theirs is None and spec.kind != keyspace.kind:
            theirs = spec.kind
        if theirs not in (None, keyspace.name):
            elsewhere.setdefault(theirs, []).append(table.name)
        elif spec.layout is not None:
            check_layout(keyspace, spec.layout)
    if elsewhere:
        raise KeyspaceMismatchError(
            {name: tuple(others) for name, others in elsewhere.items()},
            named=keyspace.name,
        )


def _named_shard(context: ORMExecuteState) -> int | None:
    """Return the shard that the caller names, if any."""
    shard_id: int | None = context.bind_arguments.get("shard_id")
    if shard_id is None:
        for option in private.orm_options(context):
            if isinstance(option, set_shard_id):
                return check_shard_id(option.shard_id)  # type: ignore[arg-type]  # a str in SQLAlchemy
    return shard_id


def _keyspace_of(
    tables: tuple[Any, ...], session: ShardSession, shard_id: int | None
) -> Keyspace:
    """Return the keyspace of a statement with a named shard."""
    if not tables:
        return session.places.keyspace(None, "objects")
    if not any(map(is_placed, tables)):
        names = _names(tables)
        raise NoShardKeyError(
            f"shard {shard_id} is named, but the keyspace of "
            f"{', '.join(map(repr, names))} cannot be determined: no object "
            'class has the table. Pass bind_arguments={"keyspace": name, '
            '"shard_id": n}, or leave out the shard for a table of the '
            "global keyspace",
            tables=names,
        )
    return keyspace_of(tables, session.places)


def _tables_of(statement: Any) -> Any:
    for element in visitors.iterate(statement):
        if isinstance(element, Table):
            yield element


def _names(tables: Iterable[Any]) -> tuple[str, ...]:
    return tuple(str(table.name) for table in tables)


def prepare(context: ORMExecuteState) -> Result[Any] | None:
    """Handle ``do_orm_execute``: send a statement to its shards.

    :raises RoutingError: if they cannot be determined, or the statement
        is refused.
    """
    session: Any = context.session
    session._check_process()
    bind_arguments = context.bind_arguments
    place, places = bind_arguments.get("place"), bind_arguments.get("places")
    if place is not None:
        places = (place,)
    elif places is None and context.is_column_load:
        places = _located(context, session)
    if places:
        # Of a statement of the package, or of an object that is refreshed: the
        # shards need not be read from the statement.
        merge = _merge_of(context) if len(places) > 1 else None
        _send(
            context, session, places, limits=bind_arguments.get("limits"), merge=merge
        )
        return None
    statement = _set_statement(context)
    place = named_place(context, session)
    if isinstance(statement, Insert):
        return _insert(context, session, place)
    if isinstance(statement, (Update, Delete)):
        return _change(context, session, place)
    _read(context, session, place)
    return None


def _set_statement(context: ORMExecuteState) -> Any:
    """Set the statement to route, which :func:`.lambda_stmt` may contain.

    :returns: the statement.
    :raises UnsupportedStatementError: if it is refused on any shard.
    """
    statement: Any = context.statement
    if isinstance(statement, LambdaElement):
        # The statement of lambda_stmt() is found under this name only.
        statement = context.statement = private.resolved(statement)
    statement = context.statement = as_statement(statement)
    if isinstance(statement, (Insert, Update, Delete)):
        _check_rows(statement, context.parameters)
        _check_guards(context, statement)
    elif isinstance(statement, FromStatement) and statement.element.is_dml:
        raise UnsupportedStatementError(
            "from_statement() of an INSERT, UPDATE or DELETE would send it "
            "like a SELECT; execute the statement itself.  For new objects "
            "use session.add_all(), or returning(Class) where the server has "
            "RETURNING, which MySQL has not",
            construct="from_statement()",
        )
    return statement


def _change(
    context: ORMExecuteState, session: ShardSession, place: Place | None
) -> Result[Any] | None:
    """Send an UPDATE or DELETE, with one set of parameters or several."""
    statement: Any = context.statement
    parameters: Any = context.parameters
    many = isinstance(parameters, list)
    if isinstance(statement, Update) and many and context.is_orm_statement:
        rows = updated_rows(session, statement, parameters, place)
        return _by_shard(context, session, rows)
    if place is not None:
        return _write(context, session, (place,), scattered=False)
    if many:
        return _write_each_set(context, session)
    limits = limits_of(statement)
    places, decision = _decided(context, session, limits)
    _check_write(limits)
    return _write(context, session, places, scattered=decision.scattered)


def _read(context: ORMExecuteState, session: ShardSession, place: Place | None) -> None:
    """Send a SELECT or textual SQL."""
    statement: Any = context.statement
    if isinstance(statement, TextClause) and place is None:
        # As textual SQL, SELECT 1 would need a default database.
        known = constant(statement)
        if known is not None:
            statement = context.statement = known
    limits = limits_of(statement)
    if limits is not None and context.is_relationship_load:
        # Some loaders inherit all options of the parent statement,
        # including scatter().
        limits = Scatter()
    places: Sequence[Place]
    decision: Decision | None = None
    if place is not None:
        places = (place,)
    else:
        places, decision = _decided(context, session, limits)
    merged = len(places) > 1
    if limits is not None and limits.max_rows is not None:
        most = limits.max_rows
        statement = capped(statement, context.parameters, most, merged=merged)
    statement = by_id_columns(statement)
    merge = None
    if decision is not None and merged:
        planned = plan(
            statement,
            context.parameters,
            decision.spread,
            keeps_order=context.is_relationship_load,
            max_offset=0 if limits is None else limits.max_offset,
        )
        statement = planned.statement
        merge = planned.merge
    # Servers accept it, and return the same rows.
    context.statement = sorted_by_shown(of_groups(statement))
    _send(
        context,
        session,
        places,
        merge=merge,
        limits=limits,
        scattered=decision is not None and decision.scattered,
    )


def _merge_of(context: ORMExecuteState) -> Merge | None:
    """Return the merge of a SELECT of the package on several shards.

    :returns: None if the rows are concatenated.
    """
    if not context.bind_arguments.get("merged"):
        return None
    planned = plan(context.statement, context.parameters, Spread())
    context.statement = planned.statement
    return planned.merge


def _located(context: ORMExecuteState, session: ShardSession) -> Sequence[Place]:
    """Return the locations that an object that is refreshed may have.

    :returns: none if the statement is routed by its ids.
    """
    mapper = context.bind_mapper
    spec = None if mapper is None else spec_of(mapper.local_table)
    if spec is None or spec.places_of is None:
        return ()
    state = private.refresh_state(context.load_options)
    if state is None or state.key is None:
        return ()
    places: Sequence[Place] = spec.places_of(session.places, state.key[1])
    return places


def _write(
    context: ORMExecuteState,
    session: ShardSession,
    places: Sequence[Place],
    *,
    scattered: bool,
) -> Result[Any] | None:
    """Send an UPDATE or DELETE."""
    if not _is_ours(context) and check_matching(session, context.statement):
        if isinstance(context.parameters, list):
            return _merged(_one_by_one(context, session, places))
        return _invalidating(
            context, session, places, context.parameters, scattered=scattered
        )
    if len(places) == 1:
        context.statement, options = _evaluated_on(context, places[0])
        context.update_execution_options(**options)
        _send(context, session, places, scattered=scattered)
        return None
    return _write_each_shard(context, session, places, scattered=scattered)


def _invalidating(
    context: ORMExecuteState,
    session: ShardSession,
    places: Sequence[Place],
    parameters: Any,
    *,
    scattered: bool,
) -> Result[Any]:
    """Send an UPDATE or DELETE of rows that may be cached.

    :param parameters: the only parameter set of the statement.
    """
    count = invalidate_matching(session, context.statement, parameters, places)
    result = _write_each_shard(context, session, places, scattered=scattered)
    check_count(context.statement, result, count)
    return result


def _one_by_one(
    context: ORMExecuteState, session: ShardSession, places: Sequence[Place]
) -> list[Result[Any]]:
    """Send an UPDATE or DELETE once for each of its parameter sets.

    The rows that one execution writes may match the next one.
    """
    results = []
    given: Any = context.parameters
    for row in given:
        context.parameters = [row]
        results.append(_invalidating(context, session, places, row, scattered=False))
    return results


def _is_ours(context: ORMExecuteState) -> bool:
    """Return whether the package itself sends a statement."""
    return not OUR_OWN.keys().isdisjoint(context.execution_options)


def _check_guards(
    context: ORMExecuteState, statement: Insert | Update | Delete
) -> None:
    """Call the guards of the tables that a caller's statement writes.

    :raises ShardError: the error of a guard.
    """
    if _is_ours(context):
        return
    # An UPDATE of MySQL may set columns of the tables that it joins.
    tables = [getattr(c, "table", None) for c in columns_set(statement)]
    for table in dict.fromkeys((statement.table, *tables)):
        guard = spec_of(table).guard
        if guard is not None:
            guard(statement)


def _check_rows(statement: Any, given: Any) -> None:
    """Refuse parameters other than a row, or a list of rows.

    :raises UnsupportedStatementError: for no rows, for which SQLAlchemy would
        insert one of defaults, and for what is no mapping.
    """
    if given is None or spec_of(statement.table).kind == "global":
        return  # SQLAlchemy checks them
    rows = given if isinstance(given, list) else [given]
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        raise UnsupportedStatementError(
            f"rows of {statement.table.name} are given as a dict, or as a list "
            "of dicts that is not empty; pass such a list, and without rows "
            "execute nothing",
            construct="rows",
        )


def _check_write(limits: Scatter | None) -> None:
    """Refuse the options of ``scatter()`` that are for reads only."""
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
                f"scatter({name}=) is for SELECT: an UPDATE or DELETE could "
                "end with only some shards written; leave it out",
                construct=f"scatter({name}=)",
            )


def _decided(
    context: ORMExecuteState, session: ShardSession, limits: Scatter | None
) -> tuple[Sequence[Place], Decision]:
    """Return the shards of a statement, and the routing decision."""
    places = session.places
    decision: Decision = route(
        context.statement, context.parameters, places, scatter=limits is not None
    )
    context.parameters = decision.parameters
    if decision.scattered and not session.cluster.scatters:
        raise ScatterDisabledError(
            "scatter() is disabled for this cluster, and the shards of the "
            "statement cannot be determined: name ids in WHERE, or set "
            "cluster.scatters = True"
        )
    shards = decision.shards
    if not shards:
        return (_anywhere(session, decision),), decision
    most = None if limits is None else limits.max_shards
    if most is not None and len(shards) > most:
        raise ScatterLimitError(limit="max_shards", allowed=most, found=len(shards))
    return places.several(decision.keyspace, shards), decision


def _anywhere(session: ShardSession, decision: Decision) -> Place:
    """Return a shard for rows that every shard has, or that cannot exist.

    For rows that cannot exist the result is empty, but has columns, or a
    count of zero.
    """
    keyspace = decision.keyspace
    if decision.anywhere:
        return any_place(session, keyspace)
    first = session.log.first_place(keyspace.name)
    return first or session.places.place(keyspace, 0)


def _send(
    context: ORMExecuteState,
    session: ShardSession,
    places: Sequence[Place],
    *,
    merge: Merge | None = None,
    limits: Scatter | None = None,
    scattered: bool = False,
) -> None:
    """Set the plan of an execution, which SQLAlchemy then continues."""
    if len(places) == 1 and limits is None:
        plan = session._plan_for(places[0])
    else:
        plan = connect(session, places, merge, limits, scattered=scattered)
    if plan.watch is not None:
        plan.loads = _loads(context)
    context.bind_arguments["place"] = plan.places[0]
    context.update_execution_options(
        **{OPTION: plan, "schema_translate_map": TRANSLATE}
    )


def _loads(context: ORMExecuteState) -> str | None:
    """Return the class or relationship of an implicit load by the ORM."""
    if not context.is_select:
        return None
    if context.is_column_load:
        mapper = context.bind_mapper
        return None if mapper is None else mapper.class_.__name__
    path = context.loader_strategy_path
    if context.lazy_loaded_from is None or path is None:
        return None
    return str(path[-1])


def _write_each_shard(
    context: ORMExecuteState,
    session: ShardSession,
    places: Sequence[Place],
    *,
    scattered: bool,
) -> Result[Any]:
    """Run an UPDATE or DELETE once per shard, on all servers in parallel."""
    _log(context, session, places)
    options: dict[str, Any] = {}
    if not places[0].backend.waits:
        each = [
            _invoke(context, session, place, scattered=scattered) for place in places
        ]
        return _merged(each)
    if context.is_orm_statement and private.autoflushes(context.update_delete_options):
        # Two executions that overlap cannot both flush.
        private.autoflush(session)
        options["autoflush"] = False
    jobs = [
        partial(_invoke, context, session, place, options, scattered=scattered)
        for place in places
    ]
    connections = connect(session, places, None, None).connections
    with session._usage.overlapping():
        return _merged(overlap(jobs, connections, session.places.engines.lanes))


def _write_each_set(context: ORMExecuteState, session: ShardSession) -> Result[Any]:
    """Run an UPDATE or DELETE with many parameter sets, shard by shard."""
    grouped: dict[Place, list[Any]] = {}
    given: Any = context.parameters
    for row in given or [{}]:  # as SQLAlchemy does
        decision = route(context.statement, row, session.places)
        for shard_id in decision.shards:
            place = session.places.place(decision.keyspace, shard_id)
            grouped.setdefault(place, []).append(decision.parameters)
    if not grouped:
        grouped[_anywhere(session, decision)] = given
    is_cached = check_matching(session, context.statement)
    _log(context, session, grouped)
    results = []
    for place, rows in grouped.items():
        context.parameters = rows
        if is_cached:
            results += _one_by_one(context, session, (place,))
        else:
            results.append(_invoke(context, session, place))
    return _merged(results)


def _log(
    context: ORMExecuteState, session: ShardSession, places: Iterable[Place]
) -> None:
    """Record the writes to all shards before the first one is sent."""
    statement: Any = context.statement
    with session.log.all_or_none():
        for place in places:
            table = statement.table
            session.log.wrote(place, f"rows of {table.name}", table)


class _OnShard(BinaryExpression[bool]):
    """A condition that is no SQL, but evaluated for objects of the session."""

    inherit_cache = True

    def self_group(self, against: Any = None) -> _OnShard:
        return self  # without parentheses


@compiles(_OnShard)
def _no_sql(element: _OnShard, compiler: Any, **kw: Any) -> str:
    return ""


#: The ways of ``synchronize_session`` that evaluate WHERE in Python.
_EVALUATING = ("auto", "evaluate")
_ON_SHARD: Any = custom_op("on shard", python_impl=lambda row_id, has: has(row_id))


def _evaluated_on(context: ORMExecuteState, place: Place) -> tuple[Any, dict[str, Any]]:
    """Return an UPDATE or DELETE that changes objects of one shard in Python.

    By ``synchronize_session`` SQLAlchemy evaluates WHERE for all objects of the
    session after the statement of each shard.  It would add 1 once for each
    shard, and to objects of shards that the caller has not named.

    :returns: the statement and its execution options.
    """
    statement: Any = context.statement
    mapper: Any = context.bind_mapper
    if (
        not context.is_orm_statement
        or isinstance(context.parameters, list)
        or not isinstance(statement, (Update, Delete))
        # A class in WHERE makes the statement of a table one of the ORM.
        or mapper is None
        or mapper.local_table != statement.table
    ):
        return statement, {}
    spec = spec_of(statement.table)
    if spec.id_index is None or spec.places_of is not None:
        # Its rows do not name their shards by an id: the server has to name them.
        evaluates = (
            spec.kind != "global"
            and private.synchronizes(context.update_delete_options) in _EVALUATING
            and any(isinstance(one, mapper.class_) for one in context.session)
        )
        return statement, {"synchronize_session": "fetch"} if evaluates else {}
    column = mapper.attrs[links_of(mapper).identity[spec.id_index]].class_attribute
    has = literal(lambda row_id: spec.shard_of(row_id) == place.shard_id, NullType())
    on_shard = _OnShard(column.expression, has, _ON_SHARD, Boolean())
    return statement.where(on_shard), {}


def _invoke(
    context: ORMExecuteState,
    session: ShardSession,
    place: Place,
    options: Mapping[str, Any] | None = None,
    *,
    scattered: bool = False,
) -> Result[Any]:
    statement, how = _evaluated_on(context, place)
    return context.invoke_statement(
        statement,
        bind_arguments={**context.bind_arguments, "place": place},
        execution_options={
            **how,
            OPTION: session._plan_for(place, scattered=scattered),
            "schema_translate_map": TRANSLATE,
            **(options or {}),
        },
    )


def _merged(parts: Sequence[Result[Any]]) -> Result[Any]:
    first, *rest = parts
    return first.merge(*rest) if rest else first


def _insert(
    context: ORMExecuteState, session: ShardSession, place: Place | None
) -> Result[Any]:
    statement: Any = context.statement
    kind = spec_of(statement.table).kind
    if kind == "global":
        tables = tuple(_tables_of(statement.table)) or (statement.table,)
        check_tables(tables)
        if place is None:
            keyspace = keyspace_of(tables, session.places)
            place = session.places.place(keyspace, 0)
        return _by_shard(context, session, {place: context.parameters})
    if kind == "mod" and place is None:
        raise NoShardKeyError(
            f"the shard of a row of {statement.table.name!r} cannot be "
            'determined; pass bind_arguments={"shard_id": n}',
            tables=(statement.table.name,),
        )
    check(statement)
    statement, parameters = encode_insert(statement, context.parameters)
    context.statement, context.parameters = statement, parameters
    if place is None:
        rows = group_rows(session, statement, parameters)
    else:
        check_rows(session, statement, parameters, place.shard_id)
        rows = {place: rows_of(statement, parameters)}
    return _by_shard(context, session, rows)


def _issue_ids(
    context: ORMExecuteState, session: ShardSession, place: Place, rows: Any
) -> None:
    """Give ids to the rows of an INSERT that have none."""
    statement: Any = context.statement
    if not lacks_issued_id(statement.table):
        return
    if rows is None:
        context.statement = with_inline_ids(session, statement, place)
        return
    many = isinstance(context.parameters, list)
    new = with_ids(session, statement, place, rows)
    context.parameters = new if many else new[0]


def _by_shard(
    context: ORMExecuteState, session: ShardSession, rows: dict[Place, Any]
) -> Result[Any]:
    """Run an INSERT or bulk UPDATE with the rows of each shard."""
    if not _is_ours(context):
        invalidate_rows(session, context.statement, rows)
    _log(context, session, rows)
    given: Any = context.parameters
    results = []
    for place, part in rows.items():
        if isinstance(part, list):
            context.parameters = part if isinstance(given, list) else part[0]
        if context.is_insert:
            _issue_ids(context, session, place, part)
            prepare_rows(session, context.statement, place, part)
        with bulk_on(session, place):
            results.append(_invoke(context, session, place))
    return _merged(results)
