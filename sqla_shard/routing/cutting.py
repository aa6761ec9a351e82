"""What in a SELECT depends on more than one row at a time.

The rows of several shards may be put one after another where a statement
looks at each row by itself, or at groups of rows that are all on one shard,
such as ``GROUP BY`` an id.  It is wrong for LIMIT, a count and the like,
which each shard does for itself: their answers have to be merged, where that
is possible.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import ColumnClause
from sqlalchemy.sql.elements import Over
from sqlalchemy.sql.elements import TextClause
from sqlalchemy.sql.elements import UnaryExpression
from sqlalchemy.sql.functions import FunctionElement

from sqla_shard.dialects.sorting import Hidden
from sqla_shard.routing.clauses import children
from sqla_shard.routing.clauses import is_select

__all__ = [
    "RANDOM",
    "Cut",
    "aggregates",
    "counted_distinct",
    "cuts_of",
    "distinct_of",
    "is_textual",
    "text_of",
]

#: Functions that return another number each time.
RANDOM = frozenset(["rand", "random"])

#: Functions that look at one row; others may look at many.
_ROW_FUNCTIONS = frozenset(
    [
        "abs",
        "acos",
        "adddate",
        "addtime",
        "ascii",
        "asin",
        "atan",
        "atan2",
        "bin",
        "bit_count",
        "bit_length",
        "ceil",
        "ceiling",
        "char",
        "char_length",
        "character_length",
        "coalesce",
        "concat",
        "concat_ws",
        "conv",
        "convert_tz",
        "cos",
        "cot",
        "crc32",
        "curdate",
        "current_date",
        "current_timestamp",
        "date",
        "date_add",
        "date_format",
        "date_sub",
        "datediff",
        "datetime",
        "day",
        "dayname",
        "dayofmonth",
        "dayofweek",
        "dayofyear",
        "degrees",
        "elt",
        "exp",
        "export_set",
        "extract",
        "field",
        "find_in_set",
        "floor",
        "format",
        "from_base64",
        "from_days",
        "from_unixtime",
        "greatest",
        "hex",
        "hour",
        "if",
        "ifnull",
        "iif",
        "inet_aton",
        "inet_ntoa",
        "insert",
        "instr",
        "interval",
        "isnull",
        "json_array",
        "json_contains",
        "json_depth",
        "json_extract",
        "json_keys",
        "json_length",
        "json_object",
        "json_quote",
        "json_type",
        "json_unquote",
        "json_valid",
        "json_value",
        "julianday",
        "last_day",
        "lcase",
        "least",
        "left",
        "length",
        "ln",
        "localtime",
        "localtimestamp",
        "locate",
        "log",
        "log10",
        "log2",
        "lower",
        "lpad",
        "ltrim",
        "make_set",
        "makedate",
        "maketime",
        "md5",
        "microsecond",
        "mid",
        "minute",
        "mod",
        "month",
        "monthname",
        "now",
        "nullif",
        "oct",
        "octet_length",
        "ord",
        "period_add",
        "period_diff",
        "pi",
        "position",
        "pow",
        "power",
        "printf",
        "quarter",
        "quote",
        "radians",
        "rand",
        "random",
        "regexp_instr",
        "regexp_replace",
        "regexp_substr",
        "repeat",
        "replace",
        "reverse",
        "right",
        "round",
        "rpad",
        "rtrim",
        "sec_to_time",
        "second",
        "sha1",
        "sha2",
        "sign",
        "sin",
        "space",
        "sqrt",
        "st_distance",
        "st_distance_sphere",
        "st_x",
        "st_y",
        "str_to_date",
        "strcmp",
        "strftime",
        "subdate",
        "substr",
        "substring",
        "substring_index",
        "subtime",
        "tan",
        "time",
        "time_format",
        "time_to_sec",
        "timediff",
        "timestamp",
        "timestampadd",
        "timestampdiff",
        "to_base64",
        "to_days",
        "to_seconds",
        "trim",
        "truncate",
        "typeof",
        "ucase",
        "unhex",
        "unicode",
        "unix_timestamp",
        "upper",
        "utc_date",
        "utc_time",
        "utc_timestamp",
        "week",
        "weekday",
        "weekofyear",
        "year",
        "yearweek",
    ]
)


@dataclass(frozen=True, slots=True)
class Cut:
    """Something in a SELECT that depends on more rows than one shard has.

    :ivar name: such as ``LIMIT``.
    :ivar mergeable: whether the answers of several shards may be merged
        into that of all; the merge has the last word.
    """

    name: str
    mergeable: bool = False


def cuts_of(
    select: Any, keyed: Callable[[Iterable[Any]], bool]
) -> Iterator[Cut]:
    """Yield what in a SELECT depends on more rows than one shard has.

    :param select: in its Core form.
    :param keyed: tells whether rows that are equal in some expressions are
        on the same shard for certain.
    """
    for name, used in (
        ("FETCH", select._fetch_clause is not None),
        ("subqueryload() of sorted or limited rows", _is_merged(select)),
        ("a prefix or suffix in SQL", select._prefixes or select._suffixes),
        # Text after the statement: it could be a LIMIT.
        ("a hint in SQL", select._statement_hints),
        ("DISTINCT ON", select._distinct_on),
    ):
        if used:
            yield Cut(name)
    if select._limit_clause is not None:
        yield Cut("LIMIT", mergeable=True)
    if select._offset_clause is not None:
        yield Cut("OFFSET", mergeable=True)
    if select._distinct and not keyed(select.selected_columns):
        yield Cut("DISTINCT", mergeable=True)
    grouped = bool(select._group_by_clauses)
    if grouped and not keyed(select._group_by_clauses):
        yield Cut("GROUP BY", mergeable=True)
    having = list(select._having_criteria)
    if having and not grouped:
        yield Cut("HAVING", mergeable=True)
    shown = [*select._raw_columns, *select._order_by_clauses]
    yield from _many_rows([*shown, *having], keyed, grouped)


def _is_merged(select: Any) -> bool:
    """Tell whether a SELECT was taken from one that is being merged."""
    return any(isinstance(prefix, Hidden) for prefix, _ in select._prefixes)


def _many_rows(
    expressions: Iterable[Any],
    keyed: Callable[[Iterable[Any]], bool],
    grouped: bool,
) -> Iterator[Cut]:
    """Yield the parts of expressions that look at several rows."""
    for element in expressions:
        if is_select(element):
            continue
        inside: Iterable[Any] = children(element)
        if isinstance(element, Over):
            partition = getattr(element.partition_by, "clauses", ())
            if not keyed(partition):
                yield Cut("a window function")
            inside = children(element.element)
        elif is_textual(element):
            if not grouped and "(" in text_of(element):
                yield Cut("SQL as text")
        elif _is_distinct(element):
            # Outside of a function it makes the whole SELECT distinct.
            yield Cut("distinct() of a column")
        elif aggregates(element):
            if not grouped:
                name = f"{getattr(element, 'name', 'a function')}()"
                yield Cut(name, mergeable=True)
            counted = distinct_of(element)
            inside = inside if counted is None else (counted,)
        yield from _many_rows(inside, keyed, grouped)


def aggregates(element: Any) -> bool:
    """Tell whether an expression may look at several rows."""
    if not isinstance(element, FunctionElement):
        return False
    name = str(getattr(element, "name", "")).lower()
    # With a seed, the numbers of each shard would be the same.
    seeded = name in RANDOM and len(element.clauses) > 0
    return seeded or name not in _ROW_FUNCTIONS


def counted_distinct(elements: Iterable[Any]) -> Iterator[Any]:
    """Yield what ``count(distinct(...))`` counts, from left to right."""
    for element in elements:
        if is_select(element):
            continue
        counted = None
        if str(getattr(element, "name", "")).lower() == "count":
            counted = distinct_of(element)
        if counted is not None:
            yield counted
        else:
            yield from counted_distinct(children(element))


def distinct_of(element: Any) -> Any:
    """Return what a function is given the distinct values of, or None."""
    if not isinstance(element, FunctionElement):
        return None
    arguments = list(element.clauses)
    if len(arguments) == 1 and _is_distinct(arguments[0]):
        (inside,) = arguments
        if isinstance(inside, FunctionElement):
            (inside,) = inside.clauses
            return inside
        return inside.element
    return None


def _is_distinct(element: Any) -> bool:
    if isinstance(element, FunctionElement):
        # func.distinct(x), which is the same in count() and the like.
        named = str(getattr(element, "name", "")).lower() == "distinct"
        return named and len(element.clauses) == 1
    return (
        isinstance(element, UnaryExpression)
        and element.operator is operators.distinct_op
    )


def is_textual(element: Any) -> bool:
    """Tell a piece of SQL text from an expression."""
    return isinstance(element, TextClause) or (
        isinstance(element, ColumnClause) and element.is_literal
    )


def text_of(element: Any) -> str:
    """Return a piece of SQL text."""
    return str(getattr(element, "text", None) or element.name)
