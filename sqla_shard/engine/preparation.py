"""Preparation of each statement before it is sent.

Statements are compiled once for all shards, with a placeholder for the schema
and :class:`~sqla_shard.types.shard_bound.ShardBound` parameters for the values
that differ by shard.  The listener replaces them when SQLAlchemy passes the
SQL to the driver; so SQLAlchemy's compiled cache stays small, and its log and
errors show the SQL that was sent.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.selectable import Select

from sqla_shard.dialects.numbers import is_storable
from sqla_shard.dialects.sorting import Hidden
from sqla_shard.engine.plans import ExecutionPlan, Job, OPTION
from sqla_shard.engine.rendering import Place, render, SCHEMA, statements_for
from sqla_shard.exc import (
    ColocationError,
    NoShardKeyError,
    ParameterValueError,
    ScatterUnsupportedError,
    UnsupportedStatementError,
)
from sqla_shard.types.shard_bound import ComparedId
from sqla_shard.util import sqlalchemy_private as private

#: The placeholder of a schema in the statements of SQLAlchemy
_MARK = "__[SCHEMA_"

#: Maximum exponent of a Decimal; servers have 65 digits, and doubles to 1e308.
_MOST_ZEROS = 400

# Results of _changes() by compiled statement; SQLAlchemy's cache drops
# statements that are not used.
_changing: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


class Sampling:
    """Passes a random sample of the statements of a cluster to a function.

    The gaps between two samples are random, since a statement that an
    application repeats in a fixed order would be sampled too often or never.
    Threads count without a lock: if one overwrites the count of another, the
    next sample is a few statements later.

    :ivar is_on: whether samples are taken.
    """

    def __init__(self) -> None:
        self.is_on = False
        self._rate = 1.0
        self._left = 0
        self._take: Callable[[ExecutionPlan, Any], None] = _ignore

    def begin(self, rate: float, take: Callable[[ExecutionPlan, Any], None]) -> None:
        """Take samples from now on.

        :param rate: the share of the statements, above 0 and at most 1.
        :param take: function that is called with the plan of a statement and
            its execution context, before the statement is sent; it must not
            raise an exception.
        """
        self._rate, self._take = rate, take
        self._left = self._gap()
        self.is_on = True

    def end(self) -> None:
        """Take no more samples."""
        self.is_on = False
        self._take = _ignore

    def __call__(self, plan: ExecutionPlan, context: Any) -> None:
        """Count a statement, and take a sample if it is its turn."""
        left = self._left
        if left:
            self._left = left - 1
            return
        self._left = self._gap()
        self._take(plan, context)

    def _gap(self) -> int:
        """Return a number of statements until the next sample."""
        if self._rate == 1:
            return 0
        # random.random() may return 0, but never 1.
        chance = 1 - random.random()  # noqa: S311  # not a secret
        return int(math.log(chance) / math.log1p(-self._rate))


def _ignore(plan: ExecutionPlan, context: Any) -> None:
    """Drop a sample that a thread takes when sampling has just ended."""


def render_event(
    connection: Connection,
    cursor: Any,
    statement: str,
    parameters: Any,
    context: Any,
    executemany: bool,
    *,
    sampling: Sampling,
) -> tuple[str, Any]:
    """Handle ``before_cursor_execute``: insert the values of the shard.

    :param sampling: counts the statement.
    """
    compiled = context.compiled
    # DDL has no parameters.
    if isinstance(compiled, SQLCompiler) and compiled.literal_execute_params:
        _check_literals(compiled, context, statement)
    plan: ExecutionPlan | None = context.execution_options.get(OPTION)
    if plan is None:
        if SCHEMA in statement:
            raise NoShardKeyError(
                "this connection has no shard; use "
                'session.connection(bind_arguments={"shard_id": ...})',
                tables=(),
            )
        return statement, parameters
    if sampling.is_on:
        sampling(plan, context)
    place = plan.places[0]
    watch = plan.watch
    plan.text = statement
    # An earlier statement has set it if a listener prevented its execution.
    plan.before = None
    _begin(plan, place, connection, cursor, statement, parameters, context)
    if not isinstance(parameters, (tuple, list)):
        return statement.replace(SCHEMA, place.schema), parameters
    placeholder = "%s" if context.dialect.paramstyle == "format" else "?"
    if _are_rows(parameters):
        _check_decimals(value for row in parameters for value in row)
        rows = [render("", row, place, placeholder)[1] for row in parameters]
        # Add no comment: PyMySQL sends the rows of an INSERT as one
        # statement only if there is nothing around the INSERT.
        return statement.replace(SCHEMA, place.schema), rows
    _check_decimals(parameters)
    if not plan.connections:
        sent = render(statement, parameters, place, placeholder)
        if watch is not None and watch.comments:
            sent = sent[0] + _comment([place], 1), sent[1]
        return sent
    plan.jobs = _jobs(plan, statement, parameters, context, placeholder)
    return plan.jobs[0].statements[0]


def _are_rows(parameters: Any) -> bool:
    """Return whether the parameters are those of several rows.

    The parameters of one row are a tuple, whose first value may be a list or
    a tuple.
    """
    return (
        isinstance(parameters, list)
        and bool(parameters)
        and isinstance(parameters[0], (tuple, list))
    )


def _check_decimals(values: Iterable[Any]) -> None:
    """Refuse numbers that a driver would write with gigabytes of zeros."""
    for value in values:
        if type(value) is Decimal and abs(value.adjusted()) > _MOST_ZEROS:
            raise ParameterValueError(value, f"an exponent of {value.adjusted()}")


def _check_literals(compiled: Any, context: Any, statement: str) -> None:
    """Refuse literal values that contain the placeholder of a schema.

    Placeholders are replaced anywhere in the SQL: first SQLAlchemy's
    placeholders of schemas, then ours by :func:`render`.
    """
    text = compiled.string
    marks = text.count(SCHEMA) + text.count(f"{_MARK}_none]")
    # Include the values of execute(), which are now only in the SQL.
    values = compiled.construct_params(
        extracted_parameters=context.extracted_parameters, _check=False
    )
    names = (compiled.bind_names[b] for b in compiled.literal_execute_params)
    if statement.count(SCHEMA) != marks or any(
        _MARK in str(values.get(name)) for name in names
    ):
        raise UnsupportedStatementError(
            f"a value that contains {SCHEMA!r} or {_MARK!r} cannot be in the "
            "text of a statement, where these are placeholders of the "
            "database of a shard; leave out literal_execute",
            construct="literal_execute",
        )


def _comment(places: Sequence[Place], servers: int) -> str:
    """Return a comment with the shards, for the server's logs."""
    first = places[0]
    shards = f"shard {first.shard_id}"
    if len(places) > 1:
        shards = f"{len(places)} shards from {first.shard_id}"
    also = f", {servers} servers" if servers > 1 else ""
    name = first.keyspace.replace("*/", "")
    return f" /* sqla_shard {name}: {shards}{also} */"


