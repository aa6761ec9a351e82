"""The catalogue of SQLite: the files of a directory, and sqlite_master.

A table is compared by the text that made it, white space aside, with that of
its indexes and triggers.  So two ways to write one thing are different.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from sqlalchemy import Connection
from sqlalchemy import Engine

from sqla_shard.dialects.catalogue import DATABASE
from sqla_shard.dialects.catalogue import hashed

__all__ = ["SQLiteCatalogue"]

# Literals, quoted names, comments; blanks; marks; anything else.
_TOKEN = re.compile(
    r"""'(?:[^']|'')*' | "(?:[^"]|"")*" | `[^`]*` | \[[^]]*\] |
    --[^\n]* | /\*.*?\*/ | \s+ | [(),;] | [^\s'"`\[(),;/-]+ | .""",
    re.VERBOSE | re.DOTALL,
)


class SQLiteCatalogue:
    """Lists the directory of a file, and reads ``sqlite_master``."""

    def databases(self, engine: Engine) -> set[str]:
        """Return the names of the files beside that of the engine.

        Nothing is opened or made: where there is no directory, there is no
        database.
        """
        directory = Path(str(engine.url.database)).parent
        # A journal's name goes on behind the suffix: db00000.sqlite-wal.
        return {path.stem for path in directory.glob("*.sqlite")}

    def digests(
        self, connection: Connection, schemas: Iterable[str]
    ) -> dict[str, dict[str, str]]:
        """Read all of the file's catalogue."""
        found: dict[str, dict[str, str]] = {}
        for schema in schemas:
            tables: dict[str, list[str]] = {}
            for table, _, _, sql in _master(connection, schema):
                tables.setdefault(table, []).append("".join(_words(sql)))
            found[schema] = {
                table: hashed(parts) for table, parts in tables.items()
            }
        return found

    def definition(
        self, connection: Connection, schema: str, table: str
    ) -> str:
        """Return the text of the table, its indexes and its triggers."""
        if table == DATABASE:
            return ""
        found = [row for row in _master(connection, schema) if row[0] == table]
        # The table itself before what belongs to it.
        found.sort(key=lambda row: (row[1] not in ("table", "view"), row[2]))
        return "\n".join(_lines(sql) for _, _, _, sql in found)


def _master(
    connection: Connection, schema: str
) -> list[tuple[str, str, str, str]]:
    """Return table, type, name and text of everything that users made."""
    quoted = connection.dialect.identifier_preparer.quote(schema)
    rows = connection.exec_driver_sql(
        f"SELECT tbl_name, type, name, sql FROM {quoted}.sqlite_master "  # noqa: S608 - quoted
        # Indexes of PRIMARY KEY and UNIQUE have no text of their own.
        "WHERE sql IS NOT NULL AND name NOT GLOB 'sqlite_*'"
    )
    return [(row[0], row[1], row[2], row[3]) for row in rows]


def _words(sql: str) -> list[str]:
    """Return the text in pieces, with no white space that means nothing."""
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
    """Return the text with each column on a line of its own."""
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
