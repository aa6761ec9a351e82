"""SQLite: a server is a directory, a virtual shard is one file in it.

For demos, tests and learning.  A file has one writer at a time and no row
locks; so that read-modify-write is exact all the same, ``FOR UPDATE`` takes
the write lock of the whole file here, that is of one virtual shard.  Reads
outside such a lock see what was committed last, not a snapshot.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Connection
from sqlalchemy import Engine
from sqlalchemy import event
from sqlalchemy import inspect
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from sqla_shard.dialects.base import Failure
from sqla_shard.dialects.base import new_engine
from sqla_shard.dialects.catalogue import Catalogue
from sqla_shard.dialects.ddl import DDL
from sqla_shard.dialects.parts import NumberForm
from sqla_shard.dialects.sqlite_catalogue import SQLiteCatalogue
from sqla_shard.dialects.sqlite_ddl import SQLiteDDL

__all__ = ["SQLite"]

_BUSY = ("database is locked", "database table is locked")
_NO_FILE = "there is no file "
_MISSING = (_NO_FILE, "no such table: ")
_abandoned: list[Any] = []
# An event loop itself does not keep its tasks from being collected.
_interrupts: set[asyncio.Future[None]] = set()


class SQLite:
    """SQLite files through the driver of the standard library.

    :param asynchronous: let event loops wait for them, through aiosqlite,
        which has a thread for each connection.
    :ivar waits: whether other files can be read meanwhile.
    """

    collates = False
    catalogue: Catalogue = SQLiteCatalogue()
    ddl: DDL = SQLiteDDL()

    def __init__(self, *, asynchronous: bool = False) -> None:
        self._asynchronous = self.waits = asynchronous

    def locate(self, url: URL, database: str) -> tuple[URL, str]:
        """Every database is a file and has an engine of its own."""
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
    ) -> Engine:
        """Return an engine that waits for other writers for 30 seconds.

        :raises MissingDriverError: when aiosqlite is not installed.
        """
        settings = dict(options)
        # The driver would begin a transaction only at the first write and
        # without taking the lock: two readers that both go on to write
        # would then deadlock instead of waiting for one another.
        arguments = {
            "isolation_level": "IMMEDIATE",
            "timeout": 30.0,
            "factory": _Existing,
        }
        arguments.update(settings.get("connect_args", {}))
        settings["connect_args"] = arguments
        engine = new_engine(url, settings, asynchronous=self._asynchronous)
        if self._asynchronous:
            event.listen(engine, "do_connect", _check_file)
        event.listen(engine, "connect", _prepare)
        event.listen(engine, "savepoint", _begin_before_savepoint)
        return engine

    def abandon(self, dbapi_connection: Any) -> None:
        """Keep it: a child must not even close a parent's file."""
        _abandoned.append(dbapi_connection)

    def give_up(self, dbapi_connection: Any) -> None:
        """Let aiosqlite's thread close the file and end."""
        dbapi_connection.driver_connection.stop()

    def in_transaction(self, dbapi_connection: Any) -> bool:
        """Ask the file's library."""
        wire = getattr(dbapi_connection, "driver_connection", dbapi_connection)
        return bool(wire.in_transaction)

    def abort(self, dbapi_connection: Any) -> None:
        """End the statement that runs; it may be called by any thread."""
        if self._asynchronous:
            interrupt = dbapi_connection.driver_connection.interrupt()
            task = asyncio.ensure_future(interrupt)
            _interrupts.add(task)
            task.add_done_callback(_interrupts.discard)
        else:
            dbapi_connection.interrupt()

    def limited(
        self, connection: Connection, text: str, seconds: float
    ) -> str:
        """Return it as it is: there is no server, and :meth:`abort` works."""
        return text

    def use(self, connection: Connection, cursor: Any, schema: str) -> None:
        """Do nothing: a connection has one file."""

    def lock(self, connection: Connection) -> None:
        """Take the write lock of the file."""
        fairy = connection.connection
        driver_connection: Any = fairy.driver_connection
        if not driver_connection.in_transaction:
            # Past SQLAlchemy, to which this would be a statement of the
            # user's, and one that is not known to write nothing.
            cursor = fairy.cursor()
            cursor.execute("BEGIN IMMEDIATE")
            cursor.close()

    def number(self, value: Any, form: NumberForm) -> str:
        """Return a number, or NULL, in SQL."""
        return "NULL" if value is None else repr(value)

    def begin_locking(self, connection: Connection) -> None:
        """Do nothing: the lock is that of the file."""

    def create_file(self, engine: Engine) -> None:
        """Make an empty file, and its directory, unless they are there."""
        path = Path(str(engine.url.database))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def create_database(self, connection: Connection, schema: str) -> None:
        """Do nothing: it is the file."""

    def tables(
        self, connection: Connection, schemas: Iterable[str]
    ) -> dict[str, set[str]]:
        """Read the file's own catalogue."""
        names = set(inspect(connection).get_table_names())
        return dict.fromkeys(schemas, names)

    def classify(self, error: BaseException) -> Failure:
        """Tell a lock that was not freed in time from other errors."""
        if str(error).startswith(_BUSY):
            return Failure.BUSY
        if str(error).startswith(_MISSING):
            return Failure.MISPLACED
        return Failure.OTHER

    def lacks(self, error: BaseException) -> str:
        """Tell a file that is not there from one without the table."""
        return "database" if str(error).startswith(_NO_FILE) else "table"


class _Existing(sqlite3.Connection):
    """Opens a file that is there.

    The driver would make an empty one: with a wrong directory, or after a
    file was lost, that would be shards without tables and rows.
    """

    def __init__(self, database: str, *args: Any, **kwargs: Any) -> None:
        path = Path(database).absolute()
        if not path.is_file():
            raise sqlite3.OperationalError(f"{_NO_FILE}{path}")
        # Not made either where it goes away now.
        kwargs["uri"] = True
        super().__init__(f"{path.as_uri()}?mode=rw", *args, **kwargs)


def _check_file(dialect: Any, record: Any, cargs: Any, cparams: Any) -> None:
    # The thread of aiosqlite that has met it would answer to a loop which the
    # error may have ended.
    if not Path(cargs[0]).is_file():
        raise dialect.loaded_dbapi.OperationalError(f"{_NO_FILE}{cargs[0]}")


def _prepare(dbapi_connection: Any, record: Any) -> None:
    cursor = dbapi_connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_before_savepoint(connection: Connection, name: str) -> None:
    # The driver does not begin a transaction for SAVEPOINT; its RELEASE
    # would then be a COMMIT.
    errors = connection.dialect.loaded_dbapi.Error
    try:
        SQLite().lock(connection)
    except errors as error:
        # SQLAlchemy takes what a listener raises for an error of its own.
        raise DBAPIError.instance(
            "BEGIN IMMEDIATE", (), error, errors, dialect=connection.dialect
        ) from error
