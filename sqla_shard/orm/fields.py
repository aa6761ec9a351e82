"""Typed fields of a blob.

A field reads and writes one key of ``data``.  On an instance it is a typed
value; on the class, a typed SQL expression::

    class Pin(ObjectMixin, Base, type_id=1):
        link: Mapped[str] = blob_field()
        tags: Mapped[list[str]] = blob_field(default_factory=list)

    pin.tags.append("boats")
    select(Pin).where(Pin.id.in_(ids), Pin.link.like("https:%"))

No migration is needed to add a field: records that were written before show
its default, in SQL too unless a ``default_factory`` makes it.  Nor to rename
one: ``aliases`` names the keys it had.

A list, dict or dataclass can be changed in place.  One that was read before
the object was refreshed, or before another writer's change of the field was
merged in, is no longer part of it; changing such a one is an error.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Mapped
from sqlalchemy.types import TypeEngine

from sqla_shard.dialects.sql import BlobValue
from sqla_shard.exc import BlobValueError
from sqla_shard.exc import ColocationError
from sqla_shard.exc import InvalidIdError
from sqla_shard.exc import UnsupportedStatementError
from sqla_shard.ids import unpack
from sqla_shard.orm.expressions import sql_type_of
from sqla_shard.orm.kinds import Codec
from sqla_shard.orm.kinds import Kind
from sqla_shard.types import Blob
from sqla_shard.types import ObjectRef
from sqla_shard.types.nodes import Node
from sqla_shard.types.tracking import detach
from sqla_shard.types.tracking import plain

__all__ = [
    "MISSING",
    "BlobField",
    "FieldSettings",
    "blob_field",
    "declared_in",
    "settings_of",
]


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()

_SETTINGS = "sqla_shard.blob_field"


@dataclass(kw_only=True)
class FieldSettings:
    """What ``blob_field()`` was given, until its class is created.

    :ivar options: what was said of the dataclass field.
    """

    default: Any
    default_factory: Callable[[], Any] | None
    aliases: Any
    ref: Any
    type_: Any
    options: dict[str, bool]

    def dataclass_field(self) -> Any:
        """Return a field for ``dataclass()``, from which they can be had.

        An argument of ``__init__`` that is left out leaves the field alone,
        so that it has its default, and ``session.merge()`` does not take
        that for a value.
        """
        known: dict[str, Any] = {**self.options, "metadata": {_SETTINGS: self}}
        if self.default is not MISSING or self.default_factory is not None:
            known["default"] = MISSING
        return dataclasses.field(**known)


def settings_of(value: object) -> FieldSettings | None:
    """Return what a field of a dataclass was declared with, if it was here."""
    if isinstance(value, dataclasses.Field):
        return value.metadata.get(_SETTINGS)
    return None


def declared_in(cls: type[Any]) -> dict[str, FieldSettings]:
    """Return the fields that a class itself declares."""
    # SQLAlchemy 2.0 leaves nothing else of them on a mixin.
    made = cls.__dict__.get("__dataclass_fields__", {})
    found = {}
    for key in (*inspect.get_annotations(cls), *cls.__dict__):
        value = cls.__dict__.get(key, MISSING)
        settings = settings_of(made.get(key) if value is MISSING else value)
        if settings is not None:
            found[key] = settings
    return found


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
    """Declare a field that is kept in the blob.

    Its type is its annotation: ``Mapped[T]`` with T of str, int, float,
    bool, datetime, date, Decimal, UUID, an Enum, a dataclass, or a list or
    dict of these; ``T | None`` allows None.

    :param default: value of new objects that are given none, and of
        records written before the field existed.  A field without one is
        required.
    :param default_factory: returns the default, such as ``list``.
    :param aliases: keys under which older records have the field.
    :param ref: the field holds the id of an object of this class, given as
        a class, its name, or its type id.
    :param type_: the type, where the annotation cannot be resolved.
    :param init: of a class that is a ``MappedAsDataclass``, as in
        :func:`dataclasses.field`; so are ``repr``, ``compare``, ``hash`` and
        ``kw_only``.

    What is wrong with them is told when the class is created, by
    :exc:`~sqla_shard.exc.ClassDefinitionError`.
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
    """A value that a field has given out.

    :ivar stored: the JSON value that it was decoded from; MISSING for a
        default.
    :ivar snapshot: a copy of a JSON container, which may be changed in
        place; None for others.
    """

    value: Any
    stored: Any
    snapshot: Any

    def is_of(self, stored: Any) -> bool:
        """Tell whether the value is that of what is stored now."""
        return self.stored is stored and (
            self.snapshot is None or self.snapshot == stored
        )


