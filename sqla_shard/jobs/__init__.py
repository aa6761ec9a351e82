"""Durable jobs: a queue on the virtual shards, in their transactions.

A job is a row of ``sqla_shard_job`` on the shard of the object that it is
about, inserted by the transaction that writes the object.  Workers claim the
rows of all shards, call the tasks, and acknowledge the jobs; a task that
writes the shard of its job is acknowledged by the same transaction.

``claims``         the states of a job; claims, and what their holders may write
``survey``         which shards have due jobs; where a worker claims next
``enqueue``        the shard, the options and the row of a new job
``tasks``          the decorator ``task``: retries, periodic tasks
``hints``          workers are notified of jobs after COMMIT
``context``        the job that runs: what its task can do with it
``runners``        the threads, and the event loop, of a worker: calls of tasks
``queues``         counts, pauses and limits of queues
``transactions``   transactions of a worker: outcomes go, new jobs come; cleanup
``worker``         the loop of a worker
``stored_jobs``    jobs by id, by key or of a queue: read, retried, deleted
"""

from __future__ import annotations

from sqla_shard.jobs.claims import ClaimedJob, JobState
from sqla_shard.jobs.context import current_job, JobLogFilter, RunningJob
from sqla_shard.jobs.enqueue import EnqueuedJob
from sqla_shard.jobs.hints import share_hints
from sqla_shard.jobs.queues import (
    count_queues,
    limits,
    pause,
    QueueCount,
    QueueLimit,
    resume,
    set_limit,
)
from sqla_shard.jobs.runners import JobReport
from sqla_shard.jobs.stored_jobs import (
    ChangeReport,
    delete_jobs,
    delete_of,
    JobPage,
    jobs_by_key,
    jobs_of,
    retry_failed,
    retry_jobs,
    stored_job,
    StoredJob,
)
from sqla_shard.jobs.tasks import (
    Crontab,
    Exponential,
    Linear,
    respace_by_job,
    RetryPolicy,
    Task,
    task,
)
from sqla_shard.jobs.worker import RunReport, Worker

__all__ = [
    "ChangeReport",
    "ClaimedJob",
    "Crontab",
    "EnqueuedJob",
    "Exponential",
    "JobLogFilter",
    "JobPage",
    "JobReport",
    "JobState",
    "Linear",
    "QueueCount",
    "QueueLimit",
    "RetryPolicy",
    "RunReport",
    "RunningJob",
    "StoredJob",
    "Task",
    "Worker",
    "count_queues",
    "current_job",
    "delete_jobs",
    "delete_of",
    "jobs_by_key",
    "jobs_of",
    "limits",
    "pause",
    "respace_by_job",
    "resume",
    "retry_failed",
    "retry_jobs",
    "set_limit",
    "share_hints",
    "stored_job",
    "task",
]
