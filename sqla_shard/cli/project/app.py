"""Adds a user with a board, and shows where they are: ``python app.py``."""

import os
from collections.abc import Sequence
from pathlib import Path

from sqla_shard import Cluster, ShardSession
from sqla_shard.cache import load_cache
from sqlalchemy import select

from models import Board, User


def sign_up(session: ShardSession) -> int:
    """Add a user with a board, in one transaction; return the id."""
    user = User(name="maker")
    session.add(user)
    session.flush()
    session.add(Board(user_id=user.id, title="Boats"))
    return user.id


def titles(session: ShardSession, user_id: int) -> Sequence[str]:
    """Return the titles of the boards of a user, from the user's shard."""
    return session.scalars(select(Board.title).where(Board.user_id == user_id)).all()


def main() -> None:
    """Run the program."""
    here = str(Path(__file__).with_name("topology.json"))
    location = os.environ.get("SQLA_SHARD_TOPOLOGY", here)
    with Cluster.from_location(location) as cluster:
        if cache := os.environ.get("SQLA_SHARD_CACHE"):
            cluster.configure_cache(**load_cache(cache))
        user_id = cluster.run(sign_up)
        with cluster.session() as session:
            print(*titles(session, user_id))
        print(cluster.explain(user_id))


if __name__ == "__main__":
    main()
