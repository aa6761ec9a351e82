"""Checks of JSON values, and the paths that their errors name.

A value is checked when it is stored in a container.  The error names the
path, such as ``data["a"][2]`` or ``Pin.tags[3]``.  Almost all values are
valid, so that a path is a tuple that is formatted for an error only; see
:data:`Path`.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any, Protocol, TYPE_CHECKING

from sqla_shard.exc import BlobValueError
from sqla_shard.exc.base import shown

if TYPE_CHECKING:
    from typing import TypeAlias

__all__ = [
    "ContainerPath",
    "Path",
    "check_digits",
    "check_float",
    "check_int",
    "check_key",
    "check_text",
    "refused",
    "shown",
    "where",
]


class ContainerPath(Protocol):
    """A container that can return its own path."""

    def _where(self) -> str: ...


Path: TypeAlias = "str | ContainerPath | tuple[Path, str | int, object]"
"""A name, a container, or the step from a path to an element.

A step is ``(path, key, walked)``; ``walked`` is the container that has the
key: a dict, a list or tuple, or an object with that attribute.
"""


def where(path: Path) -> str:
    """Return a path as a string, such as ``data["a"][2]``."""
    if isinstance(path, str):
        return path
    if not isinstance(path, tuple):
        return path._where()
    parent, key, walked = path
    if isinstance(walked, (list, tuple)):
        return f"{where(parent)}[{key}]"
    if isinstance(walked, dict):
        text = str(key)
        # A message with a lone surrogate could not be printed or logged.
        quoted = json.dumps(text, ensure_ascii=not text.isprintable())
        return f"{where(parent)}[{quoted}]"
    return f"{where(parent)}.{key}"


def refused(message: str, path: Path, value: object) -> BlobValueError:
    """Return the error for a value that cannot be stored at a path."""
    return BlobValueError(message, field=where(path), value=value)


def check_text(value: str, path: Path) -> str:
    """Return a plain str.

    :raises BlobValueError: if the str cannot be encoded as UTF-8.
    """
    value = str.__str__(value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise refused(
                f"{shown(value)} has a lone surrogate at position "
                f"{error.start}, which UTF-8 cannot encode. Decode the "
                "original bytes with errors='replace'",
                path,
                value,
            ) from None
    return value


_LARGEST = int(sys.float_info.max)


def check_int(value: int, path: Path) -> int:
    """Return a plain int for a JSON number.

    :raises BlobValueError: if the int is beyond a double.  MySQL cannot parse
        a document with it.
    """
    value = int.__int__(value)
    if not -_LARGEST <= value <= _LARGEST:
        raise refused(
            f"{shown(value)} is beyond a double, and MySQL could not parse "
            "the document with it. Store it as a str",
            path,
            value,
        )
    return value


def check_digits(value: int, path: Path) -> int:
    """Return a plain int.

    :raises BlobValueError: if the int exceeds Python's limit for the
        conversion to a str, so that it cannot be written.
    """
    value = int.__int__(value)
    if value.bit_length() > 64:
        try:
            int.__repr__(value)
        except ValueError:
            raise refused(
                f"{shown(value)} has more digits than Python converts to "
                "text; see sys.set_int_max_str_digits()",
                path,
                value,
            ) from None
    return value


def check_float(value: float, path: Path) -> float:
    """Return a plain float.

    :raises BlobValueError: if the float is not finite.
    """
    if not math.isfinite(value):
        raise refused(
            f"{value!r} is not a JSON number; use None for a missing value", path, value
        )
    return float.__float__(value)


def check_key(key: Any, path: Path, walked: object) -> str:
    """Return a key of a JSON object as a plain str.

    :param path: the path of ``walked``, the container.
    :raises BlobValueError: if the key is not a str, or not valid UTF-8.
    """
    if type(key) is str and key.isascii():
        return key
    if not isinstance(key, str):
        raise refused(
            f"the key {shown(key)} is of type {type(key).__name__}; keys of "
            "a JSON object must be str",
            path,
            key,
        )
    return check_text(key, (path, key, walked))
