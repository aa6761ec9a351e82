"""Codecs of lists, dicts, free JSON and dataclasses.

A container that can be changed in place is decoded in one of two ways.

*native*
    Its JSON is its value (``list[str]``, ``dict[str, Any]``): ``decode``
    returns the container of the blob itself.  The first ``decode`` checks all
    elements and sets the shape of the container, so that
    ``pin.tags.append(1)`` is rejected afterwards and another ``decode`` costs
    nothing.
*decoded*
    Its JSON is different (``list[datetime]``): ``decode`` returns a new
    container of Python values that calls ``on_change`` after every change in
    it, so that the caller can encode it again.

A dataclass is stored as a JSON object.  A decoded record is an instance of a
subclass, created once for each dataclass, that checks the values assigned to
its attributes and reports changes at any depth.  ``__class__`` returns the
dataclass itself, so that ``==``, ``repr``, :func:`dataclasses.replace`,
:func:`dataclasses.asdict` and ``isinstance`` see no difference; only
``type()`` does.  Copies and pickles are plain instances.

A blob may have been written with another version of the class:

* a missing key takes the default of its field; without a default it is
  rejected;
* keys that are not fields are preserved and written again with the record,
  so that an older program does not drop data of a newer one.  They belong to
  this one record: an instance made by ``replace()`` or by calling the class
  does not have them, even if it is assigned to the same field.

Every field must be a parameter of ``__init__``, and vice versa: classes with
``InitVar``, ``field(init=False)`` or their own ``__init__`` are rejected,
because they could not be restored from the stored JSON.  ``__post_init__``
runs whenever a record is decoded.  Frozen dataclasses and those with slots
work; the attributes of a frozen record cannot be assigned, but a list in it
can be changed in place.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from sqla_shard.exc import BlobValueError, ClassDefinitionError
from sqla_shard.exc.base import shown
from sqla_shard.models.codecs import Codec, OnChange, ValueKind
from sqla_shard.types.tracking import (
    check_key,
    check_nesting,
    Element,
    JSON_SHAPE,
    Node,
    Path,
    plain,
    refused,
    TrackedDict,
    TrackedList,
    unlink,
    ValueDict,
    ValueList,
)


def _listen(node: Node, codec: Codec, on_change: OnChange) -> None:
    """Set the label of a container, and the listener if it is a root."""
    node._label = codec.field
    if node._owner is None:
        node._on_change = on_change


def _tracked(stored: Any) -> Any:
    # A container of the blob must not become part of two trees.
    if isinstance(stored, dict):
        return TrackedDict._trusted(plain(stored))
    if isinstance(stored, list):
        return TrackedList._trusted(plain(stored))
    return stored


class JsonCodec(Codec):
    """``Any``, ``dict`` and ``list`` without parameters: any JSON.

    :param top: required type of the value: ``object``, ``dict`` or ``list``.
    """

    kind = ValueKind.JSON
    native = True

    def __init__(
        self, field: str, top: type = object, *, nullable: bool = False
    ) -> None:
        super().__init__(field, nullable=nullable or top is object)
        self.python_type: type = top
        self._top = (list, tuple) if top is list else top
        self._expects = "JSON" if top is object else f"a {top.__name__}"

    def made(self, node: Node) -> bool:
        """Return True for a container of JSON of the required type."""
        return JSON_SHAPE.made(node) and isinstance(node, self.python_type)

    def encode(self, value: Any, path: Path | None = None) -> Any:
        """Return the value; a container of another object is copied."""
        if value is None or not isinstance(value, self._top):
            return self._none(value, path)
        if path is None and isinstance(value, Node) and self.made(value):
            return value
        return JSON_SHAPE.accept(value, path or self.field)

    def accept(self, value: Any, path: Path) -> Any:
        """Return the value; containers in it are new."""
        return self.encode(value, path)

    def check_stored(self, stored: Any, path: Path) -> None:
        """Check the type only; the content is always JSON."""
        if stored is None or not isinstance(stored, self.python_type):
            self._stored_none(stored, path)

    def decode(
        self, stored: Any, *, on_change: OnChange = None, path: Any = None
    ) -> Any:
        """Return the value; a tracked container is not copied."""
        if stored is None or not isinstance(stored, self.python_type):
            return self._stored_none(stored, path)
        if path is not None:
            return _tracked(stored)
        node = stored if isinstance(stored, Node) else _tracked(stored)
        if isinstance(node, Node):
            _listen(node, self, on_change)
        return node


class ContainerCodec(Codec):
    """``list[T]`` and ``dict[str, T]``; also the shape of decoded containers.

    :param python_type: class of the containers, ``list`` or ``dict``.
    :param element: codec of the elements.
    """

    kind = ValueKind.JSON

    def __init__(
        self, field: str, python_type: type, element: Codec, *, nullable: bool = False
    ) -> None:
        super().__init__(field, nullable=nullable)
        self.python_type: type = python_type
        self.element = element
        self.native: bool = element.native
        self._accepted = (list, tuple) if python_type is list else dict
        self._expects = f"a {python_type.__name__}"

    def element_at(self, key: Any) -> Element:
        """Return the codec of the elements."""
        return self.element

    def made(self, node: Node) -> bool:
        """Return True if this codec created the container."""
        return node._shape is self

    def _pairs(self, value: Any) -> Iterable[tuple[Any, Any]]:
        pairs: Iterable[tuple[Any, Any]]
        pairs = value.items() if self.python_type is dict else enumerate(value)
        return pairs

    def encode(self, value: Any, path: Path | None = None) -> Any:
        """Return the JSON of the elements; native ones as they are."""
        if not isinstance(value, self._accepted):
            return self._none(value, path)
        if path is None:
            if self.native and isinstance(value, Node) and self.made(value):
                return value
            path = self.field
        encode = self.element.encode
        if isinstance(value, dict):
            return {
                check_key(key, path, value): encode(item, (path, key, value))
                for key, item in value.items()
            }
        return [encode(item, (path, index, value)) for index, item in enumerate(value)]

    def decode(
        self, stored: Any, *, on_change: OnChange = None, path: Any = None
    ) -> Any:
        """Return the container of the blob, or a decoded copy."""
        if not isinstance(stored, self.python_type):
            return self._stored_none(stored, path)
        if path is None and isinstance(stored, Node) and self.made(stored):
            return stored
        place = self.field if path is None else path
        if not self.native:
            node = self._decode_container(stored, place)
        else:
            in_blob = path is None and isinstance(stored, Node)
            node = stored if in_blob else _tracked(stored)
            self.check_stored(node, place)
        if path is None:
            _listen(node, self, on_change)
        return node

    def check_stored(self, stored: Any, path: Path) -> None:
        """Check a native container, and set its shape."""
        if not isinstance(stored, self.python_type):
            self._stored_none(stored, path)
            return
        check = self.element.check_stored
        for key, item in self._pairs(stored):
            check(item, (path, key, stored))
        if isinstance(stored, Node):
            stored._shape = self

    def _decode_container(self, stored: Any, path: Path) -> Any:
        decode = self.element.decode
        values = [
            (key, decode(item, path=(path, key, stored)))
            for key, item in self._pairs(stored)
        ]
        node: ValueDict | ValueList
        if self.python_type is dict:
            node = ValueDict.__new__(ValueDict)
            dict.update(node, values)
        else:
            node = ValueList.__new__(ValueList)
            list.extend(node, [item for _, item in values])
        for _, item in values:
            if isinstance(item, Node):
                item._owner = node
        node._shape = self
        return node


_MISSING = object()

# Slots of the subclass, so that a record has no __dict__ unless the dataclass
# has one.
_OWN = ("_owner", "_on_change", "_shape", "_label", "_extra", "_live")


class RecordNode(Node):
    """Base of the subclasses whose instances are decoded records."""

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
            raise dataclasses.FrozenInstanceError(f"cannot {what} field {name!r}")

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
        cls.__name__, (RecordNode, cls), exec_body=lambda ns: ns.update(namespace)
    )


class RecordType:
    """A dataclass as the shape of its records.

    :meth:`define` adds the fields, since a field may be of the class itself.

    :ivar fields: the codecs of the fields, by name.
    :ivar required: the fields without a default.
    """

    native = False

    def __init__(self, cls: Any) -> None:
        self.cls = cls
        self.fields: dict[str, Codec] = {}
        self.required: set[str] = set()
        self.is_frozen: bool = False

    def define(
        self, make: Callable[..., Codec], refuse: Callable[[str], ClassDefinitionError]
    ) -> None:
        """Find the codecs of the fields.

        :param make: returns the codec of an annotation.
        :param refuse: returns the error for a message.
        :raises ClassDefinitionError: if the dataclass cannot be stored.
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
            self.tracked: type[RecordNode] = _tracked_class(cls)
        except TypeError as error:
            raise refuse(f"{name} cannot be tracked: {error}") from error

    def element_at(self, key: Any) -> Element:
        """Return the codec of an attribute."""
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
                f"{self.cls.__qualname__} rejected the stored values: {error}",
                path,
                stored,
            ) from error
        self._link(record, values, path)
        record._live = True
        return record

    def _link(self, record: RecordNode, values: dict[str, Any], path: Path) -> None:
        for name, codec in self.fields.items():
            value = getattr(record, name)
            # Defaults and values set by __post_init__ are neither checked nor
            # tracked yet.
            if value is not values.get(name, _MISSING):
                value = codec.accept(value, (path, name, self))
                object.__setattr__(record, name, value)
            if isinstance(value, Node):
                value._owner = record


