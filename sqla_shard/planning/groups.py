"""Counts, sums and groups of several shards.

A count over all shards is the sum of their counts; an average is computed from
sums and counts, which are selected as well.  Aggregates that cannot be
computed from those of the shards, such as a median, are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import func
from sqlalchemy.sql.elements import (
    BindParameter,
    ColumnElement,
    Grouping,
    Label,
    TypeCoerce,
)
from sqlalchemy.sql.functions import FunctionElement

from sqla_shard.dialects.decimals import AllDigits, DividedSum
from sqla_shard.dialects.functions import AGGREGATES, name_of
from sqla_shard.dialects.numbers import is_rounded, is_single, Precision, precision_of
from sqla_shard.dialects.sorting import kind_of, LONGEST_COMPARED, SortKey
from sqla_shard.engine.merge import (
    Coalesce,
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
from sqla_shard.engine.values import Fraction
from sqla_shard.exc import ScatterUnsupportedError
from sqla_shard.planning.aggregates import (
    counted_distinct,
    distinct_of,
    may_aggregate,
    row_expressions,
)
from sqla_shard.planning.clauses import children, is_select, unlabelled
from sqla_shard.planning.elements import (
    Added,
    depends_only_on,
    groupings,
    has_aggregate,
    is_random,
    Ordering,
    orderings,
    same,
)
from sqla_shard.planning.expressions import Computations
from sqla_shard.planning.having import Having
from sqla_shard.util import sqlalchemy_private as private

_FRACTIONS = {
    Precision.EXACT: Fraction.EXACT,
    Precision.MIXED: Fraction.MIXED,
    Precision.QUOTIENT: Fraction.GROUPS,
    Precision.COMPUTED: Fraction.MORE,
}
_SHOWN = frozenset([Precision.EXACT, Precision.MIXED, Precision.DOUBLE])
_INSTEAD = (
    "only count(), sum(), min(), max() and avg() can be; read the rows and do "
    "the rest in Python, or name the ids of one shard"
)


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
        found = [(element, next(on_shard, False)) for element in distinct]
        #: Further expressions to group by, to count distinct values.
        self.split: list[Any] = []
        if not all(apart for _, apart in found):
            # Rows that are split by one count have values of the others
            # several times.
            found = [(element, False) for element, _ in found]
        self._apart = {id(element) for element, apart in found if apart}
        for element, apart in found:
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
            if precision_of(argument) in _SHOWN:
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
    return is_single(argument) or precision_of(argument) in _SHOWN


def _unsupported_aggregates(elements: Iterable[Any]) -> Iterator[str]:
    """Yield the names of functions that may be other aggregates."""
    for element in elements:
        if is_select(element):
            continue
        name = name_of(element)
        if may_aggregate(element) and name not in AGGREGATES:
            yield name
        yield from _unsupported_aggregates(children(element))
