"""A connection of the operator to one server.

It never reconnects: a step whose connection was lost fails, and nothing that
the session had set (a lock, a timeout) is silently gone in a later statement.
"""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, PendingRollbackError
from sqlalchemy.pool import NullPool

from sqla_shard.dialects import backend_for
from sqla_shard.dialects.base import PasswordSource, Statement
from sqla_shard.exc import FleetServerError
from sqla_shard.exc.base import original, shortened_list

SYSTEM = frozenset(["information_schema", "mysql", "performance_schema", "sys"])
"""Databases of a server itself."""

#: User-level lock that the operation in progress holds on each of its
#: servers.  A process that takes the operation over kills the holder, so
#: that one which was asleep cannot send another statement.
_LOCK = "sqla_shard.fleet"
#: Prefix of the lock of each further session of that operation, before its id.
_PART = f"{_LOCK}."
_PARTS = (
    "SELECT id FROM information_schema.processlist"
    " WHERE IS_USED_LOCK(CONCAT(%s, id)) = id"
)
#: Seconds until sessions that were killed have ended.
_KILL_SECONDS = 10.0
#: Statements in one round trip, and their letters: a text that is longer than
#: max_allowed_packet ends the session.
_TOGETHER, _PACKET = 256, 2**19
#: How often a lock of all tables is tried.
_MAX_TRIES = 5
_NO_SUCH_THREAD = 1094
_LOCK_WAIT_TIMEOUT = 1205
_LONG_STATEMENTS = (
    "SELECT id, user, time, state FROM information_schema.processlist"
    " WHERE command = 'Query' AND time > %s AND id <> CONNECTION_ID()"
    " AND user <> 'system user' ORDER BY time DESC"
)
_WAITS_FOR_SPACE = (
    "SELECT COUNT(*) FROM information_schema.processlist WHERE command LIKE %s"
    " AND state IN ('Waiting for someone to free space', 'Waiting for disk space')"
)
_ESTIMATES = (
    "SELECT database_name, table_name, n_rows, (clustered_index_size + "
    "sum_of_other_index_sizes) * @@innodb_page_size FROM mysql.innodb_table_stats"
)
#: Between the name of a table and that of its partition, of MariaDB and MySQL.
_PARTITION = re.compile("#P#", re.IGNORECASE)
_GONE = 2006
#: The connection for TLS failed.
_TLS = 2026


