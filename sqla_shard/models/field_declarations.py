"""Declarations of blob fields: their types, settings and references.

:func:`declared_fields` finds the fields of a class, :func:`create_field`
creates the field of a declaration.
"""

from __future__ import annotations

import json
import sys
import typing
from collections.abc import Callable, Mapping
from inspect import get_annotations
from typing import Any

from sqlalchemy import event, inspect
from sqlalchemy.orm import (
    attributes,
    ColumnProperty,
    Mapped,
    MappedAsDataclass,
    Mapper,
    MapperProperty,
)
from sqlalchemy.orm.attributes import flag_modified, History
from sqlalchemy.orm.base import INIT_OK, NO_VALUE, PASSIVE_OFF

from sqla_shard.engine.rendering import SCHEMA
from sqla_shard.exc import (
    BlobError,
    BlobValueError,
    ClassDefinitionError,
    InvalidIdError,
)
from sqla_shard.ids import TypeRegistry
from sqla_shard.models.blob_fields import (
    BlobField,
    FieldSettings,
    MISSING,
    new_blob,
    raiser,
    Referred,
    settings_of,
)
from sqla_shard.models.blob_writes import changes, source_of
from sqla_shard.models.codecs import ValueKind
from sqla_shard.models.field_types import codec_for
from sqla_shard.models.id_sources import check_parent_layout, layout_of
from sqla_shard.types import Blob
from sqla_shard.types.blob import decode_blob
from sqla_shard.types.tracking import Node, plain
from sqla_shard.util import sqlalchemy_private as private

#: Attributes of every object class, and names that SQLAlchemy reserves.
_RESERVED = frozenset(
    {"data", "id", "ts", "active", "metadata", "registry", "shard_id"}
    | {"deactivate", "restore"}
)


def _declared_in(cls: type[Any]) -> dict[str, FieldSettings]:
    # SQLAlchemy 2.0 leaves the fields of a mixin only here.
    dataclass_fields = cls.__dict__.get("__dataclass_fields__", {})
    declared = {}
    for key in (*get_annotations(cls), *cls.__dict__):
        value = cls.__dict__.get(key, MISSING)
        settings = settings_of(dataclass_fields.get(key) if value is MISSING else value)
        if settings is not None:
            declared[key] = settings
    return declared


