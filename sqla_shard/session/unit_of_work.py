"""Before a flush: where each object goes, and whether it may.

All is checked before the first statement is sent, so that a refused flush
has written nothing.
"""

from __future__ import annotations

import weakref
from typing import Any

from sqlalchemy import inspect
from sqlalchemy.orm import InstanceState
from sqlalchemy.orm import Mapper
from sqlalchemy.orm import RelationshipDirection

from sqla_shard.exc import ColocationError
from sqla_shard.exc import PlacementError
from sqla_shard.ids import check_type
from sqla_shard.ids import SHARD_SHIFT
from sqla_shard.ids import unpack
from sqla_shard.rendering import Place
from sqla_shard.routing import spec_of
from sqla_shard.routing import TableSpec
from sqla_shard.session.contract import Scope
from sqla_shard.session.placement import parent_shard
from sqla_shard.types import ShardedId

__all__ = ["REQUESTED", "place_objects", "place_of"]

#: Key in the ``__dict__`` of a new object: the shard asked for.
REQUESTED = "_sqla_shard_requested"


def place_of(scope: Scope, mapper: Any, instance: Any) -> Place:
    """Return where an object is, or will be inserted.

    :raises PlacementError: when that cannot be told.
    """
    state = inspect(instance)
    spec = spec_of(state.mapper.local_table)
    places = scope.places
    keyspace = places.keyspace(spec.keyspace, spec.kind)
    if spec.kind == "global":
        return places.place(keyspace, 0)
    if spec.id_index is None:
        raise PlacementError(
            f"{state.mapper.class_.__name__} has no id that names its "
            f"shard of {keyspace.name!r}"
        )
    if state.key is not None:
        shard_id = state.key[1][spec.id_index] >> SHARD_SHIFT
        return places.place(keyspace, shard_id)
    place = scope.placed.get(state)
    if place is None:
        shard_id = _told(scope, state, spec)
        if shard_id is None and spec.colocation is not None:
            # Raises: by now a flushed parent would have left its id.
            value = spec.colocation.read(instance)
            shard_id = parent_shard(spec, _name(state), value)
        if shard_id is None:
            shard_id = _root_shard(scope, state, spec)
        place = scope.placed[state] = places.place(keyspace, shard_id)
    return place


def place_objects(scope: Scope) -> None:
    """Place the new objects of a flush and log what it will write.

    :raises PlacementError: when a shard cannot be told.
    :raises CrossShardWriteError: when there would be a second one.
    """
    for instance in (*scope.dirty, *scope.deleted):
        state = inspect(instance)
        if instance in scope.deleted or scope.is_modified(instance):
            place = place_of(scope, state.mapper, instance)
            _check_stays(state, place)
            scope.log.wrote(place, _described(state))
    later = []
    for instance in scope.new:
        state = inspect(instance)
        spec = spec_of(state.mapper.local_table)
        if spec.kind != "global" and _told(scope, state, spec) is None:
            later.append((state, spec))
        else:
            _place(scope, state)
    for state, spec in later:
        # A child without its parent's id yet gets it while the parent is
        # flushed, if a relationship connects them.
        if spec.colocation is None or not _may_be_filled(state, spec):
            _place(scope, state)


def _place(scope: Scope, state: InstanceState[Any]) -> None:
    place = place_of(scope, state.mapper, state.obj())
    _check_local_references(state, place)
    scope.log.wrote(place, _described(state))


def _told(
    scope: Scope, state: InstanceState[Any], spec: TableSpec
) -> int | None:
    """Return the shard that an object itself tells; None for no word."""
    given = state.dict.get(_id_attribute(state.mapper, spec))
    requested: int | None = state.dict.get(REQUESTED)
    parent = _parent_shard(scope, state, spec)
    if given is not None:
        told = check_type(given, spec.type_id, _name(state)).shard_id
        if parent is not None and parent != told:
            raise _apart(state, spec, told, parent)
        return told
    if parent is not None and requested is not None and parent != requested:
        raise _apart(state, spec, requested, parent)
    return requested if parent is None else parent


def _apart(
    state: InstanceState[Any], spec: TableSpec, told: int, parent: int
) -> ColocationError:
    assert spec.colocation is not None  # noqa: S101  # there is a parent
    field = spec.colocation.field
    return ColocationError(
        f"the parent is on shard {parent}, but the object was asked to be "
        f"on shard {told}; it lives with its parent, so leave out shard_id",
        class_name=_name(state),
        field=field,
        value=spec.colocation.read(state.obj()),
    )


