"""Expressions of several aggregates, which one server computes.

Each aggregate of an expression is merged, and a column replaces it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from typing import Any

from sqlalchemy import (
    BigInteger,
    column,
    ColumnClause,
    Date,
    DateTime,
    Float,
    func,
    Interval,
    literal_column,
    Numeric,
    select,
    text,
    Time,
)
from sqlalchemy.sql.elements import (
    BinaryExpression,
    BooleanClauseList,
    FunctionFilter,
    Grouping,
    Label,
    Over,
)
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.visitors import replacement_traverse
from sqlalchemy.util import EMPTY_DICT

from sqla_shard.dialects import Backend
from sqla_shard.dialects.base import Averaged, NumberForm
from sqla_shard.dialects.decimals import plain_type
from sqla_shard.dialects.functions import name_of
from sqla_shard.dialects.numbers import Precision, precision_of
from sqla_shard.dialects.sorting import kind_of
from sqla_shard.engine.merge import Computed, Extreme, First, Recipe
from sqla_shard.engine.values import places_of_quotient, rounded_as
from sqla_shard.exc import ScatterUnsupportedError
from sqla_shard.planning.aggregates import is_textual, may_aggregate
from sqla_shard.planning.clauses import children, is_column, is_select, walk
from sqla_shard.planning.elements import Added, divides, same
from sqla_shard.util import sqlalchemy_private as private

# Servers have different rules for the digits of a quotient, for ``round()``
# and for conditions in HAVING.  So the sums and counts of all shards are sent
# back to one of them, as constants, and it computes the expressions::
#
#     SELECT n, p0 / p1 FROM (SELECT 0 AS n, 7 AS p0, 2 AS p1) AS parts


_NUMBER = "sqla_shard_n"
_PART = "sqla_shard_p"
#: Maximum number of rows of one statement; each has about 100 characters.
_BATCH = 1000


def name_of_part(index: int) -> str:
    """Return the name of the column of a part in SQL."""
    return f"{_PART}{index}"


def _index_of_part(element: Any) -> int:
    """Return the index of the part whose column :func:`name_of_part` names."""
    return int(element.name.removeprefix(_PART))


@dataclass(frozen=True)
class Operand:
    """A merged number that a server computes with.

    :ivar recipe: computes the number from the rows of a group.
    :ivar form: form of the number in SQL if all values are NULL.
    :ivar empty: the number if no shard has a row.
    """

    recipe: Callable[[Any], Any]
    form: NumberForm
    empty: int | None


@dataclass(frozen=True)
class Computation:
    """The expressions that a server computes for each group.

    :ivar expressions: expressions of the columns that :func:`name_of_part`
        names.
    """

    parts: tuple[Operand, ...]
    expressions: tuple[Any, ...]

    @cached_property
    def _averages(self) -> list[int]:
        """The positions of the expressions that compute with an average."""
        return [at for at, made in enumerate(self.expressions) if _has_average(made)]

    def values(self, group: Sequence[Any]) -> tuple[Any, ...]:
        """Return the parts of a group, which may have no rows."""
        if not group:
            return tuple(part.empty for part in self.parts)
        return tuple(part.recipe(group) for part in self.parts)

    def run(
        self,
        groups: Sequence[Sequence[Any]],
        backend: Backend,
        send: Callable[[Any], Sequence[Sequence[Any]]],
    ) -> list[tuple[Any, ...]]:
        """Return the values of the expressions, for each group.

        :param groups: the parts of each group.
        :param send: executes a statement, and returns the driver's rows.
        :raises ScatterUnsupportedError: if a part is not a number.
        """
        forms = [
            self._form(part.form, [group[at] for group in groups])
            for at, part in enumerate(self.parts)
        ]
        found: list[tuple[Any, ...]] = []
        for start in range(0, len(groups), _BATCH):
            batch = groups[start : start + _BATCH]
            rows = send(self._statement(batch, forms, backend))
            found += [self._found(row[1:]) for row in sorted(rows, key=_first)]
        return found

    def _found(self, row: Sequence[Any]) -> tuple[Any, ...]:
        """Return the values of the expressions.

        MySQL rounds a quotient, but not an average that an operator has as
        its operand.  So a server computes with both.

        :raises ScatterUnsupportedError: if they differ where MySQL rounds
            some averages.
        """
        values = list(row[: len(self.expressions)])
        more = row[len(self.expressions) :]
        for at, precise in zip(self._averages, more, strict=True):
            exact = rounded_as(precise, values[at])
            if exact != values[at] and not _is_direct(self.expressions[at]):
                raise ScatterUnsupportedError(
                    "a computation with avg() over several shards is "
                    f"{values[at]} or {exact}: MySQL rounds the averages in "
                    "some computations; use func.sum(x) / func.count(x)",
                    construct="a computation",
                )
            values[at] = exact
        return tuple(values)

    @staticmethod
    def _form(form: NumberForm, values: Sequence[Any]) -> NumberForm:
        known = [value for value in values if value is not None]
        for value in known:
            if not isinstance(value, (int, float, Decimal)):
                raise ScatterUnsupportedError(
                    f"a computation with aggregates over several shards has "
                    f"found {value!r}, which is not a number; select the "
                    "aggregates themselves, and compute in Python",
                    construct="a computation",
                )
        if any(isinstance(value, float) for value in known):
            return replace(form, name="double")
        scales = [
            -int(value.as_tuple().exponent)
            for value in known
            if isinstance(value, Decimal)
        ]
        if scales:
            return NumberForm("decimal", max(scales))
        return replace(form, name="integer") if known else form

    def _statement(
        self,
        groups: Sequence[Sequence[Any]],
        forms: Sequence[NumberForm],
        backend: Backend,
    ) -> Any:
        rows = []
        for number, group in enumerate(groups):
            columns = [f"{number} AS {_NUMBER}"]
            columns += [
                f"{backend.number(value, form)} AS {name_of_part(at)}"
                for at, (value, form) in enumerate(zip(group, forms, strict=True))
            ]
            rows.append(f"SELECT {', '.join(columns)}")
        key: ColumnClause[int] = column(_NUMBER)
        source = text(" UNION ALL ".join(rows)).columns(key)
        # Without labels SQLAlchemy would leave out a duplicate.
        shown = [
            expression.label(f"sqla_shard_c{at}")
            for at, expression in enumerate(self.expressions)
        ]
        shown += [
            _with_places(self.expressions[at], forms).label(f"sqla_shard_a{at}")
            for at in self._averages
        ]
        made = select(literal_column(_NUMBER), *shown)
        made = made.select_from(source.subquery("sqla_shard_parts"))
        # The expressions may be of a class; this statement loads no objects.
        return private.copy_with(made, propagate_attrs=EMPTY_DICT)


def _first(row: Sequence[Any]) -> Any:
    return row[0]


def _has_average(element: Any) -> bool:
    return any(isinstance(part, Averaged) for part in walk(element))


def _is_direct(element: Any) -> bool:
    """Return whether averages are operands of no more than one operator."""
    while isinstance(element, (Label, Grouping)):
        element = element.element
    if isinstance(element, BooleanClauseList):
        return all(map(_is_direct, element.clauses))
    return isinstance(element, BinaryExpression) and not any(
        _has_average(side) and not _is_average(side)
        for side in (element.left, element.right)
    )


def _is_average(element: Any) -> bool:
    while isinstance(element, (Label, Grouping)):
        element = element.element
    return isinstance(element, Averaged)


def _with_places(made: Any, forms: Sequence[NumberForm]) -> Any:
    """Return an expression with all digits of its averages."""

    def replaced(element: Any, **kw: Any) -> Any:
        if not isinstance(element, Averaged):
            return None
        form = forms[_index_of_part(element.total)]
        if form.name == "double":
            return None
        places = places_of_quotient(form.scale)
        return Averaged(element.total, element.count, element.type, places)

    return replacement_traverse(made, {}, replaced)


_TIMES = (Date, DateTime, Interval, Time)


class Computations:
    """Collects the expressions that a server computes.

    :param groups: the expressions of GROUP BY.
    :param added: collects the hidden columns.
    :param recipe: returns the recipe of an aggregate.
    """

    def __init__(
        self, groups: Sequence[Any], added: Added, recipe: Callable[[Any, int], Recipe]
    ) -> None:
        self._groups = groups
        self._added = added
        self._recipe = recipe
        self._parts: list[Operand] = []
        self._expressions: list[Any] = []

    @property
    def computation(self) -> Computation | None:
        """The expressions that were added; None if there are none."""
        if not self._expressions:
            return None
        return Computation(tuple(self._parts), tuple(self._expressions))

    def add(self, element: Any) -> Computed:
        """Let a server compute an expression.

        :raises ScatterUnsupportedError: if it needs more than numbers.
        """
        if any(isinstance(part, FunctionFilter) for part in walk(element)):
            raise self._refusal(
                element, "FILTER (use func.sum(case((condition, value))) instead)"
            )
        made = replacement_traverse(element, {}, self._replaced)
        for part in walk(made):
            if isinstance(part, Over) or any(map(is_select, (part, *children(part)))):
                raise self._refusal(element, "a subquery or window function")
            if is_column(part) and not _is_part(part):
                raise self._refusal(element, f"{part}, not in GROUP BY,")
            if is_textual(part) and not _is_part(part):
                raise self._refusal(element, "SQL as text")
        self._expressions.append(made)
        return Computed(len(self._expressions) - 1)

    def _replaced(self, element: Any, **kw: Any) -> Any:
        """Return the column that replaces a part, or None."""
        if isinstance(element, FunctionElement) and may_aggregate(element):
            return self._aggregate(element)
        if any(same(element, group) for group in self._groups):
            if not _is_number(element):
                raise self._refusal(element, f"{element}, which is not a number,")
            at = self._added.comparable(element, "GROUP BY")
            return self._part(First(at), _form(element), element.type)
        return None

    def _aggregate(self, function: Any) -> Any:
        name = name_of(function)
        arguments = list(function.clauses)
        if name != "count":
            for argument in arguments:
                if not _is_number(argument):
                    raise self._refusal(function, "a value that is not a number")
                if divides(argument) and precision_of(argument) is not Precision.DOUBLE:
                    raise self._refusal(
                        function,
                        "an aggregate of a quotient, which has more digits "
                        "than servers show,",
                    )
        if name == "avg" and len(arguments) == 1:
            # Servers compute with more of its digits than they return.
            total = self._aggregate(func.sum(arguments[0]))
            count = self._aggregate(func.count(arguments[0]))
            return Averaged(total, count, function.type)
        recipe = self._recipe(function, self._added.value(function))
        if isinstance(recipe, Extreme):
            # A float is compared, and computed with, in all of its digits.
            recipe = Extreme(recipe.sort_index, recipe.sort_index, recipe.greatest)
        if name == "count":
            return self._part(recipe, NumberForm("integer"), BigInteger(), 0)
        form = _form(arguments[0])
        if name == "sum" and form.name == "integer":
            form = NumberForm("decimal")
        return self._part(recipe, form, function.type)

    def _part(
        self, recipe: Recipe, form: NumberForm, type_: Any, empty: Any = None
    ) -> Any:
        self._parts.append(Operand(recipe, form, empty))
        name = name_of_part(len(self._parts) - 1)
        return literal_column(name, type_)

    def _refusal(self, element: Any, what: str) -> ScatterUnsupportedError:
        return ScatterUnsupportedError(
            f"{element} over several shards: {what} cannot be part of a "
            "computation with merged rows; select the aggregates "
            "themselves, and compute in Python",
            construct="a computation",
        )


def _is_part(element: Any) -> bool:
    return str(getattr(element, "name", "")).startswith(_PART)


def _is_number(element: Any) -> bool:
    return kind_of(element) in ("float", "plain") and not isinstance(
        plain_type(element.type), _TIMES
    )


def _form(element: Any) -> NumberForm:
    """Return the form of an expression in SQL if it is NULL."""
    type_ = plain_type(element.type)
    if isinstance(type_, Float):
        return NumberForm("double")
    if isinstance(type_, Numeric):
        return NumberForm("decimal", type_.scale or 0)
    return NumberForm("integer")
