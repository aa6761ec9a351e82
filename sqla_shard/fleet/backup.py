"""Backups: the virtual shards of a server at one position, in files.

A backup is a folder with a compressed SQL file for each database, and a
manifest; see :mod:`sqla_shard.fleet.storage` and
:mod:`sqla_shard.fleet.dumps`.  Limits:

* One backup is of one server, at one GTID position.  A keyspace on several
  servers takes one for each, at different positions: nothing in this package
  promises a state across servers.
* It reads the standby, and refuses one that does not replicate from the
  primary of the topology, or is late; ``source`` may be the primary, where
  commits wait for the few milliseconds in which the sessions open their
  snapshots.
* Databases with views, triggers, routines, events or tables that are not
  InnoDB are refused, and so are foreign keys to other databases.
* A migration during the backup makes it fail: its files would be of different
  schemas.  ``mariadb-dump`` exits with status 0 in that case.
* The snapshot stays open until the end; the server cannot purge old versions
  of rows meanwhile.

It takes no lock of the fleet: a failover may happen meanwhile, and ends the
backup only if the server that it reads goes away.

Making the plan of a dry run only reads.  Sizes of databases are those that the server
has for rows and indexes; the files are compressed, and smaller.
"""

from __future__ import annotations

import queue
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import Literal

from sqla_shard.exc import (
    BackupFailedError,
    FleetServerError,
    FleetSetupError,
    OperationRefusedError,
    Problem,
)
from sqla_shard.fleet.admin import Admin
from sqla_shard.fleet.common_point import snapshots
from sqla_shard.fleet.dumps import write_dump
from sqla_shard.fleet.files import HashingWriter
from sqla_shard.fleet.fleet import all_pairs, Fleet, Pair, pair_named
from sqla_shard.fleet.replication import Replication, replication_of, ReplicationStatus
from sqla_shard.fleet.row_copy import differences, not_tables, ServerTable, tables_of
from sqla_shard.fleet.storage import Backup, DatabaseFile, dump_name, new_name, Storage
from sqla_shard.topology import Topology
from sqla_shard.util.json_values import JsonObject

#: Which server of a pair is read.
Source = Literal["standby", "primary"]

# The definition of a table is newer than the snapshot; it does not exist.
_CHANGED = frozenset([1412, 1146, 1049])
_FOREIGN = re.compile(r"REFERENCES `(?:[^`]|``)+`\.`")
_TIMEOUT_SECONDS = 600.0
#: Seconds in which a standby must apply what its primary has.
_LATE_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class BackupEvent:
    """Progress of a backup.

    :ivar server: name of the server.
    :ivar databases: databases that are written.
    :ivar all_databases: databases to write.
    :ivar bytes: bytes of their files.
    :ivar seconds: time since the start.
    """

    server: str
    databases: int
    all_databases: int
    bytes: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.server}: {self.databases} of {self.all_databases} "
            f"databases, {mebibytes(self.bytes)}, {self.seconds:.0f} s"
        )


@dataclass(frozen=True, kw_only=True)
class Scope:
    """The shards of a backup: all that match every given attribute.

    :ivar server: name of a server, or ``keyspace/name``; None for all.
    :ivar keyspace: name of a keyspace; None for all.
    :ivar shard: id of a virtual shard, which takes a keyspace; None for all.
    """

    server: str | None = None
    keyspace: str | None = None
    shard: int | None = None

    def select(self, topology: Topology) -> list[_ServerPart]:
        """Return the servers, with their databases.

        :raises FleetSetupError: if nothing matches, or a shard has no
            keyspace.
        :raises UnknownServerError: if there is no such server.
        :raises UnknownKeyspaceError: if there is no such keyspace.
        :raises UnknownShardError: if there is no such shard.
        """
        if self.shard is not None:
            if self.keyspace is None:
                raise FleetSetupError(
                    f"shard {self.shard} of which keyspace? Give its name"
                )
            topology.keyspace(self.keyspace).server_for(self.shard)
        elif self.keyspace is not None:
            topology.keyspace(self.keyspace)
        pairs = (
            all_pairs(topology)
            if self.server is None
            else [pair_named(topology, self.server)]
        )
        parts = [_ServerPart(pair, self._databases(pair)) for pair in pairs]
        found = [part for part in parts if part.databases]
        if not found:
            raise FleetSetupError(f"no virtual shard matches {self}")
        return found

    def _databases(self, pair: Pair) -> dict[str, tuple[str, int]]:
        return {
            keyspace.database_for(shard): (keyspace.name, shard)
            for keyspace, server in pair.members
            if self.keyspace in (None, keyspace.name)
            for part in server.shards
            for shard in part
            if self.shard in (None, shard)
        }


