"""Keyset pages: some rows, and a bookmark for those that follow.

A page is found by the key of the last row that was shown, not by counting
rows, so it costs the same anywhere in a list, and rows that come or go
meanwhile shift nothing.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from typing import Generic
from typing import NamedTuple
from typing import TypeVar

from sqla_shard.exc import BookmarkKeyError
from sqla_shard.exc import InvalidBookmarkError

__all__ = [
    "MOST_BYTES",
    "MOST_ROWS",
    "Page",
    "Seal",
    "Subject",
    "check_limit",
    "seal_of",
    "shown",
]

T = TypeVar("T")

#: Of a page; a driver's own error for more would not say whose fault it is.
MOST_ROWS = 2**31 - 1
#: Of what a bookmark holds: proxies and servers take URLs of some 8 kB.
MOST_BYTES = 5900
_LONGEST = 8000

# The first byte of a bookmark.
_EARLIER = b"\x01"  # of versions that sealed neither WHERE nor cluster
_PLAIN = b"\x02"
_SIGNED = b"\x03"
_DIGEST = 8  # bytes, against mistakes
_SIGNATURE = 16  # bytes of HMAC-SHA256, against forgers
_SHORTEST_KEY = 16
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


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


class Subject(NamedTuple):
    """What a bookmark is of.

    :ivar name: the list and its order, as messages have it.
    :ivar details: what else must be the same where the bookmark is used.
    """

    name: str
    details: tuple[str, ...] = ()


class Seal:
    """Makes the bookmarks of a cluster, and opens them.

    Without keys a seal is proof against mistakes, not against forgers: what
    one holds must be checked in any case.

    :param keys: the first signs, by HMAC-SHA256; bookmarks that were signed
        with any of them are accepted, and no others.
    """

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        self._keys = tuple(keys)

    def __repr__(self) -> str:
        return f"<Seal with {len(self._keys)} keys>"

    def seal(self, payload: bytes, subject: Subject) -> str:
        """Return a bookmark: characters that are safe in a URL.

        :param payload: at most :data:`MOST_BYTES`.
        """
        if not self._keys:
            return _written(_PLAIN + _digest(payload, subject) + payload)
        signature = _signature(self._keys[0], payload, subject)
        return _written(_SIGNED + signature + payload)

    def unseal(self, bookmark: object, subject: Subject) -> bytes:
        """Return what :meth:`seal` was given.

        :raises InvalidBookmarkError: when it is not a bookmark, of something
            else, or not signed with a key of this cluster.
        """
        if not isinstance(bookmark, str):
            raise InvalidBookmarkError(
                "a bookmark is a str, the .next of a page, not a "
                f"{type(bookmark).__name__}",
                bookmark=bookmark,
            )
        sealed = _read(bookmark)
        version, rest = sealed[:1], sealed[1:]
        why = (
            "it was changed on its way, or is of another list, order, "
            "condition or cluster"
        )
        if version == _EARLIER:
            why = "it is of an earlier version of sqla_shard"
        elif version == _SIGNED and not self._keys:
            why = "it is signed, and this cluster has no bookmark_keys"
        elif version == _PLAIN and self._keys:
            why = "it is not signed, as those of this cluster are"
        elif version == _SIGNED:
            signature, payload = rest[:_SIGNATURE], rest[_SIGNATURE:]
            for key in self._keys:
                right = _signature(key, payload, subject)
                if hmac.compare_digest(signature, right):
                    return payload
        elif version == _PLAIN:
            digest, payload = rest[:_DIGEST], rest[_DIGEST:]
            if digest == _digest(payload, subject):
                return payload
        raise InvalidBookmarkError(
            f"{shown(bookmark)} is not a bookmark of {subject.name}: {why}",
            bookmark=bookmark,
        )


def seal_of(keys: Sequence[str | bytes], environ: Mapping[str, str]) -> Seal:
    """Return the seal of a cluster.

    :param keys: each a secret, or ``"${NAME}"`` for the value of a variable.
    :param environ: the variables.
    :raises BookmarkKeyError: when one cannot be a key.
    """
    if isinstance(keys, (str, bytes)):
        # Its characters would be keys.
        raise BookmarkKeyError("is one key; write a list of keys")
    found = []
    for index, given in enumerate(keys):
        key: Any = given
        match = _REFERENCE.fullmatch(key) if isinstance(key, str) else None
        if match is not None:
            key = environ.get(match[1])
            if key is None:
                raise BookmarkKeyError(
                    f"names {match[0]}, which is not set", index=index
                )
        if isinstance(key, str):
            key = key.encode("utf-8", "surrogatepass")
        if not isinstance(key, bytes):
            raise BookmarkKeyError(
                f"is a {type(key).__name__}; a key is a str or bytes",
                index=index,
            )
        if len(key) < _SHORTEST_KEY:
            raise BookmarkKeyError(
                f"has {len(key)} bytes, and needs {_SHORTEST_KEY}: take "
                "secrets.token_urlsafe()",
                index=index,
            )
        found.append(key)
    return Seal(found)


def shown(bookmark: str) -> str:
    """Return a bookmark as messages have it, however long it is."""
    return repr(bookmark if len(bookmark) < 80 else bookmark[:77] + "...")


def _written(sealed: bytes) -> str:
    return base64.urlsafe_b64encode(sealed).rstrip(b"=").decode()


def _read(bookmark: str) -> bytes:
    """Return the bytes of a bookmark; none where it cannot be one."""
    if len(bookmark) > _LONGEST:
        return b""
    padding = "=" * (-len(bookmark) % 4)
    try:
        sealed = base64.b64decode(bookmark + padding, b"-_", validate=True)
    except ValueError:
        return b""
    # The decoder takes other ways to write the same bytes.
    return sealed if _written(sealed) == bookmark else b""


def _sealed(payload: bytes, subject: Subject) -> bytes:
    # ascii() of a tuple of texts is unambiguous, and takes lone surrogates.
    about = (subject.name, *subject.details)
    return ascii(about).encode() + b"\0" + payload


def _digest(payload: bytes, subject: Subject) -> bytes:
    sealed = _sealed(payload, subject)
    return hashlib.blake2b(sealed, digest_size=_DIGEST).digest()


def _signature(key: bytes, payload: bytes, subject: Subject) -> bytes:
    sealed = _sealed(payload, subject)
    return hmac.digest(key, sealed, "sha256")[:_SIGNATURE]
