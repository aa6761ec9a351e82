"""What is known of keys on all shards: whether one has committed.

A key is a row of the shard that its transaction has written first
(:mod:`.tokens`), and nothing but the key says which that was.  So all shards
are asked, each server for all of its own at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Any

from sqlalchemy import select
from sqlalchemy import type_coerce

from sqla_shard.engines import by_server
from sqla_shard.internal import TOKENS
from sqla_shard.rendering import Place
from sqla_shard.session import ShardSession
from sqla_shard.session.contract import Home
from sqla_shard.tokens import encoded
from sqla_shard.types import UTCTimestamp

__all__ = ["CommittedKey", "find_key"]

_PARALLEL = 8
_MADE = type_coerce(TOKENS.c.created_at, UTCTimestamp()).label("made")


@dataclass(frozen=True, kw_only=True)
class CommittedKey:
    """A shard on which a transaction with a key has committed.

    :ivar key: the key.
    :ivar keyspace: of the shard that the transaction has written first.
    :ivar shard_id: its number; 0 in a global keyspace.
    :ivar server: where it is now.
    :ivar committed_at: when COMMIT was about to be sent, by the clock of the
        server, in whole seconds.
    """

    key: str
    keyspace: str
    shard_id: int
    server: str
    committed_at: datetime

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {**asdict(self), "committed_at": self.committed_at.isoformat()}

    def __str__(self) -> str:
        return (
            f"{self.key} has committed on shard {self.shard_id} of "
            f"{self.keyspace}, on {self.server}, at "
            f"{self.committed_at:%Y-%m-%d %H:%M:%S} UTC"
        )


def find_key(home: Home, key: str) -> list[CommittedKey]:
    """Return the shards on which a key has committed.

    :raises ValueError: when it cannot be a key.
    :raises SQLAlchemyError: when a server cannot be asked.
    """
    statement = select(_MADE).where(TOKENS.c.token == encoded(key))
    found = [
        CommittedKey(
            key=key,
            keyspace=place.keyspace,
            shard_id=place.shard_id,
            server=place.server,
            committed_at=row.made,
        )
        for place, row in _on_all(home, statement)
    ]
    return sorted(found, key=lambda one: (one.keyspace, one.shard_id))


def _on_all(home: Home, statement: Any) -> list[tuple[Place, Any]]:
    """Return the rows of all shards, each with its shard."""
    places = home.places
    jobs = [
        partial(_on_server, home, statement, group)
        for keyspace in places.topology.keyspaces.values()
        for group in by_server(places.all_places(keyspace))
    ]
    return list(
        chain.from_iterable(places.engines.at_once(jobs, "keys", _PARALLEL))
    )


def _on_server(
    home: Home, statement: Any, places: Sequence[Place]
) -> list[tuple[Place, Any]]:
    with ShardSession(cluster=home) as session:
        # The row does not say where it is, and mostly there is none.
        at_once = {"places": places}
        if session.execute(statement, bind_arguments=at_once).first() is None:
            return []
        return [
            (place, row)
            for place in places
            for row in session.execute(
                statement, bind_arguments={"place": place}
            )
        ]
