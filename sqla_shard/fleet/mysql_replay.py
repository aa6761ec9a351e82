"""The changes of one database in the binary logs of MySQL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sqla_shard.exc import BackupDamagedError, Problem
from sqla_shard.fleet.admin import Admin
from sqla_shard.fleet.binlog_events import (
    BinlogTransaction,
    first_gtids,
    Gtid,
    LogReader,
)
from sqla_shard.fleet.files import File
from sqla_shard.fleet.gtid_sets import GtidSet
from sqla_shard.fleet.replay import Replay


class MySQLReplay(Replay):
    """Reads positions that are sets of GTIDs.

    What a server was copied with is in its sets, and in none of its logs: it
    must be in the backup.
    """

    def _set_position(self, position: str) -> None:
        try:
            self._begin = GtidSet.parsed(position)
        except ValueError as error:
            problem = Problem(
                "the backup", f"{error}: {position}; restore with mysqlbinlog"
            )
            raise BackupDamagedError((problem,), backup=self._archive.place) from error
        moment = GtidSet.parsed(self._moment.gtid or "")
        self._wanted = {gtid for gtid in moment.lasts() if gtid not in self._begin}
        self._read = GtidSet()

    def _is_before_backup(self, log: File) -> bool:
        before = first_gtids(log)
        return before is not None and not before - self._begin

    def _transactions(self, reader: LogReader) -> Iterator[BinlogTransaction]:
        self._missing = set(self._wanted)
        self._read = GtidSet()
        log = self._logs()[0]
        before = first_gtids(self._archive.file(log))
        if before is None:
            raise self._refused(f"{log.name} does not say where it begins")
        if before - self._begin:
            raise self._refused(
                f"its logs begin after {before - self._begin}, which is not "
                "in the backup: logs between them were not copied, or are of "
                "another server"
            )
        # Transactions of the backup that these logs have, too.
        ahead = self._begin - before
        found = 0
        is_over = False
        for one in reader.transactions():
            if reader.skipped - self._begin:
                raise self._refused(
                    f"its logs lack {reader.skipped - self._begin}: a log "
                    "between others was not copied"
                )
            if one.gtid in self._begin:
                found += one.gtid in ahead
                continue
            is_over |= self._is_moment_over(one)
            if not is_over:
                self._read.add((one.gtid[0], one.gtid[1]))
                yield one
                self._missing.discard(one.gtid)
            elif found == len(ahead):
                break
        self._check(before, reader)

    def _check(self, before: GtidSet, reader: LogReader) -> None:
        """Refuse logs of another history, and those with gaps.

        :raises BackupDamagedError: then.
        """
        logged = before | (reader.logged or GtidSet())
        lasts = self._begin.lasts()
        if lasts and not any(gtid in logged for gtid in lasts):
            raise self._refused(
                f"its logs do not contain {self._begin}, where the backup was "
                "made: they are of another server, or of another history"
            )
        has = self._begin | self._read
        for origin, last in self._read.lasts():
            gap = GtidSet({origin: [(1, last)]}) - has
            if gap:
                raise self._refused(
                    f"its logs lack {gap}: logs were not copied, or what it "
                    "was rebuilt with is in none of them"
                )

    @property
    def count(self) -> int:
        """Transactions after the backup that :meth:`problems` has read."""
        return len(self._read)

    def contradicts(self, other: MySQLReplay) -> str | None:
        """Return transactions that only one of them has, of both."""
        mine, theirs = self._read - other._read, other._read - self._read
        return f"{mine} and {theirs}" if mine and theirs else None

    def _describe(self, session: Admin, described: bytes) -> None:
        super()._describe(session, described)
        # The session expects the GTID of each transaction after it.
        session.run("SET SESSION gtid_next = 'AUTOMATIC'")

    @staticmethod
    def _names(found: Iterable[Gtid]) -> str:
        return ", ".join(":".join(map(str, gtid)) for gtid in sorted(found))
