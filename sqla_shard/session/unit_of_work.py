"""Before a flush: where each object goes, and whether it may.

All is checked before the first statement is sent, so that a refused flush
has written nothing.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import inspect
from sqlalchemy.orm import InstanceState
from sqlalchemy.orm import Mapper

from sqla_shard.exc import ColocationError
from sqla_shard.exc import PlacementError
from sqla_shard.exc import ReferenceWriteError
from sqla_shard.ids import check_type
from sqla_shard.ids import SHARD_SHIFT
from sqla_shard.ids import unpack
from sqla_shard.rendering import Place
from sqla_shard.routing import spec_of
from sqla_shard.routing import TableSpec
from sqla_shard.session.autocommit import refuse_autocommit
from sqla_shard.session.contract import Scope
from sqla_shard.session.links import changed
from sqla_shard.session.links import Collections
from sqla_shard.session.links import links_of
from sqla_shard.session.links import mapping_class
from sqla_shard.session.placement import parent_shard

__all__ = ["REQUESTED", "place_objects", "place_of"]

#: Key in the ``__dict__`` of a new object: the shard asked for.
REQUESTED = "_sqla_shard_requested"


def place_of(
    scope: Scope,
    mapper: Any,
    instance: Any,
    collections: Collections | None = None,
) -> Place:
    """Return where an object is, or will be inserted.

    :param collections: the same for all objects of a flush.
    :raises PlacementError: when that cannot be told.
    :raises ReferenceWriteError: when it is a row of a reference table.
    """
    state = inspect(instance)
    spec = spec_of(state.mapper.local_table)
    places = scope.places
    keyspace = places.keyspace(spec.keyspace, spec.kind)
    if spec.kind == "global":
        return places.place(keyspace, 0)
    if spec.reference is not None:
        raise ReferenceWriteError(reference=spec.reference)
    if spec.id_index is None:
        raise PlacementError(
            f"{state.mapper.class_.__name__} has no id that names its "
            f"shard of {keyspace.name!r}; a lookup class writes its rows "
            "itself, by claim(), add(), release() and rename()"
        )
    if state.key is not None:
        shard_id = state.key[1][spec.id_index] >> SHARD_SHIFT
        return places.place(keyspace, shard_id)
    place = scope.placed.get(state)
    if place is None:
        collections = collections or Collections(scope)
        shard_id = _told(scope, state, spec, collections)
        if shard_id is None:
            _check_root(state, spec)
            shard_id = _root_shard(scope, state, spec)
        place = scope.placed[state] = places.place(keyspace, shard_id)
    return place


def place_objects(scope: Scope) -> None:
    """Place the new objects of a flush and log what it will write.

    :raises PlacementError: when a shard cannot be told.
    :raises CrossShardWriteError: when there would be a second one.
    """
    # What a refused flush has found out may not be true of the next one.
    scope.placed.clear()
    with scope.log.all_or_none():
        _place_objects(scope)


def _place_objects(scope: Scope) -> None:
    collections = Collections(scope)
    around = []
    for instance in (*scope.dirty, *scope.deleted):
        state = inspect(instance)
        if instance in scope.deleted or scope.is_modified(
            instance, include_collections=False
        ):
            place = place_of(scope, state.mapper, instance)
            _check_stays(scope, state, place)
            _log(scope, state, place)
        else:
            around.append(state)
    roots = []
    for instance in scope.new:
        state = inspect(instance)
        spec = spec_of(state.mapper.local_table)
        if (
            spec.id_index is not None
            and _told(scope, state, spec, collections) is None
        ):
            # They go where the others are, whatever the order.
            roots.append(state)
        else:
            _place(scope, state, collections)
    for state in around:
        _log_collections(scope, state)
    for state in roots:
        _place(scope, state, collections)
    for child, attribute, parent in collections:
        # One that is not in the session is not written either.
        if child.session is not None:
            place = place_of(scope, None, child.obj())
            _check_link(scope, child, attribute, parent, place)
    for instance in (*scope.dirty, *scope.new):
        _check_linked(scope, inspect(instance))


def _log_collections(scope: Scope, state: InstanceState[Any]) -> None:
    """Take note of what a flush writes because of an object's collections.

    Of what is in the session, no more: SQLAlchemy leaves out the others.
    """
    # Rows of a reference table are linked, and are not written themselves.
    if spec_of(state.mapper.local_table).reference is not None:
        return
    for relation in state.mapper.relationships:
        if not relation.uselist or relation.viewonly:
            continue
        history = changed(state, relation.key)
        if any(
            inspect(child).session is not None
            for child in (*history.added, *history.deleted)
        ):
            place = place_of(scope, state.mapper, state.obj())
            refuse_autocommit(scope, place, state.mapper.local_table)
            scope.log.wrote(place, f"{relation.key} of {_described(state)}")


def _place(
    scope: Scope, state: InstanceState[Any], collections: Collections
) -> None:
    place = place_of(scope, state.mapper, state.obj(), collections)
    _check_references(scope, state, place)
    _log(scope, state, place)


def _log(scope: Scope, state: InstanceState[Any], place: Place) -> None:
    table = state.mapper.local_table
    refuse_autocommit(scope, place, table)
    scope.log.wrote(place, _described(state), table)


def _told(
    scope: Scope,
    state: InstanceState[Any],
    spec: TableSpec,
    collections: Collections,
) -> int | None:
    """Return the shard that an object or its parent tells; None for none."""
    given = state.dict.get(_id_attribute(state.mapper, spec))
    requested: int | None = state.dict.get(REQUESTED)
    parent = _parent_shard(scope, state, spec, collections)
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
    return ColocationError(
        f"the parent is on shard {parent}, but the object was asked to be "
        f"on shard {told}; it lives with its parent, so leave out shard_id",
        class_name=_name(state),
        field=_telling(state.mapper, spec),
        value=_stored(state, spec),
    )


def _parent_shard(
    scope: Scope,
    state: InstanceState[Any],
    spec: TableSpec,
    collections: Collections,
) -> int | None:
    """Return the shard of the parent; None where none is known."""
    value = None if spec.colocation is None else _stored(state, spec)
    if value is not None:
        return parent_shard(spec, _name(state), value)
    telling = _telling(state.mapper, spec)
    for relation, attribute in links_of(state.mapper).up:
        parent = state.dict.get(relation)
        if parent is not None and attribute == telling:
            return place_of(scope, None, parent, collections).shard_id
    parent = collections.parent(state, telling)
    if parent is None:
        return None
    return place_of(scope, None, parent, collections).shard_id


def _stored(state: InstanceState[Any], spec: TableSpec) -> Any:
    """Return the parent's id, as far as the object has it."""
    if spec.colocation is None:
        return state.dict.get(_id_attribute(state.mapper, spec))
    return spec.colocation.read(state.obj())


