"""Counts, sums and groups of several shards.

A count over all shards is the sum of their counts; an average is computed from
sums and counts, which are selected as well.  Aggregates that cannot be
computed from those of the shards, such as a median, are refused.

Each aggregate of an expression is merged, and a column replaces it; one server
computes the expression.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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
    BindParameter,
    BooleanClauseList,
    ColumnElement,
    FunctionFilter,
    Grouping,
    Label,
    Over,
    TypeCoerce,
)
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.visitors import replacement_traverse
from sqlalchemy.util import EMPTY_DICT

from sqla_shard.dialects import Backend
from sqla_shard.dialects.base import Averaged, NumberForm
from sqla_shard.dialects.numbers import is_rounded, is_single, Precision, precision_of
from sqla_shard.dialects.result_types import (
    AGGREGATES,
    AllDigits,
    DividedSum,
    name_of,
    plain_type,
)
from sqla_shard.dialects.sorting import kind_of, LONGEST_COMPARED, SortKey
from sqla_shard.engine.merge import (
    Coalesce,
    Computation,
    Computed,
    Constant,
    DistinctCount,
    Extreme,
    First,
    GroupRule,
    Mean,
    OrderKey,
    Recipe,
    Rounded,
    Total,
)
from sqla_shard.engine.values import Fraction, places_of_quotient, rounded_as
from sqla_shard.exc import ScatterUnsupportedError
from sqla_shard.planning.clauses import (
    children,
    counted_distinct,
    distinct_of,
    is_column,
    is_select,
    is_textual,
    may_aggregate,
    row_expressions,
    unlabelled,
    walk,
)
from sqla_shard.planning.elements import (
    Added,
    depends_only_on,
    divides,
    groupings,
    has_aggregate,
    is_random,
    Ordering,
    orderings,
    same,
)
from sqla_shard.planning.having import Having
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

_FRACTIONS = {
    Precision.EXACT: Fraction.EXACT,
    Precision.MIXED: Fraction.MIXED,
    Precision.QUOTIENT: Fraction.GROUPS,
    Precision.COMPUTED: Fraction.MORE,
}
_ADDED_PRECISIONS = frozenset([Precision.EXACT, Precision.MIXED, Precision.DOUBLE])
_INSTEAD = (
    "only count(), sum(), min(), max() and avg() can be; read the rows and do "
    "the rest in Python, or name the ids of one shard"
)


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
class ServerComputation(Computation):
    """Expressions that one SELECT computes, for many groups at once.

    :ivar expressions: expressions of the columns that :func:`name_of_part`
        names.
    """

    parts: tuple[Operand, ...]
    expressions: tuple[Any, ...]

    @cached_property
    def _averages(self) -> list[int]:
        """The positions of the expressions that compute with an average."""
        return [
            at
            for at, expression in enumerate(self.expressions)
            if _has_average(expression)
        ]

    def values(self, group: Sequence[Any]) -> tuple[Any, ...]:
        """Return the parts; they are constants for a group without rows."""
        if not group:
            return tuple(part.empty for part in self.parts)
        return tuple(part.recipe(group) for part in self.parts)

    def run(
        self,
        groups: Sequence[Sequence[Any]],
        backend: Backend,
        send: Callable[[Any], Sequence[Sequence[Any]]],
    ) -> list[tuple[Any, ...]]:
        """Send a statement for each batch of groups; return their values."""
        forms = [
            self._form(part.form, [group[at] for group in groups])
            for at, part in enumerate(self.parts)
        ]
        results: list[tuple[Any, ...]] = []
        for start in range(0, len(groups), _BATCH):
            batch = groups[start : start + _BATCH]
            rows = send(self._statement(batch, forms, backend))
            results += [self._found(row[1:]) for row in sorted(rows, key=_first)]
        return results

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
        statement = select(literal_column(_NUMBER), *shown)
        statement = statement.select_from(source.subquery("sqla_shard_parts"))
        # The expressions may be of a class; this statement loads no objects.
        return private.copy_with(statement, propagate_attrs=EMPTY_DICT)


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
        return ServerComputation(tuple(self._parts), tuple(self._expressions))

    def add(self, element: Any) -> Computed:
        """Let a server compute an expression.

        :raises ScatterUnsupportedError: if it needs more than numbers.
        """
        if any(isinstance(part, FunctionFilter) for part in walk(element)):
            raise self._refusal(
                element, "FILTER (use func.sum(case((condition, value))) instead)"
            )
        computed = replacement_traverse(element, {}, self._replaced)
        for part in walk(computed):
            if isinstance(part, Over) or any(map(is_select, (part, *children(part)))):
                raise self._refusal(element, "a subquery or window function")
            if is_column(part) and not _is_part(part):
                raise self._refusal(element, f"{part}, not in GROUP BY,")
            if is_textual(part) and not _is_part(part):
                raise self._refusal(element, "SQL as text")
        self._expressions.append(computed)
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


def is_combined(statement: Any, *, grouped_on_shard: bool) -> bool:
    """Return whether rows of several shards are combined into one.

    :param grouped_on_shard: whether each group is on one shard.
    """
    if private.group_by_clauses(statement):
        return not grouped_on_shard
    return any(has_aggregate(element) for element in row_expressions(statement))


class Combiner:
    """Plans how the groups of shards become the groups of all.

    :param statement: the SELECT.
    :param added: collects the hidden columns.
    :param counted: for each ``count(distinct(...))``, whether equal values
        are definitely on one shard.
    """

    def __init__(self, statement: Any, added: Added, counted: Sequence[bool]) -> None:
        self._statement = statement
        self._added = added
        added.grouped = True
        self._groups = groupings(statement)
        distinct = list(counted_distinct(row_expressions(statement)))
        on_shard = iter(counted)
        pairs = [(element, next(on_shard, False)) for element in distinct]
        #: Further expressions to group by, to count distinct values.
        self.split: list[Any] = []
        if not all(apart for _, apart in pairs):
            # Rows that are split by one count have values of the others
            # several times.
            pairs = [(element, False) for element, _ in pairs]
        self._apart = {id(element) for element, apart in pairs if apart}
        for element, apart in pairs:
            known = (*self._groups, *self.split)
            if not apart and not any(same(element, one) for one in known):
                self.split.append(element)
        #: Whether a row is returned even if no shard has one.
        self._whole = not self._groups and bool(self.split)
        self._computations = Computations(self._groups, self._added, self._recipe)

    def combine(self) -> tuple[GroupRule, tuple[OrderKey, ...]]:
        """Return the rule for groups, and their sort keys.

        :raises ScatterUnsupportedError: if the rows cannot be combined.
        """
        statement = self._statement
        if private.distinct(statement):
            raise ScatterUnsupportedError(
                "DISTINCT of counts or groups over several shards is not "
                "supported; make them distinct in Python",
                construct="DISTINCT",
            )
        alike, texts = self._added.identities(self._groups, "GROUP BY")
        shown = private.raw_columns(statement)
        columns = [
            self._recipe(element, index - len(shown))
            for index, element in enumerate(shown)
        ]
        having = Having(
            self._groups,
            self._added,
            self._recipe,
            self._computations.add,
            exact=not self._whole,
        ).condition(private.having_criteria(statement))
        keys = tuple(map(self._key, orderings(statement)))
        combine = GroupRule(
            alike,
            texts,
            tuple(columns),
            bool(self.split),
            having,
            self._computations.computation,
            tuple(map(_empty, shown, columns)) if self._whole else None,
        )
        return combine, keys

    def _key(self, ordering: Ordering) -> OrderKey:
        element = ordering.element
        drawn = is_random(element) and not has_aggregate(element)
        if drawn or depends_only_on(element, self._groups):
            return self._added.key(ordering)
        recipe = self._recipe(element, self._added.value(element))
        if isinstance(recipe, Extreme) and recipe.type_index is None:
            recipe = Extreme(recipe.sort_index, recipe.sort_index, recipe.greatest)
        unordered = isinstance(recipe, Computed) and kind_of(element) not in (
            "float",
            "plain",
        )
        if unordered or (isinstance(recipe, Coalesce) and recipe.weighed):
            raise ScatterUnsupportedError(
                f"ORDER BY {element} over several shards: how its values "
                "compare depends on the server; order by the aggregate itself",
                construct="ORDER BY",
            )
        return OrderKey(recipe, ordering.descending, ordering.nulls_last)

    def _recipe(self, element: Any, at: int) -> Recipe:
        """Return the recipe of a column at a position."""
        if not isinstance(element, ColumnElement):
            raise ScatterUnsupportedError(
                f"{element} with counts or groups over several shards is "
                "more than one column; select the columns themselves",
                construct="GROUP BY",
            )
        while isinstance(element, (Label, Grouping, TypeCoerce)):
            element = (
                element.clause if isinstance(element, TypeCoerce) else element.element
            )
        if depends_only_on(element, self._groups):
            # If no shard has a row, a server computes it.
            return self._computations.add(element) if self._whole else First(at)
        if isinstance(element, FunctionElement) and may_aggregate(element):
            return self._function(element, at)
        if (otherwise := self._recipe_in_coalesce(element, at)) is not None:
            return otherwise
        unknown = sorted(set(_unsupported_aggregates(row_expressions(self._statement))))
        if has_aggregate(element) and not unknown:
            return self._computations.add(element)
        also = "".join(f"; {name}() may read several rows" for name in unknown)
        raise ScatterUnsupportedError(
            f"{element} over several shards is neither grouped nor one of "
            f"the functions that can be combined: {_INSTEAD}{also}",
            construct=str(element),
        )

    def _recipe_in_coalesce(self, element: Any, at: int) -> Recipe | None:
        """Return the recipe of an aggregate in ``coalesce()``, or None."""
        name = name_of(element)
        if name not in ("coalesce", "ifnull") or self._whole:
            return None
        first, *others = element.clauses
        if len(others) != 1 or not (
            isinstance(others[0], BindParameter)
            and isinstance(first, FunctionElement)
            and may_aggregate(first)
        ):
            return None
        return self._coalesce_recipe(first, others[0], at)

    def _function(self, function: Any, at: int) -> Recipe:
        name = name_of(function)
        arguments = list(function.clauses)
        distinct = distinct_of(function)
        if name == "count":
            if distinct is None:
                if len(arguments) <= 1:
                    return Total(at)
            elif id(distinct) in self._apart:
                return Total(at)
            else:
                return DistinctCount(*self._added.identity(distinct, "count()"))
        elif len(arguments) == 1:
            argument = arguments[0] if distinct is None else distinct
            if name in ("min", "max"):
                return self._extreme(function, argument, at)
            if name == "sum" and distinct is None:
                return self._sum(argument, at)
            if name == "avg" and distinct is None:
                return self._mean(argument, at)
        raise self._refusal(function, _INSTEAD)

    def _coalesce_recipe(self, first: Any, other: Any, at: int) -> Recipe:
        own = self._added.value(first)
        inner = self._recipe(first, own)
        text = kind_of(other) == "text"
        doubles = precision_of(first) in (Precision.DOUBLE, Precision.ROUNDED)
        if (
            not isinstance(inner, Extreme)
            or inner.type_index is not None
            or (text and doubles)
        ):
            return Coalesce(inner, at, own, weighed=text)
        # In the common type of both arguments.
        value = replace(inner, index=at)
        return Coalesce(value, at, weighed=inner.index != inner.sort_index)

    def _sum(self, argument: Any, at: int) -> Recipe:
        if _shows_all(argument):
            return Total(at)
        digits = self._added.add(func.sum(AllDigits(argument)))
        return Rounded(at, digits)

    def _mean(self, argument: Any, at: int) -> Recipe:
        added = argument if _shows_all(argument) else AllDigits(argument)
        sums = self._added.add(DividedSum(added))
        counts = self._added.add(func.count(argument))
        fraction = _FRACTIONS.get(precision_of(argument), Fraction.UNKNOWN)
        return Mean(at, sums, counts, fraction)

    def _extreme(self, function: Any, argument: Any, at: int) -> Recipe:
        kind = kind_of(argument)
        greatest = name_of(function) == "max"
        choose = func.max if greatest else func.min
        if kind in ("float", "plain") and is_rounded(argument):
            by = self._added.add(choose(AllDigits(argument)))
            return Extreme(by, by, greatest, type_index=at)
        if kind == "plain":
            if precision_of(argument) in _ADDED_PRECISIONS:
                return Extreme(at, at, greatest)
            # Values that are returned alike may differ in further digits.
            more = self._added.add(choose(AllDigits(argument)))
            return Extreme(at, at, greatest, tie_index=more)
        if kind not in ("float", "text"):
            raise self._refusal(
                function,
                f"how values of type {argument.type!r} compare depends on "
                "the server; cast() them to a number, a time or a text",
            )
        if kind == "text":
            by = self._added.extreme(choose(argument), at)
            return Extreme(at, by, greatest, LONGEST_COMPARED)
        by = self._added.add(choose(SortKey(argument, kind)))
        return Extreme(at, by, greatest)

    def _refusal(self, function: Any, why: str) -> ScatterUnsupportedError:
        name = f"{getattr(function, 'name', 'a function')}()"
        return ScatterUnsupportedError(
            f"{function} over several shards cannot be combined: {why}", construct=name
        )


def _empty(element: Any, recipe: Recipe) -> Recipe:
    """Return the recipe of a column if no shard has a row."""
    if isinstance(recipe, Computed):
        return recipe
    name = name_of(unlabelled(element))
    return Constant(0 if name == "count" else None)


def _shows_all(argument: Any) -> bool:
    """Return whether servers return a sum of numbers with all digits."""
    return is_single(argument) or precision_of(argument) in _ADDED_PRECISIONS


def _unsupported_aggregates(elements: Iterable[Any]) -> Iterator[str]:
    """Yield the names of functions that may be other aggregates."""
    for element in elements:
        if is_select(element):
            continue
        name = name_of(element)
        if may_aggregate(element) and name not in AGGREGATES:
            yield name
        yield from _unsupported_aggregates(children(element))
