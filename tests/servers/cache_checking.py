"""Checks that reads return the written versions.

Processes note what they do on the clock that all of them share
(``CLOCK_MONOTONIC``).  A read that began after a write was acknowledged, or
after another read has ended, must not know less than that.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from tests.servers.cache_events import Event, Moment, Stale
from tests.servers.cache_sets import stale_sets

_WRITES = ("write", "add", "remove")


@dataclass
class Report:
    """Report of the checker.

    :ivar counts: of events by kind, and of reads that were ``"cached"``.
    :ivar exempt: keys of which nothing was promised in the end.
    """

    stale: list[Stale] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    exempt: set[str] = field(default_factory=set)


def check(events: Iterable[Event], *, reads_tell: bool = True) -> Report:
    """Look for reads that are stale.

    Each life of the data by itself: writes of one are not known to the next,
    which must not see them.

    :param reads_tell: whether a read must not be older than other reads; else
        it must only not be older than acknowledged writes.
    """
    report = Report()
    by_key: dict[tuple[str, int], list[Event]] = defaultdict(list)
    passes = []
    for event in events:
        report.counts[event.kind] += 1
        report.counts["cached"] += event.cached
        if event.kind == "drained":
            passes.append(event)
        by_key[event.key, event.life].append(event)
    over = {
        event.txn: event.end
        for its in by_key.values()
        for event in its
        if event.kind == "over"
    }
    windows = _windows(by_key, over, passes)
    for (key, _), its in by_key.items():
        open_until = max((end for _, end in windows[key]), default=0.0)
        if open_until == inf:
            report.exempt.add(key)
        judged = _Judged(windows[key])
        moments = _moments(its)
        if any(event.ids is not None for event in its):
            report.stale += stale_sets(moments, judged, reads_tell)
        else:
            report.stale += _stale(moments, judged, reads_tell)
    return report


def _windows(
    by_key: Mapping[tuple[str, int], Sequence[Event]],
    over: Mapping[str, float],
    passes: Sequence[Event],
) -> Mapping[str, list[tuple[float, float]]]:
    """Return when nothing was promised, by key."""
    windows = defaultdict(list)
    for (key, _), its in by_key.items():
        exempt = [event for event in its if event.kind == "exempt"]
        lost = {"", *(event.txn for event in exempt)}
        # Each write of the key deletes its cached value.
        written = [
            event for event in its if event.kind in _WRITES and event.txn not in lost
        ]
        for event in exempt:
            since = over.get(event.txn, inf)
            ending = passes if event.ids is not None else (*passes, *written)
            ends = [done.end for done in ending if done.start >= since]
            windows[key].append((event.start, min(ends, default=inf)))
    return windows


class _Judged:
    """Tells which reads are judged: those outside of all windows."""

    def __init__(self, windows: Sequence[tuple[float, float]]) -> None:
        self._windows = windows

    def __call__(self, read: Event) -> bool:
        return not any(
            read.end >= start and read.start <= end for start, end in self._windows
        )


def _moments(events: Sequence[Event]) -> list[Moment]:
    """Return beginnings (True) and ends of events, in their order."""
    begins = ("read", "trying", "adding", "removing")
    return sorted(
        [(e.start, True, e) for e in events if e.kind in begins]
        + [(e.end, False, e) for e in events],
        key=lambda moment: moment[:2],
    )


def _stale(
    moments: Sequence[Moment], judged: Callable[[Event], bool], reads_tell: bool
) -> list[Stale]:
    """Walk through the versions of one key."""
    found = []
    known, by, added, most = 0, None, 0, 0
    tried = any(event.kind == "trying" for _, _, event in moments)
    for _, begins, event in moments:
        version = event.version
        if event.kind == "trying":
            most = max(most, version)
            continue
        if begins:
            if by is not None and version < known and judged(event):
                found.append(Stale(read=event, than=by, known=known))
            continue
        if event.kind == "read" and tried and version > most:
            if judged(event):
                found.append(Stale(read=event, known=most))
            continue
        if event.kind == "read" and not reads_tell:
            continue
        if event.kind == "add":
            added += 1
            version = added
        if version > known:
            known, by = version, event
    return found
