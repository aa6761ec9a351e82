"""Relations between objects of two shards: following users, saving pins.

A transaction writes one of them: the row of the user who follows, or of the
board that a pin is saved on.  The library writes the row on the other shard,
so that each direction can be read on one shard.

Functions of a session, for reading and for :meth:`sqla_shard.Cluster.run`;
functions that follow users or boards need its ``cross_shard="logged"``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, UTC
from typing import TypeVar

from sqlalchemy.exc import OperationalError, PendingRollbackError

from examples.pinboard.boards import find, own_board, PAGE
from examples.pinboard.errors import ConflictError
from examples.pinboard.models import (
    Board,
    BoardHasSavedPins,
    graph,
    home,
    Pin,
    PinInBoards,
    User,
    UserHasBoards,
)
from sqla_shard import scatter, ShardSession, unpack
from sqla_shard.contrib import FeedItem, FollowKind
from sqla_shard.exc import ScatterFailedError

LISTED = 100
"""Rows of a list that are shown, newest first."""
_MOMENT = 2.0
"""Seconds that a page waits for the server of another user."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedBoard:
    """A board and its owner."""

    board: Board
    owner: User


@dataclass(frozen=True, slots=True, kw_only=True)
class HomePin:
    """A pin on the home page, its board and its owner."""

    pin: Pin
    board: Board
    owner: User


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """A page of the newest pins of all that a user follows.

    :ivar next: bookmark of the next page.
    :ivar hidden: number of users whose pins are not shown, since their servers
        do not respond.
    :ivar silent: the names of these servers.
    """

    pins: list[HomePin]
    next: str | None
    hidden: int = 0
    silent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A follow of the user by another one.

    :ivar boards: number of single boards; 0 for all.
    :ivar at: when it was, in UTC.
    """

    user: User
    boards: int
    at: datetime


def reachable(session: ShardSession, cls: type[T], ids: Iterable[int]) -> list[T]:
    """Return the objects that exist, from servers that respond.

    For the parts of a page in addition to its own board: without the server of
    another user it shows less, and does not wait for long.
    """
    wanted = list(ids)
    try:
        found = session.get_many(cls, wanted)
    except (OperationalError, PendingRollbackError):
        # In another session: in this one a rollback would expire all objects
        # of the page, and without one a lost connection stays unusable.
        partial = scatter(on_error="partial", timeout=_MOMENT)
        with session.cluster.session() as other:
            try:
                found = other.get_many(cls, wanted, options=[partial])
            except ScatterFailedError:  # none of their servers has responded
                return []
    return [one for one in found if one is not None]


def _with_owners(session: ShardSession, boards: list[Board]) -> list[OwnedBoard]:
    # All owners at once: one statement for each server.
    found = reachable(session, User, [board.user_id for board in boards])
    owners = {one.id: one for one in found}
    return [
        OwnedBoard(board=board, owner=owners[board.user_id])
        for board in boards
        if board.user_id in owners
    ]


# -- following


def follow(session: ShardSession, user_id: int, board_id: int) -> None:
    """Follow a board; idempotent.

    :raises ConflictError: when it is the user's own.
    """
    if find(session, Board, board_id).user_id == user_id:
        raise ConflictError("This board is yours.")
    graph.follow_board(session, user_id, board_id)


def unfollow(session: ShardSession, user_id: int, board_id: int) -> None:
    """Unfollow a board; idempotent."""
    if find(session, Board, board_id).user_id != user_id:
        graph.unfollow_board(session, user_id, board_id)


def follow_user(session: ShardSession, user_id: int, other_id: int) -> None:
    """Follow all boards of another user, now and later.

    :raises ConflictError: when the two are the same.
    """
    find(session, User, other_id)
    if user_id == other_id:
        raise ConflictError("This is you.")
    graph.follow_user(session, user_id, other_id)


def unfollow_user(session: ShardSession, user_id: int, other_id: int) -> None:
    """Unfollow a user and all boards of the user; idempotent."""
    find(session, User, other_id)
    if user_id != other_id:
        graph.unfollow_user(session, user_id, other_id)


def follows(session: ShardSession, user_id: int, board: Board) -> bool:
    """Return whether a user follows a board, or its owner."""
    wanted = [(board.id, board.user_id)]
    return bool(graph.follows_boards(session, user_id, wanted))


def follows_user(session: ShardSession, user_id: int, other_id: int) -> bool:
    """Return whether a user follows all boards of another."""
    kind = graph.following(session, user_id, [other_id]).get(other_id)
    return kind is FollowKind.EXPLICIT


def followers(session: ShardSession, board: Board) -> int:
    """Return the number of followers of a board, read on its shard."""
    return graph.count_audience(session, board.id, board.user_id)


def counts(session: ShardSession, user_id: int) -> tuple[int, int]:
    """Return the number of followers of a user, and of followed users."""
    return (
        sum(graph.count_followers(session, user_id).values()),
        sum(graph.count_followees(session, user_id).values()),
    )


def followed_boards(session: ShardSession, user_id: int) -> list[OwnedBoard]:
    """Return the boards that a user follows one by one, latest first."""
    page = graph.followed_boards(session, user_id, LISTED)
    found = reachable(session, Board, [one.id for one in page])
    return _with_owners(session, found)


def followed_users(session: ShardSession, user_id: int) -> list[User]:
    """Return the users whose boards a user all follows, the latest first."""
    kinds = [FollowKind.EXPLICIT]
    page = graph.followees(session, user_id, LISTED, kinds=kinds)
    return reachable(session, User, [one.id for one in page])


def home_page(session: ShardSession, user_id: int, after: str | None = None) -> Home:
    """Return the newest pins of all that a user follows.

    Pins of users whose server does not respond are left out.

    :raises InvalidBookmarkError: when ``after`` belongs to another list.
    """
    try:
        page = home.page(session, user_id, PAGE, after)
    except (OperationalError, PendingRollbackError):
        # In another session, as in reachable().
        with session.cluster.session() as other:
            return _rest_of_home(other, user_id, after)
    return Home(pins=_home_pins(session, page), next=page.next)


def _rest_of_home(session: ShardSession, user_id: int, after: str | None) -> Home:
    """Return a page with the pins of users whose servers respond.

    :raises OperationalError: when the server of the user does not.
    """
    followed = [one.id for one in graph.followees(session, user_id, LISTED)]
    there = {user.id for user in reachable(session, User, followed)}
    hidden = [one for one in followed if one not in there]
    page = home.page(session, user_id, PAGE, after, authors=there)
    servers = {session.place_for(User, unpack(one).shard_id).server for one in hidden}
    return Home(
        pins=_home_pins(session, page),
        next=page.next,
        hidden=len(hidden),
        silent=tuple(sorted(servers)),
    )


def _home_pins(session: ShardSession, page: Iterable[FeedItem]) -> list[HomePin]:
    page = list(page)
    found = reachable(session, Board, [item.board_id for item in page])
    boards = {one.id: one for one in found}
    others = reachable(session, User, [item.author_id for item in page])
    owners = {one.id: one for one in others}
    return [
        HomePin(
            pin=item.post, board=boards[item.board_id], owner=owners[item.author_id]
        )
        for item in page
        if item.author_id in owners and item.board_id in boards
    ]


def notices(session: ShardSession, user_id: int) -> list[Notice]:
    """Return the latest followers of a user, the latest first."""
    page = graph.followers(session, user_id, LISTED)
    found = reachable(session, User, [one.id for one in page])
    users = {one.id: one for one in found}
    return [
        Notice(
            user=users[one.id],
            boards=one.number,
            at=datetime.fromtimestamp(one.sequence / 1_000_000, UTC),
        )
        for one in page
        if one.id in users
    ]


# -- saving


def save_pin(session: ShardSession, user_id: int, board_id: int, pin_id: int) -> None:
    """Save a pin of another board on one of the user; idempotent.

    :raises ConflictError: when the board is the one that the pin is of.
    """
    own_board(session, user_id, board_id)
    if find(session, Pin, pin_id).board_id == board_id:
        raise ConflictError("This pin is on that board already.")
    BoardHasSavedPins.append(session, board_id, pin_id)


def take_off(session: ShardSession, user_id: int, board_id: int, pin_id: int) -> None:
    """Remove a saved pin from a board of the user; idempotent.

    The pin also stays on its own board.
    """
    own_board(session, user_id, board_id)
    BoardHasSavedPins.remove(session, board_id, pin_id)


def saved_pins(session: ShardSession, board_id: int) -> list[Pin]:
    """Return the pins that were saved on a board, the latest first.

    Those that their owners have removed are left out, until they are
    restored.
    """
    page = BoardHasSavedPins.page(session, board_id, LISTED)
    return reachable(session, Pin, [row.pin_id for row in page])


def boards_that_hold(session: ShardSession, pin: Pin) -> list[OwnedBoard]:
    """Return the board of a pin, then those that it was saved on."""
    rows = PinInBoards.page(session, pin.id, LISTED)
    ids = [pin.board_id, *(row.board_id for row in rows)]
    return _with_owners(session, reachable(session, Board, ids))


def boards_to_save_on(session: ShardSession, user_id: int, pin: Pin) -> list[Board]:
    """Return the boards of a user that a pin is not on, the latest first."""
    page = UserHasBoards.page(session, user_id, LISTED, targets=True)
    rows = PinInBoards.contains(session, pin.id, [r.board_id for r in page])
    return [
        row.target
        for row in page
        if row.target is not None
        and row.board_id not in rows
        and row.board_id != pin.board_id
    ]
