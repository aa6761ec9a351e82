"""Typed fields of a blob.

A field reads and writes one key of ``data``.  On an instance it is a typed
value; on the class, a typed SQL expression::

    class Pin(ObjectMixin, Base, type_id=1):
        link: Mapped[str] = blob_field()
        tags: Mapped[list[str]] = blob_field(default_factory=list)

    pin.tags.append("boats")
    select(Pin).where(Pin.id.in_(ids), Pin.link.like("https:%"))

No migration is needed to add a field: records that were written before show
its default.  Nor to rename one: ``aliases`` names the keys it had.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from typing import TypeVar

from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import Mapped
from sqlalchemy.types import TypeEngine

from sqla_shard.dialects.sql import BlobValue
from sqla_shard.exc import BlobValueError
from sqla_shard.exc import ColocationError
from sqla_shard.exc import UnsupportedStatementError
from sqla_shard.ids import unpack
from sqla_shard.orm.expressions import sql_type_of
from sqla_shard.orm.kinds import Codec
from sqla_shard.types import Blob
from sqla_shard.types import ObjectRef
from sqla_shard.types.tracking import detach

__all__ = ["BlobField", "FieldSettings", "blob_field"]

T = TypeVar("T")


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()


class FieldSettings:
    """What ``blob_field()`` was given, until its class is created."""

    def __init__(
        self,
        *,
        default: Any,
        default_factory: Callable[[], Any] | None,
        aliases: tuple[str, ...],
        ref: Any,
        type_: Any,
    ) -> None:
        self.default = default
        self.default_factory = default_factory
        self.aliases = aliases
        self.ref = ref
        self.type_ = type_


def blob_field(
    *,
    default: Any = MISSING,
    default_factory: Callable[[], Any] | None = None,
    aliases: tuple[str, ...] | list[str] = (),
    ref: Any = None,
    type_: Any = None,
) -> Mapped[Any]:
    """Declare a field that is kept in the blob.

    Its type is its annotation: ``Mapped[T]`` with T of str, int, float,
    bool, datetime, date, Decimal, UUID, an Enum, a dataclass, or a list or
    dict of these; ``T | None`` allows None.

    :param default: value of new objects that are given none, and of
        records written before the field existed.  A field without one is
        required.
    :param default_factory: returns a default that is a container.
    :param aliases: keys under which older records have the field.
    :param ref: the field holds the id of an object of this class, given as
        a class, its name, or its type id.
    :param type_: the type, where the annotation cannot be resolved.
    """
    settings: Any = FieldSettings(
        default=default,
        default_factory=default_factory,
        aliases=tuple(aliases),
        ref=ref,
        type_=type_,
    )
    return settings  # type: ignore[no-any-return]  # as mapped_column() does


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
        self.aliases = settings.aliases
        self.refers = refers
        self.colocates = colocates
        self._default = settings.default
        self._factory = settings.default_factory
        if self._factory is None and self._default is not MISSING:
            self.encode(self._default)  # an impossible default is refused now

    @property
    def required(self) -> bool:
        """Whether a new object must be given a value."""
        return self._default is MISSING and self._factory is None

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
            parts = unpack(value)
            allowed = self.refers() if self.refers is not None else ()
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
        raise BlobValueError(
            problem, field=f"{self.class_name}.{self.name}", value=value
        )

    # -- on an instance

    def stored(self, data: dict[str, Any]) -> Any:
        """Return the JSON value in a blob; MISSING where there is none."""
        if self.name in data:
            return data[self.name]
        for alias in self.aliases:
            if alias in data:
                return data[alias]
        return MISSING

    def read(self, data: Blob | None) -> Any:
        """Return the value in a blob, or the default."""
        stored = MISSING if data is None else self.stored(data)
        if self.codec.native and stored is not MISSING:
            return stored
        if stored is MISSING and not self._has_container_default():
            return self._new_default()
        if data is None:
            return self._new_default()
        return self._read_container(data, stored)

    def _has_container_default(self) -> bool:
        return self._factory is not None or isinstance(
            self._default, (dict, list)
        )

    def _new_default(self) -> Any:
        if self._factory is not None:
            return self._factory()
        return None if self._default is MISSING else self._default

    def _read_container(self, data: Blob, stored: Any) -> Any:
        """Return a value that writes itself back when it is changed.

        It is remembered, so that reading a field twice gives one object
        and changes of both do not overwrite one another.
        """
        known = data.values_by_key.get(self.name)
        if known is not None and known[0] is stored:
            return known[1]

        def write_back() -> None:
            current = data.values_by_key.get(self.name)
            if current is None or current[1] is not value:
                return  # the field was given another value since
            data[self.name] = self.codec.encode(value)
            data.values_by_key[self.name] = data[self.name], value

        json_value = (
            self.codec.encode(self._new_default())
            if stored is MISSING
            else stored
        )
        value = self.codec.decode(json_value, on_change=write_back)
        if isinstance(value, (str, int, float, bool, type(None))):
            return value
        data.values_by_key[self.name] = stored, value
        return value

    def write(self, data: Blob, value: Any) -> None:
        """Put a value into a blob, under the field's present name."""
        encoded = self.encode(value)
        known = data.values_by_key.pop(self.name, None)
        if known is not None and known[1] is not value:
            detach(known[1])
        data[self.name] = encoded
        for alias in self.aliases:
            if alias in data:
                del data[alias]

    def remove(self, data: Blob) -> None:
        """Remove the value from a blob; the field shows its default."""
        for key in (self.name, *self.aliases):
            data.pop(key, None)

    def fill(self, data: dict[str, Any]) -> None:
        """Give the default to a new object that has no value.

        :raises BlobValueError: when the field is required.
        """
        if self.stored(data) is not MISSING:
            return
        if self.required:
            raise BlobValueError(
                "has no value; it is required, because blob_field() was "
                "given no default",
                field=f"{self.class_name}.{self.name}",
                value=None,
            )
        data[self.name] = self.encode(self._new_default())

    # -- on the class

    def expression(self, cls: Any) -> Any:
        """Return the field as SQL, of a class or an alias of it."""
        column = cls.data.__clause_element__()
        form, kind = self.sql_type()
        return BlobValue(column, (self.name, *self.aliases), form, kind)

    def sql_type(self) -> tuple[str, TypeEngine[Any]]:
        """Return how the server shows the field, and the SQL type."""
        if self.refers is None:
            return sql_type_of(self.codec)
        types = () if self.colocates else self.refers()
        only = types[0] if len(types) == 1 else None
        return "integer", ObjectRef(only, colocated=self.colocates)

    def attribute(self) -> hybrid_property[Any]:
        """Return the descriptor that the class gets."""
        read, write, remove = self.read, self.write, self.remove

        def fget(instance: Any) -> Any:
            return read(instance.data)

        def fset(instance: Any, value: Any) -> None:
            data = instance.data
            if data is None:
                instance.data = {}
                data = instance.data
            write(data, value)

        def fdel(instance: Any) -> None:
            if instance.data is not None:
                remove(instance.data)

        def update_expr(cls: Any, value: Any) -> Any:
            raise UnsupportedStatementError(
                f"update().values({self.name}=...) cannot set a field of a "
                "blob; change the objects in a session, which keeps what "
                "other writers change",
                construct=f"SET {self.name}",
            )

        # SQLAlchemy takes the name of the attribute from the getter.
        fget.__name__ = self.name
        return hybrid_property(
            fget,
            fset,
            fdel,
            expr=lambda cls: self.expression(cls),
            update_expr=update_expr,
        )
