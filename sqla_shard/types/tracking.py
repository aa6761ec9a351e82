"""JSON containers that notice changes made in place, at any depth.

:class:`TrackedDict` and :class:`TrackedList` are a ``dict`` and a ``list``:
they compare, print, iterate and go through :func:`json.dumps` as those do,
and reading from them costs the same.  Every change of one, or of a container
inside it, is told to the root, whose ``_on_change`` is called after it::

    >>> data = TrackedDict({"tags": ["a"]})
    >>> data._on_change = lambda: print("changed")
    >>> data["tags"].append("b")
    changed

What they hold is what JSON can hold, and a value that it cannot is refused
by the statement that puts it in, not by the flush:

* ``dict`` with ``str`` keys, ``list`` and ``tuple`` (becomes a list), at most
  :data:`MAX_DEPTH` inside each other and never inside themselves;
* ``str`` that can be encoded, ``int``, finite ``float``, ``bool``, ``None``.
  Subclasses (an ``IntEnum``) become the plain value.

A container is in one place at most.  Plain containers, and tracked ones that
have a place, are copied when they are put in: read them back before changing
them further.  Tracked ones without a place, such as what ``pop()`` returned,
are taken as they are; assigning a container to the place it has keeps it.
What was taken out no longer tells its former root.  A refused change, also
one of many values, changes nothing and tells nobody.

``copy()`` and :func:`copy.copy` give a plain, shallow ``dict`` or ``list``;
:func:`copy.deepcopy` and pickle give tracked containers without a listener;
:func:`plain` gives plain ones.

.. warning::

    C code that writes into a list past its methods, such as :mod:`heapq`,
    is not noticed.  Work on a copy and assign it.

With a :class:`Shape`, containers hold the values of a typed field instead;
see :mod:`sqla_shard.orm.codecs`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from copy import deepcopy
from typing import Any
from typing import SupportsIndex
from typing import TypeVar

from sqla_shard.types.nodes import check_nesting
from sqla_shard.types.nodes import detach
from sqla_shard.types.nodes import Element
from sqla_shard.types.nodes import MAX_DEPTH
from sqla_shard.types.nodes import Node
from sqla_shard.types.nodes import Shape
from sqla_shard.types.nodes import unlink
from sqla_shard.types.places import check_float
from sqla_shard.types.places import check_int
from sqla_shard.types.places import check_key
from sqla_shard.types.places import check_text
from sqla_shard.types.places import Path
from sqla_shard.types.places import refused
from sqla_shard.types.places import shown

__all__ = [
    "MAX_DEPTH",
    "Node",
    "TrackedDict",
    "TrackedList",
    "ValueDict",
    "ValueList",
    "detach",
    "plain",
    "track",
]

_D = TypeVar("_D", bound="TrackedDict")
_L = TypeVar("_L", bound="TrackedList")


class _Json:
    """The shape, and the elements, of an ordinary JSON container."""

    native = True

    def element_at(self, key: Any) -> Element:
        return self

    def made(self, node: Node) -> bool:
        # Not a subclass: the root of an object has listeners of its own.
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
            f"{shown(value)} ({type(value).__name__}) is not JSON, which has "
            "dict (with str keys), list, tuple, str, int, finite float, bool "
            "and None. Convert it, or declare a field of that type",
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
    """The shape of a typed container that was made without a field.

    :func:`dataclasses.asdict` makes such: it calls the type of a list with
    the elements.
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
    """A ``dict`` with ``str`` keys that tells of every change in it.

    Subclass it for a root that does more than calling ``_on_change``, and
    override ``_changed()`` there.  What is nested in a subclass is plain
    TrackedDict and TrackedList.

    :param mapping: as for ``dict``.
    :raises BlobValueError: here and in every method that puts something
        in, if JSON cannot hold it.
    """

    _shape: Shape = JSON_SHAPE

    def __init__(self, mapping: Any = (), /, **kw: Any) -> None:
        super().__init__()
        self._put(dict(mapping, **kw))

    @classmethod
    def _trusted(cls: type[_D], json_object: dict[str, Any]) -> _D:
        """Return a root with what :func:`json.loads` gave, unchecked."""
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

    def __setitem__(self, key: str, value: Any) -> None:
        key = check_key(key, self, self)
        old = super().get(key)
        # ``d["a"] += [1]`` ends here with the list that is there already.
        if isinstance(value, Node) and value is old:
            return
        super().__setitem__(key, self._accept(value, key))
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
        """Return what is kept at a key, after adding it if it is missing."""
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
    """A ``list`` that tells of every change in it.

    :param iterable: as for ``list``.
    :raises BlobValueError: here and in every method that puts something
        in, if JSON cannot hold it.
    """

    _shape: Shape = JSON_SHAPE

    def __init__(self, iterable: Iterable[Any] = (), /) -> None:
        super().__init__()
        super().extend(self._accept_all(list(iterable), range(1)))

    @classmethod
    def _trusted(cls: type[_L], json_array: list[Any]) -> _L:
        """Return a root with what :func:`json.loads` gave, unchecked."""
        self = cls.__new__(cls)
        list.extend(self, json_array)
        if not _is_flat(map(type, json_array)):
            _wrap(self)
        return self

    def _items(self) -> Iterable[tuple[Any, Any]]:
        return enumerate(self)

    def _accept_all(
        self,
        values: list[Any],
        places: range,
        kept: dict[int, Node] | None = None,
    ) -> list[Any]:
        # ``kept`` has the containers that are being replaced; those that
        # come again, as in ``a[:] = reversed(a)``, leave it and stay linked.
        new = []
        linked = []
        try:
            for offset, value in enumerate(values):
                if kept and kept.pop(id(value), None) is not None:
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
            # Raises; before anything is linked that would not be stored.
            super().__setitem__(index, values)
        replaced = {
            id(item): item for item in self[index] if isinstance(item, Node)
        }
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
        """Turn the order around."""
        super().reverse()
        self._changed()

    def sort(self, *, key: Any = None, reverse: bool = False) -> None:
        """Sort in place; a comparison that fails changes nothing."""
        # A comparison that fails leaves list.sort() half done.
        before = list(self)
        ordered = sorted(before, key=key, reverse=reverse)
        if len(before) != len(self) or not all(
            map(operator.is_, before, self)
        ):
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
    """A TrackedDict of Python values, of a field that says which."""

    _shape: Shape = _ANYTHING


class ValueList(TrackedList):
    """A TrackedList of Python values, of a field that says which."""

    _shape: Shape = _ANYTHING


_is_flat = frozenset((dict, list)).isdisjoint


def _wrap(root: TrackedDict | TrackedList) -> None:
    # A loop: the blob may be nested deeper than Python recurses.
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


# -- functions --------------------------------------------------------------


def track(
    value: Any,
    *,
    path: str = "data",
    owner: TrackedDict | TrackedList | None = None,
) -> Any:
    """Return a JSON value whose containers are tracked and new.

    :param value: anything that JSON can hold, see the module.
    :param path: name of the place, for messages.
    :param owner: the container that it will be put in.
    :raises BlobValueError: if JSON cannot hold it.
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
