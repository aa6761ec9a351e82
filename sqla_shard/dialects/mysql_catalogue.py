"""The catalogue of MySQL and MariaDB: information_schema."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection
from sqlalchemy import Engine
from sqlalchemy import text

__all__ = ["MySQLCatalogue"]

_SCHEMATA = text(
    "SELECT schema_name FROM information_schema.schemata "
    "WHERE schema_name NOT IN "
    "('information_schema', 'mysql', 'performance_schema', 'sys')"
)


class MySQLCatalogue:
    """Reads ``information_schema``."""

    def databases(self, engine: Engine) -> set[str]:
        """Return all that the user may see, but those of the server."""
        with engine.connect() as connection:
            return set(connection.scalars(_SCHEMATA))

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
