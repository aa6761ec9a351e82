"""The SELECTs of a statement, and where a column comes from."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field
from typing import Any

from sqla_shard.dialects.sql import BlobValue
from sqla_shard.routing.clauses import composed
from sqla_shard.routing.clauses import is_column
from sqla_shard.routing.clauses import ungrouped
from sqla_shard.routing.clauses import unlabelled
from sqla_shard.routing.cutting import Cut
from sqla_shard.routing.forms import form_of
from sqla_shard.routing.rows import Leaf
from sqla_shard.routing.rows import Level
from sqla_shard.types import IdType

__all__ = ["Block", "Carrier", "Derived"]


@dataclass(eq=False)
class Derived:
    """A subquery in FROM.

    :ivar block: where its columns come from; None for a UNION, whose
        columns come from several tables.
    :ivar hops: aliases around it.
    """

    block: Block | None
    hops: int


@dataclass(frozen=True)
class Carrier:
    """A column whose value says on which shard its row is.

    :ivar form: whether it holds the local id or the whole one.
    :ivar nullable: whether it may be NULL in a row of the SELECT.
    """

    leaf: Leaf
    kind: IdType
    form: str | None
    nullable: bool


@dataclass(eq=False)
class Block:
    """One SELECT, or the body of an UPDATE or DELETE.

    :ivar outer: the SELECT whose columns it may name, if any.
    :ivar select: its Core form.
    :ivar sources: what stands in its FROM.
    :ivar leaves: its tables, with those of subqueries in FROM.
    :ivar filters: conditions, and the rows that must fulfil them.
    :ivar inside: what nested SELECTs became, by ``id()`` of the element.
    :ivar cuts: see :func:`.cutting.cuts_of`.
    """

    outer: Block | None
    level: Level
    select: Any
    sources: dict[Any, Leaf | Derived] = field(default_factory=dict)
    leaves: list[Leaf] = field(default_factory=list)
    filters: list[tuple[Any, Level]] = field(default_factory=list)
    inside: dict[int, list[Block]] = field(default_factory=dict)
    cuts: tuple[Cut, ...] = ()

    @property
    def cut(self) -> str | None:
        """Name what depends on more rows than one shard has, if anything."""
        return self.cuts[0].name if self.cuts else None

    @property
    def is_copied(self) -> bool:
        """Whether every shard has all rows that it looks at."""
        return bool(self.leaves) and all(
            leaf.is_copied for leaf in self.leaves
        )

    def _find(self, source: Any) -> Leaf | Derived | None:
        block: Block | None = self
        while block is not None:
            found = block.sources.get(source)
            if found is not None:
                return found
            block = block.outer
        return None

    def carrier(self, element: Any) -> Carrier | None:
        """Return what a column says of its row's shard, if anything."""
        element = ungrouped(element)
        whole = composed(element)
        column = element if whole is None else ungrouped(whole)
        kind = getattr(column, "type", None)
        if (
            not isinstance(kind, IdType)
            or not kind.routes
            or not is_column(column)
        ):
            return None
        found = self._origin(column)
        if found is None:
            return None
        leaf, origin = found
        missing = getattr(origin, "nullable", True)
        return Carrier(
            leaf,
            kind,
            form_of(element),
            missing or leaf.level.may_be_missing,
        )

    def _origin(self, column: Any) -> tuple[Leaf, Any] | None:
        """Return the table that a column is from, and the table's column."""
        base = column.column if isinstance(column, BlobValue) else column
        sources = base._from_objects
        source = self._find(sources[0]) if len(sources) == 1 else None
        if isinstance(source, Leaf):
            return source, column
        if source is None or source.block is None:
            return None
        for _ in range(source.hops):
            if len(base._proxies) != 1:
                return None
            (base,) = base._proxies
        base = unlabelled(base)
        return source.block._origin(base) if is_column(base) else None
