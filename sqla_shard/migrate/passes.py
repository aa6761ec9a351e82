"""Passes over all rows of a move: backfill, reconciliation, verification.

All of them can be interrupted, and started again: what was copied is in the
marks, and a position file has how far rows were compared.  Rows are read in
the order of their object ids, so that a page has rows of few shards.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial

from sqla_shard.cluster.retries import repeat, Retries
from sqla_shard.dialects import backend_for
from sqla_shard.exc import StageRefusedError
from sqla_shard.migrate.copying import claim_page, Claimed
from sqla_shard.migrate.fences import DatabaseFence
from sqla_shard.migrate.full_pass import FullPass
from sqla_shard.migrate.lag import lag_guard
from sqla_shard.migrate.mark_tables import Key, KeyPart
from sqla_shard.migrate.move import Move
from sqla_shard.migrate.pass_reports import Pass
from sqla_shard.migrate.stages import Progress
from sqla_shard.migrate.tables import MovedRows, MovedTable
from sqla_shard.migrate.waiting import Waiting
from sqla_shard.util.pace import Throttle

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
    :raises MoveSetupError: if ``max_lag`` is given, and there is no replica.
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
            left = move.copier.copy_or_log(waiting, number=now.round)
            on_progress(waiting[0].name, len(waiting[2]))
            return left

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

    :raises MoveSetupError: if ``max_lag`` is given, and there is no replica.
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
    :param on_progress: as for :func:`verify`.
    :param on_pass: called after each pass.
    :returns: the last pass.
    :raises StageRefusedError: if the stage copies nothing.
    :raises StageChangedError: if the stage changes meanwhile.
    :raises MoveSetupError: as for :func:`backfill`.
    :raises FleetSetupError: if the lag of a replica cannot be read.
    :raises VerifyPositionError: as for :func:`verify`.
    """
    now = _stage(move, "reconcile")
    limit = _limit(move, rate, max_lag)
    found = Pass()
    for _ in range(passes):
        found = FullPass(
            move, now, limit, on_progress, repairs=True, position=position
        ).run()
        on_pass(found)
        if found.is_equal:
            break
    return found
