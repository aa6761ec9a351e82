"""An intent, and where it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqla_shard.exc import OperationDefinitionError
from sqla_shard.rendering import Place
from sqla_shard.session import ShardSession

__all__ = [
    "Address",
    "Intent",
    "microseconds",
    "place_at",
    "refuse_autocommit",
]

#: Keyspace and number of a virtual shard.
Address = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class Intent:
    """An operation that is to be done on a shard.

    :ivar token: tells it from all others.
    :ivar operation: name of the operation.
    :ivar arguments: of the call, by name.
    :ivar home: the shard that has the intent.
    :ivar target: the shard that the operation writes.
    :ivar attempts: how often it was begun before.
    """

    token: bytes
    operation: str
    arguments: dict[str, Any]
    home: Address
    target: Address
    attempts: int = 0

    def __str__(self) -> str:
        keyspace, shard_id = self.target
        return (
            f"{self.operation!r} on shard {shard_id} of {keyspace} "
            f"(intent {self.token.hex()})"
        )


def microseconds(seconds: float) -> int:
    """Return a time as the server counts it."""
    return int(seconds * 1_000_000)


def refuse_autocommit(
    session: ShardSession, place: Place, operation: str
) -> None:
    """Refuse an engine that commits each statement by itself.

    The token of an operation that fails would be there all the same, and
    who tries that again would take it for done.

    :raises OperationDefinitionError: when the shard's is one.
    """
    if session.root_connection(place)._is_autocommit_isolation():
        raise OperationDefinitionError(
            f"{place.server} is used with the isolation level AUTOCOMMIT, "
            "where nothing is committed together; let the engine have "
            "another one",
            operation=operation,
        )


def place_at(session: ShardSession, address: Address) -> Place:
    """Return where a shard is now.

    :raises UnknownShardError: when it is not open.
    """
    keyspace, shard_id = address
    return session.place_for(keyspace=keyspace, shard_id=shard_id)
