"""JSON containers that detect in-place changes at any depth.

:class:`TrackedDict` and :class:`TrackedList` are subclasses of ``dict`` and
``list`` that compare, print, iterate and serialize like them, and reading
from them costs the same.  After every change of one, or of a container inside
it, ``_on_change`` of the root is called::

    >>> data = TrackedDict({"tags": ["a"]})
    >>> data._on_change = lambda: print("changed")
    >>> data["tags"].append("b")
    changed

They contain JSON values only.  Other values are rejected when they are
stored, not when the object is flushed:

* ``dict`` with ``str`` keys, ``list`` and ``tuple`` (becomes a list), nested
  at most :data:`MAX_DEPTH` levels deep, and never inside themselves;
* ``str`` in valid UTF-8, ``int``, finite ``float``, ``bool``, ``None``.
  Subclasses (an ``IntEnum``) become the plain value.

A container has at most one owner.  Plain containers, and tracked ones that
have an owner, are copied when they are stored: read them back before changing
them further.  Tracked ones without an owner, such as the result of ``pop()``,
are stored as they are, and so is a container that is assigned to the place
that it already has.  A removed container is detached.  A change that is
rejected leaves everything unchanged.

``copy()`` and :func:`copy.copy` return a plain, shallow ``dict`` or ``list``;
:func:`copy.deepcopy` and pickle return tracked containers without a listener;
:func:`plain` returns plain ones.

.. warning::

    Changes by C code that bypasses the methods of a list, such as
    :mod:`heapq`, are not detected.  Change a copy and assign it.

With another :class:`ContainerShape`, containers have the values of a typed
field; see :mod:`sqla_shard.models.field_types`.
"""

from __future__ import annotations

import json
import math
import operator
import sys
from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any, Protocol, SupportsIndex, TYPE_CHECKING, TypeVar

from sqla_shard.exc import BlobValueError
from sqla_shard.exc.base import shown

if TYPE_CHECKING:
    from typing import TypeAlias


class ContainerPath(Protocol):
    """A container that can return its own path."""

    def _where(self) -> str: ...


Path: TypeAlias = "str | ContainerPath | tuple[Path, str | int, object]"
"""A name, a container, or the step from a path to an element.

A step is ``(path, key, walked)``; ``walked`` is the container that has the
key: a dict, a list or tuple, or an object with that attribute.
"""


def where(path: Path) -> str:
    """Return a path as a string, such as ``data["a"][2]``.

    Almost all values are valid, so that a path is a tuple that is formatted
    for an error only.
    """
    if isinstance(path, str):
        return path
    if not isinstance(path, tuple):
        return path._where()
    parent, key, walked = path
    if isinstance(walked, (list, tuple)):
        return f"{where(parent)}[{key}]"
    if isinstance(walked, dict):
        text = str(key)
        # A message with a lone surrogate could not be printed or logged.
        quoted = json.dumps(text, ensure_ascii=not text.isprintable())
        return f"{where(parent)}[{quoted}]"
    return f"{where(parent)}.{key}"


def refused(message: str, path: Path, value: object) -> BlobValueError:
    """Return the error for a value that cannot be stored at a path."""
    return BlobValueError(message, field=where(path), value=value)


