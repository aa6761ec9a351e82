"""Keys that belong to one object alone.

A row without an id is a claim: it keeps the key for whoever knows its token,
until it expires.  The row is inserted, or found and locked, by one statement;
so of many that want a key exactly one gets it, and the others wait for no
longer than its transaction takes.  An expired claim is taken over by an
UPDATE that names its token: whoever had it can confirm it no more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from datetime import timedelta
from secrets import token_bytes
from typing import Any

from sqla_shard.exc import ClaimLostError
from sqla_shard.exc import KeyTakenError
from sqla_shard.lookup.definition import TOKEN_BYTES
from sqla_shard.lookup.keys import Form
from sqla_shard.lookup.keys import Table
from sqla_shard.lookup.reading import read
from sqla_shard.lookup.statements import statements_of
from sqla_shard.session import ShardSession

__all__ = ["LIFETIME", "Claim", "check_older", "claim", "locked", "own"]

#: How long a claim lives that is not told.
LIFETIME = timedelta(minutes=15)
_LONGEST = timedelta(days=366)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A key that is kept for whoever has this.

    It can be pickled, and be confirmed in another process.

    :ivar lookup: the lookup class.
    :ivar key: the key, normalised.
    :ivar token: what tells this claim from others; None where the key
        belonged to an object at once.
    :ivar expires_at: until when nobody can take it over, by the clock of the
        server; None where it does not end.
    """

    lookup: Any
    key: str
    token: bytes | None
    expires_at: datetime | None

    def confirm(self, session: ShardSession, target_id: int) -> None:
        """Give the key to an object.

        After the claim has expired that still works, as long as nobody else
        has claimed the key and nobody has deleted the claim as abandoned
        (:func:`~sqla_shard.verifying.delete_abandoned`).  Doing it again with
        the same id does no harm.

        :raises ClaimLostError: when the claim is not there any more.
        :raises WrongTypeError: when the id is of another class.
        """
        table = Table(self.lookup, session)
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
            raise ClaimLostError(
                lookup=table.name, key=self.key, target_id=owner
            )

    def release(self, session: ShardSession) -> bool:
        """Give the key back before it was confirmed.

        :returns: False when there was nothing to give back: the claim was
            confirmed, released, or lost to somebody else.
        """
        if self.token is None:
            return False
        table = Table(self.lookup, session)
        result = table.execute(
            self.key,
            statements_of(self.lookup).give_up,
            the_key=self.key,
            the_token=self.token,
        )
        return bool(result.rowcount)

    def __repr__(self) -> str:
        # Without the token, by which the key can be had.
        return (
            f"<Claim {self.lookup.__name__} {self.key!r} until "
            f"{self.expires_at}>"
        )


def claim(
    table: Table,
    key: str,
    target_id: int | None,
    lifetime: timedelta,
    *,
    token: bytes | None = None,
) -> Claim:
    """Claim a key, or give it to an object at once.

    :param token: of the claim: with one and the same it can be done again,
        where nobody knows whether it was committed.
    :raises KeyTakenError: when it belongs to another, or is claimed.
    """
    microseconds = _checked(lifetime)
    if target_id is not None:
        table.check_id(target_id)
    form = table.form(key)
    check_older(table, form, table.forms(key), target_id)
    token = token or token_bytes(TOKEN_BYTES)
    if target_id is None:
        return _claim(table, form, microseconds, token)
    own(table, form, target_id, token)
    return Claim(lookup=table.cls, key=form.text, token=None, expires_at=None)


def _checked(lifetime: object) -> int:
    if (
        not isinstance(lifetime, timedelta)
        or not _MICROSECOND <= lifetime <= _LONGEST
    ):
        raise ValueError(
            f"lifetime={lifetime!r}; it is a timedelta of up to "
            f"{_LONGEST.days} days"
        )
    return lifetime // _MICROSECOND


def locked(table: Table, text: str) -> Any:
    """Return the row of a key as it is now, locked; None for none."""
    statement = statements_of(table.cls).locked
    return table.execute(text, statement, the_key=text).one_or_none()


def check_older(
    table: Table, form: Form, forms: Iterable[Form], target_id: int | None
) -> None:
    """Refuse a key that is taken under the name of an older policy."""
    texts = {one.text for one in forms} - {form.text}
    for row in read(table, sorted(texts)) if texts else ():
        table.check_policy(row)
        mine = row.target_id is not None and row.target_id == target_id
        if not mine and not row.expired:
            raise _taken(table, row)


def _taken(table: Table, row: Any) -> KeyTakenError:
    return KeyTakenError(
        lookup=table.name,
        key=row.key,
        target_id=row.target_id,
        expires_at=None if row.target_id is not None else row.expires_at,
    )


def _claim(table: Table, form: Form, microseconds: int, token: bytes) -> Claim:
    statements = statements_of(table.cls)
    values = {
        "the_key": form.text,
        "the_policy": form.label,
        "the_token": token,
        "the_lifetime": microseconds,
    }
    table.execute(form.text, statements.claim, **values)
    row = locked(table, form.text)
    if row.token != token:
        _take_over(table, row, statements.take_over, values)
        row = locked(table, form.text)
    return Claim(
        lookup=table.cls,
        key=form.text,
        token=token,
        expires_at=row.expires_at,
    )


def own(table: Table, form: Form, target_id: int, token: bytes) -> None:
    """Give a key to an object, which may have it already.

    :param token: tells this giving from earlier ones.
    :raises KeyTakenError: when it belongs to another, or is claimed.
    """
    statements = statements_of(table.cls)
    values = {
        "the_key": form.text,
        "the_policy": form.label,
        "the_token": token,
        "the_id": target_id,
    }
    table.execute(form.text, statements.own, **values)
    row = locked(table, form.text)
    if row.target_id != target_id:
        _take_over(table, row, statements.own_abandoned, values)
    elif row.token != token or row.policy != form.label:
        table.check_policy(row)
        table.execute(form.text, statements.own_again, **values)


def _take_over(
    table: Table, row: Any, statement: Any, values: dict[str, Any]
) -> None:
    """Take a claim that was abandoned.

    :raises KeyTakenError: when it was not.
    """
    table.check_policy(row)
    if row.target_id is not None or not row.expired:
        raise _taken(table, row)
    result = table.execute(
        row.key,
        statement,
        old_token=row.token,
        old_end=row.expires_at,
        **values,
    )
    if result.rowcount != 1:
        raise _taken(table, row)
