"""Running the statements of a plan, and making one answer of the rows.

SQLAlchemy calls :func:`execute_everywhere` in place of the driver.  The rows
of all servers are merged and put into one buffer, so that the ORM loads them
all in one go, as if they came from one database.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.engine.cursor import FullyBufferedCursorFetchStrategy
from sqlalchemy.exc import DBAPIError

from sqla_shard.dialects import Failure
from sqla_shard.exc import ScatterFailedError
from sqla_shard.exc import ScatterLimitError
from sqla_shard.exc import ScatterTimeoutError
from sqla_shard.exc import ScatterUnsupportedError
from sqla_shard.exc import ServerUnreachableError
from sqla_shard.exc import ShardError
from sqla_shard.rendering import Place
from sqla_shard.scattering.awaited_lanes import AwaitedLanes
from sqla_shard.scattering.computing import Computation
from sqla_shard.scattering.computing import send_on
from sqla_shard.scattering.lanes import Lanes
from sqla_shard.scattering.listeners import asked_after
from sqla_shard.scattering.merge import check_weighed
from sqla_shard.scattering.merge import columns_shown
from sqla_shard.scattering.merge import Compute
from sqla_shard.scattering.merge import Merge
from sqla_shard.scattering.merge import merge_rows
from sqla_shard.scattering.merge import Row
from sqla_shard.scattering.plans import Job
from sqla_shard.scattering.plans import OPTION
from sqla_shard.scattering.plans import PLACES
from sqla_shard.scattering.plans import Plan
from sqla_shard.scattering.reports import ServerReport
from sqla_shard.scattering.reports import StatementReport

__all__ = ["execute_everywhere", "execute_many", "get_ready"]

#: Added to a timeout before a connection is cut: a server that was told
#: should have answered by then, and its connection can be used again.
GRACE = 0.25

# What drivers tell of doubles that are not rounded; of texts, more.
_ALL_PLACES = 31

#: Returns what to raise in place of an error of a statement for some shards.
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

    :param lanes: where to wait for other servers than the first.
    :param explain: returns what to raise in place of an error, or None.
    :raises ScatterTimeoutError: when the plan's time is over.
    :raises ScatterLimitError: when there are more rows than it allows.
    :raises ScatterFailedError: when no shard has answered.
    """
    plan: Plan | None = context.execution_options.get(OPTION)
    if plan is None:
        return None
    plan.get_ready()
    if not plan.jobs:
        run = partial(_go_on, "do_execute", execute_everywhere)
        return _watched(run, cursor, statement, parameters, context, plan)
    jobs, plan.jobs = plan.jobs, []
    start = perf_counter()
    rows: list[Any] | None = None
    error: BaseException | None = None
    try:
        description, rows = _answer(
            cursor,
            statement,
            parameters,
            context,
            plan,
            jobs,
            lanes,
            explain,
        )
    except BaseException as raised:
        error = raised
        raise
    finally:
        if plan.report is not None:
            seconds = perf_counter() - start
            found = None if rows is None else len(rows)
            plan.report(_report(context, plan, jobs, found, seconds, error))
    context.cursor_fetch_strategy = FullyBufferedCursorFetchStrategy(
        cursor, alternate_description=description, initial_buffer=rows
    )
    return True


def _answer(
    cursor: Any,
    statement: str,
    parameters: Any,
    context: Any,
    plan: Plan,
    jobs: Sequence[Job],
    lanes: Lanes | AwaitedLanes,
    explain: Explain,
) -> tuple[Any, list[Any]]:
    """Return the description of the columns, and the merged rows."""

    def here() -> _Answer:
        # SQLAlchemy has told its listeners of this statement already.
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
        _note_errors(plan, jobs, any_answer=bool(answers))
    runs = [run for a in answers for run in a.runs]
    if plan.merge is not None and plan.places[0].backend.collates:
        check_weighed(runs, plan.merge)
    description = answers[0].description
    rows = _merged(runs, plan.merge, description, partial(_compute, jobs))
    _check_rows(len(rows), plan)
    return columns_shown(description, plan.merge), rows


