"""An application on one database, which moves while it runs.

Users follow users, send messages to them, and write posts, which count how
often they were changed.  The environment
has the URL of the database and the path of the topology; ``move`` is what
``sqla-shard migrate`` gets.
"""

from __future__ import annotations

import os
from datetime import datetime, UTC
from typing import Any

from sqlalchemy import Column, create_engine, DateTime, ForeignKey, String, Table
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    mapped_column,
    relationship,
    sessionmaker,
)

from sqla_shard import blob_field, Cluster, MappingMixin, ObjectMixin
from sqla_shard.migrate import Declaration, MappingTable, Move, Owned, Owner

WRITTEN_AT = datetime(2020, 1, 2, 3, 4, 5)


def _now() -> datetime:
    """Return the time with the precision of the column."""
    return datetime.now(UTC).replace(microsecond=0, tzinfo=None)


class Base(DeclarativeBase):
    pass


FOLLOWS = Table(
    "follows",
    Base.metadata,
    Column("follower_id", ForeignKey("users.id"), primary_key=True),
    Column("user_id", ForeignKey("users.id"), primary_key=True),
    Column("since", DateTime, default=_now),
)


class User(Base):
    __tablename__ = "users"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(50))
    following: Mapped[list[User]] = relationship(
        secondary=FOLLOWS,
        primaryjoin=lambda: User.id == FOLLOWS.c.follower_id,
        secondaryjoin=lambda: User.id == FOLLOWS.c.user_id,
        order_by=lambda: FOLLOWS.c.since.desc(),
    )


