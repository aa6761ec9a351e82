"""The newest pins of all users, and the same statement when it is refused.

Each server sorts its own pins, all at the same time; their rows are merged.
Without ``scatter()`` the statement names no shard, and it is refused: no
statement goes to all servers by mistake.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import select

from examples.pinboard.models import Board, Pin, User
from examples.pinboard.relations import HomePin, reachable
from sqla_shard import scatter, scatter_errors, ShardSession
from sqla_shard.exc import RoutingError, ScatterFailedError

#: Number of pins that are shown.
_LIMIT = 24
#: Seconds that a server may take; the pins of slower servers are not shown.
_MOMENT = 2.0

_STATEMENT = select(Pin).order_by(Pin.ts.desc(), Pin.id.desc()).limit(_LIMIT)


@dataclass(frozen=True, kw_only=True)
class Newest:
    """The newest pins.

    :ivar silent: names of servers that have not responded.
    """

    pins: Sequence[HomePin]
    silent: Sequence[str]


def newest_pins(session: ShardSession) -> Newest:
    """Return the newest pins of all users, from servers that respond."""
    wanted = scatter(on_error="partial", timeout=_MOMENT)
    try:
        result = session.scalars(_STATEMENT.options(wanted))
    except ScatterFailedError as error:  # no server has answered
        return Newest(pins=[], silent=_servers(session, error.errors))
    silent = _servers(session, scatter_errors(result))
    pins = result.all()
    found = reachable(session, Board, [pin.board_id for pin in pins])
    boards = {one.id: one for one in found}
    owners = reachable(session, User, [one.user_id for one in found])
    users = {one.id: one for one in owners}
    return Newest(
        pins=[
            HomePin(pin=pin, board=board, owner=users[board.user_id])
            for pin in pins
            if (board := boards.get(pin.board_id)) is not None
            and board.user_id in users
        ],
        silent=silent,
    )


def _servers(session: ShardSession, shards: Iterable[int]) -> list[str]:
    return sorted({session.place_for(Pin, one).server for one in shards})


def refusal(session: ShardSession) -> RoutingError:
    """Return the error of the statement without ``scatter()``.

    Nothing is sent to a server.
    """
    try:
        session.scalars(_STATEMENT)
    except RoutingError as error:
        return error
    raise AssertionError("a statement without a shard was not refused")
