"""Waiting for several servers at once.

One lane for each server of a statement; the first runs in the thread of the
session, the others in a pool of threads that all sessions of a cluster share.
Nothing but the driver's work leaves the session's thread, and no job waits
for another, so a pool that is too small is slow and does not lock up: what no
thread has begun is done by the session's own.  A server that does not answer
keeps the threads that wait for it, which are a part of them only, for as long
as the ``read_timeout`` of the driver.
"""

from __future__ import annotations

import contextvars
import threading
from collections import Counter
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait
from functools import partial
from itertools import zip_longest
from time import monotonic
from typing import Any
from typing import Generic
from typing import TypeVar

from sqla_shard.forking import in_children
from sqla_shard.scattering.deadlines import Deadlines

__all__ = ["Lanes", "Task"]

T = TypeVar("T")


class Task(Generic[T]):
    """A job that is begun at most once, by whichever thread comes first."""

    def __init__(self, job: Callable[[], T]) -> None:
        self._job = job
        self._context = contextvars.copy_context()
        self._claim = threading.Lock()
        self.future: Future[T] = Future()
        #: Whether a thread of the pool will begin it.
        self.handed_over = False

    def __call__(self) -> None:
        """Do the job, unless another thread does.

        :raises BaseException: Ctrl-C, which is meant for who has called it.
        """
        if not self._claim.acquire(blocking=False):
            return
        try:
            result = self._context.run(self._job)
        except BaseException as error:
            self.future.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            self.future.set_result(result)

    def cancel(self) -> bool:
        """Let it never begin; tell whether that was still possible."""
        if not self._claim.acquire(blocking=False):
            return False
        self.future.cancel()
        return self.future.set_running_or_notify_cancel() is False


