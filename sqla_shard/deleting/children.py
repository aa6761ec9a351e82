"""The objects that belong to others, and the columns that refer to them."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import inspect
from sqlalchemy import select
from sqlalchemy.orm import Mapper

from sqla_shard.routing import has_objects
from sqla_shard.routing import routes
from sqla_shard.routing import spec_of
from sqla_shard.session import INCLUDE_INACTIVE
from sqla_shard.session import ShardSession

__all__ = ["READS", "Kind", "deepest", "kind_of", "tree"]

#: Execution options of reads: inactive objects are deleted too.
READS = {INCLUDE_INACTIVE: True}


@dataclass(frozen=True)
class Kind:
    """An object class, and what refers to its objects on their shard.

    :ivar entity: the class.
    :ivar children: classes of objects that belong to them, with the
        attribute that has the parent's id.
    :ivar loose: columns of other objects that may be NULL.
    :ivar rows: columns of other tables, whose rows go with the object.
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


def kind_of(entity: Any) -> Kind:
    """Return what refers to the objects of a class."""
    mapper: Any = inspect(entity)
    type_id = spec_of(mapper.local_table).type_id
    children: list[tuple[Any, Any]] = []
    loose: list[Any] = []
    of_objects = set()
    for other in mapper.registry.mappers:
        table = other.local_table
        if other.inherits is not None:
            continue  # the class whose table it shares has its rows
        if not has_objects(table) or spec_of(table).kind != "objects":
            continue
        of_objects.add(table)
        belongs = list(_belonging(other, type_id))
        children += [(other.class_, field) for field in belongs]
        for column in _referring(table, type_id):
            field = other.get_property_by_column(column)
            attribute = getattr(other.class_, field.key)
            if any(attribute is known for known in belongs):
                continue
            if column.nullable:
                loose.append(column)
            else:
                children.append((other.class_, attribute))
    rows = [
        column
        for table in mapper.local_table.metadata.tables.values()
        if table not in of_objects
        for column in _referring(table, type_id)
    ]
    return Kind(
        entity=entity,
        children=tuple(sorted(children, key=lambda one: one[0].__name__)),
        loose=tuple(loose),
        rows=tuple(rows),
    )


def _belonging(mapper: Mapper[Any], type_id: int | None) -> Iterator[Any]:
    """Yield the attribute by which objects belong to some of a type."""
    colocation = spec_of(mapper.local_table).colocation
    if colocation is None:
        return
    types = colocation.type_ids()
    if not types or type_id in types:
        yield getattr(mapper.class_, colocation.field)


def _referring(table: Any, type_id: int | None) -> Iterator[Any]:
    """Yield the columns of a table that refer to objects of its shard."""
    spec = spec_of(table)
    # The lists of mapping classes are cleared by the classes themselves.
    if spec.kind != "objects" or spec.commits_late:
        return
    for index, column in enumerate(table.columns):
        own = has_objects(table) and column.primary_key
        if routes(column) and column.type.type_id == type_id and not own:
            yield table.columns[index]


def deepest(
    session: ShardSession,
    kind: Kind,
    ids: Sequence[int],
    most: int,
    above: frozenset[int] = frozenset(),
) -> tuple[Kind, list[int]]:
    """Return objects that none belong to, of those that belong to others.

    :param ids: of the others, which are on one shard.
    :param most: how many at most.
    :param above: those that the others belong to.
    :returns: the others themselves where none belong to them.
    """
    above |= frozenset(ids)
    for entity, field in kind.children:
        key = _id_of(entity)
        found = session.scalars(
            select(key)
            # A cycle of objects is cut where it was entered.
            .where(field.in_(ids), key.not_in(above))
            .order_by(key)
            .limit(most),
            execution_options=READS,
        ).all()
        if found:
            return deepest(session, kind_of(entity), found, most, above)
    return kind, list(ids)


def tree(
    session: ShardSession,
    kind: Kind,
    ids: Sequence[int],
    above: set[int] | None = None,
) -> Iterator[tuple[Kind, list[int]]]:
    """Yield objects and all that belong to them, the deepest first.

    :param ids: of objects of one shard.
    :param above: those that were met already.
    """
    above = set() if above is None else above
    above |= set(ids)
    for entity, field in kind.children:
        key = _id_of(entity)
        found = session.scalars(
            select(key).where(field.in_(ids)).order_by(key),
            execution_options=READS,
        )
        new = [i for i in found if i not in above]
        if new:
            yield from tree(session, kind_of(entity), new, above)
    yield kind, list(ids)
