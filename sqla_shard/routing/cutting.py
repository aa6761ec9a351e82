"""What in a SELECT depends on more than one row at a time.

The rows of several shards are put one after another.  That is right for what
looks at each row by itself, and for groups of rows that are all on one
shard, such as ``GROUP BY`` an id; it is wrong for LIMIT, a count and the
like, which each shard would do for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

from sqlalchemy.sql.elements import ColumnClause
from sqlalchemy.sql.elements import Over
from sqlalchemy.sql.elements import TextClause
from sqlalchemy.sql.functions import FunctionElement

from sqla_shard.routing.clauses import children
from sqla_shard.routing.clauses import is_select

__all__ = ["aggregates", "cut_of", "is_textual", "text_of"]

#: Functions that look at one row; others may look at many.
_ROW_FUNCTIONS = frozenset(
    [
        "abs",
        "ascii",
        "ceil",
        "ceiling",
        "char_length",
        "coalesce",
        "concat",
        "current_timestamp",
        "date",
        "floor",
        "greatest",
        "hex",
        "ifnull",
        "instr",
        "json_array",
        "json_contains",
        "json_extract",
        "json_length",
        "json_object",
        "json_quote",
        "json_unquote",
        "json_value",
        "least",
        "left",
        "length",
        "localtime",
        "lower",
        "ltrim",
        "md5",
        "mod",
        "now",
        "nullif",
        "replace",
        "reverse",
        "right",
        "round",
        "rtrim",
        "sign",
        "sqrt",
        "strftime",
        "substr",
        "substring",
        "trim",
        "unhex",
        "upper",
        "utc_timestamp",
    ]
)


def cut_of(select: Any, keyed: Callable[[Iterable[Any]], bool]) -> str | None:
    """Name what in a SELECT depends on more rows than one shard has.

    :param select: in its Core form.
    :param keyed: tells whether rows that are equal in some expressions are
        on the same shard for certain.
    """
    for name, used in (
        ("LIMIT", select._limit_clause is not None),
        ("LIMIT", select._fetch_clause is not None),
        ("OFFSET", select._offset_clause is not None),
        ("a prefix or suffix in SQL", select._prefixes or select._suffixes),
        # Text after the statement: it could be a LIMIT.
        ("a hint in SQL", select._statement_hints),
        ("DISTINCT ON", select._distinct_on),
    ):
        if used:
            return name
    if select._distinct and not keyed(select.selected_columns):
        return "DISTINCT"
    grouped = bool(select._group_by_clauses)
    if grouped and not keyed(select._group_by_clauses):
        return "GROUP BY"
    shown = [*select._raw_columns, *select._order_by_clauses]
    having = list(select._having_criteria)
    if having and not grouped:
        return "HAVING"
    for name in _many_rows([*shown, *having], keyed, grouped):
        return name
    return None


def _many_rows(
    expressions: Iterable[Any],
    keyed: Callable[[Iterable[Any]], bool],
    grouped: bool,
) -> Iterator[str]:
    """Name the parts of expressions that look at several rows."""
    for element in expressions:
        if is_select(element):
            continue
        inside: Iterable[Any] = children(element)
        if isinstance(element, Over):
            partition = getattr(element.partition_by, "clauses", ())
            if not keyed(partition):
                yield "a window function"
            inside = children(element.element)
        elif is_textual(element):
            if not grouped and "(" in text_of(element):
                yield "SQL as text"
        elif aggregates(element) and not grouped:
            yield f"{getattr(element, 'name', 'a function')}()"
        yield from _many_rows(inside, keyed, grouped)


def aggregates(element: Any) -> bool:
    """Tell whether an expression may look at several rows."""
    return (
        isinstance(element, FunctionElement)
        and str(getattr(element, "name", "")).lower() not in _ROW_FUNCTIONS
    )


def is_textual(element: Any) -> bool:
    """Tell a piece of SQL text from an expression."""
    return isinstance(element, TextClause) or (
        isinstance(element, ColumnClause) and element.is_literal
    )


def text_of(element: Any) -> str:
    """Return a piece of SQL text."""
    return str(getattr(element, "text", None) or element.name)
