"""The job that runs, as its task can use it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from functools import partial
from time import monotonic
from typing import Any, TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.cluster.event_loops import AsyncShardSession
from sqla_shard.engine.unreachable import short
from sqla_shard.exc import JobArgumentError, JobClaimLostError, JobTimeLimitError
from sqla_shard.exc.base import shown
from sqla_shard.jobs import claims
from sqla_shard.jobs.claims import ClaimedJob, extend
from sqla_shard.jobs.enqueue import encoded, seconds_of
from sqla_shard.jobs.tasks import find_task, is_periodic, repeat, Task
from sqla_shard.outbox.scan import PARALLEL
from sqla_shard.session import ShardSession
from sqla_shard.session.transaction import TransactionLog
from sqla_shard.util.json_values import is_json, JSON_VALUE
from sqla_shard.util.logs import careful_log

if TYPE_CHECKING:
    from sqla_shard import Cluster

_log = careful_log(__name__)


class Ending(Enum):
    """The outcome of the run of a job."""

    SUCCEEDED = "to be acknowledged"
    WRITTEN = "acknowledged, or continued, by a transaction of the task"
    FAILED = "to be recorded as failed"
    UNKNOWN = "to be released: the task is not defined here"
    RELEASED = "to be released: the worker ends"
    LOST = "the claim was lost"


@dataclass(frozen=True, kw_only=True)
class JobOutcome:
    """The result of one run, which the worker writes.

    :ivar job: the job.
    :ivar ending: how it has ended.
    :ivar error: the error, if it has failed.
    :ivar delay: seconds until the next attempt.
    :ivar is_final: whether no attempt follows one that has failed.
    """

    job: ClaimedJob
    ending: Ending
    error: str = ""
    delay: float = 0.0
    is_final: bool = False


class RunningJob:
    """The job that runs in this context, for its task.

    :ivar job: the job, with its arguments and checkpoint.
    :ivar cluster: the cluster of the worker.
    :ivar lease: seconds for which its worker claims jobs.
    :ivar began: when its function has begun, by the monotonic clock; None
        before.
    :ivar has_ended: set when the run is over.
    :ivar is_written: whether a transaction has acknowledged it.
    :ivar is_lost: whether the claim is known to be lost: another worker may
        be running the job.
    :ivar cancel: cancels the run, if it is awaited.
    """

    def __init__(
        self, cluster: Cluster, job: ClaimedJob, *, expires: float, lease: float
    ) -> None:
        """Describe a job that has been claimed.

        :param expires: when its claim expires, by the monotonic clock.
        :param lease: seconds for which claims are made and extended.
        """
        self.lease = lease
        self.cluster = cluster
        self.job = job
        self.expires: float = expires
        self.task: Task | None = find_task(job.task)
        self.began: float | None = None
        self.has_ended: threading.Event = threading.Event()
        self._lock = threading.Lock()
        self.deadline: float | None = None
        self._limit = 0.0
        self.is_written = False
        self.is_lost: bool = False
        self.cancel: Callable[[], None] = _do_nothing
        self._log: TransactionLog | None = None

    @property
    def is_async(self) -> bool:
        """Whether the function of the task is awaited."""
        return self.task is not None and self.task.is_async

    def begin(self, time_limit: float | None) -> None:
        """Start the time of the task.

        :raises JobClaimLostError: if the claim was lost, or the job released.
        """
        with self._lock:
            self.check()
            self.began = monotonic()
        if time_limit is not None:
            self._limit = time_limit
            self.deadline = self.began + time_limit

    @property
    def remaining(self) -> float | None:
        """The seconds until the time limit of the task; None without one."""
        if self.deadline is None:
            return None
        return max(0.0, self.deadline - monotonic())

    @property
    def is_overdue(self) -> bool:
        """Whether the time limit of the task is over."""
        return self.remaining == 0

    def lose(self) -> None:
        """Record that the claim is lost, and cancel the run.

        If it has not begun, it does not any more.
        """
        with self._lock:
            self.is_lost = True
        self.cancel()

    def check(self) -> None:
        """End a task that should not go on; call it in long loops.

        :raises JobTimeLimitError: if the time limit of the task is over.
        :raises JobClaimLostError: if the claim is lost.
        """
        if self.is_lost:
            raise JobClaimLostError(jobs=(str(self.job),))
        if self.is_overdue:
            raise self.late()

    def late(self) -> JobTimeLimitError:
        """Return the error of a task whose time is over."""
        return JobTimeLimitError(task=self.job.task, seconds=self._limit)

    @property
    def checkpoint(self) -> Any:
        """The last checkpoint of the job; None if there is none."""
        return self.job.checkpoint

    def extend(self, lease: float | None = None) -> None:
        """Extend the claim.

        :param lease: seconds from now; by default those of the worker.
        :raises JobClaimLostError: if it is lost: end the task.
        """
        before = monotonic()
        lease = self.lease if lease is None else lease
        if self.cluster.run(extend, [self.job], lease):
            self.is_lost = True
            raise JobClaimLostError(jobs=(str(self.job),))
        self.expires = before + lease

    async def async_extend(self, lease: float | None = None) -> None:
        """Extend the claim, in ``async def``; see :meth:`extend`."""
        await asyncio.to_thread(self.extend, lease)

    def save(self, checkpoint: Any, *, session: ShardSession | None = None) -> None:
        """Store progress, which the next attempt gets, and extend the claim.

        :param checkpoint: a JSON value.
        :param session: a session on the shard of the job: progress is stored
            by its transaction; by default by a transaction of its own.
        :raises JobArgumentError: if the value is not valid.
        :raises JobClaimLostError: if the claim is lost.
        """
        text = self._encoded(checkpoint)
        if session is None:
            self.cluster.run(claims.checkpoint, self.job, text, lease=self.lease)
        else:
            claims.checkpoint(session, self.job, text, lease=self.lease)

    async def async_save(
        self, checkpoint: Any, *, session: AsyncShardSession | None = None
    ) -> None:
        """Store progress, in ``async def``; see :meth:`save`."""
        if session is None:
            await asyncio.to_thread(self.save, checkpoint)
        else:

            def save(inner: Any) -> None:
                self.save(checkpoint, session=inner)

            await session.run_sync(save)

    def run_again(
        self, session: ShardSession, checkpoint: Any, after: timedelta | float = 0.0
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
            session, self.job, self._encoded(checkpoint), again_after=seconds_of(after)
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
        if is_periodic(self.job):
            repeat(session, self.job)
        else:
            claims.acknowledge(session, [self.job])
        self._written_by(session)

    async def async_ack_with(self, session: AsyncShardSession) -> None:
        """Acknowledge the job in a transaction; see :meth:`ack_with`."""
        ack_with: Any = self.ack_with
        await session.run_sync(ack_with)

    def is_written_by(self, session: ShardSession) -> bool:
        """Return whether the transaction of a session ends this run."""
        return self._log is session.log

    def _written_by(self, session: ShardSession) -> None:
        self._log = session.log
        session.log.after_commit(_note_written, self)

    def _encoded(self, checkpoint: Any) -> str:
        if not is_json(checkpoint):
            raise JobArgumentError(
                f"is {shown(checkpoint)}; it must be {JSON_VALUE}",
                task=self.job.task,
                parameter="checkpoint",
            )
        return encoded(checkpoint, self.job.task, "checkpoint")


def _do_nothing() -> None:
    """Cancel nothing: a thread cannot be cancelled."""


def _note_written(session: Any, jobs: Any, has_failed: bool) -> None:
    for one in jobs:
        one.is_written = True


_current: ContextVar[RunningJob | None] = ContextVar(
    "sqla_shard_current_job", default=None
)


def current_job() -> RunningJob:
    """Return the job that runs in this thread or task of an event loop.

    :raises LookupError: if none runs.
    """
    job = _current.get()
    if job is None:
        raise LookupError("no job runs in this thread or task")
    return job


class JobLogFilter(logging.Filter):
    """Adds the running job to log records, of any logger.

    ::

        handler.addFilter(JobLogFilter())
        handler.setFormatter(Formatter("%(job)s %(task)s %(message)s"))

    The attributes are ``job`` (keyspace, shard and number), ``task``,
    ``attempt`` and ``queue``; outside of a task each is ``"-"``.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Set the attributes that the record does not have."""
        running = _current.get()
        job = None if running is None else running.job
        for name in ("task", "attempt", "queue"):
            if not hasattr(record, name):
                setattr(record, name, getattr(job, name, "-"))
        if not hasattr(record, "job"):
            record.job = "-" if job is None else str(job)
        return True


@contextmanager
def as_current(running: RunningJob) -> Iterator[None]:
    """Return a context manager in which a job is the current one."""
    before = _current.get()
    # A token of set() would be lost if an interrupt came before the block.
    try:
        _current.set(running)
        yield
    finally:
        _current.set(before)


class Heartbeat:
    """Extends the claims of the jobs of a worker.

    A thread of the worker extends them, with one transaction for each server,
    when a third of their time has passed; most jobs have ended before.  The
    thread also learns which claims are lost.

    :param lease: seconds until a claim expires.
    :param jobs: returns the jobs that the worker holds.
    """

    def __init__(
        self, cluster: Cluster, lease: float, jobs: Callable[[], Collection[RunningJob]]
    ) -> None:
        self._cluster = cluster
        self._lease = lease
        self._jobs = jobs

    def beat(self) -> None:
        """Extend the claims that have lasted for a third of their time.

        Not those of tasks whose time limit is over: their jobs are for other
        workers.
        """
        soon = monotonic() + self._lease * 2 / 3
        due = [
            one
            for one in self._jobs()
            if one.expires < soon and not one.is_lost and not one.is_overdue
        ]
        if not due:
            return
        by_server: dict[Any, list[RunningJob]] = {}
        places = self._cluster.places
        for one in due:
            space = places.topology.keyspace(one.job.keyspace)
            place = places.place(space, one.job.shard_id)
            by_server.setdefault(place.engine, []).append(one)
        places.engines.in_parallel(
            [partial(self._extend, group) for group in by_server.values()],
            "heartbeat",
            PARALLEL,
        )

    def _extend(self, group: Sequence[RunningJob]) -> None:
        """Extend the claims of jobs of one server."""
        before = monotonic()
        try:
            lost = self._cluster.run(
                extend,
                [one.job for one in group],
                self._lease,
                attempts=2,
                cross_shard="unordered",
            )
        except SQLAlchemyError as error:
            _log.warning(
                "the claims of %d jobs could not be extended; this is tried again: %s",
                *(len(group), short(error)),
                extra={"action": "extend"},
            )
            return
        for one in group:
            if one.job in lost:
                one.lose()
            else:
                one.expires = before + self._lease
