"""What :func:`~sqla_shard.schema.verify` has found, as data and as text."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import fields
from dataclasses import is_dataclass
from typing import Any
from typing import Literal
from typing import TypeAlias

from sqla_shard.topology import ShardRange
from sqla_shard.topology.ranges import joined

__all__ = [
    "Copies",
    "DriftReport",
    "KeyspaceDrift",
    "Orphan",
    "Role",
    "TableDrift",
    "Unread",
    "Variant",
]

Role: TypeAlias = Literal["primary", "standby"]

#: How many ranges of shards are written out in a line.
_RANGES = 12


@dataclass(frozen=True, kw_only=True)
class Copies:
    """Virtual shards on one server.

    :ivar server: its name in the topology.
    :ivar role: ``"primary"`` or ``"standby"``.
    :ivar shards: their numbers, ascending.
    """

    server: str
    role: Role
    shards: tuple[int, ...]

    def __str__(self) -> str:
        return f"{end_of(self.server, self.role)}: {listed(self.shards)}"


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One definition of a table, and the databases that have it.

    :ivar exists: whether the table is there at all.
    :ivar count: how many databases have it so.
    :ivar copies: which these are.
    :ivar diff: how the definition differs from that of the reference, as a
        unified diff of one of them; empty where one of the two has no such
        table, for the variant of the reference itself, and beyond the first
        16 variants of a table.
    """

    exists: bool
    count: int
    copies: tuple[Copies, ...]
    diff: str = ""


@dataclass(frozen=True, kw_only=True)
class TableDrift:
    """A table that is not the same everywhere.

    :ivar table: its name; None for the defaults of the database itself.
    :ivar suspect: whether most databases differ from the reference, all in
        the same way: then it may be the reference that is wrong.
    :ivar reference: the variant of the reference.
    :ivar others: the other variants, the most frequent first.
    """

    table: str | None
    suspect: bool
    reference: Variant
    others: tuple[Variant, ...]


@dataclass(frozen=True, kw_only=True)
class Orphan:
    """A database that is on a server without being placed there.

    :ivar database: its name, which that of a virtual shard could be.
    :ivar server: where it is.
    :ivar role: on the primary, or on the standby.
    :ivar shard: the number in its name.
    :ivar home: the server on which the topology has that shard; None where
        the shard is not open.
    """

    database: str
    server: str
    role: Role
    shard: int
    home: str | None


@dataclass(frozen=True, kw_only=True)
class Unread:
    """A server whose tables could not be read.

    :ivar server: its name.
    :ivar role: its primary, or its standby.
    :ivar reason: what is wrong.
    """

    server: str
    role: Role
    reason: str


@dataclass(frozen=True, kw_only=True)
class KeyspaceDrift:
    """What was found of one keyspace.

    :ivar keyspace: its name.
    :ivar reference: the shard that all were compared with; None where
        nothing could be read.
    :ivar server: where the reference was read.
    :ivar role: its primary, or its standby where no primary has answered.
    :ivar shards: how many virtual shards were asked for.
    :ivar databases: how many databases were compared; with standbys more
        than shards.
    :ivar tables: how many tables the reference has.
    :ivar servers: how many primaries and standbys were asked.
    :ivar drifted: the tables that are not the same everywhere.
    :ivar missing: databases that the topology has and the server has not.
    :ivar orphaned: databases that the server has and the topology not.
    :ivar unread: servers that could not be read.
    """

    keyspace: str
    reference: int | None
    server: str | None
    role: Role
    shards: int
    databases: int
    tables: int
    servers: int
    drifted: tuple[TableDrift, ...]
    missing: tuple[Copies, ...]
    orphaned: tuple[Orphan, ...]
    unread: tuple[Unread, ...]

    @property
    def ok(self) -> bool:
        """Whether everything was read, and all is alike and in its place."""
        return not (
            self.drifted or self.missing or self.orphaned or self.unread
        )