def _telling(mapper: Mapper[Any], spec: TableSpec) -> str:
    """Return the attribute that holds the parent's id.

    Where nothing is declared it is the id itself, which in a mapping row is
    that of the object it belongs to.
    """
    if spec.colocation is not None:
        return spec.colocation.field
    return _id_attribute(mapper, spec)


def _check_root(state: InstanceState[Any], spec: TableSpec) -> None:
    """Refuse a child without a parent.

    :raises ColocationError: when its parent's id is not known.
    :raises PlacementError: when it is a mapping row without one.
    """
    if spec.colocation is not None:
        parent_shard(spec, _name(state), _stored(state, spec))
    column = state.mapper.primary_key[spec.id_index or 0]
    if column.foreign_keys:
        raise PlacementError(
            f"{_name(state)}.{_telling(state.mapper, spec)} is None, so the "
            "shard of the new row cannot be told; it is that of the object "
            "which the row belongs to"
        )


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


def _check_stays(
    scope: Scope, state: InstanceState[Any], place: Place
) -> None:
    """Refuse a parent on another shard: an object never moves."""
    spec = spec_of(state.mapper.local_table)
    if spec.colocation is not None:
        value = spec.colocation.read(state.obj())
        if value is not None:
            shard_id = parent_shard(spec, _name(state), value)
            if shard_id != place.shard_id:
                raise _elsewhere(
                    state, spec.colocation.field, value, shard_id, place
                )
    _check_references(scope, state, place)


def _check_references(
    scope: Scope, state: InstanceState[Any], place: Place
) -> None:
    """Refuse references to other shards where only the own one can be."""
    links = links_of(state.mapper)
    for key, type_id in links.references:
        value = state.dict.get(key)
        if value is None:
            continue
        parts = unpack(value)
        if type_id not in (None, parts.type_id):
            raise ColocationError(
                f"{value} is an id of type {parts.type_id}; this column "
                f"refers to objects of type {type_id}",
                class_name=_name(state),
                field=key,
                value=value,
            )
        if parts.shard_id != place.shard_id:
            raise _elsewhere(state, key, value, parts.shard_id, place)
    for key, attribute in links.up:
        parent = state.dict.get(key)
        if parent is not None:
            _check_link(scope, state, attribute, parent, place)


def _check_link(
    scope: Scope,
    state: InstanceState[Any],
    attribute: str,
    parent: Any,
    place: Place,
) -> None:
    """Refuse what a relationship is about to put into a reference."""
    shard_id = place_of(scope, None, parent).shard_id
    if shard_id != place.shard_id:
        raise _elsewhere(state, attribute, parent, shard_id, place)


def _check_linked(scope: Scope, state: InstanceState[Any]) -> None:
    """Refuse to link objects of two shards.

    :raises ColocationError: for such objects.
    """
    for key in links_of(state.mapper).linked:
        for other in changed(state, key).added:
            if other is None or not _is_on_a_shard(inspect(other)):
                continue
            here = place_of(scope, None, state.obj()).shard_id
            there = place_of(scope, None, other).shard_id
            if here != there:
                relation: Any = state.mapper.relationships[key]
                raise ColocationError(
                    f"{other} is on shard {there}, {state.obj()} on shard "
                    f"{here}, and the rows of {relation.secondary.name} link "
                    "objects of one shard. For others write\n"
                    + mapping_class(relation),
                    class_name=_name(state),
                    field=key,
                    value=other,
                )


def _is_on_a_shard(state: InstanceState[Any]) -> bool:
    # One that is not in the session is not linked either.
    spec = spec_of(state.mapper.local_table)
    return state.session is not None and spec.reference is None


def _elsewhere(
    state: InstanceState[Any],
    field: str,
    value: Any,
    shard_id: int,
    place: Place,
) -> ColocationError:
    return ColocationError(
        f"{value} is on shard {shard_id}, the object on shard "
        f"{place.shard_id}, which it never leaves, and this field refers to "
        "its own shard alone. Insert a copy beside the new parent and "
        "delete this one, or use an ObjectRef column for objects elsewhere",
        class_name=_name(state),
        field=field,
        value=value,
    )


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
