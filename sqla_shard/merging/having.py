"""HAVING: conditions on what is made of the groups of one or more shards.

Over several shards they are about the groups of all.
What looks at the columns of GROUP BY alone is the same on each shard, which
is asked for it.  Counts, sums and extremes of numbers are compared in Python,
where they are exact.  Servers compare averages and quotients with more digits
than they show, so one of them tells which groups fulfil such a condition.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Boolean
from sqlalchemy import Float
from sqlalchemy import func
from sqlalchemy import Integer
from sqlalchemy import Numeric
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import BinaryExpression
from sqlalchemy.sql.elements import BindParameter
from sqlalchemy.sql.elements import BooleanClauseList
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.elements import Null
from sqlalchemy.sql.elements import UnaryExpression
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.selectable import Select
from sqlalchemy.sql.visitors import replacement_traverse

from sqla_shard.dialects.sql import BlobValue
from sqla_shard.merging.elements import Added
from sqla_shard.merging.elements import counting
from sqla_shard.merging.elements import depends_only_on
from sqla_shard.merging.elements import same
from sqla_shard.routing import counted_select
from sqla_shard.routing.clauses import is_select
from sqla_shard.routing.clauses import unlabelled
from sqla_shard.routing.clauses import walk
from sqla_shard.routing.cutting import aggregates
from sqla_shard.scattering import First
from sqla_shard.scattering.filtering import AllOf
from sqla_shard.scattering.filtering import AnyOf
from sqla_shard.scattering.filtering import Compared
from sqla_shard.scattering.filtering import IsNull
from sqla_shard.scattering.filtering import Negated
from sqla_shard.scattering.merge import Recipe

__all__ = ["Having", "of_groups"]

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
#: Whether they are negated.
_BETWEEN = {operators.between_op: False, operators.not_between_op: True}
_EXACT = frozenset(["count", "sum", "min", "max"])


def of_groups(statement: Any) -> Any:
    """Return a SELECT with a HAVING that servers take.

    MySQL and MariaDB know the columns of GROUP BY there, but neither a field
    of a blob nor anything else that rows are grouped by.  All of a group have
    it in common, so it is the least of them.
    """
    counted = counted_select(statement)
    if counted is not None:
        made = of_groups(counted)
        return statement if made is counted else counting(statement, made)
    if (
        not isinstance(statement, Select)
        or not statement._having_criteria
        or not statement._group_by_clauses
    ):
        return statement
    common = list(_common(statement))

    def least(element: Any, **kw: Any) -> Any:
        if is_select(element) or (
            isinstance(element, FunctionElement) and aggregates(element)
        ):
            return element
        found = any(same(element, one) for one in common)
        return func.min(element) if found else None

    if not common:
        return statement
    made = statement._generate()
    made._having_criteria = tuple(
        replacement_traverse(clause, {}, least)
        for clause in statement._having_criteria
    )
    return made


def _common(statement: Any) -> Iterator[Any]:
    """Yield what the rows of a group have in common, but columns."""
    shown = {column.key: column for column in statement.selected_columns}
    for clause in statement._group_by_clauses:
        # SQLAlchemy takes a function for a table, and lists its columns.
        listed = clause.__visit_name__ == "clauselist"
        for element in clause.clauses if listed else (clause,):
            if element.__visit_name__ == "textual_label_reference":
                named = shown.get(element.element)
            elif element.__visit_name__ == "label_reference":
                named = element.element
            else:
                named = element
            found = unlabelled(named)
            if isinstance(found, ColumnElement) and (
                found.__visit_name__ != "column"
            ):
                yield found
    # Told by the columns of GROUP BY, such as a primary key.
    for column in map(unlabelled, shown.values()):
        if isinstance(column, BlobValue):
            yield column


class Having:
    """Makes a condition of the HAVING of a SELECT.

    :param groups: the expressions of its GROUP BY.
    :param added: takes the hidden columns.
    :param recipe: returns how an aggregate is made of a column.
    :param compute: lets a server compute a condition.
    :param exact: whether Python may compare.
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
        """Return what is true for groups that are shown; None for all.

        :raises ScatterUnsupportedError: when it cannot be told exactly.
        """
        if not criteria:
            return None
        return AllOf(tuple(self._condition(clause) for clause in criteria))

    def _condition(self, clause: Any) -> Recipe:
        clause = unlabelled(clause)
        # SQLAlchemy gives no type to NOT of several conditions.
        told = isinstance(clause.type, Boolean)
        if not self._exact:
            return self._compute(clause)
        if told and depends_only_on(clause, self._groups):
            return First(self._added.comparable(clause, "HAVING"))
        if isinstance(clause, BooleanClauseList):
            parts = tuple(self._condition(part) for part in clause.clauses)
            return (
                AllOf(parts)
                if clause.operator is operators.and_
                else AnyOf(parts)
            )
        if (
            isinstance(clause, UnaryExpression)
            and clause.operator is operators.inv
        ):
            return Negated(self._condition(clause.element))
        if isinstance(clause, BinaryExpression):
            found = self._binary(clause)
            if found is not None:
                return found
        return self._compute(clause)

    def _binary(self, clause: Any) -> Recipe | None:
        """Return a comparison that is exact in Python; None of others."""
        if isinstance(clause.right, Null):
            if not self._is_exact(clause.left):
                return None
            null = IsNull(self._number(clause.left))
            if clause.operator is operators.is_:
                return null
            return (
                Negated(null) if clause.operator is operators.is_not else None
            )
        if clause.operator in _BETWEEN:
            low, high = clause.right.clauses
            above = self._binary(clause.left >= low)
            below = self._binary(clause.left <= high)
            if above is None or below is None:
                return None
            between = AllOf((above, below))
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
        if isinstance(element, BindParameter):
            return True
        if not _is_number(element.type) or _divides(element):
            return False
        name = str(getattr(element, "name", "")).lower()
        return depends_only_on(element, self._groups) or (
            isinstance(element, FunctionElement) and name in _EXACT
        )

    def _number(self, element: Any) -> Recipe:
        element = unlabelled(element)
        if isinstance(element, BindParameter):
            # The server knows best what a driver makes of a value.
            return First(self._added.add(element))
        if depends_only_on(element, self._groups):
            return First(self._added.comparable(element, "HAVING"))
        return self._recipe(element, self._added.value(element))


def _divides(element: Any) -> bool:
    # A quotient has more digits on some servers than they show.
    return any(
        isinstance(part, BinaryExpression)
        and part.operator in (operators.truediv, operators.floordiv)
        for part in walk(element)
    )


def _is_number(type_: Any) -> bool:
    # Sums of floats depend on the order in which they are added.
    return isinstance(type_, (Integer, Numeric, Boolean)) and not isinstance(
        type_, Float
    )
