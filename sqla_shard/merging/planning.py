"""From a SELECT to what each shard is asked and what is made of the answers.

On one database LIMIT, ORDER BY and counts look at all rows; here each shard
looks at its own.  The statement that is sent may therefore show more columns
than were asked for, which the merge needs and removes; the columns, objects
and options of the statement itself stay as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from typing import Any

from sqlalchemy import literal_column
from sqlalchemy.orm import LoaderCriteriaOption
from sqlalchemy.orm.context import FromStatement
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.selectable import Join
from sqlalchemy.sql.selectable import Select

from sqla_shard.dialects.numbers import is_grouped_whole
from sqla_shard.dialects.sorting import Hidden
from sqla_shard.dialects.sorting import kind_of
from sqla_shard.exc import ScatterUnsupportedError
from sqla_shard.merging.combining import Combiner
from sqla_shard.merging.combining import is_combined
from sqla_shard.merging.elements import Added
from sqla_shard.merging.elements import Bounds
from sqla_shard.merging.elements import bounds_of
from sqla_shard.merging.elements import counting
from sqla_shard.merging.elements import depends_only_on
from sqla_shard.merging.elements import is_random
from sqla_shard.merging.elements import Ordering
from sqla_shard.merging.elements import orderings
from sqla_shard.routing import counted_select
from sqla_shard.routing import shows_if
from sqla_shard.routing import sought
from sqla_shard.routing import Spread
from sqla_shard.routing.clauses import unlabelled
from sqla_shard.scattering import Combine
from sqla_shard.scattering import First
from sqla_shard.scattering import Key
from sqla_shard.scattering import Merge
from sqla_shard.scattering.merge import Extreme
from sqla_shard.scattering.merge import Total
from sqla_shard.scattering.merge import Within

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
    max_offset: int = 0,
) -> Planned:
    """Plan the merge of a SELECT that several shards are asked.

    :param statement: a statement that the router has let through.
    :param parameters: those given with it, if any.
    :param spread: what the router knows of its groups.
    :param keeps_order: the reader needs the order of the rows of each
        shard by themselves only, as relationships do.
    :param max_offset: the largest OFFSET that is allowed.
    :raises ScatterUnsupportedError: when no correct merge is known.
    :raises ScatterLimitError: when an OFFSET is larger than that.
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
        missing = sought(statement)
        if missing is not None:
            return _sought(statement, missing)
        inner = counted_select(statement)
        if inner is None:
            bounds = bounds_of(statement, parameters, max_offset)
            return _plan(statement, bounds, spread)
        bounds = bounds_of(inner, parameters, max_offset)
        return _counting(statement, inner, bounds, spread)
    except ScatterUnsupportedError as error:
        if keeps_order and error.construct == "ORDER BY":
            return Planned(statement, None)
        raise


def _sought(statement: Any, missing: tuple[bool, ...]) -> Planned:
    """Plan to tell whether any shard has a row, or each of them has none."""
    columns = tuple(
        Extreme(at, at, greatest=not negated)
        for at, negated in enumerate(missing)
    )
    steps = ("there is a row if there is one on any shard",)
    return Planned(
        statement, Merge(combine=Combine((), (), columns), steps=steps)
    )