def _check_init(cls: Any, refuse: Callable[[str], ClassDefinitionError]) -> None:
    name = cls.__qualname__
    fields = {field.name: field for field in dataclasses.fields(cls)}
    parameters = list(inspect.signature(cls.__init__).parameters)[1:]
    for field in fields.values():
        if not field.init:
            raise refuse(
                f"{name}.{field.name} is not a parameter of __init__ "
                "(init=False), so that it could not be restored from the "
                "stored value. Compute it in a property"
            )
    if cls.__new__ is not object.__new__:
        raise refuse(
            f"{name} defines __new__, which is not called when a record is "
            "read; use __post_init__"
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
                "that it could not be restored from the stored value; leave "
                "the __init__ to @dataclass"
            )
    ours = [*_OWN, *vars(Node), *vars(RecordNode)]
    for own in ours:
        if own in fields or (own[:2] != "__" and hasattr(cls, own)):
            raise refuse(
                f"{name}.{own} is a name that tracked records use internally. Rename it"
            )


def _hints(cls: type, refuse: Callable[[str], ClassDefinitionError]) -> dict[str, Any]:
    try:
        try:
            return typing.get_type_hints(cls)
        except NameError:
            # The class is defined inside a function and refers to itself.
            return typing.get_type_hints(cls, localns={cls.__name__: cls})
    except (AttributeError, NameError, SyntaxError, TypeError) as error:
        raise refuse(
            f"the annotations of {cls.__qualname__} cannot be resolved: "
            f"{error}. Import what they name at runtime (not under "
            "TYPE_CHECKING), and define it at module level"
        ) from error


