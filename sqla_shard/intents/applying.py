"""Doing what intents say, once.

The transaction that does it writes the token of the intent first.  It waits
there for another one with that token, and fails when that has committed; so
of any number of processes one does it, however late they come, until the
token is forgotten.  After that the intent is deleted where it was written;
where a crash prevents that, it is applied again, which does nothing.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from math import inf
from time import monotonic
from typing import Any
from typing import TypeVar

from sqlalchemy import BigInteger
from sqlalchemy import bindparam
from sqlalchemy import Connection
from sqlalchemy import delete
from sqlalchemy import insert
from sqlalchemy import select
from sqlalchemy import update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import IntegrityError

from sqla_shard.dialects import Failure
from sqla_shard.dialects.sql import Moment
from sqla_shard.engines.troubles import short
from sqla_shard.exc import OperationDefinitionError
from sqla_shard.exc import ServerUnreachableError
from sqla_shard.intents.intent import Address
from sqla_shard.intents.intent import Intent
from sqla_shard.intents.intent import microseconds
from sqla_shard.intents.intent import place_at
from sqla_shard.intents.intent import refuse_autocommit
from sqla_shard.intents.registry import named
from sqla_shard.internal import APPLIED
from sqla_shard.internal import INTENTS
from sqla_shard.session import ShardSession
from sqla_shard.session.contract import Home
from sqla_shard.session.transactions import TransactionLog

__all__ = [
    "Failed",
    "apply_all",
    "apply_at_once",
    "despite_others",
    "those_there",
    "transaction",
]

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: How often it is tried again at once, where another transaction was in the
#: way.
_AT_ONCE = 3
#: Seconds for which a COMMIT may go on applying what it has left; the rest is
#: for workers.
_PATIENCE = 2.0
_LONGEST_PAUSE = 3600

#: An intent that was not applied, and why.
Failed = tuple[Intent, str]


@contextmanager
def transaction(home: Home) -> Iterator[ShardSession]:
    """Yield a session of its own; commit at the end of the block."""
    with ShardSession(cluster=home, cross_shard="logged") as session:
        session.begin()
        yield session
        session.commit()


def apply_at_once(
    session: ShardSession, intents: tuple[Intent, ...], has_failed: bool
) -> None:
    """Apply what a transaction has left, right after its COMMIT.

    The session then says what has failed.  A worker does that later.

    :param has_failed: whether a statement of the transaction has.
    """
    session.pending = intents
    if isinstance(session.last, _Guard):
        # Of an operation: who applies that goes on with these, or a long
        # chain of them would be as deep a recursion.
        return
    try:
        if has_failed:
            # Of a deadlock that was caught, say: the server has rolled back,
            # and whoever applied it would do what was never committed.
            intents = session.pending = _those_there(session.cluster, intents)
        until = monotonic() + _PATIENCE
        tried, failed = _apply_each(session.cluster, intents, until)
        its = {intent.token for intent in intents}
        session.pending = (
            *(intent for intent, _ in failed if intent.token in its),
            *intents[len(tried) :],
        )
        _write_outcomes(session.cluster, tried, failed)
    except Exception as error:
        # The COMMIT has succeeded all the same, also where a listener of the
        # application does not know this session; and whoever applies an
        # intent again finds that it is done.
        _log.warning(
            "intents could not be read or deleted, and are applied later, or "
            "again: %s",
            short(error),
            extra={"action": "apply"},
        )


def _those_there(home: Home, intents: Sequence[Intent]) -> tuple[Intent, ...]:
    """Return the intents that were committed."""
    found: set[bytes] = set()
    for address, its in _by_home(intents):
        found |= those_there(home, address, [one.token for one in its])
    return tuple(one for one in intents if one.token in found)


def those_there(
    home: Home, address: Address, tokens: Sequence[bytes]
) -> set[bytes]:
    """Return the tokens of those intents that a shard has."""
    with ShardSession(cluster=home) as session:
        return set(
            session.execute(
                select(INTENTS.c.token).where(INTENTS.c.token.in_(tokens)),
                bind_arguments={"place": place_at(session, address)},
            ).scalars()
        )


def apply_all(home: Home, intents: Sequence[Intent]) -> list[Failed]:
    """Apply intents, and delete those that are done.

    :returns: those that could not be applied, also of what these have left;
        they are tried again later.
    :raises SQLAlchemyError: when it cannot be written what became of them.
    """
    tried, failed = _apply_each(home, intents, inf)
    _write_outcomes(home, tried, failed)
    return failed


def _apply_each(
    home: Home, intents: Sequence[Intent], until: float
) -> tuple[list[Intent], list[Failed]]:
    """Return the first intents, which were tried, and those that failed.

    What they have left themselves comes after them.

    :param until: no further one is begun after that.
    """
    tried: list[Intent] = []
    failed: list[Failed] = []
    down: dict[str, str] = {}
    queue = deque(intents)
    patience = until
    while queue:
        now = monotonic()
        if len(tried) == len(intents):
            # Operations that leave one another would never come to an end.
            patience = min(until, now + _PATIENCE)
        if now >= patience:
            break
        intent = queue.popleft()
        tried.append(intent)
        try:
            keyspace, shard_id = intent.target
            places = home.places
            place = places.place(places.keyspace(keyspace, ""), shard_id)
            if place.server in down:
                # Each of them would wait until it gives up on that server.
                failed.append((intent, down[place.server]))
                continue
            queue += despite_others(home, partial(_apply, home, intent))
        except Exception as error:
            # Whatever an operation raises is no reason not to go on with the
            # others, nor one for a COMMIT that has succeeded to look failed.
            failed.append((intent, short(error)))
            if isinstance(error, ServerUnreachableError):
                down[error.server] = short(error)
            _log.warning(
                "%s failed, and is tried again later: %s",
                intent,
                short(error),
                extra={"action": "apply", "operation": intent.operation},
            )
    return tried, failed


def _write_outcomes(
    home: Home, intents: Sequence[Intent], failed: Sequence[Failed]
) -> None:
    errors = {intent.token: error for intent, error in failed}
    for address, its in _by_home(intents):
        despite_others(
            home, partial(_write_outcome, home, address, its, errors)
        )


def despite_others(home: Home, attempt: Callable[[], T]) -> T:
    """Repeat a transaction at once where another was in its way."""
    for _ in range(_AT_ONCE - 1):
        try:
            return attempt()
        except DBAPIError as error:
            if not _lost_against_another(home, error):
                raise
    return attempt()


def _lost_against_another(home: Home, error: DBAPIError) -> bool:
    return Failure.CONFLICT in {
        backend.classify(error.orig)  # type: ignore[arg-type]  # None is an OTHER
        for backend in home.places.engines.backends()
    }


def _apply(home: Home, intent: Intent) -> tuple[Intent, ...]:
    """Apply one, unless that was done, and return what that has left."""
    function = named(intent.operation)
    guard = _Guard(intent)
    with ShardSession(cluster=home, cross_shard="logged") as session:
        session.last = guard
        session.begin()
        place = place_at(session, intent.target)
        refuse_autocommit(session, place, intent.operation)
        keyspace, shard_id = intent.home
        row = {
            "token": intent.token,
            "shard_id": place.shard_id,
            "home_keyspace": keyspace,
            "home_shard": shard_id,
            "applied_at": Moment(),
        }
        try:
            session.execute(
                insert(APPLIED).values(row), bind_arguments={"place": place}
            )
        except IntegrityError:
            return ()  # done before
        guard.watch(session)
        # It may be tried again, with what it was given and not with what it
        # has made of that.
        function(session, **deepcopy(intent.arguments))
        session.flush()
        guard.open(session)
        session.commit()
        return session.pending


class _Guard:
    """Keeps an operation from a COMMIT without its token.

    What that wrote would be written again and again.
    """

    def __init__(self, intent: Intent) -> None:
        self._intent = intent
        self._log: TransactionLog | None = None
        self._is_open = False

    def watch(self, session: ShardSession) -> None:
        """Remember the transaction that has written the token."""
        self._log = session.log

    def open(self, session: ShardSession) -> None:
        """Let COMMIT be sent, of that transaction and no other.

        :raises OperationDefinitionError: when the token is not in it.
        """
        if session.log is not self._log:
            raise self._refused("it has ended its transaction")
        if self._log.has_lost or (
            self._log.has_failed and not self._is_there(session)
        ):
            # A server that ends a deadlock rolls back all of a transaction.
            # What is there then may be the token of another, that has
            # applied it meanwhile.
            raise self._refused(
                "it has caught an error of the server by which its "
                "transaction was rolled back"
            )
        self._is_open = True

    def _is_there(self, session: ShardSession) -> bool:
        found = select(APPLIED.c.token).where(
            APPLIED.c.token == self._intent.token
        )
        place = place_at(session, self._intent.target)
        at = {"place": place}
        return session.execute(found, bind_arguments=at).first() is not None

    def _refused(self, reason: str) -> OperationDefinitionError:
        return OperationDefinitionError(
            f"{reason}; it is committed, or rolled back, when it returns",
            operation=self._intent.operation,
        )

    def __call__(self, connection: Connection, log: TransactionLog) -> None:
        """Refuse COMMIT, right before it is sent."""
        if not self._is_open:
            raise self._refused("it has called commit()")


def _by_home(
    intents: Iterable[Intent],
) -> Iterable[tuple[Address, list[Intent]]]:
    found: dict[Address, list[Intent]] = {}
    for intent in intents:
        found.setdefault(intent.home, []).append(intent)
    return found.items()


_later = bindparam("later", type_=BigInteger())
_FAILED = (
    update(INTENTS)
    .where(INTENTS.c.token == bindparam("the_token"))
    .values(
        error=bindparam("the_error"),
        attempts=bindparam("the_attempts"),
        due_at=Moment(_later),
    )
)


def _write_outcome(
    home: Home,
    address: Address,
    intents: Iterable[Intent],
    errors: Mapping[bytes, str],
) -> None:
    """Delete the intents of one shard that are done, and note the others."""
    with transaction(home) as session:
        _write_on(session, address, intents, errors)


def _write_on(
    session: ShardSession,
    address: Address,
    intents: Iterable[Intent],
    errors: Mapping[bytes, str],
) -> None:
    at = {"place": place_at(session, address)}
    done = []
    for intent in intents:
        if intent.token not in errors:
            done.append(intent.token)
            continue
        attempts = intent.attempts + 1
        values: dict[str, Any] = {
            "the_token": intent.token,
            "the_error": errors[intent.token],
            "the_attempts": attempts,
            "later": microseconds(
                min(2 ** min(attempts, 20) / 2, _LONGEST_PAUSE)
            ),
        }
        session.execute(_FAILED, values, bind_arguments=at)
    if done:
        session.execute(
            delete(INTENTS).where(INTENTS.c.token.in_(done)),
            bind_arguments=at,
        )
