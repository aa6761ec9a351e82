"""Servers and virtual shards that a read of all servers did not reach.

One server that does not respond must not hide the rows of the others; but it
is reported, since otherwise the result would seem to be from all shards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TYPE_CHECKING, TypeAlias, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.exc import ClusterClosedError, ServerUnreachableError, ShardMissingError
from sqla_shard.exc.base import summary
from sqla_shard.topology.keyspaces import as_ranges

if TYPE_CHECKING:
    from sqla_shard.engine.rendering import Place

#: The errors of a server that does not respond, or lacks a shard
NOT_READ = (ServerUnreachableError, ShardMissingError)

_LONGEST_ERROR = 2000

T = TypeVar("T")

#: The name of a keyspace, and the number of a shard in it
Address: TypeAlias = tuple[str, int]


class UnreadServer(NamedTuple):
    """A server whose virtual shards could not be read.

    :ivar server: name of the server.
    :ivar error: the first error.
    :ivar addresses: the virtual shards that were not read: the name of the
        keyspace and the number of each.
    """

    server: str
    error: Exception
    addresses: tuple[Address, ...]

    @classmethod
    def of(cls, places: Sequence[Place], error: Exception) -> UnreadServer:
        """Return the shards of one server as unread."""
        addresses = tuple(place.address for place in places)
        return cls(places[0].server, error, addresses)


def for_each_shard(
    places: Sequence[Place], work: Callable[[Place], object]
) -> list[UnreadServer]:
    """Call a function for each shard of one server; return unread shards.

    If the server does not respond, its other shards are skipped: each of
    them would time out too.  So they are when the cluster is closed: a program
    that has not waited for thousands of them would do so at its end.
    """
    unread: list[UnreadServer] = []
    for number, place in enumerate(places):
        try:
            work(place)
        except (ClusterClosedError, ServerUnreachableError) as error:
            return [*unread, UnreadServer.of(places[number:], error)]
        except SQLAlchemyError as error:
            unread.append(UnreadServer.of([place], error))
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
    """Return a line for each server, as :func:`unread_lines` does."""
    return unread_lines(
        (server, message_of(error), addresses) for server, error, addresses in servers
    )


def unread_lines(
    unread: Iterable[tuple[str, str, Iterable[Address]]], *, is_lost: bool = False
) -> list[str]:
    """Return a line for each server, with the shards that were not read.

    It is ``server2 unreachable (2003): 32 shards 32-63: Can't connect ...``.

    :param unread: servers, reasons and shards.  If a server has several
        reasons, the first one is shown.
    :param is_lost: whether they are known not to have responded; otherwise
        the reason says so.
    """
    first: dict[str, str] = {}
    shards: dict[str, dict[str, set[int]]] = {}
    for server, why, addresses in unread:
        first.setdefault(server, why)
        by_keyspace = shards.setdefault(server, {})
        for keyspace, shard_id in addresses:
            by_keyspace.setdefault(keyspace, set()).add(shard_id)
    return [
        _line_of(server, " ".join(first[server].split()), by_keyspace, is_lost)
        for server, by_keyspace in shards.items()
    ]


# The error of a driver: its number and its text.
_NUMBERED = re.compile(r"""\((\d+), (["'])(.*?)\2\)""")


def _line_of(
    server: str, why: str, shards: Mapping[str, Collection[int]], is_lost: bool
) -> str:
    """Return the line of a server, from the message of an error."""
    # The beginning of the line says that much.
    _, marker, cause = why.partition(" cannot be reached: ")
    why = cause or why
    number = None
    if found := _NUMBERED.match(why):
        number, why = int(found[1]), f"{found[3]}{why[found.end() :]}"
    return unread_line(
        server, shards, why=why, number=number, is_lost=is_lost or bool(marker)
    )


def unread_line(
    server: str,
    shards: Mapping[str, Collection[int]],
    *,
    why: str,
    number: int | None,
    is_lost: bool,
) -> str:
    """Return the line of a server whose shards were not read.

    :param shards: its shards, by keyspace; none for a server outside of the
        topology.
    :param number: number of the error of the server or its driver.
    :param is_lost: whether the server did not respond.
    """
    count = sum(map(len, shards.values()))
    ranges = ", ".join(
        f"{name} {as_ranges(ids)}" if len(shards) > 1 else as_ranges(ids)
        for name, ids in shards.items()
    )
    held = f"{count:,} shard{'' if count == 1 else 's'} {ranges}: "
    return (
        f"{server} {'unreachable' if is_lost else 'not read'}"
        f"{'' if number is None else f' ({number})'}: "
        f"{held if shards else ''}{why}"
    )


def reason(error: BaseException) -> ServerUnreachableError | ShardMissingError | None:
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
    return summary(error)[:_LONGEST_ERROR]
