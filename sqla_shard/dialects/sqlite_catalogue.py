"""The catalogue of SQLite: the files of a directory, and sqlite_master."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sqlalchemy import Connection
from sqlalchemy import Engine

__all__ = ["SQLiteCatalogue"]


class SQLiteCatalogue:
    """Lists the directory of a file, and reads ``sqlite_master``."""

    def databases(self, engine: Engine) -> set[str]:
        """Return the names of the files beside that of the engine.

        Nothing is opened or made: where there is no directory, there is no
        database.
        """
        directory = Path(str(engine.url.database)).parent
        # A journal's name goes on behind the suffix: db00000.sqlite-wal.
        return {path.stem for path in directory.glob("*.sqlite")}

    def digests(
        self, connection: Connection, schemas: Iterable[str]
    ) -> dict[str, dict[str, str]]:
        """Hash the definitions of all tables."""
        raise NotImplementedError

    def definition(
        self, connection: Connection, schema: str, table: str
    ) -> str:
        """Return one for people to read."""
        raise NotImplementedError
