"""Keyset pages: some rows, and a bookmark for those that follow.

A page is found by the key of the last row that was shown, not by counting
rows, so it costs the same anywhere in a list, and rows that come or go
meanwhile shift nothing.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic
from typing import TypeVar

from sqla_shard.exc import InvalidBookmarkError

__all__ = ["Page", "check_limit", "seal", "shown", "unseal"]

T = TypeVar("T")

#: Of a page; a driver's own error for more would not say whose fault it is.
MOST_ROWS = 2**31 - 1
_VERSION = b"\x01"
_DIGEST = 8
_LONGEST = 8000


@dataclass(frozen=True)
class Page(Generic[T]):
    """A page of rows.

    :ivar items: the rows, in order.
    :ivar next: bookmark of the next page; None where there is none.
    :ivar previous: bookmark of the page before; None of the first one.
    """

    items: list[T]
    next: str | None
    previous: str | None = None

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __bool__(self) -> bool:
        """Tell whether there is a row."""
        return bool(self.items)


def check_limit(limit: int, name: str = "limit") -> None:
    """Refuse what is no number of rows.

    :param name: of the argument.
    :raises ValueError: when it is not an int from 1 to :data:`MOST_ROWS`.
    """
    if type(limit) is not int or not 1 <= limit <= MOST_ROWS:
        raise ValueError(
            f"{name}={limit!r}; it is a number of rows from 1 to {MOST_ROWS}"
        )


def seal(payload: bytes, about: str) -> str:
    """Return a bookmark: characters that are safe in an URL.

    :param about: what the bookmark is of, such as the list and its order.
    """
    sealed = _VERSION + _digest(payload, about) + payload
    return _written(sealed)


def _written(sealed: bytes) -> str:
    return base64.urlsafe_b64encode(sealed).rstrip(b"=").decode()


def unseal(bookmark: object, about: str) -> bytes:
    """Return what :func:`seal` was given.

    :param about: as for :func:`seal`.
    :raises InvalidBookmarkError: when it is not a bookmark, or of something
        else.
    """
    if not isinstance(bookmark, str):
        raise InvalidBookmarkError(
            f"a bookmark is a str, the .next of a page, not {bookmark!r}",
            bookmark=bookmark,
        )
    sealed = b""
    if len(bookmark) <= _LONGEST:
        padding = "=" * (-len(bookmark) % 4)
        try:
            sealed = base64.b64decode(bookmark + padding, b"-_", validate=True)
        except (binascii.Error, ValueError):
            sealed = b""
        # The decoder takes other ways to write the same bytes.
        if _written(sealed) != bookmark:
            sealed = b""
    version = sealed[:1]
    digest = sealed[1 : 1 + _DIGEST]
    payload = sealed[1 + _DIGEST :]
    if version != _VERSION or digest != _digest(payload, about):
        raise InvalidBookmarkError(
            f"{shown(bookmark)} is not a bookmark of {about}: it was "
            "changed on its way, or is of another list or order",
            bookmark=bookmark,
        )
    return payload


def shown(bookmark: str) -> str:
    """Return a bookmark as messages have it, however long it is."""
    return repr(bookmark if len(bookmark) < 80 else bookmark[:77] + "...")


def _digest(payload: bytes, about: str) -> bytes:
    # Against mistakes, not against forgers: whoever makes up a bookmark
    # begins at another row of a list that he can read anyway.
    told = about.encode() + b"\0" + payload
    return hashlib.blake2b(told, digest_size=_DIGEST).digest()
