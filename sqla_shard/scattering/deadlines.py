"""Calling something when its time has come, in one thread for all.

A thread that waits for a server cannot watch the clock; this one does it for
all of them.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections.abc import Callable
from time import monotonic

__all__ = ["Deadlines"]

_log = logging.getLogger(__name__)


class Deadlines:
    """Calls functions at given times; the thread starts when needed."""

    def __init__(self) -> None:
        self.after_fork()

    def after_fork(self) -> None:
        """Forget the thread, which a child process does not have."""
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._thread: threading.Thread | None = None
        self._closed = False

    def call_later(
        self, seconds: float, call: Callable[[], None]
    ) -> Callable[[], None]:
        """Call a function after some time, unless that is taken back.

        :param call: it must not wait.  What it raises is logged: the thread
            goes on for the others.
        :returns: takes it back; when it returns, the function is not
            running and will not be called.
        """
        with self._changed:
            number = next(self._count)
            heapq.heappush(self._due, (monotonic() + seconds, number, call))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="sqla-shard-deadlines", daemon=True
                )
                self._thread.start()
            self._changed.notify()

        def cancel() -> None:
            with self._changed:
                self._due = [due for due in self._due if due[1] != number]
                heapq.heapify(self._due)

        return cancel

    def _run(self) -> None:
        with self._changed:
            while not self._closed:
                if not self._due:
                    self._changed.wait()
                    continue
                left = self._due[0][0] - monotonic()
                if left > 0:
                    self._changed.wait(left)
                    continue
                # Called under the lock, so that cancel() waits for it.
                call = heapq.heappop(self._due)[2]
                try:
                    call()
                except Exception:
                    _log.exception("a statement could not be ended in time")

    def close(self) -> None:
        """Let the thread end."""
        with self._changed:
            self._closed = True
            thread, self._thread = self._thread, None
            self._changed.notify()
        if thread is not None:
            thread.join()
