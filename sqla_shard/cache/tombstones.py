"""What a tombstone on a node says: whose it is, and until when.

It is the tokens of those who have put it there, each with the time at which
it ends.  A node ends the whole of it; the token of a process that has died
would be renewed by each that writes the same key, without a time of its own.

Times are those of the machines that write, which may differ: a token counts
for :data:`SLACK` seconds longer than it says.
"""

from __future__ import annotations

import struct
from time import time

from sqla_shard.cache.store import TOKEN_BYTES

__all__ = ["SLACK", "is_tombstone", "with_token", "without_token"]

SLACK = 60
"""Seconds by which the clocks of two machines may differ."""

_TOKEN = struct.Struct(f">{TOKEN_BYTES}sQ")


def is_tombstone(data: bytes) -> bool:
    """Tell whether it is one, and not what somebody else has put there."""
    return bool(data) and not len(data) % _TOKEN.size


def _tokens(data: bytes) -> dict[bytes, int]:
    if not is_tombstone(data):
        # Of nobody who follows the protocol, nor will take it away.
        return {}
    now = time() - SLACK
    return {token: end for token, end in _TOKEN.iter_unpack(data) if end > now}


def _packed(tokens: dict[bytes, int]) -> bytes:
    return b"".join(_TOKEN.pack(*one) for one in tokens.items())


def with_token(data: bytes, token: bytes, expire: int) -> bytes:
    """Return a tombstone with one token more.

    :param data: what it says so far; empty for a new one.
    """
    return _packed({**_tokens(data), token: int(time()) + expire})


def without_token(data: bytes, token: bytes) -> bytes:
    """Return a tombstone without a token; empty if nobody's is left."""
    left = _tokens(data)
    left.pop(token, None)
    return _packed(left)
