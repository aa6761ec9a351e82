"""The shards of the objects of a flush, and the checks before it.

All checks are made before the first statement is sent, so a refused flush
has written nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TYPE_CHECKING

from sqlalchemy import inspect
from sqlalchemy.orm import InstanceState, Mapper, RelationshipDirection
from sqlalchemy.orm.attributes import History, instance_state
from sqlalchemy.orm.base import NO_VALUE, PASSIVE_NO_RESULT

from sqla_shard.engine.rendering import Place
from sqla_shard.exc import (
    ColocationError,
    PlacementError,
    ReferenceWriteError,
    UnsupportedStatementError,
)
from sqla_shard.planning import routes, spec_of, TableSpec
from sqla_shard.session.get import refuse_cached_autocommit
from sqla_shard.session.placement import issue_for_objects, parent_shard, root_shard
from sqla_shard.topology import Keyspace
from sqla_shard.types import Blob, IdType
from sqla_shard.util import sqlalchemy_private as private

if TYPE_CHECKING:
    from sqla_shard import ShardSession


_UNCHANGED = History((), (), ())


#: Parents by a child and its attribute in which the flush puts the parent's id.
_Parents = dict[tuple[InstanceState[Any], str], Any]


def _parents_in(objects: Iterable[tuple[InstanceState[Any], Links]]) -> _Parents:
    """Return the parents of new objects by the parents' collections.

    A child in ``parent.children`` gets the parent's id in the flush; before
    it has no reference to the parent if the relationship has no backref.

    :param objects: the new and changed objects of the session.
    """
    return {
        (instance_state(child), filled): state.obj()
        for state, links in objects
        for key, filled in links.down
        for child in changed(state, key).added
        # A relationship to one object may be set to None.
        if child is not None
    }


def changed(state: InstanceState[Any], key: str) -> History:
    """Return the history of a collection, without loading it."""
    if key in state.dict or key in private.pending_mutations(state):
        return state.attrs[key].history
    return _UNCHANGED


@dataclass(frozen=True)
class Links:
    """The attributes of a class that tie its objects to a shard.

    :ivar references: attributes that refer to the row's own shard, and the
        type id of the objects; None for any type.
    :ivar up: many-to-one relationships, with the attribute of the class in
        which the flush stores the id.
    :ivar down: one-to-many relationships, with the attribute of the other
        class.
    :ivar linked: many-to-many relationships, which have a link table.
    :ivar apart: relationships that change no row of the class.
    :ivar identity: the attributes of the primary key.
    :ivar id_attribute: the attribute of the id that routes; empty if the
        class has none.
    :ivar parent_attribute: the attribute with the parent's id.  Without
        ``colocate_with`` it is ``id_attribute``; for a mapping row, the id
        of its source.
    :ivar is_root: whether objects have no parent, and refer to no row of
        their own shard.
    """

    references: tuple[tuple[str, IdType], ...]
    up: tuple[tuple[str, str], ...]
    down: tuple[tuple[str, str], ...]
    linked: tuple[str, ...]
    apart: frozenset[str]
    identity: tuple[str, ...]
    id_attribute: str
    parent_attribute: str
    is_root: bool


_known: weakref.WeakKeyDictionary[Mapper[Any], Links] = weakref.WeakKeyDictionary()


def links_of(mapper: Mapper[Any]) -> Links:
    """Return the links of a class, which are computed once."""
    links = _known.get(mapper)
    if links is None:
        spec = spec_of(mapper.local_table)
        identity = tuple(
            mapper.get_property_by_column(column).key for column in mapper.primary_key
        )
        id_attribute = "" if spec.id_index is None else identity[spec.id_index]
        references = tuple(_references(mapper))
        up = tuple(_filled(mapper, RelationshipDirection.MANYTOONE, here=True))
        links = _known[mapper] = Links(
            identity=identity,
            id_attribute=id_attribute,
            parent_attribute=(
                id_attribute if spec.colocation is None else spec.colocation.field
            ),
            is_root=(
                spec.kind == "objects"
                and spec.reference is None
                and spec.colocation is None
                and spec.id_index is not None
                and not mapper.primary_key[spec.id_index].foreign_keys
                and not (references or up)
            ),
            references=references,
            up=up,
            down=tuple(_filled(mapper, RelationshipDirection.ONETOMANY, here=False)),
            linked=tuple(
                relation.key
                for relation in mapper.relationships
                if relation.secondary is not None and not relation.viewonly
            ),
            apart=frozenset(
                relation.key
                for relation in mapper.relationships
                if relation.direction is not RelationshipDirection.MANYTOONE
                or relation.viewonly
            ),
        )
    return links


def _linked(instances: Iterable[Any]) -> list[tuple[InstanceState[Any], Links]]:
    """Return the states of objects, with the links of their classes."""
    known: dict[Mapper[Any], Links] = {}
    linked = []
    for instance in instances:
        state = instance_state(instance)
        mapper = state.mapper
        links = known.get(mapper)
        if links is None:
            links = known[mapper] = links_of(mapper)
        linked.append((state, links))
    return linked


def mapping_class(relation: Any) -> str:
    """Return the code of a mapping class to use instead of a relationship."""
    source = relation.parent.class_.__name__
    target = relation.mapper.class_.__name__
    words = "".join(word.capitalize() for word in relation.key.split("_"))
    columns = ""
    if source == target:
        # Both columns would be named after the class.
        name = source.lower()
        columns = f', source_column="{name}_id", target_column="other_{name}_id"'
    return (
        f"class {source}Has{words}(MappingMixin, Base, source={source}, "
        f"target={target}{columns}): ..."
    )


def _references(mapper: Mapper[Any]) -> Iterator[tuple[str, IdType]]:
    for prop in mapper.column_attrs:
        column: Any = prop.columns[0]
        if routes(column) and not column.primary_key:
            yield prop.key, column.type


def _filled(
    mapper: Mapper[Any], direction: RelationshipDirection, *, here: bool
) -> Iterator[tuple[str, str]]:
    for relation in mapper.relationships:
        if relation.direction is direction and not relation.viewonly:
            child = mapper if here else relation.mapper
            for _, column in relation.synchronize_pairs:
                if routes(column):
                    prop = child.get_property_by_column(column)
                    yield relation.key, prop.key


#: Key in the ``__dict__`` of a new object: the requested shard.
REQUESTED = "_sqla_shard_requested"


def place_of(
    session: ShardSession, mapper: Any, instance: Any, parents: _Parents | None = None
) -> Place:
    """Return the location of an object, or of its INSERT.

    :param parents: parents by the collections of the objects of the flush.
    :raises PlacementError: if the shard cannot be determined.
    :raises ReferenceWriteError: for a row of a reference table.
    :raises UnsupportedStatementError: if the class is mapped to a join or
        subquery of tables that are sharded.
    """
    state = instance_state(instance)
    place = session._placed.get(state)
    if place is not None and state.key is None:
        return place
    spec = spec_of(state.mapper.local_table)
    places = session.places
    if spec.kind == "global":
        check_tables(state.mapper.tables)
    keyspace = places.keyspace(spec.keyspace, spec.kind, spec.layout)
    if spec.kind == "global":
        return places.place(keyspace, 0)
    if spec.reference is not None:
        raise ReferenceWriteError(reference=spec.reference)
    if spec.places_of is not None and state.key is not None:
        placed: Place = spec.places_of(places, state.key[1])[0]
        return placed
    if spec.id_index is None:
        raise PlacementError(
            f"{state.mapper.class_.__name__} has no id that determines its "
            f"shard of {keyspace.name!r}; write rows of a lookup class by "
            "claim(), add(), release() and rename()"
        )
    if state.key is not None:
        here = spec.shard_of(state.key[1][spec.id_index], _name(state))
        return places.place(keyspace, here)
    shard_id = _own_shard(session, state, spec, parents)
    if shard_id is None:
        _check_root(state, spec)
        return _place_root(session, state, keyspace)
    place = session._placed[state] = places.place(keyspace, shard_id)
    return place


def check_tables(tables: Sequence[Any]) -> None:
    """Refuse to write rows of a join or subquery to the global keyspace.

    It has no keyspace of its own, as if it were a table of the global one,
    which may have tables of the same names.

    :param tables: the tables of a class.
    """
    if any(spec_of(table).kind != "global" for table in tables):
        names = ", ".join(str(table.name) for table in tables)
        raise UnsupportedStatementError(
            f"a row of a join or subquery of {names} can be read only; write "
            "it as objects of the classes of these tables",
            construct="a class of a join",
        )


def _place_root(
    session: ShardSession, state: InstanceState[Any], keyspace: Keyspace
) -> Place:
    shard_id = root_shard(session, keyspace, state.mapper.class_)
    place = session.places.place(keyspace, shard_id)
    session._placed[state] = place
    return place


def place_objects(session: ShardSession) -> None:
    """Place the new objects of a flush, and record its writes.

    :raises PlacementError: if a shard cannot be determined.
    :raises CrossShardWriteError: if the flush writes a second shard.
    """
    # The placement of a refused flush may be wrong for the next flush.
    session._placed.clear()
    with session.log.all_or_none():
        _place_objects(session)
    issue_for_objects(session)


def _place_objects(session: ShardSession) -> None:
    written = _Written(session)
    dirty, deleted = session.dirty, session.deleted
    linked_dirty = _linked(dirty)
    for state, links in linked_dirty:
        _load_replaced(state, links)
    linked_new = _linked(session.new)
    parents = _parents_in((*linked_new, *linked_dirty))
    unmodified = []
    for instance in (*dirty, *deleted):
        state = instance_state(instance)
        if instance in deleted or _is_modified(instance):
            place = place_of(session, state.mapper, instance)
            _check_stays(session, state, place)
            written.add(state, place)
        else:
            unmodified.append(state)
    roots = []
    for state, links in linked_new:
        if not _has_own_shard(session, state, links, parents):
            # Place them last, on the shard of the other objects.
            roots.append(state)
        else:
            _place(session, state, parents, written)
    for state in unmodified:
        _log_collections(session, state)
    found = set(roots)
    while found:
        # What they refer to may have been placed by now.  In this order one look
        # is enough for a chain of new objects, whose ends were looked at first.
        found = set()
        for state in reversed(roots):
            links = links_of(state.mapper)
            if not links.is_root and _has_own_shard(session, state, links, parents):
                _place(session, state, parents, written)
                found.add(state)
        roots = [state for state in roots if state not in found]
    _place_roots(session, roots, parents, written)
    for (child, attribute), parent in parents.items():
        # A child that is not in the session is not written.
        if child.session is not None:
            place = place_of(session, None, child.obj())
            _check_link(session, child, attribute, parent, place)
    for state, links in (*linked_dirty, *linked_new):
        if links.linked:
            _check_linked(session, state, links.linked)


def _load_replaced(state: InstanceState[Any], links: Links) -> None:
    """Load what relationships to one object have replaced, once.

    Otherwise each look at the history sends a SELECT, here and in SQLAlchemy.
    """
    for key in links.apart.intersection(state.committed_state):
        if state.committed_state[key] is PASSIVE_NO_RESULT:
            history = state.attrs[key].history
            before = (*history.deleted, *history.unchanged, NO_VALUE)
            state.committed_state[key] = before[0]


def _is_modified(instance: object) -> bool:
    """Return whether a flush changes the row of an object.

    For SQLAlchemy any relationship to one object changes it, also if only the
    row of the other object has the reference; and so does a field that is set to
    the value that it has.  Its ``is_modified()`` loads expired columns of
    composites, which a flush does not read.
    """
    state = instance_state(instance)
    changes = state.committed_state
    apart = links_of(state.mapper).apart
    blob = state.dict.get("data") if "data" in changes else None
    # SQLAlchemy writes the changed blobs of other classes, whatever they have.
    if isinstance(blob, Blob) and hasattr(state.class_, "__sqla_shard__"):
        apart = apart | {"data"}
    else:
        blob = None
    return (
        any(
            state.attrs[key].history.has_changes()
            for key in changes
            if key not in apart and not state.manager[key].impl.collection
        )
        # Last: it is encoded.
        or (blob is not None and not blob.is_as_read)
    )


def _has_own_shard(
    session: ShardSession, state: InstanceState[Any], links: Links, parents: _Parents
) -> bool:
    """Return False for a new object whose shard is not determined yet.

    The shard that is found is that of :func:`place_of`.
    """
    if links.is_root and not parents and state.key is None:
        values = state.dict
        if values.get(links.id_attribute) is None and values.get(REQUESTED) is None:
            return False
    spec = spec_of(state.mapper.local_table)
    if spec.id_index is None:
        return True
    shard_id = _own_shard(session, state, spec, parents)
    if shard_id is None:
        return False
    if state.key is None and spec.kind != "global" and not spec.reference:
        places = session.places
        keyspace = places.keyspace(spec.keyspace, spec.kind, spec.layout)
        session._placed[state] = places.place(keyspace, shard_id)
    return True


def _place_roots(
    session: ShardSession,
    roots: Iterable[InstanceState[Any]],
    parents: _Parents,
    written: _Written,
) -> None:
    """Place new objects whose shard is not determined by an id or a parent."""
    # The roots of a transaction share a shard: find it once for each class.
    known: dict[Mapper[Any], Place] = {}
    placed = session._placed
    for state in roots:
        mapper = state.mapper
        place = known.get(mapper)
        if state in placed:
            _place(session, state, parents, written)
        elif place is not None:
            placed[state] = place
        elif links_of(mapper).is_root:
            spec = spec_of(mapper.local_table)
            keyspace = session.places.keyspace(spec.keyspace, spec.kind, spec.layout)
            place = known[mapper] = _place_root(session, state, keyspace)
            written.add(state, place)
        else:
            _place(session, state, parents, written)


class _Written:
    """Records the writes of a flush, once for each table and shard."""

    def __init__(self, session: ShardSession) -> None:
        self._session = session
        self._known: set[tuple[Place, Any]] = set()

    def add(self, state: InstanceState[Any], place: Place) -> None:
        """Record the write of an object.

        :raises CrossShardWriteError: if it is on a second shard.
        """
        table = state.mapper.local_table
        if (place, table) not in self._known:
            refuse_cached_autocommit(self._session, place, table)
            self._session.log.wrote(place, _described(state), table)
            self._known.add((place, table))


def _log_collections(session: ShardSession, state: InstanceState[Any]) -> None:
    """Record the writes that changes of an object's collections cause.

    SQLAlchemy skips children that are not in the session.
    """
    # Rows of a reference table are not written when they are linked.
    if spec_of(state.mapper.local_table).reference is not None:
        return
    for relation in state.mapper.relationships:
        is_up = relation.direction is RelationshipDirection.MANYTOONE
        if is_up or relation.viewonly:
            continue
        history = changed(state, relation.key)
        if any(
            child is not None and inspect(child).session is not None
            for child in (*history.added, *history.deleted)
        ):
            place = place_of(session, state.mapper, state.obj())
            refuse_cached_autocommit(session, place, state.mapper.local_table)
            session.log.wrote(place, f"{relation.key} of {_described(state)}")


def _place(
    session: ShardSession,
    state: InstanceState[Any],
    parents: _Parents,
    written: _Written,
) -> None:
    place = place_of(session, state.mapper, state.obj(), parents)
    # First: what it refers to is placed with it, if that is new.
    written.add(state, place)
    _check_references(session, state, place)


def _own_shard(
    session: ShardSession,
    state: InstanceState[Any],
    spec: TableSpec,
    parents: _Parents | None,
) -> int | None:
    """Return the shard of an object's id or parent; None if it has none."""
    given = state.dict.get(links_of(state.mapper).id_attribute)
    requested: int | None = state.dict.get(REQUESTED)
    parent = _parent_shard(session, state, spec, parents)
    if given is not None:
        shard_id = spec.shard_of(given, _name(state))
        if parent is not None and parent != shard_id:
            raise _parent_elsewhere_error(state, spec, shard_id, parent)
        return shard_id
    if parent is not None and requested is not None and parent != requested:
        raise _parent_elsewhere_error(state, spec, requested, parent)
    if parent is None and requested is None:
        return _owner_shard(session, state, spec, parents or {})
    return requested if parent is None else parent


