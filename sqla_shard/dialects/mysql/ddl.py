"""Changing tables on MySQL and MariaDB.

A statement that changes a table commits what was written before it, and
cannot be rolled back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import ceil
from typing import Any

from sqlalchemy import Connection, Engine, text
from sqlalchemy.engine.base import OptionEngine
from sqlalchemy.exc import DBAPIError

from sqla_shard.dialects.base import Batch, DDL
from sqla_shard.dialects.mysql.batches import (
    digest_of,
    lock_name,
    MySQLBatch,
    NO_SUCH_TABLE,
)
from sqla_shard.dialects.mysql.catalogue import TABLE_TYPES
from sqla_shard.dialects.mysql.new_tables import index_of

_INTERRUPTED = 1317
_READ_ONLY = 3989
# More tables in one statement take longer than a second statement.
_CHUNK = 256
_HAVING = text(
    "SELECT table_schema FROM information_schema.tables WHERE table_name = :name"
)
_FOLDS = text("SELECT @@lower_case_table_names")
_HAS = text(
    "SELECT COUNT(*) FROM information_schema.tables "
    "WHERE table_schema = DATABASE() AND table_name = :name"
)
_NAMES = text(
    "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()"
)
_NOT_TRANSACTIONAL = text(
    "SELECT COUNT(*) FROM information_schema.tables t "  # noqa: S608 - constants
    "LEFT JOIN information_schema.engines e ON e.engine = t.engine "
    f"WHERE t.table_schema = DATABASE() AND t.table_type IN {TABLE_TYPES} "
    "AND COALESCE(e.transactions, 'NO') <> 'YES'"
)


class MySQLDDL(DDL):
    """Sends ``USE``, takes ``GET_LOCK`` and reads ``SHOW CREATE TABLE``."""

    undoes = False

    def enter(self, connection: Connection, schema: str) -> None:
        """Send ``USE``, and set the names that SQLAlchemy has read."""
        quoted = connection.dialect.identifier_preparer.quote(schema)
        connection.exec_driver_sql(f"USE {quoted}")
        # Otherwise inspect() and has_table() would read the previous database.
        connection.dialect.default_schema_name = schema
        # Otherwise a revision that sends ALTER DATABASE would find no name.
        engine = connection.engine
        if not isinstance(engine, OptionEngine):
            engine = connection.engine = engine.execution_options()
        engine.url = engine.url.set(database=schema)

    def patience(self, connection: Connection, seconds: float) -> None:
        """Limit the wait for locks of tables and of rows, in whole seconds."""
        connection.exec_driver_sql(
            f"SET SESSION lock_wait_timeout = {max(ceil(seconds), 1)}, "
            f"innodb_lock_wait_timeout = {max(ceil(seconds), 1)}"
        )

    def quicken(self, connection: Connection, table: str) -> None:
        """Read a name; DESCRIBE costs half as much as CREATE TABLE."""
        dialect = connection.dialect
        original = dialect.has_table

        def has_table(
            connection: Connection,
            table_name: str,
            schema: str | None = None,
            **kwargs: Any,
        ) -> bool:
            if table_name != table or schema is not None:
                return original(connection, table_name, schema, **kwargs)
            return bool(connection.scalar(_HAS, {"name": table}))

        dialect.has_table = has_table  # type: ignore[method-assign]  # of this engine alone

    def hold(self, connection: Connection, schema: str, seconds: float) -> str | None:
        """Acquire the lock with ``GET_LOCK``."""
        name = {"name": lock_name(schema), "seconds": seconds}
        if connection.scalar(text("SELECT GET_LOCK(:name, :seconds)"), name):
            return None
        holder = connection.scalar(text("SELECT IS_USED_LOCK(:name)"), name)
        return f"connection {holder} of the server"

    def release(self, connection: Connection, schema: str) -> None:
        """Release the lock with ``RELEASE_LOCK``."""
        name = {"name": lock_name(schema)}
        connection.execute(text("DO RELEASE_LOCK(:name)"), name)

    def names(self, connection: Connection) -> set[str]:
        """Read only the names, which opens no table."""
        return set(connection.scalars(_NAMES))

    def definitions(
        self, connection: Connection, tables: Iterable[str]
    ) -> dict[str, str | None]:
        """Hash ``SHOW CREATE TABLE``, without the counter."""
        return {table: _definition(connection, table) for table in tables}

    def missing_indexes(
        self, connection: Connection, statements: Sequence[str]
    ) -> list[str]:
        """Compare ``SHOW INDEX``; a view has none."""
        return [one for one in statements if not _has_index(connection, one)]

    def rolls_back(self, connection: Connection) -> bool:
        """Look for tables of storage engines without transactions."""
        return not connection.scalar(_NOT_TRANSACTIONAL)

    def batch(self, connection: Connection) -> Batch | None:
        """Use PyMySQL; other drivers send statement by statement."""
        if connection.dialect.driver == "pymysql":
            return MySQLBatch(connection)
        return None

    def is_killed(self, error: BaseException) -> bool:
        """Read the number, which KILL QUERY and KILL CONNECTION share."""
        return error.args[:1] == (_INTERRUPTED,)

    def closes_database(self, error: BaseException) -> bool:
        """Read the number, which ALTER DATABASE .. READ ONLY = 1 causes."""
        return error.args[:1] == (_READ_ONLY,)

    def read_table(
        self,
        engine: Engine,
        schemas: Sequence[str],
        table: str,
        columns: Sequence[str],
        where: str = "",
    ) -> dict[str, list[tuple[Any, ...]]]:
        """Read 256 databases with each UNION ALL."""
        found: dict[str, list[tuple[Any, ...]]] = {}
        with engine.connect() as connection:
            have = set(connection.scalars(_HAVING, {"name": table}))
            if connection.scalar(_FOLDS):
                # All names on such a server are in lower case.
                have = {s for s in schemas if s.lower() in have}
            there = [schema for schema in schemas if schema in have]
            for chunk in _chunks(there):
                found.update((schema, []) for schema in chunk)
                sql = " UNION ALL ".join(
                    _select(connection, schema, table, columns, where)
                    for schema in chunk
                )
                for schema, *row in connection.exec_driver_sql(sql):
                    found[schema].append(tuple(row))
        return found


def _definition(connection: Connection, table: str) -> str | None:
    try:
        row = connection.exec_driver_sql(f"SHOW CREATE TABLE {table}").one()
    except DBAPIError as error:
        if error.orig is not None and error.orig.args[:1] == (NO_SUCH_TABLE,):
            return None
        raise
    return digest_of(row[1], connection.dialect)


def _has_index(connection: Connection, statement: str) -> bool:
    index = index_of(statement)
    if index is None:
        return False
    rows = connection.exec_driver_sql(f"SHOW INDEX FROM {index.table}")
    found = [row for row in rows.mappings() if row["Key_name"].lower() == index.name]
    found.sort(key=lambda row: row["Seq_in_index"])
    columns = tuple(row["Column_name"].lower() for row in found)
    return columns == index.columns and all(
        bool(row["Non_unique"]) is not index.is_unique
        and (row["Index_type"], row["Collation"]) == ("BTREE", "A")
        and row["Sub_part"] is None
        for row in found
    )


def _chunks(schemas: Sequence[str]) -> Iterator[Sequence[str]]:
    for first in range(0, len(schemas), _CHUNK):
        yield schemas[first : first + _CHUNK]


def _select(
    connection: Connection, schema: str, table: str, columns: Sequence[str], where: str
) -> str:
    quote = connection.dialect.identifier_preparer.quote_identifier
    wanted = "".join(f", {column}" for column in columns)
    condition = where and f" WHERE {where}"
    # The topology allows only letters, digits and "_" in names.
    return (
        f"SELECT '{schema}'{wanted} "  # noqa: S608 - see above
        f"FROM {quote(schema)}.{quote(table)}{condition}"
    )
