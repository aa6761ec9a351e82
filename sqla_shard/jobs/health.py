"""Health of the servers that take jobs, as this process has seen it lately.

For each server there is a window of the last outcomes of enqueueing, claiming
and acknowledging.  With too many failures the server has a rest; after that
one transaction probes it, and its outcome ends the rest or begins another.
Otherwise a server that does not respond would cost each of them a timeout.

Errors of the caller, such as a deadlock or a missing table, do not count.
"""

from __future__ import annotations

import threading
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from sqlalchemy import Engine

from sqla_shard.exc import CommitUnknownError, ServerFencedError, ServerUnreachableError
from sqla_shard.exc.base import summary
from sqla_shard.util.pace import jittered

if TYPE_CHECKING:
    from sqla_shard import Cluster

#: Errors of a server.
UNHEALTHY = (CommitUnknownError, ServerFencedError, ServerUnreachableError)
_WINDOW = 20
#: A server has a rest after this many failures in its window, if they are
#: more than a quarter of it.
_FAILURES = 3
_REST = 5.0


class _Window:
    def __init__(self) -> None:
        self.outcomes: deque[bool] = deque(maxlen=_WINDOW)
        self.rests_until: float | None = None
        self.error = ""

    def record(self, error: Exception | None) -> None:
        if error is None:
            if self.rests_until is not None:
                self.rests_until = None
                self.outcomes.clear()
            self.outcomes.append(True)
            return
        self.error = summary(error)
        self.outcomes.append(False)
        failures = self.outcomes.count(False)
        if self.rests_until is not None or (
            failures >= _FAILURES and 4 * failures > len(self.outcomes)
        ):
            self.rest()

    def rest(self) -> None:
        self.rests_until = monotonic() + jittered(_REST, 0.2)

    def allows(self) -> bool:
        if self.rests_until is None:
            return True
        if monotonic() < self.rests_until:
            return False
        # This one is the probe; the others wait for its outcome.
        self.rest()
        return True


class HealthWindows:
    """The windows of the servers of a cluster, for all threads.

    They are of engines: a server with another address has a new window.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._windows: WeakKeyDictionary[Engine, _Window] = WeakKeyDictionary()

    def allows(self, engine: Engine) -> bool:
        """Return whether a transaction may be sent to a server now.

        Call it only before sending one: it may be the probe.
        """
        with self._lock:
            window = self._windows.get(engine)
            return window is None or window.allows()

    def record(self, engine: Engine, error: Exception | None) -> None:
        """Record the outcome of a transaction.

        :param error: its error; None if it has succeeded.  An error that is
            not of the server is a success.
        """
        counted = error if isinstance(error, UNHEALTHY) else None
        with self._lock:
            window = self._windows.get(engine)
            if window is None:
                window = self._windows[engine] = _Window()
            window.record(counted)

    def last_error(self, engine: Engine) -> str:
        """Return the last error of a server, for messages."""
        with self._lock:
            window = self._windows.get(engine)
            return "" if window is None else window.error


_lock = threading.Lock()
_known: WeakKeyDictionary[Cluster, HealthWindows] = WeakKeyDictionary()


def windows_of(cluster: Cluster) -> HealthWindows:
    """Return the windows of a cluster in this process."""
    with _lock:
        return _known.setdefault(cluster, HealthWindows())