def _plan(statement: Any, bounds: Bounds, spread: Spread) -> Planned:
    if bounds and statement._for_update_arg is not None:
        raise ScatterUnsupportedError(
            "LIMIT or OFFSET with FOR UPDATE over several shards: each shard "
            "would lock as many rows, and those that are not returned would "
            "stay locked, also with SKIP LOCKED. A worker of a queue takes "
            'jobs of one shard at a time: bind_arguments={"shard_id": n}. Or '
            "read the ids first, then lock those",
            construct="LIMIT",
        )
    added = Added()
    if is_combined(statement, grouped_on_shard=spread.grouped_on_shard):
        return _combined(statement, bounds, added, spread)
    added.grouped = bool(statement._group_by_clauses)
    ordered = orderings(statement)
    if shows_if(statement):
        # Each shard that has such a row shows it.
        bounds = Bounds(1)
    combine = None
    if statement._distinct:
        _check_distinct(statement, ordered)
        if not spread.distinct_on_shard:
            combine = _distinct(statement, added)
    distinct = combine is not None
    keys = tuple(added.key(one, distinct=distinct) for one in ordered)
    if any(is_random(one.element) for one in ordered):
        statement = _sorted_as_drawn(statement, ordered, keys)
    if statement._offset_clause is not None:
        statement = statement.limit(bounds.most).offset(None)
    if not keys and not bounds and combine is None:
        return Planned(statement, None)
    steps = list(_steps(ordered, bounds, combine))
    return _with_hidden(statement, added, keys, bounds, combine, steps)


def _sorted_as_drawn(
    statement: Any, ordered: Sequence[Ordering], keys: Sequence[Key]
) -> Any:
    """Sort by the random numbers that the merge compares.

    Others would be drawn for ORDER BY, and with LIMIT the rows of a small
    shard be more likely than those of a large one.
    """
    clauses = []
    for clause, one, key in zip(
        statement._order_by_clauses, ordered, keys, strict=True
    ):
        drawn = clause
        if is_random(one.element):
            if kind_of(one.element) == "text":
                raise ScatterUnsupportedError(
                    f"ORDER BY {one.element} over several shards: each shard "
                    "would draw its texts twice; order by rand() itself",
                    construct="ORDER BY",
                )
            assert isinstance(key.recipe, First)  # noqa: S101  # no text
            drawn = literal_column(Hidden.name(key.recipe.at))
            drawn = drawn.desc() if one.descending else drawn
        clauses.append(drawn)
    return statement.order_by(None).order_by(*clauses)


def _counting(
    statement: Any, inner: Any, bounds: Bounds, spread: Spread
) -> Planned:
    """Plan to count the rows that another SELECT has over all shards."""
    alike = inner._distinct and not spread.distinct_on_shard
    if not alike and not is_combined(
        inner, grouped_on_shard=spread.grouped_on_shard
    ):
        if bounds or inner._offset_clause is not None:
            part = inner.limit(bounds.most).offset(None)
            statement = counting(statement, part)
        counted = Within(Total(0), bounds.limit, bounds.offset)
        steps = ["add the counts of the shards", *_steps([], bounds, None)]
        combine = Combine((), (), (counted,))
        return Planned(statement, Merge(combine=combine, steps=tuple(steps)))
    if alike and (
        inner._group_by_clauses or is_combined(inner, grouped_on_shard=False)
    ):
        raise ScatterUnsupportedError(
            "DISTINCT of counts or groups over several shards is not "
            "supported; count them in Python",
            construct="DISTINCT",
        )
    groups = _groups_of(statement, inner, alike=alike)
    # It is about the columns, of which there is another one now.
    spread = replace(spread, counted_on_shard=())
    planned = _combined(groups, bounds, Added(), spread)
    assert planned.merge is not None  # noqa: S101  # groups are merged
    steps = [*planned.merge.steps, "count them"]
    merge = replace(planned.merge, counts=True, steps=tuple(steps))
    return Planned(planned.statement, merge)


def _groups_of(statement: Any, inner: Any, *, alike: bool) -> Any:
    """Return the statement that has a count for each row of another.

    :param alike: whether those rows are DISTINCT.
    """
    groups = inner.order_by(None).with_only_columns(*statement._raw_columns)
    if not inner._from_obj:
        sources = [f for c in inner._raw_columns for f in c._from_objects]
        # What is joined to others must not stand in FROM a second time.
        groups = groups.select_from(
            *sources[: 1 if inner._setup_joins else None]
        )
    if _tables(groups) != _tables(inner):
        raise ScatterUnsupportedError(
            "DISTINCT or GROUP BY over several shards cannot be counted "
            "where columns are of a table that is neither in select_from() "
            "nor joined to the first one; name it in select_from()",
            construct="DISTINCT" if alike else "GROUP BY",
        )
    if alike:
        groups = groups.group_by(*map(unlabelled, inner.selected_columns))
    # Made a moment ago, so nobody else's.
    groups._distinct = False
    groups._execution_options = statement._execution_options
    # Its other options are about objects that it does not load.
    groups._with_options = (
        *statement._with_options,
        *[
            option
            for option in inner._with_options
            if isinstance(option, LoaderCriteriaOption)
        ],
    )
    return groups


