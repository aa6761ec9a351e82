"""Tasks: retry policies, times of periodic ones, the decorator ``task``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, UTC
from typing import Any, TYPE_CHECKING

from sqlalchemy import bindparam, select

from sqla_shard.dialects.sql import ServerTime
from sqla_shard.engine.rendering import Place
from sqla_shard.exc import (
    JobArgumentError,
    JobOptionError,
    MissingTargetError,
    TaskDefinitionError,
    UnknownTaskError,
)
from sqla_shard.exc.base import shown
from sqla_shard.jobs.claims import ClaimedJob, fenced, held, PENDING, update_rows
from sqla_shard.jobs.enqueue import (
    async_on_healthy_shard,
    check_queue,
    EnqueuedJob,
    insert_job,
    insert_jobs,
    JobOptions,
    on_healthy_shard,
    place_near,
    RunAfter,
    seconds_of,
)
from sqla_shard.models import MappingMixin, NarrowGap
from sqla_shard.outbox.apply import place_at
from sqla_shard.outbox.tables import JOB_KEYS, JOBS, LONGEST_NAME
from sqla_shard.planning import spec_of
from sqla_shard.session import ShardSession
from sqla_shard.util.json_values import is_json, JSON_VALUE
from sqla_shard.util.pace import jittered
from sqla_shard.util.source_lines import definition_of

if TYPE_CHECKING:
    from sqla_shard import Cluster

# -- Retry policies: the pauses between the attempts of a job.

#: The largest part of a pause that is added or subtracted at random: jobs
#: that failed together must not be retried together.
_SPREAD = 0.1

_MOST_RETRIES = 1000

#: Seconds.
_LONGEST = 7 * 24 * 3600.0


class RetryPolicy:
    """Base of the retry policies.

    :ivar retries: number of retries: one less than the attempts.
    """

    retries: int

    def pause(self, retry: int) -> float:
        """Return the seconds before a retry.

        :param retry: its number, from 1.
        """
        raise NotImplementedError

    def delay(self, retry: int) -> float:
        """Return the seconds before a retry, with a random part.

        Retries that the policy does not have, of a job with a higher
        ``max_attempts``, have the pause of the last one.

        A policy of your own may override this.  A negative number is 0 for the
        worker, and one over 366 days is 366 days.  If it raises an error or
        returns no finite number, the retry is after a minute, and the stored
        error of the job says so after that of the task.

        :param retry: its number, from 1.
        """
        return jittered(self.pause(max(1, min(retry, self.retries))), _SPREAD)

    def then(self, other: RetryPolicy) -> RetryPolicy:
        """Return a policy with the retries of this one, then of another."""
        return _Chain(self, other)


@dataclass(frozen=True, repr=False)
class _Chain(RetryPolicy):
    first: RetryPolicy
    second: RetryPolicy

    @property
    def retries(self) -> int:  # type: ignore[override]  # computed here
        return self.first.retries + self.second.retries

    def pause(self, retry: int) -> float:
        if retry <= self.first.retries:
            return self.first.pause(retry)
        return self.second.pause(retry - self.first.retries)

    def __repr__(self) -> str:
        return f"{self.first!r}.then({self.second!r})"


@dataclass(frozen=True)
class Linear(RetryPolicy):
    """Retries whose pauses grow by the same time: 10, 20, 30 seconds.

    :param retries: number of retries; 0 for none.
    :param step: seconds before the first retry, and by which each pause is
        longer than the one before.
    :raises JobOptionError: if an argument is not valid.
    """

    retries: int
    step: float = 10.0

    def __post_init__(self) -> None:
        _check(self.retries, step=self.step)

    def pause(self, retry: int) -> float:
        """Return the seconds before a retry."""
        return min(self.step * retry, _LONGEST)


@dataclass(frozen=True)
class Exponential(RetryPolicy):
    """Retries whose pauses are multiplied: 1, 2, 4, 8 minutes.

    :param retries: number of retries; 0 for none.
    :param first: seconds before the first retry.
    :param factor: each pause is this many times as long as the one before.
    :param longest: maximum pause in seconds.
    :raises JobOptionError: if an argument is not valid.
    """

    retries: int
    first: float = 60.0
    factor: float = 2.0
    longest: float = 3600.0

    def __post_init__(self) -> None:
        _check(self.retries, first=self.first, factor=self.factor, longest=self.longest)
        if self.factor < 1:
            raise JobOptionError(
                "must be 1 or more", option="factor", value=self.factor
            )

    def pause(self, retry: int) -> float:
        """Return the seconds before a retry."""
        pause = min(self.first, self.longest)
        for _ in range(retry - 1):
            if pause >= self.longest:
                break
            pause *= self.factor
        return min(pause, self.longest)


def _check(retries: object, **seconds: object) -> None:
    if type(retries) is not int or not 0 <= retries <= _MOST_RETRIES:
        raise JobOptionError(
            f"must be an int from 0 to {_MOST_RETRIES}", option="retries", value=retries
        )
    for name, value in seconds.items():
        if not isinstance(value, int | float) or not 0 <= value <= _LONGEST:
            raise JobOptionError(
                f"must be a number from 0 to {_LONGEST:g}", option=name, value=value
            )


#: Ten retries in about half an hour, five linear and five exponential.
DEFAULT = Linear(5).then(Exponential(5))

# -- Times at which periodic tasks are due, in UTC.

_FIELDS = {
    "minute": (0, 59),
    "hour": (0, 23),
    "day": (1, 31),
    "month": (1, 12),
    "weekday": (0, 7),
}

_PART = re.compile(r"(\*|(\d+)(?:-(\d+))?)(?:/(\d+))?")

_DAY = timedelta(days=1)

#: Days until the next 29 February, at most.
_MOST_DAYS = 366 * 8

_EPOCH = datetime(1970, 1, 1)


class Crontab:
    """Times as in the file of cron, in UTC: ``Crontab("30 4 * * 1-5")``.

    The fields are minute, hour, day of the month, month and day of the week,
    where 0 and 7 are Sunday: each is ``*``, a number, a range or a list of
    these, with a step as in ``*/15``.  If both days are restricted, one of
    them must match.

    :param text: the five fields.
    :raises JobOptionError: if they are not valid, or no day matches.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        given: object = text
        parts = given.split() if isinstance(given, str) else []
        if len(parts) != len(_FIELDS):
            raise self._error("needs five fields")
        self._fields = {
            name: self._parsed(name, part)
            for name, part in zip(_FIELDS, parts, strict=True)
        }
        self._both = parts[2].startswith("*") or parts[4].startswith("*")
        self.next_after(_EPOCH)

    def __repr__(self) -> str:
        return f"Crontab({self.text!r})"

    def next_after(self, moment: datetime) -> datetime:
        """Return the first time after another.

        :param moment: in UTC, without a time zone.
        :raises JobOptionError: if there is none.
        """
        day = moment.date()
        for _ in range(_MOST_DAYS):
            if self._matches(day):
                for hour in sorted(self._fields["hour"]):
                    for minute in sorted(self._fields["minute"]):
                        due = datetime.combine(day, time(hour, minute))
                        if due > moment:
                            return due
            day += _DAY
        raise self._error("matches no day")

    def _matches(self, day: date) -> bool:
        if day.month not in self._fields["month"]:
            return False
        by_day = day.day in self._fields["day"]
        weekdays = self._fields["weekday"]
        weekday = day.isoweekday()
        by_weekday = weekday in weekdays or weekday % 7 in weekdays
        if self._both:
            return by_day and by_weekday
        return by_day or by_weekday

    def _parsed(self, name: str, text: str) -> frozenset[int]:
        """Return the numbers of a field."""
        least, most = _FIELDS[name]
        numbers: set[int] = set()
        for part in text.split(","):
            match = _PART.fullmatch(part)
            if match is None:
                raise self._error(f"{name} {part!r} is not valid")
            whole, first, last, step = match.groups()
            low, high = least, most
            if whole != "*":
                low = int(first)
                high = int(last) if last else (most if step else low)
            if not least <= low <= high <= most or step == "0":
                raise self._error(f"{name} {part!r} is not valid")
            numbers.update(range(low, high + 1, int(step or 1)))
        return frozenset(numbers)

    def _error(self, message: str) -> JobOptionError:
        return JobOptionError(
            f'{message}; for example Crontab("*/15 8-18 * * 1-5")',
            option="every",
            value=self.text,
        )


