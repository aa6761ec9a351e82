"""What is different between two topologies.

:func:`diff` compares by ranges, so that 65,536 shards cost no more than the
servers that hold them.  A server is the same one when keyspace and name are
the same.  Opening shards moves none: ids keep their shard, and shards keep
their server and database unless the difference says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import fields
from dataclasses import is_dataclass
from typing import Any
from typing import Literal

from sqla_shard.masking import redact
from sqla_shard.topology.keyspaces import Keyspace
from sqla_shard.topology.keyspaces import Kind
from sqla_shard.topology.keyspaces import Server
from sqla_shard.topology.model import Topology
from sqla_shard.topology.ranges import ShardRange

__all__ = [
    "CountChange",
    "DatabaseChange",
    "GenerationChange",
    "KindChange",
    "MovedRange",
    "ServerChange",
    "TopologyDiff",
    "UrlChange",
    "WeightChange",
    "diff",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class KindChange:
    """A keyspace of another kind: every statement is routed otherwise."""

    keyspace: str
    old: Kind
    new: Kind

    def __str__(self) -> str:
        return f"{self.keyspace}: kind {self.old!r} -> {self.new!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseChange:
    """Other database names: the data must have been renamed."""

    keyspace: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.keyspace}: database {self.old!r} -> {self.new!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CountChange:
    """Shards that were opened at the end, or closed there.

    In a ``"mod"`` keyspace the count is the modulus, and another modulus
    sends keys to other shards.
    """

    keyspace: str
    old: int
    new: int

    @property
    def shards(self) -> ShardRange:
        """The shards that were opened or closed."""
        few, many = sorted((self.old, self.new))
        return ShardRange(few, many - 1)

    def __str__(self) -> str:
        verb = "opened" if self.new > self.old else "closed"
        return (
            f"{self.keyspace}: {self.old} -> {self.new} shards "
            f"({self.shards} {verb})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedRange:
    """Shards, open before and after, that are on another server now."""

    keyspace: str
    shards: ShardRange
    from_server: str
    to_server: str

    def __str__(self) -> str:
        return (
            f"{self.keyspace}: {self.shards} moved from "
            f"{self.from_server!r} to {self.to_server!r}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerChange:
    """A server that was added to a keyspace, or removed from it."""

    keyspace: str
    server: Server
    change: Literal["added", "removed"]

    def __str__(self) -> str:
        held = ", ".join(map(str, self.server.shards))
        return (
            f"{self.keyspace}: server {self.server.name!r} {self.change} "
            f"({redact(self.server.primary)}, {held})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlChange:
    """Another URL of a server that stays."""

    keyspace: str
    server: str
    role: Literal["primary", "standby"]
    old: str | None
    new: str | None

    def __repr__(self) -> str:
        return (
            f"UrlChange(keyspace={self.keyspace!r}, server={self.server!r}, "
            f"role={self.role!r}, old={_redacted(self.old)!r}, "
            f"new={_redacted(self.new)!r})"
        )

    def __str__(self) -> str:
        old, new = _redacted(self.old), _redacted(self.new)
        what = f"{old or 'none'} -> {new or 'none'}"
        if old == new:
            what = f"{new} with another password"
        return f"{self.keyspace}: {self.role} of {self.server!r} {what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightChange:
    """Another share of new roots for a server that stays."""

    keyspace: str
    server: str
    old: float
    new: float

    def __str__(self) -> str:
        return (
            f"{self.keyspace}: weight of {self.server!r} {self.old:g} -> "
            f"{self.new:g}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationChange:
    """Another generation of a server that stays; None where it has none."""

    keyspace: str
    server: str
    old: int | None
    new: int | None

    def __str__(self) -> str:
        old, new = (
            "none" if one is None else one for one in (self.old, self.new)
        )
        return f"{self.keyspace}: generation of {self.server!r} {old} -> {new}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyDiff:
    """What changed from one topology to another.

    ``str()`` has one line for each change, in the order of the attributes,
    with passwords left out.  Of a keyspace that was added or removed only
    its name is told.

    :ivar old_epoch: epoch of the one before.
    :ivar new_epoch: epoch of the one after; not checked to be higher.
    :ivar added_keyspaces: names.
    :ivar removed_keyspaces: names.
    :ivar kinds: keyspaces of another kind.
    :ivar databases: keyspaces with other database names.
    :ivar opened: keyspaces with more shards than before.
    :ivar closed: keyspaces with fewer.
    :ivar moved: by keyspace and shard; each range as long as it can be.
    :ivar added_servers: in keyspaces that stay.
    :ivar removed_servers: likewise.
    :ivar urls: primaries and standbys, by server.
    :ivar weights: by server.
    :ivar generations: by server.
    """

    old_epoch: int
    new_epoch: int
    added_keyspaces: tuple[str, ...] = ()
    removed_keyspaces: tuple[str, ...] = ()
    kinds: tuple[KindChange, ...] = ()
    databases: tuple[DatabaseChange, ...] = ()
    opened: tuple[CountChange, ...] = ()
    closed: tuple[CountChange, ...] = ()
    moved: tuple[MovedRange, ...] = ()
    added_servers: tuple[ServerChange, ...] = ()
    removed_servers: tuple[ServerChange, ...] = ()
    urls: tuple[UrlChange, ...] = ()
    weights: tuple[WeightChange, ...] = ()
    generations: tuple[GenerationChange, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing but, at most, the epoch is different."""
        return next(self._changes(), None) is None

    def to_mapping(self) -> dict[str, Any]:
        """Return the attributes as JSON can hold them.

        A change is an object with its attributes, a range of shards a pair;
        passwords are left out, so that of two URLs that are equal the
        password is what has changed.
        """
        return {
            item.name: _document(getattr(self, item.name))
            for item in fields(self)
        }

    def __str__(self) -> str:
        lines = list(self._changes()) or ["nothing else changed"]
        return "\n".join(
            [f"epoch {self.old_epoch} -> {self.new_epoch}", *lines]
        )

    def _changes(self) -> Iterator[str]:
        for name in self.added_keyspaces:
            yield f"{name}: keyspace added"
        for name in self.removed_keyspaces:
            yield f"{name}: keyspace removed"
        yield from map(str, self.kinds)
        yield from map(str, self.databases)
        yield from map(str, (*self.opened, *self.closed))
        yield from map(str, self.moved)
        yield from map(str, (*self.added_servers, *self.removed_servers))
        yield from map(str, (*self.urls, *self.weights, *self.generations))


