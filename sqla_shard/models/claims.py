"""Claims of keys, the keys of objects, and operations that confirm or release.

A row without an id is a claim: the key is reserved for the holder of its token
until it expires.  One statement inserts the row, or finds and locks it, so
that exactly one of several transactions claims a key, and the other
transactions wait for its end.  An expired claim is taken over by an UPDATE
with its token in the condition; its former holder can then not confirm it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from secrets import token_bytes
from typing import Any

from sqlalchemy.orm import Mapper

from sqla_shard.engine.rendering import Place
from sqla_shard.exc import (
    ClaimLostError,
    CrossShardWriteError,
    KeyNotHeldError,
    KeyTakenError,
)
from sqla_shard.models.lookup_table import (
    link,
    LookupAccess,
    NormalizedKey,
    read_keys,
    statements_of,
    TOKEN_BYTES,
)
from sqla_shard.outbox.apply import call_operation, operation_name, register_for
from sqla_shard.outbox.operations import add_pending, Operation
from sqla_shard.session import ShardSession
from sqla_shard.util.logs import careful_log

#: Default lifetime of a claim.
LIFETIME = timedelta(minutes=15)
_MAX_LIFETIME = timedelta(days=366)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A key that is reserved for the holder of this claim.

    It can be pickled, and be confirmed in another process.

    :ivar lookup: the lookup class.
    :ivar key: the key, normalized.
    :ivar token: identifies the claim; None if the key was immediately given to
        an object.
    :ivar expires_at: time at which other transactions can take the claim over,
        by the clock of the server; None if it does not expire.
    """

    lookup: Any
    key: str
    token: bytes | None
    expires_at: datetime | None

    def confirm(self, session: ShardSession, target_id: int) -> None:
        """Give the key to an object.

        An expired claim can be confirmed until another transaction claims
        the key, or :func:`~sqla_shard.upkeep.delete_abandoned` deletes the
        claim.  Confirming it again with the same id has no effect.

        :raises ClaimLostError: if the claim was released or taken over.
        :raises WrongTypeError: if the id is of another class.
        """
        table = LookupAccess(self.lookup, session)
        table.check_id(target_id)
        statements = statements_of(self.lookup)
        if self.token is not None:
            result = table.execute(
                self.key,
                statements.confirm,
                the_key=self.key,
                the_token=self.token,
                the_id=target_id,
            )
            if result.rowcount == 1:
                return
        row = locked(table, self.key)
        owner = None if row is None else row.target_id
        if owner != target_id:
            raise ClaimLostError(lookup=table.name, key=self.key, target_id=owner)

    def release(self, session: ShardSession) -> bool:
        """Release the key before it is confirmed.

        :returns: False if the claim was already confirmed, released or
            taken over.
        """
        if self.token is None:
            return False
        table = LookupAccess(self.lookup, session)
        result = table.execute(
            self.key,
            statements_of(self.lookup).give_up,
            the_key=self.key,
            the_token=self.token,
        )
        return bool(result.rowcount)

    def __repr__(self) -> str:
        # Do not show the token: it is sufficient to confirm the claim.
        return f"<Claim {self.lookup.__name__} {self.key!r} until {self.expires_at}>"


def claim(
    table: LookupAccess,
    key: str,
    target_id: int | None,
    lifetime: timedelta,
    *,
    token: bytes | None = None,
) -> Claim:
    """Claim a key, or give it to an object immediately.

    :param token: token of the claim; with the same token the call can be
        repeated if the outcome of the COMMIT is unknown.
    :raises KeyTakenError: if it belongs to another object, or is claimed.
    """
    microseconds = _microseconds_of(lifetime)
    if target_id is not None:
        table.check_id(target_id)
    form = table.form(key)
    check_older(table, form, table.forms(key), target_id)
    token = token or token_bytes(TOKEN_BYTES)
    if target_id is None:
        return _claim(table, form, microseconds, token)
    give_key(table, form, target_id, token)
    return Claim(lookup=table.cls, key=form.text, token=None, expires_at=None)