@dataclass(frozen=True, kw_only=True)
class DriftReport:
    """What :func:`verify` has found; ``str()`` of it is for reading.

    :ivar keyspaces: one after another.
    :ivar seconds: how long it took.
    """

    keyspaces: tuple[KeyspaceDrift, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether everything was read, and all is alike and in its place."""
        return all(found.ok for found in self.keyspaces)

    def to_mapping(self) -> dict[str, Any]:
        """Return the report as JSON can hold it.

        Every part is an object with its attributes, shards are numbers.
        """
        return {"ok": self.ok, **_document(self)}

    def __str__(self) -> str:
        return "\n".join(_text(self))


def end_of(server: str, role: Role) -> str:
    """Return the name of a server, and whether it is the standby."""
    return server if role == "primary" else f"{server} (standby)"


def listed(shards: Iterable[int]) -> str:
    """Return numbers of shards in few words: ``shards 0-16, 18``."""
    ranges = joined(ShardRange(shard, shard) for shard in shards)
    parts = [
        str(part.first) if len(part) == 1 else f"{part.first}-{part.last}"
        for part in ranges[:_RANGES]
    ]
    if left := sum(map(len, ranges[_RANGES:])):
        parts.append(f"and {left} more")
    one = len(ranges) == 1 and len(ranges[0]) == 1
    return f"shard{'' if one else 's'} {', '.join(parts)}"


def _document(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_document(item) for item in value]
    if is_dataclass(value):
        return {
            item.name: _document(getattr(value, item.name))
            for item in fields(value)
        }
    return value


def _text(report: DriftReport) -> Iterator[str]:
    yield f"{_verdict(report)}; {report.seconds:.1f} s"
    for found in report.keyspaces:
        yield _headline(found)
        for table in found.drifted:
            yield from _of_table(table)
        if found.missing:
            yield "databases that are in the topology, but not on the server:"
            yield from (f"  {copies}" for copies in found.missing)
        if found.orphaned:
            yield "databases on a server that the topology has elsewhere:"
            yield from map(_of_orphan, found.orphaned)
    # Once, however many keyspaces a server has.
    unread = (one for found in report.keyspaces for one in found.unread)
    for server, reason in {
        end_of(one.server, one.role): one.reason for one in unread
    }.items():
        yield f"not read: {server}: {' '.join(reason.split())}"


def _verdict(report: DriftReport) -> str:
    if report.ok:
        return "no drift"
    drifted = any(
        found.drifted or found.missing or found.orphaned
        for found in report.keyspaces
    )
    return "drift" if drifted else "no drift in what was read"


def _headline(found: KeyspaceDrift) -> str:
    if found.reference is None:
        return f"keyspace {found.keyspace}: nothing could be read"
    line = (
        f"keyspace {found.keyspace}: {_many(found.shards, 'shard')}, "
        f"{_many(found.databases, 'database')} on "
        f"{_many(found.servers, 'server')}, {_many(found.tables, 'table')}"
    )
    if found.drifted:
        where = end_of(str(found.server), found.role)
        line += f"; compared with shard {found.reference} on {where}"
    return line


def _of_table(found: TableDrift) -> Iterator[str]:
    name = "defaults of the database"
    if found.table is not None:
        name = f"table {found.table}"
    state = "as" if found.reference.exists else "missing, as in"
    yield (
        f"{name}: {_many(found.reference.count, 'database')} {state} the "
        "reference"
    )
    if found.suspect:
        yield "  most differ from it in the same way: is the reference wrong?"
    for variant in found.others:
        yield f"  {_many(variant.count, 'database')} {_state(found, variant)}"
        yield from (f"    {copies}" for copies in variant.copies)
        yield from (f"    {line}" for line in variant.diff.split("\n") if line)


def _state(found: TableDrift, variant: Variant) -> str:
    verb = "has" if variant.count == 1 else "have"
    if not variant.exists:
        return f"{verb} none"
    return f"{verb} one" if not found.reference.exists else f"{verb} another"


def _of_orphan(orphan: Orphan) -> str:
    home = "the shard is not open"
    if orphan.home is not None:
        home = f"shard {orphan.shard} is on {orphan.home}"
    return (
        f"  {orphan.database} on {end_of(orphan.server, orphan.role)}: {home}"
    )


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
