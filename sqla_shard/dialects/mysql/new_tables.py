"""One CREATE TABLE for a new table and its indexes, on MariaDB.

Alembic sends CREATE INDEX after CREATE TABLE, and MariaDB changes the table
for each of them.  Within CREATE TABLE the same indexes cost next to nothing.

The table has to be the same, so only texts of a small grammar are joined:
columns of common types with literal defaults, a primary key, and indexes of
whole columns.  Without a primary key a unique index would become the clustered
one; a foreign key has an index that the server creates, and drops for another
one; long texts are cut or hashed in an index; and InnoDB looks for duplicates
in the order in which unique indexes were created.  Expressions, comments in
the text, partitions, CREATE TABLE ... SELECT and everything else is not
recognized.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_NAME = r"(?:`[^`%]+`|[A-Za-z_][\w$]*)"
_NAMES = rf"\(\s*{_NAME}(?:\s*,\s*{_NAME})*\s*\)"
# Without backslashes, whose meaning depends on sql_mode.
_TEXT = r"'(?:[^'\\]|'')*'"
_MOMENT = r"(?:CURRENT_TIMESTAMP|now)(?:\(\d*\))?"
#: Types whose values an index has as they are.
_SHORT = (
    r"(?:TINYINT|SMALLINT|MEDIUMINT|INTEGER|INT|BIGINT|BOOLEAN|BOOL)"
    r"(?:\(\d+\))?(?:\s+UNSIGNED)?"
    r"|(?:DECIMAL|NUMERIC)(?:\(\d+(?:\s*,\s*\d+)?\))?|FLOAT|DOUBLE"
    r"|DATE|(?:DATETIME|TIMESTAMP|TIME)(?:\(\d\))?"
)
_LETTERS = r"(?:VARCHAR|CHAR)\((?P<length>\d+)\)"
_LONG = r"(?:TINY|MEDIUM|LONG)?(?:TEXT|BLOB)|(?:VARBINARY|BINARY)\(\d+\)"
_COLUMN = re.compile(
    rf"(?P<name>{_NAME})\s+"
    rf"(?:(?P<short>{_SHORT})|{_LETTERS}|(?P<long>{_LONG}))"
    r"(?:\s+CHARACTER\s+SET\s+\w+)?(?:\s+COLLATE\s+\w+)?"
    r"(?:\s+(?:NOT\s+)?NULL|\s+AUTO_INCREMENT"
    rf"|\s+DEFAULT\s+(?:-?\d+(?:\.\d+)?|{_TEXT}|NULL|TRUE|FALSE|{_MOMENT})"
    rf"|\s+ON\s+UPDATE\s+{_MOMENT}|\s+COMMENT\s+{_TEXT})*",
    re.I,
)
_PRIMARY = re.compile(rf"PRIMARY\s+KEY\s*{_NAMES}", re.I)
_UNIQUE = re.compile(
    rf"(?:CONSTRAINT\s+{_NAME}\s+)?UNIQUE\s*(?P<columns>{_NAMES})", re.I
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
    rf"ON\s+(?P<table>{_NAME})\s*(?P<columns>{_NAMES})\s*",
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
_MOST = 191


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
    found = _INDEX.fullmatch(statement)
    if found is None:
        return None
    return Index(
        table=found["table"],
        name=_plain(found["name"]).lower(),
        columns=tuple(name.lower() for name in _names(found["columns"])),
        is_unique=found["unique"] is not None,
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
    while found := _PART.match(text, position):
        parts.append(found[1].strip())
        position = found.end()
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
        sum(lengths[name] for name in names) <= _MOST
    )


def _names(columns: str) -> list[str]:
    return [_plain(name) for name in re.findall(_NAME, columns)]


def _plain(name: str) -> str:
    return name.strip("`")
