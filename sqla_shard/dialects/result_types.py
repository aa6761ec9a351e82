"""Types of functions that SQLAlchemy lacks; precision and scale of computed numbers."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from sqlalchemy import Boolean, Column, Float, Integer, Numeric
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import (
    BinaryExpression,
    BindParameter,
    Case,
    Cast,
    ColumnElement,
    ExpressionClauseList,
    Grouping,
    Label,
    UnaryExpression,
)
from sqlalchemy.sql.functions import FunctionElement, ReturnTypeFromArgs
from sqlalchemy.sql.visitors import InternalTraversal
from sqlalchemy.types import TypeDecorator

from sqla_shard.dialects.sql import BlobValue
from sqla_shard.util import sqlalchemy_private as private

#: Maximum number of digits of a DECIMAL, before and after the point.
MOST_DIGITS = 65
#: Maximum number of digits after the point on MySQL; 38 on MariaDB.
MOST_PLACES = 30

_Size = tuple[int, int]

ROUNDING = frozenset(["ceil", "ceiling", "floor", "round", "truncate"])
#: Functions that return one of their arguments, or a part of it.
CHOOSING = frozenset(["coalesce", "greatest", "ifnull", "least"])
SUMS = frozenset([operators.add, operators.sub, operators.mul, operators.mod])
DIVISIONS = frozenset([operators.truediv, operators.floordiv])


def name_of(function: Any) -> str:
    """Return a function's name in lower case; "" for any other element."""
    # Columns have names, too: "left" or "date".
    is_function = isinstance(function, FunctionElement)
    return str(getattr(function, "name", "")).lower() if is_function else ""


#: Aggregate functions whose results on several shards can be combined.
AGGREGATES = frozenset(["avg", "count", "max", "min", "sum"])
#: Functions that return an integer, or a decimal of as many places as its type.
WHOLE_NUMBERS = frozenset(
    [
        *("ascii", "bit_count", "bit_length", "char_length"),
        *("character_length", "count", "crc32", "datediff", "day"),
        *("dayofmonth", "dayofweek", "dayofyear", "field", "find_in_set"),
        *("hour", "inet_aton", "instr", "interval", "isnull", "json_depth"),
        *("json_length", "json_valid", "length", "locate", "microsecond"),
        *("minute", "month", "octet_length", "ord", "period_add"),
        *("period_diff", "position", "quarter", "random", "regexp_instr"),
        *("second", "sign", "strcmp", "time_to_sec", "timestampdiff"),
        *("to_days", "to_seconds", "unicode", "unix_timestamp", "week"),
        *("weekday", "weekofyear", "year", "yearweek"),
    ]
)
#: Functions of integers that may have more digits than MariaDB declares.
NARROW = frozenset(
    [
        *("ascii", "bit_count", "field", "find_in_set", "hour", "interval"),
        *("ord", "period_add", "period_diff", "to_days", "to_seconds"),
        "yearweek",
    ]
)
#: Functions that return a double.
DOUBLES = frozenset(
    [
        *("acos", "asin", "atan", "atan2", "cos", "cot", "degrees", "exp"),
        *("julianday", "ln", "log", "log10", "log2", "pi", "pow", "power"),
        *("radians", "rand", "sin", "sqrt", "st_distance"),
        *("st_distance_sphere", "st_x", "st_y", "tan", "vec_distance"),
        *("vec_distance_cosine", "vec_distance_euclidean"),
    ]
)
#: Functions that return a number.
NUMBERS = frozenset(
    [
        *WHOLE_NUMBERS,
        *DOUBLES,
        *("abs", "avg", "ceil", "ceiling", "floor", "mod", "round", "sum"),
        "truncate",
    ]
)
#: Functions that return a date, a time or a datetime.
TIMES = frozenset(
    [
        *("curdate", "date", "from_days", "from_unixtime", "last_day"),
        *("makedate", "maketime", "sec_to_time", "str_to_date", "time"),
        *("timediff", "timestamp", "utc_date", "utc_time", "utc_timestamp"),
    ]
)
#: Functions that return a text.
TEXTS = frozenset(
    [
        *("bin", "char", "concat", "concat_ws", "conv", "date_format"),
        *("dayname", "elt", "format", "hex", "inet_ntoa", "insert"),
        *("json_unquote", "lcase", "left", "lower", "lpad", "ltrim", "md5"),
        *("mid", "monthname", "oct", "quote", "regexp_replace"),
        *("regexp_substr", "repeat", "replace", "reverse", "right", "rpad"),
        *("rtrim", "sha1", "sha2", "space", "strftime", "substr"),
        *("substring", "substring_index", "time_format", "to_base64", "trim"),
        *("typeof", "ucase", "upper"),
    ]
)
#: Functions of one row.  Any other function may read several rows.
ROW_FUNCTIONS = frozenset(
    [
        *(NUMBERS - AGGREGATES),
        *TIMES,
        *TEXTS,
        *("adddate", "addtime", "coalesce", "convert_tz", "current_date"),
        *("current_timestamp", "date_add", "date_sub", "datetime"),
        *("export_set", "extract", "from_base64", "greatest", "if", "ifnull"),
        *("iif", "json_array", "json_contains", "json_extract", "json_keys"),
        *("json_object", "json_quote", "json_type", "json_value", "least"),
        *("localtime", "localtimestamp", "make_set", "now", "nullif"),
        *("printf", "subdate", "subtime", "timestampadd", "unhex"),
        "vec_fromtext",
    ]
)


def size_of(element: Any, *, any_value: bool = False) -> _Size | None:
    """Return the number of digits of a decimal before and after the point.

    :param any_value: whether parameters may have other values when the
        statement is executed than they have now.
    :returns: the maximum; None if it is unknown.
    """
    return _Sizes(any_value=any_value).of(element)


