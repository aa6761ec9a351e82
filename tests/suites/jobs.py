"""Jobs: enqueued by a transaction, claimed by one worker, fenced.

Each class is a suite; a test module has a fixture ``cluster``.
"""

from __future__ import annotations

import sys
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from sqla_shard import Cluster, ids as object_ids
from sqla_shard.exc import (
    CrossShardWriteError,
    InvalidIdError,
    JobArgumentError,
    JobClaimLostError,
    JobOptionError,
    PlacementError,
    TaskDefinitionError,
    WrongTypeError,
)
from sqla_shard.jobs import claims, JobState, task
from sqla_shard.jobs.claims import extend
from sqla_shard.jobs.hints import hints_of
from sqla_shard.jobs.survey import due_jobs, due_rows
from sqla_shard.jobs.tasks import DEFAULT, Exponential, Linear, Task
from sqla_shard.jobs.transactions import clean_up
from tests.models.job_models import (
    add,
    Counter,
    counter,
    empty,
    expire,
    JOB_CLUSTERS,
    rows,
    take,
)

cluster = JOB_CLUSTERS.on_backend()


#: Where a day begins first.
EAST = timezone(timedelta(hours=14))


class Suite:
    """A counter of its own for each test, and no jobs of others."""

    @pytest.fixture
    def near(self, cluster: Cluster) -> int:
        empty(cluster)
        return counter(cluster)


def nested(levels: int) -> Any:
    found: Any = []
    for _ in range(levels - 1):
        found = [found]
    return found


