"""What the protocol of the cache asks of whatever keeps its items.

An item is a *value*, a *lease* or a *tombstone*.  Who looks for an item that
is not there gets a lease: the one permission to put a value in its place,
which ends when anything else is put there.  A tombstone takes the place of
whatever is there, and gives no leases.  It has the tokens of all who have put
it there, and ends when the last of them has taken it away: each of several
who write at once is to be safe until its own COMMIT.

A store never raises for a node that does not answer: it says so, by key.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from enum import Enum
from typing import Any
from typing import NamedTuple
from typing import Protocol

from sqla_shard import exc

__all__ = [
    "LONGEST",
    "TOKEN_BYTES",
    "Found",
    "State",
    "Store",
    "check_keys",
    "check_lease",
    "check_seconds",
    "check_size",
    "check_token",
    "check_wait",
]

TOKEN_BYTES = 16
"""The length of a token."""

LONGEST = 60 * 60 * 24 * 30
"""Seconds: what memcached takes for a time, and not for a date."""

_KEY = re.compile(r"[!-~]{1,250}")
_KEYS = re.compile(r"[!-~]{1,250}(?: [!-~]{1,250})*")


class State(Enum):
    """What a store has under a key."""

    VALUE = "a value"
    LEASED = "nothing, and we may fill it"
    BUSY = "nothing, and somebody else may fill it"
    BLOCKED = "nothing that we may fill: a tombstone, a node that is young"
    LOST = "not known: its node does not answer"


class Found(NamedTuple):
    """What was found under a key.

    :ivar state: what it is.
    :ivar value: where it is a value.
    :ivar lease: where it is ours: what :meth:`Store.fill` takes.
    """

    state: State
    value: bytes = b""
    lease: Any = None


class Store(Protocol):
    """Keeps items, on any number of nodes.

    Keys are ASCII without spaces and control characters, up to 250; all
    methods raise :exc:`~sqla_shard.exc.CacheKeyError` for others.

    :ivar longest: seconds of the longest tombstone.
    """

    longest: int

    def fetch(self, keys: Sequence[str], lease: int) -> dict[str, Found]:
        """Return what is under each key, and lease what is missing.

        :param lease: seconds after which a lease that was not used ends; 0
            to lease nothing, where what is missing is BLOCKED.
        """
        ...

    def fill(
        self, values: Mapping[str, tuple[Any, bytes]], expire: int
    ) -> set[str]:
        """Put values in the place of leases.

        :param values: by key, the lease and the value.
        :param expire: seconds after which the values end.
        :returns: the keys whose leases were valid still, and whose values
            are not too large.
        """
        ...

    def block(
        self, keys: Collection[str], token: bytes, expire: int
    ) -> set[str]:
        """Put tombstones in the place of whatever is there.

        :param token: tells ours from those of others.
        :param expire: seconds after which they end.
        :returns: the keys where that was not possible.
        """
        ...

    def take(
        self, keys: Collection[str], token: bytes, expire: int
    ) -> dict[str, tuple[Any, bytes]]:
        """Put tombstones in the place of values, and return these.

        :returns: for each key that had a value, and has our tombstone now,
            the value, and what :meth:`fill` takes in the place of a lease:
            it puts another value there if nobody has changed the tombstone
            meanwhile.  A store that cannot do that returns nothing, and has
            done nothing.
        """
        ...

    def unblock(self, keys: Collection[str], token: bytes) -> set[str]:
        """Remove what is there, but for tombstones of others.

        :returns: the keys where that was not possible.
        """
        ...


def check_keys(keys: Iterable[str]) -> list[str]:
    """Return keys, each once.

    :raises sqla_shard.exc.CacheKeyError: if one of them cannot be one.
    """
    unique = list(dict.fromkeys(keys))
    try:
        joined = " ".join(unique)
    except TypeError:
        joined = ""
    # All at once: one by one takes as long as to ask for them.
    spaces = len(unique) - 1
    if joined.count(" ") == spaces and _KEYS.fullmatch(joined):
        return unique
    for key in unique:
        if type(key) is not str or not _KEY.fullmatch(key):
            raise exc.CacheKeyError(key=key)
    return unique


def check_seconds(option: str, seconds: int, most: int = LONGEST) -> int:
    """Return a time, in full seconds.

    :raises sqla_shard.exc.CacheOptionError: if it is none, or too long.
    """
    # Zero would be for ever.
    if type(seconds) is not int or not 1 <= seconds <= most:
        raise exc.CacheOptionError(
            f"is not 1 to {most:,} full seconds", option=option, value=seconds
        )
    return seconds


def check_wait(option: str, seconds: float) -> None:
    """Look at a time to wait, which may have a fraction.

    :raises sqla_shard.exc.CacheOptionError: if it is none.
    """
    if type(seconds) not in (int, float) or not 0 < seconds < LONGEST:
        raise exc.CacheOptionError(
            f"is no time to wait: say seconds, above 0 and below {LONGEST:,}",
            option=option,
            value=seconds,
        )


def check_size(option: str, size: int) -> None:
    """Look at a number of things, or of bytes.

    :raises sqla_shard.exc.CacheOptionError: if it is none, from 1.
    """
    if type(size) is not int or size < 1:
        raise exc.CacheOptionError(
            "is no full number from 1", option=option, value=size
        )


def check_lease(seconds: int) -> None:
    """Look at the time of a lease, which may be none.

    :raises sqla_shard.exc.CacheOptionError: if it is no time, or too long.
    """
    if type(seconds) is not int or seconds != 0:
        check_seconds("lease", seconds)


def check_token(token: bytes) -> None:
    """Look at a token.

    :raises sqla_shard.exc.CacheOptionError: if it is none.
    """
    if type(token) is not bytes or len(token) != TOKEN_BYTES:
        raise exc.CacheOptionError(
            f"is not {TOKEN_BYTES} bytes", option="token", value=token
        )
