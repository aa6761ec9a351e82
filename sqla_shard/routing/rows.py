"""The rows that a statement combines, and what ties them to one shard.

A SELECT combines rows of its tables.  Each table of each SELECT is a
:class:`Leaf`; an equality of ids *ties* two leaves, since rows with equal ids
are on the same shard.  But an equality says so only where it holds: one in
the ON of a LEFT JOIN holds for the rows that were found on its right side,
one inside a subquery for the rows that the subquery has seen.  That is what
a :class:`Level` is for, and why a tie may lead from one leaf to another and
not back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import field
from typing import Any

from sqla_shard.routing.specs import spec_of

__all__ = ["Leaf", "Level", "groups_of", "tie"]


@dataclass(eq=False)
class Level:
    """Rows that are there, or are missing, together.

    A SELECT has one; so has the right side of each of its outer joins, and
    each subquery in its FROM.

    :ivar parent: the level around it, whose conditions hold for these rows
        as well; None for the outermost, for a subquery in an expression,
        and for one in FROM that is :attr:`cut`.
    :ivar optional: whether it is the right side of an outer join.
    :ivar cut: what in a subquery, such as LIMIT, depends on more rows than
        the conditions outside let through.
    """

    parent: Level | None = None
    optional: bool = False
    cut: str | None = None

    def covers(self, other: Level) -> bool:
        """Tell whether a condition here holds for the rows there."""
        level: Level | None = other
        while level is not None:
            if level is self:
                return True
            level = level.parent
        return False

    @property
    def may_be_missing(self) -> bool:
        """Tell whether there are rows of the SELECT without these."""
        level: Level | None = self
        while level is not None:
            if level.optional:
                return True
            level = level.parent
        return False


@dataclass(eq=False)
class Leaf:
    """The rows of one table in one SELECT.

    :ivar ties: leaves whose row is on the same shard wherever this one has
        a row.
    """

    name: str
    table: Any
    level: Level
    ties: list[Leaf] = field(default_factory=list)

    @property
    def is_copied(self) -> bool:
        """Whether every shard has all rows of the table."""
        return spec_of(self.table).reference is not None

    def reach(self) -> set[Leaf]:
        """Return all leaves that are tied to this one, itself included."""
        found = {self}
        todo = [self]
        while todo:
            for other in todo.pop().ties:
                if other not in found:
                    found.add(other)
                    todo.append(other)
        return found


def tie(one: Leaf, other: Leaf, level: Level) -> None:
    """Tie two leaves by an equality of ids that holds at a level."""
    if level.covers(one.level):
        one.ties.append(other)
    if level.covers(other.level):
        other.ties.append(one)


def groups_of(leaves: Iterable[Leaf]) -> list[list[Leaf]]:
    """Return the sets of leaves that nothing ties to any other.

    Every leaf outside of them is tied to one of them, directly or not, so
    that it is on the right shard if they are.
    """
    reach = {leaf: leaf.reach() for leaf in leaves}
    groups: list[list[Leaf]] = []
    seen: set[Leaf] = set()
    for leaf, reached in reach.items():
        if leaf in seen or any(leaf not in reach[m] for m in reached):
            continue
        seen |= reached
        groups.append([m for m in reach if m in reached])
    return groups
