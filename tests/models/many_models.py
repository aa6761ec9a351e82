"""Classes that are related many-to-many, and clusters with their tables.

Posts and labels belong to a user, so that those of one user are on one
shard.  The columns of the link tables have the types of what they refer to.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Column, ForeignKey, String, Table
from sqlalchemy.ext.associationproxy import association_proxy, AssociationProxy
from sqlalchemy.orm import (
    DeclarativeBase,
    foreign,
    Mapped,
    mapped_column,
    relationship,
    WriteOnlyMapped,
)

from sqla_shard import (
    blob_field,
    Cluster,
    ObjectMixin,
    ObjectRef,
    ReferenceMixin,
    ShardedId,
)
from tests.models.backends import Clusters, On
from tests.models.layouts import LAYOUT

SHARDS = 8


class Base(DeclarativeBase):
    id_layout = LAYOUT


class Topic(ReferenceMixin, Base):
    """The same rows on every shard."""

    code: Mapped[str] = mapped_column(String(20), primary_key=True)


class User(ObjectMixin, Base, type_id=3):
    __tablename__ = "users"
    name: Mapped[str] = blob_field()
    posts: Mapped[list[Post]] = relationship(back_populates="user")
    drafts: WriteOnlyMapped[Draft] = relationship(back_populates="user")
    saved: Mapped[list[Post]] = relationship(secondary="user_saves")
    watched: WriteOnlyMapped[Post] = relationship(secondary="user_watches")


def _cascading(name: str, target: str) -> Column[Any]:
    key = ForeignKey(target, ondelete="CASCADE")
    return Column(name, key, primary_key=True)


post_labels = Table(
    "post_labels",
    Base.metadata,
    _cascading("post_id", "posts.local_id"),
    _cascading("label_id", "labels.local_id"),
)
#: Without a primary key, as in many tutorials.
post_posts = Table(
    "post_posts",
    Base.metadata,
    Column("post_id", ForeignKey("posts.local_id"), nullable=False),
    Column("related_id", ForeignKey("posts.local_id"), nullable=False),
)
post_topics = Table(
    "post_topics",
    Base.metadata,
    Column("topic_code", ForeignKey("topic.code"), primary_key=True),
    Column("post_id", ForeignKey("posts.local_id"), primary_key=True),
)
user_saves = Table(
    "user_saves",
    Base.metadata,
    Column("user_id", ForeignKey("users.local_id"), primary_key=True),
    Column("post_id", ForeignKey("posts.local_id"), primary_key=True),
)
user_watches = Table(
    "user_watches",
    Base.metadata,
    Column("user_id", ForeignKey("users.local_id"), primary_key=True),
    Column("post_id", ForeignKey("posts.local_id"), primary_key=True),
)


class Post(ObjectMixin, Base, type_id=4, colocate_with="user_id"):
    __tablename__ = "posts"
    user_id: Mapped[int] = mapped_column(ShardedId(3), ForeignKey("users.local_id"))
    #: On any shard.
    reviewer_id: Mapped[int | None] = mapped_column(ObjectRef(3))
    title: Mapped[str] = blob_field(default="")
    user: Mapped[User] = relationship(back_populates="posts", foreign_keys=[user_id])
    reviewer: Mapped[User | None] = relationship(
        primaryjoin=lambda: foreign(Post.reviewer_id) == User.id, viewonly=True
    )
    labels: Mapped[list[Label]] = relationship(
        secondary=post_labels, back_populates="posts"
    )
    related: Mapped[list[Post]] = relationship(
        secondary=post_posts,
        primaryjoin=lambda: Post.id == post_posts.c.post_id,
        secondaryjoin=lambda: Post.id == post_posts.c.related_id,
        back_populates="relating",
    )
    relating: Mapped[list[Post]] = relationship(
        secondary=post_posts,
        primaryjoin=lambda: Post.id == post_posts.c.related_id,
        secondaryjoin=lambda: Post.id == post_posts.c.post_id,
        back_populates="related",
    )
    topics: Mapped[list[Topic]] = relationship(secondary=post_topics)
    votes: Mapped[list[Vote]] = relationship(
        back_populates="post", cascade="all, delete-orphan"
    )
    voters: AssociationProxy[list[User]] = association_proxy(
        "votes", "user", creator=lambda user: Vote(user=user, stars=1)
    )


class Label(ObjectMixin, Base, type_id=5, colocate_with="owner_id"):
    __tablename__ = "labels"
    owner_id: Mapped[int] = blob_field(ref=User)
    text: Mapped[str] = blob_field(default="")
    posts: Mapped[list[Post]] = relationship(
        secondary=post_labels, back_populates="labels"
    )


class Draft(ObjectMixin, Base, type_id=6, colocate_with="user_id"):
    """Its user has no list of drafts, only a way to add to them."""

    __tablename__ = "drafts"
    user_id: Mapped[int] = mapped_column(ShardedId(3), ForeignKey("users.local_id"))
    title: Mapped[str] = blob_field(default="")
    user: Mapped[User] = relationship(back_populates="drafts")


class Vote(Base):
    """An association object: a link with something in it."""

    __tablename__ = "votes"
    post_id: Mapped[int] = mapped_column(ForeignKey("posts.local_id"), primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.local_id"), primary_key=True)
    stars: Mapped[int]
    post: Mapped[Post] = relationship(back_populates="votes")
    user: Mapped[User] = relationship()


_TOPICS = [{"code": "news"}, {"code": "sport"}]


@contextmanager
def _with_topics(cluster: Cluster, request: Any, on: On) -> Iterator[None]:
    Topic.replace(cluster, _TOPICS)
    yield


#: Clusters with these tables.
MANY = Clusters(Base.metadata, SHARDS, prepare=_with_topics)
many_on_sqlite = MANY.on_sqlite
many_on_servers = MANY.on_servers