def _owner_shard(
    session: ShardSession, state: InstanceState[Any], spec: TableSpec, parents: _Parents
) -> int | None:
    """Return the shard of the first object that a root refers to, if it is known.

    The row has to be on the shard of the foreign keys that are given, any of
    which may be NULL.
    """
    links = links_of(state.mapper)
    column = state.mapper.primary_key[spec.id_index or 0]
    if state.key is not None or spec.colocation is not None or column.foreign_keys:
        return None
    owners = [state.dict.get(key) for key, _ in links.up]
    for key, kind in links.references:
        value = state.dict.get(key)
        if value is not None:
            return kind.layout.unpack(value).shard_id
        owners.append(parents.get((state, key)))
    for owner in owners:
        if owner is None:
            continue
        other = instance_state(owner)
        known = other.dict.get(links_of(other.mapper).id_attribute)
        if other.key or other in session._placed or REQUESTED in other.dict or known:
            return place_of(session, None, owner, parents).shard_id
    return None


def _parent_elsewhere_error(
    state: InstanceState[Any], spec: TableSpec, shard_id: int, parent: int
) -> ColocationError:
    return ColocationError(
        f"the parent is on shard {parent}, but shard {shard_id} was "
        "requested for the object; it is stored with its parent, so leave "
        "out shard_id",
        class_name=_name(state),
        field=links_of(state.mapper).parent_attribute,
        value=_stored(state, spec),
    )


