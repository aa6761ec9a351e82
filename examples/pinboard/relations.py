"""Who follows a board, and which boards hold a pin: two shards each.

What is written is on one of them: the list of the user who follows, and of
the board that a pin is saved on.  The library writes the inverse on the other
one (``inverse=`` in ``models.py``), so that both can be read in one place.

Functions of a session, for reading and for :meth:`sqla_shard.Cluster.run`.
"""

from __future__ import annotations

from dataclasses import dataclass

from examples.pinboard.boards import find
from examples.pinboard.boards import own_board
from examples.pinboard.errors import ConflictError
from examples.pinboard.models import Board
from examples.pinboard.models import BoardHasFollowers
from examples.pinboard.models import BoardHasSavedPins
from examples.pinboard.models import Pin
from examples.pinboard.models import PinInBoards
from examples.pinboard.models import User
from examples.pinboard.models import UserFollowsBoards
from examples.pinboard.models import UserHasBoards
from sqla_shard import ShardSession

__all__ = [
    "LISTED",
    "OwnedBoard",
    "boards_that_hold",
    "boards_to_save_on",
    "follow",
    "followed_boards",
    "followers",
    "follows",
    "save_pin",
    "saved_pins",
    "take_off",
    "unfollow",
]

LISTED = 100
"""How many of a list are shown, the latest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedBoard:
    """A board, and whose it is."""

    board: Board
    owner: User


def _with_owners(
    session: ShardSession, boards: list[Board]
) -> list[OwnedBoard]:
    # All owners at once: one statement for each server.
    owners = session.get_many(User, [board.user_id for board in boards])
    return [
        OwnedBoard(board=board, owner=owner)
        for board, owner in zip(boards, owners, strict=True)
        if owner is not None
    ]


# -- following


def follow(session: ShardSession, user_id: int, board_id: int) -> None:
    """Let a user follow a board; again does no harm.

    :raises ConflictError: when it is the user's own.
    """
    if find(session, Board, board_id).user_id == user_id:
        raise ConflictError("This board is yours.")
    UserFollowsBoards.append(session, user_id, board_id)


def unfollow(session: ShardSession, user_id: int, board_id: int) -> None:
    """Let a user follow a board no longer; again does no harm."""
    find(session, Board, board_id)
    UserFollowsBoards.remove(session, user_id, board_id)


def follows(session: ShardSession, user_id: int, board_id: int) -> bool:
    """Return whether a user follows a board."""
    return bool(UserFollowsBoards.contains(session, user_id, [board_id]))


def followers(session: ShardSession, board_id: int) -> int:
    """Return how many users follow a board; one shard is asked."""
    return BoardHasFollowers.count(session, board_id)


def followed_boards(session: ShardSession, user_id: int) -> list[OwnedBoard]:
    """Return the boards that a user follows, the latest first."""
    page = UserFollowsBoards.page(session, user_id, LISTED, targets=True)
    found = [row.target for row in page if row.target is not None]
    return _with_owners(session, found)


# -- saving


def save_pin(
    session: ShardSession, user_id: int, board_id: int, pin_id: int
) -> None:
    """Put a pin of another board on one's own; again does no harm.

    :raises ConflictError: when the board is the one that the pin is of.
    """
    own_board(session, user_id, board_id)
    if find(session, Pin, pin_id).board_id == board_id:
        raise ConflictError("This pin is on that board already.")
    BoardHasSavedPins.append(session, board_id, pin_id)


def take_off(
    session: ShardSession, user_id: int, board_id: int, pin_id: int
) -> None:
    """Take a saved pin off one's own board; again does no harm.

    The pin also stays on its own board.
    """
    own_board(session, user_id, board_id)
    BoardHasSavedPins.remove(session, board_id, pin_id)


def saved_pins(session: ShardSession, board_id: int) -> list[Pin]:
    """Return the pins that were saved on a board, the latest first.

    Those that their owners have removed are left out, until they are
    restored.
    """
    page = BoardHasSavedPins.page(session, board_id, LISTED, targets=True)
    return [row.target for row in page if row.target is not None]


def boards_that_hold(session: ShardSession, pin: Pin) -> list[OwnedBoard]:
    """Return the board of a pin, then those that it was saved on."""
    rows = PinInBoards.page(session, pin.id, LISTED)
    ids = [pin.board_id, *(row.board_id for row in rows)]
    found = session.get_many(Board, ids)
    return _with_owners(session, [one for one in found if one is not None])


def boards_to_save_on(
    session: ShardSession, user_id: int, pin: Pin
) -> list[Board]:
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
