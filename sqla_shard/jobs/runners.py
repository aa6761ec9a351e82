"""The threads, and the event loop, in which a worker runs tasks.

Threads are daemons: one that does not end must not keep the process from
ending after its job was released.  Functions that are ``async def`` run in one
event loop in a thread of its own, which is started for the first of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from sqla_shard.exc.base import summary
from sqla_shard.jobs.beginning import Beginnings
from sqla_shard.jobs.calling import async_run_job, run_job
from sqla_shard.jobs.job_events import job_begins, job_ends
from sqla_shard.jobs.running import Ending, Outcome, RunningJob
from sqla_shard.util.pace import jittered

if TYPE_CHECKING:
    from sqla_shard import Cluster

_log = logging.getLogger(__name__)

#: Called with each job that has ended, by any thread.
Finished = Callable[[RunningJob, Outcome], None]
#: Seconds that the end of a worker waits for a thread.
_UNTIL_ENDED = 5.0
#: Seconds until the next attempt of a job whose retry policy has failed.
_UNTIL_AGAIN = 60.0


class Repeating:
    """Calls a function again and again, in a thread, within a block.

    :param purpose: part of the name of the thread.
    :param seconds: pause between two calls.
    :param failed: called with an error of the function, which is then not
        called any more.
    :param spread: the largest part of the pause that is added or subtracted.
    """

    def __init__(
        self,
        purpose: str,
        function: Callable[[], object],
        seconds: float,
        failed: Callable[[BaseException], object],
        *,
        spread: float = 0.1,
    ) -> None:
        self._function = function
        self._failed = failed
        self._pause = seconds, spread
        self._end = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"sqla-shard-{purpose}", daemon=True
        )

    def __enter__(self) -> Repeating:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._end.set()
        # Not longer: a server that does not respond must not delay the end.
        self._thread.join(_UNTIL_ENDED)

    def _run(self) -> None:
        while not self._end.wait(jittered(*self._pause)):
            try:
                self._function()
            # Otherwise it would not be reported, and sys.exit() of an operation
            # would end the thread in silence.
            except BaseException as error:
                self._failed(error)
                return


def _unforeseen(running: RunningJob, error: BaseException) -> Outcome:
    """Return the outcome of a run with an error outside of the task.

    Such as one of a retry policy of the application.
    """
    return Outcome(
        job=running.job, ending=Ending.FAILED, error=summary(error), delay=_UNTIL_AGAIN
    )


def _not_begun(running: RunningJob) -> Outcome:
    """Return the outcome of a job that was cancelled, by another, before it began."""
    return Outcome(job=running.job, ending=Ending.RELEASED)


class Runners:
    """Runs jobs.

    :param concurrency: number of threads, and maximum number of tasks that
        the event loop runs at the same time.
    :param finished: called with each job that has ended.
    """

    def __init__(self, cluster: Cluster, concurrency: int, finished: Finished) -> None:
        self._cluster = cluster
        self._concurrency = concurrency
        self._finished = finished
        self._beginnings = Beginnings(cluster)
        self._queue: queue.SimpleQueue[RunningJob | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._loop: _Loop | None = None

    def submit(self, running: RunningJob) -> None:
        """Run a job as soon as a thread, or the event loop, is free."""
        if running.is_async:
            if self._loop is None:
                self._loop = _Loop(
                    *(self._cluster, self._concurrency, self._finished),
                    self._beginnings,
                )
            self._loop.submit(running)
            return
        if len(self._threads) < self._concurrency:
            thread = threading.Thread(
                target=self._serve,
                args=(self._queue,),
                name=f"sqla-shard-job-{len(self._threads)}",
                daemon=True,
            )
            self._threads.append(thread)
            thread.start()
        self._queue.put(running)

    def take_back(self) -> list[RunningJob]:
        """Return the jobs that have not started; they are not run any more."""
        found: list[RunningJob] = []
        if self._loop is not None:
            found += self._loop.take_back()
        while True:
            try:
                one = self._queue.get_nowait()
            except queue.Empty:
                return found
            if one is not None:
                found.append(one)

    def close(self) -> None:
        """Cancel the tasks of the event loop, and end threads that are idle.

        Others end with their function.
        """
        if self._loop is not None:
            self._loop.close()
        self._beginnings.close()
        for _ in self._threads:
            self._queue.put(None)
        # A thread that does not end must not take jobs of another run.
        self._queue = queue.SimpleQueue()
        self._threads, self._loop = [], None

    def _serve(self, jobs: queue.SimpleQueue[RunningJob | None]) -> None:
        while True:
            running = jobs.get()
            if running is None:
                return
            job_begins(self._cluster, running.job)
            try:
                outcome = run_job(self._cluster, running, self._beginnings)
            # Without an outcome the job would be held for ever.
            except BaseException as error:
                outcome = _unforeseen(running, error)
            self._finished(running, job_ends(self._cluster, running, outcome))


class _Loop:
    """An event loop in a thread, and the jobs that run in it."""

    def __init__(
        self,
        cluster: Cluster,
        concurrency: int,
        finished: Finished,
        beginnings: Beginnings,
    ) -> None:
        self._cluster = cluster
        self._concurrency = concurrency
        self._finished = finished
        self._beginnings = beginnings
        self._waiting: deque[RunningJob] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop
        self._end: asyncio.Event
        is_ready = threading.Event()
        self._thread = threading.Thread(
            target=self._serve,
            args=(is_ready,),
            name="sqla-shard-jobs-loop",
            daemon=True,
        )
        self._thread.start()
        is_ready.wait()

    def _serve(self, is_ready: threading.Event) -> None:
        # It cancels the tasks, and closes the connections.
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            main = loop.create_task(self._main(is_ready))
            while not main.done():
                try:
                    loop.run_until_complete(main)
                # Such as SystemExit of a task that a job has started, or stop():
                # they end the loop, in which other jobs run.
                except BaseException as error:
                    if loop.is_closed():
                        raise
                    _log.warning(
                        "a job has ended the event loop, which goes on: %s",
                        summary(error),
                        extra={"action": "run"},
                    )

    async def _main(self, is_ready: threading.Event) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        is_ready.set()
        while not self._end.is_set():
            # A job may cancel all tasks that it finds.
            with contextlib.suppress(asyncio.CancelledError):
                await self._end.wait()

    def submit(self, running: RunningJob) -> None:
        self._loop.call_soon_threadsafe(self._add, running)

    def _add(self, running: RunningJob) -> None:
        self._waiting.append(running)
        self._begin()

    def _begin(self) -> None:
        while self._waiting and len(self._tasks) < self._concurrency:
            running = self._waiting.popleft()
            task = asyncio.ensure_future(self._run(running))
            running.cancel = self._canceller(task)
            self._tasks.add(task)
            task.add_done_callback(partial(self._ended, running))

    def _canceller(self, task: asyncio.Task[None]) -> Callable[[], None]:
        return lambda: self._call(task.cancel)

    def _call(self, function: Callable[[], object]) -> None:
        # A loop that has ended has no tasks.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

    async def _run(self, running: RunningJob) -> None:
        job_begins(self._cluster, running.job)
        try:
            outcome = await async_run_job(self._cluster, running, self._beginnings)
        except asyncio.CancelledError:
            outcome = _not_begun(running)
        except BaseException as error:
            outcome = _unforeseen(running, error)
        self._finished(running, job_ends(self._cluster, running, outcome))

    def _ended(self, running: RunningJob, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            self._finished(running, _not_begun(running))
        self._begin()

    def take_back(self) -> list[RunningJob]:
        async def take() -> list[RunningJob]:
            found = list(self._waiting)
            self._waiting.clear()
            return found

        return asyncio.run_coroutine_threadsafe(take(), self._loop).result()

    def close(self) -> None:
        self._waiting.clear()
        self._call(self._end.set)
        self._thread.join(_UNTIL_ENDED)