def _parent_shard(
    session: ShardSession,
    state: InstanceState[Any],
    spec: TableSpec,
    parents: _Parents | None,
) -> int | None:
    """Return the shard of the parent; None if unknown."""
    value = None if spec.colocation is None else _stored(state, spec)
    if value is not None:
        return parent_shard(spec, _name(state), value)
    links = links_of(state.mapper)
    holder = links.parent_attribute
    for relation, attribute in links.up:
        parent = state.dict.get(relation)
        if parent is not None and attribute == holder:
            return place_of(session, None, parent, parents).shard_id
    if parents is None:
        parents = _parents_in(_linked((*session.new, *session.dirty)))
    parent = parents.get((state, holder))
    if parent is None:
        return None
    return place_of(session, None, parent, parents).shard_id


def _stored(state: InstanceState[Any], spec: TableSpec) -> Any:
    """Return the parent's id from the object; None if it has none."""
    if spec.colocation is None:
        return state.dict.get(links_of(state.mapper).id_attribute)
    return spec.colocation.read(state.obj())


def _check_root(state: InstanceState[Any], spec: TableSpec) -> None:
    """Refuse a child without a parent.

    :raises ColocationError: if the id of the parent is unknown.
    :raises PlacementError: if a mapping row has no source.
    """
    if spec.colocation is not None:
        parent_shard(spec, _name(state), _stored(state, spec))
    column = state.mapper.primary_key[spec.id_index or 0]
    if column.foreign_keys:
        raise PlacementError(
            f"{_name(state)}.{links_of(state.mapper).parent_attribute} is "
            "None, so the shard of the new row cannot be determined; it is "
            "the shard of the object that the row belongs to"
        )


