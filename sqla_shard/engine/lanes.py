"""Threads, or the event loop, that wait for several servers at a time.

:class:`Lanes` are threads.  Only calls of drivers leave the thread of the
session, and no job waits for another: a pool that is too small is slow, but
does not deadlock, since the thread of the session runs the jobs that no pool
thread has started.  A server that does not answer blocks its share of the
threads until the ``read_timeout`` of the driver.

:class:`AwaitedLanes` are tasks of an event loop, one for each server.
SQLAlchemy's asynchronous drivers are called from greenlets, and each task has
its own greenlet, so that the same code runs in it as in a thread.  A cancelled
task cancels its lanes: SQLAlchemy closes the connection of each lane that was
waiting, since the rest of a response may still arrive on it.

If the sockets of all drivers can be polled, one thread waits for all servers.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import threading
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Hashable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from itertools import zip_longest
from time import monotonic
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy import Connection
from sqlalchemy.util import await_only, greenlet_spawn

from sqla_shard.dialects.polling import PolledCall, PolledConnection, Poller
from sqla_shard.util.logs import careful_log
from sqla_shard.util.processes import in_children

_log = careful_log(__name__)

T = TypeVar("T")

#: A number of seconds, and a function that is called after that time
Expiry = tuple[float, Callable[[], None]]


class Deadlines:
    """Calls functions at given times, in a thread that starts on first use."""

    def __init__(self) -> None:
        self.after_fork()

    def after_fork(self) -> None:
        """Drop the thread, which a child process does not have."""
        # A Ctrl-C that arrives in Condition.__enter__ would leave the lock
        # acquired: it is acquired by itself.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._thread: threading.Thread | None = None
        self._closed = False

    def call_later(
        self, seconds: float, call: Callable[[], None]
    ) -> Callable[[], None]:
        """Call a function after some time, unless it is cancelled.

        :param call: a function that must not wait.  Its exceptions are logged,
            so that the thread continues with other calls.
        :returns: a function that cancels the call; when it returns, the
            call is not running and will not run.
        """
        with self._lock:
            number = next(self._count)
            heapq.heappush(self._due, (monotonic() + seconds, number, call))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="sqla-shard-deadlines", daemon=True
                )
                self._thread.start()
            self._changed.notify()

        def cancel() -> None:
            with self._lock:
                self._due = [due for due in self._due if due[1] != number]
                heapq.heapify(self._due)

        return cancel

    def _run(self) -> None:
        with self._changed:
            while not self._closed:
                if not self._due:
                    self._changed.wait()
                    continue
                seconds = self._due[0][0] - monotonic()
                if seconds > 0:
                    self._changed.wait(seconds)
                    continue
                # Call it under the lock, so that cancel() waits for it.
                call = heapq.heappop(self._due)[2]
                try:
                    call()
                except Exception:
                    _log.exception("a statement could not be interrupted in time")

    def close(self) -> None:
        """End the thread."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
            self._changed.notify()
        if thread is not None:
            thread.join()


class LaneTask(Generic[T]):
    """A job that is started at most once, by the first thread that is free."""

    def __init__(self, job: Callable[[], T]) -> None:
        self._job = job
        self._context = contextvars.copy_context()
        self._claim = threading.Lock()
        self.future: Future[T] = Future()
        #: Whether a thread of the pool will start the job.
        self.handed_over = False

    def __call__(self) -> None:
        """Do the job, unless another thread does.

        :raises BaseException: Ctrl-C, for the caller; an exception of the job
            is stored in the future.
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
        """Prevent the start of the job; return False if it has started."""
        if not self._claim.acquire(blocking=False):
            return False
        self.future.cancel()
        return self.future.set_running_or_notify_cancel() is False


class _Idle(threading.Semaphore):
    """Counts the idle threads of a pool, without a lock.

    A Ctrl-C that arrives in ``submit()``, while it acquires the condition of
    the semaphore that :class:`ThreadPoolExecutor` has of its own, leaves that
    acquired: no thread of the pool would run a second job, and none would end.
    """

    def __init__(self) -> None:
        super().__init__(0)
        self._threads: deque[None] = deque()

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Take one of the idle threads; return False if there is none."""
        try:
            self._threads.pop()
        except IndexError:
            return False
        return True

    def release(self, n: int = 1) -> None:
        """Add idle threads."""
        self._threads.extend([None] * n)


