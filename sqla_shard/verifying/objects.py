"""The objects that rows lead to, and what they say of themselves."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

from sqlalchemy import inspect
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from sqla_shard.dialects import Failure
from sqla_shard.exc import InvalidIdError
from sqla_shard.exc import UnknownShardError
from sqla_shard.routing import spec_of
from sqla_shard.session import INCLUDE_INACTIVE
from sqla_shard.session import ShardSession
from sqla_shard.session.loading import getter_of
from sqla_shard.topology import Keyspace

__all__ = ["Objects"]

_ALL = {INCLUDE_INACTIVE: True}


class Objects:
    """The objects of one class; inactive ones are there, too.

    :param entity: the class.
    :param field: the attribute with the key of a lookup; None where that is
        not known, or there is none.
    """

    def __init__(self, entity: Any, field: str | None = None) -> None:
        self.entity = entity
        self.field = field
        mapper: Any = inspect(self.entity)
        column = mapper.primary_key[0]
        self._spec = spec_of(mapper.local_table)
        self._name = mapper.get_property_by_column(column).key
        self._id = getattr(self.entity, self._name)

    def keyspace(self, places: Any) -> Keyspace:
        """Return the keyspace of the objects."""
        found: Keyspace = places.keyspace(self._spec.keyspace, self._spec.kind)
        return found

    def refusal(self, session: ShardSession, target_id: int) -> str | None:
        """Return why an id cannot be one of theirs; None where it can."""
        try:
            getter_of(self.entity).place(session.places, (target_id,))
        except (InvalidIdError, UnknownShardError) as error:
            return str(error)
        return None

    def there(
        self, session: ShardSession, ids: Iterable[int]
    ) -> dict[int, Any]:
        """Return those of some ids that have an object, by id.

        The values are the objects where there is a field of the key, which
        has to be read.
        """
        wanted = list(dict.fromkeys(ids))
        if not wanted:
            return {}
        if self.field is None:
            found = session.scalars(
                select(self._id).where(self._id.in_(wanted)),
                execution_options=_ALL,
            )
            return dict.fromkeys(found)
        objects = session.get_many(self.entity, wanted, execution_options=_ALL)
        return {
            object_id: one
            for object_id, one in zip(wanted, objects, strict=True)
            if one is not None
        }

    def locked(self, session: ShardSession, target_id: int) -> Any:
        """Return an object as it is now, locked; None for none."""
        return session.get(
            self.entity,
            target_id,
            with_for_update=True,
            execution_options=_ALL,
        )

    def is_gone(self, session: ShardSession, target_id: int) -> bool:
        """Tell whether an object is not there, and nobody is adding it.

        What a transaction has inserted and not committed is locked, and not
        seen otherwise: its row may be committed already where COMMIT of
        several shards is under way.  Nobody is waited for, since locks are
        held meanwhile.
        """
        locked = select(self._id).where(self._id == target_id)
        try:
            found = session.scalar(
                locked.with_for_update(nowait=True), execution_options=_ALL
            )
        except OperationalError as error:
            original: Any = error.orig
            for backend in session.places.engines.backends():
                if backend.classify(original) is Failure.BUSY:
                    return False
            raise
        return found is None

    def page(
        self,
        session: ShardSession,
        shard_id: int,
        after: int | None,
        limit: int,
    ) -> Sequence[Any]:
        """Return the next objects of a shard, by id."""
        statement = select(self.entity).order_by(self._id).limit(limit)
        if after is not None:
            statement = statement.where(self._id > after)
        place = session.places.place(self.keyspace(session.places), shard_id)
        found: Sequence[Any] = session.scalars(
            statement,
            bind_arguments={"place": place},
            execution_options=_ALL,
        ).all()
        return found

    def id_of(self, one: Any) -> int:
        """Return the id of an object."""
        object_id: int = getattr(one, self._name)
        return object_id

    def is_active(self, one: Any) -> bool:
        """Tell whether an object is to have its keys.

        One that is inactive may have them, or may have given them back.
        """
        return bool(getattr(one, "active", True))

    def keys_of(self, one: Any) -> tuple[object, ...]:
        """Return the keys that an object says it has."""
        value = getattr(one, str(self.field))
        if value is None or value == "":
            return ()
        if isinstance(value, (list, tuple, set, frozenset)):
            return tuple(value)
        return (value,)