def _microseconds_of(lifetime: object) -> int:
    if (
        not isinstance(lifetime, timedelta)
        or not _MICROSECOND <= lifetime <= _MAX_LIFETIME
    ):
        raise ValueError(
            f"lifetime={lifetime!r}; it must be a positive timedelta of up to "
            f"{_MAX_LIFETIME.days} days"
        )
    return lifetime // _MICROSECOND


def locked(table: LookupAccess, text: str) -> Any:
    """Return the current row of a key, locked; None if not found."""
    statement = statements_of(table.cls).locked
    return table.execute(text, statement, the_key=text).one_or_none()


def check_older(
    table: LookupAccess,
    form: NormalizedKey,
    forms: Iterable[NormalizedKey],
    target_id: int | None,
) -> None:
    """Reject a key that is taken as normalized by an older policy."""
    texts = {one.text for one in forms} - {form.text}
    for row in read_keys(table, sorted(texts)) if texts else ():
        table.check_policy(row)
        mine = row.target_id is not None and row.target_id == target_id
        if not mine and not row.expired:
            raise _key_taken_error(table, row)


def _key_taken_error(table: LookupAccess, row: Any) -> KeyTakenError:
    return KeyTakenError(
        lookup=table.name,
        key=row.key,
        target_id=row.target_id,
        expires_at=None if row.target_id is not None else row.expires_at,
    )


def _claim(
    table: LookupAccess, form: NormalizedKey, microseconds: int, token: bytes
) -> Claim:
    statements = statements_of(table.cls)
    row, values = _insert(
        table, statements.claim, form, token, the_lifetime=microseconds
    )
    if row.token != token:
        _take_over(table, row, statements.take_over, values)
        row = locked(table, form.text)
    return Claim(
        lookup=table.cls, key=form.text, token=token, expires_at=row.expires_at
    )


def give_key(
    table: LookupAccess, form: NormalizedKey, target_id: int, token: bytes
) -> None:
    """Give a key to an object, which may have it already.

    :param token: identifies this call.
    :raises KeyTakenError: if it belongs to another object, or is claimed.
    """
    statements = statements_of(table.cls)
    row, values = _insert(table, statements.give, form, token, the_id=target_id)
    if row.target_id != target_id:
        _take_over(table, row, statements.give_abandoned, values)
    elif row.token != token or row.policy != form.label:
        table.check_policy(row)
        table.execute(form.text, statements.give_again, **values)


def _insert(
    table: LookupAccess,
    statement: Any,
    form: NormalizedKey,
    token: bytes,
    **parameters: Any,
) -> tuple[Any, dict[str, Any]]:
    """Insert the row of a key unless it exists, and lock it.

    :returns: the row, and the parameters of the statement.
    """
    values = {
        "the_key": form.text,
        "the_policy": form.label,
        "the_token": token,
        **parameters,
    }
    table.execute(form.text, statement, **values)
    return locked(table, form.text), values


def _take_over(
    table: LookupAccess, row: Any, statement: Any, values: dict[str, Any]
) -> None:
    """Take over an expired claim.

    :raises KeyTakenError: if it has not expired, or was confirmed.
    """
    table.check_policy(row)
    if row.target_id is not None or not row.expired:
        raise _key_taken_error(table, row)
    result = table.execute(
        row.key, statement, old_token=row.token, old_end=row.expires_at, **values
    )
    if result.rowcount != 1:
        raise _key_taken_error(table, row)


# -- Keys of objects: add, release and rename.


def add_key(table: LookupAccess, key: str, target_id: int) -> None:
    """Give a key to an object; other objects may have the same key."""
    table.check_id(target_id)
    form = table.form(key)
    values = {"the_key": form.text, "the_id": target_id, "the_policy": form.label}
    statements = statements_of(table.cls)
    table.execute(form.text, statements.add, **values)
    if len(table.definition.policies) > 1:
        # The row may have an older policy.
        table.execute(form.text, statements.rewrite, **values)


