"""Boards and pins: operations of the application, one transaction each.

Functions of a session, independent of HTTP.  Those that write are for
:meth:`sqla_shard.Cluster.run`, which repeats the victim of a deadlock, so
they do nothing else, check the owner themselves, and return plain values.

A removed pin is inactive, retains its row in ``board_has_pins``, and gets one
in ``board_has_removed_pins``.  So it comes back to the place that it had,
and the pins that were its neighbours can be moved meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import func, select

from examples.pinboard.errors import ConflictError, ForbiddenError, NotFoundError
from examples.pinboard.inputs import BoardInput, PinInput, read_board, read_pin
from examples.pinboard.models import (
    Board,
    BoardHasPins,
    BoardHasRemovedPins,
    home,
    Import,
    Pin,
    User,
    UserHasBoards,
)
from examples.pinboard.titles import enqueue_title
from sqla_shard import ShardSession
from sqla_shard.exc import (
    InvalidIdError,
    InvalidMoveError,
    StaleListError,
    UnknownShardError,
)

PAGE = 24
"""Pins of a page; a multiple of 2, 3 and 4, so that rows are full."""
MAX_REMOVED = 100
"""Removed pins that are listed, the latest."""
_ROUNDS = 8

T = TypeVar("T", User, Board, Pin, Import)


@dataclass(frozen=True, slots=True, kw_only=True)
class PinPage:
    """Some pins of a board, in order.

    :ivar next: bookmark of those after them; None at the end.
    """

    pins: list[Pin]
    next: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardTile:
    """A board, the number of its pins, and the first of them."""

    board: Board
    count: int
    pins: list[Pin]


# -- reading


def find(session: ShardSession, cls: type[T], object_id: int, **options: Any) -> T:
    """Return an object.

    :param options: for :meth:`sqlalchemy.orm.Session.get`.
    :raises NotFoundError: when there is no object of that class and id; the
        id may be of another class, of a shard that is not open, or not an
        id at all.
    """
    try:
        found = session.get(cls, object_id, **options)
    except (InvalidIdError, UnknownShardError):
        found = None
    if found is None:
        raise NotFoundError(f"There is no such {cls.__name__.lower()}.")
    return found


def pin_page(session: ShardSession, board_id: int, after: str | None = None) -> PinPage:
    """Return a page of the pins of a board.

    Removed pins leave gaps in the pages of the mapping; so it reads on,
    some rounds at most, until there is something to show.

    :param after: bookmark of the page before.
    :raises InvalidBookmarkError: when it belongs to another list.
    """
    pins: list[Pin] = []
    for _ in range(_ROUNDS):
        page = BoardHasPins.page(
            session, board_id, limit=PAGE, after=after, targets=True
        )
        pins += [row.target for row in page if row.target is not None]
        after = page.next
        if after is None or len(pins) >= PAGE // 2:
            break
    return PinPage(pins=pins, next=after)


def removed_pins(session: ShardSession, board_id: int) -> list[Pin]:
    """Return the pins that were removed from a board, the latest first."""
    page = BoardHasRemovedPins.page(session, board_id, limit=MAX_REMOVED)
    ids = [row.pin_id for row in page]
    found = session.get_many(Pin, ids, execution_options={"include_inactive": True})
    return [pin for pin in found if pin is not None and not pin.active]


def pin_counts(session: ShardSession, board_id: int) -> tuple[int, int]:
    """Return how many pins a board shows, and how many were removed."""
    removed = BoardHasRemovedPins.count(session, board_id)
    return BoardHasPins.count(session, board_id) - removed, removed


def _lengths(
    session: ShardSession, mapping: Any, board_ids: Sequence[int]
) -> dict[int, int]:
    # The boards of a user are on one shard, so it can count them together.
    rows = session.execute(
        select(mapping.board_id, func.count())
        .where(mapping.board_id.in_(board_ids))
        .group_by(mapping.board_id)
    )
    return {row[0]: row[1] for row in rows}


def board_tiles(
    session: ShardSession, user_id: int, after: str | None = None
) -> tuple[list[BoardTile], str | None]:
    """Return some boards of a user with their first pins, and a bookmark.

    :raises InvalidBookmarkError: when ``after`` belongs to another list.
    """
    page = UserHasBoards.page(session, user_id, limit=PAGE, after=after, targets=True)
    boards = [row.target for row in page if row.target is not None]
    ids = [board.id for board in boards]
    pages = BoardHasPins.pages(session, ids, limit=6, targets=True)
    counts = _lengths(session, BoardHasPins, ids)
    removed = _lengths(session, BoardHasRemovedPins, ids)
    tiles = []
    for board in boards:
        pins = [row.target for row in pages[board.id]]
        tiles.append(
            BoardTile(
                board=board,
                count=counts.get(board.id, 0) - removed.get(board.id, 0),
                pins=[pin for pin in pins if pin is not None][:4],
            )
        )
    return tiles, page.next


def position_of(session: ShardSession, pin: Pin) -> int | None:
    """Return the sequence of a pin on its board."""
    return BoardHasPins.position(session, pin.board_id, pin.id)


# -- writing


def own_board(session: ShardSession, user_id: int, board_id: int) -> Board:
    """Return a board of a user.

    :raises ForbiddenError: when it belongs to another user.
    """
    board = find(session, Board, board_id)
    if board.user_id != user_id:
        raise ForbiddenError("This board belongs to another user.")
    return board


def _own_pin(session: ShardSession, user_id: int, pin_id: int, **options: Any) -> Pin:
    pin = find(session, Pin, pin_id, **options)
    own_board(session, user_id, pin.board_id)
    return pin


def add_board(session: ShardSession, user_id: int, entered: BoardInput) -> int:
    """Write a board, on top of the others, and return its id."""
    user = find(session, User, user_id)
    board = Board(user_id=user.id, title=entered.title, details=entered.details)
    session.add(board)
    session.flush()  # assigns its id
    UserHasBoards.append(session, user.id, board.id)
    return board.id


def edit_board(
    session: ShardSession, user_id: int, board_id: int, changes: Mapping[str, str]
) -> None:
    """Change title or description of a board.

    :param changes: new values by field; the others stay.
    :raises InvalidInputError: when it cannot be stored.
    """
    board = own_board(session, user_id, board_id)
    entered = read_board(**{"title": board.title, "details": board.details, **changes})
    _set(board, entered, changes)


def _set(target: Any, entered: Any, changes: Iterable[str]) -> None:
    # Nothing else is written, so two people can edit two fields at a time.
    for name in changes:
        setattr(target, name, getattr(entered, name))


def add_pin(
    session: ShardSession, user_id: int, board_id: int, entered: PinInput
) -> int:
    """Write a pin, on top of its board, and return its id.

    Without a title it gets that of its page, by a job.
    """
    (pin,) = _add_pins(session, user_id, board_id, [entered])
    enqueue_title(session, pin)
    return pin.id


def add_pins(
    session: ShardSession, user_id: int, board_id: int, entered: Iterable[PinInput]
) -> Sequence[int]:
    """Write pins and return their ids; the last one ends on top."""
    return [pin.id for pin in _add_pins(session, user_id, board_id, entered)]


def _add_pins(
    session: ShardSession, user_id: int, board_id: int, entered: Iterable[PinInput]
) -> Sequence[Pin]:
    board = own_board(session, user_id, board_id)
    pins = [
        Pin(board_id=board.id, link=one.link, title=one.title, details=one.details)
        for one in entered
    ]
    session.add_all(pins)
    session.flush()
    ids = [pin.id for pin in pins]
    BoardHasPins.append_many(session, board.id, ids)
    home.publish_many(session, user_id, board.id, ids)
    return pins


def edit_pin(
    session: ShardSession, user_id: int, pin_id: int, changes: Mapping[str, str]
) -> int:
    """Change a pin and return the id of its board.

    :param changes: new values by field; the others stay.
    :raises InvalidInputError: when it cannot be stored.
    """
    pin = _own_pin(session, user_id, pin_id)
    fields = {"link": pin.link, "title": pin.title, "details": pin.details}
    _set(pin, read_pin(**{**fields, **changes}), changes)
    enqueue_title(session, pin)
    return pin.board_id


def remove_pin(session: ShardSession, user_id: int, pin_id: int) -> int:
    """Hide a pin, which retains its place, and return the id of its board.

    :raises NotFoundError: when it is removed already, too.
    """
    pin = _own_pin(session, user_id, pin_id, with_for_update=True)
    pin.deactivate()
    BoardHasRemovedPins.append(session, pin.board_id, pin.id)
    return pin.board_id


def restore_pin(session: ShardSession, user_id: int, pin_id: int) -> int:
    """Show a pin again, in its place, and return the id of its board.

    One that is not removed stays as it is.
    """
    # Locked: if the pin is being removed now, the list would lose the row
    # while the pin stays hidden, and it could not be found any more.
    pin = _own_pin(
        session,
        user_id,
        pin_id,
        with_for_update=True,
        execution_options={"include_inactive": True},
    )
    pin.restore()
    BoardHasRemovedPins.remove(session, pin.board_id, pin.id)
    return pin.board_id


def move_pin(
    session: ShardSession,
    user_id: int,
    board_id: int,
    pin_id: int,
    before: int | None,
    after: int | None,
) -> int:
    """Put a pin between two others and return its new position.

    :param before: the pin ahead of its new place.
    :param after: the pin behind its new place.
    :raises ConflictError: when one of them is no longer where the user saw
        it.
    """
    own_board(session, user_id, board_id)
    neighbours = [one for one in (before, after) if one is not None]
    try:
        found = session.get_many(Pin, [pin_id, *neighbours])
    except (InvalidIdError, UnknownShardError):
        raise NotFoundError("There is no such pin.") from None
    if None in found:
        raise ConflictError("A pin was removed meanwhile.")
    try:
        return BoardHasPins.move(session, board_id, pin_id, before=before, after=after)
    except StaleListError as error:
        raise ConflictError("These pins were moved in the meantime.") from error
    except InvalidMoveError as error:
        raise ConflictError("A pin cannot be moved next to itself.") from error