#: A period, or times.
Every = timedelta | Crontab


def check_every(every: object) -> None:
    """Check when a task is due.

    :raises JobOptionError: if it is not valid.
    """
    if isinstance(every, Crontab):
        return
    if not isinstance(every, timedelta) or every < timedelta(seconds=1):
        raise JobOptionError(
            "must be a timedelta of a second or more, or a Crontab",
            option="every",
            value=every,
        )


def next_due(every: Every, now: datetime) -> datetime:
    """Return when a task is due after a time, both in UTC.

    The times of a period are multiples of it since 1970: the same in all
    processes.
    """
    if isinstance(every, Crontab):
        return every.next_after(now)
    return now + every - (now - _EPOCH) % every


_PLAIN = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

_OPTIONS = frozenset(("near", "priority", "run_after", "unique_key", "max_attempts"))


class Task:
    """A function that workers call for each of its jobs.

    A job is stored as the name of a task and arguments, and may be run by a newer
    release of the program.  If the meaning of a function changes, give it another
    name.

    Calling it calls the function.  Use :func:`task` to define one.

    :ivar name: the name that is stored with jobs.
    :ivar function: the function.
    :ivar queue: the queue of its jobs.
    :ivar retry: the pauses between attempts.
    :ivar max_attempts: maximum number of attempts of its jobs.
    :ivar priority: priority of its jobs, if they have none of their own.
    :ivar in_transaction: whether the function gets a session.
    :ivar is_async: whether the function is ``async def``.
    :ivar time_limit: maximum seconds of a run; None for no limit.
    :ivar every: when workers run it without being asked; None for never.
    :ivar keyspace: keyspace of its jobs; None if there is only one with
        objects.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        *,
        queue: str,
        retry: RetryPolicy,
        max_attempts: int | None,
        priority: int,
        in_transaction: bool,
        keyspace: str | None,
        time_limit: timedelta | float | None = None,
        every: Every | None = None,
    ) -> None:
        self.name = name
        self.function = function
        self.queue = queue
        self.retry = retry
        self.max_attempts: int = (
            retry.retries + 1 if max_attempts is None else max_attempts
        )
        self.priority = priority
        self.in_transaction = in_transaction
        self.keyspace = keyspace
        self.is_async: bool = inspect.iscoroutinefunction(function)
        self.time_limit: float | None = _time_limit(time_limit)
        self._signature = _checked_signature(function, name, in_transaction)
        self.every = every
        if every is not None:
            check_every(every)
            self.bind()  # raises JobArgumentError: it has no arguments
        self._options()  # raises JobOptionError

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)

    def enqueue(
        self,
        session: ShardSession,
        *args: Any,
        near: int | None = None,
        priority: int | None = None,
        run_after: RunAfter = None,
        unique_key: str | None = None,
        max_attempts: int | None = None,
        **kwargs: Any,
    ) -> EnqueuedJob:
        """Add a job in the transaction of a session.

        The job exists if, and only if, that transaction commits.  With an
        asynchronous session::

            await session.run_sync(fetch_title.enqueue, pin.id, near=pin.id)

        :param args: arguments of the function, after the session.
        :param near: id of an object: the job is on its shard.  By default it
            is on the shard that the transaction writes.
        :param priority: 1 (the most urgent) to 3.
        :param run_after: earliest time of the first attempt: seconds or a
            timedelta from now, by the clock of the server, or a datetime with
            a time zone.
        :param unique_key: while a job of this shard with this key is not
            finished, no other is added.  If it is running already, it is
            run again.
        :param max_attempts: maximum number of attempts.
        :param kwargs: arguments of the function, by name.
        :returns: the address of the job, or of the existing one.
        :raises JobArgumentError: if an argument is not a JSON value, or they
            are too long.
        :raises JobOptionError: if an option is not valid.
        :raises CrossShardWriteError: if the transaction writes another shard.
        """
        arguments = self.bind(*args, **kwargs)
        options = self._options(priority, run_after, unique_key, max_attempts)
        place = place_near(session, near, self.keyspace)
        return insert_job(session, place, self.name, arguments, options)

    def enqueue_many(
        self,
        session: ShardSession,
        calls: Iterable[Mapping[str, Any]],
        *,
        near: int | None = None,
        priority: int | None = None,
        run_after: RunAfter = None,
        max_attempts: int | None = None,
    ) -> int:
        """Add many jobs of one shard in the transaction of a session.

        ::

            fetch_title.enqueue_many(
                session, [{"pin_id": pin.id} for pin in pins], near=board.id
            )

        They are sent in one INSERT.  There are no unique keys.

        :param calls: the arguments of each job, by name.
        :returns: the number of jobs.
        :raises JobArgumentError: as :meth:`enqueue`.
        :raises JobOptionError: as :meth:`enqueue`.
        """
        bound = [self.bind(**call) for call in calls]
        options = self._options(priority, run_after, None, max_attempts)
        place = place_near(session, near, self.keyspace)
        return insert_jobs(session, place, self.name, bound, options)

    def enqueue_now(self, cluster: Cluster, *args: Any, **kwargs: Any) -> EnqueuedJob:
        """Add a job in a transaction of its own.

        Without ``near`` it is on a random shard, by the weights of the
        servers; if a server does not respond, on another one.

        :param args: as for :meth:`enqueue`.
        :param kwargs: as for :meth:`enqueue`.
        :raises NoHealthyShardsError: if no server takes it.
        :raises CommitUnknownError: if the outcome of COMMIT is unknown; with
            a ``near`` and a ``unique_key`` it can be repeated.
        """

        def add(session: ShardSession) -> EnqueuedJob:
            return self.enqueue(session, *args, **kwargs)

        if kwargs.get("near") is not None:
            return cluster.run(add)
        return on_healthy_shard(cluster, self.keyspace, add)

    async def async_enqueue_now(
        self, cluster: Cluster, *args: Any, **kwargs: Any
    ) -> EnqueuedJob:
        """Add a job in a transaction of its own; see :meth:`enqueue_now`."""

        async def add(session: Any) -> EnqueuedJob:
            job: EnqueuedJob = await session.run_sync(self.enqueue, *args, **kwargs)
            return job

        if kwargs.get("near") is not None:
            return await cluster.async_run(add)
        return await async_on_healthy_shard(cluster, self.keyspace, add)

    def bind(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the arguments of a call by name.

        :raises JobArgumentError: if they do not match the function, or one
            is not a JSON value.
        """
        given = (None, *args) if self.in_transaction else args
        try:
            bound = self._signature.bind(*given, **kwargs)
        except TypeError as error:
            raise JobArgumentError(
                f"do not match the signature of the function: {error}",
                task=self.name,
                parameter=None,
            ) from error
        arguments = dict(bound.arguments)
        if self.in_transaction:
            del arguments[next(iter(self._signature.parameters))]
        for name, value in arguments.items():
            if not is_json(value):
                raise JobArgumentError(
                    f"is {shown(value)}; it must be {JSON_VALUE}. Ids are int",
                    task=self.name,
                    parameter=name,
                )
        return arguments

    def _options(
        self,
        priority: int | None = None,
        run_after: RunAfter = None,
        unique_key: str | None = None,
        max_attempts: int | None = None,
    ) -> JobOptions:
        return JobOptions(
            queue=self.queue,
            priority=self.priority if priority is None else priority,
            max_attempts=(self.max_attempts if max_attempts is None else max_attempts),
            run_after=run_after,
            unique_key=unique_key,
        )

    def __repr__(self) -> str:
        return f"<Task {self.name!r}>"