class LaneUsage(NamedTuple):
    """The threads of a cluster at one moment.

    :ivar threads: maximum number of threads.
    :ivar waiting: number of those that wait for a server.
    """

    threads: int
    waiting: int


class Lanes:
    """The threads of a cluster, which are started on first use.

    :param threads: maximum number of threads.
    :param name: name of the threads, to which a number is appended.
    :param per_server: maximum number of threads that may wait for the same
        server; None for a quarter of them.
    """

    def __init__(
        self,
        threads: int,
        name: str = "sqla-shard-lane",
        *,
        per_server: int | None = None,
    ) -> None:
        if type(threads) is not int or threads < 1:
            raise ValueError(f"threads={threads!r} must be an integer, 1 or more")
        self._threads = threads
        self._per_server = per_server or max(1, threads // 4)
        self._name = name
        self.after_fork()
        in_children(self)

    def after_fork(self) -> None:
        """Drop the threads, which a child process does not have."""
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
        expiry: Expiry | None = None,
    ) -> list[T]:
        """Run jobs at the same time; return their results, in order.

        All of them have ended when it returns or raises: a connection must
        not be rolled back while another thread is using it.

        :param abort: called with the index of a running job, to interrupt
            it, after a KeyboardInterrupt or the like.
        :param servers: the server of each job; no thread starts the job
            while too many threads wait for this server.
        :param expiry: see :meth:`call_later`; cancelled when all jobs have
            ended.
        :raises BaseException: the error of the first job that fails.
        """
        if expiry is not None:
            cancel = self.call_later(*expiry)
            try:
                return self.run(jobs, abort, servers)
            finally:
                cancel()
        first, *others = jobs
        tasks = [LaneTask(job) for job in others]
        results: list[T] = []
        raised: BaseException | None = None
        try:
            self._submit(tasks, servers[1:])
            results.append(first())
            # Jobs that no thread has started: all of them may be waiting
            # for a server that does not respond.
            for task in tasks:
                task()
        except BaseException as error:
            raised = _cause(error)
            _stop(tasks, abort, raised)
        while True:
            try:
                wait([task.future for task in tasks])
                break
            except BaseException as error:
                # Ctrl-C: the other threads still use their connections, and
                # must end before the connections are rolled back.
                raised = raised or _cause(error)
                _stop(tasks, abort, _cause(error))
        if raised is not None:
            raise raised
        return results + [task.future.result() for task in tasks]

    def begin(self, task: LaneTask[T]) -> None:
        """Run a task in a thread, and return immediately.

        If no thread can be started, the task is run before this returns.
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
        """Run jobs at the same time, and wait for them until a timeout.

        :param jobs: the jobs; those that no thread has started before the
            timeout are cancelled.
        :param timeout: seconds; None for no limit.
        :param servers: the server of each job, as for :meth:`run`.
        :returns: the futures of the jobs, in order, done or not.
        """
        tasks = [LaneTask(job) for job in jobs]
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
        self, tasks: Sequence[LaneTask[T]], servers: Sequence[Hashable] = ()
    ) -> None:
        """Submit tasks to the pool, as many as it accepts."""
        for task, server in zip_longest(tasks, servers):
            if not self._enter(server):
                continue
            if not self._hand_over(task, server):
                return

    def _submit_until(
        self, end: float, tasks: Sequence[LaneTask[T]], servers: Sequence[Hashable]
    ) -> None:
        """Submit tasks as soon as fewer threads wait for their servers.

        The calling thread runs no task itself, since a task might not end
        before the timeout.
        """
        waiting = list(zip_longest(tasks, servers))
        while waiting:
            later = []
            for task, server in waiting:
                if not self._enter(server):
                    later.append((task, server))
                elif not self._hand_over(task, server):
                    task()
            waiting = later
            with self._ended:
                # Do not wait if a thread has ended since: there is no second
                # notification.
                if waiting and all(self._is_full(server) for _, server in waiting):
                    self._ended.wait(max(end - monotonic(), 0))
            if monotonic() >= end:
                return

    def _hand_over(self, task: LaneTask[T], server: Hashable) -> bool:
        """Submit a task; return False if no thread can be started."""
        # Add the callback before the thread starts: an interrupt most likely
        # arrives then, and the thread would be counted forever.
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
        return server is not None and (self._waiting[server] >= self._per_server)

    def _enter(self, server: Hashable) -> bool:
        """Count a thread for a server; return False if it has the maximum."""
        with self._lock:
            if self._is_full(server):
                return False
            self._waiting[server] += 1
            return True

    def _leave(self, server: Hashable, future: Any = None) -> None:
        # Not the condition: see _Idle.
        with self._lock:
            self._waiting[server] -= 1
            if not self._waiting[server]:
                del self._waiting[server]
            self._ended.notify_all()

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self._threads, self._name)
                self._executor._idle_semaphore = _Idle()
            return self._executor

    def usage(self) -> LaneUsage:
        """Return how many threads there may be, and how many wait."""
        with self._lock:
            return LaneUsage(self._threads, sum(self._waiting.values()))

    def drain(self, seconds: float) -> bool:
        """Wait for the running jobs; return False if some have not ended."""
        with self._ended:
            return self._ended.wait_for(lambda: not self._waiting, seconds)

    def close(self, *, wait: bool = True) -> None:
        """End the threads.

        :param wait: whether to wait for their end, even if a thread waits for
            a server.
        """
        with self._lock:
            executor, self._executor = self._executor, None
        self._deadlines.close()
        if executor is not None:
            executor.shutdown(wait=wait)


def _cause(error: BaseException) -> BaseException:
    """Return the Ctrl-C in the context of an error, or the error itself.

    A Ctrl-C that arrives while a lock is acquired or released can become
    the context of a RuntimeError of the lock.  As the failure of a job, the
    RuntimeError would interrupt nothing, and the wait might not end.
    """
    cause: BaseException | None = error
    while cause is not None:
        if not isinstance(cause, Exception):
            return cause
        cause = cause.__context__
    return error


def _stop(
    tasks: Sequence[LaneTask[T]],
    abort: Callable[[int], None] | None,
    error: BaseException,
) -> None:
    """Start no more jobs; interrupt running ones unless a server failed."""
    everything = abort is not None and not isinstance(error, Exception)
    for index, task in enumerate(tasks, 1):
        if task.cancel() or task.future.done() or abort is None:
            continue
        if everything or not task.handed_over:
            abort(index)


def invalidate(connections: Iterable[Connection]) -> None:
    """Invalidate the connections that were interrupted."""
    for connection in connections:
        # The call may have ended just before the interrupt: a ROLLBACK would
        # then fail, and its error replace the interrupt.
        if not connection.invalidated and not connection.closed:
            connection.invalidate()


class AwaitedLanes:
    """The counterpart of :class:`Lanes` for event loops."""

    def run(
        self,
        jobs: Sequence[Callable[[], T]],
        abort: Callable[[int], None] | None = None,
        servers: Sequence[Hashable] = (),
        expiry: Expiry | None = None,
    ) -> list[T]:
        """Run jobs at the same time, as :meth:`Lanes.run` does.

        :param abort: is not called, since cancelled jobs are awaited.
        :param servers: are not used, since a waiting lane occupies no thread.
        """
        if expiry is not None:
            cancel = self.call_later(*expiry)
            try:
                return self.run(jobs)
            finally:
                cancel()
        outcomes: list[T | BaseException] = await_only(_all_of(jobs))
        results: list[T] = []
        for result in outcomes:
            if isinstance(result, BaseException):
                raise result
            results.append(result)
        return results

    def attempt(
        self,
        jobs: Sequence[Callable[[], T]],
        timeout: float | None,
        servers: Sequence[Hashable] = (),
    ) -> list[Future[T]]:
        """Run jobs until a timeout, as :meth:`Lanes.attempt` does.

        Jobs that have not ended before the timeout are cancelled.
        """
        futures: list[Future[T]] = [Future() for _ in jobs]
        await_only(_attempts(jobs, futures, timeout))
        return futures

    def call_later(
        self, seconds: float, call: Callable[[], None]
    ) -> Callable[[], None]:
        """Call a function after some time, as :meth:`Lanes.call_later` does.

        :param call: a function that must not raise an exception, nor wait.
        """
        return asyncio.get_running_loop().call_later(seconds, call).cancel

    def after_fork(self) -> None:
        """Do nothing: there are no threads."""

    def usage(self) -> LaneUsage:
        """Return that there are no threads."""
        return LaneUsage(0, 0)

    def drain(self, seconds: float) -> bool:
        """Do nothing: all jobs have ended when :meth:`run` returns."""
        return True

    def close(self, *, wait: bool = True) -> None:
        """Do nothing: there are no threads."""


async def _all_of(jobs: Sequence[Callable[[], T]]) -> list[T | BaseException]:
    lanes: list[Coroutine[Any, Any, T]] = [greenlet_spawn(j) for j in jobs]
    # If gather() is cancelled, it cancels and awaits all jobs.
    return await asyncio.gather(*lanes, return_exceptions=True)


async def _attempts(
    jobs: Sequence[Callable[[], T]], futures: Sequence[Future[T]], timeout: float | None
) -> None:
    tasks = [asyncio.ensure_future(greenlet_spawn(job)) for job in jobs]
    try:
        await asyncio.wait(tasks, timeout=timeout)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task, future in zip(tasks, futures, strict=True):
        if task.cancelled():
            continue
        error = task.exception()
        if error is None:
            future.set_result(task.result())
        else:
            future.set_exception(error)


class PolledLanes:
    """The counterpart of :class:`.Lanes` for drivers whose sockets are polled.

    It starts no thread, and has no state.
    """

    def run(
        self,
        jobs: Sequence[Callable[[], T]],
        abort: Callable[[int], None] | None = None,
        servers: Sequence[Hashable] = (),
        expiry: Expiry | None = None,
    ) -> list[T]:
        """Run jobs at the same time, as :meth:`.Lanes.run` does.

        :param abort: is not called: an interrupt is raised in each job that
            waits, and the driver closes its connection.
        :param servers: are not used, since a waiting job occupies no thread.
        """
        calls = [PolledCall(job) for job in jobs]
        _run(calls, expiry)
        for call in calls:
            if call.failure is not None:
                raise call.failure
        return [call.result for call in calls]


#: The only object of this class that is needed.
POLLED = PolledLanes()


def lanes_for(
    lanes: Lanes | AwaitedLanes, connections: Iterable[Connection]
) -> Lanes | AwaitedLanes | PolledLanes:
    """Return the lanes that can wait for all of some connections.

    :param lanes: the lanes to use if a driver cannot be polled.
    """
    if isinstance(lanes, AwaitedLanes):
        return lanes
    for connection in connections:
        # A statement on an invalidated connection fails without waiting.
        if not connection.invalidated and not isinstance(
            connection.connection.dbapi_connection, PolledConnection
        ):
            return lanes
    return POLLED


def _run(calls: Sequence[PolledCall], expiry: Expiry | None) -> None:
    """Run calls until all that were started have ended.

    No other call is started after the error of one.

    :raises BaseException: an interrupt, such as Ctrl-C.
    """
    poller = Poller()
    interrupt: BaseException | None = None
    while True:
        try:
            if interrupt is None:
                _poll(poller, calls, expiry)
            else:
                poller.end(calls)
            break
        except BaseException as error:
            interrupt = interrupt or error
    if interrupt is not None:
        raise interrupt


def _poll(poller: Poller, calls: Sequence[PolledCall], expiry: Expiry | None) -> None:
    end = None if expiry is None else monotonic() + expiry[0]
    for call in calls:
        poller.resume(call)
        if call.failure is not None:
            break
    while poller.waiting:
        seconds = None if end is None else end - monotonic()
        if expiry is not None and seconds is not None and seconds <= 0:
            end = None
            expiry[1]()
        else:
            poller.step(seconds)
