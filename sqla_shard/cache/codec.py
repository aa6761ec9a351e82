"""Rows as bytes: JSON, and nothing that could run.

A row is what the driver returned for it, so that the types of its columns
read it as they read one of the database.  What JSON does not have stands as
an object with one key that tells the type; drivers return no dictionaries.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from base64 import b64encode
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import suppress
from datetime import date
from datetime import datetime
from datetime import timedelta
from decimal import Decimal
from math import isfinite
from typing import Any
from typing import TypeVar

__all__ = ["FORMAT", "dump", "parse", "parse_json", "parse_many"]

K = TypeVar("K")

#: A backslash, and what it escapes.
_ESCAPE = re.compile(rb"\\(?:u[0-9A-Fa-f]{4}|.)", re.DOTALL)

FORMAT = 1
"""Another one makes all that was written before unreadable."""


def _of_timedelta(value: timedelta) -> list[int]:
    return [value.days, value.seconds, value.microseconds]


def _to_timedelta(value: list[int]) -> timedelta:
    days, seconds, microseconds = value
    if {type(one) for one in value} != {int}:
        raise TypeError("a span of other than integers")
    return timedelta(days, seconds, microseconds)


def _of_bytes(value: bytes) -> str:
    return b64encode(value).decode("ascii")


def _to_bytes(value: str) -> bytes:
    return b64decode(value, validate=True)


def _to_decimal(value: str) -> Decimal:
    if type(value) is not str:
        raise TypeError("a decimal of other than text")
    return Decimal(value)


# In this order: a datetime is a date as well.
_TAGS: tuple[tuple[type[Any], str, Callable[[Any], Any]], ...] = (
    (datetime, "t", datetime.isoformat),
    (date, "d", date.isoformat),
    (timedelta, "i", _of_timedelta),
    (Decimal, "n", str),
    (bytes, "b", _of_bytes),
    (bytearray, "b", _of_bytes),
)
_UNTAG: dict[str, Callable[[Any], Any]] = {
    "t": datetime.fromisoformat,
    "d": date.fromisoformat,
    "i": _to_timedelta,
    "n": _to_decimal,
    "b": _to_bytes,
}


def _tagged(value: Any) -> dict[str, Any]:
    for kind, tag, write in _TAGS:
        if isinstance(value, kind):
            return {tag: write(value)}
    raise TypeError(f"a {type(value).__name__} is nothing that JSON can hold")


def _untagged(value: dict[str, Any]) -> Any:
    ((tag, text),) = value.items()
    return _UNTAG[tag](text)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is nothing that JSON has")


def _to_float(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError("a number that is too large")
    return value


_encode = json.JSONEncoder(
    ensure_ascii=False,
    allow_nan=False,
    separators=(",", ":"),
    default=_tagged,
).encode
_decode = json.JSONDecoder(
    object_hook=_untagged,
    parse_constant=_no_constant,
    parse_float=_to_float,
).decode
_decode_json = json.JSONDecoder(
    parse_constant=_no_constant, parse_float=_to_float
).decode


def dump(value: Sequence[Any]) -> bytes:
    """Return rows, or anything of lists and values of drivers, as bytes.

    :raises TypeError: when a value is of no such type.
    :raises ValueError: when a text is none of UTF-8.
    """
    return _encode(value).encode("utf-8")


def parse(data: bytes) -> Any:
    """Return what :func:`dump` was given, with lists for sequences.

    :raises ValueError: when that cannot be read.
    """
    try:
        return _decode(_text_of(data))
    except (ArithmeticError, KeyError, RecursionError, TypeError) as error:
        raise ValueError(f"cannot be read: {error!r}") from error


def _text_of(data: bytes) -> str:
    r"""Return the text of a value.

    :raises ValueError: when it is none of UTF-8, or has an escape such as
        ``\ud800``: half a character, of which no server takes a text.
    """
    # We write no escape of a letter; one may follow a backslash itself.
    if b"\\ud" in data or b"\\uD" in data:
        for escape in _ESCAPE.findall(data):
            if escape[:3].lower() == b"\\ud":
                raise ValueError("half a character")
    return data.decode("utf-8")


def parse_json(data: bytes) -> Any:
    """Return what JSON says, and no more.

    :raises ValueError: when that cannot be read.
    :raises RecursionError: when it is too deep.
    """
    return _decode_json(_text_of(data))


def parse_many(data: Mapping[K, bytes]) -> dict[K, Any]:
    """Return what :func:`parse` does, but for what cannot be read."""
    try:
        # At once: one by one, calling takes longer than reading.
        rows = parse(b"[%s]" % b",".join(data.values()))
        if len(rows) == len(data):
            return dict(zip(data, rows, strict=True))
    except ValueError:
        pass  # One of them, at least; the others can be read.
    read = {}
    for key, one in data.items():
        with suppress(ValueError):
            read[key] = parse(one)
    return read
