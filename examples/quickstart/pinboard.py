"""Write objects, and read them again: all calls of the library.

Everything goes through a :class:`~sqla_shard.Cluster`.  Its sessions are used
as those of SQLAlchemy; no call names the shard that an object is written to
or read from.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, cycle
from typing import Any

from examples.quickstart.bookmarks import Folder
from examples.quickstart.models import Board, Pin, User
from sqla_shard import Cluster, ShardSession
from sqla_shard.topology import Keyspace

DEFAULT_BOARD = "Unsorted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A folder, and the ids of the board and the pins made of it."""

    folder: Folder
    user_id: int
    board_id: int
    pin_ids: list[int]


def add_user(session: ShardSession, name: str) -> int:
    """Write a user, on a shard that the cluster chooses."""
    user = User(name=name)
    session.add(user)
    session.flush()
    return user.id


def add_board(session: ShardSession, user_id: int, folder: Folder) -> Stored:
    """Write a board and its pins, on the shard that the user's id names."""
    board = Board(
        user_id=user_id,
        title=" / ".join(folder.path) or DEFAULT_BOARD,
        details=folder.details,
    )
    session.add(board)
    session.flush()  # now the board has its id, which its pins need
    pins = [
        Pin(
            board_id=board.id,
            link=link.url,
            title=link.title,
            details=link.details,
            tags=list(link.tags),
            added=link.added,
        )
        for link in folder.links
    ]
    session.add_all(pins)
    session.flush()
    return Stored(
        folder=folder,
        user_id=user_id,
        board_id=board.id,
        pin_ids=[pin.id for pin in pins],
    )


def import_folders(
    cluster: Cluster, folders: Sequence[Folder], names: Sequence[str]
) -> Iterator[Stored]:
    """Store folders as boards, one transaction each, and yield the results.

    :param names: of new users, who get the boards in turn.
    """
    # run() opens a session, commits, and retries after a deadlock.
    users = [cluster.run(add_user, name) for name in names[: len(folders)]]
    for user_id, folder in zip(cycle(users), folders, strict=False):
        yield cluster.run(add_board, user_id, folder)


def check(cluster: Cluster, imported: Sequence[Stored]) -> None:
    """Read everything by id and compare it with the folders.

    :raises AssertionError: when an object is missing or different.
    """
    ids = [pin_id for stored in imported for pin_id in stored.pin_ids]
    links = [link for stored in imported for link in stored.folder.links]
    with cluster.session() as session:
        # Pins of all shards at once, in the order of the ids.
        pins = session.get_many(Pin, ids)
        for pin, link in zip(pins, links, strict=True):
            assert pin is not None
            assert (pin.link, pin.title) == (link.url, link.title)
            assert (pin.details, pin.added) == (link.details, link.added)
            assert tuple(pin.tags) == link.tags
        for stored in imported:
            user = session.get(User, stored.user_id)
            board = session.get(Board, stored.board_id)
            assert user is not None
            assert board is not None
            assert board.user_id == user.id
            # Objects that belong together are on one shard.
            together = {user.shard_id, board.shard_id}
            together |= {cluster.explain(i).shards[0] for i in stored.pin_ids}
            assert len(together) == 1


class Deal:
    """A placement policy that assigns new users to the servers in turn.

    The default, a random shard, spreads many users evenly.  The few of an
    import would all be on one of two servers in every eighth import.
    """

    def __init__(self) -> None:
        self._turn = count()

    def __call__(self, *, keyspace: Keyspace, cls: type[Any], **context: Any) -> int:
        """Return a random shard of the next server that takes users."""
        servers = [one for one in keyspace.servers if one.weight > 0]
        server = servers[next(self._turn) % len(servers)]
        shards = random.choice(server.shards)  # noqa: S311  # not a secret
        return random.randint(shards.first, shards.last)  # noqa: S311
