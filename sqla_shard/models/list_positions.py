"""Arithmetic of list positions: integers with gaps between them.

The position of a new row is the current time: milliseconds since 1970 followed
by 25 zeros, which fits the 38 digits of the column until the year 2286.  A
moved row gets the midpoint of its new neighbours.  The gap between two rows
added one millisecond apart has room for 83 moves to the same place, since
``2**83 < 10**25 < 2**84``.

When a gap has no room left, the rows around it are spread over a window of
positions.  Each window tried is 16 times as wide as the one before, but may
contain only 4 times as many rows, so that a wider window leaves larger gaps
and is needed less often (compare the densities of M. A. Bender and others,
"Two Simplified Algorithms for Maintaining Order in a List", 2002).

All positions are ``int``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sqla_shard.types.columns import MAX_SEQUENCE

#: One millisecond.
STEP = 10**25

_SMALLEST = 2
_LARGEST = 7

#: Maximum of ``respace_to``; with more moves, the largest window would be
#: wider than a millisecond.
MOST_MOVES = 50


def now() -> int:
    """Return the position of a new row."""
    return time.time_ns() // 1_000_000 * STEP


def next_on_top(top: int | None) -> int:
    """Return the position of a new row, above all rows of the list.

    :param top: the highest position of the list; None if it is empty.
    """
    present = now()
    if top is None or top < present:
        return present
    return (top // STEP + 1) * STEP


def middle(low: int | None, high: int | None) -> int | None:
    """Return the position in the middle of a gap.

    :param low: position of the row below; None at the end of the list.
    :param high: position of the row above; None at the top.
    :returns: None if there is no room.
    """
    if low is None:
        low = -1 if high is None else max(high - 2 * STEP, -1)
    if high is None:
        high = min(low + 2 * STEP, MAX_SEQUENCE + 1)
    if high - low < 2:
        return None
    return low + (high - low) // 2


def moves_in(gap: int) -> int:
    """Return the number of moves to one place that a gap has room for."""
    return max(gap.bit_length() - 1, 0)


@dataclass(frozen=True)
class Window:
    """A range of positions over which rows are spread.

    :ivar low: the lowest position.
    :ivar high: the highest position.
    :ivar capacity: maximum number of rows.
    """

    low: int
    high: int
    capacity: int

    def spread(self, count: int) -> list[int]:
        """Return positions for a number of rows, lowest first."""
        gap = (self.high - self.low) // (count + 1)
        return [self.low + gap * (index + 1) for index in range(count)]


def windows(center: int, moves: int) -> Iterator[Window]:
    """Yield windows around a position, each larger than the one before.

    :param moves: number of moves for which each gap between rows has room, at
        most :data:`MOST_MOVES`.
    """
    for level in range(_SMALLEST, _LARGEST + 1):
        half = 1 << moves + 4 * level
        low = max(center - half, 0)
        high = min(center + half, MAX_SEQUENCE)
        # A window at either end of the range is smaller.
        room = (high - low >> moves) - 1
        yield Window(low, high, min(1 << 2 * level, room))


def reach(moves: int) -> int:
    """Return the maximum distance by which a few re-spacings shift a row.

    :param moves: number of moves, see :func:`windows`.
    """
    return 1 << moves + 4 * _LARGEST + 2


def push_up(positions: Iterable[int], moves: int) -> Iterator[int]:
    """Yield positions, lowest first, with gaps of at least ``2**moves``.

    Each position is raised by the smallest possible distance, which may be 0.
    """
    gap = 1 << moves
    least = 0
    for position in positions:
        placed = max(position, least)
        yield placed
        least = placed + gap
