"""More statements that look as if they named their shards.

Statements about many rows at once, and similar ones that are correct.
"""

from __future__ import annotations

from sqlalchemy import exists, false, func, literal, or_, select, text, tuple_, update
from sqlalchemy.orm import aliased

from tests.suites.traps import ACCEPTED, accepted, NO_KEY, REFUSED, refused, SCATTER

__all__ = ["ACCEPTED", "REFUSED"]


# -- more than one row at a time


@accepted(2)
def exists_over_two_shards(m, i):
    return select(exists().where(m.Pin.id.in_([i.a, i.b])))


@accepted(2)
def null_is_a_group_on_every_shard(m, i):
    return (
        select(m.Pin.root_id, func.count())
        .where(m.Pin.id.in_([i.a, i.b]))
        .group_by(m.Pin.root_id)
    )


@refused(SCATTER)
def a_window_over_two_shards(m, i):
    place = func.row_number().over(order_by=m.Pin.n)
    return select(m.Pin.id, place).where(m.Pin.id.in_([i.a, i.b]))


@accepted(2)
def an_aggregate_inside_a_function(m, i):
    return select(func.coalesce(func.max(m.Pin.n), 0)).where(m.Pin.id.in_([i.a, i.b]))


@refused(SCATTER)
def an_aggregate_as_text(m, i):
    return select(text("count(*)")).where(m.Pin.id.in_([i.a, i.b]))


@refused(SCATTER)
def an_unknown_function(m, i):
    return select(func.json_group_array(m.Pin.n)).where(m.Pin.id.in_([i.a, i.b]))


@refused(SCATTER)
def distinct_as_a_prefix(m, i):
    return select(m.Pin.title).where(m.Pin.id.in_([i.a, i.b])).prefix_with("DISTINCT")


@accepted(2)
def ordered_over_two_shards(m, i):
    return select(m.Pin.id).where(m.Pin.id.in_([i.a, i.b])).order_by(m.Pin.n)


@refused(SCATTER)
def two_shards_side_by_side(m, i):
    return select(m.Pin.id, m.Comment.id).where(
        m.Pin.id.in_([i.a, i.b]), m.Comment.pin_id.in_([i.a, i.b])
    )


@refused(SCATTER)
def limit_of_an_update_over_two_shards(m, i):
    return (
        update(m.Pin)
        .where(m.Pin.id.in_([i.a, i.b]))
        .values(n=1)
        .with_dialect_options(mysql_limit=1)
    )


@refused(NO_KEY)
def update_from_a_table_that_is_not_tied(m, i):
    return update(m.Pin).where(m.Pin.id == i.a, m.Comment.body == "c1").values(n=1)


@refused(NO_KEY)
def update_to_a_count_of_what_is_not_tied(m, i):
    count = select(func.count()).select_from(m.Comment).scalar_subquery()
    return update(m.Pin).where(m.Pin.id == i.a).values(n=count)


# -- statements that are correct nevertheless


@accepted(1)
def a_row_of_the_subquery_names_the_shard(m, i):
    return select(m.Pin.id).where(m.Pin.comments.any(m.Comment.id == i.c))


@accepted(2)
def either_of_two_rows_of_subqueries(m, i):
    return select(m.Pin.id).where(
        or_(m.Pin.comments.any(m.Comment.id == i.c), m.Pin.id == i.b)
    )


@accepted(1)
def the_parent_names_the_shard(m, i):
    return select(m.Comment.id).where(m.Comment.pin.has(m.Pin.id == i.a))


@accepted(1)
def in_a_subquery_that_names_the_shard(m, i):
    inner = select(m.Comment.pin_id).where(m.Comment.id == i.c)
    return select(m.Pin.id).where(m.Pin.id.in_(inner))


@accepted(2)
def in_a_subquery_over_two_shards(m, i):
    return select(m.Pin.id).where(
        m.Pin.id.in_([i.a, i.b]), m.Pin.id.in_(select(m.Comment.pin_id))
    )