def _checked_signature(
    function: Any, name: str, in_transaction: bool
) -> inspect.Signature:
    """Return the signature of a function, if it can be a task.

    :raises TaskDefinitionError: if it cannot.
    """
    if not callable(function):
        raise TaskDefinitionError(f"{function!r} must be a function", task=name)
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if in_transaction and not parameters:
        raise TaskDefinitionError(
            "it must take a session as its first parameter; use "
            "in_transaction=False for a task without one",
            task=name,
        )
    for one in parameters[1 if in_transaction else 0 :]:
        if one.kind not in _PLAIN:
            raise TaskDefinitionError(
                f"its parameter {one} must be a named one, without * and /: "
                "arguments are stored by name",
                task=name,
            )
        if one.name in _OPTIONS:
            raise TaskDefinitionError(
                f"its parameter {one.name} has the name of an option of "
                "enqueue(); rename it",
                task=name,
            )
    return signature


def _time_limit(limit: timedelta | float | None) -> float | None:
    """Return a time limit in seconds.

    :raises JobOptionError: if it is not valid.
    """
    if limit is None:
        return None
    seconds = seconds_of(limit, "time_limit")
    if not seconds:
        raise JobOptionError(
            "must be more than 0; None is no limit", option="time_limit", value=limit
        )
    return seconds


