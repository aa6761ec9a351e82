"""Values that Python can compare as the server would.

Rows that several servers have sorted are merged in Python.  Numbers and times
are compared there as they are; text is not: its order is that of a collation,
which only the server knows (:mod:`sqla_shard.dialects.weights`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Boolean
from sqlalchemy import Column
from sqlalchemy import Date
from sqlalchemy import DateTime
from sqlalchemy import Enum
from sqlalchemy import Float
from sqlalchemy import Integer
from sqlalchemy import Interval
from sqlalchemy import Numeric
from sqlalchemy import String
from sqlalchemy import Time
from sqlalchemy import Uuid
from sqlalchemy.dialects.mysql import BIT
from sqlalchemy.dialects.mysql import SET
from sqlalchemy.dialects.mysql import YEAR
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import operators
from sqlalchemy.sql import roles
from sqlalchemy.sql.elements import BinaryExpression
from sqlalchemy.sql.elements import ClauseElement
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.elements import Grouping
from sqlalchemy.sql.elements import Label
from sqlalchemy.sql.elements import Null
from sqlalchemy.sql.elements import UnaryExpression
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.visitors import InternalTraversal
from sqlalchemy.types import LargeBinary
from sqlalchemy.types import NullType
from sqlalchemy.types import TypeDecorator

from sqla_shard.exc import ScatterUnsupportedError

__all__ = ["Hidden", "SortKey", "kind_of", "value_of_function"]

_PLAIN = (Integer, Numeric, Boolean, Date, DateTime, Time, Interval)

# What functions return for which SQLAlchemy knows no type.
_NUMBERS = frozenset(
    [
        *("abs", "ascii", "avg", "ceil", "ceiling", "char_length", "crc32"),
        *("datediff", "day", "dayofmonth", "dayofweek", "dayofyear", "exp"),
        *("field", "find_in_set", "floor", "isnull", "ln", "locate", "log"),
        *("log10", "log2", "microsecond", "strcmp", "time_to_sec"),
        *("to_seconds", "truncate", "weekofyear", "yearweek"),
        *("hour", "instr", "json_length", "julianday", "length", "minute"),
        *("mod", "month", "octet_length", "pow", "power", "quarter", "round"),
        *("second", "sign", "sqrt", "sum", "to_days", "unix_timestamp"),
        *("week", "weekday", "year", "rand", "random", "timestampdiff"),
        *("acos", "asin", "atan", "atan2", "cos", "cot", "degrees", "pi"),
        *("radians", "sin", "tan", "bit_count", "bit_length", "inet_aton"),
        *("character_length", "interval", "json_depth", "json_valid", "ord"),
        *("period_add", "period_diff", "position", "regexp_instr"),
        *("st_distance", "st_distance_sphere", "st_x", "st_y", "unicode"),
    ]
)
_TIMES = frozenset(
    [
        *("curdate", "date", "from_days", "from_unixtime", "last_day"),
        *("makedate", "maketime", "sec_to_time", "str_to_date", "time"),
        *("timediff", "timestamp", "utc_date", "utc_time", "utc_timestamp"),
    ]
)
_TEXTS = frozenset(
    [
        *("concat", "concat_ws", "date_format", "format", "hex"),
        *("json_unquote", "left", "lower", "lpad", "ltrim", "md5", "replace"),
        *("reverse", "right", "rpad", "rtrim", "sha1", "sha2", "strftime"),
        *("dayname", "monthname", "repeat", "substr", "substring"),
        *("substring_index", "trim", "upper", "bin", "char", "conv", "elt"),
        *("inet_ntoa", "insert", "lcase", "mid", "oct", "quote", "space"),
        *("regexp_replace", "regexp_substr", "time_format", "to_base64"),
        *("typeof", "ucase"),
    ]
)
_LIKE_ARGUMENT = frozenset(["max", "min", "nullif"])
_ARITHMETIC = frozenset(
    [
        *(operators.add, operators.sub, operators.mul, operators.mod),
        *(operators.truediv, operators.floordiv),
    ]
)
#: By the kinds of what is computed with, that of the result.
_NUMERIC: dict[frozenset[str | None], str] = {
    frozenset(["plain"]): "plain",
    frozenset(["float", "plain"]): "float",
}
#: By function, which is the first of the arguments that it returns one of.
_ONE_OF = {"coalesce": 0, "greatest": 0, "if": 1, "ifnull": 0, "least": 0}
_ONE_OF["iif"] = 1


def kind_of(element: Any) -> str | None:
    """Name how values of an expression are compared.

    :returns: ``plain``, ``float``, ``enum``, ``uuid``, ``text``; None for
        types whose order Python cannot know.
    """
    if isinstance(element.type, NullType):
        return _kind_of_made(_made_of(element))
    kind = _kind_of_type(element.type)
    if kind == "enum" and not _is_stored(element):
        # What CASE, coalesce() and the like make of an ENUM is a text.
        return "text"
    return kind


def _is_stored(element: Any) -> bool:
    """Tell whether values are those of a column of a table, as they are."""
    return any(
        isinstance(column, Column)
        for column in getattr(element, "base_columns", ())
    )


def _made_of(element: Any) -> Any:
    """Return what a column of a subquery is made of; others as they are."""
    origin, *others = getattr(element, "base_columns", (element,))
    if others:
        return element
    return origin.element if isinstance(origin, Label) else origin


def _kind_of_made(element: Any) -> str | None:
    """Return the kind of what SQLAlchemy knows no type of."""
    if isinstance(element, (Grouping, Label)):
        return kind_of(element.element)
    if isinstance(element, UnaryExpression) and (
        element.operator is operators.neg
    ):
        return _kind_of_numbers([element.element])
    if isinstance(element, BinaryExpression) and (
        element.operator in _ARITHMETIC
    ):
        return _kind_of_numbers([element.left, element.right])
    return _kind_of_function(element)


def _kind_of_numbers(elements: Iterable[Any]) -> str | None:
    """Return the kind of what is computed of some expressions."""
    kinds = set(map(kind_of, elements))
    if "float" in kinds:
        kinds.add("plain")
    return _NUMERIC.get(frozenset(kinds))


def _kind_of_function(element: Any) -> str | None:
    if not isinstance(element, FunctionElement):
        return None
    name = str(getattr(element, "name", "")).lower()
    arguments = list(element.clauses)
    if name in _LIKE_ARGUMENT and arguments:
        return kind_of(arguments[0])
    if name in _ONE_OF:
        return _kind_of_one(arguments[_ONE_OF[name] :])
    if name in _TEXTS:
        return "text"
    return "plain" if name in _NUMBERS or name in _TIMES else None


def value_of_function(element: Any) -> str | None:
    """Name what a function returns for which SQLAlchemy knows no type.

    :returns: ``number``, ``time`` or ``text``; None for one of its arguments,
        and for anything else.
    """
    made = _made_of(element)
    if not isinstance(made, FunctionElement):
        return None
    name = str(getattr(made, "name", "")).lower()
    for kind, names in (
        ("number", _NUMBERS),
        ("time", _TIMES),
        ("text", _TEXTS),
    ):
        if name in names:
            return kind
    return None


def _kind_of_one(elements: Iterable[Any]) -> str | None:
    """Return the kind of what is one of several expressions."""
    kinds = {kind_of(one) for one in elements if not isinstance(one, Null)}
    if kinds == {"float", "plain"}:
        return "float"
    if len(kinds) > 1:
        return None
    kind = next(iter(kinds), None)
    return "text" if kind == "enum" else kind


def _kind_of_type(type_: Any) -> str | None:
    while isinstance(type_, TypeDecorator):
        type_ = type_.impl_instance
    if isinstance(type_, Enum):
        return "enum" if type_.native_enum else "text"
    if isinstance(type_, LargeBinary):
        return None
    if isinstance(type_, (BIT, SET)):
        return "enum"
    if isinstance(type_, YEAR):
        return "plain"
    if isinstance(type_, Uuid):
        return "uuid"
    if isinstance(type_, String):
        return "text"
    if isinstance(type_, Float):
        return "float"
    return "plain" if isinstance(type_, _PLAIN) else None


class SortKey(ColumnElement[Any]):
    """A value that compares in Python as an expression does on the server.

    :param element: the expression, no text.
    :param kind: see :func:`kind_of`.
    """

    __visit_name__ = "sqla_shard_sort_key"
    inherit_cache = True
    _traverse_internals = [  # noqa: RUF012  # SQLAlchemy's own protocol
        ("element", InternalTraversal.dp_clauseelement),
        ("kind", InternalTraversal.dp_string),
    ]

    def __init__(self, element: Any, kind: str) -> None:
        self.element = element
        self.kind = kind
        self.type = NullType()

    @property
    def _from_objects(self) -> Any:
        return self.element._from_objects


@compiles(SortKey)
def _sort_key(element: SortKey, compiler: Any, **kw: Any) -> str:
    return str(compiler.process(element.element, **kw))


@compiles(SortKey, "mysql", "mariadb")
def _sort_key_mysql(element: SortKey, compiler: Any, **kw: Any) -> str:
    value = compiler.process(element.element, **kw)
    if element.kind == "uuid":
        # Python is not to compare texts, and these are letters of one case.
        return f"CAST({value} AS BINARY)"
    if element.kind == "sorted_uuid":
        native = getattr(element.element.type, "native_uuid", False)
        if native and getattr(compiler.dialect, "is_mariadb", False):
            raise ScatterUnsupportedError(
                f"ORDER BY {element.element} over several shards: MariaDB "
                "sorts its UUIDs by their parts, not as they are shown; "
                "order by cast(column, String(36))",
                construct="ORDER BY",
            )
        return f"CAST({value} AS BINARY)"
    # A FLOAT is shown with six digits, and sorted with all of them; an ENUM
    # is sorted by the position of its value in the list, a SET by the bits
    # of all of its values.
    zero = {"float": "0E0", "enum": "0"}.get(element.kind)
    return value if zero is None else f"({value} + {zero})"


class Hidden(roles.StatementOptionRole, ClauseElement):
    """Columns that a SELECT gets ahead of its own, as a prefix.

    Nobody but the merge sees them, so the columns that SQLAlchemy knows of,
    and the objects that it makes of them, stay what they are.

    :param elements: at least one.
    :param distinct: whether the SELECT is DISTINCT: the word must come
        before the columns, and SQLAlchemy writes it after prefixes.
    :param sorts: whether a server is to sort rows that it groups, in place
        of storing what it makes of them in a temporary table.
    """

    __visit_name__ = "sqla_shard_hidden"
    inherit_cache = True
    _traverse_internals = [  # noqa: RUF012  # SQLAlchemy's own protocol
        ("elements", InternalTraversal.dp_clauseelement_list),
        ("distinct", InternalTraversal.dp_boolean),
        ("sorts", InternalTraversal.dp_boolean),
    ]

    def __init__(
        self, elements: list[Any], *, distinct: bool, sorts: bool = False
    ) -> None:
        self.elements = elements
        self.distinct = distinct
        self.sorts = sorts

    @staticmethod
    def name(index: int) -> str:
        """Return the name of a hidden column in SQL."""
        return f"sqla_shard_k{index}"


@compiles(Hidden)
def _hidden(element: Hidden, compiler: Any, **kw: Any) -> str:
    columns = ", ".join(
        f"{compiler.process(part, **kw)} AS {Hidden.name(index)}"
        for index, part in enumerate(element.elements)
    )
    return f"{'DISTINCT ' if element.distinct else ''}{columns},"


@compiles(Hidden, "mysql", "mariadb")
def _hidden_mysql(element: Hidden, compiler: Any, **kw: Any) -> str:
    shown = _hidden(element, compiler, **kw)
    return f"SQL_BIG_RESULT {shown}" if element.sorts else shown
