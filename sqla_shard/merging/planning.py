"""From a SELECT to what each shard is asked and what is made of the answers.

On one database LIMIT, ORDER BY and counts look at all rows; here each shard
looks at its own.  The statement that is sent may therefore show more columns
than were asked for, which the merge needs and removes; the columns, objects
and options of the statement itself stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm.context import FromStatement
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.selectable import Select

from sqla_shard.dialects.sorting import Hidden
from sqla_shard.exc import ScatterUnsupportedError
from sqla_shard.merging.combining import Combiner
from sqla_shard.merging.combining import is_combined
from sqla_shard.merging.elements import Added
from sqla_shard.merging.elements import depends_only_on
from sqla_shard.merging.elements import limit_of
from sqla_shard.merging.elements import Ordering
from sqla_shard.merging.elements import orderings
from sqla_shard.routing import Spread
from sqla_shard.routing.clauses import unlabelled
from sqla_shard.scattering import Combine
from sqla_shard.scattering import First
from sqla_shard.scattering import Key
from sqla_shard.scattering import Merge

__all__ = ["Planned", "plan"]


@dataclass(frozen=True)
class Planned:
    """What is sent, and what is made of the answers.

    :ivar merge: None where rows are put one after another.
    """

    statement: Any
    merge: Merge | None


def plan(
    statement: Any,
    parameters: Any,
    spread: Spread,
    *,
    keeps_order: bool = False,
) -> Planned:
    """Plan the merge of a SELECT that several shards are asked.

    :param statement: a statement that the router has let through.
    :param parameters: those given with it, if any.
    :param spread: what the router knows of its groups.
    :param keeps_order: the reader needs the order of the rows of each
        shard by themselves only, as relationships do.
    :raises ScatterUnsupportedError: when no correct merge is known.
    """
    if isinstance(statement, FromStatement):
        if plan(statement.element, parameters, spread).merge is not None:
            raise ScatterUnsupportedError(
                "from_statement() with ORDER BY, LIMIT or the like over "
                "several shards is not supported; select() the class itself",
                construct="from_statement()",
            )
        return Planned(statement, None)
    if not isinstance(statement, Select):
        return Planned(statement, None)
    try:
        return _plan(statement, parameters, spread)
    except ScatterUnsupportedError as error:
        if keeps_order and error.construct == "ORDER BY":
            return Planned(statement, None)
        raise


def _plan(statement: Any, parameters: Any, spread: Spread) -> Planned:
    limit = limit_of(statement, parameters)
    if limit is not None and statement._for_update_arg is not None:
        raise ScatterUnsupportedError(
            "LIMIT with FOR UPDATE over several shards would lock rows that "
            "are not returned; read the ids first, then lock those",
            construct="LIMIT",
        )
    added = Added()
    if is_combined(statement, grouped_on_shard=spread.grouped_on_shard):
        return _combined(statement, limit, added, spread)
    added.grouped = bool(statement._group_by_clauses)
    ordered = orderings(statement)
    combine = None
    if statement._distinct:
        _check_distinct(statement, ordered)
        if not spread.distinct_on_shard:
            combine = _distinct(statement, added)
    keys = tuple(
        Key(
            First(added.comparable(ordering.element, "ORDER BY")),
            ordering.descending,
            ordering.nulls_last,
        )
        for ordering in ordered
    )
    if not keys and limit is None and combine is None:
        return Planned(statement, None)
    steps = list(_steps(ordered, limit, combine))
    return _with_hidden(statement, added, keys, limit, combine, steps)


def _combined(
    statement: Any, limit: int | None, added: Added, spread: Spread
) -> Planned:
    combiner = Combiner(statement, added, spread.counted_on_shard)
    combine = combiner.combine()
    keys = tuple(combiner.keys())
    ordered = orderings(statement)
    # A group may be among the first ones of all shards and of none.
    statement = statement.order_by(None).limit(None)
    what = "groups" if statement._group_by_clauses else "aggregates"
    steps = [f"combine the {what} of the shards"]
    if statement._having_criteria:
        criteria = statement._having_criteria
        steps.append(f"keep those with {' and '.join(map(str, criteria))}")
        # Made a moment ago, so nobody else's.
        statement._having_criteria = ()
    steps += _steps(ordered, limit, None)
    return _with_hidden(statement, added, keys, limit, combine, steps)


def _distinct(statement: Any, added: Added) -> Combine:
    """Return how equal rows of several shards become one."""
    same = []
    long = []
    for column in statement._raw_columns:
        if not isinstance(column, ColumnElement):
            raise ScatterUnsupportedError(
                f"DISTINCT over several shards needs single columns, not "
                f"{column}; select its columns, or its id among them",
                construct="DISTINCT",
            )
        at, too_long = added.identity(unlabelled(column), "DISTINCT")
        same.append(at)
        if too_long is not None:
            long.append(too_long)
    return Combine(tuple(same), tuple(long))


def _check_distinct(statement: Any, ordered: list[Ordering]) -> None:
    """Refuse to sort distinct rows by what they do not tell."""
    shown = [unlabelled(column) for column in statement.selected_columns]
    for ordering in ordered:
        if not depends_only_on(ordering.element, shown):
            raise ScatterUnsupportedError(
                f"ORDER BY {ordering.element} with DISTINCT: rows that are "
                "equal may differ in it; select it as well",
                construct="DISTINCT",
            )


def _with_hidden(
    statement: Any,
    added: Added,
    keys: tuple[Key, ...],
    limit: int | None,
    combine: Combine | None,
    steps: list[str],
) -> Planned:
    if added.elements:
        distinct = statement._distinct
        statement = statement.prefix_with(
            Hidden(added.elements, distinct=distinct)
        )
        # Made a moment ago, so nobody else's; there is no other way to take
        # the word back, and it would be written after the prefix.
        statement._distinct = False
    merge = Merge(len(added.elements), keys, limit, combine, tuple(steps))
    return Planned(statement, merge)


def _steps(
    ordered: list[Ordering], limit: int | None, combine: Combine | None
) -> Iterator[str]:
    """Yield what is done, in words."""
    if combine is not None:
        yield "drop rows that other shards have as well"
    if ordered:
        yield f"sort by {', '.join(map(str, ordered))}"
    if limit is not None:
        yield f"keep the first {limit}"