class Enqueueing(Suite):
    """The job is part of the transaction."""

    def test_the_length_of_arguments_is_in_bytes(self, cluster, near):
        longest = "\u00e9" * 499_900
        with cluster.begin() as session:
            add.enqueue(session, near, n=longest, near=near)
            with pytest.raises(JobArgumentError, match="bytes"):
                add.enqueue(session, near, n=longest + "\u00e9" * 100, near=near)
        (row,) = rows(cluster)
        assert longest in row.arguments

    def test_arguments_that_each_process_can_read(self, cluster, near):
        values = [nested(100), 2**2048 - 1, "half of a pair: \udce9", "\u2028"]
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(20_000)
        try:
            with cluster.begin() as session:
                for value in values:
                    add.enqueue(session, near, n=value, near=near)
                with pytest.raises(JobArgumentError, match="100 levels"):
                    add.enqueue(session, near, n=nested(1500), near=near)
        finally:
            sys.setrecursionlimit(before)
        with cluster.begin() as session:
            assert [job.arguments["n"] for job in take(session, near)] == values

    def test_it_is_there_after_commit_only(self, cluster, near):
        with cluster.begin() as session:
            session.get(Counter, near).count = 5
            job = add.enqueue(session, near, n=2, near=near)
        (row,) = rows(cluster)
        assert (row.id, row.shard_id) == (job.local_id, 1)
        assert str(job) == f"objects/1/{job.local_id}"
        assert row.task == "tests.add"
        assert row.arguments == f'{{"counter_id":{near},"n":2}}'
        assert (row.queue, row.priority) == ("adding", 2)
        assert (row.state, row.attempts, row.max_attempts) == (0, 0, 3)
        assert row.due_at == row.created_at

    def test_a_rollback_leaves_nothing(self, cluster, near):
        with cluster.session() as session:
            add.enqueue(session, near, near=near)
            add.enqueue(session, near, near=near, unique_key="k")
            session.rollback()
        assert rows(cluster) == []

    def test_a_savepoint_that_is_rolled_back(self, cluster, near):
        with cluster.begin() as session:
            first = add.enqueue(session, near, near=near)
            nested = session.begin_nested()
            add.enqueue(session, near, near=near)
            nested.rollback()
        assert [row.id for row in rows(cluster)] == [first.local_id]

    def test_no_other_shard_is_written(self, cluster, near):
        far = object_ids.pack(4, 1, 1)
        with cluster.session() as session:
            session.get(Counter, near).count = 5
            session.flush()
            with pytest.raises(CrossShardWriteError):
                add.enqueue(session, near, near=far)
        assert rows(cluster, 4) == []

    def test_without_near_it_is_where_the_transaction_writes(self, cluster, near):
        with cluster.begin() as session:
            session.get(Counter, near).count = 5
            session.flush()
            assert add.enqueue(session, near).shard_id == 1
        with cluster.begin(shard_id=3) as session:
            assert add.enqueue(session, near).shard_id == 3

    def test_times_are_by_the_clock_of_the_server(self, cluster, near):
        at = datetime(2100, 1, 1, tzinfo=timezone(timedelta(hours=2)))
        with cluster.begin() as session:
            for after in (90, timedelta(minutes=1), at):
                add.enqueue(session, near, near=near, run_after=after)
        first, second, third = rows(cluster)
        assert first.due_at - first.created_at == timedelta(seconds=90)
        assert second.due_at - second.created_at == timedelta(seconds=60)
        assert third.due_at == datetime(2099, 12, 31, 22)
        with cluster.begin() as session:
            assert take(session, near) == []

    def test_a_unique_key_is_of_one_job(self, cluster, near):
        made = []
        for _ in range(3):
            with cluster.begin() as session:
                made.append(add.enqueue(session, near, near=near, unique_key="k "))
        with cluster.begin() as session:
            other = add.enqueue(session, near, near=near, unique_key="k")
        assert [one.is_new for one in made] == [True, False, False]
        assert len({one.local_id for one in made}) == 1
        assert other.is_new
        assert [row.unique_key for row in rows(cluster)] == [b"k ", b"k"]

    def test_a_duplicate_of_a_running_job_runs_it_again(self, cluster, near):
        def enqueue() -> Any:
            with cluster.begin() as session:
                return add.enqueue(session, near, near=near, unique_key="k")

        enqueue()
        with cluster.begin() as session:
            (job,) = take(session, near)
        assert enqueue().is_new is False
        with cluster.begin() as session:
            claims.acknowledge(session, [job])
        (row,) = rows(cluster)
        assert (row.state, row.attempts) == (0, 0)
        with cluster.begin() as session:
            (job,) = take(session, near)
        with cluster.begin() as session:
            claims.acknowledge(session, [job])
        # The key of a finished job can be used again.
        assert enqueue().is_new is True
        assert [row.state for row in rows(cluster)] == [JobState.DONE, 0]

    def test_many_at_once(self, cluster, near):
        calls = [{"counter_id": near, "n": n} for n in range(300)]
        with cluster.begin() as session:
            found = add.enqueue_many(session, calls, near=near, priority=3, run_after=5)
            assert add.enqueue_many(session, [], near=near) == 0
        assert found == 300
        many = rows(cluster)
        assert [row.arguments for row in many] == [
            f'{{"counter_id":{near},"n":{n}}}' for n in range(300)
        ]
        assert {row.priority for row in many} == {3}
        assert {row.due_at - row.created_at for row in many} == {timedelta(seconds=5)}

    @pytest.mark.parametrize(
        ("options", "option"),
        [
            ({"priority": 0}, "priority"),
            ({"priority": True}, "priority"),
            ({"run_after": -1}, "run_after"),
            ({"run_after": timedelta(seconds=-1)}, "run_after"),
            ({"run_after": float("nan")}, "run_after"),
            ({"run_after": datetime(2100, 1, 1)}, "run_after"),
            ({"run_after": datetime(1, 1, 1, tzinfo=EAST)}, "run_after"),
            ({"max_attempts": 0}, "max_attempts"),
            ({"unique_key": ""}, "unique_key"),
            ({"unique_key": "\u00e9" * 128}, "unique_key"),
            ({"unique_key": 7}, "unique_key"),
            ({"unique_key": "\ud800"}, "unique_key"),
        ],
    )
    def test_bad_options(self, cluster, near, options, option):
        with cluster.begin() as session:
            with pytest.raises(JobOptionError) as caught:
                add.enqueue(session, near, near=near, **options)
            assert caught.value.option == option
        assert rows(cluster) == []

    @pytest.mark.parametrize(
        "value",
        [{1}, float("inf"), b"x", {1: 2}, nested(101), 10**5000, {"a": [-(10**5000)]}],
        ids=["set", "inf", "bytes", "int key", "deep", "long", "long inside"],
    )
    def test_bad_arguments(self, cluster, near, value):
        with cluster.begin() as session:
            with pytest.raises(JobArgumentError) as caught:
                add.enqueue(session, near, n=value, near=near)
            assert caught.value.parameter == "n"
            with pytest.raises(JobArgumentError, match="signature"):
                add.enqueue(session, near, near=near, m=1)
            with pytest.raises(JobArgumentError, match="1000000"):
                add.enqueue(session, near, n="x" * 1_000_000, near=near)
            with pytest.raises(InvalidIdError):
                add.enqueue(session, near, near="x")
            with pytest.raises(WrongTypeError, match="4 is a local id"):
                add.enqueue(session, near, near=4)
        assert rows(cluster) == []


