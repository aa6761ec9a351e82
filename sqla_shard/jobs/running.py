"""Running one claimed job: the call of its task, and what becomes of it.

A task with a session runs in a transaction that also acknowledges the job, by
its last statement before COMMIT: either both take effect or neither.  If the
claim is lost, nothing is committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from sqla_shard.exc import JobArgumentError
from sqla_shard.exc import JobClaimLostError
from sqla_shard.exc import TaskDefinitionError
from sqla_shard.exc import UnknownTaskError
from sqla_shard.exc.base import summary
from sqla_shard.jobs import claims
from sqla_shard.jobs.claims import ClaimedJob
from sqla_shard.jobs.claims import LEASE
from sqla_shard.jobs.enqueue import encoded
from sqla_shard.jobs.enqueue import seconds_of
from sqla_shard.jobs.tasks import find_task
from sqla_shard.jobs.tasks import Task
from sqla_shard.outbox.apply import place_at
from sqla_shard.session import ShardSession
from sqla_shard.session.transaction import TransactionLog
from sqla_shard.util.json_values import is_json

if TYPE_CHECKING:
    from sqla_shard import Cluster

__all__ = ["Ending", "Outcome", "RunningJob", "current_job", "run_job"]


class Ending(Enum):
    """How the run of a job has ended."""

    SUCCEEDED = "to be acknowledged"
    WRITTEN = "acknowledged, or continued, by a transaction of the task"
    FAILED = "to be recorded as failed"
    UNKNOWN = "to be released: the task is not defined here"
    LOST = "the claim was lost"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of one run, which the worker writes.

    :ivar job: the job.
    :ivar ending: how it has ended.
    :ivar error: the error, if it has failed.
    :ivar delay: seconds until the next attempt.
    """

    job: ClaimedJob
    ending: Ending
    error: str = ""
    delay: float = 0.0


class RunningJob:
    """The job that runs in this context, for its task.

    :ivar job: the job, with its arguments and checkpoint.
    :ivar is_written: whether a transaction has acknowledged it.
    """

    def __init__(self, cluster: Cluster, job: ClaimedJob) -> None:
        self._cluster = cluster
        self.job = job
        self.is_written = False
        self._log: TransactionLog | None = None

    @property
    def checkpoint(self) -> Any:
        """The last checkpoint of the job; None if there is none."""
        return self.job.checkpoint

    def extend(self, lease: float = LEASE) -> None:
        """Extend the claim.

        :param lease: seconds from now.
        :raises JobClaimLostError: if it is lost: end the task.
        """
        lost = self._cluster.run(claims.extend, [self.job], lease)
        if lost:
            raise JobClaimLostError(jobs=tuple(map(str, lost)))

    def save(
        self, checkpoint: Any, *, session: ShardSession | None = None
    ) -> None:
        """Store progress, which the next attempt gets, and extend the claim.

        :param checkpoint: a JSON value.
        :param session: a session on the shard of the job: progress is stored
            by its transaction; by default by a transaction of its own.
        :raises JobArgumentError: if the value is not valid.
        :raises JobClaimLostError: if the claim is lost.
        """
        text = self._encoded(checkpoint)
        if session is None:
            self._cluster.run(claims.checkpoint, self.job, text)
        else:
            claims.checkpoint(session, self.job, text)

    def run_again(
        self,
        session: ShardSession,
        checkpoint: Any,
        after: timedelta | float = 0.0,
    ) -> None:
        """Store progress, and run the job again with all its attempts.

        Both take effect with the transaction, and end this run: for a task
        in small steps, each of which is a transaction.

        :param session: a session on the shard of the job.
        :param checkpoint: a JSON value, for the next run.
        :param after: seconds or a timedelta until then.
        :raises JobArgumentError: if the value is not valid.
        :raises JobClaimLostError: if the claim is lost.
        """
        claims.checkpoint(
            session,
            self.job,
            self._encoded(checkpoint),
            again_after=seconds_of(after),
        )
        self._written_by(session)

    def ack_with(self, session: ShardSession) -> None:
        """Acknowledge the job in the transaction of a session.

        What the transaction writes on the shard of the job then takes effect
        exactly once.

        :param session: a session that writes the shard of the job, or
            nothing yet.
        :raises JobClaimLostError: if the claim is lost; roll back.
        :raises CrossShardWriteError: if the transaction writes another shard.
        """
        claims.acknowledge(session, [self.job])
        self._written_by(session)

    def is_written_by(self, session: ShardSession) -> bool:
        """Return whether the transaction of a session ends this run."""
        return self._log is session.log

    def _written_by(self, session: ShardSession) -> None:
        self._log = session.log
        session.log.after_commit(_note_written, self)

    def _encoded(self, checkpoint: Any) -> str:
        if not is_json(checkpoint):
            raise JobArgumentError(
                f"is {checkpoint!r:.80}; it must be a JSON value",
                task=self.job.task,
                parameter="checkpoint",
            )
        return encoded(checkpoint, self.job.task, "checkpoint")


def _note_written(session: Any, jobs: Any, has_failed: bool) -> None:
    for one in jobs:
        one.is_written = True


_current: ContextVar[RunningJob] = ContextVar("sqla_shard_current_job")


def current_job() -> RunningJob:
    """Return the job that runs in this thread or task of an event loop.

    :raises LookupError: if none runs.
    """
    return _current.get()


@contextmanager
def _as_current(running: RunningJob) -> Iterator[None]:
    before = _current.set(running)
    try:
        yield
    finally:
        _current.reset(before)


#: Seconds until a job is claimed again whose task is not defined here.
UNKNOWN_DELAY = 60.0


def run_job(cluster: Cluster, job: ClaimedJob) -> Outcome:
    """Call the task of a job.

    Errors of the task are in the outcome.
    """
    try:
        task = find_task(job.task)
    except UnknownTaskError as error:
        return Outcome(
            job=job,
            ending=Ending.UNKNOWN,
            error=str(error),
            delay=UNKNOWN_DELAY,
        )
    running = RunningJob(cluster, job)
    try:
        with _as_current(running):
            _call(cluster, task, running)
    except JobClaimLostError as error:
        return Outcome(job=job, ending=Ending.LOST, error=str(error))
    except Exception as error:  # Whatever a task raises is its failure.
        return Outcome(
            job=job,
            ending=Ending.WRITTEN if running.is_written else Ending.FAILED,
            error=summary(error),
            delay=task.retry.delay(job.attempt),
        )
    ending = Ending.WRITTEN if running.is_written else Ending.SUCCEEDED
    return Outcome(job=job, ending=ending)


def _call(cluster: Cluster, task: Task, running: RunningJob) -> None:
    # A copy: the function may change its arguments, and a later attempt
    # must not see that.
    arguments = deepcopy(dict(running.job.arguments))
    if not task.in_transaction:
        task.function(**arguments)
        return
    guard = _Guard(running.job)
    with cluster.session(
        cross_shard="logged", shard_id=running.job.shard_id
    ) as session:
        session.last = guard
        session.begin()
        place = place_at(session, running.job.address)
        # Refuses a write to another shard where it is made.
        session.log.wrote(place, f"job {running.job}")
        task.function(session, **arguments)
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
