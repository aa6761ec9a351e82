"""Calls of tasks in the threads, and the event loop, of a worker."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from copy import deepcopy
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from functools import partial
from math import inf
from numbers import Real
from time import monotonic
from typing import Any, TYPE_CHECKING

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.cluster.event_loops import to_the_end
from sqla_shard.exc import (
    JobArgumentError,
    JobClaimLostError,
    JobOptionError,
    TaskDefinitionError,
    UnknownTaskError,
)
from sqla_shard.exc.base import shown, summary
from sqla_shard.jobs import claims
from sqla_shard.jobs.claims import ClaimedJob
from sqla_shard.jobs.context import as_current, Ending, JobOutcome, RunningJob
from sqla_shard.jobs.enqueue import LONGEST_DELAY
from sqla_shard.jobs.tasks import Task
from sqla_shard.outbox.apply import is_unrun, place_at
from sqla_shard.session.transaction import TransactionLog
from sqla_shard.util.logs import careful_log
from sqla_shard.util.pace import jittered
from sqla_shard.util.processes import in_this_process

if TYPE_CHECKING:
    from sqla_shard import Cluster

#: Seconds that a job whose claim was lost has alone; longer ones then run at
#: the same time.
_ALONE = 1.0

#: Seconds after which no further attempt to write a start begins.
_TIMEOUT = 2.0

#: Jobs of event loops that are counted at the same time.
_MOST_COUNTING = 32

#: Seconds until a job is claimed again whose start could not be written.
_AGAIN_AFTER = 5.0


class Beginnings:
    """Begins the jobs of a process.

    An attempt that counts when the function begins is counted by a transaction of
    its own.  Jobs whose last claim has expired begin one after another in a
    process: one of them may kill it each time, and must not take with it, time
    after time, others that were lost with it.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._turn = threading.Lock()
        self._last: RunningJob | None = None
        self._hooks = threading.gettrace(), threading.getprofile()
        self._pools: dict[int, ThreadPoolExecutor] = {}

    def begin(self, running: RunningJob) -> JobOutcome | None:
        """Wait for the turn of a job, and count its attempt, if it needs that.

        Call :meth:`end` when it has ended.

        :returns: its outcome, if it cannot begin.
        """
        if running.job.was_lost:
            self._take_turn(running)
        return self._count(running) if running.job.counts_at_start else None

    async def async_begin(self, running: RunningJob) -> JobOutcome | None:
        """Wait, and count, in an event loop; see :meth:`begin`."""
        # Not in the threads of the loop, which functions of jobs need: many
        # jobs that wait, or count on a server that is silent, would fill them.
        loop = asyncio.get_running_loop()
        if running.job.was_lost:
            await loop.run_in_executor(self._pool(1), self._take_turn, running)
        if not running.job.counts_at_start:
            return None
        return await loop.run_in_executor(
            self._pool(_MOST_COUNTING), self._count, running
        )

    def _pool(self, most: int) -> ThreadPoolExecutor:
        """Return the threads for waiting, or for counting."""
        if most not in self._pools:
            self._pools[most] = ThreadPoolExecutor(most, "sqla-shard-beginning")
        return self._pools[most]

    @property
    def has_hooks_of_jobs(self) -> bool:
        """Whether a job has set functions for new threads of the process."""
        trace, profile = self._hooks
        return (
            threading.gettrace() is not trace or threading.getprofile() is not profile
        )

    def end(self, running: RunningJob) -> None:
        """Let the next job begin, in threads that can begin.

        What a job leaves for ``threading.settrace()`` or ``setprofile()`` may end
        each new thread: the former functions are set again.
        """
        is_left = self.has_hooks_of_jobs
        if is_left:
            trace, profile = self._hooks
            threading.settrace(trace)
            threading.setprofile(profile)
            # Their threads may have ended as they began.
            self.close()
        running.has_ended.set()
        if is_left:
            _log.warning(
                "job %s (%s) has ended with another function for "
                "threading.settrace() or setprofile() than the worker began with; "
                "the former one is set again",
                *(running.job, running.job.task),
                extra={"action": "run", "task": running.job.task},
            )

    def close(self) -> None:
        """Give up the jobs of event loops that wait."""
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.shutdown(wait=False, cancel_futures=True)

    def _take_turn(self, running: RunningJob) -> None:
        with self._turn:
            if self._last is not None and not running.is_lost:
                self._last.has_ended.wait(_ALONE)
            self._last = running

    def _count(self, running: RunningJob) -> JobOutcome | None:
        job, before = running.job, monotonic()
        try:
            running.check()
            self._cluster.run(claims.start, job, running.lease, timeout=_TIMEOUT)
        except JobClaimLostError:
            return JobOutcome(job=job, ending=Ending.LOST)
        except SQLAlchemyError as error:
            return JobOutcome(
                job=job,
                ending=Ending.RELEASED,
                error=f"it could not begin: {summary(error)}",
                delay=_AGAIN_AFTER,
            )
        running.expires = before + running.lease
        return None


