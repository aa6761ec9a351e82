"""Arithmetic of decimals as MariaDB and MySQL do it.

They keep the digits after the point in groups of nine.  A quotient has as
many whole groups as its two sides, and one more where these hold less than
``div_precision_increment`` places beyond their own; the rest is cut off.  What
is shown is rounded from there, half up.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Context
from decimal import Decimal
from decimal import ROUND_DOWN
from decimal import ROUND_HALF_UP
from enum import Enum
from typing import Any

from sqla_shard.exc import ScatterUnsupportedError

__all__ = [
    "Fraction",
    "added",
    "all_digits",
    "as_type",
    "average",
    "check_places",
]

#: A sum of DECIMAL(65, 30) has 65 digits before the point at most; Python's
#: default of 28 digits would round it.
_EXACTLY = Context(prec=150)

_GROUP = 9
#: Of a DECIMAL, before and after the point.
_DIGITS = 65
#: What servers have for ``div_precision_increment`` unless told otherwise.
_INCREMENT = 4
#: Decimal places that a number may have inside of a server.
_MOST = 45
#: With all decimal places, 38 on MariaDB, 27 digits are left before the point;
#: what is larger becomes the largest DECIMAL.
_LARGEST = Decimal(10) ** 26


class Fraction(Enum):
    """What is known of the decimal places of a sum inside of a server."""

    #: It has those that are shown.
    EXACT = "exact"
    #: It has those that are shown or fewer.
    MIXED = "mixed"
    #: It has whole groups, and more than are shown.
    GROUPS = "groups"
    #: It has those that are shown or more.
    MORE = "more"
    #: Nothing.
    UNKNOWN = "unknown"


def _places(value: Decimal) -> int:
    exponent = value.as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


def _round(value: Decimal, places: int, rounding: str) -> Decimal:
    unit = Decimal((0, (1,), -places))
    return value.quantize(unit, rounding=rounding, context=_EXACTLY)


def as_type(value: Any, like: Any) -> Any:
    """Return a number in the type, and with the places, of another value.

    :raises ScatterUnsupportedError: when it is a text of a double.
    """
    if value is None or like is None:
        return value
    if isinstance(like, str) and not isinstance(value, str):
        if isinstance(value, float):
            raise ScatterUnsupportedError(
                f"coalesce() over several shards makes a text of {value!r}, "
                "and how is known to the server only; use a number in its "
                "place, or select the aggregate and replace None in Python",
                construct="coalesce()",
            )
        return f"{value:f}" if isinstance(value, Decimal) else str(value)
    if isinstance(like, float) and isinstance(value, (int, Decimal)):
        return float(value)
    if isinstance(like, Decimal) and isinstance(value, (int, Decimal)):
        found = _round(Decimal(value), _places(like), ROUND_HALF_UP)
        # What is rounded to nothing has no sign.
        return found if found else found.copy_abs()
    return value


def added(values: Iterable[Any]) -> Any:
    """Return the sum of numbers; None where all of them are.

    :raises ScatterUnsupportedError: when a server could not add up its own.
    """
    total = None
    for value in values:
        if isinstance(value, Decimal) and value.copy_abs() == _most(value):
            raise _too_large(value, "sum()")
        if total is None:
            total = value
        elif isinstance(total, Decimal) and isinstance(value, Decimal):
            total = _EXACTLY.add(total, value)
        elif value is not None:
            total += value
    return total


def _most(value: Decimal) -> Decimal:
    """Return the largest DECIMAL with the places of another number."""
    places = _places(value)
    return Decimal(10**_DIGITS - 1).scaleb(-places, context=_EXACTLY)


def all_digits(values: Iterable[Any], construct: str) -> Any:
    """Return the sum of numbers with all decimal places that can be shown.

    :raises ScatterUnsupportedError: when one may be cut off for that.
    """
    values = list(values)
    for value in values:
        if isinstance(value, Decimal) and value.copy_abs() >= _LARGEST:
            raise _too_large(value, construct)
    return added(values)


def check_places(total: Any, like: Any, construct: str) -> None:
    """Refuse a sum of what has more decimal places than can be shown.

    :param like: the sum, or the average, as a server shows it.
    :raises ScatterUnsupportedError: when its last place is the last of all.
    """
    if not (isinstance(total, Decimal) and isinstance(like, Decimal)):
        return
    if _places(like) >= _places(total):
        raise ScatterUnsupportedError(
            f"{construct} over several shards: {like} has as many decimal "
            "places as a server shows, and may have more; cast() what is "
            "added to a Numeric of fewer decimal places",
            construct=construct,
        )


def _too_large(value: Decimal, construct: str) -> ScatterUnsupportedError:
    return ScatterUnsupportedError(
        f"{construct} over several shards: {value:.0f} has more digits than "
        f"a DECIMAL with {_places(value)} places; cast() what is added to a "
        "Numeric of fewer decimal places",
        construct=construct,
    )


def average(
    total: Decimal, count: int, own: Decimal, fraction: Fraction, like: Any
) -> Any:
    """Divide as ``avg()`` does.

    :param total: the sum, with all of its digits.
    :param own: an average of the same numbers, as a server shows it.
    :param like: a value in whose type it is returned.
    :raises ScatterUnsupportedError: when its last digits depend on what is
        not known of the sum.
    """
    precise = _EXACTLY.divide(total, Decimal(count))
    found = {
        as_type(_round(precise, places, ROUND_DOWN), like)
        for places in _inside(total, _places(own), fraction)
    }
    if len(found) > 1:
        raise ScatterUnsupportedError(
            f"avg() over several shards is one of {sorted(found)}: how many "
            "digits the server has of what is added is not known; cast() it "
            "to a Numeric with a scale",
            construct="avg()",
        )
    return found.pop()


def _inside(total: Decimal, shown: int, fraction: Fraction) -> set[int]:
    """Return where a quotient may be cut off.

    :param shown: how many decimal places are shown of it.
    """
    least = _places(total.normalize(_EXACTLY))
    most = _places(total)
    if fraction is Fraction.EXACT:
        return {_cut(most, shown - most)}
    if fraction is Fraction.MIXED:
        return {_cut(n, shown - most) for n in range(least, most + 1)}
    if fraction is not Fraction.UNKNOWN:
        least = max(least, shown - _INCREMENT)
    found = range(least, max(least, _MOST) + 1)
    if fraction is Fraction.GROUPS:
        return {_cut(n, _INCREMENT) for n in found if n % _GROUP == 0}
    return {_cut(n, _INCREMENT) for n in found}


def _cut(places: int, increment: int) -> int:
    """Return how many places a number of some places has when divided.

    :param increment: ``div_precision_increment``.
    """
    whole = -(-places // _GROUP) * _GROUP
    more = max(0, increment - (whole - places))
    return -(-(whole + more) // _GROUP) * _GROUP
