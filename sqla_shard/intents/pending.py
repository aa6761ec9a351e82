"""Which intents there are, on all shards."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import dataclass
from datetime import datetime
from datetime import timedelta
from typing import Any

from sqlalchemy import Boolean
from sqlalchemy import delete
from sqlalchemy import func
from sqlalchemy import select
from sqlalchemy import type_coerce

from sqla_shard.dialects.sql import Moment
from sqla_shard.engines.troubles import Trouble
from sqla_shard.intents.applying import transaction
from sqla_shard.intents.intent import Address
from sqla_shard.intents.intent import Intent
from sqla_shard.intents.intent import place_at
from sqla_shard.intents.reading import oldest
from sqla_shard.intents.reading import read_all
from sqla_shard.intents.registry import is_known
from sqla_shard.intents.registry import known
from sqla_shard.internal import INTENTS
from sqla_shard.session.contract import Home
from sqla_shard.types import UTCTimestamp

__all__ = [
    "Pending",
    "PendingCount",
    "count_pending",
    "counts",
    "discard",
    "due",
    "everything",
    "pending",
]

#: How many a shard is asked for in one pass.
_BATCH = 200


@dataclass(frozen=True, kw_only=True)
class Pending:
    """An operation that was left to be done, and is not known to be done.

    :ivar token: of its intent, in hexadecimal digits.
    :ivar operation: its name.
    :ivar arguments: of the call, by name.
    :ivar home: keyspace and number of the shard that has the intent.
    :ivar target: those of the shard that it writes.
    :ivar created_at: when it was left, by the clock of the server.
    :ivar due_at: when it is tried next.
    :ivar attempts: how often it was tried.
    :ivar error: what the last attempt has raised; None where none has.
    """

    token: str
    operation: str
    arguments: dict[str, Any]
    home: Address
    target: Address
    created_at: datetime
    due_at: datetime
    attempts: int
    error: str | None

    @property
    def is_known(self) -> bool:
        """Whether this process knows the operation."""
        return is_known(self.operation)

    @property
    def intent(self) -> Intent:
        """What applies it."""
        return Intent(
            token=bytes.fromhex(self.token),
            operation=self.operation,
            arguments=self.arguments,
            home=self.home,
            target=self.target,
            attempts=self.attempts,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            **asdict(self),
            "created_at": self.created_at.isoformat(),
            "due_at": self.due_at.isoformat(),
        }

    def __str__(self) -> str:
        error = f": {self.error}" if self.error else ""
        unknown = "" if self.is_known else ", not defined here"
        return (
            f"{self.token} {self.operation}{unknown}, from shard "
            f"{self.home[1]} of {self.home[0]} to shard {self.target[1]} of "
            f"{self.target[0]}, since {self.created_at:%Y-%m-%d %H:%M:%S} "
            f"UTC, {self.attempts} attempts{error}"
        )


@dataclass(frozen=True, kw_only=True)
class PendingCount:
    """How many calls of one operation were left to be done.

    :ivar operation: its name.
    :ivar count: how many calls.
    :ivar failed: of these, those whose last attempt has failed.
    :ivar oldest: the age of the oldest, by the clock of its server.
    """

    operation: str
    count: int
    failed: int
    oldest: timedelta

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it, with the age in seconds."""
        return {**asdict(self), "oldest": self.oldest.total_seconds()}

    def __str__(self) -> str:
        failed = f", {self.failed:,} failed" if self.failed else ""
        return (
            f"{self.operation}: {self.count:,}{failed}, the oldest for "
            f"{self.oldest // timedelta(seconds=1)} s"
        )


_due = type_coerce(INTENTS.c.due_at <= Moment(), Boolean())
_COLUMNS = [
    c
    if c.name not in ("created_at", "due_at")
    else type_coerce(c, UTCTimestamp()).label(c.name)
    for c in INTENTS.c
]
_ALL = (
    select(*_COLUMNS).order_by(INTENTS.c.due_at, INTENTS.c.token).limit(_BATCH)
)
_DUE = _ALL.where(_due)
_WHICH = oldest(INTENTS, "due_at", "home_shard")
_WHICH_DUE = _WHICH.where(_due)
_COUNTS = select(
    INTENTS.c.operation,
    func.count().label("count"),
    func.count(INTENTS.c.error).label("failed"),
    type_coerce(func.min(INTENTS.c.created_at), UTCTimestamp()).label("made"),
    Moment().label("now"),
).group_by(INTENTS.c.operation)