def release_key(table: LookupAccess, key: str, target_id: int) -> bool:
    """Release a key of an object; return False if it does not have it."""
    table.check_id(target_id)
    texts = _normalized_keys(table, key)
    if len(texts) > 1:
        # The rows are on several shards, but the transaction may write only
        # one.  Lock the rows: otherwise a row that is rewritten concurrently
        # under the current policy would not be found in either form.  Lock in
        # the order of shards: otherwise two transactions could deadlock.
        texts.sort(key=table.shard_of)
        statement = statements_of(table.cls).of_object_locked
        texts = _keys_of_object(table, texts, target_id, statement)
    return _delete(table, texts, target_id)


def _normalized_keys(table: LookupAccess, key: str) -> list[str]:
    """Return the forms of a key, the current one first."""
    return list(dict.fromkeys(form.text for form in table.forms(key)))


def _keys_of_object(
    table: LookupAccess, texts: Sequence[str], target_id: int, statement: Any = None
) -> list[str]:
    """Return the keys that belong to an object.

    :param statement: SELECT of a row; by default without a lock.
    """
    if statement is None:
        statement = statements_of(table.cls).of_object
    held = []
    for text in texts:
        row = table.execute(
            text, statement, the_key=text, the_id=target_id
        ).one_or_none()
        if row is not None:
            table.check_policy(row)
            held.append(text)
    return held


def _delete(table: LookupAccess, texts: Sequence[str], target_id: int) -> bool:
    statement = statements_of(table.cls).delete
    deleted = 0
    for text in texts:
        result = table.execute(text, statement, the_key=text, the_id=target_id)
        deleted += result.rowcount
    return deleted > 0


def rename_key(table: LookupAccess, old_key: str, new_key: str, target_id: int) -> None:
    """Replace a key of an object by another.

    :raises KeyNotHeldError: if the object has neither key.
    :raises KeyTakenError: if the new key belongs to another object.
    :raises CrossShardWriteError: if the keys are on two shards, and the
        transaction may write only one.
    """
    table.check_id(target_id)
    new = table.form(new_key).text
    old = _normalized_keys(table, old_key)
    held = _keys_of_object(table, old, target_id)
    missing = KeyNotHeldError(lookup=table.name, key=old[0], target_id=target_id)
    # A first attempt with an unknown outcome may have been committed.
    if not held and not _keys_of_object(table, [new], target_id):
        raise missing
    outdated = [text for text in held if text != new]
    _check_one_shard(table, [new, *outdated])
    if table.definition.unique:
        claim(table, new_key, target_id, LIFETIME)
    else:
        add_key(table, new_key, target_id)
    if outdated and not _delete(table, outdated, target_id):
        raise missing


def _check_one_shard(table: LookupAccess, texts: Sequence[str]) -> None:
    """Reject keys on two shards before one of them is written."""
    if not table.session.log.is_of_one_shard:
        return
    first, *others = (table.place(text) for text in texts)
    for other in others:
        if other.address != first.address:
            raise CrossShardWriteError(
                first=(first.shard_id, f"the new key, in {first}"),
                second=(other.shard_id, f"the old key, in {other}"),
                remedy="call sqla_shard.lookup.change(), which takes two "
                'transactions; or rename in one of cross_shard="ordered"',
            )


# -- Operations after the COMMIT of a registration.
#
# Each lookup class has three: ``confirm`` confirms a claim, ``release``
# releases a key, and ``undo`` deletes an object that has lost its key.  These
# operations may be applied late, twice and in any order, because they identify
# the row by its unique token.


_log = careful_log(__name__)


@dataclass(frozen=True, kw_only=True)
class Made:
    """The object that ``create`` returned.

    :ivar target_id: id of the object.
    :ivar is_new: whether ``create`` added the object to the session; an object
        that existed before must not be deleted.
    """

    target_id: int
    is_new: bool


