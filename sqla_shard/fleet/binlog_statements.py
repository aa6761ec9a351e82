"""Statements of a binary log, rewritten for a database of another name.

A statement that would change, or read, another database than the restored one
is refused: replayed as it stands, it would change a live table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sqla_shard.fleet.admin import quoted
from sqla_shard.fleet.binlog_events import Statement

_ANSI_QUOTES = 4
_NO_BACKSLASH_ESCAPES = 1 << 20

_TOKEN = re.compile(
    r"""
    (?P<comment>/\*.*?\*/ | \#[^\n]*(?:\n|$) | --[\s][^\n]*(?:\n|$))
  | (?P<text>'(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*")
  | (?P<quoted>`(?:[^`]|``)*`)
  | (?P<open>(?:/\*|['"`]).*)
  | (?P<number>\d[\w.]*)
  | (?P<word>[^\W\d][\w$]*|[\w$]+)
  | (?P<space>\s+)
  | (?P<other>.)
    """,
    re.X | re.S,
)
_KINDS = re.compile(
    r"(?:ALTER(?:\s+ONLINE)?(?:\s+IGNORE)?\s+TABLE"
    r"|CREATE\s+(?:OR\s+REPLACE\s+)?TABLE"
    r"|CREATE\s+(?:OR\s+REPLACE\s+)?(?:UNIQUE\s+|FULLTEXT\s+|SPATIAL\s+)?INDEX"
    r"|DROP\s+TABLE|DROP\s+INDEX|RENAME\s+TABLES?|TRUNCATE)\b",
    re.I,
)
# They change no row and no definition of a table.  SET STATEMENT is a prefix
# of any other statement, also if an executable comment hides the word.
_HARMLESS = re.compile(
    r"(?:ANALYZE|CHECK|FLUSH|GRANT|OPTIMIZE|REVOKE)\b"
    r"|SET\b(?!\s*(?:STATEMENT\b|/\*))"
    r"|(?:ALTER|CREATE|DROP|RENAME)\s+(?:OR\s+REPLACE\s+)?(?:USER|ROLE)\b",
    re.I,
)


class NotReplayableError(ValueError):
    """Raised when a statement cannot be replayed in another database."""


@dataclass(frozen=True)
class Replayable:
    """A statement for the restored database.

    :ivar text: the statement.
    :ivar has_default: whether it needs the database as its default.
    :ivar sql_mode: its ``sql_mode``, as a number.
    """

    text: str
    has_default: bool
    sql_mode: int


def qualifiers(text: str) -> list[str]:
    """Return the names before a dot in SQL: of databases, tables and aliases.

    :param text: the SQL; a name in a string or a comment is none, even if
        its end is not in the text.
    """
    tokens = [
        (str(found.lastgroup), found[0])
        for found in _TOKEN.finditer(text)
        if found.lastgroup != "comment"
    ]
    found = []
    for index, (kind, value) in enumerate(tokens):
        name = _identifier(kind, value)
        if name is not None and _next(tokens, index) == ".":
            found.append(name)
    return found


def rewritten(statement: Statement, database: str, target: str) -> Replayable | None:
    """Return a statement for another database.

    :param statement: the statement, as logged.
    :param database: name of the database that it may name.
    :param target: name to use instead.
    :returns: None if it is of other databases.
    :raises NotReplayableError: if it names the database and is not a
        statement about tables, or names another database, too.
    """
    has_default = statement.default == database
    own = database.lower()
    if not has_default and own.encode() not in statement.text.lower():
        return None
    try:
        text = statement.text.decode()
    except UnicodeDecodeError as error:
        raise NotReplayableError("it is not UTF-8") from error
    tokens = [
        (str(found.lastgroup), found[0])
        for found in _TOKEN.finditer(text)
        if found.lastgroup != "comment" or found[0].startswith(("/*!", "/*M!"))
    ]
    names = [_identifier(kind, value) for kind, value in tokens]
    plain = "".join(value for _, value in tokens).lstrip()
    if _HARMLESS.match(plain) or not (
        has_default
        or own in {name.lower() for name in names if name}
        or _is_open(tokens)
    ):
        return None
    _check(statement, tokens, plain)
    for index, name in enumerate(names):
        if name is None:
            continue
        if _next(tokens, index) != ".":
            if name.lower() == own:
                raise NotReplayableError("it is about the database itself")
            continue
        if name == database:
            tokens[index] = ("quoted", quoted(target))
        # After a dot it is a table before its column.
        elif _first(tokens, range(index - 1, -1, -1)) != ".":
            raise NotReplayableError(f"it names {name}, which may be another database")
    return Replayable(
        "".join(value for _, value in tokens), has_default, statement.sql_mode
    )


def _check(statement: Statement, tokens: list[tuple[str, str]], plain: str) -> None:
    if statement.sql_mode & (_ANSI_QUOTES | _NO_BACKSLASH_ESCAPES):
        raise NotReplayableError("its sql_mode has ANSI_QUOTES or NO_BACKSLASH_ESCAPES")
    if any(kind == "comment" for kind, _ in tokens):
        raise NotReplayableError("it has an executable comment")
    if _is_open(tokens):
        raise NotReplayableError("the end of a string or comment is missing")
    if not _KINDS.match(plain):
        raise NotReplayableError("it is not about a table or an index")


def _is_open(tokens: list[tuple[str, str]]) -> bool:
    return any(kind == "open" for kind, _ in tokens[-1:])


def _identifier(kind: str, value: str) -> str | None:
    if kind == "quoted":
        return value[1:-1].replace("``", "`")
    return value if kind == "word" else None


def _next(tokens: list[tuple[str, str]], index: int) -> str:
    return _first(tokens, range(index + 1, len(tokens)))


def _first(tokens: list[tuple[str, str]], indexes: range) -> str:
    """Return the first of the tokens that is no space, or ""."""
    values = (tokens[i][1] for i in indexes if tokens[i][0] != "space")
    return next(values, "")