def _tables(statement: Any) -> Counter[Any]:
    """Return what is in the FROM of a SELECT."""
    found: Counter[Any] = Counter()
    todo = list(statement.get_final_froms())
    while todo:
        source = todo.pop()
        if isinstance(source, Join):
            todo += [source.left, source.right]
        else:
            found[source] += 1
    return found


def _combined(
    statement: Any, bounds: Bounds, added: Added, spread: Spread
) -> Planned:
    combiner = Combiner(statement, added, spread.counted_on_shard)
    combine, keys = combiner.combine()
    ordered = orderings(statement)
    # A group may be among the first ones of all shards and of none.
    statement = statement.order_by(None).limit(None).offset(None)
    statement = statement.group_by(*combiner.split)
    what = "groups" if statement._group_by_clauses else "aggregates"
    steps = [f"combine the {what} of the shards"]
    if statement._having_criteria:
        criteria = statement._having_criteria
        steps.append(f"keep those with {' and '.join(map(str, criteria))}")
        # Made a moment ago, so nobody else's.
        statement._having_criteria = ()
    if combine.computation is not None:
        steps.append("let one server compute what is made of them")
    steps += _steps(ordered, bounds, None)
    return _with_hidden(statement, added, keys, bounds, combine, steps)


def _distinct(statement: Any, added: Added) -> Combine:
    """Return how equal rows of several shards become one."""
    same = []
    texts = []
    for column in statement._raw_columns:
        if not isinstance(column, ColumnElement):
            raise ScatterUnsupportedError(
                f"DISTINCT over several shards needs single columns, not "
                f"{column}; select its columns, or its id among them",
                construct="DISTINCT",
            )
        at, is_text = added.identity(unlabelled(column), "DISTINCT")
        same.append(at)
        if is_text:
            texts.append(at)
    return Combine(tuple(same), tuple(texts))


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
    bounds: Bounds,
    combine: Combine | None,
    steps: list[str],
) -> Planned:
    if added.elements:
        distinct = statement._distinct
        statement = statement.prefix_with(
            Hidden(
                added.elements,
                distinct=distinct,
                sorts=_changes_in_groups(statement, added),
            )
        )
        # Made a moment ago, so nobody else's; there is no other way to take
        # the word back, and it would be written after the prefix.
        statement._distinct = False
    merge = Merge(
        len(added.elements),
        keys,
        bounds.limit,
        combine,
        bounds.offset,
        texts=tuple(added.texts),
        steps=tuple(steps),
    )
    return Planned(statement, merge)


def _changes_in_groups(statement: Any, added: Added) -> bool:
    """Tell whether a temporary table would change a value of a group."""
    # Sorting groups in descending order, MariaDB takes NULL for the decimal
    # that comes before it.
    if not statement._group_by_clauses or statement._order_by_clauses:
        return False
    shown = [*added.elements, *statement.selected_columns]
    return not all(map(is_grouped_whole, shown))


def _steps(
    ordered: list[Ordering], bounds: Bounds, combine: Combine | None
) -> Iterator[str]:
    """Yield what is done, in words."""
    if combine is not None:
        yield "drop rows that other shards have as well"
    if ordered:
        yield f"sort by {', '.join(map(str, ordered))}"
    if bounds.offset:
        yield f"skip the first {bounds.offset}"
    if bounds.limit is not None:
        yield f"keep the first {bounds.limit}"