class RecordCodec(Codec):
    """A dataclass, stored as a JSON object of its fields."""

    kind = ValueKind.JSON

    def __init__(
        self, field: str, record: RecordType, *, nullable: bool = False
    ) -> None:
        super().__init__(field, nullable=nullable)
        self.record = record
        self.python_type: type = record.cls
        self._expects = f"a {record.cls.__qualname__}"

    def made(self, node: Node) -> bool:
        """Return True for a decoded record of this class."""
        return node._shape is self.record

    def encode(self, value: Any, path: Path | None = None) -> Any:
        """Return the JSON object, with the keys that are not fields."""
        path = path or self.field
        # Not type(), which returns a subclass for a decoded record.
        if value.__class__ is not self.python_type:
            if isinstance(value, self.python_type):
                raise refused(
                    f"{shown(value)} is of a subclass of "
                    f"{self.python_type.__qualname__}, and would be read back "
                    "without the attributes of the subclass",
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
        self, stored: Any, *, on_change: OnChange = None, path: Any = None
    ) -> Any:
        """Return a record that reports its changes."""
        if not isinstance(stored, dict):
            return self._stored_none(stored, path)
        node = self.record.decoded(stored, self.field if path is None else path)
        if path is None:
            _listen(node, self, on_change)
        return node
