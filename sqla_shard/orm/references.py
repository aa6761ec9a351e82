"""What a field, or a column, that holds an id refers to."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

from sqlalchemy import inspect
from sqlalchemy.orm import Mapper

from sqla_shard.exc import ClassDefinitionError
from sqla_shard.exc import InvalidIdError
from sqla_shard.ids import TypeRegistry
from sqla_shard.orm.fields import BlobField
from sqla_shard.orm.fields import MISSING
from sqla_shard.routing import Colocation
from sqla_shard.types import IdType
from sqla_shard.types import ObjectRef

__all__ = ["any_type", "colocation_of", "referred", "types_of"]

_TYPES = "sqla_shard.types"

#: Returns the type ids that an id may have; empty for any.
Types = Callable[[], tuple[int, ...]]


def types_of(metadata: Any) -> TypeRegistry:
    """Return the type ids of the classes of one declarative base."""
    found: TypeRegistry = metadata.info.setdefault(_TYPES, TypeRegistry())
    return found


def any_type(metadata: Any) -> Types:
    """Return a function that allows every class of a declarative base."""

    def types() -> tuple[int, ...]:
        return tuple(type_id for type_id, _ in types_of(metadata))

    return types


def referred(cls: type[Any], key: str, ref: Any) -> Types:
    """Return a function that finds what ``blob_field(ref=...)`` names.

    :param ref: a class, its type id, or its name, which is looked for when
        it is needed: the class may come later.
    :raises ClassDefinitionError: when it is none of these.
    """
    if isinstance(ref, type):
        definition = ref.__dict__.get("__sqla_shard__")
        if definition is not None:
            return _only(definition.type_id)
    elif isinstance(ref, str):
        return _named(cls, key, ref)
    elif type(ref) is int:
        try:
            return _only(TypeRegistry().check(ref, cls.__name__))
        except InvalidIdError as error:
            raise ClassDefinitionError(
                f"{key} refers to type {ref}: {error}",
                class_name=cls.__name__,
            ) from error
    raise ClassDefinitionError(
        f"{key} refers to {ref!r}; ref= takes an object class, its name, or "
        "its type id",
        class_name=cls.__name__,
    )


def _only(type_id: int) -> Types:
    return lambda: (type_id,)


def _named(cls: type[Any], key: str, name: str) -> Types:
    def types() -> tuple[int, ...]:
        known = []
        for type_id, found in types_of(cls.metadata):
            names = [m.class_.__name__ for m in _mappers_of(found)]
            if name in names:
                return (type_id,)
            known += names
        raise ClassDefinitionError(
            f"{key} refers to {name!r}, which is not an object class of the "
            f"same declarative base; there are {', '.join(known)}",
            class_name=cls.__name__,
        )

    return types


def _mappers_of(first: Any) -> Iterable[Mapper[Any]]:
    """Return the mapper of a class and those of classes in its table."""
    mapper: Mapper[Any] = inspect(first)
    return mapper.self_and_descendants


def colocation_of(
    mapper: Mapper[Any], name: str | None, fields: dict[str, BlobField]
) -> Colocation | None:
    """Return what ``colocate_with`` means for a class that was mapped.

    :param name: the field or column.
    :param fields: the blob fields of the class.
    :raises ClassDefinitionError: when it holds no ids.
    """
    if name is None:
        return None
    if name in fields:
        return _by_field(fields[name])
    class_name = mapper.class_.__name__
    # Not column_attrs, which configures all mappers: a relationship to a
    # class that comes later would fail.
    column: Any = mapper.columns.get(name)
    if column is None:
        raise ClassDefinitionError(
            f"colocate_with={name!r} names neither a blob field nor a "
            "column of the class; add the one that holds the parent's id, "
            f"such as {name}: Mapped[int] = blob_field()",
            class_name=class_name,
        )
    kind = column.type
    if not isinstance(kind, IdType) or column.primary_key:
        raise ClassDefinitionError(
            f"the column {name} that colocates is of type {kind!r}; make it "
            f"a blob_field(), or say {name}: Mapped[int] = "
            "mapped_column(ObjectRef(type_id)), or ShardedId(type_id) with "
            "a ForeignKey",
            class_name=class_name,
        )
    if isinstance(kind, ObjectRef):
        kind.colocated = True
    allowed = () if kind.type_id is None else (kind.type_id,)
    return Colocation(
        field=name,
        read=lambda instance: instance.__dict__.get(name),
        type_ids=lambda: allowed,
    )


def _by_field(made: BlobField) -> Colocation:
    def read(instance: Any) -> Any:
        data = instance.__dict__.get("data")
        if data is None:
            return None
        stored = made.stored(data)
        return None if stored is MISSING else stored

    assert made.refers is not None  # noqa: S101  # a field that colocates has it
    return Colocation(field=made.name, read=read, type_ids=made.refers)
