"""Counts, sums and groups: how those of shards become those of all.

A count of all shards is the sum of their counts; an average is made of sums
and counts, which are asked for as well.  What cannot be made of the answers
of shards, such as a median, is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import func
from sqlalchemy.sql.elements import BindParameter
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.elements import Grouping
from sqlalchemy.sql.elements import Label
from sqlalchemy.sql.elements import TypeCoerce
from sqlalchemy.sql.functions import FunctionElement

from sqla_shard.dialects.digits import AllDigits
from sqla_shard.dialects.digits import DividedSum
from sqla_shard.dialects.numbers import Form
from sqla_shard.dialects.numbers import form_of
from sqla_shard.dialects.numbers import is_rounded
from sqla_shard.dialects.numbers import is_single
from sqla_shard.dialects.sorting import kind_of
from sqla_shard.dialects.sorting import SortKey
from sqla_shard.dialects.weights import LONGEST_COMPARED
from sqla_shard.exc import ScatterUnsupportedError
from sqla_shard.merging.computing import Computations
from sqla_shard.merging.elements import Added
from sqla_shard.merging.elements import depends_only_on
from sqla_shard.merging.elements import groupings
from sqla_shard.merging.elements import has_aggregate
from sqla_shard.merging.elements import is_random
from sqla_shard.merging.elements import Ordering
from sqla_shard.merging.elements import orderings
from sqla_shard.merging.elements import same
from sqla_shard.merging.having import Having
from sqla_shard.routing.clauses import children
from sqla_shard.routing.clauses import is_select
from sqla_shard.routing.clauses import unlabelled
from sqla_shard.routing.cutting import aggregates
from sqla_shard.routing.cutting import counted_distinct
from sqla_shard.routing.cutting import distinct_of
from sqla_shard.scattering.decimals import Fraction
from sqla_shard.scattering.merge import Combine
from sqla_shard.scattering.merge import Computed
from sqla_shard.scattering.merge import Constant
from sqla_shard.scattering.merge import Different
from sqla_shard.scattering.merge import Extreme
from sqla_shard.scattering.merge import First
from sqla_shard.scattering.merge import Key
from sqla_shard.scattering.merge import Mean
from sqla_shard.scattering.merge import Otherwise
from sqla_shard.scattering.merge import Recipe
from sqla_shard.scattering.merge import Rounded
from sqla_shard.scattering.merge import Total

__all__ = ["Combiner", "is_combined"]

_FRACTIONS = {
    Form.EXACT: Fraction.EXACT,
    Form.MIXED: Fraction.MIXED,
    Form.QUOTIENT: Fraction.GROUPS,
    Form.COMPUTED: Fraction.MORE,
}
_SHOWN = frozenset([Form.EXACT, Form.MIXED, Form.DOUBLE])
_COMBINED = frozenset(["avg", "count", "max", "min", "sum"])
_INSTEAD = (
    "count(), sum(), min(), max() and avg() are; read the rows and do the "
    "rest in Python, or name the ids of one shard"
)


def is_combined(statement: Any, *, grouped_on_shard: bool) -> bool:
    """Tell whether rows of the answer are made of rows of several shards.

    :param grouped_on_shard: whether each group is on one shard.
    """
    if statement._group_by_clauses:
        return not grouped_on_shard
    return any(
        has_aggregate(element)
        for element in (
            *statement._raw_columns,
            *statement._order_by_clauses,
            *statement._having_criteria,
        )
    )


class Combiner:
    """Works out how the groups of shards become the groups of all.

    :param statement: the SELECT.
    :param added: takes the hidden columns.
    :param counted: of each ``count(distinct(...))``, whether equal values
        are on one shard for certain.
    """

    def __init__(
        self, statement: Any, added: Added, counted: Sequence[bool]
    ) -> None:
        self._statement = statement
        self._added = added
        added.grouped = True
        self._groups = groupings(statement)
        distinct = list(counted_distinct(_expressions(statement)))
        on_shard = iter(counted)
        found = [(element, next(on_shard, False)) for element in distinct]
        self._apart = {id(element) for element, apart in found if apart}
        #: By what the groups of shards are split, to count what differs.
        self.split: list[Any] = []
        for element, apart in found:
            known = (*self._groups, *self.split)
            if not apart and not any(same(element, one) for one in known):
                self.split.append(element)
        #: Whether there is a row even if there is nothing to count.
        self._whole = not self._groups and bool(self.split)
        self._computations = Computations(
            self._groups, self._added, self._recipe
        )

    def combine(self) -> tuple[Combine, tuple[Key, ...]]:
        """Return how rows are made, and by what they are sorted.

        :raises ScatterUnsupportedError: when that is not known.
        """
        statement = self._statement
        if statement._distinct:
            raise ScatterUnsupportedError(
                "DISTINCT of counts or groups over several shards is not "
                "supported; make them distinct in Python",
                construct="DISTINCT",
            )
        alike = []
        texts = []
        for element in self._groups:
            at, is_text = self._added.identity(element, "GROUP BY")
            alike.append(at)
            if is_text:
                texts.append(at)
        shown = statement._raw_columns
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
        ).condition(statement._having_criteria)
        keys = tuple(map(self._key, orderings(statement)))
        combine = Combine(
            tuple(alike),
            tuple(texts),
            tuple(columns),
            having,
            self._computations.computation,
            tuple(map(_empty, shown, columns)) if self._whole else None,
        )
        return combine, keys

    def _key(self, ordering: Ordering) -> Key:
        element = ordering.element
        drawn = is_random(element) and not has_aggregate(element)
        if drawn or depends_only_on(element, self._groups):
            return self._added.key(ordering)
        recipe = self._recipe(element, self._added.value(element))
        if isinstance(recipe, Extreme) and recipe.like is None:
            recipe = Extreme(recipe.by, recipe.by, recipe.greatest)
        unordered = isinstance(recipe, Computed) and kind_of(element) not in (
            "float",
            "plain",
        )
        if unordered or (isinstance(recipe, Otherwise) and recipe.weighed):
            raise ScatterUnsupportedError(
                f"ORDER BY {element} over several shards: how its values "
                "compare is known to the server only; order by the aggregate "
                "itself",
                construct="ORDER BY",
            )
        return Key(recipe, ordering.descending, ordering.nulls_last)

    def _recipe(self, element: Any, at: int) -> Recipe:
        """Return how a column at a position is made."""
        if not isinstance(element, ColumnElement):
            raise ScatterUnsupportedError(
                f"{element} beside counts or groups over several shards is "
                "more than one column; select the columns themselves",
                construct="GROUP BY",
            )
        while isinstance(element, (Label, Grouping, TypeCoerce)):
            element = (
                element.clause
                if isinstance(element, TypeCoerce)
                else element.element
            )
        if depends_only_on(element, self._groups):
            # Where no shard has a row, there is none to take it from.
            return (
                self._computations.add(element) if self._whole else First(at)
            )
        if isinstance(element, FunctionElement) and aggregates(element):
            return self._function(element, at)
        if (otherwise := self._in_coalesce(element, at)) is not None:
            return otherwise
        unknown = sorted(set(_unknown(_expressions(self._statement))))
        if has_aggregate(element) and not unknown:
            return self._computations.add(element)
        also = "".join(f"; {name}() may look at many rows" for name in unknown)
        raise ScatterUnsupportedError(
            f"{element} over several shards is neither grouped nor one of "
            f"the functions that can be combined: {_INSTEAD}{also}",
            construct=str(element),
        )

    def _in_coalesce(self, element: Any, at: int) -> Recipe | None:
        """Return how an aggregate in ``coalesce()`` is made, or None."""
        name = str(getattr(element, "name", "")).lower()
        if name not in ("coalesce", "ifnull") or self._whole:
            return None
        first, *others = element.clauses
        if len(others) != 1 or not (
            isinstance(others[0], BindParameter)
            and isinstance(first, FunctionElement)
            and aggregates(first)
        ):
            return None
        return self._otherwise(first, others[0], at)

    def _function(self, function: Any, at: int) -> Recipe:
        name = str(getattr(function, "name", "")).lower()
        arguments = list(function.clauses)
        distinct = distinct_of(function)
        if name == "count":
            if distinct is None:
                if len(arguments) <= 1:
                    return Total(at)
            elif id(distinct) in self._apart:
                return Total(at)
            else:
                return Different(*self._added.identity(distinct, "count()"))
        elif len(arguments) == 1:
            argument = arguments[0] if distinct is None else distinct
            if name in ("min", "max"):
                return self._extreme(function, argument, at)
            if name == "sum" and distinct is None:
                return self._sum(argument, at)
            if name == "avg" and distinct is None:
                return self._mean(argument, at)
        raise self._refused(function, _INSTEAD)

    def _otherwise(self, first: Any, other: Any, at: int) -> Recipe:
        own = self._added.value(first)
        inner = self._recipe(first, own)
        text = kind_of(other) == "text"
        doubles = form_of(first) in (Form.DOUBLE, Form.ROUNDED)
        if (
            not isinstance(inner, Extreme)
            or inner.like is not None
            or (text and doubles)
        ):
            return Otherwise(inner, at, own, weighed=text)
        # In the type that coalesce() makes of both.
        value = replace(inner, at=at)
        return Otherwise(value, at, weighed=inner.at != inner.by)

    def _sum(self, argument: Any, at: int) -> Recipe:
        if _shows_all(argument):
            return Total(at)
        digits = self._added.add(func.sum(AllDigits(argument)))
        return Rounded(at, digits)

    def _mean(self, argument: Any, at: int) -> Recipe:
        added = argument if _shows_all(argument) else AllDigits(argument)
        sums = self._added.add(DividedSum(added))
        counts = self._added.add(func.count(argument))
        fraction = _FRACTIONS.get(form_of(argument), Fraction.UNKNOWN)
        return Mean(at, sums, counts, fraction)

    def _extreme(self, function: Any, argument: Any, at: int) -> Recipe:
        kind = kind_of(argument)
        greatest = function.name.lower() == "max"
        choose = func.max if greatest else func.min
        if kind in ("float", "plain") and is_rounded(argument):
            by = self._added.add(choose(AllDigits(argument)))
            return Extreme(by, by, greatest, like=at)
        if kind == "plain":
            if form_of(argument) in _SHOWN:
                return Extreme(at, at, greatest)
            # Two may be shown alike that differ in other columns.
            more = self._added.add(choose(AllDigits(argument)))
            return Extreme(at, at, greatest, more=more)
        if kind not in ("float", "text"):
            raise self._refused(
                function,
                f"how values of type {argument.type!r} compare is known to "
                "the server only; cast() them to a number, a time or a text",
            )
        if kind == "text":
            by = self._added.extreme(choose(argument), at)
            return Extreme(at, by, greatest, LONGEST_COMPARED)
        by = self._added.add(choose(SortKey(argument, kind)))
        return Extreme(at, by, greatest)

    def _refused(self, function: Any, why: str) -> ScatterUnsupportedError:
        name = f"{getattr(function, 'name', 'a function')}()"
        return ScatterUnsupportedError(
            f"{function} over several shards cannot be combined: {why}",
            construct=name,
        )


def _empty(element: Any, recipe: Recipe) -> Recipe:
    """Return what a column is where no shard has a row."""
    if isinstance(recipe, Computed):
        return recipe
    name = str(getattr(unlabelled(element), "name", "")).lower()
    return Constant(0 if name == "count" else None)


def _shows_all(argument: Any) -> bool:
    """Tell whether servers show a sum of numbers with all of its digits."""
    return is_single(argument) or form_of(argument) in _SHOWN


def _unknown(elements: Iterable[Any]) -> Iterator[str]:
    """Yield the functions that make rows of several into one, or may."""
    for element in elements:
        if is_select(element):
            continue
        name = str(getattr(element, "name", "")).lower()
        if aggregates(element) and name not in _COMBINED:
            yield name
        yield from _unknown(children(element))


def _expressions(statement: Any) -> list[Any]:
    return [
        *statement._raw_columns,
        *statement._order_by_clauses,
        *statement._having_criteria,
    ]
