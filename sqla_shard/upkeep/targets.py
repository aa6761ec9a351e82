"""The objects to which lookup and mapping rows refer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import inspect, select
from sqlalchemy.exc import OperationalError

from sqla_shard.dialects import Failure
from sqla_shard.exc import InvalidIdError, UnknownShardError
from sqla_shard.planning import spec_of
from sqla_shard.session import INCLUDE_INACTIVE, ShardSession
from sqla_shard.session.get import getter_of
from sqla_shard.topology import Keyspace


def classes_of(mixin: type[Any], classes: Iterable[Any] | None) -> list[type[Any]]:
    """Return the mapped classes of a mixin, each once.

    :param classes: the classes; None for all classes of this process.
    :raises ValueError: for another class, or two of the same name.
    """
    found: list[Any] = list(
        dict.fromkeys(mapped_classes(mixin) if classes is None else classes)
    )
    names: set[str] = set()
    for cls in found:
        if not (isinstance(cls, type) and _is_mapped(mixin, cls)):
            raise ValueError(
                f"classes: {cls!r} is not a mapped class with {mixin.__name__}"
            )
        if cls.__name__ in names:
            raise ValueError(
                f"classes: two classes are named {cls.__name__}; verify them "
                "in separate runs"
            )
        names.add(cls.__name__)
    return found


def _is_mapped(mixin: type[Any], cls: type[Any]) -> bool:
    return issubclass(cls, mixin) and (inspect(cls, raiseerr=False) is not None)


def mapped_classes(mixin: type[Any]) -> Iterator[type[Any]]:
    """Yield the mapped classes of a mixin in this process."""
    waiting = list(mixin.__subclasses__())
    while waiting:
        cls = waiting.pop(0)
        waiting += cls.__subclasses__()
        if _is_mapped(mixin, cls):
            yield cls


_ALL = {INCLUDE_INACTIVE: True}


class Objects:
    """The objects of one class, including inactive ones.

    :param entity: the class.
    :param field: the attribute with the lookup key, or None.
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
        spec = self._spec
        found: Keyspace = places.keyspace(spec.keyspace, spec.kind, spec.layout)
        return found

    def refusal(self, session: ShardSession, target_id: int) -> str | None:
        """Return the reason why an id is not one of the class, or None."""
        try:
            getter_of(self.entity).place(session.places, (target_id,))
        except (InvalidIdError, UnknownShardError) as error:
            return str(error)
        return None

    def existing(self, session: ShardSession, ids: Iterable[int]) -> dict[int, Any]:
        """Return the existing objects, by id.

        The values are None if the class has no field with a key.
        """
        wanted = list(dict.fromkeys(ids))
        if not wanted:
            return {}
        if self.field is None:
            found = session.scalars(
                select(self._id).where(self._id.in_(wanted)), execution_options=_ALL
            )
            return dict.fromkeys(found)
        objects = session.get_many(self.entity, wanted, execution_options=_ALL)
        return {
            object_id: one
            for object_id, one in zip(wanted, objects, strict=True)
            if one is not None
        }

    def locked(self, session: ShardSession, target_id: int) -> Any:
        """Lock an object and return it, or None if it does not exist."""
        return session.get(
            self.entity, target_id, with_for_update=True, execution_options=_ALL
        )

    def is_gone(self, session: ShardSession, target_id: int) -> bool:
        """Return whether an object does not exist and is not being inserted.

        A row that was inserted but not committed is invisible to other reads;
        a locking read finds it locked.  NOWAIT is used, since the caller
        holds locks itself.
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
        self, session: ShardSession, shard_id: int, after: int | None, limit: int
    ) -> Sequence[Any]:
        """Return the next objects of a shard, by id."""
        statement = select(self.entity).order_by(self._id).limit(limit)
        if after is not None:
            statement = statement.where(self._id > after)
        place = session.places.place(self.keyspace(session.places), shard_id)
        found: Sequence[Any] = session.scalars(
            statement, bind_arguments={"place": place}, execution_options=_ALL
        ).all()
        return found

    def id_of(self, one: Any) -> int:
        """Return the id of an object."""
        object_id: int = getattr(one, self._name)
        return object_id

    def is_active(self, one: Any) -> bool:
        """Return whether an object must have its keys.

        An inactive object may have released them.
        """
        return bool(getattr(one, "active", True))

    def keys_of(self, one: Any) -> tuple[object, ...]:
        """Return the keys in the field of an object."""
        value = getattr(one, str(self.field))
        if value is None or value == "":
            return ()
        if isinstance(value, (list, tuple, set, frozenset)):
            return tuple(value)
        return (value,)
