"""Workers hold claims: they extend them, lose them, and give them back.

Each class is a suite; a test module has a fixture ``cluster``.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from sqlalchemy import update

from sqla_shard import Cluster
from sqla_shard.exc import (
    CommitUnknownError,
    JobClaimLostError,
    JobOptionError,
    JobTimeLimitError,
    NoHealthyShardsError,
)
from sqla_shard.ids import unpack
from sqla_shard.jobs import claims, current_job, JobLogFilter, JobState, task, Worker
from sqla_shard.jobs.claims import confirm, extend
from sqla_shard.jobs.context import Heartbeat
from sqla_shard.jobs.survey import due_jobs, windows_of
from sqla_shard.jobs.transactions import clean_up
from sqla_shard.outbox import scan as scan_module
from sqla_shard.outbox.tables import JOBS
from sqla_shard.testing.local_server import wait_until
from tests.models.job_models import (
    add,
    Counter,
    counter,
    counters,
    expire,
    JOB_CLUSTERS,
    on_shard,
    rows,
    take,
)
from tests.suites.jobs import Suite
from tests.suites.jobs_working import defined, WAIT, work

__all__ = [
    "Awaited",
    "Beating",
    "Doubts",
    "Resting",
    "Stopping",
    "TimeLimits",
    "defined",
]

cluster = JOB_CLUSTERS.on_backend()


@contextmanager
def working(cluster: Cluster, **options: Any) -> Iterator[Any]:
    """Run a worker in a thread; its report is that of the last run."""
    worker = Worker(cluster, queues=["own"], **options)
    reports: list[Any] = []
    thread = threading.Thread(target=lambda: reports.append(worker.run()))
    thread.start()
    try:
        yield worker, reports
    finally:
        worker.stop()
        thread.join(WAIT)
        assert not thread.is_alive()


def take_away(cluster: Cluster) -> None:
    """Let another worker have the only job, and finish it."""
    on_shard(
        cluster, 1, update(JOBS).values(state=JobState.DONE.value, token=b"another")
    )


def until_check_fails() -> type[Exception]:
    """Call ``check()`` until it raises; return the class of the error."""
    job, end = current_job(), time.monotonic() + WAIT
    while time.monotonic() < end:
        try:
            job.check()
        except (JobClaimLostError, JobTimeLimitError) as error:
            return type(error)
        time.sleep(0.01)
    raise AssertionError("check() has not raised")


class Beating(Suite):
    """Claims of running jobs are extended, and those of killed workers not."""

    def test_the_job_of_a_killed_worker(self, cluster, near, defined):
        def one(counter_id: int) -> None: ...

        def is_done() -> bool:
            return rows(cluster)[0].state == JobState.DONE

        with working(cluster, lease=1):
            job = defined(one, in_transaction=False).enqueue_now(
                cluster, near, near=near
            )
            # The first cleanup, before all jobs, is over.
            wait_until(is_done, seconds=WAIT)
            state = {"state": JobState.RUNNING.value, "token": b"lost"}
            which = update(JOBS).where(JOBS.c.id == job.local_id)
            on_shard(cluster, job.shard_id, which.values(state))
            expire(cluster, job)
            # Less than the pause of a worker with a long lease.
            wait_until(is_done, seconds=12)

    def test_a_task_that_runs_longer_than_its_claim(self, cluster, near, defined):
        running, end = threading.Event(), threading.Event()

        def slow(counter_id: int) -> None:
            running.set()
            assert end.wait(WAIT)

        defined(slow, in_transaction=False).enqueue_now(cluster, near, near=near)
        with working(cluster, lease=1.5) as (_, reports):
            assert running.wait(WAIT)
            first = rows(cluster)[0].due_at
            wait_until(
                lambda: (rows(cluster)[0].due_at - first).total_seconds() > 2,
                seconds=WAIT,
            )
            assert clean_up(cluster, ["own"]).recovered == 0
            end.set()
            wait_until(lambda: rows(cluster)[0].state == JobState.DONE, seconds=WAIT)
        assert (reports[0].succeeded, reports[0].lost) == (1, 0)
        assert rows(cluster)[0].attempts == 1

    @pytest.mark.parametrize("how", ["save", "extend"])
    def test_a_task_extends_its_claim_by_the_lease_of_the_worker(
        self, cluster, near, defined, how
    ):
        due: list[Any] = []

        def saves(counter_id: int) -> None:
            due.append(rows(cluster)[0].due_at)
            if how == "save":
                current_job().save(1)
            else:
                current_job().extend()
            due.append(rows(cluster)[0].due_at)

        defined(saves, in_transaction=False).enqueue_now(cluster, near, near=near)
        with working(cluster, lease=86400):
            wait_until(lambda: len(due) == 2, seconds=WAIT)
        # The default of a claim is a minute.
        assert due[1] > due[0]

    @pytest.mark.parametrize("is_async", [False, True])
    def test_a_task_learns_that_its_claim_is_lost(
        self, cluster, near, defined, is_async
    ):
        running = threading.Event()
        ended: list[Any] = []

        def looks(counter_id: int) -> None:
            running.set()
            ended.append(until_check_fails())
            current_job().check()

        async def waits(counter_id: int) -> None:
            running.set()
            try:
                await asyncio.sleep(WAIT)
            finally:
                ended.append(JobClaimLostError)

        defined(waits if is_async else looks, in_transaction=False).enqueue_now(
            cluster, near, near=near
        )
        with working(cluster, lease=1) as (_, reports):
            assert running.wait(WAIT)
            take_away(cluster)
            wait_until(lambda: ended, seconds=WAIT)
        assert ended == [JobClaimLostError]
        assert (reports[0].lost, reports[0].failed) == (1, 0)

    def test_which_claims_are_lost(self, cluster, near):
        other = counter(cluster, 4)
        for one in (near, other):
            with cluster.begin() as session:
                add.enqueue_many(session, [{"counter_id": one}] * 3, near=one)
        jobs = []
        for one in (near, other):
            with cluster.begin() as session:
                jobs += take(session, one)
        expire(cluster, jobs[0])
        expire(cluster, jobs[4])
        before = {(r.shard_id, r.id): r.due_at for r in self.all(cluster)}
        place = cluster.places.place
        space = cluster.places.keyspace(None, "objects")
        if place(space, 1).engine is place(space, 4).engine:
            groups = [jobs]
        else:
            groups = [jobs[:3], jobs[3:]]
        lost = []
        for group in groups:
            lost += cluster.run(extend, group, 600, cross_shard="unordered")
        assert lost == [jobs[0], jobs[4]]
        for row in self.all(cluster):
            was = before[row.shard_id, row.id]
            is_lost = (row.shard_id, row.id) in {
                (one.shard_id, one.local_id) for one in lost
            }
            assert (row.due_at == was) == is_lost

    def all(self, cluster: Cluster) -> list[Any]:
        return [*rows(cluster, 1), *rows(cluster, 4)]

    def test_log_records_have_the_job(self, cluster, near, defined, caplog):
        logger = logging.getLogger("tests.some_library")
        records: list[Any] = []
        seen = JobLogFilter()

        def logs(counter_id: int) -> None:
            logger.warning("inside")

        job = defined(logs, in_transaction=False).enqueue_now(cluster, near, near=near)
        work(cluster, "own")
        logger.addFilter(seen)
        try:
            logger.warning("outside")
            defined(logs, in_transaction=False).enqueue_now(cluster, near, near=near)
            work(cluster, "own")
        finally:
            logger.removeFilter(seen)
        records = [r for r in caplog.records if r.name == logger.name]
        assert [getattr(r, "job", None) for r in records] == [
            None,
            "-",
            f"objects/1/{job.local_id + 1}",
        ]
        assert (records[2].task, records[2].attempt) == ("tests.logs", 1)


class TimeLimits(Suite):
    """A task that takes too long is ended, if it can be."""

    @pytest.mark.parametrize("wrong", [0, -1, True, "5"])
    def test_bad_limits(self, wrong):
        with pytest.raises(JobOptionError) as caught:
            task("tests.odd", time_limit=wrong)(lambda session: None)
        assert caught.value.option == "time_limit"

    def test_in_a_thread(self, cluster, near, defined):
        remaining: list[Any] = []

        def slow(session: Any, counter_id: int) -> None:
            add(session, counter_id)
            remaining.append(current_job().remaining)
            assert until_check_fails() is JobTimeLimitError
            current_job().check()

        defined(slow, time_limit=0.3, max_attempts=1).enqueue_now(
            cluster, near, near=near
        )
        assert work(cluster, "own").failed == 1
        assert "time limit of 0.3 s" in rows(cluster)[0].error
        assert counters(cluster, [near]) == [0]
        assert 0 < remaining[0] <= 0.3

    def test_awaited(self, cluster, near, defined):
        async def slow(session: Any, counter_id: int) -> None:
            await session.run_sync(add, counter_id)
            await asyncio.sleep(WAIT)

        defined(slow, time_limit=0.3, max_attempts=1).enqueue_now(
            cluster, near, near=near
        )
        assert work(cluster, "own").failed == 1
        assert "time limit of 0.3 s" in rows(cluster)[0].error
        assert counters(cluster, [near]) == [0]

    def test_a_cancellation_that_is_swallowed(self, cluster, near, defined):
        ends: list[int] = []

        async def swallows(session: Any, counter_id: int) -> None:
            for _ in range(3):
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(WAIT)
                ends.append(1)

        defined(swallows, time_limit=0.1, max_attempts=1).enqueue_now(
            cluster, near, near=near
        )
        assert work(cluster, "own").failed == 1
        assert len(ends) == 3

    def test_the_claim_of_a_thread_that_does_not_end_expires(
        self, cluster, near, defined
    ):
        first, end = threading.Event(), threading.Event()

        def hangs(session: Any, counter_id: int) -> None:
            if current_job().job.attempt == 1:
                first.set()
                assert end.wait(WAIT)
            add(session, counter_id)

        def is_recovered() -> bool:
            clean_up(cluster, ["own"])
            return bool(rows(cluster)[0].state == JobState.PENDING)

        defined(hangs, time_limit=0.1).enqueue_now(cluster, near, near=near)
        with working(cluster, lease=1, concurrency=1) as (_, reports):
            assert first.wait(WAIT)
            # By the worker itself, or here.
            assert wait_until(is_recovered, seconds=WAIT / 2)
            assert work(cluster, "own").succeeded == 1
            end.set()
        assert reports[0].lost == 1
        assert counters(cluster, [near]) == [1]


class Awaited(Suite):
    """Tasks that are ``async def``."""

    def test_exactly_once(self, cluster, near, defined):
        async def more(session: Any, counter_id: int) -> None:
            one = await session.get(Counter, counter_id)
            one.count += 1

        made = defined(more)
        with cluster.begin() as session:
            made.enqueue_many(session, [{"counter_id": near}] * 20, near=near)
        report = work(cluster, "own", concurrency=1)
        assert (report.succeeded, report.failed) == (20, 0)
        assert counters(cluster, [near]) == [20]
        assert {row.state for row in rows(cluster)} == {JobState.DONE}

    def test_they_run_at_the_same_time(self, cluster, near, defined):
        inside: list[int] = []
        most: list[int] = []
        all_in = asyncio.Event()

        async def meets(counter_id: int) -> None:
            inside.append(1)
            most.append(len(inside))
            if len(inside) == 3:
                all_in.set()
            await asyncio.wait_for(all_in.wait(), WAIT)
            inside.pop()

        made = defined(meets, in_transaction=False)
        with cluster.begin() as session:
            made.enqueue_many(session, [{"counter_id": near}] * 3, near=near)
        assert work(cluster, "own", concurrency=3).succeeded == 3
        assert max(most) == 3

    def test_failures(self, cluster, near, defined):
        async def breaks(session: Any, counter_id: int) -> None:
            await session.run_sync(add, counter_id)
            raise RuntimeError("as it always does")

        async def commits(session: Any, counter_id: int) -> None:
            await session.run_sync(add, counter_id)
            await session.commit()

        async def cancels(session: Any, counter_id: int) -> None:
            # Of its own doing, which would otherwise be repeated for ever.
            raise asyncio.CancelledError

        for function in (breaks, commits, cancels):
            defined(function, max_attempts=1).enqueue_now(cluster, near, near=near)
        assert work(cluster, "own").failed == 3
        first, second, _ = (row.error for row in rows(cluster))
        assert first == "RuntimeError: as it always does"
        assert "has called commit()" in second
        assert counters(cluster, [near]) == [0]

    def test_transactions_of_its_own(self, cluster, near, defined):
        async def steps(counter_id: int) -> None:
            job = current_job()
            for step in range((job.checkpoint or 0) + 1, 4):
                async with cluster.async_begin() as session:
                    await session.run_sync(add, counter_id)
                    await job.async_save(step, session=session)
                if job.job.attempt == step < 3:
                    raise RuntimeError
            await job.async_extend()
            await job.async_save("end")
            async with cluster.async_begin() as session:
                await session.run_sync(add, counter_id)
                await job.async_ack_with(session)
            raise RuntimeError

        defined(steps, in_transaction=False).enqueue_now(cluster, near, near=near)
        report = work(cluster, "own")
        assert (report.failed, report.succeeded) == (2, 1)
        assert counters(cluster, [near]) == [4]
        (row,) = rows(cluster)
        assert (row.state, row.checkpoint) == (JobState.DONE, '"end"')


class Stopping(Suite):
    """The jobs of a worker that ends are for others, at once."""

    def test_it_can_run_again(self, cluster, near):
        worker = Worker(cluster, queues=["adding"], concurrency=1)
        for turn in (1, 2):
            add.enqueue_now(cluster, near, near=near)
            assert worker.run(until_empty=True).succeeded == 1
            assert counters(cluster, [near]) == [turn]

    def test_an_error_of_another_thread_ends_it(self, cluster, near, monkeypatch):
        def breaks(self: Any) -> None:
            raise RuntimeError("of the heartbeat")

        monkeypatch.setattr(Heartbeat, "beat", breaks)
        with pytest.raises(RuntimeError, match="of the heartbeat"):
            Worker(cluster, queues=["adding"], lease=1).run()

    @pytest.mark.parametrize("is_async", [False, True])
    def test_a_task_that_does_not_end(self, cluster, near, defined, is_async):
        running, end = threading.Event(), threading.Event()
        first: list[Any] = []

        def hangs(session: Any, counter_id: int) -> None:
            if not first:
                first.append(current_job())
                running.set()
                assert end.wait(WAIT)
            add(session, counter_id)

        async def waits(session: Any, counter_id: int) -> None:
            if not first:
                first.append(current_job())
                running.set()
                await asyncio.sleep(WAIT)
            await session.run_sync(add, counter_id)

        defined(waits if is_async else hangs).enqueue_now(cluster, near, near=near)
        with working(cluster) as (worker, reports):
            assert running.wait(WAIT)
            worker.stop(60)
            worker.stop(0.1)
            wait_until(lambda: reports, seconds=WAIT)
        assert (reports[0].released, reports[0].lost) == (1, 0)
        (row,) = rows(cluster)
        assert (row.state, row.attempts) == (JobState.PENDING, 0)
        assert first[0].is_lost
        assert work(cluster, "own").succeeded == 1
        end.set()
        # The thread ends, and has written nothing.
        wait_until(lambda: ended("sqla-shard-job-0"), seconds=WAIT)
        assert counters(cluster, [near]) == [1]
        assert [row.attempts for row in rows(cluster)] == [1]

    def test_jobs_that_have_not_started(self, cluster, near, defined):
        running, end = threading.Event(), threading.Event()

        def slow(session: Any, counter_id: int) -> None:
            running.set()
            assert end.wait(WAIT)

        made = defined(slow)
        with cluster.begin() as session:
            made.enqueue_many(session, [{"counter_id": near}] * 9, near=near)
        with working(cluster, concurrency=1) as (worker, reports):
            # As after many short jobs: it claims ahead.
            worker._seconds = 0.001
            assert running.wait(WAIT)
            worker.stop()
            wait_until(
                lambda: [row.state for row in rows(cluster)].count(0) == 8, seconds=WAIT
            )
            end.set()
        assert reports[0].succeeded == 1
        assert [row.attempts for row in rows(cluster)].count(1) == 1


def ended(name: str) -> bool:
    return name not in {one.name for one in threading.enumerate()}


class Doubts(Suite):
    """The outcome of the COMMIT of a claim is unknown."""

    @pytest.fixture
    def unknown(self, cluster: Cluster, monkeypatch: Any) -> Any:
        """Lose the response to COMMIT, of the first claim of jobs."""
        run = Cluster.run
        lost: list[Any] = []

        def lossy(is_committed: bool) -> None:
            def instead(
                self: Cluster, fn: Callable[..., Any], *args: Any, **kw: Any
            ) -> Any:
                if fn.__name__ != "attempt" or lost:
                    return run(self, fn, *args, **kw)
                if is_committed:
                    lost.append(run(self, fn, *args, **kw))
                else:
                    with self.session() as session:
                        lost.append(fn(session))
                        session.rollback()
                raise CommitUnknownError(server="server1")

            monkeypatch.setattr(Cluster, "run", instead)

        return lossy

    @pytest.mark.parametrize("is_committed", [True, False])
    def test_its_jobs_do_not_wait(self, cluster, near, unknown, is_committed):
        with cluster.begin() as session:
            add.enqueue_many(session, [{"counter_id": near}] * 5, near=near)
        unknown(is_committed)
        begin = time.monotonic()
        assert work(cluster, "adding").succeeded == 5
        assert time.monotonic() - begin < claims.LEASE / 2
        assert counters(cluster, [near]) == [5]
        assert {(row.state, row.attempts) for row in rows(cluster)} == {
            (JobState.DONE, 1)
        }

    def test_which_were_claimed(self, cluster, near):
        with cluster.begin() as session:
            add.enqueue_many(session, [{"counter_id": near}] * 4, near=near)
        with cluster.begin() as session:
            # As of two queues: each claim has its token.
            jobs = [*take(session, near, limit=2), *take(session, near)]
        expire(cluster, jobs[1])
        assert cluster.run(confirm, jobs) == [jobs[0], *jobs[2:]]


class Resting(Suite):
    """Servers that have failed repeatedly are left alone."""

    @pytest.fixture
    def failing(self, cluster: Cluster) -> Iterator[None]:
        windows = windows_of(cluster)
        space = cluster.places.keyspace(None, "objects")
        engines = {p.engine for p in cluster.places.all_places(space)}
        for engine in engines:
            for _ in range(20):
                windows.record(engine, CommitUnknownError(server="server1"))
        yield
        for engine in engines:
            windows.record(engine, None)

    def test_nothing_is_sent(self, cluster, near, failing):
        with pytest.raises(NoHealthyShardsError, match="failed repeatedly"):
            add.enqueue_now(cluster, near)
        # One that is about an object is where the object is.
        add.enqueue_now(cluster, near, near=near)
        groups, unread = due_jobs(cluster, ["adding"])
        assert groups == []
        assert "failed repeatedly" in str(unread[0].error)

    def test_the_parts_of_a_look_are_one_success(
        self, cluster, near, failing, monkeypatch
    ):
        monkeypatch.setattr(scan_module, "MOST_BRANCHES", 1)
        windows = windows_of(cluster)
        space = cluster.places.keyspace(None, "objects")
        engine = cluster.places.place(space, unpack(near).shard_id).engine
        windows.record(engine, None)
        error = CommitUnknownError(server="server1")
        for _ in range(2):
            windows.record(engine, error)
            assert windows.allows(engine)
            due_jobs(cluster, ["adding"])
            due_jobs(cluster, ["adding"])
        windows.record(engine, error)
        assert not windows.allows(engine)

    def test_a_probe_ends_it(self, cluster, near, failing):
        add.enqueue_now(cluster, near, near=near)
        worker = Worker(cluster, queues=["adding"])
        thread = threading.Thread(target=worker.run)
        thread.start()
        wait_until(lambda: counters(cluster, [near]) == [1], seconds=WAIT)
        worker.stop()
        thread.join(WAIT)

        windows = windows_of(cluster)
        space = cluster.places.keyspace(None, "objects")
        engine = cluster.places.place(space, unpack(near).shard_id).engine
        # Twice: a server that still rests allows one transaction, its probe.
        assert windows.allows(engine)
        assert windows.allows(engine)

        def is_enqueued() -> bool:
            # On any server: the rest of another one may not be over yet.
            try:
                return add.enqueue_now(cluster, near).is_new
            except NoHealthyShardsError:
                return False

        assert wait_until(is_enqueued, seconds=WAIT)
