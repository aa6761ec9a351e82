"""What happens when an object class is created.

:func:`define` runs before SQLAlchemy maps the class: it checks the class and
turns each ``blob_field()`` into an attribute.  :func:`finish` runs after: it
tells routing about the table.
"""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field
from typing import Any

from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import Mapped

from sqla_shard.dialects.sql import keep_updated
from sqla_shard.exc import ClassDefinitionError
from sqla_shard.ids import TypeRegistry
from sqla_shard.orm.codecs import codec_for
from sqla_shard.orm.fields import BlobField
from sqla_shard.orm.fields import FieldSettings
from sqla_shard.orm.fields import MISSING
from sqla_shard.routing import Colocation
from sqla_shard.routing import declare
from sqla_shard.routing import TableSpec
from sqla_shard.types import Blob
from sqla_shard.types import IdType
from sqla_shard.types import JSONBlob
from sqla_shard.types import ObjectRef

__all__ = ["Definition", "define", "finish", "types_of"]

#: Names that an object class has already, or that SQLAlchemy takes.
RESERVED = frozenset(
    {"data", "id", "ts", "active", "metadata", "registry", "shard_id"}
    | {"deactivate", "restore"}
)
_TYPES = "sqla_shard.types"


@dataclass(kw_only=True)
class Definition:
    """What an object class was defined with.

    :ivar fields: its blob fields by name, inherited ones too.
    """

    type_id: int
    colocate_with: str | None
    keyspace: str | None
    max_bytes: int
    fields: dict[str, BlobField] = field(default_factory=dict)


def types_of(metadata: Any) -> TypeRegistry:
    """Return the type ids of the classes of one declarative base."""
    found: TypeRegistry = metadata.info.setdefault(_TYPES, TypeRegistry())
    return found


def define(
    cls: type[Any],
    mixin: type[Any],
    *,
    type_id: int | None,
    colocate_with: str | None,
    keyspace: str | None,
    max_bytes: int | None,
) -> None:
    """Check a class that is about to be mapped and make its fields.

    :raises ClassDefinitionError: when it could not work.
    """
    name = cls.__name__
    _check_bases(cls, mixin)
    if cls.__dict__.get("__abstract__"):
        _check_abstract(cls, type_id, colocate_with, keyspace)
        _strip_annotations(cls)
        return
    if type_id is None:
        raise ClassDefinitionError(
            f"say its type: class {name}({mixin.__name__}, Base, type_id=n) "
            "with n from 1 to 1023, different for each class and never "
            "changed; or __abstract__ = True",
            class_name=name,
        )
    metadata = getattr(cls, "metadata", None)
    if metadata is None:
        raise ClassDefinitionError(
            f"{mixin.__name__} needs a declarative base after it: class "
            f"{name}({mixin.__name__}, Base, type_id={type_id})",
            class_name=name,
        )
    types_of(metadata).check(type_id, name)
    definition = Definition(
        type_id=type_id,
        colocate_with=colocate_with,
        keyspace=keyspace,
        max_bytes=JSONBlob().max_bytes if max_bytes is None else max_bytes,
    )
    cls.__sqla_shard__ = definition
    for key, settings in _declared(cls).items():
        made = _field(cls, key, settings, definition)
        definition.fields[key] = made
        setattr(cls, key, made.attribute())
    _strip_annotations(cls)


def finish(cls: type[Any]) -> None:
    """Tell routing about the table of a class that was mapped.

    :raises ClassDefinitionError: when its colocating field cannot work.
    """
    if cls.__dict__.get("__abstract__"):
        return
    definition: Definition = cls.__sqla_shard__
    table = cls.__table__
    colocation = _colocation(cls, definition)
    types_of(cls.metadata).register(definition.type_id, cls)
    keep_updated(table, "ts")
    declare(
        table,
        TableSpec(
            kind="objects",
            keyspace=definition.keyspace,
            id_index=0,
            type_id=definition.type_id,
            colocation=colocation,
            encode_row=_row_encoder(definition),
            is_shown=lambda instance: bool(instance.active),
        ),
    )


