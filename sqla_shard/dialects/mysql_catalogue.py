"""The catalogue of MySQL and MariaDB: information_schema, hashed there.

Not seen: row format, partitions and other options of a table, type and
direction of an index on MariaDB, the ``sql_mode`` of views and triggers,
routines and events.  MariaDB opens every table to tell them, some of them
for several seconds on a server with thousands of databases; CHECKs and
foreign keys are worth that, and are read by :data:`_OPENED`.

Left out by right: row counts, the AUTO_INCREMENT counter, the order of keys,
the name of the database where a definition repeats it, the columns of a view
(they follow from its text).  Names of constraints count, also those that the
server has made: a revision that drops ``pins_ibfk_1`` fails where it is
``pins_ibfk_2``.

What an account may not see is missing without a sign: triggers need the
TRIGGER privilege, the text of views SHOW VIEW, foreign keys on MariaDB any
but SELECT.

Written for MySQL 8 as well, but not tested on it.
"""

from __future__ import annotations

import re
from collections.abc import Container
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam
from sqlalchemy import Connection
from sqlalchemy import Engine
from sqlalchemy import text
from sqlalchemy import TextClause
from sqlalchemy.exc import DBAPIError

from sqla_shard.dialects.catalogue import DATABASE
from sqla_shard.dialects.catalogue import hashed

__all__ = ["MySQLCatalogue"]

_SCHEMATA = text(
    "SELECT schema_name FROM information_schema.schemata "
    "WHERE schema_name NOT IN "
    "('information_schema', 'mysql', 'performance_schema', 'sys')"
)
#: How many databases one statement reads.  Each scans the list of all
#: databases, and what it opens should still be open for the next.
_SCANNED = 4096
_OPENED_TOGETHER = 512
#: Up to so many are cheaper one by one: then nothing is scanned.
_SINGLY = 16
_NO_SUCH_DATABASE = 1049
_NO_SUCH_TABLE = 1146


@dataclass(frozen=True, kw_only=True)
class _Part:
    """One table of information_schema, and what is read of it.

    :ivar schema: its column with the name of the database.
    :ivar table: its column with the name of the table.
    :ivar columns: expressions that the digest covers.
    """

    source: str
    schema: str = "table_schema"
    table: str = "table_name"
    columns: tuple[str, ...]
    more: str = ""

    def statement(self, by_table: bool) -> TextClause:
        """Return the statement.

        :param by_table: whether it gives a row for each table; otherwise
            for each database, with an empty name of the table.
        """
        # QUOTE() tells NULL from a text, and where one value ends.
        values = ", ".join(
            f"QUOTE({column})" for column in (self.table, *self.columns)
        )
        # By their own collation pins and Pins would be one.
        schema, table = (
            f"CONVERT({column} USING utf8mb4) COLLATE utf8mb4_bin"
            for column in (self.schema, self.table if by_table else "''")
        )
        # One number for all rows whatever their order.  GROUP_CONCAT would
        # cut off what is too long for it.
        statement = text(
            f"SELECT {schema} AS s, {table} AS t, "  # noqa: S608 - constants
            f"BIT_XOR(CAST(CONV(LEFT(MD5(CONCAT_WS(',', {values})), 16), "
            f"16, 10) AS UNSIGNED)) AS d FROM {self.source} "
            f"WHERE {self.schema} IN :schemas {self.more} GROUP BY s, t"
        )
        for name in ("schemas", "tables"):
            if f":{name}" in statement.text:
                statement = statement.bindparams(
                    bindparam(name, expanding=True)
                )
        return statement


def _local(column: str, schema: str = "table_schema") -> str:
    """Return SQL for a text without the name of its own database."""
    return f"REPLACE({column}, CONCAT('`', {schema}, '`.'), '')"


def _own(column: str, schema: str) -> str:
    """Return SQL for the name of another database than one's own."""
    return f"NULLIF({column}, {schema})"