# -- Tasks by name.

_tasks: dict[str, Task] = {}


def find_task(name: str) -> Task | None:
    """Return a task by its name; None if it is not defined in this process."""
    return _tasks.get(name)


def all_tasks() -> list[Task]:
    """Return the tasks that are defined in this process."""
    return list(_tasks.values())


def task_names() -> list[str]:
    """Return the names of the tasks that are defined in this process."""
    return sorted(_tasks)


def task(
    name: str,
    *,
    queue: str = "default",
    retry: RetryPolicy = DEFAULT,
    max_attempts: int | None = None,
    priority: int = 2,
    in_transaction: bool = True,
    keyspace: str | None = None,
    time_limit: timedelta | float | None = None,
    every: Every | None = None,
) -> Callable[[Callable[..., Any]], Task]:
    """Make a function a task, as a decorator.

    ::

        @task("pins.fetch_title", queue="titles")
        def fetch_title(session, pin_id):
            pin = session.get(Pin, pin_id)
            pin.title = title_of(pin.link)

    By default the function is called with a session, in a transaction on the
    shard of the job, and the job is acknowledged by that transaction: what
    the function writes on that shard takes effect exactly once.  Without a
    transaction the job is acknowledged later, and may run more than once.

    Workers run the function in a thread, or, if it is ``async def``, with an
    asynchronous session in their event loop.

    :param name: the name that is stored with jobs; it must not change while
        there are any.
    :param queue: the queue of its jobs.
    :param retry: the pauses between attempts.
    :param max_attempts: maximum number of attempts; by default one more than
        the policy has retries.
    :param priority: 1 (the most urgent) to 3.
    :param in_transaction: False for a function without a session, which is
        called with its arguments only.
    :param keyspace: keyspace of the jobs, if there are several with objects.
    :param time_limit: seconds or a timedelta.  A function that is ``async
        def`` is then cancelled; one in a thread has to call
        :meth:`RunningJob.check`, and its claim is not extended any more.
    :param every: a timedelta or a :class:`Crontab`, for a function without
        arguments that workers run at these times.
    :raises TaskDefinitionError: if the function cannot be a task, or another
        one has the name.
    :raises JobOptionError: if an option is not valid.
    :raises JobArgumentError: if a periodic task has arguments.
    """
    given: object = name
    if not isinstance(given, str) or not 0 < len(name) <= LONGEST_NAME:
        raise TaskDefinitionError(
            f"its name must be a string of 1 to {LONGEST_NAME} characters, as "
            'in @task("pins.fetch_title")',
            task=str(name)[:LONGEST_NAME],
        )
    check_queue(queue)

    def define(function: Callable[..., Any]) -> Task:
        return _registered(
            Task(
                function,
                name,
                queue=queue,
                retry=retry,
                max_attempts=max_attempts,
                priority=priority,
                in_transaction=in_transaction,
                keyspace=keyspace,
                time_limit=time_limit,
                every=every,
            )
        )

    return define