@accepted(2)
def not_in_a_subquery_without_null(m, i):
    return select(m.Pin.id).where(
        m.Pin.id.in_([i.a, i.a2, i.b]),
        m.Pin.id.not_in(select(m.Comment.pin_id).where(m.Comment.pin_id == i.a)),
    )


@accepted(2)
def no_children(m, i):
    return (
        select(m.Pin.id)
        .outerjoin(m.Comment, m.Comment.pin_id == m.Pin.id)
        .where(m.Pin.id.in_([i.a, i.a2, i.b]), m.Comment.id.is_(None))
    )


@accepted(2)
def counted_by_an_id(m, i):
    return (
        select(m.Comment.pin_id, func.count())
        .where(m.Comment.pin_id.in_([i.a, i.a2, i.b]))
        .group_by(m.Comment.pin_id)
        .having(func.count() > 0)
    )


@accepted(2)
def counted_with_each_row(m, i):
    return select(m.Pin.id, m.Pin.comment_count).where(m.Pin.id.in_([i.a, i.a2, i.b]))


@accepted(2)
def counted_by_an_id_in_from(m, i):
    found = (
        select(m.Comment.pin_id, func.count().label("k"))
        .group_by(m.Comment.pin_id)
        .subquery()
    )
    return (
        select(m.Pin.id, found.c.k)
        .outerjoin(found, found.c.pin_id == m.Pin.id)
        .where(m.Pin.id.in_([i.a, i.a2, i.b]))
    )


@accepted(2)
def distinct_with_an_id(m, i):
    return (
        select(m.Pin.id, m.Pin.title)
        .join(m.Comment, m.Comment.pin_id == m.Pin.id)
        .where(m.Pin.id.in_([i.a, i.a2, i.b]))
        .distinct()
    )


@accepted(2)
def a_window_for_each_id(m, i):
    place = func.row_number().over(partition_by=m.Comment.pin_id, order_by=m.Comment.id)
    return select(m.Comment.id, place).where(m.Comment.pin_id.in_([i.a, i.a2, i.b]))


@accepted(2)
def a_subquery_of_a_subquery(m, i):
    inner = select(m.Pin.id, m.Pin.n).subquery()
    outer = select(inner.c.id, inner.c.n).subquery().alias()
    return select(outer.c.id, m.Comment.id).where(
        outer.c.id == m.Comment.pin_id, outer.c.id.in_([i.a, i.b])
    )


@accepted(2)
def a_common_table_used_twice(m, i):
    found = select(m.Pin.id, m.Pin.n).cte("found")
    again = found.alias("again")
    return select(found.c.id, again.c.n).where(
        found.c.id.in_([i.a, i.b]), again.c.id == found.c.id
    )


@accepted(1)
def a_recursion_through_replies(m, i):
    found = select(m.Pin.id).where(m.Pin.id == i.a).cte(recursive=True)
    reply = aliased(m.Pin)
    found = found.union_all(
        select(reply.id).where(reply.root_id == found.c.id, reply.root_id == i.a)
    )
    return select(found.c.id)


@accepted(1)
def whole_ids_tie_as_well(m, i):
    return (
        select(m.Pin.id, m.Board.id, m.Note.id)
        .join(m.Board, m.full(m.Board.id) == m.Pin.home_id, isouter=True)
        .join(m.Note, m.Note.pin_id == m.full(m.Pin.id), isouter=True)
        .where(m.Pin.id == i.a)
    )


@accepted(1)
def two_tables_of_one_shard(m, i):
    return select(m.Pin.id, m.Comment.id).where(
        m.Pin.id == i.a2, m.Comment.pin_id == i.a
    )


@accepted(2)
def pairs_with_an_id(m, i):
    return select(m.Tag.pin_id, m.Tag.name).where(
        tuple_(m.Tag.pin_id, m.Tag.name).in_([(i.a, "x"), (i.b, "x")])
    )


@accepted(1)
def no_row_at_all(m, i):
    return select(func.count(), func.max(m.Pin.n)).where(
        m.Pin.id.in_([]), or_(false(), m.Pin.n == 1)
    )


@accepted(1)
def ids_of_two_shards_at_once(m, i):
    return select(literal(1)).where(m.Pin.id == i.a, m.Pin.id == i.b)
