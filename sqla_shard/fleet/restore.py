"""Restore of one virtual shard into a database next to the live one.

The database has a new name, ``restored_db00007`` by default, on the primary
that has the shard, or on another one.  It has the state of a backup, or of a
later moment: then the changes of that database are replayed from the copied
binary logs.  Limits:

* It never replaces or changes a live database.  Rows are taken over by SQL,
  such as ``INSERT INTO db00007.pins SELECT * FROM restored_db00007.pins WHERE
  local_id = 42``, by somebody who knows what became of them since.
* The restored database is written to the binary log, so that standbys have
  it, too.
* It is not part of the topology: drop it when it is of no use any more.
* The state of the backup is verified: all rows, definitions and counters.
  What is replayed on top is not: there is nothing to compare it with.
* A moment given as a time is exact to the second, and is that of the server's
  clock at the beginning of each COMMIT.  A GTID is exact.
* A statement in the logs that cannot be replayed in another database is
  refused; ALTER, CREATE, DROP, RENAME and TRUNCATE of tables can.
* A restore holds the lock of the fleet.  In an emergency stop it with Ctrl-C,
  which undoes it.  One that was interrupted keeps all other operations out
  until it is resumed or undone.

Moments need binary logs of the kind of the server.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime, UTC
from typing import Any, ClassVar

from sqla_shard.exc import BackupDamagedError, FleetSetupError, Problem
from sqla_shard.exc.base import bullets
from sqla_shard.fleet.admin import Admin, quoted
from sqla_shard.fleet.binlog_events import GtidSet
from sqla_shard.fleet.dumps import content_of, HEAD, read_statements, same_content
from sqla_shard.fleet.fleet import Fleet, Pair, pair_named
from sqla_shard.fleet.operation import as_list, FleetOperation, FleetPlan, Step
from sqla_shard.fleet.replay import (
    best_replay,
    BinlogReplay,
    MariaDBReplay,
    Moment,
    MySQLReplay,
)
from sqla_shard.fleet.replication import gtids, replication_of
from sqla_shard.fleet.row_copy import tables_of
from sqla_shard.fleet.storage import Backup, DatabaseFile, Storage

_TIMEOUT_SECONDS = 600.0
#: Seconds between two looks at the lock of the fleet.
_LOOK_SECONDS = 1.0
_MAX_NAME_CHARS = 64


class Restore(FleetOperation):
    """Restore a virtual shard into a database of a new name."""

    kind = "restore"
    STEPS: ClassVar[tuple[Step, ...]] = (
        Step("create", "create the database {database}"),
        Step("load", "load and verify the backup{and_replayed}"),
    )

    def __init__(self, fleet: Fleet, plan: FleetPlan) -> None:
        super().__init__(fleet, plan)
        arguments = plan.arguments
        self._storage = Storage(arguments["folder"])
        self._keyspace = str(arguments["keyspace"])
        self._shard = int(arguments["shard"])
        self._server = str(arguments["server"])
        self._target = str(arguments["database"])
        self._moment = (
            None
            if arguments["gtid"] is None and arguments["time"] is None
            else Moment(gtid=arguments["gtid"], time=arguments["time"])
        )
        self._looked = 0.0

    @classmethod
    def planned(
        cls,
        fleet: Fleet,
        folder: str | os.PathLike[str],
        *,
        keyspace: str,
        shard: int,
        backup: str | None = None,
        moment: Moment | None = None,
        server: str | None = None,
        database: str | None = None,
    ) -> FleetPlan:
        """Return the plan, with everything that speaks against it.

        :param folder: folder of the backups.
        :param keyspace: name of the keyspace.
        :param shard: id of the virtual shard.
        :param backup: name of the backup; by default the latest one of the
            shard that is not after the moment.
        :param moment: by default that of the backup.
        :param server: name of a server in the topology; by default the one
            that has the shard.
        :param database: name of the new database.
        :raises BackupNotFoundError: if there is no such backup.
        :raises BackupDamagedError: if its manifest cannot be read.
        :raises FleetSetupError: if a GTID is not one, or the folder has no
            backup of the shard.
        :raises UnknownServerError: if there is no such server.
        :raises UnknownKeyspaceError: if there is no such keyspace.
        :raises UnknownShardError: if there is no such shard.
        """
        topology = fleet.topology()
        chosen = topology.keyspace(keyspace)
        home = chosen.server_for(shard)
        if moment is not None and moment.gtid is not None:
            _check_gtid(moment.gtid)
        storage = Storage(folder)
        damaged: list[Problem] = []
        if backup is None:
            listing = storage.listing()
            damaged = listing.problems
            chosen_backup = _latest(listing.backups, keyspace, shard, moment)
            if chosen_backup is None:
                raise FleetSetupError(
                    f"{storage} has no backup of shard {shard} of {keyspace}"
                    f"{bullets(damaged)}; see: sqla-shard fleet backup list"
                )
            backup = chosen_backup.name
        server = server or f"{keyspace}/{home.name}"
        pair_named(topology, server)
        target = database or f"restored_{chosen.database_for(shard)}"
        plan = FleetPlan(
            kind=cls.kind,
            title=f"restore of shard {shard} of {keyspace} as {target} on {server}",
            epoch=topology.epoch,
            arguments={
                "folder": str(storage),
                "backup": backup,
                "keyspace": keyspace,
                "shard": shard,
                "server": server,
                "database": target,
                "gtid": moment.gtid if moment else None,
                "time": moment.time if moment else None,
            },
            costs=(
                "the primary and its standbys write the rows once more",
                (
                    "no other fleet operation can run meanwhile, nor until "
                    "an interrupted restore is resumed or undone"
                ),
            ),
            warnings=tuple(f"{one}: it was not considered" for one in damaged),
        )
        return cls(fleet, plan).checked()

    # -- checks -----------------------------------------------------------

    def check(self) -> list[Problem]:
        """Check the files, the target, and that the logs have the moment."""
        backup = self._backup()
        file = backup.database(self._keyspace, self._shard)
        if file is None:
            return [
                Problem(
                    backup.name,
                    f"it does not contain shard {self._shard} of "
                    f"{self._keyspace}; see: sqla-shard fleet backup list",
                )
            ]
        problems = self._storage.problems(backup, [file])
        problems += self._target_problems()
        if self._moment is not None:
            problems += self._moment_problems(backup) or self._replay(backup, file)[1]
        return problems

    @as_list
    def _target_problems(self) -> Iterator[Problem]:
        admin = self._admin()
        place = f"{admin}: {self._target}"
        if len(self._target) > _MAX_NAME_CHARS:
            text = f"a name has at most {_MAX_NAME_CHARS} characters"
            yield Problem(place, text)
            return
        if self._target in self._pair().databases():
            yield Problem(place, "it is the database of a shard; use another name")
        elif self._exists(admin):
            yield Problem(place, "it exists; drop it, or give another name with --as")
        if replication_of(admin).is_read_only():
            yield Problem(
                str(admin), "it is read-only; restore to a server that is written"
            )

    def _moment_problems(self, backup: Backup) -> list[Problem]:
        if backup.is_mariadb is not self._admin().is_mariadb:
            return [
                Problem(
                    backup.name,
                    "it is of another kind of server: changes after it cannot "
                    "be replayed",
                )
            ]
        gtid = self._moment.gtid if self._moment else None
        if gtid and _lasts(gtid, is_mariadb=backup.is_mariadb) is None:
            return [
                Problem(backup.name, f"{gtid!r} is a GTID of another kind of server")
            ]
        if self._moment is None or _is_before(backup, self._moment):
            return []
        return [
            Problem(
                backup.name,
                f"it was made after that moment ({_time(backup.created)}, "
                f"{backup.position}); restore from an earlier backup",
            )
        ]

    # -- steps ------------------------------------------------------------

    def words(self) -> Mapping[str, Any]:
        """Return the database, and whether changes are replayed."""
        replayed = ", and replay its changes" if self._moment else ""
        return {"database": self._target, "and_replayed": replayed}

    def undo(self) -> None:
        """Drop the database, if this operation has created it."""
        admin = self._admin()
        if not self._exists(admin):
            return
        if "create" not in self.notes and tables_of(admin, [self._target]):
            # The step has failed because the database was there.
            return
        admin.run_verbatim(f"DROP DATABASE {quoted(self._target)}")

    def _do_create(self) -> Mapping[str, Any]:
        admin = self._admin()
        # After a crash in this step it may be there, without a table.
        if not self._exists(admin) or tables_of(admin, [self._target]):
            self._create_database(admin)
        return {"database": self._target}

    def _do_load(self) -> Mapping[str, Any]:
        admin = self._admin()
        # After a crash in this step it is half loaded.
        admin.run_verbatim(f"DROP DATABASE IF EXISTS {quoted(self._target)}")
        self._create_database(admin)
        backup = self._backup()
        file = self._file(backup)
        with ExitStack() as stack:
            session, other = (
                stack.enter_context(admin.another(timeout=_TIMEOUT_SECONDS))
                for _ in range(2)
            )
            for one in (session, other):
                for statement in HEAD:
                    one.run_verbatim(statement)
            session.run_verbatim(f"USE {quoted(self._target)}")
            for statement in read_statements(
                self._storage.file(backup.name, file.file)
            ):
                session.run_verbatim(statement)
                self._look()
            self._verify(session, file)
            replayed = self._replay_changes(backup, file, session, other)
        return {
            "backup": backup.name,
            "rows": sum(table.rows for table in file.tables),
            **replayed,
        }

    def _replay_changes(
        self, backup: Backup, file: DatabaseFile, session: Admin, other: Admin
    ) -> dict[str, Any]:
        if self._moment is None:
            return {"position": backup.position}
        replay, problems = self._replay(backup, file)
        if replay is None:
            raise BackupDamagedError(tuple(problems), backup=str(self._storage))
        count = 0
        last = backup.position
        for transaction in replay.apply(session, other):
            count += 1
            last = transaction.name
            self._look()
        return {"transactions": count, "position": last}

    def _verify(self, session: Admin, file: DatabaseFile) -> None:
        """Compare the database with the manifest.

        :raises BackupDamagedError: if they are not equal.
        """
        tables = tables_of(session, [self._target]).values()
        found = [content_of(session, table) for table in tables]
        problems = same_content(file.tables, found)
        if problems:
            raise BackupDamagedError(
                tuple(Problem(file.database, text) for text in problems),
                backup=str(self.plan.arguments["backup"]),
            )

    # -- helpers ----------------------------------------------------------

    def _look(self) -> None:
        """Stop if another process has taken over."""
        if self.hold is not None and time.monotonic() > self._looked + _LOOK_SECONDS:
            self._looked = time.monotonic()
            self.hold.check()

    def _create_database(self, admin: Admin) -> None:
        file = self._file(self._backup())
        admin.run_verbatim(
            f"CREATE DATABASE {quoted(self._target)} CHARACTER SET "
            f"{file.charset} COLLATE {file.collation}"
        )

    def _exists(self, admin: Admin) -> bool:
        return self._target in admin.databases()

    def _pair(self) -> Pair:
        return pair_named(self.fleet.topology(), self._server)

    def _admin(self) -> Admin:
        return self.admin(self._pair().primary, f"{self._server} primary")

    def _backup(self) -> Backup:
        return self._storage.get(str(self.plan.arguments["backup"]))

    def _file(self, backup: Backup) -> DatabaseFile:
        found = backup.database(self._keyspace, self._shard)
        if found is None:
            raise FleetSetupError(f"{backup.name} does not contain shard {self._shard}")
        return found

    def _replay(
        self, backup: Backup, file: DatabaseFile
    ) -> tuple[BinlogReplay | None, list[Problem]]:
        return best_replay(
            MariaDBReplay if backup.is_mariadb else MySQLReplay,
            self._storage,
            backup.position,
            file.database,
            self._target,
            self._moment or Moment(),
        )


def _latest(
    backups: Sequence[Backup], keyspace: str, shard: int, moment: Moment | None
) -> Backup | None:
    found = [one for one in backups if one.database(keyspace, shard) is not None]
    if moment is not None and found:
        # If all are later, the checks of the first one say so.
        found = [one for one in found if _is_before(one, moment)] or found[:1]
    return found[-1] if found else None


def _is_before(backup: Backup, moment: Moment) -> bool:
    if moment.time is not None and moment.time < backup.created:
        return False
    is_mariadb = backup.is_mariadb
    start = _lasts(backup.position, is_mariadb=is_mariadb) or {}
    wanted = _lasts(moment.gtid or "", is_mariadb=is_mariadb) or {}
    return all(number >= start.get(origin, 0) for origin, number in wanted.items())


def _lasts(text: str, *, is_mariadb: bool) -> dict[Any, int] | None:
    """Return the last number of each domain, or of each origin on MySQL.

    :returns: None if the text has no GTID of this kind.
    """
    found: dict[Any, int]
    try:
        if is_mariadb:
            found = {domain: number for domain, _, number in gtids(text)}
        else:
            found = dict(GtidSet.parsed(text).lasts())
    except ValueError:
        return None
    return found or None


def _check_gtid(text: str) -> None:
    if not any(_lasts(text, is_mariadb=each) for each in (True, False)):
        raise FleetSetupError(
            f"{text!r} is not a GTID, such as 0-1-42; see: SELECT "
            "@@gtid_binlog_pos; on MySQL such as 3e11fa47-71ca-11e1-9e33-"
            "c80aa9429562:42; see: SELECT @@gtid_executed"
        )


def _time(seconds: float) -> str:
    when = datetime.fromtimestamp(seconds, UTC)
    return f"{when:%Y-%m-%d %H:%M:%S} UTC"
