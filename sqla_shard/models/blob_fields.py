"""Typed fields of a blob.

A field reads and writes one key of ``data``.  On an instance it is a typed
value, on the class a typed SQL expression::

    class Pin(ObjectMixin, Base, type_id=1):
        link: Mapped[str] = blob_field()
        tags: Mapped[list[str]] = blob_field(default_factory=list)

    pin.tags.append("boats")
    select(Pin).where(Pin.id.in_(ids), Pin.link.like("https:%"))

A field can be added without a migration: older rows have its default, in SQL
as well, except for a ``default_factory``.  It can also be renamed without
one: ``aliases`` lists its former keys.

A list, dict or dataclass can be changed in place.  If it was read before the
object was refreshed, or before another writer's change of the field was
merged, it is detached from the object, and changing it raises an error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy.orm import Mapped
from sqlalchemy.types import TypeEngine

from sqla_shard.dialects.sql import BlobValue
from sqla_shard.exc import (
    BlobValueError,
    ColocationError,
    InvalidIdError,
    UnsupportedStatementError,
)
from sqla_shard.ids import IdLayout
from sqla_shard.models.codecs import Codec, ValueKind
from sqla_shard.models.field_types import sql_type_of
from sqla_shard.types import Blob, ObjectRef
from sqla_shard.types.tracking import detach, Node, plain


class Referred(NamedTuple):
    """The ids that a field may contain.

    :ivar type_ids: their types; empty if any type is allowed.
    :ivar layout: their layout.
    """

    type_ids: tuple[int, ...]
    layout: IdLayout


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()

_SETTINGS = "sqla_shard.blob_field"


@dataclass(kw_only=True)
class FieldSettings:
    """The arguments of ``blob_field()``, until its class is created.

    :ivar options: options of the dataclass field.
    """

    default: Any
    default_factory: Callable[[], Any] | None
    aliases: Any
    ref: Any
    type_: Any
    options: dict[str, bool]

    def dataclass_field(self) -> Any:
        """Return a field for ``dataclass()`` that contains the settings.

        An omitted argument of ``__init__`` does not set the field: it has its
        default, which ``session.merge()`` does not copy as a value.
        """
        known: dict[str, Any] = {**self.options, "metadata": {_SETTINGS: self}}
        if self.default is not MISSING or self.default_factory is not None:
            known["default"] = MISSING
        return dataclasses.field(**known)


def settings_of(value: object) -> FieldSettings | None:
    """Return the settings of a dataclass field; None if it has none."""
    if isinstance(value, dataclasses.Field):
        return value.metadata.get(_SETTINGS)
    return None


def blob_field(
    *,
    default: Any = MISSING,
    default_factory: Callable[[], Any] | None = None,
    aliases: tuple[str, ...] | list[str] = (),
    ref: Any = None,
    type_: Any = None,
    init: bool | None = None,
    repr: bool | None = None,  # noqa: A002  # as in dataclasses.field()
    compare: bool | None = None,
    hash: bool | None = None,  # noqa: A002  # as in dataclasses.field()
    kw_only: bool | None = None,
) -> Mapped[Any]:
    """Declare a field that is stored in the blob.

    The annotation determines its type: ``Mapped[T]`` with T of str, int,
    float, bool, datetime, date, Decimal, UUID, an Enum, a dataclass, or a
    list or dict of these; ``T | None`` allows None.

    The creation of the class raises
    :exc:`~sqla_shard.exc.ClassDefinitionError` for invalid arguments.

    :param default: value of new objects for which none is set, and of
        rows written before the field existed.  A field without one is
        required.
    :param default_factory: returns the default, such as ``list``.
    :param aliases: keys of the field in older rows.
    :param ref: the class of the objects whose ids the field contains, its
        name, or its type id.
    :param type_: the type, if the annotation cannot be resolved.
    :param init: as in :func:`dataclasses.field`, like ``repr``,
        ``compare``, ``hash`` and ``kw_only``; only for a class that is a
        ``MappedAsDataclass``.
    """
    options = {
        "init": init,
        "repr": repr,
        "compare": compare,
        "hash": hash,
        "kw_only": kw_only,
    }
    settings = FieldSettings(
        default=default,
        default_factory=default_factory,
        aliases=aliases,
        ref=ref,
        type_=type_,
        options={k: v for k, v in options.items() if v is not None},
    )
    return settings.dataclass_field()  # type: ignore[no-any-return]  # as mapped_column() does


@dataclass(slots=True)
class _Decoded:
    """A decoded value that a field has returned.

    :ivar stored: the JSON value from which it was decoded; MISSING for a
        default.
    :ivar snapshot: a copy of a JSON container, which may be changed in
        place; None for other values.
    """

    value: Any
    stored: Any
    snapshot: Any

    def is_of(self, stored: Any) -> bool:
        """Return whether the value was decoded from the current JSON value."""
        return self.stored is stored and (
            self.snapshot is None or self.snapshot == stored
        )


class BlobField:
    """One field of one class.

    :param class_name: the class, for messages.
    :param name: the attribute.
    :param codec: converts its values.
    :param settings: the arguments of ``blob_field()``.
    :param refers: returns the ids that are allowed in the field, empty
        for any registered type; None if the field does not contain an id.
    :param colocates: whether the object is on the shard of that id.
    :ivar key: the key in the blob, and of the decoded values of the blob.
    """

    def __init__(
        self,
        class_name: str,
        name: str,
        codec: Codec,
        settings: FieldSettings,
        *,
        refers: Callable[[], Referred] | None,
        colocates: bool,
    ) -> None:
        self.class_name = class_name
        self.name = name
        self.key = name
        self.codec = codec
        self.aliases: tuple[str, ...] = tuple(settings.aliases)
        self.refers = refers
        self.colocates = colocates
        self._names_type = settings.ref is not None
        self._default = settings.default
        self._factory = settings.default_factory
        self._is_checked = refers is not None or codec.checked

    @property
    def label(self) -> str:
        """The field as ``Class.field``, for messages."""
        return f"{self.class_name}.{self.name}"

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the field in a blob, that of new values first."""
        return (self.key, *self.aliases)

    @property
    def required(self) -> bool:
        """Whether a new object must have a value."""
        return self._default is MISSING and self._factory is None

    def check_default(self) -> None:
        """Check and normalize the default.

        :raises BlobValueError: if the field cannot contain it.
        """
        if self._default is not MISSING:
            encoded = self.codec.encode(self._default)
            if self.codec.kind is not ValueKind.JSON:
                # Convert the default as decoding would: 1 becomes 1.0 in a
                # float field.
                self._default = self.codec.decode(encoded)

    def encode(self, value: Any) -> Any:
        """Return the JSON value of a Python value.

        :raises BlobValueError: if the field cannot contain it.
        :raises ColocationError: if it is not the id of a parent.
        """
        if self.refers is None:
            return self.codec.encode(value)
        if value is None and self.codec.nullable:
            return None
        return self._checked_id(value)

    def _checked_id(self, value: Any) -> int:
        if value is None:
            problem = (
                "is None; an object gets its id when it is flushed: "
                "session.add(parent); session.flush()"
            )
        else:
            assert self.refers is not None  # noqa: S101  # checked by encode()
            allowed, layout = self.refers()
            try:
                parts = layout.unpack(value)
            except InvalidIdError as error:
                problem = str(error)
            else:
                if not allowed or not layout.names_type or parts.type_id in allowed:
                    return int(value)
                problem = (
                    f"{value} is an id of type {parts.type_id}, not of "
                    f"{' or '.join(map(str, allowed))}"
                )
        if self.colocates:
            raise ColocationError(
                problem, class_name=self.class_name, field=self.name, value=value
            )
        raise BlobValueError(problem, field=self.label, value=value)

    # -- on an instance

    def stored(self, data: dict[str, Any]) -> Any:
        """Return the JSON value in a blob; MISSING if there is none."""
        if self.key in data:
            return data[self.key]
        for alias in self.aliases:
            if alias in data:
                return data[alias]
        return MISSING

    def shown(self, data: dict[str, Any]) -> Any:
        """Return the JSON value, or the encoded default; else MISSING."""
        stored = self.stored(data)
        if stored is MISSING and self._default is not MISSING:
            return self.encode(self._default)
        return stored

    def read(self, data: Blob) -> Any:
        """Return the value in a blob, or the default.

        :raises BlobValueError: if the stored value has another type.
        """
        stored = self.stored(data)
        if stored is MISSING:
            return self._read_default(data)
        if self.codec.native:
            return self.codec.decode(stored)
        known = data.decoded.get(self.key)
        if known is not None and known.is_of(stored):
            return known.value
        return self._give_out(data, stored, stored)

    def _read_default(self, data: Blob) -> Any:
        if self.required:
            return None
        if self._factory is None and (
            self._default is None or self.codec.kind is not ValueKind.JSON
        ):
            return self._default
        known = data.decoded.get(self.key)
        if known is not None and known.stored is MISSING:
            return known.value
        return self._give_out(data, MISSING, self._encoded_default())

    def _encoded_default(self) -> Any:
        default = self._default if self._factory is None else self._factory()
        return self.encode(default)

    def _give_out(self, data: Blob, stored: Any, json_value: Any) -> Any:
        """Return a value that is written to the blob when it changes.

        The value is cached: two reads of a field return the same object, so
        that a change made in one does not overwrite a change made in the
        other.
        """

        def write_back() -> None:
            known = data.decoded.get(self.key)
            if known is None or known.value is not value:
                return  # the field was assigned since
            if not known.is_of(self.stored(data)):
                return  # its key in the blob was assigned since
            self._put_back(data, value)

        value = self.codec.decode(json_value, on_change=write_back)
        self._remember(data, value, stored)
        return value

    def _put_back(self, data: Blob, value: Any) -> None:
        """Write a changed value to the blob."""
        if self.codec.native and isinstance(value, Node):
            # The value is a default: put it into the blob as the container.
            del data.decoded[self.key]
            self._adopt(data, value)
        else:
            data[self.key] = self.encode(value)
            self._remember(data, value, data[self.key])
        self._drop_aliases(data)

    def _adopt(self, data: Blob, node: Any) -> None:
        detach(node)
        # A container without a shape is not copied.
        vars(node).pop("_shape", None)
        data[self.key] = node
        self.codec.decode(data[self.key])  # sets the shape again

    def _remember(self, data: Blob, value: Any, stored: Any) -> None:
        snapshot = plain(stored) if isinstance(stored, Node) else None
        data.decoded[self.key] = _Decoded(value, stored, snapshot)

    def _drop_aliases(self, data: Blob) -> None:
        for alias in self.aliases:
            if alias in data:
                del data[alias]

    def write(self, data: Blob, value: Any) -> None:
        """Write a value to a blob, under the key of the field.

        :raises BlobValueError: if the field cannot contain it.
        :raises ColocationError: if it is not the id of a parent.
        """
        encode = self.codec.encode if self.refers is None else self.encode
        encoded = encode(value)
        known = data.decoded.get(self.key) if data.has_decoded else None
        if known is not None:
            if known.value is value and known.is_of(self.stored(data)):
                # ``obj.field += [x]`` assigns the value that was read.
                self._put_back(data, value)
                return
            del data.decoded[self.key]
        self._store(data, encoded)
        if self.aliases:
            self._drop_aliases(data)

    def write_new(self, data: Blob, value: Any) -> None:
        """Write a value to the blob of a new object; see :meth:`write`.

        The object is flagged as changed since it got the blob.
        """
        if not self._is_checked or self.aliases or self.key in data or data.has_decoded:
            self.write(data, value)
            return
        encode = self.codec.encode if self.refers is None else self.encode
        dict.__setitem__(data, self.key, encode(value))

    def _store(self, data: Blob, encoded: Any) -> None:
        if self._is_checked:
            data._store(self.key, encoded)
        else:
            data[self.key] = encoded

    def remove(self, data: Blob) -> None:
        """Remove the value from a blob; reads then return the default.

        :raises BlobValueError: if the field is required.
        """
        if self.required:
            raise BlobValueError(
                "cannot be deleted; it is required, because blob_field() "
                "was given no default",
                field=self.label,
                value=None,
            )
        data.decoded.pop(self.key, None)
        for key in self.keys:
            data.pop(key, None)

    def supersede(self, data: Blob, error: Exception) -> None:
        """Detach a value that was read; changing it raises an error."""
        known = data.decoded.pop(self.key, None)
        if known is not None and isinstance(known.value, Node):
            known.value._on_change = raiser(error)

    def fill(self, data: Blob) -> None:
        """Set the default in the blob of a new object without a value.

        :raises BlobValueError: if the field is required.
        """
        if self.stored(data) is not MISSING:
            return
        if self.required:
            raise BlobValueError(
                "has no value; it is required, because blob_field() was "
                "given no default",
                field=self.label,
                value=None,
            )
        known = data.decoded.get(self.key)
        if known is not None and known.stored is MISSING:
            self._put_back(data, known.value)
        else:
            self._store(data, self._encoded_default())

    # -- on the class

    def expression(self, cls: Any) -> Any:
        """Return the SQL expression for the class or an alias of it.

        :raises UnsupportedStatementError: if blobs of the class are
            compressed.
        """
        column = cls.data.__clause_element__()
        if column.type.compression is not None:
            raise UnsupportedStatementError(
                f"{self.label} is part of a compressed blob, which the "
                f"server cannot read. Give {self.class_name} an ordinary "
                f"column for it, {self.name}: Mapped[...] = "
                "mapped_column(), with an index if it selects rows; or read "
                "the objects and compare the field in Python",
                construct=self.label,
            )
        form, kind = self.sql_type()
        default = self._default
        return BlobValue(
            column,
            self.keys,
            form,
            kind,
            nullable=self.codec.nullable,
            default=None if default is MISSING or form == "json" else default,
        )

    def sql_type(self) -> tuple[str, TypeEngine[Any]]:
        """Return the form of the field in SQL, and its SQL type."""
        if self.refers is None:
            return sql_type_of(self.codec)
        allowed, layout = self.refers()
        type_id = allowed[0] if self._names_type else None
        kind = ObjectRef(type_id, colocated=self.colocates, layout=layout)
        return "id", kind


def no_update(class_name: str, key: str) -> UnsupportedStatementError:
    """Return the error for an UPDATE statement that sets a field."""
    return UnsupportedStatementError(
        f"{class_name}.{key} is a field of a blob, which UPDATE statements "
        "cannot change; change the objects in a session, which preserves "
        "the changes of other writers",
        construct=f"SET {key}",
    )


def blob_of(instance: Any) -> Blob:
    """Return the blob of an object; create it for a new object."""
    data: Blob | None = instance.data
    return new_blob(instance) if data is None else data


def new_blob(instance: Any) -> Blob:
    """Give a new object an empty blob; return the blob."""
    blob = Blob.__new__(Blob)
    blob._parents = {}
    instance.data = blob
    data: Blob = instance.__dict__["data"]
    data.from_fields = True
    return data


def raiser(error: Exception) -> Callable[[], None]:
    """Return a listener that raises an error."""

    def refuse() -> None:
        raise error

    return refuse
