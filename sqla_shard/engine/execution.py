"""Execution of the statements of a plan, and the result of all rows.

SQLAlchemy calls :func:`execute_everywhere` instead of the driver.  The rows
of all servers are merged into one buffer, so that the ORM loads them like
the rows of one database.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from time import perf_counter
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.engine.cursor import FullyBufferedCursorFetchStrategy
from sqlalchemy.engine.default import DefaultExecutionContext
from sqlalchemy.exc import DBAPIError

from sqla_shard.dialects import Failure
from sqla_shard.engine.lanes import AwaitedLanes, Expiry, invalidate, Lanes, lanes_for
from sqla_shard.engine.merge import check_rows, Computation
from sqla_shard.engine.plans import (
    ExecutionPlan,
    Job,
    OPTION,
    PLACES,
    ServerReport,
    StatementReport,
)
from sqla_shard.engine.rendering import Place
from sqla_shard.exc import (
    ScatterFailedError,
    ScatterLimitError,
    ScatterTimeoutError,
    ScatterUnsupportedError,
    ServerUnreachableError,
    ShardError,
)
from sqla_shard.types.object_ids import inserting_on

#: The arguments of ``do_execute``: cursor, statement, parameters, context
Arguments = tuple[Any, Any, Any, Any]


def call_next_listeners(name: str, ours: Any, arguments: Arguments) -> bool:
    """Call the listeners after ours; return True if one ran the statement.

    SQLAlchemy calls no further listener after one has run the statement, so
    our listener must call the others before it executes the statement.

    :param name: name of the event, such as ``do_execute``.
    :param ours: our listener, or the function of which it is a partial.
    :param arguments: arguments of the listeners.
    """
    listeners = iter(getattr(arguments[3].dialect.dispatch, name))
    for each in listeners:
        if getattr(each, "func", each) is ours:
            break
    return any(each(*arguments) for each in listeners)


#: Seconds between a timeout and the interruption of a connection: a server
#: that enforces the timeout should have responded by then, and its connection
#: can be used again.
GRACE = 0.25

# The scale that drivers report for doubles that are not rounded; the scale of
# strings is larger.
_ALL_PLACES = 31
# The type code of FLOAT columns on servers that send six digits of them.
_FLOAT = 4

#: Function that returns the exception to raise for an error of a statement, or
#: None.
Explain = Callable[[Any, Sequence[Place]], Exception | None]


def execute_everywhere(
    cursor: Any,
    statement: str,
    parameters: Any,
    context: Any,
    lanes: Lanes | AwaitedLanes,
    explain: Explain,
) -> bool | None:
    """Handle ``do_execute``: run a statement on all shards of its plan.

    :param lanes: threads, or tasks, for the servers after the first.
    :param explain: function that returns the exception to raise instead of
        an error, or None.
    :raises ScatterTimeoutError: if the timeout of the plan expires.
    :raises ScatterLimitError: if there are more rows than the plan allows.
    :raises ScatterFailedError: if all shards have failed.
    """
    plan: ExecutionPlan | None = context.execution_options.get(OPTION)
    if plan is None:
        return None
    if plan.before is not None:
        plan.get_ready()
    if not plan.jobs:
        if plan.report is None:
            return None
        arguments = cursor, statement, parameters, context
        return _reported("do_execute", execute_everywhere, arguments, plan, plan.report)
    jobs, plan.jobs = plan.jobs, []
    start = perf_counter()
    rows: list[Any] | None = None
    error: BaseException | None = None
    try:
        description, rows = _answer(
            cursor, statement, parameters, context, plan, jobs, lanes, explain
        )
    except BaseException as raised:
        error = raised
        raise
    finally:
        if plan.report is not None:
            seconds = perf_counter() - start
            count = None if rows is None else len(rows)
            plan.report(_report(context, plan, jobs, count, seconds, error))
    context.cursor_fetch_strategy = FullyBufferedCursorFetchStrategy(
        cursor, alternate_description=description, initial_buffer=rows
    )
    return True


def _answer(
    cursor: Any,
    statement: str,
    parameters: Any,
    context: Any,
    plan: ExecutionPlan,
    jobs: Sequence[Job],
    lanes: Lanes | AwaitedLanes,
    explain: Explain,
) -> tuple[Any, list[Any]]:
    """Return the description of the columns, and the merged rows."""

    def here() -> _Answer:
        # SQLAlchemy has already called its listeners for this statement.
        context.dialect.do_execute(cursor, statement, parameters, context)
        answer = _Answer(cursor.description)
        answer.runs.append(list(cursor.fetchall()))
        jobs[0].rows = len(answer.runs[0])
        return _more(jobs[0], answer, 1, plan)

    work = [_Work(job, plan) for job in jobs]
    work[0].how = partial(work[0].first, here, context, explain)
    _run_all(plan, work, lanes)
    answers = [one.answer for one in work if one.answer is not None]
    if len(answers) < len(work):
        _record_errors(plan, jobs, any_answer=bool(answers))
    runs = [run for a in answers for run in a.runs]
    description = answers[0].description
    merge = plan.merge
    if merge is None:
        rows = runs[0] if len(runs) == 1 else [row for r in runs for row in r]
    else:
        if plan.places[0].backend.collates:
            merge.check_values(runs)
        shown = [_float_format(column) for column in description]
        rows = merge.rows(runs, shown, partial(_compute, jobs), plan.max_rows)
        description = merge.columns_shown(description)
    check_rows(len(rows), plan.max_rows)
    return description, rows


def compose_new_ids(engine: Engine) -> None:
    """Let an engine return the ids of new rows, not their local ids.

    :param engine: a new engine.
    """
    dialect: Any = engine.dialect
    dialect.execution_ctx_cls = _composing(dialect.execution_ctx_cls)


@cache
def _composing(base: type) -> type:
    return type(base.__name__, (_ComposingContext, base), {})


class _ComposingContext(DefaultExecutionContext):
    """Composes the ids of new rows where their local ids are received.

    Not longer: a listener, or the default of a column, may read rows of other
    shards while SQLAlchemy inserts.
    """

    def _on_shard(self) -> AbstractContextManager[None]:
        plan: ExecutionPlan | None = self.execution_options.get(OPTION)
        return inserting_on(None if plan is None else plan.places[0].shard_id)

    def _setup_ins_pk_from_lastrowid(self) -> Any:
        base: Any = super()
        with self._on_shard():
            return base._setup_ins_pk_from_lastrowid()

    def keys_of(self, cursor: Any) -> list[Any]:
        """Return the primary keys of the rows that a cursor has inserted."""
        base: Any = super()
        with self._on_shard():
            keys: list[Any] = base.keys_of(cursor)
        return keys


def execute_many(
    cursor: Any, statement: str, parameters: Any, context: Any
) -> bool | None:
    """Handle ``do_executemany``: report the execution if requested."""
    plan: ExecutionPlan | None = context.execution_options.get(OPTION)
    if plan is None:
        return None
    plan.get_ready()
    if plan.report is None:
        return None
    arguments = cursor, statement, parameters, context
    return _reported("do_executemany", execute_many, arguments, plan, plan.report)


def get_ready(cursor: Any, statement: str, context: Any) -> None:
    """Handle ``do_execute_no_params``, which runs textual SQL only."""
    plan: ExecutionPlan | None = context.execution_options.get(OPTION)
    if plan is not None:
        plan.get_ready()


def _reported(
    name: str,
    ours: Any,
    arguments: Arguments,
    plan: ExecutionPlan,
    report: Callable[[StatementReport], Any],
) -> bool:
    """Run a statement of one shard as SQLAlchemy would, and report it.

    The context does not distinguish the two events: it describes rows that are
    inserted with RETURNING as "executemany", although they are sent as one
    statement.

    :param name: name of the event.
    :param ours: our listener for the event.
    """
    cursor, statement, parameters, context = arguments
    job = Job(context.root_connection, plan.places, [(statement, parameters)])
    start = perf_counter()
    error: BaseException | None = None
    rows = -1
    try:
        # Call the listeners of the module overlapping: without them the
        # servers would wait for each other.
        if not call_next_listeners(name, ours, arguments):
            getattr(context.dialect, name)(*arguments)
        rows = cursor.rowcount
    except BaseException as raised:
        error = raised
        if isinstance(raised, Exception):
            job.error = raised
        raise
    finally:
        job.seconds = perf_counter() - start
        job.rows = rows
        count = rows if rows >= 0 else None
        report(_report(context, plan, [job], count, job.seconds, error))
    return True


def _report(
    context: Any,
    plan: ExecutionPlan,
    jobs: Sequence[Job],
    rows: int | None,
    seconds: float,
    error: BaseException | None,
) -> StatementReport:
    servers = [
        ServerReport(
            server=job.server,
            shards=tuple(place.shard_id for place in job.places),
            statements=len(job.statements),
            rows=job.rows if job.rows >= 0 else None,
            seconds=job.seconds,
            error=job.error,
        )
        for job in jobs
    ]
    return StatementReport(
        statement=plan.text,
        keyspace=jobs[0].places[0].keyspace,
        servers=tuple(servers),
        scattered=plan.scattered,
        writes=context.isinsert or context.isupdate or context.isdelete,
        rows=rows,
        seconds=seconds,
        error=error,
        session=None if plan.watch is None else plan.watch.session,
        loads=plan.loads,
    )


class _Answer:
    """The rows of each statement of a server."""

    def __init__(self, description: Any = None) -> None:
        self.description = description
        self.runs: list[list[Any]] = []


class _Work:
    """The execution of a job.

    :ivar how: function that executes the job and returns its rows.
    :ivar answer: the rows; None before the job has ended, and if it failed.
    :ivar expired: whether the timeout of the job has expired.
    """

    def __init__(self, job: Job, plan: ExecutionPlan) -> None:
        self.job = job
        self._plan = plan
        self.how: Callable[[], _Answer] = self._send
        self.answer: _Answer | None = None
        self.started = False
        self.ended = False
        self.expired = False

    def __call__(self) -> None:
        start = perf_counter()
        self.started = True
        try:
            if self.expired:
                raise self._timeout()
            self.answer = self.how()
        except (DBAPIError, ShardError) as error:
            known = self._explained(error)
            if self._raises(getattr(error, "orig", None)):
                self.job.error = known
                if known is error:
                    raise
                raise known from error
            if isinstance(known, ScatterLimitError):
                raise
            known.__cause__ = None if known is error else error
            self.job.error = known
        except Exception as error:
            # On the first server the driver's own, which SQLAlchemy converts.
            self.job.error = error
            raise
        finally:
            self.ended = True
            self.job.seconds = perf_counter() - start

    def _send(self) -> _Answer:
        try:
            return _more(self.job, _Answer(), 0, self._plan)
        except ScatterUnsupportedError as error:
            if error.construct != "COLLATE" or not self._separate():
                raise
        return _more(self.job, _Answer(), 0, self._plan)

    def _separate(self) -> bool:
        """Fall back to one statement per shard; return False if already so.

        A string that combines two collations can be selected, but not in a
        UNION, whose columns must have one collation.
        """
        render = self.job.per_shard_statements
        self.job.per_shard_statements = None
        if render is None or len(self.job.places) == 1:
            return False
        self.job.statements = render()
        return True

    def first(
        self, how: Callable[[], _Answer], context: Any, explain: Explain
    ) -> _Answer:
        """Execute the statement that SQLAlchemy is about to execute.

        An error of the driver is raised unchanged, so that SQLAlchemy
        converts it, unless it is translated or recorded in the plan.
        """
        dbapi = context.dialect.loaded_dbapi
        try:
            return how()
        except dbapi.Error as error:
            backend = self.job.places[0].backend
            mixed = backend.classify(error) is Failure.COLLATIONS
            if mixed and self._separate():
                return self._send()
            if self._raises(error) and not self._timed_out(error):
                raise
            connection = self.job.connection
            wire = connection.connection.dbapi_connection
            lost = context.dialect.is_disconnect(error, wire, context.cursor)
            if lost:
                connection.invalidate(error)
                raise ServerUnreachableError(
                    server=self.job.server, error=error
                ) from error
            known = DBAPIError.instance(
                None, None, error, dbapi.Error, hide_parameters=True
            )
            raise explain(known, self.job.places) or known from error

    def _raises(self, original: Any) -> bool:
        """Return whether to raise an error instead of recording it."""
        limits = self._plan.limits
        if limits is None or limits.on_error == "raise":
            return True
        # The server has rolled back all writes of the transaction on it: if
        # the application continued, it would commit the other writes.
        backend = self.job.places[0].backend
        return original is not None and backend.classify(original) is Failure.CONFLICT

    def _timed_out(self, original: Any) -> bool:
        backend = self.job.places[0].backend
        return self.expired or backend.classify(original) is Failure.TIMEOUT

    def _explained(self, error: DBAPIError | ShardError) -> Exception:
        """Return the timeout that caused an error, or the error itself."""
        if isinstance(error, DBAPIError) and self._timed_out(error.orig):
            return self._timeout()
        return error

    def _timeout(self) -> ScatterTimeoutError:
        limits = self._plan.limits
        timeout = limits.timeout if limits is not None else None
        return ScatterTimeoutError(servers=(self.job.server,), timeout=timeout or 0.0)

    def expire(self) -> None:
        """Interrupt the job: its timeout has expired."""
        if self.ended:
            return
        self.expired = True
        if self.started:
            _abort(self.job)


def _abort(job: Job) -> bool:
    """Interrupt the driver's call of a job; return False if it has ended."""
    connection = job.connection
    if connection.invalidated or connection.closed:
        return False
    wire = connection.connection.dbapi_connection
    job.places[0].backend.abort(wire)
    return True