@dataclass(frozen=True)
class _ServerPart:
    """A pair, and keyspace and shard of each database to back up."""

    pair: Pair
    databases: Mapping[str, tuple[str, int]]


def create_backups(
    fleet: Fleet,
    storage: Storage,
    scope: Scope,
    *,
    source: Source = "standby",
    workers: int = 2,
    progress: Callable[[BackupEvent], object] | None = None,
) -> list[Backup]:
    """Back up some virtual shards: one backup for each server.

    :param storage: where the backups are written.
    :param scope: which virtual shards.
    :param source: the server of each pair that is read.
    :param workers: number of sessions that read at a time.
    :param progress: is called after each database, in any thread.
    :raises OperationRefusedError: if a server or a database cannot be backed
        up; nothing was written.
    :raises BackupFailedError: if a table was changed meanwhile; backups of
        servers that were complete before stay.
    :raises FleetServerError: if a server does not respond.
    """
    topology = fleet.topology()
    parts = scope.select(topology)
    jobs = [
        _Job(fleet, storage, topology, part, source, workers, progress)
        for part in parts
    ]
    problems = [problem for job in jobs for problem in job.check()]
    if problems:
        raise OperationRefusedError(
            tuple(problems), operation=f"the backup into {storage}"
        )
    return [job.run() for job in jobs]


def plan_backups(
    fleet: Fleet, storage: Storage, scope: Scope, *, source: Source = "standby"
) -> BackupPlan:
    """Return the plan of :func:`create_backups`; write nothing.

    :param storage: see :func:`create_backups`; it is not read, either.
    :param scope: see :func:`create_backups`.
    :param source: see :func:`create_backups`.
    """
    topology = fleet.topology()
    problems: list[Problem] = []
    servers = []
    for part in scope.select(topology):
        job = _Job(fleet, storage, topology, part, source, 1, None)
        try:
            problems += job.check()
            servers.append(job.plan())
        except FleetServerError as error:
            problems.append(error.as_problem("its state is unknown"))
    return BackupPlan(
        storage=str(storage), servers=tuple(servers), problems=tuple(problems)
    )


