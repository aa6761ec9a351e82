"""SQLite: a server is a directory, a virtual shard is one file in it.

For demos, tests and learning.  A file has one writer at a time and no row
locks; so that read-modify-write is exact, ``FOR UPDATE`` acquires the write
lock of the whole file, that is, of one virtual shard.  Reads outside such a
lock see the last commit, not a snapshot.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, event, inspect, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from sqla_shard.dialects.base import (
    Backend,
    Catalogue,
    DDL,
    Failure,
    new_engine,
    NumberForm,
)
from sqla_shard.dialects.coding import code_values
from sqla_shard.dialects.passwords import PasswordSource
from sqla_shard.dialects.sqlite.catalogue import SQLiteCatalogue
from sqla_shard.dialects.sqlite.ddl import SQLiteDDL

__all__ = ["SQLite"]

_TRIGGERS = text(
    "SELECT name FROM sqlite_master "
    "WHERE type = 'trigger' AND tbl_name = :table ORDER BY name"
)
_BUSY = ("database is locked", "database table is locked")
_NO_FILE = "there is no file "
_MISSING = (_NO_FILE, "no such table: ")
_abandoned: list[Any] = []
# An event loop has weak references to its tasks only.
_interrupts: set[asyncio.Future[None]] = set()


class SQLite(Backend):
    """SQLite files through the driver of the standard library.

    :param asynchronous: whether to use aiosqlite, which has a thread for each
        connection, so that event loops can wait for the files.
    :ivar waits: whether several files can be read at the same time.
    """

    collates = False
    counts_upserts = False
    one_writer = True
    catalogue: Catalogue = SQLiteCatalogue()
    ddl: DDL = SQLiteDDL()

    def __init__(self, *, asynchronous: bool = False) -> None:
        self._asynchronous = self.waits = asynchronous

    def locate(self, url: URL, database: str) -> tuple[URL, str]:
        """Return an engine URL for each database, which is a file."""
        directory = url.database or "."
        path = str(Path(directory) / f"{database}.sqlite")
        if self._asynchronous:
            url = url.set(drivername="sqlite+aiosqlite")
        return url.set(database=path), "main"

    def open(
        self,
        url: URL,
        options: Mapping[str, Any],
        *,
        timeout: float | None = None,
        password: PasswordSource | None = None,
    ) -> Engine:
        """Return an engine that waits for other writers for 30 seconds.

        :raises MissingDriverError: if aiosqlite is not installed.
        """
        settings = dict(options)
        # The driver begins a transaction at the first write only, and without
        # the lock: two readers that then write would deadlock instead of
        # waiting for each other.
        arguments = {
            "isolation_level": "IMMEDIATE",
            "timeout": 30.0,
            "factory": _Existing,
        }
        arguments.update(settings.get("connect_args", {}))
        settings["connect_args"] = arguments
        engine = new_engine(url, settings, asynchronous=self._asynchronous)
        code_values(engine)
        if self._asynchronous:
            event.listen(engine, "do_connect", _check_file)
        event.listen(engine, "connect", _prepare)
        event.listen(engine, "savepoint", _begin_before_savepoint)
        return engine

    def abandon(self, dbapi_connection: Any) -> None:
        """Keep a reference: a child must not close a file of its parent."""
        _abandoned.append(dbapi_connection)

    def give_up(self, dbapi_connection: Any) -> None:
        """Let the thread of aiosqlite close the file and end."""
        dbapi_connection.driver_connection.stop()

    def in_transaction(self, dbapi_connection: Any) -> bool:
        """Read the attribute of the driver."""
        wire = getattr(dbapi_connection, "driver_connection", dbapi_connection)
        return bool(wire.in_transaction)

    def abort(self, dbapi_connection: Any) -> None:
        """Interrupt the running statement, from any thread."""
        if self._asynchronous:
            interrupt = dbapi_connection.driver_connection.interrupt()
            task = asyncio.ensure_future(interrupt)
            _interrupts.add(task)
            task.add_done_callback(_interrupts.discard)
        else:
            dbapi_connection.interrupt()

    def lock(self, connection: Connection) -> None:
        """Acquire the write lock of the file."""
        fairy = connection.connection
        driver_connection: Any = fairy.driver_connection
        if not driver_connection.in_transaction:
            # Not through SQLAlchemy: its listeners would mistake it for a
            # statement of the application that may write.
            cursor = fairy.cursor()
            cursor.execute("BEGIN IMMEDIATE")
            cursor.close()

    def number(self, value: Any, form: NumberForm) -> str:
        """Return a number, or NULL, in SQL."""
        return "NULL" if value is None else repr(value)

    def create_file(self, engine: Engine) -> None:
        """Create an empty file, and its directory, if they do not exist."""
        path = Path(str(engine.url.database))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def tables(
        self, connection: Connection, schemas: Iterable[str]
    ) -> dict[str, set[str]]:
        """Read the file's own catalogue."""
        names = set(inspect(connection).get_table_names())
        return dict.fromkeys(schemas, names)

    def triggers(self, connection: Connection, table: str) -> list[str]:
        """Read the file's own catalogue."""
        return list(connection.scalars(_TRIGGERS, {"table": table}))

    def classify(self, error: BaseException) -> Failure:
        """Read the message: SQLite has no error numbers here."""
        if str(error).startswith(_BUSY):
            return Failure.BUSY
        if str(error).startswith(_MISSING):
            return Failure.MISPLACED
        return Failure.OTHER

    def lacks(self, error: BaseException) -> str:
        """Return ``database`` if the file does not exist."""
        return "database" if str(error).startswith(_NO_FILE) else "table"


class _Existing(sqlite3.Connection):
    """Opens a file that exists.

    The driver would create an empty file: with a wrong directory, or after a
    file was lost, a shard would have no tables and no rows.
    """

    def __init__(self, database: str, *args: Any, **kwargs: Any) -> None:
        path = Path(database).absolute()
        if not path.is_file():
            raise sqlite3.OperationalError(f"{_NO_FILE}{path}")
        # SQLite must not create it if it is removed at this moment.
        kwargs["uri"] = True
        super().__init__(f"{path.as_uri()}?mode=rw", *args, **kwargs)


def _check_file(dialect: Any, record: Any, cargs: Any, cparams: Any) -> None:
    # If the driver raised the error, in the thread of aiosqlite, it could end
    # the event loop to which the thread reports.
    if not Path(cargs[0]).is_file():
        raise dialect.loaded_dbapi.OperationalError(f"{_NO_FILE}{cargs[0]}")


def _prepare(dbapi_connection: Any, record: Any) -> None:
    cursor = dbapi_connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_before_savepoint(connection: Connection, name: str) -> None:
    # The driver begins no transaction for SAVEPOINT; its RELEASE would be a
    # COMMIT.
    errors = connection.dialect.loaded_dbapi.Error
    try:
        SQLite().lock(connection)
    except errors as error:
        # SQLAlchemy does not convert errors of listeners.
        raise DBAPIError.instance(
            "BEGIN IMMEDIATE", (), error, errors, dialect=connection.dialect
        ) from error