# -- bases


def _check_bases(cls: type[Any], mixin: type[Any]) -> None:
    name = cls.__name__
    for base in cls.__mro__[1:]:
        if "__mapper__" in base.__dict__:
            raise ClassDefinitionError(
                f"its base {base.__name__} is mapped to a table of its own; "
                "objects of one type are in one table. Share fields through "
                "a base with __abstract__ = True",
                class_name=name,
            )
        if dataclasses.is_dataclass(base) or base.__name__ in (
            "MappedAsDataclass",
            "DeclarativeBaseNoMeta",
        ):
            raise ClassDefinitionError(
                f"its base {base.__name__} is a dataclass, whose __init__ "
                "and fields know nothing of blob fields; make it an "
                "ordinary class, or use it as the type of a field",
                class_name=name,
            )
    if "__mapper__" in cls.__dict__:
        raise ClassDefinitionError(
            f"{mixin.__name__} must stand before the declarative base: "
            f"class {name}({mixin.__name__}, Base, type_id=...)",
            class_name=name,
        )


def _check_abstract(cls: type[Any], *given: Any) -> None:
    if any(value is not None for value in given):
        raise ClassDefinitionError(
            "it is abstract, so type_id, colocate_with and keyspace belong "
            "to the classes that inherit from it",
            class_name=cls.__name__,
        )


# -- fields


def _declared(cls: type[Any]) -> dict[str, FieldSettings]:
    """Return the fields of a class and its bases, in order of definition."""
    found: dict[str, FieldSettings] = {}
    for base in reversed(cls.__mro__):
        for key, value in base.__dict__.items():
            if isinstance(value, FieldSettings):
                found[key] = value
            elif key in found:
                del found[key]  # the class has something else in its place
    return found


def _field(
    cls: type[Any], key: str, settings: FieldSettings, definition: Definition
) -> BlobField:
    name = f"{cls.__name__}.{key}"
    for taken in (key, *settings.aliases):
        if taken in RESERVED and (taken == key or taken == "active"):
            raise ClassDefinitionError(
                f"a blob field cannot be called {taken!r}, which every "
                "object class has or SQLAlchemy reserves; rename it",
                class_name=cls.__name__,
            )
    if settings.default is not MISSING and settings.default_factory:
        raise ClassDefinitionError(
            f"{key} has default and default_factory; give one",
            class_name=cls.__name__,
        )
    if isinstance(settings.default, (list, dict, set)):
        raise ClassDefinitionError(
            f"the default of {key} would be shared by all objects; say "
            f"default_factory={type(settings.default).__name__}",
            class_name=cls.__name__,
        )
    annotation = settings.type_ or _annotation(cls, key)
    colocates = key == definition.colocate_with
    refers = None
    if colocates or settings.ref is not None:
        if settings.ref is None:
            refers = _any_type(cls.metadata)
        else:
            refers = _referred(cls, key, settings.ref)
    return BlobField(
        cls.__name__,
        key,
        codec_for(annotation, field=name),
        settings,
        refers=refers,
        colocates=colocates,
    )


def _any_type(metadata: Any) -> Callable[[], tuple[int, ...]]:
    def types() -> tuple[int, ...]:
        return tuple(type_id for type_id, _ in types_of(metadata))

    return types


def _referred(
    cls: type[Any], key: str, ref: Any
) -> Callable[[], tuple[int, ...]]:
    """Return a function that finds a class, which may come later."""
    if isinstance(ref, int):
        return lambda: (ref,)

    def types() -> tuple[int, ...]:
        for type_id, known in types_of(cls.metadata):
            if known is ref or known.__name__ == ref:
                return (type_id,)
        raise ClassDefinitionError(
            f"{key} refers to {ref!r}, which is not an object class of the "
            "same declarative base",
            class_name=cls.__name__,
        )

    return types


