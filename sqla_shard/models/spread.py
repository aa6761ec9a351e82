"""Places of the rows of a list that is spread over several virtual shards.

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

from typing import Any, NamedTuple

from sqla_shard.exc import ClassDefinitionError

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
