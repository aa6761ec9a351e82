"""The catalogue of MySQL and MariaDB: information_schema, hashed there.

Not seen: row format, partitions and other options of a table, type and
direction of an index on MariaDB, the ``sql_mode`` of views and triggers,
routines and events.  MariaDB opens every table to read them, which takes
several seconds on a server with thousands of databases; only CHECKs and
foreign keys are worth that, and are read separately.

Ignored: row counts, the AUTO_INCREMENT counter, the order of keys, the name of
the database where a definition repeats it, the columns of a view (they follow
from its text).  Names of constraints are compared, even generated ones: a
revision that drops ``pins_ibfk_1`` fails where it is ``pins_ibfk_2``.

Parts that the account has no privilege for are missing without an error:
triggers need TRIGGER, the text of views SHOW VIEW, foreign keys on MariaDB any
privilege but SELECT.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, Column, Connection, Engine, text, TextClause
from sqlalchemy.dialects.mysql import BIGINT
from sqlalchemy.exc import DBAPIError

from sqla_shard.dialects.base import Catalogue, DATABASE, hashed

_COUNTER = re.compile(r" AUTO_INCREMENT=\d+")
# Strings and quoted names come first: a comment may have the same words.
_IMPLIED = re.compile(
    r"('(?:[^'\\]|\\.|'')*'|`(?:[^`]|``)*`|['`].*)"
    r"| CHARACTER SET \w+(?= COLLATE )"
    r"| /\*!50100 TABLESPACE `innodb_(?:system|file_per_table)` \*/"
    r"| TABLESPACE = `innodb_(?:system|file_per_table)`",
    re.S,
)


def without_counter(created: str) -> str:
    """Return SHOW CREATE TABLE without the next AUTO_INCREMENT."""
    return _COUNTER.sub("", created)


def without_implied(created: str) -> str:
    """Return SHOW CREATE TABLE of MySQL without what depends on its past.

    MySQL shows ``COLLATE utf8mb4_bin`` for a column that has the collation of
    its table, and ``CHARACTER SET utf8mb4 COLLATE utf8mb4_bin`` if a statement
    has named that collation.  A table that was created from the first text
    shows the second one, although both tables are the same.  With
    ``innodb_file_per_table=OFF`` it names its default tablespace, of a partition,
    for which a statement must not name it, and of a table once it was altered.
    """
    return _IMPLIED.sub(lambda found: found[1] or "", created)


# MariaDB fills a table of information_schema in one of three ways, which
# EXPLAIN shows: from a list of files, from the definition alone
# (``Open_frm_only``), or by opening the table.  One column can make the
# difference; tests check that these use the second way, except for CHECKs and
# foreign keys.


@dataclass(frozen=True, kw_only=True)
class InformationTable:
    """The columns that are read from a table of information_schema.

    :ivar schema: column with the name of the database.
    :ivar table: column with the name of the table.
    :ivar columns: expressions that the digest covers.
    :ivar counted: condition of the rows that are counted.
    """

    source: str
    schema: str = "table_schema"
    table: str = "table_name"
    columns: tuple[str, ...]
    more: str = ""
    counted: str = "FALSE"

    def statement(self, by_table: bool) -> TextClause:
        """Return the statement.

        :param by_table: whether it returns a row for each table; otherwise a
            row for each database, with an empty name of the table.
        """
        # QUOTE() distinguishes NULL from a string, and delimits values.
        values = ", ".join(f"QUOTE({column})" for column in (self.table, *self.columns))
        # In the columns' own collation pins and Pins would be equal.
        schema, table = (
            f"CONVERT({column} USING utf8mb4) COLLATE utf8mb4_bin"
            for column in (self.schema, self.table if by_table else "''")
        )
        # One number for all rows in any order.  GROUP_CONCAT would truncate
        # long values.
        statement = text(
            f"SELECT {schema} AS s, {table} AS t, "  # noqa: S608 - constants
            f"BIT_XOR(CAST(CONV(LEFT(SHA2(CONCAT_WS(',', {values}), 256), "
            f"16), 16, 10) AS UNSIGNED)) AS d, SUM({self.counted}) AS n "
            f"FROM {self.source} "
            f"WHERE {self.schema} IN :schemas {self.more} GROUP BY s, t"
        )
        for name in ("schemas", "tables"):
            if f":{name}" in statement.text:
                statement = statement.bindparams(bindparam(name, expanding=True))
        return statement


def _without_database_name(column: str, schema: str = "table_schema") -> str:
    """Return SQL for a string without the name of its database."""
    return f"REPLACE({column}, CONCAT('`', {schema}, '`.'), '')"


def _name_unless_same(column: str, schema: str) -> str:
    """Return SQL for the name of a database; NULL for the same one."""
    return f"NULLIF({column}, {schema})"


TABLE_TYPES = ("BASE TABLE", "SYSTEM VERSIONED")
"""Values of ``table_type`` of what has rows; the second is one of MariaDB."""

_I_S = "information_schema."
TABLES = InformationTable(
    source=_I_S + "tables",
    columns=("table_type", "engine", "table_collation", "table_comment"),
    counted="table_type = 'VIEW'",
)
DATABASES = InformationTable(
    source=_I_S + "schemata",
    schema="schema_name",
    table="''",
    columns=("default_character_set_name", "default_collation_name"),
)
COLUMNS = InformationTable(
    source=_I_S + "columns",
    columns=(
        "column_name",
        "ordinal_position",
        _without_database_name("column_default"),
        "is_nullable",
        "column_type",
        "character_set_name",
        "collation_name",
        "extra",
        "generation_expression",
        "column_comment",
    ),
)
_INDEX = (
    "index_name",
    "non_unique",
    "seq_in_index",
    "column_name",
    "sub_part",
    "index_comment",
)
VIEWS = InformationTable(
    source=_I_S + "views",
    columns=(
        _without_database_name("view_definition"),
        "check_option",
        "definer",
        "security_type",
    ),
)
TRIGGERS = InformationTable(
    source=_I_S + "triggers",
    # It is the same, but by it a server of thousands of databases would read
    # the files of all.
    schema="event_object_schema",
    table="event_object_table",
    columns=(
        "trigger_name",
        "action_timing",
        "event_manipulation",
        "action_order",
        _without_database_name("action_statement", "event_object_schema"),
        "definer",
    ),
)
REFERENCES = InformationTable(
    source=_I_S + "referential_constraints",
    schema="constraint_schema",
    columns=(
        "constraint_name",
        _name_unless_same("unique_constraint_schema", "constraint_schema"),
        "unique_constraint_name",
        "referenced_table_name",
        "match_option",
        "update_rule",
        "delete_rule",
    ),
)
REFERENCING = InformationTable(
    source=_I_S + "key_column_usage",
    columns=(
        "constraint_name",
        "ordinal_position",
        "column_name",
        "position_in_unique_constraint",
        _name_unless_same("referenced_table_schema", "table_schema"),
        "referenced_table_name",
        "referenced_column_name",
    ),
    more="AND table_name IN :tables AND referenced_table_name IS NOT NULL",
)
#: Parts that MariaDB opens no table for; the key is True for MariaDB.
SEEN: Mapping[bool, Sequence[InformationTable]] = {
    True: (
        COLUMNS,
        TRIGGERS,
        InformationTable(source=_I_S + "statistics", columns=(*_INDEX, "ignored")),
    ),
    False: (
        COLUMNS,
        TRIGGERS,
        InformationTable(
            source=_I_S + "statistics",
            columns=(*_INDEX, "collation", "index_type", "expression", "is_visible"),
        ),
    ),
}
#: The part that MariaDB opens every table for, with the same keys.
CHECKS: Mapping[bool, InformationTable] = {
    True: InformationTable(
        source=_I_S + "check_constraints",
        schema="constraint_schema",
        columns=("constraint_name", "level", "check_clause"),
    ),
    # On MySQL the table of a CHECK is in another table.
    False: InformationTable(
        source=_I_S + "check_constraints JOIN " + _I_S + "table_constraints "
        "USING (constraint_schema, constraint_name)",
        schema="constraint_schema",
        columns=("constraint_name", "enforced", "check_clause"),
        more="AND constraint_type = 'CHECK'",
    ),
}


_SCHEMATA = text(
    "SELECT schema_name FROM information_schema.schemata "
    "WHERE schema_name NOT IN "
    "('information_schema', 'mysql', 'performance_schema', 'sys')"
)
#: The number of databases that one statement reads.  Each statement scans the
#: list of all databases, and tables should stay open for the next one.
_SCANNED = 4096
_OPENED_TOGETHER = 512
#: Up to this number, one statement per database is cheaper: it scans nothing.
_SINGLY = 16
_FOREIGN = text(
    # DISTINCT would take Db1 for db1.
    "SELECT SUBSTRING_INDEX(for_name, '/', 1) "
    "FROM information_schema.innodb_sys_foreign"
)
_DENIED = 1227
_NO_SUCH_DATABASE = 1049
_NO_SUCH_TABLE = 1146
_MISSING_TABLE = re.compile(r"Table '[^']*\.([^'.]+)' doesn't exist")
_WITH_TABLE = text(
    "SELECT table_schema FROM information_schema.tables WHERE table_name = :name"
)


class MySQLCatalogue(Catalogue):
    """Reads ``information_schema``."""

    def databases(self, engine: Engine) -> set[str]:
        """Return the databases that are visible to the user."""
        with engine.connect() as connection:
            schemas = set(connection.scalars(_SCHEMATA))
            return _Folded(schemas) if _folds(connection) else schemas

    def having(
        self, engine: Engine, error: BaseException | None
    ) -> Container[str] | None:
        """Read which databases have the table that an error names."""
        number, message, *_ = (*(error.args if error else ()), None, None)
        if number == _NO_SUCH_DATABASE:
            return self.databases(engine)
        match = _MISSING_TABLE.search(str(message))
        if number != _NO_SUCH_TABLE or match is None:
            return None
        with engine.connect() as connection:
            names = set(connection.scalars(_WITH_TABLE, {"name": match[1]}))
            return _Folded(names) if _folds(connection) else names

    def kind(self, connection: Connection) -> str:
        """Tell MariaDB from MySQL."""
        return "MariaDB" if _is_mariadb(connection) else "MySQL"

    def digests(
        self, connection: Connection, schemas: Iterable[str]
    ) -> dict[str, dict[str, str]]:
        """Send about ten statements, for any number of databases."""
        return _ServerCatalogue(connection, schemas).digests()

    def definition(self, connection: Connection, schema: str, table: str) -> str:
        """Return SHOW CREATE TABLE without the ignored parts."""
        quote = connection.dialect.identifier_preparer.quote_identifier
        database = quote(schema)
        name = f"TABLE {database}.{quote(table)}"
        if table == DATABASE:
            name = f"DATABASE {database}"
        # Without parameters the driver does not interpret percent signs.
        try:
            row = _rows(connection, f"SHOW CREATE {name}")[0]
        except DBAPIError as error:
            number = error.orig.args[0] if error.orig else None
            if number in (_NO_SUCH_DATABASE, _NO_SUCH_TABLE):
                return ""
            raise
        created = str(row[1])
        if table == DATABASE:
            return _READ_ONLY.sub("", created.replace(f" {database}", ""))
        if not _is_mariadb(connection):
            created = without_implied(created)
        lines = list(_normalized_lines(created.replace(f"{database}.", "")))
        rows = _rows(connection, f"SHOW TRIGGERS FROM {database}")
        for trigger in sorted(row for row in rows if row[2] == table):
            name, event, _, body, timing = trigger[:5]
            body = str(body).replace(f"{database}.", "")
            lines.append(f"TRIGGER {quote(name)} {timing} {event}\n{body}")
        return "\n".join(lines)


def _rows(connection: Connection, sql: str) -> Sequence[Any]:
    return connection.exec_driver_sql(sql).all()


# The state of a fence, not a definition.
_READ_ONLY = re.compile(r" ?/\* READ ONLY = 1 \*/")
_KEY = re.compile(r"  (?:\w+ )*?(?:KEY|CONSTRAINT) ")
_VIEW = re.compile(r" (?=(?:VIEW|AS select|from|where) )", re.IGNORECASE)


def _normalized_lines(created: str) -> Iterator[str]:
    """Yield the lines of SHOW CREATE TABLE, keys sorted, without counter."""
    if not created.startswith("CREATE TABLE"):
        # A view is one long line.
        yield _VIEW.sub("\n  ", created)
        return
    lines = created.split("\n")
    keys = []
    for line in lines:
        if _KEY.match(line):
            keys.append(line.rstrip(","))
        else:
            if keys and line.startswith(")"):
                yield ",\n".join(sorted(keys))
                keys = []
            # The counter is in the last line, after the columns.
            own = line.startswith(")")
            yield without_counter(line) if own else line


def is_generated_key(column: Column[Any]) -> bool:
    """Return whether MySQL has made a column, since a table had no key.

    It does so with ``sql_generate_invisible_primary_key``.

    :param column: as it was read from the server.
    """
    return (
        column.name == "my_row_id"
        and column.primary_key
        and isinstance(column.type, BIGINT)
        and bool(column.type.unsigned)
    )


def _is_mariadb(connection: Connection) -> bool:
    return bool(getattr(connection.dialect, "is_mariadb", False))


def _folds(connection: Connection) -> bool:
    """Return whether names are case-insensitive on the server."""
    return bool(connection.scalar(text("SELECT @@lower_case_table_names")))


class _Folded(set[str]):
    """A case-insensitive set of names."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(map(str.lower, names))

    def __contains__(self, name: object) -> bool:
        return super().__contains__(str(name).lower())