@dataclass
class _Job:
    """The backup of one server."""

    fleet: Fleet
    storage: Storage
    topology: Topology
    part: _ServerPart
    source: Source
    workers: int
    progress: Callable[[BackupEvent], object] | None

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._begin = time.monotonic()
        self._done: dict[str, DatabaseFile] = {}

    def check(self) -> list[Problem]:
        """Return the problems of the plan."""
        pair = self.part.pair
        if self.source == "standby" and pair.standby is None:
            return [Problem(pair.name, "it has no standby; back up from its primary")]
        with self._connect() as admin:
            return [*self._role(admin), *self._contents(admin)]

    def plan(self) -> ServerPlan:
        """Return the part of the plan that is read."""
        pair = self.part.pair
        sizes = dict.fromkeys(self.part.databases, 0)
        if self.source == "standby" and pair.standby is None:
            return ServerPlan(server=pair.name, source=None, databases=sizes)
        with self._connect() as admin:
            for table in replication_of(admin).table_sizes(counters=False):
                if table.database in sizes:
                    sizes[table.database] += table.bytes
            return ServerPlan(server=pair.name, source=str(admin), databases=sizes)

    def _role(self, admin: Admin) -> list[Problem]:
        """Return why what it reads may not be the content of the primary."""
        if self.source == "primary":
            return []
        pair = self.part.pair
        standby = replication_of(admin)
        status = standby.status()
        if status is None:
            found = "it replicates from no server"
        elif status.filters:
            found = f"it replicates with filters ({', '.join(status.filters)})"
        elif not status.runs:
            found = (
                f"its receiver is {status.receiver!r} and its applier "
                f"{status.applier!r}"
            )
        else:
            with self.fleet.admin(pair.primary, name=f"{pair.name} primary") as other:
                found = _behind(replication_of(other), standby, status)
        if not found:
            return []
        return [
            Problem(
                str(admin),
                f"{found}: its content may be old; repair it, or back up "
                "from the primary with --from primary",
            )
        ]

    def _contents(self, admin: Admin) -> list[Problem]:
        names = list(self.part.databases)
        existing = set(admin.databases())
        problems = [
            Problem(
                f"{admin}: {name}",
                "it does not exist; create it with: sqla-shard schema provision",
            )
            for name in names
            if name not in existing
        ]
        problems += not_tables(admin, names)
        # Reading the definitions of all tables takes longer than the rest.
        if admin.has_foreign_keys_across():
            problems += _foreign_keys(tables_of(admin, names).values())
        return problems

    def run(self) -> Backup:
        """Back up, and return the manifest."""
        name = new_name(self.part.pair.name)
        try:
            with self._connect() as admin:
                backup = self._write(admin, name)
            self.storage.finish(backup)
        except BaseException as error:
            # Without a manifest it is not listed; what cannot be removed now
            # is removed by prune.
            with suppress(OSError):
                self.storage.remove(name)
            if isinstance(error, OSError):
                raise self._failed(
                    f"{self.storage} cannot be written: {error}"
                ) from error
            raise
        return backup

    def _write(self, admin: Admin, name: str) -> Backup:
        names = list(self.part.databases)
        defaults = {
            database: (charset, collation)
            for database, charset, collation in admin.rows(
                "SELECT schema_name, default_character_set_name,"
                " default_collation_name FROM information_schema.schemata"
            )
        }
        before = tables_of(admin, names)
        tables: dict[str, list[ServerTable]] = defaultdict(list)
        for (database, _), table in before.items():
            tables[database].append(table)
        with snapshots(admin, self.workers, timeout=_TIMEOUT_SECONDS) as found:
            # After the snapshot: its transactions began before this time.
            created = float(admin.value("SELECT UNIX_TIMESTAMP(NOW(6))"))
            left: queue.SimpleQueue[str] = queue.SimpleQueue()
            for database in names:
                left.put(database)
            with ThreadPoolExecutor(self.workers) as pool:
                futures = [
                    pool.submit(self._work, session, left, tables, defaults, name)
                    for session in found.sessions
                ]
                try:
                    for future in futures:
                        future.result()
                except BaseException:
                    self._stopped.set()
                    found.kill(admin)
                    raise
            position = found.position
        changed = differences(before, tables_of(admin, names))
        if changed:
            raise self._failed(
                f"{', '.join(changed[:5])}; repeat it while no migration runs"
            )
        return Backup(
            name=name,
            created=created,
            product=version("sqla-shard"),
            topology=self.fleet.journal.name,
            epoch=self.topology.epoch,
            server=self.part.pair.name,
            source=admin.address,
            role=self.source,
            server_version=str(admin.value("SELECT VERSION()")),
            is_mariadb=admin.is_mariadb,
            position=position,
            databases=tuple(self._done[database] for database in names),
        )

    def _work(
        self,
        session: Admin,
        left: queue.SimpleQueue[str],
        tables: Mapping[str, Sequence[ServerTable]],
        defaults: Mapping[str, tuple[str, str]],
        name: str,
    ) -> None:
        try:
            while not self._stopped.is_set():
                try:
                    database = left.get_nowait()
                except queue.Empty:
                    return
                self._dump(
                    session,
                    database,
                    tables.get(database, ()),
                    defaults[database],
                    name,
                )
        except FleetServerError as error:
            self._stopped.set()
            if error.number in _CHANGED or not error.number:
                raise self._failed(
                    f"{error}; repeat it while no migration runs"
                ) from error
            raise
        except BaseException:
            self._stopped.set()
            raise

    def _dump(
        self,
        session: Admin,
        database: str,
        tables: Sequence[ServerTable],
        defaults: tuple[str, str],
        name: str,
    ) -> None:
        keyspace, shard = self.part.databases[database]
        file = self.storage.file(name, dump_name(database))
        with file.create() as opened:
            written = HashingWriter(opened)
            contents = write_dump(
                session,
                tables,
                written,
                comment=f"shard {shard} of {keyspace}, backup {name}",
            )
        done = DatabaseFile(
            keyspace=keyspace,
            shard=shard,
            database=database,
            charset=defaults[0],
            collation=defaults[1],
            file=file.name,
            size=written.size,
            sha256=written.sha256,
            tables=contents,
        )
        with self._lock:
            self._done[database] = done
            if self.progress is not None:
                self.progress(self._event())

    def _event(self) -> BackupEvent:
        return BackupEvent(
            server=self.part.pair.name,
            databases=len(self._done),
            all_databases=len(self.part.databases),
            bytes=sum(one.size for one in self._done.values()),
            seconds=time.monotonic() - self._begin,
        )

    def _connect(self) -> Admin:
        pair = self.part.pair
        url = pair.standby if self.source == "standby" else pair.primary
        return self.fleet.admin(str(url), name=f"{pair.name} {self.source}")

    def _failed(self, reason: str) -> BackupFailedError:
        return BackupFailedError(
            server=f"{self.part.pair.name} {self.source}", reason=reason
        )


