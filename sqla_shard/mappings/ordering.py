"""The arithmetic of positions: whole numbers with room between them.

A new row is put at the present time: milliseconds since 1970 followed by 25
zeros, which the 38 digits of the column have room for until the year 2286.
A moved row is put in the middle between its new neighbours.  Two rows that
were added one millisecond apart have room for 83 moves to one and the same
spot between them, since ``2**83 < 10**25 < 2**84``.

Where a gap is used up, the rows around it are spread over a window of
positions.  The windows tried grow by a factor of 16, the rows that they may
hold by 4 only, so that a larger one leaves larger gaps and is needed the less
often (M. A. Bender and others, "Two Simplified Algorithms for Maintaining
Order in a List", 2002, do it with densities).

All of it is ``int``; nothing here knows of a database.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass

from sqla_shard.types.sequences import MAX_SEQUENCE

__all__ = [
    "MOST_MOVES",
    "STEP",
    "Window",
    "middle",
    "moves_in",
    "next_on_top",
    "now",
    "push_up",
    "reach",
    "windows",
]

#: One millisecond.
STEP = 10**25

_SMALLEST = 2
_LARGEST = 7

#: Of a gap after a re-spacing; with more, the largest window would be wider
#: than a millisecond.
MOST_MOVES = 50


def now() -> int:
    """Return the position of a row that is added now."""
    return time.time_ns() // 1_000_000 * STEP


def next_on_top(top: int | None) -> int:
    """Return a position for a new row: now, and above all others.

    :param top: the highest position of the list; None in an empty one.
    """
    present = now()
    if top is None or top < present:
        return present
    return (top // STEP + 1) * STEP


def middle(low: int | None, high: int | None) -> int | None:
    """Return the position in the middle of a gap.

    :param low: the row below; None at the end of the list.
    :param high: the row above; None at the top.
    :returns: None when there is no room.
    """
    if low is None:
        low = -1 if high is None else max(high - 2 * STEP, -1)
    if high is None:
        high = min(low + 2 * STEP, MAX_SEQUENCE + 1)
    if high - low < 2:
        return None
    return low + (high - low) // 2


def moves_in(gap: int) -> int:
    """Return how many moves to one spot a gap takes before it is used up."""
    return max(gap.bit_length() - 1, 0)


@dataclass(frozen=True)
class Window:
    """Positions that rows are spread over.

    :ivar low: the lowest position in it.
    :ivar high: the highest.
    :ivar capacity: how many rows it may hold.
    """

    low: int
    high: int
    capacity: int

    def spread(self, count: int) -> list[int]:
        """Return positions for as many rows, lowest first."""
        gap = (self.high - self.low) // (count + 1)
        return [self.low + gap * (index + 1) for index in range(count)]


def windows(center: int, moves: int) -> Iterator[Window]:
    """Yield windows around a position, each larger than the one before.

    Rows spread over one of them have gaps that take ``moves`` moves.

    :param moves: at most :data:`MOST_MOVES`.
    """
    for level in range(_SMALLEST, _LARGEST + 1):
        half = 1 << moves + 4 * level
        low = max(center - half, 0)
        high = min(center + half, MAX_SEQUENCE)
        # Cut off at an end of all positions it holds fewer.
        room = (high - low >> moves) - 1
        yield Window(low, high, min(1 << 2 * level, room))


def reach(moves: int) -> int:
    """Return how far a few re-spacings shift a row at most.

    :param moves: as for :func:`windows`.
    """
    return 1 << moves + 4 * _LARGEST + 2


def push_up(positions: Iterable[int], moves: int) -> Iterator[int]:
    """Yield positions, lowest first, with gaps that take some moves.

    Those that have room stay; the others move up by as little as they can.
    """
    gap = 1 << moves
    least = 0
    for position in positions:
        placed = max(position, least)
        yield placed
        least = placed + gap
