"""Orphans: databases on a server that the topology has on another.

A split leaves them on both sides.  They are removed in two steps, with days
between them: they are renamed, which shows whether anything still needs them
and can be undone at once, and dropped after a grace period.  ``db00012``
becomes ``moved_db00012_20261123190501``: the number is the time of the
operation that renamed it, in UTC.  Statements are in the binary log, so the
standby does the same.  Limits:

- A database is renamed only if it is fenced on the primary and the standby,
  as a split leaves it, and it is proven that the server which the topology
  names for it has its rows.
- The fence stays: otherwise an application with a late topology could create
  the database again.
- ``fence`` fences them anew, such as after their grants were restored from a
  backup, and ends the sessions that use them.
- A server that has left the topology is not looked at.

There are two proofs that the rows of an orphan are on the server of its shard.
The journal has a split which brought the database there: what
moved was compared at the cutover, the copies of what stayed came from there,
and the server has applied all writes up to the cutover.  Otherwise the rows
are compared now, and the orphan must have none that its home lacks or has
differently.  In both cases its home has rows in every table in which the
orphan has some: a database that was created anew is no home.
"""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from sqla_shard.dialects.base import DATABASE
from sqla_shard.exc import FleetServerError, Problem
from sqla_shard.exc.base import shortened_list
from sqla_shard.fleet.admin import Admin, marked
from sqla_shard.fleet.clients import ended_note
from sqla_shard.fleet.common_point import Opener
from sqla_shard.fleet.compare import compare_servers, CompareOptions
from sqla_shard.fleet.differences import DataReport
from sqla_shard.fleet.fences import Fence
from sqla_shard.fleet.fleet import (
    all_pairs,
    bare_url,
    Fleet,
    Pair,
    pair_named,
    shard_of,
)
from sqla_shard.fleet.journal import FleetJournal, Record
from sqla_shard.fleet.moves import ShardMove
from sqla_shard.fleet.operation import FleetOperation, FleetPlan, Step
from sqla_shard.fleet.replication import replication_of
from sqla_shard.topology import Topology
from sqla_shard.topology.urls import address_of
from sqla_shard.util.json_values import JsonObject
from sqla_shard.util.pace import Interval

Action = Literal["fence", "rename", "restore", "drop"]

GRACE = 7 * 86400.0
"""Seconds between renaming and dropping, by default."""

_FORMAT = "%Y%m%d%H%M%S"
_RENAMED = re.compile(r"moved_(?P<original>.+)_(?P<at>\d{14})")
_MAX_NAME_CHARS = 64


@dataclass(frozen=True, kw_only=True)
class OrphanDatabase(JsonObject):
    """A database on a server that does not have its shard.

    :ivar server: name of the server that it is on.
    :ivar database: its name.
    :ivar original: the name of the shard's database.
    :ivar home: name of the server that has the shard; None if the shard is
        not open.
    :ivar renamed: seconds since the epoch at which it was renamed; None if it
        was not.
    """

    server: str
    database: str
    original: str
    home: str | None
    renamed: float | None

    def __str__(self) -> str:
        where = f"the topology has it on {self.home}"
        if self.home is None:
            where = "its shard is not open"
        when = ""
        if self.renamed is not None:
            days = (time.time() - self.renamed) / 86400
            when = f", renamed {days:.1f} days ago"
        return f"{self.server}: {self.database} ({where}{when})"


def orphans_of(fleet: Fleet, server: str | None = None) -> list[OrphanDatabase]:
    """Return the orphans on the primaries of a fleet.

    :param server: name of a server; None for all.
    :raises FleetServerError: if a server does not answer.
    :raises UnknownServerError: if the topology has no such server.
    """
    topology = fleet.topology()
    pairs = all_pairs(topology)
    if server is not None:
        pairs = [pair_named(topology, server)]
    found: list[OrphanDatabase] = []
    for pair in pairs:
        with fleet.admin(bare_url(pair.primary), name=f"{pair.name} primary") as admin:
            found += _orphans(topology, pair, admin)
    return found


def _orphans(topology: Topology, pair: Pair, admin: Admin) -> Iterator[OrphanDatabase]:
    here = address_of(pair.primary)
    for name in admin.databases():
        match = _RENAMED.fullmatch(name)
        original = match["original"] if match else name
        home = _home(topology, original)
        if home is None:
            continue
        server, url = home
        if match or url is None or address_of(url) != here:
            yield OrphanDatabase(
                server=pair.name,
                database=name,
                original=original,
                home=server,
                renamed=_seconds(match["at"]) if match else None,
            )


