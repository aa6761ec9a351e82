"""The merge of a SELECT: the statement for each shard, and the rest.

On one database LIMIT, ORDER BY and counts read all rows; here each shard reads
its own.  The statement that is sent may therefore have further columns, which
the merge needs and removes; the columns, objects and options of the statement
itself do not change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import literal_column
from sqlalchemy.orm import LoaderCriteriaOption
from sqlalchemy.orm.context import FromStatement
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.selectable import FromGrouping, Join, Select

from sqla_shard.dialects.numbers import is_grouped_whole
from sqla_shard.dialects.sorting import Hidden, kind_of
from sqla_shard.engine.merge import (
    Extreme,
    First,
    GroupRule,
    LimitedCount,
    Merge,
    OrderKey,
    Total,
)
from sqla_shard.exc import ScatterUnsupportedError
from sqla_shard.planning.clauses import (
    counted_select,
    exists_columns,
    shows_if,
    unlabelled,
)
from sqla_shard.planning.elements import (
    Added,
    Bounds,
    bounds_of,
    counting,
    depends_only_on,
    groupings,
    is_random,
    Ordering,
    orderings,
    sorted_by_shown,
)
from sqla_shard.planning.groups import Combiner, is_combined
from sqla_shard.planning.router import Spread
from sqla_shard.util import sqlalchemy_private as private


@dataclass(frozen=True)
class Planned:
    """A statement to send, and the merge of its rows.

    :ivar merge: the merge; None if the rows are concatenated.
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
    """Plan the merge of a SELECT that is sent to several shards.

    :param statement: a statement that the router has accepted.
    :param parameters: the parameters of the statement, if any.
    :param spread: the rows that are on one shard together.
    :param keeps_order: whether only the order of rows of the same shard
        matters, as for relationships.
    :param max_offset: the largest OFFSET that is allowed.
    :raises ScatterUnsupportedError: if there is no correct merge.
    :raises ScatterLimitError: if an OFFSET is larger than ``max_offset``.
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
        missing = exists_columns(statement)
        if missing is not None:
            return _plan_exists(statement, missing)
        inner = counted_select(statement)
        if inner is None:
            return _plan(
                statement, bounds_of(statement, parameters, max_offset), spread
            )
        bounds = bounds_of(inner, parameters, max_offset)
        return _counting(statement, inner, bounds, spread)
    except ScatterUnsupportedError as error:
        if keeps_order and error.construct == "ORDER BY":
            return Planned(statement, None)
        raise


def _plan_exists(statement: Any, missing: tuple[bool, ...]) -> Planned:
    """Plan the merge of ``exists()``: true if any shard has a row."""
    columns = tuple(
        Extreme(at, at, greatest=not negated) for at, negated in enumerate(missing)
    )
    steps = ("true if any shard has a row",)
    return Planned(statement, Merge(combine=GroupRule((), (), columns), steps=steps))


def _plan(statement: Any, bounds: Bounds, spread: Spread) -> Planned:
    if bounds and private.for_update_arg(statement) is not None:
        raise ScatterUnsupportedError(
            "LIMIT or OFFSET with FOR UPDATE over several shards: each shard "
            "would lock as many rows, and those that are not returned would "
            "stay locked, even with SKIP LOCKED. A worker of a queue takes "
            'jobs of one shard at a time: bind_arguments={"shard_id": n}. Or '
            "read the ids first, then lock those",
            construct="LIMIT",
        )
    added = Added()
    if is_combined(statement, grouped_on_shard=spread.grouped_on_shard):
        return _combined(statement, bounds, added, spread)
    added.grouped = bool(private.group_by_clauses(statement))
    ordered = orderings(statement)
    if shows_if(statement):
        # Each shard with such a row returns one.
        bounds = Bounds(1)
    combine = None
    if private.distinct(statement):
        _check_distinct(statement, ordered)
        if not spread.distinct_on_shard:
            combine = _distinct_rule(statement, added)
    distinct = combine is not None
    keys = tuple(added.key(one, distinct=distinct) for one in ordered)
    if any(is_random(one.element) for one in ordered):
        statement = _sorted_as_drawn(statement, ordered, keys)
    if private.offset_clause(statement) is not None:
        statement = statement.limit(bounds.row_limit).offset(None)
    if not keys and not bounds and combine is None:
        return Planned(statement, None)
    steps = list(_steps(ordered, bounds, combine))
    return _with_hidden(statement, added, keys, bounds, combine, steps)


def _sorted_as_drawn(
    statement: Any, ordered: Sequence[Ordering], keys: Sequence[OrderKey]
) -> Any:
    """Sort by the random numbers that the merge compares.

    Otherwise ORDER BY would generate other numbers, and with LIMIT the rows of
    a small shard would be more likely than those of a large one.
    """
    clauses = []
    for clause, one, key in zip(
        private.order_by_clauses(statement), ordered, keys, strict=True
    ):
        drawn = clause
        if is_random(one.element):
            if kind_of(one.element) == "text":
                raise ScatterUnsupportedError(
                    f"ORDER BY {one.element} over several shards: each shard "
                    "would generate its random values twice; order by rand() "
                    "itself",
                    construct="ORDER BY",
                )
            assert isinstance(key.recipe, First)  # noqa: S101  # no text
            drawn = literal_column(Hidden.name(key.recipe.index))
            drawn = drawn.desc() if one.descending else drawn
        clauses.append(drawn)
    return statement.order_by(None).order_by(*clauses)


def _counting(statement: Any, inner: Any, bounds: Bounds, spread: Spread) -> Planned:
    """Plan to count the rows of another SELECT over all shards."""
    alike = private.distinct(inner) and not spread.distinct_on_shard
    if not alike and not is_combined(inner, grouped_on_shard=spread.grouped_on_shard):
        if bounds or private.offset_clause(inner) is not None:
            part = inner.limit(bounds.row_limit).offset(None)
            statement = counting(statement, part)
        counted = LimitedCount(Total(0), bounds.limit, bounds.offset)
        steps = ["add the counts of the shards", *_steps([], bounds, None)]
        combine = GroupRule((), (), (counted,))
        return Planned(statement, Merge(combine=combine, steps=tuple(steps)))
    if alike and (
        private.group_by_clauses(inner) or is_combined(inner, grouped_on_shard=False)
    ):
        raise ScatterUnsupportedError(
            "DISTINCT of counts or groups over several shards is not "
            "supported; count them in Python",
            construct="DISTINCT",
        )
    groups = _groups_of(statement, inner, alike=alike)
    # The statement has different columns now.
    spread = replace(spread, counted_on_shard=())
    planned = _combined(groups, bounds, Added(), spread)
    assert planned.merge is not None  # noqa: S101  # groups are merged
    steps = [*planned.merge.steps, "count them"]
    merge = replace(planned.merge, counts=True, steps=tuple(steps))
    return Planned(planned.statement, merge)


def _groups_of(statement: Any, inner: Any, *, alike: bool) -> Any:
    """Return a statement that returns a count for each row of another.

    :param alike: whether those rows are DISTINCT.
    """
    # SQLAlchemy ignores the options of a subquery.
    # The columns are replaced: GROUP BY cannot name their labels.
    inner = private.copy_with(
        inner, with_options=(), group_by_clauses=tuple(groupings(inner))
    )
    groups = inner.order_by(None).with_only_columns(*private.raw_columns(statement))
    sources = _sources(inner)
    groups = private.copy_with(groups, from_obj=_from_of(inner, sources))
    if _from_elements(groups) != _from_elements(inner):
        raise ScatterUnsupportedError(
            "DISTINCT or GROUP BY over several shards cannot be counted "
            "where columns are of a table that is neither in select_from() "
            "nor joined to the first one; name it in select_from()",
            construct="DISTINCT" if alike else "GROUP BY",
        )
    if alike:
        groups = groups.group_by(*map(unlabelled, inner.selected_columns))
    _check_criteria(statement, inner, sources)
    return private.copy_with(
        groups,
        distinct=False,
        execution_options=statement.get_execution_options(),
        with_options=private.with_options(statement),
    )


def _sources(statement: Any) -> dict[Any, Any]:
    """Return the elements of FROM that the columns of a SELECT imply.

    An element of a class names it: otherwise the conditions of the class,
    such as that of soft delete, would be lost with the columns.

    :returns: each of them, by the same element with or without its class.
    """
    sources: dict[Any, Any] = {}
    for column in private.raw_columns(statement):
        entity = private.class_of(column)
        if entity is not None:
            source = entity.__clause_element__()
            sources[source] = source
        for source in private.from_objects(column):
            sources.setdefault(source, source)
    return sources


def _from_of(inner: Any, sources: dict[Any, Any]) -> tuple[Any, ...]:
    """Return the elements of FROM of a SELECT that will have other columns.

    :param sources: the elements of :func:`_sources`.
    """
    given = private.from_obj(inner)
    joins = private.setup_joins(inner)
    earlier = private.earlier_joins(inner)
    if not given and not earlier:
        # A joined table must not be in FROM a second time.
        given = list(sources.values())[: 1 if joins else None]
    elif joins or earlier:
        given = [sources.get(source, source) for source in given]
    else:
        # Those that are part of a join are not repeated in SQL.
        given = [*sources.values(), *given]
    return tuple(given)


def _check_criteria(statement: Any, inner: Any, sources: dict[Any, Any]) -> None:
    """Refuse a SELECT that would lose a condition of a class.

    SQLAlchemy adds the condition of a class that is part of a join in
    select_from(), or whose table is joined, only for a column of the class.

    :param sources: the elements of :func:`_sources`.
    """
    options = [
        option
        for option in private.with_options(statement)
        if isinstance(option, LoaderCriteriaOption)
    ]
    earlier = private.earlier_joins(inner)
    given = private.from_obj(inner)
    hidden = [join[0] for join in (*private.setup_joins(inner), *earlier)]
    hidden = [one for one in hidden if private.class_of(one) is None]
    if earlier and not given:
        # Columns that were replaced determine what was joined.
        hidden += sources
    for source in given:
        if isinstance(source, Join):
            hidden += _elements_of([source])
    for source in hidden:
        entity = private.class_of(sources.get(source))
        if entity is not None and _has_criteria(entity.mapper, options):
            raise ScatterUnsupportedError(
                "DISTINCT or GROUP BY over several shards cannot be counted "
                f"where {entity.class_.__name__}, whose rows have a "
                "condition, is joined as a table or in select_from(); use "
                "join() of select() with the class",
                construct="JOIN",
            )


def _has_criteria(mapper: Any, options: list[LoaderCriteriaOption]) -> bool:
    """Return whether SQLAlchemy adds a condition on rows of a class."""
    if mapper.single:
        return True
    conditional: list[Any] = [
        option.root_entity or option.entity.class_  # type: ignore[union-attr]  # one is given
        for option in options
    ]
    return issubclass(mapper.class_, tuple(conditional))


def _from_elements(statement: Any) -> Counter[Any]:
    """Return the elements of a SELECT's FROM clause."""
    return Counter(_elements_of(statement.get_final_froms()))


