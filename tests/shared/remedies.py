"""Refusals whose message names a way that works, and that way, run.

A test module has a fixture ``cluster`` with the tables, and takes the suite::

    data = filled()


    class TestRemedies(Remedies):
        pass
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import ForeignKey
from sqlalchemy import func
from sqlalchemy import select
from sqlalchemy import union
from sqlalchemy import update
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.orm import Mapped
from sqlalchemy.orm import mapped_column
from sqlalchemy.orm import relationship
from sqlalchemy.orm import selectinload
from sqlalchemy.orm import subqueryload

from sqla_shard import blob_field
from sqla_shard import Cluster
from sqla_shard import exc
from sqla_shard import MappingMixin
from sqla_shard import ObjectMixin
from sqla_shard import scatter
from sqla_shard import ShardedId
from sqla_shard import ShardSession

__all__ = ["SHARDS", "Base", "Remedies", "filled"]

SHARDS = 4


class Base(DeclarativeBase):
    pass


class User(ObjectMixin, Base, type_id=3):
    __tablename__ = "users"
    name: Mapped[str] = blob_field()
    age: Mapped[int] = mapped_column(default=0)


class Post(ObjectMixin, Base, type_id=2, colocate_with="user_id"):
    __tablename__ = "posts"
    user_id: Mapped[int] = mapped_column(
        ShardedId(3), ForeignKey("users.local_id")
    )
    title: Mapped[str] = blob_field()
    user: Mapped[User] = relationship(backref="posts")


class UserLikesPosts(MappingMixin, Base, source=User, target=Post):
    pass


@dataclass(frozen=True)
class Data:
    """A user on each shard, of age 0 to 3, with as many posts."""

    users: list[int]
    posts: list[int]


Ask = Callable[[ShardSession, Data], Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is refused, what the message says, and what works instead.

    :ivar refused: raises.
    :ivar names: what is in the message, in this order: what is the matter,
        and the way that works.
    :ivar remedy: that way.
    :ivar answer: what it returns.
    """

    refused: Ask
    names: tuple[str, ...]
    remedy: Ask
    answer: Ask


def _everyone() -> Any:
    return select(User).options(scatter())


CASES = {
    "no shard": Case(
        refused=lambda s, d: s.scalars(select(User)).all(),
        names=("cannot be told", "scatter()"),
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
            _everyone()
            .order_by(User.age)
            .limit(2)
            .options(subqueryload(User.posts))  # type: ignore[attr-defined]  # a backref
        ).all(),
        names=("subqueryload()", "selectinload()"),
        remedy=lambda s, d: [
            len(user.posts)
            for user in s.scalars(
                _everyone()
                .order_by(User.age.desc())
                .limit(2)
                .options(selectinload(User.posts))  # type: ignore[attr-defined]  # a backref
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
            for age in s.scalars(
                select(User.age).order_by(User.age).options(scatter())
            )
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
            row.target.id
            for row in UserLikesPosts.page(s, d.users[0], targets=True)
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
        names=("write Post", "has written Post", "a transaction for each"),
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


def filled() -> Any:
    """Return a fixture for a test module: the rows of its cluster."""

    @pytest.fixture(scope="module")
    def data(cluster: Cluster) -> Data:
        made = [cluster.run(_fill, shard_id) for shard_id in range(SHARDS)]
        users = [user_id for user_id, _ in made]
        posts = [post_id for _, ids in made for post_id in ids]
        cluster.run(UserLikesPosts.append_many, users[0], posts[-2:])
        return Data(users, posts)

    return data


def _fill(session: ShardSession, shard_id: int) -> tuple[int, list[int]]:
    user = User(name=f"u{shard_id}", age=shard_id, shard_id=shard_id)
    session.add(user)
    session.flush()
    posts = [
        Post(user_id=user.id, title=str(number)) for number in range(shard_id)
    ]
    session.add_all(posts)
    session.flush()
    return user.id, [post.id for post in posts]


class Remedies:
    @pytest.mark.parametrize("name", CASES)
    def test_what_the_message_names_works(
        self, cluster: Cluster, data: Data, name: str
    ) -> None:
        case = CASES[name]
        with cluster.session() as session:
            with pytest.raises(exc.ShardError) as caught:
                case.refused(session, data)
            session.rollback()
            message = str(caught.value)
            # What is the matter comes first.
            at = 0
            for part in case.names:
                found = message.find(part, at)
                assert found >= 0, f"{part!r} is not in order in: {message}"
                at = found + len(part)
            assert case.remedy(session, data) == case.answer(session, data)
