"""Users, articles and comments, and what finds them.

An article is on the shard of its author, a comment on that of its article.  The
slug of an article ends with its id, so that it needs no lookup and may change
with the title.  Names and addresses, which are unique, are keys of lookups; so
are tags, which articles share.
"""

from __future__ import annotations

import re
from datetime import datetime, UTC

from sqlalchemy import ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_shard import (
    blob_field,
    LookupMixin,
    MappingMixin,
    ObjectMixin,
    ObjectRef,
    ShardedId,
)
from sqla_shard.lookup import normalization
from sqla_shard.types import UTCTimestamp


class Base(DeclarativeBase):
    """Holds the tables of this example."""


def now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


class User(ObjectMixin, Base, type_id=1):
    """A root: the cluster chooses its shard."""

    __tablename__ = "users"

    email: Mapped[str] = blob_field()
    username: Mapped[str] = blob_field()
    password: Mapped[str] = blob_field()
    bio: Mapped[str | None] = blob_field(default=None)
    image: Mapped[str | None] = blob_field(default=None)


class Article(ObjectMixin, Base, type_id=2, colocate_with="author_id"):
    """An article, on the shard of its author."""

    __tablename__ = "articles"

    author_id: Mapped[int] = mapped_column(
        ShardedId(1), ForeignKey("users.local_id"), index=True
    )
    title: Mapped[str] = blob_field()
    description: Mapped[str] = blob_field()
    body: Mapped[str] = blob_field()
    tag_list: Mapped[list[str]] = blob_field(default_factory=list)
    created_at: Mapped[datetime] = mapped_column(
        UTCTimestamp(), default=now, index=True
    )

    @property
    def slug(self) -> str:
        """The title, for people, and the id."""
        words = re.findall("[a-z0-9]+", self.title.lower())
        return "-".join([*words, str(self.id)])


class Comment(ObjectMixin, Base, type_id=3, colocate_with="article_id"):
    """A comment, on the shard of its article; its author is on any."""

    __tablename__ = "comments"

    article_id: Mapped[int] = mapped_column(
        ShardedId(2), ForeignKey("articles.local_id"), index=True
    )
    author_id: Mapped[int] = mapped_column(ObjectRef(1))
    body: Mapped[str] = blob_field()
    created_at: Mapped[datetime] = mapped_column(UTCTimestamp(), default=now)


class UserEmail(
    LookupMixin, Base, target=User, normalize=normalization.email, field="email"
):
    """Lookup from the mail address of a user, which is unique."""


class UserName(
    LookupMixin, Base, target=User, normalize=normalization.exact, field="username"
):
    """Lookup from the name of a user, which is unique."""


class ArticleTag(
    LookupMixin, Base, target=Article, normalize=normalization.exact, unique=False
):
    """Lookup from a tag to the articles that share it."""

    key: Mapped[str]


class UserFollows(
    MappingMixin,
    Base,
    source=User,
    target=User,
    source_column="follower_id",
    target_column="followed_id",
):
    """The users that a user follows, on the shard of the follower."""

    follower_id: Mapped[int]
    followed_id: Mapped[int]


class UserFavorites(
    MappingMixin, Base, source=User, target=Article, inverse="ArticleFans"
):
    """The articles that a user likes, on the shard of the user."""

    user_id: Mapped[int]
    article_id: Mapped[int]


class ArticleFans(MappingMixin, Base, source=Article, target=User):
    """The users who like an article, on the shard of the article."""

    user_id: Mapped[int]
    article_id: Mapped[int]
