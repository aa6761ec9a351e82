"""Passes over all rows of a move: backfill, reconciliation, verification.

All of them can be interrupted, and started again: what was done is in the
marks.  A pass reads rows in the order of their object ids, so that a page has
rows of few shards.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED
from concurrent.futures import Future
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import field
from typing import Any

from sqlalchemy import BigInteger
from sqlalchemy import Column
from sqlalchemy import DateTime
from sqlalchemy import delete
from sqlalchemy import func
from sqlalchemy import insert
from sqlalchemy import Integer
from sqlalchemy import MetaData
from sqlalchemy import select
from sqlalchemy import Table

from sqla_shard.exc import StageRefusedError
from sqla_shard.exc import UnclaimableRowError
from sqla_shard.migrate.comparing import compare
from sqla_shard.migrate.comparing import Comparison
from sqla_shard.migrate.comparing import look
from sqla_shard.migrate.comparing import Seen
from sqla_shard.migrate.copier import grouped
from sqla_shard.migrate.copier import Waiting
from sqla_shard.migrate.copying import claim_page
from sqla_shard.migrate.copying import Image
from sqla_shard.migrate.copying import snapshot
from sqla_shard.migrate.fences import Fence
from sqla_shard.migrate.marks import Key
from sqla_shard.migrate.move import Move
from sqla_shard.migrate.stages import Progress
from sqla_shard.migrate.tables import COPYING
from sqla_shard.migrate.tables import MovedTable
from sqla_shard.util.pace import Throttle

__all__ = [
    "PASSES",
    "Found",
    "Pass",
    "backfill",
    "last_pass",
    "reconcile",
    "verify",
]

#: The results of complete passes, in the database.
PASSES = Table(
    "sqla_shard_passes",
    MetaData(),
    Column(
        "id",
        BigInteger().with_variant(Integer(), "sqlite"),
        primary_key=True,
    ),
    Column("round", Integer, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("differences", BigInteger, nullable=False),
    Column("made_at", DateTime, server_default=func.current_timestamp()),
    mysql_engine="InnoDB",
)

#: Rows of a page.
_PAGE = 500
#: Maximum number of differences that a pass names.
_MOST = 1000


@dataclass(frozen=True, kw_only=True)
class Found:
    """One row that differs.

    :ivar table: name of the table.
    :ivar object_id: the object id; None if it has none.
    :ivar key: the primary key in the database; None if it has none.
    :ivar reason: what differs.
    """

    table: str
    object_id: int | None
    key: Any
    reason: str

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        object_id = None if self.object_id is None else str(self.object_id)
        return {**asdict(self), "object_id": object_id}

    def __str__(self) -> str:
        return (
            f"{self.table} {self.key} (object {self.object_id}): {self.reason}"
        )


@dataclass(kw_only=True)
class Pass:
    """The result of one pass.

    :ivar rows: number of rows that were compared.
    :ivar waiting: number of rows that were on their way.
    :ivar differences: number of rows that differ.
    :ivar found: rows that differ, at most 1,000.
    """

    rows: int = 0
    waiting: int = 0
    differences: int = 0
    found: list[Found] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """Whether no row differs."""
        return not self.differences

    def add(self, found: Found) -> None:
        """Add a row that differs."""
        self.differences += 1
        if len(self.found) < _MOST:
            self.found.append(found)

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        return {**vars(self), "found": [one.as_dict() for one in self.found]}

    def __str__(self) -> str:
        first = (
            f"{self.rows:,} rows, {self.differences:,} different, "
            f"{self.waiting:,} on their way"
        )
        return "\n".join([first, *map(str, self.found)])


def backfill(
    move: Move,
    *,
    rate: float | None = None,
    jobs: int = 4,
    on_progress: Callable[[str, int], object] = lambda *_: None,
) -> int:
    """Claim all rows that have no mark of this round, and copy what waits.

    :param rate: maximum number of rows per second; None for no limit.
    :param jobs: number of threads that copy.
    :param on_progress: called with the name of a table and the number of rows
        that were claimed or copied.
    :returns: the number of rows that could not be copied; they are logged.
    :raises StageRefusedError: if the stage copies nothing from the database.
    :raises StageChangedError: if the stage changes meanwhile.
    """
    now = _stage(move, "backfill", "legacy")
    throttle = Throttle(rate)
    for one in move.tables.values():
        _claim(move, one, now, on_progress)
    failed = 0
    pending: set[Future[int]] = set()
    with ThreadPoolExecutor(jobs) as pool:

        def copy(waiting: Waiting) -> int:
            left = move.copier.copy_or_log(waiting, number=now.round)
            on_progress(waiting[0].name, len(waiting[2]))
            return left

        for waiting in move.copier.waiting("legacy"):
            throttle.take(len(waiting[2]))
            pending.add(pool.submit(copy, waiting))
            if len(pending) >= 2 * jobs:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                failed += sum(one.result() for one in done)
        failed += sum(one.result() for one in pending)
    return failed


def _claim(
    move: Move,
    one: MovedTable,
    now: Progress,
    on_progress: Callable[[str, int], object],
) -> None:
    def propose(keys: Collection[Key]) -> Mapping[Key, int]:
        return move.copier.ids.proposals(one, keys)

    legacy, fence = one.legacy(move.engine), Fence()
    keys, after = claim_page(legacy, fence, now, ids=propose)
    while keys:
        on_progress(one.name, len(keys))
        keys, after = claim_page(legacy, fence, now, after=after, ids=propose)


def _stage(move: Move, command: str, source: str | None = None) -> Progress:
    """Return the stage; refuse it if it does not copy."""
    now = move.progress(now=True)
    if now.rules.source is None or source not in (None, now.rules.source):
        raise StageRefusedError(
            stage=now.stage,
            wanted=command,
            reason=f"{command} needs a stage that copies rows; "
            "`sqla-shard migrate switch` goes there",
        )
    return now


def last_pass(move: Move, now: Progress) -> Pass | None:
    """Return the last complete pass of a round, without its rows."""
    statement = (
        select(PASSES.c.rows, PASSES.c.differences)
        .where(PASSES.c.round == now.round)
        .order_by(PASSES.c.id.desc())
        .limit(1)
    )
    with snapshot(move.engine) as connection:
        row = connection.execute(statement).first()
    return None if row is None else Pass(rows=row[0], differences=row[1])


def verify(
    move: Move,
    *,
    rate: float | None = None,
    on_progress: Callable[[str, int], object] = lambda *_: None,
) -> Pass:
    """Compare all rows of both sides, and change nothing.

    :param rate: maximum number of rows per second; None for no limit.
    :param on_progress: called with the name of a table and the number of rows
        that were compared.
    :raises StageRefusedError: if the stage copies nothing.
    """
    now = _stage(move, "verify")
    return _Comparing(move, now, rate, on_progress, repairs=False).run()


def reconcile(
    move: Move,
    *,
    rate: float | None = None,
    passes: int = 10,
    on_progress: Callable[[str, int], object] = lambda *_: None,
    on_pass: Callable[[Pass], object] = lambda _: None,
) -> Pass:
    """Compare all rows, and repair those that differ, until none does.

    The side that is not the truth is changed: rows that were written without a
    mark are copied again, and objects that the database does not have are
    deleted.

    :param rate: maximum number of rows per second; None for no limit.
    :param passes: maximum number of passes.
    :param on_progress: as for :func:`verify`.
    :param on_pass: called after each pass.
    :returns: the last pass.
    :raises StageRefusedError: if the stage copies nothing.
    :raises StageChangedError: if the stage changes meanwhile.
    """
    now = _stage(move, "reconcile")
    found = Pass()
    for _ in range(passes):
        comparing = _Comparing(move, now, rate, on_progress, repairs=True)
        found = comparing.run()
        on_pass(found)
        if found.is_equal:
            break
    return found


class _Comparing:
    """One pass over all rows of both sides."""

    def __init__(
        self,
        move: Move,
        now: Progress,
        rate: float | None,
        on_progress: Callable[[str, int], object],
        *,
        repairs: bool,
    ) -> None:
        self._move = move
        self._now = now
        self._throttle = Throttle(rate)
        self._on_progress = on_progress
        self._repairs = repairs
        self._from_legacy = now.rules.source == "legacy"
        self._pass = Pass()

    def run(self) -> Pass:
        """Compare everything, and record the result."""
        for one in self._move.tables.values():
            self._unmarked_rows(one)
            self._marked_rows(one)
            for shard_id in self._move.copier.shards(one):
                self._unknown_objects(one, shard_id)
        values = {
            "round": self._now.round,
            "number": self._now.number,
            "rows": self._pass.rows,
            "differences": self._pass.differences,
        }
        with snapshot(self._move.engine) as connection:
            connection.execute(insert(PASSES), values)
        return self._pass

    def _step(self, one: MovedTable, rows: int) -> None:
        self._throttle.take(rows)
        self._on_progress(one.name, rows)

    # -- rows that no session has written, or the backfill not reached

    def _unmarked_rows(self, one: MovedTable) -> None:
        after: Key | None = None
        while True:
            with snapshot(self._move.engine) as connection:
                keys = one.marks.page(connection, after=after)
                marks = one.marks.marks_of(connection, keys)
            if not keys:
                return
            after = keys[-1]
            found = [
                key
                for key in keys
                if key not in marks or marks[key].object_id is None
            ]
            for key in found:
                if key in marks and marks[key].waits:
                    self._pass.waiting += 1
                    continue
                self._pass.add(
                    Found(
                        table=one.name,
                        object_id=None,
                        key=key[0],
                        reason="written without a mark",
                    )
                )
            if self._from_legacy:
                self._repair_rows(one, found)

    # -- rows that both sides should have

    def _marked_rows(self, one: MovedTable) -> None:
        after = 0
        while True:
            with snapshot(self._move.engine) as connection:
                keys = one.marks.marked(connection, after=after)
            if not keys:
                return
            after = max(keys)
            for shard_id, ids in grouped(one, [(i,) for i in keys]).items():
                self._compare_or_name(
                    one, shard_id, {i: keys[i] for (i,) in ids}
                )

    def _compare_or_name(
        self, one: MovedTable, shard_id: int, keys: Mapping[int, Key]
    ) -> None:
        """Compare rows, each apart if one cannot be converted."""
        try:
            self._compare(one, shard_id, keys)
        except UnclaimableRowError as error:
            for object_id, key in keys.items():
                if len(keys) > 1:
                    self._compare_or_name(one, shard_id, {object_id: key})
                    continue
                self._pass.add(
                    Found(
                        table=one.name,
                        object_id=object_id,
                        key=key[0],
                        reason=str(error),
                    )
                )

    def _compare(
        self, one: MovedTable, shard_id: int, keys: Mapping[int, Key]
    ) -> None:
        """Compare rows of one shard.

        :param keys: primary keys by object id.
        """
        rows = look(one.legacy(self._move.engine), keys.values())
        by_key = {key: object_id for object_id, key in keys.items()}
        images = {
            key: Image(version=rows.versions.get(key, 0), row=row)
            for key, row in rows.rows.items()
        }
        values = self._move.copier.converted(one, images, by_key)
        ours = Seen(
            versions={
                (by_key[key],): version
                for key, version in rows.versions.items()
            },
            rows={
                key: image.row
                for key, image in values.items()
                if image.row is not None
            },
        )
        theirs = look(
            one.on(self._move.cluster, shard_id), list(ours.versions)
        )
        result = compare(
            ours,
            theirs,
            [(object_id,) for object_id in keys],
            is_same=lambda *both: not any(one.conversion.differences(*both)),
        )
        self._pass.rows += len(keys)
        self._pass.waiting += len(result.waiting)
        self._name(one, keys, result, ours, theirs)
        different = [*result.different, *result.unmarked]
        if self._from_legacy:
            self._repair_rows(one, [keys[i] for (i,) in different])
        else:
            self._repair_objects(one, shard_id, different)
        self._step(one, len(keys))

    def _name(
        self,
        one: MovedTable,
        keys: Mapping[int, Key],
        result: Comparison,
        ours: Seen,
        theirs: Seen,
    ) -> None:
        for key in (*result.different, *result.unmarked):
            row, found = ours.rows.get(key), theirs.rows.get(key)
            if row is None or found is None:
                where = "the shards" if row is None else "the database"
                reason = (
                    f"only {where} have it"
                    if row is None
                    else (f"only {where} has it")
                )
            else:
                reason = (
                    "; ".join(
                        f"{d.attribute} is {d.expected!r} in the database and "
                        f"{d.found!r} on the shard"
                        for d in one.conversion.differences(row, found)
                    )
                    or "written without a mark"
                )
            self._pass.add(
                Found(
                    table=one.name,
                    object_id=key[0],
                    key=keys[key[0]][0],
                    reason=reason,
                )
            )

    def _repair_rows(self, one: MovedTable, keys: Collection[Key]) -> None:
        """Make rows wait that were written without a mark, and copy them."""
        if not self._repairs or not keys:
            return
        with snapshot(self._move.engine) as connection:
            Fence().enter_as(connection, self._now)
            one.marks.raise_versions(connection, keys, number=self._now.round)
        self._copy((one, None, list(keys)))

    def _repair_objects(
        self, one: MovedTable, shard_id: int, keys: Collection[Key]
    ) -> None:
        if not self._repairs or not keys:
            return
        part = one.on(self._move.cluster, shard_id)
        with part.begin() as connection:
            Fence().enter_as(connection, self._now)
            part.marks.raise_versions(connection, keys, number=self._now.round)
        self._copy((one, shard_id, list(keys)))

    def _copy(self, waiting: Waiting) -> None:
        self._move.copier.copy_or_log(waiting, number=self._now.round)

    # -- objects that the map does not have

    def _unknown_objects(self, one: MovedTable, shard_id: int) -> None:
        for ids in self._pages(one, shard_id):
            known = self._move.copier.keys_of(one, ids)
            unknown = [i for i in ids if i not in known]
            if not self._from_legacy:
                unknown = self._not_waiting(one, shard_id, unknown)
            for object_id in unknown:
                self._pass.add(
                    Found(
                        table=one.name,
                        object_id=object_id,
                        key=None,
                        reason="only the shards have it",
                    )
                )
            if not self._from_legacy:
                keys = [(object_id,) for object_id in unknown]
                self._repair_objects(one, shard_id, keys)
            elif self._repairs and unknown:
                self._delete(one, shard_id, unknown)

    def _pages(self, one: MovedTable, shard_id: int) -> Iterator[list[int]]:
        after = 0
        while True:
            part = one.on(self._move.cluster, shard_id)
            with part.begin():
                ids = part.page(after, _PAGE)
            if not ids:
                return
            yield ids
            after = ids[-1]

    def _not_waiting(
        self, one: MovedTable, shard_id: int, ids: Collection[int]
    ) -> list[int]:
        part = one.on(self._move.cluster, shard_id)
        with part.begin() as connection:
            marks = part.marks.marks_of(connection, [(i,) for i in ids])
        waiting = {i for (i,), mark in marks.items() if mark.waits}
        self._pass.waiting += len(waiting)
        return [i for i in ids if i not in waiting]

    def _delete(
        self, one: MovedTable, shard_id: int, ids: Collection[int]
    ) -> None:
        """Delete objects that another program has inserted.

        An object of a copy has a claimed id, so these are not on their way.
        """
        with self._move.cluster.begin(info={COPYING: True}) as session:
            place = one.place(session, shard_id)
            Fence().enter_as(session.view(place), self._now)
            session.execute(delete(one.cls).where(one.cls.id.in_(ids)))
