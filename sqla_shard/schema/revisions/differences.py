"""What differs between a column and its model, where alembic gets it wrong.

Types, on MySQL and MariaDB: alembic compares arguments only where both have
as many, so ``DATETIME`` and ``DATETIME(6)`` are equal to it, and so are
``NUMERIC(12)`` and ``NUMERIC(10, 0)``, ``BIGINT`` and ``BIGINT UNSIGNED``,
older versions also enumerations; none asks for the order of their members.
JSON, which on MariaDB is LONGTEXT with a check, is to it any LONGTEXT.

Defaults: it compares texts, so some that are equal differ: ``''`` and texts
with a quote, ``true()`` and 1, ``1.5`` and ``1.50``, ``now()`` and
``CURRENT_TIMESTAMP``.  The server writes other expressions in its own way;
one that it does not give back as it was written is reported every time.
"""

from __future__ import annotations

import re
from decimal import Decimal
from decimal import InvalidOperation
from typing import Any

from alembic.runtime.migration import MigrationContext
from sqlalchemy import Boolean
from sqlalchemy import ClauseElement
from sqlalchemy import Column
from sqlalchemy import Dialect
from sqlalchemy import Float
from sqlalchemy import Integer
from sqlalchemy import literal
from sqlalchemy import Numeric
from sqlalchemy import String
from sqlalchemy import text
from sqlalchemy import TextClause
from sqlalchemy.types import TypeEngine

__all__ = ["default_differs", "type_differs"]

_TIMES = re.compile(r"(?:DATETIME|TIMESTAMP|TIME)(?:\((\d+)\))?$")
_DECIMALS = re.compile(r"(?:DECIMAL|NUMERIC)(?:\((\d+)(?:, (\d+))?\))?")
_INTEGERS = re.compile(r"\w*INT(?:EGER)?\b.*?( UNSIGNED)?(?: ZEROFILL)?$")
_CHOICES = re.compile(r"(?:ENUM|SET)\((.*)\)")
# What the server takes for an argument that is left out.
_DEFAULTS = (
    (_TIMES, ("0",)),
    (_DECIMALS, ("10", "0")),
    (_INTEGERS, ("",)),
    (_CHOICES, ("",)),
)

_CHECKED = text(
    "SELECT count(*) FROM information_schema.check_constraints "
    "WHERE constraint_schema = DATABASE() AND table_name = :table "
    "AND constraint_name = :column AND check_clause LIKE 'json_valid(%'"
)


def type_differs(
    context: MigrationContext,
    found: Column[Any],
    wanted: Column[Any],
    found_type: TypeEngine[Any],
    wanted_type: TypeEngine[Any],
) -> bool | None:
    """Tell whether the type of a column has changed.

    It is the hook ``compare_type`` of alembic's ``configure()``.

    :param found: the column that is there.
    :param wanted: that of the model.
    :returns: True if so; None leaves it to alembic.
    """
    if context.dialect.name not in ("mysql", "mariadb"):
        return None
    process = context.dialect.type_compiler_instance.process
    texts = process(found_type), process(wanted_type)
    for pattern, defaults in _DEFAULTS:
        arguments = [_arguments(pattern, one, defaults) for one in texts]
        if None not in arguments and arguments[0] != arguments[1]:
            return True
    dialect: Any = context.dialect
    # MySQL has JSON as a type of its own, and other columns in that view.
    if dialect.is_mariadb and texts[0].startswith("LONGTEXT"):
        return _is_json(context, found) != (texts[1] == "JSON") or None
    return None


def _arguments(
    pattern: re.Pattern[str], definition: str, defaults: tuple[str, ...]
) -> tuple[str, ...] | None:
    match = pattern.match(definition)
    if match is None:
        return None
    pairs = zip(match.groups(), defaults, strict=True)
    return tuple(default if one is None else one for one, default in pairs)


def _is_json(context: MigrationContext, column: Column[Any]) -> bool:
    # SQLAlchemy reflects only checks that have a name.
    names = {"table": column.table.name, "column": column.name}
    connection: Any = context.connection
    return bool(connection.scalar(_CHECKED, names))


_CURRENT = r"(?:now|localtime|localtimestamp|current_timestamp)(?:\((\d*)\))?"
_NOW = re.compile(rf"{_CURRENT}( on update {_CURRENT})?", re.IGNORECASE)
_BOOLEANS = {"true": "1", "false": "0"}
_NUMBERS = (Boolean, Integer, Numeric, Float)


def default_differs(dialect: Dialect, kind: Any, one: Any, other: Any) -> bool:
    """Tell whether two defaults differ, of which alembic says that they do.

    :param kind: the type of the column.
    :param one: what ``Column.server_default`` is; that of the model, or
        what SQLAlchemy has read from the server.
    :param other: likewise.
    """
    texts = [
        _text(dialect, getattr(each, "arg", None)) for each in (one, other)
    ]
    if None in texts:
        return True
    bare = [_bare(str(each)) for each in texts]
    if bare[0] == bare[1]:
        return False
    forms: list[Any]
    if isinstance(kind, _NUMBERS):
        forms = [_number(each) for each in bare]
    else:
        # MariaDB takes the digits that are left out from the column.
        digits = str(getattr(kind, "fsp", None) or "")
        forms = [_time(each, digits) for each in bare]
    return None in forms or forms[0] != forms[1]


def _text(dialect: Dialect, default: Any) -> str | None:
    """Return a default in SQL; None for what is none, such as a sequence."""
    if isinstance(default, str):
        return _quoted(dialect, default)
    if isinstance(default, TextClause):
        return default.text
    if isinstance(default, ClauseElement):
        return str(default.compile(dialect=dialect))
    return None


def _quoted(dialect: Dialect, value: str) -> str:
    compiled = literal(value, String()).compile(
        dialect=dialect, compile_kwargs={"literal_binds": True}
    )
    # Drivers with %s for parameters take two for one.
    doubled = dialect.paramstyle in ("format", "pyformat")
    return str(compiled).replace("%%", "%") if doubled else str(compiled)


def _bare(default: str) -> str:
    # Alembic puts parentheses around what SQLite says, even around ''.
    return re.sub(r"^\((.*)\)$", r"\1", default)


def _number(default: str) -> Decimal | None:
    default = re.sub(r"^'(.*)'$", r"\1", default)
    try:
        return Decimal(_BOOLEANS.get(default.lower(), default))
    except InvalidOperation:
        return None


def _time(default: str, digits: str) -> tuple[str, bool, str] | None:
    match = _NOW.fullmatch(default)
    if match is None:
        return None
    return match[1] or digits, bool(match[2]), match[3] or digits
