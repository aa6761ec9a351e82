"""Lists whose rows are spread over several virtual shards.

:mod:`~sqla_shard.models.spread` places their pieces.  The lock of a piece is
its row in the table of the lengths.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

from sqlalchemy import bindparam
from sqlalchemy import Integer

from sqla_shard.dialects.sql import InsertMissing
from sqla_shard.engine.rendering import Place
from sqla_shard.models.class_checks import built_once
from sqla_shard.models.mapping_definition import link
from sqla_shard.models.mapping_definition import piece_place
from sqla_shard.models.mapping_list import List
from sqla_shard.models.mapping_list import statements_of
from sqla_shard.models.spread import piece_of
from sqla_shard.session import ShardSession

__all__ = ["Piece", "SpreadList", "list_of"]


def list_of(cls: Any, session: ShardSession, source_id: int) -> List:
    """Return a list of a mapping class.

    :raises WrongTypeError: if the id is of another class than the source.
    :raises InvalidIdError: if it is not an object id.
    :raises UnknownShardError: if its shard is not open.
    """
    is_spread = link(cls).spread > 1
    return (SpreadList if is_spread else List)(cls, session, source_id)


class PieceLock:
    """The statement that locks a piece, and creates its length.

    :param cls: a spread mapping class.
    """

    def __init__(self, cls: Any) -> None:
        counts: Any = statements_of(cls).counts
        table = counts.table
        self.statement = InsertMissing(table).values(
            {
                counts.source: bindparam("source", type_=counts.source.type),
                table.c.slot: bindparam("the_slot", type_=Integer()),
                table.c.number: 0,
            }
        )


class Piece(List):
    """The rows of a list on one virtual shard.

    :param slot: number of the piece.
    """

    def __init__(
        self, cls: Any, session: ShardSession, source_id: int, slot: int
    ) -> None:
        super().__init__(cls, session, source_id)
        self.slot = slot
        self.place = piece_place(cls, session.places, source_id, slot)

    def locked(self, statement: Any, **parameters: Any) -> Any:
        """Lock the piece, then run one of the locking statements."""
        if self.session.autoflush:
            self.session.flush()
        lock = built_once(self.cls, PieceLock).statement
        self.execute(lock, the_slot=self.slot)
        if statement is None:
            return []
        return list(self.execute(statement, **parameters).one())


class SpreadList(List):
    """A list of several pieces, which one statement per server reads.

    :ivar places: the virtual shards of the pieces that are read.
    """

    def __init__(
        self,
        cls: Any,
        session: ShardSession,
        source_id: int,
        slots: Sequence[int] | None = None,
    ) -> None:
        super().__init__(cls, session, source_id)
        self._slots = slots or range(self.statements.definition.spread)

    @property
    def places(self) -> list[Place]:
        """The virtual shards of the pieces that are read."""
        places = self.session.places
        return [
            piece_place(self.cls, places, self.source_id, slot)
            for slot in self._slots
        ]

    def _slot(self, target_id: int) -> int:
        return piece_of(target_id, self.statements.definition.spread)

    def part_of(self, target_id: int) -> Piece:
        """Return the piece that may have a target."""
        slot = self._slot(target_id)
        return Piece(self.cls, self.session, self.source_id, slot)

    def parts(self) -> list[Piece]:
        """Return the pieces, in the order in which they are locked."""
        return [
            Piece(self.cls, self.session, self.source_id, slot)
            for slot in self._slots
        ]

    def grouped(
        self, target_ids: Sequence[int]
    ) -> list[tuple[List, Sequence[int]]]:
        """Return targets with the pieces that may have them."""
        by_slot: dict[int, list[int]] = {}
        for target_id in target_ids:
            by_slot.setdefault(self._slot(target_id), []).append(target_id)
        return [
            (Piece(self.cls, self.session, self.source_id, slot), ids)
            for slot, ids in sorted(by_slot.items())
        ]

    def limited_to(self, target_ids: Iterable[int]) -> SpreadList:
        """Return a list that reads only the pieces that may have targets."""
        slots = sorted({self._slot(target_id) for target_id in target_ids})
        return SpreadList(self.cls, self.session, self.source_id, slots)

    def execute(self, statement: Any, **parameters: Any) -> Any:
        """Run a SELECT on all pieces; the rows are merged."""
        return self.session.execute(
            statement,
            {"source": self.source_id, **parameters},
            bind_arguments={"places": self.places, "merged": True},
        )
