"""The threads, and the event loop, in which a worker runs tasks.

Threads are daemons: one that does not end must not keep the process from
ending after its job was released.  Functions that are ``async def`` run in one
event loop in a thread of its own, which is started for the first of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from sqla_shard.jobs.calling import async_run_job, run_job
from sqla_shard.jobs.job_events import job_begins, job_ends
from sqla_shard.jobs.running import Outcome, RunningJob
from sqla_shard.util.jitter import jittered

if TYPE_CHECKING:
    from sqla_shard import Cluster

#: Called with each job that has ended, by any thread.
Finished = Callable[[RunningJob, Outcome], None]
#: Seconds that the end of a worker waits for a thread.
_UNTIL_ENDED = 5.0


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
        failed: Callable[[Exception], object],
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
            except Exception as error:  # Otherwise it would not be reported.
                self._failed(error)
                return


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
        self._queue: queue.SimpleQueue[RunningJob | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._loop: _Loop | None = None

    def submit(self, running: RunningJob) -> None:
        """Run a job as soon as a thread, or the event loop, is free."""
        if running.is_async:
            if self._loop is None:
                self._loop = _Loop(self._cluster, self._concurrency, self._finished)
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
            began = job_begins(self._cluster, running.job)
            outcome = run_job(self._cluster, running)
            self._finished(running, job_ends(self._cluster, outcome, began))


class _Loop:
    """An event loop in a thread, and the jobs that run in it."""

    def __init__(self, cluster: Cluster, concurrency: int, finished: Finished) -> None:
        self._cluster = cluster
        self._concurrency = concurrency
        self._finished = finished
        self._waiting: deque[RunningJob] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop
        self._end: asyncio.Event
        is_ready = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._main(is_ready)),
            name="sqla-shard-jobs-loop",
            daemon=True,
        )
        self._thread.start()
        is_ready.wait()

    async def _main(self, is_ready: threading.Event) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        is_ready.set()
        # asyncio.run() then cancels the tasks, and closes the connections.
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
            task.add_done_callback(self._ended)

    def _canceller(self, task: asyncio.Task[None]) -> Callable[[], None]:
        return lambda: self._call(task.cancel)

    def _call(self, function: Callable[[], object]) -> None:
        # A loop that has ended has no tasks.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

    async def _run(self, running: RunningJob) -> None:
        began = job_begins(self._cluster, running.job)
        outcome = await async_run_job(self._cluster, running)
        self._finished(running, job_ends(self._cluster, outcome, began))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
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
