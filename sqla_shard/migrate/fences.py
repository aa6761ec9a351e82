"""Fences: the stage of a move in each database that it writes.

A fence is a table of one row with the number of the last change of the stage.
A transaction reads it before its first write, and has a shared lock on it
until it ends; the tool changes it, which waits for these transactions.  So a
transaction is in one stage as a whole, whatever its process knows of the
stage.
"""

from __future__ import annotations

from sqlalchemy import BigInteger
from sqlalchemy import Column
from sqlalchemy import Connection
from sqlalchemy import Integer
from sqlalchemy import MetaData
from sqlalchemy import select
from sqlalchemy import Table
from sqlalchemy import update

from sqla_shard.dialects import backend_for
from sqla_shard.dialects.sql import InsertMissing

__all__ = ["Fence"]

_ROW = 1


class Fence:
    """The fence of one database.

    :param schema: the database; None for the one that a connection uses.
    """

    def __init__(self, schema: str | None = None) -> None:
        self.table = Table(
            "sqla_shard_stage",
            MetaData(),
            Column("id", Integer, primary_key=True, autoincrement=False),
            Column("number", BigInteger, nullable=False),
            schema=schema,
            mysql_engine="InnoDB",
        )
        self._select = select(self.table.c.number).where(
            self.table.c.id == _ROW
        )
        self._locking = self._select.with_for_update(read=True)

    def create(self, connection: Connection) -> None:
        """Create the table and the row, with the number 0, if missing."""
        self.table.create(connection, checkfirst=True)
        connection.execute(InsertMissing(self.table).values(id=_ROW, number=0))

    def enter(self, connection: Connection) -> int:
        """Return the number; it does not change before the transaction ends.

        The transaction must have been started: in autocommit mode the lock
        ends with the statement.
        """
        dialect = connection.dialect
        # On SQLite the lock is that of the file.
        backend_for(dialect.name, driver=dialect.driver).lock(connection)
        return int(connection.execute(self._locking).scalar_one())

    def read(self, connection: Connection) -> int:
        """Return the number without a lock."""
        return int(connection.execute(self._select).scalar_one())

    def write(self, connection: Connection, number: int) -> None:
        """Set the number, unless it is higher.

        Waits for transactions that have entered.  An older process of the
        tool, which was stopped meanwhile, changes nothing.

        :raises OperationalError: if they have not ended within
            ``innodb_lock_wait_timeout``.
        """
        connection.execute(
            update(self.table)
            .where(self.table.c.id == _ROW, self.table.c.number < number)
            .values(number=number)
        )
