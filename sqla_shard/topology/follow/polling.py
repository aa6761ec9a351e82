"""Sources that are polled, and fixed topologies."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from sqla_shard.topology import FileSource, Topology, TopologySource
from sqla_shard.topology.follow.follower import SourceReport

#: Identifies a version of a file.  The time is not sufficient: two writes
#: within one tick of the clock have the same time.
_Signature = tuple[int, int, int, int] | None


class PolledSource:
    """A source that only has ``load()``, called at intervals.

    :param source: an object with a method ``load()``.
    :param interval: seconds between two calls.
    """

    def __init__(self, source: TopologySource, interval: float) -> None:
        self._source = source
        self.interval: float | None = interval

    @property
    def name(self) -> str:
        """The ``repr()`` of the source."""
        return repr(self._source)

    def start(self, notify: Callable[[], None]) -> None:
        """Do nothing: the source is polled."""

    def load(self) -> Topology:
        """Return the current topology."""
        return self._source.load()

    def look(self) -> bool:
        """Return True: the source is loaded each time."""
        return True

    def stop(self) -> None:
        """Do nothing."""

    def forked(self) -> None:
        """Do nothing."""


class FollowedFile(PolledSource):
    """A file, which is read again after a change.

    :param source: the file that is polled.
    :param interval: seconds between two checks of its directory entry.
    """

    def __init__(self, source: FileSource, interval: float = 1.0) -> None:
        super().__init__(source, interval)
        self._path = source.path
        self._seen: _Signature = None

    @property
    def name(self) -> str:
        """The path."""
        return str(self._path)

    def load(self) -> Topology:
        """Read the file."""
        # Stored before reading, so that the next check finds a concurrent
        # change.
        self._seen = self._signature()
        return super().load()

    def look(self) -> bool:
        """Return whether the file has changed since the last read."""
        return self._signature() != self._seen

    def _signature(self) -> _Signature:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


class Fixed:
    """A topology without a source, instead of a :class:`.Follower`.

    It can be replaced by :meth:`.Cluster.update_topology`.

    :param topology: the first topology.
    """

    is_live = False
    is_running = True
    has_read = True

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._changed = threading.Condition()

    @property
    def epoch(self) -> int:
        """The epoch of the topology in use."""
        return self._topology.epoch

    def replace(self, topology: Topology) -> None:
        """Record another topology, which is already in use."""
        with self._changed:
            self._topology = topology
            self._changed.notify_all()

    def start(self) -> None:
        """Do nothing."""

    def refresh(self) -> None:
        """Do nothing: there is no source."""

    def wait(self, epoch: int, timeout: float) -> bool:
        """Wait for a newer topology; see :meth:`.Follower.wait`."""
        with self._changed:
            return self._changed.wait_for(lambda: self.epoch != epoch, timeout)

    def wait_read(self, timeout: float) -> None:
        """Do nothing: there is no source."""

    def report(self) -> SourceReport:
        """Return the state: fixed."""
        return SourceReport(
            source="the application", state="fixed", epoch=self.epoch, age=0.0
        )

    def after_fork(self) -> None:
        """Replace the lock, which a thread of the parent may hold."""
        self._changed = threading.Condition()

    def close_soon(self) -> None:
        """Do nothing."""

    def close(self, timeout: float) -> bool:
        """Do nothing."""
        return True
