"""Where an id or a statement goes, and why, without going there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqla_shard.engines import Places
from sqla_shard.exc import NoShardKeyError
from sqla_shard.exc import ShardError
from sqla_shard.ids import ObjectId
from sqla_shard.ids import unpack
from sqla_shard.rendering import Place
from sqla_shard.routing import route

__all__ = ["Explanation", "Target", "explain"]


@dataclass(frozen=True, kw_only=True)
class Target:
    """One virtual shard of an explanation.

    :ivar shard_id: its number.
    :ivar server: the physical server that holds it.
    :ivar database: its database, or its file on SQLite.
    """

    shard_id: int
    server: str
    database: str


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Where something goes.

    :ivar object_id: the parts of the id; None for a statement.
    :ivar keyspace: name of the keyspace; None where it cannot be told.
    :ivar targets: the shards, in order; empty where no row can match or
        the statement is refused.
    :ivar why: what decided.
    :ivar refusal: the error that executing would raise, or None.
    """

    object_id: ObjectId | None
    keyspace: str | None
    targets: tuple[Target, ...]
    why: str
    refusal: ShardError | None

    @property
    def shards(self) -> tuple[int, ...]:
        """The numbers of the shards."""
        return tuple(target.shard_id for target in self.targets)

    @property
    def servers(self) -> tuple[str, ...]:
        """The names of the servers, each once."""
        return tuple(dict.fromkeys(t.server for t in self.targets))

    def __str__(self) -> str:
        lines = []
        if self.object_id is not None:
            parts = self.object_id
            lines.append(
                f"id {int(parts)}: shard {parts.shard_id}, type "
                f"{parts.type_id}, local id {parts.local_id}"
            )
        if self.refusal is not None:
            lines.append(f"refused: {self.refusal}")
            return "\n".join(lines)
        lines.append(
            f"keyspace {self.keyspace}: {len(self.targets)} shard(s) on "
            f"{len(self.servers)} server(s), because of {self.why}"
        )
        lines += [
            f"  shard {t.shard_id} on {t.server} in {t.database}"
            for t in self.targets
        ]
        return "\n".join(lines)


def explain(what: Any, parameters: Any, places: Places) -> Explanation:
    """Explain an id, or a statement as a session would treat it."""
    if not hasattr(what, "get_children"):
        return _explain_id(what, places)
    try:
        if getattr(what, "is_insert", False):
            raise NoShardKeyError(
                "an INSERT is placed when it runs, by the ids in its rows",
                tables=(what.table.name,),
            )
        decision = route(what, parameters, places)
        found = [places.place(decision.keyspace, i) for i in decision.shards]
    except ShardError as error:
        return Explanation(
            object_id=None, keyspace=None, targets=(), why="", refusal=error
        )
    return Explanation(
        object_id=None,
        keyspace=decision.keyspace.name,
        targets=tuple(map(_target, found)),
        why=decision.why or "nothing",
        refusal=None,
    )


def _explain_id(what: Any, places: Places) -> Explanation:
    parts = unpack(what)
    keyspace = places.keyspace(None, "objects")
    place = places.place(keyspace, parts.shard_id)
    return Explanation(
        object_id=parts,
        keyspace=keyspace.name,
        targets=(_target(place),),
        why="the bits of the id",
        refusal=None,
    )


def _target(place: Place) -> Target:
    url = place.engine.url
    database = str(url.database) if url.host is None else place.schema
    return Target(
        shard_id=place.shard_id, server=place.server, database=database
    )
