"""Users who follow each other, posts, and messages."""

from __future__ import annotations

from datetime import datetime, UTC

from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import (
    Column,
    DateTime,
    delete,
    ForeignKey,
    func,
    or_,
    Select,
    select,
    String,
    Table,
)
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    mapped_column,
    relationship,
    selectinload,
    WriteOnlyMapped,
)
from werkzeug.security import check_password_hash, generate_password_hash


class Base(DeclarativeBase):
    """Base class of the models of the application."""


db = SQLAlchemy(model_class=Base)


def now() -> datetime:
    """Return the current time in UTC, without a time zone."""
    return datetime.now(UTC)


followers = Table(
    "followers",
    Base.metadata,
    Column("follower_id", ForeignKey("users.id"), primary_key=True),
    Column("followed_id", ForeignKey("users.id"), primary_key=True),
)


class User(Base):
    """A user of the microblog."""

    __tablename__ = "users"

    id: Mapped[int] = mapped_column(primary_key=True)
    username: Mapped[str] = mapped_column(String(64), unique=True)
    email: Mapped[str] = mapped_column(String(120), unique=True)
    password_hash: Mapped[str] = mapped_column(String(256))
    about_me: Mapped[str] = mapped_column(String(140), default="")
    is_admin: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[datetime] = mapped_column(
        DateTime(timezone=True), default=now, index=True
    )

    posts: WriteOnlyMapped[Post] = relationship(
        back_populates="author", passive_deletes=True
    )
    following: WriteOnlyMapped[User] = relationship(
        secondary=followers,
        primaryjoin=lambda: followers.c.follower_id == User.id,
        secondaryjoin=lambda: followers.c.followed_id == User.id,
        back_populates="followers",
        passive_deletes=True,
    )
    followers: WriteOnlyMapped[User] = relationship(
        secondary=followers,
        primaryjoin=lambda: followers.c.followed_id == User.id,
        secondaryjoin=lambda: followers.c.follower_id == User.id,
        back_populates="following",
        passive_deletes=True,
    )

    def set_password(self, password: str) -> None:
        """Store the hash of a password."""
        self.password_hash = generate_password_hash(password)

    def check_password(self, password: str) -> bool:
        """Return whether a password is correct."""
        return check_password_hash(self.password_hash, password)

    def is_following(self, user: User) -> bool:
        """Return whether this user follows another one."""
        query = self.following.select().where(User.id == user.id)
        return db.session.scalar(query) is not None

    def follow(self, user: User) -> None:
        """Follow another user."""
        if not self.is_following(user):
            self.following.add(user)

    def unfollow(self, user: User) -> None:
        """Unfollow another user."""
        if self.is_following(user):
            self.following.remove(user)

    def followers_count(self) -> int:
        """Return the number of followers."""
        return count(self.followers.select())

    def following_count(self) -> int:
        """Return the number of users that this user follows."""
        return count(self.following.select())

    def feed(self) -> Select[tuple[Post]]:
        """Return the posts of this user and of those followed."""
        followed = select(followers.c.followed_id).where(
            followers.c.follower_id == self.id
        )
        return newest(or_(Post.user_id == self.id, Post.user_id.in_(followed)))

    def inbox(self) -> Select[tuple[Message]]:
        """Return the messages that were sent to this user."""
        return (
            select(Message)
            .where(Message.recipient_id == self.id)
            .order_by(Message.created_at.desc(), Message.id.desc())
            .options(selectinload(Message.sender))
        )


class Post(Base):
    """A post of a user."""

    __tablename__ = "posts"

    id: Mapped[int] = mapped_column(primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), index=True)
    body: Mapped[str] = mapped_column(String(140))
    created_at: Mapped[datetime] = mapped_column(
        DateTime(timezone=True), default=now, index=True
    )

    author: Mapped[User] = relationship(back_populates="posts")


class Message(Base):
    """A message from one user to another."""

    __tablename__ = "messages"

    id: Mapped[int] = mapped_column(primary_key=True)
    sender_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    recipient_id: Mapped[int] = mapped_column(ForeignKey("users.id"), index=True)
    body: Mapped[str] = mapped_column(String(140))
    created_at: Mapped[datetime] = mapped_column(
        DateTime(timezone=True), default=now, index=True
    )

    sender: Mapped[User] = relationship(foreign_keys=[sender_id])


def newest(*conditions: object) -> Select[tuple[Post]]:
    """Return posts with their authors, the newest first."""
    return (
        select(Post)
        .where(*conditions)
        .order_by(Post.created_at.desc(), Post.id.desc())
        .options(selectinload(Post.author))
    )


def search(words: str) -> Select[tuple[Post]]:
    """Return the posts that contain some words."""
    return newest(Post.body.icontains(words, autoescape=True))


def everybody() -> Select[tuple[User]]:
    """Return all users, by name."""
    return select(User).order_by(User.username)


def count(query: Select[tuple[User]] | Select[tuple[Post]]) -> int:
    """Return the number of rows of a query."""
    counted = select(func.count()).select_from(query.subquery())
    return db.session.scalar(counted) or 0


def find_user(username: str) -> User | None:
    """Return the user with a name."""
    return db.session.scalar(select(User).where(User.username == username))


def sign_up(username: str, email: str, password: str) -> User | None:
    """Add a user; return None if the name or the address is taken."""
    taken = or_(User.username == username, User.email == email)
    if db.session.scalar(select(User).where(taken)) is not None:
        return None
    user = User(username=username, email=email)
    user.set_password(password)
    db.session.add(user)
    db.session.commit()
    return user


def delete_user(user: User) -> None:
    """Delete a user with all posts, messages and follows."""
    for statement in (
        delete(Post).where(Post.user_id == user.id),
        delete(Message).where(
            or_(Message.sender_id == user.id, Message.recipient_id == user.id)
        ),
        delete(followers).where(
            or_(followers.c.follower_id == user.id, followers.c.followed_id == user.id)
        ),
    ):
        db.session.execute(statement)
    db.session.delete(user)
    db.session.commit()
