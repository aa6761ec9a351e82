"""Lists whose rows are spread over several virtual shards, and their pieces.

:mod:`~sqla_shard.models.list_positions` places the pieces.

The lock of a piece is its row in the table of the lengths.

While the number of pieces is increased, a target has a piece, and another one
from before.  Its row is in the one, in the other, or in both, with the same
values, until the copy in the piece from before is deleted.  Every change takes
the lock of the target's piece first, so that the two pieces change together,
whichever of them a process appends to; processes that do not know of the
increase take the lock of the piece from before, as do those that append there.

``MOST_PIECES`` plus the number of a piece is the slot of its copies: minus the
number of its rows that are in the piece from before as well, so that the sum
of all slots is the number of targets.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from sqlalchemy import bindparam, Insert, insert, Integer, Select, select

from sqla_shard.dialects.sql import InsertMissing
from sqla_shard.engine.rendering import Place
from sqla_shard.models.class_checks import built_once
from sqla_shard.models.list_positions import MOST_PIECES
from sqla_shard.models.mapping_definition import link, piece_place, pieces_of
from sqla_shard.models.mapping_list import add_to_count, chunked, List, statements_of
from sqla_shard.outbox.apply import is_applied_in, retried
from sqla_shard.outbox.operations import add_pending
from sqla_shard.session import ShardSession
from sqla_shard.session.execute import OUR_OWN
from sqla_shard.session.transaction import TransactionLog

T = TypeVar("T")

#: The pieces that each transaction has locked without a write.
_held: weakref.WeakKeyDictionary[TransactionLog, set[Any]] = weakref.WeakKeyDictionary()

P = TypeVar("P")


def apart(session: ShardSession, change: Callable[[ShardSession], T]) -> T:
    """Return the result of a change that has a transaction of its own."""
    cluster = session.cluster

    def attempt() -> T:
        with ShardSession(cluster=cluster, cross_shard="ordered") as own:
            result = change(own)
            own.commit()
            return result

    return retried(cluster, attempt)


class PieceStatements:
    """The statements that lock the pieces of a class, and copy rows.

    :param cls: a spread mapping class.
    :ivar lock: locks a piece, and creates its length.
    :ivar copied: reads and locks rows with all their columns.
    :ivar insert: inserts such rows.
    """

    def __init__(self, cls: Any) -> None:
        statements = statements_of(cls)
        counts: Any = statements.counts
        table = counts.table
        self.lock: InsertMissing = InsertMissing(table).values(
            {
                counts.source: bindparam("source", type_=counts.source.type),
                table.c.slot: bindparam("the_slot", type_=Integer()),
                table.c.number: 0,
            }
        )
        columns = [one for one in statements.table.c if one.computed is None]
        definition = statements.definition
        source = statements.table.c[definition.source.column]
        target = statements.table.c[definition.target.column]
        self.copied: Select[Any] = (
            select(*columns)
            .where(
                source == bindparam("source"),
                target.in_(bindparam("ids", expanding=True)),
            )
            .with_for_update()
        )
        self.insert: Insert = insert(statements.table)


class Piece(List):
    """The rows of a list on one virtual shard.

    :param slot: number of the piece.
    """

    def __init__(
        self, cls: Any, session: ShardSession, source_id: int, slot: int
    ) -> None:
        super().__init__(cls, session, source_id)
        self.slot = slot
        self.place: Place = piece_place(cls, session.places, source_id, slot)

    def locked(self, statement: Any, **parameters: Any) -> Any:
        """Lock the piece, then run one of the locking statements."""
        if self.session.autoflush:
            self.session.flush()
        self._lock_source()
        self.execute(self._pieces.lock, the_slot=self.slot)
        if statement is None:
            return []
        return list(self.execute(statement, **parameters).one())

    def hold(self) -> None:
        """Lock the piece, whose shard this transaction may not write."""
        held = _held.setdefault(self.session.log, set())
        key = self.cls, self.source_id, self.slot
        if key in held:
            return
        counts: Any = self.statements.counts
        there = self.execute(counts.read, the_slot=self.slot).first()
        if there is None and self.place.backend.waits:
            # Otherwise there would be no row to lock.
            apart(self.session, lambda own: self._in(own).locked(None))
        self._lock_source()
        self.execute(counts.read_locked, the_slot=self.slot)
        held.add(key)

    def forget_copies(self) -> int:
        """Set the number of copies to 0; return the number before."""
        counts: Any = self.statements.counts
        slot = MOST_PIECES + self.slot
        number = self.execute(counts.read_locked, the_slot=slot).scalar()
        if number:
            self.execute(counts.set, the_slot=slot, the_number=0)
        return -(number or 0)

    def _lock_source(self) -> None:
        definition = self.statements.definition
        is_whole = definition.spread_before == 1 and self.slot == 0
        if is_whole and definition.appends_before:
            # Processes for which the list is not spread lock its source.
            self.execute(self.statements.lock_source, owner=self.source_id)

    @property
    def _pieces(self) -> PieceStatements:
        return built_once(self.cls, PieceStatements)

    def _in(self, session: ShardSession) -> Piece:
        return Piece(self.cls, session, self.source_id, self.slot)


class MovingPiece(Piece):
    """Two pieces that may have the row of a target.

    Rows are appended to the place of this object.

    :param slot: number of the piece of the target.
    :param before: its number before the increase.
    """

    def __init__(
        self, cls: Any, session: ShardSession, source_id: int, slot: int, before: int
    ) -> None:
        appends_before = statements_of(cls).definition.appends_before
        appended = before if appends_before else slot
        super().__init__(cls, session, source_id, appended)
        self.now: Piece = Piece(cls, session, source_id, slot)
        self.before: Piece = Piece(cls, session, source_id, before)
        self._holders: tuple[Piece, ...] = ()

    def _in(self, session: ShardSession) -> MovingPiece:
        slots = self.now.slot, self.before.slot
        return MovingPiece(self.cls, session, self.source_id, *slots)

    @property
    def _is_appended_before(self) -> bool:
        return self.slot == self.before.slot

    def locked(self, statement: Any, **parameters: Any) -> Any:
        """Lock the target in both pieces, then run a locking statement."""
        if self.session.autoflush:
            self.session.flush()
        self.now.hold()
        if self._is_appended_before:
            self.before.hold()
        if statement is None:
            return []
        row = list(self.execute(statement, **parameters).one())
        if "row" in parameters:
            row[0] = self._find(row[0], parameters["row"])
        return row

    def _find(self, sequence: int | None, target_id: int) -> int | None:
        """Record which pieces have a row, and return its sequence.

        :param sequence: its sequence in the piece of this object.
        """
        other = self.now if self._is_appended_before else self.before
        there: int | None = other.execute(
            self.statements.lock_row, row=target_id
        ).scalar()
        own = self.before if self._is_appended_before else self.now
        self._holders = tuple(
            piece for piece, at in ((own, sequence), (other, there)) if at is not None
        )
        return there if sequence is None else sequence

    @property
    def holders(self) -> Sequence[List]:
        """The pieces with the row that was locked last."""
        return self._holders

    def present(self, target_ids: Sequence[int]) -> set[int]:
        """Return the targets with a row, which are locked."""
        return self.now.present(target_ids) | self.before.present(target_ids)

    def discard(self, target_id: int) -> None:
        """Delete the row that was locked last, and its copy."""
        for piece in self._holders:
            piece.discard(target_id)
        if len(self._holders) > 1:
            self._add_copies(-1)

    def settle(self, target_id: int) -> None:
        """Move the row of a target to its piece, in a transaction of its own.

        Otherwise its removal would write two shards, or another one than an
        append.  A transaction that has locked a piece would wait for itself,
        and does not move the row.
        """
        log = self.session.log
        if self._is_appended_before or _held.get(log):
            return
        if log.first is None or self.place.backend.waits:
            apart(self.session, lambda own: self._in(own)._settle(target_id))

    def _settle(self, target_id: int) -> None:
        position = self.statements.position
        if self.before.execute(position, row=target_id).scalar() is not None:
            self.copy([target_id])
            self.drop([target_id])

    def copy(self, target_ids: Sequence[int]) -> int:
        """Copy rows to their piece; return the number of new copies."""
        self.now.locked(None)
        statements = self._pieces
        rows = [
            row
            for some in chunked(target_ids)
            for row in self.before.execute(statements.copied, ids=some)
        ]
        name = self.statements.definition.target.column
        there = self.now.present([getattr(row, name) for row in rows])
        added = [dict(row._mapping) for row in rows if getattr(row, name) not in there]
        if added:
            self.session.execute(
                statements.insert,
                added,
                bind_arguments={"place": self.now.place},
                execution_options=OUR_OWN,
            )
            add_to_count(self.now, len(added))
            self._add_copies(len(added))
        return len(added)

    def drop(self, target_ids: Iterable[int]) -> int:
        """Delete rows that have a copy in their piece; return their number."""
        self.now.hold()
        there = self.now.present(list(target_ids))
        number = 0
        if there:
            number = self.before.delete(self.statements.target.in_(there))
            add_to_count(self.before, -number)
            self._add_copies(-number)
        return number

    def _add_copies(self, number: int) -> None:
        if number:
            counts: Any = self.statements.counts
            slot = MOST_PIECES + self.now.slot
            self.now.execute(counts.add, the_slot=slot, delta=-number)


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
        calls = [(place, {"pairs": moved}) for place, moved in elsewhere.items()]
        add_pending(session, written[0], operation, calls)
    return here
