"""A topology that nobody follows, but that can be replaced by hand."""

from __future__ import annotations

import threading

from sqla_shard.following.follower import SourceReport
from sqla_shard.topology import Topology

__all__ = ["Fixed"]


class Fixed:
    """Stands where a :class:`~.follower.Follower` stands otherwise.

    :param topology: the first one.
    """

    #: Nothing is to be waited for.
    is_live = False
    #: There is no thread that would have to be begun.
    is_running = True
    #: Nobody is asked.
    has_asked = True

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._changed = threading.Condition()

    @property
    def epoch(self) -> int:
        """The epoch of the topology in use."""
        return self._topology.epoch

    def replace(self, topology: Topology) -> None:
        """Take note of another one, which is in use by now."""
        with self._changed:
            self._topology = topology
            self._changed.notify_all()

    def start(self) -> None:
        """Do nothing."""

    def refresh(self) -> None:
        """Do nothing: there is nobody to ask."""

    def wait(self, epoch: int, timeout: float) -> bool:
        """Wait for a newer topology; see :meth:`.Follower.wait`."""
        with self._changed:
            return self._changed.wait_for(lambda: self.epoch != epoch, timeout)

    def wait_asked(self, timeout: float) -> None:
        """Do nothing: there is nobody to ask."""

    def report(self) -> SourceReport:
        """Return how things stand."""
        return SourceReport(
            source="the application", state="fixed", epoch=self.epoch, age=0.0
        )

    def after_fork(self) -> None:
        """Forget, in a child process, who holds the lock in the parent."""
        self._changed = threading.Condition()

    def close_soon(self) -> None:
        """Do nothing."""

    def close(self, timeout: float) -> bool:
        """Do nothing."""
        return True
