"""The checks of the id column, by name; see :mod:`.semantics`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import (
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    text,
    tuple_,
    union_all,
)
from sqlalchemy.orm import aliased

from sqla_shard.exc import (
    InvalidIdError,
    NoShardKeyError,
    ScatterUnsupportedError,
    ShardError,
    UnsupportedStatementError,
)
from tests.models.layouts import pack
from tests.models.models import Board, COMMENT, Comment, PIN, Pin


def ids_of(session: Any, statement: Any, *args: Any, **kwargs: Any) -> Any:
    found = session.scalars(statement, *args, **kwargs).all()
    return sorted(getattr(one, "id", one) for one in found)


def on(shard_id: int) -> dict[str, Any]:
    return {"bind_arguments": {"shard_id": shard_id}}


Check = Callable[[Any, Any], tuple[Any, Any]]
CHECKS: dict[str, Check] = {}

#: Refused because they would need rows of every shard, or a merge of them.
REFUSED: dict[str, type[ShardError]] = {
    "from_statement of bare text": InvalidIdError,
    "< alone": NoShardKeyError,
    "between alone": NoShardKeyError,
    "not_in alone": NoShardKeyError,
    "not or alone": NoShardKeyError,
    "exists alone": NoShardKeyError,
    "subquery without a key": NoShardKeyError,
    "is None alone": NoShardKeyError,
    "union_all over shards": ScatterUnsupportedError,
    "arithmetic": UnsupportedStatementError,
    "a function of the id": UnsupportedStatementError,
    "a join of local with whole ids": UnsupportedStatementError,
    "like": UnsupportedStatementError,
    "str": InvalidIdError,
    "bool": InvalidIdError,
}


def check(name: str) -> Callable[[Check], Check]:
    def keep(function: Check) -> Check:
        CHECKS[name] = function
        return function

    return keep


@check("between")
def _(s, d):
    i = d.ids
    where = (Pin.id.in_(i), Pin.id.between(i[1], i[6]))
    return ids_of(s, select(Pin).where(*where)), i[1:7]


@check("not_in")
def _(s, d):
    i = d.ids
    where = (Pin.id.in_(i), Pin.id.not_in(i[1:6]))
    return ids_of(s, select(Pin).where(*where)), [i[0], *i[6:]]


@check("not or")
def _(s, d):
    i = d.ids
    where = (Pin.id.in_(i), ~or_(Pin.id == i[0], Pin.id == i[8]))
    return ids_of(s, select(Pin).where(*where)), i[1:8] + i[9:]


@check("or over shards")
def _(s, d):
    i = d.ids
    where = or_(Pin.id == i[0], Pin.id.in_([i[4], i[5]]), Pin.id == i[11])
    return ids_of(s, select(Pin).where(where)), [i[0], i[4], i[5], i[11]]


@check("order_by id and limit on one shard")
def _(s, d):
    made = select(Pin.id).where(Pin.id.in_(d.ids[3:6]))
    made = made.order_by(Pin.id.desc()).limit(2)
    return s.scalars(made).all(), [d.ids[5], d.ids[4]]


@check("aliased")
def _(s, d):
    a = aliased(Pin)
    return ids_of(s, select(a).where(a.id == d.ids[4])), [d.ids[4]]


@check("subquery in_")
def _(s, d):
    inner = select(Pin.id).where(Pin.title.like("p1\\_%", escape="\\"))
    made = select(Comment.pin_id).where(
        Comment.pin_id.in_(d.ids), Comment.pin_id.in_(inner)
    )
    return sorted(set(s.scalars(made))), d.ids[3:6]


@check("exists")
def _(s, d):
    where = (Pin.id.in_(d.ids), Pin.comments.any(Comment.body == "x"))
    return ids_of(s, select(Pin).where(*where)), d.ids


@check("route on the colocated reference")
def _(s, d):
    found = s.scalars(select(Comment).where(Comment.pin_id == d.ids[4]))
    return [c.pin_id for c in found], [d.ids[4]] * 2


@check("count on each shard")
def _(s, d):
    made = select(func.count(Pin.id))
    return [s.scalars(made, **on(i)).one() for i in (0, 1, 2, 17, 4)], [3, 3, 3, 3, 0]


@check("union_all on one shard")
def _(s, d):
    made = union_all(
        select(Pin.id).where(Pin.id == d.ids[3]),
        select(Pin.id).where(Pin.id == d.ids[4]),
    )
    return sorted(s.scalars(made)), d.ids[3:5]


@check("column of a subquery")
def _(s, d):
    inner = select(Pin.id, Pin.title).where(Pin.id.in_(d.ids[:6])).subquery()
    return sorted(s.scalars(select(inner.c.id))), d.ids[:6]


@check("cte")
def _(s, d):
    found = select(Pin.id).cte()
    made = select(found.c.id).where(found.c.id.in_(d.ids))
    return sorted(s.scalars(made)), d.ids


@check("group_by id")
def _(s, d):
    made = select(Comment.pin_id, func.count()).where(Comment.pin_id.in_(d.ids))
    rows = s.execute(made.group_by(Comment.pin_id)).all()
    return sorted(map(tuple, rows)), [(i, 2) for i in d.ids]


@check("distinct id")
def _(s, d):
    made = select(Comment.pin_id).where(Comment.pin_id.in_(d.ids)).distinct()
    return sorted(s.scalars(made)), d.ids


@check("is None")
def _(s, d):
    made = select(Pin.id).where(Pin.id.in_(d.ids), Pin.id == None)  # noqa: E711
    return s.scalars(made).all(), []


@check("is not None")
def _(s, d):
    made = select(Pin.id).where(Pin.id.in_(d.ids), Pin.id != None)  # noqa: E711
    return sorted(s.scalars(made)), d.ids


@check("bindparam by name")
def _(s, d):
    made = select(Pin.id).where(Pin.id == bindparam("q"))
    return [s.scalars(made, {"q": i}).one() for i in d.ids], d.ids


@check("expanding bindparam by name")
def _(s, d):
    made = select(Pin.id).where(Pin.id.in_(bindparam("q", expanding=True)))
    return sorted(s.scalars(made, {"q": d.ids[5:8]})), d.ids[5:8]


@check("expanding bindparam by name, negated")
def _(s, d):
    made = select(Pin.id).where(
        Pin.id.in_(d.ids), Pin.id.not_in(bindparam("q", expanding=True))
    )
    return sorted(s.scalars(made, {"q": d.ids[1:]})), d.ids[:1]


@check("a tuple of ids and values")
def _(s, d):
    pairs = [(i, d.titles[i]) for i in (d.ids[0], d.ids[8])]
    pairs.append((d.ids[4], "another"))
    made = select(Pin.id).where(tuple_(Pin.id, Pin.title).in_(pairs))
    return sorted(s.scalars(made)), [d.ids[0], d.ids[8]]


@check("max and min on one shard")
def _(s, d):
    made = select(func.min(Pin.id), func.max(Pin.id))
    return tuple(s.execute(made.where(Pin.id.in_(d.ids[:3]))).one()), (
        d.ids[0],
        d.ids[2],
    )


@check("join of two entities")
def _(s, d):
    made = select(Pin, Comment).join(Pin.comments)
    rows = s.execute(made.where(Pin.id.in_(d.ids))).all()
    assert all(comment.pin_id == pin.id for pin, comment in rows)
    return len(rows), 2 * len(d.ids)


@check("from_statement of text that shows whole ids")
def _(s, d):
    made = text(
        "SELECT local_id + :prefix AS local_id, title, n, board_id, "
        "home_id, root_id FROM pins"
    ).bindparams(prefix=pack(17, PIN, 0))
    found = s.scalars(select(Pin).from_statement(made), **on(17)).all()
    return sorted(pin.id for pin in found), d.ids[9:]


@check("from_statement of bare text")
def _(s, d):
    made = text("SELECT local_id, title, n, board_id, home_id, root_id FROM pins")
    return s.scalars(select(Pin).from_statement(made), **on(1)).all(), None


@check("insert values on a shard")
def _(s, d):
    made = insert(Pin).values(title="n")
    (new,) = s.execute(made, **on(9)).inserted_primary_key
    return new, pack(9, PIN, new & 0xFFF)


@check("insert with an id of its own")
def _(s, d):
    s.add(Pin(id=pack(9, PIN, 77), title="restored"))
    s.flush()
    made = select(Pin.id).where(Pin.id == pack(9, PIN, 77))
    return s.scalars(made).all(), [pack(9, PIN, 77)]


@check("delete, evaluated")
def _(s, d):
    held = s.get(Comment, pack(1, COMMENT, 1))
    made = delete(Comment).where(Comment.id == held.id)
    count = s.execute(
        made, execution_options={"synchronize_session": "evaluate"}
    ).rowcount
    return (count, held in s, s.get(Comment, held.id)), (1, False, None)


@check("delete, fetched")
def _(s, d):
    held = s.get(Comment, pack(1, COMMENT, 2))
    made = delete(Comment).where(Comment.id.in_([held.id]))
    count = s.execute(made, execution_options={"synchronize_session": "fetch"}).rowcount
    return (count, held in s), (1, False)


@check("freeze")
def _(s, d):
    made = select(Pin.id, Pin.title).where(Pin.id.in_(d.ids))
    frozen = s.execute(made).freeze()
    return sorted(map(tuple, frozen().all())), sorted(d.titles.items())


@check("yield_per")
def _(s, d):
    made = select(Pin).where(Pin.id.in_(d.ids))
    found = s.scalars(made.execution_options(yield_per=2))
    return sorted(pin.id for pin in found), d.ids


# -- refused


@check("< alone")
def _(s, d):
    return s.scalars(select(Pin).where(Pin.id < d.ids[3])).all(), None


@check("between alone")
def _(s, d):
    made = select(Pin).where(Pin.id.between(d.ids[1], d.ids[6]))
    return s.scalars(made).all(), None


@check("not_in alone")
def _(s, d):
    return s.scalars(select(Pin).where(Pin.id.not_in(d.ids))).all(), None


@check("not or alone")
def _(s, d):
    where = ~or_(Pin.id == d.ids[0], Pin.id == d.ids[8])
    return s.scalars(select(Pin).where(where)).all(), None


@check("exists alone")
def _(s, d):
    made = select(Pin).where(Pin.comments.any(Comment.body == "x"))
    return s.scalars(made).all(), None


@check("subquery without a key")
def _(s, d):
    inner = select(Pin.id).where(Pin.title.like("p2%"))
    made = select(Comment).where(Comment.pin_id.in_(inner))
    return s.scalars(made).all(), None


@check("is None alone")
def _(s, d):
    return s.scalars(select(Pin).where(Pin.id.is_(None))).all(), None


@check("order_by over shards")
def _(s, d):
    made = select(Pin).where(Pin.id.in_(d.ids)).order_by(Pin.id.desc())
    return [pin.id for pin in s.scalars(made)], d.ids[::-1]


@check("limit over shards")
def _(s, d):
    made = select(Pin).where(Pin.id.in_(d.ids)).limit(2)
    return len(s.scalars(made).all()), 2


@check("count over shards")
def _(s, d):
    made = select(func.count()).where(Pin.id.in_(d.ids))
    return s.scalar(made), len(d.ids)


@check("max over shards")
def _(s, d):
    made = select(func.max(Pin.id)).where(Pin.id.in_(d.ids))
    return s.scalar(made), max(d.ids)


@check("union_all over shards")
def _(s, d):
    one, other = d.ids[0], d.ids[4]
    made = union_all(
        select(Pin.id).where(Pin.id == one), select(Pin.id).where(Pin.id == other)
    )
    return s.scalars(made).all(), None


@check("arithmetic")
def _(s, d):
    return s.scalars(select(5 + Pin.id).where(Pin.id == d.ids[0])).all(), None


@check("a function of the id")
def _(s, d):
    made = select(func.concat("a", Pin.id)).where(Pin.id == d.ids[0])
    return s.scalars(made).all(), None


@check("a join of local with whole ids")
def _(s, d):
    made = select(Pin.id).join(Board, Pin.board_id == Board.id)
    return s.scalars(made, **on(3)).all(), None


@check("like")
def _(s, d):
    return s.scalars(select(Pin).where(Pin.id.like("1%"))).all(), None


@check("str")
def _(s, d):
    return s.scalars(select(Pin).where(Pin.id == str(d.ids[0]))).all(), None


@check("bool")
def _(s, d):
    return s.scalars(select(Pin).where(Pin.id.in_([True]))).all(), None
