"""What is known of keys on all shards: whether one has committed, or half.

A key is a row of the shard that its transaction has written first
(:mod:`.tokens`), and nothing but the key says which that was.  So all shards
are asked, each server for all of its own at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import dataclass
from datetime import datetime
from datetime import timedelta
from functools import partial
from typing import Any
from typing import TypeVar

from sqlalchemy import select
from sqlalchemy import type_coerce
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.dialects.sql import Moment
from sqla_shard.engines import by_server
from sqla_shard.engines.troubles import Trouble
from sqla_shard.exc import ShardMissingError
from sqla_shard.exc import WrittenShard
from sqla_shard.internal import TOKENS
from sqla_shard.rendering import Place
from sqla_shard.session import ShardSession
from sqla_shard.session.contract import Home
from sqla_shard.tokens import encoded
from sqla_shard.tokens import IS_PART
from sqla_shard.tokens import Part
from sqla_shard.types import UTCTimestamp

__all__ = [
    "MINUTE",
    "CommittedKey",
    "HalfCommit",
    "find_halves",
    "find_key",
    "halves_on_all",
    "key_on_all",
]

T = TypeVar("T")

#: How long the COMMITs of one transaction may take.
MINUTE = timedelta(minutes=1)
_PARALLEL = 8
_MADE = type_coerce(TOKENS.c.created_at, UTCTimestamp()).label("made")


@dataclass(frozen=True, kw_only=True)
class CommittedKey:
    """A shard on which a transaction with a key has committed.

    :ivar key: the key.
    :ivar keyspace: of the shard that the transaction has written first.
    :ivar shard_id: its number; 0 in a global keyspace.
    :ivar server: where it is now.
    :ivar committed_at: when COMMIT was about to be sent, by the clock of the
        server, in whole seconds.
    """

    key: str
    keyspace: str
    shard_id: int
    server: str
    committed_at: datetime

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {**asdict(self), "committed_at": self.committed_at.isoformat()}

    def __str__(self) -> str:
        return (
            f"{self.key} has committed on shard {self.shard_id} of "
            f"{self.keyspace}, on {self.server}, at "
            f"{self.committed_at:%Y-%m-%d %H:%M:%S} UTC"
        )


def find_key(home: Home, key: str) -> list[CommittedKey]:
    """Return the shards on which a key has committed.

    :raises ValueError: when it cannot be a key.
    :raises SQLAlchemyError: when a server cannot be asked.
    """
    return _whole(key_on_all(home, key))


def key_on_all(
    home: Home, key: str
) -> tuple[list[CommittedKey], list[Trouble]]:
    """Return the shards on which a key has committed, and those not read.

    :raises ValueError: when it cannot be a key.
    """
    statement = select(_MADE).where(TOKENS.c.token == encoded(key))
    rows, troubles = _on_all(home, statement)
    found = [
        CommittedKey(
            key=key,
            keyspace=place.keyspace,
            shard_id=place.shard_id,
            server=place.server,
            committed_at=row.made,
        )
        for place, row in rows
    ]
    found.sort(key=lambda one: (one.keyspace, one.shard_id))
    return found, troubles


@dataclass(frozen=True, kw_only=True)
class HalfCommit:
    """A transaction that has committed on some of its servers, and ended.

    :ivar key: its key.
    :ivar committed: for each server that has committed, in order, one shard
        that was written there.
    :ivar missing: how many servers have not.
    :ivar committed_at: when the first COMMIT was about to be sent, by the
        clock of its server.
    """

    key: str
    committed: tuple[WrittenShard, ...]
    missing: int
    committed_at: datetime

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "key": self.key,
            "committed": [asdict(one) for one in self.committed],
            "missing": self.missing,
            "committed_at": self.committed_at.isoformat(),
        }

    def __str__(self) -> str:
        there = ", ".join(map(str, self.committed))
        return (
            f"{self.key} has committed on {there}, and not on the other "
            f"{self.missing} of its servers, at "
            f"{self.committed_at:%Y-%m-%d %H:%M:%S} UTC"
        )


_PARTS = select(TOKENS.c.token, _MADE, Moment().label("now")).where(IS_PART)


def find_halves(
    home: Home, older_than: timedelta = MINUTE
) -> list[HalfCommit]:
    """Return the transactions that have committed on some servers only.

    :raises ValueError: when the age makes no sense.
    :raises SQLAlchemyError: when a server cannot be asked.
    """
    return _whole(halves_on_all(home, older_than))


def halves_on_all(
    home: Home, older_than: timedelta
) -> tuple[list[HalfCommit], list[Trouble]]:
    """Return what is half, and the shards that were not read.

    Where there are such, nothing is known to be half: what is missing may be
    there.

    :raises ValueError: when the age makes no sense.
    """
    given: object = older_than
    if not isinstance(given, timedelta) or given < timedelta(0):
        raise ValueError(
            f"older_than={older_than!r}; it is a timedelta, from 0"
        )
    attempts: dict[bytes, dict[int, tuple[Part, Place, Any]]] = {}
    rows, troubles = _on_all(home, _PARTS)
    if troubles:
        return [], troubles
    for place, row in rows:
        part = Part.decode(row.token)
        its = attempts.setdefault(part.attempt, {})
        its[part.number] = part, place, row
    found = []
    for its in attempts.values():
        # Without the first it was forgotten, and the others will be.
        if 0 not in its:
            continue
        part, _, row = its[0]
        if len(its) < part.total and row.now - row.made >= older_than:
            found.append(_half(part, its, row.made))
    return sorted(found, key=lambda one: (one.committed_at, one.key)), []


def _half(
    part: Part, its: Mapping[int, tuple[Part, Place, Any]], made: datetime
) -> HalfCommit:
    committed = tuple(
        WrittenShard(
            keyspace=place.keyspace,
            shard_id=place.shard_id,
            server=place.server,
        )
        for _, (_, place, _) in sorted(its.items())
    )
    return HalfCommit(
        key=part.key,
        committed=committed,
        missing=part.total - len(committed),
        committed_at=made,
    )


def _whole(answer: tuple[list[T], list[Trouble]]) -> list[T]:
    found, troubles = answer
    for trouble in troubles:
        raise trouble.error
    return found


def _on_all(
    home: Home, statement: Any
) -> tuple[list[tuple[Place, Any]], list[Trouble]]:
    """Return the rows of all shards, each with its shard; and those unread."""
    places = home.places
    jobs = [
        partial(_on_server, home, statement, group)
        for keyspace in places.topology.keyspaces.values()
        for group in by_server(places.all_places(keyspace))
    ]
    found: list[tuple[Place, Any]] = []
    troubles: list[Trouble] = []
    for rows, unread in places.engines.at_once(jobs, "keys", _PARALLEL):
        found += rows
        troubles += unread
    return found, troubles


def _on_server(
    home: Home, statement: Any, places: Sequence[Place]
) -> tuple[list[tuple[Place, Any]], list[Trouble]]:
    found: list[tuple[Place, Any]] = []
    troubles: list[Trouble] = []
    try:
        return _read(home, statement, places), []
    except ShardMissingError as error:
        if len(places) == 1:
            return [], [Trouble(places[0].server, error, 1)]
    except SQLAlchemyError as error:
        return [], [Trouble(places[0].server, error, len(places))]
    # One of them is not there; the others are read without it.
    for place in places:
        rows, unread = _on_server(home, statement, [place])
        found += rows
        troubles += unread
    return found, troubles


def _read(
    home: Home, statement: Any, places: Sequence[Place]
) -> list[tuple[Place, Any]]:
    with ShardSession(cluster=home) as session:
        # The row does not say where it is, and mostly there is none.
        at_once = {"places": places}
        if session.execute(statement, bind_arguments=at_once).first() is None:
            return []
        return [
            (place, row)
            for place in places
            for row in session.execute(
                statement, bind_arguments={"place": place}
            )
        ]
