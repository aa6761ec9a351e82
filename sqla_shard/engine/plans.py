"""The plan of one execution: its shards, limits, merge and reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Literal, TYPE_CHECKING

from sqlalchemy import Connection
from sqlalchemy.orm import UserDefinedOption
from sqlalchemy.sql.cache_key import HasCacheKey
from sqlalchemy.sql.elements import Grouping, Label, UnaryExpression
from sqlalchemy.sql.selectable import (
    Exists,
    FromClause,
    Join,
    ScalarSelect,
    SelectBase,
    TableClause,
)

from sqla_shard.engine.rendering import Place
from sqla_shard.util import sqlalchemy_private as private

if TYPE_CHECKING:
    from sqla_shard.engine.merge import Merge


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
        found = _limits_inside(part)
        if found is not None:
            return found
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
        "merge",
        "places",
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
        self.places = places
        self.scattered = scattered
        self.watch = watch
        #: The compiled statement, for reports.
        self.text = ""
        #: The target of an implicit load, for reports.
        self.loads: str | None = None
        self.started = started
        self.connections = connections
        self.wrote = wrote
        self.merge = merge
        self.limits = limits
        self.errors: dict[int, Exception] = {}
        self.jobs: list[Job] = []
        #: Called before the statement is sent on its connections.
        self.before: Callable[[], None] | None = None

    @property
    def report(self) -> Callable[[StatementReport], Any] | None:
        """The function to which the report is passed, if any."""
        return None if self.watch is None else self.watch.report

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
        found: dict[Connection, list[Place]] = {}
        before, its = None, []
        for connection, place in zip(self.connections, self.places, strict=True):
            # Most shards are on the server of the shard before them.
            if connection is not before:
                before, its = connection, found.setdefault(connection, [])
            its.append(place)
        return list(found.items())
