"""Where a page begins: the values of a row, as a bookmark holds them.

Whoever makes a request can make up a bookmark, where the cluster has no key
to sign them with.  So each value is one of a few forms, short before anything
is computed of it, written in one way alone, and of a kind that its key can be
compared with: servers answer a date with the text ``x`` by an error, and
``Decimal("1e999999999")`` takes all memory.
"""

from __future__ import annotations

import datetime as dt
import re
import struct
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from typing import NamedTuple
from typing import Protocol

from sqlalchemy import Boolean
from sqlalchemy import Date
from sqlalchemy import DateTime
from sqlalchemy import Float
from sqlalchemy import Integer
from sqlalchemy import Interval
from sqlalchemy import Numeric
from sqlalchemy import String
from sqlalchemy import Time
from sqlalchemy import Uuid
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

from sqla_shard.dialects.sorting import value_of_function
from sqla_shard.exc import InvalidIdError
from sqla_shard.ids import check_type
from sqla_shard.paging import MOST_BYTES
from sqla_shard.types import IdType

__all__ = ["Mark", "UnfitError", "opened", "packed"]


class UnfitError(ValueError):
    """Raised for what is not the value of a key; never leaves the session.

    :ivar index: of the key; None where it is about all of them.
    """

    def __init__(self, index: int | None = None) -> None:
        super().__init__("not the value of a key")
        self.index = index


@dataclass(frozen=True)
class Mark:
    """What a bookmark holds.

    :ivar values: those of the row after which the page begins; none where
        it begins with the first row, or the last one.
    :ivar back: whether it goes backwards.
    """

    values: Sequence[Any] = ()
    back: bool = False


class Key(Protocol):
    """A value by which rows are ordered."""

    @property
    def element(self) -> Any:
        """The expression."""
        ...

    @property
    def nullable(self) -> bool:
        """Whether it may be NULL."""
        ...


class _Form(NamedTuple):
    """How values of a kind are written; ``read`` may raise ValueError."""

    kind: type[Any]
    pattern: re.Pattern[str]
    write: Callable[[Any], str]
    read: Callable[[str], Any]


def _decimal(value: Decimal) -> str:
    # Servers have 65 digits; the text of one exponent may be a gigabyte.
    fits = value.is_finite() and -100 < value.adjusted() < 100
    return format(value, "f") if fits else ""


def _microseconds(value: dt.timedelta) -> str:
    return str(value // dt.timedelta(microseconds=1))


def _time(text: str) -> dt.timedelta:
    found = dt.timedelta(microseconds=int(text))
    if abs(found) > _LONGEST_TIME:
        raise UnfitError
    return found


#: Of a TIME of MySQL.
_LONGEST_TIME = dt.timedelta(hours=839)
_DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{6})?"
#: What a driver shows as text, since Python has no such day.
_NO_DAY = re.compile(
    r"[0-9]{4}-(?:00-(?:[0-2][0-9]|3[01])|(?:0[0-9]|1[0-2])-00)"
    r"(?: (?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?)?"
)
_UUID = re.compile("[0-9a-fA-F]{8}(?:-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}")

# A datetime is a date, too, and comes first.
_FORMS: dict[str, _Form] = {
    "i": _Form(int, re.compile("-?[0-9]{1,65}"), lambda v: str(int(v)), int),
    "f": _Form(float, re.compile("[-+.e0-9]{1,30}"), float.__repr__, float),
    "n": _Form(
        Decimal,
        re.compile(r"-?[0-9]{1,66}(?:\.[0-9]{1,66})?"),
        _decimal,
        Decimal,
    ),
    "t": _Form(
        dt.datetime,
        re.compile(f"{_DAY}T{_CLOCK}"),
        dt.datetime.isoformat,
        dt.datetime.fromisoformat,
    ),
    "d": _Form(
        dt.date,
        re.compile(_DAY),
        dt.date.isoformat,
        dt.date.fromisoformat,
    ),
    "h": _Form(
        dt.time,
        re.compile(_CLOCK),
        dt.time.isoformat,
        dt.time.fromisoformat,
    ),
    "l": _Form(
        dt.timedelta, re.compile("-?[0-9]{1,13}"), _microseconds, _time
    ),
    "s": _Form(str, re.compile(".*", re.DOTALL), str, str),
}
_NULL = "-"
_HEAD = struct.Struct(">cH")
_BACK = b"<"
_ONWARD = b">"

