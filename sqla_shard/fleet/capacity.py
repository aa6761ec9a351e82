"""Sizes, growth and activity of a fleet, and how to divide it evenly.

Bytes and rows are estimates of the servers, and rows may be wrong by half;
an exact count would read every row.  Rows are counted only where ``userstat``
or the Performance Schema is on, and statements only where the latter is; both
are off by default on MariaDB.  Otherwise activity is unknown.

::

    report = measure(fleet)
    print(report)
    for line in suggest(report, "objects", servers=8):
        print(line)
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import datetime, UTC
from time import sleep
from typing import Any, NamedTuple

from sqla_shard.engine.unreachable import unreachable_values, UnreachableServer
from sqla_shard.exc import FleetServerError, FleetSetupError
from sqla_shard.fleet.admin import Admin
from sqla_shard.fleet.content_checks import fill_of
from sqla_shard.fleet.fact_reader import read_facts
from sqla_shard.fleet.facts import FleetFacts, NotReadError, PairFacts
from sqla_shard.fleet.fleet import all_pairs, Fleet, Pair, pair_named
from sqla_shard.fleet.replication import replication_of
from sqla_shard.fleet.server_states import outage
from sqla_shard.topology import ShardRange
from sqla_shard.topology.keyspaces import joined

_VERSION = 1
_DAY = 86_400
_UNKNOWN_ROWS = (
    "activity is not counted on {servers}; switch it on with SET GLOBAL "
    "userstat = 1 on MariaDB, or performance_schema = ON in the configuration"
)
_UNKNOWN_STATEMENTS = (
    "statements are not counted on {servers}; they are with "
    "performance_schema = ON in the configuration"
)


class _Counts(NamedTuple):
    """Rows read and written, and statements, by database; None if unknown."""

    rows: Mapping[str, tuple[float, float]] | None
    statements: Mapping[str, float] | None


@dataclass(frozen=True, kw_only=True)
class ShardSize:
    """Space and load of a virtual shard.

    :ivar keyspace: name of its keyspace.
    :ivar shard: its number.
    :ivar server: name of its server.
    :ivar bytes: of rows and indexes.
    :ivar rows: number of rows.
    :ivar fill: used part of the ids of its fullest table; 0 without one.
    :ivar read: rows read per second; None if unknown.
    :ivar written: rows written per second; None if unknown.
    :ivar statements: statements per second; None if unknown.
    :ivar growth: bytes per day; None if unknown.
    """

    keyspace: str
    shard: int
    server: str
    bytes: int
    rows: int
    fill: float
    read: float | None = None
    written: float | None = None
    statements: float | None = None
    growth: float | None = None

    @property
    def activity(self) -> float:
        """Rows read and written per second; -1 if unknown."""
        if self.read is None or self.written is None:
            return -1.0
        return self.read + self.written


@dataclass(frozen=True, kw_only=True)
class ServerSize:
    """Space and load of all shards of a server; see :class:`ShardSize`."""

    name: str
    shards: int
    bytes: int
    rows: int
    growth: float | None = None


@dataclass(frozen=True, kw_only=True)
class CapacityReport:
    """Sizes of a fleet at one time.

    :ivar epoch: epoch of the topology.
    :ivar taken: seconds since 1970.
    :ivar shards: the shards that could be read.
    :ivar unreachable: servers that could not be read.
    :ivar notes: unknown figures, and the reasons.
    :ivar top: number of shards that a list shows.
    """

    epoch: int
    taken: float
    shards: tuple[ShardSize, ...]
    unreachable: tuple[UnreachableServer, ...]
    notes: tuple[str, ...] = ()
    top: int = 10

    def servers(self) -> list[ServerSize]:
        """Return the sizes of the servers, in the order of the topology."""
        return [
            _sum(name, [one for one in self.shards if one.server == name])
            for name in dict.fromkeys(one.server for one in self.shards)
        ]

    def keyspaces(self) -> list[ServerSize]:
        """Return the sizes of the keyspaces."""
        return [
            _sum(name, [one for one in self.shards if one.keyspace == name])
            for name in dict.fromkeys(one.keyspace for one in self.shards)
        ]

    def hottest(self) -> list[ShardSize]:
        """Return the shards with the most rows, if they are known."""
        known = [one for one in self.shards if one.activity > 0]
        return heapq.nlargest(self.top, known, key=lambda one: one.activity)

    def busiest(self) -> list[ShardSize]:
        """Return the shards with the most statements, if they are known."""
        return heapq.nlargest(
            self.top,
            (one for one in self.shards if one.statements),
            key=lambda one: one.statements or 0.0,
        )

    def largest(self) -> list[ShardSize]:
        """Return the largest shards."""
        return heapq.nlargest(self.top, self.shards, key=lambda one: one.bytes)

    def fullest(self) -> list[ShardSize]:
        """Return the shards that have used the most of their ids."""
        used = [one for one in self.shards if one.fill]
        return heapq.nlargest(self.top, used, key=lambda one: one.fill)

    def since(self, document: Any) -> CapacityReport:
        """Return this report with the growth since an earlier one.

        :param document: the earlier report, as JSON values.
        :raises FleetSetupError: if it is not a report, or not an earlier one.
        """
        try:
            if document["capacity"] != _VERSION:
                raise KeyError("capacity")
            taken = float(document["taken"])
            before = {
                (one["keyspace"], one["shard"]): int(one["bytes"])
                for one in document["shards"]
            }
        except (KeyError, TypeError, ValueError) as error:
            raise FleetSetupError(
                "the earlier report is not one of this version; make one "
                "with: sqla-shard fleet capacity --json > capacity.json"
            ) from error
        days = (self.taken - taken) / _DAY
        if days <= 0:
            raise FleetSetupError(
                f"the earlier report was taken at {_when(taken)}, which is "
                "not before this one; compare with an earlier file"
            )
        return replace(
            self,
            shards=tuple(
                replace(
                    one, growth=(one.bytes - before[one.keyspace, one.shard]) / days
                )
                if (one.keyspace, one.shard) in before
                else one
                for one in self.shards
            ),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the report in JSON values; :meth:`since` reads them."""
        return {
            "capacity": _VERSION,
            "epoch": self.epoch,
            "taken": self.taken,
            "keyspaces": [asdict(one) for one in self.keyspaces()],
            "servers": [asdict(one) for one in self.servers()],
            "shards": [asdict(one) for one in self.shards],
            "unreachable": unreachable_values(self.unreachable),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        lines = [f"epoch {self.epoch}, {_when(self.taken)}, estimates"]
        for title, sizes in (
            ("keyspace", self.keyspaces()),
            ("server", self.servers()),
        ):
            lines += [
                f"{title} {one.name}: {one.shards:,} shards, "
                f"{_size(one.bytes)}, {one.rows:,} rows{_growth(one.growth)}"
                for one in sizes
            ]
        lines += [
            f"large: {one.keyspace} {one.shard} on {one.server}: "
            f"{_size(one.bytes)}, {one.rows:,} rows{_growth(one.growth)}"
            for one in self.largest()
        ]
        lines += [
            f"busy: {one.keyspace} {one.shard} on {one.server}: "
            f"{one.statements:,.1f} statements/s"
            for one in self.busiest()
        ]
        lines += [
            f"hot: {one.keyspace} {one.shard} on {one.server}: "
            f"{one.read:,.0f} rows/s read, {one.written:,.0f} rows/s written"
            for one in self.hottest()
        ]
        lines += [
            f"ids: {one.keyspace} {one.shard} on {one.server}: "
            f"{100 * one.fill:.3g} % used"
            for one in self.fullest()[:1]
        ]
        lines += [f"unknown: {note}" for note in self.notes]
        lines += map(str, self.unreachable)
        return "\n".join(lines)


def measure(
    fleet: Fleet, *, window: float = 5.0, top: int = 10, timeout: float = 60.0
) -> CapacityReport:
    """Return the sizes of all shards, and their activity for some seconds.

    :param fleet: the fleet; its primaries are read.
    :param window: seconds between two samples of the counters; 0 for none.
        Totals mislead: they count from a restart of the server.
    :param top: number of shards in each list.
    :param timeout: seconds after which a server is not read.
    :raises TopologyError: if the topology is not valid.
    :raises TopologyUnavailableError: if it cannot be read.
    """
    facts = read_facts(fleet, environ={}, timeout=timeout, compare=False)
    shards: list[ShardSize] = []
    unreachable: list[UnreachableServer] = []
    for pair in facts.pairs:
        try:
            shards += _shards(pair, facts)
        except NotReadError as error:
            unreachable.append(
                outage(
                    pair_named(facts.topology, pair.name),
                    "primary",
                    why=error.reason,
                    number=error.number,
                )
            )
    notes: list[str] = []
    if window:
        rates, notes = _rates(fleet, {one.server for one in unreachable}, window)
        shards = [_with_rate(one, facts, rates) for one in shards]
    return CapacityReport(
        epoch=facts.topology.epoch,
        taken=time.time(),
        shards=tuple(shards),
        unreachable=tuple(unreachable),
        notes=tuple(notes),
        top=top,
    )


def suggest(report: CapacityReport, keyspace: str, *, servers: int) -> list[str]:
    """Return commands that divide a keyspace evenly among more servers.

    A new server gets shards of one server, since it starts as a copy of that;
    each part is one run of shards with about the same number of bytes.

    :param report: sizes of all shards of the keyspace.
    :param keyspace: name of the keyspace.
    :param servers: number of servers afterwards.
    :returns: a ``sqla-shard fleet split`` command for each new server, with
        its size; the names and addresses of new servers are to be filled in.
    :raises FleetSetupError: if servers were not read, if there would be fewer
        servers than now, or more than shards.
    """
    of_server: dict[str, list[ShardSize]] = {}
    for shard in report.shards:
        if shard.keyspace == keyspace:
            of_server.setdefault(shard.server, []).append(shard)
    count = sum(map(len, of_server.values()))
    if report.unreachable:
        names = ", ".join(one.server for one in report.unreachable)
        raise FleetSetupError(
            f"{names} could not be read, so the shards "
            "cannot be divided evenly; repeat it when all servers respond"
        )
    if not len(of_server) <= servers <= count:
        raise FleetSetupError(
            f"keyspace {keyspace!r} has {len(of_server)} servers and {count} "
            f"shards; it can be divided among {len(of_server)} to {count} "
            f"servers, not {servers}"
        )
    parts = _parts_of(of_server, servers)
    lines = []
    number = len(of_server)
    for name, shards in of_server.items():
        for part in _divide(shards, parts[name])[1:]:
            number += 1
            ranges = joined(ShardRange(s.shard, s.shard) for s in part)
            options = " ".join(
                f"--shards {keyspace}:{one.first}-{one.last}" for one in ranges
            )
            size = _size(sum(one.bytes for one in part))
            lines.append(
                f"sqla-shard fleet split {name} {options} --to NEW{number} "
                f"--primary HOST:PORT --standby HOST:PORT  # {size}"
            )
    return lines


def _parts_of(
    of_server: Mapping[str, Sequence[ShardSize]], servers: int
) -> dict[str, int]:
    """Return into how many parts each server is divided.

    Each new server goes to the one with the largest parts.
    """
    parts = dict.fromkeys(of_server, 1)
    weights = {name: _weight(one) for name, one in of_server.items()}
    for _ in range(servers - len(of_server)):
        divisible = [n for n in parts if parts[n] < len(of_server[n])]
        largest = max(divisible, key=lambda name: weights[name] / parts[name])
        parts[largest] += 1
    return parts


def _divide(shards: Sequence[ShardSize], parts: int) -> list[list[ShardSize]]:
    """Divide shards into runs of about the same weight; none is empty."""
    ordered = sorted(shards, key=lambda one: one.shard)
    found = []
    for left in range(parts, 1, -1):
        target = _weight(ordered) / left
        most = len(ordered) - (left - 1)
        size, weight = 1, _weight(ordered[:1])
        while size < most:
            following = _weight(ordered[size : size + 1])
            # Stop where the next shard would take it further off.
            if weight + following / 2 > target:
                break
            weight += following
            size += 1
        found.append(ordered[:size])
        ordered = ordered[size:]
    return [*found, ordered]


def _weight(shards: Sequence[ShardSize]) -> int:
    # One byte more, so that empty shards are divided by their number.
    return sum(one.bytes + 1 for one in shards)


def _shards(pair: PairFacts, facts: FleetFacts) -> list[ShardSize]:
    found: dict[str, list[Any]] = {one: [] for one in pair.databases}
    for table in pair.primary.tables:
        if table.database in found:
            found[table.database].append(table)
    sizes = []
    for database, tables in found.items():
        place = facts.shard_of(database)
        if place is None:
            continue
        keyspace, shard_id = place
        sizes.append(
            ShardSize(
                keyspace=keyspace.name,
                shard=shard_id,
                server=pair.name,
                bytes=sum(one.bytes for one in tables),
                rows=sum(one.rows for one in tables),
                fill=max(
                    (fill_of(one, facts) for one in tables if one.next_id is not None),
                    default=0.0,
                ),
            )
        )
    return sorted(sizes, key=lambda one: (one.keyspace, one.shard))


def _with_rate(
    shard: ShardSize, facts: FleetFacts, rates: Mapping[str, _Counts]
) -> ShardSize:
    if shard.server not in rates:
        return shard
    found = rates[shard.server]
    keyspace = facts.topology.keyspace(shard.keyspace)
    database = keyspace.database_for(shard.shard)
    # A database that the server has not counted was not used.
    if found.rows is not None:
        read, written = found.rows.get(database, (0.0, 0.0))
        shard = replace(shard, read=read, written=written)
    if found.statements is not None:
        shard = replace(shard, statements=found.statements.get(database, 0.0))
    return shard


def _rates(
    fleet: Fleet, skipped: set[str], window: float
) -> tuple[dict[str, _Counts], list[str]]:
    """Return counts per second by server, and unknown servers.

    :param skipped: names of servers that are left out.
    """
    pairs = [pair for pair in all_pairs(fleet.topology()) if pair.name not in skipped]
    found: dict[str, _Counts] = {}
    notes: list[str] = []
    with ThreadPoolExecutor(max(1, len(pairs))) as pool:
        futures = {pair.name: pool.submit(_rate, fleet, pair, window) for pair in pairs}
    for name, future in futures.items():
        try:
            found[name] = future.result()
        except FleetServerError as error:
            notes.append(f"activity of {name}: {error.reason}")
            continue
        lost = (found[name].statements or {}).get("", 0.0)
        if lost:
            notes.append(
                f"{lost:,.1f} statements/s of {name} are of unknown shards; "
                "raise performance_schema_digests_size in the configuration"
            )
    for text, silent in (
        (_UNKNOWN_ROWS, [n for n in found if found[n].rows is None]),
        (_UNKNOWN_STATEMENTS, [n for n in found if found[n].statements is None]),
    ):
        if silent:
            notes.append(text.format(servers=", ".join(silent)))
    return found, notes


def _rate(fleet: Fleet, pair: Pair, window: float) -> _Counts:
    """Return the counts per second of one server."""
    with fleet.admin(pair.primary, name=pair.name) as admin:
        before, begin = _counts(admin), time.monotonic()
        if before == _Counts(None, None):
            return before
        sleep(window)
        after = _counts(admin)
        seconds = time.monotonic() - begin
    rows = statements = None
    if before.rows is not None and after.rows is not None:
        earlier = before.rows
        rows = {
            database: (
                max(0, read - earlier.get(database, (0, 0))[0]) / seconds,
                max(0, written - earlier.get(database, (0, 0))[1]) / seconds,
            )
            for database, (read, written) in after.rows.items()
        }
    if before.statements is not None and after.statements is not None:
        first = before.statements
        statements = {
            database: max(0, count - first.get(database, 0)) / seconds
            for database, count in after.statements.items()
        }
    return _Counts(rows, statements)


def _counts(admin: Admin) -> _Counts:
    replication = replication_of(admin)
    return _Counts(replication.activity(), replication.statements())


def _sum(name: str, shards: Sequence[ShardSize]) -> ServerSize:
    known = [one.growth for one in shards if one.growth is not None]
    return ServerSize(
        name=name,
        shards=len(shards),
        bytes=sum(one.bytes for one in shards),
        rows=sum(one.rows for one in shards),
        growth=sum(known) if len(known) == len(shards) else None,
    )


def _size(count: float) -> str:
    return f"{count / 2**20:,.1f} MiB"


def _growth(growth: float | None) -> str:
    return "" if growth is None else f", {growth / 2**20:+,.1f} MiB a day"


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
