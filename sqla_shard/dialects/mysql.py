"""MySQL and MariaDB, which share a protocol and most of everything.

TLS: PyMySQL 1.2, given no ``ssl_*`` option, tries TLS with an unverified
certificate and falls back to none.  It builds a new context for
that on every connect, which reads the system's CA bundle (20 to 45 ms) and
then does not use it.  The engine shares one such context per engine:
the same behaviour without the cost.  Whoever wants TLS to be *required* and
verified says so in the URL: ``?ssl_ca=/etc/ssl/ca.pem&ssl_check_hostname=1``.
asyncmy understands that too; given no ``ssl_*`` option, it uses no TLS.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable
from collections.abc import Mapping
from functools import cache
from math import ceil
from typing import Any

from sqlalchemy import bindparam
from sqlalchemy import Connection
from sqlalchemy import Engine
from sqlalchemy import event
from sqlalchemy import text
from sqlalchemy.engine import URL

from sqla_shard.dialects.asyncmy import adapt_connecting
from sqla_shard.dialects.asyncmy import close_socket
from sqla_shard.dialects.asyncmy import transport_of
from sqla_shard.dialects.authenticating import refuse_clear_passwords
from sqla_shard.dialects.base import Failure
from sqla_shard.dialects.base import new_engine
from sqla_shard.dialects.catalogue import Catalogue
from sqla_shard.dialects.ddl import DDL
from sqla_shard.dialects.interrupting import interrupt
from sqla_shard.dialects.limits import initial_statement
from sqla_shard.dialects.limits import with_limits
from sqla_shard.dialects.limits import without_end
from sqla_shard.dialects.mysql_catalogue import MySQLCatalogue
from sqla_shard.dialects.mysql_ddl import MySQLDDL
from sqla_shard.dialects.parts import NumberForm

__all__ = ["MySQL"]

_log = logging.getLogger(__name__)

_DEADLOCK = 1213
# That of NOWAIT is another one on MySQL.
_LOCK_WAIT_TIMEOUTS = frozenset({1205, 3572})
# A row that was locked is newer than the transaction's snapshot: MariaDB
# with innodb_snapshot_isolation refuses that instead of showing it.
_CHANGED_SINCE_SNAPSHOT = 1020
_CONFLICTS = frozenset({_DEADLOCK, _CHANGED_SINCE_SNAPSHOT})
# MariaDB's max_statement_time, and MySQL's MAX_EXECUTION_TIME.
_TIMEOUTS = frozenset({1969, 3024})
# Of a UNION too, whose columns must have one.
_COLLATIONS = frozenset({1267, 1270, 1271})
# The server is configured so: which of its options, the text tells.
_OPTION_PREVENTS = 1290
_READ_ONLY_OPTION = re.compile("(?:super[-_])?read[-_]only")
_READ_ONLY_MODE = 1836
# Of a missing database MariaDB says that the table is not there, where the
# statement names both.
_LACKS = {1146: "table", 1049: "database", 1142: "grant", 1044: "grant"}
# The last: MySQL 8 says so of a connection that was idle for too long.
_GONE = frozenset({1053, 1317, 1927, 2003, 2006, 2013, 2014, 2055, 4031})
#: The bit of it in the status of each answer.
_IN_TRANSACTION = 1
_KNOWN_DATABASE = "sqla_shard.database"


class MySQL:
    """Any driver of SQLAlchemy for MySQL and MariaDB.

    :param driver: used where a URL names none, such as ``pymysql``.
    :param asynchronous: whether it is one for event loops, such as
        ``asyncmy``; it is then used whatever the URL names.
    """

    waits = True
    collates = True
    catalogue: Catalogue = MySQLCatalogue()
    ddl: DDL = MySQLDDL()

    def __init__(self, driver: str, *, asynchronous: bool = False) -> None:
        self._driver = driver
        self._asynchronous = asynchronous
        self._warned: set[URL] = set()

    def locate(self, url: URL, database: str) -> tuple[URL, str]:
        """Every database of a server shares one engine."""
        kind, _, driver = url.drivername.partition("+")
        if self._asynchronous:
            driver = self._driver
        url = url.set(drivername=f"{kind}+{driver or self._driver}")
        return url._replace(database=None), database

    def open(
        self,
        url: URL,
        options: Mapping[str, Any],
        *,
        timeout: float | None = None,
    ) -> Engine:
        """Return an engine whose sessions are UTC, strict and utf8mb4.

        :raises MissingDriverError: when the driver is not installed.
        """
        settings: dict[str, Any] = {
            "paramstyle": "format",
            "pool_recycle": 1800,
            **options,
        }
        driver = url.get_driver_name()
        given = settings.get("connect_args", {})
        arguments = with_limits(driver, url, given, timeout)
        if timeout is None:
            self._warn(driver, url, arguments)
        settings["connect_args"] = arguments = {
            "init_command": initial_statement(url, arguments),
            "charset": "utf8mb4",
            **arguments,
        }
        engine = new_engine(url, settings, asynchronous=self._asynchronous)
        if engine.dialect.driver == "pymysql":
            tls = any(
                key.startswith("ssl") for key in {*url.query, *arguments}
            )
            event.listen(engine, "do_connect", _Connecting(shares=not tls))
        if engine.dialect.driver == "asyncmy":
            event.listen(engine, "do_connect", adapt_connecting)
        event.listen(engine, "checkin", _forget_database)
        return engine

    def _warn(
        self, driver: str, url: URL, arguments: Mapping[str, Any]
    ) -> None:
        missing = without_end(driver, url, arguments)
        # Not again for each engine that a command opens for itself.
        if not missing or url in self._warned:
            return
        self._warned.add(url)
        where = f"{url.host}:{url.port or 3306}"
        _log.warning(
            "%s has no %s (driver %s): while it hangs, whoever uses it waits "
            "for ever",
            where,
            " and no ".join(missing),
            driver,
            extra={"action": "open engine", "server": where},
        )

    def abandon(self, dbapi_connection: Any) -> None:
        """Close the child's copy of the socket without saying goodbye."""
        if hasattr(dbapi_connection, "_rfile"):
            _close_copy(dbapi_connection)
        else:
            _abandoned.append(dbapi_connection)
            if self._asynchronous:
                close_socket(dbapi_connection)

    def give_up(self, dbapi_connection: Any) -> None:
        """Close the socket, by which the server ends the session."""
        close_socket(dbapi_connection)

    def in_transaction(self, dbapi_connection: Any) -> bool:
        """Read what the server's last answer has said."""
        wire = getattr(dbapi_connection, "driver_connection", dbapi_connection)
        status = getattr(wire, "server_status", None)
        return isinstance(status, int) and bool(status & _IN_TRANSACTION)

    def abort(self, dbapi_connection: Any) -> None:
        """Cut PyMySQL's or asyncmy's socket; other drivers are waited for."""
        if not self._asynchronous:
            interrupt(dbapi_connection)
            return
        transport = transport_of(dbapi_connection)
        if transport is not None:
            # The loop then tells who waits for an answer.
            transport.abort()

    def limited(
        self, connection: Connection, text: str, seconds: float
    ) -> str:
        """Say it in the statement: MariaDB and MySQL spell it differently."""
        if getattr(connection.dialect, "is_mariadb", False):
            return f"SET STATEMENT max_statement_time={seconds:f} FOR {text}"
        hint = f"SELECT /*+ MAX_EXECUTION_TIME({ceil(seconds * 1000)}) */"
        return text.replace("SELECT", hint, 1)

    def use(self, connection: Connection, cursor: Any, schema: str) -> None:
        """Send ``USE`` where the connection's default is another."""
        known = schema, os.getpid()
        if connection.info.get(_KNOWN_DATABASE) != known:
            preparer = connection.dialect.identifier_preparer
            cursor.execute(f"USE {preparer.quote(schema)}")
            connection.info[_KNOWN_DATABASE] = known

    def lock(self, connection: Connection) -> None:
        """Do nothing: FOR UPDATE locks rows here."""

    def number(self, value: Any, form: NumberForm) -> str:
        """Return a number, or NULL, in SQL, with its type."""
        if form.name == "integer":
            return "CAST(NULL AS SIGNED)" if value is None else str(value)
        if form.name == "double":
            # Without an exponent it would be a decimal.
            shown = "NULL" if value is None else repr(float(value))
            return f"({shown} + 0e0)" if "e" not in shown else f"({shown})"
        shown = "NULL" if value is None else f"{value:f}"
        return f"CAST({shown} AS DECIMAL(65, {form.scale}))"

    def begin_locking(self, connection: Connection) -> None:
        """Ask for REPEATABLE READ: READ COMMITTED locks no gaps."""
        connection.exec_driver_sql(
            "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"
        )
        # In autocommit mode a lock would be gone with its statement.
        connection.exec_driver_sql("START TRANSACTION")

    def create_file(self, engine: Engine) -> None:
        """Do nothing: the server has the files."""

    def create_database(self, connection: Connection, schema: str) -> None:
        """Create it with utf8mb4 and binary order, as on SQLite."""
        quoted = connection.dialect.identifier_preparer.quote(schema)
        connection.exec_driver_sql(
            f"CREATE DATABASE IF NOT EXISTS {quoted} "
            "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
        )

    def tables(
        self, connection: Connection, schemas: Iterable[str]
    ) -> dict[str, set[str]]:
        """Ask information_schema once for all databases."""
        found: dict[str, set[str]] = {name: set() for name in schemas}
        rows = connection.execute(_TABLES, {"schemas": list(found)})
        for schema, table in rows:
            found[schema].add(table)
        return found

    def classify(self, error: BaseException) -> Failure:
        """Read the server's error number, the driver's first argument."""
        number = error.args[0] if error.args else None
        if number in _CONFLICTS:
            return Failure.CONFLICT
        if number in _LOCK_WAIT_TIMEOUTS:
            return Failure.BUSY
        if number in _TIMEOUTS:
            return Failure.TIMEOUT
        if number in _COLLATIONS:
            return Failure.COLLATIONS
        if number in _GONE:
            return Failure.LOST
        if number in _LACKS:
            return Failure.MISPLACED
        if number == _READ_ONLY_MODE or (
            number == _OPTION_PREVENTS
            and _READ_ONLY_OPTION.search(str(error.args[1:]))
        ):
            return Failure.FENCED
        return Failure.OTHER

    def lacks(self, error: BaseException) -> str:
        """Read the server's error number."""
        return _LACKS[error.args[0]]


