"""Several statements in one packet, on MySQL and MariaDB.

The server stops at the first statement that fails, as a client does that sends
one after another.  Unlike statements that are sent without waiting for the
results of those before them, a statement is not executed if one before it has
failed.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from hashlib import sha256
from struct import pack
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from sqla_shard.dialects.base import Batch, Statement
from sqla_shard.dialects.mysql.new_tables import creation_of
from sqla_shard.dialects.mysql.show_create import (
    without_character_sets,
    without_counter,
)
from sqla_shard.dialects.polling import PolledConnection

# MySQL refuses longer names of locks.
_LOCK_NAME = 64
#: Key of ``Connection.info``: whether several statements are allowed.
_ALLOWED = "sqla_shard.several_statements"
NO_SUCH_TABLE = 1146
#: The command of the protocol that allows several statements, or one.
_COM_SET_OPTION = 0x1B
# One column: the client parses a description of each.
_DEFAULTS = (
    "CONCAT_WS(' ', @@version, @@sql_mode, @@default_storage_engine, "
    "@@character_set_database, @@collation_database)"
)
_NAMES = (
    "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()"
)


class MySQLBatch(Batch):
    """Sends texts with semicolons, over PyMySQL."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(
        self, statements: Sequence[Statement]
    ) -> Generator[tuple[int, Sequence[Any]]]:
        """Join the statements with semicolons, and read result by result."""
        self._allow(True)
        dialect = self._connection.dialect
        errors = dialect.loaded_dbapi.Error
        cursor: Any = self._connection.connection.cursor()
        done = 0
        try:
            # A statement may end with a comment that extends to its line.
            text = "\n;".join(
                cursor.mogrify(statement, parameters)
                for statement, parameters in statements
            )
            cursor.execute(text)
            while True:
                yield cursor.rowcount, cursor.fetchall()
                done += 1
                if not cursor.nextset():
                    return
        except errors as error:
            statement, parameters = statements[done]
            raise DBAPIError.instance(
                statement, parameters, error, errors, dialect=dialect
            ) from error
        finally:
            cursor.close()

    def end(self) -> None:
        """Allow one statement only: revisions must not depend on more."""
        if self._connection.info.get(_ALLOWED):
            self._allow(False)

    def _allow(self, several: bool) -> None:
        info = self._connection.info
        if info.get(_ALLOWED, False) == several:
            return
        dialect = self._connection.dialect
        errors = dialect.loaded_dbapi.Error
        raw: Any = self._connection.connection.dbapi_connection
        try:
            # MYSQL_OPTION_MULTI_STATEMENTS_ON and _OFF.
            raw._execute_command(_COM_SET_OPTION, pack("<H", not several))
            read = raw._read_packet
            if isinstance(raw, PolledConnection):
                # Otherwise the response would count as unread.
                raw.complete(read)
            else:
                read()
        except errors as error:
            raise DBAPIError.instance(
                None, None, error, errors, dialect=dialect
            ) from error
        info[_ALLOWED] = several

    def enter(self, schema: str, seconds: float) -> list[Statement]:
        """Send ``USE``, take the lock with ``GET_LOCK``, read variables."""
        dialect = self._connection.dialect
        quoted = dialect.identifier_preparer.quote(schema)
        # Otherwise inspect() and has_table() would read the previous database.
        dialect.default_schema_name = schema
        return [
            (f"USE {quoted}", ()),
            (f"SELECT GET_LOCK(%s, %s), {_DEFAULTS}", (lock_name(schema), seconds)),
        ]

    def leave(self, schema: str) -> list[Statement]:
        """Commit before another runner can acquire the lock."""
        return [("COMMIT", ()), ("DO RELEASE_LOCK(%s)", (lock_name(schema),))]

    def names(self) -> Statement:
        """Read only the names, which opens no table."""
        return _NAMES, ()

    def defaults(self) -> Statement:
        """Read the version, ``sql_mode``, and how tables are stored."""
        return f"SELECT {_DEFAULTS}", ()

    def creation(
        self, statements: Sequence[str], defaults: Sequence[Any]
    ) -> str | None:
        """Put the indexes into CREATE TABLE, for InnoDB on MariaDB."""
        dialect: Any = self._connection.dialect
        if not dialect.is_mariadb or "InnoDB" not in defaults[0].split(" "):
            return None
        return creation_of(statements)

    def definition(self, table: str) -> Statement:
        """Read ``SHOW CREATE TABLE``."""
        return f"SHOW CREATE TABLE {table}", ()

    def is_absent(self, error: DBAPIError) -> bool:
        """Read the number of the error."""
        orig = error.orig
        return orig is not None and orig.args[:1] == (NO_SUCH_TABLE,)

    def digest(self, rows: Sequence[Any]) -> str:
        """Hash ``SHOW CREATE TABLE``, without the counter."""
        return digest_of(rows[0][1], self._connection.dialect)


def lock_name(schema: str) -> str:
    """Return the name of the lock of a database."""
    return shortened_name(f"sqla_shard.{schema}")


def shortened_name(name: str) -> str:
    """Return a name of a lock, or a digest of one that is too long."""
    if len(name) <= _LOCK_NAME:
        return name
    return f"sqla_shard.{sha256(name.encode()).hexdigest()[:48]}"


def digest_of(definition: str, dialect: Any) -> str:
    """Return a digest of ``SHOW CREATE TABLE``, without the counter.

    The two kinds of servers write the same table differently, so the digests
    of MySQL begin with its name.
    """
    text = without_counter(definition)
    if dialect.is_mariadb:
        return sha256(text.encode()).hexdigest()
    text = without_character_sets(text)
    return f"mysql {sha256(text.encode()).hexdigest()}"
