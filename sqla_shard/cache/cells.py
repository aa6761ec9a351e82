"""What the cells of a row may be, by the types of its columns.

A value in the cache may have been written by anybody who reaches it, and
damaged on the way.  A cell that no driver returns for its column is not given
to SQLAlchemy: an id of ``206158430286.0`` would become one, and a number in
the place of a text would fail at each read until the value expires.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from datetime import date
from datetime import datetime
from datetime import timedelta
from decimal import Decimal
from math import isfinite
from typing import Any
from typing import TypeAlias

from sqlalchemy import types
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

from sqla_shard.ids import MAX_ID
from sqla_shard.ids import MAX_TYPE_ID
from sqla_shard.ids import TYPE_SHIFT
from sqla_shard.types import Sequence38
from sqla_shard.types.ids import IdType
from sqla_shard.types.sequences import MAX_SEQUENCE

__all__ = ["Cells"]

#: What is looked at of a cell, by its type; None for nothing more.
Checks: TypeAlias = dict[type, Callable[[Any], bool] | None]

_LARGEST_EXPONENT = 400
_DIGITS = 38


def _fits_64_bits(value: int) -> bool:
    return -(2**63) <= value < 2**64


def _is_naive(value: datetime) -> bool:
    return value.tzinfo is None


def _is_bounded(value: Decimal) -> bool:
    # Formatting one of a million digits takes as much memory.
    return (
        value.is_finite() and abs(value.adjusted()) <= _LARGEST_EXPONENT
    ) or not value


def _is_sequence(value: int | Decimal) -> bool:
    return 0 <= value <= MAX_SEQUENCE and value == int(value)


def _is_whole(value: Decimal) -> bool:
    return value.is_finite() and _is_sequence(value)


def _has_digits(value: str) -> bool:
    return len(value) == _DIGITS and value.isascii() and value.isdecimal()


_INTEGER: Checks = {int: _fits_64_bits}
_FLOAT: Checks = {float: isfinite}
_DECIMAL: Checks = {Decimal: _is_bounded}
_TEXT: Checks = {str: None}
_BYTES: Checks = {bytes: None, bytearray: None}
#: Of a type that we do not know: whatever a driver may return.
_ANY: Checks = {
    **_INTEGER,
    **_FLOAT,
    **_DECIMAL,
    **_TEXT,
    **_BYTES,
    datetime: _is_naive,
    date: None,
    timedelta: None,
}
#: As drivers return them that have such types, and as text.
_KINDS: tuple[tuple[type[Any], Checks, Checks], ...] = (
    (types.Integer, _INTEGER, _INTEGER),
    (types.Boolean, _INTEGER, _INTEGER),
    # SQLAlchemy 2.0 derives it from Numeric.
    (types.Float, _FLOAT, _FLOAT),
    (types.Numeric, _DECIMAL, {**_INTEGER, **_FLOAT}),
    (types.DateTime, {datetime: _is_naive}, _TEXT),
    (types.Date, {date: None}, _TEXT),
    (types.Time, {timedelta: None}, _TEXT),
    (types.LargeBinary, _BYTES, _BYTES),
    (types.String, _TEXT, _TEXT),
    (types.JSON, _TEXT, _TEXT),
)


class Cells:
    """The cells of the rows of a class, as one driver returns them.

    :param columns: in the order of a row.
    :param dialect: of the server that the rows are of.
    """

    def __init__(self, columns: Iterable[Any], dialect: Dialect) -> None:
        self._checks = [_checks_of(one, dialect) for one in columns]

    def fit(self, row: Any) -> bool:
        """Tell whether a row may be one of the server."""
        if type(row) is not list or len(row) != len(self._checks):
            return False
        for cell, checks in zip(row, self._checks, strict=True):
            try:
                check = checks[type(cell)]
            except KeyError:
                return False
            if check is not None and not check(cell):
                return False
        return True


def _checks_of(column: Any, dialect: Dialect) -> Checks:
    """Return the checks of the cells of a column."""
    found = dict(_checks_for(column.type, dialect))
    if column.nullable:
        found[type(None)] = None
    return found


def _checks_for(kind: Any, dialect: Dialect) -> Checks:
    as_text = dialect.name == "sqlite"
    if isinstance(kind, IdType):
        # A reference may be to an object of any type, as it is when written.
        return {int: _is_id if kind.whole else _id_check(kind.type_id)}
    if isinstance(kind, Sequence38):
        if as_text:
            return {str: _has_digits}
        return {int: _is_sequence, Decimal: _is_whole}
    kind = kind.dialect_impl(dialect)
    while isinstance(kind, TypeDecorator):
        kind = kind.load_dialect_impl(dialect).dialect_impl(dialect)
    for known, typed, text in _KINDS:
        if isinstance(kind, known):
            return text if as_text else typed
    return _ANY


def _is_id(value: int) -> bool:
    return 0 <= value <= MAX_ID


def _id_check(type_id: int | None) -> Callable[[int], bool]:
    def check(value: int) -> bool:
        return _is_id(value) and value >> TYPE_SHIFT & MAX_TYPE_ID == type_id

    return check