_I_S = "information_schema."
_TABLES = _Part(
    source=_I_S + "tables",
    columns=("table_type", "engine", "table_collation", "table_comment"),
)
_DATABASES = _Part(
    source=_I_S + "schemata",
    schema="schema_name",
    table="''",
    columns=("default_character_set_name", "default_collation_name"),
)
_COLUMNS = _Part(
    source=_I_S + "columns",
    columns=(
        "column_name",
        "ordinal_position",
        _local("column_default"),
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
_VIEWS = _Part(
    source=_I_S + "views",
    columns=(
        _local("view_definition"),
        "check_option",
        "definer",
        "security_type",
    ),
)
_TRIGGERS = _Part(
    source=_I_S + "triggers",
    schema="trigger_schema",
    table="event_object_table",
    columns=(
        "trigger_name",
        "action_timing",
        "event_manipulation",
        "action_order",
        _local("action_statement", "trigger_schema"),
        "definer",
    ),
)
_REFERENCES = _Part(
    source=_I_S + "referential_constraints",
    schema="constraint_schema",
    columns=(
        "constraint_name",
        _own("unique_constraint_schema", "constraint_schema"),
        "unique_constraint_name",
        "referenced_table_name",
        "match_option",
        "update_rule",
        "delete_rule",
    ),
)
_REFERENCING = _Part(
    source=_I_S + "key_column_usage",
    columns=(
        "constraint_name",
        "ordinal_position",
        "column_name",
        "position_in_unique_constraint",
        _own("referenced_table_schema", "table_schema"),
        "referenced_table_name",
        "referenced_column_name",
    ),
    more="AND table_name IN :tables AND referenced_table_name IS NOT NULL",
)
#: By whether it is MariaDB: what that opens no table for.
_SEEN: Mapping[bool, Sequence[_Part]] = {
    True: (
        _COLUMNS,
        _TRIGGERS,
        _Part(source=_I_S + "statistics", columns=(*_INDEX, "ignored")),
    ),
    False: (
        _COLUMNS,
        _TRIGGERS,
        _Part(
            source=_I_S + "statistics",
            columns=(
                *_INDEX,
                "collation",
                "index_type",
                "expression",
                "is_visible",
            ),
        ),
    ),
}
#: Likewise: what MariaDB opens every table for.
_CHECKS: Mapping[bool, _Part] = {
    True: _Part(
        source=_I_S + "check_constraints",
        schema="constraint_schema",
        columns=("constraint_name", "level", "check_clause"),
    ),
    # There a CHECK does not say of which table it is.
    False: _Part(
        source=_I_S + "check_constraints JOIN " + _I_S + "table_constraints "
        "USING (constraint_schema, constraint_name)",
        schema="constraint_schema",
        columns=("constraint_name", "enforced", "check_clause"),
        more="AND constraint_type = 'CHECK'",
    ),
}


class MySQLCatalogue:
    """Reads ``information_schema``."""

    def databases(self, engine: Engine) -> set[str]:
        """Return all that the user may see, but those of the server."""
        with engine.connect() as connection:
            found = set(connection.scalars(_SCHEMATA))
            return _Folded(found) if _folds(connection) else found

    def digests(
        self, connection: Connection, schemas: Iterable[str]
    ) -> dict[str, dict[str, str]]:
        """Ask some ten questions, whatever the number of databases."""
        return _Reading(connection, schemas).digests()

    def definition(
        self, connection: Connection, schema: str, table: str
    ) -> str:
        """Return SHOW CREATE TABLE without what differs by right."""
        quote = connection.dialect.identifier_preparer.quote_identifier
        database = quote(schema)
        name = f"TABLE {database}.{quote(table)}"
        if table == DATABASE:
            name = f"DATABASE {database}"
        # A percent sign is one to the driver only beside parameters.
        try:
            row = _rows(connection, f"SHOW CREATE {name}")[0]
        except DBAPIError as error:
            number = error.orig.args[0] if error.orig else None
            if number in (_NO_SUCH_DATABASE, _NO_SUCH_TABLE):
                return ""
            raise
        created = str(row[1])
        if table == DATABASE:
            return created.replace(f" {database}", "")
        lines = list(_normalised(created.replace(f"{database}.", "")))
        found = _rows(connection, f"SHOW TRIGGERS FROM {database}")
        for trigger in sorted(row for row in found if row[2] == table):
            name, event, _, body, timing = trigger[:5]
            body = str(body).replace(f"{database}.", "")
            lines.append(f"TRIGGER {quote(name)} {timing} {event}\n{body}")
        return "\n".join(lines)


def _rows(connection: Connection, sql: str) -> Sequence[Any]:
    return connection.exec_driver_sql(sql).all()


_COUNTER = re.compile(r" AUTO_INCREMENT=\d+")
_KEY = re.compile(r"  (?:\w+ )*?(?:KEY|CONSTRAINT) ")
_VIEW = re.compile(r" (?=(?:VIEW|AS select|from|where) )", re.IGNORECASE)


def _normalised(created: str) -> Iterator[str]:
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
            # The counter stands behind the columns.
            own = line.startswith(")")
            yield _COUNTER.sub("", line) if own else line


def _folds(connection: Connection) -> bool:
    """Tell whether the server does not care for the case of names."""
    return bool(connection.scalar(text("SELECT @@lower_case_table_names")))


class _Folded(set[str]):
    """Names that are here in any case."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(map(str.lower, names))

    def __contains__(self, name: object) -> bool:
        return super().__contains__(str(name).lower())


class _Reading:
    """One reading of the tables of some databases.

    Thousands of databases are mostly equal.  So each is read as a whole at
    first, and by table only one of those that are equal.
    """

    def __init__(self, connection: Connection, schemas: Iterable[str]) -> None:
        self._connection = connection
        self._mariadb = bool(getattr(connection.dialect, "is_mariadb", False))
        self._fold = str.lower if _folds(connection) else str
        self._asked = {self._fold(schema): schema for schema in schemas}
        self._by_table = False
        #: By database and table: digests of what was read of it.
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
        found: dict[str, dict[str, str]] = {}
        for schemas in _chunks(list(first.values()), 1 if singly else None):
            found.update(self._read_all(schemas))
        return {
            self._asked[schema]: found[first[whole]]
            for schema, whole in wholes.items()
            if first[whole] in found  # not dropped since
        }

    def _read_all(self, schemas: list[str]) -> dict[str, dict[str, str]]:
        self._found = {}
        for some in _chunks(schemas, _SCANNED):
            self._scan(some)
        for some in _chunks(schemas, _OPENED_TOGETHER):
            self._open(some)
        return {
            schema: {table: hashed(parts) for table, parts in tables.items()}
            for schema, tables in self._found.items()
        }

    def _scan(self, schemas: list[str]) -> None:
        for schema, table, digest in self._read(_DATABASES, schemas):
            self._found[schema] = {table: [f"database {digest}"]}
        for schema, table, digest in self._read(_TABLES, schemas):
            if schema in self._found:  # not made since
                parts = self._found[schema].setdefault(table, [])
                parts.append(f"table {digest}")
        views = set()
        if self._by_table:
            rows = self._connection.execute(_ARE_VIEWS, {"schemas": schemas})
            views = {(self._fold(schema), table) for schema, table in rows}
        self._add(_VIEWS, schemas)
        for part in _SEEN[self._mariadb]:
            # Those of a view follow from its text.
            self._add(part, schemas, views if part is _COLUMNS else ())

    def _open(self, schemas: list[str]) -> None:
        self._add(_CHECKS[self._mariadb], schemas)
        rows = list(self._read(_REFERENCES, schemas, by_table=True))
        for schema, table, digest in rows:
            self._note(schema, table, f"references {table} {digest}")
        tables = sorted({table for _, table, _ in rows})
        if tables:
            having = sorted({schema for schema, _, _ in rows})
            self._add(_REFERENCING, having, tables=tables)

    def _add(
        self,
        part: _Part,
        schemas: list[str],
        but: Container[tuple[str, str]] = (),
        tables: list[str] | None = None,
    ) -> None:
        for schema, table, digest in self._read(part, schemas, tables=tables):
            if (schema, table) not in but:
                self._note(schema, table, f"{part.source} {digest}")

    def _note(self, schema: str, table: str, part: str) -> None:
        tables = self._found.get(schema, {})
        parts = tables.get(table if self._by_table else DATABASE)
        if parts is not None:  # not made since
            parts.append(part)

    def _read(
        self,
        part: _Part,
        schemas: list[str],
        *,
        by_table: bool = False,
        tables: list[str] | None = None,
    ) -> Iterator[tuple[str, str, int]]:
        statement = part.statement(by_table or self._by_table)
        parameters = {"schemas": schemas}
        if tables is not None:
            parameters["tables"] = tables
        rows = self._connection.execute(statement, parameters)
        for schema, table, digest in rows:
            yield self._fold(schema), table, digest


def _chunks(items: list[str], size: int | None) -> Iterator[list[str]]:
    step = size or max(len(items), 1)
    for start in range(0, len(items), step):
        yield items[start : start + step]


_ARE_VIEWS = text(
    "SELECT table_schema, table_name FROM information_schema.tables "
    "WHERE table_schema IN :schemas AND table_type = 'VIEW'"
).bindparams(bindparam("schemas", expanding=True))
