"""The changes of one database in binary logs, from a backup to a moment.

Rows and statements are for the restored database only: no statement is sent
that names another.
"""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from sqla_shard.exc import BackupDamagedError, Problem
from sqla_shard.fleet.admin import Admin
from sqla_shard.fleet.binlog_archive import archives_of, BinlogArchive, LogFile
from sqla_shard.fleet.binlog_events import (
    BinlogTransaction,
    first_gtids,
    first_state,
    Gtid,
    GtidSet,
    LogReader,
    Rows,
)
from sqla_shard.fleet.binlog_statements import NotReplayableError, rewritten
from sqla_shard.fleet.files import File
from sqla_shard.fleet.replication import gtids
from sqla_shard.fleet.storage import Storage

_MAX_SHOWN_CHARS = 100
_MAX_PROBLEMS = 5


@dataclass(frozen=True, kw_only=True)
class Moment:
    """The moment that is restored: one of the two is given.

    :ivar gtid: the last transactions to restore, as ``domain-server-number``,
        with commas between those of several domains; on MySQL as
        ``origin:number``, or a set such as ``gtid_executed``.
    :ivar time: seconds since the epoch: the first transaction of which the
        COMMIT began at that second or later is not restored, nor is any after
        it.
    """

    gtid: str | None = None
    time: float | None = None


