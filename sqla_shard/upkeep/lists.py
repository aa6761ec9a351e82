"""Lists of a mapping: the largest, and rows that belong to another piece."""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, ClassVar, NamedTuple

from sqlalchemy import delete, func, or_, select
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.engine import scatter, scatter_errors
from sqla_shard.engine.rendering import Place
from sqla_shard.engine.unreachable import (
    each_once,
    reason,
    ShardsReport,
    unreachable_lines,
    UnreachableServer,
)
from sqla_shard.exc import ClassDefinitionError, InvalidIdError, ScatterFailedError
from sqla_shard.models import MappingMixin
from sqla_shard.models.list_positions import MOST_PIECES, STEP
from sqla_shard.models.mapping_definition import link, piece_place, pieces_of
from sqla_shard.models.mapping_list import statements_of
from sqla_shard.models.spread_list import MovingPiece
from sqla_shard.planning import spec_of
from sqla_shard.session import ShardSession
from sqla_shard.session.execute import OUR_OWN
from sqla_shard.upkeep.checks import classes_of
from sqla_shard.util.pace import Pace

# -- The longest lists of mapping classes, and those with the most new rows.
#
# They show which classes need `spread=`: the rows of a list are on one
# virtual shard, and its changes wait for each other.


@dataclass(frozen=True, kw_only=True)
class ListSize:
    """The number of rows of a list.

    :ivar mapping: name of the mapping class.
    :ivar source_id: the source of the list.
    :ivar rows: number of rows; of a spread list, the rows of its largest
        piece times the number of pieces.
    :ivar pieces: number of pieces of the list; 1 if it is not spread.
    """

    mapping: str
    source_id: int
    rows: int
    pieces: int

    def __str__(self) -> str:
        about = f"about {self.rows:,}" if self.pieces > 1 else f"{self.rows:,}"
        return f"{self.mapping} of {self.source_id}: {about} rows"


@dataclass(frozen=True, kw_only=True)
class ListSizes(ShardsReport):
    """The largest lists of mapping classes.

    :ivar largest: the lists with the most rows.
    :ivar busiest: the lists with the most rows that were appended during the
        ``window`` and are still there.
    :ivar window: seconds.
    :ivar unreachable: servers that could not be read in time.
    """

    largest: tuple[ListSize, ...]
    busiest: tuple[ListSize, ...]
    window: float
    unreachable: tuple[UnreachableServer, ...]

    def __str__(self) -> str:
        lines = [f"large: {one}" for one in self.largest]
        lines += [
            f"busy: {one} appended in {self.window:,.0f} seconds"
            for one in self.busiest
        ]
        lines += map(str, self.unreachable)
        return "\n".join(lines) or "no rows"


def largest_lists(
    cluster: Cluster,
    classes: Iterable[type[Any]] | None = None,
    *,
    top: int = 10,
    window: float = 86_400.0,
    timeout: float = 60.0,
) -> ListSizes:
    """Return the lists with the most rows, and with the most new rows.

    Servers read the index of each table once, all rows of it, and the lengths
    of counted classes: run it on a replica, or at night.

    :param classes: the mapping classes; by default all mapping classes of
        this process.
    :param top: number of lists in each part of the report.
    :param window: seconds up to now in which a row is new.
    :param timeout: seconds for the servers to read one class; a shard that
        is not read by then is in ``unreachable``.
    :returns: the report; ``str()`` of it is readable.
    :raises ValueError: for an invalid argument.
    """
    if top < 1:
        raise ValueError(f"top={top} must be 1 or more")
    since = max(int((time.time() - window) * 1000), 0) * STEP
    largest: list[ListSize] = []
    busiest: list[ListSize] = []
    unreachable: dict[Place, Exception] = {}
    for cls in classes_of(MappingMixin, classes):
        statements = statements_of(cls)
        number = func.count().label("number")
        rows = select(statements.source, number).group_by(statements.source)
        sizes = rows
        if statements.counts is not None:
            table = statements.counts.table
            sizes = select(statements.counts.source, table.c.number.label("number"))
        recent = rows.where(cls.sequence >= since)
        for statement, found in ((sizes, largest), (recent, busiest)):
            with cluster.session() as session:
                ordered = statement.order_by(
                    statement.selected_columns["number"].desc()
                )
                found += _largest(
                    session, cls, ordered.limit(top), timeout, unreachable
                )
    return ListSizes(
        largest=_first(largest, top),
        busiest=_first(busiest, top),
        window=window,
        unreachable=each_once(
            UnreachableServer.of([place], error) for place, error in unreachable.items()
        ),
    )


