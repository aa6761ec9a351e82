"""Changing the tables of many databases, one connection to each server."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any
from typing import Protocol

from sqlalchemy import Connection
from sqlalchemy import Engine

__all__ = ["DDL"]


class DDL(Protocol):
    """What a kind of server needs for it, ``backend.ddl``.

    :ivar undoes: whether a change of tables is rolled back with the
        transaction that it is part of.
    """

    undoes: bool

    def enter(self, connection: Connection, schema: str) -> None:
        """Make a database the one that statements and reflection see.

        :param schema: its name, not quoted.
        """
        ...

    def patience(self, connection: Connection, seconds: float) -> None:
        """Set how long a statement may wait for a lock on a table."""
        ...

    def quicken(self, connection: Connection, table: str) -> None:
        """Let SQLAlchemy's question whether a table is there cost little.

        :param table: what alembic asks for on each shard.
        """
        ...

    def hold(
        self, connection: Connection, schema: str, seconds: float
    ) -> str | None:
        """Take the lock of a database, which other runners honour.

        It is held by the connection itself, so that a statement which goes
        on after its client was killed still holds it.

        :param schema: the name of the database, not quoted.
        :param seconds: how long to wait for it.
        :returns: None once it is held, else who holds it.
        """
        ...

    def release(self, connection: Connection, schema: str) -> None:
        """Give the lock of a database back."""
        ...

    def names(self, connection: Connection) -> set[str]:
        """Return the names of the tables of the database."""
        ...

    def definitions(
        self, connection: Connection, tables: Iterable[str]
    ) -> dict[str, str | None]:
        """Return the definition of tables, None for those not there.

        What changes without DDL, such as the next AUTO_INCREMENT, is left
        out.

        :param tables: their names, quoted where that is needed.
        """
        ...

    def rolls_back(self, connection: Connection) -> bool:
        """Tell whether every table of the database has transactions."""
        ...

    def is_killed(self, error: BaseException) -> bool:
        """Tell whether a driver's error says that a statement was ended.

        By KILL, so the connection may be there still.
        """
        ...

    def rows(
        self,
        engine: Engine,
        schemas: Sequence[str],
        table: str,
        columns: Sequence[str],
        where: str = "",
    ) -> dict[str, list[tuple[Any, ...]]]:
        """Read a small table in many databases with few statements.

        :param engine: of a server.
        :param schemas: names of databases on it that exist, not quoted.
        :param table: its name, the same in all.
        :param columns: what to read.
        :param where: a condition that needs no parameters.
        :returns: the rows by database; one without the table is left out.
        """
        ...
