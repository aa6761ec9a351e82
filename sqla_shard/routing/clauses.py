"""Small questions about parts of a statement."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import BinaryExpression
from sqlalchemy.sql.elements import BindParameter
from sqlalchemy.sql.elements import BooleanClauseList
from sqlalchemy.sql.elements import ExpressionClauseList
from sqlalchemy.sql.elements import Grouping
from sqlalchemy.sql.elements import Label
from sqlalchemy.sql.elements import Over
from sqlalchemy.sql.elements import TypeCoerce
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.selectable import CompoundSelect
from sqlalchemy.sql.selectable import Exists
from sqlalchemy.sql.selectable import FromClause
from sqlalchemy.sql.selectable import ScalarSelect
from sqlalchemy.sql.selectable import Select
from sqlalchemy.sql.selectable import SelectBase

from sqla_shard.dialects.sql import BlobValue
from sqla_shard.types import IdType
from sqla_shard.types import ShardedId

__all__ = [
    "children",
    "composed",
    "conjuncts",
    "cuts",
    "direct_ids",
    "expressions",
    "form",
    "inner",
    "is_column",
    "is_sharded",
    "multi_shard_limits",
    "nested_in",
    "resolved",
    "ungrouped",
    "unlabelled",
    "walk",
]


def resolved(select: Select[Any]) -> Select[Any]:
    """Return the Core form of an ORM SELECT, with its joins spelled out."""
    if select._propagate_attrs.get("compile_state_plugin") != "orm":
        return select
    state: Any = select.compile().compile_state
    core = state.statement
    return core if isinstance(core, Select) else select


def inner(select: Any) -> Any:
    """Strip parentheses and scalar-subquery wrappers off a SELECT."""
    while not isinstance(select, (Select, CompoundSelect)):
        element = getattr(select, "element", None)
        if element is None:
            return select
        select = element
    return select


def cuts(select: Any) -> str | None:
    """Name what makes a SELECT depend on more rows than it shows."""
    if select._limit_clause is not None or select._fetch_clause is not None:
        return "LIMIT"
    if select._offset_clause is not None:
        return "OFFSET"
    if select._group_by_clauses:
        return "GROUP BY"
    if select._having_criteria:
        return "HAVING"
    for column in select._raw_columns:
        for part in walk(column):
            if isinstance(part, FunctionElement) and not isinstance(
                part, BlobValue
            ):
                return f"{getattr(part, 'name', 'a function')}()"
    return None


def expressions(select: Any) -> Iterator[Any]:
    """Yield the expressions of a SELECT outside FROM and WHERE."""
    yield from select._raw_columns
    yield from select._having_criteria
    yield from select._order_by_clauses
    yield from select._group_by_clauses


def conjuncts(clause: Any) -> Iterator[Any]:
    """Yield the parts of a clause that are joined by AND."""
    clause = ungrouped(clause)
    if (
        isinstance(clause, (BooleanClauseList, ExpressionClauseList))
        and clause.operator is operators.and_
    ):
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
    while isinstance(column, Label):
        column = column.element
    return column


def nested_in(clause: Any) -> Any:
    """Return the SELECT on the right side of a comparison, or None."""
    right = ungrouped(clause.right)
    if isinstance(right, (SelectBase, ScalarSelect)):
        return right
    return None


def composed(element: Any) -> Any:
    """Return the column inside ``full_id(column)``; None for others."""
    if (
        isinstance(element, BinaryExpression)
        and element.operator is operators.add
        and isinstance(element.left, TypeCoerce)
        and isinstance(element.right, BindParameter)
        and element.right._orig_key == "sqla_shard_prefix"
    ):
        return element.left.clause
    return None


def form(kind: Any) -> str:
    """Name what a column of ids stores; only like forms are comparable."""
    if not isinstance(kind, IdType):
        return "other"
    return "whole" if kind.whole else f"local {kind.type_id}"


def is_column(element: Any) -> bool:
    """Tell a column, or a field of a blob, from other expressions."""
    return element.__visit_name__ == "column" or isinstance(element, BlobValue)


def is_sharded(element: Any) -> bool:
    """Tell whether an expression is a column of local ids."""
    return isinstance(getattr(element, "type", None), ShardedId) and is_column(
        element
    )


def direct_ids(element: Any) -> Iterator[Any]:
    """Yield the columns of local ids that a function is given."""
    for child in children(element):
        if is_sharded(child):
            yield child
        elif not isinstance(child, (BinaryExpression, SelectBase)):
            yield from direct_ids(child)


def walk(element: Any) -> Iterator[Any]:
    """Yield an expression and all its parts."""
    yield element
    for child in children(element):
        yield from walk(child)


def children(element: Any) -> Any:
    """Return the parts of an expression; a table has none here."""
    # A function is a FROM element too, since some return tables.
    if isinstance(element, FromClause) and not isinstance(
        element, (SelectBase, FunctionElement)
    ):
        return ()
    return element.get_children()


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
        "json_contains",
        "json_extract",
        "json_length",
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
        "substr",
        "substring",
        "trim",
        "unhex",
        "upper",
        "utc_timestamp",
    ]
)


def multi_shard_limits(select: Any) -> list[str]:
    """Name what makes concatenating the rows of shards wrong."""
    if isinstance(select, CompoundSelect):
        return ["UNION"]
    found = [
        name
        for name, used in (
            ("LIMIT", select._limit_clause is not None),
            ("LIMIT", select._fetch_clause is not None),
            ("OFFSET", select._offset_clause is not None),
            ("DISTINCT", select._distinct),
            ("GROUP BY", bool(select._group_by_clauses)),
            ("HAVING", bool(select._having_criteria)),
        )
        if used
    ]
    for column in select._raw_columns:
        for part in walk(column):
            if isinstance(part, Over):
                found.append("a window function")
            elif isinstance(part, FunctionElement):
                name = getattr(part, "name", "a function")
                if name.lower() not in _ROW_FUNCTIONS:
                    found.append(f"{name}()")
            elif isinstance(part, (Exists, ScalarSelect)):
                found.append("a subquery among the columns")
    return found
