"""Values of objects, for as long as the objects exist."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class _Reference(weakref.ref[Any]):
    __slots__ = ("value",)

    value: Any


class WeakKeys(set[Any], Generic[T]):
    """Values by object; the value of an object is removed with it.

    It is a set of references, so that ``discard(weakref.ref(key))`` and
    ``len()`` call no function of Python.  Nor does the end of an object, as in
    a ``WeakKeyDictionary``: Ctrl-C there would be lost, and leave the value for
    all time.  Other threads may add objects while the values are read.
    """

    def put(self, key: Any, value: T) -> None:
        """Give an object its value, unless it has one."""
        reference = _Reference(key, self.discard)
        reference.value = value
        self.add(reference)

    def items(self) -> Iterator[tuple[Any, T]]:
        """Return the objects with their values."""
        for reference in list(self):
            key = reference()
            if key is not None:
                yield key, reference.value

    def values(self) -> list[T]:
        """Return the values."""
        return [value for _, value in self.items()]