def execute_many(
    cursor: Any, statement: str, parameters: Any, context: Any
) -> bool | None:
    """Handle ``do_executemany``: report it, if somebody wants to know."""
    plan: Plan | None = context.execution_options.get(OPTION)
    if plan is None:
        return None
    plan.get_ready()
    run = partial(_go_on, "do_executemany", execute_many)
    return _watched(run, cursor, statement, parameters, context, plan)


def get_ready(cursor: Any, statement: str, context: Any) -> None:
    """Handle ``do_execute_no_params``, which only textual SQL comes to."""
    plan: Plan | None = context.execution_options.get(OPTION)
    if plan is not None:
        plan.get_ready()


def _watched(
    run: Callable[..., Any],
    cursor: Any,
    statement: str,
    parameters: Any,
    context: Any,
    plan: Plan,
) -> bool | None:
    """Run a statement of one shard as SQLAlchemy would, and report it.

    Where nobody wants to know, it is left to SQLAlchemy.

    :param run: does what SQLAlchemy would do next.  The context does not tell
        what: rows that are inserted with RETURNING are many to it, and sent
        as one statement.
    """
    report = plan.report
    if report is None:
        return None
    job = Job(context.root_connection, plan.places, [(statement, parameters)])
    start = perf_counter()
    error: BaseException | None = None
    rows = -1
    try:
        run(cursor, statement, parameters, context)
        rows = cursor.rowcount
    except BaseException as raised:
        error = raised
        if isinstance(raised, Exception):
            job.error = raised
        raise
    finally:
        job.seconds = perf_counter() - start
        job.rows = rows
        found = rows if rows >= 0 else None
        report(_report(context, plan, [job], found, job.seconds, error))
    return True


def _go_on(
    name: str,
    ours: Any,
    cursor: Any,
    statement: str,
    parameters: Any,
    context: Any,
) -> None:
    """Ask the listeners after ours, then the driver.

    Without those of :mod:`.overlapping` servers would wait for each other.

    :param name: of the event.
    :param ours: our listener.
    """
    arguments = cursor, statement, parameters, context
    if not asked_after(name, ours, arguments):
        getattr(context.dialect, name)(*arguments)


