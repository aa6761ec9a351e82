"""Jobs begin: their turns, the attempts that count, and workers that end."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import monotonic
from typing import Any

import pytest
from sqlalchemy import event, update

from sqla_shard import Cluster
from sqla_shard.jobs import current_job, JobState, runners, Worker
from sqla_shard.jobs.context import Ending, JobOutcome, RunningJob
from sqla_shard.jobs.runners import Beginnings, run_job, Runners
from sqla_shard.outbox.tables import JOBS
from sqla_shard.testing.local_server import wait_until
from tests.models.job_models import (
    add,
    counter,
    counters,
    expire,
    JOB_CLUSTERS,
    on_shard,
    rows,
    take,
)
from tests.suites.jobs import Suite
from tests.suites.jobs_holding import working
from tests.suites.jobs_working import defined, WAIT, work

__all__ = ["defined"]

cluster = JOB_CLUSTERS.on_sqlite()


def claimed(cluster: Cluster, near: int, queue: str = "adding") -> list[Any]:
    with cluster.begin() as session:
        return take(session, near, queue, limit=100)


def running_of(cluster: Cluster, job: Any) -> RunningJob:
    return RunningJob(cluster, job, expires=monotonic() + 60, lease=60)


class TestChildren(Suite):
    """Processes that a task forks are none of the worker."""

    def test_the_child_of_an_awaited_task_runs_no_other(
        self, cluster, near, defined, tmp_path
    ):
        ran = tmp_path / "ran"
        events: dict[str, asyncio.Event] = {}

        def event_of(name: str) -> asyncio.Event:
            return events.setdefault(name, asyncio.Event())

        async def other() -> None:
            event_of("waits").set()
            await event_of("forked").wait()
            with ran.open("a") as file:
                file.write("x")

        async def forks() -> None:
            await event_of("waits").wait()
            child = os.fork()
            event_of("forked").set()
            for _ in range(5):
                await asyncio.sleep(0)
            if child:
                os.waitpid(child, 0)

        for function in (other, forks):
            defined(function, in_transaction=False).enqueue_now(cluster, near=near)
        assert work(cluster, "own", concurrency=2).succeeded == 2
        assert ran.read_text() == "x"

    def test_a_child_ends_with_its_code_and_its_error(
        self, cluster, near, defined, capfd
    ):
        codes: list[int] = []

        def forks(number: int) -> None:
            child = os.fork()
            if child:
                codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            elif number:
                sys.exit(number)
            else:
                raise ValueError("of the child")

        made = defined(forks, in_transaction=False)
        for number in (0, 3):
            made.enqueue_now(cluster, number, near=near)
        assert work(cluster, "own", concurrency=1).succeeded == 2
        assert sorted(codes) == [1, 3]
        assert "ValueError: of the child" in capfd.readouterr().err


class TestEnds(Suite):
    def test_a_factory_of_tasks_is_that_of_its_job(self, cluster, near, defined):
        def broken(loop: object, coroutine: Any, **options: object) -> Any:
            coroutine.close()
            raise RuntimeError("of a job")

        async def sets() -> None:
            asyncio.get_running_loop().set_task_factory(broken)

        async def makes() -> None:
            await asyncio.create_task(asyncio.sleep(0))

        for function in (sets, makes):
            defined(function, in_transaction=False, max_attempts=1).enqueue_now(
                cluster, near=near
            )
        assert work(cluster, "own", concurrency=1).succeeded == 2

    def test_what_has_run_is_not_repeated(self, cluster, near, defined):
        """It has had its effect, although what it returns has not run."""
        calls: list[int] = []

        def returns_a_generator() -> object:
            calls.append(1)
            return (one for one in calls)

        made = defined(returns_a_generator, in_transaction=False, max_attempts=3)
        made.enqueue_now(cluster, near=near)
        assert work(cluster, "own").failed == 1
        (row,) = rows(cluster)
        assert (row.state, len(calls)) == (JobState.FAILED, 1)
        assert "return None, or await it" in row.error

    @pytest.mark.parametrize("is_async", [False, True])
    def test_the_last_attempt_is_not_repeated(self, cluster, near, defined, is_async):
        calls: list[int] = []
        running, end = threading.Event(), threading.Event()

        def hangs() -> None:
            calls.append(1)
            running.set()
            assert end.wait(WAIT)

        async def waits() -> None:
            calls.append(1)
            running.set()
            await asyncio.sleep(WAIT)

        defined(
            waits if is_async else hangs, in_transaction=False, max_attempts=1
        ).enqueue_now(cluster, near=near)
        with working(cluster) as (worker, reports):
            assert running.wait(WAIT)
            worker.stop(0)
            wait_until(lambda: reports, seconds=WAIT)
        (row,) = rows(cluster)
        assert (row.state, row.attempts) == (JobState.FAILED, 1)
        assert row.error == "the worker ended before it"
        assert (reports[0].failed, reports[0].released) == (1, 0)
        assert work(cluster, "own").succeeded == 0
        end.set()
        assert calls == [1]

    @pytest.mark.parametrize("most", [1, 3])
    def test_what_was_released_is_not_called(self, cluster, near, most):
        add.enqueue_now(cluster, near, near=near, max_attempts=most)
        (job,) = claimed(cluster, near)
        running = running_of(cluster, job)
        running.lose()
        assert run_job(cluster, running, Beginnings(cluster)).ending is Ending.LOST
        assert counters(cluster, [near]) == [0]
        assert [row.attempts for row in rows(cluster)] == [int(most > 1)]

    def test_one_that_could_not_begin_is_reported(self, cluster, near, caplog):
        add.enqueue_now(cluster, near, near=near)
        (job,) = claimed(cluster, near)
        worker = Worker(cluster, queues=["adding"])
        worker._note(JobOutcome(job=job, ending=Ending.RELEASED, error="it is down"))
        assert (worker._report.failed, worker._report.released) == (1, 0)
        assert "attempt 1 of 3: it is down" in caplog.text


@pytest.fixture
def hooks():
    before = threading.gettrace(), threading.getprofile()
    yield before
    threading.settrace(before[0])
    threading.setprofile(before[1])


@pytest.fixture
def dead(monkeypatch):
    """Return an event that is set when a thread has ended with an error."""
    found = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda arguments: found.set())
    return found


def fails_in_threads(*of_the_call: object) -> None:
    raise RuntimeError


class TestHooks(Suite):
    """Functions that new threads of the process call."""

    @pytest.mark.parametrize("name", ["settrace", "setprofile"])
    def test_those_that_a_job_leaves_are_undone(
        self, cluster, near, defined, hooks, name, monkeypatch, caplog
    ):
        """Without a thread: one may not start, or its function be slow."""

        def sets() -> None:
            getattr(threading, name)(fails_in_threads)
            monkeypatch.setattr(threading.Thread, "start", fails_in_threads)

        made = defined(sets, in_transaction=False)
        made.enqueue_now(cluster, near=near)
        (job,) = claimed(cluster, near, "own")
        running = running_of(cluster, job)
        outcome = run_job(cluster, running, Beginnings(cluster))
        monkeypatch.undo()
        assert (threading.gettrace(), threading.getprofile()) == hooks
        assert outcome.ending is Ending.SUCCEEDED
        assert running.has_ended.is_set()
        (warning,) = caplog.messages
        assert f"job {job} ({made.name}) has ended with another function" in warning

    def test_that_of_a_debugger_stays(self, cluster, near, defined, hooks, caplog):
        """One that was attached before the worker runs."""
        seen: list[object] = []

        def profile(frame: object, event: str, argument: object) -> None:
            seen.append(frame)

        defined(lambda: None, in_transaction=False).enqueue_now(cluster, near=near)
        worker = Worker(cluster, queues=["own"])
        threading.setprofile(profile)
        assert worker.run(until_empty=True).succeeded == 1
        assert threading.getprofile() is profile
        assert seen
        assert "another function" not in caplog.text

    @pytest.mark.parametrize("is_async", [False, True])
    def test_a_job_that_has_got_no_thread_gets_another(
        self, cluster, near, defined, hooks, dead, is_async
    ):
        """The thread of one of them ends as it begins; nothing else comes."""
        ran: list[str] = []

        def begin() -> None:
            threading.settrace(fails_in_threads)
            made["second"].enqueue_now(cluster, near=near)

        async def first_async() -> None:
            begin()
            async with asyncio.timeout(WAIT):
                while not dead.is_set():
                    await asyncio.sleep(0.01)

        def first() -> None:
            begin()
            assert dead.wait(WAIT)

        async def second_async() -> None:
            ran.append("second")

        def second() -> None:
            ran.append("second")

        made = {
            "first": defined(first_async if is_async else first, in_transaction=False),
            "second": defined(
                second if is_async else second_async, in_transaction=False
            ),
        }
        made["first"].enqueue_now(cluster, near=near)
        worker = Worker(cluster, queues=["own"], concurrency=1 + is_async)
        with ThreadPoolExecutor(1) as pool:
            run = pool.submit(worker.run, until_empty=True)
            try:
                assert run.result(WAIT).succeeded == 2
            finally:
                worker.stop(0)
        assert ran == ["second"]

    def test_one_that_waits_for_its_turn_in_vain_is_given_back(
        self, cluster, near, defined, hooks, dead
    ):
        """The thread in which it would wait has ended as it began."""
        made = defined(lambda: None, in_transaction=False)
        for _ in range(2):
            made.enqueue_now(cluster, near=near)
        jobs = claimed(cluster, near, "own")
        other, lost = (running_of(cluster, replace(job, was_lost=True)) for job in jobs)
        beginnings = Beginnings(cluster)

        async def waits() -> None:
            threading.settrace(fails_in_threads)
            waiting = asyncio.ensure_future(beginnings.async_begin(lost))
            while not dead.is_set():
                await asyncio.sleep(0.01)
            beginnings.end(other)
            await asyncio.wait([waiting], timeout=WAIT)
            assert waiting.cancelled()
            assert await beginnings.async_begin(lost) is None

        asyncio.run(asyncio.wait_for(waits(), WAIT))
        beginnings.close()

    def test_a_thread_that_has_ended_is_replaced(self, cluster, near, monkeypatch):
        outcomes: list[JobOutcome] = []
        found = Runners(cluster, 1, lambda running, outcome: outcomes.append(outcome))
        monkeypatch.setattr(found, "_serve", lambda: None)
        for number in range(2):
            add.enqueue_now(cluster, near, near=near)
            (job,) = claimed(cluster, near)
            found.submit(running_of(cluster, job))
            if not number:
                found._threads[0].join(WAIT)
                monkeypatch.undo()
        assert wait_until(lambda: len(outcomes) == 2, seconds=WAIT)
        found.close()
        assert counters(cluster, [near]) == [2]


class TestTurns(Suite):
    def test_a_server_that_does_not_respond_holds_no_turn(
        self, cluster, near, monkeypatch
    ):
        monkeypatch.setattr(runners, "_ALONE", 0.01)
        other = counter(cluster, 2)
        jobs = []
        for one in (near, other):
            add.enqueue_now(cluster, one, near=one, max_attempts=1)
            jobs += [replace(job, was_lost=True) for job in claimed(cluster, one)]
        silent, alive = (running_of(cluster, job) for job in jobs)
        beginnings = Beginnings(cluster)
        thread = threading.Thread(target=beginnings.begin, args=(silent,))
        with cluster.begin() as session:
            add.function(session, near)
            thread.start()
            assert wait_until(lambda: beginnings._last is silent, seconds=WAIT)
            assert beginnings.begin(alive) is None
            assert thread.is_alive()
        thread.join(WAIT)
        assert [row.attempts for row in (*rows(cluster, 1), *rows(cluster, 2))] == [
            1,
            1,
        ]

    def test_jobs_that_wait_leave_the_threads_of_the_loop(self, cluster, near, defined):
        inside: list[int] = []
        most: list[int] = []
        threads: set[str] = set()

        @event.listens_for(cluster, "connection_obtained")
        def connects(cluster: Any, server: str, seconds: float) -> None:
            threads.add(threading.current_thread().name)

        async def needs_a_thread() -> None:
            inside.append(1)
            most.append(len(inside))
            await asyncio.to_thread(current_job().check)
            inside.pop()

        made = defined(needs_a_thread, in_transaction=False)
        with cluster.begin() as session:
            # More than the threads of a loop.
            made.enqueue_many(session, [{}] * 40, near=near)
        for job in claimed(cluster, near, "own"):
            expire(cluster, job)
        try:
            report = work(cluster, "own", concurrency=40)
        finally:
            event.remove(cluster, "connection_obtained", connects)
        assert report.succeeded == 40
        assert max(most) == 1
        assert any(name.startswith("sqla-shard-beginning") for name in threads)
        assert not any(name.startswith("asyncio") for name in threads)

    def test_each_run_that_begins_ends(self, cluster, near, defined):
        """Also those that are cancelled while they wait, and damaged ones.

        The one that cancels all others cancels itself, and is run again.
        """
        begun: list[int] = []
        ended: list[tuple[int, str]] = []
        jobs: list[Any] = []  # as long as their ids are compared
        first: list[int] = []

        @event.listens_for(cluster, "before_job")
        def begins(cluster: Any, job: Any) -> None:
            jobs.append(job)
            begun.append(id(job))

        @event.listens_for(cluster, "after_job")
        def ends(cluster: Any, report: Any) -> None:
            ended.append((id(report.job), report.ending))

        async def cancels(number: int) -> None:
            if not first:
                first.append(number)
                while len(begun) < 4:
                    await asyncio.sleep(0)
                for one in asyncio.all_tasks() - {asyncio.current_task()}:
                    one.cancel()

        made = defined(cancels, in_transaction=False)
        for number in range(3):
            made.enqueue_now(cluster, number, near=near)
        for job in claimed(cluster, near, "own"):
            expire(cluster, job)
        broken = made.enqueue_now(cluster, 3, near=near)
        which = update(JOBS).where(JOBS.c.id == broken.local_id)
        on_shard(cluster, 1, which.values(arguments="x"))
        try:
            report = work(cluster, "own", concurrency=4)
        finally:
            event.remove(cluster, "before_job", begins)
            event.remove(cluster, "after_job", ends)
        assert (report.succeeded, report.failed) == (3, 2)
        assert sorted(begun) == sorted(number for number, _ in ended)
        assert [ending for _, ending in ended].count("released") == 2
