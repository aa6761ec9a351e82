"""Deletion of an object with its rows, lists and keys.

References to an object and its child objects are deleted before the object:
after a crash the remaining objects are still found from it, and another call
continues.  Changes on other shards are pending operations of the transaction
that deletes, and so are applied if and only if it commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import delete, func, inspect, select, update

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.engine import scatter as everywhere
from sqla_shard.engine.rendering import Place
from sqla_shard.exc import InvalidKeyError, UnsupportedStatementError
from sqla_shard.models import LookupMixin, MappingMixin
from sqla_shard.models.deletion_plan import (
    belongings,
    Call,
    call,
    deepest,
    DeletableClass,
    DeletionPlan,
    existing,
    kind_of,
    never_searched,
    Part,
    READS,
    release_calls,
    removal_calls,
    tree,
)
from sqla_shard.models.lookup_definition import link as link_lookup
from sqla_shard.models.mapping_definition import link as link_mapping
from sqla_shard.models.mapping_list import forget_counts, List, statements_of
from sqla_shard.models.registration import retried_once, run, run_awaited, Saga
from sqla_shard.models.spread_list import is_moving, list_of
from sqla_shard.planning import has_objects, spec_of
from sqla_shard.session import ShardSession
from sqla_shard.session.execute import OUR_OWN

__all__ = [
    "DeletionPlan",
    "Part",
    "async_delete_object",
    "delete_object",
    "plan_deletion",
]


Pairs = Sequence[tuple[int, int]]


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
        for found in belongings(
            entity, self._session, self._place, ids, scatter=self._scatter
        ):
            if isinstance(found, str):
                self.unseen.append(found)
            else:
                yield DeletionStep(*found)
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
            found = self._pairs(pairs.where(source.in_(ids)), places)
            if is_spread:
                # Rows of an inverse are deleted by changes of the mapping.
                changed = definition.inverse_of
                if changed is not None:
                    # Operations of the removals leave numbers of 0.
                    self.unseen.append(definition.counts.name)
                    found = [(two, one) for one, two in found]
                yield from self._remove_entries(changed or cls, found)
            elif found and definition.inverse_of is not None:
                yield from self._remove_inverse(cls, definition.inverse_of, found)
            elif found:
                yield self._clear_lists(cls, found)
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
        found = self._session.execute(statement, bind_arguments=at)
        # A row of a spread list may have a copy.
        return list(dict.fromkeys((one, two) for one, two in found))

    def _clear_lists(self, cls: Any, pairs: Pairs) -> DeletionStep:
        sources = _sources(pairs)

        def work() -> None:
            for source_id in sources:
                cls.clear(self._session, source_id)
            self._forget_counts(cls, sources)

        part = Part.on(self._place, "clear", cls.__name__, len(pairs), items=sources)
        return DeletionStep(part, work)

    def _forget_counts(self, cls: Any, sources: Sequence[int]) -> None:
        statements = statements_of(cls)
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
    for found, ids in tree(session, kind, [object_id]):
        for start in range(0, len(ids), BATCH):
            finder = Finder(session, found, place, scatter=scatter)
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
    found, ids = deepest(session, kind, [object_id], batch)
    finder = Finder(session, found, place, scatter=scatter)
    parts = list(_delete(finder, ids))
    plan = DeletionPlan(object_id=object_id).plus(parts, finder.unseen)
    return plan, object_id in ids


def _delete(finder: Finder, ids: list[int]) -> Iterator[Any]:
    # Find all steps before the first is performed, which removes rows that
    # later ones are found by.
    for one in list(finder.find(ids)):
        one.work()
        yield one.part


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