def _elements_of(sources: Iterable[Any]) -> list[Any]:
    """Return elements of FROM, with those of joins."""
    elements = []
    todo = list(sources)
    while todo:
        source = todo.pop()
        if isinstance(source, Join):
            todo += [source.left, source.right]
        elif isinstance(source, FromGrouping):
            # Of a class with two tables, made anew each time.
            todo.append(source.element)
        else:
            elements.append(source)
    return elements


def _combined(statement: Any, bounds: Bounds, added: Added, spread: Spread) -> Planned:
    combiner = Combiner(statement, added, spread.counted_on_shard)
    combine, keys = combiner.combine()
    ordered = orderings(statement)
    # A group that is among the first of all shards together may not be among
    # the first of any single shard.
    statement = statement.order_by(None).limit(None).offset(None)
    statement = statement.group_by(*combiner.split)
    what = "groups" if private.group_by_clauses(statement) else "aggregates"
    steps = [f"combine the {what} of the shards"]
    if private.having_criteria(statement):
        criteria = private.having_criteria(statement)
        steps.append(f"keep those with {' and '.join(map(str, criteria))}")
        statement = private.copy_with(statement, having_criteria=())
    if combine.computation is not None:
        steps.append("compute expressions of them on one server")
    steps += _steps(ordered, bounds, None)
    return _with_hidden(statement, added, keys, bounds, combine, steps)