class Admin:
    """A session of the operator on one server, in autocommit mode.

    A context manager that closes it.  For one thread at a time.

    :param url: URL with the account of the operator.
    :param name: name of the server for messages, such as
        ``"sharddb001 standby"``.
    :param timeout: seconds to wait for the connection, and for each response;
        a server that does not respond in time raises an error, and says
        nothing about its state.
    :param password: the password; None for that of the URL.
    :raises FleetServerError: if the server cannot be connected to.
    """

    def __init__(
        self,
        url: URL,
        *,
        name: str,
        timeout: float = 10.0,
        password: PasswordSource | None = None,
    ) -> None:
        self.host: str = str(url.host)
        self.port: int = url.port or 3306
        self.name = name
        self.timeout = timeout
        self._url = url
        if url.drivername.startswith("sqlite"):
            # The threads that read facts report errors of servers alone.
            raise FleetServerError(
                server=name,
                number=0,
                reason="it is a folder of SQLite files, without accounts and "
                "replication; operations need servers of MySQL or MariaDB",
            )
        self._backend = backend_for(url.drivername, driver="pymysql")
        engine_url, _ = self._backend.locate(url, "")
        self._engine = self._backend.open(
            engine_url,
            {
                "poolclass": NullPool,
                "isolation_level": "AUTOCOMMIT",
                # CLONE and CHANGE REPLICATION SOURCE have passwords.
                "hide_parameters": True,
            },
            timeout=timeout,
            password=password,
        )
        self._password = password
        #: Id of this session, if it has claimed the server.
        self._claimed: int | None = None
        self._connection: Connection
        with self._translated():
            self._connection = self._engine.connect()
        if not self.is_mariadb:
            # Otherwise AUTO_INCREMENT and sizes are up to a day old.
            self.run("SET SESSION information_schema_stats_expiry = 0")

    def __repr__(self) -> str:
        return f"<Admin {self}>"

    def __str__(self) -> str:
        return f"{self.name} ({self.address})"

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the server ends the session."""
        with suppress(DBAPIError):
            self._connection.close()
        self._engine.dispose()

    def another(self, *, timeout: float = 10.0) -> Admin:
        """Open another session on this server.

        If this session has claimed the server, a process that takes over ends
        the other one, too.

        :raises FleetServerError: if the server cannot be connected to, or
            another process has taken over.
        """
        session = Admin(
            self._url, name=self.name, timeout=timeout, password=self._password
        )
        if self._claimed is not None:
            try:
                session._join(self._claimed)
            except BaseException:
                session.close()
                raise
        return session

    @property
    def address(self) -> str:
        """``host:port`` of the server."""
        return f"{self.host}:{self.port}"

    @property
    def is_mariadb(self) -> bool:
        """Whether the server is MariaDB, not MySQL."""
        return bool(getattr(self._connection.dialect, "is_mariadb", False))

    @property
    def version(self) -> tuple[int, ...]:
        """Version of the server, such as ``(10, 11, 19)``."""
        found = self._connection.dialect.server_version_info or ()
        return tuple(part for part in found if isinstance(part, int))[:3]

    def error(self, reason: str) -> FleetServerError:
        """Return an error of this server that it has not reported itself."""
        return FleetServerError(server=str(self), number=0, reason=reason)

    # -- statements -------------------------------------------------------

    def run(self, sql: str, *parameters: object) -> None:
        """Run a statement.

        :param sql: with ``%s`` for each parameter; another ``%`` is written
            twice, even if there is no parameter.
        :raises FleetServerError: if the server refuses it, or does not
            respond in time.
        """
        with self._translated():
            self._connection.exec_driver_sql(sql, parameters or None).close()

    def run_verbatim(self, sql: str) -> None:
        """Run a statement without parameters, in which ``%`` is no mark."""
        with self._translated():
            self._connection.exec_driver_sql(
                sql, execution_options={"no_parameters": True}
            ).close()

    def lock_all(self, sql: str) -> None:
        """Run a statement that waits for all statements that are running.

        New writes wait behind it, so it gives up after 1 s, and is tried
        again, five times, with pauses of 1 s.  An attempt can fail although
        no statement is long: one waits for a row of a transaction whose next
        write waits here.

        :raises FleetServerError: with number 1205 if a statement runs for
            longer; it names those that do.
        """
        self.run("SET SESSION lock_wait_timeout = 1")
        for left in reversed(range(_MAX_TRIES)):
            try:
                self.run(sql)
            except FleetServerError as error:
                if error.number != _LOCK_WAIT_TIMEOUT:
                    raise
                if not left:
                    raise self._blocked(error) from error
                time.sleep(1)
            else:
                return

    def _blocked(self, error: FleetServerError) -> FleetServerError:
        """Return an error that names the sessions that a lock waited for."""
        # LOCK TABLES, or a transaction that has read the table of a DDL.
        found = (
            ", ".join(self.long_statements(0)[:3])
            or "a session without a statement holds a lock"
        )
        return FleetServerError(
            server=error.server,
            number=error.number,
            reason=f"{error.reason}; in its way: {found}; end it with KILL, "
            "or wait, then try again",
        )

    def long_statements(self, seconds: float) -> list[str]:
        """Return a clause about each longer statement, the longest first."""
        return [
            f"session {number} of {user!r} runs a statement for {taken} s"
            + (f" ({state})" if state else "")
            for number, user, taken, state in self.rows(_LONG_STATEMENTS, seconds)
        ]

    def waits_for_space(self, command: str = "%") -> bool:
        """Return whether a session, or replication, waits on a full disk.

        MySQL does not show it of a COMMIT, and no server to an account without
        PROCESS.

        :param command: pattern of the commands of sessions.
        """
        return bool(self.value(_WAITS_FOR_SPACE, command))

    def behind(self, primary: Admin, seconds: float) -> FleetServerError:
        """Return the error of this standby, which does not catch up."""
        slow = [
            f"{one}: {text}"
            for one in (primary, self)
            for text in one.long_statements(seconds)[:3]
        ]
        return self.error(
            f"it stays behind its primary for {seconds:.0f} s; "
            f"{'; '.join(slow) or 'no statement runs for so long'}. Look for full "
            "disks in the error logs of both, and for locks with SHOW PROCESSLIST"
        )

    def run_many(self, sql: str, rows: list[tuple[object, ...]]) -> None:
        """Run a statement once for each tuple of parameters."""
        if rows:
            with self._translated():
                self._connection.exec_driver_sql(sql, rows).close()

    def rows(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Return all rows of a statement; see :meth:`run`."""
        with self._translated():
            found = self._connection.exec_driver_sql(sql, parameters or None)
            return [tuple(row) for row in found.fetchall()]

    def each(self, statements: Iterable[str]) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows of each statement; one round trip has many of them.

        :param statements: see :meth:`run`; without parameters.
        :raises FleetServerError: after the rows of the statements before the one
            that the server refuses.
        """
        batch = self._backend.ddl.batch(self._connection)
        assert batch is not None  # noqa: S101 - of PyMySQL
        with self._translated():
            try:
                for part in _packets(list(statements)):
                    for _, rows in batch.send(part):
                        yield list(rows)
            except BaseException:
                # If the session was lost, its error, or Ctrl-C, says why.
                with suppress(DBAPIError):
                    batch.end()
                raise
            batch.end()

    def run_each(self, statements: Iterable[str]) -> None:
        """Run statements; see :meth:`each`."""
        for _ in self.each(statements):
            pass

    def mappings(self, sql: str, *parameters: object) -> list[dict[str, Any]]:
        """Return all rows as dictionaries by column; see :meth:`run`."""
        with self._translated():
            found = self._connection.exec_driver_sql(sql, parameters or None)
            return [dict(row) for row in found.mappings().all()]

    def value(self, sql: str, *parameters: object) -> Any:
        """Return the only value of a statement; see :meth:`run`."""
        ((found,),) = self.rows(sql, *parameters)
        return found

    def stream(self, sql: str, most: int) -> Iterator[list[Any]]:
        """Yield lists of values of the only column of a statement.

        The rows are not collected in memory; the session can run no other
        statement before the last one is read.

        :param sql: a statement without parameters, in which ``%`` is no mark.
        :param most: number of values in a list.
        """
        with self._translated():
            found = self._connection.exec_driver_sql(
                sql, execution_options={"no_parameters": True, "stream_results": True}
            )
            for part in found.scalars().partitions(most):
                yield list(part)

    def digests(self, databases: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return a digest of the definition of every table, by database.

        :param databases: names; those that do not exist are left out.
        """
        with self._translated():
            return self._backend.catalogue.digests(self._connection, databases)

    def estimates(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Return rows and bytes of tables, by database and name.

        InnoDB has them in a table: from ``information_schema`` the server would
        open every table to read them, 0.1 ms of its time for each.  They are
        those of the last time that a tenth of the rows had changed.

        :returns: without the tables that have no estimates there.
        """
        found: dict[tuple[str, str], tuple[int, int]] = {}
        for database, name, rows, size in self.rows(_ESTIMATES):
            table = database, _PARTITION.split(name)[0]
            before = found.get(table, (0, 0))
            found[table] = before[0] + int(rows), before[1] + int(size)
        return found

    def has_foreign_keys_across(self) -> bool:
        """Return whether a foreign key refers to another database.

        InnoDB knows it: to tell which one it is, the server would open every
        table, which takes seconds for thousands of databases.
        """
        table = "innodb_sys_foreign" if self.is_mariadb else "innodb_foreign"
        return bool(
            self.value(
                f"SELECT COUNT(*) FROM information_schema.{table}"  # noqa: S608
                " WHERE SUBSTRING_INDEX(for_name, '/', 1)"
                " <> SUBSTRING_INDEX(ref_name, '/', 1)"
            )
        )

    def databases(self) -> list[str]:
        """Return the names of all databases, sorted."""
        return sorted(name for (name,) in self.rows("SHOW DATABASES"))

    def variables(self, *patterns: str) -> dict[str, str]:
        """Return global variables by name, in lower case.

        :param patterns: names, or patterns of LIKE; a variable that the
            server does not have is left out.
        """
        found = {}
        for pattern in patterns:
            for name, value in self.rows("SHOW GLOBAL VARIABLES LIKE %s", pattern):
                found[name.lower()] = value
        return found

    def counters(self, *patterns: str) -> dict[str, str]:
        """Return status variables by name, in lower case."""
        found = {}
        for pattern in patterns:
            for name, value in self.rows("SHOW GLOBAL STATUS LIKE %s", pattern):
                found[name.lower()] = value
        return found

    def write_while_closed(self) -> None:
        """Let the operator write on a server that stays ``read_only``.

        A fence of MySQL sets ``super_read_only``, which stops the operator,
        too; MariaDB has no such variable.
        """
        if not self.is_mariadb:
            self.run("SET GLOBAL super_read_only = 0")

    @contextmanager
    def unlogged(self) -> Iterator[None]:
        """Keep the statements of a block out of the binary log.

        The server may be closed: see :meth:`write_while_closed`.
        """
        self.write_while_closed()
        self.run("SET SESSION sql_log_bin = 0")
        try:
            yield
        except BaseException:
            # If the session was lost, its error says why.
            with suppress(FleetServerError):
                self.run("SET SESSION sql_log_bin = 1")
            raise
        self.run("SET SESSION sql_log_bin = 1")

    # -- sessions of others -----------------------------------------------

    def claim(self) -> None:
        """Take the lock of operations on this server from any other process.

        The session that has it is killed, with those that :meth:`another` has
        opened from it.  Call this only while holding the lock of the fleet:
        then they belong to a process which has lost it.

        :raises FleetServerError: if the lock cannot be acquired in 10 s, or
            they do not end.
        """
        for seconds in (0, 5, 5):
            if self.value("SELECT GET_LOCK(%s, %s)", _LOCK, seconds) == 1:
                self._claimed = self.value("SELECT CONNECTION_ID()")
                self._end_parts()
                return
            holder = self.value("SELECT IS_USED_LOCK(%s)", _LOCK)
            if holder is not None:
                self.kill(holder)
        raise self.error(f"the lock {_LOCK!r} is not released by its session")

    def _join(self, owner: int) -> None:
        """Become a session of the operation whose session has the lock.

        The lock first: a process that takes over after the look ends it.
        """
        self.run("DO GET_LOCK(CONCAT(%s, CONNECTION_ID()), 0)", _PART)
        # It is free if the server was restarted by the operation.
        if self.value("SELECT IS_USED_LOCK(%s)", _LOCK) not in (None, owner):
            raise FleetServerError(
                server=str(self),
                number=_GONE,
                reason="another process has taken the operation over",
            )

    def _end_parts(self) -> None:
        """End the further sessions of an operation that was taken over."""
        deadline = time.monotonic() + _KILL_SECONDS
        while found := [number for (number,) in self.rows(_PARTS, _PART)]:
            if time.monotonic() > deadline:
                raise FleetServerError(
                    server=str(self),
                    number=0,
                    reason=f"sessions {shortened_list(found, 5)} of an "
                    f"earlier operation do not end in {_KILL_SECONDS:g} s",
                )
            for number in found:
                self.kill(number)
            time.sleep(0.01)

    def kill(self, session_id: int) -> None:
        """End a session, if it still exists."""
        try:
            self.run(f"KILL {int(session_id)}")
        except FleetServerError as error:
            if error.number != _NO_SUCH_THREAD:
                raise

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            found = original(error)
            number = found.args[0] if found.args else 0
            if isinstance(getattr(found, "original_exception", None), ssl.SSLError):
                # PyMySQL has the number of a server that is not there.
                number = _TLS
            raise FleetServerError(
                server=str(self),
                number=number if isinstance(number, int) else 0,
                reason=_message(found),
            ) from error
        except PendingRollbackError as error:
            raise FleetServerError(
                server=str(self),
                number=_GONE,
                reason="the session was lost by an earlier statement",
            ) from error


def _packets(statements: Iterable[str]) -> Iterator[list[Statement]]:
    """Yield the statements that are sent together."""
    part: list[Statement] = []
    size = 0
    for sql in statements:
        if part and (len(part) == _TOGETHER or size + len(sql) > _PACKET):
            yield part
            part, size = [], 0
        part.append((sql, ()))
        size += len(sql)
    if part:
        yield part


def quoted(name: str) -> str:
    """Return a name in backticks."""
    return f"`{name.replace('`', '``')}`"


def marked(name: str) -> str:
    """Return a name in backticks, for statements that may have parameters."""
    return quoted(name).replace("%", "%%")


def _message(error: BaseException) -> str:
    text = str(error.args[-1] if error.args else error)
    return re.sub(r"\s+", " ", text).strip() or type(error).__name__