def _jobs(
    plan: ExecutionPlan,
    statement: str,
    parameters: Sequence[Any],
    context: Any,
    placeholder: str,
) -> list[Job]:
    """Return the statements for each connection of a plan."""
    compiled: Any = getattr(context.compiled, "compile_state", None)
    if plan.merge is not None:
        _check_wrapped(compiled)
    if _locks(context):
        plan.before = partial(_lock_all, plan)
    limits = plan.limits
    left = plan.seconds_left()
    by_connection = plan.by_connection()
    _check_kinds(context.compiled, [one for one, _ in by_connection])
    comments = plan.watch is not None and plan.watch.comments

    def rendered(
        connection: Connection, places: Sequence[Place], *, united: bool
    ) -> list[tuple[str, Any]]:
        statements = statements_for(
            statement,
            parameters,
            places,
            placeholder,
            plan.merge,
            sorts_more=bool(getattr(compiled, "eager_order_by", ())),
            changes=len(places) > 1 and _changes(context.compiled),
            most_rows=None if limits is None else limits.max_rows,
            united=united,
        )
        if left is not None:
            limited = places[0].backend.limited
            statements = [
                (limited(connection, text, left), values) for text, values in statements
            ]
        if comments:
            comment = _comment(places, len(by_connection))
            statements = [(t + comment, values) for t, values in statements]
        return statements

    return [
        Job(
            connection,
            places,
            rendered(connection, places, united=True),
            partial(rendered, connection, places, united=False),
        )
        for connection, places in by_connection
    ]


