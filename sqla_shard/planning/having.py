"""HAVING: conditions on the groups of one or more shards.

Over several shards HAVING filters the merged groups.  A condition on the
columns of GROUP BY alone is the same on each shard, which computes it.
Counts, sums and extremes of numbers are compared in Python, where they are
exact.  Servers compare averages and quotients with more digits than they
return, so that a server evaluates such a condition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sqlalchemy import Boolean, Float, func, Integer, Numeric
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import (
    BinaryExpression,
    BindParameter,
    BooleanClauseList,
    ColumnElement,
    Null,
    UnaryExpression,
)
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.selectable import Select
from sqlalchemy.sql.visitors import iterate, replacement_traverse

from sqla_shard.dialects.numbers import Precision, precision_of
from sqla_shard.dialects.result_types import name_of
from sqla_shard.dialects.sql import BlobValue
from sqla_shard.engine.merge import First, Mean, Recipe, Row
from sqla_shard.exc import ScatterUnsupportedError
from sqla_shard.planning.clauses import (
    counted_select,
    is_select,
    may_aggregate,
    unlabelled,
    walk,
)
from sqla_shard.planning.elements import Added, counting, depends_only_on, divides, same
from sqla_shard.util import sqlalchemy_private as private

# As on a server, a condition is true, false or, with NULL, None.
_NUMBERS = (int, float, Decimal)


@dataclass(frozen=True)
class Compared:
    """A comparison of two numbers."""

    one: Recipe
    other: Recipe
    operator: Callable[[Any, Any], Any]

    def __call__(self, rows: Sequence[Row]) -> bool | None:
        """Return the result; None if one of the numbers is NULL.

        :raises ScatterUnsupportedError: if one is not a number.
        """
        one, other = self.one(rows), self.other(rows)
        if one is None or other is None:
            return None
        # Of an average, the least and the greatest that it may be.
        one, most = one if isinstance(one, tuple) else (one, one)
        other, others = other if isinstance(other, tuple) else (other, other)
        for value in (one, other):
            if not isinstance(value, _NUMBERS):
                raise ScatterUnsupportedError(
                    f"HAVING over several shards compares numbers, and not "
                    f"{value!r}; read the groups and filter them in Python",
                    construct="HAVING",
                )
        if (one != most or other != others) and one <= others and other <= most:
            raise ScatterUnsupportedError(
                f"HAVING over several shards compares avg(), at most {most:f}, "
                f"with {others}: the digits that the server has are not known; "
                "cast() the values to a Numeric with a scale",
                construct="HAVING",
            )
        if isinstance(one, float) or isinstance(other, float):
            # As servers do; to Python, 0.1 is not Decimal("0.1").
            one, other = float(one), float(other)
        return bool(self.operator(one, other))


@dataclass(frozen=True)
class IsNull:
    """True if the value is NULL."""

    of: Recipe

    def __call__(self, rows: Sequence[Row]) -> bool | None:
        """Return whether the value is NULL."""
        return self.of(rows) is None


@dataclass(frozen=True)
class Negated:
    """NOT of a condition."""

    of: Recipe

    def __call__(self, rows: Sequence[Row]) -> bool | None:
        """Return the result."""
        value = self.of(rows)
        return None if value is None else not value


@dataclass(frozen=True)
class HavingAll:
    """Conditions with AND."""

    parts: tuple[Recipe, ...]

    def __call__(self, rows: Sequence[Row]) -> bool | None:
        """Return the result."""
        values = [part(rows) for part in self.parts]
        if any(value is not None and not value for value in values):
            return False
        return None if None in values else True


@dataclass(frozen=True)
class HavingAny:
    """Conditions with OR."""

    parts: tuple[Recipe, ...]

    def __call__(self, rows: Sequence[Row]) -> bool | None:
        """Return the result."""
        values = [part(rows) for part in self.parts]
        if any(values):
            return True
        return None if None in values else False


_COMPARISONS: Mapping[Any, Callable[[Any, Any], Any]] = {
    operator: operator
    for operator in (
        operators.eq,
        operators.ne,
        operators.lt,
        operators.le,
        operators.gt,
        operators.ge,
    )
}
#: Whether the operator is negated.
_BETWEEN = {operators.between_op: False, operators.not_between_op: True}
_EXACT = frozenset(["count", "sum", "min", "max"])


def of_groups(statement: Any) -> Any:
    """Return a SELECT with columns and a HAVING that servers accept.

    In HAVING, and as a part of a column, MySQL and MariaDB accept the columns
    of GROUP BY, but neither a field of a blob nor any other expression that
    rows are grouped by.  Such an expression is the same in all rows of a
    group, so that min() replaces it.
    """
    counted = counted_select(statement)
    if counted is not None:
        groups = of_groups(counted)
        return statement if groups is counted else counting(statement, groups)
    if not isinstance(statement, Select):
        return statement
    where = private.where_criteria(statement)
    if any(_has_groups(clause) for clause in where):
        statement = private.copy_with(
            statement,
            where_criteria=tuple(
                replacement_traverse(clause, {}, _in_subquery) for clause in where
            ),
        )
    if not private.group_by_clauses(statement):
        return statement
    shown = {column.key: column for column in statement.selected_columns}
    common = list(_grouped(statement, shown))
    given = private.raw_columns(statement)
    columns = [_of_group(column, common) for column in given]
    if any(new is not old for new, old in zip(columns, given, strict=True)):
        statement = private.copy_with(statement, raw_columns=columns)
    # Determined by the columns of GROUP BY, such as a primary key.
    others = map(unlabelled, shown.values())
    common += [other for other in others if isinstance(other, BlobValue)]
    if not common or not private.having_criteria(statement):
        return statement
    having = tuple(
        _with_least(clause, common) for clause in private.having_criteria(statement)
    )
    return private.copy_with(statement, having_criteria=having)


def _has_groups(clause: Any) -> bool:
    """Return whether a condition has a subquery with HAVING."""
    return any(
        isinstance(part, Select) and bool(private.having_criteria(part))
        for part in iterate(clause)
    )


def _in_subquery(element: Any, **kw: Any) -> Any:
    """Return a subquery with HAVING whose column MySQL accepts there.

    MySQL compares the column of ``IN (SELECT ..)`` in HAVING.
    """
    if not isinstance(element, Select) or not private.having_criteria(element):
        return None
    common = list(_grouped(element, {c.key: c for c in element.selected_columns}))
    return private.copy_with(
        element,
        raw_columns=[
            func.min(unlabelled(column)).label(getattr(column, "name", None))
            if any(same(unlabelled(column), one) for one in common)
            else column
            for column in private.raw_columns(element)
        ],
    )


def _of_group(column: Any, common: Sequence[Any]) -> Any:
    """Return a column that computes with the expressions of a group."""
    inside = unlabelled(column)
    if (
        not isinstance(inside, ColumnElement)
        or inside.__visit_name__ == "column"
        or not any(same(part, one) for part in walk(inside) for one in common)
        or any(same(inside, one) for one in common)
    ):
        return column
    return _with_least(column, common)


def _with_least(clause: Any, common: Sequence[Any]) -> Any:
    def least(element: Any, **kw: Any) -> Any:
        if is_select(element) or (
            isinstance(element, FunctionElement) and may_aggregate(element)
        ):
            return element
        is_common = any(same(element, one) for one in common)
        return func.min(element) if is_common else None

    return replacement_traverse(clause, {}, least)


def _grouped(statement: Any, shown: Mapping[Any, Any]) -> Iterator[Any]:
    """Yield the expressions of GROUP BY other than columns.

    :param shown: the columns by their names.
    """
    for element in private.group_by_clauses(statement):
        if element.__visit_name__ == "textual_label_reference":
            named = shown.get(element.element)
        elif element.__visit_name__ == "label_reference":
            named = element.element
        else:
            named = element
        expression = unlabelled(named)
        if isinstance(expression, ColumnElement) and (
            expression.__visit_name__ != "column"
        ):
            yield expression


class Having:
    """Converts the HAVING of a SELECT to a condition on merged groups.

    :param groups: the expressions of GROUP BY.
    :param added: collects the hidden columns.
    :param recipe: returns the recipe of an aggregate.
    :param compute: lets a server compute a condition.
    :param exact: whether Python may compare the values.
    """

    def __init__(
        self,
        groups: Sequence[Any],
        added: Added,
        recipe: Callable[[Any, int], Recipe],
        compute: Callable[[Any], Recipe],
        *,
        exact: bool,
    ) -> None:
        self._compute = compute
        self._exact = exact
        self._groups = groups
        self._added = added
        self._recipe = recipe

    def condition(self, criteria: Sequence[Any]) -> Recipe | None:
        """Return the condition on the groups; None if there is none.

        :raises ScatterUnsupportedError: if it cannot be evaluated exactly.
        """
        if not criteria:
            return None
        return HavingAll(tuple(self._condition(clause) for clause in criteria))

    def _condition(self, clause: Any) -> Recipe:
        clause = unlabelled(clause)
        # SQLAlchemy gives no type to NOT of several conditions.
        is_typed = isinstance(clause.type, Boolean)
        if not self._exact:
            return self._compute(clause)
        if is_typed and depends_only_on(clause, self._groups):
            return First(self._added.comparable(clause, "HAVING"))
        if isinstance(clause, BooleanClauseList):
            parts = tuple(self._condition(part) for part in clause.clauses)
            return (
                HavingAll(parts)
                if clause.operator is operators.and_
                else HavingAny(parts)
            )
        if isinstance(clause, UnaryExpression) and clause.operator is operators.inv:
            return Negated(self._condition(clause.element))
        if isinstance(clause, BinaryExpression):
            recipe = self._binary(clause)
            if recipe is not None:
                return recipe
        return self._compute(clause)

    def _binary(self, clause: Any) -> Recipe | None:
        """Return a comparison that is exact in Python, or None."""
        if isinstance(clause.right, Null):
            if not self._is_exact(clause.left):
                return None
            null = IsNull(self._number(clause.left))
            if clause.operator is operators.is_:
                return null
            return Negated(null) if clause.operator is operators.is_not else None
        if clause.operator in _BETWEEN:
            low, high = clause.right.clauses
            above = self._binary(clause.left >= low)
            below = self._binary(clause.left <= high)
            if above is None or below is None:
                return None
            between = HavingAll((above, below))
            return Negated(between) if _BETWEEN[clause.operator] else between
        compare = _COMPARISONS.get(clause.operator)
        if (
            compare is None
            or not self._is_exact(clause.left)
            or not self._is_exact(clause.right)
        ):
            return None
        one, other = self._number(clause.left), self._number(clause.right)
        return Compared(one, other, compare)

    def _is_exact(self, element: Any) -> bool:
        element = unlabelled(element)
        if isinstance(element, BindParameter) or self._is_mean(element):
            return True
        # Sums of floats depend on the order in which they are added.
        if (
            not isinstance(element.type, (Integer, Numeric, Boolean))
            or isinstance(element.type, Float)
            or divides(element)
        ):
            return False
        name = name_of(element)
        return depends_only_on(element, self._groups) or (
            isinstance(element, FunctionElement) and name in _EXACT
        )

    def _is_mean(self, element: Any) -> bool:
        """Return whether an average has digits that cannot be sent back."""
        return (
            name_of(element) == "avg"
            and any(map(divides, element.clauses))
            and precision_of(*element.clauses) is not Precision.DOUBLE
        )

    def _number(self, element: Any) -> Recipe:
        element = unlabelled(element)
        if isinstance(element, BindParameter):
            # The value as the server receives it from the driver.
            return First(self._added.add(element))
        if depends_only_on(element, self._groups):
            return First(self._added.comparable(element, "HAVING"))
        recipe = self._recipe(element, self._added.value(element))
        return recipe.inside if isinstance(recipe, Mean) else recipe
