"""Changes of tables on MySQL and MariaDB.

A statement that changes a table commits what was written before it, and
cannot be rolled back.

Several statements in one packet: the server stops at the first statement that
fails, as a client does that sends one after another.  Unlike statements that
are sent without waiting for the results of those before them, a statement is
not executed if one before it has failed.

One CREATE TABLE for a new table and its indexes, on MariaDB: Alembic sends
CREATE INDEX after CREATE TABLE, and MariaDB changes the table for each of them.
Within CREATE TABLE the same indexes cost next to nothing.  The table has to be
the same, so only texts of a small grammar are joined: columns of common types
with literal defaults, a primary key, and indexes of whole columns.  Without a
primary key a unique index would become the clustered one; a foreign key has an
index that the server creates, and drops for another one; long texts are cut or
hashed in an index; and InnoDB looks for duplicates in the order in which unique
indexes were created.  Expressions, comments in the text, partitions, CREATE
TABLE ... SELECT and everything else is not recognized.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import ceil
from struct import pack
from typing import Any

from sqlalchemy import Connection, Engine, text
from sqlalchemy.engine.base import OptionEngine
from sqlalchemy.exc import DBAPIError

from sqla_shard.dialects.base import Batch, DDL, Statement
from sqla_shard.dialects.mysql.catalogue import (
    TABLE_TYPES,
    without_counter,
    without_implied,
)
from sqla_shard.dialects.polling import PolledConnection

_NAME = r"(?:`[^`%]+`|[A-Za-z_][\w$]*)"
_COLUMN_NAMES = rf"\(\s*{_NAME}(?:\s*,\s*{_NAME})*\s*\)"
# Without backslashes, whose meaning depends on sql_mode.
_TEXT = r"'(?:[^'\\]|'')*'"
_MOMENT = r"(?:CURRENT_TIMESTAMP|now)(?:\(\d*\))?"
#: Types whose values an index has as they are.
_WHOLE_TYPES = (
    r"(?:TINYINT|SMALLINT|MEDIUMINT|INTEGER|INT|BIGINT|BOOLEAN|BOOL)"
    r"(?:\(\d+\))?(?:\s+UNSIGNED)?"
    r"|(?:DECIMAL|NUMERIC)(?:\(\d+(?:\s*,\s*\d+)?\))?|FLOAT|DOUBLE"
    r"|DATE|(?:DATETIME|TIMESTAMP|TIME)(?:\(\d\))?"
)
_LETTERS = r"(?:VARCHAR|CHAR)\((?P<length>\d+)\)"
_CUT_TYPES = r"(?:TINY|MEDIUM|LONG)?(?:TEXT|BLOB)|(?:VARBINARY|BINARY)\(\d+\)"
_COLUMN = re.compile(
    rf"(?P<name>{_NAME})\s+"
    rf"(?:(?P<short>{_WHOLE_TYPES})|{_LETTERS}|(?P<long>{_CUT_TYPES}))"
    r"(?:\s+CHARACTER\s+SET\s+\w+)?(?:\s+COLLATE\s+\w+)?"
    r"(?:\s+(?:NOT\s+)?NULL|\s+AUTO_INCREMENT"
    rf"|\s+DEFAULT\s+(?:-?\d+(?:\.\d+)?|{_TEXT}|NULL|TRUE|FALSE|{_MOMENT})"
    rf"|\s+ON\s+UPDATE\s+{_MOMENT}|\s+COMMENT\s+{_TEXT})*",
    re.I,
)
_PRIMARY = re.compile(rf"PRIMARY\s+KEY\s*{_COLUMN_NAMES}", re.I)
_UNIQUE = re.compile(
    rf"(?:CONSTRAINT\s+{_NAME}\s+)?UNIQUE\s*(?P<columns>{_COLUMN_NAMES})", re.I
)
_HEAD = re.compile(rf"\s*CREATE\s+TABLE\s+(?P<table>{_NAME})\s*\(", re.I)
_TAIL = re.compile(
    r"\)(?:\s*(?:ENGINE\s*=\s*InnoDB|COMMENT\s*=\s*" + _TEXT + r"|"
    r"(?:DEFAULT\s+)?(?:CHARSET|CHARACTER\s+SET|COLLATE)(?:\s*=\s*|\s+)"
    r"\w++))*\s*",
    re.I,
)
_INDEX = re.compile(
    rf"\s*CREATE\s+(?P<unique>UNIQUE\s+)?INDEX\s+(?P<name>{_NAME})\s+"
    rf"ON\s+(?P<table>{_NAME})\s*(?P<columns>{_COLUMN_NAMES})\s*",
    re.I,
)
_PART = re.compile(rf"\s*((?:{_TEXT}|`[^`]*`|\([^()]*\)|[^(),'`])+)")
# Words that begin something else than a column.
_WORDS = frozenset(
    [
        "check",
        "constraint",
        "foreign",
        "fulltext",
        "index",
        "key",
        "like",
        "period",
        "primary",
        "select",
        "spatial",
        "table",
        "unique",
        "values",
        "vector",
        "with",
    ]
)
#: Most letters in an index; those of four bytes fit into any row format.
_MAX_INDEX_LETTERS = 191

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
_OWN_NAMES = (
    "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()"
)

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
_NOT_TRANSACTIONAL = text(
    "SELECT COUNT(*) FROM information_schema.tables t "  # noqa: S608 - constants
    "LEFT JOIN information_schema.engines e ON e.engine = t.engine "
    f"WHERE t.table_schema = DATABASE() AND t.table_type IN {TABLE_TYPES} "
    "AND COALESCE(e.transactions, 'NO') <> 'YES'"
)


@dataclass(frozen=True, kw_only=True)
class Index:
    """An index that CREATE TABLE can create with its table.

    :ivar table: name of the table, as the statement has it.
    :ivar name: name of the index, not quoted and in lower case.
    :ivar columns: its columns in order, not quoted and in lower case.
    """

    table: str
    name: str
    columns: tuple[str, ...]
    is_unique: bool


def index_of(statement: str) -> Index | None:
    """Return the index that a statement creates.

    :returns: None for a statement that :func:`creation_of` does not join.
    """
    match = _INDEX.fullmatch(statement)
    if match is None:
        return None
    return Index(
        table=match["table"],
        name=_plain(match["name"]).lower(),
        columns=tuple(name.lower() for name in _names(match["columns"])),
        is_unique=match["unique"] is not None,
    )


def creation_of(statements: Sequence[str]) -> str | None:
    """Return one statement that creates a table as several do.

    :param statements: CREATE TABLE, and the statements after it.
    :returns: None if they are not known to be equal.
    """
    head = _HEAD.match(statements[0])
    if head is None:
        return None
    parts, end = _definitions(statements[0], head.end())
    if not parts or _TAIL.fullmatch(statements[0], end) is None:
        return None
    lengths = _lengths(parts)
    if lengths is None:
        return None
    keys = []
    unique = sum(bool(_UNIQUE.fullmatch(part)) for part in parts)
    for statement in statements[1:]:
        index = _INDEX.fullmatch(statement)
        if (
            index is None
            or _plain(index["table"]) != _plain(head["table"])
            or not _fits(index["columns"], lengths)
        ):
            return None
        if index["unique"] and (unique := unique + 1) > 1:
            return None
        kind = "UNIQUE KEY" if index["unique"] else "KEY"
        keys.append(f", {kind} {index['name']} {index['columns']}")
    return statements[0][:end] + "".join(keys) + statements[0][end:]


def _definitions(text: str, start: int) -> tuple[list[str], int]:
    """Return the definitions of a CREATE TABLE, and the position after them.

    That is the parenthesis that ends them.

    :returns: no definitions if one of them is not recognized.
    """
    parts = []
    position = start
    while match := _PART.match(text, position):
        parts.append(match[1].strip())
        position = match.end()
        if text[position : position + 1] == ")":
            return parts, position
        if text[position : position + 1] != ",":
            break
        position += 1
    return [], start


def _lengths(parts: Sequence[str]) -> dict[str, int] | None:
    """Return the letters of each column that an index may have.

    :returns: None if a definition is not recognized, or if there is not one
        primary key.
    """
    lengths: dict[str, int] = {}
    keys = []
    primary = 0
    for part in parts:
        column = _COLUMN.fullmatch(part)
        if column is not None and column["name"].lower() not in _WORDS:
            if not column["long"]:
                length = int(column["length"] or 0)
                lengths[_plain(column["name"])] = length
        elif unique := _UNIQUE.fullmatch(part):
            keys.append(unique["columns"])
        elif _PRIMARY.fullmatch(part):
            primary += 1
        else:
            return None
    if primary != 1 or not all(_fits(key, lengths) for key in keys):
        return None
    return lengths


def _fits(columns: str, lengths: dict[str, int]) -> bool:
    """Return whether an index has the whole values of its columns."""
    names = _names(columns)
    return all(name in lengths for name in names) and (
        sum(lengths[name] for name in names) <= _MAX_INDEX_LETTERS
    )


def _names(columns: str) -> list[str]:
    return [_plain(name) for name in re.findall(_NAME, columns)]


def _plain(name: str) -> str:
    return name.strip("`")


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
        return _OWN_NAMES, ()

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
    text = without_implied(text)
    return f"mysql {sha256(text.encode()).hexdigest()}"


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
        return set(connection.scalars(text(_OWN_NAMES)))

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
        parts: dict[str, list[tuple[Any, ...]]] = {}
        with engine.connect() as connection:
            have = set(connection.scalars(_HAVING, {"name": table}))
            if connection.scalar(_FOLDS):
                # All names on such a server are in lower case.
                have = {s for s in schemas if s.lower() in have}
            there = [schema for schema in schemas if schema in have]
            for first in range(0, len(there), _CHUNK):
                chunk = there[first : first + _CHUNK]
                parts.update((schema, []) for schema in chunk)
                sql = " UNION ALL ".join(
                    _select(connection, schema, table, columns, where)
                    for schema in chunk
                )
                for schema, *row in connection.exec_driver_sql(sql):
                    parts[schema].append(tuple(row))
        return parts


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
    parts = [row for row in rows.mappings() if row["Key_name"].lower() == index.name]
    parts.sort(key=lambda row: row["Seq_in_index"])
    columns = tuple(row["Column_name"].lower() for row in parts)
    return columns == index.columns and all(
        bool(row["Non_unique"]) is not index.is_unique
        and (row["Index_type"], row["Collation"]) == ("BTREE", "A")
        and row["Sub_part"] is None
        for row in parts
    )


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
