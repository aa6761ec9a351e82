"""What SQLAlchemy calls around each statement that is sent.

Statements are compiled once for all shards, with a mark in place of the
schema and :class:`~sqla_shard.types.binds.ShardBound` parameters in place of
what differs by shard.  The two event handlers here put in the values as late
as possible, when SQLAlchemy hands the text to the driver; so its compiled
cache stays small, and its log and its errors show the SQL that was sent.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.engine.cursor import FullyBufferedCursorFetchStrategy

from sqla_shard.exc import ColocationError
from sqla_shard.exc import NoShardKeyError
from sqla_shard.rendering import Job
from sqla_shard.rendering import OPTION
from sqla_shard.rendering import Place
from sqla_shard.rendering import Plan
from sqla_shard.rendering import render
from sqla_shard.rendering import SCHEMA
from sqla_shard.scatter.awaiting import AwaitedLanes
from sqla_shard.scatter.lanes import Lanes
from sqla_shard.scatter.union import statements_for
from sqla_shard.types.binds import Address

__all__ = ["execute_everywhere", "render_event"]


def render_event(
    connection: Connection,
    cursor: Any,
    statement: str,
    parameters: Any,
    context: Any,
    executemany: bool,
) -> tuple[str, Any]:
    """Handle ``before_cursor_execute``: put in what differs by shard."""
    plan: Plan | None = context.execution_options.get(OPTION)
    if plan is None:
        if SCHEMA in statement:
            raise NoShardKeyError(
                "this connection was given no shard; take one with "
                'session.connection(bind_arguments={"shard_id": ...})',
                tables=(),
            )
        return statement, parameters
    place = plan.places[0]
    _before(plan, place, connection, cursor, statement, parameters, context)
    if not isinstance(parameters, (tuple, list)):
        return statement.replace(SCHEMA, place.schema), parameters
    placeholder = "%s" if context.dialect.paramstyle == "format" else "?"
    if parameters and isinstance(parameters[0], (tuple, list)):
        rows = [render("", row, place, placeholder)[1] for row in parameters]
        return statement.replace(SCHEMA, place.schema), rows
    if len(plan.places) == 1:
        return render(statement, parameters, place, placeholder)
    if _locks(context):
        for other, there in zip(plan.connections, plan.places, strict=True):
            there.backend.lock(other)
    plan.jobs = [
        Job(other, statements_for(statement, parameters, there, placeholder))
        for other, there in plan.by_connection()
    ]
    return plan.jobs[0].statements[0]


def _before(
    plan: Plan,
    place: Place,
    connection: Connection,
    cursor: Any,
    statement: str,
    parameters: Any,
    context: Any,
) -> None:
    """Do what must come before a statement on its connection."""
    if context.isinsert or context.isupdate or context.isdelete:
        if plan.wrote is not None:
            plan.wrote(place, _describe(context))
        if context.isinsert:
            _check_addresses(parameters, place)
    elif getattr(context, "is_text", False) or context.compiled is None:
        place.backend.use(connection, cursor, place.schema)
        if plan.wrote is not None and not _only_reads(statement):
            plan.wrote(place, "textual SQL")
    elif len(plan.places) == 1 and _locks(context):
        place.backend.lock(connection)


def _describe(context: Any) -> str:
    table = getattr(context.compiled.statement, "table", None)
    return f"a row of {getattr(table, 'name', 'a table')}"


def _only_reads(statement: str) -> bool:
    return statement.lstrip(" \n\t(").upper().startswith(("SELECT", "SHOW"))


def _locks(context: Any) -> bool:
    statement = context.compiled.statement
    return getattr(statement, "_for_update_arg", None) is not None


def _check_addresses(parameters: Any, place: Place) -> None:
    # Address.at() saturates, which is right in a comparison; stored, it
    # would be a reference to a row that does not exist.
    rows = (
        parameters
        if parameters and isinstance(parameters[0], (tuple, list))
        else (parameters,)
    )
    for row in rows:
        for value in row:
            if isinstance(value, Address) and not value.is_at(place.shard_id):
                raise ColocationError(
                    f"{value.object_id} is not an object of type "
                    f"{value.type_id} on shard {place.shard_id}, where "
                    "the row is inserted; a ShardedId column refers to a "
                    "row of the same shard. Use ObjectRef for others",
                    class_name="INSERT",
                    field="ShardedId",
                    value=value.object_id,
                )


def execute_everywhere(
    cursor: Any,
    statement: str,
    parameters: Any,
    context: Any,
    lanes: Lanes | AwaitedLanes,
) -> bool | None:
    """Handle ``do_execute``: run a statement on all shards of its plan.

    The rows of all shards are put into one buffer, so that the ORM loads
    them all in one go.

    :param lanes: where to wait for other servers than the first.
    """
    plan: Plan | None = context.execution_options.get(OPTION)
    if plan is None or not plan.jobs:
        return None
    (first, *others), plan.jobs = plan.jobs, []

    def here() -> list[Any]:
        context.dialect.do_execute(cursor, statement, parameters, context)
        rows = list(cursor.fetchall())
        for more in first.statements[1:]:
            rows += _rows(first.connection, *more)
        return rows

    work: list[Callable[[], list[Any]]] = [here]
    work += [partial(_all_rows, job) for job in others]
    if plan.places[0].backend.waits:
        parts = _at_once(plan, [first, *others], work, lanes)
    else:
        parts = [each() for each in work]
    context.cursor_fetch_strategy = FullyBufferedCursorFetchStrategy(
        cursor, initial_buffer=[row for part in parts for row in part]
    )
    return True


def _all_rows(job: Job) -> list[Any]:
    return [row for s in job.statements for row in _rows(job.connection, *s)]


def _at_once(
    plan: Plan,
    jobs: Sequence[Job],
    work: Sequence[Callable[[], list[Any]]],
    lanes: Lanes | AwaitedLanes,
) -> list[list[Any]]:
    """Do the work of all jobs; cut their connections at an interrupt."""
    cut: list[Connection] = []

    def abort(index: int) -> None:
        connection = jobs[index].connection
        if not connection.invalidated and not connection.closed:
            cut.append(connection)
            wire = connection.connection.dbapi_connection
            plan.places[0].backend.abort(wire)

    try:
        return lanes.run(work, abort)
    finally:
        for connection in cut:
            # Its thread may have ended just before: told to roll back, it
            # would raise an error in place of the interrupt.
            if not connection.invalidated and not connection.closed:
                connection.invalidate()


def _rows(connection: Connection, text: str, parameters: Any) -> list[Any]:
    # Rendered already, whatever the connection itself is bound to.
    result: Any = connection.exec_driver_sql(
        text, parameters, execution_options={OPTION: None}
    )
    rows = list(result.cursor.fetchall())
    result.close()
    return rows
