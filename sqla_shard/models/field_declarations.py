"""Declarations of blob fields: their types, settings and references.

:func:`declared_fields` finds the fields of a class, :func:`create_field`
creates the field of a declaration.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable, Mapping
from inspect import get_annotations
from typing import Any

from sqlalchemy import inspect
from sqlalchemy.orm import Mapped, MappedAsDataclass, Mapper

from sqla_shard.engine.rendering import SCHEMA
from sqla_shard.exc import BlobValueError, ClassDefinitionError, InvalidIdError
from sqla_shard.ids import TypeRegistry
from sqla_shard.models.blob_fields import (
    BlobField,
    FieldSettings,
    MISSING,
    Referred,
    settings_of,
)
from sqla_shard.models.codecs import ValueKind
from sqla_shard.models.field_types import codec_for
from sqla_shard.models.layouts import check_parent_layout, layout_of

#: Attributes of every object class, and names that SQLAlchemy reserves.
_RESERVED = frozenset(
    {"data", "id", "ts", "active", "metadata", "registry", "shard_id"}
    | {"deactivate", "restore"}
)


def _declared_in(cls: type[Any]) -> dict[str, FieldSettings]:
    # SQLAlchemy 2.0 leaves the fields of a mixin only here.
    made = cls.__dict__.get("__dataclass_fields__", {})
    found = {}
    for key in (*get_annotations(cls), *cls.__dict__):
        value = cls.__dict__.get(key, MISSING)
        settings = settings_of(made.get(key) if value is MISSING else value)
        if settings is not None:
            found[key] = settings
    return found


def declared_fields(cls: type[Any]) -> dict[str, FieldSettings]:
    """Return the fields of a class and its bases, in order of definition.

    :raises ClassDefinitionError: for a field with a reserved name.
    """
    found: dict[str, FieldSettings] = {}
    for base in reversed(cls.__mro__):
        own = _declared_in(base)
        for key in found.keys() & base.__dict__.keys() - own.keys():
            del found[key]  # the class has something else in its place
        found.update(own)
    for key in found:
        if key in _RESERVED:
            raise ClassDefinitionError(
                f"a blob field cannot be called {key!r}, which every object "
                "class has or SQLAlchemy reserves; rename it",
                class_name=cls.__name__,
            )
    return found


def create_field(
    cls: type[Any], key: str, settings: FieldSettings, *, colocates: bool
) -> BlobField:
    """Return the field of a declaration.

    :param colocates: whether the field contains the id of the parent.
    :raises ClassDefinitionError: if the declaration is not valid.
    """
    name = cls.__name__
    _check_settings(cls, key, settings)
    codec = codec_for(type_of(cls, key, settings), field=f"{name}.{key}")
    refers = None
    if settings.ref is not None:
        refers = _referenced_ids(cls, key, settings.ref)
    elif colocates:
        refers = _any_type(cls)
    if refers is not None and codec.kind is not ValueKind.INTEGER:
        raise ClassDefinitionError(
            f"{key} holds an id, which is an int: write {key}: Mapped[int]",
            class_name=name,
        )
    if colocates and refers is not None:
        refers = _on_same_shard(cls, key, refers)
    made = BlobField(name, key, codec, settings, refers=refers, colocates=colocates)
    try:
        made.check_default()
    except BlobValueError as error:
        raise ClassDefinitionError(
            f"the default of {error}", class_name=name
        ) from error
    return made


def _check_settings(cls: type[Any], key: str, settings: FieldSettings) -> None:
    problem = None
    aliases = settings.aliases
    factory: Any = settings.default_factory
    if not isinstance(aliases, (tuple, list)) or not all(
        isinstance(alias, str) for alias in aliases
    ):
        problem = f"aliases of {key} must be a tuple of str, not {aliases!r}"
    elif settings.default is not MISSING and factory is not None:
        problem = f"{key} has default and default_factory; give one"
    elif factory is not None and not callable(factory):
        problem = f"default_factory of {key} is not callable: {factory!r}"
    elif isinstance(settings.default, (list, dict, set)):
        problem = (
            f"the default of {key} would be shared by all objects; use "
            f"default_factory={type(settings.default).__name__}"
        )
    elif settings.options and not issubclass(cls, MappedAsDataclass):
        problem = (
            f"{key} has {', '.join(settings.options)}, which are for "
            "dataclasses; leave them out, or make the class one: class "
            f"{cls.__name__}(MappedAsDataclass, ObjectMixin, Base, ...)"
        )
    if problem is not None:
        raise ClassDefinitionError(problem, class_name=cls.__name__)


def check_keys(cls: type[Any], fields: Mapping[str, BlobField]) -> None:
    """Reject keys that two fields would share, or JSON paths cannot name.

    :raises ClassDefinitionError: for such a key.
    """
    keys = {"active": "soft delete"}
    for made in fields.values():
        for key in (made.name, *made.aliases):
            problem = None
            if key in keys:
                problem = f"is already used by {keys[key]}"
            elif SCHEMA in key:
                problem = f"contains {SCHEMA}, which stands for the database"
            elif '"' in key or not key.isprintable():
                # SQLite compares a path with the escaped text.
                problem = (
                    "has a double quote or an unprintable character, which "
                    "JSON paths cannot name on every server"
                )
            if problem is not None:
                raise ClassDefinitionError(
                    f"the key {key!r} of {made.name} {problem}; give it another name",
                    class_name=cls.__name__,
                )
            keys[key] = made.name


# -- annotations


_SAVED = "__sqla_shard_annotations__"


def type_of(cls: type[Any], key: str, settings: FieldSettings) -> Any:
    """Return ``type_`` of a field, or T of its annotation ``Mapped[T]``.

    :raises ClassDefinitionError: if the field has no annotation, or it cannot
        be resolved.
    """
    if settings.type_ is not None:
        return settings.type_
    for base in cls.__mro__:
        annotation = get_annotations(base).get(key)
        if annotation is None:
            annotation = base.__dict__.get(_SAVED, {}).get(key)
        if annotation is not None:
            found = _resolved(cls, base, key, annotation)
            if typing.get_origin(found) is Mapped:
                (found,) = typing.get_args(found)
            return found
    raise ClassDefinitionError(
        f"{key} has no type annotation; write {key}: Mapped[str] = blob_field()",
        class_name=cls.__name__,
    )


def _resolved(cls: type[Any], base: type[Any], key: str, annotation: Any) -> Any:
    names = {"Mapped": Mapped, **vars(sys.modules[base.__module__])}
    # In ``date: Mapped[date] = blob_field()`` date is the type.
    own = {
        name: value
        for name, value in vars(base).items()
        if value is not MISSING and settings_of(value) is None
    }
    holder = type("holder", (), {"__annotations__": {key: annotation}})
    try:
        found = typing.get_type_hints(holder, names, own, include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise ClassDefinitionError(
            f"the annotation {annotation!r} of {key} cannot be resolved "
            f"({error}); define its names at the top of the module, not in "
            "a function or under TYPE_CHECKING, or use "
            "blob_field(type_=...)",
            class_name=cls.__name__,
        ) from error
    return found[key]


def hide(cls: type[Any]) -> None:
    """Hide the annotations of blob fields from SQLAlchemy.

    SQLAlchemy would create columns for ``Mapped[...]``.  The annotations are
    saved for classes that inherit the field.
    """
    for base in cls.__mro__:
        found = {
            key: annotation
            for key, annotation in get_annotations(base).items()
            if settings_of(base.__dict__.get(key)) is not None
        }
        for key in found:
            del base.__annotations__[key]
        if found:
            setattr(base, _SAVED, {**base.__dict__.get(_SAVED, {}), **found})


# -- references to objects


_TYPES = "sqla_shard.types"

#: Returns the ids that a field may contain.
Refers = Callable[[], Referred]


def types_of(metadata: Any) -> TypeRegistry:
    """Return the type ids of the classes of one declarative base."""
    found: TypeRegistry = metadata.info.setdefault(_TYPES, TypeRegistry())
    return found


def _any_type(cls: type[Any]) -> Refers:
    """Return a function that allows all types with the layout of a class."""
    layout = layout_of(cls)

    def referred() -> Referred:
        types = (
            type_id
            for type_id, found in types_of(cls.metadata)
            if layout_of(found) == layout
        )
        return Referred(tuple(types), layout)

    return referred


def _referenced_ids(cls: type[Any], key: str, ref: Any) -> Refers:
    """Return a function that resolves ``blob_field(ref=...)``.

    :param ref: a class, its type id, or its name; a name is resolved when it
        is first used, because the class may be defined later.
    :raises ClassDefinitionError: for other values.
    """
    if isinstance(ref, type):
        definition = ref.__dict__.get("__sqla_shard__")
        if definition is not None:
            found = Referred((definition.type_id,), definition.layout)
            return lambda: found
    elif isinstance(ref, str):
        return _named(cls, key, ref)
    elif type(ref) is int:
        return _of_type(cls, key, ref)
    raise ClassDefinitionError(
        f"{key} refers to {ref!r}; ref= must be an object class, its name, "
        "or its type id",
        class_name=cls.__name__,
    )


def _of_type(cls: type[Any], key: str, type_id: int) -> Refers:
    """Return a function that allows one type.

    The ids have the layout of the class of the type.  The class may belong to
    another declarative base; then they have the layout of ``cls``.
    """
    layout = layout_of(cls)
    try:
        TypeRegistry().check(type_id, cls.__name__, layout)
    except InvalidIdError as error:
        raise ClassDefinitionError(
            f"{key} refers to type {type_id}: {error}", class_name=cls.__name__
        ) from error

    def referred() -> Referred:
        found = types_of(cls.metadata).lookup(type_id)
        return Referred((type_id,), layout if found is None else layout_of(found))

    return referred


def _named(cls: type[Any], key: str, name: str) -> Refers:
    def referred() -> Referred:
        known = []
        for type_id, found in types_of(cls.metadata):
            mapper: Mapper[Any] = inspect(found)
            names = [m.class_.__name__ for m in mapper.self_and_descendants]
            if name in names:
                return Referred((type_id,), layout_of(found))
            known += names
        raise ClassDefinitionError(
            f"{key} refers to {name!r}, which is not an object class of the "
            f"same declarative base; there are {', '.join(known)}",
            class_name=cls.__name__,
        )

    return referred


def _on_same_shard(cls: type[Any], key: str, refers: Refers) -> Refers:
    """Return a function that refuses ids of another layout.

    Objects with another layout are in another keyspace, and on none of the
    shards of the class.
    """

    def referred() -> Referred:
        found = refers()
        check_parent_layout(cls, key, found.layout)
        return found

    return referred
