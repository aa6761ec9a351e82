"""The effect of a statement of a revision, read from its text.

The journal has to know whether a statement can be skipped or repeated after
an interruption.  A statement that is not recognized is treated as the worst
case.  The effects of a stored function that a SELECT calls are not detected.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache


class Effect(Enum):
    """The effect of a statement, as far as an interruption is concerned."""

    READS = "no lasting change; the result can differ the next time"
    SESSION = "changes the session only, and has to be repeated"
    LEAVES = "changes to another database"
    ROWS = "changes rows, and is rolled back with its entry in the journal"
    TABLES = "changes tables; their definitions show whether it took effect"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class StatementProperties:
    """The properties of a statement.

    :ivar tables: the tables that DDL names, with their quotes.
    :ivar creates_table: whether it creates a table.
    :ivar returns_rows: whether a revision can read rows from its result.
    :ivar is_whole: whether it has no effect if the server refuses it, or none
        that a repetition would not have.
    :ivar changes_session: whether it can change the session of the
        connection, such as one of its variables, for the next shard.
    """

    effect: Effect
    tables: tuple[str, ...] = ()
    creates_table: bool = False
    returns_rows: bool = False
    is_whole: bool = False
    changes_session: bool = False


# Comments, strings and quoted names, in the order in which they begin.  What
# does not end takes all of the rest: its end is not searched for from each
# further quote, which would take the square of the length.
_TOKEN = re.compile(
    r"(?P<comment>/\*.*?\*/|--(?=\s|$)[^\n]*|#[^\n]*)"
    r"|(?P<text>'(?:[^'\\]|\\.|'')*')"
    r"|(?P<name>`(?:[^`]|``)*`|\"(?:[^\"\\]|\\.|\"\")*\")"
    r"|(?:/\*|['`\"]).*",
    re.S,
)
# The server executes the contents of these comments.
_EXECUTED = re.compile(r"/\*M?!")
_WORD = re.compile(r"[\s(]*([A-Za-z_]+)")
_QUOTED = r"`(?:[^`]|``)+`|\"(?:[^\"]|\"\")+\"|[\w$]+"
_NAME = rf"(?:{_QUOTED})(?:\s*\.\s*(?:{_QUOTED}))?"
_NAMES = rf"{_NAME}(?:\s*,\s*{_NAME})*"
_ONE = re.compile(_NAME)
_ONE_PART = re.compile(_QUOTED)

_READS = frozenset({"SELECT", "SHOW", "DESCRIBE", "DESC", "EXPLAIN", "VALUES"})
_ROWS = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE"})
_WRITES = re.compile(r"\b(?:INSERT|UPDATE|DELETE|REPLACE)\b", re.I)
_ANALYZE = re.compile(r"\bANALYZE\b", re.I)
_RETURNING = re.compile(r"\bRETURNING\b", re.I)
_SEQUENCE = re.compile(r"\b(?:NEXTVAL|SETVAL|NEXT\s+VALUE)\b", re.I)
_SESSION = re.compile(
    r"SET\b|PRAGMA\b|SAVEPOINT\b|RELEASE\s+SAVEPOINT\b|"
    r"ROLLBACK\s+(?:WORK\s+)?TO\b|START\s+TRANSACTION\b|"
    r"BEGIN(?:\s+(?:WORK|DEFERRED|IMMEDIATE|EXCLUSIVE|TRANSACTION))*$",
    re.I,
)
# With these words SET changes the server, or runs another statement.
_SET_MORE = re.compile(
    r"SET\s+(?:STATEMENT|PASSWORD|DEFAULT\s+ROLE)\b|"
    r"(?:\bSET|,)\s*(?:GLOBAL|PERSIST(?:_ONLY)?)\b|"
    r"@@(?:GLOBAL|PERSIST(?:_ONLY)?)\s*\.\s*\w+\s*:?=",
    re.I,
)
# Clauses that change data without changing the definition.
_MOVES_DATA = re.compile(
    r"\b(?:TRUNCATE|EXCHANGE|DISCARD|IMPORT|COALESCE|REORGANIZE)\b", re.I
)
_TEMPORARY = re.compile(r"(?:CREATE|DROP)\s+(?:OR\s+REPLACE\s+)?TEMP", re.I)
_SELECT = re.compile(r"\bSELECT\b", re.I)
_TRUNCATE = re.compile(r"TRUNCATE\b", re.I)
_OF = r"\s+(?:AGGREGATE\s+)?(?:DEFINER\s*=\s*\S+\s+)?(?:AGGREGATE\s+)?"
# The statements of a body belong to the one object; those after another
# semicolon do not.  DROP SEQUENCE may name several.
_PROGRAM = re.compile(
    rf"(?:CREATE|ALTER|DROP(?!\s+SEQUENCE)){_OF}"
    r"(?:TRIGGER|PROCEDURE|FUNCTION|EVENT|SEQUENCE)\b[^;]*$|"
    rf"(?:CREATE{_OF}(?:TRIGGER|PROCEDURE|FUNCTION)|(?:CREATE|ALTER){_OF}EVENT)\b"
    r".*\bEND(?:\s+\w+){0,2}$",
    re.I | re.S,
)
# What has other statements, whose errors are its own.
_OUTER = re.compile(r"(?:CALL|EXECUTE|SET)\b|.*;", re.I | re.S)
_CALLED = re.compile(rf"CALL\s+({_NAME})", re.I)
#: Numbers of the errors of a text, and of a procedure that there is not.
_SYNTAX, _NO_PROCEDURE = 1064, 1305
# Errors with which a statement that has taken effect can end: KILL, a limit of
# time or a shutdown, such as while it waits for a standby to acknowledge; and a
# binary log that cannot be written.
_MAY_BE_DONE = frozenset(
    [
        *(1053, 1317, 1927),  # shutdown, KILL QUERY, KILL
        *(1969, 3024),  # max_statement_time, MAX_EXECUTION_TIME
        *(3, 1021, 1026, 1180, 1598),  # write, disk full, commit, binary log
        *range(2000, 3000),  # of the client
    ]
)
_MAIN = re.compile(r"[()]|\b(?:SELECT|INSERT|UPDATE|DELETE|REPLACE)\b", re.I)
_IF = r"(?:IF\s+(?:NOT\s+)?EXISTS\s+)?"
_CREATE = (
    re.compile(rf"CREATE\s+TABLE\s+{_IF}({_NAME})", re.I),
    re.compile(rf"CREATE\s+(?:OR\s+REPLACE\s+)?VIEW\s+{_IF}({_NAME})", re.I),
)
_ALTER = re.compile(
    rf"ALTER\s+(?:ONLINE\s+)?(?:IGNORE\s+)?TABLE\s+{_IF}({_NAME})"
    rf"(?:.*\bRENAME\s+(?:TO\s+|AS\s+)({_NAME})\s*$)?",
    re.I | re.S,
)
_OTHERS = (
    re.compile(
        # Atomic: letters of a name could be those of a word, in all ways.
        rf"DROP\s+(?:TABLE|VIEW)\s+{_IF}((?>{_NAMES}))\s*(?:\w++\s*+)*+$",
        re.I,
    ),
    re.compile(
        r"CREATE\s+(?:OR\s+REPLACE\s+)?(?:ONLINE\s+)?"
        rf"(?:UNIQUE\s+|FULLTEXT\s+|SPATIAL\s+)?INDEX\s+{_IF}{_NAME}\s+"
        rf"(?:USING\s+\w+\s+)?ON\s+({_NAME})",
        re.I,
    ),
    re.compile(rf"DROP\s+INDEX\s+{_IF}{_NAME}\s+ON\s+({_NAME})", re.I),
)
_RENAME = re.compile(rf"RENAME\s+TABLES?\s+{_IF}(.*)$", re.I | re.S)
_PAIR = re.compile(rf"\s*({_NAME})\s+TO\s+({_NAME})\s*", re.I)
_CHANGED = re.compile(
    rf"\bCHANGE\s+(?:COLUMN\s+)?{_IF}({_QUOTED})\s+({_QUOTED})|"
    rf"\bRENAME\s+COLUMN\s+{_IF}({_QUOTED})\s+TO\s+({_QUOTED})",
    re.I,
)
_DROPPED = re.compile(rf"\bDROP\s+(?:COLUMN\s+)?{_IF}({_QUOTED})", re.I)
_ADDED = re.compile(rf"\bADD\s+(?:COLUMN\s+)?{_IF}({_QUOTED})", re.I)
# Words after DROP and ADD that are not the name of a column.
_PARTS = frozenset(
    [
        "check",
        "constraint",
        "foreign",
        "fulltext",
        "index",
        "key",
        "partition",
        "period",
        "primary",
        "spatial",
        "system",
        "unique",
    ]
)


@lru_cache(maxsize=1024)
def read(statement: str) -> StatementProperties:
    """Return the properties of a statement.

    :param statement: text of the statement, as it is sent to the server.
    """
    if _EXECUTED.search(statement):
        return StatementProperties(effect=Effect.UNKNOWN, changes_session=True)
    text = _without(statement, "comment", "text")
    bare = _without(text, "name")
    if ";" in bare:
        # Some drivers send several statements in one text.
        return _unknown(bare)
    match = _WORD.match(text)
    word = match[1].upper() if match else ""
    if word == "WITH":
        word = _main_word(bare)
    if word in _READS:
        return StatementProperties(effect=_query_effect(word, bare))
    if word in _ROWS:
        returns_rows = _RETURNING.search(bare) is not None
        return StatementProperties(effect=Effect.ROWS, returns_rows=returns_rows)
    if word == "USE":
        return StatementProperties(effect=Effect.LEAVES)
    if _TEMPORARY.match(bare):
        # A temporary table is dropped with its connection.
        return StatementProperties(effect=Effect.READS, changes_session=True)
    if _SESSION.match(bare):
        return StatementProperties(effect=_session_effect(bare), changes_session=True)
    return _read_ddl(text, bare)


def is_refused(statement: str, error: BaseException | None, database: str) -> bool:
    """Return whether an error of the server says that a statement did nothing.

    :param error: the error of the driver; None if another one has ended it.
    :param database: the current database.
    """
    number, reason, *_ = (*error.args, None, None) if error else (None, None)
    if not isinstance(number, int) or number in _MAY_BE_DONE:
        return False
    if read(statement).is_whole:
        return True
    text = _without(statement, "comment", "text")
    called = _CALLED.match(text)
    if called and number == _NO_PROCEDURE:
        # Not a procedure that this one calls.
        *qualified, name = map(_plain, _ONE_PART.findall(called[1]))
        path = ".".join((*(qualified or (database.lower(),)), name))
        return str(reason).lower() == f"procedure {path} does not exist"
    has_others = _OUTER.match(text) or _EXECUTED.search(statement)
    return number == _SYNTAX and not has_others


def _without(statement: str, *kinds: str) -> str:
    """Return a statement without its comments, strings or quoted names."""

    def put(match: re.Match[str]) -> str:
        kind = match.lastgroup or ""
        if kind not in kinds:
            return match[0]
        return {"comment": " ", "text": "''"}.get(kind, "q")

    return _TOKEN.sub(put, statement).strip().rstrip(";").rstrip()


def _main_word(bare: str) -> str:
    """Return the main verb of a statement with common table expressions."""
    depth = 0
    for found in _MAIN.finditer(bare):
        word = found[0].upper()
        if word in ("(", ")"):
            depth += 1 if word == "(" else -1
        elif not depth:
            return word
    return ""


def _query_effect(word: str, bare: str) -> Effect:
    if _SEQUENCE.search(bare):
        return Effect.UNKNOWN
    if word not in ("SELECT", "VALUES", "SHOW") and _ANALYZE.search(bare):
        # ANALYZE executes the statement that it explains.
        return Effect.UNKNOWN if _WRITES.search(bare) else Effect.READS
    return Effect.READS


def _session_effect(bare: str) -> Effect:
    if _SET_MORE.search(bare):
        return Effect.UNKNOWN
    return Effect.READS if _SELECT.search(bare) else Effect.SESSION


def _read_ddl(text: str, bare: str) -> StatementProperties:
    creates_table = False
    names: tuple[str, ...] = ()
    renamed = _RENAME.match(text)
    altered = _ALTER.match(text)
    if renamed:
        names = _renamed_tables(renamed[1])
    elif altered:
        if not (_MOVES_DATA.search(bare) or _is_ambiguous(text)):
            names = tuple(name for name in altered.groups() if name)
    elif match := next(filter(None, (p.match(text) for p in _CREATE)), None):
        creates_table = True
        if not _is_filled(bare):
            names = (match[1],)
    elif match := next(filter(None, (p.match(text) for p in _OTHERS)), None):
        names = tuple(_ONE.findall(match[1]))
    if not names:
        is_whole = bool(renamed or altered or creates_table or _TRUNCATE.match(bare))
        return _unknown(bare, is_whole=is_whole)
    return StatementProperties(
        effect=Effect.TABLES, tables=names, creates_table=creates_table
    )


def _unknown(bare: str, *, is_whole: bool = False) -> StatementProperties:
    is_program = _PROGRAM.match(bare) is not None
    return StatementProperties(
        effect=Effect.UNKNOWN,
        is_whole=is_program or is_whole,
        changes_session=not is_program,
    )


def _renamed_tables(text: str) -> tuple[str, ...]:
    names: list[str] = []
    for part in text.split(","):
        pair = _PAIR.fullmatch(part)
        if pair is None:
            return ()
        names += pair.groups()
    if len({_plain(name) for name in names}) < len(names):
        # Two tables that swap names can have the same definitions as before.
        return ()
    return tuple(names)


def _is_ambiguous(text: str) -> bool:
    """Return whether ALTER TABLE can leave the definition unchanged."""
    pairs = [
        (_plain(old or older), _plain(new or newer))
        for old, new, older, newer in _CHANGED.findall(text)
    ]
    changed = Counter(old for old, _ in pairs)
    if any(changed[new] > (new == old) for old, new in pairs):
        return True
    dropped = {_plain(name) for name in _DROPPED.findall(text)}
    added = {_plain(name) for name in _ADDED.findall(text)}
    return bool((dropped & added) - _PARTS)


def _plain(name: str) -> str:
    return name.replace("`", "").replace('"', "").lower()


def _is_filled(bare: str) -> bool:
    """Return whether a CREATE TABLE inserts rows from a query."""
    is_table = re.match(r"CREATE\s+TABLE\b", bare, re.I)
    return bool(is_table and _SELECT.search(bare))