def _largest(
    session: ShardSession,
    cls: Any,
    statement: Any,
    timeout: float,
    unreachable: dict[Place, Exception],
) -> list[ListSize]:
    """Return the largest lists of each shard.

    :param unreachable: receives the errors of shards.
    """
    pieces = statements_of(cls).definition.spread
    spec = spec_of(statements_of(cls).table)
    keyspace = session.places.keyspace(spec.keyspace, spec.kind)
    every = session.places.several(keyspace, range(keyspace.shards))
    # Each statement would wait for a server that does not respond.
    places = [place for place in every if place not in unreachable]
    rows: list[Any] = []
    errors: Mapping[int, Exception] = {}
    if places:
        try:
            result = session.execute(
                statement,
                bind_arguments={
                    "places": places,
                    "limits": scatter(timeout=timeout, on_error="partial"),
                },
            )
            errors = scatter_errors(result)
            rows = list(result)
        except ScatterFailedError as error:
            errors = error.errors
    for place in places:
        if place.shard_id in errors:
            unreachable[place] = errors[place.shard_id]
    most: dict[int, int] = {}
    for source_id, number in rows:
        most[source_id] = max(most.get(source_id, 0), number)
    return [
        ListSize(
            mapping=cls.__name__,
            source_id=source_id,
            rows=number * pieces,
            pieces=pieces,
        )
        for source_id, number in most.items()
        if number
    ]


def _first(sizes: list[ListSize], top: int) -> tuple[ListSize, ...]:
    return tuple(heapq.nlargest(top, sizes, key=lambda one: one.rows))


#: Seconds to retry a transaction: a run waits for a failover.
PATIENCE = 30.0


@dataclass(frozen=True, kw_only=True)
class SpreadProgress:
    """The progress of a run.

    :ivar shard_id: the shard that was read last.
    :ivar shards: number of shards.
    :ivar rows: number of rows that were read so far.
    :ivar moved: number of rows that were moved so far.
    """

    shard_id: int
    shards: int
    rows: int
    moved: int


