"""MySQL and MariaDB.

TLS: PyMySQL 1.2 without an ``ssl_*`` option tries TLS with an unverified
certificate and falls back to no TLS.  For that it builds a new context on
every connect, which reads the CA bundle of the system (20 to 45 ms) and does
not use it.  The process shares one such context: the same behaviour without
the cost.
``?ssl_ca=/etc/ssl/ca.pem&ssl_check_hostname=1`` in the URL requires verified
TLS.  Connections of asyncmy do the same in both cases.

New rows: a flush sends one INSERT for the new objects of a class on a shard.
MariaDB returns their ids and server defaults such as ``ts``.  MySQL has no
RETURNING: its ids follow each other, at the distance that the session has in
the variable ``auto_increment_increment``, which is read after each INSERT of
several rows; and a server default is read when it is first used, so before
the session is closed.  No trigger may give ids to new rows of a table with
AUTO_INCREMENT: where it gives them to all rows of an INSERT, this is an error;
where to some, objects would have the ids of others.  Both servers return
ids to ``insert().returning()``; what MySQL cannot return is refused.

``driver``                   timeouts, authentication and errors of the drivers
``pymysql_connections``      connections of PyMySQL
``mysqlclient_connections``  connections of mysqlclient
``asyncmy_connections``      connections of asyncmy
``new_keys``                 the ids of new rows on MySQL
``catalogue``                databases and definitions of tables
``ddl``                      changes of tables
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterable, Mapping
from math import ceil
from typing import Any

from sqlalchemy import bindparam, Connection, Engine, event, text
from sqlalchemy.engine import URL
from sqlalchemy.util import await_only

from sqla_shard.dialects.base import (
    Backend,
    Catalogue,
    DDL,
    Failure,
    interrupt,
    new_engine,
    NumberForm,
    PasswordError,
    PasswordSource,
    Secret,
)
from sqla_shard.dialects.coding import code_values
from sqla_shard.dialects.mysql import (
    asyncmy_connections,
    mysqlclient_connections,
    pymysql_connections,
)
from sqla_shard.dialects.mysql.catalogue import MySQLCatalogue
from sqla_shard.dialects.mysql.ddl import MySQLDDL, shortened_name
from sqla_shard.dialects.mysql.driver import (
    close_socket,
    initial_statement,
    SAFE,
    transport_of,
    with_limits,
    without_end,
)
from sqla_shard.dialects.mysql.new_keys import number_new_rows
from sqla_shard.dialects.polling import PIPELINING, Pipelining
from sqla_shard.util.logs import careful_log
from sqla_shard.util.masking import host_and_port

__all__ = ["MySQL"]


_log = careful_log(__name__)

# By the error number of the server or the driver.
_FAILURES: Mapping[int, Failure] = {
    # A deadlock; of MariaDB with innodb_snapshot_isolation, a row that was
    # locked is newer than the snapshot of the transaction; and of MySQL, the
    # same row has changed on another member of a group, known at COMMIT.
    **dict.fromkeys((1213, 1020, 3101), Failure.CONFLICT),
    # MySQL has another number for NOWAIT.
    **dict.fromkeys((1205, 3572), Failure.BUSY),
    # max_statement_time of MariaDB, and MAX_EXECUTION_TIME of MySQL.
    **dict.fromkeys((1969, 3024), Failure.TIMEOUT),
    # UNION causes these too: each of its columns must have one collation.
    # The last is MySQL's for a text that the other character set lacks.
    **dict.fromkeys((1267, 1270, 1271, 3854), Failure.COLLATIONS),
    # The last two are MySQL's: for a connection that was idle for too long,
    # and for one to a server in offline_mode.
    **dict.fromkeys(
        (1053, 1317, 1927, 2002, 2003, 2006, 2013, 2014, 2055, 4031, 3032), Failure.LOST
    ),
    **dict.fromkeys((1146, 1049, 1142, 1044), Failure.MISPLACED),
    # The second is MySQL's for a database: ALTER DATABASE .. READ ONLY = 1.
    **dict.fromkeys((1836, 3989), Failure.FENCED),
    # A wrong password; a plugin that a side does not have; an expired
    # password, a locked account; TLS that is required and not used; a host
    # that no account is for.
    **dict.fromkeys(
        (1045, 1130, 1251, 1524, 1698, 1862, 2059, 2061, 3118, 3159, 4151),
        Failure.LOGIN,
    ),
    # MySQL's, unless restrict_fk_on_non_standard_key is off.
    6125: Failure.UNKEYED,
    # Too many wrong passwords: of MySQL, and of MariaDB.
    **dict.fromkeys((3955, 4150), Failure.LOGIN),
}
# An option of the server prevents the statement; the message names it.
_OPTION_PREVENTS = 1290
_READ_ONLY_OPTION = re.compile("(?:super[-_])?read[-_]only")
# If the statement names a table, MariaDB reports a missing database as a
# missing table.
_LACKS = {1146: "table", 1049: "database", 1142: "grant", 1044: "grant"}
#: SERVER_STATUS_IN_TRANS: the bit of the server status in a transaction.
_IN_TRANSACTION = 1
_KNOWN_DATABASE = "sqla_shard.database"


class MySQL(Backend):
    """Any driver of SQLAlchemy for MySQL and MariaDB.

    :param driver: driver for URLs that do not name one, such as ``pymysql``.
    :param asynchronous: whether the driver is asynchronous, such as
        ``asyncmy``; it is then used for all URLs.
    :param pipelining: how connections of PyMySQL and mysqlclient wait.
    """

    waits = True
    counts_upserts = True
    one_writer = False
    collates = True
    catalogue: Catalogue = MySQLCatalogue()
    ddl: DDL = MySQLDDL()

    def __init__(
        self,
        driver: str,
        *,
        asynchronous: bool = False,
        pipelining: Pipelining = PIPELINING,
    ) -> None:
        self._driver = driver
        self._asynchronous = asynchronous
        self._pipelining = pipelining
        self._warned: set[URL] = set()

    def locate(self, url: URL, database: str) -> tuple[URL, str]:
        """Return one engine URL for all databases of a server."""
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
        password: PasswordSource | None = None,
    ) -> Engine:
        """Return an engine whose sessions are UTC, strict and utf8mb4.

        :raises MissingDriverError: if the driver is not installed.
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
            **SAFE.get(driver, {}),
            **arguments,
        }
        if url.password is not None and not _PASSWORDS & given.keys():
            # Tools that collect errors store the arguments with the traceback.
            name = "passwd" if driver == "mysqldb" else "password"
            arguments[name] = Secret(str(url.password))
        engine = new_engine(url, settings, asynchronous=self._asynchronous)
        number_new_rows(engine)
        code_values(engine)
        tls = any(key.startswith("ssl") for key in {*url.query, *arguments})
        opening = self._opening(engine.dialect.driver, tls=tls)
        event.listen(engine, "do_connect", LoggingIn(opening, password))
        event.listen(engine, "checkin", _forget_database)
        return engine

    def _opening(self, driver: str, *, tls: bool) -> Any:
        """Return the handler of ``do_connect`` of a driver.

        :param tls: whether the application has said how to use TLS.
        """
        if driver == "pymysql":
            return pymysql_connections.Connecting(
                shares=not tls, pipelining=self._pipelining
            )
        if driver == "mysqldb":
            return mysqlclient_connections.Connecting(pipelining=self._pipelining)
        if driver == "asyncmy":
            return asyncmy_connections.open_connection
        return _open_plainly

    def _warn(self, driver: str, url: URL, arguments: Mapping[str, Any]) -> None:
        missing = without_end(driver, url, arguments)
        # Warn once, not for each engine that a command opens.
        if not missing or url in self._warned:
            return
        self._warned.add(url)
        where = host_and_port(url.host or "localhost", url.port or 3306)
        _log.warning(
            "%s has no %s (driver %s): if the server hangs, callers wait without limit",
            where,
            " and no ".join(missing),
            driver,
            extra={"action": "open engine", "server": where},
        )

    def abandon(self, dbapi_connection: Any) -> None:
        """Close the child's copy of the socket without sending QUIT."""
        if hasattr(dbapi_connection, "_rfile"):
            _close_copy(dbapi_connection)
        elif isinstance(dbapi_connection, mysqlclient_connections.Adapted):
            dbapi_connection.close_copy()
        else:
            _abandoned.append(dbapi_connection)
            if self._asynchronous:
                close_socket(dbapi_connection)

    def give_up(self, dbapi_connection: Any) -> None:
        """Close the socket; the server then ends the session."""
        close_socket(dbapi_connection)

    def in_transaction(self, dbapi_connection: Any) -> bool:
        """Read the status in the last response of the server."""
        wire = getattr(dbapi_connection, "driver_connection", dbapi_connection)
        status = getattr(wire, "server_status", None)
        return isinstance(status, int) and bool(status & _IN_TRANSACTION)

    def abort(self, dbapi_connection: Any) -> None:
        """Shut down the socket of PyMySQL or asyncmy."""
        if not self._asynchronous:
            interrupt(dbapi_connection)
            return
        transport = transport_of(dbapi_connection)
        if transport is not None:
            # The loop then resumes the task that waits for a response.
            transport.abort()

    def limited(self, connection: Connection, text: str, seconds: float) -> str:
        """Add ``max_statement_time``, or ``MAX_EXECUTION_TIME`` on MySQL."""
        if getattr(connection.dialect, "is_mariadb", False):
            return f"SET STATEMENT max_statement_time={seconds:f} FOR {text}"
        end = _end_of_select(text)
        if end is None:
            return text
        limit = f"MAX_EXECUTION_TIME({ceil(seconds * 1000)})"
        hints = _HINTS.match(text, end)
        if hints is None:
            return f"{text[:end]} /*+ {limit} */{text[end:]}"
        # The server reads one comment of hints.
        return f"{text[:end]} /*+ {limit}{text[hints.end() :]}"

    def use(self, connection: Connection, cursor: Any, schema: str) -> None:
        """Send ``USE`` if the default database is another."""
        known = schema, os.getpid()
        if connection.info.get(_KNOWN_DATABASE) != known:
            preparer = connection.dialect.identifier_preparer
            cursor.execute(f"USE {preparer.quote(schema)}")
            connection.info[_KNOWN_DATABASE] = known

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
        """Set REPEATABLE READ: READ COMMITTED locks no gaps."""
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        # In autocommit mode a lock would end with its statement.
        connection.exec_driver_sql("START TRANSACTION")

    def begin_skipping(self, connection: Connection) -> None:
        """Set READ COMMITTED for the next transaction."""
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")

    def logs_statements(self, connection: Connection) -> bool:
        """Read ``binlog_format``, if there is a binary log."""
        row = connection.execute(_BINARY_LOG).one()
        return bool(row[0]) and row[1] == "STATEMENT"

    def try_lock(self, connection: Connection, name: str) -> bool:
        """Call ``GET_LOCK`` without waiting."""
        name = shortened_name(name)
        return bool(connection.scalar(_TRY_LOCK, {"name": name}))

    def unlock(self, connection: Connection, name: str) -> None:
        """Call ``RELEASE_LOCK``."""
        connection.execute(_UNLOCK, {"name": shortened_name(name)})

    def create_database(self, connection: Connection, schema: str) -> None:
        """Create the database with utf8mb4 and binary order, as on SQLite."""
        quoted = connection.dialect.identifier_preparer.quote(schema)
        connection.exec_driver_sql(
            f"CREATE DATABASE IF NOT EXISTS {quoted} "
            "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
        )

    def tables(
        self, connection: Connection, schemas: Iterable[str]
    ) -> dict[str, set[str]]:
        """Read information_schema, once for all databases."""
        tables: dict[str, set[str]] = {name: set() for name in schemas}
        rows = connection.execute(_TABLES, {"schemas": list(tables)})
        for schema, table in rows:
            tables[schema].add(table)
        return tables

    def triggers(self, connection: Connection, table: str) -> list[str]:
        """Read information_schema; those the account may not see miss."""
        return list(connection.scalars(_TRIGGERS, {"table": table}))

    def character_sets(self, connection: Connection, table: str) -> dict[str, str]:
        """Read information_schema."""
        rows = connection.execute(_CHARACTER_SETS, {"table": table})
        return {str(name): str(character_set) for name, character_set in rows}

    def generated(self, connection: Connection, table: str) -> list[str]:
        """Read information_schema."""
        return list(connection.scalars(_GENERATED, {"table": table}))

    def classify(self, error: BaseException) -> Failure:
        """Read the server's error number, the driver's first argument."""
        number = error.args[0] if error.args else None
        if number == _OPTION_PREVENTS and _READ_ONLY_OPTION.search(str(error.args[1:])):
            return Failure.FENCED
        if not isinstance(number, int):
            return Failure.OTHER
        return _FAILURES.get(number, Failure.OTHER)

    def lacks(self, error: BaseException) -> str:
        """Read the server's error number."""
        return _LACKS[error.args[0]]


