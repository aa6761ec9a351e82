"""Registration: an object and its unique keys, in several transactions.

A key and its object are on two shards, which are not committed as one.
:func:`sign_up` claims the keys, creates the object, and confirms the claims;
:func:`change` gives an object another key for one that it has.  Both leave
what has to follow a COMMIT as an intent in that transaction, so that a
process may be killed at any point: :meth:`Cluster.repair()
<sqla_shard.Cluster.repair>` completes what was committed, and claims expire.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from secrets import token_bytes
from secrets import token_hex
from typing import Any
from typing import TYPE_CHECKING
from typing import TypeVar

from sqlalchemy import event
from sqlalchemy import inspect
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.engines.troubles import short
from sqla_shard.exc import ClaimLostError
from sqla_shard.exc import CommitUnknownError
from sqla_shard.exc import KeyNotHeldError
from sqla_shard.exc import KeyPendingError
from sqla_shard.intents.operations import Operation
from sqla_shard.intents.registry import named
from sqla_shard.lookup.calls import Call
from sqla_shard.lookup.calls import calls_of
from sqla_shard.lookup.calls import leave_calls
from sqla_shard.lookup.calls import Made
from sqla_shard.lookup.calls import place_of
from sqla_shard.lookup.calls import release
from sqla_shard.lookup.calls import undoing
from sqla_shard.lookup.claiming import check_older
from sqla_shard.lookup.claiming import Claim
from sqla_shard.lookup.claiming import claim
from sqla_shard.lookup.claiming import LIFETIME
from sqla_shard.lookup.claiming import own
from sqla_shard.lookup.definition import TOKEN_BYTES
from sqla_shard.lookup.keys import Table
from sqla_shard.lookup.keys import table_of
from sqla_shard.lookup.reading import read
from sqla_shard.lookup.steps import Course
from sqla_shard.lookup.steps import run
from sqla_shard.lookup.steps import run_awaited
from sqla_shard.lookup.steps import settled
from sqla_shard.lookup.steps import Step
from sqla_shard.session import ShardSession

if TYPE_CHECKING:
    from sqla_shard.cluster import Cluster

__all__ = ["async_change", "async_sign_up", "change", "sign_up"]

T = TypeVar("T")

_log = logging.getLogger(__name__)


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
    """Create an object that has unique keys, and return its id.

    ::

        user_id = sign_up(
            cluster, {UserEmail: email, UserName: name}, new_user, email, name
        )

    Each key is claimed in a transaction of its own, in the order given; then
    ``create(session, *args, **kwargs)`` runs in one, which leaves an intent
    to confirm the claims.  So the object is committed together with the
    promise that it gets its keys: a process that is killed afterwards leaves
    that to :meth:`Cluster.repair() <sqla_shard.Cluster.repair>`, and one that
    is killed before leaves claims, which expire.

    An object whose first key was lost is deleted again.  That takes claims
    that have expired before the object was committed, or a server that could
    not be reached for as long.

    :param keys: the key by lookup class.  The first is the one that the
        object is found by, such as the address to sign in with.
    :param create: makes the object, flushes, and returns its id.  Like every
        function for :meth:`Cluster.run() <sqla_shard.Cluster.run>` it may be
        called again, in a new session.
    :param lifetime: how long the keys stay claimed for this call.
    :param undo: an operation that takes the id and deletes all that
        ``create`` has written; by default the object alone is deleted, if
        ``create`` has added it to the session.
    :returns: the id, when every key belongs to the object.
    :raises KeyTakenError: when a key belongs to another object, or is
        claimed.  Nothing was created.
    :raises ClaimLostError: when a claim was lost before it was confirmed.
        The object is deleted again.
    :raises KeyPendingError: when the object was committed and a claim could
        not be confirmed yet, or nobody could tell.
    :raises CommitUnknownError: when nobody can tell whether the object was
        committed.  If it was, it gets its keys.
    """
    return run(
        cluster,
        _signing_up(keys, _bound(create, args, kwargs), lifetime, undo),
    )


async def async_sign_up(
    cluster: Cluster,
    keys: Mapping[Any, str],
    create: Callable[..., int],
    *args: Any,
    lifetime: timedelta = LIFETIME,
    undo: Operation[[int]] | None = None,
    **kwargs: Any,
) -> int:
    """Create an object that has unique keys; see :func:`sign_up`.

    :param create: is written without ``async``, as for
        ``session.run_sync()``.
    """
    return await run_awaited(
        cluster,
        _signing_up(keys, _bound(create, args, kwargs), lifetime, undo),
    )


def _bound(
    fn: Callable[..., T], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Callable[[ShardSession], T]:
    return lambda session: fn(session, *args, **kwargs)


def _signing_up(
    keys: Mapping[Any, str],
    create: Callable[[ShardSession], int],
    lifetime: timedelta,
    undo: Operation[[int]] | None,
) -> Course[int]:
    if not keys:
        raise ValueError(
            "keys={}: name a lookup class and a key, as in "
            '{UserEmail: "me@example.com"}'
        )
    claims: list[Claim] = []
    try:
        for cls, key in keys.items():
            # Under one token, so that it can be done again where nobody
            # knows whether it was committed.
            token = token_bytes(TOKEN_BYTES)
            claiming = partial(_claim, cls, key, token, lifetime)
            claims.append((yield from settled(claiming)))
        creating = partial(_create, create, claims, undo)
        made: Made = yield Step(
            function=creating, key=f"sign-up {token_hex()}"
        )
    except CommitUnknownError:
        # The object may be there, and gets its keys then.
        raise
    except Exception:
        yield from _give_back(claims)
        raise
    yield from _check_keys(claims, made, undo)
    return made.target_id


def _claim(
    cls: Any,
    key: str,
    token: bytes,
    lifetime: timedelta,
    session: ShardSession,
) -> Claim:
    table = table_of(cls, session, unique=True, name="sign_up()")
    return claim(table, key, None, lifetime, token=token)


def _create(
    create: Callable[[ShardSession], int],
    claims: Sequence[Claim],
    undo: Operation[[int]] | None,
    session: ShardSession,
) -> Made:
    """Create the object, and leave the confirmation of its keys."""
    new: list[Any] = []
    event.listen(
        session, "pending_to_persistent", lambda _, added: new.append(added)
    )
    target_id = create(session)
    session.flush()
    tables = [Table(one.lookup, session) for one in claims]
    for table in tables:
        table.check_id(target_id)
    made = Made(
        target_id=target_id,
        is_new=any(
            isinstance(added, tables[0].definition.target)
            and inspect(added).identity == (target_id,)
            for added in new
        ),
    )
    first, *others = claims
    calls = calls_of("confirm", claims, session, target_id)
    lost = [
        undoing(session, first.lookup, made, undo),
        *calls_of("release", others, session, target_id),
    ]
    calls[0].arguments.update(
        confirmed=[asdict(one) for one in calls[1:]],
        lost=[asdict(one) for one in lost],
    )
    home = place_of(session, first.lookup, target_id)
    leave_calls(session, home, calls[:1])
    return made


def _give_back(claims: Sequence[Claim]) -> Course[None]:
    """Release claims, as far as that is possible: they expire anyway."""
    for one in claims:
        name = one.lookup.__name__
        yield from _tried(one.release, f"a claim in {name} was not released")


def _tried(function: Callable[..., Any], otherwise: str) -> Course[None]:
    """Clean up after an error, which is the one to be raised."""
    try:
        yield from settled(function)
    except SQLAlchemyError as error:
        _log.warning(
            "%s: %s", otherwise, short(error), extra={"action": "register"}
        )


def _check_keys(
    claims: Sequence[Claim], made: Made, undo: Operation[[int]] | None
) -> Course[None]:
    """See to it that the keys belong to the object now.

    :raises ClaimLostError: when one was lost; the object is undone.
    :raises KeyPendingError: when one is only claimed, for all that is known.
    """
    one = claims[0]
    try:
        rows = yield Step(function=partial(_rows, claims))
        for one, row in zip(claims, rows, strict=True):
            if row is None or row.target_id != made.target_id:
                # What follows a COMMIT gets little time for it.
                yield from settled(
                    partial(one.confirm, target_id=made.target_id)
                )
    except ClaimLostError:
        yield from _tried(
            partial(_undo, claims, made, undo),
            f"{made.target_id} was not deleted after it has lost a key",
        )
        raise
    except SQLAlchemyError as error:
        raise KeyPendingError(
            lookup=one.lookup.__name__, key=one.key, target_id=made.target_id
        ) from error


def _rows(claims: Sequence[Claim], session: ShardSession) -> list[Any]:
    """Return the rows of claims; None for one that is not there."""
    found: list[Any] = []
    for one in claims:
        rows = read(Table(one.lookup, session), [one.key])
        found.append(rows[0] if rows else None)
    return found


def _undo(
    claims: Sequence[Claim],
    made: Made,
    undo: Operation[[int]] | None,
    session: ShardSession,
) -> None:
    """Delete an object, and leave it to release its keys."""
    first = claims[0].lookup
    call = undoing(session, first, made, undo)
    named(call.operation)(session, **call.arguments)
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
    """Give an object another key for one that it has.

    ::

        change(cluster, UserEmail, old, new, user_id, set_email, user_id, new)

    The object has one of the two keys at any time: it gets the new one, then
    ``switch(session, *args, **kwargs)`` writes it to the object, in a
    transaction that leaves an intent to release the old one.  While a server
    is down, or after a crash, the object may have both.  Doing it again does
    no harm.

    Keys that are equal under the policy of the class are one row, which the
    object keeps.

    :param lookup: the lookup class.
    :param switch: writes the object's shard; None where the object does not
        have the key itself.
    :raises KeyNotHeldError: when the object has neither key.
    :raises KeyTakenError: when the new one belongs to another object, or is
        claimed.
    :raises CommitUnknownError: when nobody can tell whether ``switch`` was
        committed; the object has both keys then, or the new one.
    """
    bound = None if switch is None else _bound(switch, args, kwargs)
    run(cluster, _changing(lookup, old_key, new_key, target_id, bound))


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
    """Give an object another key for one that it has; see :func:`change`.

    :param switch: is written without ``async``, as for
        ``session.run_sync()``.
    """
    bound = None if switch is None else _bound(switch, args, kwargs)
    await run_awaited(
        cluster, _changing(lookup, old_key, new_key, target_id, bound)
    )


@dataclass(frozen=True, kw_only=True)
class _Taken:
    """What became of the new key of an object.

    :ivar key: the new one, normalised.
    :ivar was_held: whether the object had it before.
    :ivar old: the rows of the old one that are to go.
    """

    key: str
    was_held: bool
    old: list[Call]


def _changing(
    cls: Any,
    old_key: str,
    new_key: str,
    target_id: int,
    switch: Callable[[ShardSession], Any] | None,
) -> Course[None]:
    token = token_bytes(TOKEN_BYTES)
    taking = partial(
        _take, cls, old_key, new_key, target_id, token, switch is None
    )
    taken = yield from settled(taking)
    if switch is None:
        return
    switching = partial(_switch, cls, switch, target_id, taken.old)
    try:
        yield Step(function=switching, key=f"change of key {token_hex()}")
    except CommitUnknownError:
        # The object may have the new key already, and keeps both.
        raise
    except Exception:
        if not taken.was_held:
            yield from _tried(
                partial(release, cls, taken.key, token.hex(), target_id),
                f"the new key in {cls.__name__} was not released",
            )
        raise


def _take(
    cls: Any,
    old_key: str,
    new_key: str,
    target_id: int,
    token: bytes,
    is_all: bool,
    session: ShardSession,
) -> _Taken:
    """Give an object its new key.

    :param token: of this change: an intent of an earlier one that comes late
        must not release what the object has got back since.
    :param is_all: whether the old key is released by this transaction.
    """
    table = table_of(cls, session, unique=True, name="change()")
    table.check_id(target_id)
    form = table.form(new_key)
    old = dict.fromkeys(one.text for one in table.forms(old_key))
    held = {
        row.key: row
        for row in read(table, {**old, form.text: None})
        if row.target_id == target_id
    }
    if not held:
        raise KeyNotHeldError(
            lookup=table.name, key=next(iter(old)), target_id=target_id
        )
    check_older(table, form, table.forms(new_key), target_id)
    own(table, form, target_id, token)
    before = held.pop(form.text, None)
    calls = [
        Call.on(
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
    return _Taken(
        key=form.text,
        was_held=before is not None and before.token != token,
        old=calls,
    )


def _switch(
    cls: Any,
    switch: Callable[[ShardSession], Any],
    target_id: int,
    old: Sequence[Call],
    session: ShardSession,
) -> None:
    switch(session)
    session.flush()
    leave_calls(session, place_of(session, cls, target_id), old)
