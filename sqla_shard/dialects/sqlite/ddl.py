"""Changing tables of SQLite files, in transactions that roll back."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any
from zlib import crc32

from sqlalchemy import Connection, Engine, inspect, text

from sqla_shard.dialects.base import DDL

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
            found = connection.exec_driver_sql(
                f"SELECT {', '.join(columns)} FROM {name}{condition}"  # noqa: S608 - names of our own
            )
            rows = [tuple(row) for row in found]
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
