"""What is to be done with one execution: where, and with what limits."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from time import monotonic
from typing import Any
from typing import Literal

from sqlalchemy import Connection
from sqlalchemy.orm import UserDefinedOption
from sqlalchemy.sql.cache_key import HasCacheKey
from sqlalchemy.sql.elements import Grouping
from sqlalchemy.sql.elements import Label
from sqlalchemy.sql.elements import UnaryExpression
from sqlalchemy.sql.selectable import Exists
from sqlalchemy.sql.selectable import FromClause
from sqlalchemy.sql.selectable import Join
from sqlalchemy.sql.selectable import ScalarSelect
from sqlalchemy.sql.selectable import SelectBase
from sqlalchemy.sql.selectable import TableClause

from sqla_shard.rendering import Place
from sqla_shard.scattering.merge import Merge
from sqla_shard.scattering.reports import StatementReport
from sqla_shard.scattering.reports import Watch

__all__ = [
    "OPTION",
    "PLACES",
    "Job",
    "OnError",
    "Plan",
    "Scatter",
    "limits_of",
    "scatter",
    "scatter_errors",
]

#: The execution option that holds the :class:`Plan` of an execution.
OPTION = "sqla_shard"

#: The one that holds the places of a statement that is one of several of a
#: plan, for its errors.
PLACES = "sqla_shard_places"

#: What may stand around a SELECT in a column.
_AROUND = (Exists, Grouping, Label, ScalarSelect, UnaryExpression)

#: What MariaDB takes for a timeout at most, in seconds.
_YEAR = 365 * 24 * 3600

OnError = Literal["raise", "partial"]


class Scatter(UserDefinedOption, HasCacheKey):
    """The option that :func:`scatter` returns; its limits are attributes."""

    # SQLAlchemy takes what has none for a literal, which a function called
    # inside lambda_stmt() must not return.  Limits change no SQL.
    _is_has_cache_key = False
    propagate_to_loaders = False

    def __init__(
        self,
        *,
        max_shards: int | None = None,
        max_rows: int | None = None,
        max_offset: int = 0,
        timeout: float | None = None,
        on_error: OnError = "raise",
    ) -> None:
        super().__init__()
        if type(max_offset) is not int or max_offset < 0:
            raise ValueError(
                f"max_offset={max_offset!r}; it is a number of rows, from 0"
            )
        for name, value in (
            ("max_shards", max_shards),
            ("max_rows", max_rows),
        ):
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"{name}={value!r}; it is a number, from 1")
        if timeout is not None and not (
            type(timeout) in (int, float) and 0 < timeout <= _YEAR
        ):
            raise ValueError(
                f"timeout={timeout!r}; it is seconds, above 0, at most a year"
            )
        if on_error not in ("raise", "partial"):
            raise ValueError(
                f'on_error must be "raise" or "partial", not {on_error!r}'
            )
        self.max_shards = max_shards
        self.max_rows = max_rows
        self.max_offset = max_offset
        self.timeout = timeout
        self.on_error: OnError = on_error


def scatter(
    *,
    max_shards: int | None = None,
    max_rows: int | None = None,
    max_offset: int = 0,
    timeout: float | None = None,
    on_error: OnError = "raise",
) -> Scatter:
    """Let a statement go to every shard where nothing in it tells them.

    ::

        select(Pin).order_by(Pin.ts.desc()).limit(10).options(scatter())

    :param max_shards: refuse a statement for more shards than this.
    :param max_rows: refuse an answer of more rows than this.
    :param max_offset: allow OFFSET up to this.  Each shard then reads the
        rows that are skipped as well.
    :param timeout: seconds for all servers together to answer; servers are
        told, so that they stop as well.
    :param on_error: ``"partial"`` takes the rows of the shards that answer;
        :func:`scatter_errors` tells what the others raised.  A deadlock is
        raised all the same, for the server has rolled back what was written
        there; and after a lost connection the transaction cannot be
        committed, for the same reason.
    :raises ValueError: when a limit makes no sense.
    """
    return Scatter(
        max_shards=max_shards,
        max_rows=max_rows,
        max_offset=max_offset,
        timeout=timeout,
        on_error=on_error,
    )


def limits_of(statement: Any) -> Scatter | None:
    """Return the ``scatter()`` of a statement; of several, the last.

    One that has none takes that of a subquery whose rows it shows, counts or
    looks for: ``select(func.count()).select_from(pins.subquery())`` counts
    the rows of all shards if ``pins`` does.
    """
    for option in reversed(getattr(statement, "_with_options", ())):
        if isinstance(option, Scatter):
            return option
    for part in (
        *getattr(statement, "_from_obj", ()),
        *getattr(statement, "_raw_columns", ()),
    ):
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
    """Return what is missing of a partial answer.

    :param result: what ``session.execute()`` or ``session.scalars()`` has
        returned for a statement with ``scatter(on_error="partial")``.
    :returns: what shards raised that are left out, by number; empty where
        all have answered.
    :raises ValueError: when it is the result of something else.
    """
    result = getattr(result, "_real_result", None) or result
    result = getattr(result, "raw", None) or result
    context = getattr(result, "context", None)
    plan = context and context.execution_options.get(OPTION)
    if not isinstance(plan, Plan):
        raise ValueError(
            f"{result!r} is not the result of a statement of a session; "
            "take it before fetching all rows"
        )
    return dict(plan.errors)


@dataclass
class Job:
    """What an execution does on one connection.

    :ivar places: the shards that it is for.
    :ivar statements: text and parameters of each, at least one.
    :ivar apart: returns them with one for each shard.
    :ivar rows: how many rows it has brought.
    :ivar seconds: how long it took.
    :ivar error: what it raised.
    """

    connection: Connection
    places: Sequence[Place]
    statements: list[tuple[str, Any]]
    apart: Callable[[], list[tuple[str, Any]]] | None = field(
        default=None, repr=False
    )
    rows: int = 0
    seconds: float = 0.0
    error: Exception | None = field(default=None, repr=False)

    @property
    def server(self) -> str:
        """The name of its server."""
        return self.places[0].server


class Plan:
    """The shards of one execution, and the connection to each.

    :ivar places: at least one.
    :ivar connections: one for each place, where there are several or
        limits; those of one server are the same object.
    :ivar wrote: called with the place before a statement writes there.
    :ivar merge: what makes one answer of theirs; None where rows are put
        one after another.
    :ivar limits: the statement's ``scatter()``, if any.
    :ivar started: when its time began, on the monotonic clock.
    :ivar scattered: whether it goes to all shards by ``scatter()`` alone.
    :ivar watch: what else is done with the statement.
    :ivar errors: what shards raised that are left out of a partial answer.
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
        watch: Watch | None = None,
    ) -> None:
        self.places = places
        self.scattered = scattered
        self.watch = watch
        #: The compiled statement, for reports.
        self.text = ""
        #: What the ORM loads with it of its own accord, for reports.
        self.loads: str | None = None
        self.started = started
        self.connections = connections
        self.wrote = wrote
        self.merge = merge
        self.limits = limits
        self.errors: dict[int, Exception] = {}
        self.jobs: list[Job] = []
        #: What is to be done on its connections before it is sent.
        self.before: Callable[[], None] | None = None

    @property
    def report(self) -> Callable[[StatementReport], Any] | None:
        """What is told what became of it; None for nobody."""
        return None if self.watch is None else self.watch.report

    def get_ready(self) -> None:
        """Do that, once."""
        before, self.before = self.before, None
        if before is not None:
            before()

    def seconds_left(self) -> float | None:
        """Return how much of its time is left; None where there is no end.

        It is never nothing: servers take 0 for no limit.
        """
        if self.limits is None or self.limits.timeout is None:
            return None
        gone = monotonic() - self.started
        return max(self.limits.timeout - gone, 0.001)

    def by_connection(self) -> list[tuple[Connection, list[Place]]]:
        """Return the connections, each once, with the places it leads to."""
        found: dict[Connection, list[Place]] = {}
        for connection, place in zip(
            self.connections, self.places, strict=True
        ):
            found.setdefault(connection, []).append(place)
        return list(found.items())
