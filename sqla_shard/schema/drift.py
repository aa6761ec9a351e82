"""Comparison of the tables of all virtual shards.

Rows are never read.  The properties of tables that cannot be compared depend
on the backend and are listed in :doc:`/explanation/drift`.  It is not a
snapshot: during an upgrade it reports the shards that are already upgraded.

::

    report = verify(cluster)
    print(report)
    if not report.ok:
        sys.exit(1)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, field, replace
from difflib import unified_diff
from itertools import chain
from time import monotonic
from typing import Any, Literal, TypeAlias

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.dialects import Backend
from sqla_shard.dialects.base import DATABASE
from sqla_shard.engine import Engines
from sqla_shard.engine.unreachable import (
    Cause,
    cause_of,
    each_once,
    unreachable_values,
    UnreachableServer,
)
from sqla_shard.exc import (
    SchemaError,
    ServerUnreachableError,
    ShardError,
    UnknownServerError,
    UnknownShardError,
)
from sqla_shard.outbox.tables import OF_TRANSACTIONS
from sqla_shard.schema.selection import template_of
from sqla_shard.topology import Keyspace, Server, Topology
from sqla_shard.topology.keyspaces import as_ranges
from sqla_shard.topology.urls import Address, address_of
from sqla_shard.util.json_values import json_value

# -- The report of verify, as data and as text.

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


@dataclass(frozen=True, kw_only=True)
class _Instance:
    """A server of a keyspace: a primary or a standby.

    :ivar shards: the shards to read, ascending.
    """

    engines: Engines
    keyspace: Keyspace
    server: Server
    role: Role
    shards: Sequence[int]

    @property
    def url(self) -> str:
        """The URL in the topology."""
        if self.role == "standby" and self.server.standby is not None:
            return self.server.standby
        return self.server.primary

    def read(self) -> _ServerTables:
        """Return the tables, or the error of the server."""
        try:
            return self._read()
        except ShardError as error:
            if not isinstance(error, ServerUnreachableError):
                # Raise it: it is not an error of the server; the cluster is
                # closed, or a driver is not installed.
                raise
            return _ServerTables(instance=self, cause=cause_of(error))
        except (SQLAlchemyError, OSError) as error:
            return _ServerTables(instance=self, cause=Cause(_reason(error)))

    def _read(self) -> _ServerTables:
        lowest = self.shards[0] if self.shards else 0
        engine, _, backend = self._locate(self.keyspace.database_for(lowest))
        databases = backend.catalogue.databases(engine)
        by_engine: dict[Engine, dict[str, int]] = {}
        for shard in self.shards:
            name = self.keyspace.database_for(shard)
            # Connecting to a missing SQLite file would create it.
            if name in databases:
                engine, schema, _ = self._locate(name)
                by_engine.setdefault(engine, {})[schema] = shard
        tables = {}
        kind = None
        for engine, schemas in by_engine.items():
            with engine.connect() as connection:
                kind = backend.catalogue.kind(connection)
                found = backend.catalogue.digests(connection, schemas)
            for schema, digests in _without_own_tables(found).items():
                tables[schemas[schema]] = digests
        return _ServerTables(
            instance=self, databases=databases, tables=tables, kind=kind
        )

    def definition(self, shard_id: int, table: str) -> str:
        """Return the definition of a table, or the error of reading it."""
        database = self.keyspace.database_for(shard_id)
        try:
            engine, schema, backend = self._locate(database)
            with engine.connect() as connection:
                return backend.catalogue.definition(connection, schema, table)
        except (SQLAlchemyError, OSError) as error:
            return f"(could not be read: {_reason(error)})"

    def _locate(self, database: str) -> tuple[Engine, str, Backend]:
        return self.engines.locate(
            self.server, database, standby=self.role == "standby"
        )


def _without_own_tables(
    found: Mapping[str, Mapping[str, str]],
) -> dict[str, Mapping[str, str]]:
    """Remove tables of this package that a shard gets on their first use."""
    # Equal databases share one mapping; the result keeps it shared.
    known = {id(digests): digests for digests in found.values()}
    own = {table.name for table in OF_TRANSACTIONS}
    cut = {
        key: {name: d for name, d in digests.items() if name not in own}
        for key, digests in known.items()
    }
    return {schema: cut[id(digests)] for schema, digests in found.items()}


@dataclass(frozen=True, kw_only=True)
class _ServerTables:
    """The databases and tables of one server.

    :ivar databases: the names of all databases of the server.
    :ivar tables: the digests of the tables, by shard.
    :ivar kind: the kind of server; None if no database was read.
    :ivar cause: the reason why nothing could be read, or None.
    """

    instance: _Instance
    databases: AbstractSet[str] = frozenset()
    tables: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    kind: str | None = None
    cause: Cause | None = None

    def unreachable(self, kind: str | None) -> UnreachableServer | None:
        """Return the server if it cannot be compared with another kind."""
        cause = self.cause
        if cause is None and kind and self.kind and kind != self.kind:
            cause = Cause(
                f"it is a {self.kind} server, and the reference is on "
                f"{kind}, which writes the same tables differently; compare "
                "the servers of one kind at a time: sqla-shard schema verify "
                f"--servers {self.instance.server.name}"
            )
        if cause is None:
            return None
        keyspace = self.instance.keyspace.name
        return UnreachableServer(
            server=self.instance.server.name,
            cause=cause,
            addresses=tuple((keyspace, one) for one in self.instance.shards),
            role=self.instance.role,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Database:
    """The database of a virtual shard on one server.

    :ivar tables: the digests of its tables.
    :ivar kind: the kind of its server.
    """

    instance: _Instance
    shard: int
    tables: Mapping[str, str]
    kind: str | None

    def definition(self, table: str) -> str:
        """Return the definition of a table, or the error of reading it."""
        return self.instance.definition(self.shard, table)

    def __str__(self) -> str:
        server = self.instance.server.name
        return f"shard {self.shard} on {server_text(server, self.instance.role)}"


def _reason(error: Exception) -> str:
    """Return the error of a server without the statement that was sent."""
    if isinstance(error, DBAPIError) and not isinstance(error, ShardError):
        return f"{type(error.orig).__name__}: {error.orig}"
    return str(error)


#: Number of variants of a table that are shown with a diff.
_SHOWN = 16


def _drifted_tables(
    databases: Sequence[_Database], reference: _Database
) -> Iterator[TableDrift]:
    """Yield the tables that are not the same in all databases."""
    tables = {
        table
        for database in databases
        # Equal databases on a server share one mapping.
        if database.tables is not reference.tables
        and database.tables != reference.tables
        for table in database.tables.keys() | reference.tables.keys()
        if database.tables.get(table) != reference.tables.get(table)
    }
    for table in sorted(tables):
        yield _drift(table, databases, reference)


def _copies(found: Mapping[tuple[str, Role], list[int]]) -> tuple[Copies, ...]:
    """Return shards by server and role, in order."""
    return tuple(
        Copies(server=server, role=role, shards=tuple(sorted(shards)))
        for (server, role), shards in sorted(found.items())
    )


def _drift(
    table: str, databases: Sequence[_Database], reference: _Database
) -> TableDrift:
    groups: dict[str | None, list[_Database]] = {}
    for database in databases:
        groups.setdefault(database.tables.get(table), []).append(database)
    digest = reference.tables.get(table)
    same = groups.pop(digest)
    frequent = sorted(groups.items(), key=lambda group: -len(group[1]))
    text = reference.definition(table) if digest else ""
    others = [
        _variant(
            group,
            exists=other is not None,
            diff=_diff(table, group[0], reference, text)
            if digest and other and index < _SHOWN
            else "",
        )
        for index, (other, group) in enumerate(frequent)
    ]
    return TableDrift(
        table=None if table == DATABASE else table,
        suspect=others[0].count * 2 > len(databases),
        reference=_variant(same, exists=digest is not None),
        others=tuple(others),
    )


def _variant(group: list[_Database], *, exists: bool, diff: str = "") -> Variant:
    instances: dict[tuple[str, Role], list[int]] = {}
    for database in group:
        instance = database.instance
        server = instance.server.name, instance.role
        instances.setdefault(server, []).append(database.shard)
    return Variant(
        exists=exists, count=len(group), copies=_copies(instances), diff=diff
    )


def _diff(table: str, example: _Database, reference: _Database, text: str) -> str:
    """Return a unified diff of two definitions.

    :param text: the definition of the table in the reference.
    """
    lines = list(
        unified_diff(
            text.split("\n"),
            example.definition(table).split("\n"),
            str(reference),
            str(example),
            lineterm="",
            n=1,
        )
    )
    if not lines:
        return f"({example}: the definition was changed meanwhile)"
    return "\n".join(lines)


def verify(
    cluster: Cluster,
    *,
    keyspace: str | None = None,
    shards: Collection[int] | None = None,
    servers: Collection[str] | None = None,
    reference: int | None = None,
    standby: bool = True,
) -> DriftReport:
    """Compare the tables of every virtual shard with those of one shard.

    All servers are queried at the same time.  The report also lists missing
    databases, databases on a server where the topology does not place them,
    and servers that do not respond; the others are compared nevertheless.

    Nothing is written, and no row is read.

    :param cluster: the cluster; its topology locates the shards.
    :param keyspace: name of the only keyspace to verify; by default each is
        verified separately.
    :param shards: numbers of the only shards to verify; a keyspace without
        any of them is skipped.
    :param servers: names of the only servers to verify.
    :param reference: the shard to compare with, which need not be among
        ``shards``; by default the lowest one that can be read.
    :param standby: whether to compare standbys as well.
    :returns: the report; ``str()`` of it is a readable report.
    :raises UnknownKeyspaceError: if the topology has no such keyspace.
    :raises UnknownShardError: if no selected keyspace has such a shard.
    :raises UnknownServerError: if no selected keyspace has such a server.
    :raises SchemaError: if the reference cannot be read.
    """
    began = monotonic()
    topology, engines = cluster.places.topology, cluster.places.engines
    spaces = list(topology.keyspaces.values())
    if keyspace is not None:
        spaces = [topology.keyspace(keyspace)]
    _check(spaces, shards, servers, reference)
    instances = [
        _Instance(
            engines=engines, keyspace=space, server=server, role=role, shards=wanted
        )
        for space in spaces
        for server, wanted in _selected_instances(space, shards, servers, reference)
        for role in _roles(server, standby)
    ]
    groups: dict[str, list[_ServerTables]] = {}
    for reading in engines.in_parallel([one.read for one in instances], "verify"):
        name = reading.instance.keyspace.name
        groups.setdefault(name, []).append(reading)
    placed = _placed_databases(topology)
    return DriftReport(
        keyspaces=tuple(
            _compare(readings, shards, reference, placed)
            for readings in groups.values()
        ),
        seconds=monotonic() - began,
    )


def _check(
    spaces: Collection[Keyspace],
    shards: Collection[int] | None,
    servers: Collection[str] | None,
    reference: int | None,
) -> None:
    """Refuse shards and servers that no keyspace has."""
    largest = max(spaces, key=lambda space: space.shards)
    named = {*(shards or ()), *(() if reference is None else (reference,))}
    for shard in sorted(named):
        if shard not in largest.shard_ids:
            raise UnknownShardError(
                shard_id=shard, keyspace=largest.name, opened=largest.shards
            )
    known = {server.name for space in spaces for server in space.servers}
    for name in servers or ():
        if name not in known:
            raise UnknownServerError(server=name, known=tuple(sorted(known)))


def _selected_instances(
    keyspace: Keyspace,
    shards: Collection[int] | None,
    servers: Collection[str] | None,
    reference: int | None,
) -> Iterator[tuple[Server, list[int]]]:
    """Yield the servers to read, each with its shards to read."""
    wanted = None if shards is None else frozenset(shards)
    has_reference = reference is not None and reference in keyspace.shard_ids
    for server in keyspace.servers:
        shards_there: set[int] = set()
        is_selected = servers is None or server.name in servers
        if is_selected:
            shards_there = {shard for item in server.shards for shard in item}
            if wanted is not None:
                shards_there &= wanted
                # If no shards were selected, a server without shards is read
                # as well: it may have orphaned databases.
                is_selected = bool(shards_there)
        if has_reference and keyspace.server_for(reference or 0) == server:
            shards_there, is_selected = {*shards_there, reference or 0}, True
        if is_selected:
            yield server, sorted(shards_there)


def _roles(server: Server, standby: bool) -> Iterator[Role]:
    yield "primary"
    if standby and server.standby is not None:
        yield "standby"


def _compare(
    readings: list[_ServerTables],
    shards: Collection[int] | None,
    wanted: int | None,
    placed: dict[Address | None, set[str]],
) -> KeyspaceDrift:
    """Return the drift of one keyspace.

    :param shards: the selected shards; None for all.
    :param wanted: the shard to compare with, or None.
    """
    keyspace = readings[0].instance.keyspace
    databases = [
        _Database(
            instance=reading.instance, shard=shard, tables=tables, kind=reading.kind
        )
        for reading in readings
        for shard, tables in sorted(reading.tables.items())
    ]
    reference = _reference(keyspace, wanted, readings, databases)
    instance = reference and reference.instance
    kind = reference.kind if reference else None
    databases = [one for one in databases if one.kind == kind]
    return KeyspaceDrift(
        keyspace=keyspace.name,
        reference=reference.shard if reference else None,
        server=instance.server.name if instance else None,
        role=instance.role if instance else "primary",
        shards=len({n for reading in readings for n in reading.instance.shards}),
        databases=len(databases),
        tables=len(reference.tables.keys() - {DATABASE}) if reference else 0,
        servers=len(readings),
        drifted=tuple(_drifted_tables(databases, reference)) if reference else (),
        missing=_missing(readings),
        orphaned=tuple(
            chain.from_iterable(
                _orphans(reading, shards, placed) for reading in readings
            )
        ),
        unreachable=tuple(
            filter(None, (reading.unreachable(kind) for reading in readings))
        ),
    )


def _missing(readings: list[_ServerTables]) -> tuple[Copies, ...]:
    missing: dict[tuple[str, Role], list[int]] = {}
    for reading in readings:
        instance = reading.instance
        lacks = [n for n in instance.shards if n not in reading.tables]
        if lacks and reading.cause is None:
            missing[instance.server.name, instance.role] = lacks
    return _copies(missing)


def _reference(
    keyspace: Keyspace,
    wanted: int | None,
    readings: list[_ServerTables],
    databases: list[_Database],
) -> _Database | None:
    """Return the database to compare with; None if nothing was read.

    :raises SchemaError: if the wanted one was not read.
    """
    if wanted is None or wanted not in keyspace.shard_ids:
        return min(
            databases,
            key=lambda one: (one.instance.role != "primary", one.shard),
            default=None,
        )
    for database in databases:
        if database.shard == wanted and database.instance.role == "primary":
            return database
    server = keyspace.server_for(wanted).name
    errors = [
        reading.cause and reading.cause.reason
        for reading in readings
        if reading.instance.server.name == server and reading.instance.role == "primary"
    ]
    raise SchemaError(
        f"shard {wanted} of {keyspace.name} on {server} cannot be the reference: "
        f"{errors[0] or 'database not found'}. Choose another, or leave it out to "
        "compare with the lowest shard that can be read"
    )


def _placed_databases(topology: Topology) -> dict[Address | None, set[str]]:
    """Return the names of the databases of each server, in lower case.

    The keys are addresses, since the standby of one keyspace can be the
    primary of another.
    """
    placed: dict[Address | None, set[str]] = {}
    for space in topology.keyspaces.values():
        for server in space.servers:
            names = {
                space.database_for(shard).lower()
                for item in server.shards
                for shard in item
            }
            for url in (server.primary, server.standby):
                if url is not None:
                    placed.setdefault(address_of(url), set()).update(names)
    return placed


def _orphans(
    reading: _ServerTables,
    shards: Collection[int] | None,
    placed: dict[Address | None, set[str]],
) -> Iterator[Orphan]:
    """Yield databases on a server where the topology does not place them."""
    instance = reading.instance
    space = instance.keyspace
    template = template_of(space)
    here = placed[address_of(instance.url)]
    for name in sorted(reading.databases):
        shard = template.shard_of(name)
        if shard is None or name.lower() in here:
            continue
        if shards is not None and shard not in shards:
            continue
        is_open = shard in space.shard_ids
        yield Orphan(
            database=name,
            server=instance.server.name,
            role=instance.role,
            shard=shard,
            home=space.server_for(shard).name if is_open else None,
        )
