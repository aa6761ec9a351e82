"""The shards that a WHERE clause allows, given its parameter values.

The clause is read once per form of statement, into a tree of the classes
below; for each execution the tree is evaluated with that execution's values.
``None`` stands for "any shard".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import BinaryExpression, BindParameter, Tuple
from sqlalchemy.sql.selectable import Exists

from sqla_shard.exc.base import shortened_list
from sqla_shard.planning.clauses import inner, is_list, nested, ungrouped
from sqla_shard.planning.sources import Block, Leaf
from sqla_shard.types import IdType
from sqla_shard.types.shard_bound import Slotted

Shards = frozenset[int] | None

#: Returns the value of the parameter at a position of the cache key.
Values = Callable[[int], Any]

#: Maximum number of ids that a reason shows.
_SHOWN = 3

_NOWHERE: frozenset[int] = frozenset()


class Condition:
    """A part of a WHERE clause that can name shards."""

    __slots__ = ()

    def shards(self, values: Values) -> Shards:
        """Return the shards that the condition allows; None for any shard.

        :raises InvalidIdError: if a value is not an id.
        :raises WrongTypeError: if it is an id of another type.
        """
        raise NotImplementedError

    def reason(self, values: Values, shard_id: int) -> str:
        """Return the condition that names a shard, with its values, or ""."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Equals(Condition):
    """``column = value``; ``index`` is the index of the parameter."""

    index: int
    kind: IdType
    name: str

    def shards(self, values: Values) -> Shards:
        """Return the shard of the value; empty for NULL."""
        value = values(self.index)
        if value is None:
            return _NOWHERE
        return frozenset((self.kind.shard_of(value, self.name),))

    def reason(self, values: Values, shard_id: int) -> str:
        """Return the comparison."""
        return f"{self.name} = {values(self.index)}"

    def __str__(self) -> str:
        return f"{self.name} = id"


@dataclass(frozen=True, slots=True)
class Within(Condition):
    """``column IN (values)``; in a tuple the id is at position ``item``."""

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
            if (slot.type_id, slot.layout) != (kind.type_id, kind.layout):
                # The parameter is also that of a column with other ids.
                slot = kind.slot(slot.ids)
            if slot.other_type_id is not None:
                kind.shard_of(slot.other_type_id, name)
            return slot.shards
        if self.item is not None:
            found = [value[self.item] for value in found]
        return frozenset(
            kind.shard_of(value, name) for value in found if value is not None
        )

    def reason(self, values: Values, shard_id: int) -> str:
        """Return the first ids of the shard."""
        found = values(self.index)
        ids: Any = found.slot.ids if type(found) is Slotted else found
        if self.item is not None:
            ids = [value[self.item] for value in ids]
        here = [
            i
            for i in ids
            if i is not None and self.kind.shard_of(i, self.name) == shard_id
        ]
        return f"{self.name} IN ({shortened_list(here, _SHOWN)})" if here else ""

    def __str__(self) -> str:
        return f"{self.name} IN (ids)"


@dataclass(frozen=True, slots=True)
class AllOf(Condition):
    """Conditions joined by AND."""

    parts: Sequence[Condition]

    def shards(self, values: Values) -> Shards:
        """Return the shards that every part allows."""
        left: Shards = None
        for part in self.parts:
            found = part.shards(values)
            if found is not None:
                left = found if left is None else left & found
        return left

    def reason(self, values: Values, shard_id: int) -> str:
        """Return the reasons of all parts."""
        reasons = (part.reason(values, shard_id) for part in self.parts)
        return " AND ".join(filter(None, reasons))

    def __str__(self) -> str:
        return " AND ".join(map(str, self.parts))


@dataclass(frozen=True, slots=True)
class AnyOf(Condition):
    """Conditions joined by OR; each of them names shards."""

    parts: Sequence[Condition]

    def shards(self, values: Values) -> Shards:
        """Return the shards that any part allows."""
        left = _NOWHERE
        for part in self.parts:
            found = part.shards(values)
            if found is None:
                return None
            left |= found
        return left

    def reason(self, values: Values, shard_id: int) -> str:
        """Return the reasons of the parts that name the shard."""
        reasons = (
            part.reason(values, shard_id)
            for part in self.parts
            if (shards := part.shards(values)) is None or shard_id in shards
        )
        return " OR ".join(filter(None, reasons))

    def __str__(self) -> str:
        return "(" + " OR ".join(map(str, self.parts)) + ")"


class ConditionReader:
    """Reads the conditions of a statement that name shards.

    :param blocks: SELECTs of the statement.
    :param bind_index: position of each parameter by its key.
    """

    def __init__(self, blocks: Iterable[Block], bind_index: Mapping[str, int]) -> None:
        self._blocks = blocks
        self._bind_index = bind_index

    def read(self, members: Iterable[Leaf]) -> Condition | None:
        """Return the condition on the shards of tied leaves."""
        parts = []
        for block in self._blocks:
            for clause, level in block.filters:
                there = {leaf for leaf in members if level.covers(leaf.level)}
                found = self._read(clause, block, there) if there else None
                if found is not None:
                    parts.append(found)
        return _all_of(parts)

    def _read(self, clause: Any, block: Block, members: set[Leaf]) -> Condition | None:
        """Return the condition that a clause puts on the given leaves."""
        clause = ungrouped(clause)
        if is_list(clause, operators.and_) or is_list(clause, operators.or_):
            parts = [self._read(c, block, members) for c in clause.clauses]
            known = [part for part in parts if part is not None]
            if clause.operator is operators.and_:
                return _all_of(known)
            return AnyOf(known) if len(known) == len(parts) else None
        if isinstance(clause, Exists):
            return self._subquery(clause.element, block, members)
        if not isinstance(clause, BinaryExpression):
            return None
        if clause.operator is operators.in_op and nested(clause.right) is not None:
            return self._subquery(clause.right, block, members)
        return self._compared(clause, block, members)

    def _subquery(
        self, select: Any, block: Block, members: set[Leaf]
    ) -> Condition | None:
        """Return the condition that a subquery puts on rows outside it."""
        found = []
        for branch in block.inside.get(id(inner(select)), ()):
            tied = {
                leaf for leaf in branch.leaves if not members.isdisjoint(leaf.reach())
            }
            parts = [
                condition
                for clause, level in branch.filters
                if level is branch.level
                and (condition := self._read(clause, branch, tied)) is not None
            ]
            # A count has a row even if there is nothing to count.
            if not parts or branch.cut is not None:
                return None
            found.append(AllOf(parts))
        return AnyOf(found) if found else None

    def _compared(
        self, clause: Any, block: Block, members: set[Leaf]
    ) -> Condition | None:
        left, right = ungrouped(clause.left), ungrouped(clause.right)
        equals = clause.operator is operators.eq
        if equals and isinstance(left, BindParameter):
            left, right = right, left
        if not isinstance(right, BindParameter):
            return None
        index = self._bind_index.get(right.key)
        if index is None or not (equals or clause.operator is operators.in_op):
            return None
        if not isinstance(left, Tuple):
            items = [left]
        elif equals:
            return None
        else:
            items = list(left.clauses)
        for at, element in enumerate(items):
            carried = block.carrier(element)
            if carried is not None and carried.leaf in members:
                name, kind = str(element), carried.kind
                if equals:
                    return Equals(index, kind, name)
                position = at if isinstance(left, Tuple) else None
                return Within(index, kind, name, position)
        return None


def _all_of(parts: list[Condition]) -> Condition | None:
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else AllOf(parts)