def _home(topology: Topology, database: str) -> tuple[str | None, str | None] | None:
    """Return name and URL of the server that has a database.

    None for a database that is no shard's.
    """
    found = shard_of(topology, database)
    if found is None:
        return None
    keyspace, shard_id = found
    if shard_id >= keyspace.shards:
        return None, None
    server = keyspace.server_for(shard_id)
    return server.name, server.primary


def _seconds(text: str) -> float:
    try:
        return float(calendar.timegm(time.strptime(text, _FORMAT)))
    except ValueError:
        # Not a time: as young as can be, so that it is never dropped.
        return time.time()


class OrphanChange(FleetOperation):
    """Fence, rename, restore or drop orphans of a server.

    :param fleet: the fleet.
    :param plan: a plan of :meth:`planned`.
    """

    kind = "orphans"

    def __init__(self, fleet: Fleet, plan: FleetPlan) -> None:
        super().__init__(fleet, plan)
        arguments = plan.arguments
        self._server = str(arguments["server"])
        self._action: Action = arguments["action"]
        self._names = tuple(arguments["databases"])
        self._older_than = float(arguments["older_than"])
        self._allowed = tuple(arguments["allowed_users"])
        self._accepts = bool(arguments["accept_differences"])

    @classmethod
    def planned(
        cls,
        fleet: Fleet,
        *,
        server: str,
        action: Action,
        databases: Sequence[str] = (),
        older_than: float = GRACE,
        allowed_users: Sequence[str] = (),
        accept_differences: bool = False,
    ) -> FleetPlan:
        """Plan a change.

        :param server: name of the server that the orphans are on.
        :param action: the action on them.
        :param databases: their names; by default all that are not renamed, to
            fence all, and to drop all that were renamed before the grace
            period.
        :param older_than: the grace period in seconds.
        :param allowed_users: see :meth:`.Split.planned`.
        :param accept_differences: whether to rename and drop databases
            although it is not proven that their home has all of their rows.
        :raises UnknownServerError: if the topology has no such server.
        :raises FleetServerError: if the server does not answer.
        """
        if not databases:
            limit = time.time() - older_than
            databases = [
                orphan.database
                for orphan in orphans_of(fleet, server)
                if action == "fence"
                or (action == "rename" and orphan.renamed is None)
                or (action == "restore" and orphan.renamed is not None)
                or (
                    action == "drop"
                    and orphan.renamed is not None
                    and orphan.renamed <= limit
                )
            ]
        plan = FleetPlan(
            kind=cls.kind,
            title=f"{action} of {len(databases)} orphans of {server}",
            epoch=fleet.topology().epoch,
            arguments={
                "server": server,
                "action": action,
                "databases": list(databases),
                "older_than": older_than,
                "allowed_users": list(allowed_users),
                "accept_differences": accept_differences,
            },
            costs=tuple(f"{action}: {name}" for name in databases),
        )
        return cls(fleet, plan).checked()

    def check(self) -> list[Problem]:
        """Compare each database with the topology and both servers."""
        if not self._names:
            return [
                Problem(self._server, f"there is no orphan to {self._action} on it")
            ]
        chosen, found = self._compared(self._names)
        for orphan in chosen:
            found += (Problem(orphan.database, text) for text in self._faults(orphan))
        if self._action == "restore":
            found += _rivals(chosen)
        return found

    def _compared(
        self, names: Sequence[str]
    ) -> tuple[list[OrphanDatabase], list[Problem]]:
        """Return the orphans of some names, and why they are in use."""
        topology = self.fleet.topology()
        pair = pair_named(topology, self._server)
        known = {
            orphan.database: orphan
            for orphan in _orphans(topology, pair, self._primary)
        }
        found: list[Problem] = []
        chosen = []
        for name in names:
            if name in known:
                chosen.append(known[name])
            else:
                found.append(
                    Problem(
                        name,
                        f"is not an orphan on {self._server}; see: "
                        "sqla-shard fleet orphans list",
                    )
                )
        found += self._homeless(topology, chosen)
        if self._action in ("rename", "restore"):
            found += self._not_fenced(pair, chosen)
        return chosen, found

    def steps(self) -> Sequence[Step]:
        """Return the only step, which has the name of the action."""
        text = f"{self._action} {len(self._names)} databases of {self._server}"
        return (Step(self._action, text),)

    def undo(self) -> str | None:
        """Rename what was renamed back; what was dropped stays so.

        :raises FleetServerError: if the server is away; it can be repeated.
        """
        self.forget(self._url)
        try:
            return self._rename_back()
        except FleetServerError as error:
            raise FleetServerError(
                server=error.server,
                number=error.number,
                reason=f"{error.reason}; when it responds, repeat: sqla-shard "
                "fleet undo",
            ) from error

    def _rename_back(self) -> str | None:
        if self._action in ("rename", "restore"):
            # Of two that have one original, only the first can have got it.
            back = {new: old for old, new in reversed(self._new_names().items())}
            self._report_each(_move_tables(self._primary, back))
        elif self._action == "drop":
            there = set(self._primary.databases())
            gone = [name for name in self._names if name not in there]
            if gone:
                return f"{shortened_list(gone, 5)} were dropped"
        return None

    # -- checks -----------------------------------------------------------

    def _faults(self, orphan: OrphanDatabase) -> Iterator[str]:
        """Yield the problems of the state of a database."""
        if self._action == "fence":
            return
        if self._action == "rename":
            if orphan.renamed is not None:
                yield "is renamed already"
            elif len(self._renamed(orphan.database)) > _MAX_NAME_CHARS:
                yield f"has no name of at most {_MAX_NAME_CHARS} characters then"
            return
        if orphan.renamed is None:
            yield (
                "is not renamed; rename it first, with: sqla-shard fleet orphans rename"
            )
        elif self._action == "restore":
            if self._primary.rows("SHOW DATABASES LIKE %s", orphan.original):
                yield f"cannot be {orphan.original} again, which exists"
        elif time.time() - orphan.renamed < self._older_than:
            days = (time.time() - orphan.renamed) / 86400
            yield (
                f"was renamed {days:.1f} days ago, and the grace period is "
                f"{self._older_than / 86400:g} days; wait, or shorten it with "
                "--older-than"
            )

    def _homeless(
        self, topology: Topology, chosen: Sequence[OrphanDatabase]
    ) -> Iterator[Problem]:
        """Yield the databases that no other server has, with all tables.

        Definitions are not compared: the home may have been migrated since.
        """
        if self._action in ("fence", "restore"):
            return
        pair = pair_named(topology, self._server)
        proven: dict[str, set[str]] = {}
        unproven: dict[str, list[str]] = {}
        here = self._primary.digests(orphan.database for orphan in chosen)
        has: dict[str, dict[str, dict[str, str]]] = {}
        for orphan in chosen:
            home = _home(topology, orphan.original)
            if home is None or home[1] is None:
                yield Problem(
                    orphan.database,
                    "the topology has its shard on no server; look at it yourself",
                )
                continue
            url = bare_url(home[1])
            if url not in has:
                admin = self.admin(url, f"{home[0]} primary")
                proven[url] = proven_by_journal(
                    self.fleet.journal, topology, pair, admin
                )
                has[url] = admin.digests(one.original for one in chosen)
            if orphan.original not in has[url]:
                yield Problem(
                    orphan.database,
                    f"may be the only copy: {home[0]}, which has its shard by the "
                    f"topology, has no {orphan.original}; see: sqla-shard fleet doctor",
                )
                continue
            there = has[url][orphan.original]
            lacks = sorted({*here.get(orphan.database, ())} - {*there})
            if lacks:
                yield Problem(
                    orphan.database,
                    f"may be the only copy of the tables {shortened_list(lacks, 5)}: "
                    f"{home[0]}, which has its shard by the topology, lacks them; drop "
                    "them yourself if a migration has",
                )
            elif not self._accepts:
                yield from self._empty_homes(
                    orphan,
                    self.admin(url, f"{home[0]} primary"),
                    here.get(orphan.database, {}).keys() & there.keys() - {DATABASE},
                )
                if orphan.original not in proven[url]:
                    unproven.setdefault(url, []).append(orphan.database)
        for url, names in unproven.items():
            if self._action == "drop":
                yield from (
                    Problem(
                        name,
                        "nothing in the journal proves that its home has its "
                        "rows; restore it and rename it again, which compares "
                        "them, or add --accept-differences",
                    )
                    for name in names
                )
            else:
                yield from unequal(
                    partial(self.fleet.admin, self._url, name=self._server),
                    partial(self.fleet.admin, url, name="its home"),
                    names,
                )

    def _empty_homes(
        self, orphan: OrphanDatabase, home: Admin, tables: Iterable[str]
    ) -> Iterator[Problem]:
        """Yield an orphan whose home has lost, or never had, its rows."""
        lacks = without_rows(
            self._primary, home, (orphan.database, orphan.original), tables
        )
        if lacks:
            yield Problem(
                orphan.database,
                f"may be the only copy of the rows of the tables "
                f"{shortened_list(lacks, 5)}, which are empty on {home}; if "
                "its rows were deleted there, add --accept-differences",
            )

    def _not_fenced(
        self, pair: Pair, chosen: Sequence[OrphanDatabase]
    ) -> Iterator[Problem]:
        """Yield the databases that an application can use."""
        for role, fence in self._fences(pair, chosen):
            for name in fence.missing():
                yield Problem(
                    name,
                    f"is not fenced on the {role} of {self._server}: an "
                    "application may be using it; fence it with: sqla-shard "
                    f"fleet orphans fence {self._server}",
                )

    def _fences(
        self, pair: Pair, chosen: Sequence[OrphanDatabase]
    ) -> Iterator[tuple[str, Fence]]:
        """Yield the fence of some orphans on the primary and the standby."""
        exempt = {*self.fleet.accounts.users, *self._allowed}
        for role, url in pair.urls.items():
            yield (
                role,
                Fence(
                    self.admin(bare_url(url), f"{pair.name} {role}"),
                    [orphan.original for orphan in chosen],
                    exempt=exempt,
                ),
            )

    # -- the change -------------------------------------------------------

    @property
    def _url(self) -> str:
        pair = pair_named(self.fleet.topology(), self._server)
        return bare_url(pair.primary)

    @property
    def _primary(self) -> Admin:
        return self.admin(self._url, f"{self._server} primary")

    def _renamed(self, name: str) -> str:
        """Return the new name, the same in every process."""
        started = time.time()
        if self.hold is not None:
            started = self.hold.record.started
        at = time.strftime(_FORMAT, time.gmtime(started))
        return f"moved_{name}_{at}"

    def run(self, step: str) -> Mapping[str, Any]:
        """Do the action."""
        admin = self._primary
        there = set(admin.databases())
        # Resumed, it may be days after the check.
        chosen, problems = self._compared([n for n in self._names if n in there])
        if problems:
            raise admin.error("; ".join(map(str, problems)))
        if self._action == "fence":
            return self._set_fences(chosen)
        admin.run("SET SESSION lock_wait_timeout = 5")
        if self._action == "drop":
            # One by one: the server would do the rest of one text after this
            # process has ended, while the journal says that it was undone.
            done: Iterable[object] = map(
                admin.run,
                (f"DROP DATABASE IF EXISTS {marked(name)}" for name in self._names),
            )
        else:
            done = _move_tables(admin, self._new_names())
        self._report_each(done)
        return {"databases": len(self._names)}

    def _new_names(self) -> dict[str, str]:
        """Return the name that each database gets."""
        new = self._renamed if self._action == "rename" else _original
        return {name: new(name) for name in self._names}

    def _report_each(self, done: Iterable[object]) -> None:
        """Report the number of databases, every few seconds."""
        times = Interval(_REPORT_SECONDS)
        for number, _ in enumerate(done, 1):
            if times.is_over():
                self.report(f"{number:,} of {len(self._names):,} databases")

    def _set_fences(self, chosen: Sequence[OrphanDatabase]) -> Mapping[str, Any]:
        """Fence orphans on the primary and the standby."""
        pair = pair_named(self.fleet.topology(), self._server)
        ended: list[Mapping[str, Any]] = []
        killed = 0
        for _, fence in self._fences(pair, chosen):
            # A fence is no grant: sessions keep the privileges on their
            # default database until they end.
            if fence.missing():
                fence.insert(readable=False)
                fence.flush()
                note = ended_note(fence.admin, fence.kill_sessions())
                killed += note["killed"]
                ended += note["ended"]
        return {"databases": len(chosen), "killed": killed, "ended": ended}