def pending(home: Home) -> list[Pending]:
    """Return what was left to be done, the oldest first.

    :returns: of each shard at most 200; :func:`count_pending` counts all.
    :raises SQLAlchemyError: when a server cannot be asked.
    """
    found, troubles = everything(home)
    for trouble in troubles:
        raise trouble.error
    return found


def count_pending(home: Home) -> list[PendingCount]:
    """Return how many calls of each operation were left to be done.

    :returns: in the order of their names; none for what has none.
    :raises SQLAlchemyError: when a server cannot be asked.
    """
    found, troubles = counts(home)
    for trouble in troubles:
        raise trouble.error
    return found


def counts(home: Home) -> tuple[list[PendingCount], list[Trouble]]:
    """Return how many were left, and the servers that did not say."""
    found, troubles = read_all(home, _WHICH, _COUNTS)
    sums: dict[str, PendingCount] = {}
    for _, row in sorted(found, key=lambda one: str(one[1].operation)):
        age = max(row.now - row.made, timedelta(0))
        before = sums.get(row.operation)
        sums[row.operation] = PendingCount(
            operation=row.operation,
            count=row.count + (before.count if before else 0),
            failed=row.failed + (before.failed if before else 0),
            oldest=max(age, before.oldest) if before else age,
        )
    return list(sums.values()), troubles


def everything(home: Home) -> tuple[list[Pending], list[Trouble]]:
    """Return what was left, and the servers that did not say."""
    return _read(home, _WHICH, _ALL)


def due(home: Home, now: bool) -> tuple[list[Pending], list[Trouble]]:
    """Return what is to be tried now, and the servers that did not say.

    :param now: whether that is all there is.
    """
    which, statement = (_WHICH, _ALL) if now else (_WHICH_DUE, _DUE)
    found, troubles = _read(home, which, statement)
    if all(one.is_known for one in found):
        return found, troubles
    # What this process does not know stays due, and is the oldest one day:
    # the rest would never be among those that are read.
    these = INTENTS.c.operation.in_(known())
    more, _ = _read(home, which, statement.where(these))
    by_token = {one.token: one for one in [*found, *more]}
    return list(by_token.values()), troubles


def _read(
    home: Home, which: Any, statement: Any
) -> tuple[list[Pending], list[Trouble]]:
    found, troubles = read_all(home, which, statement)
    ordered = sorted(map(_pending, found), key=lambda one: one.created_at)
    return ordered, troubles


def _pending(found: tuple[str, Any]) -> Pending:
    keyspace, row = found
    return Pending(
        token=row.token.hex(),
        operation=row.operation,
        arguments=json.loads(row.arguments),
        home=(keyspace, row.home_shard),
        target=(row.keyspace, row.shard_id),
        created_at=row.created_at,
        due_at=row.due_at,
        attempts=row.attempts,
        error=row.error,
    )


def discard(home: Home, tokens: Sequence[str]) -> list[Pending]:
    """Delete intents that shall not be applied any more.

    What the transaction wrote that has left them stays.

    :param tokens: of :class:`Pending`.
    :returns: those that were there.
    :raises ValueError: when one is no token.
    :raises SQLAlchemyError: when a server cannot be asked.
    """
    wanted = [bytes.fromhex(token) for token in tokens]
    these = INTENTS.c.token.in_(wanted)
    which = select(INTENTS.c.home_shard).where(these)
    found, troubles = _read(home, which, _ALL.where(these).limit(None))
    for trouble in troubles:
        raise trouble.error
    for one in found:
        with transaction(home) as session:
            session.execute(
                delete(INTENTS).where(INTENTS.c.token == one.intent.token),
                bind_arguments={"place": place_at(session, one.home)},
            )
    return found