class _ServerCatalogue:
    """Reads the digests of the tables of the given databases.

    Thousands of databases are mostly equal.  So the digests of whole databases
    are read first, and the digests of tables from one of equal databases.
    """

    def __init__(self, connection: Connection, schemas: Iterable[str]) -> None:
        self._connection = connection
        self._mariadb = _is_mariadb(connection)
        self._fold = str.lower if _folds(connection) else str
        self._asked = {self._fold(schema): schema for schema in schemas}
        self._by_table = False
        #: Databases with foreign keys, in names of files.
        self._foreign: set[str] | None = None
        #: Digests of the parts of each table, by database and table.
        self._found: dict[str, dict[str, list[str]]] = {}

    def digests(self) -> dict[str, dict[str, str]]:
        """Return the digests of all tables, by database."""
        wholes = {
            schema: tables[DATABASE]
            for schema, tables in self._read_all(list(self._asked)).items()
        }
        first: dict[str, str] = {}
        for schema, whole in wholes.items():
            first.setdefault(whole, schema)
        self._by_table = True
        singly = len(first) <= _SINGLY
        by_table: dict[str, dict[str, str]] = {}
        for schemas in _chunks(list(first.values()), 1 if singly else None):
            by_table.update(self._read_all(schemas))
        return {
            self._asked[schema]: by_table[first[whole]]
            for schema, whole in wholes.items()
            if first[whole] in by_table  # not dropped since
        }

    def _read_all(self, schemas: list[str]) -> dict[str, dict[str, str]]:
        self._found = {}
        for chunk in _chunks(schemas, _SCANNED):
            self._scan(chunk)
        for chunk in _chunks(schemas, _OPENED_TOGETHER):
            self._open(chunk)
        return {
            schema: {table: hashed(parts) for table, parts in tables.items()}
            for schema, tables in self._found.items()
        }

    def _scan(self, schemas: list[str]) -> None:
        for schema, table, digest, _ in self._read(DATABASES, schemas):
            self._found[schema] = {table: [f"database {digest}"]}
        views = set()
        for schema, table, digest, count in self._read(TABLES, schemas):
            if schema in self._found:  # not created since
                parts = self._found[schema].setdefault(table, [])
                parts.append(f"table {digest}")
            if count:
                views.add((schema, table))
        # The server would look for them among all tables.
        if views:
            self._add(VIEWS, schemas)
        for part in SEEN[self._mariadb]:
            # The columns of a view follow from its text.
            is_seen = self._by_table and part is COLUMNS
            self._add(part, schemas, views if is_seen else ())

    def _open(self, schemas: list[str]) -> None:
        self._add(CHECKS[self._mariadb], schemas)
        referring = self._referring(schemas)
        if not referring:
            return
        rows = list(self._read(REFERENCES, referring, by_table=True))
        for schema, table, digest, _ in rows:
            self._append(schema, table, f"references {table} {digest}")
        tables = sorted({table for _, table, *_ in rows})
        if tables:
            having = sorted({schema for schema, *_ in rows})
            self._add(REFERENCING, having, tables=tables)

    def _referring(self, schemas: list[str]) -> list[str]:
        """Return the databases that may have foreign keys.

        MariaDB opens all tables of these to read them; InnoDB knows which they
        are, and tells accounts with PROCESS.
        """
        if not self._mariadb:
            return schemas
        if self._foreign is None:
            try:
                self._foreign = set(self._connection.scalars(_FOREIGN))
            except DBAPIError as error:
                if error.orig is None or error.orig.args[0] != _DENIED:
                    raise
                self._foreign = {"@"}
        # A name with @ has characters that are written otherwise there.
        if any("@" in name for name in self._foreign):
            return schemas
        return [schema for schema in schemas if schema in self._foreign]

    def _add(
        self,
        part: InformationTable,
        schemas: list[str],
        but: Container[tuple[str, str]] = (),
        tables: list[str] | None = None,
    ) -> None:
        for schema, table, digest, _ in self._read(part, schemas, tables=tables):
            if (schema, table) not in but:
                self._append(schema, table, f"{part.source} {digest}")

    def _append(self, schema: str, table: str, part: str) -> None:
        tables = self._found.get(schema, {})
        parts = tables.get(table if self._by_table else DATABASE)
        if parts is not None:  # not created since
            parts.append(part)

    def _read(
        self,
        part: InformationTable,
        schemas: list[str],
        *,
        by_table: bool = False,
        tables: list[str] | None = None,
    ) -> Iterator[tuple[str, str, int, int]]:
        statement = part.statement(by_table or self._by_table)
        parameters = {"schemas": schemas}
        if tables is not None:
            parameters["tables"] = tables
        rows = self._connection.execute(statement, parameters)
        for schema, table, digest, count in rows:
            yield self._fold(schema), table, digest, count


def _chunks(items: list[str], size: int | None) -> Iterator[list[str]]:
    step = size or max(len(items), 1)
    for start in range(0, len(items), step):
        yield items[start : start + step]
