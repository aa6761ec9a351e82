"""Periodic tasks: one job for each, which is pending again after each run.

The job has a unique key, on shard 0 of the keyspace of its task, and workers
insert it if it is not there.  So each time is due once, over all workers, and
the task does not run twice at the same time.  The next time is computed by the
clock of the server, in the transaction that ends a run: times that were missed
while no worker was running are skipped.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, UTC
from typing import Any, TYPE_CHECKING

from sqlalchemy import bindparam, select

from sqla_shard.dialects.sql import ServerTime
from sqla_shard.engine.rendering import Place
from sqla_shard.exc import UnknownTaskError
from sqla_shard.jobs.claims import ClaimedJob, fenced, held, PENDING, update_rows
from sqla_shard.jobs.crontab import Every, next_due
from sqla_shard.jobs.enqueue import insert_job, JobOptions
from sqla_shard.jobs.tasks import all_tasks, find_task, Task
from sqla_shard.outbox.apply import place_at
from sqla_shard.outbox.tables import JOB_KEYS, JOBS
from sqla_shard.session import ShardSession

if TYPE_CHECKING:
    from sqla_shard import Cluster

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
    return _every(job) is not None


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
