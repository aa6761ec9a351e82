"""Proof that the rows of an orphan are on the server of its shard.

There are two.  The journal has a split which brought the database there: what
moved was compared at the cutover, the copies of what stayed came from there,
and the server has applied all writes up to the cutover.  Otherwise the rows
are compared now, and the orphan must have none that its home lacks or has
differently.  In both cases its home has rows in every table in which the
orphan has some: a database that was created anew is no home.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqla_shard.exc import Problem
from sqla_shard.exc.base import shortened_list
from sqla_shard.fleet.admin import Admin, marked
from sqla_shard.fleet.common_point import Opener
from sqla_shard.fleet.compare import compare_servers, CompareOptions
from sqla_shard.fleet.differences import DataReport
from sqla_shard.fleet.fleet import Pair
from sqla_shard.fleet.journal import Journal, Record
from sqla_shard.fleet.moves import ShardMove
from sqla_shard.fleet.replication import replication_of
from sqla_shard.topology import Topology
from sqla_shard.topology.urls import address_of

#: Operations of the journal that are looked at.
_MOST = 1000
_SHOWN = 5


def proven_by_journal(
    journal: Journal, topology: Topology, pair: Pair, home: Admin
) -> set[str]:
    """Return the databases whose rows came to, or from, their home by a split.

    :param pair: the pair that has the orphans.
    :param home: session on the server of their shards.
    """
    found: set[str] = set()
    for record in journal.history(_MOST):
        if record.state != "finished":
            continue
        arguments = record.plan.get("arguments", {})
        if record.plan.get("kind") == "split":
            found |= _moved(record, topology, pair, home)
        elif (
            record.plan.get("kind") == "orphans"
            and arguments.get("action") == "rename"
            and arguments.get("server") == pair.name
            and "accept_differences" in arguments
        ):
            # Their rows were proven then, and cannot have been written since.
            found.update(arguments["databases"])
    return found


def _moved(record: Record, topology: Topology, pair: Pair, home: Admin) -> set[str]:
    """Return the databases of a split that are orphans of a pair."""
    arguments: dict[str, Any] = record.plan["arguments"]
    move = ShardMove.from_arguments(arguments["move"])
    position = record.notes.get("drain", {}).get("position")
    if position is None or not any(
        replication_of(home).covers(has, position)
        for has in (replication_of(home).position(), replication_of(home).applied())
    ):
        return set()
    here = set(map(address_of, pair.urls.values()))
    found: set[str] = set()
    if address_of(move.target_primary) in here:
        found.update(move.staying_databases(topology))
    is_compared = arguments.get("compare_limit") is not None and not record.notes.get(
        "verify", {}
    ).get("problem")
    if address_of(move.source_primary) in here and is_compared:
        found.update(move.databases(topology))
    return found


def without_rows(
    here: Admin, there: Admin, names: tuple[str, str], tables: Iterable[str]
) -> list[str]:
    """Return the tables that have rows in an orphan only.

    :param names: name of the database on each server.
    """
    return [
        table
        for table in tables
        if _has_rows(here, names[0], table) and not _has_rows(there, names[1], table)
    ]


def _has_rows(admin: Admin, database: str, table: str) -> bool:
    # Names of a server, quoted.
    sql = f"SELECT 1 FROM {marked(database)}.{marked(table)} LIMIT 1"  # noqa: S608
    return bool(admin.rows(sql))


def unequal(here: Opener, there: Opener, databases: Sequence[str]) -> Iterator[Problem]:
    """Compare orphans with their home; yield those that have other rows.

    :raises FleetServerError: if a server cannot be read.
    """
    for name in databases:
        report = compare_servers(
            here,
            there,
            [name],
            replicates=False,
            options=CompareOptions(counters=False, most=_SHOWN),
        )
        fault = _fault(report)
        if fault:
            yield Problem(
                name,
                f"may have the only copy of some rows: {fault}, and no split "
                "in the journal has compared them; look at them with: "
                "sqla-shard fleet verify. If its home has changed them since, "
                "add --accept-differences",
            )


def _fault(report: DataReport) -> str:
    lost = [one for one in report.differences if one.kind != "extra_row"]
    found = [*map(str, lost), *map(str, report.unread)]
    if found or report.found > len(report.differences):
        return f"{report.found:,} differ ({shortened_list(found, _SHOWN)})"
    return ""
