"""Functions that examine parts of a statement.

The rows of several shards may be concatenated where a statement reads each
row separately, or groups of rows that are all on one shard, such as ``GROUP
BY`` an id.  For LIMIT, a count and the like (a :class:`Cut`) that would be
wrong: the results of the shards have to be merged, where that is possible.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import literal_column, select
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import (
    BinaryExpression,
    BindParameter,
    BooleanClauseList,
    ColumnClause,
    ExpressionClauseList,
    False_,
    Grouping,
    Label,
    Null,
    Over,
    TextClause,
    True_,
    TypeCoerce,
    UnaryExpression,
)
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.selectable import (
    Alias,
    CompoundSelect,
    CTE,
    Exists,
    FromClause,
    ScalarSelect,
    Select,
    SelectBase,
    Subquery,
    TextualSelect,
)

from sqla_shard.dialects.result_types import name_of, ROW_FUNCTIONS
from sqla_shard.dialects.sorting import Hidden
from sqla_shard.dialects.sql import BlobValue
from sqla_shard.util import sqlalchemy_private as private

# ``select(func.count()).select_from(pins.subquery())``, which paginators send,
# has the number of the rows that ``pins`` has.  Where ``pins`` has LIMIT,
# DISTINCT or GROUP BY, its rows on several shards have to be merged first.
#
# ``select(pins.exists())`` returns one row on each shard.


#: Statements that ping a server.
_CONSTANT_TEXT = re.compile(r"\s*select\s+(\d+)\s*(?:;\s*)?", re.IGNORECASE)
_CONSTANT = (BindParameter, False_, Null, True_)


def inner(select: Any) -> Any:
    """Strip parentheses and scalar-subquery wrappers off a SELECT."""
    while not isinstance(select, (Select, CompoundSelect, TextualSelect)):
        element = getattr(select, "element", None)
        if element is None:
            return select
        select = element
    return select


def nested(element: Any) -> Any:
    """Return the SELECT that an expression consists of, or None."""
    element = ungrouped(element)
    return inner(element) if is_select(element) else None


def is_select(element: Any) -> bool:
    """Return whether an expression is a SELECT, even a scalar one."""
    return isinstance(element, (SelectBase, ScalarSelect))


def is_list(clause: Any, operator: Any) -> bool:
    """Return whether a clause joins others by AND, or by OR."""
    return (
        isinstance(clause, (BooleanClauseList, ExpressionClauseList))
        and clause.operator is operator
    )


def conjuncts(clause: Any) -> Iterator[Any]:
    """Yield the parts of a clause that are joined by AND."""
    clause = ungrouped(clause)
    if is_list(clause, operators.and_):
        for part in clause.clauses:
            yield from conjuncts(part)
    elif clause is not None:
        yield clause


def ungrouped(clause: Any) -> Any:
    """Strip parentheses off an expression."""
    while isinstance(clause, Grouping):
        clause = clause.element
    return clause


def unlabelled(column: Any) -> Any:
    """Strip the labels off a column of a SELECT."""
    while isinstance(column, (Label, Grouping)):
        column = column.element
    return column


def composed(element: Any) -> Any:
    """Return the argument of ``full_id()``; None for any other expression."""
    if (
        isinstance(element, BinaryExpression)
        and element.operator is operators.add
        and isinstance(element.left, TypeCoerce)
        and isinstance(element.right, BindParameter)
        and private.original_key(element.right) == "sqla_shard_prefix"
    ):
        return element.left.clause
    return None


def is_column(element: Any) -> bool:
    """Return whether an expression is a column or a field of a blob."""
    return element.__visit_name__ == "column" or isinstance(element, BlobValue)


def walk(element: Any) -> Iterator[Any]:
    """Yield an expression and all its parts except nested SELECTs."""
    yield element
    for child in children(element):
        if not is_select(child):
            yield from walk(child)


def children(element: Any) -> Any:
    """Return the parts of an expression; empty for a table."""
    # A function is a FROM element too, since some return tables.
    if isinstance(element, FromClause) and not isinstance(
        element, (SelectBase, FunctionElement)
    ):
        return ()
    return element.get_children()


def exists_columns(statement: Any) -> tuple[bool, ...] | None:
    """Return whether each column of a SELECT of EXISTS is negated.

    :returns: for each column False for EXISTS, True for NOT EXISTS; None for
        any other statement.
    """
    if not _is_bare(statement) or private.where_criteria(statement):
        return None
    columns = []
    for column in map(unlabelled, private.raw_columns(statement)):
        element = column
        negated = getattr(column, "operator", None) is operators.inv
        if negated:
            element = ungrouped(column.element)
        if not isinstance(element, Exists):
            return None
        columns.append(negated)
    return tuple(columns)


def shows_if(statement: Any) -> bool:
    """Return whether a statement is ``SELECT 1 WHERE EXISTS (...)``."""
    return (
        _is_bare(statement)
        and len(private.where_criteria(statement)) == 1
        and isinstance(ungrouped(private.where_criteria(statement)[0]), Exists)
        and all(
            isinstance(unlabelled(column), _CONSTANT)
            for column in private.raw_columns(statement)
        )
    )


def constant(statement: Any) -> Any:
    """Return a statement that selects constants, such as ``SELECT 1``.

    :returns: a ``select()``, even for SQL as text; None for any other
        statement.
    """
    if isinstance(statement, TextClause):
        match = _CONSTANT_TEXT.fullmatch(statement.text)
        return select(literal_column(match[1])) if match else None
    if (
        _is_bare(statement)
        and not private.where_criteria(statement)
        and all(map(_is_constant, private.raw_columns(statement)))
    ):
        return statement
    return None


def _is_constant(column: Any) -> bool:
    column = unlabelled(column)
    return isinstance(column, _CONSTANT) or (
        isinstance(column, ColumnClause) and column.is_literal and column.name.isdigit()
    )


def _is_bare(statement: Any) -> bool:
    """Return whether a SELECT has only columns and perhaps WHERE."""
    return (
        isinstance(statement, Select)
        and not private.from_obj(statement)
        and _is_plain(statement)
    )


def _is_plain(statement: Any) -> bool:
    return not (
        private.setup_joins(statement)
        or private.group_by_clauses(statement)
        or private.having_criteria(statement)
        or private.order_by_clauses(statement)
        or private.has_row_limiting_clause(statement)
        or private.for_update_arg(statement) is not None
        or private.distinct(statement)
    )


def counted_select(statement: Any) -> Any:
    """Return the SELECT whose rows a statement counts.

    :returns: None for any other statement.
    """
    if (
        not isinstance(statement, Select)
        or len(private.from_obj(statement)) != 1
        or len(private.raw_columns(statement)) != 1
        or private.where_criteria(statement)
        or not _is_plain(statement)
        or not _counts_rows(private.raw_columns(statement)[0])
    ):
        return None
    (source,) = private.from_obj(statement)
    while isinstance(source, Alias):
        source = source.element
    if not isinstance(source, (Subquery, CTE)):
        return None
    inner = source.element
    return inner if isinstance(inner, Select) else None


def _counts_rows(column: Any) -> bool:
    """Return whether an expression is ``count(*)``."""
    function = unlabelled(column)
    if name_of(function) != "count":
        return False
    # Any other argument may be NULL.
    return all(
        isinstance(each, ColumnClause) and each.is_literal and each.name == "*"
        for each in getattr(function, "clauses", ())
    )


#: Functions that return another number each time.
RANDOM = frozenset(["rand", "random"])


@dataclass(frozen=True, slots=True)
class Cut:
    """A part of a SELECT that depends on the rows of several shards.

    :ivar name: name of the part, such as ``LIMIT``.
    :ivar mergeable: whether the results of the shards may be mergeable; the
        merge decides.
    """

    name: str
    mergeable: bool = False


def cuts_of(select: Any, keyed: Callable[[Iterable[Any]], bool]) -> Iterator[Cut]:
    """Yield the parts of a SELECT that depend on rows of several shards.

    :param select: the SELECT in its Core form.
    :param keyed: returns whether rows that are equal in the given expressions
        are definitely on the same shard.
    """
    for name, used in (
        ("FETCH", private.fetch_clause(select) is not None),
        ("subqueryload() of sorted or limited rows", _is_merged(select)),
        (
            "a prefix or suffix in SQL",
            private.prefixes(select) or private.suffixes(select),
        ),
        # Text after the statement: it could be a LIMIT.
        ("a hint in SQL", private.statement_hints(select)),
        ("DISTINCT ON", private.distinct_on(select)),
    ):
        if used:
            yield Cut(name)
    if private.limit_clause(select) is not None:
        yield Cut("LIMIT", mergeable=True)
    if private.offset_clause(select) is not None:
        yield Cut("OFFSET", mergeable=True)
    if private.distinct(select) and not keyed(select.selected_columns):
        yield Cut("DISTINCT", mergeable=True)
    grouped = bool(private.group_by_clauses(select))
    if grouped and not keyed(private.group_by_clauses(select)):
        yield Cut("GROUP BY", mergeable=True)
    if private.having_criteria(select) and not grouped:
        yield Cut("HAVING", mergeable=True)
    yield from _many_rows(row_expressions(select), keyed, grouped)


def _is_merged(select: Any) -> bool:
    """Return whether a SELECT was made from one that is being merged."""
    return any(isinstance(prefix, Hidden) for prefix, _ in private.prefixes(select))


def _many_rows(
    expressions: Iterable[Any], keyed: Callable[[Iterable[Any]], bool], grouped: bool
) -> Iterator[Cut]:
    """Yield the parts of expressions that read several rows."""
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
            # Outside a function it makes the whole SELECT distinct.
            yield Cut("distinct() of a column")
        elif may_aggregate(element):
            if not grouped:
                name = f"{getattr(element, 'name', 'a function')}()"
                yield Cut(name, mergeable=True)
            counted = distinct_of(element)
            inside = inside if counted is None else (counted,)
        yield from _many_rows(inside, keyed, grouped)


def row_expressions(select: Any) -> list[Any]:
    """Return the expressions of a SELECT that may have aggregates."""
    return [
        *private.raw_columns(select),
        *private.order_by_clauses(select),
        *private.having_criteria(select),
    ]


def may_aggregate(element: Any) -> bool:
    """Return whether an expression may read several rows."""
    if not isinstance(element, FunctionElement):
        return False
    name = name_of(element)
    # With a seed, the numbers of each shard would be the same.
    seeded = name in RANDOM and len(element.clauses) > 0
    return seeded or name not in ROW_FUNCTIONS


def counted_distinct(elements: Iterable[Any]) -> Iterator[Any]:
    """Yield the arguments of ``count(distinct(...))``, from left to right."""
    for element in elements:
        if is_select(element):
            continue
        counted = None
        if name_of(element) == "count":
            counted = distinct_of(element)
        if counted is not None:
            yield counted
        else:
            yield from counted_distinct(children(element))


def distinct_of(element: Any) -> Any:
    """Return the argument of ``distinct()`` in a function, or None."""
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
        named = name_of(element) == "distinct"
        return named and len(element.clauses) == 1
    return (
        isinstance(element, UnaryExpression)
        and element.operator is operators.distinct_op
    )


def is_textual(element: Any) -> bool:
    """Return whether an element is a piece of SQL text."""
    return isinstance(element, TextClause) or (
        isinstance(element, ColumnClause) and element.is_literal
    )


def text_of(element: Any) -> str:
    """Return a piece of SQL text."""
    return str(getattr(element, "text", None) or element.name)
