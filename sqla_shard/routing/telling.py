"""What conditions say of the shards of tables."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import BinaryExpression
from sqlalchemy.sql.elements import BindParameter
from sqlalchemy.sql.elements import Tuple
from sqlalchemy.sql.selectable import Exists

from sqla_shard.routing.blocks import Block
from sqla_shard.routing.clauses import inner
from sqla_shard.routing.clauses import is_list
from sqla_shard.routing.clauses import nested
from sqla_shard.routing.clauses import ungrouped
from sqla_shard.routing.conditions import AllOf
from sqla_shard.routing.conditions import AnyOf
from sqla_shard.routing.conditions import Condition
from sqla_shard.routing.conditions import Equals
from sqla_shard.routing.conditions import Within
from sqla_shard.routing.rows import Leaf

__all__ = ["Teller"]


class Teller:
    """Finds conditions on ids among all conditions of a statement.

    :param blocks: its SELECTs.
    :param bind_index: position of each parameter by its key.
    """

    def __init__(
        self, blocks: Iterable[Block], bind_index: Mapping[str, int]
    ) -> None:
        self._blocks = blocks
        self._bind_index = bind_index

    def condition(self, members: Iterable[Leaf]) -> Condition | None:
        """Return what says on which shards the rows of tied leaves are."""
        parts = []
        for block in self._blocks:
            for clause, level in block.filters:
                there = {leaf for leaf in members if level.covers(leaf.level)}
                found = self._told(clause, block, there) if there else None
                if found is not None:
                    parts.append(found)
        return _all_of(parts)

    def _told(
        self, clause: Any, block: Block, members: set[Leaf]
    ) -> Condition | None:
        """Return what a condition that is true says of some leaves."""
        clause = ungrouped(clause)
        if is_list(clause, operators.and_) or is_list(clause, operators.or_):
            parts = [self._told(c, block, members) for c in clause.clauses]
            known = [part for part in parts if part is not None]
            if clause.operator is operators.and_:
                return _all_of(known)
            return AnyOf(known) if len(known) == len(parts) else None
        if isinstance(clause, Exists):
            return self._witness(clause.element, block, members)
        if not isinstance(clause, BinaryExpression):
            return None
        if (
            clause.operator is operators.in_op
            and nested(clause.right) is not None
        ):
            return self._witness(clause.right, block, members)
        return self._compared(clause, block, members)

    def _witness(
        self, select: Any, block: Block, members: set[Leaf]
    ) -> Condition | None:
        """Return what a row of a subquery says of the rows outside."""
        found = []
        for branch in block.inside.get(id(inner(select)), ()):
            tied = {
                leaf
                for leaf in branch.leaves
                if not members.isdisjoint(leaf.reach())
            }
            parts = [
                told
                for clause, level in branch.filters
                if level is branch.level
                and (told := self._told(clause, branch, tied)) is not None
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
