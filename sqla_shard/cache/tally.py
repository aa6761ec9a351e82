"""What is counted of the cache, in one process.

Each class counts for itself, and a region what is nobody's: tombstones, which
are put for the keys of a transaction together.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import fields
from typing import Any

from sqla_shard.cache.store import Found
from sqla_shard.cache.store import State
from sqla_shard.exc.summaries import summary

__all__ = ["ClassStats", "Counts", "RegionStats", "Tally", "stats_of"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What became of keys, since the process began.

    Each key that is asked for is a hit or a miss: the sum of both is how many
    were.

    :ivar hits: keys that were there, and were answered from there.
    :ivar misses: keys for which the database was asked, whyever.
    :ivar fills: values that were put there after a read.
    :ivar lease_losses: values that were not, since somebody has written, or
        flushed the node, while the database was read; or they are too large.
    :ivar blocked: misses that had a tombstone, or a node that has not been up
        for long enough.
    :ivar unfillable: misses of transactions that had read on their server
        before, whose values may be old and were not put there.
    :ivar errors: misses whose node did not answer.
    :ivar unreadable: values that were there and of no use: of other columns,
        another life of the server, of an object that was not there then, or
        damaged.  They are removed.  Hits whose rows could not be loaded after
        all are among them.
    :ivar waits: misses that somebody else was about to fill.
    :ivar gave_up: those of them that were not filled in time.
    :ivar bytes_read: of values.
    :ivar bytes_written: of values.
    :ivar seconds: that was spent on the cache, its nodes and waiting
        included, and not on the database.
    """

    hits: int = 0
    misses: int = 0
    fills: int = 0
    lease_losses: int = 0
    blocked: int = 0
    unfillable: int = 0
    errors: int = 0
    unreadable: int = 0
    waits: int = 0
    gave_up: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    seconds: float = 0.0

    @property
    def hit_ratio(self) -> float | None:
        """The part of keys that were there; None where none was asked."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else None


@dataclass(frozen=True, kw_only=True)
class ClassStats(Counts):
    """What became of the keys of a class; see :class:`Counts`.

    :ivar name: of the class.
    :ivar is_enabled: whether reads look into the cache, in this process.
    """

    name: str
    is_enabled: bool


@dataclass(frozen=True, kw_only=True)
class RegionStats(Counts):
    """What became of the keys of a region; see :class:`Counts`.

    :ivar name: of the region.
    :ivar invalidations: tombstones that were put.
    :ivar outbox: tombstones that could not be put; if the transaction has
        committed, the outbox has their keys.
    :ivar classes: how its classes take part in that.
    """

    name: str
    invalidations: int = 0
    outbox: int = 0
    classes: tuple[ClassStats, ...] = ()


_ALL = [one.name for one in fields(Counts)]
_OF_REGIONS = ["invalidations", "outbox"]


class Tally:
    """Counts; safe to use from several threads.

    :param name: of the class or the region.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._has_failed = False
        self._counts: dict[str, Any] = dict.fromkeys([*_ALL, *_OF_REGIONS], 0)

    def add(self, **counts: float) -> None:
        """Add to counts, by the names of :class:`RegionStats`."""
        with self._lock:
            for name, count in counts.items():
                self._counts[name] += count

    def looked(
        self,
        found: Mapping[str, Found],
        hits: int,
        seconds: float,
        *,
        leases: bool,
    ) -> None:
        """Count what was found at the first look.

        :param hits: how many values could be read.
        :param leases: whether what is missing was to be leased.
        """
        counts = {
            "hits": hits,
            "bytes_read": sum(len(one.value) for one in found.values()),
            "seconds": seconds,
        }
        if hits != len(found):
            counts["misses"] = len(found) - hits
            states = [one.state for one in found.values()]
            # A store that was asked for no leases does not say why.
            why = "blocked" if leases else "unfillable"
            counts[why] = states.count(State.BLOCKED)
            counts["errors"] = states.count(State.LOST)
        self.add(**counts)

    def filled(
        self, values: Mapping[str, tuple[Any, bytes]], done: Collection[str]
    ) -> None:
        """Count what was put there, of what was to be."""
        self.add(
            fills=len(done),
            lease_losses=len(values) - len(done),
            bytes_written=sum(len(values[key][1]) for key in done),
        )

    def log(self, error: Exception) -> None:
        """Log what a value in the cache has raised, the first time."""
        with self._lock:
            is_first, self._has_failed = not self._has_failed, True
        if is_first:
            _log.warning(
                "a value of %s in the cache cannot be loaded, and is removed, "
                "as others like it will be: %s",
                self.name,
                summary(error),
                extra={"action": "cache", "class": self.name},
            )

    def waited(self, keys: int, left: int) -> None:
        """Count what somebody else was about to fill.

        :param left: how many were not filled in time.
        """
        # They were counted as misses, when they were not there yet.
        self.add(waits=keys, gave_up=left)

    def counts(self) -> dict[str, Any]:
        """Return the counts as they are now, by their names."""
        with self._lock:
            return dict(self._counts)


def stats_of(
    region: Tally, classes: Iterable[tuple[Tally, bool]]
) -> RegionStats:
    """Return the counts of a region, those of its classes included.

    :param region: what it has counted itself.
    :param classes: what its classes have, and whether they are enabled.
    """
    sums = region.counts()
    of_classes = []
    for tally, is_enabled in classes:
        counts = tally.counts()
        for name, count in counts.items():
            sums[name] += count
        its = {name: counts[name] for name in _ALL}
        of_classes.append(
            ClassStats(name=tally.name, is_enabled=is_enabled, **its)
        )
    return RegionStats(name=region.name, classes=tuple(of_classes), **sums)
