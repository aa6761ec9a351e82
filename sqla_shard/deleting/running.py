"""Planning a deletion, and doing it one transaction after another.

Objects that belong to others go first, the object itself last: what is left
by a crash is still found from it, and deleting it again goes on.  What is on
other shards is left as intents by the transaction that deletes what it
belongs to, so that it follows if, and only if, that has committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from sqlalchemy import inspect
from sqlalchemy import select

from sqla_shard.cluster import Cluster
from sqla_shard.deleting.belongings import Finder
from sqla_shard.deleting.children import deepest
from sqla_shard.deleting.children import Kind
from sqla_shard.deleting.children import kind_of
from sqla_shard.deleting.children import READS
from sqla_shard.deleting.children import tree
from sqla_shard.deleting.plans import DeletionPlan
from sqla_shard.exc import UnsupportedStatementError
from sqla_shard.ids import check_type
from sqla_shard.lookup.steps import Course
from sqla_shard.lookup.steps import run
from sqla_shard.lookup.steps import run_awaited
from sqla_shard.lookup.steps import settled
from sqla_shard.rendering import Place
from sqla_shard.routing import has_objects
from sqla_shard.routing import spec_of
from sqla_shard.session import ShardSession

__all__ = ["async_delete_object", "delete_object", "plan_deletion"]

#: How many objects a statement names, and a transaction deletes, at most.
BATCH = 500


def plan_deletion(
    session: ShardSession,
    entity: type[Any],
    object_id: int,
    *,
    scatter: bool = False,
) -> DeletionPlan:
    """Tell what :func:`delete_object` would do; nothing is written.

    A row between two of the objects is shown with both.

    :param entity: the object's class.
    :param scatter: ask all shards for the lists that the object is in, and
        for its keys, where no inverse and no ``field=`` tells them.
    :returns: data; ``str()`` of it is for reading.  No parts where nothing
        is left of the object.
    :raises WrongTypeError: when it is the id of another class.
    :raises InvalidIdError: when it is none.
    """
    kind, place = _begun(session, entity, object_id)
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
    """Delete an object with all that belongs to it.

    ::

        with cluster.session() as session:
            print(plan_deletion(session, User, user_id))
        delete_object(cluster, User, user_id)

    That is, on its own shard: the objects that live with it
    (``colocate_with``), with what belongs to them; the rows of link tables
    and association objects; its lists.  On other shards: its entries in the
    lists of others, and its keys.  Columns that refer to it and may be NULL
    are set to NULL.

    Each transaction deletes up to ``batch`` objects, and leaves intents for
    what is on other shards; :meth:`Cluster.repair()
    <sqla_shard.Cluster.repair>` finishes what a crash has left of those.
    After an error, or in a process that takes over, call it again: it goes
    on, and does nothing where all is done.

    Rows are deleted by statements: events and cascades of the ORM are not
    called.  An :class:`~sqla_shard.ObjectRef` elsewhere keeps its value.

    :param entity: the object's class.
    :param scatter: as for :func:`plan_deletion`.
    :param batch: how many objects a transaction deletes at most.
    :returns: what was done, in this order.
    :raises WrongTypeError: when it is the id of another class.
    :raises InvalidIdError: when it is none.
    :raises ValueError: for a batch below 1.
    """
    return run(cluster, _deleting(entity, object_id, scatter, batch))


async def async_delete_object(
    cluster: Cluster,
    entity: type[Any],
    object_id: int,
    *,
    scatter: bool = False,
    batch: int = BATCH,
) -> DeletionPlan:
    """Delete an object in an event loop; see :func:`delete_object`."""
    return await run_awaited(
        cluster, _deleting(entity, object_id, scatter, batch)
    )


def _deleting(
    entity: type[Any], object_id: int, scatter: bool, batch: int
) -> Course[DeletionPlan]:
    if batch < 1:
        raise ValueError(f"batch={batch}; it is a number of objects, from 1")
    plan = DeletionPlan(object_id=object_id)
    is_last = False
    while not is_last:
        some = partial(_some, entity, object_id, scatter, batch)
        done, is_last = yield from settled(some)
        plan = plan.plus(done.parts, done.unseen)
    return plan


def _some(
    entity: type[Any],
    object_id: int,
    scatter: bool,
    batch: int,
    session: ShardSession,
) -> tuple[DeletionPlan, bool]:
    """Delete some objects that none belong to.

    :returns: what was done, and whether that was the object itself.
    """
    kind, place = _begun(session, entity, object_id)
    # Two that delete it wait for each other.
    session.execute(
        select(kind.id).where(kind.id == object_id).with_for_update(),
        execution_options=READS,
    )
    found, ids = deepest(session, kind, [object_id], batch)
    finder = Finder(session, found, place, scatter=scatter)
    parts = list(_done(finder, ids))
    plan = DeletionPlan(object_id=object_id).plus(parts, finder.unseen)
    return plan, object_id in ids


def _done(finder: Finder, ids: list[int]) -> Iterator[Any]:
    # What it has found is not looked at again while it is deleted.
    for one in list(finder.find(ids)):
        one.work()
        yield one.part


def _begun(
    session: ShardSession, entity: type[Any], object_id: int
) -> tuple[Kind, Place]:
    mapper: Any = inspect(entity)
    spec = spec_of(mapper.local_table)
    if spec.kind != "objects" or not has_objects(mapper.local_table):
        raise UnsupportedStatementError(
            f"{entity.__name__} is no object class, so no id tells where its "
            "rows are and what belongs to them; delete them in a session",
            construct="delete_object()",
        )
    if mapper.inherits is not None:
        first = mapper.base_mapper.class_.__name__
        raise UnsupportedStatementError(
            f"{entity.__name__} shares the table and the ids of {first}, so "
            f"an id does not tell whether it is one; give {first} instead",
            construct="delete_object()",
        )
    shard_id = check_type(object_id, spec.type_id, entity.__name__).shard_id
    return kind_of(entity), session.place_for(mapper=entity, shard_id=shard_id)
