"""The differences between two topologies, and those that are refused.

:func:`diff` compares by ranges, so that 65,536 shards cost no more than the
servers that hold them.  Servers are compared by keyspace and name.  Opening
shards moves none: ids keep their shard, and shards keep their server and
database unless the difference contains a change of them.

A topology does not move data.  The changes that :func:`refusals` returns would leave
rows where no statement finds them, and no option allows them.  Adding and
removing servers, and moving and opening shards, is accepted: the data has to
be moved before such a topology is published.

A process may have missed some versions, and compares its own with the newest.
So it must accept in one step whatever it accepts in two, or that
process would keep the old topology.  :func:`exchanges` does not have this
property; it is for publishing, which compares a version with the next one.

Two primaries for one shard within a topology are refused when it is parsed:
overlapping ranges, and servers of a keyspace with the same address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal, TypeVar

from sqla_shard.exc import Problem, StaleTopologyError, TopologyRefusedError
from sqla_shard.ids import IdLayout
from sqla_shard.topology.generations import (
    leaps as generation_leaps,
    lowered_generations,
)
from sqla_shard.topology.keyspaces import common, Keyspace, Kind, Server, ShardRange
from sqla_shard.topology.model import Topology
from sqla_shard.topology.parse import MAX_STEP
from sqla_shard.topology.urls import address_of
from sqla_shard.util.masking import redact

T = TypeVar("T")

_ROLES: tuple[Literal["primary", "standby"], ...] = ("primary", "standby")


@dataclass(frozen=True, slots=True, kw_only=True)
class KindChange:
    """A changed kind of a keyspace, which routes keys to other shards."""

    keyspace: str
    old: Kind
    new: Kind

    def __str__(self) -> str:
        return f"{self.keyspace}: kind {self.old!r} -> {self.new!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutChange:
    """A changed layout of ids, which reads each id as another object's."""

    keyspace: str
    old: IdLayout
    new: IdLayout

    def __str__(self) -> str:
        return f"{self.keyspace}: {self.old} -> {self.new}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseChange:
    """A changed template of database names."""

    keyspace: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.keyspace}: database {self.old!r} -> {self.new!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CountChange:
    """Shards that were opened or closed at the end of a keyspace.

    In a ``"mod"`` keyspace the count is the modulus, and another modulus
    routes keys to other shards.
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
            f"{self.keyspace}: {self.old} -> {self.new} shards ({self.shards} {verb})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedRange:
    """Open shards that moved to another server."""

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
    """A changed URL of a server."""

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
    """A changed weight of a server for new roots."""

    keyspace: str
    server: str
    old: float
    new: float

    def __str__(self) -> str:
        return (
            f"{self.keyspace}: weight of {self.server!r} {self.old:g} -> {self.new:g}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationChange:
    """A changed generation of a server; None if it has none."""

    keyspace: str
    server: str
    old: int | None
    new: int | None

    def __str__(self) -> str:
        old, new = ("none" if one is None else one for one in (self.old, self.new))
        return f"{self.keyspace}: generation of {self.server!r} {old} -> {new}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyDiff:
    """The changes from one topology to another.

    ``str()`` has one line for each change, in the order of the attributes,
    with passwords masked.  Keyspaces that were added or removed are listed
    only by name.

    :ivar old_epoch: epoch of the old topology.
    :ivar new_epoch: epoch of the new topology; not checked to be higher.
    :ivar added_keyspaces: names of the added keyspaces.
    :ivar removed_keyspaces: names of the removed keyspaces.
    :ivar kinds: keyspaces with a changed kind.
    :ivar layouts: keyspaces with a changed layout of ids.
    :ivar databases: keyspaces with changed database names.
    :ivar opened: keyspaces with more shards.
    :ivar closed: keyspaces with fewer shards.
    :ivar moved: moved shards, by keyspace and shard; adjacent shards are one
        range.
    :ivar added_servers: added servers, except those of added keyspaces.
    :ivar removed_servers: removed servers, except those of removed keyspaces.
    :ivar urls: changed URLs of primaries and standbys, by server.
    :ivar weights: changed weights, by server.
    :ivar generations: changed generations, by server.
    """

    old_epoch: int
    new_epoch: int
    added_keyspaces: tuple[str, ...] = ()
    removed_keyspaces: tuple[str, ...] = ()
    kinds: tuple[KindChange, ...] = ()
    layouts: tuple[LayoutChange, ...] = ()
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
        """Whether nothing differs, apart from the epoch."""
        return next(self._changes(), None) is None

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values.

        A change is an object with its attributes; a range of shards is a
        pair.  Passwords are masked: two equal URLs of a change differ in
        their passwords.
        """
        return {item.name: _document(getattr(self, item.name)) for item in fields(self)}

    def __str__(self) -> str:
        lines = list(self._changes()) or ["nothing else changed"]
        return "\n".join([f"epoch {self.old_epoch} -> {self.new_epoch}", *lines])

    def _changes(self) -> Iterator[str]:
        for name in self.added_keyspaces:
            yield f"{name}: keyspace added"
        for name in self.removed_keyspaces:
            yield f"{name}: keyspace removed"
        yield from map(str, self.kinds)
        yield from map(str, self.layouts)
        yield from map(str, self.databases)
        yield from map(str, (*self.opened, *self.closed))
        yield from map(str, self.moved)
        yield from map(str, (*self.added_servers, *self.removed_servers))
        yield from map(str, (*self.urls, *self.weights, *self.generations))


def diff(old: Topology, new: Topology) -> TopologyDiff:
    """Return the changes from ``old`` to ``new``.

    :param old: the topology before.
    :param new: the topology after.
    """
    both = [
        (keyspace, new.keyspaces[name])
        for name, keyspace in old.keyspaces.items()
        if name in new.keyspaces
    ]
    stay = [(a.name, *pair) for a, b in both for pair in _staying(a, b)]
    keyspaces = [({"keyspace": a.name}, a, b) for a, b in both]
    servers = [({"keyspace": name, "server": a.name}, a, b) for name, a, b in stay]
    counts = _changed(CountChange, "shards", keyspaces)
    return TopologyDiff(
        old_epoch=old.epoch,
        new_epoch=new.epoch,
        added_keyspaces=tuple(
            name for name in new.keyspaces if name not in old.keyspaces
        ),
        removed_keyspaces=tuple(
            name for name in old.keyspaces if name not in new.keyspaces
        ),
        kinds=_changed(KindChange, "kind", keyspaces),
        layouts=_changed(LayoutChange, "id_layout", keyspaces),
        databases=_changed(DatabaseChange, "database", keyspaces),
        opened=tuple(one for one in counts if one.new > one.old),
        closed=tuple(one for one in counts if one.new < one.old),
        moved=tuple(move for a, b in both for move in _moved(a, b)),
        added_servers=tuple(
            ServerChange(keyspace=a.name, server=server, change="added")
            for a, b in both
            for server in _missing(b, a)
        ),
        removed_servers=tuple(
            ServerChange(keyspace=a.name, server=server, change="removed")
            for a, b in both
            for server in _missing(a, b)
        ),
        urls=tuple(
            UrlChange(
                keyspace=name,
                server=a.name,
                role=role,
                old=getattr(a, role),
                new=getattr(b, role),
            )
            for name, a, b in stay
            for role in _ROLES
            if getattr(a, role) != getattr(b, role)
        ),
        weights=_changed(WeightChange, "weight", servers),
        generations=_changed(GenerationChange, "generation", servers),
    )


def _changed(
    change: Callable[..., T],
    attribute: str,
    pairs: Iterable[tuple[Mapping[str, str], Any, Any]],
) -> tuple[T, ...]:
    """Return a change for each pair whose attribute differs.

    :param pairs: what a change is called, and the objects before and after.
    """
    values = (
        (labels, getattr(before, attribute), getattr(after, attribute))
        for labels, before, after in pairs
    )
    return tuple(
        change(**labels, old=old, new=new) for labels, old, new in values if old != new
    )


def _moved(old: Keyspace, new: Keyspace) -> Iterator[MovedRange]:
    """Yield the moved ranges, from one range boundary to the next."""
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


def _missing(one: Keyspace, other: Keyspace) -> list[Server]:
    """Return the servers of a keyspace that the other one does not have."""
    names = {server.name for server in other.servers}
    return [server for server in one.servers if server.name not in names]


def _staying(old: Keyspace, new: Keyspace) -> Iterator[tuple[Server, Server]]:
    after = {server.name: server for server in new.servers}
    for server in old.servers:
        if server.name in after:
            yield server, after[server.name]


def _redacted(url: str | None) -> str | None:
    return None if url is None else redact(url)


def _document(value: Any) -> Any:
    if isinstance(value, ShardRange):
        return [value.first, value.last]
    if isinstance(value, IdLayout):
        return value.to_mapping()
    if isinstance(value, tuple):
        return [_document(item) for item in value]
    if is_dataclass(value):
        return {
            item.name: _document(getattr(value, item.name)) for item in fields(value)
        }
    # Names and templates cannot contain this character.
    if isinstance(value, str) and "://" in value:
        return redact(value)
    return value


MAX_RESETS_STEP = 1000


def refusals(old: Topology, new: Topology) -> tuple[Problem, ...]:
    """Return the reasons why ``new`` must not replace ``old``.

    Epochs are not compared.

    :param old: the topology in use.
    :param new: the topology that replaces it.
    """
    changes = diff(old, new)
    return (*_of_keyspaces(changes), *_of_pairs(old, new))


def check_newer(old: Topology, new: Topology, *, source: str) -> None:
    """Check that a topology may replace another one.

    :param source: origin of the new topology, for errors.
    :raises StaleTopologyError: if the epoch is not higher.
    :raises TopologyRefusedError: if the new topology makes a change that is
        refused, or its epoch is so high that none can follow.
    """
    if new.version <= old.version:
        raise StaleTopologyError(
            source=source,
            epoch=new.epoch,
            current=old.epoch,
            resets=old.resets if old.resets > new.resets else 0,
        )
    problems = (*leaps(old, new), *refusals(old, new))
    if problems:
        raise TopologyRefusedError(
            problems, source=source, epoch=new.epoch, current=old.epoch
        )


def check_next(
    old: Topology | None, new: Topology, *, source: str, found: Iterable[Problem] = ()
) -> None:
    """Check that a topology may be published.

    :param old: the published topology, if any.
    :param new: the next one.
    :param source: where it is published, for errors.
    :param found: problems of its own.
    :raises StaleTopologyError: if the epoch is not higher.
    :raises TopologyRefusedError: with all problems that there are.
    """
    problems = [*found, *generation_leaps(old, new)]
    if not problems and old is None:
        problems += leaps(replace(new, epoch=0, resets=0), new)
    if not problems and old is not None:
        check_newer(old, new, source=source)
        problems += exchanges(old, new)
        problems += lowered_generations(old, new)
    if problems:
        raise TopologyRefusedError(
            tuple(problems),
            source=source,
            epoch=new.epoch,
            current=None if old is None else old.epoch,
        )


def leaps(old: Topology, new: Topology) -> Iterator[Problem]:
    """Yield the epochs and resets that leave no room for later ones.

    :param old: the topology in use.
    :param new: the newer topology that replaces it.
    """
    first = old.epoch if new.resets == old.resets else 0
    if new.epoch - first > MAX_STEP:
        yield Problem(
            "epoch",
            f"{first} -> {new.epoch} is too large a step: an epoch may be at most "
            f"{MAX_STEP} higher, so that higher ones are left; write the next one. If "
            "it is in use somewhere: sqla-shard topology reset",
        )
    if new.resets - old.resets > MAX_RESETS_STEP:
        yield Problem(
            "resets",
            f"{old.resets} -> {new.resets} is too large a step: at most "
            f"{MAX_RESETS_STEP} at a time; write {old.resets + 1}",
        )


def _of_keyspaces(changes: TopologyDiff) -> Iterator[Problem]:
    for name in changes.removed_keyspaces:
        yield Problem(
            f"keyspaces.{name}", "is missing, and with it all of its shards; keep it"
        )
    for kind in changes.kinds:
        yield Problem(
            f"keyspaces.{kind.keyspace}.kind",
            f"{kind.old!r} -> {kind.new!r} would route every key to "
            "another shard; keep it, and add a keyspace with another name",
        )
    for layout in changes.layouts:
        yield Problem(
            f"keyspaces.{layout.keyspace}.id_layout",
            f"{layout.old} -> {layout.new} would read each existing id as that of "
            "another object; keep it, and add a keyspace with another name",
        )
    for database in changes.databases:
        yield Problem(
            f"keyspaces.{database.keyspace}.database",
            f"{database.old!r} -> {database.new!r} names databases that do "
            f"not exist; keep {database.old!r}",
        )
    kinds = {kind.keyspace for kind in changes.kinds}
    for count in (*changes.closed, *changes.opened):
        if count.keyspace in kinds:
            continue
        place = f"keyspaces.{count.keyspace}.shards"
        if count.new < count.old:
            yield Problem(
                place,
                f"{count.old} -> {count.new} drops {count.shards} with all "
                f"objects on them; keep {count.old} or more",
            )


def _of_pairs(old: Topology, new: Topology) -> Iterator[Problem]:
    """Yield refusals of another modulus, and of another kind of server."""
    for name, keyspace in new.keyspaces.items():
        before = old.keyspaces.get(name)
        if before is None:
            continue
        if keyspace.kind == before.kind == "mod" and keyspace.shards > before.shards:
            yield Problem(
                f"keyspaces.{name}.shards",
                f"{before.shards} -> {keyspace.shards} changes the modulus, so keys "
                f"would be searched on other shards; keep {before.shards}",
            )
        was, now = _family(before), _family(keyspace)
        if was != now:
            yield Problem(
                f"keyspaces.{name}.servers",
                f"are on {now}, but the data is on {was}; keep them there, "
                "and add a keyspace with another name",
            )


def _family(keyspace: Keyspace) -> str | None:
    """Return the common kind of all servers."""
    address = address_of(keyspace.servers[0].primary)
    return None if address is None else address.family


def exchanges(old: Topology, new: Topology) -> tuple[Problem, ...]:
    """Return the servers that would get the primary of another server.

    While processes switch from ``old`` to ``new``, that machine would be the
    primary of both servers.  A failover to a server's own standby is
    accepted; so is a new name of a server with the same address.

    :param old: the published topology.
    :param new: the next one.
    """
    return tuple(
        problem
        for name, keyspace in new.keyspaces.items()
        if name in old.keyspaces
        for problem in _exchanged(old.keyspaces[name], keyspace)
    )


def _exchanged(old: Keyspace, new: Keyspace) -> Iterator[Problem]:
    before = {server.name: server for server in old.servers}
    holders = {address_of(server.primary): server for server in old.servers}
    for index, server in enumerate(new.servers):
        was = before.get(server.name)
        address = address_of(server.primary)
        holder = holders.get(address)
        if was is None or holder is None or holder.name == server.name:
            continue
        if was.standby is not None and address_of(was.standby) == address:
            continue
        if any(common(server.shards, holder.shards)):
            continue
        yield Problem(
            f"keyspaces.{new.name}.servers[{index}].primary",
            f"{redact(server.primary)} is still the primary of "
            f"{holder.name!r}, and would be the primary of both while "
            "processes switch over; move the shards by their ranges, or give "
            f"{holder.name!r} its new primary in an earlier epoch",
        )