@dataclass(kw_only=True)
class SpreadReport(ShardsReport):
    """The result of :func:`spread_rows`.

    :ivar mapping: name of the class.
    :ivar rows: number of rows whose keys were read, in all passes.
    :ivar copied: number of rows that were copied.
    :ivar moved: number of rows that were deleted after they were copied, by
        this run or an interrupted one.
    :ivar passes: number of times that all rows were read.
    :ivar misplaced: number of rows of the last pass that belong to another
        shard, before and after the increase; ``verify relations`` names them.
    :ivar unreachable: servers that did not respond, or lack a shard.
    """

    derived: ClassVar[tuple[str, ...]] = ("ok",)

    mapping: str
    rows: int = 0
    copied: int = 0
    moved: int = 0
    passes: int = 0
    misplaced: int = 0
    unreachable: list[UnreachableServer] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether each row is in its piece, and ``spread_from`` may go."""
        return not self.unreachable and not self.misplaced

    def __str__(self) -> str:
        first = (
            f"{self.mapping}: {self.moved:,} rows moved, {self.rows:,} read "
            f"in {self.passes:,} passes, {self.misplaced:,} misplaced"
        )
        end = "finished: remove spread_from=" if self.ok else "not finished"
        return "\n".join([first, end, *unreachable_lines(self.unreachable)])


def spread_rows(
    cluster: Cluster,
    cls: Any,
    *,
    rate: float | None = None,
    batch: int = 1000,
    grace: float = 10.0,
    on_progress: Callable[[SpreadProgress], object] | None = None,
) -> SpreadReport:
    """Move the rows of a class whose ``spread`` was increased.

    All processes must run code with ``spread_from=``.  The rows are read
    until all of them are in their pieces.

    :param cls: a mapping class with ``spread_from=``.
    :param rate: maximum number of rows to read per second; None for no limit.
    :param batch: maximum number of rows to read at once.
    :param grace: seconds from the copy of a row to its deletion; longer than
        transactions that read lists.
    :param on_progress: called after each batch.
    :returns: the report; servers that do not respond are in ``unreachable``.
    :raises ClassDefinitionError: for another class.
    :raises ValueError: if ``rate``, ``batch`` or ``grace`` is not valid.
    """
    pace = Pace(rate=rate, batch=batch, grace=grace)
    definition = link(cls)
    if not definition.spread_before or definition.appends_before:
        raise ClassDefinitionError(
            "it has no spread_from=, so that no rows are to be moved, or "
            "they may still be appended where they would be moved from",
            class_name=cls.__name__,
        )
    return _Spreading(cluster, cls, pace, on_progress).run()


class _PieceRows(NamedTuple):
    """Rows of one list, in one piece.

    :ivar slots: number of the piece, and of the one from before.
    """

    source_id: int
    slots: tuple[int, int]
    target_ids: list[int]


class _Batch(NamedTuple):
    """Rows that were copied from one shard to another.

    :ivar due: the time, by ``monotonic()``, at which they may be deleted.
    :ivar place: the shard that has the copies.
    """

    due: float
    place: Place
    groups: Sequence[_PieceRows]


class _Spreading:
    """One run, of several passes over all rows of a class.

    Each row is copied to its piece in one transaction, and deleted from the piece
    from before in another one.  Between the two is a pause, ``grace``: a reader
    whose transaction began before the copy, and that reads the piece from before
    after the deletion, would find the row in neither.

    The application can read and write all the time (see
    :mod:`~sqla_shard.models.spread_list`).  A run can be interrupted at any
    time.  The next one needs no position: it reads the keys of all rows, and looks
    for those that are still where they were before.
    """

    def __init__(
        self,
        cluster: Cluster,
        cls: Any,
        pace: Pace,
        on_progress: Callable[[SpreadProgress], object] | None,
    ) -> None:
        self._cluster = cluster
        self._cls = cls
        self._batch = pace.limit
        self._grace = pace.grace
        self._throttle = pace.throttle()
        self._on_progress = on_progress
        self._statements = statements_of(cls)
        self._report = SpreadReport(mapping=cls.__name__)
        self._copies: deque[_Batch] = deque()
        self._never = threading.Event()
        self._found = 0

    def run(self) -> SpreadReport:
        """Move rows until a pass finds none to be moved."""
        report = self._report
        is_last = False
        while not is_last:
            self._found = report.misplaced = 0
            report.passes += 1
            self._each_shard(self._shard)
            while self._copies:
                self._drop_next()
            is_last = not self._found or bool(report.unreachable)
        if not report.unreachable:
            self._each_shard(self._forget_copies)
        return report

    def _places(self) -> Sequence[Place]:
        places = self._cluster.places
        spec = spec_of(self._statements.table)
        keyspace = places.keyspace(spec.keyspace, spec.kind)
        return places.several(keyspace, range(keyspace.shards))

    def _each_shard(self, work: Callable[[Place], object]) -> None:
        for place in self._places():
            self._attempt(place, work, place)

    def _attempt(
        self, place: Place, work: Callable[..., object], *arguments: Any
    ) -> None:
        """Call a function; report a server that does not respond."""
        if any(place.server == one.server for one in self._report.unreachable):
            return
        try:
            work(*arguments)
        except SQLAlchemyError as error:
            if reason(error) is None:
                raise
            self._report.unreachable.append(UnreachableServer.of([place], error))

    def _shard(self, place: Place) -> None:
        """Copy the rows of one shard."""
        after: tuple[int, int] | None = None
        count = self._batch
        while count == self._batch:
            rows = self._read(place, after)
            count = len(rows)
            self._report.rows += count
            for there, groups in self._to_move(place, rows).items():
                self._attempt(there, self._copy, there, groups)
            while self._copies and self._copies[0].due <= monotonic():
                self._drop_next()
            after = rows[-1] if rows else None
            self._throttle.take(count)
            if self._on_progress is not None:
                self._on_progress(
                    SpreadProgress(
                        shard_id=place.shard_id,
                        shards=len(self._places()),
                        rows=self._report.rows,
                        moved=self._report.moved,
                    )
                )

    def _read(
        self, place: Place, after: tuple[int, int] | None
    ) -> list[tuple[int, int]]:
        """Return the next sources and targets of a shard."""
        source, target = self._statements.source, self._statements.target
        statement = select(source, target).order_by(source, target)
        if after is not None:
            there = (source == after[0]) & (target > after[1])
            statement = statement.where(or_(source > after[0], there))

        def read(session: ShardSession) -> list[tuple[int, int]]:
            answer = session.execute(
                statement.limit(self._batch), bind_arguments={"place": place}
            )
            return [(one, two) for one, two in answer]

        return self._cluster.run(read, timeout=PATIENCE)

    def _to_move(
        self, place: Place, rows: Sequence[tuple[int, int]]
    ) -> dict[Place, list[_PieceRows]]:
        """Return the rows that are where they were before the increase.

        :returns: the rows by the shard of their piece.
        """
        by_place: dict[Place, dict[Any, _PieceRows]] = {}
        for source_id, target_id in rows:
            try:
                slots = pieces_of(link(self._cls), target_id)
                places = [
                    piece_place(self._cls, self._cluster.places, source_id, slot)
                    for slot in slots
                ]
            except InvalidIdError:
                self._report.misplaced += 1
                continue
            if place.address == places[0].address:
                continue
            if place.address != places[-1].address:
                self._report.misplaced += 1
                continue
            group = _PieceRows(source_id, (slots[0], slots[-1]), [])
            groups = by_place.setdefault(places[0], {})
            same = groups.setdefault((source_id, slots), group)
            same.target_ids.append(target_id)
            self._found += 1
        return {
            there: list(group_rows.values()) for there, group_rows in by_place.items()
        }

    def _pieces(
        self, session: ShardSession, groups: Sequence[_PieceRows]
    ) -> Iterator[tuple[MovingPiece, list[int]]]:
        for source_id, slots, target_ids in groups:
            piece = MovingPiece(self._cls, session, source_id, *slots)
            yield piece, target_ids

    def _copy(self, place: Place, groups: Sequence[_PieceRows]) -> None:
        def work(session: ShardSession) -> int:
            return sum(
                piece.copy(target_ids)
                for piece, target_ids in self._pieces(session, groups)
            )

        self._report.copied += self._cluster.run(work, timeout=PATIENCE)
        due = monotonic() + self._grace
        self._copies.append(_Batch(due, place, groups))

    def _drop_next(self) -> None:
        """Delete the rows that were copied first, when they are due."""
        batch = self._copies.popleft()
        self._never.wait(max(batch.due - monotonic(), 0))
        self._attempt(batch.place, self._drop, batch.groups)

    def _drop(self, groups: Sequence[_PieceRows]) -> None:
        def work(session: ShardSession) -> int:
            return sum(
                piece.drop(target_ids)
                for piece, target_ids in self._pieces(session, groups)
            )

        self._report.moved += self._cluster.run(
            work, timeout=PATIENCE, cross_shard="ordered"
        )

    def _forget_copies(self, place: Place) -> None:
        """Delete the numbers of copies of a shard, which are 0 now.

        A process that was killed between two COMMITs has left another number.
        """
        counts: Any = self._statements.counts

        def work(session: ShardSession) -> None:
            session.execute(
                delete(counts.table).where(counts.table.c.slot >= MOST_PIECES),
                bind_arguments={"place": place},
                execution_options=OUR_OWN,
            )

        self._cluster.run(work, timeout=PATIENCE)
