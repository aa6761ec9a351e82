"""Jobs as an operator sees them: counts, searches, retries, deletion.

Each class is a suite; a test module has a fixture ``cluster``.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from sqla_shard import Cluster
from sqla_shard.exc import JobOptionError, UnknownKeyspaceError, UnknownShardError
from sqla_shard.jobs import claims, EnqueuedJob, JobState, queues
from sqla_shard.jobs.enqueue import insert_job, place_near
from sqla_shard.jobs.queues import count_queues, task_counts
from sqla_shard.jobs.stored_jobs import (
    delete_jobs,
    delete_of,
    jobs_by_key,
    jobs_of,
    retry_failed,
    retry_jobs,
    stored_job,
)
from sqla_shard.testing import StatementLog
from tests.models.job_models import (
    add,
    counter,
    expire,
    fails,
    JOB_CLUSTERS,
    rows,
    take,
)
from tests.suites.jobs import Suite

cluster = JOB_CLUSTERS.on_backend()

PENDING, RUNNING, DONE, FAILED = JobState


def fail_all(cluster: Cluster, near: int, queue: str = "adding") -> None:
    with cluster.begin() as session:
        for job in take(session, near, queue, limit=1000):
            claims.fail(session, job, "an error", 0, is_final=True)


class Filled(Suite):
    """Jobs with every state, on two shards."""

    @pytest.fixture
    def other(self, cluster: Cluster, near: int) -> int:
        other = counter(cluster, 4)
        with cluster.begin() as session:
            for priority in (1, 2, 2):
                add.enqueue(session, near, near=near, priority=priority)
            add.enqueue(session, near, near=near, run_after=3600)
        with cluster.begin() as session:
            add.enqueue(session, other, near=other)
            add.enqueue(session, other, near=other)
            add.enqueue(session, other, near=other, unique_key="k")
            fails.enqueue(session, other, near=other)
        with cluster.begin() as session:
            first, second, _ = take(session, other)
            claims.acknowledge(session, [first])
            claims.fail(session, second, "an error", 0, is_final=True)
        return other


class Counting(Filled):
    """The numbers of jobs."""

    def test_of_each_state(self, cluster, near, other):
        running = rows(cluster, 4)[2]
        with StatementLog(*places(cluster)) as log:
            adding, failing = count_queues(cluster)
        # Reads of 6 shards; SQLite has a file for each.
        assert len(log.statements) <= 2 * 6
        assert adding.oldest >= timedelta(0)
        assert (adding.queue, adding.capped) == ("adding", ())
        numbers = adding.as_dict()
        assert [numbers[name] for name in queues._NUMBERS] == [*(3, 1, 1, 0, 1, 1, 1)]
        assert (failing.due, failing.done, failing.failed) == (1, 0, 0)
        expire(cluster, address(4, running.id))
        assert count_queues(cluster)[0].expired == 1

    def test_they_end(self, cluster, near, monkeypatch):
        monkeypatch.setattr(queues, "MOST_COUNTED", 3)
        queues._counts.cache_clear()
        with cluster.begin() as session:
            add.enqueue_many(session, [{"counter_id": near}] * 5, near=near)
        (found,) = count_queues(cluster)
        assert (found.due, found.capped) == (3, ("due",))
        assert "3+ due" in str(found)
        queues._counts.cache_clear()

    def test_many_queues(self, cluster, near):
        with cluster.begin() as session:
            for number in range(6):
                options = replace(add._options(), queue=f"q{number}")
                place = place_near(session, near, None)
                insert_job(session, place, "tests.add", {}, options)
        found = count_queues(cluster)
        assert [(one.queue, one.due) for one in found] == [
            (f"q{number}", 1) for number in range(6)
        ]

    def test_of_tasks(self, cluster, near, other):
        found, unread = task_counts(cluster, "adding")
        assert unread == []
        assert [(one.task, one.state, one.count) for one in found] == [
            ("tests.add", PENDING, 4),
            ("tests.add", RUNNING, 1),
            ("tests.add", DONE, 1),
            ("tests.add", FAILED, 1),
        ]
        assert all(one.is_known and not one.retries for one in found)
        with pytest.raises(JobOptionError):
            task_counts(cluster, "a b")

    def test_nothing(self, cluster, near):
        assert count_queues(cluster) == []
        assert task_counts(cluster, "adding") == ([], [])


class Searching(Filled):
    """Jobs by queue, state, task, key and id."""

    def test_of_a_queue(self, cluster, near, other):
        with StatementLog(*places(cluster)) as log:
            page = jobs_of(cluster, "adding", [PENDING, FAILED])
        assert len(log.statements) <= 2 * 6
        assert page.is_complete
        assert page.unreachable == []
        assert {(one.shard_id, one.state) for one in page.jobs} == {
            (1, PENDING),
            (4, FAILED),
        }
        assert [(one.state, one.priority) for one in page.jobs] == [
            (PENDING, 1),
            *[(PENDING, 2)] * 3,
            (FAILED, 2),
        ]
        scheduled = page.jobs[3]
        assert scheduled.due_at - scheduled.created_at == timedelta(hours=1)
        assert "priority 1, pending due at" in str(page.jobs[0])
        page = jobs_of(cluster, "adding", limit=3)
        assert (len(page.jobs), page.is_complete) == (3, False)

    def test_of_a_task(self, cluster, near, other):
        assert len(jobs_of(cluster, "adding", task="tests.add").jobs) == 7
        assert jobs_of(cluster, "adding", task="tests.fails").jobs == []
        assert len(jobs_of(cluster, "failing", task="tests.fails").jobs) == 1

    def test_by_key_and_id(self, cluster, near, other):
        (job,) = jobs_by_key(cluster, "k").jobs
        assert (job.shard_id, job.unique_key) == (4, "k")
        assert job.arguments == {"counter_id": other}
        assert stored_job(cluster, job.id) == job
        assert job.as_dict()["state"] == "running"
        assert jobs_by_key(cluster, "j").jobs == []
        assert stored_job(cluster, "objects/4/999999") is None

    @pytest.mark.parametrize(
        "value", ["7", "objects/7", "objects/1/x", "", f"objects/1/{2**63}", "main/0/1"]
    )
    def test_bad_ids(self, cluster, value):
        with pytest.raises(JobOptionError):
            stored_job(cluster, value)

    @pytest.mark.parametrize("change", [retry_jobs, delete_jobs])
    def test_an_id_of_no_shard_changes_nothing(self, cluster, near, change):
        job = str(add.enqueue_now(cluster, near, near=near))
        fail_all(cluster, near)
        with pytest.raises(UnknownShardError):
            change(cluster, [job, "objects/99/1"])
        with pytest.raises(UnknownKeyspaceError):
            change(cluster, [job, "none/1/1"])
        assert [row.state for row in rows(cluster)] == [FAILED]


class Changing(Filled):
    """Retries and deletion."""

    def test_failed_jobs_are_run_again(self, cluster, near):
        with cluster.begin() as session:
            calls = [{"counter_id": near}] * 40
            add.enqueue_many(session, calls, near=near)
            add.enqueue(session, near, near=near, unique_key="k")
        fail_all(cluster, near)
        found = retry_failed(cluster, "adding", dry_run=True)
        assert (found.changed, found.skipped) == (41, [])
        assert {row.state for row in rows(cluster)} == {FAILED}
        assert retry_failed(cluster, "adding", task="other").changed == 0
        assert retry_failed(cluster, "adding").changed == 41
        assert {(row.state, row.attempts) for row in rows(cluster)} == {(PENDING, 0)}
        # It has its unique key again.
        with cluster.begin() as session:
            again = add.enqueue(session, near, near=near, unique_key="k")
        assert not again.is_new

    def test_in_batches(self, cluster, near):
        with cluster.begin() as session:
            calls = [{"counter_id": near}] * 1201
            add.enqueue_many(session, calls, near=near)
        done = delete_of(cluster, "adding", [PENDING], dry_run=True)
        assert done.changed == 1201
        fail_all(cluster, near)
        # They have one time: the next batch begins by the number.
        assert retry_failed(cluster, "adding").changed == 1000
        assert delete_of(cluster, "adding", [PENDING]).changed == 1201
        assert rows(cluster) == []

    def test_a_key_that_another_job_has(self, cluster, near):
        add.enqueue_now(cluster, near, near=near, unique_key="k")
        fail_all(cluster, near)
        newer = add.enqueue_now(cluster, near, near=near, unique_key="k")
        (failed, _) = rows(cluster)
        job_id = str(address(1, failed.id))
        report = retry_jobs(cluster, [job_id])
        assert report.changed == 0
        assert report.skipped == [
            f"{job_id} job {newer.local_id} of the shard has its unique key"
        ]
        assert [row.state for row in rows(cluster)] == [FAILED, PENDING]

    def test_by_id(self, cluster, near, other):
        states = {row.state: address(4, row.id) for row in rows(cluster, 4)}
        ids = [str(states[one]) for one in (RUNNING, DONE, FAILED)]
        report = retry_jobs(cluster, [*ids, "objects/5/1"])
        assert report.changed == 1
        assert set(report.skipped) == {
            f"{ids[0]} is running",
            f"{ids[1]} is done",
            "objects/5/1 is not there",
        }
        report = delete_jobs(cluster, ids)
        assert (report.changed, report.skipped) == (2, [f"{ids[0]} is running"])
        assert len(rows(cluster, 4)) == 2

    def test_deletion_frees_the_key(self, cluster, near):
        job = add.enqueue_now(cluster, near, near=near, unique_key="k")
        assert delete_jobs(cluster, [str(job)]).changed == 1
        again = add.enqueue_now(cluster, near, near=near, unique_key="k")
        assert again.is_new

    def test_of_a_queue(self, cluster, near, other):
        done = delete_of(cluster, "adding", [DONE, FAILED])
        assert (done.changed, done.skipped, done.unreachable) == (2, [], [])
        # Those that are scheduled, too.
        assert delete_of(cluster, "adding", [PENDING]).changed == 4
        with pytest.raises(JobOptionError, match="running"):
            delete_of(cluster, "adding", [RUNNING])
        assert len(rows(cluster, 1)) == 0
        assert [row.queue for row in rows(cluster, 4)] == ["adding", "failing"]


def places(cluster: Cluster) -> set[Any]:
    space = cluster.places.keyspace(None, "objects")
    return {place.engine for place in cluster.places.all_places(space)}


def address(shard_id: int, local_id: int) -> Any:
    return EnqueuedJob(keyspace="objects", shard_id=shard_id, local_id=local_id)