def check_text(value: str, path: Path) -> str:
    """Return a plain str.

    :raises BlobValueError: if the str cannot be encoded as UTF-8.
    """
    value = str.__str__(value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise refused(
                f"{shown(value)} has a lone surrogate at position "
                f"{error.start}, which UTF-8 cannot encode. Decode the "
                "original bytes with errors='replace'",
                path,
                value,
            ) from None
    return value


_LARGEST = int(sys.float_info.max)


def check_int(value: int, path: Path) -> int:
    """Return a plain int for a JSON number.

    :raises BlobValueError: if the int is beyond a double.  MySQL cannot parse
        a document with it.
    """
    value = int.__int__(value)
    if not -_LARGEST <= value <= _LARGEST:
        raise refused(
            f"{shown(value)} is beyond a double, and MySQL could not parse "
            "the document with it. Store it as a str",
            path,
            value,
        )
    return value


def check_digits(value: int, path: Path) -> int:
    """Return a plain int.

    :raises BlobValueError: if the int exceeds Python's limit for the
        conversion to a str, so that it cannot be written.
    """
    value = int.__int__(value)
    if value.bit_length() > 64:
        try:
            int.__repr__(value)
        except ValueError:
            raise refused(
                f"{shown(value)} has more digits than Python converts to "
                "text; see sys.set_int_max_str_digits()",
                path,
                value,
            ) from None
    return value


def check_float(value: float, path: Path) -> float:
    """Return a plain float.

    :raises BlobValueError: if the float is not finite.
    """
    if not math.isfinite(value):
        raise refused(
            f"{value!r} is not a JSON number; use None for a missing value", path, value
        )
    return float.__float__(value)


def check_key(key: Any, path: Path, walked: object) -> str:
    """Return a key of a JSON object as a plain str.

    :param path: the path of ``walked``, the container.
    :raises BlobValueError: if the key is not a str, or not valid UTF-8.
    """
    if type(key) is str and key.isascii():
        return key
    if not isinstance(key, str):
        raise refused(
            f"the key {shown(key)} is of type {type(key).__name__}; keys of "
            "a JSON object must be str",
            path,
            key,
        )
    return check_text(key, (path, key, walked))


MAX_DEPTH = 31
"""Maximum nesting depth, including the blob itself.

MariaDB's JSON functions return NULL with a warning at depth 32 (MySQL's at
101): a deeper blob would be stored and never found by a condition.
"""


class Element(Protocol):
    """The type of one element of a container."""

    def accept(self, value: Any, path: Path) -> Any:
        """Return the value to store; containers in it are new.

        :raises BlobValueError: if the value is not of this type.
        """

    def made(self, node: Node) -> bool:
        """Return True if the container can be stored without a copy."""


class ContainerShape(Protocol):
    """The type of a whole container."""

    @property
    def native(self) -> bool:
        """Whether the elements are JSON values without conversion."""

    def element_at(self, key: Any) -> Element:
        """Return the type of the element ``key``."""


class Node:
    """Base of tracked containers and records.

    A node has at most one owner, so that a value is in one place of one tree;
    a change is passed from owner to owner up to the root.

    :ivar _owner: the node that contains this one; None for a root.
    :ivar _on_change: called without arguments after each change of a root or
        of anything inside it.
    :ivar _shape: the type of the elements.
    :ivar _label: name of the field that contains the node, for messages.
    """

    if not TYPE_CHECKING:
        # Records of a class with slots must not get a __dict__ from here.
        __slots__ = ()

    # A strong reference: with a weak one, a change made after the root was
    # garbage collected would be lost silently.
    _owner: Node | None = None
    _on_change: Callable[[], object] | None = None
    _shape: ContainerShape
    _label: str | None = None

    def _changed(self) -> None:
        """Report a change to the root; a root may override this."""
        root: Node = self
        while root._owner is not None:
            root = root._owner
        if root is not self:
            root._changed()
        elif self._on_change is not None:
            self._on_change()

    def _is_free(self) -> bool:
        return self._owner is None and self._on_change is None

    def _items(self) -> Iterable[tuple[Any, Any]]:
        """Return the elements with their keys, indexes or attributes."""
        raise NotImplementedError

    def _where(self) -> str:
        if self._label is not None:
            return self._label
        owner = self._owner
        if owner is None:
            return "data"
        key = next((k for k, item in owner._items() if item is self), "?")
        return where((owner, key, owner))

    def _accept(self, value: Any, key: str | int) -> Any:
        """Return the value to store, linked to this node.

        :raises BlobValueError: if the value is not of the type of the element.
        """
        element = self._shape.element_at(key)
        path = (self, key, self)
        if isinstance(value, Node) and value._is_free() and element.made(value):
            check_nesting(value, path, height=_height(value))
            value._label = None
            new = value
        else:
            new = element.accept(value, path)
        if isinstance(new, Node):
            new._owner = self
        return new


def unlink(values: Iterable[Any]) -> None:
    """Make roots of the nodes among the given values."""
    for value in values:
        if isinstance(value, Node):
            value._owner = None


def detach(value: Any) -> None:
    """Detach a container from its tree and its listener.

    Later changes of it do not affect the object.  Values that are not tracked
    are ignored.
    """
    if isinstance(value, Node):
        value._owner = value._on_change = value._label = None


def check_nesting(value: object, path: Path, *, height: int = 1) -> None:
    """Reject a container that contains itself or is nested too deep.

    :param path: the place where it would be stored.
    :param height: nesting depth of the container itself.
    :raises BlobValueError: if the container cannot be stored there.
    """
    for depth, around in enumerate(_around(path), height):
        if around is value:
            raise refused("the container contains itself", path, value)
        if depth >= MAX_DEPTH:
            raise refused(
                f"more than {MAX_DEPTH} levels of nesting; the server's JSON "
                "functions cannot read them. Store a flatter structure, or "
                "encode a part of it as a str",
                path,
                value,
            )


def _around(path: Path) -> Iterable[object]:
    """Yield the containers around a place, innermost first."""
    while isinstance(path, tuple):
        path, _, walked = path
        yield walked
    # The last step has yielded the node already.
    node = path._owner if isinstance(path, Node) else None
    root = path
    while node is not None:
        yield node
        root, node = node, node._owner
    if isinstance(root, str) or (isinstance(root, Node) and root._label):
        yield None  # the blob around the value of a field


def _height(node: Node) -> int:
    height = 0
    level = [node]
    while level:
        height += 1
        level = [
            item
            for holder in level
            for _, item in holder._items()
            if isinstance(item, Node)
        ]
    return height


_D = TypeVar("_D", bound="TrackedDict")
_L = TypeVar("_L", bound="TrackedList")


class _Json:
    """The shape and the element type of untyped JSON containers."""

    native = True

    def element_at(self, key: Any) -> Element:
        return self

    def made(self, node: Node) -> bool:
        # Do not accept a subclass: a Blob has its own listeners.
        return type(node) in (TrackedDict, TrackedList) and node._shape is self

    def accept(self, value: Any, path: Path) -> Any:
        kind = type(value)
        if value is None or kind is bool or (kind is str and value.isascii()):
            return value
        if isinstance(value, str):
            return check_text(value, path)
        if isinstance(value, int):
            return check_int(value, path)
        if isinstance(value, float):
            return check_float(value, path)
        if isinstance(value, dict):
            return self._object(value, path)
        if isinstance(value, (list, tuple)):
            return self._array(value, path)
        raise refused(
            f"{shown(value)} ({type(value).__name__}) is not a JSON value: "
            "use dict (with str keys), list, tuple, str, int, finite float, "
            "bool or None, or declare a field of that type",
            path,
            value,
        )

    def _object(self, value: dict[Any, Any], path: Path) -> TrackedDict:
        check_nesting(value, path)
        node = TrackedDict.__new__(TrackedDict)
        for key, item in value.items():
            name = check_key(key, path, value)
            new = self.accept(item, (path, name, value))
            dict.__setitem__(node, name, new)
            if isinstance(new, Node):
                new._owner = node
        return node

    def _array(self, value: Iterable[Any], path: Path) -> TrackedList:
        check_nesting(value, path)
        node = TrackedList.__new__(TrackedList)
        for index, item in enumerate(value):
            new = self.accept(item, (path, index, value))
            list.append(node, new)
            if isinstance(new, Node):
                new._owner = node
        return node


class _Anything:
    """The shape of a typed container that has no field.

    :func:`dataclasses.asdict` creates such containers: it calls the type of a
    list with the elements.
    """

    native = False

    def element_at(self, key: Any) -> Element:
        return self

    def made(self, node: Node) -> bool:
        return False

    def accept(self, value: Any, path: Path) -> Any:
        if isinstance(value, Node) and not value._is_free():
            return deepcopy(value)
        return value


JSON_SHAPE = _Json()
_ANYTHING = _Anything()


class TrackedDict(Node, dict[str, Any]):
    """A ``dict`` with ``str`` keys that reports every change in it.

    A root that does more than calling ``_on_change`` is a subclass that
    overrides ``_changed()``.  Containers inside a subclass are plain
    TrackedDict and TrackedList.

    :param mapping: a mapping or pairs, as for ``dict``.
    :raises BlobValueError: here and in every method that stores a value, if
        it is not a JSON value.
    """

    _shape: ContainerShape = JSON_SHAPE

    def __init__(self, mapping: Any = (), /, **kw: Any) -> None:
        super().__init__()
        self._put(dict(mapping, **kw))

    @classmethod
    def _trusted(cls: type[_D], json_object: dict[str, Any]) -> _D:
        """Return a root with the result of :func:`json.loads`, unchecked."""
        self = cls.__new__(cls)
        dict.update(self, json_object)
        if not _is_flat(map(type, json_object.values())):
            _wrap(self)
        return self

    def _items(self) -> Iterable[tuple[Any, Any]]:
        return self.items()

    def _put(self, values: dict[Any, Any]) -> None:
        new = {}
        linked = []
        try:
            for given, value in values.items():
                key = check_key(given, self, self)
                if isinstance(value, Node) and super().get(key) is value:
                    continue
                new[key] = self._accept(value, key)
                linked.append(new[key])
        except BaseException:
            unlink(linked)
            raise
        replaced = [dict.get(self, key) for key in new]
        super().update(new)
        unlink(replaced)

    def _store(self, key: str, scalar: Any) -> None:
        """Set a key to a checked ``str``, number, ``bool`` or None."""
        old = self.get(key)
        super().__setitem__(key, scalar)
        if isinstance(old, Node):
            unlink((old,))
        self._changed()

    def __setitem__(self, key: str, value: Any) -> None:
        key = check_key(key, self, self)
        old = super().get(key)
        # ``d["a"] += [1]`` assigns the list that is stored already.
        if isinstance(value, Node) and value is old:
            return
        super().__setitem__(key, self._accept(value, key))
        if isinstance(old, Node):
            unlink((old,))
        self._changed()

    def __delitem__(self, key: str) -> None:
        unlink((super().pop(key),))
        self._changed()

    def __ior__(self: _D, other: Any) -> _D:  # type: ignore[misc, override]
        self.update(other)
        return self

    def clear(self) -> None:
        """Remove everything."""
        if self:
            unlink(self.values())
            super().clear()
            self._changed()

    def pop(self, key: str, /, *default: Any) -> Any:
        """Remove a key and return its value."""
        present = key in self
        value = super().pop(key, *default)
        if present:
            unlink((value,))
            self._changed()
        return value

    def popitem(self) -> tuple[str, Any]:
        """Remove the last item and return it."""
        item = super().popitem()
        unlink(item)
        self._changed()
        return item

    def setdefault(self, key: str, default: Any = None, /) -> Any:
        """Return the value of a key; store the default if it is missing."""
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *args: Any, **kw: Any) -> None:
        """Set several keys, all or none."""
        values = dict(*args, **kw)
        if values:
            self._put(values)
            self._changed()

    def __copy__(self) -> dict[str, Any]:
        return self.copy()

    def __reduce__(self) -> Any:
        if not self._shape.native:
            return dict, (dict(self),)
        return type(self), (), None, None, iter(self.items())