def _check_kinds(compiled: Any, connections: Sequence[Connection]) -> None:
    """Refuse a statement that MySQL and MariaDB spell differently.

    It is compiled once for all servers.
    """
    dialects: list[Any] = [connection.dialect for connection in connections]
    kinds = [getattr(dialect, "is_mariadb", False) for dialect in dialects]
    if True not in kinds or False not in kinds:
        return
    other = dialects[kinds.index(not kinds[0])]
    if isinstance(compiled, SQLCompiler) and not _is_alike(compiled, other):
        raise ScatterUnsupportedError(
            "a statement over servers of MySQL and of MariaDB, which need "
            "different SQL for it; read the shards of one kind at a time, "
            'with bind_arguments={"shard_id": n} or the ids of their objects',
            construct="servers of two kinds",
        )


def _is_alike(compiled: Any, dialect: Any) -> bool:
    """Return whether a statement has the same text for another dialect."""
    other = compiled.statement.compile(
        dialect=dialect,
        column_keys=compiled.column_keys,
        schema_translate_map=compiled.schema_translate_map,
    )
    # The two have different reserved words.
    texts = {str(one).replace("`", "") for one in (compiled, other)}
    return len(texts) == 1


def _changes(compiled: Any) -> bool:
    """Return whether UNION would change a value of the rows."""
    if compiled is None:
        return False
    known = _changing.get(compiled)
    if known is None:
        statement = getattr(compiled.compile_state, "statement", None)
        on_mysql = not getattr(compiled.dialect, "is_mariadb", False)
        known = not all(
            is_storable(column, on_mysql=on_mysql) for column in _columns(statement)
        )
        _changing[compiled] = known
    return known


def _columns(statement: Any) -> Iterator[Any]:
    """Yield the columns of a SELECT, the hidden ones first."""
    if isinstance(statement, Select):
        for prefix, _ in private.prefixes(statement):
            if isinstance(prefix, Hidden):
                yield from prefix.elements
        yield from statement.selected_columns


def _check_wrapped(compiled: Any) -> None:
    """Refuse a LIMIT that SQLAlchemy has moved into a subquery.

    The LIMIT counts objects, but the rows of the statement are pairs of an
    object and a member of its collection: a merge cannot apply the LIMIT.
    """
    if getattr(compiled, "compound_eager_adapter", None) is not None:
        raise ScatterUnsupportedError(
            "joinedload() of a collection with LIMIT or the like over "
            "several shards is not supported; use selectinload()",
            construct="joinedload()",
        )


def _begin(
    plan: ExecutionPlan,
    place: Place,
    connection: Connection,
    cursor: Any,
    statement: str,
    parameters: Any,
    context: Any,
) -> None:
    """Record a write, check ids and set the function to call before."""
    if context.isinsert or context.isupdate or context.isdelete:
        if plan.wrote is not None:
            table = getattr(context.compiled.statement, "table", None)
            plan.wrote(place, _describe(table), table)
        if context.isinsert:
            _check_addresses(parameters, place)
    elif getattr(context, "is_text", False) or context.compiled is None:
        # Select the database later: here SQLAlchemy 2.0 would not wrap the
        # driver's errors, and would not detect a lost connection.
        plan.before = partial(place.backend.use, connection, cursor, place.schema)
        if plan.wrote is not None and not _only_reads(statement):
            plan.wrote(place, "textual SQL", None)
    elif not plan.connections and _locks(context):
        plan.before = partial(place.backend.lock, connection)


def _lock_all(plan: ExecutionPlan) -> None:
    for connection, place in zip(plan.connections, plan.places, strict=True):
        place.backend.lock(connection)


def _describe(table: Any) -> str:
    return f"a row of {getattr(table, 'name', 'a table')}"


def _only_reads(statement: str) -> bool:
    return statement.lstrip(" \n\t(").upper().startswith(("SELECT", "SHOW"))


def _locks(context: Any) -> bool:
    statement = getattr(context.compiled, "statement", None)
    return private.for_update_arg(statement) is not None


def _check_addresses(parameters: Any, place: Place) -> None:
    # Address.at() saturates, which is correct in a comparison; if it were
    # stored, the value would refer to a row that does not exist.
    rows = parameters if _are_rows(parameters) else (parameters,)
    for row in rows:
        for value in row:
            if isinstance(value, ComparedId) and not value.is_at(place.shard_id):
                raise ColocationError(
                    f"{value.object_id} is not an object of type "
                    f"{value.type_id} on shard {place.shard_id}, where "
                    "the row is inserted; a ShardedId column refers to a "
                    "row of the same shard. Use ObjectRef for others",
                    class_name="INSERT",
                    field="ShardedId",
                    value=value.object_id,
                )
