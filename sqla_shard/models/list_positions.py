"""Positions of the rows of a list, and the shards of those of a spread list.

Positions are integers with gaps between them.

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

A list of a class with ``spread=16`` has 16 pieces, each on another virtual
shard.  The id of a target determines the piece of its row, so that two rows
with one target cannot exist.  All functions here are fixed: another result
would be another place of existing rows.

Piece 0 is on the shard of the source, if that is one of the ``spread_over``
shards; the others are spaced evenly.  Piece *n* of 16 has the targets of the
pieces *n* and *n* + 16 of 32, and is on the same shard as piece *n* of 32, so
that a list with twice as many pieces leaves half of its rows where they are.
A list that is not spread is piece 0 of 1.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqla_shard.exc import ClassDefinitionError
from sqla_shard.types.columns import MAX_SEQUENCE

#: One millisecond.
STEP = 10**25

_SMALLEST = 2
_LARGEST = 7

#: Maximum of ``respace_to``; with more moves, the largest window would be
#: wider than a millisecond.
MOST_MOVES = 50

#: Maximum number of pieces of a list.
MOST_PIECES = 256

_PRIME = 2**31 - 1
#: An odd number near 2**32 divided by the golden ratio: Fibonacci hashing
#: separates consecutive numbers.
_FACTOR = 2_654_435_769


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


def piece_of(target_id: int, pieces: int) -> int:
    """Return the number of the piece that has the row of a target.

    :param pieces: number of pieces, a power of two.
    """
    mixed = target_id % _PRIME * _FACTOR % 2**32
    return (mixed >> 16) & (pieces - 1)


def shard_of(shard_id: int, piece: int, over: int) -> int:
    """Return the number of the shard of a piece.

    :param shard_id: the shard of the source.
    :param over: number of shards over which pieces are spread.
    """
    reversed_bits = int(f"{piece:08b}"[::-1], 2)
    return (shard_id + reversed_bits * over // MOST_PIECES) % over


class Pieces(NamedTuple):
    """The pieces of the lists of a class.

    :ivar number: number of pieces; 1 if lists are not spread.
    :ivar over: number of shards over which they are spread.
    :ivar before: number of pieces before an increase that is not finished;
        0 without one.
    :ivar appends_before: whether rows are still appended to those.
    """

    number: int = 1
    over: int = 0
    before: int = 0
    appends_before: bool = False


def check_pieces(
    cls: type[Any], spread: Any, over: Any, before: Any, after: Any
) -> Pieces:
    """Return the pieces that class keywords declare.

    :param spread: ``spread=``, or None.
    :param over: ``spread_over=``, or None.
    :param before: ``spread_from=``, or None.
    :param after: ``spread_to=``, or None.
    :raises ClassDefinitionError: for a keyword that is not valid.
    """
    given = spread, over, before, after
    if given == (None, None, None, None):
        return Pieces()
    if before is not None and after is not None:
        raise ClassDefinitionError(
            f"spread_from={before!r} and spread_to={after!r} are two steps of "
            "an increase: use spread_to= first, and spread_from= when all "
            "processes use it",
            class_name=cls.__name__,
        )
    name, pieces = "spread", spread
    if after is not None:
        name, pieces = "spread_to", after
        before = 1 if spread is None else spread
    _check_power(cls, name, pieces, 2)
    if type(over) is not int or over < pieces:
        raise ClassDefinitionError(
            f"spread_over={over!r}; it must be the number of shards over "
            f"which the pieces are spread, {pieces} or more, such as the "
            "number of shards of the keyspace; it cannot be changed later",
            class_name=cls.__name__,
        )
    if before is None:
        return Pieces(pieces, over)
    name = "spread" if after is not None else "spread_from"
    _check_power(cls, name, before, 1)
    if before >= pieces:
        raise ClassDefinitionError(
            f"{before} pieces cannot become {pieces}: their number can only "
            "be increased",
            class_name=cls.__name__,
        )
    return Pieces(pieces, over, before, after is not None)


def _check_power(cls: type[Any], name: str, value: Any, least: int) -> None:
    powers = [1 << bit for bit in range(MOST_PIECES.bit_length())]
    if type(value) is not int or value < least or value not in powers:
        raise ClassDefinitionError(
            f"{name}={value!r}; it must be a power of two from {least} to "
            f"{MOST_PIECES}, such as 16",
            class_name=cls.__name__,
        )