def _annotation(cls: type[Any], key: str) -> Any:
    """Return T of the annotation ``Mapped[T]`` of a field."""
    for base in cls.__mro__:
        annotation = base.__dict__.get("__annotations__", {}).get(key)
        if annotation is None:
            annotation = base.__dict__.get(_SAVED, {}).get(key)
        if annotation is not None:
            return _unwrapped(_resolved(base, key, annotation))
    raise ClassDefinitionError(
        f"{key} has no annotation that tells its type; write {key}: "
        "Mapped[str] = blob_field()",
        class_name=cls.__name__,
    )


def _resolved(base: type[Any], key: str, annotation: Any) -> Any:
    if not isinstance(annotation, str):
        return annotation
    scope = {**vars(sys.modules[base.__module__]), **_LOCAL_NAMES}
    try:
        return eval(annotation, scope, dict(vars(base)))  # noqa: S307  # as typing.get_type_hints does
    except (NameError, AttributeError, TypeError) as error:
        raise ClassDefinitionError(
            f"the annotation {annotation!r} of {key} cannot be resolved "
            f"({error}); define its names at the top of the module, or say "
            "blob_field(type_=...)",
            class_name=base.__name__,
        ) from error


_LOCAL_NAMES = {"Mapped": Mapped}


def _unwrapped(annotation: Any) -> Any:
    if typing.get_origin(annotation) is Mapped:
        (annotation,) = typing.get_args(annotation)
        if isinstance(annotation, typing.ForwardRef):
            annotation = annotation.__forward_arg__
    return annotation


_SAVED = "__sqla_shard_annotations__"


def _strip_annotations(cls: type[Any]) -> None:
    """Hide the annotations of blob fields from SQLAlchemy.

    It would take ``Mapped[...]`` for columns.  They are kept aside for the
    classes that inherit the field.
    """
    for base in cls.__mro__:
        annotations = base.__dict__.get("__annotations__")
        if not annotations:
            continue
        saved = dict(base.__dict__.get(_SAVED, {}))
        for key, value in list(base.__dict__.items()):
            if isinstance(value, (FieldSettings, hybrid_property)):
                if key in annotations:
                    saved[key] = annotations.pop(key)
        if saved:
            setattr(base, _SAVED, saved)


# -- colocation


def _colocation(cls: type[Any], definition: Definition) -> Colocation | None:
    name = definition.colocate_with
    if name is None:
        return None
    made = definition.fields.get(name)
    if made is not None and made.refers is not None:

        def read_field(instance: Any) -> Any:
            data = instance.__dict__.get("data")
            if data is None:
                return None
            stored = made.stored(data)
            return None if stored is MISSING else stored

        return Colocation(field=name, read=read_field, type_ids=made.refers)
    prop = cls.__mapper__.column_attrs.get(name)
    if prop is None:
        raise ClassDefinitionError(
            f"colocate_with={name!r} names neither a blob field nor a "
            "column of the class",
            class_name=cls.__name__,
        )
    kind = prop.columns[0].type
    if isinstance(kind, ObjectRef):
        kind.colocated = True
    if not isinstance(kind, IdType):
        raise ClassDefinitionError(
            f"the column {name} that colocates is of type {kind!r}; make it "
            f"a blob_field(), or say {name}: Mapped[int] = "
            "mapped_column(ObjectRef(type_id)), or ShardedId(type_id) with "
            "a ForeignKey",
            class_name=cls.__name__,
        )
    allowed = () if kind.type_id is None else (kind.type_id,)
    return Colocation(
        field=name,
        read=lambda instance: instance.__dict__.get(name),
        type_ids=lambda: allowed,
    )


# -- rows of INSERT


def _row_encoder(definition: Definition) -> Any:
    fields = definition.fields

    def encode_row(row: dict[str, Any]) -> dict[str, Any]:
        given = row.pop("data", None)
        data = given if isinstance(given, Blob) else Blob(given or {})
        for key in [key for key in row if key in fields]:
            fields[key].write(data, row.pop(key))
        for made in fields.values():
            made.fill(data)
        row["data"] = data
        return row

    return encode_row
