"""Waiting for several servers at once.

One lane for each server of a statement; the first runs in the thread of the
session, the others in a pool of threads that all sessions of a cluster share.
Nothing but the driver's work leaves the session's thread, and no job waits
for another, so a pool that is too small is slow and cannot lock up.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait
from typing import TypeVar

__all__ = ["Lanes"]

T = TypeVar("T")


class Lanes:
    """The threads of a cluster; they are started when first needed.

    :param threads: how many at most.
    """

    def __init__(self, threads: int) -> None:
        if type(threads) is not int or threads < 1:
            raise ValueError(
                f"threads={threads!r}; it is a number of threads, from 1"
            )
        self._threads = threads
        self.after_fork()

    def after_fork(self) -> None:
        """Forget the threads, which a child process does not have."""
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None

    def run(self, jobs: Sequence[Callable[[], T]]) -> list[T]:
        """Run jobs at the same time; return their results, in order.

        All of them have ended when it returns or raises: a connection must
        not be rolled back while another thread is using it.

        :raises BaseException: what the first of them has raised.
        """
        first, *others = jobs
        futures: list[Future[T]] = []
        try:
            for job in others:
                context = contextvars.copy_context()
                futures.append(self._pool().submit(context.run, job))
            results = [first()]
        finally:
            wait(futures)
        return results + [future.result() for future in futures]

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(
                    self._threads, "sqla-shard-lane"
                )
            return self._executor

    def close(self) -> None:
        """Let the threads end."""
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown()
