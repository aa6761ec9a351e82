"""Statements that look as if they named their shards, and do not.

Each function takes the models and the ids and returns a statement, or None
where the plain database has no such thing.  ``a``, ``b`` are pins on two
shards, ``a2`` one on the shard of ``a``.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import and_, func, literal, or_, select, text, true, union, union_all
from sqlalchemy.orm import aliased

from sqla_shard import exc

#: By name: a function of models and ids, and the error that refuses it.
REFUSED: dict[str, tuple[Any, type[exc.ShardError]]] = {}

#: By name: a function of models and ids, and how many shards it visits.
ACCEPTED: dict[str, tuple[Any, int]] = {}

NO_KEY = exc.NoShardKeyError
SCATTER = exc.ScatterUnsupportedError
WRONG = exc.UnsupportedStatementError


def refused(error: type[exc.ShardError]) -> Any:
    def keep(function: Any) -> Any:
        REFUSED[function.__name__] = function, error
        return function

    return keep


def accepted(shards: int) -> Any:
    def keep(function: Any) -> Any:
        ACCEPTED[function.__name__] = function, shards
        return function

    return keep


# -- conditions that hold elsewhere


@refused(NO_KEY)
def not_exists_names_the_outer_row(m, i):
    inner = select(m.Comment.id).where(m.Comment.pin_id == m.Pin.id, m.Pin.id == i.a)
    return select(m.Pin.id).where(~inner.correlate(m.Pin).exists())


@refused(NO_KEY)
def not_exists_ties_two_outer_tables(m, i):
    inner = select(m.Tag.name).where(
        m.Tag.pin_id == m.Pin.id, m.Comment.pin_id == m.Pin.id
    )
    return select(m.Pin.id, m.Comment.id).where(
        m.Pin.id == i.a, ~inner.correlate(m.Pin, m.Comment).exists()
    )


@refused(NO_KEY)
def not_exists_inside_exists(m, i):
    other = aliased(m.Pin)
    inner = select(m.Comment.id).where(
        m.Comment.pin_id == other.id, m.Comment.pin_id == i.b
    )
    outer = select(other.id).where(~inner.correlate(other).exists())
    return select(m.Pin.id).where(m.Pin.id == i.a, outer.exists())


@refused(NO_KEY)
def on_ties_the_left_side(m, i):
    return (
        select(m.Pin.id, m.Comment.id)
        .join(m.Comment, true())
        .outerjoin(m.Tag, and_(m.Tag.pin_id == m.Pin.id, m.Comment.pin_id == m.Pin.id))
        .where(m.Pin.id == i.a)
    )


@refused(NO_KEY)
def on_names_the_left_side(m, i):
    return select(m.Pin.id, m.Comment.id).outerjoin(
        m.Comment, and_(m.Comment.pin_id == m.Pin.id, m.Pin.id == i.a)
    )


@refused(NO_KEY)
def on_names_the_right_side(m, i):
    return select(m.Pin.id, m.Comment.id).outerjoin(
        m.Comment, and_(m.Comment.pin_id == m.Pin.id, m.Comment.pin_id == i.a)
    )


@refused(NO_KEY)
def join_inside_an_outer_join(m, i):
    tag = aliased(m.Tag)
    inner = select(m.Comment.id).join(
        m.Tag, and_(m.Tag.pin_id == m.Comment.pin_id, m.Tag.pin_id == i.a)
    )
    del tag
    found = inner.with_only_columns(m.Comment.pin_id).subquery()
    return select(m.Pin.id, found.c.pin_id).outerjoin(found, found.c.pin_id == m.Pin.id)


@refused(NO_KEY)
def either_an_id_or_not(m, i):
    return select(m.Pin.id).where(or_(m.Pin.id == i.a, m.Pin.n == 1))


@refused(NO_KEY)
def not_an_id(m, i):
    return select(m.Pin.id).where(~or_(m.Pin.id == i.a, m.Pin.n == 1))


@refused(NO_KEY)
def an_id_in_a_case(m, i):
    from sqlalchemy import case

    return select(m.Pin.id).where(case((m.Pin.id == i.a, 1), else_=1) == 1)


@refused(NO_KEY)
def at_least_an_id(m, i):
    return select(m.Pin.id).where(m.Pin.id >= i.a)


@refused(NO_KEY)
def less_than_an_id(m, i):
    return select(m.Pin.id).where(m.Pin.id < i.b)


@refused(NO_KEY)
def not_in_a_list(m, i):
    return select(m.Pin.id).where(m.Pin.id.not_in([i.a, i.b]))


@refused(NO_KEY)
def joined_by_other_ids(m, i):
    return select(m.Pin.id, m.Comment.id).where(
        m.Pin.id == i.a, m.Comment.pin_id != m.Pin.id
    )


@refused(NO_KEY)
def joined_by_a_number(m, i):
    return select(m.Pin.id, m.Comment.id).where(m.Pin.id == i.a, m.Comment.n == m.Pin.n)


@refused(NO_KEY)
def joined_by_an_inequality_of_ids(m, i):
    return select(m.Pin.id, m.Comment.id).where(
        m.Pin.id == i.a, m.Comment.pin_id <= m.Pin.id
    )


@refused(NO_KEY)
def a_reference_to_any_shard(m, i):
    return select(m.Pin.id, m.Board.id).where(
        m.Pin.id == i.a, m.Pin.board_id == m.full(m.Board.id)
    )


@refused(NO_KEY)
def an_aggregate_has_a_row_for_nothing(m, i):
    inner = select(func.count()).where(
        m.Comment.pin_id == m.Pin.id, m.Comment.pin_id == i.a
    )
    return select(m.Pin.id).where(inner.correlate(m.Pin).exists())


# -- subqueries


@refused(NO_KEY)
def a_subquery_that_names_an_id_of_its_own(m, i):
    inner = select(m.Comment.id).where(m.Comment.pin_id == i.a)
    return select(m.Pin.id).where(inner.exists())


@refused(NO_KEY)
def what_may_be_missing_is_not_in_a_subquery(m, i):
    other = aliased(m.Pin)
    return (
        select(m.Pin.id)
        .outerjoin(m.Comment, m.Comment.pin_id == m.Pin.id)
        .where(m.Pin.id == i.a, m.Comment.pin_id.not_in(select(other.id)))
    )


@refused(NO_KEY)
def less_than_a_subquery(m, i):
    return select(m.Pin.id).where(
        m.Pin.id == i.a, m.Pin.id < select(func.max(m.Comment.pin_id)).scalar_subquery()
    )


@refused(NO_KEY)
def equal_to_a_subquery(m, i):
    inner = select(m.Comment.pin_id).where(m.Comment.body == "c1")
    return select(m.Pin.id).where(m.Pin.id == i.a, m.Pin.id == inner.scalar_subquery())


@refused(NO_KEY)
def not_in_a_subquery_with_null(m, i):
    other = aliased(m.Pin)
    return select(m.Pin.id).where(
        m.Pin.id == i.a, m.Pin.id.not_in(select(other.root_id))
    )


@refused(NO_KEY)
def null_not_in_a_subquery(m, i):
    other = aliased(m.Pin)
    return select(m.Pin.id).where(
        m.Pin.id == i.a, m.Pin.root_id.not_in(select(other.id))
    )


@refused(NO_KEY)
def whether_in_a_subquery_is_null(m, i):
    other = aliased(m.Pin)
    return select(m.Pin.id, m.Pin.id.in_(select(other.root_id))).where(m.Pin.id == i.a)


@refused(NO_KEY)
def in_a_subquery_with_limit(m, i):
    inner = select(m.Comment.pin_id).order_by(m.Comment.n).limit(2)
    return select(m.Pin.id).where(m.Pin.id == i.a, m.Pin.id.in_(inner))


@refused(NO_KEY)
def in_a_subquery_of_a_count(m, i):
    inner = (
        select(m.Comment.pin_id)
        .group_by(m.Comment.pin_id, m.Comment.n)
        .having(func.count() > 0)
        .limit(1)
    )
    return select(m.Pin.id).where(m.Pin.id == i.a, m.Pin.id.in_(inner))


@refused(NO_KEY)
def two_levels_down_sqlalchemy_does_not_correlate(m, i):
    innermost = select(m.Note.id).where(m.Note.n == m.Pin.n)
    inner = select(m.Comment.id).where(m.Comment.pin_id == m.Pin.id, innermost.exists())
    return select(m.Pin.id).where(m.Pin.id == i.a, inner.exists())


@refused(WRONG)
def an_aggregate_of_the_outer_row(m, i):
    inner = (
        select(func.max(m.Pin.n))
        .select_from(m.Comment)
        .where(m.Comment.pin_id == m.Pin.id)
    )
    return select(m.Pin.id).where(
        m.Pin.id == i.a, inner.correlate(m.Pin).scalar_subquery() > 1
    )


@refused(NO_KEY)
def an_untied_count_among_the_columns(m, i):
    return select(
        m.Pin.id, select(func.count()).select_from(m.Comment).scalar_subquery()
    ).where(m.Pin.id == i.a)


@refused(WRONG)
def a_subquery_as_text(m, i):
    return select(m.Pin.id).where(
        m.Pin.id == i.a, text("exists (select 1 from comments)")
    )


@refused(WRONG)
def a_subquery_as_text_in_from(m, i):
    found = text("select n from comments").columns(m.Comment.n).subquery()
    return select(m.Pin.id, found.c.n).where(m.Pin.id == i.a)


# -- subqueries in FROM


@refused(NO_KEY)
def limit_in_from_is_not_about_the_outer_id(m, i):
    found = select(m.Pin.id, m.Pin.n).order_by(m.Pin.n).limit(2).subquery()
    return select(found.c.id).where(found.c.id == i.a)


@refused(NO_KEY)
def a_count_in_from_is_not_about_the_outer_id(m, i):
    found = (
        select(m.Comment.n, func.count().label("k")).group_by(m.Comment.n).subquery()
    )
    return select(m.Pin.id, found.c.k).where(m.Pin.id == i.a, m.Pin.n == found.c.n)


@refused(SCATTER)
def distinct_in_from_over_two_shards(m, i):
    found = (select(m.Pin.title).where(m.Pin.id.in_([i.a, i.b])).distinct()).subquery()
    return select(found.c.title)


@refused(SCATTER)
def a_union_in_from_over_two_shards(m, i):
    found = union(
        select(m.Pin.id, m.Pin.n).where(m.Pin.id.in_([i.a, i.b])),
        select(m.Pin.id, m.Pin.n).where(m.Pin.id == i.a2),
    ).subquery()
    return select(found.c.n)


@refused(SCATTER)
def a_union_with_a_constant(m, i):
    return union_all(
        select(m.Pin.n).where(m.Pin.id.in_([i.a, i.b])), select(literal(7))
    )


@refused(NO_KEY)
def a_missing_limited_row_is_not_in_a_subquery(m, i):
    found = (
        select(m.Comment.pin_id).where(m.Comment.pin_id == i.a).limit(1)
    ).subquery()
    other = aliased(m.Pin)
    return (
        select(m.Pin.id)
        .outerjoin(found, found.c.pin_id == m.Pin.id)
        .where(m.Pin.id == i.a, found.c.pin_id.not_in(select(other.id)))
    )


@refused(NO_KEY)
def counted_by_an_id_with_an_untied_table(m, i):
    found = (
        select(m.Comment.pin_id, func.count().label("k"))
        .join(m.Tag, m.Tag.n == m.Comment.n)
        .group_by(m.Comment.pin_id)
        .subquery()
    )
    return select(found.c.pin_id, found.c.k).where(found.c.pin_id == i.a)


@refused(NO_KEY)
def a_union_with_a_branch_that_names_no_id(m, i):
    return union_all(select(m.Pin.id).where(m.Pin.id == i.a), select(m.Pin.id))


@refused(NO_KEY)
def a_common_table_used_twice_and_tied_once(m, i):
    found = select(m.Pin.id, m.Pin.n).cte("found")
    again = found.alias("again")
    return select(found.c.id, again.c.id).where(
        found.c.id == i.a, again.c.n == found.c.n
    )


@refused(WRONG)
def a_recursion_that_goes_on_with_another_column(m, i):
    pin, comment = aliased(m.Pin), aliased(m.Comment)
    found = select(pin.id, pin.n).where(pin.id == i.a).cte(recursive=True)
    found = found.union_all(
        select(comment.id, comment.n).where(comment.pin_id == found.c.id)
    )
    return select(found.c.id)


@refused(WRONG)
def full_outer_join(m, i):
    return (
        select(m.Pin.id, m.Comment.id)
        .outerjoin(m.Comment, m.Comment.pin_id == m.Pin.id, full=True)
        .where(m.Pin.id == i.a)
    )
