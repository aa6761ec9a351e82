"""Rows as bytes: JSON, and nothing that could run.

A row is what the driver returned for it, so that the types of its columns
read it as they read one of the database.  What JSON does not have stands as
an object with one key that tells the type; drivers return no dictionaries.
"""

from __future__ import annotations

import json
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
from typing import Any
from typing import TypeVar

__all__ = ["FORMAT", "dump", "parse", "parse_many"]

K = TypeVar("K")

FORMAT = 1
"""Another one makes all that was written before unreadable."""


def _of_timedelta(value: timedelta) -> list[int]:
    return [value.days, value.seconds, value.microseconds]


def _to_timedelta(value: list[int]) -> timedelta:
    days, seconds, microseconds = value
    return timedelta(days, seconds, microseconds)


def _of_bytes(value: bytes) -> str:
    return b64encode(value).decode("ascii")


def _to_bytes(value: str) -> bytes:
    return b64decode(value, validate=True)


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
    "n": Decimal,
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


_encode = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), default=_tagged
).encode
_decode = json.JSONDecoder(object_hook=_untagged).decode


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
        return _decode(data.decode("utf-8"))
    except (ArithmeticError, KeyError, RecursionError, TypeError) as error:
        raise ValueError(f"cannot be read: {error!r}") from error


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
