"""An application for type checkers; checked by test_typing.py."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import assert_type

from sqlalchemy import select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_shard import (
    AsyncShardSession,
    blob_field,
    Cluster,
    full_id,
    KeyspaceMixin,
    LookupMixin,
    MappingMixin,
    ObjectId,
    ObjectMixin,
    Page,
    ShardSession,
    unpack,
)
from sqla_shard.models import Claim, normalization


class Base(KeyspaceMixin, DeclarativeBase):
    pass


class User(ObjectMixin, Base, type_id=3):
    __tablename__ = "users"

    name: Mapped[str] = blob_field()
    born: Mapped[datetime | None] = blob_field(default=None)
    tags: Mapped[list[str]] = blob_field(default_factory=list)
    rank: Mapped[int | None] = mapped_column()


class Setting(Base, keyspace="main"):
    __tablename__ = "settings"

    name: Mapped[str] = mapped_column(primary_key=True)


def attributes(user: User) -> None:
    assert_type(user.id, int)
    assert_type(user.name, str)
    assert_type(user.born, datetime | None)
    assert_type(user.tags, list[str])
    assert_type(user.rank, int | None)
    assert_type(user.ts, datetime)
    assert_type(user.shard_id, int | None)
    assert_type(user.active, bool)
    assert_type(unpack(user.id), ObjectId)
    user.deactivate()


def reading(cluster: Cluster, object_id: int) -> None:
    with cluster.session() as session:
        assert_type(session, ShardSession)
        assert_type(session.get(User, object_id), User | None)
        assert_type(session.get_one(User, object_id), User)
        assert_type(session.get_many(User, [object_id]), list[User | None])
        statement = select(User).where(User.id == object_id, User.name.like("a%"))
        assert_type(session.scalars(statement).one(), User)
        session.execute(select(full_id(User.id), User.name))


async def awaiting(cluster: Cluster, object_id: int) -> None:
    async with cluster.async_session() as session:
        assert_type(session, AsyncShardSession)
        assert_type(session.sync_session, ShardSession)
        assert_type(await session.get(User, object_id), User | None)
        assert_type(await session.get_one(User, object_id), User)
        found = await session.get_many(User, [object_id])
        assert_type(found, list[User | None])
        statement = select(User).where(User.id == object_id)
        assert_type((await session.scalars(statement)).one(), User)

    async def rename(session: AsyncShardSession, user_id: int, name: str) -> bool:
        user = await session.get(User, user_id, with_for_update=True)
        return user is not None

    assert_type(await cluster.async_run(rename, 5, name="maker"), bool)
    assert_type(await cluster.async_run(rename, 5, "maker", key="k"), bool)
    await cluster.async_run(rename, "5", "maker")  # type: ignore[arg-type, call-arg]
    async with cluster.async_begin(cross_shard="unordered") as begun:
        begun.add(User(name="maker"))
    assert_type(await cluster.aclose(), bool)


class UserFollowsUser(
    MappingMixin,
    Base,
    source=User,
    target=User,
    source_column="follower_id",
    target_column="followee_id",
):
    followee_id: Mapped[int]


def listing(session: ShardSession, user_id: int) -> None:
    UserFollowsUser.append(session, user_id, user_id)
    followed = select(UserFollowsUser.followee_id).order_by(UserFollowsUser.sequence)
    assert_type(session.scalars(followed).all(), Sequence[int])


class UserReadsPosts(MappingMixin[User, "Post"], Base):
    post_id: Mapped[int]


class Post(ObjectMixin, Base, type_id=4):
    __tablename__ = "posts"


def targets(session: ShardSession, user_id: int) -> None:
    page = UserReadsPosts.page(session, user_id, targets=True)
    assert_type(page, Page[UserReadsPosts])
    for row in page:
        assert_type(row.target, Post | None)
        assert_type(row.source, User | None)
        assert_type(row.post_id, int)
        assert_type(row.sequence, int)
        assert_type(row.target_id, int)
    targets = select(UserReadsPosts.target_id)
    mine = targets.where(UserReadsPosts.source_id == user_id)
    assert_type(session.scalars(mine).all(), Sequence[int])


class UserEmail(LookupMixin, Base, target=User, normalize=normalization.email):
    user_id: Mapped[int | None]


def finding(cluster: Cluster, session: ShardSession) -> None:
    claim = cluster.run(UserEmail.claim, "a@b.c", lifetime=timedelta(days=1))
    assert_type(claim, Claim)
    cluster.run(claim.confirm, 5)
    assert_type(cluster.run(claim.release), bool)
    assert_type(UserEmail.resolve(session, "a@b.c"), int | None)
    assert_type(UserEmail.resolve_many(session, ["a@b.c"]), dict[str, int])
    cluster.run(UserEmail.rename, "a@b.c", "d@b.c", 5)


def writing(cluster: Cluster) -> None:
    def rename(session: ShardSession, user_id: int, name: str) -> bool:
        user = session.get(User, user_id, with_for_update=True)
        if user is None:
            return False
        user.name = name
        return True

    assert_type(cluster.run(rename, 5, name="maker"), bool)
    assert_type(cluster.run(rename, 5, "maker", cross_shard="logged"), bool)
    cluster.run(rename, "5", "maker")  # type: ignore[arg-type, call-arg]
    cluster.run(rename, 5, "maker", 1)  # type: ignore[call-arg, arg-type]
    cluster.run(rename, 5, names="maker")  # type: ignore[call-arg]
    cluster.run(rename, 5, None, key="k")  # type: ignore[arg-type, call-arg]
    with cluster.begin(cross_shard="unordered") as session:
        session.add(User(name="maker", shard_id=3))
