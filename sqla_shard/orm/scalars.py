"""Codecs of single values: between Python and one JSON scalar.

A codec is called on every read and every assignment of a field, so that the
ordinary case of each method is one type check; what is refused, and values
that need a conversion, take the second look.

=============  ===================================  =======================
Python         JSON                                 also accepted
=============  ===================================  =======================
``str``        string
``int``        number, exact at any size
``float``      number                               an exact ``int``
``bool``       ``true``, ``false``
``Decimal``    string, exact: ``"1.50"``, ``"1E+3"``  ``int``
``datetime``   ``"2024-05-06T07:08:09.000000+00:00"``  any aware time zone
``date``       ``"2024-05-06"``
``UUID``       string in lower case with hyphens
``Enum``       the member's value
``Literal``    the value
=============  ===================================  =======================

Strings of datetimes and dates sort as the times do.  Decimals have at most
4,300 digits, and exponents from -6,144 to 6,144.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import re
import uuid
from math import isfinite
from typing import Any

from sqla_shard.orm.kinds import Codec
from sqla_shard.orm.kinds import Kind
from sqla_shard.orm.kinds import KIND_OF_SCALAR
from sqla_shard.types.places import check_float
from sqla_shard.types.places import check_int
from sqla_shard.types.places import check_text
from sqla_shard.types.places import Path
from sqla_shard.types.places import refused
from sqla_shard.types.places import shown

__all__ = [
    "BooleanCodec",
    "DateCodec",
    "DateTimeCodec",
    "DecimalCodec",
    "EnumCodec",
    "FloatCodec",
    "IntegerCodec",
    "LiteralCodec",
    "TextCodec",
    "UuidCodec",
]


class _NativeCodec(Codec):
    native = True

    def decode(
        self, stored: Any, *, on_change: object = None, path: Any = None
    ) -> Any:
        if type(stored) is self.python_type:
            return stored
        return self._stored_none(stored, path)


class TextCodec(_NativeCodec):
    """``str``."""

    kind = Kind.TEXT
    python_type = str
    _expects = "a str"

    def encode(self, value: Any, path: Path | None = None) -> Any:
        """Return the str; UTF-8 can hold it."""
        if type(value) is str and value.isascii():
            return value
        if isinstance(value, str):
            return check_text(value, path or self.field)
        return self._none(value, path)


class IntegerCodec(_NativeCodec):
    """``int``; not ``bool``, and no float even if it is whole."""

    kind = Kind.INTEGER
    python_type = int
    _expects = "an int"

    def encode(self, value: Any, path: Path | None = None) -> Any:
        """Return the int."""
        if type(value) is int and -(1 << 63) <= value < 1 << 64:
            return value
        if isinstance(value, int) and type(value) is not bool:
            return check_int(value, path or self.field)
        return self._none(value, path)


class FloatCodec(Codec):
    """``float``, finite; an ``int`` becomes one if that is exact."""

    # An int written by another program is read as a float, so that what is
    # stored is not always what is seen.
    kind = Kind.FLOAT
    python_type = float
    _expects = "a finite float (or an int that is exact as a float)"

    def encode(self, value: Any, path: Path | None = None) -> Any:
        """Return the float."""
        if type(value) is float and isfinite(value):
            return value
        if isinstance(value, float):
            return check_float(value, path or self.field)
        exact = _exact_float(value)
        return self._none(value, path) if exact is None else exact

    def decode(
        self, stored: Any, *, on_change: object = None, path: Any = None
    ) -> Any:
        """Return the float."""
        if type(stored) is float and isfinite(stored):
            return stored
        exact = _exact_float(stored)
        return self._stored_none(stored, path) if exact is None else exact


def _exact_float(value: Any) -> float | None:
    if not isinstance(value, int) or type(value) is bool:
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if number == value else None


class BooleanCodec(_NativeCodec):
    """``bool``; not 0 and 1."""

    kind = Kind.BOOLEAN
    python_type = bool
    _expects = "a bool"

    def encode(self, value: Any, path: Path | None = None) -> Any:
        """Return the bool."""
        if type(value) is bool:
            return value
        return self._none(value, path)


class DecimalCodec(Codec):
    """``Decimal``, finite, kept as its exact string."""

    kind = Kind.DECIMAL
    python_type = decimal.Decimal
    _expects = (
        "a finite Decimal of at most 4,300 digits and an exponent up to "
        "6,144 (or an int; a float has lost digits already)"
    )

    def encode(self, value: Any, path: Path | None = None) -> Any:
        """Return the exact string; exponent and trailing zeros included."""
        if isinstance(value, decimal.Decimal):
            text = str(value)
            if _fits(value, text):
                return text
        if isinstance(value, int) and type(value) is not bool:
            return str(check_int(value, path or self.field))
        return self._none(value, path)

    def decode(
        self, stored: Any, *, on_change: object = None, path: Any = None
    ) -> Any:
        """Return the Decimal."""
        # A whole number may come from a program that writes JSON numbers.
        if type(stored) is int:
            return decimal.Decimal(stored)
        if type(stored) is str and len(stored) <= _LONGEST:
            try:
                value = decimal.Decimal(stored)
            except decimal.InvalidOperation:
                raise self._misfit(stored, path) from None
            if _fits(value, stored) and (
                str(value) == stored or _DECIMAL.fullmatch(stored)
            ):
                return value
        return self._stored_none(stored, path)


# Decimal() reads digits of every script, blanks and underscores, too.
_DECIMAL = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")


# As many digits as Python reads and writes of an int, and as long exponents as
# decimal128 has: int(Decimal("1e999999999")) takes all memory.
_LONGEST = 4320
_LARGEST = 6144


def _fits(value: decimal.Decimal, text: str) -> bool:
    """Tell whether a Decimal is one that can be computed with."""
    return (
        value.is_finite()
        and len(text) <= _LONGEST
        and -_LARGEST <= value.adjusted() <= _LARGEST
    )


_UTC = dt.timezone.utc
_RFC3339 = re.compile(
    "([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}:[0-9]{2})"
    r"(?:\.([0-9]{1,6}))?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)


class DateTimeCodec(Codec):
    """``datetime`` with a time zone; read back in UTC."""

    kind = Kind.DATETIME
    python_type = dt.datetime
    _expects = "a datetime with a time zone"

    def encode(self, value: Any, path: Path | None = None) -> Any:
        """Return it in UTC, always 32 characters long."""
        if not isinstance(value, dt.datetime):
            return self._none(value, path)
        if value.tzinfo is not _UTC:
            if value.utcoffset() is None:
                raise refused(
                    f"{shown(value)} has no time zone: it is not known "
                    "which moment it is. Use datetime.now(timezone.utc), or "
                    "value.replace(tzinfo=...) with the zone it was meant in",
                    path or self.field,
                    value,
                )
            try:
                value = value.astimezone(_UTC)
            except OverflowError:
                raise refused(
                    f"{shown(value)} is outside the years 1 to 9999 in UTC",
                    path or self.field,
                    value,
                ) from None
        return dt.datetime.isoformat(value, timespec="microseconds")

    def decode(
        self, stored: Any, *, on_change: object = None, path: Any = None
    ) -> Any:
        """Return the datetime in UTC."""
        if type(stored) is not str:
            return self._stored_none(stored, path)
        ours = len(stored) == 32 and stored[26:] == "+00:00"
        try:
            text = stored if ours else _canonical(stored)
            return dt.datetime.fromisoformat(text).astimezone(_UTC)
        except (ValueError, OverflowError):
            raise self._misfit(stored, path) from None


def _canonical(stored: str) -> str:
    # Other programs write ``Z``, offsets and shorter fractions, which Python
    # 3.10 does not read.
    match = _RFC3339.fullmatch(stored)
    if match is None:
        raise ValueError(stored)
    day, time, fraction, zone = match.groups()
    zone = "+00:00" if zone in "Zz" else zone
    return f"{day}T{time}.{fraction or '':0<6}{zone}"


class DateCodec(Codec):
    """``date``; not ``datetime``."""

    kind = Kind.DATE
    python_type = dt.date
    _expects = "a date (a datetime is not: use its .date())"

    def encode(self, value: Any, path: Path | None = None) -> Any:
        """Return it as ``YYYY-MM-DD``."""
        # datetime is a subclass of date; its time would be dropped silently.
        if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
            return dt.date.isoformat(value)
        return self._none(value, path)

    def decode(
        self, stored: Any, *, on_change: object = None, path: Any = None
    ) -> Any:
        """Return the date."""
        if type(stored) is not str:
            return self._stored_none(stored, path)
        try:
            value = dt.date.fromisoformat(stored)
        except ValueError:
            raise self._misfit(stored, path) from None
        # Python 3.11 also reads forms that do not sort as dates do.
        if value.isoformat() != stored:
            raise self._misfit(stored, path)
        return value


class UuidCodec(Codec):
    """``UUID``."""

    kind = Kind.UUID
    python_type = uuid.UUID
    _expects = "a UUID"

    def encode(self, value: Any, path: Path | None = None) -> Any:
        """Return it in lower case with hyphens."""
        if isinstance(value, uuid.UUID):
            return str(value)
        return self._none(value, path)

    def decode(
        self, stored: Any, *, on_change: object = None, path: Any = None
    ) -> Any:
        """Return the UUID."""
        if type(stored) is not str:
            return self._stored_none(stored, path)
        try:
            value = uuid.UUID(stored)
        except ValueError:
            raise self._misfit(stored, path) from None
        # uuid.UUID also reads braces, URNs and misplaced hyphens.
        if str(value) != stored.lower():
            raise self._misfit(stored, path)
        return value


class EnumCodec(Codec):
    """Members of an :class:`enum.Enum`, kept by value.

    :param members: the class; its values are str, int, float or bool.
    """

    kind = Kind.ENUM

    def __init__(
        self, field: str, members: type[enum.Enum], *, nullable: bool = False
    ) -> None:
        super().__init__(field, nullable=nullable)
        self.members = self.python_type = members
        self._types = {type(member.value) for member in members}
        self._by_value = {member.value: member for member in members}

    @property
    def stored_kind(self) -> Kind:
        """Return what the values are; JSON if they are of several types."""
        if len(self._types) > 1:
            return Kind.JSON
        return KIND_OF_SCALAR[next(iter(self._types))]

    @property
    def _expects(self) -> str:  # type: ignore[override]
        name = self.python_type.__qualname__
        return f"a member of {name}: {shown(list(self._by_value.values()))}"

    def encode(self, value: Any, path: Path | None = None) -> Any:
        """Return the value of the member."""
        if isinstance(value, self.members):
            return value.value
        return self._none(value, path)

    def decode(
        self, stored: Any, *, on_change: object = None, path: Any = None
    ) -> Any:
        """Return the member; ``_missing_`` is asked as Python does."""
        # 1, 1.0 and True are one key of a dict, but not one JSON value.
        if type(stored) not in self._types:
            return self._stored_none(stored, path)
        member = self._by_value.get(stored)
        if member is None:
            try:
                return self.members(stored)
            except ValueError:
                raise self._misfit(stored, path) from None
        if type(member.value) is not type(stored):
            raise self._misfit(stored, path)
        return member


class LiteralCodec(Codec):
    """The values of a ``Literal``.

    :param values: str, int and bool.
    """

    native = True

    def __init__(
        self, field: str, values: tuple[Any, ...], *, nullable: bool = False
    ) -> None:
        super().__init__(field, nullable=nullable)
        self._types = {type(value) for value in values}
        one = next(iter(self._types)) if len(self._types) == 1 else object
        self.python_type = one
        self.kind = KIND_OF_SCALAR.get(one, Kind.JSON)
        self._expects = f"one of {', '.join(map(repr, values))}"
        # 1 and True are equal, but not one JSON value.
        self._allowed = {(type(value), value) for value in values}

    def _is_allowed(self, value: Any) -> bool:
        # The type first: not every value can be looked up in a set.
        kind = type(value)
        return kind in self._types and (kind, value) in self._allowed

    def encode(self, value: Any, path: Path | None = None) -> Any:
        """Return the value."""
        if self._is_allowed(value):
            return value
        return self._none(value, path)

    def decode(
        self, stored: Any, *, on_change: object = None, path: Any = None
    ) -> Any:
        """Return the value."""
        if self._is_allowed(stored):
            return stored
        return self._stored_none(stored, path)
