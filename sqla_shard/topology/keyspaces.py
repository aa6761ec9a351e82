"""Ranges of virtual shards, servers and keyspaces.

The cost of every function grows with the number of ranges, not of shards:
65,536 shards on 128 servers are 128 ranges.

Servers and keyspaces are frozen and compared by their attributes.
:class:`~sqla_shard.topology.Topology` checks that they agree: each shard is on
one server, and no two databases have the same name.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import Any, Literal, TypeAlias

from sqla_shard.exc import Problem, TopologyError, UnknownShardError
from sqla_shard.ids import DEFAULT_LAYOUT, IdLayout
from sqla_shard.util.masking import redact

__all__ = [
    "MAX_SHARDS",
    "Keyspace",
    "Kind",
    "Server",
    "ShardRange",
    "as_ranges",
    "bounds",
    "common",
    "gaps",
    "joined",
]


MAX_SHARDS = 65_536
"""Maximum number of virtual shards; ids have at most 16 bits of the shard."""

bounds = attrgetter("first", "last")
"""Sort key of ranges; much faster than comparing the ranges."""


@dataclass(frozen=True, slots=True, order=True)
class ShardRange:
    """Virtual shards ``first`` to ``last``, both included.

    Ranges sort by their first shard.  ``len``, ``in`` and iteration work
    on the shard ids.

    :param first: the lowest shard id, 0 or more.
    :param last: the highest shard id, ``first`` or more.
    :raises TopologyError: if the range is negative or reversed.
    """

    first: int
    last: int

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last:
            raise TopologyError(
                [
                    Problem(
                        "shards",
                        f"[{self.first}, {self.last}] is not a valid range; "
                        "write [first, last], both included, from 0 upwards",
                    )
                ],
                source="ShardRange",
            )

    def __contains__(self, shard_id: object) -> bool:
        return isinstance(shard_id, int) and self.first <= shard_id <= self.last

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last + 1))

    def __len__(self) -> int:
        return self.last - self.first + 1

    @property
    def numbers(self) -> str:
        """The shard ids, such as ``"2-3"``, or ``"2"`` for a single one."""
        if self.first == self.last:
            return str(self.first)
        return f"{self.first}-{self.last}"

    def __str__(self) -> str:
        return f"shard{'s' * (len(self) > 1)} {self.numbers}"


def as_ranges(shard_ids: Iterable[int], most: int = 12) -> str:
    """Return a string such as ``"0-511, 600"``, as ``--shards`` takes it.

    :param most: maximum number of ranges to show.
    """
    ranges = joined(ShardRange(one, one) for one in shard_ids)
    more = sum(map(len, ranges[most:]))
    shown = ", ".join(one.numbers for one in ranges[:most])
    return shown + (f" and {more} more" if more else "")


def joined(ranges: Iterable[ShardRange]) -> tuple[ShardRange, ...]:
    """Return the ranges sorted, with adjacent ranges joined.

    Overlapping ranges are not joined, since they are reported as a mistake.

    :param ranges: ranges in any order.
    """
    result: list[ShardRange] = []
    for item in sorted(ranges, key=bounds):
        if result and item.first == result[-1].last + 1:
            item = ShardRange(result.pop().first, item.last)
        result.append(item)
    return tuple(result)


def common(
    one: Iterable[ShardRange], other: Iterable[ShardRange]
) -> Iterator[ShardRange]:
    """Yield the shards that are in both, as ranges, ascending.

    :param one: ranges in any order; if they overlap, the result does.
    :param other: a second set of ranges, in any order.
    """
    ours, theirs = (sorted(ranges, key=bounds) for ranges in (one, other))
    begin = 0
    for item in ours:
        while begin < len(theirs) and theirs[begin].last < item.first:
            begin += 1
        at = begin
        while at < len(theirs) and theirs[at].first <= item.last:
            first = max(item.first, theirs[at].first)
            last = min(item.last, theirs[at].last)
            if first <= last:
                yield ShardRange(first, last)
            at += 1


def gaps(ranges: Iterable[ShardRange], count: int) -> Iterator[ShardRange]:
    """Yield the ranges of 0 to ``count - 1`` that are not covered.

    :param ranges: ranges in any order; they may overlap and exceed ``count``.
    :param count: number of open shards.
    """
    expected = 0
    for item in sorted(ranges, key=bounds):
        if item.first >= count:
            break
        if item.first > expected:
            yield ShardRange(expected, item.first - 1)
        expected = max(expected, item.last + 1)
    if expected < count:
        yield ShardRange(expected, count - 1)


Kind: TypeAlias = Literal["objects", "mod", "global"]
"""``"objects"``: the shard is part of the id; ``"mod"``: hash of a key with
a fixed modulus; ``"global"``: one database, not sharded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A physical server, or a pair of them, and the shards on it.

    :param name: unique within its keyspace, such as ``"sharddb001"``.
    :param primary: URL for all reads and writes, with unexpanded
        placeholders.  The ``repr`` masks passwords.
    :param standby: URL of the replica that can be promoted, or None.
    :param shards: ranges of shards; sorted, and adjacent ranges joined, so
        that equal placements compare equal.
    :param weight: share of new root objects among the servers of an
        ``"objects"`` keyspace; 0 for none.  Ignored for other kinds.
    :param generation: part of cache keys; rows that were cached under
        another generation are not used.  Must be raised whenever the primary
        becomes another machine.  None if not used.
    """

    name: str
    primary: str
    standby: str | None = None
    shards: tuple[ShardRange, ...]
    weight: float = 1.0
    generation: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shards", joined(self.shards))

    def redacted(self) -> Server:
        """Return the server with ``***`` for passwords in its URLs."""
        return replace(
            self,
            primary=redact(self.primary),
            standby=None if self.standby is None else redact(self.standby),
        )

    def __repr__(self) -> str:
        shown = self.redacted()
        return (
            f"Server(name={self.name!r}, primary={shown.primary!r}, "
            f"standby={shown.standby!r}, shards={self.shards!r}, "
            f"weight={self.weight!r}, generation={self.generation!r})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyspace:
    """A set of virtual shards and the servers that hold them.

    :param name: name of the keyspace in the topology.
    :param kind: how keys are routed to shards, see :data:`Kind`.
    :param shards: number of open shards, which are numbered from 0; 1 for a
        global keyspace.
    :param database: template of the database names with one field
        ``{shard}``, such as ``"db{shard:05d}"``; the database name of a
        global keyspace.
    :param servers: servers in the order of the document.
    :param id_layout: layout of the ids of an ``"objects"`` keyspace.
        Ignored for other kinds.
    """

    name: str
    kind: Kind
    shards: int
    database: str
    servers: tuple[Server, ...]
    id_layout: IdLayout = DEFAULT_LAYOUT
    _table: tuple[list[int], list[Server]] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    def __reduce__(self) -> tuple[Any, ...]:
        # The table is not part of the state.
        rebuild = partial(
            type(self),
            name=self.name,
            kind=self.kind,
            shards=self.shards,
            database=self.database,
            servers=self.servers,
            id_layout=self.id_layout,
        )
        return rebuild, ()

    @property
    def identity(self) -> str:
        """A string that is the same in all topologies of a cluster."""
        return f"{self.kind} {self.name} {self.database}"

    @property
    def shard_ids(self) -> range:
        """The ids of the open shards, ascending."""
        return range(self.shards)

    def server_for(self, shard_id: int) -> Server:
        """Return the server that holds a virtual shard.

        :param shard_id: the shard.
        :raises UnknownShardError: if the shard is not open.
        :raises TopologyError: if this keyspace is not part of a topology, and
            its servers do not have each shard exactly once.
        """
        if 0 <= shard_id < self.shards:
            starts, servers = self._table or self._tabulate()
            return servers[bisect_right(starts, shard_id) - 1]
        raise self._not_open(shard_id)

    def database_for(self, shard_id: int) -> str:
        """Return the name of a virtual shard's database.

        :param shard_id: the shard; 0 for a global keyspace.
        :raises UnknownShardError: if it is not open.
        """
        if not 0 <= shard_id < self.shards:
            raise self._not_open(shard_id)
        if self.kind == "global":
            return self.database
        return self.database.format(shard=shard_id)

    def placements(self) -> list[tuple[ShardRange, Server]]:
        """Return each range with its server, in the order of the shards."""
        pairs = [(item, server) for server in self.servers for item in server.shards]
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
            # The table contains only the first shards of ranges: it would
            # assign the shards of a gap to the server before the gap.
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
        table = ([item.first for item in ranges], [server for _, server in placements])
        # Concurrent threads store equal tables.
        object.__setattr__(self, "_table", table)
        return table
