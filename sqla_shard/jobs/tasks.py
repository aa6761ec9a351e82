"""Tasks: named functions that workers call.

A job is stored as the name of a task and arguments, and may be run by a newer
release of the program.  If the meaning of a function changes, give it another
name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, TYPE_CHECKING

from sqla_shard.exc import JobArgumentError, JobOptionError, TaskDefinitionError
from sqla_shard.exc.base import shown
from sqla_shard.jobs.crontab import check_every, Every
from sqla_shard.jobs.enqueue import (
    check_queue,
    EnqueuedJob,
    insert_job,
    insert_jobs,
    JobOptions,
    place_near,
    RunAfter,
    seconds_of,
)
from sqla_shard.jobs.placing import async_on_healthy_shard, on_healthy_shard
from sqla_shard.jobs.retry import DEFAULT, RetryPolicy
from sqla_shard.outbox.tables import LONGEST_NAME
from sqla_shard.session import ShardSession
from sqla_shard.util.json_values import is_json, JSON_VALUE
from sqla_shard.util.source_lines import definition_of

if TYPE_CHECKING:
    from sqla_shard import Cluster

_PLAIN = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_OPTIONS = frozenset(("near", "priority", "run_after", "unique_key", "max_attempts"))


class Task:
    """A function that workers call for each of its jobs.

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
        self.max_attempts = retry.retries + 1 if max_attempts is None else max_attempts
        self.priority = priority
        self.in_transaction = in_transaction
        self.keyspace = keyspace
        self.is_async = inspect.iscoroutinefunction(function)
        self.time_limit = _time_limit(time_limit)
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
        made = Task(
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
        before = _tasks.get(name)
        path = definition_of(function)
        if before is not None and definition_of(before.function) != path:
            raise TaskDefinitionError(
                f"the name is already used by {definition_of(before.function)}",
                task=name,
            )
        _tasks[name] = made
        return made

    return define
