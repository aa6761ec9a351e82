"""Users who follow users, with stored counts on both sides."""

from __future__ import annotations

from typing import Any

from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_shard import Cluster, MappingMixin, ObjectMixin
from tests.models.backends import Clusters

SHARDS = 16


class Base(DeclarativeBase):
    pass


class User(ObjectMixin, Base, type_id=1):
    __tablename__ = "users"


class Follows(
    MappingMixin,
    Base,
    source=User,
    target=User,
    source_column="follower_id",
    target_column="followee_id",
    inverse="Followers",
    counted=True,
):
    pass


class Followers(
    MappingMixin,
    Base,
    source=User,
    target=User,
    source_column="followee_id",
    target_column="follower_id",
    counted=True,
):
    pass


class Likes(
    MappingMixin,
    Base,
    source=User,
    target=User,
    source_column="liking_id",
    target_column="liked_id",
    counted=True,
):
    """Has no inverse."""


class Watches(
    MappingMixin,
    Base,
    source=User,
    target=User,
    source_column="watcher_id",
    target_column="watched_id",
    inverse="Watchers",
    counted=True,
):
    pass


class Watchers(
    MappingMixin,
    Base,
    source=User,
    target=User,
    source_column="watched_id",
    target_column="watcher_id",
    spread=8,
    spread_over=SHARDS,
):
    """Is the inverse, and spread."""


class Stars(
    MappingMixin,
    Base,
    source=User,
    target=User,
    source_column="owner_id",
    target_column="fan_id",
    spread=8,
    spread_over=SHARDS,
):
    """Is spread, has no inverse, and a column of its own."""

    remark: Mapped[str | None] = mapped_column(String(40))


FOLLOWS = Clusters(Base.metadata, SHARDS)


def new_users(cluster: Cluster, count: int) -> list[int]:
    """Insert users, each on another shard, and return their ids."""
    found = []
    for number in range(count):
        with cluster.begin(shard_id=number % SHARDS) as session:
            user = User()
            session.add(user)
            session.flush()
            found.append(user.id)
    return found


def length(cluster: Cluster, cls: Any, source_id: int) -> int:
    """Return the number of rows of a list, which are read."""
    with cluster.session() as session:
        return len(list(cls.iterate(session, source_id)))