class BinlogReplay(ABC):
    """The changes of a database after a backup, up to a moment.

    :param archive: logs of one server.
    :param position: position of the backup.
    :param database: name of the database in the logs.
    :param target: name of the restored database.
    :param moment: where to end.
    :raises BackupDamagedError: if the position cannot be read.
    """

    def __init__(
        self,
        archive: BinlogArchive,
        position: str,
        database: str,
        target: str,
        moment: Moment,
    ) -> None:
        self._archive = archive
        self._database = database
        self._target = target
        self._moment = moment
        self._missing: set[Gtid] = set()
        self._set_position(position)

    @abstractmethod
    def _set_position(self, position: str) -> None:
        """Take the position of the backup, and the GTIDs of the moment."""

    @property
    def address(self) -> str:
        """The server of the logs."""
        return self._archive.address

    # -- reading ----------------------------------------------------------

    def problems(self) -> list[Problem]:
        """Return why the changes cannot be replayed.

        :returns: also if the logs do not reach from the backup to the moment.
        """
        place = self._archive.place
        archive = self._archive
        if not archive.logs:
            return [Problem(place, "no binary log was copied")]
        closed = archive.logs[-1].closed
        time = self._moment.time
        if time is not None and time > closed:
            return [
                Problem(
                    place,
                    f"the logs end {time - closed:.0f} s before that moment; copy the "
                    "newer ones first: sqla-shard fleet backup binlogs",
                )
            ]
        found: list[Problem] = []
        try:
            damaged = archive.problems(self._logs())
            if damaged:
                return damaged
            reader = self._reader()
            for transaction in self._transactions(reader):
                found += self._statement_problems(place, transaction)
                if len(found) == _MAX_PROBLEMS:
                    return found
        except BackupDamagedError as error:
            return [*found, *error.problems]
        if self._missing:
            found.append(
                Problem(
                    place,
                    f"the logs do not contain {self._names(self._missing)}; copy the "
                    "newer ones first: sqla-shard fleet backup binlogs",
                )
            )
        return found

    def _statement_problems(
        self, place: str, transaction: BinlogTransaction
    ) -> Iterator[Problem]:
        reasons = [] if transaction.problem is None else [transaction.problem]
        for part in transaction.parts:
            if isinstance(part, Rows):
                continue
            try:
                rewritten(part, self._database, self._target)
            except NotReplayableError as error:
                text = part.text.decode("utf-8", "backslashreplace")
                reasons.append(f"{error}: {text[:_MAX_SHOWN_CHARS]}")
        for reason in reasons:
            yield Problem(
                f"{place}: {transaction.name}",
                f"a change that cannot be replayed: {reason}. Restore to a "
                "moment before it, or from a later backup",
            )

    def _reader(self) -> LogReader:
        paths = [self._archive.file(one) for one in self._logs()]
        return LogReader(paths, self._database, self._target)

    def _logs(self) -> Sequence[LogFile]:
        """Return the logs from that in which the backup was made."""
        logs = self._archive.logs
        for index in reversed(range(1, len(logs))):
            if self._is_before_backup(self._archive.file(logs[index])):
                return logs[index:]
        return logs

    @abstractmethod
    def _is_before_backup(self, log: File) -> bool:
        """Return whether a log says that it begins before the backup."""

    @abstractmethod
    def _transactions(self, reader: LogReader) -> Iterator[BinlogTransaction]:
        """Yield the transactions to replay, in order.

        :raises BackupDamagedError: if the logs begin after the backup, or do
            not contain its position.
        """

    def _is_moment_over(self, one: BinlogTransaction) -> bool:
        if self._moment.gtid is None:
            return one.time >= (self._moment.time or 0)
        return not self._missing

    def _refused(self, reason: str) -> BackupDamagedError:
        place = self._archive.place
        problem = Problem(
            place,
            f"{reason}. Restore from a later backup, or from the logs of "
            "another server",
        )
        return BackupDamagedError((problem,), backup=place)

    @property
    @abstractmethod
    def count(self) -> int:
        """Transactions after the backup that :meth:`problems` has read."""

    @abstractmethod
    def contradicts(self, other: Any) -> str | None:
        """Return two transactions of different histories.

        Each of the two replays has to be read by :meth:`problems`.
        """

    @staticmethod
    def _names(found: Iterable[Gtid]) -> str:
        return ", ".join("-".join(map(str, gtid)) for gtid in sorted(found))

    # -- writing ----------------------------------------------------------

    def apply(self, session: Admin, other: Admin) -> Iterator[BinlogTransaction]:
        """Replay, and yield each transaction that has changed the database.

        :param session: session with the restored database as its default.
        :param other: session without a default database, so that a statement
            about another table fails.
        :raises FleetServerError: if the server refuses a change.
        """
        reader = self._reader()
        described = b""
        for transaction in self._transactions(reader):
            if reader.format != described:
                described = reader.format
                self._describe(session, described)
            if self._apply(transaction, session, other):
                yield transaction

    def _describe(self, session: Admin, described: bytes) -> None:
        """Send the description of the format of a log."""
        session.run_verbatim(_binlog(described))

    def _apply(
        self, transaction: BinlogTransaction, session: Admin, other: Admin
    ) -> bool:
        is_changed = is_open = False
        for part in transaction.parts:
            if isinstance(part, Rows):
                if not is_open:
                    session.run("BEGIN")
                    is_open = True
                session.run_verbatim(_binlog(part.events))
                is_changed = True
                continue
            statement = rewritten(part, self._database, self._target)
            if statement is not None:
                chosen = session if statement.has_default else other
                chosen.run(
                    f"SET SESSION sql_mode = {int(statement.sql_mode)}, timestamp = "
                    f"{int(part.time) or 'DEFAULT'}, time_zone = %s",
                    part.time_zone or "+00:00",
                )
                chosen.run_verbatim(statement.text)
                is_changed = True
        if is_open:
            session.run("COMMIT")
        return is_changed


