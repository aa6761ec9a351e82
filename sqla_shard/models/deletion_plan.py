"""Plans of deletions: child objects, referring columns, operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from sqlalchemy import event, inspect, select
from sqlalchemy.orm import ColumnProperty, Mapper

from sqla_shard.engine.rendering import Place
from sqla_shard.models.field_declarations import FieldProperty
from sqla_shard.models.lookup_mixin import LookupMixin
from sqla_shard.models.lookup_table import LookupAccess, statements_of
from sqla_shard.models.mapping_list import (
    forget_counts,
    statements_of as list_statements_of,
)
from sqla_shard.models.mapping_mixin import MappingMixin
from sqla_shard.models.spread_list import list_of, readdress
from sqla_shard.outbox.apply import function_named, operation_name, register_for
from sqla_shard.outbox.operations import add_pending
from sqla_shard.planning import has_objects, routes, spec_of
from sqla_shard.session import INCLUDE_INACTIVE, ShardSession
from sqla_shard.types import ObjectRef

Action = Literal["delete", "set NULL", "clear", "remove", "release"]

_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Part:
    """One step of a deletion, on one shard.

    :ivar action: ``"delete"`` rows, ``"set NULL"`` in a column that refers
        to them, ``"clear"`` lists, ``"remove"`` entries from lists of other
        objects, ``"release"`` keys.
    :ivar name: the class or table; the column for ``"set NULL"``.
    :ivar keyspace: the keyspace of the shard.
    :ivar shard_id: number of the shard.
    :ivar count: number of rows.
    :ivar items: ids of objects or of the sources of lists, pairs of source
        and target, or keys.  Empty if rows are only counted.
    :ivar is_here: whether the step is part of the transaction on the object's
        own shard; False if it follows the COMMIT.
    """

    action: Action
    name: str
    keyspace: str
    shard_id: int
    count: int
    items: tuple[Any, ...] = ()
    is_here: bool = True

    @classmethod
    def on(
        cls, place: Place, action: Action, name: str, count: int, **rest: Any
    ) -> Part:
        """Return a step on a shard."""
        return cls(
            action=action,
            name=name,
            keyspace=place.keyspace,
            shard_id=place.shard_id,
            count=count,
            **rest,
        )

    def __str__(self) -> str:
        when = "" if self.is_here else ", after COMMIT"
        shown = ", ".join(map(str, self.items[:_SHOWN]))
        more = ", ..." if len(self.items) > _SHOWN else ""
        return (
            f"shard {self.shard_id} of {self.keyspace}: {self.action} "
            f"{self.count} of {self.name}{when}" + (f": {shown}{more}" if shown else "")
        )


@dataclass(frozen=True, kw_only=True)
class DeletionPlan:
    """The steps of the deletion of an object.

    :ivar object_id: id of the object.
    :ivar parts: the steps, in order.
    :ivar unseen: what may still name the object: the names of mapping and
        lookup classes and tables that were not searched, because a search
        would read all shards; and, whatever the search, those of attributes
        that refer to it from other shards, ``"arguments of jobs"``, and tables
        in which numbers of 0 remain.
    """

    object_id: int
    parts: tuple[Part, ...] = ()
    unseen: tuple[str, ...] = field(default=())

    def plus(self, parts: Iterable[Part], unseen: Iterable[str]) -> DeletionPlan:
        """Return the plan with further steps."""
        names = dict.fromkeys((*self.unseen, *unseen))
        return replace(self, parts=(*self.parts, *parts), unseen=tuple(names))

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"object {self.object_id}", *map(str, self.parts)]
        if self.unseen:
            lines.append(f"not searched: {', '.join(self.unseen)}")
        return "\n  ".join(lines)


# -- operations on other shards, after the COMMIT of a deletion
#
# Each mapping class has an operation that removes entries from lists of one
# shard, each lookup class one that releases a key of an object.  Both may be
# applied late and twice: the id of a deleted object is never reused.


#: Name of an operation, the shard that it writes, and its arguments.
Call = tuple[str, Place, dict[str, Any]]

#: Maximum number of entries that an operation removes.
_PAIRS = 500


def removal_calls(
    session: ShardSession, mapping: Any, pairs: Iterable[tuple[int, int]]
) -> Iterator[Call]:
    """Yield operations that remove entries from lists.

    :param pairs: source and target of each entry.
    """
    by_place: dict[Place, list[tuple[int, int]]] = {}
    for source_id, target_id in pairs:
        place = list_of(mapping, session, source_id).part_of(target_id).place
        by_place.setdefault(place, []).append((source_id, target_id))
    for place, some in by_place.items():
        for start in range(0, len(some), _PAIRS):
            part = some[start : start + _PAIRS]
            yield operation_name("remove", mapping), place, {"pairs": part}


def release_calls(
    session: ShardSession, lookup: Any, key: str, target_id: int
) -> Iterator[Call]:
    """Yield operations that release a key under all policies."""
    table = LookupAccess(lookup, session)
    for text in dict.fromkeys(form.text for form in table.forms(key)):
        arguments = {"text": text, "target_id": target_id}
        yield operation_name("take", lookup), table.place(text), arguments


def call(session: ShardSession, written: Place, one: Call, is_here: bool) -> None:
    """Apply an operation, or add it to the outbox for another shard.

    :param written: location of the shard that the transaction writes.
    :param is_here: whether the operation writes that shard only.
    """
    name, place, arguments = one
    if is_here:
        function_named(name)(session, **arguments)
    else:
        add_pending(session, written, name, [(place, arguments)])


def _remove(cls: Any, session: ShardSession, pairs: list[list[int]]) -> None:
    ours = readdress(
        session,
        operation_name("remove", cls),
        pairs,
        lambda pair: list_of(cls, session, pair[0]).part_of(pair[1]),
    )
    for source_id, target_id in ours:
        list_of(cls, session, source_id).part_of(target_id).settle(target_id)
    for source_id, target_id in ours:
        cls.remove(session, source_id, target_id)
    by_place: dict[Place, set[int]] = {}
    for source_id, target_id in ours:
        place = list_of(cls, session, source_id).part_of(target_id).place
        by_place.setdefault(place, set()).add(source_id)
    statements = list_statements_of(cls)
    for place, sources in by_place.items():
        forget_counts(session, statements, place, sources, only_empty=True)


def _take(cls: Any, session: ShardSession, text: str, target_id: int) -> None:
    LookupAccess(cls, session).execute(
        text, statements_of(cls).delete, the_key=text, the_id=target_id
    )


def _register_remove(mapper: Mapper[Any], cls: Any) -> None:
    register_for("remove", cls, _remove)


def _register_take(mapper: Mapper[Any], cls: Any) -> None:
    register_for("take", cls, _take)


_NEW = "after_mapper_constructed"
event.listen(MappingMixin, _NEW, _register_remove, propagate=True)
event.listen(LookupMixin, _NEW, _register_take, propagate=True)


# -- what others have registered

#: A step of a deletion, and the function that performs it.
Work = tuple[Part, Callable[[], object]]

#: Yields the steps for objects of one shard, or the name of a table that was
#: not searched; the last argument is ``scatter``.
Belongings = Callable[[ShardSession, Place, Sequence[int], bool], Iterator[Work | str]]

_BELONGINGS = "sqla_shard_belongings"


def register_belongings(entity: Any, found: Belongings) -> None:
    """Let deletions of objects of a class delete more than is mapped to them.

    :param found: yields steps; called in the transaction that deletes the
        objects, before their rows, and again if the deletion is repeated.
    """
    table: Any = inspect(entity).local_table
    table.info.setdefault(_BELONGINGS, []).append(found)


def belongings(
    entity: Any,
    session: ShardSession,
    place: Place,
    ids: Sequence[int],
    *,
    scatter: bool,
) -> Iterator[Work | str]:
    """Yield the steps that were registered for objects of a class."""
    table: Any = inspect(entity).local_table
    for found in table.info.get(_BELONGINGS, ()):
        yield from found(session, place, ids, scatter)


def existing(session: ShardSession, entity: Any, ids: Sequence[int]) -> list[int]:
    """Return the ids of the objects of one shard that are not deleted yet."""
    key = _id_of(entity)
    found = session.scalars(select(key).where(key.in_(ids)), execution_options=READS)
    return sorted(found)


# -- objects and columns that refer to an object


#: Execution options of reads: inactive objects are deleted too.
READS = {INCLUDE_INACTIVE: True}


@dataclass(frozen=True)
class DeletableClass:
    """An object class, and the references to its objects on their shard.

    :ivar entity: the class.
    :ivar children: classes of child objects, each with its attribute that
        contains the parent's id.
    :ivar loose: nullable columns of other objects.
    :ivar rows: columns of other tables, whose rows are deleted with the
        object.
    """

    entity: Any
    children: tuple[tuple[Any, Any], ...]
    loose: tuple[Any, ...]
    rows: tuple[Any, ...]

    @property
    def id(self) -> Any:
        """The attribute with the id."""
        return _id_of(self.entity)


def _id_of(entity: Any) -> Any:
    mapper: Any = inspect(entity)
    key = mapper.get_property_by_column(mapper.primary_key[0]).key
    return getattr(entity, key)


def kind_of(entity: Any) -> DeletableClass:
    """Return an object class and the references to its objects."""
    mapper: Any = inspect(entity)
    type_id = spec_of(mapper.local_table).type_id
    children: list[tuple[Any, Any]] = []
    loose: list[Any] = []
    of_objects = set()
    for other in mapper.registry.mappers:
        table = other.local_table
        if other.inherits is not None:
            continue  # the base class includes its rows
        if not has_objects(table) or spec_of(table).kind != "objects":
            continue
        of_objects.add(table)
        belongs = list(_parent_attributes(other, type_id))
        children += [(other.class_, field) for field in belongs]
        for column in _referring_columns(table, type_id):
            prop = other.get_property_by_column(column)
            attribute = getattr(other.class_, prop.key)
            if any(attribute is one for one in belongs):
                continue
            if column.nullable:
                loose.append(column)
            else:
                children.append((other.class_, attribute))
    rows = [
        column
        for table in mapper.local_table.metadata.tables.values()
        if table not in of_objects
        for column in _referring_columns(table, type_id)
    ]
    return DeletableClass(
        entity=entity,
        children=tuple(sorted(children, key=lambda one: one[0].__name__)),
        loose=tuple(loose),
        rows=tuple(rows),
    )


def never_searched(entity: Any) -> Iterator[str]:
    """Yield what may name objects of a class on other shards."""
    mapper: Any = inspect(entity)
    type_id = spec_of(mapper.local_table).type_id
    for other in sorted(mapper.registry.mappers, key=lambda one: one.class_.__name__):
        name = other.class_.__name__
        if issubclass(other.class_, (MappingMixin, LookupMixin)):
            continue
        parents = {one.key for one in _parent_attributes(other, type_id)}
        for prop in other.iterate_properties:
            if prop.parent is not other or prop.key in parents:
                continue
            kind: Any = None
            if isinstance(prop, FieldProperty):
                _, kind = prop.field.sql_type()
            elif isinstance(prop, ColumnProperty):
                kind = prop.columns[0].type
            if isinstance(kind, ObjectRef) and kind.type_id == type_id:
                yield f"{name}.{prop.key}"
    yield "arguments of jobs"


def _parent_attributes(mapper: Mapper[Any], type_id: int | None) -> Iterator[Any]:
    """Yield the attribute that colocates objects with objects of a type."""
    colocation = spec_of(mapper.local_table).colocation
    if colocation is None:
        return
    types = colocation.type_ids()
    if not types or type_id in types:
        yield getattr(mapper.class_, colocation.field)


def _referring_columns(table: Any, type_id: int | None) -> Iterator[Any]:
    """Yield the columns of a table that refer to objects of its shard."""
    spec = spec_of(table)
    # Mapping classes clear their lists themselves.
    if spec.kind != "objects" or spec.commits_late:
        return
    for index, column in enumerate(table.columns):
        own = has_objects(table) and column.primary_key
        if routes(column) and column.type.type_id == type_id and not own:
            yield table.columns[index]


def deepest(
    session: ShardSession,
    kind: DeletableClass,
    ids: Sequence[int],
    most: int,
    above: frozenset[int] = frozenset(),
) -> tuple[DeletableClass, list[int]]:
    """Return descendants of objects that have no child objects.

    :param ids: ids of the objects, which are on one shard.
    :param most: maximum number of descendants.
    :param above: ids of the ancestors of the objects.
    :returns: the objects themselves if they have no child objects.
    """
    above |= frozenset(ids)
    for entity, column in kind.children:
        key = _id_of(entity)
        found = session.scalars(
            select(key)
            # Otherwise a cycle of objects would have no end.
            .where(column.in_(ids), key.not_in(above))
            .order_by(key)
            .limit(most),
            execution_options=READS,
        ).all()
        if found:
            return deepest(session, kind_of(entity), found, most, above)
    return kind, list(ids)


def tree(
    session: ShardSession,
    kind: DeletableClass,
    ids: Sequence[int],
    above: set[int] | None = None,
) -> Iterator[tuple[DeletableClass, list[int]]]:
    """Yield objects and all their descendants, the deepest first.

    :param ids: ids of the objects, which are on one shard.
    :param above: ids of the objects that were found before.
    """
    above = set() if above is None else above
    above |= set(ids)
    for entity, column in kind.children:
        key = _id_of(entity)
        found = session.scalars(
            select(key).where(column.in_(ids)).order_by(key), execution_options=READS
        )
        new = [i for i in found if i not in above]
        if new:
            yield from tree(session, kind_of(entity), new, above)
    yield kind, list(ids)