def size_of_product(elements: list[Any]) -> _Size | None:
    """Return the size, as :func:`size_of` does, of a product."""
    return _Sizes(any_value=False).combined(operators.mul, elements)


class _Sizes:
    """Reads expressions; see :func:`size_of`."""

    def __init__(self, *, any_value: bool) -> None:
        self._any_value = any_value

    def of(self, element: Any) -> _Size | None:
        while isinstance(element, (Label, Grouping)):
            element = element.element
        if isinstance(element, BinaryExpression):
            sides = [element.left, element.right]
            return self.combined(element.operator, sides)
        if isinstance(element, ExpressionClauseList):
            return self.combined(element.operator, list(element.clauses))
        if isinstance(element, UnaryExpression):
            return self.of(element.element)
        if isinstance(element, FunctionElement):
            return self._function(name_of(element), list(element.clauses))
        if isinstance(element, Case):
            chosen = [result for _, result in element.whens]
            return self._largest([*chosen, element.else_])
        if isinstance(element, BlobValue) and element.form == "decimal":
            return 35, 30
        if isinstance(element, BindParameter) and not self._any_value:
            value = element.effective_value
            if isinstance(value, (int, Decimal)):
                return _size_of_value(Decimal(value))
        return _size_of_type(plain_type(getattr(element, "type", None)))

    def combined(self, operator: Any, elements: list[Any]) -> _Size | None:
        """Return the size of the result of an operator."""
        sizes = [size for size in map(self.of, elements) if size is not None]
        if not sizes:
            return None
        if operator in DIVISIONS and len(sizes) > 1:
            (whole, places), (_, below) = sizes
            # The least divisor is a one in its last place.
            return whole + below, places + 4
        if operator is operators.mul:
            return sum(s[0] for s in sizes), sum(s[1] for s in sizes)
        if operator in SUMS:
            more = len(sizes) - 1
            return max(s[0] for s in sizes) + more, max(s[1] for s in sizes)
        return None

    def _function(self, name: str, arguments: list[Any]) -> _Size | None:
        if name == "if":
            return self._largest(arguments[1:])
        if name in CHOOSING or name == "mod":
            return self._largest(arguments)
        if name in ("abs", "nullif", "max", "min", *ROUNDING) and arguments:
            return self.of(arguments[0])
        return None

    def _largest(self, elements: list[Any]) -> _Size | None:
        sizes = [size for e in elements if (size := self.of(e)) is not None]
        if not sizes:
            return None
        return max(s[0] for s in sizes), max(s[1] for s in sizes)


def _size_of_value(value: Decimal) -> _Size | None:
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return None
    return max(len(digits) + exponent, 0), max(-exponent, 0)


def _size_of_type(type_: Any) -> _Size | None:
    if isinstance(type_, Integer):
        return 20, 0
    if not isinstance(type_, Numeric) or isinstance(type_, Float):
        return None
    places = scale_of(type_) or 0
    return (type_.precision or max(10, places)) - places, places


def places_of(element: Any) -> int | None:
    """Return the number of decimal places; None if it is unknown."""
    while isinstance(element, (Label, Grouping)):
        element = element.element
    if isinstance(element, BindParameter):
        value = element.effective_value
        if isinstance(value, Decimal):
            exponent = value.as_tuple().exponent
            return -exponent if isinstance(exponent, int) else None
        return 0 if isinstance(value, int) else None
    type_ = plain_type(element.type)
    if isinstance(type_, (Boolean, Integer)):
        return 0
    return scale_of(type_) if isinstance(element, (Column, Cast)) else None


def plain_type(type_: Any) -> Any:
    """Return the type inside type decorators."""
    while isinstance(type_, TypeDecorator):
        type_ = type_.impl_instance
    return type_


def scale_of(type_: Any) -> int | None:
    """Return the decimal places of a type; None if it has no scale."""
    scale: int | None = getattr(type_, "scale", None)
    return scale


class AllDigits(ColumnElement[Any]):
    """A number with as many decimal places as a server can return.

    These are 38 for decimals on MariaDB, 30 on MySQL; all for doubles.

    :param element: an expression.
    """

    __visit_name__ = "sqla_shard_all_digits"
    inherit_cache: bool | None = True
    _traverse_internals = [  # noqa: RUF012  # SQLAlchemy's own protocol
        ("element", InternalTraversal.dp_clauseelement)
    ]

    def __init__(self, element: Any) -> None:
        self.element = element
        self.type: Any = element.type

    @property
    def _from_objects(self) -> Any:
        return private.from_objects(self.element)


@compiles(AllDigits)
def _all_digits(element: AllDigits, compiler: Any, **kw: Any) -> str:
    return str(compiler.process(element.element, **kw))


@compiles(AllDigits, "mysql", "mariadb")
def _all_digits_mysql(element: AllDigits, compiler: Any, **kw: Any) -> str:
    places = 38 if getattr(compiler.dialect, "is_mariadb", False) else 30
    value = compiler.process(element.element, **kw)
    return f"(({value}) + 0.{'0' * places})"


class DividedSum(ReturnTypeFromArgs[Any]):
    """The sum for an average.

    SQLite refuses a sum of integers that has more than 64 bits, but returns
    their average.
    """

    name = "sum"
    inherit_cache: bool = True
    _register = False


@compiles(DividedSum, "sqlite")
def _divided_sum_sqlite(element: DividedSum, compiler: Any, **kw: Any) -> str:
    return f"total{compiler.process(element.clause_expr, **kw)}"