class Defining:
    """Valid and invalid definitions of tasks."""

    @pytest.mark.parametrize("name", ["", "x" * 201, 3])
    def test_names(self, name):
        with pytest.raises(TaskDefinitionError):
            task(name)

    @pytest.mark.parametrize("queue", ["", "a b", "q" * 65, "\u00e9", None])
    def test_queues(self, queue):
        with pytest.raises(JobOptionError):
            task("tests.odd", queue=queue)

    def test_functions(self):
        for function in (
            lambda: None,
            lambda session, *ids: None,
            lambda session, near: None,
            7,
        ):
            with pytest.raises(TaskDefinitionError):
                task("tests.odd")(function)
        with pytest.raises(TaskDefinitionError, match="already used"):
            task("tests.add")(lambda session, n: None)

    def test_the_default_is_that_of_pinlater(self):
        made = Task(
            lambda session: None,
            "tests.default",
            queue="default",
            retry=DEFAULT,
            max_attempts=None,
            priority=2,
            in_transaction=True,
            keyspace=None,
        )
        assert made.max_attempts == 11
        pauses = [DEFAULT.pause(n) for n in range(1, 11)]
        assert pauses == [10, 20, 30, 40, 50, 60, 120, 240, 480, 960]
        policy = Linear(1, step=2).then(Exponential(3, 4, 10, longest=50))
        assert [policy.pause(n) for n in range(1, 5)] == [2, 4, 40, 50]
        assert all(45 <= policy.delay(99) <= 55 for _ in range(100))

    @pytest.mark.parametrize(
        "make",
        [
            lambda: Linear(-1),
            lambda: Linear(True),
            lambda: Linear(1, step=-1),
            lambda: Exponential(1, first=float("nan")),
            lambda: Exponential(1, factor=0.5),
        ],
    )
    def test_bad_policies(self, make):
        with pytest.raises(JobOptionError):
            make()


class Claiming(Suite):
    """A claim is of one holder, and ends."""

    def jobs(self, cluster: Cluster, near: int, count: int = 1) -> None:
        with cluster.begin() as session:
            add.enqueue_many(session, [{"counter_id": near}] * count, near=near)

    def test_oldest_first_and_no_job_twice(self, cluster, near):
        self.jobs(cluster, near, 5)
        with cluster.begin() as session:
            first = take(session, near, limit=3)
        with cluster.begin() as session:
            second = take(session, near, limit=3)
        with cluster.begin() as session:
            assert take(session, near) == []
        numbers = [job.local_id for job in (*first, *second)]
        assert numbers == [row.id for row in rows(cluster)]
        assert {job.attempt for job in first} == {1}
        assert first[0].arguments == {"counter_id": near}
        assert first[0].token == first[1].token != second[0].token

    def test_a_queue_and_a_priority(self, cluster, near):
        with cluster.begin() as session:
            add.enqueue(session, near, near=near, priority=1)
            add.enqueue(session, near, near=near)
        with cluster.begin() as session:
            assert take(session, near, queue="other") == []
            assert len(take(session, near, priority=1)) == 1
            assert len(take(session, near, priority=3)) == 0

    def test_an_acknowledgement_is_idempotent(self, cluster, near):
        self.jobs(cluster, near, 2)
        with cluster.begin() as session:
            jobs = take(session, near)
        for _ in range(2):
            with cluster.begin() as session:
                claims.acknowledge(session, jobs)
        for row in rows(cluster):
            assert (row.state, row.attempts) == (JobState.DONE, 1)

    def test_one_of_several_is_lost(self, cluster, near):
        self.jobs(cluster, near, 3)
        with cluster.begin() as session:
            jobs = take(session, near)
        expire(cluster, jobs[1])
        with cluster.begin() as session:
            with pytest.raises(JobClaimLostError) as caught:
                claims.acknowledge(session, jobs)
            assert caught.value.jobs == (str(jobs[1]),)
        assert [row.state for row in rows(cluster)] == [2, 1, 2]

    def test_a_failure_is_retried_until_the_last_attempt(self, cluster, near):
        self.jobs(cluster, near)
        for attempt in range(1, 4):
            with cluster.begin() as session:
                (job,) = take(session, near)
            assert job.attempt == attempt
            with cluster.begin() as session:
                claims.fail(session, job, f"error {attempt}", 0)
            (row,) = rows(cluster)
            assert row.error == f"error {attempt}"
        assert row.state == JobState.FAILED
        with cluster.begin() as session:
            assert take(session, near) == []

    def test_a_retry_waits(self, cluster, near):
        self.jobs(cluster, near)
        with cluster.begin() as session:
            (job,) = take(session, near)
        with cluster.begin() as session:
            claims.fail(session, job, "e", 3600)
        (row,) = rows(cluster)
        after = row.due_at - row.created_at
        assert timedelta(minutes=60) <= after < timedelta(minutes=90)
        with cluster.begin() as session:
            assert take(session, near) == []

    def test_a_job_that_was_not_tried(self, cluster, near):
        self.jobs(cluster, near)
        with cluster.begin() as session:
            (job,) = take(session, near)
        with cluster.begin() as session:
            claims.release(session, job)
        with cluster.begin() as session:
            (again,) = take(session, near)
        assert again.attempt == 1

    def test_a_checkpoint(self, cluster, near):
        self.jobs(cluster, near)
        with cluster.begin() as session:
            (job,) = take(session, near)
        assert job.checkpoint is None
        with cluster.begin() as session:
            claims.checkpoint(session, job, '{"done": 7}')
        with cluster.begin() as session:
            claims.fail(session, job, "e", 0)
        with cluster.begin() as session:
            (job,) = take(session, near)
        assert (job.attempt, job.checkpoint) == (2, {"done": 7})
        with cluster.begin() as session:
            claims.checkpoint(session, job, "8", again_after=0)
        with cluster.begin() as session:
            (job,) = take(session, near)
        assert (job.attempt, job.checkpoint) == (1, 8)


