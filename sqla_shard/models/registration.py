"""Registration of objects with unique keys, in several transactions.

A key and its object are on two shards, which are committed separately.
:func:`sign_up` claims the keys, creates the object, and confirms the claims;
:func:`change` replaces a key of an object.  Work that follows a COMMIT is a
pending operation of that transaction, so that a process may be killed at any
point: :meth:`Cluster.repair() <sqla_shard.Cluster.repair>` completes what was
committed, and claims expire.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from secrets import token_bytes, token_hex
from typing import Any, TYPE_CHECKING, TypeVar

from sqlalchemy import event, inspect as inspect_mapped
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import async_session
from sqlalchemy.util import await_only

from sqla_shard.engine.unreachable import short
from sqla_shard.exc import (
    ClaimLostError,
    CommitUnknownError,
    KeyNotHeldError,
    KeyPendingError,
    OptionError,
)
from sqla_shard.exc.base import shown
from sqla_shard.models.claims import (
    calls_of,
    check_older,
    Claim,
    claim,
    give_key,
    leave_calls,
    LIFETIME,
    Made,
    PendingCall,
    place_of,
    release,
    undo_call,
)
from sqla_shard.models.lookup_table import (
    LookupAccess,
    read_keys,
    table_with_keys,
    TOKEN_BYTES,
)
from sqla_shard.outbox.apply import call_operation, is_unrun
from sqla_shard.outbox.operations import Operation
from sqla_shard.session import ShardSession
from sqla_shard.util.logs import careful_log

if TYPE_CHECKING:
    from sqla_shard import Cluster


# -- sagas: transactions one after another, in threads or in an event loop


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class SagaStep:
    """A transaction of a saga.

    :ivar function: runs in the transaction; takes the session.
    :ivar key: transaction key, if the transaction must not be repeated.
    """

    function: Callable[[ShardSession], Any]
    key: str | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments of ``Cluster.run``."""
        return {"key": self.key, "cross_shard": "logged"}


#: A generator that yields the next step, and receives its result or error.
Saga = Generator[SagaStep, Any, T]


def run(cluster: Cluster, saga: Saga[T]) -> T:
    """Run a saga, and return its result."""

    async def execute(step: SagaStep) -> Any:
        return cluster.run(step.function, **step.options)

    # The coroutine awaits nothing, and therefore ends with the first send().
    try:
        _each_step(saga, execute).send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("a saga was suspended")


async def run_awaited(cluster: Cluster, saga: Saga[T]) -> T:
    """Run a saga in an event loop; see :func:`run`."""

    async def in_session(session: Any, function: Callable[..., Any]) -> Any:
        return await session.run_sync(function)

    async def execute(step: SagaStep) -> Any:
        return await cluster.async_run(in_session, step.function, **step.options)

    return await _each_step(saga, execute)


async def _each_step(saga: Saga[T], execute: Callable[[SagaStep], Awaitable[Any]]) -> T:
    advance: Callable[[], SagaStep] = partial(next, saga)
    try:
        while True:
            step = advance()
            try:
                done = await execute(step)
            except Exception as error:  # raised again by the saga's yield
                advance = partial(saga.throw, error)
            else:
                advance = partial(saga.send, done)
    except StopIteration as end:
        result: T = end.value
        return result


def retried_once(function: Callable[..., T]) -> Saga[T]:
    """Run an idempotent step; retry it once if its outcome is unknown."""
    step = SagaStep(function=function)
    try:
        done: T = yield step
    except CommitUnknownError:
        done = yield step
    return done


_log = careful_log(__name__)


# -- signing up