def _parent_shard(
    scope: Scope, state: InstanceState[Any], spec: TableSpec
) -> int | None:
    if spec.colocation is None:
        return None
    value = spec.colocation.read(state.obj())
    if value is None:
        parent = _pending_parent(state, spec)
        if parent is not None:
            return place_of(scope, None, parent).shard_id
        if _may_be_filled(state, spec):
            return None
    return parent_shard(spec, _name(state), value)


def _parent_relationships(state: InstanceState[Any], spec: TableSpec) -> Any:
    assert spec.colocation is not None  # noqa: S101  # the callers have asked
    prop = state.mapper.attrs.get(spec.colocation.field)
    columns = set(getattr(prop, "columns", ()))
    return [
        relation
        for relation in state.mapper.relationships
        if relation.direction is RelationshipDirection.MANYTOONE
        and columns & relation.local_columns
    ]


def _pending_parent(state: InstanceState[Any], spec: TableSpec) -> Any:
    for relation in _parent_relationships(state, spec):
        parent = state.dict.get(relation.key)
        if parent is not None:
            return parent
    return None


def _may_be_filled(state: InstanceState[Any], spec: TableSpec) -> bool:
    """Tell whether the flush of a parent will fill in its id."""
    assert spec.colocation is not None  # noqa: S101  # the callers have asked
    prop = state.mapper.attrs.get(spec.colocation.field)
    return any(column.foreign_keys for column in getattr(prop, "columns", ()))


def _root_shard(
    scope: Scope, state: InstanceState[Any], spec: TableSpec
) -> int:
    """Return the shard of the transaction's roots."""
    keyspace = scope.places.keyspace(spec.keyspace, spec.kind)
    if scope.root_shard_id is not None:
        return scope.root_shard_id
    first = scope.log.first
    if first is not None and first[0].keyspace == keyspace.name:
        return first[0].shard_id
    return scope.cluster.placement(keyspace=keyspace, cls=state.mapper.class_)


def _check_stays(state: InstanceState[Any], place: Place) -> None:
    """Refuse a parent on another shard: an object never moves."""
    spec = spec_of(state.mapper.local_table)
    if spec.colocation is not None:
        value = spec.colocation.read(state.obj())
        if value is not None:
            shard_id = parent_shard(spec, _name(state), value)
            if shard_id != place.shard_id:
                raise ColocationError(
                    f"{value} is on shard {shard_id}, the object on shard "
                    f"{place.shard_id}, which it never leaves; insert a "
                    "copy beside the new parent and delete this one",
                    class_name=_name(state),
                    field=spec.colocation.field,
                    value=value,
                )
    _check_local_references(state, place)


def _check_local_references(state: InstanceState[Any], place: Place) -> None:
    for key, type_id in _local_references(state.mapper):
        value = state.dict.get(key)
        if not isinstance(value, int):
            continue
        parts = unpack(value)
        if parts.shard_id != place.shard_id or parts.type_id != type_id:
            raise ColocationError(
                f"{value} is of type {parts.type_id} on shard "
                f"{parts.shard_id}; this column refers to objects of type "
                f"{type_id} on the row's own shard, {place.shard_id}. Use "
                "an ObjectRef column for objects elsewhere",
                class_name=_name(state),
                field=key,
                value=value,
            )


_references: weakref.WeakKeyDictionary[
    Mapper[Any], tuple[tuple[str, int], ...]
] = weakref.WeakKeyDictionary()


def _local_references(mapper: Mapper[Any]) -> tuple[tuple[str, int], ...]:
    """Return the attributes that hold ids of the row's own shard."""
    found = _references.get(mapper)
    if found is None:
        found = _references[mapper] = tuple(
            (prop.key, prop.columns[0].type.type_id)
            for prop in mapper.column_attrs
            if isinstance(prop.columns[0].type, ShardedId)
            and not prop.columns[0].primary_key
        )
    return found


def _id_attribute(mapper: Mapper[Any], spec: TableSpec) -> str:
    assert spec.id_index is not None  # noqa: S101  # sharded tables have one
    column = mapper.primary_key[spec.id_index]
    return mapper.get_property_by_column(column).key


def _name(state: InstanceState[Any]) -> str:
    return state.mapper.class_.__name__


def _described(state: InstanceState[Any]) -> str:
    if state.key is None:
        return f"a new {_name(state)}"
    return f"{_name(state)} {', '.join(map(str, state.key[1]))}"
