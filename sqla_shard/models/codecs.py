"""Codecs of scalar values: conversion between Python and JSON.

A codec is called on every read and every assignment of a field, so the usual
case of each method is one type check; conversions and errors come after it.

=============  ===================================  =======================
Python         JSON                                 also accepted
=============  ===================================  =======================
``str``        string
``int``        number; beyond 64 bits a string of its digits
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
from collections.abc import Callable
from contextlib import suppress
from math import isfinite
from typing import Any, TypeAlias

from sqla_shard.exc import BlobValueError
from sqla_shard.exc.base import shown
from sqla_shard.types.tracking import (
    check_digits,
    check_float,
    check_int,
    check_text,
    Node,
    Path,
    refused,
)

#: Called without arguments after a change in a container.
OnChange: TypeAlias = "Callable[[], object] | None"


class ValueKind(enum.Enum):
    """The kind of value of a field, which determines its SQL type."""

    TEXT = "text"
    INTEGER = "integer"
    FLOAT = "float"
    BOOLEAN = "boolean"
    DECIMAL = "decimal"
    DATETIME = "datetime"
    DATE = "date"
    UUID = "uuid"
    ENUM = "enum"
    JSON = "json"


KIND_OF_SCALAR: dict[type, ValueKind] = {
    str: ValueKind.TEXT,
    int: ValueKind.INTEGER,
    float: ValueKind.FLOAT,
    bool: ValueKind.BOOLEAN,
}
"""The kind of a field, by the type of its JSON value."""

#: Least and greatest integer that is a JSON number for MySQL, not a double.
LEAST = -(1 << 63)
MOST = (1 << 64) - 1


class Codec:
    """Converts the values of one field to JSON and back.

    :func:`~sqla_shard.models.field_types.codec_for` returns the codec of an
    annotation.

    :param field: the field as ``Class.field``, for messages.
    :param nullable: whether None is allowed.
    :ivar kind: kind of the Python values.
    :ivar stored_kind: kind of the JSON values; differs for an enum.
    :ivar python_type: the class of the values; ``object`` if several.
    :ivar native: whether the JSON value is the Python value.
    :ivar takes_any: whether every stored value of ``python_type`` is valid.
    :ivar checked: whether ``encode()`` returns a plain ``str``, number,
        ``bool`` or None, which the blob need not check again.
    """

    kind: ValueKind
    python_type: type
    native = False
    takes_any = False
    checked = False
    _expects = "a value"

    def __init__(self, field: str, *, nullable: bool = False) -> None:
        self.field = field
        self.nullable = nullable

    def __repr__(self) -> str:
        null = " | None" if self.nullable else ""
        name = self.python_type.__name__
        return f"<{type(self).__name__} {self.field}: {name}{null}>"

    @property
    def stored_kind(self) -> ValueKind:
        """The kind of the JSON values."""
        return self.kind

    def encode(self, value: Any, path: Path | None = None) -> Any:
        """Return the JSON value to store.

        :param path: the place inside the field, for messages.
        :raises BlobValueError: if the field cannot hold the value.
        """
        raise NotImplementedError

    def decode(
        self, stored: Any, *, on_change: OnChange = None, path: Any = None
    ) -> Any:
        """Return the Python value of a stored JSON value.

        :param on_change: called after each change made in place, at any
            depth, in a container that is returned.
        :param path: the place inside the field, for messages.
        :raises BlobValueError: if the stored value is of another type.
        """
        raise NotImplementedError

    def accept(self, value: Any, path: Path) -> Any:
        """Return the value as it would be read back.

        :raises BlobValueError: if the field cannot hold the value.
        """
        return self.decode(self.encode(value, path), path=path)

    def check_stored(self, stored: Any, path: Path) -> None:
        """Check a stored JSON value without converting it.

        :raises BlobValueError: if the stored value is of another type.
        """
        self.decode(stored, path=path)

    def made(self, node: Node) -> bool:
        """Return True if a container was created by this codec."""
        return False

    def _none(self, value: Any, path: Path | None) -> Any:
        """Return None if it is allowed, reject all other values."""
        if value is not None or not self.nullable:
            raise self._rejected(value, path)

    def _stored_none(self, stored: Any, path: Path | None) -> Any:
        if stored is not None or not self.nullable:
            raise self._mismatch(stored, path)

    def _rejected(self, value: Any, path: Path | None) -> BlobValueError:
        if value is None:
            message = (
                f"None is not {self._expects}. Annotate it as "
                f"{self.python_type.__name__} | None if it may be absent"
            )
        else:
            name = type(value).__name__
            message = f"{shown(value)} ({name}) is not {self._expects}"
        return refused(message, path or self.field, value)

    def _mismatch(self, stored: Any, path: Path | None) -> BlobValueError:
        return refused(
            f"the stored JSON value {shown(stored)} does not fit: it is not "
            f"the JSON of {self._expects}. It was written with another "
            "definition of the field, or by another program",
            path or self.field,
            stored,
        )


class _NativeCodec(Codec):
    native = True
    takes_any = True
    checked = True

    def encode(self, value: Any, path: Path | None = None) -> Any:
        if type(value) is self.python_type:
            return value
        return self._none(value, path)

    def decode(
        self, stored: Any, *, on_change: OnChange = None, path: Any = None
    ) -> Any:
        if type(stored) is self.python_type:
            return stored
        return self._stored_none(stored, path)


class _StringCodec(Codec):
    """Base of codecs whose values are stored as strings."""

    def decode(
        self, stored: Any, *, on_change: OnChange = None, path: Any = None
    ) -> Any:
        if type(stored) is not str:
            return self._stored_none(stored, path)
        try:
            return self._parsed(stored)
        except (ValueError, ArithmeticError):
            raise self._mismatch(stored, path) from None

    def _parsed(self, stored: str) -> Any:
        """Return the value of a string.

        :raises ValueError: for a string that ``encode`` does not return, nor
            another program would write.
        """
        raise NotImplementedError


class TextCodec(_NativeCodec):
    """``str``."""

    kind = ValueKind.TEXT
    python_type: type = str
    _expects = "a str"

    def encode(self, value: Any, path: Path | None = None) -> Any:
        """Return the str after checking that UTF-8 can encode it."""
        if type(value) is str and value.isascii():
            return value
        if isinstance(value, str):
            return check_text(value, path or self.field)
        return self._none(value, path)


class IntegerCodec(_NativeCodec):
    """``int``; not ``bool``, nor a float with an integral value.

    A field of more than 64 bits is stored as a string: for MySQL such a
    number is a double.  In a list, a dict or a dataclass it is a number.
    """

    kind = ValueKind.INTEGER
    python_type: type = int
    _expects = "an int"

    def encode(self, value: Any, path: Path | None = None) -> Any:
        """Return the int, or its digits."""
        if type(value) is int and LEAST <= value <= MOST:
            return value
        if not isinstance(value, int) or type(value) is bool:
            return self._none(value, path)
        if path is not None:
            return check_int(value, path)
        value = check_digits(value, self.field)
        return value if LEAST <= value <= MOST else int.__repr__(value)

    def decode(
        self, stored: Any, *, on_change: OnChange = None, path: Any = None
    ) -> Any:
        """Return the int."""
        if type(stored) is str and path is None:
            with suppress(ValueError):
                value = int(stored)
                if self.encode(value) == stored:
                    return value
        return super().decode(stored, path=path)


class FloatCodec(Codec):
    """``float``, finite; an ``int`` is converted if that is exact."""

    # Not native: an int written by another program is read as a float.
    kind = ValueKind.FLOAT
    python_type: type = float
    checked = True
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
        self, stored: Any, *, on_change: OnChange = None, path: Any = None
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

    kind = ValueKind.BOOLEAN
    python_type: type = bool
    _expects = "a bool"


class DecimalCodec(_StringCodec):
    """``Decimal``, finite, stored as its exact string."""

    kind = ValueKind.DECIMAL
    python_type: type = decimal.Decimal
    _expects = (
        "a finite Decimal of at most 4,300 digits and an exponent up to "
        "6,144 (or an int; a float has lost digits already)"
    )

    def encode(self, value: Any, path: Path | None = None) -> Any:
        """Return the exact string, with exponent and trailing zeros."""
        if isinstance(value, decimal.Decimal):
            text = str(value)
            if _fits(value, text):
                return text
        if isinstance(value, int) and type(value) is not bool:
            return str(check_digits(value, path or self.field))
        return self._none(value, path)

    def decode(
        self, stored: Any, *, on_change: OnChange = None, path: Any = None
    ) -> Any:
        """Return the Decimal."""
        # Accept a JSON number, which another program may write.
        if type(stored) is int:
            return decimal.Decimal(stored)
        return super().decode(stored, path=path)

    def _parsed(self, stored: str) -> Any:
        if len(stored) <= _MAX_DIGITS:
            value = decimal.Decimal(stored)
            if _fits(value, stored) and (
                str(value) == stored or _DECIMAL.fullmatch(stored)
            ):
                return value
        raise ValueError(stored)


# Decimal() also reads digits of every script, white space and underscores.
_DECIMAL = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")


# The digits of an int that Python converts, and the exponents of decimal128:
# int(Decimal("1e999999999")) takes all memory.
_MAX_DIGITS = 4320
_LARGEST = 6144


def _fits(value: decimal.Decimal, text: str) -> bool:
    return (
        value.is_finite()
        and len(text) <= _MAX_DIGITS
        and -_LARGEST <= value.adjusted() <= _LARGEST
    )


_UTC = dt.UTC
_RFC3339 = re.compile(
    "[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}"
    r"(?:\.[0-9]{1,6})?(?:[Zz]|[+-][0-9]{2}:[0-9]{2})"
)


class DateTimeCodec(_StringCodec):
    """``datetime`` with a time zone; decoded in UTC."""

    kind = ValueKind.DATETIME
    python_type: type = dt.datetime
    checked = True
    _expects = "a datetime with a time zone"

    def encode(self, value: Any, path: Path | None = None) -> Any:
        """Return the time in UTC, always 32 characters long."""
        if not isinstance(value, dt.datetime):
            return self._none(value, path)
        if value.tzinfo is not _UTC:
            if value.utcoffset() is None:
                raise refused(
                    f"{shown(value)} has no time zone, so its moment in time "
                    "is unknown. Use datetime.now(timezone.utc), or "
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

    def _parsed(self, stored: str) -> Any:
        if len(stored) != 32 or stored[26:] != "+00:00":
            # Python reads other forms, too, such as weeks, but no ``z``.
            if _RFC3339.fullmatch(stored) is None:
                raise ValueError(stored)
            stored = stored.upper()
        return dt.datetime.fromisoformat(stored).astimezone(_UTC)


class DateCodec(_StringCodec):
    """``date``; not ``datetime``."""

    kind = ValueKind.DATE
    python_type: type = dt.date
    checked = True
    _expects = "a date (a datetime is not: use its .date())"

    def encode(self, value: Any, path: Path | None = None) -> Any:
        """Return the date as ``YYYY-MM-DD``."""
        # datetime is a subclass of date; its time would be dropped silently.
        if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
            return dt.date.isoformat(value)
        return self._none(value, path)

    def _parsed(self, stored: str) -> Any:
        value = dt.date.fromisoformat(stored)
        # Python 3.11 also reads forms that do not sort as dates do.
        if value.isoformat() != stored:
            raise ValueError(stored)
        return value


class UuidCodec(_StringCodec):
    """``UUID``."""

    kind = ValueKind.UUID
    python_type: type = uuid.UUID
    _expects = "a UUID"

    def encode(self, value: Any, path: Path | None = None) -> Any:
        """Return the UUID in lower case with hyphens."""
        if isinstance(value, uuid.UUID):
            return str(value)
        return self._none(value, path)

    def _parsed(self, stored: str) -> Any:
        value = uuid.UUID(stored)
        # uuid.UUID also reads braces, URNs and misplaced hyphens.
        if str(value) != stored.lower():
            raise ValueError(stored)
        return value


class EnumCodec(Codec):
    """Members of an :class:`enum.Enum`, stored by value.

    :param members: the class; its values are str, int, float or bool.
    """

    kind = ValueKind.ENUM

    def __init__(
        self, field: str, members: type[enum.Enum], *, nullable: bool = False
    ) -> None:
        super().__init__(field, nullable=nullable)
        self.members: type[enum.Enum] = members
        self.python_type: type = members
        self._types = {type(member.value) for member in members}
        self._by_value = {member.value: member for member in members}

    @property
    def stored_kind(self) -> ValueKind:
        """The kind of the values; JSON if they are of several types."""
        if len(self._types) > 1:
            return ValueKind.JSON
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
        self, stored: Any, *, on_change: OnChange = None, path: Any = None
    ) -> Any:
        """Return the member; an unknown value is passed to ``_missing_``."""
        # 1, 1.0 and True are one key of a dict, but not one JSON value.
        if type(stored) not in self._types:
            return self._stored_none(stored, path)
        member = self._by_value.get(stored)
        if member is None:
            try:
                return self.members(stored)
            except ValueError:
                raise self._mismatch(stored, path) from None
        if type(member.value) is not type(stored):
            raise self._mismatch(stored, path)
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
        self.kind: ValueKind = KIND_OF_SCALAR.get(one, ValueKind.JSON)
        self._expects = f"one of {', '.join(map(repr, values))}"
        # 1 and True are equal, but not one JSON value.
        self._allowed = {(type(value), value) for value in values}

    def _is_allowed(self, value: Any) -> bool:
        # The type first: not every value is hashable.
        kind = type(value)
        return kind in self._types and (kind, value) in self._allowed

    def encode(self, value: Any, path: Path | None = None) -> Any:
        """Return the value."""
        if self._is_allowed(value):
            return value
        return self._none(value, path)

    def decode(
        self, stored: Any, *, on_change: OnChange = None, path: Any = None
    ) -> Any:
        """Return the value."""
        if self._is_allowed(stored):
            return stored
        return self._stored_none(stored, path)
