"""HAVING over several shards: conditions on what is made of their groups.

What looks at the columns of GROUP BY alone is the same on each shard, which
is asked for it.  Counts, sums and extremes of numbers are compared in Python,
where they are exact; an average is not, for servers compare it with more
digits than they show.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Boolean
from sqlalchemy import Float
from sqlalchemy import Integer
from sqlalchemy import Numeric
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import BinaryExpression
from sqlalchemy.sql.elements import BindParameter
from sqlalchemy.sql.elements import BooleanClauseList
from sqlalchemy.sql.elements import Grouping
from sqlalchemy.sql.elements import Label
from sqlalchemy.sql.elements import Null
from sqlalchemy.sql.elements import UnaryExpression
from sqlalchemy.sql.functions import FunctionElement

from sqla_shard.exc import ScatterUnsupportedError
from sqla_shard.merging.elements import Added
from sqla_shard.merging.elements import depends_only_on
from sqla_shard.routing.clauses import walk
from sqla_shard.scattering import First
from sqla_shard.scattering.filtering import AllOf
from sqla_shard.scattering.filtering import AnyOf
from sqla_shard.scattering.filtering import Compared
from sqla_shard.scattering.filtering import IsNull
from sqla_shard.scattering.filtering import Negated
from sqla_shard.scattering.merge import Recipe

__all__ = ["Having"]

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


class Having:
    """Makes a condition of the HAVING of a SELECT.

    :param groups: the expressions of its GROUP BY.
    :param added: takes the hidden columns.
    :param recipe: returns how an aggregate is made of a column.
    """

    def __init__(
        self,
        groups: Sequence[Any],
        added: Added,
        recipe: Callable[[Any, int], Recipe],
    ) -> None:
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
        while isinstance(clause, (Grouping, Label)):
            clause = clause.element
        # SQLAlchemy gives no type to NOT of several conditions.
        told = isinstance(clause.type, Boolean)
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
            return self._binary(clause)
        raise _refused(clause)

    def _binary(self, clause: Any) -> Recipe:
        if isinstance(clause.right, Null):
            null = IsNull(self._number(clause.left))
            if clause.operator is operators.is_:
                return null
            if clause.operator is operators.is_not:
                return Negated(null)
        if clause.operator in _BETWEEN:
            low, high = clause.right.clauses
            between = AllOf(
                (
                    self._binary(clause.left >= low),
                    self._binary(clause.left <= high),
                )
            )
            return Negated(between) if _BETWEEN[clause.operator] else between
        compare = _COMPARISONS.get(clause.operator)
        if compare is None:
            raise _refused(clause)
        one, other = self._number(clause.left), self._number(clause.right)
        return Compared(one, other, compare)

    def _number(self, element: Any) -> Recipe:
        while isinstance(element, (Grouping, Label)):
            element = element.element
        if isinstance(element, BindParameter):
            # The server knows best what a driver makes of a value.
            return First(self._added.add(element))
        if not _is_number(element.type) or _divides(element):
            raise _refused(element)
        if depends_only_on(element, self._groups):
            return First(self._added.comparable(element, "HAVING"))
        name = str(getattr(element, "name", "")).lower()
        if isinstance(element, FunctionElement) and name in _EXACT:
            return self._recipe(element, self._added.value(element))
        raise _refused(element)


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


def _refused(element: Any) -> ScatterUnsupportedError:
    return ScatterUnsupportedError(
        f"HAVING over several shards compares columns of GROUP BY, and "
        f"count(), sum(), min() and max() of whole numbers and decimals, "
        f"with numbers, and not {element}; read the groups and filter them "
        "in Python",
        construct="HAVING",
    )
