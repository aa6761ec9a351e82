"""Deletion of an object with its rows, lists and keys, and the plan of it.

References to an object and its child objects are deleted before the object:
after a crash the remaining objects are still found from it, and another call
continues.  Changes on other shards are pending operations of the transaction
that deletes, and so are applied if and only if it commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from sqlalchemy import Column, delete, event, func, inspect, select, update
from sqlalchemy.orm import ColumnProperty, Mapper

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.engine import scatter as everywhere
from sqla_shard.engine.rendering import Place
from sqla_shard.exc import InvalidKeyError, UnsupportedStatementError
from sqla_shard.models.field_declarations import FieldProperty
from sqla_shard.models.lookup_mixin import LookupMixin
from sqla_shard.models.lookup_table import (
    link as link_lookup,
    LookupAccess,
    statements_of,
)
from sqla_shard.models.mapping_definition import link as link_mapping
from sqla_shard.models.mapping_list import (
    forget_counts,
    List,
    statements_of as list_statements_of,
)
from sqla_shard.models.mapping_mixin import MappingMixin
from sqla_shard.models.registration import retried_once, run, run_awaited, Saga
from sqla_shard.models.spread_list import is_moving, list_of, readdress
from sqla_shard.outbox.apply import call_operation, operation_name, register_for
from sqla_shard.outbox.operations import add_pending
from sqla_shard.planning import has_objects, routes, spec_of
from sqla_shard.session import INCLUDE_INACTIVE, ShardSession
from sqla_shard.session.execute import OUR_OWN
from sqla_shard.types import ObjectRef
from sqla_shard.util.json_values import JsonObject

__all__ = [
    "DeletionPlan",
    "Part",
    "async_delete_object",
    "delete_object",
    "plan_deletion",
]

Action = Literal["delete", "set NULL", "clear", "remove", "release"]

_IDS_SHOWN = 3

Pairs = Sequence[tuple[int, int]]


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
        shown = ", ".join(map(str, self.items[:_IDS_SHOWN]))
        more = ", ..." if len(self.items) > _IDS_SHOWN else ""
        return (
            f"shard {self.shard_id} of {self.keyspace}: {self.action} "
            f"{self.count} of {self.name}{when}" + (f": {shown}{more}" if shown else "")
        )


@dataclass(frozen=True, kw_only=True)
class DeletionPlan(JsonObject):
    """The steps of the deletion of an object.

    :ivar object_id: id of the object.
    :ivar parts: the steps, in order.
    :ivar unseen: what may still name the object: the names of mapping and
        lookup classes and tables that were not searched, because a search
        would read all shards; and, whatever the search, those of attributes
        and columns that may refer to it from other shards, ``"arguments of
        jobs"``, and tables in which numbers of 0 remain.
    """

    object_id: int
    parts: tuple[Part, ...] = ()
    unseen: tuple[str, ...] = field(default=())

    def plus(self, parts: Iterable[Part], unseen: Iterable[str]) -> DeletionPlan:
        """Return the plan with further steps."""
        names = dict.fromkeys((*self.unseen, *unseen))
        return replace(self, parts=(*self.parts, *parts), unseen=tuple(names))

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
        call_operation(session, name, **arguments)
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


def register_belongings(entity: Any, finder: Belongings) -> None:
    """Let deletions of objects of a class delete more than is mapped to them.

    :param finder: yields steps; called in the transaction that deletes the
        objects, before their rows, and again if the deletion is repeated.
    """
    table: Any = inspect(entity).local_table
    table.info.setdefault(_BELONGINGS, []).append(finder)


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
    for finder in table.info.get(_BELONGINGS, ()):
        yield from finder(session, place, ids, scatter)


def existing(session: ShardSession, entity: Any, ids: Sequence[int]) -> list[int]:
    """Return the ids of the objects of one shard that are not deleted yet."""
    key = _id_of(entity)
    rows = session.scalars(select(key).where(key.in_(ids)), execution_options=READS)
    return sorted(rows)


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


#: In ``Table.info``: registered finders find the ids in the table.
IS_FOUND = "sqla_shard_is_found"


def never_searched(entity: Any) -> Iterator[str]:
    """Yield what may name objects of a class on other shards."""
    mapper: Any = inspect(entity)
    type_id = spec_of(mapper.local_table).type_id
    mapped = set()
    for other in sorted(mapper.registry.mappers, key=lambda one: one.class_.__name__):
        mapped.update(other.tables)
        found = set(_found_attributes(other, type_id))
        for prop in other.iterate_properties:
            if prop.parent is not other or prop.key in found:
                continue
            if isinstance(prop, FieldProperty):
                is_unseen = _may_name(prop.field.sql_type()[1], type_id)
            else:
                column = prop.columns[0] if isinstance(prop, ColumnProperty) else None
                is_unseen = isinstance(column, Column) and _is_unseen(column, type_id)
            if is_unseen:
                yield f"{other.class_.__name__}.{prop.key}"
    for table in mapper.local_table.metadata.tables.values():
        if table not in mapped and not spec_of(table).commits_late:
            for column in table.columns:
                if _is_unseen(column, type_id):
                    yield str(column)
    yield "arguments of jobs"


def _found_attributes(mapper: Mapper[Any], type_id: int | None) -> Iterator[str]:
    """Yield the names of attributes by which rows are found or listed."""
    cls: Any = mapper.class_
    if issubclass(cls, MappingMixin):
        definition = link_mapping(cls)
        yield from (definition.source.column, definition.target.column)
    elif issubclass(cls, LookupMixin):
        yield link_lookup(cls).column
    for one in _parent_attributes(mapper, type_id):
        yield one.key


def _is_unseen(column: Any, type_id: int | None) -> bool:
    """Return whether a column may have ids of a type that are not searched."""
    return (
        _may_name(column.type, type_id)
        and IS_FOUND not in column.table.info
        and not any(column is one for one in _referring_columns(column.table, type_id))
    )


def _may_name(kind: Any, type_id: int | None) -> bool:
    return isinstance(kind, ObjectRef) and kind.type_id in (type_id, None)


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
        children = session.scalars(
            select(key)
            # Otherwise a cycle of objects would have no end.
            .where(column.in_(ids), key.not_in(above))
            .order_by(key)
            .limit(most),
            execution_options=READS,
        ).all()
        if children:
            return deepest(session, kind_of(entity), children, most, above)
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
        children = session.scalars(
            select(key).where(column.in_(ids)).order_by(key), execution_options=READS
        )
        new = [i for i in children if i not in above]
        if new:
            yield from tree(session, kind_of(entity), new, above)
    yield kind, list(ids)


@dataclass(frozen=True)
class DeletionStep:
    """A step of a deletion, with the function that performs it.

    :ivar part: the step of the plan.
    :ivar work: performs the step, in the session of the finder.
    """

    part: Part
    work: Callable[[], object]


class Finder:
    """Finds the rows, lists and keys of objects of one class on one shard.

    :param place: the shard.
    :param scatter: whether to read all shards for lists and keys of classes
        without ``inverse=`` or ``field=``.
    :ivar unseen: what was not searched, as of a plan.
    """

    def __init__(
        self,
        session: ShardSession,
        kind: DeletableClass,
        place: Place,
        *,
        scatter: bool,
    ) -> None:
        self._session = session
        self._kind = kind
        self._place = place
        self._scatter = scatter
        self.unseen: list[str] = []

    def find(self, ids: Sequence[int]) -> Iterator[DeletionStep]:
        """Yield the steps that delete the objects, their own rows last."""
        classes = [
            mapper.class_ for mapper in inspect(self._kind.entity).registry.mappers
        ]
        classes.sort(key=lambda cls: str(cls.__name__))
        for cls in classes:
            if issubclass(cls, LookupMixin):
                yield from self._keys(cls, ids)
        for cls in classes:
            if issubclass(cls, MappingMixin):
                yield from self._lists(cls, ids)
        entity = self._kind.entity
        for step in belongings(
            entity, self._session, self._place, ids, scatter=self._scatter
        ):
            if isinstance(step, str):
                self.unseen.append(step)
            else:
                yield DeletionStep(*step)
        self.unseen.extend(never_searched(entity))
        yield from self._rows(ids)
        there = existing(self._session, entity, ids)
        if there:
            yield self._local_step(
                "delete",
                entity.__name__,
                len(there),
                delete(entity).where(self._kind.id.in_(there)),
                items=tuple(there),
            )

    # -- on the shard itself

    def _local_step(
        self, action: Any, name: str, count: int, statement: Any, **rest: Any
    ) -> DeletionStep:
        work = partial(
            self._session.execute,
            statement,
            execution_options={"synchronize_session": False},
        )
        return DeletionStep(Part.on(self._place, action, name, count, **rest), work)

    def _rows(self, ids: Sequence[int]) -> Iterator[DeletionStep]:
        for column in self._kind.rows:
            count = self._count(column, ids)
            if count:
                there = delete(column.table).where(column.in_(ids))
                yield self._local_step("delete", column.table.name, count, there)
        for column in self._kind.loose:
            count = self._count(column, ids)
            if count:
                loose = update(column.table).where(column.in_(ids))
                yield self._local_step(
                    "set NULL", str(column), count, loose.values({column: None})
                )

    def _count(self, column: Any, ids: Sequence[int]) -> int:
        rows = select(func.count()).select_from(column.table)
        return int(self._session.scalar(rows.where(column.in_(ids))) or 0)

    # -- lists

    def _lists(self, cls: Any, ids: Sequence[int]) -> Iterator[DeletionStep]:
        definition = link_mapping(cls)
        source = getattr(cls, definition.source.column)
        target = getattr(cls, definition.target.column)
        pairs = select(source, target)
        is_spread = definition.spread > 1
        if self._is_kind(definition.source.entity):
            places = self._pieces(cls, ids) if is_spread else None
            entries = self._pairs(pairs.where(source.in_(ids)), places)
            if is_spread:
                # Rows of an inverse are deleted by changes of the mapping.
                changed = definition.inverse_of
                if changed is not None:
                    # Operations of the removals leave numbers of 0.
                    self.unseen.append(definition.counts.name)
                    entries = [(two, one) for one, two in entries]
                yield from self._remove_entries(changed or cls, entries)
            elif entries and definition.inverse_of is not None:
                yield from self._remove_inverse(cls, definition.inverse_of, entries)
            elif entries:
                yield self._clear_lists(cls, entries)
        if (
            self._is_kind(definition.target.entity)
            # With an inverse, the reverse rows on this shard are enough.
            and definition.inverse is None
            and definition.inverse_of is None
        ):
            if self._scatter:
                there = pairs.where(target.in_(ids)).options(everywhere())
                yield from self._remove_entries(cls, self._pairs(there))
            else:
                self.unseen.append(cls.__name__)

    def _is_kind(self, entity: Any) -> bool:
        """Return whether objects of a class are in the same table."""
        return issubclass(entity, self._kind.entity)

    def _pieces(self, cls: Any, ids: Sequence[int]) -> list[Place]:
        """Return the shards with the pieces of spread lists."""
        places = {
            part.place.address: part.place
            for source_id in ids
            for part in list_of(cls, self._session, source_id).parts()
        }
        return list(places.values())

    def _pairs(
        self, statement: Any, places: list[Place] | None = None
    ) -> list[tuple[int, int]]:
        """Return sources and targets.

        :param places: the shards of the rows; by default as routed.
        """
        at = None if places is None else {"places": places}
        rows = self._session.execute(statement, bind_arguments=at)
        # A row of a spread list may have a copy.
        return list(dict.fromkeys((one, two) for one, two in rows))

    def _clear_lists(self, cls: Any, pairs: Pairs) -> DeletionStep:
        sources = _sources(pairs)

        def work() -> None:
            for source_id in sources:
                cls.clear(self._session, source_id)
            self._forget_counts(cls, sources)

        part = Part.on(self._place, "clear", cls.__name__, len(pairs), items=sources)
        return DeletionStep(part, work)

    def _forget_counts(self, cls: Any, sources: Sequence[int]) -> None:
        statements = list_statements_of(cls)
        forget_counts(self._session, statements, self._place, sources)

    def _remove_inverse(
        self, cls: Any, other: Any, pairs: Pairs
    ) -> Iterator[DeletionStep]:
        """Yield entries in the lists of other objects, and the inverse rows.

        The inverse rows are deleted with the object, since they would be on
        its shard without it until the entries are removed.
        """
        yield from self._remove_entries(other, [(two, one) for one, two in pairs])
        sources = _sources(pairs)
        column = getattr(cls, link_mapping(cls).source.column)

        def work() -> None:
            for source_id in sources:
                List(cls, self._session, source_id).invalidate()
            self._session.execute(
                delete(cls).where(column.in_(sources)),
                execution_options={**OUR_OWN, "synchronize_session": False},
            )
            self._forget_counts(cls, sources)

        part = Part.on(self._place, "delete", cls.__name__, len(pairs), items=sources)
        yield DeletionStep(part, work)

    def _remove_entries(self, cls: Any, pairs: Pairs) -> Iterator[DeletionStep]:
        for one in removal_calls(self._session, cls, pairs):
            items = tuple(one[2]["pairs"])
            yield self._call_step("remove", cls, one, items)

    # -- keys

    def _keys(self, cls: Any, ids: Sequence[int]) -> Iterator[DeletionStep]:
        definition = link_lookup(cls)
        if not self._is_kind(definition.target):
            return
        held: Iterable[tuple[str, int]] = ()
        if definition.field is not None:
            held = self._of_objects(definition, ids)
        elif self._scatter:
            owner = getattr(cls, definition.column)
            there = select(cls.key, owner).where(owner.in_(ids))
            held = [
                (key, target_id)
                for key, target_id in self._session.execute(there.options(everywhere()))
            ]
        else:
            self.unseen.append(cls.__name__)
        for key, target_id in held:
            # An invalid key has no row.
            with suppress(InvalidKeyError):
                for one in release_calls(self._session, cls, key, target_id):
                    text = one[2]["text"]
                    yield self._call_step("release", cls, one, (text,))

    def _of_objects(
        self, definition: Any, ids: Sequence[int]
    ) -> Iterator[tuple[str, int]]:
        """Yield the keys in the fields of objects."""
        objects = self._session.scalars(
            select(definition.target).where(self._kind.id.in_(ids)),
            execution_options=READS,
        )
        for instance in objects.unique().all():
            value = getattr(instance, definition.field)
            for key in [value] if isinstance(value, str) else value or ():
                yield key, instance.id

    # -- on other shards

    def _call_step(
        self, action: Any, cls: Any, one: Call, items: tuple[Any, ...]
    ) -> DeletionStep:
        place = one[1]
        is_here = place.address == self._place.address
        if action == "remove" and is_moving(cls):
            is_here = False  # the row may be on another shard
        part = Part.on(
            place, action, cls.__name__, len(items), items=items, is_here=is_here
        )
        work = partial(call, self._session, self._place, one, is_here)
        return DeletionStep(part, work)


def _sources(pairs: Pairs) -> tuple[int, ...]:
    return tuple(dict.fromkeys(source_id for source_id, _ in pairs))


#: Maximum number of objects in one statement and in one transaction.
BATCH = 500


def plan_deletion(
    session: ShardSession, entity: type[Any], object_id: int, *, scatter: bool = False
) -> DeletionPlan:
    """Return the steps of :func:`delete_object`; nothing is written.

    A row that links two of the deleted objects is listed for both.

    :param entity: the object's class.
    :param scatter: read all shards for lists that contain the object, and
        for its keys, if the classes have no ``inverse=`` or ``field=``.
    :returns: the plan; ``str()`` of it is a readable report.  It has no parts
        if everything is deleted already.
    :raises WrongTypeError: if it is the id of another class.
    :raises InvalidIdError: if it is not a valid id.
    """
    kind, place = _kind_and_place(session, entity, object_id)
    plan = DeletionPlan(object_id=object_id)
    for part_kind, ids in tree(session, kind, [object_id]):
        for start in range(0, len(ids), BATCH):
            finder = Finder(session, part_kind, place, scatter=scatter)
            some = list(finder.find(ids[start : start + BATCH]))
            plan = plan.plus([one.part for one in some], finder.unseen)
    return plan


def delete_object(
    cluster: Cluster,
    entity: type[Any],
    object_id: int,
    *,
    scatter: bool = False,
    batch: int = BATCH,
) -> DeletionPlan:
    """Delete an object with its child objects, rows, lists and keys.

    ::

        with cluster.session() as session:
            print(plan_deletion(session, User, user_id))
        delete_object(cluster, User, user_id)

    On its own shard it deletes the colocated objects (``colocate_with``), with
    their rows, lists and keys; the rows of link tables and association
    objects; and its lists.  On other shards it removes the object from lists,
    and releases its keys.  Nullable columns that refer to it are set to NULL.

    Each transaction deletes up to ``batch`` objects, with pending operations
    for other shards; :meth:`Cluster.repair() <sqla_shard.Cluster.repair>`
    completes operations that a crash has interrupted.  After an error, or in
    another process, call the function again: it continues, and does nothing if
    everything is deleted.

    Rows are deleted by statements: events and cascades of the ORM are not
    called.  An :class:`~sqla_shard.ObjectRef` elsewhere is not changed.

    :param entity: the object's class.
    :param scatter: as for :func:`plan_deletion`.
    :param batch: maximum number of objects in a transaction.
    :returns: the steps that were performed, in order.
    :raises WrongTypeError: if it is the id of another class.
    :raises InvalidIdError: if it is not a valid id.
    :raises ValueError: for a batch below 1.
    """
    return run(cluster, _deletion_saga(entity, object_id, scatter, batch))


async def async_delete_object(
    cluster: Cluster,
    entity: type[Any],
    object_id: int,
    *,
    scatter: bool = False,
    batch: int = BATCH,
) -> DeletionPlan:
    """Delete an object in an event loop; see :func:`delete_object`."""
    return await run_awaited(cluster, _deletion_saga(entity, object_id, scatter, batch))


def _deletion_saga(
    entity: type[Any], object_id: int, scatter: bool, batch: int
) -> Saga[DeletionPlan]:
    if batch < 1:
        raise ValueError(f"batch={batch} must be an integer, 1 or more")
    plan = DeletionPlan(object_id=object_id)
    is_last = False
    while not is_last:
        some = partial(_delete_some, entity, object_id, scatter, batch)
        done, is_last = yield from retried_once(some)
        plan = plan.plus(done.parts, done.unseen)
    return plan


def _delete_some(
    entity: type[Any], object_id: int, scatter: bool, batch: int, session: ShardSession
) -> tuple[DeletionPlan, bool]:
    """Delete objects that have no child objects.

    :returns: the steps, and whether the object itself was deleted.
    """
    kind, place = _kind_and_place(session, entity, object_id)
    # Concurrent deletions of the object wait for each other.
    session.execute(
        select(kind.id).where(kind.id == object_id).with_for_update(),
        execution_options=READS,
    )
    deepest_kind, ids = deepest(session, kind, [object_id], batch)
    finder = Finder(session, deepest_kind, place, scatter=scatter)
    parts = []
    # Find all steps before the first is performed, which removes rows that
    # later ones are found by.
    for step in list(finder.find(ids)):
        step.work()
        parts.append(step.part)
    plan = DeletionPlan(object_id=object_id).plus(parts, finder.unseen)
    return plan, object_id in ids


def _kind_and_place(
    session: ShardSession, entity: type[Any], object_id: int
) -> tuple[DeletableClass, Place]:
    mapper: Any = inspect(entity)
    spec = spec_of(mapper.local_table)
    if spec.kind != "objects" or not has_objects(mapper.local_table):
        raise UnsupportedStatementError(
            f"{entity.__name__} is not an object class, so its ids do not "
            "locate its rows; delete them in a session",
            construct="delete_object()",
        )
    if mapper.inherits is not None:
        first = mapper.base_mapper.class_.__name__
        raise UnsupportedStatementError(
            f"{entity.__name__} shares the table and the ids of {first}, so "
            f"an id may belong to another class; give {first} instead",
            construct="delete_object()",
        )
    key = mapper.primary_key[0].type
    shard_id = key.shard_of(object_id, entity.__name__)
    return kind_of(entity), session.place_for(mapper=entity, shard_id=shard_id)
