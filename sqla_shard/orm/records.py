"""Dataclasses as values of a field, kept as a JSON object.

A decoded record is an instance of a subclass, made once for each dataclass,
that checks what is assigned to its attributes and tells the field of changes
at any depth.  ``__class__`` gives the dataclass itself, so that ``==``,
``repr``, :func:`dataclasses.replace`, :func:`dataclasses.asdict` and
``isinstance`` see no difference; only ``type()`` does.  Copies and pickles
are plain instances.

Classes change while blobs stay as they were written:

* a key that is missing takes the default of its field, and is refused if
  there is none;
* keys that are not fields are kept aside and written again with the record,
  so that an older program does not drop what a newer one stored.  They
  belong to this one record: an instance made by ``replace()`` or by calling
  the class has none of them, also if it is assigned to the same field.

Every field has to be a parameter of ``__init__`` and nothing else: classes
with ``InitVar``, ``field(init=False)`` or an ``__init__`` of their own are
refused, since they could not be made again from what is stored.
``__post_init__`` runs whenever a record is decoded.  Frozen dataclasses and
those with slots work; the attributes of a frozen record cannot be assigned,
but a list in it can be changed in place.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable
from collections.abc import Iterable
from functools import cache
from typing import Any
from typing import Protocol

from sqla_shard.exc import BlobValueError
from sqla_shard.exc import ClassDefinitionError
from sqla_shard.orm.containers import listen
from sqla_shard.orm.kinds import Codec
from sqla_shard.orm.kinds import Kind
from sqla_shard.types.nodes import check_nesting
from sqla_shard.types.nodes import Element
from sqla_shard.types.nodes import Node
from sqla_shard.types.nodes import unlink
from sqla_shard.types.places import Path
from sqla_shard.types.places import refused
from sqla_shard.types.places import shown
from sqla_shard.types.tracking import plain

__all__ = ["RecordCodec", "RecordType"]

_MISSING = object()

# What a record has beside its fields: slots of the subclass, so that it has
# no __dict__ that the dataclass does not have.
_OWN = ("_owner", "_on_change", "_shape", "_label", "_extra", "_live")


class RecordNode(Node):
    """What a decoded record is beside its dataclass."""

    if not typing.TYPE_CHECKING:
        __slots__ = ()

    _shape: RecordType
    _extra: dict[str, Any]
    _live: bool

    def __init_subclass__(cls) -> None:
        # The dataclass's own hook is not called: a registry of subclasses
        # must not see ours.
        pass

    def _items(self) -> Iterable[tuple[Any, Any]]:
        return [(name, getattr(self, name)) for name in self._shape.fields]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
            return
        self._check_frozen("assign to", name)
        if not self._live or name not in self._shape.fields:
            super().__setattr__(name, value)
            return
        old = getattr(self, name)
        if isinstance(value, Node) and value is old:
            return
        new = self._accept(value, name)
        try:
            super().__setattr__(name, new)
        except BaseException:
            unlink((new,))
            raise
        unlink((old,))
        self._changed()

    def _check_frozen(self, what: str, name: str) -> None:
        # The method that the dataclass has lets subclasses add attributes.
        if self._shape.is_frozen:
            raise dataclasses.FrozenInstanceError(
                f"cannot {what} field {name!r}"
            )

    def __delattr__(self, name: str) -> None:
        self._check_frozen("delete", name)
        if name in self._shape.fields:
            raise AttributeError(
                f"{self._where()}.{name} cannot be deleted: a record is "
                "stored with all its fields"
            )
        super().__delattr__(name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        cls = self._shape.cls
        copy = cls.__new__(cls)
        names = {**getattr(self, "__dict__", {}), **self._shape.fields}
        for name in names:
            object.__setattr__(copy, name, getattr(self, name))
        return copy.__reduce_ex__(protocol)


@cache
def _tracked_class(cls: type) -> type[RecordNode]:
    namespace = {
        "__slots__": _OWN,
        "__class__": property(lambda self: cls),
        "__doc__": cls.__doc__,
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
    }
    return types.new_class(
        cls.__name__,
        (RecordNode, cls),
        exec_body=lambda ns: ns.update(namespace),
    )


class CodecMaker(Protocol):
    """Makes the codec for a field of a dataclass."""

    def __call__(self, annotation: Any, *, field: str) -> Codec: ...


class RecordType:
    """What a dataclass is to codecs; the shape of its records.

    Filled by :meth:`define`, since a field may be of the class itself.

    :ivar fields: the codecs of the fields, by name.
    :ivar required: the fields without a default.
    """

    native = False

    def __init__(self, cls: Any) -> None:
        self.cls = cls
        self.fields: dict[str, Codec] = {}
        self.required: set[str] = set()
        self.is_frozen = False

    def define(
        self,
        make: CodecMaker,
        refuse: Callable[[str], ClassDefinitionError],
    ) -> None:
        """Find the codecs of the fields.

        :param make: makes the codec for an annotation.
        :param refuse: makes the error for a class that cannot be kept.
        :raises ClassDefinitionError: if the dataclass cannot be kept.
        """
        cls = self.cls
        name = cls.__qualname__
        fields = dataclasses.fields(cls)
        self.is_frozen = cls.__dataclass_params__.frozen
        _check_init(cls, refuse)
        hints = _hints(cls, refuse)
        for field in fields:
            codec = make(hints[field.name], field=f"{name}.{field.name}")
            self.fields[field.name] = codec
            if field.default is not dataclasses.MISSING:
                try:
                    codec.encode(field.default)
                except BlobValueError as error:
                    raise refuse(f"default of {error}") from error
            elif field.default_factory is dataclasses.MISSING:
                self.required.add(field.name)
        try:
            self.tracked = _tracked_class(cls)
        except TypeError as error:
            raise refuse(f"{name} cannot be tracked: {error}") from error

    def element_at(self, key: Any) -> Element:
        """Return what an attribute may be."""
        return self.fields[key]

    def decoded(self, stored: dict[str, Any], path: Path) -> RecordNode:
        """Return a record without an owner.

        :raises BlobValueError: if a key is missing or does not fit.
        """
        values = {}
        for name, codec in self.fields.items():
            place = (path, name, self)
            if name in stored:
                values[name] = codec.decode(stored[name], path=place)
            elif name in self.required:
                raise refused(
                    f"the stored JSON has no {name!r}, and the field has no "
                    "default. Give it one in the class for records written "
                    "before it existed",
                    place,
                    stored,
                )
        record = self.tracked.__new__(self.tracked)
        record._owner = record._on_change = record._label = None
        record._shape = self
        record._live = False
        record._extra = plain(
            {key: stored[key] for key in stored if key not in self.fields}
        )
        try:
            self.cls.__init__(record, **values)
        except (TypeError, ValueError) as error:
            raise refused(
                f"{self.cls.__qualname__} does not take what is stored: "
                f"{error}",
                path,
                stored,
            ) from error
        self._link(record, values, path)
        record._live = True
        return record

    def _link(
        self, record: RecordNode, values: dict[str, Any], path: Path
    ) -> None:
        for name, codec in self.fields.items():
            value = getattr(record, name)
            # Defaults, and what __post_init__ has replaced, are not checked
            # and not tracked yet.
            if value is not values.get(name, _MISSING):
                value = codec.accept(value, (path, name, self))
                object.__setattr__(record, name, value)
            if isinstance(value, Node):
                value._owner = record


def _check_init(
    cls: Any, refuse: Callable[[str], ClassDefinitionError]
) -> None:
    name = cls.__qualname__
    fields = {field.name: field for field in dataclasses.fields(cls)}
    parameters = list(inspect.signature(cls.__init__).parameters)[1:]
    for field in fields.values():
        if not field.init:
            raise refuse(
                f"{name}.{field.name} is not a parameter of __init__ "
                "(init=False), so that what is stored could not be given "
                "back to it. Compute it in a property"
            )
    if cls.__new__ is not object.__new__:
        raise refuse(
            f"{name} has a __new__ of its own, which reading would not call; "
            "do in __post_init__ what it does"
        )
    for parameter in parameters:
        if parameter not in fields:
            raise refuse(
                f"{name}.__init__ takes {parameter!r}, which is not a field "
                "(InitVar, or an __init__ of its own) and would not be "
                "stored; make it a field"
            )
    for field_name in fields:
        if field_name not in parameters:
            raise refuse(
                f"{name}.__init__ does not take the field {field_name!r}, so "
                "that what is stored could not be given back to it; leave "
                "the __init__ to @dataclass"
            )
    ours = [*_OWN, *vars(Node), *vars(RecordNode)]
    for own in ours:
        if own in fields or (own[:2] != "__" and hasattr(cls, own)):
            raise refuse(
                f"{name}.{own} has a name that tracked records use "
                "themselves. Rename it"
            )


def _hints(
    cls: type, refuse: Callable[[str], ClassDefinitionError]
) -> dict[str, Any]:
    try:
        try:
            return typing.get_type_hints(cls)
        except NameError:
            # A class that is defined inside a function and names itself.
            return typing.get_type_hints(cls, localns={cls.__name__: cls})
    except (AttributeError, NameError, SyntaxError, TypeError) as error:
        raise refuse(
            f"the annotations of {cls.__qualname__} cannot be resolved: "
            f"{error}. Import what they name at runtime (not under "
            "TYPE_CHECKING), and define it at the level of the module"
        ) from error


class RecordCodec(Codec):
    """A dataclass, kept as a JSON object of its fields."""

    kind = Kind.JSON

    def __init__(
        self, field: str, record: RecordType, *, nullable: bool = False
    ) -> None:
        super().__init__(field, nullable=nullable)
        self.record = record
        self.python_type = record.cls
        self._expects = f"a {record.cls.__qualname__}"

    def made(self, node: Node) -> bool:
        """Tell whether a node is a decoded record of this class."""
        return node._shape is self.record

    def encode(self, value: Any, path: Path | None = None) -> Any:
        """Return the JSON object; also of the keys that are not fields."""
        path = path or self.field
        # Not type(): a decoded record's is a subclass.
        if value.__class__ is not self.python_type:
            if isinstance(value, self.python_type):
                raise refused(
                    f"{shown(value)} is of a subclass of "
                    f"{self.python_type.__qualname__}, and would be read back "
                    "without what the subclass adds",
                    path,
                    value,
                )
            return self._none(value, path)
        check_nesting(value, path)
        stored = {}
        if isinstance(value, RecordNode):
            stored.update(plain(value._extra))
        for name, codec in self.record.fields.items():
            place = (path, name, value)
            try:
                item = getattr(value, name)
            except AttributeError:
                raise refused("it was deleted", place, value) from None
            stored[name] = codec.encode(item, place)
        return stored

    def decode(
        self,
        stored: Any,
        *,
        on_change: Callable[[], object] | None = None,
        path: Path | None = None,
    ) -> Any:
        """Return a record that tells of changes in it."""
        if not isinstance(stored, dict):
            return self._stored_none(stored, path)
        node = self.record.decoded(
            stored, self.field if path is None else path
        )
        if path is None:
            listen(node, self, on_change)
        return node