# -- The call of the task of a job, and the outcome of the job.
#
# A task with a session runs in a transaction that also acknowledges the
# job, by its last statement before COMMIT: either both take effect or
# neither.  If the claim is lost, nothing is committed.
#
# A function that is `async def` is awaited, and is cancelled when its time
# is over or its claim is lost.  A thread cannot be cancelled: its function
# asks, with RunningJob.check.

#: Seconds between two cancellations of a task.
_CANCEL_SECONDS = 0.5

#: Seconds until a job is claimed again whose task is not defined here.
UNKNOWN_DELAY = 60.0


def run_job(
    cluster: Cluster, running: RunningJob, beginnings: Beginnings
) -> JobOutcome:
    """Call the task of a job.

    Errors of the task are in the outcome.
    """
    task = running.task
    if task is None:
        return _unknown(running)
    if running.job.damage is not None:
        return _damaged(running.job, running.job.damage)
    try:
        refused = beginnings.begin(running)
        return refused or _call_and_catch(cluster, task, running)
    finally:
        beginnings.end(running)


def _call_and_catch(cluster: Cluster, task: Task, running: RunningJob) -> JobOutcome:
    try:
        running.begin(task.time_limit)
        with as_current(running):
            _call(cluster, task, running)
    except BaseException as error:  # Whatever a task raises is its failure.
        return _failed(task, running, error)
    return _succeeded(running)


async def async_run_job(
    cluster: Cluster, running: RunningJob, beginnings: Beginnings
) -> JobOutcome:
    """Await the task of a job; see :func:`run_job`."""
    task = running.task
    if task is None:
        return _unknown(running)
    if running.job.damage is not None:
        return _damaged(running.job, running.job.damage)
    try:
        refused = await beginnings.async_begin(running)
        return refused or await _await_and_catch(cluster, task, running)
    finally:
        beginnings.end(running)


async def _await_and_catch(
    cluster: Cluster, task: Task, running: RunningJob
) -> JobOutcome:
    try:
        running.begin(task.time_limit)
        with as_current(running):
            await _await(cluster, task, running)
    except BaseException as error:  # Whatever a task raises is its failure.
        return _failed(task, running, error)
    return _succeeded(running)


def _unknown(running: RunningJob) -> JobOutcome:
    return JobOutcome(
        job=running.job,
        ending=Ending.UNKNOWN,
        error=str(UnknownTaskError(task=running.job.task)),
        delay=UNKNOWN_DELAY,
    )


def _damaged(job: ClaimedJob, damage: JobArgumentError) -> JobOutcome:
    # No other attempt could read it.
    return JobOutcome(
        job=job, ending=Ending.FAILED, error=summary(damage), is_final=True
    )


def _succeeded(running: RunningJob) -> JobOutcome:
    ending = Ending.WRITTEN if running.is_written else Ending.SUCCEEDED
    return JobOutcome(job=running.job, ending=ending)


