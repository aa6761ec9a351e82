"""Physical servers, and the virtual shards that they hold.

These are values: frozen, compared by what they say, and free of I/O.  What
makes a set of them *usable* (no shard twice, none left out, databases that
do not collide) is checked by :class:`~sqla_shard.topology.Topology`.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from dataclasses import field
from functools import partial
from typing import Any
from typing import Literal
from typing import TypeAlias

from sqla_shard.exc import Problem
from sqla_shard.exc import TopologyError
from sqla_shard.exc import UnknownShardError
from sqla_shard.masking import redact
from sqla_shard.topology.ranges import bounds
from sqla_shard.topology.ranges import gaps
from sqla_shard.topology.ranges import joined
from sqla_shard.topology.ranges import ShardRange

__all__ = ["Keyspace", "Kind", "Server"]

Kind: TypeAlias = Literal["objects", "mod", "global"]
"""``"objects"``: ids name the shard; ``"mod"``: the hash of a key does,
with a fixed modulus; ``"global"``: one database, not sharded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A physical server, or a pair of them, and the shards on it.

    :param name: unique within its keyspace, such as ``"sharddb001"``.
    :param primary: URL that serves all reads and writes, its placeholders
        unexpanded.  A password typed into it is not part of the ``repr``.
    :param standby: URL of the replica that can be promoted, or None.
    :param shards: its ranges; kept sorted, with neighbours made one, so
        that two spellings of one placement are equal.
    :param weight: share of new root objects among the servers of an
        ``"objects"`` keyspace; 0 takes none.  No effect on other kinds.
    :param generation: number of the life of its data, for caches: what they
        hold of another number is not served.  To be raised whenever the
        primary becomes another machine.  None where nobody counts.
    """

    name: str
    primary: str
    standby: str | None = None
    shards: tuple[ShardRange, ...]
    weight: float = 1.0
    generation: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shards", joined(self.shards))

    def __repr__(self) -> str:
        standby = None if self.standby is None else redact(self.standby)
        return (
            f"Server(name={self.name!r}, primary={redact(self.primary)!r}, "
            f"standby={standby!r}, shards={self.shards!r}, "
            f"weight={self.weight!r}, generation={self.generation!r})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyspace:
    """A set of virtual shards and the servers that hold them.

    :param name: its name in the topology.
    :param kind: how a shard is told, see :data:`Kind`.
    :param shards: how many shards are open; ids run from 0 to one less.
        1 for a global keyspace, whose only shard is 0.
    :param database: template of the database names with one field
        ``{shard}``, such as ``"db{shard:05d}"``; for a global keyspace
        the name itself.
    :param servers: in the order of the document.
    """

    name: str
    kind: Kind
    shards: int
    database: str
    servers: tuple[Server, ...]
    _table: tuple[list[int], list[Server]] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    def __reduce__(self) -> tuple[Any, ...]:
        # By arguments, so that the table stays out of the pickle.
        rebuild = partial(
            type(self),
            name=self.name,
            kind=self.kind,
            shards=self.shards,
            database=self.database,
            servers=self.servers,
        )
        return rebuild, ()

    @property
    def identity(self) -> str:
        """What is the same in all topologies of one cluster."""
        return f"{self.kind} {self.name} {self.database}"

    @property
    def shard_ids(self) -> range:
        """The ids of the open shards, ascending."""
        return range(self.shards)

    def server_for(self, shard_id: int) -> Server:
        """Return the server that holds a virtual shard.

        :param shard_id: the shard.
        :raises UnknownShardError: when it is not open.
        :raises TopologyError: when the servers of a keyspace that was put
            together by hand leave a shard out or hold one twice.
        """
        if 0 <= shard_id < self.shards:
            starts, servers = self._table or self._tabulate()
            return servers[bisect_right(starts, shard_id) - 1]
        raise self._not_open(shard_id)

    def database_for(self, shard_id: int) -> str:
        """Return the name of a virtual shard's database.

        :param shard_id: the shard; 0 for a global keyspace.
        :raises UnknownShardError: when it is not open.
        """
        if not 0 <= shard_id < self.shards:
            raise self._not_open(shard_id)
        if self.kind == "global":
            return self.database
        return self.database.format(shard=shard_id)

    def placements(self) -> list[tuple[ShardRange, Server]]:
        """Return each range with its server, in the order of the shards."""
        pairs = [
            (item, server) for server in self.servers for item in server.shards
        ]
        return sorted(pairs, key=lambda pair: bounds(pair[0]))

    def _not_open(self, shard_id: int) -> UnknownShardError:
        return UnknownShardError(
            shard_id=shard_id, keyspace=self.name, opened=self.shards
        )

    def _tabulate(self) -> tuple[list[int], list[Server]]:
        placements = self.placements()
        ranges = [item for item, _ in placements]
        left_out = next(gaps(ranges, self.shards), None)
        if left_out is not None or self.shards != sum(map(len, ranges)):
            # The table has no ends: it would give the shards of a gap to
            # the server before it.
            raise TopologyError(
                [
                    Problem(
                        "servers",
                        f"they do not hold each of the {self.shards} shards "
                        "exactly once; build a Topology to see which",
                    )
                ],
                source=f"keyspace {self.name!r}",
            )
        table = (
            [item.first for item in ranges],
            [server for _, server in placements],
        )
        # Two threads may both get here: they store equal tables.
        object.__setattr__(self, "_table", table)
        return table
