"""Repair: applying pending operations after a crash, and deleting old tokens.

A worker takes an operation by an UPDATE of the time at which it is due, in a
separate transaction; of several workers, one succeeds.  It holds no lock while
it applies the operation: if it dies, the operation is due at the new time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TYPE_CHECKING

from sqlalchemy import (
    BigInteger,
    bindparam,
    Boolean,
    delete,
    func,
    select,
    type_coerce,
    update,
)
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.dialects.sql import ServerTime
from sqla_shard.engine.unreachable import (
    complete,
    each_once,
    ShardsReport,
    short,
    UnreachableServer,
)
from sqla_shard.outbox.apply import (
    Address,
    apply_all,
    existing_tokens,
    is_known,
    microseconds,
    operation_names,
    PendingOperation,
    place_at,
    retried,
    transaction,
)
from sqla_shard.outbox.scan import check_age, oldest, PARALLEL, read_all
from sqla_shard.outbox.tables import APPLIED, INTENTS
from sqla_shard.types import UTCTimestamp
from sqla_shard.util.json_values import JsonObject, parsed_json

if TYPE_CHECKING:
    from sqla_shard import Cluster


# -- Pending operations of all shards.


#: Maximum number of rows that are read from a shard in one pass.
_BATCH = 200


@dataclass(frozen=True, kw_only=True)
class Pending(JsonObject):
    """A pending operation.

    :ivar token: identifies the pending operation; hexadecimal digits.
    :ivar operation: name of the operation.
    :ivar arguments: the arguments of the call, by name; None if they cannot be
        read.
    :ivar home: keyspace and number of the shard that has its row.
    :ivar target: keyspace and number of the shard that it writes.
    :ivar created_at: the time at which it was inserted, by the clock of the
        server.
    :ivar due_at: the time from which a worker applies it.
    :ivar attempts: the number of attempts.
    :ivar error: the error of the last attempt; None if there is none.
    """

    token: str
    operation: str
    arguments: dict[str, Any] | None
    home: Address
    target: Address
    created_at: datetime
    due_at: datetime
    attempts: int
    error: str | None

    @property
    def is_known(self) -> bool:
        """Whether the operation is defined in this process."""
        return is_known(self.operation)

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
class PendingCount(JsonObject):
    """The number of pending calls of one operation.

    :ivar operation: name of the operation.
    :ivar count: the number of pending calls.
    :ivar failed: the number of calls whose last attempt has failed.
    :ivar oldest: the age of the oldest call, by the clock of its server.
    """

    operation: str
    count: int
    failed: int
    oldest: timedelta

    def __str__(self) -> str:
        failed = f", {self.failed:,} failed" if self.failed else ""
        return (
            f"{self.operation}: {self.count:,}{failed}, the oldest for "
            f"{self.oldest // timedelta(seconds=1)} s"
        )


_due = type_coerce(INTENTS.c.due_at <= ServerTime(), Boolean())
_COLUMNS = [
    c
    if c.name not in ("created_at", "due_at")
    else type_coerce(c, UTCTimestamp()).label(c.name)
    for c in INTENTS.c
]
_ALL = select(*_COLUMNS).order_by(INTENTS.c.due_at, INTENTS.c.token).limit(_BATCH)
_DUE = _ALL.where(_due)
_WHICH = oldest(INTENTS, "due_at", "home_shard")
#: Selects the number of a shard that has due operations.
WHICH_DUE = _WHICH.where(_due)
_COUNTS = select(
    INTENTS.c.operation,
    func.count().label("count"),
    func.count(INTENTS.c.error).label("failed"),
    type_coerce(func.min(INTENTS.c.created_at), UTCTimestamp()).label("made"),
    ServerTime().label("now"),
).group_by(INTENTS.c.operation)


def pending(cluster: Cluster) -> list[Pending]:
    """Return pending operations, the oldest first.

    :returns: at most 200 operations of each shard; :func:`count_pending`
        counts all.
    :raises SQLAlchemyError: if a server cannot be read.
    """
    return complete(everything(cluster))


def count_pending(cluster: Cluster) -> list[PendingCount]:
    """Return the numbers of pending calls, by operation.

    :returns: the numbers in the order of the names, without operations that
        have no pending calls.
    :raises SQLAlchemyError: if a server cannot be read.
    """
    return complete(counts(cluster))


def counts(cluster: Cluster) -> tuple[list[PendingCount], list[UnreachableServer]]:
    """Return the numbers of pending calls, and the unreachable shards."""
    rows, unreachable = read_all(cluster, _WHICH, _COUNTS)
    sums: dict[str, PendingCount] = {}
    for _, row in sorted(rows, key=lambda one: str(one[1].operation)):
        age = max(row.now - row.made, timedelta(0))
        before = sums.get(row.operation)
        sums[row.operation] = PendingCount(
            operation=row.operation,
            count=row.count + (before.count if before else 0),
            failed=row.failed + (before.failed if before else 0),
            oldest=max(age, before.oldest) if before else age,
        )
    return list(sums.values()), unreachable


def everything(cluster: Cluster) -> tuple[list[Pending], list[UnreachableServer]]:
    """Return pending operations, and the unreachable shards."""
    return _read(cluster, _WHICH, _ALL)


def due(cluster: Cluster, now: bool) -> tuple[list[Pending], list[UnreachableServer]]:
    """Return operations that are due, and the unreachable shards.

    :param now: whether to return all operations, even if they are not due.
    """
    which, statement = (_WHICH, _ALL) if now else (WHICH_DUE, _DUE)
    operations, unreachable = _read(cluster, which, statement)
    if all(one.is_known for one in operations):
        return operations, unreachable
    # Operations that are not defined in this process remain due, and become
    # the oldest: a whole batch of them would hide the other operations.
    these = INTENTS.c.operation.in_(operation_names())
    more, _ = _read(cluster, which, statement.where(these))
    by_token = {one.token: one for one in [*operations, *more]}
    return list(by_token.values()), unreachable


def _read(
    cluster: Cluster, which: Any, statement: Any
) -> tuple[list[Pending], list[UnreachableServer]]:
    rows, unreachable = read_all(cluster, which, statement)
    ordered = sorted(map(_pending, rows), key=lambda one: one.created_at)
    return ordered, unreachable


def _to_apply(pending: Pending) -> PendingOperation:
    return PendingOperation(
        token=bytes.fromhex(pending.token),
        operation=pending.operation,
        arguments=pending.arguments,
        home=pending.home,
        target=pending.target,
        attempts=pending.attempts,
    )


def _pending(pair: tuple[str, Any]) -> Pending:
    keyspace, row = pair
    arguments = None
    # A row that cannot be read fails, and holds no other.
    with suppress(ValueError):
        arguments = parsed_json(row.arguments)
    return Pending(
        token=row.token.hex(),
        operation=row.operation,
        arguments=arguments if isinstance(arguments, dict) else None,
        home=(keyspace, row.home_shard),
        target=(row.keyspace, row.shard_id),
        created_at=row.created_at,
        due_at=row.due_at,
        attempts=row.attempts,
        error=row.error,
    )


def discard(cluster: Cluster, tokens: Sequence[str]) -> list[Pending]:
    """Delete pending operations, which will not be applied.

    Other rows of the transactions that inserted them are not deleted.

    :param tokens: the tokens of the operations; see :class:`Pending`.
    :returns: the operations that were found.
    :raises ValueError: if a token is not hexadecimal digits.
    :raises SQLAlchemyError: if a server cannot be read.
    """
    wanted = [bytes.fromhex(token) for token in tokens]
    these = INTENTS.c.token.in_(wanted)
    which = select(INTENTS.c.home_shard).where(these)
    operations = complete(_read(cluster, which, _ALL.where(these).limit(None)))
    for one in operations:
        with transaction(cluster) as session:
            session.execute(
                delete(INTENTS).where(INTENTS.c.token == bytes.fromhex(one.token)),
                bind_arguments={"place": place_at(session, one.home)},
            )
    return operations


#: The retention time of the tokens of applied operations.
KEEP = timedelta(days=1)
#: Seconds after which an operation that a worker has taken is due again.
_LEASE = 60.0
_FORGET_BATCH = 1000


@dataclass(frozen=True, kw_only=True)
class RepairReport(ShardsReport):
    """The result of one pass.

    :ivar applied: the number of operations that were applied.
    :ivar failed: the failed operations with their errors; they are retried
        later.
    :ivar unknown: operations that are not defined in this process.
    :ivar forgotten: the number of old tokens that were deleted.
    :ivar unreachable: servers of which shards could not be read or written.
    """

    applied: int
    failed: tuple[str, ...]
    unknown: tuple[Pending, ...]
    forgotten: int
    unreachable: tuple[UnreachableServer, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing has failed, and every server was read."""
        return not (self.failed or self.unknown or self.unreachable)

    def __str__(self) -> str:
        return (
            f"{self.applied} applied, {len(self.failed)} failed, "
            f"{len(self.unknown)} not defined here, {self.forgotten} old "
            "tokens deleted"
        )


