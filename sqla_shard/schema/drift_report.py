"""The report of :func:`~sqla_shard.schema.verify`, as data and as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from sqla_shard.engine.unreachable import (
    each_once,
    unreachable_values,
    UnreachableServer,
)
from sqla_shard.topology.keyspaces import as_ranges
from sqla_shard.util.json_values import json_value

Role: TypeAlias = Literal["primary", "standby"]


@dataclass(frozen=True, kw_only=True)
class Copies:
    """Virtual shards on one server.

    :ivar server: name of the server in the topology.
    :ivar role: ``"primary"`` or ``"standby"``.
    :ivar shards: numbers of the shards, ascending.
    """

    server: str
    role: Role
    shards: tuple[int, ...]

    def __str__(self) -> str:
        noun = "shard" if len(self.shards) == 1 else "shards"
        ids = as_ranges(self.shards)
        return f"{server_text(self.server, self.role)}: {noun} {ids}"


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One definition of a table, and the databases that have it.

    :ivar exists: whether the table exists.
    :ivar count: number of databases with the variant.
    :ivar copies: the databases with the variant.
    :ivar diff: a unified diff of the definition in the reference and in one
        of these databases; empty if one of the two has no such table, for the
        variant of the reference itself, and after the first 16 variants of a
        table.
    """

    exists: bool
    count: int
    copies: tuple[Copies, ...]
    diff: str = ""


@dataclass(frozen=True, kw_only=True)
class TableDrift:
    """A table that is not the same in all databases.

    :ivar table: name of the table; None for the defaults of the database
        itself.
    :ivar suspect: whether most databases differ from the reference in the
        same way, so that the reference may be the wrong one.
    :ivar reference: the variant of the reference.
    :ivar others: the other variants, the most frequent first.
    """

    table: str | None
    suspect: bool
    reference: Variant
    others: tuple[Variant, ...]


@dataclass(frozen=True, kw_only=True)
class Orphan:
    """A database on a server where the topology does not place it.

    :ivar database: name of the database, which has the form of the names of
        virtual shards' databases.
    :ivar server: name of the server.
    :ivar role: ``"primary"`` or ``"standby"``.
    :ivar shard: the shard number in the name of the database.
    :ivar home: the server where the topology places that shard; None if the
        shard is not open.
    """

    database: str
    server: str
    role: Role
    shard: int
    home: str | None


@dataclass(frozen=True, kw_only=True)
class KeyspaceDrift:
    """The drift of one keyspace.

    :ivar keyspace: name of the keyspace.
    :ivar reference: the shard that the others were compared with; None if
        nothing could be read.
    :ivar server: the server on which the reference was read, or None.
    :ivar role: ``"primary"``, or ``"standby"`` if no primary responded.
    :ivar shards: number of selected virtual shards.
    :ivar databases: number of databases compared, on primaries and standbys.
    :ivar tables: number of tables of the reference.
    :ivar servers: number of primaries and standbys that were queried.
    :ivar drifted: the tables that are not the same in all databases.
    :ivar missing: databases that the topology names, but that do not exist on
        their server.
    :ivar orphaned: databases on a server where the topology does not place
        them.
    :ivar unreachable: servers that could not be read.
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
    unreachable: tuple[UnreachableServer, ...]

    @property
    def ok(self) -> bool:
        """Whether all servers were read, without a difference."""
        return not (self.drifted or self.missing or self.orphaned or self.unreachable)


@dataclass(frozen=True, kw_only=True)
class DriftReport:
    """The report of :func:`verify`; ``str()`` of it is a readable report.

    :ivar keyspaces: the drift of each keyspace.
    :ivar seconds: duration in seconds.
    """

    keyspaces: tuple[KeyspaceDrift, ...]
    seconds: float

    @property
    def unreachable(self) -> tuple[UnreachableServer, ...]:
        """Each server that could not be read, once."""
        return each_once(one for found in self.keyspaces for one in found.unreachable)

    @property
    def ok(self) -> bool:
        """Whether all servers were read, without a difference."""
        return all(found.ok for found in self.keyspaces)

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values.

        Each part is an object with its attributes; shards are numbers.
        """
        return {
            "ok": self.ok,
            "keyspaces": [
                {
                    **json_value(replace(one, unreachable=())),
                    "unreachable": unreachable_values(one.unreachable),
                }
                for one in self.keyspaces
            ],
            "unreachable": unreachable_values(self.unreachable),
            "seconds": self.seconds,
        }

    def __str__(self) -> str:
        return "\n".join(_report_lines(self))


def server_text(server: str, role: Role) -> str:
    """Return the name of a server, marked if it is the standby."""
    return server if role == "primary" else f"{server} (standby)"


def _report_lines(report: DriftReport) -> Iterator[str]:
    yield f"{_verdict(report)}; {report.seconds:.1f} s"
    for found in report.keyspaces:
        yield _headline(found)
        for table in found.drifted:
            yield from _of_table(table)
        if found.missing:
            yield "databases that are in the topology, but not on the server:"
            yield from (f"  {copies}" for copies in found.missing)
        if found.orphaned:
            yield "databases on a server that the topology places elsewhere:"
            yield from map(_of_orphan, found.orphaned)
    # List each server once, even if it serves several keyspaces.
    yield from map(str, report.unreachable)


def _verdict(report: DriftReport) -> str:
    if report.ok:
        return "no drift"
    spaces = report.keyspaces
    # What was not read may have drifted.
    count = len(report.unreachable)
    missed = f"{_many(count, 'server')} not compared" if count else ""
    if any(x.drifted or x.missing or x.orphaned for x in spaces):
        return f"drift; {missed}" if missed else "drift"
    return f"incomplete: {missed}"


def _headline(found: KeyspaceDrift) -> str:
    if found.reference is None:
        return f"keyspace {found.keyspace}: nothing could be read"
    line = (
        f"keyspace {found.keyspace}: {_many(found.shards, 'shard')}, "
        f"{_many(found.databases, 'database')} on "
        f"{_many(found.servers, 'server')}, {_many(found.tables, 'table')}"
    )
    if found.drifted:
        where = server_text(str(found.server), found.role)
        line += f"; compared with shard {found.reference} on {where}"
    return line


def _of_table(found: TableDrift) -> Iterator[str]:
    name = "defaults of the database"
    if found.table is not None:
        name = f"table {found.table}"
    state = "as" if found.reference.exists else "missing, as in"
    yield (f"{name}: {_many(found.reference.count, 'database')} {state} the reference")
    if found.suspect:
        yield "  most differ from it in the same way: is the reference wrong?"
    for variant in found.others:
        yield f"  {_many(variant.count, 'database')} {_state(found, variant)}"
        yield from (f"    {copies}" for copies in variant.copies)
        yield from (f"    {line}" for line in variant.diff.split("\n") if line)


def _state(found: TableDrift, variant: Variant) -> str:
    is_one = variant.count == 1
    if not variant.exists:
        return "does not have it" if is_one else "do not have it"
    what = "another definition" if found.reference.exists else "it"
    return f"{'has' if is_one else 'have'} {what}"


def _of_orphan(orphan: Orphan) -> str:
    place = "the shard is not open"
    if orphan.home is not None:
        place = f"shard {orphan.shard} is on {orphan.home}"
    server = server_text(orphan.server, orphan.role)
    return f"  {orphan.database} on {server}: {place}"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
