"""The plan of one execution, and the preparation of each of its statements.

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
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from itertools import chain
from time import monotonic
from typing import Any, Literal, TYPE_CHECKING
from weakref import WeakKeyDictionary

from sqlalchemy import Connection
from sqlalchemy.orm import UserDefinedOption
from sqlalchemy.sql.cache_key import HasCacheKey
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import Grouping, Label, UnaryExpression
from sqlalchemy.sql.selectable import (
    Exists,
    FromClause,
    Join,
    ScalarSelect,
    Select,
    SelectBase,
    TableClause,
)

from sqla_shard.dialects.numbers import is_storable
from sqla_shard.dialects.sorting import Hidden
from sqla_shard.engine.rendering import Place, render, SCHEMA, statements_for
from sqla_shard.exc import (
    ColocationError,
    NoShardKeyError,
    ParameterValueError,
    ScatterUnsupportedError,
    UnsupportedStatementError,
)
from sqla_shard.types.shard_bound import ComparedId, ShardBound
from sqla_shard.util import sqlalchemy_private as private

if TYPE_CHECKING:
    from sqla_shard.engine.merge import Merge


#: The placeholder of a schema in the statements of SQLAlchemy
_MARK = "__[SCHEMA_"

#: Maximum exponent of a Decimal; servers have 65 digits, and doubles to 1e308.
_MOST_ZEROS = 400

# Results of _changes() by compiled statement; SQLAlchemy's cache drops
# statements that are not used.
_changing: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


@dataclass(frozen=True, kw_only=True)
class ServerReport:
    """The part of one server in a statement.

    :ivar server: name of the server in the topology.
    :ivar shards: virtual shards of the statements that were sent to it.
    :ivar statements: number of statements that were sent to it.
    :ivar rows: number of rows that it returned; None if the driver does not
        report it.
    :ivar seconds: time from sending the first statement to the last row.
    :ivar error: error of the server, if any.
    """

    server: str
    shards: tuple[int, ...]
    statements: int
    rows: int | None
    seconds: float
    error: Exception | None = None


@dataclass(frozen=True, kw_only=True)
class StatementReport:
    """The outcome of one statement.

    :ivar statement: the SQL, with a placeholder for the database and without
        values: the same for all shards.
    :ivar keyspace: name of the keyspace.
    :ivar servers: the report of each server.
    :ivar scattered: whether the statement was sent to all shards because of
        ``scatter()``.
    :ivar writes: whether the statement is an INSERT, UPDATE or DELETE.
    :ivar rows: number of rows after the merge; None if the driver does not
        report it.
    :ivar seconds: total duration.
    :ivar error: the exception that was raised, if any.
    :ivar session: the session that sent the statement.
    :ivar loads: the target of an implicit load: ``"Pin.comments"`` for a lazy
        load, ``"Pin"`` for expired or deferred attributes of an object; None
        for explicit statements.
    """

    statement: str
    keyspace: str
    servers: tuple[ServerReport, ...]
    scattered: bool
    writes: bool
    rows: int | None
    seconds: float
    error: BaseException | None = None
    session: Any = field(default=None, repr=False, compare=False)
    loads: str | None = None

    @property
    def shards(self) -> tuple[int, ...]:
        """The virtual shards of all servers, in order."""
        return tuple(sorted(i for s in self.servers for i in s.shards))

    @property
    def fan_out(self) -> int:
        """The number of servers."""
        return len(self.servers)


@dataclass(frozen=True)
class StatementReports:
    """Options for reports and comments of the statements of a cluster.

    :ivar report: function that is called with the report of each statement;
        None for no reports.
    :ivar comments: whether a comment in SQL names keyspace and shards.
    :ivar session: the session that sends the statements.
    """

    report: Callable[[StatementReport], Any] | None = None
    comments: bool = False
    session: Any = None


#: The execution option that holds the :class:`ExecutionPlan` of an execution.
OPTION = "sqla_shard"

#: The execution option with the places of one statement of a plan, for its
#: errors.
PLACES = "sqla_shard_places"

#: Expressions that may enclose a SELECT in a column.
_AROUND = (Exists, Grouping, Label, ScalarSelect, UnaryExpression)

#: The longest timeout that MariaDB accepts, in seconds.
_YEAR = 365 * 24 * 3600

OnError = Literal["raise", "partial"]


@dataclass(kw_only=True, eq=False)
class Scatter(UserDefinedOption, HasCacheKey):
    """The option that :func:`scatter` returns; its limits are attributes."""

    # Without a cache key SQLAlchemy treats the option as a literal, which a
    # function called inside lambda_stmt() must not return.  Limits change no
    # SQL.
    _is_has_cache_key = False
    propagate_to_loaders = False

    max_shards: int | None = None
    max_rows: int | None = None
    max_offset: int = 0
    timeout: float | None = None
    on_error: OnError = "raise"

    def __post_init__(self) -> None:
        super().__init__()
        if type(self.max_offset) is not int or self.max_offset < 0:
            raise ValueError(
                f"max_offset={self.max_offset!r} must be an integer, 0 or more"
            )
        for name in ("max_shards", "max_rows"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"{name}={value!r} must be an integer, 1 or more")
        timeout = self.timeout
        if timeout is not None and not (
            type(timeout) in (int, float) and 0 < timeout <= _YEAR
        ):
            raise ValueError(
                f"timeout={timeout!r} must be a number of seconds above 0 "
                "and at most a year"
            )
        if self.on_error not in ("raise", "partial"):
            raise ValueError(
                f'on_error must be "raise" or "partial", not {self.on_error!r}'
            )


def scatter(
    *,
    max_shards: int | None = None,
    max_rows: int | None = None,
    max_offset: int = 0,
    timeout: float | None = None,
    on_error: OnError = "raise",
) -> Scatter:
    """Allow a statement to read all shards if nothing in it determines them.

    ::

        select(Pin).order_by(Pin.ts.desc()).limit(10).options(scatter())

    :param max_shards: refuse a statement for more shards than this.
    :param max_rows: refuse a result of more rows than this.
    :param max_offset: maximum OFFSET.  Each shard also reads the rows that
        are skipped.
    :param timeout: seconds for all servers together; the servers enforce it
        too, so that they stop.
    :param on_error: ``"partial"`` returns the rows of the shards that
        respond; :func:`scatter_errors` returns the errors of the other
        shards.  A deadlock is raised in any case, since the server has
        rolled back the writes of the transaction; and after a lost connection
        the transaction cannot be committed, for the same reason.
    :raises ValueError: if a limit is not valid.
    """
    return Scatter(
        max_shards=max_shards,
        max_rows=max_rows,
        max_offset=max_offset,
        timeout=timeout,
        on_error=on_error,
    )


def limits_of(statement: Any) -> Scatter | None:
    """Return the ``scatter()`` of a statement; if it has several, the last.

    A statement without the option has the option of a subquery whose rows it
    returns, counts or tests:
    ``select(func.count()).select_from(pins.subquery())`` counts the rows of
    all shards if ``pins`` does.
    """
    for option in reversed(private.with_options(statement)):
        if isinstance(option, Scatter):
            return option
    for part in (*private.from_obj(statement), *private.raw_columns(statement)):
        limits = _limits_inside(part)
        if limits is not None:
            return limits
    return None


def _limits_inside(part: Any) -> Scatter | None:
    if isinstance(part, TableClause):
        return None
    if isinstance(part, Join):
        return _limits_inside(part.left) or _limits_inside(part.right)
    if isinstance(part, SelectBase):
        return limits_of(part)
    if isinstance(part, (FromClause, *_AROUND)):
        return _limits_inside(getattr(part, "element", None))
    return None


def scatter_errors(result: Any) -> dict[int, Exception]:
    """Return the errors of the shards that a partial result lacks.

    :param result: the result of ``session.execute()`` or
        ``session.scalars()`` of a statement with
        ``scatter(on_error="partial")``.
    :returns: errors by number of the shard; empty if all shards responded.
    :raises ValueError: if ``result`` is not the result of a session.
    """
    result = private.real_result(result) or result
    result = getattr(result, "raw", None) or result
    context = getattr(result, "context", None)
    plan = context and context.execution_options.get(OPTION)
    if not isinstance(plan, ExecutionPlan):
        raise ValueError(
            f"{result!r} is not the result of a statement of a session; "
            "call scatter_errors() before all rows are fetched"
        )
    return dict(plan.errors)


@dataclass
class Job:
    """The statements of an execution on one connection.

    :ivar places: shards of the statements.
    :ivar statements: SQL and parameters of each statement, at least one.
    :ivar per_shard_statements: function that returns the same statements
        rendered as one statement per shard.
    :ivar rows: number of rows that were read.
    :ivar seconds: duration of the job.
    :ivar error: error of the job, if any.
    """

    connection: Connection
    places: Sequence[Place]
    statements: list[tuple[str, Any]]
    per_shard_statements: Callable[[], list[tuple[str, Any]]] | None = field(
        default=None, repr=False
    )
    rows: int = 0
    seconds: float = 0.0
    error: Exception | None = field(default=None, repr=False)

    @property
    def server(self) -> str:
        """The name of the server."""
        return self.places[0].server


class ExecutionPlan:
    """The shards of one execution, and the connection to each.

    :ivar places: locations of the shards, at least one.
    :ivar connections: connection to each place, if there are several places
        or limits; places of one server have the same connection.
    :ivar wrote: function that is called with the place before a statement
        writes there.
    :ivar merge: merge of the rows; None if rows are concatenated.
    :ivar limits: ``scatter()`` option of the statement, if any.
    :ivar started: start of the timeout, on the monotonic clock.
    :ivar scattered: whether the statement is sent to all shards only because
        of ``scatter()``.
    :ivar watch: options for reports and comments, if any.
    :ivar report: function to which the report is passed, if any.
    :ivar errors: errors of the shards that a partial result lacks, by number
        of the shard.
    """

    __slots__ = (
        "before",
        "connections",
        "errors",
        "jobs",
        "limits",
        "loads",
        "max_rows",
        "merge",
        "places",
        "report",
        "scattered",
        "started",
        "text",
        "watch",
        "wrote",
    )

    def __init__(
        self,
        places: Sequence[Place],
        connections: Sequence[Connection] = (),
        wrote: Callable[[Place, str, Any], None] | None = None,
        *,
        merge: Merge | None = None,
        limits: Scatter | None = None,
        started: float = 0.0,
        scattered: bool = False,
        watch: StatementReports | None = None,
    ) -> None:
        self.places: Sequence[Place] = places
        self.scattered: bool = scattered
        self.watch: StatementReports | None = watch
        self.report: Callable[[StatementReport], Any] | None = (
            None if watch is None else watch.report
        )
        #: The compiled statement, for reports.
        self.text: str = ""
        #: The target of an implicit load, for reports.
        self.loads: str | None = None
        self.started: float = started
        self.connections: Sequence[Connection] = connections
        self.wrote: Callable[[Place, str, Any], None] | None = wrote
        self.merge: Merge | None = merge
        self.limits: Scatter | None = limits
        #: The maximum number of rows of the result; None for any.
        self.max_rows: int | None = None if limits is None else limits.max_rows
        self.errors: dict[int, Exception] = {}
        self.jobs: list[Job] = []
        #: Called before the statement is sent on its connections.
        self.before: Callable[[], None] | None = None

    def get_ready(self) -> None:
        """Call ``before``, once."""
        before, self.before = self.before, None
        if before is not None:
            before()

    def seconds_left(self) -> float | None:
        """Return the rest of the timeout; None if there is no timeout.

        The result is never 0, which servers treat as no limit.
        """
        if self.limits is None or self.limits.timeout is None:
            return None
        gone = monotonic() - self.started
        return max(self.limits.timeout - gone, 0.001)

    def by_connection(self) -> list[tuple[Connection, list[Place]]]:
        """Return each connection with its places."""
        places_of: dict[Connection, list[Place]] = {}
        before, group = None, []
        for connection, place in zip(self.connections, self.places, strict=True):
            # Most shards are on the server of the shard before them.
            if connection is not before:
                before, group = connection, places_of.setdefault(connection, [])
            group.append(place)
        return list(places_of.items())


class Sampling:
    """Passes a random sample of the statements of a cluster to a function.

    The gaps between two samples are random, since a statement that an
    application repeats in a fixed order would be sampled too often or never.
    Threads count without a lock: if one overwrites the count of another, the
    next sample is a few statements later.

    :ivar is_on: whether samples are taken.
    """

    def __init__(self) -> None:
        self.is_on: bool = False
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
        budget = self._left
        if budget:
            self._left = budget - 1
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
    # Those of one row are a tuple, whose first value may be a list or a tuple.
    are_rows = (
        isinstance(parameters, list)
        and bool(parameters)
        and isinstance(parameters[0], (tuple, list))
    )
    every_row = parameters if are_rows else (parameters,)
    # Most statements have neither: do not look at each value three times.
    types = set(map(type, chain.from_iterable(every_row)))
    is_bound = any(map(ShardBound.__subclasscheck__, types))
    _begin(plan, place, connection, cursor, statement, context)
    if is_bound and context.isinsert:
        _check_addresses(every_row, place)
    if not isinstance(parameters, (tuple, list)):
        return statement.replace(SCHEMA, place.schema), parameters
    if Decimal in types:
        _check_decimals(chain.from_iterable(every_row))
    placeholder = "%s" if context.dialect.paramstyle == "format" else "?"
    if are_rows:
        rows = parameters
        if is_bound:
            rows = [render("", row, place, placeholder)[1] for row in parameters]
        # Add no comment: PyMySQL sends the rows of an INSERT as one
        # statement only if there is nothing around the INSERT.
        return statement.replace(SCHEMA, place.schema), rows
    if not plan.connections:
        sent = statement.replace(SCHEMA, place.schema), tuple(parameters)
        if is_bound:
            sent = render(statement, parameters, place, placeholder)
        if watch is not None and watch.comments:
            sent = sent[0] + _comment([place], 1), sent[1]
        return sent
    plan.jobs = _jobs(plan, statement, parameters, context, placeholder)
    return plan.jobs[0].statements[0]


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
    seconds = plan.seconds_left()
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
            most_rows=plan.max_rows,
            united=united,
        )
        if seconds is not None:
            limited = places[0].backend.limited
            statements = [
                (limited(connection, text, seconds), values)
                for text, values in statements
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
    context: Any,
) -> None:
    """Record a write and set the function to call before."""
    if context.isinsert or context.isupdate or context.isdelete:
        if plan.wrote is not None:
            table = getattr(context.compiled.statement, "table", None)
            name = getattr(table, "name", "a table")
            plan.wrote(place, f"a row of {name}", table)
    elif getattr(context, "is_text", False) or context.compiled is None:
        # Select the database later: here SQLAlchemy 2.0 would not wrap the
        # driver's errors, and would not detect a lost connection.
        plan.before = partial(place.backend.use, connection, cursor, place.schema)
        keyword = statement.lstrip(" \n\t(")[:6].upper()
        if plan.wrote is not None and not keyword.startswith(("SELECT", "SHOW")):
            plan.wrote(place, "textual SQL", None)
    elif not plan.connections and _locks(context):
        plan.before = partial(place.backend.lock, connection)


def _lock_all(plan: ExecutionPlan) -> None:
    for connection, place in zip(plan.connections, plan.places, strict=True):
        place.backend.lock(connection)


def _locks(context: Any) -> bool:
    statement = getattr(context.compiled, "statement", None)
    return private.for_update_arg(statement) is not None


def _check_addresses(rows: Iterable[Any], place: Place) -> None:
    # Address.at() saturates, which is correct in a comparison; if it were
    # stored, the value would refer to a row that does not exist.
    for value in chain.from_iterable(rows):
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