def _check_stays(
    session: ShardSession, state: InstanceState[Any], place: Place
) -> None:
    """Refuse a parent or an id of another shard: an object never moves."""
    spec = spec_of(state.mapper.local_table)
    if not state.committed_state.keys().isdisjoint(links_of(state.mapper).identity):
        _check_identity(session, state, spec, place)
    if spec.colocation is not None:
        value = spec.colocation.read(state.obj())
        if value is not None:
            shard_id = parent_shard(spec, _name(state), value)
            if shard_id != place.shard_id:
                raise _elsewhere_error(
                    state, spec.colocation.field, value, shard_id, place
                )
    _check_references(session, state, place)


def _check_identity(
    session: ShardSession, state: InstanceState[Any], spec: TableSpec, place: Place
) -> None:
    """Refuse a primary key with which the row would not be found any more."""
    names = links_of(state.mapper).identity
    values = [state.dict.get(name) for name in names]
    # Not `None in values`, which compares: an SQL expression has no truth.
    if any(value is None for value in values):
        return  # SQLAlchemy refuses it
    if spec.places_of is not None:
        shard_id = spec.places_of(session.places, values)[0].shard_id
    elif spec.id_index is not None:
        shard_id = spec.shard_of(values[spec.id_index], _name(state))
    else:
        return
    if shard_id != place.shard_id:
        at = spec.id_index or 0
        raise _elsewhere_error(state, names[at], values[at], shard_id, place)