def _distinct_rule(statement: Any, added: Added) -> GroupRule:
    """Return the rule that merges equal rows of several shards into one."""
    columns = private.raw_columns(statement)
    for column in columns:
        if not isinstance(column, ColumnElement):
            raise ScatterUnsupportedError(
                f"DISTINCT over several shards needs single columns, not "
                f"{column}; select its columns, or its id among them",
                construct="DISTINCT",
            )
    return GroupRule(*added.identities(map(unlabelled, columns), "DISTINCT"))


def _check_distinct(statement: Any, ordered: list[Ordering]) -> None:
    """Refuse to sort distinct rows by a column that they do not have."""
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
    keys: tuple[OrderKey, ...],
    bounds: Bounds,
    combine: GroupRule | None,
    steps: list[str],
) -> Planned:
    if added.elements:
        distinct = private.distinct(statement)
        statement = statement.prefix_with(
            Hidden(
                added.elements,
                distinct=distinct,
                sorts=_changes_in_groups(statement, added),
            )
        )
        # Otherwise DISTINCT would be written again, after the prefix.
        statement = private.copy_with(sorted_by_shown(statement), distinct=False)
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
    """Return whether a temporary table would change a value of a group."""
    # When it sorts groups in descending order, MariaDB replaces NULL by the
    # preceding decimal.
    if not private.group_by_clauses(statement) or private.order_by_clauses(statement):
        return False
    shown = [*added.elements, *statement.selected_columns]
    return not all(map(is_grouped_whole, shown))


def _steps(
    ordered: list[Ordering], bounds: Bounds, combine: GroupRule | None
) -> Iterator[str]:
    """Yield descriptions of the steps of a merge."""
    if combine is not None:
        yield "drop rows that other shards have as well"
    if ordered:
        yield f"sort by {', '.join(map(str, ordered))}"
    if bounds.offset:
        yield f"skip the first {bounds.offset}"
    if bounds.limit is not None:
        yield f"keep the first {bounds.limit}"
