"""Which shards a WHERE clause leaves, given the values of its parameters.

The clause is read once per form of statement, into a tree of the classes
below; for each execution the tree is evaluated with that execution's values.
``None`` stands for "any shard": a condition says nothing about where the
rows are.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqla_shard.ids import check_type
from sqla_shard.types import IdType
from sqla_shard.types.binds import Slotted

__all__ = [
    "AllOf",
    "AnyOf",
    "Condition",
    "Equals",
    "Shards",
    "Values",
    "Within",
]

Shards = frozenset[int] | None

#: Returns the value of the parameter at a position of the cache key.
Values = Callable[[int], Any]

#: Ids that a reason shows.
_SHOWN = 3

_NOWHERE: frozenset[int] = frozenset()


class Condition:
    """A part of a WHERE clause that can name shards."""

    __slots__ = ()

    def shards(self, values: Values) -> Shards:
        """Return the shards left, None for any.

        :raises InvalidIdError: when a value is not an id.
        :raises WrongTypeError: when it is an id of another type.
        """
        raise NotImplementedError

    def reason(self, values: Values, shard_id: int) -> str:
        """Return what names a shard, with the values; empty if nothing."""
        raise NotImplementedError


def _shard(value: Any, kind: IdType, name: str) -> int:
    return check_type(value, kind.type_id, name).shard_id


@dataclass(frozen=True, slots=True)
class Equals(Condition):
    """``column = value``; ``index`` is the parameter's."""

    index: int
    kind: IdType
    name: str

    def shards(self, values: Values) -> Shards:
        """Return the shard of the value; none for NULL, equal to nothing."""
        value = values(self.index)
        if value is None:
            return _NOWHERE
        return frozenset((_shard(value, self.kind, self.name),))

    def reason(self, values: Values, shard_id: int) -> str:
        """Return the comparison."""
        return f"{self.name} = {values(self.index)}"

    def __str__(self) -> str:
        return f"{self.name} = id"


@dataclass(frozen=True, slots=True)
class Within(Condition):
    """``column IN (values)``; of a tuple, ``item`` is the id's position."""

    index: int
    kind: IdType
    name: str
    item: int | None = None

    def shards(self, values: Values) -> Shards:
        """Return the shards of the values."""
        found = values(self.index)
        kind, name = self.kind, self.name
        if type(found) is Slotted:
            slot = found.slot
            if slot.stranger is not None:
                _shard(slot.stranger, kind, name)
            return slot.shards
        if self.item is not None:
            found = [value[self.item] for value in found]
        return frozenset(
            _shard(value, kind, name) for value in found if value is not None
        )

    def reason(self, values: Values, shard_id: int) -> str:
        """Return the ids of the shard, or as many of them as can be read."""
        found = values(self.index)
        ids: Any = found.slot.ids if type(found) is Slotted else found
        if self.item is not None:
            ids = [value[self.item] for value in ids]
        here = [
            i
            for i in ids
            if i is not None and _shard(i, self.kind, self.name) == shard_id
        ]
        shown = ", ".join(map(str, here[:_SHOWN]))
        more = f" and {len(here) - _SHOWN} more" if here[_SHOWN:] else ""
        return f"{self.name} IN ({shown}){more}" if here else ""

    def __str__(self) -> str:
        return f"{self.name} IN (ids)"


@dataclass(frozen=True, slots=True)
class AllOf(Condition):
    """Conditions joined by AND."""

    parts: Sequence[Condition]

    def shards(self, values: Values) -> Shards:
        """Return the shards that every part leaves."""
        left: Shards = None
        for part in self.parts:
            found = part.shards(values)
            if found is not None:
                left = found if left is None else left & found
        return left

    def reason(self, values: Values, shard_id: int) -> str:
        """Return those of all parts."""
        told = [part.reason(values, shard_id) for part in self.parts]
        return " AND ".join(filter(None, told))

    def __str__(self) -> str:
        return " AND ".join(map(str, self.parts))


@dataclass(frozen=True, slots=True)
class AnyOf(Condition):
    """Conditions joined by OR; each of them names shards."""

    parts: Sequence[Condition]

    def shards(self, values: Values) -> Shards:
        """Return the shards that any part leaves."""
        left = _NOWHERE
        for part in self.parts:
            found = part.shards(values)
            if found is None:
                return None
            left |= found
        return left

    def reason(self, values: Values, shard_id: int) -> str:
        """Return those of the parts that name the shard."""
        told = [
            part.reason(values, shard_id)
            for part in self.parts
            if (shards := part.shards(values)) is None or shard_id in shards
        ]
        return " OR ".join(filter(None, told))

    def __str__(self) -> str:
        return "(" + " OR ".join(map(str, self.parts)) + ")"
