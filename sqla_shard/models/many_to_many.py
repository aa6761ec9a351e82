"""Many-to-many relationships between object classes.

The rows of a ``secondary`` table are on the shard of the objects that they
link.  This requires classes whose objects are on one shard: a user and the
posts of a user, or two classes that are colocated with the same parent.

SQLAlchemy writes the link rows of a flush through one connection, the
connection of the class.  This module passes it the rows of one shard at a
time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Mapper

from sqla_shard.engine.rendering import Place
from sqla_shard.exc import ColocationError, ManyToManyError
from sqla_shard.planning import has_objects, routes, spec_of
from sqla_shard.session.connections import bulk_on
from sqla_shard.session.flush import mapping_class
from sqla_shard.session.session import ShardSession
from sqla_shard.types import ShardedId
from sqla_shard.util import sqlalchemy_private as private

_Row = dict[str, Any]


def _on_mapper_configured(mapper: Mapper[Any], cls: Any) -> None:
    """Handle ``mapper_configured``.

    :raises ManyToManyError: if link rows would have no common shard.
    """
    for relation in mapper.relationships:
        if (
            relation.secondary is not None
            and not relation.viewonly
            # Other relationships were checked with the base class.
            and relation.parent is mapper
        ):
            _check(relation)


def _check(relation: Any) -> None:
    sides = [spec_of(side.local_table) for side in (relation.parent, relation.mapper)]
    if "objects" not in {side.kind for side in sides}:
        return
    for side, spec in zip((relation.parent, relation.mapper), sides, strict=True):
        if spec.kind != "objects":
            raise _refusal(
                relation,
                f"{side.class_.__name__} is in a keyspace of kind "
                f"{spec.kind!r}, on other servers. Make it an object class "
                "(ObjectMixin), or a reference table (ReferenceMixin), which "
                "is on every shard and may be linked",
            )
    _check_columns(relation)
    if None not in {side.reference for side in sides}:
        return
    if all(side.reference is None for side in sides):
        _check_together(relation)
    _write_by_shard(relation)


def _check_columns(relation: Any) -> None:
    """Reject a link table whose columns have other types than the ids."""
    for there, column in (
        *relation.synchronize_pairs,
        *relation.secondary_synchronize_pairs,
    ):
        if not isinstance(there.type, ShardedId):
            continue
        kind = column.type
        if not (
            isinstance(kind, ShardedId)
            and kind.type_id == there.type.type_id
            and kind.layout == there.type.layout
        ):
            raise _refusal(
                relation,
                f"its column {column} is of type {kind!r}, but refers "
                "to an id. Leave out the type, so that it is the type of the "
                f'other column: Column("{column.name}", '
                f'ForeignKey("{there}"), primary_key=True)',
            )


def _check_together(relation: Any) -> None:
    """Reject classes whose objects may be on different shards."""
    one, other = relation.parent, relation.mapper
    theirs = spec_of(one.local_table), spec_of(other.local_table)
    keyspaces = {spec.keyspace for spec in theirs if spec.keyspace}
    here, there = _colocated_types(one), _colocated_types(other)
    is_one = one.local_table is other.local_table
    if len(keyspaces) > 1:
        what = f"their objects are in the keyspaces {sorted(keyspaces)}"
    elif is_one and here == {spec_of(one.local_table).type_id}:
        what = (
            f"two objects of {one.class_.__name__} may be on different "
            "shards: it has no colocate_with"
        )
    elif not is_one and here and there and here.isdisjoint(there):
        what = (
            f"objects of {one.class_.__name__} and "
            f"{other.class_.__name__} may be on different shards: neither "
            "has colocate_with for the other, nor both for one class"
        )
    else:
        return
    raise _refusal(
        relation,
        f"{what}. A mapping class has targets on any shard:\n"
        + mapping_class(relation),
    )


def _colocated_types(mapper: Mapper[Any]) -> set[int | None]:
    """Return the types of objects with which a class is colocated.

    :returns: the type ids, including its own; empty if it may be colocated
        with any type.
    """
    by_type = {
        spec_of(one.local_table).type_id: one
        for one in mapper.registry.mappers
        if has_objects(one.local_table)
    }
    type_ids: set[int | None] = set()
    todo: list[int | None] = [spec_of(mapper.local_table).type_id]
    while todo:
        type_id = todo.pop()
        if type_id in type_ids:
            continue
        type_ids.add(type_id)
        if type_id in by_type:
            above = _above(by_type[type_id])
            if above is None:
                return set()
            todo += above
    return type_ids


def _above(mapper: Mapper[Any]) -> list[int] | None:
    """Return the types of parents of a class; None if any type may be."""
    table: Any = mapper.local_table
    spec = spec_of(table)
    type_ids: list[int] = []
    if spec.colocation is not None:
        types = spec.colocation.type_ids()
        if not types:
            return None
        type_ids += types
    for column in table.columns:
        if routes(column) and not column.primary_key:
            if column.type.type_id is None:
                return None
            type_ids.append(column.type.type_id)
    return type_ids


def _refusal(relation: Any, what: str) -> ManyToManyError:
    return ManyToManyError(
        f"{relation.key} cannot have rows in {relation.secondary.name}: {what}",
        class_name=relation.parent.class_.__name__,
        relationship=relation.key,
        secondary=relation.secondary.name,
    )


def _write_by_shard(relation: Any) -> None:
    """Write the link rows of a relationship on their shards.

    :param relation: a relationship with ``secondary``, of a configured mapper.
    """
    table = relation.secondary
    columns = tuple(column for column in table.columns if routes(column))

    def make(write: Any) -> Any:
        def by_shard(
            flush: Any, inserted: list[_Row], updated: list[_Row], deleted: list[_Row]
        ) -> None:
            session = flush.session
            if not isinstance(session, ShardSession):
                write(flush, inserted, updated, deleted)
                return
            grouped: dict[Place, tuple[list[_Row], list[_Row], list[_Row]]] = {}
            for index, rows in enumerate((inserted, updated, deleted)):
                for row in rows:
                    place = _place(session, relation, columns, row)
                    grouped.setdefault(place, ([], [], []))[index].append(row)
            for place, some in grouped.items():
                session.log.wrote(place, f"rows of {table.name}", table)
                with bulk_on(session, place):
                    write(flush, *some)

        return by_shard

    private.replace_run_crud(relation, make)


def _place(
    session: ShardSession, relation: Any, columns: Iterable[Any], row: _Row
) -> Place:
    """Return the location of a link row.

    :raises ColocationError: if the row has ids of two shards.
    """
    here = [column for column in columns if column.key in row]
    ids = [row[column.key] for column in here]
    shards = {
        column.type.layout.shard_of(value)
        for value, column in zip(ids, here, strict=True)
    }
    if len(shards) != 1:
        # Only a listener that links objects during the flush can cause this.
        raise ColocationError(
            f"a row of {relation.secondary.name} would link objects of the "
            f"shards {sorted(shards)}, and is on one of them only. For "
            f"objects of different shards write\n{mapping_class(relation)}",
            class_name=relation.parent.class_.__name__,
            field=relation.key,
            value=tuple(ids),
        )
    spec = spec_of(relation.secondary)
    keyspace = session.places.keyspace(spec.keyspace, spec.kind, spec.layout)
    return session.places.place(keyspace, shards.pop())


event.listen(Mapper, "mapper_configured", _on_mapper_configured)
