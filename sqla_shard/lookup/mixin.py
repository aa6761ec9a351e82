"""Lookup tables: objects that are found by a key, such as a mail address.

::

    class UserEmail(LookupMixin, Base, target=User,
                    normalize=normalization.email):
        pass

    with cluster.session() as session:
        user_id = UserEmail.resolve(session, "Me@Example.com")

The table, ``user_email``, is on every shard of a keyspace of kind ``mod``;
the row of a key is on the shard ``md5(key) % shards``.  Equal keys meet on
one shard, whose primary key makes them unique in the cluster.

The number of shards of such a keyspace never changes, and neither may what a
policy of normalisation does: keys would be looked for where they are not.

A key and its object are on two shards, which are not committed as one.  So
an object gets its key in several transactions::

    user_id = sign_up(cluster, {UserEmail: "me@example.com"}, new_user)

A process that is killed between them leaves a claim that expires, or an
intent to confirm it.  :doc:`/howto/sign-up` shows it in full.

Use :meth:`Cluster.run <sqla_shard.Cluster.run>` for whatever changes keys: it
repeats what the server has chosen as the victim of a deadlock.

Rows are written by these methods alone: ``session.add()`` refuses them, and
``session.get()`` refuses to find them, since it knows nothing of
normalisation.  ``select(UserEmail)`` takes ``bind_arguments={"shard_id":
UserEmail.shard_of(session, key)}``, or ``scatter()``.

A key that cannot be one is refused with
:exc:`~sqla_shard.exc.InvalidKeyError`: it has more than 255 bytes of UTF-8,
or its policy says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from datetime import timedelta
from typing import Any
from typing import TYPE_CHECKING

from sqlalchemy import event
from sqlalchemy.orm import Mapped

from sqla_shard.lookup import calls
from sqla_shard.lookup import claiming
from sqla_shard.lookup import holding
from sqla_shard.lookup import reading
from sqla_shard.lookup.claiming import Claim
from sqla_shard.lookup.claiming import LIFETIME
from sqla_shard.lookup.definition import define
from sqla_shard.lookup.definition import Definition
from sqla_shard.lookup.definition import finish
from sqla_shard.lookup.keys import Table
from sqla_shard.lookup.keys import table_of
from sqla_shard.session import ShardSession

__all__ = ["LookupMixin"]


class LookupMixin:
    """Makes a declarative class a lookup; it stands before the base.

    Class keywords:

    :param target: the class whose objects are found, or its name.
    :param normalize: which keys are equal: one of
        :mod:`sqla_shard.lookup.normalization`, or your own.
    :param previous: policies that rows may have been written under before;
        they are found too.
    :param unique: whether a key belongs to one object.  False lets several
        share it, without claims: :meth:`add` and :meth:`resolve_all`.
    :param target_column: name of the column with the ids; by default that of
        the class with ``_id``.
    :param keyspace: name of the keyspace, where there are several of kind
        ``mod``.
    :param field: the attribute of the objects that holds their key, or a
        list of keys.  Nothing is written there; it lets
        :func:`~sqla_shard.verifying.verify_lookups` compare the two.
    :raises ClassDefinitionError: when the class could not work.

    All methods raise :exc:`~sqla_shard.exc.InvalidKeyError` for what cannot
    be a key, :exc:`~sqla_shard.exc.LookupPolicyError` when they meet a row
    of a policy that the class does not know, and
    :exc:`~sqla_shard.exc.WrongTypeError` for an id of another class.
    """

    if TYPE_CHECKING:
        key: Mapped[str]
        """The key, normalised."""
        policy: Mapped[str]
        """Under which policy, as ``name/version``."""
        token: Mapped[bytes | None]
        """Of the claim, in the column ``claim``; it stays when the key is
        confirmed, and is None in rows of older versions."""
        expires_at: Mapped[datetime | None]
        """When a claim ends; None where it is confirmed."""
        __sqla_shard_lookup__: Definition

    def __init_subclass__(
        cls,
        *,
        target: Any = None,
        normalize: Any = None,
        previous: Any = (),
        unique: bool = True,
        target_column: str | None = None,
        keyspace: str | None = None,
        field: str | None = None,
        **kwargs: Any,
    ) -> None:
        define(
            cls,
            LookupMixin,
            target=target,
            normalize=normalize,
            previous=previous,
            unique=unique,
            target_column=target_column,
            keyspace=keyspace,
            field=field,
        )
        super().__init_subclass__(**kwargs)

    # -- finding

    @classmethod
    def resolve(
        cls, session: ShardSession, key: str, *, timeout: float | None = None
    ) -> int | None:
        """Return the id of the object that a key belongs to.

        :param timeout: seconds, as for :func:`~sqla_shard.scatter`.
        :returns: None for nobody's, and for one that is claimed only.
        :raises ScatterTimeoutError: when the server does not answer in time.
        """
        table = table_of(cls, session, unique=True, name="resolve()")
        return reading.resolve_one(table, key, timeout)

    @classmethod
    def resolve_many(
        cls,
        session: ShardSession,
        keys: Iterable[str],
        *,
        timeout: float | None = None,
    ) -> dict[str, int]:
        """Return the ids of the objects that keys belong to.

        All servers are asked at the same time, with one statement for every
        256 shards of a server that a key is on.

        :param timeout: seconds for all servers together, as for
            :func:`~sqla_shard.scatter`.
        :returns: ids by key, as the keys were given, of those that belong to
            somebody.
        :raises ScatterTimeoutError: when a server does not answer in time.
        """
        table = table_of(cls, session, unique=True, name="resolve_many()")
        return reading.resolve_many(table, keys, timeout)

    @classmethod
    def resolve_all(
        cls,
        session: ShardSession,
        key: str,
        *,
        limit: int = 1000,
        after: int | None = None,
    ) -> list[int]:
        """Return the ids of the objects that share a key, ascending.

        :param limit: how many at most.
        :param after: the last id that was returned before, to go on.
        """
        table = table_of(cls, session, unique=False, name="resolve_all()")
        return reading.resolve_all(table, key, limit, after)

    @classmethod
    def shard_of(cls, session: ShardSession, key: str) -> int:
        """Return the shard that the row of a key is on."""
        table = Table(cls, session)
        return table.shard_of(table.form(key).text)

    # -- keys of one object

    @classmethod
    def claim(
        cls,
        session: ShardSession,
        key: str,
        target_id: int | None = None,
        *,
        lifetime: timedelta = LIFETIME,
    ) -> Claim:
        """Claim a key, so that nobody else can have it for a while.

        :param target_id: the object that it is to belong to, if that is
            there already; nothing has to be confirmed then.
        :param lifetime: how long a claim keeps the key, by the clock of the
            server.
        :returns: the claim, to be confirmed when the object is there, after
            this transaction was committed.
        :raises KeyTakenError: when it belongs to another object, or somebody
            has claimed it.  Roll back; for another key, begin anew.
        """
        table = table_of(cls, session, unique=True, name="claim()")
        return claiming.claim(table, key, target_id, lifetime)

    # -- keys that are shared

    @classmethod
    def add(cls, session: ShardSession, key: str, target_id: int) -> None:
        """Give a key to an object that shares it with others.

        That it has it already does no harm.
        """
        table = table_of(cls, session, unique=False, name="add()")
        holding.add(table, key, target_id)

    # -- both

    @classmethod
    def release(cls, session: ShardSession, key: str, target_id: int) -> bool:
        """Take a key from an object.

        :returns: False when it did not have it.
        """
        return holding.release(Table(cls, session), key, target_id)

    @classmethod
    def rename(
        cls,
        session: ShardSession,
        old_key: str,
        new_key: str,
        target_id: int,
    ) -> None:
        """Give an object another key for one that it has.

        The two are on two shards, as a rule, so that the transaction has to
        be allowed to write both: ``cluster.begin(cross_shard="ordered")``.
        :func:`sqla_shard.lookup.change` does it in two transactions, and the
        object has one of the keys all the time.

        With one and the same key it rewrites the row under the present
        policy, where it was written under one of ``previous``.

        :raises KeyNotHeldError: when the object has neither.
        :raises KeyTakenError: when the new one belongs to another object, or
            is claimed.
        :raises CrossShardWriteError: when the transaction may not write two
            shards.
        """
        holding.rename(Table(cls, session), old_key, new_key, target_id)

    def __repr__(self) -> str:
        definition = self.__sqla_shard_lookup__
        key = self.__dict__.get("key")
        target = self.__dict__.get(definition.column)
        return f"<{type(self).__name__} {key!r} -> {target}>"


event.listen(LookupMixin, "after_mapper_constructed", finish, propagate=True)
event.listen(
    LookupMixin,
    "after_mapper_constructed",
    calls.define,
    propagate=True,
)
