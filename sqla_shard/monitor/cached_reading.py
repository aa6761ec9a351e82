"""Values that are read in the background.

Nobody waits for a server for long: one gets the last value with its age, or none
yet, while a thread reads the next one.  Only one thread at a time reads a value,
whatever the number of those who ask: a server that hangs costs one thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Generic, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.engine.unreachable import short
from sqla_shard.util.logs import careful_log
from sqla_shard.util.processes import in_children

T = TypeVar("T")

_log = careful_log(__name__)

#: When a page stops waiting, by the monotonic clock.
_END = ContextVar("sqla_shard_dashboard_end", default=inf)


@contextmanager
def waiting(seconds: float) -> Iterator[None]:
    """Limit the seconds for which one page waits for all its values together.

    Each of them is late while a server hangs.
    """
    token = _END.set(monotonic() + seconds)
    try:
        yield
    finally:
        _END.reset(token)


@dataclass(frozen=True, kw_only=True)
class Reading(Generic[T]):
    """A value, or the reason why there is none.

    :ivar value: the last value; None if none was read yet.
    :ivar age: seconds since it was read.
    :ivar error: why the last attempt failed; None if it did not.
    :ivar is_late: whether an attempt is running that has taken longer than
        the page has waited.
    :ivar version: number of different values that were read so far.
    """

    value: T | None = None
    age: float = 0.0
    error: str | None = None
    is_late: bool = False
    version: int = 0


class CachedReading(Generic[T]):
    """A value that is read again when it is older than some seconds.

    :param name: name of the thread that reads it.
    :param read: returns the value; it has time limits of its own.
    :param fresh: seconds for which a value is not read again.
    :param share: the share of the time in which it may be read: one that takes
        long is read less often.
    """

    def __init__(
        self, name: str, read: Callable[[], T], *, fresh: float, share: float = 0.2
    ) -> None:
        self._name = name
        self._read = read
        self._fresh = fresh
        self._share = share
        self._value: T | None = None
        self._error: str | None = None
        self._version = 0
        self._ended = 0
        self.after_fork()
        in_children(self)

    def after_fork(self) -> None:
        """Drop the thread, which a child process does not have."""
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._taken: float | None = None
        self._next = -inf

    def get(self, wait: float) -> Reading[T]:
        """Return the value; start to read it again if it is old.

        :param wait: seconds to wait if the value is old; see
            :func:`waiting`.
        """
        number = self.start()
        return self.last(min(monotonic() + wait, _END.get()), number)

    def start(self) -> int:
        """Read the value in a thread, unless it is new, or is being read.

        :returns: the number of the reading, for :meth:`last`.
        """
        with self._changed:
            # A thread that has died before it read, of a function for
            # threading.settrace(), must not be waited for, for ever.
            is_read = self._thread is not None and self._thread.is_alive()
            if monotonic() >= self._next and not is_read:
                thread = threading.Thread(
                    target=self._run,
                    name=f"sqla-shard {self._name}",
                    # A driver may wait longer than the process lives.
                    daemon=True,
                )
                thread.start()
                self._thread = thread
            return self._ended + (self._thread is not None)

    def last(self, end: float = 0.0, number: int | None = None) -> Reading[T]:
        """Return the last value.

        :param end: when to stop waiting for the next one, by the monotonic clock.
        :param number: what :meth:`start` has returned: a later reading, which
            another has started, is not waited for.
        """
        with self._changed:
            if number is None:
                number = self._ended + (self._thread is not None)
            self._changed.wait_for(
                lambda: self._ended >= number, max(0.0, end - monotonic())
            )
            taken = self._taken
            return Reading(
                value=self._value,
                age=0.0 if taken is None else monotonic() - taken,
                error=self._error,
                is_late=self._ended < number,
                version=self._version,
            )

    def expire(self) -> None:
        """Read the value again when it is asked for next."""
        with self._changed:
            self._next = -inf

    def _run(self) -> None:
        error: str | None = "the read failed; its traceback is in the log"
        value: T | None = None
        began = monotonic()
        try:
            value = self._read()
            error = None
        except (SQLAlchemyError, OSError) as raised:
            error = short(raised)
            _log.info("%s could not be read: %s", self._name, error)
        finally:
            # In any case, or pages would wait for this thread for ever.
            with self._changed:
                now = monotonic()
                if error is None:
                    self._version += value != self._value
                    self._value, self._taken = value, now
                self._error = error
                pause = (now - began) * (1 / self._share - 1)
                self._next = now + max(self._fresh, pause)
                self._ended += 1
                self._thread = None
                self._changed.notify_all()