class Late(Suite):
    """Whatever is written without a valid claim changes nothing."""

    def lost(self, cluster: Cluster, job: Any) -> None:
        """Whatever the former holder writes is refused."""
        before = rows(cluster)
        for write in (
            lambda session: claims.acknowledge(session, [job]),
            lambda session: claims.fail(session, job, "e", 0),
            lambda session: claims.release(session, job),
            lambda session: claims.checkpoint(session, job, "1"),
            lambda session: claims.checkpoint(session, job, "1", again_after=0),
        ):
            with cluster.begin() as session:
                with pytest.raises(JobClaimLostError) as caught:
                    write(session)
                assert caught.value.jobs == (str(job),)
        with cluster.begin() as session:
            assert extend(session, [job]) == [job]
        assert rows(cluster) == before

    def test_late_writes_are_refused(self, cluster, near):
        add.enqueue_now(cluster, near, near=near)
        with cluster.begin() as session:
            (job,) = take(session, near)
        expire(cluster, job)
        self.lost(cluster, job)  # expired
        assert clean_up(cluster, ["adding"]).recovered == 1
        self.lost(cluster, job)  # pending again
        with cluster.begin() as session:
            (again,) = take(session, near)
        assert again.attempt == 2
        self.lost(cluster, job)  # another one has it
        with cluster.begin() as session:
            claims.acknowledge(session, [again])
        self.lost(cluster, job)  # and has finished it


