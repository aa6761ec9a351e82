"""Snapshots of two servers at one point of their replication.

The point is made in this order: the applier of the standby stops; sessions on
the primary open their snapshots, for which its commits wait some 10 ms; the
standby applies up to the position G of these snapshots, and stops again;
sessions open their snapshots there; the applier goes on.  That the standby is
at G after the last snapshot is checked: whatever others do meanwhile, the
snapshots contain the same writes.

The receiver of the standby runs all the time, so that semi-synchronous commits
do not wait.  The applier is started again in every case: after an error,
Ctrl-C, a SystemExit such as the commands raise at SIGTERM, or a lost
connection.  Only if this process is killed (``kill -9``), or loses its
network, between these two moments, it stays stopped until an operator runs
``START SLAVE SQL_THREAD`` there; the next comparison, and the doctor, say so.

While a snapshot is open, its server cannot purge old versions of rows.

The transactions of sessions that read one state of a server are started under
a lock of all tables (``FLUSH TABLES WITH READ LOCK``), which is held for some
milliseconds.  A statement that runs for longer is in its way, and new writes
wait behind it: after 1 s the lock is given up, and tried again.  Only InnoDB
has such states; other tables, and changes of tables meanwhile, are found by
:mod:`sqla_shard.fleet.copies`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, ExitStack
from dataclasses import dataclass

from sqla_shard.exc import (
    ApplierStoppedError,
    FleetServerError,
    OperationRefusedError,
    Problem,
)
from sqla_shard.fleet.admin import Admin
from sqla_shard.fleet.checksums import SESSION
from sqla_shard.fleet.replication import Replication, replication_of


@dataclass(frozen=True, kw_only=True)
class Snapshots:
    """Sessions that read the same state.

    :ivar position: its position, in the words of the server.
    :ivar history: its history, see :meth:`.Replication.history`.
    :ivar sessions: the sessions, with open transactions; UTC and utf8mb4.
    :ivar locked: seconds for which writes were stopped.
    """

    position: str
    history: str
    sessions: tuple[Admin, ...]
    locked: float

    def kill(self, by: Admin) -> None:
        """End the sessions, which may be in the middle of a result.

        :param by: another session on the server.
        """
        for session in self._ids:
            by.kill(session)

    _ids: tuple[int, ...]


@contextmanager
def snapshots(
    admin: Admin, count: int, *, timeout: float = 60.0
) -> Iterator[Snapshots]:
    """Open sessions that read one state of a server.

    :param admin: session on the server, which is not used meanwhile.
    :param count: number of sessions.
    :param timeout: seconds to wait for each response in these sessions.
    :raises FleetServerError: if the lock cannot be acquired because of a
        statement that runs for too long.
    """
    with ExitStack() as stack:
        sessions = []
        for _ in range(count):
            session = admin.another(timeout=timeout)
            stack.callback(session.close)
            prepare_snapshot(session)
            sessions.append(session)
        ids = tuple(one.value("SELECT CONNECTION_ID()") for one in sessions)
        with admin.another() as lock:
            lock.lock_all("FLUSH TABLES WITH READ LOCK")
            begin = time.monotonic()
            for session in sessions:
                session.run("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            position = replication_of(lock).committed()
            history = replication_of(lock).history()
            lock.run("UNLOCK TABLES")
            locked = time.monotonic() - begin
        yield Snapshots(
            position=position,
            history=history,
            sessions=tuple(sessions),
            locked=locked,
            _ids=ids,
        )


def prepare_snapshot(session: Admin) -> None:
    """Set up a session for a snapshot that is read for a long time."""
    session.run("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    session.run(
        "SET SESSION time_zone = '+00:00', sql_mode = '',"
        # With the binary log a savepoint would not release locks of tables.
        " sql_log_bin = 0,"
        # The reader waits for the server that it writes to.
        " net_write_timeout = 3600, wait_timeout = 86400"
    )
    _limit_statements(session, 0)


def _limit_statements(session: Admin, seconds: float) -> None:
    """Let the server end statements that take longer; 0 for no limit."""
    if session.is_mariadb:
        session.run(f"SET SESSION max_statement_time = {seconds:f}")
    else:
        session.run(f"SET SESSION max_execution_time = {1000 * seconds:.0f}")


#: Connects to a server.
Opener = Callable[[], Admin]

RESPONSE_SECONDS = 600.0
"""Seconds to wait for each response of a snapshot's session.