def _registered(task: Task) -> Task:
    """Let workers find a task by its name; a module may be loaded again.

    :raises TaskDefinitionError: if another task has the name.
    """
    before = _tasks.get(task.name)
    if before is not None:
        path = definition_of(before.function)
        if definition_of(task.function) != path:
            raise TaskDefinitionError(
                f"the name is already used by {path}", task=task.name
            )
    _tasks[task.name] = task
    return task


# -- Periodic tasks: one job for each, which is pending again after each run.
#
# The job has a unique key, on shard 0 of the keyspace of its task, and
# workers insert it if it is not there.  So each time is due once, over all
# workers, and the task does not run twice at the same time.  The next time
# is computed by the clock of the server, in the transaction that ends a
# run: times that were missed while no worker was running are skipped.

_PREFIX = "every "

_SHARD = 0

_job = JOBS.c

_EXISTING = (
    select(_job.id, _job.due_at)
    .join(JOB_KEYS, JOB_KEYS.c.job_id == _job.id)
    .where(JOB_KEYS.c.unique_key == bindparam("the_key"))
)

_due: Any = bindparam("due", type_=_job.due_at.type)

_SOONER = update_rows(
    _job.id == bindparam("the_id"),
    _job.state == PENDING,
    _job.attempts == 0,
    _job.due_at > _due,
).values(due_at=_due)

