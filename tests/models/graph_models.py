"""Users who follow each other, for the follow graph and feeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy.orm import DeclarativeBase, Mapped

from sqla_shard import blob_field, Cluster, ObjectMixin, ShardSession
from sqla_shard.contrib import Feed, Follows, StoredFollows
from tests.models.backends import Clusters

SHARDS = 8


class Base(DeclarativeBase):
    pass


class User(ObjectMixin, Base, type_id=3):
    __tablename__ = "users"


class Board(ObjectMixin, Base, type_id=2, colocate_with="user_id"):
    __tablename__ = "boards"
    user_id: Mapped[int] = blob_field(ref=User)


class Pin(ObjectMixin, Base, type_id=1, colocate_with="board_id"):
    __tablename__ = "pins"
    board_id: Mapped[int] = blob_field(ref=Board)


#: Not "follows" and "feeds", which are of the pinboard in the same process.
follows = Follows(
    Base, user=User, board=Board, owner="user_id", name="graph", count_slots=4
)
stored = StoredFollows(follows)
feed = Feed(Base, follows=follows, post=Pin, name="graph_feeds", batch=2)


def users(cluster: Cluster, count: int) -> list[int]:
    """Return new users, on one shard after another."""
    found = []
    for number in range(count):
        with cluster.begin(shard_id=number % SHARDS) as session:
            user = User()
            session.add(user)
            session.flush()
            found.append(user.id)
    return found


def boards(cluster: Cluster, user_id: int, count: int) -> list[int]:
    """Return new boards of a user."""
    with cluster.begin() as session:
        made = [Board(user_id=user_id) for _ in range(count)]
        session.add_all(made)
        session.flush()
        return [board.id for board in made]


def run(cluster: Cluster, change: Callable[..., Any], *args: int) -> Any:
    """Run a change of the graph in a transaction."""
    return cluster.run(change, *args, cross_shard="logged")


def pin(cluster: Cluster, user_id: int, board_id: int) -> int:
    """Return a new pin, which is in feeds."""

    def add(session: ShardSession) -> int:
        pin = Pin(board_id=board_id)
        session.add(pin)
        session.flush()
        feed.publish(session, user_id, board_id, pin.id)
        return pin.id

    return cluster.run(add)


def ids_of(cluster: Cluster, user_id: int, limit: int = 3) -> list[int]:
    """Return the pins of all pages of a feed; check the order."""
    found, after = [], None
    while True:
        with cluster.session() as session:
            page = feed.page(session, user_id, limit, after)
            found += [(item.sequence, item.post.id) for item in page]
        after = page.next
        if after is None:
            break
        assert len(page) == limit
    assert found == sorted(set(found), reverse=True)
    return [pin_id for _, pin_id in found]


CLUSTERS = Clusters(Base.metadata, SHARDS)
