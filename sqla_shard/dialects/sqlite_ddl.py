"""Changing tables of SQLite files.

All that is done between BEGIN and COMMIT is undone together, changes of
tables included.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterable
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any
from zlib import crc32

from sqlalchemy import Connection
from sqlalchemy import Engine
from sqlalchemy import inspect
from sqlalchemy import text

__all__ = ["LOCKS", "SQLiteDDL"]

#: File in the directory of a server whose bytes are the locks of its files.
LOCKS = "sqla_shard.lock"
_SPACE = re.compile(r"\s+")
_POLL = 0.05
_PARTS = text(
    "SELECT type, name, sql FROM sqlite_master "
    "WHERE lower(tbl_name) = lower(:name) AND sql IS NOT NULL ORDER BY 1, 2"
)


class SQLiteDDL:
    """Takes locks in a file beside the databases."""

    undoes = True

    def __init__(self) -> None:
        self._files: dict[str, int] = {}

    def enter(self, connection: Connection, schema: str) -> None:
        """Let tables be made anew, as alembic's batch mode does.

        With foreign keys on, dropping the old table would delete rows of
        others.
        """
        connection.exec_driver_sql("PRAGMA foreign_keys=OFF")

    def patience(self, connection: Connection, seconds: float) -> None:
        """Limit the wait for the file."""
        connection.exec_driver_sql(
            f"PRAGMA busy_timeout={int(seconds * 1000)}"
        )

    def quicken(self, connection: Connection, table: str) -> None:
        """Do nothing: the catalogue is at hand."""

    def hold(
        self, connection: Connection, schema: str, seconds: float
    ) -> str | None:
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
        """Unlock it."""
        file, byte = self._lock_of(connection)
        fcntl.lockf(file, fcntl.LOCK_UN, 1, byte)

    def names(self, connection: Connection) -> set[str]:
        """Read them in the file's own catalogue."""
        return set(inspect(connection).get_table_names())

    def definitions(
        self, connection: Connection, tables: Iterable[str]
    ) -> dict[str, str | None]:
        """Hash the statements that made them, and their indexes."""
        return {table: _definition(connection, table) for table in tables}

    def rolls_back(self, connection: Connection) -> bool:
        """Every table has transactions here."""
        return True

    def is_killed(self, error: BaseException) -> bool:
        """Nobody else ends a statement here."""
        return False

    def rows(
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
            name = connection.dialect.identifier_preparer.quote_identifier(
                table
            )
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
        # Two files that meet in one byte wait for one another, no more.
        return self._files[locks], crc32(path.name.encode()) & 0x7FFFFFFF


def _definition(connection: Connection, table: str) -> str | None:
    name = table.strip('"`[]')
    parts = connection.execute(_PARTS, {"name": name}).all()
    if not parts:
        return None
    shown = "\n".join(_SPACE.sub(" ", part.sql) for part in parts)
    return sha256(shown.encode()).hexdigest()
