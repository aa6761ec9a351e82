"""Weights of texts, made comparable.

Servers send the weights of a text, and what its collation pads with; see
:mod:`sqla_shard.dialects.weights`.  Where it pads, the end of a text compares
as if its padding went on for ever.  So the weights of all rows are padded to
one length here, longer than the longest of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqla_shard.dialects.weights import NO_TEXT
from sqla_shard.dialects.weights import TOO_LONG_TO_GROUP
from sqla_shard.exc import ScatterUnsupportedError

__all__ = ["Text", "check_identities", "weigh"]

Row = Sequence[Any]

# Of a collation: one weight, or one for each of two or three levels.  What
# is longer is the name of a collation.
_ONE_LEVEL = 3
_LEVELS = (4, 6)
_LEVEL = 2
_BETWEEN = b"\0\0"
#: That of the hash in place of a text in GROUP BY.
_IDENTITY = 32


@dataclass(frozen=True)
class Text:
    """Where rows have what a text is compared by.

    :ivar at: position of its weights.
    :ivar padding: of what comes after them; NULL is there where Python
        compares texts as the server does.
    :ivar shown: of the text itself.
    """

    at: int
    padding: int
    shown: int


def weigh(runs: Sequence[list[Row]], texts: Sequence[Text]) -> list[list[Row]]:
    """Return rows with bytes that compare, in place of weights.

    :raises ScatterUnsupportedError: when weights do not tell the order.
    """
    made = [_made(runs, text) for text in texts]
    if not any(made):
        return list(runs)
    return [[_changed(row, texts, made) for row in run] for run in runs]


def _changed(
    row: Row, texts: Sequence[Text], made: Sequence[dict[bytes, Any]]
) -> Row:
    values = list(row)
    for text, known in zip(texts, made, strict=True):
        weights = values[text.at]
        if known and weights is not None:
            values[text.at] = known[weights]
    return values


def _made(runs: Sequence[list[Row]], text: Text) -> dict[bytes, Any]:
    """Return what compares in place of each of the weights; empty for none."""
    found = set()
    paddings = set()
    for row in _rows(runs):
        weights = row[text.at]
        if weights is not None:
            found.add(weights)
            paddings.add(row[text.padding])
        elif row[text.shown] is not None:
            raise _no_text(repr(row[text.shown]))
    if not paddings or paddings == {None}:
        return {}
    if len(paddings) > 1:
        raise ScatterUnsupportedError(
            "ORDER BY, min() or max() over several shards compares texts "
            "whose collations differ from shard to shard; collate() them to "
            "one, and bring the tables to the same",
            construct="COLLATE",
        )
    padding = paddings.pop()
    if len(padding) > max(_LEVELS):
        raise _inexact(padding)
    width = max(map(len, found)) + 2 * len(padding)
    if len(padding) <= _ONE_LEVEL:
        return {w: _padded(w, padding, width) for w in found}
    each = [padding[:_LEVEL], padding[_LEVEL:4], padding[-_LEVEL:]]
    return {
        w: b"".join(
            _padded(level, pad, width)
            for level, pad in zip(_split(w), each, strict=True)
        )
        for w in found
    }


def _rows(runs: Sequence[list[Row]]) -> Iterator[Row]:
    for run in runs:
        yield from run


def _padded(weights: bytes, padding: bytes, width: int) -> bytes:
    if not padding:
        return weights
    return (weights + padding * (width // len(padding) + 1))[:width]


def _split(weights: bytes) -> Iterator[bytes]:
    """Yield the weights of each level."""
    start = at = 0
    while (at := weights.find(_BETWEEN, at)) >= 0:
        if at % _LEVEL:  # the end of a weight and the beginning of another
            at += 1
            continue
        yield weights[start:at]
        start = at = at + _LEVEL
    yield weights[start:]


def check_identities(values: Iterable[Any]) -> None:
    """Refuse to group by what does not tell texts apart.

    :param values: identities of texts; texts themselves where Python compares
        them as the server does.
    :raises ScatterUnsupportedError: when there is one that does not.
    """
    for value in values:
        if not isinstance(value, bytes) or len(value) == _IDENTITY:
            continue
        if value == TOO_LONG_TO_GROUP:
            raise ScatterUnsupportedError(
                "GROUP BY or DISTINCT over several shards has found a text "
                "longer than 65535 bytes; group by func.left() of the column, "
                "or a hash of it",
                construct="GROUP BY",
            )
        if value == NO_TEXT:
            raise _no_text("a value")
        raise _inexact(value)


def _no_text(value: str) -> ScatterUnsupportedError:
    return ScatterUnsupportedError(
        f"ORDER BY, GROUP BY, min() or max() over several shards has found "
        f"{value}, which is no text, where the types of the statement tell "
        "of one; cast() it to what it is",
        construct="cast()",
    )


def _inexact(name: bytes) -> ScatterUnsupportedError:
    collation = name.decode("utf-8", "replace")
    return ScatterUnsupportedError(
        f"ORDER BY, GROUP BY, min() or max() over several shards compares "
        f"texts of the collation {collation}, which cannot be followed "
        "outside of the server; collate() the column to another one, such as "
        "that of its character set in _bin",
        construct="COLLATE",
    )