def repair(
    cluster: Cluster, *, keep: timedelta = KEEP, now: bool = False
) -> RepairReport:
    """Apply operations that are due, on all shards, once.

    Several workers may run at the same time.

    :param keep: the retention time of the tokens of applied operations: a
        process that is suspended for longer, between taking an operation and
        applying it, would apply it a second time.
    :param now: whether to apply operations even if they are not due.
    :raises ValueError: if ``keep`` is not valid.
    """
    check_age("keep", keep)
    pending, unreachable = due(cluster, now)
    by_home: dict[Address, list[PendingOperation]] = {}
    for one in pending:
        if one.is_known:
            by_home.setdefault(one.home, []).append(_to_apply(one))
    jobs = [
        partial(_take_and_apply, cluster, address, operations, now)
        for address, operations in by_home.items()
    ]
    applied = 0
    failed: list[str] = []
    for count, errors in cluster.places.engines.in_parallel(jobs, "repair", PARALLEL):
        applied += count
        failed += errors
    forgotten, more = _forget(cluster, keep)
    # Merge the errors: each server was read twice.
    servers = {one.server for one in unreachable}
    others = [one for one in more if one.server not in servers]
    return RepairReport(
        applied=applied,
        failed=tuple(failed),
        unknown=tuple(one for one in pending if not one.is_known),
        forgotten=forgotten,
        unreachable=each_once([*unreachable, *others]),
    )