class TrackedList(Node, list[Any]):
    """A ``list`` that reports every change in it.

    :param iterable: the elements, as for ``list``.
    :raises BlobValueError: here and in every method that stores a value, if
        it is not a JSON value.
    """

    _shape: ContainerShape = JSON_SHAPE

    def __init__(self, iterable: Iterable[Any] = (), /) -> None:
        super().__init__()
        super().extend(self._accept_all(list(iterable), range(1)))

    @classmethod
    def _trusted(cls: type[_L], json_array: list[Any]) -> _L:
        """Return a root with the result of :func:`json.loads`, unchecked."""
        self = cls.__new__(cls)
        list.extend(self, json_array)
        if not _is_flat(map(type, json_array)):
            _wrap(self)
        return self

    def _items(self) -> Iterable[tuple[Any, Any]]:
        return enumerate(self)

    def _accept_all(
        self, values: list[Any], places: range, replaced: dict[int, Node] | None = None
    ) -> list[Any]:
        # ``replaced``: containers that are being replaced.  A container that
        # is stored again, as in ``a[:] = reversed(a)``, is removed from the
        # list and stays linked.
        new = []
        linked = []
        try:
            for offset, value in enumerate(values):
                if replaced and replaced.pop(id(value), None) is not None:
                    new.append(value)
                    continue
                index = places.start + offset * places.step
                new.append(self._accept(value, index))
                linked.append(new[-1])
        except BaseException:
            unlink(linked)
            raise
        return new

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, slice):
            self._set_slice(index, list(value))
            return
        old = self[index]
        if isinstance(value, Node) and value is old:
            return
        place = operator.index(index)
        place += len(self) if place < 0 else 0
        super().__setitem__(index, self._accept(value, place))
        unlink((old,))
        self._changed()

    def _set_slice(self, index: slice, values: list[Any]) -> None:
        places = range(*index.indices(len(self)))
        if places.step != 1 and len(places) != len(values):
            # Check first: otherwise values would be linked that are not
            # stored.
            super().__setitem__(index, values)
        replaced = {id(item): item for item in self[index] if isinstance(item, Node)}
        new = self._accept_all(values, places, replaced)
        if new or places:
            super().__setitem__(index, new)
            unlink(replaced.values())
            self._changed()

    def __delitem__(self, index: SupportsIndex | slice) -> None:
        old = self[index]
        super().__delitem__(index)
        unlink(old if isinstance(index, slice) else (old,))
        self._changed()

    def __iadd__(self: _L, values: Iterable[Any]) -> _L:  # type: ignore[misc]
        self.extend(values)
        return self

    def __imul__(self: _L, count: SupportsIndex) -> _L:
        try:
            times = operator.index(count)
        except TypeError:
            return NotImplemented
        if times < 1:
            self.clear()
        else:
            self.extend(list(self) * (times - 1))
        return self

    def append(self, value: Any) -> None:
        """Add a value at the end."""
        super().append(self._accept(value, len(self)))
        self._changed()

    def clear(self) -> None:
        """Remove everything."""
        if self:
            unlink(self)
            super().clear()
            self._changed()

    def extend(self, values: Iterable[Any]) -> None:
        """Add several values at the end, all or none."""
        start = len(self)
        new = self._accept_all(list(values), range(start, start + 1))
        if new:
            super().extend(new)
            self._changed()

    def insert(self, index: SupportsIndex, value: Any) -> None:
        """Add a value before an index."""
        place = slice(operator.index(index), None).indices(len(self))[0]
        super().insert(place, self._accept(value, place))
        self._changed()

    def pop(self, index: SupportsIndex = -1) -> Any:
        """Remove a value by index and return it."""
        value = super().pop(index)
        unlink((value,))
        self._changed()
        return value

    def remove(self, value: Any) -> None:
        """Remove the first value that is equal."""
        del self[self.index(value)]

    def reverse(self) -> None:
        """Reverse in place."""
        super().reverse()
        self._changed()

    def sort(self, *, key: Any = None, reverse: bool = False) -> None:
        """Sort in place; an exception leaves the order unchanged."""
        # After an exception list.sort() leaves the list partly sorted.
        before = list(self)
        ordered = sorted(before, key=key, reverse=reverse)
        if len(before) != len(self) or not all(map(operator.is_, before, self)):
            raise ValueError("list modified during sort")
        super().__setitem__(slice(None), ordered)
        self._changed()

    def __copy__(self) -> list[Any]:
        return self.copy()

    def __reduce__(self) -> Any:
        if not self._shape.native:
            return list, (list(self),)
        return type(self), (), None, iter(self)


