"""Values of objects, for as long as the objects exist."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class _Reference(weakref.ref[Any]):
    __slots__ = ("value",)

    value: Any


class WeakKeys(Generic[T]):
    """Values by object; the value of an object is removed with it.

    No line of Python runs then, as one does in ``WeakKeyDictionary``: Ctrl-C
    in it would be lost, and leave the value for all time.  Other threads may
    add objects while the values are read.
    """

    def __init__(self) -> None:
        self._references: set[Any] = set()

    def add(self, key: Any, value: T) -> None:
        """Give an object its value, unless it has one."""
        reference = _Reference(key, self._references.discard)
        reference.value = value
        self._references.add(reference)

    def discard(self, key: Any) -> None:
        """Remove the value of an object, if it has one."""
        self._references.discard(weakref.ref(key))

    def items(self) -> Iterator[tuple[Any, T]]:
        """Return the objects with their values."""
        for reference in list(self._references):
            key = reference()
            if key is not None:
                yield key, reference.value

    def values(self) -> list[T]:
        """Return the values."""
        return [value for _, value in self.items()]

    def __len__(self) -> int:
        return len(self._references)