_HINTS = re.compile(r"\s*/\*\+")
# Parentheses in texts, names and comments are skipped, those that do not end
# as well.
_TOKENS = re.compile(
    r"""
    '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | `[^`]*` | /\*.*?\*/
    | (?:['"`]|/\*).* | (?P<word> \bAS\s*\( | [()] | \bSELECT\b )
    """,
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)


def _end_of_select(query: str) -> int | None:
    """Return the end of the first SELECT outside common table expressions.

    The server ignores a time limit inside them.
    """
    is_named: list[bool] = []
    for token in _TOKENS.finditer(query):
        word = token["word"]
        if word is None:
            continue
        if word.endswith("("):
            is_named.append(word != "(")
        elif word == ")":
            del is_named[-1:]
        elif not any(is_named):
            return token.end()
    return None


def _open_plainly(dialect: Any, record: Any, cargs: Any, cparams: Any) -> Any:
    return dialect.connect(*cargs, **cparams)


#: By the schema of the table: by that of the trigger a server with many
#: databases reads the files of all.
_TRIGGERS = text(
    "SELECT trigger_name FROM information_schema.triggers "
    "WHERE event_object_schema = DATABASE() AND event_object_table = :table "
    "ORDER BY trigger_name"
)
#: Character sets that have a character for each byte, and no two bytes for one: found
#: by a conversion of all of them to Unicode and back.  Not ascii, which on MariaDB
#: has bytes above 127, nor cp1250 to cp1257, greek, hebrew and others with gaps.
EXACT_SETS = (
    *("cp850", "cp852", "cp866", "keybcs2", "koi8r", "koi8u", "latin1", "latin2"),
    *("latin5", "latin7", "macce", "macroman"),
)
_CHARACTER_SETS = text(
    "SELECT column_name, character_set_name FROM information_schema.columns "
    "WHERE table_schema = DATABASE() AND table_name = :table "
    "AND character_set_name NOT LIKE 'utf%' AND character_set_name NOT IN :exact"
).bindparams(bindparam("exact", list(EXACT_SETS), expanding=True))
_GENERATED = text(
    "SELECT column_name FROM information_schema.columns "
    "WHERE table_schema = DATABASE() AND table_name = :table "
    "AND generation_expression <> '' ORDER BY ordinal_position"
)
_TABLES = text(
    "SELECT table_schema, table_name FROM information_schema.tables "
    "WHERE table_schema IN :schemas"
).bindparams(bindparam("schemas", expanding=True))

