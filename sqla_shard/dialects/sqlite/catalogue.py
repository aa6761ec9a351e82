"""The catalogue of SQLite: the files of a directory, and sqlite_master.

A table is compared by the statement that created it, except white space, with
the statements of its indexes and triggers.  So equivalent definitions may be
different.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from sqlalchemy import Connection, Engine

from sqla_shard.dialects.base import Catalogue, DATABASE, hashed

# Literals, quoted names, comments; white space; punctuation; anything else.
_TOKEN = re.compile(
    r"""'(?:[^']|'')*' | "(?:[^"]|"")*" | `[^`]*` | \[[^]]*\] |
    --[^\n]* | /\*.*?\*/ | (?:/\*|['"`\[]).* |
    \s+ | [(),;] | [^\s'"`\[(),;/-]+ | .""",
    re.VERBOSE | re.DOTALL,
)


class SQLiteCatalogue(Catalogue):
    """Lists the directory of a file, and reads ``sqlite_master``."""

    def databases(self, engine: Engine) -> set[str]:
        """Return the names of the files in the directory of the engine.

        Nothing is opened or created; a missing directory has no databases.
        """
        directory = Path(str(engine.url.database)).parent
        # The names of journals are longer: db00000.sqlite-wal.
        return {path.stem for path in directory.glob("*.sqlite")}

    def kind(self, connection: Connection) -> str:
        """Name the only kind."""
        return "SQLite"

    def digests(
        self, connection: Connection, schemas: Iterable[str]
    ) -> dict[str, dict[str, str]]:
        """Read the catalogue of the file."""
        found: dict[str, dict[str, str]] = {}
        for schema in schemas:
            tables: dict[str, list[str]] = {}
            for table, _, _, sql in _master(connection, schema):
                tables.setdefault(table, []).append("".join(_words(sql)))
            found[schema] = {table: hashed(parts) for table, parts in tables.items()}
        return found

    def definition(self, connection: Connection, schema: str, table: str) -> str:
        """Return the SQL of the table, its indexes and its triggers."""
        if table == DATABASE:
            return ""
        found = [row for row in _master(connection, schema) if row[0] == table]
        # The table before its indexes and triggers.
        found.sort(key=lambda row: (row[1] not in ("table", "view"), row[2]))
        return "\n".join(_lines(sql) for _, _, _, sql in found)


def _master(connection: Connection, schema: str) -> list[tuple[str, str, str, str]]:
    """Return table, type, name and SQL of everything that users created."""
    quoted = connection.dialect.identifier_preparer.quote(schema)
    rows = connection.exec_driver_sql(
        f"SELECT tbl_name, type, name, sql FROM {quoted}.sqlite_master "  # noqa: S608 - quoted
        # Indexes of PRIMARY KEY and UNIQUE have no SQL of their own.
        "WHERE sql IS NOT NULL AND name NOT GLOB 'sqlite_*'"
    )
    return [(row[0], row[1], row[2], row[3]) for row in rows]


def _words(sql: str) -> list[str]:
    """Return the words of a statement, without insignificant white space."""
    words: list[str] = []
    for token in _TOKEN.findall(sql):
        if not token.isspace():
            words.append(token)
        elif words and words[-1] not in ("(", ",", " "):
            words.append(" ")
        if token in ("(", ")", ",") and len(words) > 1 and words[-2] == " ":
            del words[-2]
    return words


def _lines(sql: str) -> str:
    """Return the statement with each column on a separate line."""
    depth = 0
    lines = []
    for word in _words(sql):
        depth += (word == "(") - (word == ")")
        if word == "(" and depth == 1:
            word = "(\n  "
        elif word == "," and depth == 1:
            word = ",\n  "
        elif word == ")" and depth == 0:
            word = "\n)"
        lines.append(word)
    return "".join(lines).strip()
