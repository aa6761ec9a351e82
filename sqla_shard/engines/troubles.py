"""What could not be read, of what was asked of all servers.

A server that does not answer keeps nobody from what the others have; nor may
it be passed over, or an answer would be taken for that of all shards.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sqla_shard.exc import ServerUnreachableError
from sqla_shard.exc import ShardMissingError
from sqla_shard.exc.summaries import summary

__all__ = [
    "NOT_READ",
    "Trouble",
    "lines",
    "listed",
    "message_of",
    "reason",
    "short",
]

#: What is raised for a server that does not answer, or lacks a shard.
NOT_READ = (ServerUnreachableError, ShardMissingError)

_LONGEST_ERROR = 2000


class Trouble(NamedTuple):
    """Virtual shards of a server that could not be read, and why.

    :ivar server: its name.
    :ivar error: what was raised for them, or the first of them.
    :ivar shards: how many.
    """

    server: str
    error: Exception
    shards: int


def listed(troubles: Iterable[Trouble]) -> list[str]:
    """Return a line for each server, with how many shards were not read."""
    return lines(
        (server, message_of(error), shards)
        for server, error, shards in troubles
    )


def lines(unread: Iterable[tuple[str, str, int]]) -> list[str]:
    """Return a line for each server, with how many shards were not read.

    :param unread: servers, why they were not read, and how many shards.  Of
        several reasons of a server it is the first.
    """
    first: dict[str, str] = {}
    counts: dict[str, int] = {}
    for server, why, shards in unread:
        first.setdefault(server, why)
        counts[server] = counts.get(server, 0) + shards
    return [
        f"{server}: {count:,} virtual shard{'' if count == 1 else 's'} not "
        f"read: {' '.join(first[server].split())}"
        for server, count in counts.items()
    ]


def reason(
    error: BaseException,
) -> ServerUnreachableError | ShardMissingError | None:
    """Return why something could not be read; None for other errors.

    :param error: as it was raised: what was repeated in vain has its last
        error as the cause.
    """
    found: BaseException | None = error
    while found is not None and not isinstance(found, NOT_READ):
        found = found.__cause__
    return found


def message_of(error: BaseException) -> str:
    """Return what an error says, with the remedy where it is one of ours."""
    return str(error) if isinstance(error, NOT_READ) else short(error)


def short(error: BaseException) -> str:
    """Return :func:`~.summaries.summary` of an error, to be stored."""
    found = summary(error)[:_LONGEST_ERROR]
    # No server takes half a surrogate pair, as of a text that was cut off.
    return found.encode(errors="backslashreplace").decode()