_NUMBERS = frozenset("ifn")
_DAYS = frozenset("tds")
_TIMES = frozenset("lh")
_TEXT = frozenset("s")
#: What SQLite stores: it compares each with all others.
_SQLITE = frozenset("ifs")


def packed(
    values: Sequence[Any],
    keys: Sequence[Key],
    dialect: Dialect,
    *,
    back: bool,
) -> bytes:
    """Return what a bookmark holds.

    :param values: by key, or none.
    :raises UnfitError: when it cannot hold the value of a key.
    """
    out = [_BACK if back else _ONWARD]
    for index, value in enumerate(values):
        try:
            tag = _tag(value)
            text = "" if tag == _NULL else _FORMS[tag].write(value)
            body = text.encode()
            _value(tag, text, keys[index], dialect)
        except ValueError:
            raise UnfitError(index) from None
        if len(body) > MOST_BYTES:
            raise UnfitError(index)
        out.append(_HEAD.pack(tag.encode(), len(body)) + body)
    payload = b"".join(out)
    if len(payload) > MOST_BYTES:
        raise UnfitError
    return payload


def opened(payload: bytes, keys: Sequence[Key], dialect: Dialect) -> Mark:
    """Return what :func:`packed` was given.

    :raises UnfitError: when it holds anything else.
    """
    if payload[:1] not in (_BACK, _ONWARD):
        raise UnfitError
    parts = list(_parts(payload[1:]))
    if len(parts) not in (0, len(keys)):
        raise UnfitError
    values = [
        _value(tag, text, key, dialect)
        for (tag, text), key in zip(parts, keys, strict=bool(parts))
    ]
    return Mark(values, payload[:1] == _BACK)


def _tag(value: Any) -> str:
    if value is None:
        return _NULL
    for tag, form in _FORMS.items():
        if isinstance(value, form.kind):
            return tag
    raise UnfitError


def _parts(payload: bytes) -> Iterator[tuple[str, str]]:
    """Yield the tag and the text of each value."""
    at = 0
    while at < len(payload):
        body = at + _HEAD.size
        if body > len(payload):
            raise UnfitError
        tag, length = _HEAD.unpack_from(payload, at)
        at = body + length
        if at > len(payload):
            raise UnfitError
        try:
            yield tag.decode("ascii"), payload[body:at].decode()
        except UnicodeDecodeError:
            raise UnfitError from None


def _value(tag: str, text: str, key: Key, dialect: Dialect) -> Any:
    """Return the value of a key that a text stands for.

    :raises UnfitError: when it cannot be one.
    """
    if tag == _NULL:
        if text or not key.nullable:
            raise UnfitError
        return None
    if tag not in _tags(key.element, dialect):
        raise UnfitError
    form = _FORMS[tag]
    if not form.pattern.fullmatch(text):
        raise UnfitError
    try:
        value = form.read(text)
    except ValueError:  # no such day, for one
        raise UnfitError from None
    # Each value has one text: 01 and 1, or 1e999 and inf, are alike.
    if form.write(value) != text or not _fits(value, key.element, dialect):
        raise UnfitError
    return value


def _fits(value: Any, element: Any, dialect: Dialect) -> bool:
    """Tell whether a value of a kind that is right is in the bounds."""
    type_ = element.type
    if isinstance(type_, IdType):
        try:
            check_type(value, type_.type_id, str(element))
        except InvalidIdError:
            return False
        return True
    if dialect.name == "sqlite":
        return not isinstance(value, int) or -(1 << 63) <= value < 1 << 63
    if isinstance(value, str):
        if isinstance(type_, Uuid):
            return _UUID.fullmatch(value) is not None
        if _tags(element, dialect) != _TEXT:
            return _NO_DAY.fullmatch(value) is not None
    return True


def _tags(element: Any, dialect: Dialect) -> frozenset[str]:
    """Return the forms that values of a key may have."""
    type_ = element.type
    if isinstance(type_, IdType):
        return frozenset("i")
    if dialect.name == "sqlite":
        return _SQLITE
    while isinstance(type_, TypeDecorator):
        type_ = type_.load_dialect_impl(dialect)
    for kinds, tags in (
        ((String, Uuid), _TEXT),
        ((Integer, Numeric, Float, Boolean), _NUMBERS),
        ((Date, DateTime, Interval), _DAYS),
        ((Time,), _TIMES),
    ):
        if isinstance(type_, kinds):
            return tags
    return {
        "number": _NUMBERS,
        "time": _DAYS | _TIMES,
        "text": _TEXT,
    }.get(value_of_function(element) or "", _NUMBERS | _DAYS | _TIMES)
