"""Lists whose rows are spread over several virtual shards.

:mod:`~sqla_shard.models.spread` places their pieces, and
:mod:`~sqla_shard.models.spread_pieces` changes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from sqla_shard.engine.rendering import Place
from sqla_shard.models.mapping_definition import link, piece_place, pieces_of
from sqla_shard.models.mapping_list import List
from sqla_shard.models.spread_pieces import MovingPiece, Piece
from sqla_shard.outbox.apply import is_applied_in
from sqla_shard.outbox.operations import add_pending
from sqla_shard.session import ShardSession

P = TypeVar("P")


def is_moving(cls: Any) -> bool:
    """Return whether the number of pieces of lists is being increased."""
    return link(cls).spread_before > 0


def list_of(cls: Any, session: ShardSession, source_id: int) -> List:
    """Return a list of a mapping class.

    :raises WrongTypeError: if the id is of another class than the source.
    :raises InvalidIdError: if it is not an object id.
    :raises UnknownShardError: if its shard is not open.
    """
    is_spread = link(cls).spread > 1
    return (SpreadList if is_spread else List)(cls, session, source_id)


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
            piece_place(self.cls, places, self.source_id, slot) for slot in self._slots
        ]

    def _slots_of(self, target_id: int) -> tuple[int, ...]:
        return pieces_of(self.statements.definition, target_id)

    def part_of(self, target_id: int) -> Piece:
        """Return the piece that may have a target, or both of them."""
        return self._part(self._slots_of(target_id))

    def _part(self, slots: Sequence[int]) -> Piece:
        kind: Any = Piece if len(slots) == 1 else MovingPiece
        part: Piece = kind(self.cls, self.session, self.source_id, *slots)
        return part

    def parts(self) -> list[Piece]:
        """Return the pieces, in the order in which they are locked."""
        return [
            Piece(self.cls, self.session, self.source_id, slot) for slot in self._slots
        ]

    def grouped(self, target_ids: Sequence[int]) -> list[tuple[List, Sequence[int]]]:
        """Return targets with the pieces that may have them."""
        by_slot: dict[tuple[int, ...], list[int]] = {}
        for target_id in target_ids:
            slots = self._slots_of(target_id)
            by_slot.setdefault(slots, []).append(target_id)
        return [(self._part(slots), by_slot[slots]) for slots in sorted(by_slot)]

    def most(self, number: int) -> int:
        """Return the number of rows among which there are as many targets."""
        # A row and its copy.
        return 2 * number if is_moving(self.cls) else number

    def limited_to(self, target_ids: Iterable[int]) -> SpreadList:
        """Return a list that reads only the pieces that may have targets."""
        slots = {slot for i in target_ids for slot in self._slots_of(i)}
        return SpreadList(self.cls, self.session, self.source_id, sorted(slots))

    def forget_copies(self) -> int:
        """Set the number of copies to 0; return the number before."""
        if not is_moving(self.cls):
            return 0
        return sum(piece.forget_copies() for piece in self.parts())

    def execute(self, statement: Any, **parameters: Any) -> Any:
        """Run a SELECT on all pieces; the rows are merged."""
        return self.session.execute(
            statement,
            {"source": self.source_id, **parameters},
            bind_arguments={"places": self.places, "merged": True},
        )


def readdress(
    session: ShardSession,
    operation: str,
    pairs: Iterable[P],
    part_of: Callable[[P], List],
) -> list[P]:
    """Address parts of a pending operation to the shards that they write now.

    An operation that was added before the number of pieces was increased is
    addressed to the piece from before.

    :param session: the session that applies the operation, or another one.
    :param operation: name of the operation.
    :param pairs: its pairs of source and target.
    :param part_of: returns the piece that a pair changes.
    :returns: the pairs that are not forwarded.
    """
    here: list[P] = []
    elsewhere: dict[Place, list[P]] = {}
    written = session.log.first if is_applied_in(session) else None
    for pair in pairs:
        part = part_of(pair)
        is_spread = part.statements.definition.spread > 1
        if written is None or not is_spread or written[0].address == part.place.address:
            here.append(pair)
        else:
            elsewhere.setdefault(part.place, []).append(pair)
    if written is not None:
        calls = [(place, {"pairs": its}) for place, its in elsewhere.items()]
        add_pending(session, written[0], operation, calls)
    return here