class ValueDict(TrackedDict):
    """A TrackedDict of decoded values of a typed field."""

    _shape: ContainerShape = _ANYTHING


class ValueList(TrackedList):
    """A TrackedList of decoded values of a typed field."""

    _shape: ContainerShape = _ANYTHING


_is_flat = frozenset((dict, list)).isdisjoint


def _wrap(root: TrackedDict | TrackedList) -> None:
    # Use a loop: the blob may be nested deeper than Python's recursion limit.
    pending: list[TrackedDict | TrackedList] = [root]
    for node in pending:
        for key, value in node._items():
            child: TrackedDict | TrackedList
            if type(value) is dict:
                child = TrackedDict.__new__(TrackedDict)
                dict.update(child, value)
            elif type(value) is list:
                child = TrackedList.__new__(TrackedList)
                list.extend(child, value)
            else:
                continue
            child._owner = node
            if isinstance(node, dict):
                dict.__setitem__(node, key, child)
            else:
                list.__setitem__(node, key, child)
            pending.append(child)


def track(
    value: Any, *, path: str = "data", owner: TrackedDict | TrackedList | None = None
) -> Any:
    """Return a JSON value whose containers are tracked and new.

    :param value: a JSON value; see the module.
    :param path: path of the value, for messages.
    :param owner: the container that it will be stored in.
    :raises BlobValueError: if the value is not a JSON value.
    """
    new = JSON_SHAPE.accept(value, path)
    if isinstance(new, Node):
        new._owner = owner
    return new


def plain(value: Any) -> Any:
    """Return a copy whose containers are plain ``dict`` and ``list``."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
