"""Places in a blob, and the scalars that can stand there.

A value is checked where it is put in, and a refusal names the place, such as
``data["a"][2]`` or ``Pin.tags[3]``.  Almost no value is refused, so that a
place costs a tuple until somebody asks for its name: see :data:`Path`.
"""

from __future__ import annotations

import json
import math
from typing import Any
from typing import Protocol
from typing import TYPE_CHECKING

from sqla_shard.exc import BlobValueError
from sqla_shard.exc.base import shown

if TYPE_CHECKING:
    from typing import TypeAlias

__all__ = [
    "Path",
    "Place",
    "check_float",
    "check_int",
    "check_key",
    "check_text",
    "refused",
    "shown",
    "where",
]


class Place(Protocol):
    """A container that knows where it is itself."""

    def _where(self) -> str: ...


Path: TypeAlias = "str | Place | tuple[Path, str | int, object]"
"""A name, a container, or the step from a path to one of its elements.

A step is ``(path, key, walked)``; ``walked`` is the container that has the
key: a dict, a list or tuple, or anything else whose attribute it is.
"""


def where(path: Path) -> str:
    """Return a place as text, such as ``data["a"][2]``."""
    if isinstance(path, str):
        return path
    if not isinstance(path, tuple):
        return path._where()
    parent, key, walked = path
    if isinstance(walked, (list, tuple)):
        return f"{where(parent)}[{key}]"
    if isinstance(walked, dict):
        text = str(key)
        # A lone surrogate would break whatever prints or logs the message.
        quoted = json.dumps(text, ensure_ascii=not text.isprintable())
        return f"{where(parent)}[{quoted}]"
    return f"{where(parent)}.{key}"


def refused(message: str, path: Path, value: object) -> BlobValueError:
    """Return the error for a value that cannot be put in a place."""
    return BlobValueError(message, field=where(path), value=value)


def check_text(value: str, path: Path) -> str:
    """Return a plain str.

    :raises BlobValueError: if it cannot be encoded as UTF-8.
    """
    value = str.__str__(value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise refused(
                f"{shown(value)} has a lone surrogate at position "
                f"{error.start}, which UTF-8 cannot hold. Decode the "
                "original bytes with errors='replace'",
                path,
                value,
            ) from None
    return value


def check_int(value: int, path: Path) -> int:
    """Return a plain int.

    :raises BlobValueError: if Python's limit on the conversion of large
        numbers keeps it from being written as JSON.
    """
    value = int.__int__(value)
    if value.bit_length() > 64:
        try:
            int.__repr__(value)
        except ValueError:
            raise refused(
                f"{shown(value)} has more digits than Python writes, see "
                "sys.set_int_max_str_digits",
                path,
                value,
            ) from None
    return value


def check_float(value: float, path: Path) -> float:
    """Return a plain float.

    :raises BlobValueError: if it is not finite.
    """
    if not math.isfinite(value):
        raise refused(
            f"{value!r} is not a JSON number. Use None where there is no "
            "value",
            path,
            value,
        )
    return float.__float__(value)


def check_key(key: Any, path: Path, walked: object) -> str:
    """Return a plain str that can be a key of ``walked``.

    :param path: the place of ``walked``.
    :raises BlobValueError: if it cannot.
    """
    if type(key) is str and key.isascii():
        return key
    if not isinstance(key, str):
        raise refused(
            f"the key {shown(key)} ({type(key).__name__}) is not a str, as "
            "the keys of a JSON object are",
            path,
            key,
        )
    return check_text(key, (path, key, walked))
