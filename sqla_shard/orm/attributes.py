"""Blob fields as attributes of SQLAlchemy.

A field is an instrumented attribute of its class, as a column is: validators
and listeners are called, :func:`sqlalchemy.inspect` shows its history, and
options for loaders take it.  Its value is not in ``instance.__dict__`` but
in the document, so that loading an object costs nothing for its fields.

The document is loaded, deferred and refreshed as a whole.  What is asked of
a field is therefore asked of ``data``.
"""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import attributes
from sqlalchemy.orm import ColumnProperty
from sqlalchemy.orm import Mapper
from sqlalchemy.orm import MapperProperty
from sqlalchemy.orm.attributes import flag_modified
from sqlalchemy.orm.attributes import History
from sqlalchemy.orm.base import INIT_OK
from sqlalchemy.orm.base import NO_VALUE
from sqlalchemy.orm.base import PASSIVE_OFF
from sqlalchemy.orm.strategies import _register_attribute

from sqla_shard.exc import BlobError
from sqla_shard.orm.fields import blob_of
from sqla_shard.orm.fields import BlobField
from sqla_shard.orm.fields import MISSING
from sqla_shard.orm.merging import changes
from sqla_shard.orm.saving import source_of
from sqla_shard.types import Blob
from sqla_shard.types.blob import decode_blob
from sqla_shard.types.nodes import Node

__all__ = ["FieldProperty", "loaded_as"]

# SQLAlchemy 2.1 has put an underscore before them.
_ScalarImpl: Any = getattr(
    attributes, "_ScalarAttributeImpl", None
) or getattr(attributes, "ScalarAttributeImpl")  # noqa: B009
_register_descriptor: Any = getattr(
    attributes, "_register_descriptor", None
) or getattr(attributes, "register_descriptor")  # noqa: B009


class _Comparator(ColumnProperty.Comparator[Any]):
    """The field as SQL, of the class or an alias of it."""

    __slots__ = ("_of",)

    def __init__(
        self, of: FieldProperty, mapper: Any, alias: Any = None
    ) -> None:
        # Options for loaders take the property from here: of what is to be
        # loaded, that is the column.
        super().__init__(mapper.mapper._props["data"], mapper, alias)
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
        # SQLAlchemy asks for this one to configure the class, when a class
        # that the field refers to may not be there yet.
        if key == "_slots_dispatch":
            raise AttributeError(key)
        return super()._fallback_getattr(key)

    def _bulk_update_tuples(self, value: Any) -> Any:
        # The name alone: an INSERT puts it into the blob, and an UPDATE is
        # refused by it.
        return [(self._of.key, value)]


class FieldProperty(MapperProperty[Any]):
    """What the mapper of an object class has for one blob field.

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
        """Put the attribute on the class."""
        _register_descriptor(
            mapper.class_,
            self.key,
            comparator=self.comparator_factory(self, mapper),
            parententity=mapper,
        )

    def post_instrument_class(self, mapper: Mapper[Any]) -> None:
        """Give the attribute its implementation, and its validators."""
        if not mapper.class_manager._attr_has_impl(self.key):
            register: Any = _register_attribute  # has no annotations
            register(
                self,
                mapper,
                useobject=False,
                impl_class=_FieldImpl,
                field=self.field,
            )
            event.listen(mapper.class_manager[self.key], "modified", _flagged)


def _flagged(instance: Any, initiator: Any) -> None:
    """Handle ``modified``, which flag_modified() sends."""
    flag_modified(instance, "data")


class _FieldImpl(_ScalarImpl):  # type: ignore[misc]  # of two versions
    """Reads and writes a field in the document of an object."""

    default_accepts_scalar_loader = False
    supports_population = False

    __slots__ = ("field",)

    def __init__(
        self,
        class_: Any,
        key: str,
        dispatch: Any,
        *,
        field: BlobField,
        **kwargs: Any,
    ) -> None:
        # It is "data" that changes, and is flushed.
        kwargs["send_modified_events"] = False
        super().__init__(class_, key, None, dispatch, **kwargs)
        self.field = field

    def _document(self, state: Any, dict_: Any, passive: Any) -> Any:
        """Return the document, or why there is none."""
        blob = dict_.get("data")
        if blob is None:
            blob = state.manager["data"].impl.get(state, dict_, passive)
            if blob is None:
                # Of a new object.
                blob = NO_VALUE
                if passive & INIT_OK:
                    blob = blob_of(state.obj())
        return blob

    def get(self, state: Any, dict_: Any, passive: Any = PASSIVE_OFF) -> Any:
        """Return the value."""
        blob = self._document(state, dict_, passive)
        if not isinstance(blob, Blob):
            return blob
        value = self.field.read(blob)
        if isinstance(value, Node):
            # ``session.get(Pin, i).tags.append(x)`` drops the object before
            # it changes the list.
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
        """Put a value into the document, as its validators make it.

        :param value: MISSING for an argument that a dataclass was not given.
        """
        if value is MISSING:
            return
        blob = self._document(state, dict_, PASSIVE_OFF)
        if self.dispatch.set:
            value = self.fire_replace_event(
                state, dict_, value, self._before(blob), initiator
            )
        self.field.write(blob, value)

    def delete(self, state: Any, dict_: Any) -> None:
        """Remove the value; the field shows its default."""
        blob = self._document(state, dict_, PASSIVE_OFF)
        if self.dispatch.remove:
            self.fire_remove_event(
                state, dict_, self._before(blob), self._remove_token
            )
        self.field.remove(blob)

    def _before(self, blob: Blob) -> Any:
        if self.field.stored(blob) is MISSING and self.field.required:
            return NO_VALUE
        return self.field.read(blob)

    def get_history(
        self, state: Any, dict_: Any, passive: Any = PASSIVE_OFF
    ) -> History:
        """Return what was there and what is there."""
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
        # Text, because 1, 1.0 and True are equal to Python.
        shown = self.field.shown(blob)
        return None if shown is MISSING else json.dumps(shown)

    def set_committed_value(self, state: Any, dict_: Any, value: Any) -> Any:
        """Refuse a value that the row may not have.

        :raises BlobError: always.
        """
        raise BlobError(
            f"{self.field.label} is part of a document, which a flush "
            "compares with its row; a value that is not there cannot count "
            "as read. Assign it, or read the object again: "
            "session.refresh(obj)"
        )


def loaded_as(state: Any, names: list[str]) -> list[str]:
    """Return ``data`` in place of the fields among some attributes.

    :raises BlobError: when other fields of the document are changed and
        not flushed: reading it again would forget them.
    """
    fields = state.class_.__sqla_shard__.fields
    if "data" in names or fields.keys().isdisjoint(names):
        return names
    blob = state.dict.get("data")
    if blob is not None and "data" in state.committed_state:
        base = decode_blob("{}" if blob.source is None else blob.source)
        asked = {key for name in names for key in _keys(fields.get(name))}
        others = sorted(changes(base, blob).keys() - asked)
        if others:
            raise BlobError(
                f"{', '.join(others)} of {state.class_.__name__} would be "
                f"forgotten: a document is read as a whole, and the change "
                "is not flushed yet. Flush first: session.flush()"
            )
    return ["data", *(name for name in names if name not in fields)]


def _keys(field: BlobField | None) -> tuple[str, ...]:
    return () if field is None else field.keys