_BINARY_LOG = text("SELECT @@GLOBAL.log_bin, @@SESSION.binlog_format")
_TRY_LOCK = text("SELECT GET_LOCK(:name, 0)")
_UNLOCK = text("DO RELEASE_LOCK(:name)")

# Inherited connections of unknown drivers: referenced until the child process
# ends, because closing or collecting them would send QUIT to the server.
_abandoned: list[Any] = []


def _close_copy(connection: Any) -> None:
    """Close the child's copy of the socket of PyMySQL.

    Closing its file would wait for the lock of a thread of the parent that
    waits for a response; the child does not have that thread.
    """
    file, connection._rfile = connection._rfile, None
    sock, connection._sock = connection._sock, None
    if file is not None:
        file.detach().close()
    if sock is not None:
        sock.close()


def _forget_database(dbapi_connection: Any, record: Any) -> None:
    # A default database cannot be unset.  Textual SQL without a prefix would
    # use it in the next transaction; and the server checks the privileges of
    # the time of USE, so that a shard that has moved could still be written.
    known = record.info.pop(_KNOWN_DATABASE, None)
    # A child process must not send QUIT on a connection of its parent.
    if known is not None and known[1] == os.getpid():
        record.close()


# -- Logins to MySQL and MariaDB, with any driver.
#
# The server chooses how a client authenticates.  ``caching_sha2_password``, the
# default of MySQL, takes the password itself, over TLS or encrypted with RSA,
# unless the server has the account in its cache.  A restart empties the cache,
# as does FLUSH PRIVILEGES, which a split sends: a client that can do neither
# connects until then, and not afterwards.


