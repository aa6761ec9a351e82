"""Workers: the jobs that they run, and the outcomes.

Each class is a suite; a test module has a fixture ``cluster``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import threading
import time
from collections import Counter as Counts
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from functools import partial
from itertools import count
from typing import Any, ClassVar

import pytest
from sqlalchemy import delete, update
from sqlalchemy.exc import DataError

from sqla_shard import Cluster, jobs
from sqla_shard.exc import (
    JobArgumentError,
    JobClaimLostError,
    JobOptionError,
    ServerUnreachableError,
)
from sqla_shard.jobs import (
    claims,
    Crontab,
    current_job,
    EnqueuedJob,
    jobs_of,
    JobState,
    Linear,
    queues,
    retry_failed,
    runners,
    survey,
    task,
    tasks,
    transactions,
    Worker,
    worker as workers,
)
from sqla_shard.jobs.hints import _unpacked, hints_of
from sqla_shard.jobs.tasks import ensure_periodic
from sqla_shard.outbox.tables import JOBS, QUEUES
from sqla_shard.session import ShardSession
from sqla_shard.testing.local_server import wait_until
from tests.models.job_models import (
    add,
    Counter,
    counter,
    counters,
    empty,
    expire,
    fails,
    JOB_CLUSTERS,
    on_shard,
    rows,
    SHARDS,
    take,
)
from tests.suites.jobs import Suite

cluster = JOB_CLUSTERS.on_backend()
WAIT = 60


@pytest.fixture
def defined() -> Iterator[Any]:
    """Define tasks, and undefine them after the test."""
    before = dict(tasks._tasks)

    def define(function: Any, **options: Any) -> Any:
        options = {"retry": Linear(2, step=0), "queue": "own", **options}
        return task(f"tests.{function.__name__}", **options)(function)

    yield define
    tasks._tasks.clear()
    tasks._tasks.update(before)


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers claim jobs one by one, and each look at a clock takes 0.1 s."""
    monkeypatch.setattr(workers, "_MOST_AHEAD", 0)
    for module in (survey, queues):
        ticks = count(1000)
        monkeypatch.setattr(module, "monotonic", lambda ticks=ticks: next(ticks) / 10)


def address(row: Any) -> EnqueuedJob:
    return EnqueuedJob(keyspace="objects", shard_id=row.shard_id, local_id=row.id)


def work(cluster: Cluster, *queues: str, **options: Any) -> Any:
    return Worker(cluster, queues=queues, **options).run(until_empty=True)


