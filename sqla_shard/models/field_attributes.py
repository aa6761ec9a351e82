"""Blob fields as instrumented attributes of SQLAlchemy.

A field is an instrumented attribute of its class, like a column: validators
and listeners are called, :func:`sqlalchemy.inspect` shows its history, and
loader options accept it.  Its value is not in ``instance.__dict__`` but in
the document, so that loading an object does not decode its fields.

The document is loaded, deferred and refreshed as a whole, as ``data``.
"""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import attributes, ColumnProperty, Mapper, MapperProperty
from sqlalchemy.orm.attributes import flag_modified, History
from sqlalchemy.orm.base import INIT_OK, NO_VALUE, PASSIVE_OFF

from sqla_shard.exc import BlobError
from sqla_shard.models.blob_fields import BlobField, MISSING, new_blob, raiser
from sqla_shard.models.blob_writes import changes, source_of
from sqla_shard.types import Blob
from sqla_shard.types.blob import decode_blob
from sqla_shard.types.tracking import Node, plain
from sqla_shard.util import sqlalchemy_private as private

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

    inherit_cache = True
    comparator_factory = _Comparator

    def __init__(self, field: BlobField) -> None:
        super().__init__()
        self.field = field
        self.doc = None

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
        if blob is None:
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
    found = (fields[name].keys for name in names if name in fields)
    return {key for keys in found for key in keys}
