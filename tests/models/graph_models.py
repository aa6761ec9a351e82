"""Users who follow each other, for the follow graph and feeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.orm import Mapped

from sqla_shard import blob_field
from sqla_shard import Cluster
from sqla_shard import ObjectMixin
from sqla_shard.contrib import Follows
from tests.models.backends import Clusters

__all__ = [
    "CLUSTERS",
    "Base",
    "Board",
    "Pin",
    "User",
    "boards",
    "follows",
    "run",
    "users",
]

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


follows = Follows(Base, user=User, board=Board, owner="user_id")


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


CLUSTERS = Clusters(Base.metadata, SHARDS)
