"""What a :class:`~.follower.Follower` asks of its source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sqla_shard.topology import Topology

__all__ = ["FollowedSource"]


class FollowedSource(Protocol):
    """A source that is followed.

    But for the argument of :meth:`start`, all of it is called from one
    thread.  A change that the source misses is found by asking it again;
    :meth:`load` decides, the rest only says when.

    :ivar interval: seconds between two looks; None where it tells of
        changes by itself.
    """

    interval: float | None

    @property
    def name(self) -> str:
        """What to call it in logs and errors; no password is part of it."""
        ...

    def start(self, notify: Callable[[], None]) -> None:
        """Begin to watch.

        :param notify: to be called, by any thread, when there may be
            something new; it returns at once.
        """
        ...

    def load(self) -> Topology:
        """Return the topology as it is now; it may take some seconds.

        :raises TopologyUnavailableError: when the source cannot be asked,
            or has none.
        :raises TopologyError: when what it has cannot be used.
        """
        ...

    def look(self) -> bool:
        """Tell at little cost whether there may be something new."""
        ...

    def stop(self) -> None:
        """End watching; it can be started again."""
        ...

    def forked(self) -> None:
        """Drop, in a child process, what belongs to its parent.

        Not a word may be said over what is shared with it.
        """
        ...
