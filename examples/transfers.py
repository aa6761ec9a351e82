"""Transfer points between users on different shards.

::

    python -m examples.transfers

A transaction is atomic on one virtual shard.  Taking points from one user and
giving them to another takes two; here neither a crash nor a server that is
down loses a point, or makes one out of nothing.

SQLite in a temporary directory; nothing has to be installed, and nothing
stays.
"""

from __future__ import annotations

import multiprocessing
import os
from tempfile import TemporaryDirectory
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_shard import blob_field, Cluster, ObjectMixin, operation, ShardSession
from sqla_shard.testing import sqlite_topology


class Base(DeclarativeBase):
    """Holds the tables of this example."""


class User(ObjectMixin, Base, type_id=3):
    """Lives on a shard of its own."""

    __tablename__ = "users"

    name: Mapped[str] = blob_field()
    points: Mapped[int] = mapped_column(default=0)


class NotEnoughError(Exception):
    """Raised for more points than the user has."""


@operation("examples.give_points")
def give_points(session: ShardSession, user_id: int, points: int) -> None:
    """Give points: an operation, executed later on another shard."""
    user = session.get(User, user_id, with_for_update=True)
    if user is not None:  # the user may have been deleted
        user.points += points


def transfer(session: ShardSession, giver_id: int, taker_id: int, points: int) -> None:
    """Take points from one user, and schedule giving them to another.

    Conditions are checked here, on the shard of the sender: an operation runs
    later, when it cannot be refused any more.
    """
    giver = session.get_one(User, giver_id, with_for_update=True)
    if giver.points < points:
        raise NotEnoughError(f"{giver.name} has {giver.points}")
    giver.points -= points
    give_points.intend(session, taker_id, points)


def add_user(session: ShardSession, name: str, points: int, shard_id: int) -> int:
    """Write a user on a shard of our choice, to know what will happen."""
    user = User(name=name, points=points, shard_id=shard_id)
    session.add(user)
    session.flush()
    return user.id


def points_of(cluster: Cluster, ids: list[int]) -> list[int]:
    """Return the points of users."""
    with cluster.session() as session:
        return [u.points for u in session.get_many(User, ids) if u]


def show_transfer(cluster: Cluster, ids: list[int]) -> None:
    """Transfer points, and try to transfer too many."""
    cluster.run(transfer, *ids, 30, cross_shard="logged")
    assert points_of(cluster, ids) == [70, 30]
    print("ada has given 30 of 100 points to grace:", points_of(cluster, ids))
    try:
        cluster.run(transfer, *ids, 1000, cross_shard="logged")
    except NotEnoughError as error:
        print("1,000 more are refused:", error)
    assert points_of(cluster, ids) == [70, 30]
    assert cluster.pending() == []


def crash(topology: dict[str, Any], ids: list[int]) -> None:
    """Transfer 20 points, in a process that dies right after COMMIT."""
    with (
        Cluster.from_topology(topology) as cluster,
        cluster.begin(cross_shard="logged") as session,
    ):
        event.listen(session, "after_commit", lambda _: os._exit(9))
        transfer(session, *ids, 20)


def show_crash(cluster: Cluster, ids: list[int]) -> None:
    """Lose a process after COMMIT, and repair its pending operation."""
    process = multiprocessing.get_context("spawn").Process(
        target=crash, args=(cluster.topology.to_mapping(), ids)
    )
    process.start()
    process.join()
    assert process.exitcode == 9
    assert points_of(cluster, ids) == [50, 30]
    print("\nA process has died after COMMIT:", points_of(cluster, ids))
    (left,) = cluster.pending()
    print(f"It has left {left.operation!r} with {left.arguments['points']}.")

    # A worker, `sqla-shard repair --models examples.transfers`, does it half
    # a minute later: it leaves time to the process that wrote it.
    report = cluster.repair(now=True)
    assert report.applied == 1
    assert points_of(cluster, ids) == [50, 50]
    print("Repaired:", points_of(cluster, ids))
    assert cluster.repair(now=True).applied == 0
    assert points_of(cluster, ids) == [50, 50]
    print("Repaired once more, and nothing is done twice.")


def show(cluster: Cluster) -> None:
    """Show all of it, where the shards 3 and 12 are on two servers."""
    cluster.create_all(Base.metadata)
    ids = [
        cluster.run(add_user, "ada", 100, shard_id=3),
        cluster.run(add_user, "grace", 0, shard_id=12),
    ]
    show_transfer(cluster, ids)
    show_crash(cluster, ids)


def main() -> None:
    """Run the example on SQLite: two servers with 16 virtual shards."""
    with TemporaryDirectory() as directory:
        topology = sqlite_topology(directory, servers=2, shards=16)
        with Cluster.from_topology(topology) as cluster:
            show(cluster)


if __name__ == "__main__":
    main()
