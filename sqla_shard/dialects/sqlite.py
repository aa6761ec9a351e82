"""SQLite: a server is a directory, a virtual shard is one file in it.

For demos, tests and learning.  A file has one writer at a time and no row
locks; so that read-modify-write is exact, ``FOR UPDATE`` acquires the write
lock of the whole file, that is, of one virtual shard.  Reads outside such a
lock see the last commit, not a snapshot.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any
from zlib import crc32

from sqlalchemy import Connection, Engine, event, inspect, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from sqla_shard.dialects.base import (
    Backend,
    Catalogue,
    DATABASE,
    DDL,
    Failure,
    hashed,
    new_engine,
    NumberForm,
    PasswordSource,
)
from sqla_shard.dialects.coding import code_values
from sqla_shard.types.vectors import DISTANCES

_TRIGGERS = text(
    "SELECT name FROM sqlite_master "
    "WHERE type = 'trigger' AND tbl_name = :table ORDER BY name"
)
_GENERATED = text("SELECT name FROM pragma_table_xinfo(:table) WHERE hidden IN (2, 3)")
_BUSY = ("database is locked", "database table is locked")
_NO_FILE = "there is no file "
_MISSING = (_NO_FILE, "no such table: ")
_abandoned: list[Any] = []
# An event loop has weak references to its tasks only.
_interrupts: set[asyncio.Future[None]] = set()


# -- The catalogue of SQLite: the files of a directory, and sqlite_master.
#
# A table is compared by the statement that created it, except white space, with
# the statements of its indexes and triggers.  So equivalent definitions may be
# different.


# Literals, quoted names, comments; white space; punctuation; anything else.
_TOKEN = re.compile(
    r"""'(?:[^']|'')*' | "(?:[^"]|"")*" | `[^`]*` | \[[^]]*\] |
    --[^\n]* | /\*.*?\*/ | (?:/\*|['"`\[]).* |
    \s+ | [(),;] | [^\s'"`\[(),;/-]+ | .""",
    re.VERBOSE | re.DOTALL,
)


class SQLiteCatalogue(Catalogue):
    """Lists the directory of a file, and reads ``sqlite_master``."""

    def databases(self, engine: Engine) -> set[str]:
        """Return the names of the files in the directory of the engine.

        Nothing is opened or created; a missing directory has no databases.
        """
        directory = Path(str(engine.url.database)).parent
        # The names of journals are longer: db00000.sqlite-wal.
        return {path.stem for path in directory.glob("*.sqlite")}

    def having(self, engine: Engine, error: BaseException | None) -> None:
        """Let each file be read: that needs no server."""

    def kind(self, connection: Connection) -> str:
        """Name the only kind."""
        return "SQLite"

    def digests(
        self, connection: Connection, schemas: Iterable[str]
    ) -> dict[str, dict[str, str]]:
        """Read the catalogue of the file."""
        by_table: dict[str, dict[str, str]] = {}
        for schema in schemas:
            tables: dict[str, list[str]] = {}
            for table, _, _, sql in _master(connection, schema):
                tables.setdefault(table, []).append("".join(_words(sql)))
            by_table[schema] = {table: hashed(parts) for table, parts in tables.items()}
        return by_table

    def definition(self, connection: Connection, schema: str, table: str) -> str:
        """Return the SQL of the table, its indexes and its triggers."""
        if table == DATABASE:
            return ""
        rows = [row for row in _master(connection, schema) if row[0] == table]
        # The table before its indexes and triggers.
        rows.sort(key=lambda row: (row[1] not in ("table", "view"), row[2]))
        return "\n".join(_lines(sql) for _, _, _, sql in rows)


def _master(connection: Connection, schema: str) -> list[tuple[str, str, str, str]]:
    """Return table, type, name and SQL of everything that users created."""
    quoted = connection.dialect.identifier_preparer.quote(schema)
    rows = connection.exec_driver_sql(
        f"SELECT tbl_name, type, name, sql FROM {quoted}.sqlite_master "  # noqa: S608 - quoted
        # Indexes of PRIMARY KEY and UNIQUE have no SQL of their own.
        "WHERE sql IS NOT NULL AND name NOT GLOB 'sqlite_*'"
    )
    return [(row[0], row[1], row[2], row[3]) for row in rows]


def _words(sql: str) -> list[str]:
    """Return the words of a statement, without insignificant white space."""
    words: list[str] = []
    for token in _TOKEN.findall(sql):
        if not token.isspace():
            words.append(token)
        elif words and words[-1] not in ("(", ",", " "):
            words.append(" ")
        if token in ("(", ")", ",") and len(words) > 1 and words[-2] == " ":
            del words[-2]
    return words


def _lines(sql: str) -> str:
    """Return the statement with each column on a separate line."""
    depth = 0
    lines = []
    for word in _words(sql):
        depth += (word == "(") - (word == ")")
        if word == "(" and depth == 1:
            word = "(\n  "
        elif word == "," and depth == 1:
            word = ",\n  "
        elif word == ")" and depth == 0:
            word = "\n)"
        lines.append(word)
    return "".join(lines).strip()


# -- Changing tables of SQLite files, in transactions that roll back.


#: File in the directory of a server whose bytes are the locks of its files.
LOCKS = "sqla_shard.lock"
_SPACE = re.compile(r"\s+")
_POLL = 0.05
_PARTS = text(
    "SELECT type, name, sql FROM sqlite_master "
    "WHERE lower(tbl_name) = lower(:name) AND sql IS NOT NULL ORDER BY 1, 2"
)


class SQLiteDDL(DDL):
    """Locks bytes of a file in the directory of the databases."""

    undoes = True

    def __init__(self) -> None:
        self._files: dict[str, int] = {}

    def enter(self, connection: Connection, schema: str) -> None:
        """Allow tables to be recreated, as in alembic's batch mode.

        With foreign keys on, dropping the old table would delete rows of
        other tables.
        """
        connection.exec_driver_sql("PRAGMA foreign_keys=OFF")

    def patience(self, connection: Connection, seconds: float) -> None:
        """Limit the wait for the lock of the file."""
        connection.exec_driver_sql(f"PRAGMA busy_timeout={int(seconds * 1000)}")

    def hold(self, connection: Connection, schema: str, seconds: float) -> str | None:
        """Lock a byte of :data:`LOCKS`; the process holds it."""
        file, byte = self._lock_of(connection)
        deadline = monotonic() + seconds
        while True:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
            except BlockingIOError:
                if monotonic() >= deadline:
                    return "another process"
                Event().wait(_POLL)
            else:
                return None

    def release(self, connection: Connection, schema: str) -> None:
        """Unlock the byte."""
        file, byte = self._lock_of(connection)
        fcntl.lockf(file, fcntl.LOCK_UN, 1, byte)

    def names(self, connection: Connection) -> set[str]:
        """Read the catalogue of the file."""
        return set(inspect(connection).get_table_names())

    def definitions(
        self, connection: Connection, tables: Iterable[str]
    ) -> dict[str, str | None]:
        """Hash the statements that created the tables and their indexes."""
        return {table: _definition(connection, table) for table in tables}

    def read_table(
        self,
        engine: Engine,
        schemas: Sequence[str],
        table: str,
        columns: Sequence[str],
        where: str = "",
    ) -> dict[str, list[tuple[Any, ...]]]:
        """Read the one file of the engine."""
        with engine.connect() as connection:
            if not inspect(connection).has_table(table):
                return {}
            condition = where and f" WHERE {where}"
            name = connection.dialect.identifier_preparer.quote_identifier(table)
            result = connection.exec_driver_sql(
                f"SELECT {', '.join(columns)} FROM {name}{condition}"  # noqa: S608 - names of our own
            )
            rows = [tuple(row) for row in result]
        return dict.fromkeys(schemas, rows)

    def _lock_of(self, connection: Connection) -> tuple[int, int]:
        path = Path(str(connection.engine.url.database))
        locks = str(path.parent / LOCKS)
        if locks not in self._files:
            self._files[locks] = os.open(locks, os.O_RDWR | os.O_CREAT, 0o644)
        # Two files with the same byte only wait for each other.
        return self._files[locks], crc32(path.name.encode()) & 0x7FFFFFFF


def _definition(connection: Connection, table: str) -> str | None:
    name = table.strip('"`[]')
    parts = connection.execute(_PARTS, {"name": name}).all()
    if not parts:
        return None
    shown = "\n".join(_SPACE.sub(" ", part.sql) for part in parts)
    return sha256(shown.encode()).hexdigest()


# -- The servers and files.


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
        self._asynchronous = asynchronous
        self.waits: bool = asynchronous

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

    def character_sets(self, connection: Connection, table: str) -> dict[str, str]:
        """Return none: all texts are of Unicode."""
        return {}

    def generated(self, connection: Connection, table: str) -> list[str]:
        """Read the file's own catalogue."""
        return list(connection.scalars(_GENERATED, {"table": table}))

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
    for name, distance in DISTANCES.items():
        dbapi_connection.create_function(name, 2, distance, deterministic=True)


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