@dataclass(frozen=True, kw_only=True)
class PendingCall:
    """A pending operation.

    :ivar operation: name of the operation.
    :ivar keyspace: keyspace of the shard that the operation writes.
    :ivar shard_id: number of the shard; a process that applies the operation
        then does not need the other classes.
    :ivar arguments: arguments of the operation.
    """

    operation: str
    keyspace: str
    shard_id: int
    arguments: dict[str, Any]

    @classmethod
    def on(
        cls, session: ShardSession, verb: str, lookup: Any, key: str, **arguments: Any
    ) -> PendingCall:
        """Return a call that writes the row of a key."""
        place = LookupAccess(lookup, session).place(key)
        return cls(
            operation=operation_name(verb, lookup),
            keyspace=place.keyspace,
            shard_id=place.shard_id,
            arguments={"key": key, **arguments},
        )


def calls_of(
    verb: str, claims: Sequence[Claim], session: ShardSession, target_id: int
) -> list[PendingCall]:
    """Return the calls of an operation for the given claims."""
    return [
        PendingCall.on(
            session,
            verb,
            one.lookup,
            one.key,
            token=one.token and one.token.hex(),
            target_id=target_id,
        )
        for one in claims
    ]


def undo_call(
    session: ShardSession, lookup: Any, made: Made, undo: Operation[[int]] | None
) -> PendingCall:
    """Return the operation that deletes an object that has lost its key."""
    place = place_of(session, lookup, made.target_id)
    return PendingCall(
        operation=operation_name("undo", lookup),
        keyspace=place.keyspace,
        shard_id=place.shard_id,
        arguments={
            "target_id": made.target_id,
            "is_new": made.is_new,
            "undo": None if undo is None else undo.name,
        },
    )


def leave_calls(
    session: ShardSession, place: Place, calls: Sequence[PendingCall]
) -> None:
    """Add operations to the transaction, to be applied after COMMIT.

    :param place: location of a shard that the transaction writes.
    """
    for call in calls:
        there = session.place_for(keyspace=call.keyspace, shard_id=call.shard_id)
        add_pending(session, place, call.operation, [(there, call.arguments)])


def place_of(session: ShardSession, lookup: Any, target_id: int) -> Place:
    """Return the shard of an object."""
    definition = link(lookup)
    return session.place_for(
        mapper=definition.target, shard_id=definition.shard_of(lookup, target_id)
    )


def define_claims(mapper: Mapper[Any], cls: Any) -> None:
    """Handle ``after_mapper_constructed``: register the operations of a class.

    A process that applies operations must import the class.
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

    :param confirmed: operations to add afterwards.
    :param lost: operations to add instead if the claim was lost.
    """
    mine = Claim(lookup=cls, key=key, token=bytes.fromhex(token), expires_at=None)
    try:
        mine.confirm(session, target_id)
    except ClaimLostError as error:
        _log.warning(
            # Do not log the key: it is a value of the application, such as an
            # address.
            "%s has no key in %s: its claim was lost before it was confirmed",
            target_id,
            error.lookup,
            extra={"action": "register"},
        )
        confirmed = lost
    place = LookupAccess(cls, session).place(key)
    leave_calls(session, place, [PendingCall(**one) for one in confirmed])


def release(
    cls: Any, key: str, token: str | None, target_id: int, session: ShardSession
) -> None:
    """Delete the row of a key, if it has the token."""
    LookupAccess(cls, session).execute(
        key,
        statements_of(cls).forget,
        the_key=key,
        the_id=target_id,
        the_token=None if token is None else bytes.fromhex(token),
    )


def _undo_object(
    cls: Any, target_id: int, is_new: bool, undo: str | None, session: ShardSession
) -> None:
    """Delete an object that lost its key."""
    if undo is not None:
        call_operation(session, undo, target_id)
        return
    instance = session.get(link(cls).target, target_id) if is_new else None
    if instance is not None:
        session.delete(instance)