_TABLES = text(
    "SELECT table_schema, table_name FROM information_schema.tables "
    "WHERE table_schema IN :schemas"
).bindparams(bindparam("schemas", expanding=True))

# Connections of unknown drivers that a child process inherited: kept until
# it ends, because closing or collecting them would speak to the server.
_abandoned: list[Any] = []


def _close_copy(connection: Any) -> None:
    """Close a child's copy of the socket of PyMySQL.

    Closing its file would wait for a lock, which a thread of the parent has
    that waits for an answer; and that thread is not in the child.
    """
    file, connection._rfile = connection._rfile, None
    sock, connection._sock = connection._sock, None
    if file is not None:
        file.detach().close()
    if sock is not None:
        sock.close()


def _forget_database(dbapi_connection: Any, record: Any) -> None:
    # There is no way back to no default database.  A text without a prefix
    # would find it in the next transaction, and the server goes by the
    # privileges that were looked up at USE: one that has lost a shard would
    # go on being written.
    known = record.info.pop(_KNOWN_DATABASE, None)
    # A child process must not say goodbye for its parent.
    if known is not None and known[1] == os.getpid():
        record.close()


class _Connecting:
    """Connects as PyMySQL would, but for three things.

    Passwords are sent in the clear to verified servers alone.  One TLS context
    serves all connects of a process.  And ``connect_timeout`` is for all of
    connecting: a server that hangs takes connections all the same, and would
    be waited for without end.

    :param shares: whether the URL leaves TLS to PyMySQL.
    """

    def __init__(self, *, shares: bool) -> None:
        self._shares = shares

    def __call__(
        self, dialect: Any, record: Any, cargs: Any, cparams: Any
    ) -> Any:
        refuse_clear_passwords(cparams, dialect.loaded_dbapi)
        made = _class_of(dialect.loaded_dbapi.connections, self._shares)
        return made(*cargs, **cparams)


