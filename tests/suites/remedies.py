"""Refusals whose message names a way that works, and that way, run."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import func, select, union, update
from sqlalchemy.orm import selectinload, subqueryload

from sqla_shard import Cluster, exc, scatter, ShardSession
from tests.models.remedy_models import (
    Case,
    Data,
    filled,
    Post,
    REMEDIES,
    User,
    UserLikesPosts,
)
from tests.suites.remedy_classes import in_order
from tests.suites.remedy_reads import READS
from tests.suites.remedy_writes import WRITES

cluster = REMEDIES.on_backend()
data = filled()


def _everyone() -> Any:
    return select(User).options(scatter())


CASES: dict[str, Case] = {
    "no shard": Case(
        refused=lambda s, d: s.scalars(select(User)).all(),
        names=("cannot be determined", "scatter()"),
        remedy=lambda s, d: {u.id for u in s.scalars(_everyone())},
        answer=lambda s, d: set(d.users),
    ),
    "OFFSET": Case(
        refused=lambda s, d: s.scalars(
            _everyone().order_by(User.age).limit(1).offset(2)
        ).all(),
        names=("OFFSET", "scatter(max_offset=1000)"),
        remedy=lambda s, d: [
            user.age
            for user in s.scalars(
                select(User)
                .order_by(User.age)
                .limit(1)
                .offset(2)
                .options(scatter(max_offset=1000))
            )
        ],
        answer=lambda s, d: [2],
    ),
    "sorted subqueryload": Case(
        refused=lambda s, d: s.scalars(
            _everyone().order_by(User.age).limit(2).options(subqueryload(User.posts))
        ).all(),
        names=("subqueryload()", "selectinload()"),
        remedy=lambda s, d: [
            len(user.posts)
            for user in s.scalars(
                _everyone()
                .order_by(User.age.desc())
                .limit(2)
                .options(selectinload(User.posts))
            )
        ],
        answer=lambda s, d: [3, 2],
    ),
    "UNION": Case(
        refused=lambda s, d: s.execute(
            union(
                select(User.age).where(User.id.in_(d.users[:2])),
                select(User.age).where(User.id.in_(d.users[2:])),
            )
        ).all(),
        names=("UNION", "one by one"),
        remedy=lambda s, d: {
            age
            for _ in range(2)
            for age in s.scalars(select(User.age).options(scatter()))
        },
        answer=lambda s, d: {0, 1, 2, 3},
    ),
    "group_concat": Case(
        refused=lambda s, d: s.scalar(
            select(func.group_concat(User.age)).options(scatter())
        ),
        names=("cannot be combined", "read the rows"),
        remedy=lambda s, d: ",".join(
            str(age)
            for age in s.scalars(select(User.age).order_by(User.age).options(scatter()))
        ),
        answer=lambda s, d: "0,1,2,3",
    ),
    "a mapping joined to its targets": Case(
        refused=lambda s, d: s.execute(
            select(UserLikesPosts, Post)
            .join(Post, Post.id == UserLikesPosts.post_id)
            .where(UserLikesPosts.user_id == d.users[0])
        ).all(),
        names=("cannot be compared", "page(session, source_id, targets=True)"),
        remedy=lambda s, d: [
            row.target.id for row in UserLikesPosts.page(s, d.users[0], targets=True)
        ],
        answer=lambda s, d: d.posts[-2:][::-1],
    ),
    "UPDATE of a blob field": Case(
        refused=lambda s, d: s.execute(
            update(User).where(User.id == d.users[0]).values(name="x")
        ),
        names=("User.name", "change the objects in a session"),
        remedy=lambda s, d: _renamed(s, d.users[0]),
        answer=lambda s, d: "x",
    ),
    "two roots": Case(
        refused=lambda s, d: _titles(s, *d.posts[:2]),
        names=("write Post", "already written Post", "a transaction for each"),
        remedy=lambda s, d: _titles(s, d.posts[0]),
        answer=lambda s, d: ["new"],
    ),
}


def _renamed(session: ShardSession, user_id: int) -> str:
    session.get_one(User, user_id).name = "x"
    session.flush()
    session.expire_all()
    return session.get_one(User, user_id).name


def _titles(session: ShardSession, *ids: int) -> list[str]:
    found = [session.get_one(Post, post_id) for post_id in ids]
    for post in found:
        post.title = "new"
        session.flush()
    return [post.title for post in found]


ALL = {**CASES, **READS, **WRITES}


def refusal(session: ShardSession, data: Data, case: Case) -> str:
    """Return the message of a refusal."""
    with pytest.raises(exc.ShardError) as caught:
        case.refused(session, data)
    session.rollback()
    return str(caught.value)


class Remedies:
    @pytest.mark.parametrize("name", ALL)
    def test_the_remedy_of_the_message_works(
        self, cluster: Cluster, data: Data, name: str
    ) -> None:
        case = ALL[name]
        with cluster.session() as session:
            in_order(refusal(session, data, case), case.names)
            assert case.remedy(session, data) == case.answer(session, data)
            session.rollback()