def sign_up(
    cluster: Cluster,
    keys: Mapping[Any, str],
    create: Callable[..., int],
    *args: Any,
    lifetime: timedelta = LIFETIME,
    undo: Operation[[int]] | None = None,
    **kwargs: Any,
) -> int:
    """Create an object with unique keys, and return its id.

    ::

        user_id = sign_up(
            cluster, {UserEmail: email, UserName: name}, new_user, email, name
        )

    Each key is claimed in a separate transaction, in the order given; then
    ``create(session, *args, **kwargs)`` runs in one, with a pending operation
    that confirms the claims.  If the process is killed after that COMMIT,
    :meth:`Cluster.repair() <sqla_shard.Cluster.repair>` confirms them; if it
    is killed before, the claims expire.

    An object that loses its first key is deleted.  This happens only if the
    claim expired before the object was committed, or because a server was
    unreachable for longer than ``lifetime``.

    :param keys: keys by lookup class.  The first is the main key of the
        object, such as the address to sign in with.
    :param create: creates the object, flushes, and returns its id.  Like
        every function for :meth:`Cluster.run() <sqla_shard.Cluster.run>` it
        may be called again, in a new session.
    :param lifetime: lifetime of the claims.
    :param undo: an operation that takes the id and deletes everything
        ``create`` has written; by default only the object is deleted, if
        ``create`` has added it to the session.
    :returns: the id; all keys belong to the object.
    :raises KeyTakenError: if a key belongs to another object, or is
        claimed.  Nothing was created.
    :raises ClaimLostError: if a claim was lost before it was confirmed.
        The object is deleted.
    :raises KeyPendingError: if the object was committed, but a claim is not
        confirmed yet, or its state is unknown.
    :raises CommitUnknownError: if it is unknown whether the object was
        committed.  If so, its claims will be confirmed.
    :raises OptionError: if the code of ``create`` has not run, as of one that
        is ``async def``.  Nothing was created.
    """
    return run(
        cluster, _sign_up_saga(keys, _bound(create, args, kwargs), lifetime, undo)
    )


async def async_sign_up(
    cluster: Cluster,
    keys: Mapping[Any, str],
    create: Callable[..., int | Awaitable[int]],
    *args: Any,
    lifetime: timedelta = LIFETIME,
    undo: Operation[[int]] | None = None,
    **kwargs: Any,
) -> int:
    """Create an object with unique keys; see :func:`sign_up`.

    :param create: a coroutine function, as for ``cluster.async_run()``, or a
        synchronous one, as for ``session.run_sync()``.
    """
    creating = _bound_to_await(create, args, kwargs)
    return await run_awaited(cluster, _sign_up_saga(keys, creating, lifetime, undo))