def diff(old: Topology, new: Topology) -> TopologyDiff:
    """Return what changed from ``old`` to ``new``.

    :param old: the topology before.
    :param new: the topology after.
    """
    both = [
        (keyspace, new.keyspaces[name])
        for name, keyspace in old.keyspaces.items()
        if name in new.keyspaces
    ]
    counts = [
        CountChange(keyspace=a.name, old=a.shards, new=b.shards)
        for a, b in both
        if a.shards != b.shards
    ]
    servers = [change for a, b in both for change in _servers(a, b)]
    return TopologyDiff(
        old_epoch=old.epoch,
        new_epoch=new.epoch,
        added_keyspaces=tuple(
            name for name in new.keyspaces if name not in old.keyspaces
        ),
        removed_keyspaces=tuple(
            name for name in old.keyspaces if name not in new.keyspaces
        ),
        kinds=tuple(
            KindChange(keyspace=a.name, old=a.kind, new=b.kind)
            for a, b in both
            if a.kind != b.kind
        ),
        databases=tuple(
            DatabaseChange(keyspace=a.name, old=a.database, new=b.database)
            for a, b in both
            if a.database != b.database
        ),
        opened=tuple(one for one in counts if one.new > one.old),
        closed=tuple(one for one in counts if one.new < one.old),
        moved=tuple(move for a, b in both for move in _moved(a, b)),
        added_servers=tuple(one for one in servers if one.change == "added"),
        removed_servers=tuple(
            one for one in servers if one.change == "removed"
        ),
        urls=tuple(one for a, b in both for one in _urls(a, b)),
        weights=tuple(one for a, b in both for one in _weights(a, b)),
        generations=tuple(one for a, b in both for one in _generations(a, b)),
    )


def _moved(old: Keyspace, new: Keyspace) -> Iterator[MovedRange]:
    """Walk along both placements at once, from one border to the next."""
    before, after = iter(old.placements()), iter(new.placements())
    end = min(old.shards, new.shards)
    here, there = next(before), next(after)
    first = 0
    while first < end:
        last = min(here[0].last, there[0].last)
        if here[1].name != there[1].name:
            yield MovedRange(
                keyspace=old.name,
                shards=ShardRange(first, last),
                from_server=here[1].name,
                to_server=there[1].name,
            )
        first = last + 1
        if first < end and first > here[0].last:
            here = next(before)
        if first < end and first > there[0].last:
            there = next(after)


def _servers(old: Keyspace, new: Keyspace) -> Iterator[ServerChange]:
    before = {server.name for server in old.servers}
    after = {server.name for server in new.servers}
    for server in new.servers:
        if server.name not in before:
            yield ServerChange(
                keyspace=old.name, server=server, change="added"
            )
    for server in old.servers:
        if server.name not in after:
            yield ServerChange(
                keyspace=old.name, server=server, change="removed"
            )


def _staying(old: Keyspace, new: Keyspace) -> Iterator[tuple[Server, Server]]:
    after = {server.name: server for server in new.servers}
    for server in old.servers:
        if server.name in after:
            yield server, after[server.name]


def _urls(old: Keyspace, new: Keyspace) -> Iterator[UrlChange]:
    for before, after in _staying(old, new):
        roles: tuple[Literal["primary", "standby"], ...]
        roles = ("primary", "standby")
        for role in roles:
            was, now = getattr(before, role), getattr(after, role)
            if was != now:
                yield UrlChange(
                    keyspace=old.name,
                    server=before.name,
                    role=role,
                    old=was,
                    new=now,
                )


def _weights(old: Keyspace, new: Keyspace) -> Iterator[WeightChange]:
    for before, after in _staying(old, new):
        if before.weight != after.weight:
            yield WeightChange(
                keyspace=old.name,
                server=before.name,
                old=before.weight,
                new=after.weight,
            )


def _generations(old: Keyspace, new: Keyspace) -> Iterator[GenerationChange]:
    for before, after in _staying(old, new):
        if before.generation != after.generation:
            yield GenerationChange(
                keyspace=old.name,
                server=before.name,
                old=before.generation,
                new=after.generation,
            )


def _redacted(url: str | None) -> str | None:
    return None if url is None else redact(url)


def _document(value: Any) -> Any:
    if isinstance(value, ShardRange):
        return [value.first, value.last]
    if isinstance(value, tuple):
        return [_document(item) for item in value]
    if is_dataclass(value):
        return {
            item.name: _document(getattr(value, item.name))
            for item in fields(value)
        }
    # Only URLs have that; names and templates cannot.
    if isinstance(value, str) and "://" in value:
        return redact(value)
    return value