def declared_fields(cls: type[Any]) -> dict[str, FieldSettings]:
    """Return the fields of a class and its bases, in order of definition.

    :raises ClassDefinitionError: for a field with a reserved name.
    """
    fields: dict[str, FieldSettings] = {}
    for base in reversed(cls.__mro__):
        own = _declared_in(base)
        for key in fields.keys() & base.__dict__.keys() - own.keys():
            del fields[key]  # the class has something else in its place
        fields.update(own)
    for key in fields:
        if key in _RESERVED:
            raise ClassDefinitionError(
                f"a blob field cannot be called {key!r}, which every object "
                "class has or SQLAlchemy reserves; rename it",
                class_name=cls.__name__,
            )
    return fields


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
    field = BlobField(name, key, codec, settings, refers=refers, colocates=colocates)
    try:
        field.check_default()
    except BlobValueError as error:
        raise ClassDefinitionError(
            f"the default of {error}", class_name=name
        ) from error
    return field


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
    elif isinstance(settings.default, type):
        problem = (
            f"the default of {key} is the class {settings.default.__name__}, not a "
            f"value; use default_factory={settings.default.__name__}"
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
    for field in fields.values():
        for key in field.keys:
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
                    f"the key {key!r} of {field.name} {problem}; give it another name",
                    class_name=cls.__name__,
                )
            keys[key] = field.name


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
            type_ = _resolved(cls, base, key, annotation)
            if typing.get_origin(type_) is Mapped:
                (type_,) = typing.get_args(type_)
            return type_
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
        hints = typing.get_type_hints(holder, names, own, include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise ClassDefinitionError(
            f"the annotation {annotation!r} of {key} cannot be resolved "
            f"({error}); define its names at the top of the module, not in "
            "a function or under TYPE_CHECKING, or use "
            "blob_field(type_=...)",
            class_name=cls.__name__,
        ) from error
    return hints[key]


def hide(cls: type[Any]) -> None:
    """Hide the annotations of blob fields from SQLAlchemy.

    SQLAlchemy would create columns for ``Mapped[...]``.  The annotations are
    saved for classes that inherit the field.
    """
    for base in cls.__mro__:
        hidden = {
            key: annotation
            for key, annotation in get_annotations(base).items()
            if settings_of(base.__dict__.get(key)) is not None
        }
        for key in hidden:
            del base.__annotations__[key]
        if hidden:
            setattr(base, _SAVED, {**base.__dict__.get(_SAVED, {}), **hidden})


# -- references to objects


_TYPES = "sqla_shard.types"

#: Returns the ids that a field may contain.
Refers = Callable[[], Referred]


def types_of(metadata: Any) -> TypeRegistry:
    """Return the type ids of the classes of one declarative base."""
    registry: TypeRegistry = metadata.info.setdefault(_TYPES, TypeRegistry())
    return registry


def _any_type(cls: type[Any]) -> Refers:
    """Return a function that allows all types with the layout of a class."""
    layout = layout_of(cls)

    def referred() -> Referred:
        types = (
            type_id
            for type_id, entity in types_of(cls.metadata)
            if layout_of(entity) == layout
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
            target = Referred((definition.type_id,), definition.layout)
            return lambda: target
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
        entity = types_of(cls.metadata).lookup(type_id)
        return Referred((type_id,), layout if entity is None else layout_of(entity))

    return referred


def _named(cls: type[Any], key: str, name: str) -> Refers:
    def referred() -> Referred:
        known = []
        for type_id, entity in types_of(cls.metadata):
            mapper: Mapper[Any] = inspect(entity)
            names = [m.class_.__name__ for m in mapper.self_and_descendants]
            if name in names:
                return Referred((type_id,), layout_of(entity))
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
        target = refers()
        check_parent_layout(cls, key, target.layout)
        return target

    return referred


# -- Blob fields as instrumented attributes of SQLAlchemy.
#
# A field is an instrumented attribute of its class, like a column: validators
# and listeners are called, :func:`sqlalchemy.inspect` shows its history, and
# loader options accept it.  Its value is not in ``instance.__dict__`` but in
# the document, so that loading an object does not decode its fields.
#
# The document is loaded, deferred and refreshed as a whole, as ``data``.


# SQLAlchemy 2.1 has the first of two names, SQLAlchemy 2.0 the second.
_ScalarImpl: Any = getattr(attributes, "_ScalarAttributeImpl", None) or getattr(  # noqa: B009
    attributes, "ScalarAttributeImpl"
)
_register_descriptor: Any = getattr(
    attributes, "_register_descriptor", None
) or getattr(attributes, "register_descriptor")  # noqa: B009


class _Comparator(ColumnProperty.Comparator[Any]):
    """The SQL expression of a field, for the class or an alias of it."""

    __slots__ = ("_of",)

    def __init__(self, of: FieldProperty, mapper: Any, alias: Any = None) -> None:
        # Loader options read the property here, and load the column.
        super().__init__(private.properties(mapper.mapper)["data"], mapper, alias)
        self._of = of

    @property
    def property(self) -> Any:
        return self._of

    def adapt_to_entity(self, adapt_to_entity: Any) -> _Comparator:
        return _Comparator(self._of, self._parententity, adapt_to_entity)

    def _memoized_method___clause_element__(self) -> Any:
        entity = self._adapt_to_entity or self._parententity
        return self._of.field.expression(entity.entity)

    def _memoized_attr_expressions(self) -> Any:
        return [self.__clause_element__()]

    def _memoized_attr_info(self) -> Any:
        return self._of.info

    def _fallback_getattr(self, key: str) -> Any:
        # SQLAlchemy reads this attribute to configure the class, when a class
        # that the field refers to may not be defined yet.
        if key == "_slots_dispatch":
            raise AttributeError(key)
        return super()._fallback_getattr(key)

    def _bulk_update_tuples(self, value: Any) -> Any:
        # Return the name only: an INSERT writes it to the blob, and an UPDATE
        # is rejected because of it.
        return [(self._of.key, value)]


class FieldProperty(MapperProperty[Any]):
    """The mapper property of a blob field.

    :ivar field: the field.
    """

    inherit_cache: bool | None = True
    comparator_factory = _Comparator

    def __init__(self, field: BlobField) -> None:
        super().__init__()
        self.field = field
        self.doc: str | None = None

    def __str__(self) -> str:
        return self.field.label

    def instrument_class(self, mapper: Mapper[Any]) -> None:
        """Add the attribute to the class."""
        _register_descriptor(
            mapper.class_,
            self.key,
            comparator=self.comparator_factory(self, mapper),
            parententity=mapper,
        )

    def post_instrument_class(self, mapper: Mapper[Any]) -> None:
        """Set the implementation and the validators of the attribute."""
        if not private.has_implementation(mapper.class_manager, self.key):
            private.register_attribute(
                self, mapper, useobject=False, impl_class=_FieldImpl, field=self.field
            )
            event.listen(mapper.class_manager[self.key], "modified", _on_modified)


def _on_modified(instance: Any, initiator: Any) -> None:
    """Handle ``modified``, which flag_modified() sends."""
    flag_modified(instance, "data")


class _FieldImpl(_ScalarImpl):  # type: ignore[misc]  # of two versions
    """Reads and writes a field in the document of an object."""

    default_accepts_scalar_loader = False
    supports_population = False

    __slots__ = ("field",)

    def __init__(
        self, class_: Any, key: str, dispatch: Any, *, field: BlobField, **kwargs: Any
    ) -> None:
        # The change is one of "data", which a flush writes.
        kwargs["send_modified_events"] = False
        super().__init__(class_, key, None, dispatch, **kwargs)
        self.field = field

    def _document(self, state: Any, dict_: Any, passive: Any) -> Any:
        """Return the document, or the loader result if there is none."""
        blob = dict_.get("data")
        if blob is None:
            blob = state.manager["data"].impl.get(state, dict_, passive)
            if blob is None:
                # A new object.
                blob = NO_VALUE
                if passive & INIT_OK:
                    blob = new_blob(state.obj())
        return blob

    def get(self, state: Any, dict_: Any, passive: Any = PASSIVE_OFF) -> Any:
        """Return the value."""
        blob = self._document(state, dict_, passive)
        if not isinstance(blob, Blob):
            return blob
        value = self.field.read(blob)
        if isinstance(value, Node):
            # Otherwise ``session.get(Pin, i).tags.append(x)`` would release
            # the object before it changes the list.
            blob.holder = state.obj()
        return value

    def set(
        self,
        state: Any,
        dict_: Any,
        value: Any,
        initiator: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Write a value to the document, after its validators.

        :param value: MISSING for an omitted argument of a dataclass.
        """
        if value is MISSING:
            return
        blob = dict_.get("data")
        if blob is None and state.key is None:
            # A new object: nothing can be loaded.
            blob = new_blob(state.obj())
        elif blob is None:
            blob = self._document(state, dict_, PASSIVE_OFF)
        if self.dispatch.set:
            value = self.fire_replace_event(
                state, dict_, value, self._before(blob), initiator
            )
        if blob.from_fields and "data" in state.committed_state:
            self.field.write_new(blob, value)
        else:
            self.field.write(blob, value)

    def delete(self, state: Any, dict_: Any) -> None:
        """Remove the value; reads then return the default."""
        blob = self._document(state, dict_, PASSIVE_OFF)
        if self.dispatch.remove:
            self.fire_remove_event(state, dict_, self._before(blob), self._remove_token)
        self.field.remove(blob)

    def _before(self, blob: Blob) -> Any:
        if self.field.stored(blob) is MISSING and self.field.required:
            return NO_VALUE
        return self.field.read(blob)

    def get_history(
        self, state: Any, dict_: Any, passive: Any = PASSIVE_OFF
    ) -> History:
        """Return the stored and the current value."""
        blob = self._document(state, dict_, passive & ~INIT_OK)
        if not isinstance(blob, Blob):
            return History((), (), ())
        now = self._as_history(blob)
        if now:
            now = (self.get(state, dict_),)
        if "data" not in state.committed_state:
            return History((), now, ())
        source = source_of(state, blob)
        if source is None:
            return History(now, (), ())
        base = decode_blob(source)
        if self._text(base) == self._text(blob):
            return History((), now, ())
        return History(now, (), self._as_history(base))

    def _as_history(self, blob: Blob) -> tuple[Any, ...]:
        value = self._before(blob)
        return () if value is NO_VALUE else (value,)

    def _text(self, blob: Blob) -> str | None:
        # Compare JSON text, because 1, 1.0 and True are equal in Python.
        shown = self.field.shown(blob)
        return None if shown is MISSING else json.dumps(shown)

    def set_committed_value(self, state: Any, dict_: Any, value: Any) -> Any:
        """Reject a value that the row may not contain.

        :raises BlobError: always.
        """
        raise BlobError(
            f"{self.field.label} is part of a document that a flush compares "
            "with its row, so that one field cannot be set as loaded. "
            "Assign it, or read the object again: session.refresh(obj)"
        )


def loaded_as(state: Any, names: list[str]) -> list[str]:
    """Return the names of attributes, with blob fields replaced by ``data``.

    :raises BlobError: if other fields of the document have unflushed
        changes, which reading it again would discard.
    """
    fields = state.class_.__sqla_shard__.fields
    if "data" in names or fields.keys().isdisjoint(names):
        return names
    others = sorted(_changes(state) - _keys(fields, names))
    if others:
        raise BlobError(
            f"changes of {', '.join(others)} of {state.class_.__name__} "
            "would be lost: a document is read as a whole, and they are "
            "not flushed yet. Flush first: session.flush()"
        )
    return ["data", *(name for name in names if name not in fields)]


def discard(state: Any, names: list[str]) -> list[str] | None:
    """Restore the fields among some attributes, before a flush.

    The flush then writes the changes of other fields only.

    :returns: the attributes that are not fields; None if nothing was done,
        because the document has no changes of other fields.
    """
    fields = state.class_.__sqla_shard__.fields
    if "data" in names or fields.keys().isdisjoint(names):
        return None
    changed, keys = _changes(state), _keys(fields, names)
    if changed <= keys:
        return None
    blob = state.dict["data"]
    base = _base(blob)
    error = BlobError(
        "the change would not be written: this container is detached, "
        f"because {state.class_.__name__}.data was refreshed after the "
        "container was read. Read it from the object again and change that "
        "one"
    )
    for name in fields.keys() & names:
        fields[name].supersede(blob, error)
    for key in changed & keys:
        old = blob.pop(key, None)
        if isinstance(old, Node):
            old._on_change = raiser(error)
        if key in base:
            blob[key] = plain(base[key])
    return [name for name in names if name not in fields]


def _changes(state: Any) -> set[str]:
    """Return the keys of a document that have unflushed changes."""
    blob = state.dict.get("data")
    if blob is None or "data" not in state.committed_state:
        return set()
    return set(changes(_base(blob), blob))


def _base(blob: Blob) -> Blob:
    return decode_blob("{}" if blob.source is None else blob.source)


def _keys(fields: Any, names: list[str]) -> set[str]:
    """Return the keys of the fields among some attributes."""
    groups = (fields[name].keys for name in names if name in fields)
    return {key for keys in groups for key in keys}