def _foreign_keys(tables: Iterable[ServerTable]) -> list[Problem]:
    return [
        Problem(
            table.path,
            "it has a foreign key to another database, which a "
            "restored database would have, too; drop the key",
        )
        for table in tables
        if _FOREIGN.search(table.sql)
    ]


def _behind(
    primary: Replication, standby: Replication, status: ReplicationStatus
) -> str:
    """Return why a standby is not at the state of its primary, or nothing."""
    number = primary.server_id()
    if status.source_id != number:
        return (
            f"it replicates from {status.source} (server_id {status.source_id}), not "
            f"from {primary.admin} (server_id {number})"
        )
    if not standby.reaches(primary.position(), _LATE_SECONDS):
        return (
            f"it has not applied within {_LATE_SECONDS:g} s what its primary had "
            "committed before"
        )
    return ""


@dataclass(frozen=True, kw_only=True)
class ServerPlan:
    """The part of a plan that is read from one server.

    :ivar server: name of the server in the topology.
    :ivar source: role and address of the server that is read; None if it
        cannot be connected to.
    :ivar databases: bytes of each database, by its name.
    """

    server: str
    source: str | None
    databases: Mapping[str, int]

    def __str__(self) -> str:
        size = mebibytes(sum(self.databases.values()))
        source = self.source or "a server that is not known"
        first = f"{self.server}: {len(self.databases)} databases, {size}, from {source}"
        return _lines(first, self.databases)


@dataclass(frozen=True, kw_only=True)
class BackupPlan(JsonObject):
    """Plan of a backup.

    :ivar storage: where it would be written.
    :ivar servers: what it would read; each has a backup of its own.
    :ivar problems: why it would be refused.
    """

    storage: str
    servers: tuple[ServerPlan, ...]
    problems: tuple[Problem, ...] = ()

    def __str__(self) -> str:
        lines = [f"backup into {self.storage}"]
        lines += [str(one) for one in self.servers]
        lines += [f"refused: {problem}" for problem in self.problems]
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class BinlogPlan(JsonObject):
    """Plan of a copy of binary logs.

    :ivar address: ``host:port`` of the server.
    :ivar place: folder of the logs of that server.
    :ivar copied: number of logs that the folder has.
    :ivar new: bytes of each log that would be copied, by its name; the server
        would close the last one first.
    """

    address: str
    place: str
    copied: int
    new: Mapping[str, int]

    def __str__(self) -> str:
        size = mebibytes(sum(self.new.values()))
        first = (
            f"{self.address}: {len(self.new)} logs, {size}, into "
            f"{self.place}, which has {self.copied}"
        )
        return _lines(first, self.new)


def _lines(first: str, sizes: Mapping[str, int]) -> str:
    rest = (f"  {name}: {mebibytes(size)}" for name, size in sizes.items())
    return "\n".join([first, *rest])


def mebibytes(size: int) -> str:
    """Return a number of bytes in MiB."""
    return f"{size / 2**20:.1f} MiB"