class BlobField:
    """One field of one class.

    :param class_name: for messages.
    :param name: the attribute, and the key in the blob.
    :param codec: translates its values.
    :param settings: what ``blob_field()`` was given.
    :param refers: for a field that holds an id, returns the type ids that
        it may have, empty for any registered one; None for other fields.
    :param colocates: whether the object lives on the shard of that id.
    """

    def __init__(
        self,
        class_name: str,
        name: str,
        codec: Codec,
        settings: FieldSettings,
        *,
        refers: Callable[[], tuple[int, ...]] | None,
        colocates: bool,
    ) -> None:
        self.class_name = class_name
        self.name = name
        self.codec = codec
        self.aliases: tuple[str, ...] = tuple(settings.aliases)
        self.refers = refers
        self.colocates = colocates
        self._names_type = settings.ref is not None
        self._default = settings.default
        self._factory = settings.default_factory

    @property
    def label(self) -> str:
        """The field as ``Class.field``, for messages."""
        return f"{self.class_name}.{self.name}"

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys in a blob that may hold it, the present name first."""
        return (self.name, *self.aliases)

    @property
    def required(self) -> bool:
        """Whether a new object must be given a value."""
        return self._default is MISSING and self._factory is None

    def check_default(self) -> None:
        """Refuse a default that the field could not hold.

        :raises BlobValueError: for such a default.
        """
        if self._default is not MISSING:
            encoded = self.codec.encode(self._default)
            if self.codec.kind is not Kind.JSON:
                # As it would be read back: 1 of a float field is 1.0.
                self._default = self.codec.decode(encoded)

    def encode(self, value: Any) -> Any:
        """Return the JSON value of a Python value.

        :raises BlobValueError: when the field cannot hold it.
        :raises ColocationError: when it is no id of a parent.
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
            allowed = self.refers() if self.refers is not None else ()
            try:
                parts = unpack(value)
            except InvalidIdError as error:
                problem = str(error)
            else:
                if not allowed or parts.type_id in allowed:
                    return int(value)
                problem = (
                    f"{value} is an id of type {parts.type_id}, not of "
                    f"{' or '.join(map(str, allowed))}"
                )
        if self.colocates:
            raise ColocationError(
                problem,
                class_name=self.class_name,
                field=self.name,
                value=value,
            )
        raise BlobValueError(problem, field=self.label, value=value)

    # -- on an instance

    def stored(self, data: dict[str, Any]) -> Any:
        """Return the JSON value in a blob; MISSING where there is none."""
        if self.name in data:
            return data[self.name]
        for alias in self.aliases:
            if alias in data:
                return data[alias]
        return MISSING

    def shown(self, data: dict[str, Any]) -> Any:
        """Return the JSON value that reads show; MISSING for none yet."""
        stored = self.stored(data)
        if stored is MISSING and self._default is not MISSING:
            return self.encode(self._default)
        return stored

    def read(self, data: Blob) -> Any:
        """Return the value in a blob, or the default.

        :raises BlobValueError: when what is stored is of another type.
        """
        stored = self.stored(data)
        if stored is MISSING:
            return self._read_default(data)
        if self.codec.native:
            return self.codec.decode(stored)
        known = data.decoded.get(self.name)
        if known is not None and known.is_of(stored):
            return known.value
        return self._give_out(data, stored, stored)

    def _read_default(self, data: Blob) -> Any:
        if self.required:
            return None
        if self._factory is None and (
            self._default is None or self.codec.kind is not Kind.JSON
        ):
            return self._default
        known = data.decoded.get(self.name)
        if known is not None and known.stored is MISSING:
            return known.value
        return self._give_out(data, MISSING, self._encoded_default())

    def _encoded_default(self) -> Any:
        made = self._default if self._factory is None else self._factory()
        return self.encode(made)

    def _give_out(self, data: Blob, stored: Any, json_value: Any) -> Any:
        """Return a value that writes itself back when it is changed.

        It is remembered, so that reading a field twice gives one object
        and changes of both do not overwrite one another.
        """

        def write_back() -> None:
            known = data.decoded.get(self.name)
            if known is None or known.value is not value:
                return  # the field was given another value since
            if not known.is_of(self.stored(data)):
                return  # or the blob was, past the field
            self._put_back(data, value)

        value = self.codec.decode(json_value, on_change=write_back)
        self._remember(data, value, stored)
        return value

    def _put_back(self, data: Blob, value: Any) -> None:
        """Put a value that was given out, and changed, into the blob."""
        if self.codec.native and isinstance(value, Node):
            # A default: from now on it is the blob's own container.
            del data.decoded[self.name]
            self._adopt(data, value)
        else:
            data[self.name] = self.encode(value)
            self._remember(data, value, data[self.name])
        self._drop_aliases(data)

    def _adopt(self, data: Blob, node: Any) -> None:
        detach(node)
        # As a container of JSON it is taken as it is, not copied.
        vars(node).pop("_shape", None)
        data[self.name] = node
        self.codec.decode(data[self.name])  # and learns its type again

    def _remember(self, data: Blob, value: Any, stored: Any) -> None:
        snapshot = plain(stored) if isinstance(stored, Node) else None
        data.decoded[self.name] = _Decoded(value, stored, snapshot)

    def _drop_aliases(self, data: Blob) -> None:
        for alias in self.aliases:
            if alias in data:
                del data[alias]

    def write(self, data: Blob, value: Any) -> None:
        """Put a value into a blob, under the field's present name.

        :raises BlobValueError: when the field cannot hold it.
        :raises ColocationError: when it is no id of a parent.
        """
        encoded = self.encode(value)
        known = data.decoded.get(self.name)
        if (
            known is not None
            and known.value is value
            and known.is_of(self.stored(data))
        ):
            # ``obj.field += [x]`` ends here with what was given out.
            self._put_back(data, value)
            return
        data.decoded.pop(self.name, None)
        data[self.name] = encoded
        self._drop_aliases(data)

    def remove(self, data: Blob) -> None:
        """Remove the value from a blob; the field shows its default.

        :raises BlobValueError: when the field is required.
        """
        if self.required:
            raise BlobValueError(
                "cannot be deleted; it is required, because blob_field() "
                "was given no default",
                field=self.label,
                value=None,
            )
        data.decoded.pop(self.name, None)
        for key in self.keys:
            data.pop(key, None)

    def supersede(self, data: Blob, error: Exception) -> None:
        """Let what was given out raise an error when it is changed."""
        known = data.decoded.pop(self.name, None)
        if known is not None and isinstance(known.value, Node):
            known.value._on_change = raiser(error)

    def fill(self, data: Blob) -> None:
        """Give the default to a new object that has no value.

        :raises BlobValueError: when the field is required.
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
        known = data.decoded.get(self.name)
        if known is not None and known.stored is MISSING:
            self._put_back(data, known.value)
        else:
            data[self.name] = self._encoded_default()

    # -- on the class

    def expression(self, cls: Any) -> Any:
        """Return the field as SQL, of the class or an alias of it."""
        column = cls.data.__clause_element__()
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
        """Return how the server shows the field, and the SQL type."""
        if self.refers is None:
            return sql_type_of(self.codec)
        type_id = self.refers()[0] if self._names_type else None
        return "id", ObjectRef(type_id, colocated=self.colocates)


def no_update(class_name: str, key: str) -> UnsupportedStatementError:
    """Return the error for an UPDATE statement that sets a field."""
    return UnsupportedStatementError(
        f"{class_name}.{key} is a field of a blob, which UPDATE statements "
        "cannot change; change the objects in a session, which keeps "
        "what other writers change",
        construct=f"SET {key}",
    )


def blob_of(instance: Any) -> Blob:
    """Return the blob of an object; a new object gets one."""
    data: Blob | None = instance.data
    if data is None:
        instance.data = {}
        data = instance.data
        data.from_fields = True
    return data


def raiser(error: Exception) -> Callable[[], None]:
    """Return a listener of a container that must not be changed any more."""

    def refuse() -> None:
        raise error

    return refuse
