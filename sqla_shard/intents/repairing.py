"""Finishing what a crash has left, and forgetting what is done.

A worker takes an intent by moving the time at which it is due, in a
transaction of its own; of several, one has written that.  It does not keep
the intent locked meanwhile: one that dies has kept it until that time.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from sqlalchemy import BigInteger
from sqlalchemy import bindparam
from sqlalchemy import delete
from sqlalchemy import select
from sqlalchemy import update
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.dialects.sql import Moment
from sqla_shard.engines.troubles import listed
from sqla_shard.engines.troubles import short
from sqla_shard.engines.troubles import Trouble
from sqla_shard.intents.applying import apply_all
from sqla_shard.intents.applying import despite_others
from sqla_shard.intents.applying import those_there
from sqla_shard.intents.applying import transaction
from sqla_shard.intents.intent import Address
from sqla_shard.intents.intent import Intent
from sqla_shard.intents.intent import microseconds
from sqla_shard.intents.intent import place_at
from sqla_shard.intents.pending import due
from sqla_shard.intents.pending import Pending
from sqla_shard.intents.reading import oldest
from sqla_shard.intents.reading import read_all
from sqla_shard.internal import APPLIED
from sqla_shard.internal import INTENTS
from sqla_shard.session.contract import Home

__all__ = ["KEEP", "RepairReport", "repair"]

#: How long the token of an intent is kept that was applied.
KEEP = timedelta(days=1)
#: Seconds for which a worker keeps an intent from others.
_LEASE = 60.0
_PARALLEL = 8
_BATCH = 1000


@dataclass(frozen=True, kw_only=True)
class RepairReport:
    """What one pass has done.

    :ivar applied: how many intents were applied.
    :ivar failed: those that could not be, and are tried again later.
    :ivar unknown: those whose operations are not defined in this process.
    :ivar forgotten: how many tokens of old intents were deleted.
    :ivar troubles: servers that could not be asked or written, and why.
    """

    applied: int
    failed: tuple[str, ...]
    unknown: tuple[Pending, ...]
    forgotten: int
    troubles: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        """Whether nothing is left that has failed, or could not be tried."""
        return not (self.failed or self.unknown or self.troubles)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "applied": self.applied,
            "failed": list(self.failed),
            "unknown": [one.as_dict() for one in self.unknown],
            "forgotten": self.forgotten,
            "troubles": list(self.troubles),
        }

    def __str__(self) -> str:
        return (
            f"{self.applied} applied, {len(self.failed)} failed, "
            f"{len(self.unknown)} not defined here, {self.forgotten} old "
            "tokens forgotten"
        )


def repair(
    home: Home, *, keep: timedelta = KEEP, now: bool = False
) -> RepairReport:
    """Apply what is due on all shards, once.

    Several workers may do that at the same time.

    :param home: the cluster.
    :param keep: how long an intent that was applied is remembered: a process
        that has stopped for longer, between taking an intent and applying
        it, would apply it a second time.
    :param now: apply what is not due yet, too.
    :raises ValueError: when that makes no sense.
    """
    given: object = keep
    if not isinstance(given, timedelta) or given < timedelta(0):
        raise ValueError(f"keep={keep!r}; it is a timedelta, from 0")
    found, troubles = due(home, now)
    by_home: dict[Address, list[Intent]] = {}
    for one in found:
        if one.is_known:
            by_home.setdefault(one.home, []).append(one.intent)
    jobs = [
        partial(_take_and_apply, home, address, intents, now)
        for address, intents in by_home.items()
    ]
    applied = 0
    failed: list[str] = []
    for count, errors in home.places.engines.at_once(
        jobs, "repair", _PARALLEL
    ):
        applied += count
        failed += errors
    forgotten, more = _forget(home, keep)
    # Each server was asked twice.
    asked = {one.server for one in troubles}
    others = [one for one in more if one.server not in asked]
    return RepairReport(
        applied=applied,
        failed=tuple(failed),
        unknown=tuple(one for one in found if not one.is_known),
        forgotten=forgotten,
        troubles=tuple(listed([*troubles, *others])),
    )


_TAKE = (
    update(INTENTS)
    .where(
        INTENTS.c.token == bindparam("the_token"),
        INTENTS.c.attempts == bindparam("the_attempts"),
    )
    .values(
        due_at=Moment(bindparam("lease", type_=BigInteger())),
        attempts=INTENTS.c.attempts + 1,
    )
)
_TAKE_DUE = _TAKE.where(INTENTS.c.due_at <= Moment())


def _take_and_apply(
    home: Home, address: Address, intents: Sequence[Intent], now: bool
) -> tuple[int, list[str]]:
    """Return how many were applied, and what went wrong."""
    try:
        taken = despite_others(
            home, partial(_take, home, address, intents, now)
        )
        failed = apply_all(home, taken)
    except SQLAlchemyError as error:
        keyspace, shard_id = address
        return 0, [f"shard {shard_id} of {keyspace}: {short(error)}"]
    not_done = {intent.token for intent, _ in failed}
    applied = sum(intent.token not in not_done for intent in taken)
    return applied, [f"{intent}: {error}" for intent, error in failed]


def _take(
    home: Home, address: Address, intents: Iterable[Intent], now: bool
) -> list[Intent]:
    """Return those that no other worker has taken meanwhile."""
    taken = []
    statement = _TAKE if now else _TAKE_DUE
    with transaction(home) as session:
        at = {"place": place_at(session, address)}
        # In one order: two workers that lock them crosswise stop each other.
        for intent in sorted(intents, key=lambda one: one.token):
            values = {
                "the_token": intent.token,
                "the_attempts": intent.attempts,
                "lease": microseconds(_LEASE),
            }
            result: Any = session.execute(statement, values, bind_arguments=at)
            if result.rowcount == 1:
                taken.append(intent)
    return taken


# -- tokens of what was applied

_is_old = APPLIED.c.applied_at <= Moment(
    bindparam("since", type_=BigInteger())
)
_WHICH_OLD = oldest(APPLIED, "applied_at", "shard_id").where(_is_old)
_OLD = (
    select(
        APPLIED.c.token,
        APPLIED.c.shard_id,
        APPLIED.c.home_keyspace,
        APPLIED.c.home_shard,
    )
    .where(_is_old)
    .order_by(APPLIED.c.applied_at, APPLIED.c.token)
    .limit(_BATCH)
)


def _forget(home: Home, keep: timedelta) -> tuple[int, list[Trouble]]:
    """Delete old tokens whose intents are not there any more."""
    since = {"since": -(keep // timedelta(microseconds=1))}
    found, troubles = read_all(home, _WHICH_OLD, _OLD, since)
    by_home: dict[tuple[str, Address], list[Any]] = {}
    for keyspace, row in found:
        address = row.home_keyspace, row.home_shard
        by_home.setdefault((keyspace, address), []).append(row)
    count = 0
    for (keyspace, address), rows in by_home.items():
        try:
            count += _forget_of(home, keyspace, address, rows)
        except SQLAlchemyError as error:
            space = home.places.keyspace(address[0], "")
            server = home.places.place(space, address[1]).server
            troubles.append(Trouble(server, error, 1))
    return count, troubles


def _forget_of(
    home: Home, keyspace: str, address: Address, rows: Sequence[Any]
) -> int:
    """Delete those of the intents of one shard."""
    still = those_there(home, address, [row.token for row in rows])
    by_shard: dict[int, list[bytes]] = {}
    for row in rows:
        if row.token not in still:
            by_shard.setdefault(row.shard_id, []).append(row.token)
    for shard_id, gone in by_shard.items():
        address = keyspace, shard_id
        despite_others(home, partial(_delete, home, address, gone))
    return sum(map(len, by_shard.values()))


def _delete(home: Home, address: Address, tokens: Sequence[bytes]) -> None:
    with transaction(home) as session:
        session.execute(
            delete(APPLIED).where(APPLIED.c.token.in_(sorted(tokens))),
            bind_arguments={"place": place_at(session, address)},
        )