class WorkerMaintenance(Suite):
    """Maintenance of the shards by every worker."""

    def test_surveys(self, cluster, near):
        other = counter(cluster, 4)
        with cluster.begin() as session:
            add.enqueue(session, near, near=near, priority=1)
            add.enqueue(session, near, near=near, priority=1)
            add.enqueue(session, near, near=near, priority=3)
            add.enqueue(session, near, near=near, run_after=3600)
        with cluster.begin() as session:
            add.enqueue(session, other, near=other)
        groups, unread = due_jobs(cluster, ["adding", "other"])
        assert unread == []
        assert sorted((g.shard_id, g.priority) for g in groups) == [
            (1, 1),
            (1, 3),
            (4, 2),
        ]
        assert due_jobs(cluster, ["other"]) == ([], [])
        # As by delete_of() without states.
        assert due_rows(cluster, ["adding"], {}) == ([], [])

    def test_lost_claims_are_recovered_once(self, cluster, near):
        with cluster.begin() as session:
            add.enqueue(session, near, near=near, max_attempts=1)
            add.enqueue(session, near, near=near)
            add.enqueue(session, near, near=near)
        with cluster.begin() as session:
            jobs = take(session, near)
            claims.start(session, jobs[0])
        expire(cluster, jobs[0])
        expire(cluster, jobs[1])
        hints: list[Any] = []
        with hints_of(cluster).listening(hints.append):
            assert clean_up(cluster, ["adding"]).recovered == 2
        # The group that a look for work finds, too.
        (group,) = clean_up(cluster, ["adding"], looks=True).due
        assert hints == [{group}]
        done = clean_up(cluster, ["adding"])
        assert (done.recovered, done.due) == (0, ())
        assert [row.state for row in rows(cluster)] == [3, 0, 1]
        assert "expired" in rows(cluster)[0].error

    @pytest.mark.parametrize("most", [1, 3])
    def test_an_attempt_counts_when_its_function_begins(self, cluster, near, most):
        """A worker that is killed again and again has not begun some jobs."""
        with cluster.begin() as session:
            add.enqueue(session, near, near=near, max_attempts=most)
        for _ in range(5):
            with cluster.begin() as session:
                (job,) = take(session, near)
            assert job.attempt <= most
            expire(cluster, job)
            assert clean_up(cluster, ["adding"]).recovered == 1
        (row,) = rows(cluster)
        assert (row.state, row.attempts) == (JobState.PENDING, min(1, most - 1))
        for attempt in range(row.attempts + 1, most + 1):
            assert rows(cluster)[0].state == JobState.PENDING
            with cluster.begin() as session:
                (job,) = take(session, near)
                assert (job.attempt, job.was_lost) == (attempt, True)
                claims.start(session, job)
            expire(cluster, job)
            with cluster.begin() as session, pytest.raises(JobClaimLostError):
                claims.start(session, job)
            clean_up(cluster, ["adding"])
        (row,) = rows(cluster)
        assert (row.state, row.attempts) == (JobState.FAILED, most)

    def test_a_release_gives_the_attempt_back(self, cluster, near):
        with cluster.begin() as session:
            add.enqueue(session, near, near=near, max_attempts=1)
        for starts in (False, True, False):
            with cluster.begin() as session:
                (job,) = take(session, near)
                if starts:
                    claims.start(session, job)
                claims.release(session, job)
            (row,) = rows(cluster)
            assert (row.state, row.attempts, row.token) == (0, 0, None)

    def test_finished_jobs_are_deleted_by_the_time_they_finished(self, cluster, near):
        with cluster.begin() as session:
            add.enqueue(session, near, near=near)
            add.enqueue(session, near, near=near)
            add.enqueue(session, near, near=near)
        with cluster.begin() as session:
            jobs = take(session, near)
            claims.acknowledge(session, jobs[:2])
            claims.fail(session, jobs[2], "e", 0, is_final=True)
        done = clean_up(cluster, ["adding"])
        assert (done.deleted, done.unreachable) == (0, ())
        expire(cluster, jobs[0])
        old = timedelta(seconds=1)
        done = clean_up(cluster, ["adding"], keep_done=old)
        assert done.deleted == 1
        assert [row.id for row in rows(cluster)] == [jobs[1].local_id, jobs[2].local_id]

    def test_a_shard_that_another_process_maintains(self, cluster, near):
        with cluster.begin() as session:
            add.enqueue(session, near, near=near)
        with cluster.begin() as session:
            (job,) = take(session, near)
        expire(cluster, job)
        place = cluster.places.place(cluster.places.keyspace(None, "objects"), 1)
        if not place.backend.waits:
            pytest.skip("SQLite has one writer")
        name = f"sqla_shard_job {place.schema}"
        with cluster.places.engines.visit(place.engine) as connection:
            assert place.backend.try_lock(connection, name)
            assert clean_up(cluster, ["adding"]).recovered == 0
            place.backend.unlock(connection, name)
        assert clean_up(cluster, ["adding"]).recovered == 1

    def test_drained_servers_get_no_new_jobs(self, cluster, near, monkeypatch):
        def refuse(**context: Any) -> int:
            raise PlacementError("all weights are 0")

        monkeypatch.setattr(cluster, "placement", refuse)
        with pytest.raises(Exception, match="all weights are 0") as caught:
            add.enqueue_now(cluster, near)
        assert type(caught.value).__name__ == "NoHealthyShardsError"
        # Those about an object are where the object is.
        assert add.enqueue_now(cluster, near, near=near).shard_id == 1
        assert len(rows(cluster)) == 1
