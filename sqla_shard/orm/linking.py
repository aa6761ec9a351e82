"""Many-to-many relationships of objects: checked when they are configured.

The rows of a ``secondary`` table are on one shard, with the objects that they
link.  That can be so only for classes whose objects can be on one shard: a
user and the posts of a user, or two classes that belong to one parent.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Mapper

from sqla_shard.exc import ManyToManyError
from sqla_shard.routing import has_objects
from sqla_shard.routing import routes
from sqla_shard.routing import spec_of
from sqla_shard.session.links import mapping_class
from sqla_shard.session.secondary import write_by_shard
from sqla_shard.types import ShardedId

__all__: list[str] = []


def _configured(mapper: Mapper[Any], cls: Any) -> None:
    """Handle ``mapper_configured``.

    :raises ManyToManyError: for link rows that could have no shard.
    """
    for relation in mapper.relationships:
        if (
            relation.secondary is not None
            and not relation.viewonly
            # Those of a base class are its own.
            and relation.parent is mapper
        ):
            _check(relation)


def _check(relation: Any) -> None:
    sides = [
        spec_of(side.local_table)
        for side in (relation.parent, relation.mapper)
    ]
    if "objects" not in {side.kind for side in sides}:
        return
    for side, spec in zip(
        (relation.parent, relation.mapper), sides, strict=True
    ):
        if spec.kind != "objects":
            raise _refused(
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
    write_by_shard(relation)


def _check_columns(relation: Any) -> None:
    """Refuse a link table whose columns do not hold what they refer to."""
    for there, column in (
        *relation.synchronize_pairs,
        *relation.secondary_synchronize_pairs,
    ):
        if not isinstance(there.type, ShardedId):
            continue
        kind = column.type
        if not (
            isinstance(kind, ShardedId) and kind.type_id == there.type.type_id
        ):
            raise _refused(
                relation,
                f"its column {column} is of type {kind!r}, and refers "
                "to an id. Leave out the type, which is that of the other "
                f'column then: Column("{column.name}", ForeignKey("{there}"), '
                "primary_key=True)",
            )


def _check_together(relation: Any) -> None:
    """Refuse to link objects that nothing keeps on one shard."""
    one, other = relation.parent, relation.mapper
    theirs = spec_of(one.local_table), spec_of(other.local_table)
    keyspaces = {spec.keyspace for spec in theirs if spec.keyspace}
    here, there = _anchors(one), _anchors(other)
    is_one = one.local_table is other.local_table
    if len(keyspaces) > 1:
        what = f"their objects are in the keyspaces {sorted(keyspaces)}"
    elif is_one and here == {spec_of(one.local_table).type_id}:
        what = (
            f"nothing keeps two objects of {one.class_.__name__} on one "
            "shard: it has no colocate_with"
        )
    elif not is_one and here and there and here.isdisjoint(there):
        what = (
            f"nothing keeps objects of {one.class_.__name__} and "
            f"{other.class_.__name__} on one shard: neither has "
            "colocate_with for the other, nor for a class of both"
        )
    else:
        return
    raise _refused(
        relation,
        f"{what}. A mapping class has targets on any shard:\n"
        + mapping_class(relation),
    )


def _anchors(mapper: Mapper[Any]) -> set[int | None]:
    """Return the types of objects whose shard those of a class are on.

    :returns: its own type as well; nothing where it may be that of any.
    """
    by_type = {
        spec_of(one.local_table).type_id: one
        for one in mapper.registry.mappers
        if has_objects(one.local_table)
    }
    found: set[int | None] = set()
    todo: list[int | None] = [spec_of(mapper.local_table).type_id]
    while todo:
        type_id = todo.pop()
        if type_id in found:
            continue
        found.add(type_id)
        if type_id in by_type:
            above = _above(by_type[type_id])
            if above is None:
                return set()
            todo += above
    return found


def _above(mapper: Mapper[Any]) -> list[int] | None:
    """Return the types that objects of a class refer to on their shard."""
    table: Any = mapper.local_table
    spec = spec_of(table)
    found: list[int] = []
    if spec.colocation is not None:
        types = spec.colocation.type_ids()
        if not types:
            return None
        found += types
    for column in table.columns:
        if routes(column) and not column.primary_key:
            if column.type.type_id is None:
                return None
            found.append(column.type.type_id)
    return found


def _refused(relation: Any, what: str) -> ManyToManyError:
    return ManyToManyError(
        f"{relation.key} cannot have rows in {relation.secondary.name}: "
        f"{what}",
        class_name=relation.parent.class_.__name__,
        relationship=relation.key,
        secondary=relation.secondary.name,
    )


event.listen(Mapper, "mapper_configured", _configured)
