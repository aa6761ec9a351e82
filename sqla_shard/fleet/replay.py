"""The changes of one database in binary logs, from a backup to a moment.

Rows and statements are for the restored database only: no statement is sent
that names another.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass

from sqla_shard.exc import BackupDamagedError
from sqla_shard.exc import Problem
from sqla_shard.fleet.admin import Admin
from sqla_shard.fleet.binlog_archive import BinlogArchive
from sqla_shard.fleet.binlog_archive import LogFile
from sqla_shard.fleet.binlog_events import first_state
from sqla_shard.fleet.binlog_events import Gtid
from sqla_shard.fleet.binlog_events import LogReader
from sqla_shard.fleet.binlog_events import Rows
from sqla_shard.fleet.binlog_events import Transaction
from sqla_shard.fleet.binlog_statements import NotReplayableError
from sqla_shard.fleet.binlog_statements import rewritten
from sqla_shard.fleet.replication import gtids

__all__ = ["Moment", "Replay", "best_replay"]

_SHOWN = 100
_MOST = 5


@dataclass(frozen=True, kw_only=True)
class Moment:
    """The moment that is restored: one of the two is given.

    :ivar gtid: the last transactions to restore, as ``domain-server-number``,
        with commas between those of several domains.
    :ivar time: seconds since the epoch: the first transaction of which the
        COMMIT began at that second or later is not restored, nor is any after
        it.
    """

    gtid: str | None = None
    time: float | None = None


class Replay:
    """The changes of a database after a backup, up to a moment.

    :param archive: logs of one server.
    :param position: position of the backup.
    :param database: name of the database in the logs.
    :param target: name of the restored database.
    :param moment: where to end.
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
        self._start = {gtid[0]: gtid[2] for gtid in gtids(position)}
        self._database = database
        self._target = target
        self._moment = moment
        self._wanted = {
            (domain, number)
            for domain, _, number in gtids(moment.gtid or "")
            if number > self._start.get(domain, -1)
        }
        self._missing = set(self._wanted)

    # -- reading ----------------------------------------------------------

    def problems(self) -> list[Problem]:
        """Return why the changes cannot be replayed.

        :returns: also if the logs do not reach from the backup to the moment.
        """
        place = str(self._archive.folder)
        archive = self._archive
        if not archive.logs:
            return [Problem(place, "no binary log was copied")]
        closed = archive.logs[-1].closed
        time = self._moment.time
        if time is not None and time > closed:
            return [
                Problem(
                    place,
                    f"the logs end {time - closed:.0f} s before that moment; "
                    "copy the newer ones first: sqla-shard fleet backup "
                    "binlogs",
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
                if len(found) == _MOST:
                    return found
        except BackupDamagedError as error:
            return [*found, *error.problems]
        if self._missing:
            missing = ", ".join(
                f"{domain}-...-{number}"
                for domain, number in sorted(self._missing)
            )
            found.append(
                Problem(
                    place,
                    f"the logs do not contain {missing}; copy the newer ones "
                    "first: sqla-shard fleet backup binlogs",
                )
            )
        return found

    def _statement_problems(
        self, place: str, transaction: Transaction
    ) -> Iterator[Problem]:
        reasons = [] if transaction.problem is None else [transaction.problem]
        for part in transaction.parts:
            if isinstance(part, Rows):
                continue
            try:
                rewritten(part, self._database, self._target)
            except NotReplayableError as error:
                text = part.text.decode("utf-8", "backslashreplace")
                reasons.append(f"{error}: {text[:_SHOWN]}")
        for reason in reasons:
            yield Problem(
                f"{place}: {transaction.name}",
                f"a change that cannot be replayed: {reason}. Restore to a "
                "moment before it, or from a later backup",
            )

    def _reader(self) -> LogReader:
        paths = [self._archive.folder / one.name for one in self._logs()]
        return LogReader(paths, self._database, self._target)

    def _logs(self) -> Sequence[LogFile]:
        """Return the logs from that in which the backup was made."""
        logs = self._archive.logs
        for index in reversed(range(1, len(logs))):
            state = first_state(self._archive.folder / logs[index].name)
            if state is not None and not self._is_later(state):
                return logs[index:]
        return logs

    def _is_later(self, state: Mapping[tuple[int, int], int]) -> bool:
        """Return whether a state has changes that the backup does not."""
        return any(
            number > self._start.get(domain, -1)
            for (domain, _), number in state.items()
        )

    def _transactions(self, reader: LogReader) -> Iterator[Transaction]:
        """Yield the transactions to replay, in order.

        :raises BackupDamagedError: if the logs begin after the backup.
        """
        self._missing = set(self._wanted)
        is_first = True
        for one in reader.transactions():
            domain, _, number = one.gtid
            if is_first:
                self._check_begin(reader, one.gtid)
                is_first = False
            if number <= self._start.get(domain, -1):
                continue
            if self._moment.gtid is None:
                if one.time >= (self._moment.time or 0):
                    return
            elif not self._missing:
                return
            yield one
            self._missing.discard((domain, number))

    def _check_begin(self, reader: LogReader, first: Gtid) -> None:
        """Refuse logs of which the first one begins after the backup."""
        state = dict(reader.state or {})
        # The state before the first transaction.
        if state.get(first[:2]) == first[2]:
            del state[first[:2]]
        number = self._start.get(first[0], 0)
        if self._is_later(state) or first[2] > number + 1:
            name = "-".join(map(str, first))
            raise BackupDamagedError(
                (
                    Problem(
                        str(self._archive.folder),
                        f"its logs begin with {name}, after the backup: logs "
                        "between them were not copied. Restore from a later "
                        "backup, or from the logs of another server",
                    ),
                ),
                backup=str(self._archive.folder),
            )

    # -- writing ----------------------------------------------------------

    def apply(self, session: Admin, other: Admin) -> Iterator[Transaction]:
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
                session.run_verbatim(_binlog(described))
            if self._apply(transaction, session, other):
                yield transaction

    def _apply(
        self, transaction: Transaction, session: Admin, other: Admin
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
                chosen.run(f"SET SESSION sql_mode = {int(statement.sql_mode)}")
                chosen.run_verbatim(statement.text)
                is_changed = True
        if is_open:
            session.run("COMMIT")
        return is_changed


def _binlog(events: bytes) -> str:
    return f"BINLOG '{base64.b64encode(events).decode()}'"


def best_replay(
    archives: Sequence[BinlogArchive],
    position: str,
    database: str,
    target: str,
    moment: Moment,
) -> tuple[Replay | None, list[Problem]]:
    """Return a replay without problems, or those of every server.

    :param archives: the logs of all servers.
    """
    problems: list[Problem] = []
    for archive in archives:
        replay = Replay(archive, position, database, target, moment)
        found = replay.problems()
        if not found:
            return replay, []
        problems += found
    if not archives:
        problems.append(
            Problem(
                "binary logs",
                "none were copied; copy them from now on, with: sqla-shard "
                "fleet backup binlogs",
            )
        )
    return None, problems
