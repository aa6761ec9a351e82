"""Lookup tables, which find objects by a key, such as a mail address.

::

    class UserEmail(LookupMixin, Base, target=User,
                    normalize=normalization.email):
        pass

    with cluster.session() as session:
        user_id = UserEmail.resolve(session, "Me@Example.com")

The table, ``user_email``, is on every shard of a keyspace of kind ``mod``;
the row of a key is on the shard ``md5(key) % shards``.  Equal keys are on one
shard, whose primary key makes them unique in the cluster.

The number of shards of such a keyspace never changes, nor may a normalization
policy: keys would be searched on the wrong shard.

A key and its object are on two shards, which are committed separately.
Several transactions are therefore needed to give an object a key::

    user_id = sign_up(cluster, {UserEmail: "me@example.com"}, new_user)

A process that is killed between them leaves a claim, which expires, or a
pending operation that confirms it; see :doc:`/howto/lookups`.

Change keys in :meth:`Cluster.run <sqla_shard.Cluster.run>`, which retries
after a deadlock.

Only these methods write rows: ``session.add()`` rejects them, and so does
``session.get()``, which cannot normalize keys.  ``select(UserEmail)`` requires
``bind_arguments={"shard_id": UserEmail.shard_of(session, key)}``, or
``scatter()``.

A key of more than 255 bytes in UTF-8, or one that its policy rejects, raises
:exc:`~sqla_shard.exc.InvalidKeyError`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, TYPE_CHECKING

from sqlalchemy import event
from sqlalchemy.orm import Mapped

from sqla_shard.models import lookup_table
from sqla_shard.models.claims import (
    add_key,
    Claim,
    claim,
    define_claims,
    LIFETIME,
    release_key,
    rename_key,
)
from sqla_shard.models.lookup_table import (
    define,
    finish,
    LookupAccess,
    LookupDefinition,
    table_with_keys,
)
from sqla_shard.session import ShardSession


class LookupMixin:
    """Makes a declarative class a lookup; precedes the base.

    Class keywords:

    :param target: the class of the objects, or its name.
    :param normalize: the policy that determines equal keys: one of
        :mod:`sqla_shard.models.normalization`, or your own.
    :param previous: policies of older rows, which are also found.
    :param unique: whether a key belongs to one object; if False, several
        objects may share a key, without claims, see :meth:`add` and
        :meth:`resolve_all`.
    :param target_column: name of the column with the ids; by default the
        class name in snake case with ``_id``.
    :param keyspace: name of the keyspace; required if there are several of
        kind ``mod``.
    :param field: the attribute of the objects that contains their key, or a
        list of keys.  The attribute is not written;
        :func:`~sqla_shard.upkeep.verify_lookups` compares it with the rows.
    :raises ClassDefinitionError: if the class is not valid.

    All methods raise :exc:`~sqla_shard.exc.InvalidKeyError` for an invalid
    key, :exc:`~sqla_shard.exc.LookupPolicyError` for a row of an unknown
    policy, and :exc:`~sqla_shard.exc.WrongTypeError` for an id of another
    class.
    """

    if TYPE_CHECKING:
        key: Mapped[str]
        """The key, normalized."""
        policy: Mapped[str]
        """The policy that normalized it, as ``name/version``."""
        token: Mapped[bytes | None]
        """The token of the claim, in the column ``claim``; it remains when
        the key is confirmed, and is None in rows of older versions."""
        expires_at: Mapped[datetime | None]
        """Time at which a claim expires; None if it is confirmed."""
        __sqla_shard_lookup__: LookupDefinition

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

    # -- reading keys

    @classmethod
    def resolve(
        cls, session: ShardSession, key: str, *, timeout: float | None = None
    ) -> int | None:
        """Return the id of the object that a key belongs to.

        :param timeout: seconds, as for :func:`~sqla_shard.scatter`.
        :returns: None if the key belongs to no object, or is only claimed.
        :raises ScatterTimeoutError: if the server does not respond in time.
        """
        table = table_with_keys(cls, session, unique=True, name="resolve()")
        return lookup_table.resolve_many(table, [key], timeout).get(key)

    @classmethod
    def resolve_many(
        cls, session: ShardSession, keys: Iterable[str], *, timeout: float | None = None
    ) -> dict[str, int]:
        """Return the ids of the objects that keys belong to.

        All servers are read concurrently, with one statement per 256 shards
        of a server.

        :param timeout: seconds for all servers together, as for
            :func:`~sqla_shard.scatter`.
        :returns: the ids by key, as the keys were given; keys that belong to
            no object are left out.
        :raises InvalidKeyError: for a key that is not valid, or a single one.
        :raises ScatterTimeoutError: if a server does not respond in time.
        """
        table = table_with_keys(cls, session, unique=True, name="resolve_many()")
        return lookup_table.resolve_many(table, keys, timeout)

    @classmethod
    def resolve_all(
        cls,
        session: ShardSession,
        key: str,
        *,
        limit: int | None = None,
        after: int | None = None,
    ) -> list[int]:
        """Return the ids of the objects that share a key, ascending.

        :param limit: maximum number of ids; None for all, which are read
            1,000 at a time.
        :param after: the last id of the previous call; None to begin.
        """
        table = table_with_keys(cls, session, unique=False, name="resolve_all()")
        return lookup_table.resolve_all(table, key, limit, after)

    @classmethod
    def shard_of(cls, session: ShardSession, key: str) -> int:
        """Return the shard that the row of a key is on."""
        table = LookupAccess(cls, session)
        return table.shard_of(table.form(key).text)

    # -- unique keys

    @classmethod
    def claim(
        cls,
        session: ShardSession,
        key: str,
        target_id: int | None = None,
        *,
        lifetime: timedelta = LIFETIME,
    ) -> Claim:
        """Claim a key: reserve it for a limited time.

        :param target_id: the object to give the key to, if it exists
            already; the claim then needs no confirmation.
        :param lifetime: lifetime of the claim, by the clock of the server.
        :returns: the claim; confirm it when the object exists, after this
            transaction was committed.
        :raises KeyTakenError: if it belongs to another object, or is
            claimed.  Roll back, and try another key in a new transaction.
        """
        table = table_with_keys(cls, session, unique=True, name="claim()")
        return claim(table, key, target_id, lifetime)

    # -- shared keys

    @classmethod
    def add(cls, session: ShardSession, key: str, target_id: int) -> None:
        """Give a shared key to an object, unless the object has it already."""
        table = table_with_keys(cls, session, unique=False, name="add()")
        add_key(table, key, target_id)

    # -- unique and shared keys

    @classmethod
    def release(cls, session: ShardSession, key: str, target_id: int) -> bool:
        """Release a key of an object.

        :returns: False if the object does not have the key.
        """
        return release_key(LookupAccess(cls, session), key, target_id)

    @classmethod
    def rename(
        cls, session: ShardSession, old_key: str, new_key: str, target_id: int
    ) -> None:
        """Replace a key of an object by another.

        The two are usually on different shards, so that the transaction must
        be allowed to write both: ``cluster.begin(cross_shard="ordered")``.
        :func:`sqla_shard.lookup.change` takes two transactions instead; the
        object has at least one of the keys at any time.

        If both keys are equal and the row has a ``previous`` policy, it is
        rewritten under the current one.

        :raises KeyNotHeldError: if the object has neither key.
        :raises KeyTakenError: if the new key belongs to another object, or
            is claimed.
        :raises CrossShardWriteError: if the transaction may not write two
            shards.
        """
        rename_key(LookupAccess(cls, session), old_key, new_key, target_id)

    def __repr__(self) -> str:
        definition = self.__sqla_shard_lookup__
        key = self.__dict__.get("key")
        target = self.__dict__.get(definition.column)
        return f"<{type(self).__name__} {key!r} -> {target}>"


event.listen(LookupMixin, "after_mapper_constructed", finish, propagate=True)
event.listen(LookupMixin, "after_mapper_constructed", define_claims, propagate=True)
