"""The catalogue of MySQL and MariaDB: information_schema, hashed there.

Not seen: row format, partitions and other options of a table, type and
direction of an index on MariaDB, the ``sql_mode`` of views and triggers,
routines and events.  MariaDB opens every table to tell them, some of them
for several seconds on a server with thousands of databases; CHECKs and
foreign keys are worth that, and are read by themselves.

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
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection
from sqlalchemy import Engine
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from sqla_shard.dialects.catalogue import DATABASE
from sqla_shard.dialects.catalogue import hashed
from sqla_shard.dialects.mysql_information import ARE_VIEWS
from sqla_shard.dialects.mysql_information import CHECKS
from sqla_shard.dialects.mysql_information import COLUMNS
from sqla_shard.dialects.mysql_information import DATABASES
from sqla_shard.dialects.mysql_information import Part
from sqla_shard.dialects.mysql_information import REFERENCES
from sqla_shard.dialects.mysql_information import REFERENCING
from sqla_shard.dialects.mysql_information import SEEN
from sqla_shard.dialects.mysql_information import TABLES
from sqla_shard.dialects.mysql_information import VIEWS

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
        for schema, table, digest in self._read(DATABASES, schemas):
            self._found[schema] = {table: [f"database {digest}"]}
        for schema, table, digest in self._read(TABLES, schemas):
            if schema in self._found:  # not made since
                parts = self._found[schema].setdefault(table, [])
                parts.append(f"table {digest}")
        views = set()
        if self._by_table:
            rows = self._connection.execute(ARE_VIEWS, {"schemas": schemas})
            views = {(self._fold(schema), table) for schema, table in rows}
        self._add(VIEWS, schemas)
        for part in SEEN[self._mariadb]:
            # Those of a view follow from its text.
            self._add(part, schemas, views if part is COLUMNS else ())

    def _open(self, schemas: list[str]) -> None:
        self._add(CHECKS[self._mariadb], schemas)
        rows = list(self._read(REFERENCES, schemas, by_table=True))
        for schema, table, digest in rows:
            self._note(schema, table, f"references {table} {digest}")
        tables = sorted({table for _, table, _ in rows})
        if tables:
            having = sorted({schema for schema, _, _ in rows})
            self._add(REFERENCING, having, tables=tables)

    def _add(
        self,
        part: Part,
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
        part: Part,
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
