"""Arithmetic of decimals as MariaDB and MySQL do it.

The servers store the digits after the point in groups of nine.  A quotient
has as many whole groups as its two sides, and one more if these have less
than ``div_precision_increment`` places beyond their own; further digits are
truncated.  The returned value is rounded from that, half up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, ROUND_DOWN, ROUND_HALF_UP
from enum import Enum
from itertools import chain
from typing import Any

from sqla_shard.dialects.result_types import MOST_PLACES
from sqla_shard.dialects.sorting import NO_TEXT, TOO_LONG_TO_GROUP
from sqla_shard.exc import ScatterUnsupportedError

#: A sum of DECIMAL(65, 30) has 65 digits before the point at most; Python's
#: default of 28 digits would round it.
_EXACTLY = Context(prec=150)

_GROUP = 9
#: Maximum number of digits of a DECIMAL, before and after the point.
_DIGITS = 65
#: The default of the server variable ``div_precision_increment``.
_INCREMENT = 4
#: Maximum number of decimal places of a number inside a server.
_MAX_DECIMAL_PLACES = 45
#: With all decimal places, 38 on MariaDB, 27 digits are left before the point;
#: a larger number becomes the largest DECIMAL.
_LARGEST = Decimal(10) ** 26


class Fraction(Enum):
    """The known precision of a sum inside a server."""

    #: As many decimal places as are returned.
    EXACT = "exact"
    #: At most as many decimal places as are returned.
    MIXED = "mixed"
    #: Whole groups of decimal places, more than are returned.
    GROUPS = "groups"
    #: At least as many decimal places as are returned.
    MORE = "more"
    #: The number of decimal places is not known.
    UNKNOWN = "unknown"


def _places(value: Decimal) -> int:
    exponent = value.as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


def _round(value: Decimal, places: int, rounding: str) -> Decimal:
    unit = Decimal((0, (1,), -places))
    return value.quantize(unit, rounding=rounding, context=_EXACTLY)


def rounded_as(value: Any, like: Any) -> Any:
    """Return a number with the decimal places of another value."""
    if isinstance(value, Decimal) and isinstance(like, Decimal):
        return _round(value, _places(like), ROUND_HALF_UP)
    return value


def as_type(value: Any, like: Any) -> Any:
    """Return a number in the type, and with the places, of another value.

    :raises ScatterUnsupportedError: if the result is the text of a double.
    """
    if value is None or like is None:
        return value
    if isinstance(like, str) and not isinstance(value, str):
        if isinstance(value, float):
            raise ScatterUnsupportedError(
                f"coalesce() over several shards converts {value!r} to a text "
                "in the format of the server; use a number as the other "
                "argument, or select the aggregate and replace None in Python",
                construct="coalesce()",
            )
        return f"{value:f}" if isinstance(value, Decimal) else str(value)
    if isinstance(like, float) and isinstance(value, (int, Decimal)):
        return float(value)
    if isinstance(like, Decimal) and isinstance(value, (int, Decimal)):
        rounded = _round(Decimal(value), _places(like), ROUND_HALF_UP)
        # Zero has no sign on servers.
        return rounded if rounded else rounded.copy_abs()
    return value


def added(values: Iterable[Any]) -> Any:
    """Return the sum of numbers; None if all of them are None.

    :raises ScatterUnsupportedError: if the sum of a server overflowed.
    """
    total = None
    for value in values:
        if isinstance(value, Decimal) and value.copy_abs() == _largest_decimal(value):
            raise _too_large(value, "sum()")
        if total is None:
            total = value
        elif isinstance(total, Decimal) and isinstance(value, Decimal):
            total = _EXACTLY.add(total, value)
        elif value is not None:
            total += value
    return total


def _largest_decimal(value: Decimal) -> Decimal:
    """Return the largest DECIMAL with the places of another number."""
    places = _places(value)
    return Decimal(10**_DIGITS - 1).scaleb(-places, context=_EXACTLY)


def all_digits(values: Iterable[Any], construct: str) -> Any:
    """Return the sum of numbers with the maximum number of decimal places.

    :raises ScatterUnsupportedError: if one may have overflowed.
    """
    values = list(values)
    for value in values:
        if isinstance(value, Decimal) and value.copy_abs() >= _LARGEST:
            raise _too_large(value, construct)
    return added(values)


def check_places(total: Any, like: Any, construct: str) -> None:
    """Refuse a sum that may have more decimal places than are returned.

    :param like: the sum, or the average, as a server returns it.
    :raises ScatterUnsupportedError: if digits may have been cut off.
    """
    if not (isinstance(total, Decimal) and isinstance(like, Decimal)):
        return
    if _places(like) >= _places(total):
        raise ScatterUnsupportedError(
            f"{construct} over several shards: {like} has the maximum number "
            "of decimal places that a server returns, so further ones may "
            "have been cut off; cast() the values to a Numeric of fewer "
            "decimal places",
            construct=construct,
        )


def _too_large(value: Decimal, construct: str) -> ScatterUnsupportedError:
    return ScatterUnsupportedError(
        f"{construct} over several shards: {value:.0f} has more digits than "
        f"a DECIMAL with {_places(value)} places; cast() the values to a "
        "Numeric of fewer decimal places",
        construct=construct,
    )


def average(
    total: Decimal, count: int, own: Decimal, fraction: Fraction, like: Any
) -> Any:
    """Divide as ``avg()`` does.

    :param total: the sum, with all of its digits.
    :param own: the average of the same numbers, as a server returns it.
    :param like: a value that has the type of the result.
    :raises ScatterUnsupportedError: if its last digits are not certain.
    """
    precise = _EXACTLY.divide(total, Decimal(count))
    averages = {
        as_type(_round(precise, places, ROUND_DOWN), like)
        for places in _inside(total, _places(own), fraction)
    }
    if len(averages) > 1:
        raise ScatterUnsupportedError(
            f"avg() over several shards is one of {sorted(averages)}: the "
            "digits that the server has of the values are not known; cast() "
            "them to a Numeric with a scale",
            construct="avg()",
        )
    return averages.pop()


def near(total: Decimal, count: int, own: Decimal) -> tuple[Decimal, Decimal]:
    """Return the least and the greatest number that an average may be inside.

    :param total: the sum, with all of its digits.
    :param own: the average of the same numbers, as a server returns it.
    """
    precise = _EXACTLY.divide(total, Decimal(count))
    # Servers cut off the quotients and that of their sum; a temporary table of
    # MariaDB rounds the sum at each row to the places of the quotients.
    places = max(_places(own) - _INCREMENT, 0)
    unit = Decimal(1).scaleb(-min(places, _GROUP - 1))
    return precise - unit, precise + unit


def _inside(total: Decimal, shown: int, fraction: Fraction) -> set[int]:
    """Return the numbers of places that a quotient may be truncated to.

    :param shown: number of decimal places that are returned.
    """
    least = _places(total.normalize(_EXACTLY))
    most = _places(total)
    if fraction is Fraction.EXACT:
        return {places_of_quotient(most, shown - most)}
    if fraction is Fraction.MIXED:
        return {places_of_quotient(n, shown - most) for n in range(least, most + 1)}
    if most == MOST_PLACES and least <= shown - _INCREMENT:
        # MySQL, which rounds quotients to the places that it returns.
        most = shown - _INCREMENT
        if fraction is not Fraction.UNKNOWN:
            least = most
        return {places_of_quotient(n) for n in range(least, most + 1)}
    if fraction is not Fraction.UNKNOWN:
        least = max(least, shown - _INCREMENT)
    places = range(least, max(least, _MAX_DECIMAL_PLACES) + 1)
    if fraction is Fraction.GROUPS:
        return {places_of_quotient(n, _INCREMENT) for n in places if n % _GROUP == 0}
    return {places_of_quotient(n, _INCREMENT) for n in places}


def places_of_quotient(places: int, increment: int = _INCREMENT) -> int:
    """Return the decimal places of a quotient inside a server.

    :param places: those of the dividend.
    :param increment: ``div_precision_increment``.
    """
    whole = -(-places // _GROUP) * _GROUP
    more = max(0, increment - (whole - places))
    return -(-(whole + more) // _GROUP) * _GROUP


# Servers send the weights of a text and the padding of its collation; see
# :mod:`sqla_shard.dialects.sorting`.  A collation with padding compares a text
# as if it were followed by infinite padding.  So the weights of all rows are
# padded to the same length here, longer than the longest of them.


Row = Sequence[Any]

# The length of the padding: one weight, or one for each of two or three
# levels.  A longer value is the name of a collation.
_ONE_LEVEL = 3
_LEVELS = (4, 6)
_LEVEL = 2
_BETWEEN = b"\0\0"
#: The length of the hash that replaces a text in GROUP BY.
_IDENTITY = 32


@dataclass(frozen=True)
class Text:
    """The positions of a text and of its weights in a row.

    :ivar index: position of the weights.
    :ivar padding: position of the padding of the weights, which is NULL if
        Python compares texts as the server does.
    :ivar shown: position of the text itself.
    """

    index: int
    padding: int
    shown: int


def weigh(runs: Sequence[list[Row]], texts: Sequence[Text]) -> list[list[Row]]:
    """Return rows with padded weights.

    :raises ScatterUnsupportedError: if weights do not determine the order.
    """
    weights = [_made(runs, text) for text in texts]
    if not any(weights):
        return list(runs)
    return [[_changed(row, texts, weights) for row in run] for run in runs]


def _changed(row: Row, texts: Sequence[Text], made: Sequence[dict[bytes, Any]]) -> Row:
    values = list(row)
    for text, known in zip(texts, made, strict=True):
        weights = values[text.index]
        if known and weights is not None:
            values[text.index] = known[weights]
    return values


def _made(runs: Sequence[list[Row]], text: Text) -> dict[bytes, Any]:
    """Return the padded weights by weights; empty if there is no padding."""
    seen = set()
    paddings = set()
    for row in chain.from_iterable(runs):
        weights = row[text.index]
        if weights is not None:
            seen.add(weights)
            paddings.add(row[text.padding])
        elif row[text.shown] is not None:
            raise _no_text(repr(row[text.shown]))
    if not paddings or paddings == {None}:
        return {}
    if len(paddings) > 1:
        raise ScatterUnsupportedError(
            "ORDER BY, min() or max() over several shards compares texts "
            "whose collations differ from shard to shard; collate() them to "
            "one collation, and alter the tables to the same",
            construct="COLLATE",
        )
    padding = paddings.pop()
    if len(padding) > max(_LEVELS):
        raise _inexact(padding)
    width = max(map(len, seen)) + 2 * len(padding)
    if len(padding) <= _ONE_LEVEL:
        return {w: _padded(w, padding, width) for w in seen}
    each = [padding[:_LEVEL], padding[_LEVEL:4], padding[-_LEVEL:]]
    return {
        w: b"".join(
            _padded(level, pad, width)
            for level, pad in zip(_split(w), each, strict=True)
        )
        for w in seen
    }


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
    """Refuse to group by values that do not identify texts.

    :param values: identities of texts; texts themselves if Python compares
        them as the server does.
    :raises ScatterUnsupportedError: if a value is not an identity.
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
        f"{value}, which is not a text, for an expression whose type is a "
        "text; cast() it to its actual type",
        construct="cast()",
    )


def _inexact(name: bytes) -> ScatterUnsupportedError:
    collation = name.decode("utf-8", "replace")
    return ScatterUnsupportedError(
        f"ORDER BY, GROUP BY, min() or max() over several shards compares "
        f"texts of the collation {collation}, whose order only the server "
        "can compute; collate() the column to another one, such as the _bin "
        "collation of its character set",
        construct="COLLATE",
    )
