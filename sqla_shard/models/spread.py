"""Where the rows of a list are that is spread over several virtual shards.

A list of a class with ``spread=16`` has 16 pieces, each on another virtual
shard.  The id of a target determines the piece of its row, so that two rows
with one target cannot exist.  All functions here are fixed: another result
would be another place of existing rows.

Piece 0 is on the shard of the source, if that is one of the ``spread_over``
shards; the others are spaced evenly.  Piece *n* of 16 has the targets of the
pieces *n* and *n* + 16 of 32, and is on the same shard as piece *n* of 32, so
that a list with twice as many pieces leaves half of its rows where they are.
"""

from __future__ import annotations

from typing import Any

from sqla_shard.exc import ClassDefinitionError

__all__ = ["MOST_PIECES", "check_spread", "piece_of", "shard_of"]

#: Maximum number of pieces of a list.
MOST_PIECES = 256

_PRIME = 2**31 - 1
#: An odd number near 2**32 divided by the golden ratio: Fibonacci hashing
#: separates consecutive numbers.
_FACTOR = 2_654_435_769


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


def check_spread(cls: type[Any], pieces: Any, over: Any) -> None:
    """Reject class keywords that are not valid.

    :raises ClassDefinitionError: for such a keyword.
    """
    if type(pieces) is not int or pieces not in (
        1 << bit for bit in range(1, MOST_PIECES.bit_length())
    ):
        raise ClassDefinitionError(
            f"spread={pieces!r}; it must be a power of two from 2 to "
            f"{MOST_PIECES}, such as 16",
            class_name=cls.__name__,
        )
    if type(over) is not int or over < pieces:
        raise ClassDefinitionError(
            f"spread_over={over!r}; it must be the number of shards over "
            f"which the pieces are spread, {pieces} or more, such as the "
            "number of shards of the keyspace; it cannot be changed later",
            class_name=cls.__name__,
        )