_REPEAT = update_rows(_job.id == bindparam("the_id"), held).values(
    state=PENDING,
    due_at=_due,
    attempts=0,
    token=None,
    checkpoint=None,
    error=bindparam("the_error"),
)


def ensure_periodic(cluster: Cluster, queues: Collection[str]) -> None:
    """Insert the jobs of the periodic tasks of some queues.

    :raises SQLAlchemyError: if a shard cannot be written.
    """
    for one in all_tasks():
        if one.every is not None and one.queue in queues:
            cluster.run(_ensure, one, one.every)


def _ensure(session: ShardSession, task: Task, every: Every) -> None:
    places = session.places
    space = places.keyspace(task.keyspace, "objects")
    place = places.place(space, _SHARD)
    at = {"place": place}
    due = _next_due(session, place, every)
    key = _PREFIX + task.name
    existing = session.execute(
        _EXISTING, {"the_key": key.encode()}, bind_arguments=at
    ).first()
    if existing is None:
        options = JobOptions(
            queue=task.queue,
            priority=task.priority,
            max_attempts=task.max_attempts,
            run_after=due.replace(tzinfo=UTC),
            unique_key=key,
        )
        insert_job(session, place, task.name, {}, options)
    elif existing.due_at > due:
        # The time is one of an earlier release of the task.
        values = {"the_id": existing.id, "due": due}
        session.execute(_SOONER, values, bind_arguments=at)


def _next_due(session: ShardSession, place: Place, every: Every) -> datetime:
    now = session.execute(
        select(ServerTime()), bind_arguments={"place": place}
    ).scalar_one()
    return next_due(every, now.replace(tzinfo=None))


def _every(job: ClaimedJob) -> Every | None:
    task = find_task(job.task)
    if task is None or job.unique_key != (_PREFIX + task.name).encode():
        return None  # also for a job of the task that was enqueued
    return task.every


def is_periodic(job: ClaimedJob) -> bool:
    """Return whether a job is pending again after a run."""
    return job.unique_key is not None and _every(job) is not None


def repeat(session: ShardSession, job: ClaimedJob, error: str | None = None) -> None:
    """End a run of a periodic task, whose job waits for the next time.

    :param error: the error, if it has failed.
    :raises JobClaimLostError: if the claim is lost.
    """
    every = _every(job)
    if every is None:
        raise UnknownTaskError(task=job.task)
    due = _next_due(session, place_at(session, job.address), every)
    fenced(session, job, _REPEAT, due=due, the_error=error)


def respace_by_job(mapping: type[MappingMixin], *, queue: str = "default") -> Task:
    """Let jobs re-space the lists of a mapping class.

    A move into a gap without room re-spaces the rows around it itself, under the
    lock of the move.  A job does it earlier: it is enqueued by the transaction of
    a move that leaves a narrow gap, one at a time for each list.

    ::

        class BoardHasPins(MappingMixin, Base, source=Board, target=Pin):
            pass

        respace_by_job(BoardHasPins)

    Call it where the class is defined, so that workers have the task, too.
    A job re-spaces the rows around the row that was moved; of several narrow
    gaps of a list, the others follow with the next move there.

    :param queue: the queue of the jobs.
    :returns: the task, ``sqla_shard.respace.`` with the name of the table.
    :raises JobOptionError: if the name of the queue is not valid.
    """
    cls: Any = mapping

    @task(f"sqla_shard.respace.{cls.__tablename__}", queue=queue, priority=3)
    def respace(session: ShardSession, source_id: int, target_id: int) -> None:
        try:
            cls.respace(session, source_id, around=target_id)
        except MissingTargetError:
            return  # It was removed from the list, and the gap with it.

    @cls.on_narrow_gap  # type: ignore[untyped-decorator]
    def enqueue(session: ShardSession, gap: NarrowGap) -> None:
        # A list is in the keyspace of its source, which may be known after
        # the task is created: the source can be given by name.
        respace.keyspace = spec_of(cls.__table__).keyspace
        respace.enqueue(
            session,
            gap.source_id,
            gap.target_id,
            near=gap.source_id,
            unique_key=f"{respace.name} {gap.source_id}",
        )

    return respace