def _failed(task: Task, running: RunningJob, error: BaseException) -> JobOutcome:
    """Return the outcome of a run that has raised an error."""
    ending = Ending.FAILED
    if running.is_written:
        ending = Ending.WRITTEN
    elif running.is_lost or isinstance(error, JobClaimLostError):
        ending = Ending.LOST
    # It has run already, or would fail again.
    is_final = isinstance(error, TaskDefinitionError)
    text, delay = summary(error), 0.0
    if ending is Ending.FAILED and not is_final:
        try:
            delay = _delay(task, running.job)
        # The policy may be of the application.  The error of the task is kept.
        except BaseException as second:
            text += f". Its retry policy failed, too: {summary(second)}"
            delay = _RETRY_SECONDS
    return JobOutcome(
        job=running.job, ending=ending, error=text, delay=delay, is_final=is_final
    )


def _delay(task: Task, job: ClaimedJob) -> float:
    """Return the seconds before the next attempt, which every server can add.

    :raises JobOptionError: if the policy returns no finite number.
    """
    delay: Any = task.retry.delay(job.attempt)
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    is_number = isinstance(seconds, Real | Decimal)
    if not is_number or not abs(seconds) < inf:
        raise JobOptionError(
            "must be a finite number of seconds", option="retry", value=delay
        )
    # Before float(), which refuses an int that is too large.
    return float(min(max(seconds, 0), LONGEST_DELAY.total_seconds()))


def _arguments(running: RunningJob) -> dict[str, Any]:
    # A copy: the function may change its arguments, and a later attempt
    # must not see that.
    return deepcopy(dict(running.job.arguments))


def _call(cluster: Cluster, task: Task, running: RunningJob) -> None:
    arguments = _arguments(running)
    if not task.in_transaction:
        with in_this_process():
            _refuse_unrun(task, task.function(**arguments))
        return
    guard = _CommitGuard(running.job)
    with cluster.session(**_options(running)) as session:
        _begin(session, running, guard)
        with in_this_process():
            _refuse_unrun(task, task.function(session, **arguments))
        _commit(session, running, guard)


def _refuse_unrun(task: Task, result: Any) -> None:
    """Refuse the result of a function that has not run.

    Such as one with ``yield``, or that returns a call of one that is ``async def``.

    :raises TaskDefinitionError: if it is one.
    """
    if is_unrun(result):
        raise TaskDefinitionError(
            f"it has returned {shown(result)}, whose code has not run: return "
            "None, or await it in an async def; a task is a function without yield",
            task=task.name,
        )


async def _await(cluster: Cluster, task: Task, running: RunningJob) -> None:
    arguments = _arguments(running)
    if not task.in_transaction:
        await _within(task, task.function(**arguments), running)
        return
    guard = _CommitGuard(running.job)
    async with cluster.async_session(**_options(running)) as session:
        await session.run_sync(_begin, running, guard)
        running.check()  # what was awaited may have swallowed a cancellation
        await _within(task, task.function(session, **arguments), running)
        # A COMMIT that is cancelled may or may not have taken effect.
        await to_the_end(session.run_sync(_commit, running, guard))


async def _within(
    task: Task, awaited: Coroutine[Any, Any, Any], running: RunningJob
) -> None:
    """Await the function, not longer than its time limit.

    :raises JobTimeLimitError: if it was cancelled.
    """
    # Not by the factory for tasks of the loop, which another job may have set.
    loop = asyncio.get_running_loop()
    future = asyncio.Task(_result_of(task, awaited), loop=loop)
    try:
        await asyncio.wait([future], timeout=running.remaining)
        is_late = not future.done()
    finally:
        while not future.done():
            # Again and again: what it awaits may swallow a cancellation, as
            # wait_for() does before Python 3.12.
            future.cancel()
            await asyncio.wait([future], timeout=_CANCEL_SECONDS)
        # Another job may have cancelled it before it has begun.
        awaited.close()
    if is_late:
        raise running.late()
    ending = future.result()
    if ending is not None:
        raise ending


async def _result_of(
    task: Task, awaited: Coroutine[Any, Any, Any]
) -> SystemExit | KeyboardInterrupt | None:
    """Await the function; return what would end the event loop."""
    try:
        with in_this_process():
            _refuse_unrun(task, await _alone(awaited))
    except (SystemExit, KeyboardInterrupt) as error:
        return error
    return None


