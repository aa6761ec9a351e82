"""The replicas of both sides, whose lag limits the passes."""

from __future__ import annotations

from typing import Any

from sqla_shard.engine.pools import server_name
from sqla_shard.exc import MoveSetupError
from sqla_shard.fleet.fleet import all_pairs
from sqla_shard.fleet.lag_guard import LagGuard, Replicas
from sqla_shard.migrate.move import Move


def lag_guard(move: Move, seconds: float) -> LagGuard:
    """Return a guard that waits while a replica is behind.

    :param seconds: how far each may be behind.
    :raises MoveSetupError: if there is none.
    """
    if not replicas(move):
        raise MoveSetupError(
            f"max_lag={seconds:g}: there is no replica whose lag could be "
            "read; name those of the database in Move(replicas=...), and "
            "standbys of the shards in the topology"
        )
    return LagGuard(lambda: replicas(move), limit=seconds)


def replicas(move: Move) -> Replicas:
    """Return the replicas of the database, and the standbys of the shards.

    :returns: URLs with the account, by the names for messages.
    """
    found: dict[str, Any] = {
        f"replica {server_name(url)}": (url, None) for url in move.replicas
    }
    engines = move.cluster.places.engines
    for pair in all_pairs(move.cluster.topology):
        if pair.standby is not None:
            url = engines.filled(pair.standby)
            # A directory of SQLite files replicates nothing.
            if url.host is not None:
                password = engines.password_of(pair.standby, [f"{pair.name} (standby)"])
                found[f"{pair.name} standby"] = url, password
    return found
