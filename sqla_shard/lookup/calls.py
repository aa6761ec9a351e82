"""What follows the COMMIT of a registration: calls that intents hold.

Each lookup class has three operations: ``confirm`` gives an object the key
that was claimed for it, ``release`` takes a key from it, and ``undo`` deletes
an object that no key leads to.  They may be applied late, twice, and in any
order: each names the row by its token, which no other row has.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Mapper

from sqla_shard.exc import ClaimLostError
from sqla_shard.ids import unpack
from sqla_shard.intents.operations import Operation
from sqla_shard.intents.registry import name_of
from sqla_shard.intents.registry import named
from sqla_shard.intents.registry import register_for
from sqla_shard.intents.writing import leave
from sqla_shard.lookup.claiming import Claim
from sqla_shard.lookup.definition import link
from sqla_shard.lookup.keys import Table
from sqla_shard.lookup.statements import statements_of
from sqla_shard.rendering import Place
from sqla_shard.session import ShardSession

__all__ = [
    "Call",
    "Made",
    "calls_of",
    "define",
    "leave_calls",
    "place_of",
    "release",
    "undoing",
]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Made:
    """The object that was created.

    :ivar target_id: its id.
    :ivar is_new: whether ``create`` has added it to the session; deleting
        one that was there before would lose it.
    """

    target_id: int
    is_new: bool


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of one of the operations below, as an intent holds it.

    :ivar operation: its name.
    :ivar keyspace: of the shard that it writes.
    :ivar shard_id: that shard; it is said, so that who applies an intent
        need not know the other classes.
    :ivar arguments: of the call.
    """

    operation: str
    keyspace: str
    shard_id: int
    arguments: dict[str, Any]

    @classmethod
    def on(
        cls,
        session: ShardSession,
        verb: str,
        lookup: Any,
        key: str,
        **arguments: Any,
    ) -> Call:
        """Return a call that writes the row of a key."""
        place = Table(lookup, session).place(key)
        return cls(
            operation=name_of(verb, lookup),
            keyspace=place.keyspace,
            shard_id=place.shard_id,
            arguments={"key": key, **arguments},
        )


def calls_of(
    verb: str, claims: Sequence[Claim], session: ShardSession, target_id: int
) -> list[Call]:
    """Return calls of one operation, for each of some claims."""
    return [
        Call.on(
            session,
            verb,
            one.lookup,
            one.key,
            token=one.token and one.token.hex(),
            target_id=target_id,
        )
        for one in claims
    ]


def undoing(
    session: ShardSession,
    lookup: Any,
    made: Made,
    undo: Operation[[int]] | None,
) -> Call:
    """Return the call that deletes an object which has lost its keys."""
    place = place_of(session, lookup, made.target_id)
    return Call(
        operation=name_of("undo", lookup),
        keyspace=place.keyspace,
        shard_id=place.shard_id,
        arguments={
            "target_id": made.target_id,
            "is_new": made.is_new,
            "undo": None if undo is None else undo.name,
        },
    )


def leave_calls(
    session: ShardSession, home: Place, calls: Sequence[Call]
) -> None:
    """Leave calls to be made after COMMIT.

    :param home: a shard that the transaction writes.
    """
    for one in calls:
        place = session.place_for(keyspace=one.keyspace, shard_id=one.shard_id)
        leave(session, home, one.operation, [(place, one.arguments)])


def place_of(session: ShardSession, lookup: Any, target_id: int) -> Place:
    """Return the shard of an object."""
    return session.place_for(
        mapper=link(lookup).target, shard_id=unpack(target_id).shard_id
    )


def define(mapper: Mapper[Any], cls: Any) -> None:
    """Handle ``after_mapper_constructed``: name the operations of a class.

    A process that applies intents has to import the class.
    """
    if not cls.__sqla_shard_lookup__.unique:
        return
    for verb, function in (
        ("confirm", _confirm),
        ("release", release),
        ("undo", _undo_object),
    ):
        register_for(verb, cls, function)


def _confirm(
    cls: Any,
    key: str,
    token: str,
    target_id: int,
    session: ShardSession,
    confirmed: Sequence[Mapping[str, Any]] = (),
    lost: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Confirm the claim of an object that was committed.

    :param confirmed: calls that follow.
    :param lost: those that follow where the claim is not there any more.
    """
    mine = Claim(
        lookup=cls, key=key, token=bytes.fromhex(token), expires_at=None
    )
    try:
        mine.confirm(session, target_id)
    except ClaimLostError as error:
        _log.warning(
            # The key is a value of the application, such as an address.
            "%s has no key in %s: its claim was lost before it was confirmed",
            target_id,
            error.lookup,
            extra={"action": "register"},
        )
        confirmed = lost
    place = Table(cls, session).place(key)
    leave_calls(session, place, [Call(**one) for one in confirmed])


def release(
    cls: Any,
    key: str,
    token: str | None,
    target_id: int,
    session: ShardSession,
) -> None:
    """Delete the row of a key, if it is the one that was meant."""
    Table(cls, session).execute(
        key,
        statements_of(cls).forget,
        the_key=key,
        the_id=target_id,
        the_token=None if token is None else bytes.fromhex(token),
    )


def _undo_object(
    cls: Any,
    target_id: int,
    is_new: bool,
    undo: str | None,
    session: ShardSession,
) -> None:
    """Delete an object that no key leads to."""
    if undo is not None:
        named(undo)(session, target_id)
        return
    made = session.get(link(cls).target, target_id) if is_new else None
    if made is not None:
        session.delete(made)
