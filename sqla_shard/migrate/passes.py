"""Passes over all rows of a move: backfill, reconciliation, verification.

All of them can be interrupted, and started again: what was copied is in the
marks, and a position file has how far rows were compared.  Rows are read in
the order of their object ids, so that a page has rows of few shards.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    DateTime,
    func,
    insert,
    Integer,
    MetaData,
    select,
    Table,
)
from sqlalchemy.engine import URL

from sqla_shard.cluster.retries import repeat, Retries
from sqla_shard.dialects import backend_for
from sqla_shard.engine.pools import server_name
from sqla_shard.exc import (
    ConversionError,
    MigrateSetupError,
    StageRefusedError,
    UnclaimableRowError,
)
from sqla_shard.fleet.fleet import all_pairs
from sqla_shard.fleet.server_states import LagGuard, Replicas
from sqla_shard.migrate.copier import grouped, MovedLinks, Waiting
from sqla_shard.migrate.copies import (
    claim_page,
    Claimed,
    MarkedRows,
    one_read,
    read_images,
    Row,
    snapshot,
)
from sqla_shard.migrate.marks import Key, KeyPart
from sqla_shard.migrate.move import Move
from sqla_shard.migrate.stages import DatabaseFence, Progress
from sqla_shard.migrate.tables import AttributeDifference, MovedRows, MovedTable
from sqla_shard.upkeep.run import PositionFile
from sqla_shard.util.json_values import JsonObject
from sqla_shard.util.pace import Throttle

# -- The results of complete passes.

#: The results of complete passes, in the database.
PASSES = Table(
    "sqla_shard_passes",
    MetaData(),
    Column("id", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True),
    Column("round", Integer, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("differences", BigInteger, nullable=False),
    Column("made_at", DateTime, server_default=func.current_timestamp()),
    mysql_engine="InnoDB",
)

#: Maximum number of differences that a pass names.
_MOST = 1000


@dataclass(frozen=True, kw_only=True)
class DifferentRow(JsonObject):
    """One row that differs.

    :ivar table: name of the table.
    :ivar key: the primary key in the database; None if it has none.
    :ivar ids: the object id on the shards, or those of source and target of a
        mapping row; empty if there are none.
    :ivar reason: what differs.
    """

    table: str
    key: Key | None
    ids: Key
    reason: str

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        return {**super().as_dict(), "ids": [*map(str, self.ids)]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DifferentRow:
        """Return one from the result of :meth:`as_dict`.

        :raises TypeError: for other data.
        :raises LookupError: for other data.
        :raises ValueError: for other data.
        """
        return super().from_dict({**data, "ids": [*map(int, data["ids"])]})

    def __str__(self) -> str:
        key = "-" if self.key is None else ", ".join(map(str, self.key))
        ids = ", ".join(map(str, self.ids)) or "none"
        return f"{self.table} {key} (object {ids}): {self.reason}"


@dataclass(kw_only=True)
class Pass(JsonObject):
    """The result of one pass.

    :ivar rows: number of rows that were compared.
    :ivar waiting: number of rows that were on their way.
    :ivar differences: number of rows that differ.
    :ivar found: rows that differ, at most 1,000.
    """

    rows: int = 0
    waiting: int = 0
    differences: int = 0
    found: list[DifferentRow] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """Whether no row differs."""
        return not self.differences

    def add(self, found: DifferentRow) -> None:
        """Add a row that differs."""
        self.differences += 1
        if len(self.found) < _MOST:
            self.found.append(found)

    def __str__(self) -> str:
        first = (
            f"{self.rows:,} rows, {self.differences:,} different, "
            f"{self.waiting:,} on their way"
        )
        return "\n".join([first, *map(str, self.found)])


@dataclass(kw_only=True)
class PassPosition(JsonObject):
    """Progress of a pass.

    :ivar step: index of the step.
    :ivar after: key of the last row of the last page of the step, as the step
        needs it; None at its start.
    :ivar result: what was compared and found so far.
    """

    step: int = 0
    after: tuple[int, ...] | None = None
    result: Pass = field(default_factory=Pass)


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


def record_pass(move: Move, now: Progress, result: Pass) -> None:
    """Record a complete pass."""
    values = {
        "round": now.round,
        "number": now.number,
        "rows": result.rows,
        "differences": result.differences,
    }
    with snapshot(move.engine) as connection:
        connection.execute(insert(PASSES), values)


#: Seconds for which the claims of a page are repeated.
_TIMEOUT = 60.0


def backfill(
    move: Move,
    *,
    rate: float | None = None,
    max_lag: float | None = None,
    jobs: int = 4,
    part: KeyPart | None = None,
    on_progress: Callable[[str, int], object] = lambda *_: None,
) -> int:
    """Claim all rows that have no mark of this round, and copy what waits.

    :param rate: maximum number of rows per second; None for no limit.
    :param max_lag: seconds that replicas of either side may be behind; while
        one is further behind, no row is claimed or copied.  None for no limit.
    :param jobs: number of threads that copy.
    :param part: the part of the rows; None for all.  Parts are for processes
        that run at the same time, on one machine or several.
    :param on_progress: called with the name of a table and the number of rows
        that were claimed or copied.
    :returns: the number of rows that could not be copied; they are logged.
    :raises StageRefusedError: if the stage copies nothing from the database.
    :raises StageChangedError: if the stage changes meanwhile.
    :raises MigrateSetupError: if ``max_lag`` is given, and there is no replica.
    :raises FleetSetupError: if the lag of a replica cannot be read.
    """
    now = _stage(move, "backfill", "legacy")
    limit = _limit(move, rate, max_lag)
    for one in move.tables.values():
        _claim(move, one, now, limit, part)
    failed = 0
    pending: set[Future[int]] = set()
    with ThreadPoolExecutor(jobs) as pool:

        def copy(waiting: Waiting) -> int:
            remaining = move.copier.copy_or_log(waiting, number=now.round)
            on_progress(waiting[0].name, len(waiting[2]))
            return remaining

        for waiting in move.waiting.pages("legacy", part=part):
            limit(len(waiting[2]))
            pending.add(pool.submit(copy, waiting))
            if len(pending) >= 2 * jobs:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                failed += sum(one.result() for one in done)
        failed += sum(one.result() for one in pending)
    return failed


def _claim(
    move: Move,
    one: MovedRows,
    now: Progress,
    limit: Callable[[int], object],
    part: KeyPart | None,
) -> None:
    def propose(keys: Collection[Key]) -> Mapping[Key, int]:
        if isinstance(one, MovedTable):
            return move.copier.ids.proposals(one, keys)
        return {}

    legacy, fence = one.legacy(move.engine), DatabaseFence()
    dialect = move.engine.dialect
    backend = backend_for(dialect.name, driver=dialect.driver)
    after = Claimed()
    while True:
        # Other parts and the application write neighbouring marks.
        keys, after = repeat(
            partial(
                claim_page, legacy, fence, now, after=after, part=part, ids=propose
            ),
            Retries(lambda: {backend}, attempts=None, timeout=_TIMEOUT),
        )
        if not keys:
            return
        limit(len(keys))


def _limit(
    move: Move, rate: float | None, max_lag: float | None = None
) -> Callable[[int], object]:
    """Return a function that waits, as long as a number of rows takes.

    :raises MigrateSetupError: if ``max_lag`` is given, and there is no replica.
    """
    throttle = Throttle(rate)
    if max_lag is None:
        return throttle.take
    guard = lag_guard(move, max_lag)
    # Before a row is written: an account may not be allowed to see the lag.
    guard.wait()

    def take(rows: int) -> None:
        throttle.take(rows)
        guard.wait()

    return take


def _stage(move: Move, command: str, source: str | None = None) -> Progress:
    """Return the stage; refuse it if it does not copy."""
    now = move.progress(now=True)
    if now.rules.source is None:
        reason = (
            f"{command} needs a stage that copies rows; "
            "`sqla-shard migrate switch` goes there"
        )
    elif source not in (None, now.rules.source):
        reason = (
            f"rows are copied from the {now.rules.source}; run: "
            f"sqla-shard migrate {command} --follow"
        )
    else:
        return now
    raise StageRefusedError(stage=now.stage, wanted=command, reason=reason)


def verify(
    move: Move,
    *,
    rate: float | None = None,
    position: str | os.PathLike[str] | None = None,
    on_progress: Callable[[str, int], object] = lambda *_: None,
) -> Pass:
    """Compare all rows of both sides, and change nothing.

    :param rate: maximum number of rows per second; None for no limit.
    :param position: the position file.  An interrupted pass is resumed from
        it; it is removed at the end.
    :param on_progress: called with the name of a table and the number of rows
        that were compared.
    :raises StageRefusedError: if the stage copies nothing.
    :raises VerifyPositionError: if the file belongs to another pass: of
        another stage or database, or of other tables.
    """
    now = _stage(move, "verify")
    return FullPass(
        move, now, _limit(move, rate), on_progress, repairs=False, position=position
    ).run()


def reconcile(
    move: Move,
    *,
    rate: float | None = None,
    max_lag: float | None = None,
    passes: int = 10,
    position: str | os.PathLike[str] | None = None,
    on_progress: Callable[[str, int], object] = lambda *_: None,
    on_pass: Callable[[Pass], object] = lambda _: None,
) -> Pass:
    """Compare all rows, and repair those that differ, until none does.

    The side that is not the truth is changed: rows that were written without a
    mark are copied again, and objects that the database does not have are
    deleted.

    :param rate: maximum number of rows per second; None for no limit.
    :param max_lag: as for :func:`backfill`.
    :param passes: maximum number of passes.
    :param position: as for :func:`verify`, for the pass that is interrupted.
        When it is resumed, it names what it had found, too; the next pass
        repairs what it had not repaired.
    :param on_progress: as for :func:`verify`.
    :param on_pass: called after each pass.
    :returns: the last pass.
    :raises StageRefusedError: if the stage copies nothing.
    :raises StageChangedError: if the stage changes meanwhile.
    :raises MigrateSetupError: as for :func:`backfill`.
    :raises FleetSetupError: if the lag of a replica cannot be read.
    :raises VerifyPositionError: as for :func:`verify`.
    """
    now = _stage(move, "reconcile")
    limit = _limit(move, rate, max_lag)
    done = Pass()
    for _ in range(passes):
        done = FullPass(
            move, now, limit, on_progress, repairs=True, position=position
        ).run()
        on_pass(done)
        if done.is_equal:
            break
    return done


# -- The replicas of both sides, whose lag limits the passes.


def lag_guard(move: Move, seconds: float) -> LagGuard:
    """Return a guard that waits while a replica is behind.

    :param seconds: how far each may be behind.
    :raises MigrateSetupError: if there is none.
    """
    if not replicas(move):
        raise MigrateSetupError(
            f"max_lag={seconds:g}: there is no replica whose lag could be "
            "read; name those of the database in Move(replicas=...), and "
            "standbys of the shards in the topology"
        )
    return LagGuard(lambda: replicas(move), limit=seconds)


def replicas(move: Move) -> Replicas:
    """Return the replicas of the database, and the standbys of the shards.

    :returns: URLs with the account, by the names for messages.
    """
    found: dict[str, Any] = {
        f"replica {server_name(url)}": (url, None) for url in move.replicas
    }
    engines = move.cluster.places.engines
    for pair in all_pairs(move.cluster.topology):
        if pair.standby is not None:
            url = engines.filled(pair.standby)
            # A directory of SQLite files replicates nothing.
            if url.host is not None:
                password = engines.password_of(pair.standby, [f"{pair.name} (standby)"])
                found[f"{pair.name} standby"] = url, password
    return found


# -- One pass over all rows of both sides


#: Rows of a page.  Those of a shard take a transaction; the more of them are in
#: memory, the longer garbage collection takes.  MariaDB makes a table of 1,000
#: values in IN, and may join it with all rows.
_PAGE = 900

#: Maximum number of characters that are shown of a value.
_SHOWN = 200

#: Reads the rows of a table after a key, and yields that of each page: when all
#: rows that differ are named, and before the first one is repaired.  What was
#: named is then in the position, and a pass that is resumed reports it.
_Walk: TypeAlias = Callable[[MovedRows, Key | None], Iterator[Key]]


class FullPass:
    """Compares all rows of both sides.

    :param move: the move.
    :param now: the stage.
    :param limit: called with a number of rows that were compared or repaired;
        waits.
    :param on_progress: called with the name of a table and the number of rows
        that were compared.
    :param repairs: whether rows that differ are repaired, on the side that is
        not the truth.
    :param position: file with the position, from which an interrupted pass is
        resumed; it is removed at the end.
    """

    def __init__(
        self,
        move: Move,
        now: Progress,
        limit: Callable[[int], object],
        on_progress: Callable[[str, int], object],
        *,
        repairs: bool,
        position: str | os.PathLike[str] | None = None,
    ) -> None:
        self._move = move
        self._copier = move.copier
        self._now = now
        self._limit = limit
        self._on_progress = on_progress
        self._repairs = repairs
        self._from_legacy = now.rules.source == "legacy"
        self._pass = Pass()
        #: Up to which key a shard has no row of the table without a mark, by
        #: its number; None for all keys.
        self._known: dict[int, Key | None] = {}
        self._file: PositionFile[PassPosition] | None = None
        if position is not None:
            self._file = PositionFile(
                position, self._identity(), PassPosition.from_dict
            )

    def _identity(self) -> dict[str, Any]:
        url = self._move.engine.url
        where = URL.create(
            url.get_backend_name(), host=url.host, port=url.port, database=url.database
        )
        return {
            "command": "reconcile" if self._repairs else "verify",
            # A rehearsal has the same stages, and the same numbers.
            "database": str(where),
            "round": self._now.round,
            "change of the stage": self._now.number,
            "tables": list(self._move.tables),
            "shards": [
                one.keyspace(self._move.cluster.places).shards
                for one in self._move.tables.values()
            ],
        }

    def run(self) -> Pass:
        """Compare everything, and record the result.

        :raises VerifyPositionError: if the file belongs to another pass.
        """
        position = (self._file and self._file.load()) or PassPosition()
        self._pass = position.result
        for number, (one, walk) in enumerate(self._steps()):
            if number < position.step:
                continue
            after = position.after if number == position.step else None
            for last in walk(one, after):
                if self._file is not None:
                    self._file.save(
                        PassPosition(step=number, after=last, result=self._pass)
                    )
        record_pass(self._move, self._now, self._pass)
        if self._file is not None:
            self._file.remove()
        return self._pass

    def _steps(self) -> Iterator[tuple[MovedRows, _Walk]]:
        """Yield tables with the action on their rows."""
        for one in self._move.tables.values():
            yield one, self._unmarked_rows
            yield one, self._marked_rows
            yield one, self._unknown_rows

    def _find(self, one: MovedRows, key: Key | None, ids: Key, reason: str) -> None:
        self._pass.add(DifferentRow(table=one.name, key=key, ids=ids, reason=reason))

    # -- rows that no session has written, or the backfill not reached

    def _unmarked_rows(self, one: MovedRows, after: Key | None) -> Iterator[Key]:
        has_ids = not isinstance(one, MovedLinks)
        while True:
            with snapshot(self._move.engine) as connection:
                end = one.marks.page_end(connection, after=after, limit=_PAGE)
                keys = one.marks.unmarked(
                    connection, after=after, until=end, needs_id=has_ids
                )
            for key, waits in keys.items():
                if waits:
                    self._pass.waiting += 1
                else:
                    self._find(one, key, (), "written without a mark")
            repairs = keys if self._from_legacy and self._repairs else {}
            if repairs:
                self._limit(len(repairs))
            if end or keys:
                yield end or [*keys][-1]
            self._repair_rows(one, repairs)
            if end is None:
                return
            after = end

    # -- rows that both sides should have

    def _marked_rows(self, one: MovedRows, after: Key | None) -> Iterator[Key]:
        self._known = {}
        for last, keys in self._marked_pages(one, after):
            # Before both sides are read: a row that is written while the pass
            # waits would be compared with what it was.
            for some in grouped(one, keys).values():
                self._limit(len(some))
            ours = self._converted(one, keys)
            different: dict[int, list[Key]] = {}
            for shard_id, some in grouped(one, keys).items():
                ends = None
                if isinstance(one, MovedTable):
                    # A page has all ids between its ends.
                    ends = [
                        key if key and [*grouped(one, [key])] == [shard_id] else None
                        for key in (after, last)
                    ]
                different[shard_id] = self._compare(
                    one, shard_id, {there: keys[there] for there in some}, ours, ends
                )
            yield last
            if self._from_legacy:
                self._repair_rows(one, [keys[k] for k in chain(*different.values())])
            else:
                for shard_id, some in different.items():
                    self._repair_on_shard(one, shard_id, some)
            after = last

    def _marked_pages(
        self, one: MovedRows, after: Key | None
    ) -> Iterator[tuple[Key, dict[Key, Key]]]:
        """Yield positions, and keys in the database by those on the shards."""
        while isinstance(one, MovedLinks):
            with snapshot(self._move.engine) as connection:
                keys = one.marks.keys_after(connection, after=after, limit=_PAGE)
            if not keys:
                return
            after = keys[-1]
            there = self._copier.ids.link_keys(one, keys)
            self._count_without_ends(one, [k for k in keys if k not in there])
            yield after, {there[key]: key for key in keys if key in there}
        last = 0 if after is None else after[0]
        while True:
            with snapshot(self._move.engine) as connection:
                marks = one.marks.marked(connection, after=last, limit=_PAGE)
            if not marks:
                return
            last = max(marks)
            yield ((last,), {(object_id,): key for object_id, key in marks.items()})

    def _count_without_ends(self, one: MovedRows, keys: list[Key]) -> None:
        """Count rows that wait for a row without an object id."""
        with snapshot(self._move.engine) as connection:
            marks = one.marks.marks_of(connection, keys)
        self._pass.waiting += sum(mark.waits for mark in marks.values())

    def _converted(self, one: MovedRows, keys: dict[Key, Key]) -> Seen:
        """Return rows of the database as they should be on the shards.

        Those that cannot be converted are named, and removed from the keys.

        :param keys: keys in the database by those on the shards.
        """
        there = {key: other for other, key in keys.items()}
        try:
            images = read_images(one.legacy(self._move.engine), there)
            values = self._copier.converted(one, images, there)
        except (UnclaimableRowError, ConversionError) as error:
            if len(keys) == 1:
                ((other, key),) = keys.items()
                self._find(one, key, other, str(error))
                keys.clear()
                return Seen(versions={}, rows={})
            pairs, half = list(keys.items()), len(keys) // 2
            keys.clear()
            first, second = dict(pairs[:half]), dict(pairs[half:])
            found, more = self._converted(one, first), self._converted(one, second)
            keys.update({**first, **second})
            return Seen(
                versions={**found.versions, **more.versions},
                rows={**found.rows, **more.rows},
            )
        return Seen(
            versions={key: image.version for key, image in values.items()},
            rows={
                key: image.row for key, image in values.items() if image.row is not None
            },
        )

    def _compare(
        self,
        one: MovedRows,
        shard_id: int,
        keys: Mapping[Key, Key],
        ours: Seen,
        ends: Sequence[Key | None] | None,
    ) -> list[Key]:
        """Compare rows of one shard, and name those that differ.

        :param keys: keys in the database by those on the shard.
        :param ours: the rows of the database, and those of other shards.
        :param ends: the key before the first one on the shard, and the last
            one, if others are on it; None if the keys are not in order.
        :returns: the keys of rows to repair.
        """
        part = one.on(self._move.cluster, shard_id)
        with part.begin() as connection:
            theirs = seen(part, connection, list(keys))
            # Of the same snapshot: if the number is the same, so are the rows.
            if ends and part.count(*ends) == len(theirs.rows):
                before, last = ends
                if self._known.get(shard_id) == before:
                    self._known[shard_id] = last
        result = compare(
            ours,
            theirs,
            list(keys),
            is_same=lambda *both: not any(one.conversion.differences(*both)),
        )
        self._pass.rows += len(keys)
        self._pass.waiting += len(result.waiting)
        self._name(one, keys, result, ours, theirs)
        self._on_progress(one.name, len(keys))
        return [*result.different, *result.unmarked]

    def _name(
        self,
        one: MovedRows,
        keys: Mapping[Key, Key],
        result: Comparison,
        ours: Seen,
        theirs: Seen,
    ) -> None:
        for there in (*result.different, *result.unmarked):
            row, found = ours.rows.get(there), theirs.rows.get(there)
            if row is None:
                reason = "only the shards have it"
            elif found is None:
                reason = "only the database has it"
            else:
                reason = "; ".join(
                    map(_described, one.conversion.differences(row, found))
                )
            self._find(one, keys[there], there, reason or "written without a mark")

    # -- repairs

    def _repair_rows(self, one: MovedRows, keys: Collection[Key]) -> None:
        """Make rows wait that were written without a mark, and copy them."""
        if not self._repairs or not keys:
            return
        with snapshot(self._move.engine) as connection:
            DatabaseFence().enter_as(connection, self._now)
            one.marks.raise_versions(connection, keys, number=self._now.round)
        self._copy((one, None, list(keys)))

    def _repair_on_shard(
        self, one: MovedRows, shard_id: int, keys: Collection[Key]
    ) -> None:
        if not self._repairs or not keys:
            return
        part = one.on(self._move.cluster, shard_id)
        with part.begin() as connection:
            DatabaseFence().enter_as(connection, self._now)
            part.marks.raise_versions(connection, keys, number=self._now.round)
        self._copy((one, shard_id, list(keys)))

    def _copy(self, waiting: Waiting) -> None:
        self._copier.copy_or_log(waiting, number=self._now.round)

    # -- rows of the shards that the map does not have

    def _unknown_rows(self, one: MovedRows, after: Key | None) -> Iterator[Key]:
        # Shards with few rows are looked up together.
        page: dict[int, list[Key]] = {}
        for shard_id, keys in self._pages_on_shards(one, after):
            page.setdefault(shard_id, []).extend(keys)
            if sum(map(len, page.values())) >= _PAGE:
                yield from self._check_unknown(one, page)
                page = {}
        yield from self._check_unknown(one, page)

    def _pages_on_shards(
        self, one: MovedRows, after: Key | None
    ) -> Iterator[tuple[int, list[Key]]]:
        first, *rest = after or (0,)
        last = tuple(rest) or None
        for shard_id in range(first, one.keyspace(self._move.cluster.places).shards):
            if last is None and shard_id in self._known:
                last = self._known[shard_id]
                if last is None:
                    continue
            while True:
                part = one.on(self._move.cluster, shard_id)
                with part.begin():
                    keys = part.page(last, _PAGE)
                if keys:
                    yield shard_id, keys
                if len(keys) < _PAGE:
                    break
                last = keys[-1]
            last = None

    def _check_unknown(
        self, one: MovedRows, page: Mapping[int, list[Key]]
    ) -> Iterator[Key]:
        unmarked = self._without_marks(one, list(chain(*page.values())))
        repaired = 0
        for shard_id, keys in page.items():
            unknown = [key for key in keys if key in unmarked]
            if not self._from_legacy and unknown:
                unknown = self._not_waiting(one, shard_id, unknown)
            for there in unknown:
                self._find(one, None, there, "only the shards have it")
            yield shard_id, *keys[-1]
            if not self._from_legacy:
                self._repair_on_shard(one, shard_id, unknown)
            elif self._repairs and unknown:
                self._delete(one, shard_id, unknown)
            repaired += len(unknown)
        if self._repairs and repaired:
            self._limit(repaired)

    def _without_marks(self, one: MovedRows, keys: Collection[Key]) -> set[Key]:
        known = self._copier.existing_keys(one, keys)
        if isinstance(one, MovedTable):
            # They are those of marks.
            return {key for key in keys if key not in known}
        with one_read(self._move.engine) as connection:
            marks = one.marks.marks_of(connection, set(known.values()))
        return {key for key in keys if known.get(key) not in marks}

    def _not_waiting(
        self, one: MovedRows, shard_id: int, keys: Collection[Key]
    ) -> list[Key]:
        part = one.on(self._move.cluster, shard_id)
        with part.begin() as connection:
            marks = part.marks.marks_of(connection, keys)
        waiting = {key for key, mark in marks.items() if mark.waits}
        self._pass.waiting += len(waiting)
        return [key for key in keys if key not in waiting]

    def _delete(self, one: MovedRows, shard_id: int, keys: Collection[Key]) -> None:
        """Delete rows that another program has inserted.

        A row of a copy has a mark in the database before, so these are not
        on their way, unless the application has inserted the same row since
        they were read.  A copy waits for the marks that are locked here.
        """
        part = one.on(self._move.cluster, shard_id)
        with part.begin() as connection:
            DatabaseFence().enter_as(connection, self._now)
            versions = dict.fromkeys(keys, 0)
            part.marks.receive(connection, versions, number=self._now.round)
            unmarked = self._without_marks(one, keys)
            part.delete([key for key in keys if key in unmarked])


def _described(difference: AttributeDifference) -> str:
    """Return both values; of long ones the part in which they differ."""
    texts = repr(difference.expected), repr(difference.found)
    differing = (
        at for at, (one, other) in enumerate(zip(*texts, strict=False)) if one != other
    )
    start = next(differing, min(map(len, texts))) - _SHOWN // 2
    # A pass has up to 1,000 of them, and writes them after each page.
    expected, found = (
        text if len(text) <= _SHOWN else f"...{text[max(start, 0) :][:_SHOWN]}..."
        for text in texts
    )
    return (
        f"{difference.attribute} is {expected} in the database and {found} on the shard"
    )


# -- Passes that compare the rows of both sides, and repair differences.
#
# The content of a row follows from its version.  So rows with the same version
# on both sides must be the same; if they are not, a row was written without a
# mark.  Rows with different versions are on their way, and say nothing: a later
# pass looks at them again.


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The result of comparing some rows.

    :ivar same: number of rows that are the same, or absent on both sides.
    :ivar waiting: keys of rows whose versions differ.
    :ivar different: keys of rows that differ in spite of equal versions.
    :ivar unmarked: keys of rows of either side without a mark there.
    """

    same: int
    waiting: tuple[Key, ...]
    different: tuple[Key, ...]
    unmarked: tuple[Key, ...]

    @property
    def is_equal(self) -> bool:
        """Whether no row was written without a mark."""
        return not self.different and not self.unmarked


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Marks and rows of one side, from one snapshot.

    :ivar versions: the versions of rows that have a mark, by key.
    :ivar rows: the rows that exist, by key.
    """

    versions: Mapping[Key, int]
    rows: Mapping[Key, Row]


def look(part: MarkedRows, keys: Collection[Key]) -> Seen:
    """Return the marks and rows of one side."""
    with part.begin() as connection:
        return seen(part, connection, keys)


def seen(part: MarkedRows, connection: Connection, keys: Collection[Key]) -> Seen:
    """Return the marks and rows of one side, in a transaction."""
    return Seen(
        versions=part.marks.versions_of(connection, keys),
        rows=part.read(connection, keys),
    )


def compare(
    source: Seen,
    target: Seen,
    keys: Collection[Key],
    *,
    is_same: Callable[[Row, Row], bool],
) -> Comparison:
    """Compare the rows of two sides with the same keys.

    :param keys: keys of rows of either side.
    :param is_same: whether two rows are the same.
    """
    ours, theirs = source.versions, target.versions
    same, waiting, different, unmarked = 0, [], [], []
    for key in keys:
        one, other = source.rows.get(key), target.rows.get(key)
        if (one is not None and key not in ours) or (
            other is not None and key not in theirs
        ):
            unmarked.append(key)
            continue
        if ours.get(key, 0) != theirs.get(key, 0):
            waiting.append(key)
        elif one is other or (
            one is not None and other is not None and is_same(one, other)
        ):
            same += 1
        else:
            different.append(key)
    return Comparison(
        same=same,
        waiting=tuple(waiting),
        different=tuple(different),
        unmarked=tuple(unmarked),
    )
