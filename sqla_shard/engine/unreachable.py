"""Servers and virtual shards that a read of all servers did not reach.

One server that does not respond must not hide the rows of the others; but it
is reported, since otherwise the result would seem to be from all shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TYPE_CHECKING, TypeAlias, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.exc import (
    ClusterClosedError,
    ServerUnreachableError,
    ShardMissingError,
    UnknownKeyspaceError,
    UnknownShardError,
)
from sqla_shard.exc.base import original, summary
from sqla_shard.topology.keyspaces import as_ranges
from sqla_shard.util.json_values import JsonObject

if TYPE_CHECKING:
    from sqla_shard.engine.registry import Places
    from sqla_shard.engine.rendering import Place

#: The errors of a server that does not respond, or lacks a shard
NOT_READ = (ServerUnreachableError, ShardMissingError)

_LONGEST_ERROR = 2000

T = TypeVar("T")

#: The name of a keyspace, and the number of a shard in it
Address: TypeAlias = tuple[str, int]


class Cause(NamedTuple):
    """The reason for which shards of a server were not read or written.

    :ivar reason: the error, on one line.
    :ivar code: number of the error of the server or its driver, or None.
    :ivar responds: whether the server has responded.
    """

    reason: str
    code: int | None = None
    responds: bool = True


@dataclass(frozen=True, kw_only=True)
class UnreachableServer(JsonObject):
    """A server whose virtual shards could not be read or written.

    Every report has them as ``unreachable``, in JSON, too.

    :ivar server: name of the server in the topology.
    :ivar cause: the first error.
    :ivar addresses: the shards: the name of the keyspace and the number of
        each; none for a server outside of the topology.
    :ivar role: ``"primary"`` or ``"standby"``.
    :ivar error: the error itself; None if another process has met it.
    """

    server: str
    cause: Cause
    addresses: tuple[Address, ...]
    role: str = "primary"
    error: Exception | None = field(default=None, compare=False)

    @classmethod
    def of(cls, places: Sequence[Place], error: Exception) -> UnreachableServer:
        """Return the shards of one server as not read."""
        return cls(
            server=places[0].server,
            cause=cause_of(error),
            addresses=tuple(place.address for place in places),
            error=error,
        )

    @classmethod
    def at(
        cls, places: Places, address: Address, error: Exception
    ) -> UnreachableServer:
        """Return the server of one shard; ``none`` if no server has it."""
        keyspace, shard_id = address
        try:
            place = places.place(places.keyspace(keyspace, ""), shard_id)
        except (UnknownKeyspaceError, UnknownShardError):
            cause = cause_of(error)
            return cls(server="none", cause=cause, addresses=(address,), error=error)
        return cls.of([place], error)

    @property
    def shards(self) -> dict[str, str]:
        """The shards of each keyspace, such as ``0-511,600``."""
        numbers: dict[str, set[int]] = {}
        for keyspace, shard_id in self.addresses:
            numbers.setdefault(keyspace, set()).add(shard_id)
        return {name: as_ranges(ids) for name, ids in numbers.items()}

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values; the shards are those of :attr:`shards`."""
        return {
            "server": self.server,
            "role": self.role,
            **self.cause._asdict(),
            "shards": self.shards,
        }

    def __str__(self) -> str:
        # It is "server2 unreachable (2003): 32 shards 32-63: Can't connect ...".
        role = "" if self.role == "primary" else f" ({self.role})"
        code = "" if self.cause.code is None else f" ({self.cause.code})"
        state = "not read" if self.cause.responds else "unreachable"
        count = len({*self.addresses})
        ranges = ", ".join(
            f"{name} {ids}" if len(self.shards) > 1 else ids
            for name, ids in self.shards.items()
        )
        held = f"{count:,} shard{'' if count == 1 else 's'} {ranges}: " if count else ""
        return f"{self.server}{role} {state}{code}: {held}{self.cause.reason}"


def each_once(servers: Iterable[UnreachableServer]) -> tuple[UnreachableServer, ...]:
    """Return each server once, with all of its shards and the first cause.

    That it does not respond comes before what a shard lacks.
    """
    merged: dict[tuple[str, str], UnreachableServer] = {}
    for one in sorted(servers, key=lambda one: one.cause.responds):
        key = one.server, one.role
        if before := merged.get(key):
            addresses = (*before.addresses, *one.addresses)
            one = replace(before, addresses=tuple(dict.fromkeys(addresses)))
        merged[key] = one
    return tuple(merged.values())


def unreachable_values(servers: Iterable[UnreachableServer]) -> list[dict[str, Any]]:
    """Return JSON values of each server."""
    return [one.as_dict() for one in each_once(servers)]


def unreachable_lines(servers: Iterable[UnreachableServer]) -> list[str]:
    """Return a line for each server."""
    return [str(one) for one in each_once(servers)]


class ShardsReport(JsonObject):
    """A report of all shards, with those that could not be read or written."""

    unreachable: Sequence[UnreachableServer]

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        servers = unreachable_values(self.unreachable)
        return {**super().as_dict(), "unreachable": servers}


def for_each_shard(
    places: Sequence[Place], work: Callable[[Place], object]
) -> list[UnreachableServer]:
    """Call a function for each shard of one server; return those that failed.

    If the server does not respond, its other shards are skipped: each of
    them would time out too.  So they are when the cluster is closed: a program
    that has not waited for thousands of them would do so at its end.
    """
    unreachable: list[UnreachableServer] = []
    for number, place in enumerate(places):
        try:
            work(place)
        except (ClusterClosedError, ServerUnreachableError) as error:
            return [*unreachable, UnreachableServer.of(places[number:], error)]
        except SQLAlchemyError as error:
            unreachable.append(UnreachableServer.of([place], error))
    return unreachable


def complete(answer: tuple[T, Iterable[UnreachableServer]]) -> T:
    """Return a result of all shards; raise the first error if one was not read.

    :raises SQLAlchemyError: if a shard was not read.
    """
    value, unreachable = answer
    for one in unreachable:
        assert one.error is not None  # noqa: S101 - of this process
        raise one.error
    return value


def cause_of(error: BaseException, *, responds: bool = True) -> Cause:
    """Return why shards were not read, from the error.

    :param responds: False if the server is known not to have responded;
        otherwise the error says so.
    """
    known = reason(error)
    responds = responds and not isinstance(known, ServerUnreachableError)
    if known is None and responds:
        return Cause(" ".join(short(error).split()))
    cause = driver_cause(original(known or error))
    if isinstance(known, ShardMissingError):
        cause = cause._replace(reason=f"{cause.reason} - {known.explanation}")
    return cause._replace(responds=responds)


def driver_cause(error: BaseException) -> Cause:
    """Return the number and the text of a driver's error."""
    match error.args:
        # The arguments of an OSError do not name the file.
        case (int(code), str(text)) if not isinstance(error, OSError):
            return Cause(" ".join(text.split()), code)
    return Cause(" ".join(str(error).split()))


def reason(error: BaseException) -> ServerUnreachableError | ShardMissingError | None:
    """Return the cause of a failed read; None for other errors.

    :param error: of several attempts the last error is in its causes.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, NOT_READ):
        cause = cause.__cause__
    return cause


def short(error: BaseException) -> str:
    """Return the summary of an error for a column of a table."""
    return summary(error)[:_LONGEST_ERROR]