def _run_all(
    plan: ExecutionPlan, work: Sequence[_Work], lanes: Lanes | AwaitedLanes
) -> None:
    """Execute all jobs within the timeout of the plan."""
    seconds = plan.seconds_left()
    expiry = None
    if seconds is not None:

        def expire() -> None:
            for one in work:
                one.expire()

        expiry = seconds + GRACE, expire
    if plan.places[0].backend.waits:
        _run_together(work, lanes, expiry)
        return
    cancel = None if expiry is None else lanes.call_later(*expiry)
    try:
        for one in work:
            one()
    finally:
        if cancel is not None:
            cancel()


def _run_together(
    work: Sequence[_Work], lanes: Lanes | AwaitedLanes, expiry: Expiry | None
) -> None:
    """Execute all jobs; close their connections after an interrupt."""
    cut: list[Connection] = []

    def abort(index: int) -> None:
        if _abort(work[index].job):
            cut.append(work[index].job.connection)

    connections = [one.job.connection for one in work]
    chosen = lanes_for(lanes, connections)
    try:
        chosen.run(work, abort, [c.engine for c in connections], expiry)
    finally:
        invalidate(cut)


def _more(job: Job, answer: _Answer, start: int, plan: ExecutionPlan) -> _Answer:
    """Send the statements of a job, starting at an index."""
    for text, parameters in job.statements[start:]:
        # The SQL is already rendered: the listeners must not render it again.
        result: Any = job.connection.exec_driver_sql(
            text, parameters, execution_options={OPTION: None, PLACES: job.places}
        )
        answer.description = answer.description or result.cursor.description
        rows = list(result.cursor.fetchall())
        result.close()
        answer.runs.append(rows)
        job.rows += len(rows)
        if plan.merge is None:
            # Check after each statement: there may be thousands of them.
            check_rows(job.rows, plan.max_rows)
    return answer