_TAKE = (
    update(INTENTS)
    .where(
        INTENTS.c.token == bindparam("the_token"),
        INTENTS.c.attempts == bindparam("the_attempts"),
    )
    .values(
        due_at=ServerTime(bindparam("lease", type_=BigInteger())),
        attempts=INTENTS.c.attempts + 1,
    )
)
_TAKE_DUE = _TAKE.where(INTENTS.c.due_at <= ServerTime())


def _take_and_apply(
    cluster: Cluster,
    address: Address,
    operations: Sequence[PendingOperation],
    now: bool,
) -> tuple[int, list[str]]:
    """Return the number of applied operations, and errors."""
    try:
        taken = retried(cluster, partial(_take, cluster, address, operations, now))
        failed = apply_all(cluster, taken)
    except SQLAlchemyError as error:
        keyspace, shard_id = address
        return 0, [f"shard {shard_id} of {keyspace}: {short(error)}"]
    tokens = {operation.token for operation, _ in failed}
    applied = sum(operation.token not in tokens for operation in taken)
    return applied, [f"{operation}: {error}" for operation, error in failed]


def _take(
    cluster: Cluster,
    address: Address,
    operations: Iterable[PendingOperation],
    now: bool,
) -> list[PendingOperation]:
    """Return the operations that no other worker has taken."""
    taken = []
    statement = _TAKE if now else _TAKE_DUE
    with transaction(cluster) as session:
        at = {"place": place_at(session, address)}
        # Update them in one order; otherwise two workers would deadlock.
        for operation in sorted(operations, key=lambda one: one.token):
            values = {
                "the_token": operation.token,
                "the_attempts": operation.attempts,
                "lease": microseconds(_LEASE),
            }
            result: Any = session.execute(statement, values, bind_arguments=at)
            if result.rowcount == 1:
                taken.append(operation)
    return taken


# -- tokens of applied operations

_is_old = APPLIED.c.applied_at <= ServerTime(bindparam("since", type_=BigInteger()))
#: Selects the number of a shard that has old tokens.
WHICH_OLD = oldest(APPLIED, "applied_at", "shard_id").where(_is_old)
_OLD = (
    select(
        APPLIED.c.token,
        APPLIED.c.shard_id,
        APPLIED.c.home_keyspace,
        APPLIED.c.home_shard,
    )
    .where(_is_old)
    .order_by(APPLIED.c.applied_at, APPLIED.c.token)
    .limit(_FORGET_BATCH)
)


def since(keep: timedelta) -> dict[str, int]:
    """Return the parameter of :data:`WHICH_OLD`: the age of old tokens."""
    return {"since": -(keep // timedelta(microseconds=1))}


def _forget(cluster: Cluster, keep: timedelta) -> tuple[int, list[UnreachableServer]]:
    """Delete old tokens, unless their operations are still pending."""
    old, unreachable = read_all(cluster, WHICH_OLD, _OLD, since(keep))
    by_home: dict[tuple[str, Address], list[Any]] = {}
    for keyspace, row in old:
        address = row.home_keyspace, row.home_shard
        by_home.setdefault((keyspace, address), []).append(row)
    count = 0
    for (keyspace, address), rows in by_home.items():
        try:
            count += _forget_of(cluster, keyspace, address, rows)
        except SQLAlchemyError as error:
            unreachable.append(UnreachableServer.at(cluster.places, address, error))
    return count, unreachable


def _forget_of(
    cluster: Cluster, keyspace: str, address: Address, rows: Sequence[Any]
) -> int:
    """Delete the tokens of operations that one shard has inserted."""
    pending = existing_tokens(cluster, address, [row.token for row in rows])
    by_shard: dict[int, list[bytes]] = {}
    for row in rows:
        if row.token not in pending:
            by_shard.setdefault(row.shard_id, []).append(row.token)
    for shard_id, tokens in by_shard.items():
        address = keyspace, shard_id
        retried(cluster, partial(_delete, cluster, address, tokens))
    return sum(map(len, by_shard.values()))


def _delete(cluster: Cluster, address: Address, tokens: Sequence[bytes]) -> None:
    with transaction(cluster) as session:
        session.execute(
            delete(APPLIED).where(APPLIED.c.token.in_(sorted(tokens))),
            bind_arguments={"place": place_at(session, address)},
        )
