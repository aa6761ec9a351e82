"""Sample users with boards, made once.

They are in ``samples.html``, a bookmark file like any other: outer folders
are users, the folders in them boards.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from sqlalchemy import select

from examples.pinboard.boards import add_board
from examples.pinboard.boards import add_pins
from examples.pinboard.importing import read_folder
from examples.pinboard.inputs import BoardInput
from examples.pinboard.inputs import PinInput
from examples.pinboard.models import Person
from examples.pinboard.models import User
from examples.quickstart.bookmarks import Folder
from examples.quickstart.bookmarks import read_folders
from sqla_shard import Cluster
from sqla_shard import ShardSession

__all__ = ["add_samples", "add_user"]

_FILE = Path(__file__).with_name("samples.html")


def add_user(
    cluster: Cluster, name: str, about: str = "", shard_id: int | None = None
) -> int:
    """Make a user that can be chosen, and return its id.

    These are two transactions, for a shard and the global keyspace: after a
    crash between them there is a user that nobody can choose, and a second
    attempt makes another.

    :param shard_id: virtual shard; by default the cluster chooses.
    :raises sqlalchemy.exc.IntegrityError: when the name is taken.
    """
    user_id = cluster.run(_add_user, name, about, shard_id)
    cluster.run(_add_person, name, about, user_id)
    return user_id


def _add_user(
    session: ShardSession, name: str, about: str, shard_id: int | None
) -> int:
    user = User(name=name, about=about)
    user.shard_id = shard_id
    session.add(user)
    session.flush()
    return user.id


def _add_person(
    session: ShardSession, name: str, about: str, user_id: int
) -> None:
    session.add(Person(name=name, about=about, user_id=user_id))


def add_samples(cluster: Cluster) -> int:
    """Make the sample users that are not there, and return how many.

    A user's boards are one transaction, and the name comes last: whoever
    can be chosen has all of them.
    """
    with cluster.session() as session:
        there = set(session.scalars(select(Person.name)))
    with _FILE.open("rb") as file:
        folders = sorted(read_folders(file), key=lambda one: one.line)
    about = {f.path[0]: f.details for f in folders if len(f.path) == 1}
    boards = [folder for folder in folders if len(folder.path) == 2]
    made = 0
    servers = cluster.topology.sole("objects").servers
    for name, group in groupby(boards, lambda one: one.path[0]):
        if name in there:
            continue
        # The first shard of the server whose turn it is would do; the last
        # one shows that it is not always shard 0.
        ranges = servers[made % len(servers)].shards
        user_id = cluster.run(
            _add_filled, name, about[name], list(group), ranges[-1].last - made
        )
        cluster.run(_add_person, name, about[name], user_id)
        made += 1
    return made


def _add_filled(
    session: ShardSession,
    name: str,
    about: str,
    folders: list[Folder],
    shard_id: int,
) -> int:
    user_id = _add_user(session, name, about, shard_id)
    for board, pins in map(_read, reversed(folders)):
        board_id = add_board(session, user_id, board)
        add_pins(session, user_id, board_id, reversed(pins))
    return user_id


def _read(folder: Folder) -> tuple[BoardInput, list[PinInput]]:
    pins, skipped = read_folder(folder)
    assert not skipped
    title = folder.path[-1]
    return BoardInput(title=title, details=folder.details), pins
