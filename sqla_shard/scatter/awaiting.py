"""Several executions of one session under asyncio, awaited together.

Each is a task with a greenlet of its own, as SQLAlchemy's asyncio extension
makes them; no thread is used.  SQLAlchemy's connections for asyncio take
one call at a time by themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from sqlalchemy.util import await_only
from sqlalchemy.util import greenlet_spawn

from sqla_shard.scatter.hub import Stopped

__all__ = ["Turn", "current_turn", "run_awaiting"]

_TURN: ContextVar[Turn | None] = ContextVar("sqla_shard_turn", default=None)


class Turn:
    """The place of a lane in the order of a statement's lanes.

    :param before: the lane that goes on first.
    """

    def __init__(self, group: _Group, before: Turn | None) -> None:
        self.group = group
        self._before = before
        self._passed = asyncio.Event()
        #: Whether the first statement of the lane was answered.
        self.taken = False

    def check(self) -> None:
        """Send nothing more where another lane has failed.

        :raises Stopped: then.
        """
        if self.group.stopped:
            raise Stopped

    def take(self) -> None:
        """Go on when all lanes before this one have."""
        self.taken = True
        if self._before is not None:
            await_only(self._before._passed.wait())

    def end(self) -> None:
        """Let the next lane go on.

        Not before the rows of the first statement are loaded, which a driver
        may have to be awaited for: so it is called at the second, or when
        the lane ends.
        """
        self._passed.set()


class _Group:
    stopped = False


def current_turn() -> Turn | None:
    """Return the turn of the lane that this is called in."""
    return _TURN.get()


def run_awaiting(jobs: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run executions at the same time; return their results, in order.

    All of them have ended when it returns or raises.

    :raises BaseException: what the first of them has raised.
    """
    outer = current_turn()
    if outer is not None:
        outer.end()
    outcomes = await_only(_together(jobs))
    errors = [one for one in outcomes if isinstance(one, BaseException)]
    for error in errors:
        if not isinstance(error, Stopped):
            raise error
    if errors:
        raise errors[0]
    return outcomes


async def _together(jobs: Sequence[Callable[[], Any]]) -> list[Any]:
    group = _Group()
    lanes = []
    turn: Turn | None = None
    for job in jobs:
        turn = Turn(group, turn)
        lanes.append(_lane(job, turn))
    return await asyncio.gather(*lanes, return_exceptions=True)


async def _lane(job: Callable[[], Any], turn: Turn) -> Any:
    # A task has a context of its own: this is seen by no other lane.
    _TURN.set(turn)
    try:
        return await greenlet_spawn(job)
    except BaseException:
        turn.group.stopped = True
        raise
    finally:
        turn.end()
