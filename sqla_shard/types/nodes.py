"""Nodes of a tree that tells its root of every change.

What :mod:`sqla_shard.types.tracking` and the records of
:mod:`sqla_shard.orm.records` have in common: each node has one owner at
most, so that a value is in one place of one tree, and a change walks from
owner to owner up to the root.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from typing import Any
from typing import Protocol
from typing import TYPE_CHECKING

from sqla_shard.types.places import Path
from sqla_shard.types.places import refused
from sqla_shard.types.places import where

__all__ = [
    "MAX_DEPTH",
    "Element",
    "Node",
    "Shape",
    "check_nesting",
    "detach",
    "unlink",
]

MAX_DEPTH = 31
"""Containers inside each other, the blob itself included.

MariaDB's JSON functions give up at 32 (MySQL's at 101): they answer NULL
with a warning, so that a deeper blob would be stored and never found again.
"""


class Element(Protocol):
    """What one place of a container may hold."""

    def accept(self, value: Any, path: Path) -> Any:
        """Return the value to keep; containers in it are new.

        :raises BlobValueError: if the place cannot hold it.
        """

    def made(self, node: Node) -> bool:
        """Tell whether the place can keep this container as it is."""


class Shape(Protocol):
    """What a whole container may hold."""

    @property
    def native(self) -> bool:
        """Tell whether all that is in it is JSON as it is."""

    def element_at(self, key: Any) -> Element:
        """Return what the place ``key`` may hold."""


class Node:
    """What is tracked: it has an owner, or is a root that may be heard.

    :ivar _owner: the node that holds this one; None for a root.
    :ivar _on_change: called without arguments after a change of a root or
        of anything inside it.
    :ivar _shape: what it may hold.
    :ivar _label: name of the field whose value this is, for messages.
    """

    if not TYPE_CHECKING:
        # Records of a class with slots must not get a __dict__ from here.
        __slots__ = ()

    # The owner is held strongly: with a weak reference, a change made after
    # the last reference to the root is gone would be lost without a word.
    _owner: Node | None = None
    _on_change: Callable[[], object] | None = None
    _shape: Shape
    _label: str | None = None

    def _changed(self) -> None:
        """Tell the root that something changed; a root may override it."""
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
        """Return what is in it, by key, index or attribute."""
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
        """Return what to keep of a value, linked to this node.

        :raises BlobValueError: if the place cannot hold it.
        """
        element = self._shape.element_at(key)
        path = (self, key, self)
        if (
            isinstance(value, Node)
            and value._is_free()
            and element.made(value)
        ):
            check_nesting(value, path, height=_height(value))
            value._label = None
            new = value
        else:
            new = element.accept(value, path)
        if isinstance(new, Node):
            new._owner = self
        return new


def unlink(values: Iterable[Any]) -> None:
    """Make roots of those values that are nodes."""
    for value in values:
        if isinstance(value, Node):
            value._owner = None


def detach(value: Any) -> None:
    """Cut a container off its tree and its listener.

    What still refers to it can go on, and no longer changes the object that
    it was part of.  Anything but a tracked value is left alone.
    """
    if isinstance(value, Node):
        value._owner = value._on_change = value._label = None


def check_nesting(value: object, path: Path, *, height: int = 1) -> None:
    """Refuse a container inside itself or too deep inside others.

    :param path: the place that it would be put in.
    :param height: containers inside each other that it is itself.
    :raises BlobValueError: if it cannot be there.
    """
    for depth, around in enumerate(_around(path), height):
        if around is value:
            raise refused("the container contains itself", path, value)
        if depth >= MAX_DEPTH:
            raise refused(
                f"more than {MAX_DEPTH} containers inside each other cannot "
                "be read by the database's JSON functions. Keep the data "
                "flatter, or as text",
                path,
                value,
            )


def _around(path: Path) -> Iterable[object]:
    """Yield the containers around a place, from the inside."""
    while isinstance(path, tuple):
        path, _, walked = path
        yield walked
    # The step out of a node has yielded it already.
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