def _bound(
    fn: Callable[..., T], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Callable[[ShardSession], T]:
    def call(session: ShardSession) -> T:
        result = fn(session, *args, **kwargs)
        # A decorator may hide async def.  The key would be changed, and what
        # contains it would not be written.
        if is_unrun(result):
            raise OptionError(
                "has not run: async_sign_up() and async_change() await a function "
                "that is itself async def; any other is called, and has no yield",
                option="fn",
                value=getattr(result, "__qualname__", shown(result)),
            )
        return result

    return call


def _bound_to_await(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Callable[[ShardSession], Any]:
    if not inspect.iscoroutinefunction(fn):
        return _bound(fn, args, kwargs)
    # The step runs in run_sync(), where a coroutine can be awaited.
    return lambda session: await_only(fn(async_session(session), *args, **kwargs))


def _sign_up_saga(
    keys: Mapping[Any, str],
    create: Callable[[ShardSession], int],
    lifetime: timedelta,
    undo: Operation[[int]] | None,
) -> Saga[int]:
    if not keys:
        raise ValueError(
            "keys must not be empty: pass a lookup class and a key, as in "
            '{UserEmail: "me@example.com"}'
        )
    claims: list[Claim] = []
    try:
        for cls, key in keys.items():
            # With the same token the step can be repeated if the outcome of
            # its COMMIT is unknown.
            token = token_bytes(TOKEN_BYTES)
            claiming = partial(_claim, cls, key, token, lifetime)
            claims.append((yield from retried_once(claiming)))
        creating = partial(_create, create, claims, undo)
        made: Made = yield SagaStep(function=creating, key=f"sign-up {token_hex()}")
    except CommitUnknownError:
        # Do not release the claims: the object may have been committed; then
        # an operation confirms them.
        raise
    except Exception:
        for one in claims:
            # Release the claims now; otherwise the keys stay reserved until
            # the claims expire.
            yield from _best_effort(
                one.release, f"a claim in {one.lookup.__name__} was not released"
            )
        raise
    yield from _confirm_claims(claims, made, undo)
    return made.target_id


def _claim(
    cls: Any, key: str, token: bytes, lifetime: timedelta, session: ShardSession
) -> Claim:
    table = table_with_keys(cls, session, unique=True, name="sign_up()")
    return claim(table, key, None, lifetime, token=token)


def _create(
    create: Callable[[ShardSession], int],
    claims: Sequence[Claim],
    undo: Operation[[int]] | None,
    session: ShardSession,
) -> Made:
    """Create the object, and add the operations that confirm its keys."""
    new: list[Any] = []
    event.listen(session, "pending_to_persistent", lambda _, added: new.append(added))
    target_id = create(session)
    session.flush()
    tables = [LookupAccess(one.lookup, session) for one in claims]
    for table in tables:
        table.check_id(target_id)
    made = Made(
        target_id=target_id,
        is_new=any(
            isinstance(added, tables[0].definition.target)
            and inspect_mapped(added).identity == (target_id,)
            for added in new
        ),
    )
    first, *others = claims
    calls = calls_of("confirm", claims, session, target_id)
    lost = [
        undo_call(session, first.lookup, made, undo),
        *calls_of("release", others, session, target_id),
    ]
    calls[0].arguments.update(
        confirmed=[asdict(call) for call in calls[1:]],
        lost=[asdict(one) for one in lost],
    )
    leave_calls(session, place_of(session, first.lookup, target_id), calls[:1])
    return made


def _best_effort(function: Callable[..., Any], warning: str) -> Saga[None]:
    """Run a step that cleans up after an error; log its errors only."""
    try:
        yield from retried_once(function)
    except SQLAlchemyError as error:
        _log.warning("%s: %s", warning, short(error), extra={"action": "register"})


def _confirm_claims(
    claims: Sequence[Claim], made: Made, undo: Operation[[int]] | None
) -> Saga[None]:
    """Confirm the claims that pending operations have not confirmed yet.

    :raises ClaimLostError: if a claim was lost; the object is deleted.
    :raises KeyPendingError: if a claim could not be confirmed.
    """
    one = claims[0]
    try:
        rows = yield SagaStep(function=partial(_rows, claims))
        for one, row in zip(claims, rows, strict=True):
            if row is None or row.target_id != made.target_id:
                # The operation may not have run: the time for operations after
                # COMMIT is limited.
                yield from retried_once(partial(one.confirm, target_id=made.target_id))
    except ClaimLostError:
        yield from _best_effort(
            partial(_undo, claims, made, undo),
            f"{made.target_id} has lost a key and was not deleted",
        )
        raise
    except SQLAlchemyError as error:
        raise KeyPendingError(
            lookup=one.lookup.__name__, key=one.key, target_id=made.target_id
        ) from error


def _rows(claims: Sequence[Claim], session: ShardSession) -> list[Any]:
    """Return the rows of claims, with None for claims that are not found."""
    claimed: list[Any] = []
    for one in claims:
        rows = read_keys(LookupAccess(one.lookup, session), [one.key])
        claimed.append(rows[0] if rows else None)
    return claimed


def _undo(
    claims: Sequence[Claim],
    made: Made,
    undo: Operation[[int]] | None,
    session: ShardSession,
) -> None:
    """Delete an object, and add operations that release its keys."""
    first = claims[0].lookup
    call = undo_call(session, first, made, undo)
    call_operation(session, call.operation, **call.arguments)
    leave_calls(
        session,
        place_of(session, first, made.target_id),
        calls_of("release", claims, session, made.target_id),
    )


# -- changing a key


def change(
    cluster: Cluster,
    lookup: Any,
    old_key: str,
    new_key: str,
    target_id: int,
    switch: Callable[..., Any] | None = None,
    *args: Any,
    **kwargs: Any,
) -> None:
    """Replace a key of an object by another.

    ::

        change(cluster, UserEmail, old, new, user_id, set_email, user_id, new)

    The object has at least one of the keys at any time: the new key is given
    to it, then ``switch(session, *args, **kwargs)`` writes the key to the
    object, in a transaction with a pending operation that releases the old
    key.  While a server is down, or after a crash, the object may have both.
    The call can be repeated.

    If both keys are equal under the policy of the class, their row remains.

    Calls with different new keys may run at the same time, and each acquires
    its key: let ``switch`` read the row with ``with_for_update=True`` and raise
    an error if the field has neither key, which releases the new one.
    Otherwise the object keeps the new keys of all of them.

    :param lookup: the lookup class of the keys.
    :param switch: writes the object's shard; None if no field of the object
        contains the key.
    :raises KeyNotHeldError: if the object has neither key.
    :raises KeyTakenError: if the new key belongs to another object, or is
        claimed.
    :raises CommitUnknownError: if it is unknown whether ``switch`` was
        committed; the object has both keys, or the new one.
    :raises OptionError: if the code of ``switch`` has not run, as of one that
        is ``async def``.  The object keeps its old key.
    """
    bound = None if switch is None else _bound(switch, args, kwargs)
    run(cluster, _change_saga(lookup, old_key, new_key, target_id, bound))


async def async_change(
    cluster: Cluster,
    lookup: Any,
    old_key: str,
    new_key: str,
    target_id: int,
    switch: Callable[..., Any] | None = None,
    *args: Any,
    **kwargs: Any,
) -> None:
    """Replace a key of an object by another; see :func:`change`.

    :param switch: a coroutine function, as for ``cluster.async_run()``, or a
        synchronous one, as for ``session.run_sync()``.
    """
    bound = None if switch is None else _bound_to_await(switch, args, kwargs)
    await run_awaited(cluster, _change_saga(lookup, old_key, new_key, target_id, bound))


@dataclass(frozen=True, kw_only=True)
class _NewKey:
    """The new key of an object.

    :ivar key: the key, normalized.
    :ivar was_held: whether the object had the key before.
    :ivar old: operations that release the old key.
    """

    key: str
    was_held: bool
    old: list[PendingCall]


def _change_saga(
    cls: Any,
    old_key: str,
    new_key: str,
    target_id: int,
    switch: Callable[[ShardSession], Any] | None,
) -> Saga[None]:
    token = token_bytes(TOKEN_BYTES)
    acquire = partial(_acquire, cls, old_key, new_key, target_id, token, switch is None)
    new = yield from retried_once(acquire)
    if switch is None:
        return
    switching = partial(_switch, cls, switch, target_id, new.old)
    try:
        yield SagaStep(function=switching, key=f"change of key {token_hex()}")
    except CommitUnknownError:
        # Keep both rows: the object may contain the new key already.
        raise
    except Exception:
        if not new.was_held:
            yield from _best_effort(
                partial(release, cls, new.key, token.hex(), target_id),
                f"the new key in {cls.__name__} was not released",
            )
        raise


def _acquire(
    cls: Any,
    old_key: str,
    new_key: str,
    target_id: int,
    token: bytes,
    is_all: bool,
    session: ShardSession,
) -> _NewKey:
    """Give an object its new key.

    :param token: identifies this change: a late operation of an earlier change
        must not release a key that the object has acquired again.
    :param is_all: whether this transaction also releases the old key.
    """
    table = table_with_keys(cls, session, unique=True, name="change()")
    table.check_id(target_id)
    form = table.form(new_key)
    old = dict.fromkeys(one.text for one in table.forms(old_key))
    held = {
        row.key: row
        for row in read_keys(table, {**old, form.text: None})
        if row.target_id == target_id
    }
    if not held:
        raise KeyNotHeldError(
            lookup=table.name, key=next(iter(old)), target_id=target_id
        )
    check_older(table, form, table.forms(new_key), target_id)
    give_key(table, form, target_id, token)
    before = held.pop(form.text, None)
    calls = [
        PendingCall.on(
            session,
            "release",
            cls,
            row.key,
            token=row.token and row.token.hex(),
            target_id=target_id,
        )
        for row in held.values()
    ]
    if is_all:
        leave_calls(session, table.place(form.text), calls)
    return _NewKey(
        key=form.text, was_held=before is not None and before.token != token, old=calls
    )


def _switch(
    cls: Any,
    switch: Callable[[ShardSession], Any],
    target_id: int,
    old: Sequence[PendingCall],
    session: ShardSession,
) -> None:
    switch(session)
    session.flush()
    leave_calls(session, place_of(session, cls, target_id), old)