class Lanes:
    """The threads of a cluster; they are started when first needed.

    :param threads: how many at most.
    :param name: of the threads, with a number after it.
    :param per_server: how many of them may wait for one and the same server;
        None for a quarter.
    """

    def __init__(
        self,
        threads: int,
        name: str = "sqla-shard-lane",
        *,
        per_server: int | None = None,
    ) -> None:
        if type(threads) is not int or threads < 1:
            raise ValueError(
                f"threads={threads!r}; it is a number of threads, from 1"
            )
        self._threads = threads
        self._per_server = per_server or max(1, threads // 4)
        self._name = name
        self.after_fork()
        in_children(self)

    def after_fork(self) -> None:
        """Forget the threads, which a child process does not have."""
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._executor: ThreadPoolExecutor | None = None
        self._deadlines = Deadlines()
        self._waiting: Counter[Hashable] = Counter()

    def run(
        self,
        jobs: Sequence[Callable[[], T]],
        abort: Callable[[int], None] | None = None,
        servers: Sequence[Hashable] = (),
    ) -> list[T]:
        """Run jobs at the same time; return their results, in order.

        All of them have ended when it returns or raises: a connection must
        not be rolled back while another thread is using it.

        :param abort: called with the index of a job that is running, to end
            it, after a KeyboardInterrupt or the like.
        :param servers: what each job waits for; it is not begun by another
            thread while too many of them wait for the same.
        :raises BaseException: what the first of them has raised.
        """
        first, *others = jobs
        tasks = [Task(job) for job in others]
        results: list[T] = []
        raised: BaseException | None = None
        try:
            self._submit(tasks, servers[1:])
            results.append(first())
            # What no thread has begun yet: all of them may be waiting for
            # a server that does not answer.
            for task in tasks:
                task()
        except BaseException as error:
            raised = _meant(error)
            _stop(tasks, abort, raised)
        while True:
            try:
                wait([task.future for task in tasks])
                break
            except BaseException as error:
                # Ctrl-C: the other threads use their connections all the
                # same, and must have ended before these are rolled back.
                raised = raised or _meant(error)
                _stop(tasks, abort, _meant(error))
        if raised is not None:
            raise raised
        return results + [task.future.result() for task in tasks]

    def begin(self, task: Task[T]) -> None:
        """Let a thread do a task, and return at once.

        Where no thread can be started, it is done when this returns.
        """
        self._submit([task])
        if not task.handed_over:
            task()

    def attempt(
        self,
        jobs: Sequence[Callable[[], T]],
        timeout: float | None,
        servers: Sequence[Hashable] = (),
    ) -> list[Future[T]]:
        """Begin jobs at the same time, and wait for them no longer than this.

        :param jobs: what does not matter to anybody once the time is over;
            what no thread has begun by then is cancelled.
        :param timeout: seconds.
        :param servers: what each job waits for, as for :meth:`run`.
        :returns: their futures, in order, done or not.
        """
        tasks = [Task(job) for job in jobs]
        futures = [task.future for task in tasks]
        if timeout is None:
            self._submit(tasks, servers)
            for task in tasks:
                task()
            wait(futures)
        else:
            end = monotonic() + timeout
            self._submit_until(end, tasks, servers)
            wait(futures, max(end - monotonic(), 0))
            for task in tasks:
                task.cancel()
        return futures

    def call_later(
        self, seconds: float, call: Callable[[], None]
    ) -> Callable[[], None]:
        """Call a function after some time; see :class:`Deadlines`."""
        return self._deadlines.call_later(seconds, call)

    def _submit(
        self, tasks: Sequence[Task[T]], servers: Sequence[Hashable] = ()
    ) -> None:
        """Hand tasks over to the pool, as many as it takes."""
        for task, server in zip_longest(tasks, servers):
            if not self._enter(server):
                continue
            if not self._hand_over(task, server):
                return

    def _submit_until(
        self, end: float, tasks: Sequence[Task[T]], servers: Sequence[Hashable]
    ) -> None:
        """Hand tasks over as their servers have less to do.

        This thread does none of them: it might not come back in time.
        """
        left = list(zip_longest(tasks, servers))
        while left:
            later = []
            for task, server in left:
                if not self._enter(server):
                    later.append((task, server))
                elif not self._hand_over(task, server):
                    task()
            left = later
            with self._ended:
                # Not where one has ended since: nobody would tell again.
                if left and all(self._is_full(server) for _, server in left):
                    self._ended.wait(max(end - monotonic(), 0))
            if monotonic() >= end:
                return

    def _hand_over(self, task: Task[T], server: Hashable) -> bool:
        """Let a thread do a task; tell whether there is one."""
        # Not afterwards: an interrupt comes most likely while a thread starts,
        # and the place would be lost for ever.
        task.future.add_done_callback(partial(self._leave, server))
        try:
            self._pool().submit(task)
        except RuntimeError:
            # No thread can be started: the cluster is being closed, the
            # main thread has ended, or the system has no more of them.
            return False
        task.handed_over = True
        return True

    def _is_full(self, server: Hashable) -> bool:
        return server is not None and (
            self._waiting[server] >= self._per_server
        )

    def _enter(self, server: Hashable) -> bool:
        """Take one of the threads that may wait for a server."""
        with self._lock:
            if self._is_full(server):
                return False
            self._waiting[server] += 1
            return True

    def _leave(self, server: Hashable, future: Any = None) -> None:
        with self._ended:
            self._waiting[server] -= 1
            if not self._waiting[server]:
                del self._waiting[server]
            self._ended.notify_all()

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self._threads, self._name)
            return self._executor

    def drain(self, seconds: float) -> bool:
        """Wait for what has begun to end; tell whether it has."""
        with self._ended:
            return self._ended.wait_for(lambda: not self._waiting, seconds)

    def close(self, *, wait: bool = True) -> None:
        """Let the threads end.

        :param wait: return when they have; one may wait for a server.
        """
        with self._lock:
            executor, self._executor = self._executor, None
        self._deadlines.close()
        if executor is not None:
            executor.shutdown(wait=wait)


def _meant(error: BaseException) -> BaseException:
    """Return the Ctrl-C that an error hides, or else the error.

    One that arrives while a lock is taken or given back can end in a
    RuntimeError of the lock, whose context it is; taken for the failure of a
    job, it would let us wait without end for what was to be cut.
    """
    found: BaseException | None = error
    while found is not None:
        if not isinstance(found, Exception):
            return found
        found = found.__context__
    return error


def _stop(
    tasks: Sequence[Task[T]],
    abort: Callable[[int], None] | None,
    error: BaseException,
) -> None:
    """Begin nothing more; end what runs unless a server has failed."""
    everything = abort is not None and not isinstance(error, Exception)
    for index, task in enumerate(tasks, 1):
        if task.cancel() or task.future.done() or abort is None:
            continue
        if everything or not task.handed_over:
            abort(index)
