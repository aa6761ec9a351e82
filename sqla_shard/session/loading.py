"""Reading objects by their ids.

A statement per class is prepared once: building ``select()`` anew for every
``get`` costs more than everything that sharding adds to it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from collections.abc import Container
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy import bindparam
from sqlalchemy import inspect
from sqlalchemy import select
from sqlalchemy.orm import Mapper
from sqlalchemy.orm.attributes import instance_state

from sqla_shard.engines import Places
from sqla_shard.exc import ConcurrentUseError
from sqla_shard.exc import UnsupportedStatementError
from sqla_shard.ids import check_type
from sqla_shard.ids import SHARD_SHIFT
from sqla_shard.rendering import Place
from sqla_shard.routing import spec_of
from sqla_shard.session.contract import cache_begun
from sqla_shard.session.contract import INCLUDE_INACTIVE
from sqla_shard.session.contract import Scope
from sqla_shard.session.contract import Unlike
from sqla_shard.types.binds import IdSlot

__all__ = ["Getter", "getter_of", "is_plain"]

_ID = "sqla_shard_id"
_IDS = "sqla_shard_ids"
_SHOW_ALL = {INCLUDE_INACTIVE: True}


class Getter:
    """Reads objects of one class by id.

    :ivar by_id: whether the class's primary key is one id that routes.
    """

    def __init__(self, mapper: Mapper[Any]) -> None:
        self._table = mapper.local_table
        self._spec = spec = spec_of(self._table)
        self._class = entity = mapper.class_
        self._name = entity.__name__
        key = mapper.primary_key
        self.by_id = (
            spec.kind == "objects" and spec.id_index == 0 and len(key) == 1
        )
        if not self.by_id:
            return
        self._identity = mapper.identity_key_from_primary_key((0,))[0]
        attribute = getattr(entity, mapper.get_property_by_column(key[0]).key)
        self._one = select(entity).where(attribute == bindparam(_ID))
        self._many = select(entity).where(
            attribute.in_(bindparam(_IDS, expanding=True))
        )

    def place(self, places: Places, primary_key: Sequence[Any]) -> Place:
        """Return where the object of a primary key is.

        :raises InvalidIdError: when it holds no id of the class.
        :raises UnknownShardError: when the shard is not open.
        """
        spec = self._spec
        keyspace = places.keyspace(spec.keyspace, spec.kind)
        if spec.id_index is None:
            return places.place(keyspace, 0)
        parts = check_type(
            primary_key[spec.id_index], spec.type_id, self._name
        )
        return places.place(keyspace, parts.shard_id)

    def includes_hidden(self, scope: Scope, kwargs: Mapping[str, Any]) -> bool:
        """Tell whether a read asks for inactive objects too."""
        options = kwargs.get("execution_options") or {}
        return scope.shows_hidden or bool(options.get(INCLUDE_INACTIVE))

    def get(self, scope: Scope, object_id: int, hidden: bool) -> Any:
        """Return the object of an id, None where there is none to show."""
        place = self.place(scope.places, (object_id,))
        found = scope.identity_map.get((self._identity, (object_id,), None))
        if found is None or instance_state(found).expired:
            found = self._found(scope, object_id, place, found)
            if found is not None:
                self._check(scope, found, (object_id,))
        return self._shown(found, hidden)

    def _found(
        self, scope: Scope, object_id: int, place: Place, held: Any
    ) -> Any:
        """Return an object, from the cache if it can be.

        :param held: what the session has of it, which has expired.
        """
        cached = cache_begun(scope, self._table, flush=False)
        # A flush deletes those, and may insert one that is not there.
        if cached is not None and (held is None or held not in scope.deleted):
            with suppress(Unlike):
                places = {object_id: place}
                read = cached.read(scope, self._table, places)
                # Not there: what is kept of it cannot be loaded.
                found = read.get(object_id)
                if found is not None or (object_id in read and not scope.new):
                    return found
        return self._read(scope, object_id, place)

    def _read(self, scope: Scope, object_id: int, place: Place) -> Any:
        # Whether it is to be shown is seen afterwards for less than the
        # server would take to look into the blob.
        return (
            scope.scalars(
                self._one,
                {_ID: object_id},
                bind_arguments={"place": place},
                execution_options=_SHOW_ALL,
            )
            .unique()
            .one_or_none()
        )

    def _check(self, scope: Scope, found: Any, ids: Container[int]) -> int:
        """Return the id of an object that was read.

        :param ids: that were asked for.
        :raises ConcurrentUseError: when it is none of these.
        """
        key: Any = instance_state(found).key
        object_id: int = key[1][0]
        if object_id not in ids:
            # What else comes over these connections is of others, too.
            scope.invalidate()
            raise ConcurrentUseError(
                f"a read of {self._name} by id was answered with the row of "
                f"{object_id}, which was not asked for: several threads or "
                "tasks use this session at the same time; open one for each"
            )
        return object_id

    def _shown(self, found: Any, hidden: bool) -> Any:
        shown = self._spec.is_shown
        if not isinstance(found, self._class):
            return None
        if hidden or shown is None or shown(found):
            return found
        return None

    def get_with(
        self,
        scope: Scope,
        ident: Any,
        hidden: bool,
        kwargs: dict[str, Any],
        get: Callable[..., Any],
    ) -> Any:
        """Return the object of an id through ``Session.get`` itself.

        :param get: ``Session.get``, bound to the session.
        :raises UnsupportedStatementError: for an identity token.
        """
        if kwargs.get("identity_token") is not None:
            raise UnsupportedStatementError(
                f"identity_token={kwargs['identity_token']!r}: an object id "
                "says its shard itself, so identity keys have no token; leave "
                "it out",
                construct="identity_token",
            )
        object_id = self._only(ident)
        place = self.place(scope.places, (object_id,))
        kwargs["bind_arguments"] = {
            **(kwargs.get("bind_arguments") or {}),
            "place": place,
        }
        kwargs["execution_options"] = {
            **(kwargs.get("execution_options") or {}),
            **_SHOW_ALL,
        }
        found = get(self._class, object_id, **kwargs)
        if found is None:
            return None
        self._check(scope, found, (object_id,))
        return self._shown(found, hidden)

    def _only(self, ident: Any) -> Any:
        if isinstance(ident, Mapping) and len(ident) == 1:
            return next(iter(ident.values()))
        if isinstance(ident, (tuple, list)) and len(ident) == 1:
            return ident[0]
        return ident

    def get_many(
        self,
        scope: Scope,
        ids: Sequence[int],
        options: Sequence[Any],
        execution_options: Mapping[str, Any],
    ) -> list[Any]:
        """Return the objects of ids, in their order; None for none."""
        slot = IdSlot(ids, self._spec.type_id, whole=False)
        if slot.stranger is not None:
            check_type(slot.stranger, self._spec.type_id, self._name)
        hidden = self.includes_hidden(
            scope, {"execution_options": execution_options}
        )
        found: dict[int, Any] = {}
        wanted = list(dict.fromkeys(ids))
        if not execution_options.get("populate_existing"):
            loaded = scope.identity_map
            for object_id in wanted:
                held = loaded.get((self._identity, (object_id,), None))
                if held is not None and not instance_state(held).expired:
                    found[object_id] = held
            wanted = [i for i in wanted if i not in found]
            if wanted and not options:
                found.update(self._cached_many(scope, wanted))
                wanted = [i for i in wanted if i not in found]
        if wanted:
            statement = self._many
            if options:
                statement = statement.options(*options)
            asked = set(wanted)
            for row in scope.scalars(
                statement,
                {_IDS: wanted},
                execution_options={**execution_options, **_SHOW_ALL},
            ).unique():
                found[self._check(scope, row, asked)] = row
        return [
            None if i not in found else self._shown(found[i], hidden)
            for i in ids
        ]

    def _cached_many(
        self, scope: Scope, ids: Sequence[int]
    ) -> Mapping[int, Any]:
        """Return objects from the cache, or what it reads for us."""
        cached = cache_begun(scope, self._table)
        if cached is None:
            return {}
        by_shard: dict[int, Place] = {}
        places = {}
        for i in ids:
            place = by_shard.get(i >> SHARD_SHIFT)
            if place is None:
                place = self.place(scope.places, (i,))
                by_shard[i >> SHARD_SHIFT] = place
            places[i] = place
        try:
            return cached.read(scope, self._table, places)
        except Unlike:
            return {}


#: Arguments of ``Session.get`` that say nothing where they are empty; an empty
#: ``with_for_update`` is a lock.
_COLLECTIONS = ("options", "execution_options", "bind_arguments")


def is_plain(kwargs: Mapping[str, Any]) -> bool:
    """Tell whether ``get()`` is asked for the object, and no more.

    ``get_one()`` and ``scoped_session`` pass on every argument that there
    is: where one that says nothing counted, they would never see the cache.
    """
    return not any(
        value
        if name in _COLLECTIONS
        else value is not None and value is not False
        for name, value in kwargs.items()
    )


_getters: weakref.WeakKeyDictionary[Any, Getter] = weakref.WeakKeyDictionary()


def getter_of(entity: Any) -> Getter:
    """Return the getter of a mapped class, or of its mapper."""
    getter = _getters.get(entity)
    if getter is None:
        getter = _getters[entity] = Getter(inspect(entity).mapper)
    return getter