class MariaDBReplay(BinlogReplay):
    """Reads positions of domains, servers and numbers."""

    def _set_position(self, position: str) -> None:
        self._begin = frozenset(gtids(position))
        self._start = {domain: number for domain, _, number in self._begin}
        self._wanted = {
            gtid
            for gtid in gtids(self._moment.gtid or "")
            if gtid not in self._begin and gtid[2] >= self._start.get(gtid[0], -1)
        }
        # Domain, server, first and last number of what follows the backup.
        self._runs: list[tuple[int, int, int, int]] = []

    def _is_before_backup(self, log: File) -> bool:
        state = first_state(log)
        return state is not None and not self._is_later(state)

    def _is_later(self, state: Mapping[tuple[int, int], int]) -> bool:
        """Return whether a state has changes that the backup does not."""
        return any(
            number > self._start.get(domain, -1)
            for (domain, _), number in state.items()
        )

    def _transactions(self, reader: LogReader) -> Iterator[BinlogTransaction]:
        self._missing = set(self._wanted)
        self._runs.clear()
        ahead, domains = self._ahead()
        is_over = False
        for one in reader.transactions():
            if one.gtid in ahead:
                ahead.remove(one.gtid)
                domains.add(one.gtid[0])
                continue
            domain, _, number = one.gtid
            domains.add(domain)
            if any(gtid[0] == domain for gtid in ahead):
                if number > self._start[domain]:
                    break
                continue
            is_over |= self._is_moment_over(one)
            if not is_over:
                self._record(one.gtid)
                yield one
                self._missing.discard(one.gtid)
            elif not ahead:
                return
        # A rebuilt standby has not logged the domains that ended before.
        ended = {gtid for gtid in ahead if gtid[0] not in domains}
        if ahead != ended or (ahead and ahead == self._begin):
            raise self._refused(
                f"its logs do not contain {self._names(ahead)}, where the backup was "
                "made: they are of another server, or of another history"
            )

    def _ahead(self) -> tuple[set[Gtid], set[int]]:
        """Return the GTIDs of the backup that are not before the first log.

        The second are the domains that are.

        :raises BackupDamagedError: if the logs begin after it.
        """
        log = self._logs()[0]
        state = first_state(self._archive.file(log))
        if state is None:
            raise self._refused(f"{log.name} does not say where it begins")
        if self._is_later(state):
            later = {
                (*origin, number)
                for origin, number in state.items()
                if number > self._start.get(origin[0], -1)
            }
            raise self._refused(
                f"its logs begin after {self._names(later)}, which is not in the "
                "backup: logs between them were not copied, or are of another server"
            )
        ahead = {gtid for gtid in self._begin if state.get(gtid[:2]) != gtid[2]}
        return ahead, {domain for domain, _ in state}

    def _record(self, gtid: Gtid) -> None:
        domain, server, number = gtid
        if self._runs:
            *origin, first, last = self._runs[-1]
            if origin == [domain, server] and number == last + 1:
                self._runs[-1] = (domain, server, first, number)
                return
        self._runs.append((domain, server, number, number))

    @property
    def count(self) -> int:
        """Transactions after the backup that :meth:`problems` has read."""
        return sum(last - first + 1 for _, _, first, last in self._runs)

    def contradicts(self, other: MariaDBReplay) -> str | None:
        """Return two transactions of one number, by different servers.

        Each of the two replays has to be read by :meth:`problems`.
        """
        for domain, server, first, last in self._runs:
            for their_domain, theirs, begin, end in other._runs:
                number = max(first, begin)
                if (
                    domain == their_domain
                    and server != theirs
                    and number <= min(last, end)
                ):
                    return f"{domain}-{server}-{number} and {domain}-{theirs}-{number}"
        return None


def _binlog(events: bytes) -> str:
    return f"BINLOG '{base64.b64encode(events).decode()}'"


def best_replay(
    kind: type[BinlogReplay],
    storage: Storage,
    position: str,
    database: str,
    target: str,
    moment: Moment,
) -> tuple[BinlogReplay | None, list[Problem]]:
    """Return a replay without problems, or those of every server.

    If the logs of several servers reach to a time, they must not contradict
    each other.

    :param kind: for the kind of the servers.
    :param storage: where the logs of all servers are.
    """
    archives, problems = archives_of(storage)
    good: list[BinlogReplay] = []
    for archive in archives:
        try:
            replay = kind(archive, position, database, target, moment)
        except BackupDamagedError as error:
            return None, list(error.problems)
        found = replay.problems()
        problems += found
        if found:
            continue
        if moment.gtid is not None:
            return replay, []
        good.append(replay)
    for one, two in combinations(good, 2):
        both = one.contradicts(two)
        if both is not None:
            return None, [
                Problem(
                    "binary logs",
                    f"those of {one.address} and {two.address} are of "
                    f"different histories ({both}): a time does not say "
                    "which of them is meant; use --to-gtid",
                )
            ]
    if good:
        # A standby that was late has less.
        return max(good, key=lambda one: one.count), []
    if not archives and not problems:
        problems.append(
            Problem(
                "binary logs",
                "none were copied; copy them from now on, with: sqla-shard "
                "fleet backup binlogs",
            )
        )
    return None, problems


class MySQLReplay(BinlogReplay):
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
                f"its logs begin after {before - self._begin}, which is not in the "
                "backup: logs between them were not copied, or are of another server"
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
