"""The tables of refused statements, with a few rows, and cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import Column, ForeignKey, join, JSON, String, Table
from sqlalchemy.orm import (
    column_property,
    DeclarativeBase,
    Mapped,
    mapped_column,
    relationship,
)

from sqla_shard import (
    blob_field,
    Cluster,
    LookupMixin,
    MappingMixin,
    ObjectMixin,
    ObjectRef,
    ReferenceMixin,
    scatter,
    ShardedId,
    ShardSession,
)
from sqla_shard.models import normalization
from sqla_shard.types import UTCTimestamp
from tests.models.backends import Clusters

SHARDS = 4


class Base(DeclarativeBase):
    pass


class User(ObjectMixin, Base, type_id=3):
    __tablename__ = "users"
    name: Mapped[str] = blob_field()
    tags: Mapped[list[str]] = blob_field(default_factory=list)
    age: Mapped[int] = mapped_column(default=0)
    nick: Mapped[str | None] = mapped_column(String(20))
    facts: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    friend_id: Mapped[int | None] = mapped_column(ObjectRef(3))
    seen: Mapped[datetime | None] = mapped_column(UTCTimestamp)
    boss_id: Mapped[int | None] = blob_field(ref="Boss", default=None)
    best_id: Mapped[int | None] = blob_field(ref="Post", default=None)
    posts: Mapped[list[Post]] = relationship(back_populates="user")


post_links = Table(
    "post_links",
    Base.metadata,
    Column("one_id", ForeignKey("posts.local_id"), primary_key=True),
    Column("other_id", ForeignKey("posts.local_id"), primary_key=True),
)


class Post(ObjectMixin, Base, type_id=2, colocate_with="user_id"):
    __tablename__ = "posts"
    user_id: Mapped[int] = mapped_column(ShardedId(3), ForeignKey("users.local_id"))
    title: Mapped[str] = blob_field()
    user: Mapped[User] = relationship(back_populates="posts")
    links: Mapped[list[Post]] = relationship(
        secondary=post_links,
        primaryjoin=lambda: Post.id == post_links.c.one_id,
        secondaryjoin=lambda: Post.id == post_links.c.other_id,
    )


class Reply(ObjectMixin, Base, type_id=4, colocate_with="post_id"):
    __tablename__ = "replies"
    post_id: Mapped[int] = blob_field(ref=Post)


class Label(Base):
    """A row on the shard of a post."""

    __tablename__ = "labels"
    post_id: Mapped[int] = mapped_column(
        ShardedId(2), ForeignKey("posts.local_id"), primary_key=True
    )
    name: Mapped[str] = mapped_column(String(20), primary_key=True)


class LabelledPost(Base):
    """A row of both tables."""

    __table__ = join(
        Post.__table__,
        Label.__table__,
        Post.__table__.c.local_id == Label.__table__.c.post_id,
    )
    id: Mapped[int] = column_property(
        Post.__table__.c.local_id, Label.__table__.c.post_id
    )


class UserLikesPosts(MappingMixin, Base, source=User, target=Post):
    pass


class Likes(MappingMixin, Base):
    """Of no table."""

    __abstract__ = True


class PostHasReaders(MappingMixin, Base, source=Post, target=User):
    pass


class UserReadsPosts(
    MappingMixin, Base, source=User, target=Post, inverse=PostHasReaders
):
    pass


class UserName(LookupMixin, Base, target=User, normalize=normalization.casefold):
    pass


class Country(ReferenceMixin, Base):
    code: Mapped[str] = mapped_column(String(2), primary_key=True)


class Setting(Base):
    """Of the global keyspace."""

    __tablename__ = "settings"
    name: Mapped[str] = mapped_column(String(20), primary_key=True)


@dataclass(frozen=True)
class Data:
    """A user on each shard, of age 0 to 3, with as many posts."""

    users: list[int]
    posts: list[int]


Ask = Callable[[ShardSession, Data], Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A refused statement, its message, and the statement that works instead.

    What they write is rolled back.

    :ivar refused: raises.
    :ivar names: parts of the message, in this order: the problem, and the
        statement that works.
    :ivar remedy: that statement.
    :ivar answer: its result.
    """

    refused: Ask
    names: tuple[str, ...]
    remedy: Ask
    answer: Ask


def rows(session: ShardSession, statement: Any) -> list[Any]:
    """Return the rows of all shards; of one column its values."""
    found = session.execute(statement.options(scatter())).all()
    return [row[0] if len(row) == 1 else tuple(row) for row in found]


#: Clusters with these tables.
REMEDIES = Clusters(Base.metadata, SHARDS, main=("main",), lookup=2)


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
    user = User(
        name=f"u{shard_id}",
        tags=["t"],
        age=shard_id,
        nick="nick" if shard_id else None,
        facts={"n": shard_id},
        shard_id=shard_id,
    )
    session.add(user)
    session.flush()
    posts = [Post(user_id=user.id, title=str(number)) for number in range(shard_id)]
    session.add_all(posts)
    session.flush()
    return user.id, [post.id for post in posts]
