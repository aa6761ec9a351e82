"""Sources that say nothing by themselves, and so are looked at."""

from __future__ import annotations

import os
from collections.abc import Callable

from sqla_shard.topology import FileSource
from sqla_shard.topology import Topology
from sqla_shard.topology import TopologySource

__all__ = ["FollowedFile", "PolledSource"]

#: What tells two versions of a file apart.  Not the time alone: a file that
#: is written twice within a tick of the clock has one time.
_Signature = tuple[int, int, int, int] | None


class PolledSource:
    """A source of any kind that can only be asked.

    :param source: has ``load()``.
    :param interval: seconds between two questions.
    """

    def __init__(self, source: TopologySource, interval: float) -> None:
        self._source = source
        self.interval: float | None = interval

    @property
    def name(self) -> str:
        """Its ``repr()``."""
        return repr(self._source)

    def start(self, notify: Callable[[], None]) -> None:
        """Do nothing: it is asked."""

    def load(self) -> Topology:
        """Ask it."""
        return self._source.load()

    def look(self) -> bool:
        """Have it asked each time."""
        return True

    def stop(self) -> None:
        """Do nothing."""

    def forked(self) -> None:
        """Do nothing."""


class FollowedFile(PolledSource):
    """A file, read again when it is another one than it was.

    :param source: the file.
    :param interval: seconds between two looks at its directory entry.
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
        # Before it is read: what changes meanwhile is seen by the next look.
        self._seen = self._signature()
        return super().load()

    def look(self) -> bool:
        """Tell whether it is another file than the one read last."""
        return self._signature() != self._seen

    def _signature(self) -> _Signature:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