def _report(
    context: Any,
    plan: Plan,
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
    """What a server has answered: the rows of each statement."""

    def __init__(self, description: Any = None) -> None:
        self.description = description
        self.runs: list[list[Any]] = []


class _Work:
    """A job, while it is done.

    :ivar how: does it, and returns its answer.
    :ivar answer: None until it is there, and where it failed.
    :ivar expired: whether its time was over before it had ended.
    """

    def __init__(self, job: Job, plan: Plan) -> None:
        self.job = job
        self._plan = plan
        self.how: Callable[[], _Answer] = self._send
        self.answer: _Answer | None = None
        self.begun = False
        self.ended = False
        self.expired = False

    def __call__(self) -> None:
        start = perf_counter()
        self.begun = True
        try:
            if self.expired:
                raise self._timeout()
            self.answer = self.how()
        except (DBAPIError, ShardError) as error:
            known = self._told(error)
            if self._raises(getattr(error, "orig", None)):
                self.job.error = known
                if known is error:
                    raise
                raise known from error
            if isinstance(known, ScatterLimitError):
                raise
            known.__cause__ = None if known is error else error
            self.job.error = known
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
        """Take a statement for each shard; tell whether that is another.

        A text that is made of two collations can be shown, but not in a
        UNION, whose columns must have one.
        """
        apart, self.job.apart = self.job.apart, None
        if apart is None or len(self.job.places) == 1:
            return False
        self.job.statements = apart()
        return True

    def first(
        self, how: Callable[[], _Answer], context: Any, explain: Explain
    ) -> _Answer:
        """Do what SQLAlchemy is about to do itself.

        It turns what the driver raises into its own errors, and so it is
        left to it, unless that error is not to be raised as it is.
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
        """Tell whether an error is raised, and not a part of the answer."""
        limits = self._plan.limits
        if limits is None or limits.on_error == "raise":
            return True
        # The server has rolled back what the transaction wrote there before:
        # going on, it would commit the rest.
        backend = self.job.places[0].backend
        return (
            original is not None
            and backend.classify(original) is Failure.CONFLICT
        )

    def _timed_out(self, original: Any) -> bool:
        backend = self.job.places[0].backend
        return self.expired or backend.classify(original) is Failure.TIMEOUT

    def _told(self, error: DBAPIError | ShardError) -> Exception:
        """Return the error that says what has happened."""
        if isinstance(error, DBAPIError) and self._timed_out(error.orig):
            return self._timeout()
        return error

    def _timeout(self) -> ScatterTimeoutError:
        limits = self._plan.limits
        timeout = limits.timeout if limits is not None else None
        return ScatterTimeoutError(
            servers=[self.job.server], timeout=timeout or 0.0
        )

    def expire(self) -> None:
        """End it: its time is over."""
        if self.ended:
            return
        self.expired = True
        if self.begun:
            _abort(self.job)


def _abort(job: Job) -> bool:
    """Make the driver's call of a job fail; tell whether there was one."""
    connection = job.connection
    if connection.invalidated or connection.closed:
        return False
    wire = connection.connection.dbapi_connection
    job.places[0].backend.abort(wire)
    return True


def _run_all(
    plan: Plan, work: Sequence[_Work], lanes: Lanes | AwaitedLanes
) -> None:
    """Do all of the work, within the time that there is."""
    cancel = None
    left = plan.seconds_left()
    if left is not None:

        def expire() -> None:
            for one in work:
                one.expire()

        cancel = lanes.call_later(left + GRACE, expire)
    try:
        if plan.places[0].backend.waits:
            _at_once(work, lanes)
        else:
            for one in work:
                one()
    finally:
        if cancel is not None:
            cancel()


def _at_once(work: Sequence[_Work], lanes: Lanes | AwaitedLanes) -> None:
    """Do the work of all jobs; cut their connections at an interrupt."""
    cut: list[Connection] = []

    def abort(index: int) -> None:
        if _abort(work[index].job):
            cut.append(work[index].job.connection)

    try:
        lanes.run(work, abort, [one.job.connection.engine for one in work])
    finally:
        for connection in cut:
            # Its thread may have ended just before: told to roll back, it
            # would raise an error in place of the interrupt.
            if not connection.invalidated and not connection.closed:
                connection.invalidate()


def _more(job: Job, answer: _Answer, start: int, plan: Plan) -> _Answer:
    """Send the statements of a job, from one of them on."""
    for text, parameters in job.statements[start:]:
        # Rendered already, whatever the connection itself is bound to.
        result: Any = job.connection.exec_driver_sql(
            text,
            parameters,
            execution_options={OPTION: None, PLACES: job.places},
        )
        answer.description = answer.description or result.cursor.description
        rows = list(result.cursor.fetchall())
        result.close()
        answer.runs.append(rows)
        job.rows += len(rows)
        if plan.merge is None:
            # Not after the last row was read: there may be thousands more.
            _check_rows(job.rows, plan)
    return answer


def _check_rows(count: int, plan: Plan) -> None:
    most = None if plan.limits is None else plan.limits.max_rows
    if most is not None and count > most:
        raise ScatterLimitError(limit="max_rows", allowed=most, found=count)


def _note_errors(plan: Plan, jobs: Sequence[Job], *, any_answer: bool) -> None:
    """Keep the errors of the shards that are left out.

    :raises ScatterFailedError: when that is all of them.
    """
    for job in jobs:
        if job.error is not None:
            for place in job.places:
                plan.errors[place.shard_id] = job.error
    if not any_answer:
        raise ScatterFailedError(plan.errors) from jobs[0].error


def _compute(
    jobs: Sequence[Job], computation: Computation, groups: Sequence[Row]
) -> Sequence[Row]:
    """Let a server that has answered compute what is made of its parts."""
    job = next(job for job in jobs if job.error is None)

    send = send_on(job.connection, {OPTION: None, PLACES: job.places})
    return computation.run(groups, job.places[0].backend, send)


def _merged(
    runs: list[list[Any]],
    merge: Merge | None,
    description: Any,
    compute: Compute,
) -> list[Any]:
    if merge is not None:
        places = [_places(column) for column in description]
        return merge_rows(runs, merge, places, compute)
    return runs[0] if len(runs) == 1 else [row for run in runs for row in run]


def _places(column: Any) -> int | None:
    """Return how many decimal places are shown; None for all, or unknown."""
    scale = column[5]
    return scale if isinstance(scale, int) and scale < _ALL_PLACES else None
