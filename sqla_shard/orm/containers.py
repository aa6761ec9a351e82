"""Codecs of lists, dicts and free JSON.

There are two ways for a field to have a container that can be changed in
place:

*native*
    Its JSON is its value (``list[str]``, ``dict[str, Any]``): ``decode``
    returns the very container of the blob.  The first ``decode`` checks all
    elements and teaches the container what it may hold, so that from then on
    ``pin.tags.append(1)`` is refused and a further ``decode`` costs nothing.
    A change is told to the blob, which is the container's owner.

*decoded*
    Its JSON is something else (``list[datetime]``): ``decode`` returns a new
    container of Python values, a root of its own, which calls ``on_change``
    after every change in it.  Whoever decoded it then encodes it again.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

from sqla_shard.orm.kinds import Codec
from sqla_shard.orm.kinds import Kind
from sqla_shard.types.nodes import Element
from sqla_shard.types.nodes import Node
from sqla_shard.types.places import check_key
from sqla_shard.types.places import Path
from sqla_shard.types.tracking import JSON_SHAPE
from sqla_shard.types.tracking import plain
from sqla_shard.types.tracking import TrackedDict
from sqla_shard.types.tracking import TrackedList
from sqla_shard.types.tracking import ValueDict
from sqla_shard.types.tracking import ValueList

__all__ = ["ContainerCodec", "JsonCodec", "listen"]


def listen(
    node: Node, codec: Codec, on_change: Callable[[], object] | None
) -> None:
    """Name a container after its field, and listen to it if it is a root."""
    node._label = codec.field
    if node._owner is None:
        node._on_change = on_change


def _tracked(stored: Any) -> Any:
    # What is part of the blob already must not become part of two trees.
    if isinstance(stored, dict):
        return TrackedDict._trusted(plain(stored))
    if isinstance(stored, list):
        return TrackedList._trusted(plain(stored))
    return stored


class JsonCodec(Codec):
    """``Any``, ``dict`` and ``list`` without parameters: what JSON holds.

    :param top: ``object``, ``dict`` or ``list``, which it has to be.
    """

    kind = Kind.JSON
    native = True

    def __init__(
        self, field: str, top: type = object, *, nullable: bool = False
    ) -> None:
        super().__init__(field, nullable=nullable or top is object)
        self.python_type = top
        self._top = (list, tuple) if top is list else top
        self._expects = "JSON" if top is object else f"a {top.__name__}"

    def made(self, node: Node) -> bool:
        """Tell whether a container is of JSON, and of the right type."""
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
        """Check the type; what is inside is JSON in any case."""
        if stored is None or not isinstance(stored, self.python_type):
            self._stored_none(stored, path)

    def decode(
        self,
        stored: Any,
        *,
        on_change: Callable[[], object] | None = None,
        path: Path | None = None,
    ) -> Any:
        """Return the value; a tracked container as it is."""
        if stored is None or not isinstance(stored, self.python_type):
            return self._stored_none(stored, path)
        if path is not None:
            return _tracked(stored)
        node = stored if isinstance(stored, Node) else _tracked(stored)
        if isinstance(node, Node):
            listen(node, self, on_change)
        return node


class ContainerCodec(Codec):
    """``list[T]`` and ``dict[str, T]``; also the shape of what it decodes.

    :param python_type: ``list`` or ``dict``.
    :param element: codec of the elements.
    """

    kind = Kind.JSON

    def __init__(
        self,
        field: str,
        python_type: type,
        element: Codec,
        *,
        nullable: bool = False,
    ) -> None:
        super().__init__(field, nullable=nullable)
        self.python_type = python_type
        self.element = element
        self.native = element.native
        self._accepted = (list, tuple) if python_type is list else dict
        self._expects = f"a {python_type.__name__}"

    def element_at(self, key: Any) -> Element:
        """Return what an element may be."""
        return self.element

    def made(self, node: Node) -> bool:
        """Tell whether a container holds what this codec decodes."""
        return node._shape is self

    def _pairs(self, value: Any) -> Iterable[tuple[Any, Any]]:
        pairs: Iterable[tuple[Any, Any]]
        pairs = value.items() if self.python_type is dict else enumerate(value)
        return pairs

    def encode(self, value: Any, path: Path | None = None) -> Any:
        """Return the JSON of the elements; a native container as it is."""
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
        return [
            encode(item, (path, index, value))
            for index, item in enumerate(value)
        ]

    def decode(
        self,
        stored: Any,
        *,
        on_change: Callable[[], object] | None = None,
        path: Path | None = None,
    ) -> Any:
        """Return the container of the blob, or a new one of its values."""
        if not isinstance(stored, self.python_type):
            return self._stored_none(stored, path)
        if path is None and isinstance(stored, Node) and self.made(stored):
            return stored
        place = self.field if path is None else path
        if not self.native:
            node = self._decoded(stored, place)
        else:
            in_blob = path is None and isinstance(stored, Node)
            node = stored if in_blob else _tracked(stored)
            self.check_stored(node, place)
        if path is None:
            listen(node, self, on_change)
        return node

    def check_stored(self, stored: Any, path: Path) -> None:
        """Check a native container, and teach it what it may hold."""
        if not isinstance(stored, self.python_type):
            self._stored_none(stored, path)
            return
        check = self.element.check_stored
        for key, item in self._pairs(stored):
            check(item, (path, key, stored))
        if isinstance(stored, Node):
            stored._shape = self

    def _decoded(self, stored: Any, path: Path) -> Any:
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
