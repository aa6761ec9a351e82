"""Jobs in tests: which were enqueued, and running them.

::

    def test_a_new_pin_gets_its_title(cluster):
        with cluster.begin() as session:
            pin_id = add_pin(session, "https://example.com")
            (job,) = jobs_enqueued(session)
            assert (job.task, job.arguments) == (
                "pins.fetch_title", {"pin_id": pin_id}
            )
        run_jobs(cluster)
        ...

Both work on SQLite and on servers.  Use databases without jobs of other tests.
"""

from __future__ import annotations

from collections.abc import Collection

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.engine import by_server
from sqla_shard.jobs.claims import JobState
from sqla_shard.jobs.queues import count_queues
from sqla_shard.jobs.stored_jobs import jobs_of, pending_on, StoredJob
from sqla_shard.jobs.tasks import Task
from sqla_shard.jobs.worker import RunReport, Worker
from sqla_shard.session import ShardSession


class JobsFailedError(AssertionError):
    """Raised by :func:`run_jobs` if a job has failed, or cannot be run."""


def jobs_enqueued(
    session: ShardSession, task: Task | str | None = None
) -> list[StoredJob]:
    """Return the pending jobs that the transaction of a session sees.

    These are the jobs that it has enqueued, and committed ones that have not
    run.  With an asynchronous session: ``await
    session.run_sync(jobs_enqueued)``.

    :param task: only the jobs of this task.
    :returns: the jobs, by shard, in the order in which they were enqueued.
    """
    name = getattr(task, "name", task)
    places = session.places
    found: list[StoredJob] = []
    for keyspace in places.topology.keyspaces.values():
        if keyspace.kind == "objects":
            for group in by_server(places.all_places(keyspace)):
                found += pending_on(session, group)
    found.sort(key=lambda one: (one.keyspace, one.shard_id, one.local_id))
    return [one for one in found if name in (None, one.task)]


def run_jobs(cluster: Cluster, queues: Collection[str] | None = None) -> RunReport:
    """Run all jobs that are due, and those that they enqueue.

    They run as in a worker: claimed, called, acknowledged.  A failure is not
    retried, but raised.

    :param queues: names of queues; by default, all that have jobs.
    :returns: what was done.
    :raises JobsFailedError: if a job has failed, its task is not defined, or
        its queue is paused.
    """
    total = RunReport()
    while True:
        names = [
            one.queue
            for one in count_queues(cluster)
            if one.due and (queues is None or one.queue in queues)
        ]
        if not names:
            return total
        report = Worker(cluster, names, concurrency=1).run(until_empty=True)
        total.succeeded += report.succeeded
        _raise_failures(cluster, names)
        if not report.succeeded:
            raise JobsFailedError(
                f"no job of {', '.join(names)} was run: the queue is paused, "
                "or another worker has claimed them"
            )


def _raise_failures(cluster: Cluster, names: Collection[str]) -> None:
    """Raise the errors of jobs that have failed, finally or not.

    :raises JobsFailedError: if there are any.
    """
    states = (JobState.PENDING, JobState.FAILED)
    failures = [
        f"{one.id} {one.task}: {one.error}"
        for name in names
        for one in jobs_of(cluster, name, states).jobs
        if one.error is not None
    ]
    if failures:
        raise JobsFailedError("\n".join(failures))
