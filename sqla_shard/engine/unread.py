"""Servers and virtual shards that a read of all servers did not reach.

One server that does not respond must not hide the rows of the others; but it
is reported, since otherwise the result would seem to be from all shards.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import NamedTuple
from typing import TYPE_CHECKING
from typing import TypeVar

from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.exc import ServerUnreachableError
from sqla_shard.exc import ShardMissingError
from sqla_shard.exc.base import summary

if TYPE_CHECKING:
    from sqla_shard.engine.rendering import Place

__all__ = [
    "NOT_READ",
    "UnreadServer",
    "complete",
    "describe_unread",
    "for_each_shard",
    "message_of",
    "reason",
    "short",
    "unread_lines",
]

#: The errors of a server that does not respond, or lacks a shard
NOT_READ = (ServerUnreachableError, ShardMissingError)

_LONGEST_ERROR = 2000

T = TypeVar("T")


class UnreadServer(NamedTuple):
    """A server whose virtual shards could not be read.

    :ivar server: name of the server.
    :ivar error: the first error.
    :ivar shards: number of virtual shards that were not read.
    """

    server: str
    error: Exception
    shards: int


def for_each_shard(
    places: Sequence[Place], work: Callable[[Place], object]
) -> list[UnreadServer]:
    """Call a function for each shard of one server; return unread shards.

    If the server does not respond, its other shards are skipped: each of
    them would time out too.
    """
    unread: list[UnreadServer] = []
    for number, place in enumerate(places):
        try:
            work(place)
        except ServerUnreachableError as error:
            left = len(places) - number
            return [*unread, UnreadServer(place.server, error, left)]
        except SQLAlchemyError as error:
            unread.append(UnreadServer(place.server, error, 1))
    return unread


def complete(answer: tuple[T, Iterable[UnreadServer]]) -> T:
    """Return a result of all shards; raise the first error if any is unread.

    :raises SQLAlchemyError: if there are unread shards.
    """
    found, unread = answer
    for one in unread:
        raise one.error
    return found


def describe_unread(servers: Iterable[UnreadServer]) -> list[str]:
    """Return a line for each server, with the number of unread shards."""
    return unread_lines(
        (server, message_of(error), shards)
        for server, error, shards in servers
    )


def unread_lines(unread: Iterable[tuple[str, str, int]]) -> list[str]:
    """Return a line for each server, with the number of unread shards.

    :param unread: servers, reasons and numbers of shards.  If a server has
        several reasons, the first one is shown.
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
    """Return the cause of a failed read; None for other errors.

    :param error: of several attempts the last error is in its causes.
    """
    found: BaseException | None = error
    while found is not None and not isinstance(found, NOT_READ):
        found = found.__cause__
    return found


def message_of(error: BaseException) -> str:
    """Return the message of an error, with the remedy of one of ours."""
    return str(error) if isinstance(error, NOT_READ) else short(error)


def short(error: BaseException) -> str:
    """Return the summary of an error for a column of a table."""
    found = summary(error)[:_LONGEST_ERROR]
    # Servers refuse half of a surrogate pair, which may end a cut string.
    return found.encode(errors="backslashreplace").decode()
