"""Sample users with boards, created once.

They are in ``samples.html``, a bookmark file like any other: outer folders
are users, the folders in them boards.
"""

from __future__ import annotations

from itertools import groupby, permutations
from pathlib import Path

from sqlalchemy import select

from examples.pinboard import accounts
from examples.pinboard.boards import add_board, add_pins
from examples.pinboard.errors import TakenError
from examples.pinboard.importing import read_folder
from examples.pinboard.inputs import BoardInput, PinInput, UserInput
from examples.pinboard.models import BoardHasPins, User, UserEmail, UserHasBoards
from examples.pinboard.relations import follow, save_pin
from examples.pinboard.signing_up import sign_up
from examples.quickstart.bookmarks import Folder, read_folders
from sqla_shard import Cluster, scatter, scatter_errors, ShardSession
from sqla_shard.exc import (
    ScatterFailedError,
    ScatterTimeoutError,
    ServerUnreachableError,
)

NAMES = ("Ada", "Grace", "Mary")
_MOMENT = 2.0
"""Seconds that the first page waits for a server."""
_FILE = Path(__file__).with_name("samples.html")


def email_of(name: str) -> str:
    """Return the mail address of a sample user."""
    return f"{name.lower().replace(' ', '.')}@example.com"


def add_user(
    cluster: Cluster, name: str, about: str = "", shard_id: int | None = None
) -> int:
    """Sign a user up with :func:`email_of` the name, and return its id.

    :param shard_id: virtual shard; by default the cluster chooses.
    :raises TakenError: when the name is taken.
    """
    entered = UserInput(email=email_of(name), name=name, about=about)
    return sign_up(cluster, entered, accounts.add_user, shard_id)


def sample_users(session: ShardSession) -> list[User]:
    """Return the sample users that exist, by name."""
    emails = [email_of(name) for name in NAMES]
    found = UserEmail.resolve_many(session, emails)
    ids = [found[email] for email in emails if email in found]
    return [user for user in session.get_many(User, ids) if user is not None]


def reachable_samples(session: ShardSession) -> tuple[list[User], list[str]]:
    """Return the sample users that can be read, and the servers that hang.

    For a page that is useful without one of the servers: it waits for each
    server for a moment only, and shows the users of the others.

    :returns: the users by name, and the names of servers.
    """
    found, silent = _reachable_ids(session)
    wanted = scatter(on_error="partial", timeout=_MOMENT)
    statement = select(User).where(User.id.in_(found)).options(wanted)
    users: dict[int, User] = {}
    try:
        result = session.scalars(statement)
        errors = scatter_errors(result)
        users = {user.id: user for user in result}
    except ScatterFailedError as error:  # none of their servers has responded
        errors = dict(error.errors)
    silent |= {session.place_for(User, shard).server for shard in errors}
    return [users[one] for one in found if one in users], sorted(silent)


def _reachable_ids(session: ShardSession) -> tuple[list[int], set[str]]:
    emails = [email_of(name) for name in NAMES]
    by_server: dict[str, list[str]] = {}
    for email in emails:
        place = session.place_for(UserEmail, UserEmail.shard_of(session, email))
        by_server.setdefault(place.server, []).append(email)
    found: dict[str, int] = {}
    silent = set()
    # One server after another: no response of the others is lost.
    for server, some in by_server.items():
        try:
            ids = UserEmail.resolve_many(session, some, timeout=_MOMENT)
        except (ServerUnreachableError, ScatterTimeoutError):
            # Nothing was written; the next statement begins a transaction.
            session.rollback()
            silent.add(server)
        else:
            found.update(ids)
    return [found[email] for email in emails if email in found], silent


def add_samples(cluster: Cluster) -> int:
    """Create the sample users that are missing, and return their number.

    A user's boards are one transaction, and the address is confirmed after
    it: every user who can be chosen has all boards.
    """
    with cluster.session() as session:
        there = {user.name for user in sample_users(session)}
    if there.issuperset(NAMES):
        return 0
    with _FILE.open("rb") as file:
        folders = sorted(read_folders(file), key=lambda one: one.line)
    about = {f.path[0]: f.details for f in folders if len(f.path) == 1}
    boards = [folder for folder in folders if len(folder.path) == 2]
    old = _without_address(cluster)
    made = 0
    servers = cluster.topology.sole("objects").servers
    for name, group in groupby(boards, lambda one: one.path[0]):
        if name in there:
            continue
        # The first shard of the next server would do; the last
        # one shows that it is not always shard 0.
        shard_id = servers[made % len(servers)].shards[-1].last - made
        entered = UserInput(email=email_of(name), name=name, about=about[name])
        try:
            if name in old:
                sign_up(cluster, entered, _give_address, old[name])
                continue
            sign_up(cluster, entered, _add_filled, list(group), shard_id)
        except TakenError:
            continue  # claimed by a killed process; free in some minutes
        made += 1
    _relate(cluster)
    return made


def _without_address(cluster: Cluster) -> dict[str, int]:
    """Return the sample users of a version without mail addresses."""
    named = select(User).where(User.name.in_(NAMES)).options(scatter())
    with cluster.session() as session:
        found = session.scalars(named)
        return {user.name: user.id for user in found if user.email is None}


def _give_address(session: ShardSession, entered: UserInput, user_id: int) -> int:
    session.get_one(User, user_id).email = entered.email
    return user_id


def _add_filled(
    session: ShardSession, entered: UserInput, folders: list[Folder], shard_id: int
) -> int:
    user_id = accounts.add_user(session, entered, shard_id)
    for board, pins in map(_read, reversed(folders)):
        board_id = add_board(session, user_id, board)
        add_pins(session, user_id, board_id, reversed(pins))
    return user_id


def _read(folder: Folder) -> tuple[BoardInput, list[PinInput]]:
    pins, skipped = read_folder(folder)
    assert not skipped
    title = folder.path[-1]
    return BoardInput(title=title, details=folder.details), pins


def _relate(cluster: Cluster) -> None:
    """Follow a board of each other sample user, and save a pin of it."""
    first = {}
    with cluster.session() as session:
        for user in sample_users(session):
            for board in UserHasBoards.page(session, user.id, 1):
                for pin in BoardHasPins.page(session, board.board_id, 1):
                    first[user.id] = board.board_id, pin.pin_id
    for user_id, other in permutations(first, 2):
        board_id, pin_id = first[other]
        cluster.run(follow, user_id, board_id, cross_shard="logged")
        cluster.run(save_pin, user_id, first[user_id][0], pin_id)
