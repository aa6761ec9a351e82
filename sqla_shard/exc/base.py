"""The root of the tree."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Any

from sqlalchemy.exc import DontWrapMixin
from sqlalchemy.exc import SQLAlchemyError

__all__ = [
    "ShardError",
    "listed",
    "shown",
]

_MOST_SHARDS = 10


def _rebuild(
    cls: type[ShardError], args: tuple[Any, ...], state: dict[str, Any]
) -> ShardError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class ShardError(SQLAlchemyError, DontWrapMixin):
    """Base of every error of this package."""

    def __init__(self, message: str) -> None:
        super().__init__(message)

    def __reduce__(self) -> Any:
        # Subclasses take keyword arguments; the default would call them
        # with the message alone and fail in the process that unpickles.
        return _rebuild, (type(self), self.args, self.__dict__)


class _Short(reprlib.Repr):
    def repr_int(self, value: int, level: int) -> str:
        # Python refuses to write very large numbers in decimal.
        if value.bit_length() > 256:
            return f"an int of {value.bit_length()} bits"
        return repr(value)


_short = _Short()
_short.maxstring = _short.maxother = 80


def shown(value: object) -> str:
    """Return a repr that fits into a message."""
    if isinstance(value, int) and not isinstance(value, bool):
        return _short.repr_int(value, 0)
    return _short.repr(value)


def listed(shards: Sequence[int]) -> str:
    """Return the numbers of shards for a message, the first of many."""
    named = ", ".join(map(str, shards[:_MOST_SHARDS]))
    more = len(shards) - _MOST_SHARDS
    return f"{named} and {more} more" if more > 0 else named
