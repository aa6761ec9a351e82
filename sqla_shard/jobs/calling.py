"""The call of the task of a job, and the outcome of the job.

A task with a session runs in a transaction that also acknowledges the job, by
its last statement before COMMIT: either both take effect or neither.  If the
claim is lost, nothing is committed.

A function that is ``async def`` is awaited, and is cancelled when its time is
over or its claim is lost.  A thread cannot be cancelled: its function asks,
with :meth:`RunningJob.check`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from copy import deepcopy
from typing import Any, TYPE_CHECKING

from sqlalchemy import Connection

from sqla_shard.cluster.event_loops import to_the_end
from sqla_shard.exc import (
    JobArgumentError,
    JobClaimLostError,
    TaskDefinitionError,
    UnknownTaskError,
)
from sqla_shard.exc.base import summary
from sqla_shard.jobs.beginning import Beginnings
from sqla_shard.jobs.claims import ClaimedJob
from sqla_shard.jobs.running import as_current, Ending, Outcome, RunningJob
from sqla_shard.jobs.tasks import Task
from sqla_shard.outbox.apply import place_at
from sqla_shard.session.transaction import TransactionLog

if TYPE_CHECKING:
    from sqla_shard import Cluster

#: Seconds between two cancellations of a task.
_UNTIL_AGAIN = 0.5

#: Seconds until a job is claimed again whose task is not defined here.
UNKNOWN_DELAY = 60.0


def run_job(cluster: Cluster, running: RunningJob, beginnings: Beginnings) -> Outcome:
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


def _call_and_catch(cluster: Cluster, task: Task, running: RunningJob) -> Outcome:
    try:
        running.begin(task.time_limit)
        with as_current(running):
            _call(cluster, task, running)
    except BaseException as error:  # Whatever a task raises is its failure.
        return _failed(task, running, error)
    return _succeeded(running)


async def async_run_job(
    cluster: Cluster, running: RunningJob, beginnings: Beginnings
) -> Outcome:
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
) -> Outcome:
    try:
        running.begin(task.time_limit)
        with as_current(running):
            await _await(cluster, task, running)
    except BaseException as error:  # Whatever a task raises is its failure.
        return _failed(task, running, error)
    return _succeeded(running)


def _unknown(running: RunningJob) -> Outcome:
    return Outcome(
        job=running.job,
        ending=Ending.UNKNOWN,
        error=str(UnknownTaskError(task=running.job.task)),
        delay=UNKNOWN_DELAY,
    )


def _damaged(job: ClaimedJob, damage: JobArgumentError) -> Outcome:
    # No other attempt could read it.
    return Outcome(job=job, ending=Ending.FAILED, error=summary(damage), is_final=True)


def _succeeded(running: RunningJob) -> Outcome:
    ending = Ending.WRITTEN if running.is_written else Ending.SUCCEEDED
    return Outcome(job=running.job, ending=ending)


def _failed(task: Task, running: RunningJob, error: BaseException) -> Outcome:
    """Return the outcome of a run that has raised an error."""
    ending = Ending.FAILED
    if running.is_written:
        ending = Ending.WRITTEN
    elif running.is_lost or isinstance(error, JobClaimLostError):
        ending = Ending.LOST
    return Outcome(
        job=running.job,
        ending=ending,
        error=summary(error),
        delay=task.retry.delay(running.job.attempt),
    )


def _arguments(running: RunningJob) -> dict[str, Any]:
    # A copy: the function may change its arguments, and a later attempt
    # must not see that.
    return deepcopy(dict(running.job.arguments))


def _call(cluster: Cluster, task: Task, running: RunningJob) -> None:
    arguments = _arguments(running)
    if not task.in_transaction:
        task.function(**arguments)
        return
    guard = _Guard(running.job)
    with cluster.session(**_options(running)) as session:
        _begin(session, running, guard)
        task.function(session, **arguments)
        _commit(session, running, guard)


async def _await(cluster: Cluster, task: Task, running: RunningJob) -> None:
    arguments = _arguments(running)
    if not task.in_transaction:
        await _within(task.function(**arguments), running)
        return
    guard = _Guard(running.job)
    async with cluster.async_session(**_options(running)) as session:
        await session.run_sync(_begin, running, guard)
        running.check()  # what was awaited may have swallowed a cancellation
        await _within(task.function(session, **arguments), running)
        # A COMMIT that is cancelled may or may not have taken effect.
        await to_the_end(session.run_sync(_commit, running, guard))


async def _within(awaited: Coroutine[Any, Any, Any], running: RunningJob) -> None:
    """Await the function, not longer than its time limit.

    :raises JobTimeLimitError: if it was cancelled.
    """
    task = asyncio.ensure_future(_result_of(awaited))
    try:
        await asyncio.wait([task], timeout=running.remaining)
        is_late = not task.done()
    finally:
        while not task.done():
            # Again and again: what it awaits may swallow a cancellation, as
            # wait_for() does before Python 3.12.
            task.cancel()
            await asyncio.wait([task], timeout=_UNTIL_AGAIN)
        # Another job may have cancelled it before it has begun.
        awaited.close()
    if is_late:
        raise running.late()
    ending = task.result()
    if ending is not None:
        raise ending


async def _result_of(
    awaited: Coroutine[Any, Any, Any],
) -> SystemExit | KeyboardInterrupt | None:
    """Await the function; return what would end the event loop."""
    try:
        await awaited
    except (SystemExit, KeyboardInterrupt) as error:
        return error
    return None


def _options(running: RunningJob) -> dict[str, Any]:
    """Return the options of the session of a task."""
    return {"cross_shard": "logged", "shard_id": running.job.shard_id}


def _begin(session: Any, running: RunningJob, guard: _Guard) -> None:
    session.last = guard
    session.begin()
    place = place_at(session, running.job.address)
    # Refuses a write to another shard where it is made.
    session.log.wrote(place, f"job {running.job}")


def _commit(session: Any, running: RunningJob, guard: _Guard) -> None:
    """Acknowledge the job, if the function has not, and commit."""
    session.flush()
    if not running.is_written_by(session):
        running.ack_with(session)
    guard.is_open = True
    session.commit()


class _Guard:
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