def _rivals(orphans: Iterable[OrphanDatabase]) -> Iterator[Problem]:
    """Yield the orphans that have the original of an earlier one."""
    first: dict[str, str] = {}
    for orphan in orphans:
        other = first.setdefault(orphan.original, orphan.database)
        if other != orphan.database:
            yield Problem(
                orphan.database,
                f"cannot be {orphan.original} again, as {other} can; name the "
                "databases to restore, one of these two",
            )


def _original(name: str) -> str:
    match = _RENAMED.fullmatch(name)
    return match["original"] if match else name


def _move_tables(admin: Admin, names: Mapping[str, str]) -> Iterator[str]:
    """Move all tables of databases into others, and drop the empty ones.

    Repeated, it does the rest.

    :param names: the new name of each database.
    :returns: the databases, after each was moved.
    """
    defaults = {
        name: (charset, collation)
        for name, charset, collation in admin.rows(
            "SELECT SCHEMA_NAME, DEFAULT_CHARACTER_SET_NAME, DEFAULT_COLLATION_NAME"
            " FROM information_schema.schemata WHERE SCHEMA_NAME IN %s",
            list(names),
        )
    }
    tables = _tables_of(admin, names)
    for old, new in names.items():
        if old in defaults:
            charset, collation = defaults[old]
            create = (
                f"CREATE DATABASE IF NOT EXISTS {marked(new)}"
                f" CHARACTER SET {charset} COLLATE {collation}"
            )
            statements = [create]
            if tables[old]:
                # One statement: all or none, with their foreign keys.
                pairs = ", ".join(
                    f"{marked(old)}.{marked(table)} TO {marked(new)}.{marked(table)}"
                    for table in tables[old]
                )
                statements.append(f"RENAME TABLE {pairs}")
            admin.run_each(statements)
            left = _tables_of(admin, [old])[old]
            if left:
                raise admin.error(
                    f"{old} has new tables ({', '.join(left)}): it is in use"
                )
            admin.run(f"DROP DATABASE {marked(old)}")
        yield old


