"""Fences: the stage of a move in each database that it writes.

A fence is a table of one row with the stage and the number of its last change.
A transaction reads it before its first write, and has a shared lock on it
until it ends; the tool changes it, which waits for these transactions.  So a
transaction is in one stage as a whole, whatever its process knows of the
stage.
"""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Integer,
    MetaData,
    select,
    Table,
    Text,
    update,
)
from sqlalchemy.exc import DBAPIError

from sqla_shard.dialects import backend_for
from sqla_shard.dialects.base import Failure
from sqla_shard.dialects.sql import InsertMissing
from sqla_shard.exc import StageChangedError, StageUnavailableError
from sqla_shard.migrate.stages import Progress
from sqla_shard.util.json_values import parsed_json

_ROW = 1


class DatabaseFence:
    """The fence of one database.

    :param schema: the database; None for the one that a connection uses.
    """

    def __init__(self, schema: str | None = None) -> None:
        self.table = Table(
            "sqla_shard_stage",
            MetaData(),
            Column("id", Integer, primary_key=True, autoincrement=False),
            Column("number", BigInteger, nullable=False),
            Column("progress", Text, nullable=False),
            schema=schema,
            mysql_engine="InnoDB",
        )
        self._select = select(self.table.c.progress).where(self.table.c.id == _ROW)
        self._locking = self._select.with_for_update(read=True)

    def create(self, connection: Connection) -> None:
        """Create the table and the row, with the first stage, if missing."""
        self.table.create(connection, checkfirst=True)
        self.fill(connection)

    def fill(self, connection: Connection) -> None:
        """Insert the row, with the first stage, if it is missing."""
        connection.execute(
            InsertMissing(self.table).values(id=_ROW, **_values(Progress()))
        )

    def enter(self, connection: Connection) -> Progress:
        """Return the stage; it does not change before the transaction ends.

        The transaction must have been started: in autocommit mode the lock
        ends with the statement.

        :raises StageUnavailableError: if the database has no fence.
        """
        dialect = connection.dialect
        backend = backend_for(dialect.name, driver=dialect.driver)
        # On SQLite the lock is that of the file.
        backend.lock(connection)
        try:
            found = connection.execute(self._locking).scalar_one()
        except DBAPIError as error:
            original = error.orig
            if original is None or backend.classify(original) is not Failure.MISPLACED:
                raise
            raise StageUnavailableError(
                store=f"the table {self.table.name}",
                reason=f"{original}; `sqla-shard migrate plan --create` "
                "creates the tables of a move",
            ) from error
        return _parsed(found)

    def enter_as(self, connection: Connection, progress: Progress) -> None:
        """Enter if the stage has not changed.

        :param progress: the stage in which the caller was started.
        :raises StageChangedError: if it has.
        """
        now = self.enter(connection)
        if now.number != progress.number:
            raise StageChangedError(
                expected=progress.number, found=now.number, stage=now.stage
            )

    def read(self, connection: Connection) -> Progress:
        """Return the stage without a lock."""
        return _parsed(connection.execute(self._select).scalar_one())

    def write(self, connection: Connection, progress: Progress) -> None:
        """Set the stage, unless its number is not higher.

        Waits for transactions that have entered.  An older process of the
        tool, which was stopped meanwhile, changes nothing.

        :raises OperationalError: if they have not ended within
            ``innodb_lock_wait_timeout``.
        """
        connection.execute(
            update(self.table)
            .where(self.table.c.id == _ROW, self.table.c.number < progress.number)
            .values(**_values(progress))
        )


def _values(progress: Progress) -> dict[str, Any]:
    text = json.dumps(progress.as_dict(), sort_keys=True)
    return {"number": progress.number, "progress": text}


def _parsed(text: str) -> Progress:
    return Progress.from_dict(parsed_json(text.encode()))
