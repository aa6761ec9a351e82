"""Functions that examine parts of a statement."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import (
    BinaryExpression,
    BindParameter,
    BooleanClauseList,
    ExpressionClauseList,
    Grouping,
    Label,
    TypeCoerce,
)
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.selectable import (
    CompoundSelect,
    FromClause,
    ScalarSelect,
    Select,
    SelectBase,
    TextualSelect,
)

from sqla_shard.dialects.sql import BlobValue
from sqla_shard.util import sqlalchemy_private as private


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
