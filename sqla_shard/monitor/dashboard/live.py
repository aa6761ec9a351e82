"""Server-sent events: browsers learn that a page should be drawn again.

An event has a digest of what the page shows, and the browser requests the page
when that differs from its own.  A stream ends after some minutes, and browsers
reconnect, so one whose browser is gone does not hold a thread for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from time import monotonic

from sqla_shard.monitor.dashboard.observer import Observer
from sqla_shard.util.processes import in_children

#: Seconds between two looks at the values.
_INTERVAL = 1.0
#: Seconds between two events without a change; a closed connection is noticed
#: when something is sent.
_QUIET = 15.0
#: Seconds after which a stream ends.
_LONGEST = 600.0


class Streams:
    """The open streams of a process.

    :param most: maximum number: each holds a thread of the server.
    """

    def __init__(self, observer: Observer, *, most: int = 24) -> None:
        self._observer = observer
        self._most = most
        self._open = 0
        self._closed = threading.Event()
        self.after_fork()
        in_children(self)

    def after_fork(self) -> None:
        """Replace the lock, which a thread of the parent may hold."""
        self._lock = threading.Lock()
        self._open = 0

    def close(self) -> None:
        """End all streams."""
        self._closed.set()

    def open(self, topic: str) -> Iterator[str] | None:
        """Return the events of a page.

        :returns: None if there are too many streams.
        """
        with self._lock:
            if self._open >= self._most:
                return None
            self._open += 1
        return _Stream(self, topic)

    def release(self) -> None:
        """Count a stream as closed."""
        with self._lock:
            self._open -= 1

    def events(self, topic: str) -> Iterator[str]:
        """Yield the digest of a page when it changes."""
        # The browser waits this long before it reconnects.
        yield "retry: 2000\n\n"
        end = monotonic() + _LONGEST
        last, sent = "", 0.0
        while monotonic() < end:
            digest = self._observer.digest(topic)
            if digest != last:
                yield f"data: {digest}\n\n"
            elif monotonic() - sent > _QUIET:
                yield ": no change\n\n"
            if digest != last or monotonic() - sent > _QUIET:
                last, sent = digest, monotonic()
            if self._closed.wait(_INTERVAL):
                return


class _Stream(Iterator[str]):
    """The events of one browser, which are counted until it is closed.

    A generator that was never started would not run its ``finally``.
    """

    def __init__(self, streams: Streams, topic: str) -> None:
        self._streams = streams
        self._events = streams.events(topic)
        self._is_open = True

    def __next__(self) -> str:
        return next(self._events)

    def close(self) -> None:
        """Release the stream; the WSGI server calls this in any case."""
        if self._is_open:
            self._is_open = False
            self._streams.release()
