"""A follow graph of users alone, and its feeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import DeclarativeBase, Mapped

from sqla_shard import blob_field, Cluster, ObjectMixin, ShardSession
from sqla_shard.contrib import (
    Feed,
    FollowKind,
    Follows,
    forget_deleted_board,
    purge_follows,
    repair_follows,
    StoredFollows,
)
from sqla_shard.exc import ClassDefinitionError, FollowError, FollowRefusedError
from sqla_shard.models.deletion import delete_object
from sqla_shard.testing import sqlite_topology


class Base(DeclarativeBase):
    pass


class User(ObjectMixin, Base, type_id=3):
    __tablename__ = "users"


class Post(ObjectMixin, Base, type_id=1, colocate_with="user_id"):
    __tablename__ = "posts"
    user_id: Mapped[int] = blob_field(ref=User)


follows = Follows(Base, user=User, name="people", count_slots=2)
stored = StoredFollows(follows)
feeds = [
    Feed(Base, follows=one, post=Post, name=f"people_feeds_{number}")
    for number, one in enumerate((follows, stored))
]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster.from_topology(sqlite_topology(tmp_path, 2, 8)) as cluster:
        cluster.create_all(Base.metadata)
        yield cluster


@pytest.fixture
def ids(cluster: Cluster) -> list[int]:
    """Users: the second to the fourth follow the first."""
    ids = [cluster.run(_new_user, shard_id) for shard_id in range(4)]
    for one in ids[1:]:
        assert run(cluster, follows.follow_user, one, ids[0])
    return ids


def _new_user(session: ShardSession, shard_id: int) -> int:
    user = User(shard_id=shard_id)
    session.add(user)
    session.flush()
    return user.id


def run(cluster: Cluster, change: Callable[..., Any], *ids: int) -> Any:
    return cluster.run(change, *ids, cross_shard="logged")


def test_it_has_no_tables_of_boards():
    names = [one for one in Base.metadata.tables if "board" in one]
    assert names == []


def test_lists_and_counts(cluster, ids):
    ada, bob, *others = ids
    with cluster.session() as session:
        for lists in (follows, stored):
            assert lists.following(session, bob, ids) == {ada: FollowKind.EXPLICIT}
            assert lists.relations(session, bob, [ada], [ada]).users == {ada: 1}
            assert lists.count_audience(session, ada, ada) == 3
            assert list(lists.followed_boards(session, bob)) == []
            batches = list(lists.audience(session, ada, ada, batch=2))
            assert {one for batch in batches for one in batch.users} == {bob, *others}
            assert batches[-1].position is None
    with pytest.raises(FollowRefusedError, match="has no boards: give"):
        run(cluster, follows.follow_board, bob, ada)
    with pytest.raises(FollowError, match="has no boards: give"):
        forget_deleted_board(cluster, follows, ada)
    assert run(cluster, follows.block, ada, bob)
    with cluster.session() as session:
        assert follows.following(session, bob, [ada]) == {}


@pytest.mark.parametrize("feed", feeds, ids=["tables", "stored"])
def test_feeds(cluster, ids, feed):
    ada, bob, *_ = ids

    def publish(session: ShardSession, author_id: int) -> int:
        post = Post(user_id=author_id)
        session.add(post)
        session.flush()
        feed.publish(session, author_id, author_id, post.id)
        return post.id

    posts = [cluster.run(publish, one) for one in (ada, bob, ada)]
    with cluster.session() as session:
        assert [one.post.id for one in feed.page(session, bob)] == posts[::-2]


def test_deletions_and_repairs(cluster, ids):
    ada, bob, *_ = ids
    delete_object(cluster, User, bob)
    cluster.repair()
    assert repair_follows(cluster, follows).changed == 0
    assert purge_follows(cluster, follows, timedelta(0)) == 2
    with cluster.session() as session:
        assert follows.count_audience(session, ada, ada) == 2


@pytest.mark.parametrize("options", [{"board": Post}, {"owner": "user_id"}])
def test_half_of_the_boards(options):
    with pytest.raises(ClassDefinitionError, match="give both, or neither"):
        Follows(Base, user=User, name="half", **options)
