"""The statements of a lookup class, each built once.

They are of the table, not of the class: a session holds no rows of it.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger
from sqlalchemy import bindparam
from sqlalchemy import Boolean
from sqlalchemy import delete
from sqlalchemy import inspect
from sqlalchemy import Integer
from sqlalchemy import null
from sqlalchemy import or_
from sqlalchemy import select
from sqlalchemy import type_coerce
from sqlalchemy import update

from sqla_shard.dialects.sql import InsertMissing
from sqla_shard.dialects.sql import Moment
from sqla_shard.lookup.definition import link

__all__ = ["Statements", "statements_of"]

_BUILT = "__sqla_shard_statements__"


class Statements:
    """The statements of a lookup class.

    Their parameters: ``the_keys`` (a slot), ``the_key``, ``the_id``,
    ``the_policy``, ``the_token``, ``the_lifetime`` (microseconds), and
    ``old_token`` and ``old_end`` of the claim that is taken over.

    The columns of what they read: ``key``, ``target_id``, ``policy``, and of
    unique keys ``token``, ``expires_at`` and ``expired``.

    :ivar rows: reads them all; it is for further conditions.
    """

    def __init__(self, cls: Any) -> None:
        definition = link(cls)
        self._table: Any = inspect(cls).local_table
        self._target = self._table.c[definition.column]
        self._here = self._table.c.key == bindparam("the_key")
        shown = [
            self._table.c.key,
            self._target.label("target_id"),
            self._table.c.policy,
        ]
        if definition.unique:
            shown += self._of_claims()
        self.rows = found = select(*shown)
        wanted: Any = bindparam("the_keys", expanding=True)
        self.read = found.where(self._table.c.key.in_(wanted))
        self.locked = found.where(self._here).with_for_update()
        held = self._here, self._target == bindparam("the_id")
        self.held = select(*shown[:3]).where(*held)
        self.held_locked = self.held.with_for_update()
        self.delete = delete(self._table).where(*held)
        self.rewrite = (
            update(self._table)
            .where(*held)
            .values(policy=bindparam("the_policy"))
        )
        if definition.unique:
            self._build_claims()
        else:
            self._build_shared()

    def _of_claims(self) -> list[Any]:
        ends = self._table.c.expires_at
        return [
            self._table.c.claim.label("token"),
            ends,
            type_coerce(ends <= Moment(), Boolean()).label("expired"),
        ]

    def _build_claims(self) -> None:
        table, target = self._table, self._target
        lifetime = bindparam("the_lifetime", type_=BigInteger())
        claimed = {
            table.c.policy: bindparam("the_policy"),
            table.c.claim: bindparam("the_token"),
            target: null(),
            table.c.expires_at: Moment(lifetime),
        }
        owned = {
            table.c.policy: bindparam("the_policy"),
            table.c.claim: bindparam("the_token"),
            target: bindparam("the_id"),
            table.c.expires_at: null(),
        }
        key: Any = {table.c.key: bindparam("the_key")}
        pending = target.is_(None)
        mine = table.c.claim == bindparam("the_token")
        abandoned = update(table).where(
            self._here,
            pending,
            table.c.claim == bindparam("old_token"),
            table.c.expires_at == bindparam("old_end"),
            table.c.expires_at <= Moment(),
        )
        self.claim = InsertMissing(table).values({**key, **claimed})
        self.own = InsertMissing(table).values({**key, **owned})
        self.take_over = abandoned.values(claimed)
        self.own_abandoned = abandoned.values(owned)
        self.own_again = (
            update(table)
            .where(self._here, target == bindparam("the_id"))
            .values(
                {
                    table.c.policy: bindparam("the_policy"),
                    table.c.claim: bindparam("the_token"),
                }
            )
        )
        self.confirm = (
            update(table)
            .where(self._here, pending, mine)
            .values({target: bindparam("the_id"), table.c.expires_at: null()})
        )
        self.give_up = delete(table).where(self._here, pending, mine)
        self.forget = delete(table).where(
            self._here,
            or_(pending, target == bindparam("the_id")),
            table.c.claim.is_not_distinct_from(bindparam("the_token")),
        )
        self.discard = delete(table).where(
            self._here,
            pending,
            table.c.claim == bindparam("old_token"),
            table.c.expires_at == bindparam("old_end"),
        )

    def _build_shared(self) -> None:
        table, target = self._table, self._target
        self.add = InsertMissing(table).values(
            {
                table.c.key: bindparam("the_key"),
                target: bindparam("the_id"),
                table.c.policy: bindparam("the_policy"),
            }
        )
        number = bindparam("the_number", type_=Integer())
        shown = table.c.key, target.label("target_id"), table.c.policy
        page = select(*shown).order_by(target).limit(number)
        self.first = page.where(self._here)
        self.after = page.where(self._here, target > bindparam("the_id"))


def statements_of(cls: Any) -> Statements:
    """Return the statements of a lookup class.

    :raises ClassDefinitionError: when a class that it was given by name is
        not there.
    """
    found: Statements | None = cls.__dict__.get(_BUILT)
    if found is None:
        found = Statements(cls)
        setattr(cls, _BUILT, found)
    return found
