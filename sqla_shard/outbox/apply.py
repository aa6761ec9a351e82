"""Applying pending operations exactly once.

The transaction that applies an operation inserts its token first.  The INSERT
waits for another transaction with that token, and fails when the other one
commits; so one of any number of processes applies the operation, while the
token exists.  After its COMMIT the row of the pending operation is deleted; if
a crash prevents this, the operation is applied again, which does nothing.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from math import inf
from time import monotonic
from typing import Any, TYPE_CHECKING, TypeVar

from sqlalchemy import BigInteger, bindparam, Connection, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from sqla_shard.dialects import retry_conflicts
from sqla_shard.dialects.sql import ServerTime
from sqla_shard.engine.rendering import Place
from sqla_shard.engine.unreachable import short
from sqla_shard.exc import (
    OperationArgumentError,
    OperationDefinitionError,
    ServerUnreachableError,
    UnknownOperationError,
)
from sqla_shard.exc.base import shown
from sqla_shard.outbox.tables import APPLIED, INTENTS
from sqla_shard.session import ShardSession
from sqla_shard.session.transaction import TransactionLog
from sqla_shard.util import sqlalchemy_private as private
from sqla_shard.util.logs import careful_log, outlived
from sqla_shard.util.processes import in_this_process
from sqla_shard.util.source_lines import definition_of

if TYPE_CHECKING:
    from sqla_shard import Cluster


# -- Pending operations, and their shards.


#: Keyspace and number of a virtual shard.
Address = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class PendingOperation:
    """An operation to be applied on a shard.

    :ivar token: identifies the pending operation.
    :ivar operation: name of the operation.
    :ivar arguments: the arguments of the call, by name; None if its row cannot
        be read.
    :ivar home: the shard that has its row.
    :ivar target: the shard that the operation writes.
    :ivar attempts: the number of earlier attempts.
    """

    token: bytes
    operation: str
    arguments: dict[str, Any] | None
    home: Address
    target: Address
    attempts: int = 0

    def __str__(self) -> str:
        keyspace, shard_id = self.target
        return (
            f"{self.operation!r} on shard {shard_id} of {keyspace} "
            f"(token {self.token.hex()})"
        )


def microseconds(seconds: float) -> int:
    """Return seconds as microseconds, for SQL."""
    return int(seconds * 1_000_000)


def refuse_autocommit(session: ShardSession, place: Place, operation: str) -> None:
    """Refuse an engine in autocommit mode.

    The token of a failed operation would be committed, and the operation
    treated as applied.

    :raises OperationDefinitionError: if the engine of the shard is in
        autocommit mode.
    """
    if private.is_autocommit(session.root_connection(place)):
        raise OperationDefinitionError(
            f"{place.server} has the isolation level AUTOCOMMIT, which "
            "commits each statement on its own; use another isolation level",
            operation=operation,
        )


def place_at(session: ShardSession, address: Address) -> Place:
    """Return the current location of a shard.

    :raises UnknownShardError: if the shard is not open.
    """
    keyspace, shard_id = address
    return session.place_for(keyspace=keyspace, shard_id=shard_id)


# -- Registered functions, by the names of their operations.


_functions: dict[str, Callable[..., Any]] = {}


def register(name: str, function: Callable[..., Any]) -> None:
    """Register a function under a name.

    :raises OperationDefinitionError: if another function has the name.
    """
    before = _functions.get(name)
    if before is not None and definition_of(before) != definition_of(function):
        raise OperationDefinitionError(
            f"the name is already used by {definition_of(before)}", operation=name
        )
    _functions[name] = function


def operation_name(verb: str, cls: type[Any]) -> str:
    """Return the name under which an operation of a class is stored."""
    return f"{verb}:{cls.__module__}.{cls.__qualname__}"


def register_for(verb: str, cls: type[Any], function: Callable[..., Any]) -> None:
    """Register an operation of a class, under :func:`operation_name`.

    :param function: takes the class, the session and the arguments.
    """

    def bound(session: Any, **arguments: Any) -> Any:
        return function(cls, session=session, **arguments)

    # The class of a reloaded module replaces the earlier one.
    bound.__module__ = cls.__module__
    bound.__qualname__ = f"{cls.__qualname__}.{verb}"
    register(operation_name(verb, cls), bound)


def is_known(name: str) -> bool:
    """Return whether an operation is registered."""
    return name in _functions


def operation_names() -> list[str]:
    """Return the names of registered operations."""
    return list(_functions)


def function_named(name: str) -> Callable[..., Any]:
    """Return the function of an operation.

    :raises UnknownOperationError: if it is not registered in this process.
    """
    function = _functions.get(name)
    if function is None:
        raise UnknownOperationError(operation=name)
    return function


def call_operation(session: Any, name: str, /, *args: Any, **arguments: Any) -> None:
    """Call the function of an operation.

    :raises UnknownOperationError: if it is not registered in this process.
    :raises OperationDefinitionError: if its code has not run.
    """
    refuse_unrun(name, function_named(name)(session, *args, **arguments))


def is_unrun(result: Any) -> bool:
    """Return whether a call has returned code that has not run.

    As one of a function with ``yield``, or of one that is ``async def``.
    """
    if inspect.iscoroutine(result):
        result.close()  # otherwise Python warns, too
    is_generator = inspect.isgenerator(result) or inspect.isasyncgen(result)
    return is_generator or inspect.isawaitable(result)


def refuse_unrun(name: str, result: Any) -> None:
    """Refuse the result of an operation whose code has not run.

    It would be treated as applied.

    :raises OperationDefinitionError: if it is one.
    """
    if is_unrun(result):
        raise OperationDefinitionError(
            f"it has returned {shown(result)}, and its code has not run; an "
            "operation is a function without yield, and not async def",
            operation=name,
        )


T = TypeVar("T")

_log = careful_log(__name__)

#: Maximum number of attempts of a transaction after conflicts.
_CONFLICT_ATTEMPTS = 3
#: Maximum time in seconds for applying operations after a COMMIT; workers
#: apply the rest.
_APPLY_SECONDS = 2.0
#: Maximum seconds between two attempts of an operation.
_LONGEST_PAUSE = 3600

#: An operation that was not applied, and the error.
Failed = tuple[PendingOperation, str]


@contextmanager
def transaction(cluster: Cluster) -> Iterator[ShardSession]:
    """Yield a new session; commit at the end of the block."""
    with ShardSession(cluster=cluster, cross_shard="logged") as session:
        session.begin()
        yield session
        session.commit()


def apply_after_commit(
    session: ShardSession, operations: tuple[PendingOperation, ...], has_failed: bool
) -> None:
    """Apply the pending operations of a transaction right after its COMMIT.

    ``session.pending`` has the failed operations; a worker applies them later.

    :param has_failed: whether a statement of the transaction has failed.
    """
    session.pending = operations
    if isinstance(session.last, _TokenGuard):
        # This session applies an operation: _apply_each() applies these
        # next.  Nested calls would make a long chain of operations a deep
        # recursion.
        return
    try:
        if has_failed:
            # After a deadlock, which the caller has caught, the server has
            # rolled back: these operations may not have been committed.
            operations = _committed(session.cluster, operations)
            session.pending = operations
        until = monotonic() + _APPLY_SECONDS
        tried, failed = _apply_each(session.cluster, operations, until)
        tokens = {operation.token for operation in operations}
        session.pending = (
            *(operation for operation, _ in failed if operation.token in tokens),
            *operations[len(tried) :],
        )
        _write_outcomes(session.cluster, tried, failed)
    except outlived() as error:
        # The COMMIT has succeeded, even if a listener of the application
        # raises for this session; to apply an operation again does nothing.
        _log.warning(
            "pending operations could not be read or deleted, and will be "
            "applied later, or again: %s",
            short(error),
            extra={"action": "apply"},
        )


def _committed(
    cluster: Cluster, operations: Sequence[PendingOperation]
) -> tuple[PendingOperation, ...]:
    """Return the operations whose rows exist."""
    tokens: set[bytes] = set()
    for address, own in _by_home(operations):
        tokens |= existing_tokens(cluster, address, [one.token for one in own])
    return tuple(one for one in operations if one.token in tokens)


def existing_tokens(
    cluster: Cluster, address: Address, tokens: Sequence[bytes]
) -> set[bytes]:
    """Return the tokens whose pending operations exist on a shard."""
    with ShardSession(cluster=cluster) as session:
        return set(
            session.execute(
                select(INTENTS.c.token).where(INTENTS.c.token.in_(tokens)),
                bind_arguments={"place": place_at(session, address)},
            ).scalars()
        )


def apply_all(cluster: Cluster, operations: Sequence[PendingOperation]) -> list[Failed]:
    """Apply operations, and delete the rows of those that succeeded.

    :returns: the failed operations, including those that the operations have
        added; they are retried later.
    :raises SQLAlchemyError: if the outcome cannot be written.
    """
    tried, failed = _apply_each(cluster, operations, inf)
    _write_outcomes(cluster, tried, failed)
    return failed


def _apply_each(
    cluster: Cluster, operations: Sequence[PendingOperation], until: float
) -> tuple[list[PendingOperation], list[Failed]]:
    """Return the operations that were tried, and those that failed.

    Operations that they add are applied after them.

    :param until: the time, by ``monotonic()``, after which no further
        operation is applied.
    """
    tried: list[PendingOperation] = []
    failed: list[Failed] = []
    down: dict[str, str] = {}
    queue = deque(operations)
    patience = until
    while queue:
        now = monotonic()
        if len(tried) == len(operations):
            # Limit it: operations that add one another would never end.
            patience = min(until, now + _APPLY_SECONDS)
        if now >= patience:
            break
        operation = queue.popleft()
        tried.append(operation)
        try:
            keyspace, shard_id = operation.target
            places = cluster.places
            place = places.place(places.keyspace(keyspace, ""), shard_id)
            if place.server in down:
                # Do not try: each of them would time out on that server.
                failed.append((operation, down[place.server]))
                continue
            queue += retried(cluster, partial(_apply, cluster, operation))
            continue
        # Apply the other operations; and do not raise for a COMMIT that has
        # succeeded.
        except ServerUnreachableError as error:
            down[error.server] = reason = short(error)
        except outlived() as error:
            reason = short(error)
        failed.append((operation, reason))
        _log.warning(
            "%s failed, and will be retried: %s",
            *(operation, reason),
            extra={"action": "apply", "operation": operation.operation},
        )
    return tried, failed


def _write_outcomes(
    cluster: Cluster, operations: Sequence[PendingOperation], failed: Sequence[Failed]
) -> None:
    errors = {operation.token: error for operation, error in failed}
    for address, own in _by_home(operations):
        retried(cluster, partial(_write_outcome, cluster, address, own, errors))


def retried(cluster: Cluster, attempt: Callable[[], T]) -> T:
    """Run a transaction; retry it on a deadlock or lock wait timeout."""
    return retry_conflicts(
        attempt, cluster.places.engines.backends, attempts=_CONFLICT_ATTEMPTS
    )


def _apply(
    cluster: Cluster, operation: PendingOperation
) -> tuple[PendingOperation, ...]:
    """Apply an operation once; return the operations that it has added."""
    function = function_named(operation.operation)
    if operation.arguments is None:
        raise OperationArgumentError(
            "cannot be read: its row is damaged, or was written by a process with "
            "other limits; discard it, or repair the row",
            operation=operation.operation,
            parameter=None,
        )
    guard = _TokenGuard(operation)
    with ShardSession(cluster=cluster, cross_shard="logged") as session:
        session.last = guard
        session.begin()
        place = place_at(session, operation.target)
        refuse_autocommit(session, place, operation.operation)
        keyspace, shard_id = operation.home
        row = {
            "token": operation.token,
            "shard_id": place.shard_id,
            "home_keyspace": keyspace,
            "home_shard": shard_id,
            "applied_at": ServerTime(),
        }
        try:
            session.execute(
                insert(APPLIED).values(row), bind_arguments={"place": place}
            )
        except IntegrityError:
            return ()  # it was applied before
        guard.watch(session)
        # Pass a copy: a retry must not see arguments that the function has
        # changed.
        with in_this_process():
            result = function(session, **deepcopy(operation.arguments))
        refuse_unrun(operation.operation, result)
        session.flush()
        guard.open(session)
        session.commit()
        return session.pending


class _TokenGuard:
    """Refuses a COMMIT of an operation without its token.

    The operation would be applied again by each retry.
    """

    def __init__(self, operation: PendingOperation) -> None:
        self._operation = operation
        self._log: TransactionLog | None = None
        self._is_open = False

    def watch(self, session: ShardSession) -> None:
        """Record the transaction that has inserted the token."""
        self._log = session.log

    def open(self, session: ShardSession) -> None:
        """Allow the COMMIT of the transaction that has inserted the token.

        :raises OperationDefinitionError: if it was rolled back or ended.
        """
        if session.log is not self._log:
            raise self._refusal("it has ended its transaction")
        if self._log.has_lost or (
            self._log.has_failed and not self._has_token(session)
        ):
            # A deadlock rolls back the whole transaction; a token that
            # exists after it may be that of another transaction, which has
            # applied the operation meanwhile.
            raise self._refusal(
                "it has caught an error with which the server has rolled "
                "back its transaction"
            )
        self._is_open = True

    def _has_token(self, session: ShardSession) -> bool:
        statement = select(APPLIED.c.token).where(
            APPLIED.c.token == self._operation.token
        )
        place = place_at(session, self._operation.target)
        at = {"place": place}
        return session.execute(statement, bind_arguments=at).first() is not None

    def _refusal(self, reason: str) -> OperationDefinitionError:
        return OperationDefinitionError(
            f"{reason}; the transaction ends when the function returns",
            operation=self._operation.operation,
        )

    def __call__(self, connection: Connection, log: TransactionLog) -> None:
        """Refuse the COMMIT, immediately before it is sent."""
        if not self._is_open:
            raise self._refusal("it has called commit()")


def is_applied_in(session: ShardSession) -> bool:
    """Return whether a session applies a pending operation."""
    return isinstance(session.last, _TokenGuard)


def _by_home(
    operations: Iterable[PendingOperation],
) -> Iterable[tuple[Address, list[PendingOperation]]]:
    groups: dict[Address, list[PendingOperation]] = {}
    for operation in operations:
        groups.setdefault(operation.home, []).append(operation)
    return groups.items()


_later = bindparam("later", type_=BigInteger())
_FAILED = (
    update(INTENTS)
    .where(INTENTS.c.token == bindparam("the_token"))
    .values(
        error=bindparam("the_error"),
        attempts=bindparam("the_attempts"),
        due_at=ServerTime(_later),
    )
)


def _write_outcome(
    cluster: Cluster,
    address: Address,
    operations: Iterable[PendingOperation],
    errors: Mapping[bytes, str],
) -> None:
    """Delete applied operations of a shard, or write their errors."""
    with transaction(cluster) as session:
        at = {"place": place_at(session, address)}
        applied = []
        for operation in operations:
            if operation.token not in errors:
                applied.append(operation.token)
                continue
            attempts = operation.attempts + 1
            pause = min(2 ** min(attempts, 20) / 2, _LONGEST_PAUSE)
            values: dict[str, Any] = {
                "the_token": operation.token,
                "the_error": errors[operation.token],
                "the_attempts": attempts,
                "later": microseconds(pause),
            }
            session.execute(_FAILED, values, bind_arguments=at)
        if applied:
            session.execute(
                delete(INTENTS).where(INTENTS.c.token.in_(applied)), bind_arguments=at
            )