class Post(Base):
    __tablename__ = "posts"
    id: Mapped[int] = mapped_column(primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    reply_to: Mapped[int | None] = mapped_column(ForeignKey("posts.id"))
    title: Mapped[str] = mapped_column(String(50))
    changes: Mapped[int]
    written_at: Mapped[datetime] = mapped_column(DateTime)


class Message(Base):
    __tablename__ = "messages"
    id: Mapped[int] = mapped_column(primary_key=True)
    sender_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    recipient_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    content: Mapped[str] = mapped_column(String(200))


class Sharded(DeclarativeBase):
    pass


class ShardedUser(ObjectMixin, Sharded, type_id=1):
    __tablename__ = "users"
    name: Mapped[str] = blob_field()


class ShardedPost(ObjectMixin, Sharded, type_id=2, colocate_with="user_id"):
    __tablename__ = "posts"
    user_id: Mapped[int] = blob_field(ref=ShardedUser)
    reply_to: Mapped[int | None] = blob_field(default=None)
    title: Mapped[str] = blob_field()
    changes: Mapped[int] = blob_field()
    written_at: Mapped[datetime] = blob_field()


class ShardedMessage(ObjectMixin, Sharded, type_id=3, colocate_with="recipient_id"):
    __tablename__ = "messages"
    sender_id: Mapped[int] = blob_field(ref=ShardedUser)
    recipient_id: Mapped[int] = blob_field(ref=ShardedUser)
    content: Mapped[str] = blob_field()


class UserFollowsUser(
    MappingMixin,
    Sharded,
    source=ShardedUser,
    target=ShardedUser,
    source_column="follower_id",
    target_column="followee_id",
):
    pass


DECLARATION = Declaration(
    Owner("users.id", type_id=1),
    Owned("posts", colocate_with="user_id", type_id=2),
    Owned("messages", colocate_with="recipient_id", type_id=3),
    MappingTable("follows", source="follower_id", target="user_id", order_by="since"),
)
CLASSES = {
    "users": ShardedUser,
    "posts": ShardedPost,
    "messages": ShardedMessage,
    "follows": UserFollowsUser,
}


def open_move(url: str, topology: str, **options: Any) -> Move:
    """Return the move of the application, with its sessions."""
    engine = create_engine(url)
    move = Move(
        DECLARATION,
        Base.metadata,
        engine,
        Cluster.from_file(topology),
        CLASSES,
        stage=topology,
        **options,
    )
    move.watch(sessionmaker(engine))
    return move


def __getattr__(name: str) -> Any:
    if name != "move":
        raise AttributeError(name)
    return open_move(os.environ["MOVING_URL"], os.environ["MOVING_TOPOLOGY"])


# -- actions of the application, on either side


class Posts:
    """The functions of the application.

    Ids are those of either side.
    """

    def __init__(self, move: Move) -> None:
        self._move = move

    def add_user(self, name: str) -> int:
        def legacy(session: Any) -> int:
            user = User(name=name)
            session.add(user)
            session.flush()
            return user.id

        def shards(session: Any) -> int:
            user = ShardedUser(name=name)
            session.add(user)
            session.flush()
            return user.id

        return self._move.write(legacy, shards)

    def add(self, user_id: int, title: str) -> int:
        key, object_id = self._move.key, self._move.object_id

        def legacy(session: Any) -> int:
            post = Post(
                user_id=key("users", user_id),
                title=title,
                changes=0,
                written_at=WRITTEN_AT,
            )
            session.add(post)
            session.flush()
            return post.id

        def shards(session: Any) -> int:
            post = ShardedPost(
                user_id=object_id("users", user_id),
                title=title,
                changes=0,
                written_at=WRITTEN_AT.replace(tzinfo=UTC),
            )
            session.add(post)
            session.flush()
            return post.id

        return self._move.write(legacy, shards)

    def change(self, post_id: int) -> int:
        """Count a change; return the number."""

        def legacy(session: Any) -> int:
            found = self._move.key("posts", post_id)
            post = session.get(Post, found, with_for_update=True)
            post.changes += 1
            return post.changes

        def shards(session: Any) -> int:
            found = self._move.object_id("posts", post_id)
            post = session.get(ShardedPost, found, with_for_update=True)
            post.changes += 1
            return post.changes

        return self._move.write(legacy, shards)

    def delete(self, post_id: int) -> None:
        def legacy(session: Any) -> None:
            session.delete(session.get(Post, self._move.key("posts", post_id)))

        def shards(session: Any) -> None:
            found = self._move.object_id("posts", post_id)
            session.delete(session.get(ShardedPost, found))

        self._move.write(legacy, shards)

    def send(self, sender_id: int, recipient_id: int, content: str) -> int:
        key, object_id = self._move.key, self._move.object_id

        def legacy(session: Any) -> int:
            message = Message(
                sender_id=key("users", sender_id),
                recipient_id=key("users", recipient_id),
                content=content,
            )
            session.add(message)
            session.flush()
            return message.id

        def shards(session: Any) -> int:
            message = ShardedMessage(
                sender_id=object_id("users", sender_id),
                recipient_id=object_id("users", recipient_id),
                content=content,
            )
            session.add(message)
            session.flush()
            return message.id

        return self._move.write(legacy, shards)

    def follow(self, follower_id: int, user_id: int) -> None:
        key, object_id = self._move.key, self._move.object_id

        def legacy(session: Any) -> None:
            follower = session.get(User, key("users", follower_id))
            user = session.get(User, key("users", user_id))
            if user not in follower.following:
                follower.following.append(user)

        def shards(session: Any) -> None:
            UserFollowsUser.append(
                session, object_id("users", follower_id), object_id("users", user_id)
            )

        self._move.write(legacy, shards)

    def unfollow(self, follower_id: int, user_id: int) -> None:
        key, object_id = self._move.key, self._move.object_id

        def legacy(session: Any) -> None:
            follower = session.get(User, key("users", follower_id))
            user = session.get(User, key("users", user_id))
            if user in follower.following:
                follower.following.remove(user)

        def shards(session: Any) -> None:
            UserFollowsUser.remove(
                session, object_id("users", follower_id), object_id("users", user_id)
            )

        self._move.write(legacy, shards)

    def title(self, post_id: int) -> str:
        def legacy(session: Any) -> str:
            return session.get(Post, self._move.key("posts", post_id)).title

        def shards(session: Any) -> str:
            found = self._move.object_id("posts", post_id)
            return session.get(ShardedPost, found).title

        return self._move.read("posts", legacy, shards)

    def content(self, message_id: int) -> str:
        def legacy(session: Any) -> str:
            found = self._move.key("messages", message_id)
            return session.get(Message, found).content

        def shards(session: Any) -> str:
            found = self._move.object_id("messages", message_id)
            return session.get(ShardedMessage, found).content

        return self._move.read("messages", legacy, shards)
