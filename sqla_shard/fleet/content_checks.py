"""Checks of the doctor: shards, definitions, ids and disks."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from sqla_shard.fleet.facts import FleetFacts, PairFacts, ServerFacts, Volume
from sqla_shard.fleet.fences import usable
from sqla_shard.fleet.findings import (
    critical,
    Findings,
    fleet_check,
    info,
    pair_check,
    server_check,
    standby_check,
    unknown,
    warning,
)
from sqla_shard.fleet.replication import TableCounter

WARNING_FILL = 0.7
"""Used part of the ids of a table, or of a disk, from which to warn."""

CRITICAL_FILL = 0.9
"""The same, from which it is critical."""

_MAX_SHOWN = 5
_BITS = (
    ("tinyint", 8),
    ("smallint", 16),
    ("mediumint", 24),
    ("int", 32),
    ("bigint", 64),
)


@pair_check
def missing_databases(pair: PairFacts, fleet: FleetFacts) -> Findings:
    """Shards that no server has, or only the wrong ones."""
    missing = pair.databases - pair.primary.databases
    if missing:
        elsewhere = [
            f"{database} is on {server}"
            for server in fleet.servers
            if server not in pair.servers and server.has("databases")
            for database in sorted(missing & server.databases)
        ]
        found = f"; {', '.join(elsewhere[:_MAX_SHOWN])}" if elsewhere else ""
        yield critical(
            pair.primary,
            f"lacks {len(missing)} databases of the topology "
            f"({_listed(missing)}){found}",
            "sqla-shard fleet history; restore them, or if they are new: "
            "sqla-shard schema provision",
        )
    standby = pair.standby
    if standby is not None:
        lost = (pair.databases & pair.primary.databases) - standby.databases
        if lost:
            yield critical(
                standby,
                f"lacks {len(lost)} databases that its primary has ({_listed(lost)})",
                pair.rebuild(),
            )


@pair_check
def orphans(pair: PairFacts, fleet: FleetFacts) -> Findings:
    """Databases of shards that another server has, or none should have."""
    for server in pair.servers:
        surplus = _surplus(server, pair, fleet)
        # A standby repeats its primary.
        if server is not pair.primary and pair.primary.has("databases"):
            surplus -= pair.primary.databases
        if surplus:
            places = _places(surplus, fleet)
            yield warning(
                server,
                f"has {len(surplus)} databases that the topology does not "
                f"have there ({_listed(surplus)}){places}",
                f"sqla-shard fleet orphans list {pair.name}",
            )
    for server in pair.servers:
        rows = [r for r in server.grants if r.account[0] in fleet.application]
        found = usable(rows, _surplus(server, pair, fleet))
        if found:
            yield warning(
                server,
                f"does not fence {len(found)} databases that the topology "
                f"does not have there ({_listed(found)}): a late process can "
                "write to them, and the writes are lost",
                f"sqla-shard fleet orphans fence {pair.name}",
            )


def _surplus(server: ServerFacts, pair: PairFacts, fleet: FleetFacts) -> set[str]:
    """Return the databases of shards that a pair should not have."""
    return {
        database
        for database in server.databases - pair.databases
        if fleet.shard_of(database) is not None
    }


@standby_check
def differing_definitions(
    standby: ServerFacts, pair: PairFacts, _: FleetFacts
) -> Findings:
    """Tables that are not the same on both servers."""
    if not pair.differing:
        return
    names = [f"{database}.{table or '*'}" for database, table in pair.differing]
    what = f"has {len(names)} tables of another definition than its primary"
    if pair.primary.version != standby.version:
        yield info(
            standby,
            f"{what} ({_listed(names)}), perhaps since the versions differ",
            "sqla-shard schema verify",
        )
    else:
        yield critical(
            standby,
            f"{what} ({_listed(names)})",
            f"compare SHOW CREATE TABLE; {pair.rebuild()}",
        )


@pair_check
def ids(pair: PairFacts, fleet: FleetFacts) -> Findings:
    """Tables whose ids come to an end, and the one nearest to it."""
    filled = sorted(
        (
            (fill_of(table, fleet), table)
            for table in pair.primary.counters
            if table.database in pair.databases
        ),
        key=lambda one: -one[0],
    )
    if not filled:
        return
    for fill, table in filled[:_MAX_SHOWN]:
        what = (
            f"{table.database}.{table.table} has used {100 * fill:.3g} % of "
            f"its ids (next {table.next_id:,}, {table.id_type})"
        )
        if fill >= CRITICAL_FILL:
            yield critical(pair.primary, what, _ids_remedy(table))
        elif fill >= WARNING_FILL:
            yield warning(pair.primary, what, _ids_remedy(table))
        elif table is filled[0][1]:
            yield info(pair.primary, f"{what}, more than any other table")


@pair_check
def table_cache(pair: PairFacts, _: FleetFacts) -> Findings:
    """Servers that open a table again for each statement about all tables."""
    count = pair.primary.table_count
    for server, name in product(
        pair.servers, ("table_definition_cache", "table_open_cache")
    ):
        kept = int(server.variables.get(name, count))
        if kept < count:
            yield info(
                server,
                f"has {count:,} tables and {name} = {kept}: commands "
                "that read all tables, such as fleet doctor and fleet capacity, take "
                "several times as long",
                f"on {server.address}: SET GLOBAL {name} = {2 * count}, and in its "
                "configuration",
            )


def fill_of(table: TableCounter, fleet: FleetFacts) -> float:
    """Return the used part of the ids of a table, from 0 to 1.

    :param table: with a column of AUTO_INCREMENT.
    :param fleet: its topology says whether the ids are local ids, and how
        many bits these have.
    """
    most = 2**64
    for name, bits in _BITS:
        if table.id_type.startswith(name):
            most = 2 ** (bits if "unsigned" in table.id_type else bits - 1)
    found = fleet.shard_of(table.database)
    if found is not None and found[0].kind == "objects":
        most = min(most, found[0].id_layout.max_local_id + 1)
    # The next id is not used yet.
    return ((table.next_id or 1) - 1) / (most - 1)


def _ids_remedy(table: TableCounter) -> str:
    return (
        f"if {table.id_type} is the limit, widen the column with a revision; if the "
        "bits of a local id are: open more shards, and create new objects there"
    )


@server_check
def full_disk(server: ServerFacts, _: FleetFacts) -> Findings:
    """A disk without space for binary logs, relay logs or tables."""
    if server.waits_for_space:
        yield critical(
            server,
            "waits for space on a disk: writes hang, or replication does",
            "free some space there (its error log names the file, and SHOW "
            "PROCESSLIST what waits); it goes on within 60 s",
        )


@server_check
def disk(server: ServerFacts, _: FleetFacts) -> Findings:
    """A disk that will be full."""
    volume = _data_volume(server)
    if volume is None:
        return
    fill = 1 - volume.available / volume.total if volume.total else 0.0
    what = (
        f"has {volume.available / 2**30:,.1f} GiB free of "
        f"{volume.total / 2**30:,.1f} GiB for its data"
    )
    remedy = "move shards away: sqla-shard fleet capacity --servers N"
    if fill >= CRITICAL_FILL:
        yield critical(server, what, remedy)
    elif fill >= WARNING_FILL:
        yield warning(server, what, remedy)


@fleet_check
def silent_disks(fleet: FleetFacts) -> Findings:
    """Servers that do not show their disks."""
    found = [
        server
        for server in fleet.servers
        if server.has("volumes")
        and server.has("variables")
        and _data_volume(server) is None
    ]
    if found:
        silent = [server.address for server in found]
        plugin = (
            "INSTALL SONAME 'disks', and GRANT FILE ON *.* TO the operator; or "
            if any(server.version.is_mariadb for server in found)
            else "MySQL has no statement for it: "
        )
        yield unknown(
            "fleet",
            f"{len(silent)} servers do not show how full the disks of their "
            f"data are ({_listed(silent)})",
            f"{plugin}watch the disks otherwise, and run fleet doctor "
            "--ignore silent-disks",
        )


def _data_volume(server: ServerFacts) -> Volume | None:
    """Return the file system of the data; None if the server hides it."""
    directory = server.variables.get("datadir", "/")
    return max(
        (one for one in server.volumes or () if directory.startswith(one.path)),
        key=lambda one: len(one.path),
        default=None,
    )


def _places(databases: Iterable[str], fleet: FleetFacts) -> str:
    """Return where the topology has the first of some databases."""
    for database in sorted(databases):
        found = fleet.shard_of(database)
        if found is None:
            continue
        keyspace, shard_id = found
        if shard_id < keyspace.shards:
            return f": {database} is on {keyspace.server_for(shard_id).name}"
        return f": {keyspace.name} has {keyspace.shards} shards only"
    return ""


def _listed(names: Iterable[str]) -> str:
    every = sorted(names)
    more = f" and {len(every) - _MAX_SHOWN} more" if len(every) > _MAX_SHOWN else ""
    return ", ".join(every[:_MAX_SHOWN]) + more
