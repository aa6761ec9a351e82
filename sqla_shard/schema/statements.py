"""What a statement of a revision does, told from its text.

The journal has to know whether a statement may be skipped or repeated after
an interruption.  What is not recognised is taken for the worst.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

__all__ = ["Effect", "Reading", "read"]


class Effect(Enum):
    """What becomes of a statement when its runner is interrupted."""

    READS = "changes nothing"
    SESSION = "changes the connection alone, and has to be said again"
    ROWS = "changes rows, and is rolled back with its entry in the journal"
    TABLES = "changes tables; looking at them tells whether it did"
    UNKNOWN = "cannot be told"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What is known of a statement.

    :ivar tables: those that a change of tables names, as they are written.
    """

    effect: Effect
    tables: tuple[str, ...] = ()


_COMMENT = re.compile(
    r"\s*(?:/\*(?![!M]).*?\*/|--[^\n]*(?:\n|$)|#[^\n]*\n)\s*", re.S
)
_WORD = re.compile(r"\s*\(*\s*([A-Za-z_]+)")
_NAME = r"(?:`[^`]+`|\"[^\"]+\"|\w+)(?:\s*\.\s*(?:`[^`]+`|\"[^\"]+\"|\w+))?"
_NAMES = rf"{_NAME}(?:\s*,\s*{_NAME})*"
_ONE = re.compile(_NAME)

_READS = frozenset({"SELECT", "SHOW", "DESCRIBE", "DESC", "EXPLAIN", "VALUES"})
_ROWS = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE"})
_SESSION = frozenset(
    {"USE", "SET", "PRAGMA", "DO", "BEGIN", "START", "SAVEPOINT", "RELEASE"}
)
# With the same definition before and after, other data.
_MOVES_DATA = re.compile(
    r"\b(?:TRUNCATE|EXCHANGE|DISCARD|IMPORT|COALESCE|REORGANIZE)\b", re.I
)
_TEMPORARY = re.compile(r"\s*(?:CREATE|DROP)\s+(?:OR\s+REPLACE\s+)?TEMP", re.I)
_SELECT = re.compile(r"\bSELECT\b", re.I)
_IF = r"(?:IF\s+(?:NOT\s+)?EXISTS\s+)?"
_TABLES = (
    re.compile(rf"CREATE\s+(?:OR\s+REPLACE\s+)?TABLE\s+{_IF}({_NAME})", re.I),
    re.compile(
        r"ALTER\s+(?:ONLINE\s+)?(?:IGNORE\s+)?TABLE\s+"
        rf"{_IF}({_NAME})(?:.*\bRENAME\s+(?:TO\s+|AS\s+)({_NAME})\s*$)?",
        re.I | re.S,
    ),
    re.compile(
        rf"DROP\s+(?:TABLE|VIEW)\s+{_IF}({_NAMES})\s*(?:\w+\s*)*$", re.I
    ),
    re.compile(
        r"CREATE\s+(?:OR\s+REPLACE\s+)?(?:ONLINE\s+)?"
        rf"(?:UNIQUE\s+|FULLTEXT\s+|SPATIAL\s+)?INDEX\s+{_IF}{_NAME}\s+"
        rf"(?:USING\s+\w+\s+)?ON\s+({_NAME})",
        re.I,
    ),
    re.compile(rf"DROP\s+INDEX\s+{_IF}{_NAME}\s+ON\s+({_NAME})", re.I),
    re.compile(rf"CREATE\s+(?:OR\s+REPLACE\s+)?VIEW\s+{_IF}({_NAME})", re.I),
)
_RENAME = re.compile(rf"RENAME\s+TABLES?\s+{_IF}(.*)$", re.I | re.S)


def read(statement: str) -> Reading:
    """Return what is known of a statement.

    :param statement: its text, as the server gets it.
    """
    text = _without_comments(statement)
    found = _WORD.match(text)
    word = found[1].upper() if found else ""
    if word in _READS:
        return Reading(effect=Effect.READS)
    if word in _SESSION or _TEMPORARY.match(text):
        return Reading(effect=Effect.SESSION)
    if word in _ROWS:
        return Reading(effect=Effect.ROWS)
    if word == "WITH":
        return _read_with(text)
    tables = _tables(text)
    if tables:
        return Reading(effect=Effect.TABLES, tables=tables)
    return Reading(effect=Effect.UNKNOWN)


def _without_comments(statement: str) -> str:
    start = 0
    while found := _COMMENT.match(statement, start):
        start = found.end()
    return statement[start:].strip().rstrip(";").rstrip()


def _read_with(text: str) -> Reading:
    # A common table expression may come before either.
    writes = re.search(r"\b(?:INSERT|UPDATE|DELETE|REPLACE)\b", text, re.I)
    return Reading(effect=Effect.ROWS if writes else Effect.READS)


def _tables(text: str) -> tuple[str, ...]:
    renamed = _RENAME.match(text)
    if renamed:
        return tuple(
            name
            for pair in renamed[1].split(",")
            for name in re.split(r"\s+TO\s+", pair.strip(), flags=re.I)
        )
    for pattern in _TABLES:
        found = pattern.match(text)
        if found is None:
            continue
        rest = text[found.end(1) :]
        if _MOVES_DATA.search(rest) or (
            text[:6].upper() == "CREATE" and _is_filled(text)
        ):
            return ()
        names = [
            name
            for group in found.groups()
            if group
            for name in _ONE.findall(group)
        ]
        return tuple(names)
    return ()


def _is_filled(text: str) -> bool:
    """Tell whether a CREATE TABLE takes rows from a query."""
    is_table = re.match(r"CREATE\s+(?:OR\s+REPLACE\s+)?TABLE\b", text, re.I)
    return bool(is_table and _SELECT.search(text))
