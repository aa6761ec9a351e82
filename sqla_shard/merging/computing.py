"""Computations with aggregates: what one server makes of merged numbers.

The aggregates of an expression are merged by themselves, and a column takes
the place of each.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from sqlalchemy import BigInteger
from sqlalchemy import Date
from sqlalchemy import DateTime
from sqlalchemy import Float
from sqlalchemy import func
from sqlalchemy import Interval
from sqlalchemy import literal_column
from sqlalchemy import Numeric
from sqlalchemy import Time
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import BinaryExpression
from sqlalchemy.sql.elements import FunctionFilter
from sqlalchemy.sql.elements import Over
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.visitors import replacement_traverse
from sqlalchemy.types import TypeDecorator

from sqla_shard.dialects.parts import Averaged
from sqla_shard.dialects.parts import NumberForm
from sqla_shard.dialects.sorting import kind_of
from sqla_shard.exc import ScatterUnsupportedError
from sqla_shard.merging.elements import Added
from sqla_shard.merging.elements import same
from sqla_shard.routing.clauses import is_column
from sqla_shard.routing.clauses import is_select
from sqla_shard.routing.clauses import walk
from sqla_shard.routing.cutting import aggregates
from sqla_shard.routing.cutting import is_textual
from sqla_shard.scattering.computing import Computation
from sqla_shard.scattering.computing import name_of_part
from sqla_shard.scattering.computing import Part
from sqla_shard.scattering.merge import Computed
from sqla_shard.scattering.merge import Extreme
from sqla_shard.scattering.merge import First
from sqla_shard.scattering.merge import Recipe

__all__ = ["Computations"]

_TIMES = (Date, DateTime, Interval, Time)
_QUOTIENTS = (operators.truediv, operators.floordiv)


class Computations:
    """Collects what a server computes.

    :param groups: the expressions of GROUP BY.
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
        self._parts: list[Part] = []
        self._expressions: list[Any] = []

    def __bool__(self) -> bool:
        """Tell whether there is any."""
        return bool(self._expressions)

    @property
    def computation(self) -> Computation | None:
        """All of them; None where there is none."""
        if not self._expressions:
            return None
        return Computation(tuple(self._parts), tuple(self._expressions))

    def add(self, element: Any) -> Computed:
        """Let a server compute an expression.

        :raises ScatterUnsupportedError: when it needs more than numbers.
        """
        if any(isinstance(part, FunctionFilter) for part in walk(element)):
            raise self._refused(
                element,
                "FILTER, for which func.sum(case((condition, value))) can "
                "stand,",
            )
        made = replacement_traverse(element, {}, self._replaced)
        for part in walk(made):
            if is_select(part) or isinstance(part, Over):
                raise self._refused(element, "a subquery or window function")
            if is_column(part) and not _is_part(part):
                raise self._refused(element, f"{part}, not in GROUP BY,")
            if is_textual(part) and not _is_part(part):
                raise self._refused(element, "SQL as text")
        self._expressions.append(made)
        return Computed(len(self._expressions) - 1)

    def _replaced(self, element: Any, **kw: Any) -> Any:
        """Return the column that takes the place of a part, or None."""
        if isinstance(element, FunctionElement) and aggregates(element):
            return self._aggregate(element)
        if any(same(element, group) for group in self._groups):
            if not _is_number(element):
                raise self._refused(element, f"{element}, which is no number,")
            at = self._added.comparable(element, "GROUP BY")
            return self._part(First(at), _form(element), element.type)
        return None

    def _aggregate(self, function: Any) -> Any:
        name = str(function.name).lower()
        arguments = list(function.clauses)
        if name != "count":
            for argument in arguments:
                if not _is_number(argument):
                    raise self._refused(function, "what is no number")
                if _divides(argument):
                    raise self._refused(
                        function,
                        "an aggregate of a quotient, which has more digits "
                        "than servers show,",
                    )
        if name == "avg" and len(arguments) == 1:
            # Of which servers have more digits than they show.
            total = self._aggregate(func.sum(arguments[0]))
            count = self._aggregate(func.count(arguments[0]))
            return Averaged(total, count, function.type)
        recipe = self._recipe(function, self._added.value(function))
        if isinstance(recipe, Extreme):
            # With all digits that a float has.
            recipe = Extreme(recipe.by, recipe.by, recipe.greatest)
        if name == "count":
            return self._part(recipe, NumberForm("integer"), BigInteger(), 0)
        form = _form(arguments[0])
        if name == "sum" and form.name == "integer":
            form = NumberForm("decimal")
        return self._part(recipe, form, function.type)

    def _part(
        self, recipe: Recipe, form: NumberForm, type_: Any, empty: Any = None
    ) -> Any:
        self._parts.append(Part(recipe, form, empty))
        name = name_of_part(len(self._parts) - 1)
        return literal_column(name, type_)

    def _refused(self, element: Any, what: str) -> ScatterUnsupportedError:
        return ScatterUnsupportedError(
            f"{element} over several shards: {what} cannot be computed with "
            "once the shards' rows are merged; select the aggregates "
            "themselves, and compute in Python",
            construct="a computation",
        )


def _is_part(element: Any) -> bool:
    return str(getattr(element, "name", "")).startswith("sqla_shard_p")


def _is_number(element: Any) -> bool:
    return kind_of(element) in ("float", "plain") and not isinstance(
        _bare(element.type), _TIMES
    )


def _bare(type_: Any) -> Any:
    while isinstance(type_, TypeDecorator):
        type_ = type_.impl_instance
    return type_


def _form(element: Any) -> NumberForm:
    """Return how an expression is written where it is NULL."""
    type_ = _bare(element.type)
    if isinstance(type_, Float):
        return NumberForm("double")
    if isinstance(type_, Numeric):
        return NumberForm("decimal", type_.scale or 0)
    return NumberForm("integer")


def _divides(element: Any) -> bool:
    return any(
        isinstance(part, BinaryExpression) and part.operator in _QUOTIENTS
        for part in walk(element)
    )
