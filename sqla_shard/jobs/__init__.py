"""Durable jobs: a queue on the virtual shards, in their transactions.

A job is a row of ``sqla_shard_job`` on the shard of the object that it is
about, inserted by the transaction that writes the object.  Workers claim the
rows of all shards, call the tasks, and acknowledge the jobs; a task that
writes the shard of its job is acknowledged by the same transaction.

``retry``      retry policies: ``Linear``, ``Exponential``
``enqueue``    the shard, the options and the row of a new job
``placing``    a random shard for a job that is not about an object
``unique_keys``  keys of jobs that have not finished
``tasks``      the decorator ``task``, and tasks by name
``claims``     the states of a job; claims, and what their holders may write
``survey``     which shards have due jobs: one statement for a server
``cleanup``    expired claims and old jobs, one process at a time for a shard
``queue_limits``  pauses and limits of queues, shared by all workers
``health``     servers that have failed repeatedly have a rest
``leases``  claims of running jobs are extended
``crontab``    times at which periodic tasks are due
``periodic``   one job for each periodic task, which is pending again
``running``    the job that runs: what its task can do with it
``beginning``  what is written before a function is called
``calling``    the call of a task, and what becomes of the job
``runners``    the threads, and the event loop, of a worker
``handling``   transactions of a worker: outcomes go, new jobs come
``schedule``   where a worker claims next, and when it looks for work again
``hints``      workers are notified of jobs after COMMIT
``hint_channels``  Redis or ZooKeeper, between processes
``worker``     the loop of a worker
``delivery``   what transactions have left, beside the jobs
``job_events``  events for listeners, such as OpenTelemetry
``respacing``  ordered lists are re-spaced by jobs
``queue_counts``    how many jobs each queue has, by state and by task
``stored_jobs``     jobs by id, by unique key, or those of a queue
``stored_changes``  retries and deletion by an operator
"""

from __future__ import annotations

from sqla_shard.jobs.claims import ClaimedJob, JobState
from sqla_shard.jobs.crontab import Crontab
from sqla_shard.jobs.enqueue import EnqueuedJob
from sqla_shard.jobs.hints import share_hints
from sqla_shard.jobs.job_events import JobReport
from sqla_shard.jobs.queue_counts import count_queues, QueueCount
from sqla_shard.jobs.queue_limits import limits, pause, QueueLimit, resume, set_limit
from sqla_shard.jobs.respacing import respace_by_job
from sqla_shard.jobs.retry import Exponential, Linear, RetryPolicy
from sqla_shard.jobs.running import current_job, JobLogFilter, RunningJob
from sqla_shard.jobs.stored_changes import (
    ChangeReport,
    delete_jobs,
    delete_of,
    retry_failed,
    retry_jobs,
)
from sqla_shard.jobs.stored_jobs import (
    JobPage,
    jobs_by_key,
    jobs_of,
    stored_job,
    StoredJob,
)
from sqla_shard.jobs.tasks import Task, task
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