class Running(Suite):
    """The loop of a worker."""

    def test_every_job_of_every_shard_once(self, cluster, near):
        ids = [counter(cluster, shard_id) for shard_id in range(SHARDS)]
        for one in ids:
            with cluster.begin() as session:
                for priority in (1, 2, 3):
                    add.enqueue_many(
                        session, [{"counter_id": one}] * 10, near=one, priority=priority
                    )
        report = work(cluster, "adding")
        assert (report.succeeded, report.failed, report.lost) == (180, 0, 0)
        assert counters(cluster, ids) == [30] * SHARDS
        for shard_id in range(SHARDS):
            for row in rows(cluster, shard_id):
                assert (row.state, row.attempts) == (JobState.DONE, 1)

    @pytest.mark.parametrize(
        "options", [{"priority": 1}, {"queue": "adding"}, {"queue": "own"}]
    )
    def test_a_busy_worker_sees_other_jobs(self, cluster, near, defined, busy, options):
        ran = []

        @partial(defined, priority=3)
        def backlog(session: ShardSession, number: int) -> None:
            if number == 0:
                with cluster.begin() as session:
                    other.enqueue(session, near=near)
            ran.append(number)

        @partial(defined, **{"priority": 2, **options})
        def other(session: ShardSession) -> None:
            ran.append(-1)

        with cluster.begin() as session:
            numbers = [{"number": number} for number in range(40)]
            backlog.enqueue_many(session, numbers, near=near)
        work(cluster, "own", "adding", concurrency=1)
        assert len(ran) == 41
        assert ran.index(-1) < 39, ran

    def test_two_workers_share_the_jobs(self, cluster, near):
        with cluster.begin() as session:
            add.enqueue_many(session, [{"counter_id": near}] * 60, near=near)
        reports: list[Any] = []
        threads = [
            threading.Thread(target=lambda: reports.append(work(cluster, "adding")))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
        assert sum(report.succeeded for report in reports) == 60
        assert counters(cluster, [near]) == [60]

    def test_a_failing_job_writes_nothing_and_ends(self, cluster, near):
        job = fails.enqueue_now(cluster, near, near=near)
        report = work(cluster, "failing")
        assert (report.succeeded, report.failed) == (0, 3)
        (row,) = rows(cluster)
        assert (row.id, row.state) == (job.local_id, JobState.FAILED)
        assert row.error == "RuntimeError: as it always does"
        assert counters(cluster, [near]) == [0]

    def test_an_unknown_task_stays_and_runs_when_it_is_defined(
        self, cluster, near, defined
    ):
        def newer(session: Any, counter_id: int) -> None:
            add(session, counter_id)

        made = defined(newer, max_attempts=1)
        made.enqueue_now(cluster, near, near=near)
        del tasks._tasks["tests.newer"]
        report = work(cluster, "own")
        assert dict(report.unknown) == {"tests.newer": 1}
        (row,) = rows(cluster)
        assert (row.state, row.attempts) == (JobState.PENDING, 0)
        assert "is not defined in this process" in row.error
        tasks._tasks["tests.newer"] = made
        made.enqueue_now(cluster, near, near=near)
        for row in rows(cluster):
            expire(cluster, address(row))
        assert work(cluster, "own").succeeded == 2
        assert counters(cluster, [near]) == [2]

    def test_it_recovers_what_another_worker_has_left(self, cluster, near):
        add.enqueue_now(cluster, near, near=near)
        with cluster.begin() as session:
            (job,) = take(session, near)
        assert work(cluster, "adding").succeeded == 0
        expire(cluster, job)
        report = work(cluster, "adding")
        assert (report.recovered, report.succeeded) == (1, 1)
        (row,) = rows(cluster)
        assert (row.state, row.attempts) == (JobState.DONE, 2)

    def test_a_signal_that_interrupts_no_system_call(self, cluster, near, defined):
        """Its handler is called while the worker waits for a task.

        Another thread receives it, as happens when the main thread is just
        before the wait: the wait is not interrupted.
        """
        running, end = threading.Event(), threading.Event()

        def endless(session: Any, counter_id: int) -> None:
            running.set()
            end.wait(WAIT)

        def receive() -> None:
            running.wait(WAIT)
            signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

        defined(endless).enqueue_now(cluster, near, near=near)
        worker = Worker(cluster, queues=["own"], concurrency=1)
        before = signal.signal(signal.SIGUSR1, lambda number, frame: worker.stop(0))
        receiver = threading.Thread(target=receive)
        try:
            receiver.start()
            report = worker.run()
        finally:
            end.set()
            receiver.join()
            signal.signal(signal.SIGUSR1, before)
        assert (report.succeeded, report.released) == (0, 1)

    def test_it_stops_after_the_running_jobs(self, cluster, near, defined):
        running, end = threading.Event(), threading.Event()

        def slow(session: Any, counter_id: int) -> None:
            running.set()
            assert end.wait(WAIT)
            add(session, counter_id)

        made = defined(slow)
        for _ in range(3):
            made.enqueue_now(cluster, near, near=near)
        worker = Worker(cluster, queues=["own"], concurrency=1)
        thread = threading.Thread(target=worker.run)
        thread.start()
        assert running.wait(WAIT)
        worker.stop()
        end.set()
        thread.join(WAIT)
        assert not thread.is_alive()
        assert counters(cluster, [near]) == [1]
        states = [row.state for row in rows(cluster)]
        assert states == [JobState.DONE, 0, 0]

    def test_it_stops_while_a_job_blocks_the_event_loop(
        self, cluster, near, defined, monkeypatch
    ):
        monkeypatch.setattr(runners, "_UNTIL_ENDED", 0.1)
        inside, end = threading.Event(), threading.Event()

        async def blocks() -> None:
            inside.set()
            end.wait(WAIT)

        defined(blocks, in_transaction=False).enqueue_now(cluster, near=near)
        worker = Worker(cluster, queues=["own"])
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            assert inside.wait(WAIT)
            worker.stop(0)
            thread.join(WAIT / 2)
            assert not thread.is_alive()
            (row,) = rows(cluster)
            assert (row.state, row.attempts) == (JobState.PENDING, 0)
        finally:
            end.set()
            thread.join(WAIT)

    @pytest.mark.parametrize(
        "options",
        [
            {"queues": []},
            {"queues": "titles"},
            {"queues": ["a b"]},
            {"concurrency": 0},
            {"concurrency": True},
            {"lease": 0},
        ],
    )
    def test_bad_options(self, cluster, options):
        with pytest.raises(JobOptionError):
            Worker(cluster, **options)


class Tasks(Suite):
    """Tasks that use their job."""

    def test_a_lost_claim_undoes_what_was_written(self, cluster, near, defined):
        def late(session: Any, counter_id: int) -> None:
            if current_job().job.attempt == 1:
                expire(cluster, current_job().job)
            add(session, counter_id)

        made = defined(late)
        made.enqueue_now(cluster, near, near=near)
        report = work(cluster, "own")
        assert (report.lost, report.succeeded) == (1, 0)
        assert counters(cluster, [near]) == [0]
        report = work(cluster, "own")
        assert (report.recovered, report.succeeded) == (1, 1)
        assert counters(cluster, [near]) == [1]

    def test_a_task_that_commits_itself(self, cluster, near, defined):
        def commits(session: Any, counter_id: int) -> None:
            add(session, counter_id)
            session.commit()

        defined(commits, max_attempts=1).enqueue_now(cluster, near, near=near)
        assert work(cluster, "own").failed == 1
        (row,) = rows(cluster)
        assert "has called commit()" in row.error
        assert counters(cluster, [near]) == [0]

    def test_a_write_to_another_shard(self, cluster, near, defined):
        far = counter(cluster, 4)

        def crosses(session: Any, counter_id: int) -> None:
            session.get(Counter, far).count = 7

        defined(crosses, max_attempts=1).enqueue_now(cluster, near, near=near)
        assert work(cluster, "own").failed == 1
        (row,) = rows(cluster)
        assert "CrossShardWriteError" in row.error
        assert counters(cluster, [far]) == [0]

    def test_without_a_transaction(self, cluster, near, defined):
        def outside(counter_id: int) -> None:
            with cluster.begin() as session:
                add(session, counter_id)

        made = defined(outside, in_transaction=False)
        made.enqueue_now(cluster, near, near=near)
        assert work(cluster, "own").succeeded == 1
        (row,) = rows(cluster)
        assert row.state == JobState.DONE
        assert counters(cluster, [near]) == [1]

    def test_acknowledged_by_a_transaction_of_the_task(self, cluster, near, defined):
        def outside(counter_id: int) -> None:
            with cluster.begin() as session:
                add(session, counter_id)
                current_job().ack_with(session)
            # It has succeeded, whatever comes after.
            raise RuntimeError

        made = defined(outside, in_transaction=False)
        made.enqueue_now(cluster, near, near=near)
        assert work(cluster, "own").succeeded == 1
        assert [row.state for row in rows(cluster)] == [JobState.DONE]
        assert counters(cluster, [near]) == [1]

    def test_progress(self, cluster, near, defined):
        def steps(counter_id: int) -> None:
            job = current_job()
            done = job.checkpoint or 0
            for step in range(done + 1, 4):
                with cluster.begin() as session:
                    add(session, counter_id)
                    job.save(step, session=session)
                if job.job.attempt == step < 3:
                    raise RuntimeError
            job.save("end")
            job.extend()

        made = defined(steps, in_transaction=False)
        made.enqueue_now(cluster, near, near=near)
        report = work(cluster, "own")
        assert (report.failed, report.succeeded) == (2, 1)
        assert counters(cluster, [near]) == [3]
        assert [row.checkpoint for row in rows(cluster)] == ['"end"']

    def test_a_chain_of_steps(self, cluster, near, defined):
        def chain(session: Any, counter_id: int) -> None:
            add(session, counter_id)
            done = (current_job().checkpoint or 0) + 1
            if done < 5:
                current_job().run_again(session, done)

        made = defined(chain, max_attempts=1)
        made.enqueue_now(cluster, near, near=near)
        assert work(cluster, "own").succeeded == 5
        assert counters(cluster, [near]) == [5]
        assert [row.state for row in rows(cluster)] == [JobState.DONE]

    def test_late_progress_is_refused(self, cluster, near, defined):
        caught: list[Any] = []

        def late(counter_id: int) -> None:
            job = current_job()
            expire(cluster, job.job)
            for write in (job.extend, lambda: job.save(1)):
                with pytest.raises(JobClaimLostError):
                    write()
                caught.append(1)
            with cluster.begin() as session, pytest.raises(JobClaimLostError):
                job.ack_with(session)
            caught.append(1)

        made = defined(late, in_transaction=False)
        made.enqueue_now(cluster, near, near=near)
        report = work(cluster, "own")
        # Its acknowledgement is refused, too.
        assert (len(caught), report.lost) == (3, 1)

    def test_no_job_runs_here(self):
        with pytest.raises(LookupError):
            current_job()


class SilentError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class NumericError(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


class EndlessError(Exception):
    def __str__(self) -> str:
        return f"{self}"


class Unknown(BaseException):
    pass


class MuteError(BaseException):
    def __str__(self) -> str:
        raise MuteError


class Nameless(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("no name")


class NamelessError(Exception, metaclass=Nameless):
    pass


class HiddenError(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("no attribute")


class OddText(str):
    def __len__(self) -> int:
        raise RuntimeError("no length")


class OddError(Exception):
    def __str__(self) -> str:
        return OddText("odd")


class Odd:
    def __repr__(self) -> str:
        raise SystemExit


@dataclass(frozen=True, kw_only=True)
class Answering(Linear):
    """A retry policy that returns, or raises, whatever it is given."""

    answer: Any

    def delay(self, retry: int) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def repr_of(value: object) -> str:
    return "odd" if isinstance(value, Odd) else repr(value)[:20]


def real_cause(session: Any) -> None:
    raise ValueError("the real cause")


async def awaited_cause(session: Any) -> None:
    raise ValueError("the real cause")


class BrokenHandler(logging.Handler):
    def emit(self, record: object) -> None:
        raise ValueError("I/O operation on closed file")


class EndingStream:
    def write(self, text: str) -> None:
        raise SystemExit(4)


def deep(count: int) -> int:
    return deep(count + 1)


def in_a_circle() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    raise one


def raising(error: BaseException) -> Callable[[], None]:
    def fails() -> None:
        raise error

    return fails


def in_a_thread() -> None:
    """Fail because of a thread, which ends in its own way."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(sys.exit, "odd").result()


started: list[Any] = []  # asyncio has weak references only


def ends_the_loop() -> None:
    """As a task of asyncio that a library has started."""

    async def exits() -> None:
        sys.exit("of a library")

    loop = asyncio.get_running_loop()
    started.append(loop.create_task(exits()))
    raise RuntimeError("after it has started another task")


def stops_the_loop() -> None:
    asyncio.get_running_loop().stop()
    raise RuntimeError("after it has stopped the loop")


def cancels_all() -> None:
    for one in asyncio.all_tasks():
        one.cancel()
    raise RuntimeError("after it has cancelled all tasks")


def of_a_handler() -> None:
    """Set the handler of a signal, which only the main thread may do."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


def forks() -> None:
    """Fail in both processes: the child must not go on as a worker."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    raise RuntimeError("as its child")


def a_generator() -> Iterator[int]:
    yield 1


async def a_coroutine() -> None:
    pass


async def an_async_generator() -> AsyncIterator[int]:
    yield 1


#: Ways to fail that tasks of an application find.
WAYS: dict[str, Callable[[], object]] = {
    "a file name that is no UTF-8": raising(
        ValueError("cannot open " + os.fsdecode(b"caf\xe9"))
    ),
    "half of a pair": raising(ValueError("\ud83d")),
    "no text": raising(SilentError()),
    "a text that is a number": raising(NumericError()),
    "a text without end": raising(EndlessError()),
    "texts that end threads": raising(MuteError()),
    "a text of a class of its own": raising(OddError()),
    "no name": raising(NamelessError()),
    "no attribute": raising(HiddenError()),
    "an argument without repr()": raising(KeyError(Odd())),
    "sys.exit() without a text": raising(SystemExit(Odd())),
    "a long text": raising(ValueError("x" * 20_000_000)),
    "a long text of long letters": raising(ValueError("\U0001f600" * 10**6)),
    "NUL": raising(ValueError("a\0b")),
    "control characters": raising(ValueError("\x1b[2J\x9b\u202e\r\n")),
    "bytes": raising(ValueError(b"\xff\xfe")),
    "no argument": raising(ValueError()),
    "an error as argument": raising(ValueError(SilentError())),
    "a base exception": raising(Unknown("odd")),
    "sys.exit()": sys.exit,
    "sys.exit(0)": raising(SystemExit(0)),
    "sys.exit() with a surrogate": raising(SystemExit("\udce9")),
    "Ctrl-C": raising(KeyboardInterrupt()),
    "GeneratorExit": raising(GeneratorExit()),
    "StopIteration": raising(StopIteration("over")),
    "StopAsyncIteration": raising(StopAsyncIteration("over")),
    "cancelled": raising(asyncio.CancelledError()),
    "a cancelled future": raising(CancelledError()),
    "a time-out": raising(TimeoutError()),
    "no memory": raising(MemoryError()),
    "recursion": lambda: deep(0),
    "a circle of causes": in_a_circle,
    "a group": raising(ExceptionGroup("several", [SilentError(), ValueError()])),
    "a group of odd ones": raising(
        BaseExceptionGroup("odd", [SystemExit(1), KeyboardInterrupt()])
    ),
    "an assertion": raising(AssertionError("\udcff")),
    "an error of Unicode": raising(
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "\udcff")
    ),
    "an error of the system": raising(OSError(28, "No space", "\udcff")),
    "more memory than there is": lambda: bytearray(2**62),
    "a number that is too long": lambda: str(10**5000),
    "JSON that is too deep": lambda: json.loads("[" * 100_000),
    "a thread of a pool": in_a_thread,
    "a thread that does not come": lambda: threading.Barrier(2).wait(0),
    "a loop in a loop": ends_the_loop,
    "a loop that is stopped": stops_the_loop,
    "all tasks are cancelled": cancels_all,
    "a handler of a signal": of_a_handler,
    "a child": forks,
    "a generator": a_generator,
    "a coroutine": a_coroutine,
    "an asynchronous generator": an_async_generator,
}


class Strangers(Suite):
    """Tasks fail in any way: the job has failed, and the others run."""

    @pytest.mark.parametrize("kind", ["session", "plain", "async"])
    def test_each_way_to_fail(self, cluster, near, defined, kind):
        def of_session(session: Any, name: str) -> object:
            return WAYS[name]()

        def plain(name: str) -> object:
            return WAYS[name]()

        async def awaited(name: str) -> object:
            return WAYS[name]()

        functions = {"session": of_session, "plain": plain, "async": awaited}
        strange = defined(
            functions[kind], max_attempts=1, in_transaction=kind == "session"
        )

        def good_one(session: Any, counter_id: int) -> None:
            add(session, counter_id)

        good = defined(good_one)
        with cluster.begin() as session:
            for name in WAYS:
                strange.enqueue(session, name, near=near)
                good.enqueue(session, near, near=near)
        report = work(cluster, "own", concurrency=2)
        assert (report.succeeded, report.failed) == (len(WAYS), len(WAYS))
        assert counters(cluster, [near]) == [len(WAYS)]
        states = Counts(row.state for row in rows(cluster))
        assert states == {JobState.DONE: len(WAYS), JobState.FAILED: len(WAYS)}

    @pytest.mark.parametrize("stream", [object(), EndingStream()], ids=["no", "ends"])
    def test_a_handler_of_the_log_that_fails(
        self, cluster, near, defined, monkeypatch, stream
    ):
        """As that of a stream that is closed; and the stream for errors is odd."""
        handler = BrokenHandler()
        log = logging.getLogger("sqla_shard.jobs")
        monkeypatch.setattr(sys, "stderr", stream)

        def fails_then(session: Any) -> None:
            raise ValueError

        def good_one(session: Any, counter_id: int) -> None:
            add(session, counter_id)

        strange, good = defined(fails_then, max_attempts=1), defined(good_one)
        strange.enqueue_now(cluster, near=near)
        good.enqueue_now(cluster, near, near=near)
        log.addHandler(handler)
        try:
            # Not in the main thread, where a signal may have raised SystemExit.
            with ThreadPoolExecutor(1) as threads:
                report = threads.submit(work, cluster, "own", concurrency=1).result()
        finally:
            log.removeHandler(handler)
        assert (report.succeeded, report.failed) == (1, 1)

    def test_what_a_job_sets_is_its_own(self, cluster, near, defined):
        tenant = ContextVar("tenant", default="none")
        seen: list[str] = []

        def sets(session: Any) -> None:
            seen.append(tenant.get())
            tenant.set("of another job")

        made = defined(sets)
        for _ in range(3):
            made.enqueue_now(cluster, near=near)
        assert work(cluster, "own", concurrency=1).succeeded == 3
        assert seen == ["none"] * 3

    @pytest.mark.parametrize("column", ["arguments", "checkpoint", "context"])
    def test_a_row_that_cannot_be_read_holds_nobody(
        self, cluster, near, defined, column
    ):
        """Others may have written it, or a disk has damaged it."""

        async def awaited(session: Any, counter_id: int) -> None:
            await session.run_sync(add, counter_id)

        texts = ["", "not json", "[" * 30_000, '{"a": ' + "1" * 5000 + "}", "[1]"]
        made = [defined(awaited), add]
        for number, text in enumerate(texts):
            job = made[number % 2].enqueue_now(cluster, near, near=near)
            which = update(JOBS).where(JOBS.c.id == job.local_id)
            on_shard(cluster, 1, which.values({column: text}))
            made[number % 2].enqueue_now(cluster, near, near=near)
        seen = [*jobs_of(cluster, "own").jobs, *jobs_of(cluster, "adding").jobs]
        assert len(seen) == 10
        if column == "checkpoint":
            texts = texts[:-1]  # a list can be a checkpoint
        damaged = 0 if column == "context" else len(texts)
        assert sum("cannot be read" in str(one.error) for one in seen) == damaged
        report = work(cluster, "own", "adding")
        assert (report.succeeded, report.failed) == (10 - len(texts), len(texts))
        assert counters(cluster, [near]) == [10 - len(texts)]
        failed = [row for row in rows(cluster) if row.state == JobState.FAILED]
        assert len(failed) == len(texts)
        for row in failed:
            assert f"{column}= cannot be read" in row.error
            assert row.attempts == 1

    @pytest.mark.parametrize("is_async", [False, True])
    @pytest.mark.parametrize(
        ("answer", "second"),
        [
            (ZeroDivisionError(), "ZeroDivisionError: "),
            (SystemExit(3), "SystemExit: 3"),
            (asyncio.CancelledError(), "CancelledError: "),
            (None, "JobOptionError: retry=None: must be a finite number of seconds"),
            ("soon", "JobOptionError: retry='soon': must be "),
            (float("nan"), "JobOptionError: retry=nan: must be "),
            (float("inf"), "JobOptionError: retry=inf: must be "),
            (1j, "JobOptionError: retry=1j: must be "),
            (Odd(), ""),
        ],
        ids=repr_of,
    )
    def test_a_retry_policy_that_fails(
        self, cluster, near, defined, is_async, answer, second
    ):
        """The error of the task is kept, and no other job waits."""
        kind = awaited_cause if is_async else real_cause
        odd = defined(kind, retry=Answering(2, answer=answer))
        odd.enqueue_now(cluster, near=near)
        add.enqueue_now(cluster, near, near=near)
        report = work(cluster, "own", "adding", concurrency=1)
        assert (report.succeeded, report.failed) == (1, 1)
        failed, _ = rows(cluster)
        assert (failed.state, failed.attempts) == (JobState.PENDING, 1)
        both = f"ValueError: the real cause. Its retry policy failed, too: {second}"
        assert failed.error.startswith(both)
        pause = failed.due_at - failed.created_at
        assert timedelta(seconds=runners._RETRY_SECONDS) <= pause < timedelta(hours=1)

    @pytest.mark.parametrize(
        "delay", [-0.5, -(10**400), Decimal(-1), timedelta(-1), False], ids=repr_of
    )
    def test_a_retry_without_a_pause(self, cluster, near, defined, delay):
        """As of a random part that is larger than the pause."""
        odd = defined(real_cause, retry=Answering(3, answer=delay))
        odd.enqueue_now(cluster, near=near)
        assert work(cluster, "own", concurrency=1).failed == 4
        (row,) = rows(cluster)
        assert (row.state, row.attempts) == (JobState.FAILED, 4)
        assert row.error == "ValueError: the real cause"

    @pytest.mark.parametrize(
        ("delay", "days"),
        [
            (Fraction(86400), 1),
            (400 * 86400, 366),
            (1e300, 366),
            (10**400, 366),
            (timedelta.max, 366),
        ],
        ids=repr_of,
    )
    def test_a_long_pause_before_a_retry(self, cluster, near, defined, delay, days):
        odd = defined(real_cause, retry=Answering(3, answer=delay))
        odd.enqueue_now(cluster, near=near)
        assert work(cluster, "own", concurrency=1).failed == 1
        (row,) = rows(cluster)
        assert (row.state, row.attempts) == (JobState.PENDING, 1)
        assert row.error == "ValueError: the real cause"
        pause = row.due_at - row.created_at
        assert timedelta(days) <= pause < timedelta(days, hours=1)

    @pytest.mark.parametrize("answer", [None, ZeroDivisionError()], ids=repr_of)
    def test_a_retry_policy_is_not_asked_without_a_retry(
        self, cluster, near, defined, answer
    ):
        """A job that would fail again fails, and others keep their outcomes."""

        def generates(session: Any) -> Iterator[int]:
            yield 1

        def acknowledged() -> None:
            with cluster.begin() as session:
                current_job().ack_with(session)
            raise ValueError("after its end")

        def is_late() -> None:
            expire(cluster, current_job().job)
            current_job().extend()

        options = {"retry": Answering(3, answer=answer), "in_transaction": False}
        generating = defined(generates, **{**options, "in_transaction": True})
        generating.enqueue_now(cluster, near=near)
        for function in (acknowledged, is_late):
            defined(function, **options).enqueue_now(cluster, near=near)
        report = work(cluster, "own", concurrency=1)
        assert (report.failed, report.succeeded, report.lost) == (1, 1, 1)
        final, written, _ = rows(cluster)
        assert (final.state, final.attempts) == (JobState.FAILED, 1)
        assert final.error.startswith("TaskDefinitionError: ")
        assert "retry" not in final.error
        assert (written.state, written.error) == (JobState.DONE, None)

    def test_a_server_that_goes_away_while_it_is_checked(
        self, cluster, near, monkeypatch
    ):
        """Between the look whether it responds and that at its binary log."""

        def gone(self: Any, connection: Any) -> bool:
            raise ServerUnreachableError(server="server1", error=OSError("gone"))

        place = cluster.places.place(cluster.places.keyspace(None, "objects"), 1)
        monkeypatch.setattr(type(place.backend), "logs_statements", gone)
        add.enqueue_now(cluster, near, near=near)
        assert work(cluster, "adding").succeeded == 1

    def test_a_text_that_the_server_refuses_holds_nobody(
        self, cluster, near, defined, monkeypatch
    ):
        """As a character set of the table that lacks a letter."""

        def unlettered(session: Any) -> None:
            raise ValueError("no such letter")

        written = claims.fail

        def refusing(
            session: Any, job: Any, error: str, *more: Any, **options: Any
        ) -> None:
            if "letter" in error:
                raise DataError("UPDATE", {}, ValueError("refused"))
            written(session, job, error, *more, **options)

        monkeypatch.setattr(transactions, "fail", refusing)
        defined(unlettered, max_attempts=1).enqueue_now(cluster, near=near)

        def good_one(session: Any, counter_id: int) -> None:
            add(session, counter_id)

        good = defined(good_one)
        good.enqueue_now(cluster, near, near=near)
        report = work(cluster, "own")
        assert (report.succeeded, report.failed) == (1, 1)
        errors = {row.error for row in rows(cluster)}
        assert "the server has refused the text of the error" in errors


class Hints(Suite):
    """Idle workers are notified of a job when its transaction has committed."""

    @pytest.fixture(autouse=True)
    def _idle(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # A worker without a hint looks at once, and then after an hour.
        monkeypatch.setattr(survey, "_FIRST_PAUSE", 3600.0)
        monkeypatch.setattr(survey, "_LONGEST_PAUSE", 7200.0)

    @contextmanager
    def idle(self, cluster: Cluster) -> Iterator[Worker]:
        worker = Worker(cluster, queues=["adding"], lease=86400)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            assert wait_until(
                lambda: worker._schedule.until_survey() > 60, seconds=WAIT
            )
            yield worker
        finally:
            worker.stop()
            thread.join(WAIT)
            assert not thread.is_alive()

    @pytest.mark.parametrize("how", ["one", "many", "async", "retry"])
    def test_at_once_in_its_process(self, cluster, near, how):
        async def enqueue() -> None:
            async with cluster.async_begin() as session:
                await session.run_sync(add.enqueue, near, near=near)

        if how == "retry":
            add.enqueue_now(cluster, near, near=near)
            with cluster.begin() as session:
                (job,) = take(session, near)
                claims.fail(session, job, "an error", 0, is_final=True)
        with self.idle(cluster):
            if how == "one":
                add.enqueue_now(cluster, near, near=near)
            elif how == "retry":
                assert retry_failed(cluster, "adding").changed == 1
            elif how == "many":
                with cluster.begin() as session:
                    add.enqueue_many(session, [{"counter_id": near}], near=near)
            else:
                asyncio.run(enqueue())
            assert wait_until(lambda: counters(cluster, [near]) == [1], seconds=WAIT)

    def test_wake(self, cluster, near):
        job = add.enqueue_now(cluster, near, near=near, run_after=3600)
        with self.idle(cluster) as worker:
            expire(cluster, job)
            worker.wake()
            assert wait_until(lambda: counters(cluster, [near]) == [1], seconds=WAIT)

    def test_a_queue_that_is_paused(self, cluster, near):
        on_shard(cluster, 0, delete(QUEUES))
        jobs.pause(cluster, "adding")
        try:
            with self.idle(cluster) as worker:
                add.enqueue_now(cluster, near, near=near)
                worker.wake()
                assert wait_until(lambda: worker._hints.empty(), seconds=WAIT)
            assert counters(cluster, [near]) == [0]
        finally:
            on_shard(cluster, 0, delete(QUEUES))

    @pytest.mark.parametrize("how", ["recovered", "delivered"])
    def test_of_the_beginning_of_a_worker(
        self, cluster, near, defined, monkeypatch, how
    ):
        """A job that is due after the first look does not wait for its backlog."""
        order: list[int] = []

        def noted(session: ShardSession) -> None:
            order.append(current_job().job.priority)
            if len(order) == 40:
                worker.stop()

        made = defined(noted)
        other = counter(cluster, 4)
        with cluster.begin() as session:
            made.enqueue_many(session, [{}] * 40, near=other, priority=3)
        if how == "recovered":
            made.enqueue_now(cluster, near=near, priority=1)
            with cluster.begin() as session:
                (job,) = take(session, near, "own", 1)
            expire(cluster, job)
        else:
            real = workers.deliver

            def deliver(cluster: Cluster) -> Any:
                # As an operation that enqueues.
                made.enqueue_now(cluster, near=near, priority=1)
                return real(cluster)

            monkeypatch.setattr(workers, "deliver", deliver)
        delivers = how == "delivered"
        # In one thread jobs begin in the order of their claims.
        worker = Worker(cluster, ["own"], concurrency=1, lease=86400, delivers=delivers)
        worker.run()
        assert 1 in order[:10]

    def test_what_is_said(self, cluster, near):
        heard: list[Any] = []
        with hints_of(cluster).listening(heard.append):
            with cluster.session() as session:
                add.enqueue(session, near, near=near)
                session.rollback()
            with cluster.begin() as session:
                add.enqueue(session, near, near=near, run_after=5)
                add.enqueue_many(
                    session, [{"counter_id": near}], near=near, run_after=5
                )
            assert heard == []
            with cluster.begin() as session:
                for _ in range(3):
                    add.enqueue(session, near, near=near, priority=1)
                assert heard == []
        ((group,),) = heard
        assert (group.address, group.priority) == (("objects", 1), 1)
        add.enqueue_now(cluster, near, near=near)
        assert len(heard) == 1

    def test_what_others_say(self, cluster, near):
        """A channel may have messages of another cluster, or of anybody."""
        with self.idle(cluster) as worker:
            for data in (
                *(b"", b"[" * 50_000, b"\xff", b"7", b"[7]", b'[["objects", 1]]'),
                b'[["objects", "1", "adding", 2], ["objects", true, "adding", 2]]',
                b'[["none", 1, "adding", 2], ["objects", 99999, "adding", 2]]',
                b'[["objects", -1, "adding", 2], ["main", 0, "adding", 2]]',
                b'[["objects", 1, "other", 2], ["objects", 1, "adding", 77]]',
            ):
                hints_of(cluster).notify(_unpacked(data))
            add.enqueue_now(cluster, near, near=near)
            assert wait_until(lambda: counters(cluster, [near]) == [1], seconds=WAIT)
            assert worker._schedule.until_survey() > 60


class Limits(Suite):
    """Pauses and limits, which workers follow without a restart."""

    @pytest.fixture
    def near(self, cluster: Cluster) -> Iterator[int]:
        empty(cluster)
        on_shard(cluster, 0, delete(QUEUES))
        made = counter(cluster)
        with cluster.begin() as session:
            add.enqueue_many(session, [{"counter_id": made}] * 40, near=made)
        yield made
        on_shard(cluster, 0, delete(QUEUES))

    def test_values_that_were_set(self, cluster, near):
        assert jobs.limits(cluster) == []
        assert jobs.pause(cluster, "adding").is_open is False
        assert jobs.set_limit(cluster, "other", 2.5).is_open is True
        assert jobs.set_limit(cluster, "adding", 10).per_second == 10
        assert jobs.resume(cluster, "adding").is_open is True
        assert jobs.set_limit(cluster, "other", 0).is_open is False
        assert [one.as_dict() for one in jobs.limits(cluster)] == [
            {"queue": "adding", "is_paused": False, "per_second": 10.0},
            {"queue": "other", "is_paused": False, "per_second": 0.0},
        ]
        assert jobs.set_limit(cluster, "other", None).is_open is True

    @pytest.mark.parametrize("wrong", [-1, True, "5", float("nan"), 10**9])
    def test_bad_limits(self, cluster, wrong):
        with pytest.raises(JobOptionError):
            jobs.set_limit(cluster, "adding", wrong)
        with pytest.raises(JobOptionError):
            jobs.pause(cluster, "a b")

    @pytest.mark.parametrize("how", ["pause", "limit"])
    def test_a_pause(self, cluster, near, how):
        if how == "pause":
            jobs.pause(cluster, "adding")
        else:
            jobs.set_limit(cluster, "adding", 0)
        assert work(cluster, "adding", "own").succeeded == 0
        assert counters(cluster, [near]) == [0]
        worker = Worker(cluster, queues=["adding"])
        thread = threading.Thread(target=worker.run)
        thread.start()
        if how == "pause":
            jobs.resume(cluster, "adding")
        else:
            jobs.set_limit(cluster, "adding", None)
        wait_until(lambda: counters(cluster, [near]) == [40], seconds=WAIT)
        worker.stop()
        thread.join(WAIT)

    @pytest.mark.parametrize("how", ["pause", "limit"])
    def test_a_busy_worker_follows(self, cluster, near, defined, busy, how):
        @defined
        def backlog(session: ShardSession, number: int) -> None:
            if number == 0 and how == "pause":
                jobs.pause(cluster, "own")
            elif number == 0:
                jobs.set_limit(cluster, "own", 0)

        with cluster.begin() as session:
            numbers = [{"number": number} for number in range(40)]
            backlog.enqueue_many(session, numbers, near=near)
        assert 1 <= work(cluster, "own", concurrency=1).succeeded < 39

    def test_a_limit_of_all_workers(self, cluster, near):
        jobs.set_limit(cluster, "adding", 10)
        begin = time.monotonic()
        threads = [
            threading.Thread(target=work, args=(cluster, "adding")) for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
        # 20 at once, after two seconds without a job, then 10 a second.
        assert time.monotonic() - begin >= 1.9
        assert counters(cluster, [near]) == [40]


class Periodic(Suite):
    """Tasks that workers run at certain times."""

    #: Seldom enough for no time to come during a test.
    OPTIONS: ClassVar[Any] = {"every": Crontab("0 0 29 2 *")}

    def due(self, cluster: Cluster) -> None:
        (row,) = rows(cluster, 0)
        expire(cluster, address(row))

    def test_each_time_once(self, cluster, near, defined):
        def adds() -> None:
            with cluster.begin() as session:
                add(session, near)

        defined(adds, in_transaction=False, **self.OPTIONS)
        assert work(cluster, "own").succeeded == 0
        for turn in range(1, 4):
            (row,) = rows(cluster, 0)
            assert (row.state, row.attempts, row.error) == (0, 0, None)
            assert (row.due_at.month, row.due_at.day) == (2, 29)
            assert row.due_at > row.created_at
            self.due(cluster)
            threads = [
                threading.Thread(target=work, args=(cluster, "own")) for _ in range(3)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(WAIT)
            assert counters(cluster, [near]) == [turn]

    def test_in_the_transaction_of_its_shard(self, cluster, near, defined):
        here = counter(cluster, 0)

        def adds(session: Any) -> None:
            add(session, here)

        defined(adds, **self.OPTIONS)
        ensure_periodic(cluster, ["own"])
        self.due(cluster)
        # While it waits or runs, it is not inserted again.
        with cluster.begin() as session:
            assert len(take(session, here, "own")) == 1
            ensure_periodic(cluster, ["own"])
            session.rollback()
        assert work(cluster, "own").succeeded == 1
        assert counters(cluster, [here]) == [1]
        (row,) = rows(cluster, 0)
        assert (row.state, row.due_at.month) == (JobState.PENDING, 2)

    def test_the_last_failure_waits_for_the_next_time(self, cluster, near, defined):
        def breaks(session: Any) -> None:
            raise RuntimeError("as it always does")

        defined(breaks, max_attempts=2, **self.OPTIONS)
        ensure_periodic(cluster, ["own"])
        self.due(cluster)
        assert work(cluster, "own").failed == 2
        (row,) = rows(cluster, 0)
        assert (row.state, row.attempts) == (JobState.PENDING, 0)
        assert row.error == "RuntimeError: as it always does"
        assert row.due_at.month == 2

    def test_a_time_that_has_come_nearer(self, cluster, near, defined):
        def adds(session: Any) -> None: ...

        defined(adds, **self.OPTIONS)
        ensure_periodic(cluster, ["own"])
        before = rows(cluster, 0)[0].due_at
        defined(adds, every=timedelta(days=1))
        ensure_periodic(cluster, ["own"])
        (row,) = rows(cluster, 0)
        assert row.due_at < before
        assert row.due_at - row.created_at <= timedelta(days=1, seconds=60)

    def test_definitions(self, defined):
        def needs(session: Any, counter_id: int) -> None: ...

        def fine(session: Any, counter_id: int = 1) -> None: ...

        with pytest.raises(JobArgumentError):
            defined(needs, every=timedelta(hours=1))
        with pytest.raises(JobOptionError):
            defined(fine, every=60)
        assert defined(fine, every=timedelta(hours=1)).every