# Not one for each engine: SQLAlchemy's caches of statements keep a hundred
# dialects of servers that have long left, and a context takes half a megabyte.
# Two threads that come here first make one class each, which does no harm; a
# lock could be held while the process forks.
@cache
def _class_of(connections: Any, shares: bool) -> type[Any]:
    made = _with_one_timeout(connections)
    return _with_shared_context(made) if shares else made


def _with_one_timeout(connections: Any) -> type[Any]:
    base: type[Any] = connections.Connection
    if not hasattr(base, "connect"):
        return base

    def connect(self: Any, sock: Any = None) -> None:
        own = getattr(self, "_read_timeout", None)
        limit = self.connect_timeout or own
        self._read_timeout = min(limit, own) if limit and own else limit
        try:
            base.connect(self, sock)
        finally:
            self._read_timeout = own

    return type("Connection", (base,), {"connect": connect})


def _with_shared_context(base: type[Any]) -> type[Any]:
    original = getattr(base, "_create_ssl_ctx", None)
    if original is None:
        return base
    shared: list[Any] = []

    def create_ssl_ctx(self: Any, options: Any) -> Any:
        if options:
            return original(self, options)
        if not shared:
            shared.append(original(self, options))
        return shared[0]

    return type("Connection", (base,), {"_create_ssl_ctx": create_ssl_ctx})
