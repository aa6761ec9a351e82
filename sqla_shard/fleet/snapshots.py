"""Several sessions that read one state of a server.

Their transactions are started under a lock of all tables (``FLUSH TABLES
WITH READ LOCK``), which is held for some milliseconds.  A statement that runs
for longer is in its way, and new writes wait behind it: after 1 s the lock is
given up, and tried again.  Only InnoDB has such states; other tables, and
changes of tables meanwhile, are found by :mod:`sqla_shard.fleet.copies`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, ExitStack
from dataclasses import dataclass

from sqla_shard.fleet.admin import Admin
from sqla_shard.fleet.replication import replication_of


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
    limit = "max_statement_time" if session.is_mariadb else ("max_execution_time")
    session.run(f"SET SESSION {limit} = 0")
