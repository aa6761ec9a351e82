"""Statements that ask how many rows a subquery has, or whether any.

``select(func.count()).select_from(pins.subquery())``, which paginators send,
has the number of the rows that ``pins`` has.  Where ``pins`` has LIMIT,
DISTINCT or GROUP BY, its rows on several shards have to be merged first.

``select(pins.exists())`` has one row on each shard, whatever it finds there.
"""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import literal_column
from sqlalchemy import select
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import BindParameter
from sqlalchemy.sql.elements import ColumnClause
from sqlalchemy.sql.elements import False_
from sqlalchemy.sql.elements import Null
from sqlalchemy.sql.elements import TextClause
from sqlalchemy.sql.elements import True_
from sqlalchemy.sql.selectable import Alias
from sqlalchemy.sql.selectable import CTE
from sqlalchemy.sql.selectable import Exists
from sqlalchemy.sql.selectable import Select
from sqlalchemy.sql.selectable import Subquery

from sqla_shard.routing.clauses import ungrouped
from sqla_shard.routing.clauses import unlabelled

__all__ = ["constant", "counted_select", "shows_if", "sought"]

#: What pings a server.
_CONSTANT_TEXT = re.compile(r"\s*select\s+(\d+)\s*;?\s*", re.IGNORECASE)
_CONSTANT = (BindParameter, False_, Null, True_)


def sought(statement: Any) -> tuple[bool, ...] | None:
    """Return which columns of a statement tell that a row is missing.

    :returns: for each column False for EXISTS, True for NOT EXISTS.  None
        where there is anything else in it.
    """
    if not _is_bare(statement) or statement._where_criteria:
        return None
    found = []
    for column in map(unlabelled, statement._raw_columns):
        element = column
        negated = getattr(column, "operator", None) is operators.inv
        if negated:
            element = ungrouped(column.element)
        if not isinstance(element, Exists):
            return None
        found.append(negated)
    return tuple(found)


def shows_if(statement: Any) -> bool:
    """Tell ``SELECT 1 WHERE EXISTS (...)`` from other statements."""
    return (
        _is_bare(statement)
        and len(statement._where_criteria) == 1
        and isinstance(ungrouped(statement._where_criteria[0]), Exists)
        and all(
            isinstance(unlabelled(column), _CONSTANT)
            for column in statement._raw_columns
        )
    )


def constant(statement: Any) -> Any:
    """Return a statement that shows constants, such as ``SELECT 1``.

    :returns: it, and ``select()`` where it is a text; None for others.
    """
    if isinstance(statement, TextClause):
        found = _CONSTANT_TEXT.fullmatch(statement.text)
        return select(literal_column(found[1])) if found else None
    if (
        _is_bare(statement)
        and not statement._where_criteria
        and all(map(_is_constant, statement._raw_columns))
    ):
        return statement
    return None


def _is_constant(column: Any) -> bool:
    column = unlabelled(column)
    return isinstance(column, _CONSTANT) or (
        isinstance(column, ColumnClause)
        and column.is_literal
        and column.name.isdigit()
    )


def _is_bare(statement: Any) -> bool:
    """Tell a SELECT of columns alone, with WHERE at most."""
    return (
        isinstance(statement, Select)
        and not statement._from_obj
        and _is_plain(statement)
    )


def _is_plain(statement: Any) -> bool:
    return not (
        statement._setup_joins
        or statement._group_by_clauses
        or statement._having_criteria
        or statement._order_by_clauses
        or statement._has_row_limiting_clause
        or statement._for_update_arg is not None
        or statement._distinct
    )


def counted_select(statement: Any) -> Any:
    """Return the SELECT whose rows a statement counts.

    :returns: None where it does anything else.
    """
    if (
        not isinstance(statement, Select)
        or len(statement._from_obj) != 1
        or len(statement._raw_columns) != 1
        or statement._where_criteria
        or not _is_plain(statement)
        or not _counts_rows(statement._raw_columns[0])
    ):
        return None
    (source,) = statement._from_obj
    while isinstance(source, Alias):
        source = source.element
    if not isinstance(source, (Subquery, CTE)):
        return None
    inner = source.element
    return inner if isinstance(inner, Select) else None


def _counts_rows(column: Any) -> bool:
    """Tell ``count(*)`` from other expressions."""
    function = unlabelled(column)
    if str(getattr(function, "name", "")).lower() != "count":
        return False
    # Whatever else is counted may be NULL.
    return all(
        isinstance(each, ColumnClause) and each.is_literal and each.name == "*"
        for each in getattr(function, "clauses", ())
    )
