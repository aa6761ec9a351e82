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

from sqla_shard.dialects.sorting import kind_of
from sqla_shard.dialects.sorting import SortKey
from sqla_shard.dialects.weights import LONGEST_COMPARED
from sqla_shard.exc import ScatterUnsupportedError
from sqla_shard.merging.elements import Added
from sqla_shard.merging.elements import depends_only_on
from sqla_shard.merging.elements import groupings
from sqla_shard.merging.elements import has_aggregate
from sqla_shard.merging.elements import Ordering
from sqla_shard.merging.elements import orderings
from sqla_shard.merging.having import Having
from sqla_shard.routing.clauses import children
from sqla_shard.routing.clauses import is_select
from sqla_shard.routing.cutting import aggregates
from sqla_shard.routing.cutting import counted_distinct
from sqla_shard.routing.cutting import distinct_of
from sqla_shard.scattering.merge import Combine
from sqla_shard.scattering.merge import Extreme
from sqla_shard.scattering.merge import First
from sqla_shard.scattering.merge import Key
from sqla_shard.scattering.merge import Mean
from sqla_shard.scattering.merge import Otherwise
from sqla_shard.scattering.merge import Recipe
from sqla_shard.scattering.merge import Total

__all__ = ["Combiner", "is_combined"]

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
        distinct = counted_distinct(_expressions(statement))
        self._apart = {
            id(element)
            for element, apart in zip(distinct, counted, strict=False)
            if apart
        }

    def combine(self) -> Combine:
        """Return how rows are made.

        :raises ScatterUnsupportedError: when they cannot be.
        """
        statement = self._statement
        if statement._distinct:
            raise ScatterUnsupportedError(
                "DISTINCT of counts or groups over several shards is not "
                "supported; make them distinct in Python",
                construct="DISTINCT",
            )
        same = []
        texts = []
        for element in self._groups:
            at, is_text = self._added.identity(element, "GROUP BY")
            same.append(at)
            if is_text:
                texts.append(at)
        shown = statement._raw_columns
        columns = [
            self._recipe(element, index - len(shown))
            for index, element in enumerate(shown)
        ]
        having = Having(self._groups, self._added, self._recipe)
        return Combine(
            tuple(same),
            tuple(texts),
            tuple(columns),
            having.condition(statement._having_criteria),
        )

    def keys(self) -> list[Key]:
        """Return by what the rows are sorted.

        :raises ScatterUnsupportedError: when that cannot be told.
        """
        return [self._key(ordering) for ordering in orderings(self._statement)]

    def _key(self, ordering: Ordering) -> Key:
        element = ordering.element
        if depends_only_on(element, self._groups):
            return self._added.key(ordering)
        recipe = self._recipe(element, self._added.value(element))
        if isinstance(recipe, Extreme):
            recipe = Extreme(recipe.by, recipe.by, recipe.greatest)
        if isinstance(recipe, Otherwise) and recipe.weighed:
            raise ScatterUnsupportedError(
                f"ORDER BY {element} over several shards: how what takes "
                "the place of NULL compares is known to the server only; "
                "order by the aggregate itself",
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
            return First(at)
        if isinstance(element, FunctionElement):
            return self._function(element, at)
        unknown = sorted(set(_unknown(_expressions(self._statement))))
        also = "".join(f"; {name}() may look at many rows" for name in unknown)
        raise ScatterUnsupportedError(
            f"{element} over several shards is neither grouped nor one of "
            f"the functions that can be combined: {_INSTEAD}{also}",
            construct=str(element),
        )

    def _function(self, function: Any, at: int) -> Recipe:
        name = str(getattr(function, "name", "")).lower()
        arguments = list(function.clauses)
        distinct = distinct_of(function)
        if name in ("coalesce", "ifnull") and len(arguments) == 2:
            first, other = arguments
            if isinstance(other, BindParameter):
                inner = self._recipe(first, self._added.value(first))
                if not isinstance(inner, Extreme):
                    return Otherwise(inner, at)
                # In the type that coalesce() makes of both.
                value = replace(inner, at=at)
                return Otherwise(value, at, weighed=inner.at != inner.by)
        if name == "count":
            if distinct is None:
                if len(arguments) <= 1:
                    return Total(at)
            elif id(distinct) in self._apart:
                return Total(at)
            else:
                raise self._refused(
                    function,
                    "equal values may be on several shards; select them "
                    "distinct and count the rows",
                )
        elif len(arguments) == 1:
            argument = arguments[0] if distinct is None else distinct
            if name in ("min", "max"):
                return self._extreme(function, argument, at)
            if name == "sum" and distinct is None:
                return Total(at)
            if name == "avg" and distinct is None:
                sums = self._added.add(func.sum(argument))
                counts = self._added.add(func.count(argument))
                return Mean(at, sums, counts)
        raise self._refused(function, _INSTEAD)

    def _extreme(self, function: Any, argument: Any, at: int) -> Recipe:
        kind = kind_of(argument)
        greatest = function.name.lower() == "max"
        if kind == "plain":
            return Extreme(at, at, greatest)
        if kind not in ("float", "text"):
            raise self._refused(
                function,
                f"how values of type {argument.type!r} compare is known to "
                "the server only; cast() them to a number, a time or a text",
            )
        choose = func.max if greatest else func.min
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