def _tables_of(admin: Admin, databases: Iterable[str]) -> dict[str, list[str]]:
    """Return the names of the tables of each database, sorted."""
    found: dict[str, list[str]] = {name: [] for name in databases}
    for database, name in admin.rows(
        "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.tables"
        " WHERE TABLE_SCHEMA IN %s ORDER BY TABLE_NAME",
        list(found),
    ):
        # MariaDB compares these names without case.
        if database in found:
            found[database].append(name)
    return found


#: Operations of the journal that are looked at.
_HISTORY_RECORDS = 1000
_MAX_SHOWN = 5
#: Seconds between two reports of progress.
_REPORT_SECONDS = 5.0


def proven_by_journal(
    journal: FleetJournal, topology: Topology, pair: Pair, home: Admin
) -> set[str]:
    """Return the databases whose rows came to, or from, their home by a split.

    :param pair: the pair that has the orphans.
    :param home: session on the server of their shards.
    """
    found: set[str] = set()
    for record in journal.history(_HISTORY_RECORDS):
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
    filled = _filled(here, names[0], tables)
    return sorted(set(filled) - set(_filled(there, names[1], filled)))


def _filled(admin: Admin, database: str, tables: Iterable[str]) -> list[str]:
    """Return the tables that have rows."""
    asked = list(tables)
    found = admin.each(
        f"SELECT 1 FROM {marked(database)}.{marked(table)} LIMIT 1"  # noqa: S608
        for table in asked
    )
    return [table for table, rows in zip(asked, found, strict=True) if rows]


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
            options=CompareOptions(counters=False, most=_MAX_SHOWN),
        )
        fault = _fault(report)
        if fault:
            yield Problem(
                name,
                f"may have the only copy of some rows: {fault}, and no split in the "
                "journal has compared them; look at them with: sqla-shard fleet "
                "verify. If its home has changed them since, add --accept-differences",
            )


def _fault(report: DataReport) -> str:
    lost = [one for one in report.differences if one.kind != "extra_row"]
    found = [*map(str, lost), *map(str, report.unread)]
    if found or report.found > len(report.differences):
        return f"{report.found:,} differ ({shortened_list(found, _MAX_SHOWN)})"
    return ""