def _record_errors(
    plan: ExecutionPlan, jobs: Sequence[Job], *, any_answer: bool
) -> None:
    """Record the errors of the shards that are left out of the result.

    :raises ScatterFailedError: if all shards are left out.
    """
    for job in jobs:
        if job.error is not None:
            for place in job.places:
                plan.errors[place.shard_id] = job.error
    if not any_answer:
        raise ScatterFailedError(plan.errors) from jobs[0].error


def _compute(
    jobs: Sequence[Job], computation: Computation, groups: Sequence[Sequence[Any]]
) -> Sequence[Sequence[Any]]:
    """Let a server that has responded compute merged expressions."""
    job = next(job for job in jobs if job.error is None)
    # Each statement has different numbers: caching it would be useless.
    options = {OPTION: None, PLACES: job.places, "compiled_cache": None}

    def send(statement: Any) -> list[Any]:
        result: Any = job.connection.execute(statement, execution_options=options)
        rows = list(result.cursor.fetchall())
        result.close()
        return rows

    return computation.run(groups, job.places[0].backend, send)


def _float_format(column: Any) -> str | None:
    """Return the format in which a server sends floats; None for all digits.

    :param column: the description of the column, as of a driver.
    """
    scale = column[5]
    if isinstance(scale, int) and scale < _ALL_PLACES:
        return f".{scale}f"
    return ".6g" if column[1] == _FLOAT else None