A chunk takes less than a second; a table without a key is read at once.
"""

_MAX_START_TRIES = 3


@dataclass(frozen=True, kw_only=True)
class CommonPoint:
    """Sessions on two servers that read the same state of the data.

    :ivar position: GTID position of both; of each, if there is no
        replication between them.
    :ivar pairs: sessions on the first server and on the second one.
    :ivar locked: seconds for which commits waited on the first server.
    :ivar stopped: seconds for which the second one applied nothing.
    """

    position: str
    pairs: tuple[tuple[Admin, Admin], ...]
    locked: float
    stopped: float


@contextmanager
def common_point(
    first: Opener,
    second: Opener,
    *,
    pairs: int,
    replicates: bool = True,
    patience: float = 60.0,
    timeout: float = RESPONSE_SECONDS,
) -> Iterator[CommonPoint]:
    """Open snapshots at a common point.

    :param first: connects to the primary, or to one of two servers without
        replication between them.
    :param second: connects to its standby, or to the other one.
    :param pairs: number of sessions on each.
    :param replicates: whether the second replicates from the first.  If not,
        each server has a state of its own, at about the same time.
    :param patience: seconds for the standby to catch up.
    :param timeout: seconds to wait for each response of the snapshots' sessions.
    :raises OperationRefusedError: if the second does not replicate now.
    :raises FleetServerError: if a server refuses a statement, does not
        respond, or does not catch up.
    :raises ApplierStoppedError: if the applier cannot be started again.
    """
    with ExitStack() as stack:
        one = stack.enter_context(first())
        two = stack.enter_context(second())
        stopped = 0.0
        if replicates:
            replication = replication_of(two)
            _check(replication)
            began = time.monotonic()
            with _applier_stopped(replication, second):
                mine = stack.enter_context(snapshots(one, pairs, timeout=timeout))
                end = replication_of(mine.sessions[0]).snapshot_end(mine.position)
                _apply(replication, mine.position, end, patience)
                other = stack.enter_context(snapshots(two, pairs, timeout=timeout))
                _assert_at(replication, mine.position, patience)
            stopped = time.monotonic() - began
            position = mine.position
        else:
            mine = stack.enter_context(snapshots(one, pairs, timeout=timeout))
            other = stack.enter_context(snapshots(two, pairs, timeout=timeout))
            position = f"{mine.position} | {other.position}"
        for session in (*mine.sessions, *other.sessions):
            prepare_comparison(session)
        yield CommonPoint(
            position=position,
            pairs=tuple(zip(mine.sessions, other.sessions, strict=True)),
            locked=max(mine.locked, 0.0 if replicates else other.locked),
            stopped=stopped,
        )


class QuietPoint:
    """Snapshots of two servers at a moment without writes to them.

    The sessions are opened before that moment, which then takes two
    statements on each.

    :param first: connects to the first server.
    :param second: connects to the second one.
    :param pairs: number of sessions on each.
    :param timeout: seconds to wait for each response of these sessions.
    :raises FleetServerError: if a server cannot be connected to.
    """

    def __init__(
        self, first: Opener, second: Opener, *, pairs: int, timeout: float
    ) -> None:
        self._stack = ExitStack()
        self._pairs: list[tuple[Admin, Admin]] = []
        try:
            with first() as one, second() as two:
                for _ in range(pairs):
                    sessions = (
                        one.another(timeout=timeout),
                        two.another(timeout=timeout),
                    )
                    for session in sessions:
                        self._stack.callback(session.close)
                        prepare_snapshot(session)
                        prepare_comparison(session)
                    self._pairs.append(sessions)
        except BaseException:
            self._stack.close()
            raise

    def open(self, position: str) -> CommonPoint:
        """Open the snapshots.

        :param position: GTID position of both, for the report.
        """
        for pair in self._pairs:
            for session in pair:
                session.run("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        return CommonPoint(
            position=position, pairs=tuple(self._pairs), locked=0.0, stopped=0.0
        )

    def close(self) -> None:
        """Close the sessions."""
        self._stack.close()


def prepare_comparison(session: Admin) -> None:
    """Set up a session for statements of a comparison."""
    for statement in SESSION:
        session.run(statement)
    # The server would go on with a statement that nobody waits for any more, and
    # each attempt would leave another.
    _limit_statements(session, session.timeout)
    if session.is_mariadb:
        # The server would end sessions that wait for the other one.
        session.run("SET SESSION idle_transaction_timeout = 0")
        session.run("SET SESSION idle_readonly_transaction_timeout = 0")


def _apply(replication: Replication, position: str, end: str, patience: float) -> None:
    """Apply up to a position, and stop."""
    # With nothing to apply, the applier would wait for the next write before
    # it knows where it is.
    if not replication.covers(replication.applied(), position):
        replication.apply_until(end)
        until = time.monotonic() + patience
        while not replication.reaches(position, 1.0):
            if time.monotonic() > until:
                break
        replication.stop_applier()
    _assert_at(replication, position, patience)


def _assert_at(replication: Replication, position: str, patience: float) -> None:
    applied = replication.applied()
    if replication.is_at(applied, position):
        return
    status = replication.status()
    error = "" if status is None else status.error
    raise replication.admin.error(
        f"it has applied {applied or 'nothing'}, not {position} of the "
        f"primary, within {patience:g} s; others must not start its applier, "
        "and nobody must write to it" + (f": {error}" if error else "")
    )


def _check(replication: Replication) -> None:
    """Refuse a server that does not replicate now."""
    status = replication.status()
    if status is not None and status.runs and status.uses_gtid:
        return
    if status is None:
        reason = "it has no primary; compare it without replication"
    elif not status.uses_gtid:
        reason = "it does not replicate by GTID; attach it again"
    else:
        reason = (
            f"its receiver is {status.receiver!r} and its applier "
            f"{status.applier!r}, not 'Yes'; repair its replication first"
        )
        if status.receiver == "Yes" and not status.error:
            reason += (
                ". Its applier has no error: it was stopped, as a comparison that was "
                f"killed leaves it; run on this server: {replication.START_APPLIER}"
            )
        if status.error:
            reason += f": {status.error}"
    raise OperationRefusedError(
        (Problem(str(replication.admin), reason),),
        operation=f"the comparison with {replication.admin.name}",
    )


@contextmanager
def _applier_stopped(replication: Replication, opener: Opener) -> Iterator[None]:
    try:
        replication.stop_applier()
        yield
    finally:
        _start_applier(replication, opener)


def _start_applier(replication: Replication, opener: Opener) -> None:
    """Start the applier in a new session: the first one may be lost.

    :raises ApplierStoppedError: if it cannot be started.
    """
    interrupted: BaseException | None = None
    reason = "interrupted"
    for _ in range(_MAX_START_TRIES):
        try:
            with opener() as admin:
                fresh = replication_of(admin)
                if fresh.status() is None:
                    # It is no standby any more, by an operation of others.
                    break
                fresh.stop_applier()
                fresh.start_applier()
        except FleetServerError as error:
            reason = str(error)
        except (KeyboardInterrupt, SystemExit) as error:
            interrupted = error
        else:
            break
    else:
        raise ApplierStoppedError(
            server=str(replication.admin),
            reason=reason,
            statement=replication.START_APPLIER,
        ) from interrupted
    if interrupted is not None:
        raise interrupted