_ACCESS_DENIED = 1045
#: The client error of a failed authentication plugin.
_PLUGIN_ERROR = 2061
# PyMySQL and asyncmy raise a RuntimeError, which names neither the server nor
# what else can be done.
_PACKAGE = re.compile("'(cryptography|pynacl)' package is required")
# Reports shorten messages: the remedy comes first.
_REMEDIES = {
    "cryptography": "use TLS (ssl_ca=FILE in the URL) or pip install "
    "cryptography: the account has the plugin caching_sha2_password or "
    "sha256_password, which needs one of them",
    "pynacl": "pip install PyNaCl: the account has the plugin ed25519, which needs it",
}


#: Drivers that send a text in Latin-1, where servers have that of CREATE USER
#: in UTF-8.  Their error for other characters shows the whole password.
_LATIN_1 = ("pymysql", "asyncmy")
#: Arguments of drivers.
_PASSWORDS = {"password", "passwd"}


class LoggingIn:
    """Handler of ``do_connect``: passwords that change, and clear errors.

    :param opening: opens a connection; a handler of ``do_connect``, too.
    :param password: the password of the server; None for that of the URL.
    """

    def __init__(
        self,
        opening: Callable[[Any, Any, Any, Any], Any],
        password: PasswordSource | None,
    ) -> None:
        self._opening = opening
        self._password = password

    def __call__(self, dialect: Any, record: Any, cargs: Any, cparams: Any) -> Any:
        """Handle ``do_connect``."""
        source = self._password
        if source is None:
            return self._attempt(dialect, record, cargs, dict(cparams))
        secret = source.known or self._ask(source, None, dialect)
        given = {**cparams, "password": secret.text}
        try:
            return self._attempt(dialect, record, cargs, given)
        except dialect.loaded_dbapi.Error as error:
            if error.args[:1] != (_ACCESS_DENIED,):
                raise
        # The password may have been replaced since.  Ask once, or a wrong one
        # would be asked for without end.
        secret = self._ask(source, secret, dialect)
        given = {**cparams, "password": secret.text}
        return self._attempt(dialect, record, cargs, given)

    def _attempt(self, dialect: Any, record: Any, cargs: Any, given: Any) -> Any:
        for name in _PASSWORDS & given.keys():
            if isinstance(given[name], Secret):
                given[name] = given[name].text
            if isinstance(given[name], str) and dialect.driver in _LATIN_1:
                given[name] = given[name].encode()
        # Openings change the arguments.
        where = host_and_port(
            given.get("host") or "localhost", given.get("port") or 3306
        )
        try:
            return self._opening(dialect, record, cargs, given)
        except BaseException as error:
            _drop_frames(error)
            package = _PACKAGE.search(str(error))
            if not isinstance(error, RuntimeError) or package is None:
                raise error.with_traceback(None) from error.__cause__
            raise dialect.loaded_dbapi.OperationalError(
                _PLUGIN_ERROR, f"{where}: {_REMEDIES[package[1]]}"
            ) from error
        finally:
            given.clear()

    def _ask(self, source: PasswordSource, used: Secret | None, dialect: Any) -> Secret:
        try:
            if dialect.is_async:
                # The function may block, and so may its lock.
                secret: Secret = await_only(asyncio.to_thread(source.ask, used))
                return secret
            return source.ask(used)
        except PasswordError as error:
            raise dialect.loaded_dbapi.OperationalError(
                _PLUGIN_ERROR, str(error)
            ) from error


def _drop_frames(error: BaseException) -> None:
    """Drop the frames of the driver, which have the password, from an error.

    What it was raised in, which may be an error of the application, is not shown.
    """
    one: BaseException | None = error
    while one is not None and one.__traceback__ is not None:
        one.__traceback__ = None
        one.__suppress_context__ = True
        one = one.__cause__