def _check_references(
    session: ShardSession, state: InstanceState[Any], place: Place
) -> None:
    """Refuse references in columns that must refer to the own shard."""
    links = links_of(state.mapper)
    for key, kind in links.references:
        value = state.dict.get(key)
        if value is None:
            continue
        parts = kind.layout.unpack(value)
        if kind.layout.names_type and kind.type_id not in (None, parts.type_id):
            raise ColocationError(
                f"{value} is an id of type {parts.type_id}; this column "
                f"refers to objects of type {kind.type_id}",
                class_name=_name(state),
                field=key,
                value=value,
            )
        if parts.shard_id != place.shard_id:
            raise _elsewhere_error(state, key, value, parts.shard_id, place)
    for key, attribute in links.up:
        parent = state.dict.get(key)
        if parent is not None:
            _check_link(session, state, attribute, parent, place)


def _check_link(
    session: ShardSession,
    state: InstanceState[Any],
    attribute: str,
    parent: Any,
    place: Place,
) -> None:
    """Refuse an object on another shard in a relationship."""
    shard_id = place_of(session, None, parent).shard_id
    if shard_id != place.shard_id:
        raise _elsewhere_error(state, attribute, parent, shard_id, place)


def _check_linked(
    session: ShardSession, state: InstanceState[Any], linked: tuple[str, ...]
) -> None:
    """Refuse to link objects of two shards.

    :param linked: the many-to-many relationships of the class.
    :raises ColocationError: if the objects are on different shards.
    """
    for key in linked:
        for other in changed(state, key).added:
            if other is None or not _is_on_a_shard(inspect(other)):
                continue
            here = place_of(session, None, state.obj()).shard_id
            there = place_of(session, None, other).shard_id
            if here != there:
                relation: Any = state.mapper.relationships[key]
                raise ColocationError(
                    f"{other} is on shard {there}, {state.obj()} on shard "
                    f"{here}, and the rows of {relation.secondary.name} link "
                    "objects of one shard. For objects of several write\n"
                    + mapping_class(relation),
                    class_name=_name(state),
                    field=key,
                    value=other,
                )


def _is_on_a_shard(state: InstanceState[Any]) -> bool:
    # An object that is not in the session is not linked.
    spec = spec_of(state.mapper.local_table)
    return state.session is not None and spec.reference is None


def _elsewhere_error(
    state: InstanceState[Any], field: str, value: Any, shard_id: int, place: Place
) -> ColocationError:
    return ColocationError(
        f"{value} is on shard {shard_id}, the object is on shard "
        f"{place.shard_id} and cannot move, and this field can refer to its "
        "own shard only. Insert a copy on the shard of the new parent and "
        "delete this object, or use an ObjectRef column for objects on other "
        "shards",
        class_name=_name(state),
        field=field,
        value=value,
    )


def _name(state: InstanceState[Any]) -> str:
    return state.mapper.class_.__name__


def _described(state: InstanceState[Any]) -> str:
    if state.key is None:
        return f"a new {_name(state)}"
    return f"{_name(state)} {', '.join(map(str, state.key[1]))}"
