"""Users who follow each other, posts, and messages."""

from __future__ import annotations

from datetime import datetime, UTC

from sqlalchemy import delete, ForeignKey, func, Select, select, String
from sqlalchemy.orm import (
    DeclarativeBase,
    foreign,
    Mapped,
    mapped_column,
    relationship,
    selectinload,
    WriteOnlyMapped,
)
from werkzeug.security import check_password_hash, generate_password_hash

from sqla_shard import (
    lookup,
    LookupMixin,
    MappingMixin,
    ObjectMixin,
    ObjectRef,
    scatter,
    ShardedId,
    ShardSession,
)
from sqla_shard.exc import KeyTakenError
from sqla_shard.ext.flask import FlaskCluster
from sqla_shard.lookup import normalization
from sqla_shard.models.deletion import delete_object
from sqla_shard.types import UTCTimestamp


class Base(DeclarativeBase):
    """Base class of the models of the application."""


db = FlaskCluster(metadata=Base.metadata)


def now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


class User(ObjectMixin, Base, type_id=1):
    """A user of the microblog."""

    __tablename__ = "users"

    username: Mapped[str] = mapped_column(String(64))
    email: Mapped[str] = mapped_column(String(120))
    password_hash: Mapped[str] = mapped_column(String(256))
    about_me: Mapped[str] = mapped_column(String(140), default="")
    is_admin: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[datetime] = mapped_column(
        UTCTimestamp(), default=now, index=True
    )

    posts: WriteOnlyMapped[Post] = relationship(
        back_populates="author", passive_deletes=True
    )

    def set_password(self, password: str) -> None:
        """Store the hash of a password."""
        self.password_hash = generate_password_hash(password)

    def check_password(self, password: str) -> bool:
        """Return whether a password is correct."""
        return check_password_hash(self.password_hash, password)

    def is_following(self, user: User) -> bool:
        """Return whether this user follows another one."""
        found = UserFollowsUsers.contains(db.session, self.id, [user.id])
        return user.id in found

    def follow(self, user: User) -> None:
        """Follow another user."""
        UserFollowsUsers.append(db.session, self.id, user.id)

    def unfollow(self, user: User) -> None:
        """Unfollow another user."""
        UserFollowsUsers.remove(db.session, self.id, user.id)

    def followers_count(self) -> int:
        """Return the number of followers."""
        return UserHasFollowers.count(db.session, self.id)

    def following_count(self) -> int:
        """Return the number of users that this user follows."""
        return UserFollowsUsers.count(db.session, self.id)

    def feed(self) -> Select[tuple[Post]]:
        """Return the posts of this user and of those followed."""
        followed = UserFollowsUsers.iterate(db.session, self.id)
        ids = [self.id, *(row.followed_id for row in followed)]
        return newest(Post.user_id.in_(ids))

    def inbox(self) -> Select[tuple[Message]]:
        """Return the messages that were sent to this user."""
        return (
            select(Message)
            .where(Message.recipient_id == self.id)
            .order_by(Message.created_at.desc(), Message.id.desc())
            .options(selectinload(Message.sender))
        )


class UserName(
    LookupMixin, Base, target=User, normalize=normalization.exact, field="username"
):
    """Lookup from the name of a user, which is unique."""


class UserEmail(
    LookupMixin, Base, target=User, normalize=normalization.email, field="email"
):
    """Lookup from the mail address of a user, which is unique."""


class UserFollowsUsers(
    MappingMixin,
    Base,
    source=User,
    target=User,
    source_column="follower_id",
    target_column="followed_id",
    inverse="UserHasFollowers",
):
    """The users that a user follows."""


class UserHasFollowers(
    MappingMixin,
    Base,
    source=User,
    target=User,
    source_column="followed_id",
    target_column="follower_id",
):
    """The followers of a user."""


class Post(ObjectMixin, Base, type_id=2, colocate_with="user_id"):
    """A post of a user."""

    __tablename__ = "posts"

    user_id: Mapped[int] = mapped_column(
        ShardedId(1), ForeignKey("users.local_id"), index=True
    )
    body: Mapped[str] = mapped_column(String(140))
    created_at: Mapped[datetime] = mapped_column(
        UTCTimestamp(), default=now, index=True
    )

    author: Mapped[User] = relationship(back_populates="posts")


class Message(ObjectMixin, Base, type_id=3, colocate_with="recipient_id"):
    """A message from one user to another."""

    __tablename__ = "messages"

    sender_id: Mapped[int] = mapped_column(ObjectRef(1))
    recipient_id: Mapped[int] = mapped_column(
        ShardedId(1), ForeignKey("users.local_id"), index=True
    )
    body: Mapped[str] = mapped_column(String(140))
    created_at: Mapped[datetime] = mapped_column(
        UTCTimestamp(), default=now, index=True
    )

    sender: Mapped[User | None] = relationship(
        primaryjoin=lambda: foreign(Message.sender_id) == User.id, viewonly=True
    )


def newest(*conditions: object) -> Select[tuple[Post]]:
    """Return posts with their authors, the newest first."""
    return (
        select(Post)
        .where(*conditions)
        .order_by(Post.created_at.desc(), Post.id.desc())
        .options(selectinload(Post.author), scatter(max_offset=1000))
    )


def search(words: str) -> Select[tuple[Post]]:
    """Return the posts that contain some words."""
    return newest(Post.body.icontains(words, autoescape=True))


def everybody() -> Select[tuple[User]]:
    """Return all users, by name."""
    ordered = select(User).order_by(User.username)
    return ordered.options(scatter(max_offset=10_000))


def count(query: Select[tuple[User]] | Select[tuple[Post]]) -> int:
    """Return the number of rows of a query."""
    counted = select(func.count()).select_from(query.subquery())
    return db.session.scalar(counted) or 0


def find_user(username: str) -> User | None:
    """Return the user with a name."""
    user_id = UserName.resolve(db.session, username)
    return None if user_id is None else db.session.get(User, user_id)


def sign_up(username: str, email: str, password: str) -> User | None:
    """Add a user; return None if the name or the address is taken."""
    keys = {UserName: username, UserEmail: email}
    try:
        user_id = lookup.sign_up(db.cluster, keys, add_user, username, email, password)
    except KeyTakenError:
        return None
    return db.session.get(User, user_id)


def add_user(session: ShardSession, username: str, email: str, password: str) -> int:
    """Write a user, and return its id."""
    user = User(username=username, email=email)
    user.set_password(password)
    session.add(user)
    session.flush()
    return user.id


def delete_user(user: User) -> None:
    """Delete a user with all posts, messages and follows."""
    db.run(delete_sent, user.id, cross_shard="unordered")
    delete_object(db.cluster, User, user.id)


def delete_sent(session: ShardSession, user_id: int) -> None:
    """Delete the messages that a user has sent, on all shards."""
    sent = delete(Message).where(Message.sender_id == user_id)
    session.execute(sent.options(scatter()))