@types.coroutine
def _alone(awaited: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Await the function; end a child that it has forked where it waits.

    The event loop would run the other jobs of the parent, too.
    """
    parent, resume, value = os.getpid(), awaited.send, None
    while True:
        try:
            step = resume(value)
        except StopIteration as end:
            return end.value
        if os.getpid() != parent:
            os._exit(1)
        try:
            resume, value = awaited.send, (yield step)
        except BaseException as error:
            resume, value = awaited.throw, error


def _options(running: RunningJob) -> dict[str, Any]:
    """Return the options of the session of a task."""
    return {"cross_shard": "logged", "shard_id": running.job.shard_id}


def _begin(session: Any, running: RunningJob, guard: _CommitGuard) -> None:
    session.last = guard
    session.begin()
    place = place_at(session, running.job.address)
    # Refuses a write to another shard where it is made.
    session.log.wrote(place, f"job {running.job}")


def _commit(session: Any, running: RunningJob, guard: _CommitGuard) -> None:
    """Acknowledge the job, if the function has not, and commit."""
    session.flush()
    if not running.is_written_by(session):
        running.ack_with(session)
    guard.is_open = True
    session.commit()


class _CommitGuard:
    """Refuses a COMMIT by the task: it would not acknowledge the job."""

    def __init__(self, job: ClaimedJob) -> None:
        self._job = job
        self.is_open = False

    def __call__(self, connection: Connection, log: TransactionLog) -> None:
        """Refuse the COMMIT, immediately before it is sent."""
        if not self.is_open:
            raise TaskDefinitionError(
                "it has called commit(), which would not acknowledge the job; "
                "the transaction ends when the function returns. For a task "
                "with transactions of its own, use in_transaction=False",
                task=self._job.task,
            )


_log = careful_log(__name__)


# -- Events of jobs for listeners of the application, such as OpenTelemetry.


@dataclass(frozen=True, kw_only=True)
class JobReport:
    """The result of one run of a job, for listeners of ``after_job``.

    :ivar job: the job.
    :ivar ending: ``"succeeded"``, also for one step of several; ``"failed"``;
        ``"unknown"``: the task is not defined in this process;
        ``"released"``: the worker ends; or ``"lost"``: the claim was lost.
    :ivar seconds: duration of the run; 0 if the function has not begun.
    :ivar error: the error, as text; empty if there is none.
    """

    job: ClaimedJob
    ending: str
    seconds: float
    error: str


def job_begins(cluster: Cluster, job: ClaimedJob) -> None:
    """Call the listeners of ``before_job``."""
    _call_listeners(cluster.dispatch.before_job, cluster, job)


def job_ends(cluster: Cluster, running: RunningJob, outcome: JobOutcome) -> JobOutcome:
    """Call the listeners of ``after_job``; return the outcome."""
    if cluster.dispatch.after_job:
        began = running.began
        ending = outcome.ending
        if ending is Ending.WRITTEN:
            ending = Ending.SUCCEEDED
        report = JobReport(
            job=outcome.job,
            ending=ending.name.lower(),
            seconds=0.0 if began is None else monotonic() - began,
            error=outcome.error,
        )
        _call_listeners(cluster.dispatch.after_job, cluster, report)
    return outcome


def report_lost_claims(cluster: Cluster, jobs: tuple[str, ...]) -> None:
    """Call the listeners of ``job_claims_lost``."""
    _call_listeners(cluster.dispatch.job_claims_lost, cluster, jobs)


def _call_listeners(listeners: Any, *arguments: Any) -> None:
    for listener in listeners:
        try:
            listener(*arguments)
        # The job must be acknowledged nevertheless.
        except BaseException:
            _log.exception(
                "a listener of an event of jobs failed", extra={"action": "report"}
            )


#: Called with each job that has ended, by any thread.
Finished = Callable[[RunningJob, JobOutcome], None]

#: Seconds that the end of a worker waits for a thread.
_UNTIL_ENDED = 5.0

#: Seconds until the next attempt of a job whose retry policy has failed.
_RETRY_SECONDS = 60.0


class Repeating:
    """Calls a function again and again, in a thread, within a block.

    :param purpose: part of the name of the thread.
    :param seconds: pause between two calls.
    :param failed: called with an error of the function, which is then not
        called any more.
    :param spread: the largest part of the pause that is added or subtracted.
    """

    def __init__(
        self,
        purpose: str,
        function: Callable[[], object],
        seconds: float,
        failed: Callable[[BaseException], object],
        *,
        spread: float = 0.1,
    ) -> None:
        self._function = function
        self._failed = failed
        self._pause = seconds, spread
        self._end = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"sqla-shard-{purpose}", daemon=True
        )

    def __enter__(self) -> Repeating:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._end.set()
        # Not longer: a server that does not respond must not delay the end.
        self._thread.join(_UNTIL_ENDED)

    def _run(self) -> None:
        while not self._end.wait(jittered(*self._pause)):
            try:
                self._function()
            # Otherwise it would not be reported, and sys.exit() of an operation
            # would end the thread in silence.
            except BaseException as error:
                self._failed(error)
                return


def _unforeseen(running: RunningJob, error: BaseException) -> JobOutcome:
    """Return the outcome of a run with an error outside of the task.

    Such as that of a thread for its beginning that cannot be started.
    """
    return JobOutcome(
        job=running.job,
        ending=Ending.FAILED,
        error=summary(error),
        delay=_RETRY_SECONDS,
    )


def _not_begun(running: RunningJob) -> JobOutcome:
    """Return the outcome of a job that was cancelled, by another, before it began."""
    return JobOutcome(job=running.job, ending=Ending.RELEASED)


class Runners:
    """Runs the jobs of one run of a worker.

    Threads are daemons: one that does not end must not keep the process from
    ending after its job was released.  Functions that are ``async def`` run in one
    event loop in a thread of its own, which is started for the first of them.

    :param concurrency: number of threads, and maximum number of tasks that
        the event loop runs at the same time.
    :param finished: called with each job that has ended.
    """

    def __init__(self, cluster: Cluster, concurrency: int, finished: Finished) -> None:
        self._cluster = cluster
        self._concurrency = concurrency
        self._finished = finished
        self._beginnings = Beginnings(cluster)
        self._queue: queue.SimpleQueue[RunningJob | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._loop: _JobLoop | None = None

    def submit(self, running: RunningJob) -> None:
        """Run a job as soon as a thread, or the event loop, is free."""
        if running.is_async:
            if self._loop is None:
                self._loop = _JobLoop(
                    *(self._cluster, self._concurrency, self._finished),
                    self._beginnings,
                )
            self._loop.submit(running)
        else:
            self._queue.put(running)
        self._start_threads()

    def keep_threads(self) -> None:
        """Start threads for jobs that wait, in place of those that have ended.

        A function for ``threading.settrace()`` of a job may end one as it begins;
        until it is undone it would end the next one, too.
        """
        if not self._beginnings.has_hooks_of_jobs:
            self._start_threads()

    def _start_threads(self) -> None:
        if self._loop is not None:
            self._loop.keep_thread()
        if self._queue.empty():
            return
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        missing = self._concurrency - len(self._threads)
        for _ in range(min(missing, self._queue.qsize())):
            thread = threading.Thread(
                target=self._serve,
                name=f"sqla-shard-job-{len(self._threads)}",
                daemon=True,
            )
            thread.start()
            self._threads.append(thread)

    def take_back(self) -> list[RunningJob]:
        """Return the jobs that have not started; they are not run any more."""
        jobs: list[RunningJob] = []
        if self._loop is not None:
            jobs += self._loop.take_back()
        while True:
            try:
                one = self._queue.get_nowait()
            except queue.Empty:
                return jobs
            if one is not None:
                jobs.append(one)

    def close(self) -> None:
        """Cancel the tasks of the event loop, and end threads that are idle.

        Others end with their function.
        """
        if self._loop is not None:
            self._loop.close()
        self._beginnings.close()
        for _ in self._threads:
            self._queue.put(None)

    def _serve(self) -> None:
        while True:
            running = self._queue.get()
            if running is None:
                return
            # The next job must not see what this one sets, such as its tenant.
            copy_context().run(self._run, running)

    def _run(self, running: RunningJob) -> None:
        job_begins(self._cluster, running.job)
        try:
            outcome = run_job(self._cluster, running, self._beginnings)
        # Without an outcome the job would be held for ever.
        except BaseException as error:
            outcome = _unforeseen(running, error)
        self._finished(running, job_ends(self._cluster, running, outcome))


class _JobLoop:
    """An event loop in a thread, and the jobs that run in it."""

    def __init__(
        self,
        cluster: Cluster,
        concurrency: int,
        finished: Finished,
        beginnings: Beginnings,
    ) -> None:
        self._cluster = cluster
        self._concurrency = concurrency
        self._finished = finished
        self._beginnings = beginnings
        self._waiting: deque[RunningJob] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        # A thread that ends as it begins must not be waited for.
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._end = asyncio.Event()
        self._thread: threading.Thread | None = None

    def keep_thread(self) -> None:
        """Start the thread, if jobs wait and it has ended, or is the first."""
        is_alive = self._thread is not None and self._thread.is_alive()
        if self._waiting and not is_alive:
            thread = threading.Thread(
                target=self._serve, name="sqla-shard-jobs-loop", daemon=True
            )
            thread.start()
            self._thread = thread

    def _serve(self) -> None:
        # It cancels the tasks, and closes the connections.
        with self._runner:
            loop = self._loop
            main = loop.create_task(self._main())
            while not main.done():
                try:
                    loop.run_until_complete(main)
                # Such as SystemExit of a task that a job has started, or stop():
                # they end the loop, in which other jobs run.
                except BaseException as error:
                    if loop.is_closed():
                        raise
                    _log.warning(
                        "a job has ended the event loop, which goes on: %s",
                        summary(error),
                        extra={"action": "run"},
                    )

    async def _main(self) -> None:
        while not self._end.is_set():
            # A job may cancel all tasks that it finds.
            with contextlib.suppress(asyncio.CancelledError):
                await self._end.wait()

    def submit(self, running: RunningJob) -> None:
        self._waiting.append(running)
        self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        while len(self._tasks) < self._concurrency:
            try:
                running = self._waiting.popleft()
            except IndexError:
                return
            # Not by the factory for tasks of the loop, which a job may have set.
            task = asyncio.Task(self._run(running), loop=self._loop)
            running.cancel = self._canceller(task)
            self._tasks.add(task)
            task.add_done_callback(partial(self._ended, running))

    def _canceller(self, task: asyncio.Task[None]) -> Callable[[], None]:
        return lambda: self._call(task.cancel)

    def _call(self, function: Callable[[], object]) -> None:
        # A loop that has ended has no tasks.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

    async def _run(self, running: RunningJob) -> None:
        job_begins(self._cluster, running.job)
        try:
            outcome = await async_run_job(self._cluster, running, self._beginnings)
        except asyncio.CancelledError:
            outcome = _not_begun(running)
        except BaseException as error:
            outcome = _unforeseen(running, error)
        self._finished(running, job_ends(self._cluster, running, outcome))

    def _ended(self, running: RunningJob, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            self._finished(running, _not_begun(running))
        # The job may have set one, which would make the tasks of the others.
        self._loop.set_task_factory(None)
        self._begin()

    def take_back(self) -> list[RunningJob]:
        # Not in the loop: a job may block it.
        jobs: list[RunningJob] = []
        while True:
            try:
                jobs.append(self._waiting.popleft())
            except IndexError:
                return jobs

    def close(self) -> None:
        self._waiting.clear()
        self._call(self._end.set)
        if self._thread is not None:
            self._thread.join(_UNTIL_ENDED)
        if self._thread is None or not self._thread.is_alive():
            self._loop.close()
