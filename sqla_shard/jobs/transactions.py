"""Transactions of a worker beside those of its tasks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from time import monotonic
from types import MappingProxyType
from typing import Any, TYPE_CHECKING

from sqlalchemy import bindparam, delete, literal_column, Select, union_all, update
from sqlalchemy.exc import DataError, SQLAlchemyError

from sqla_shard.dialects.sql import ServerTime
from sqla_shard.engine.unreachable import (
    each_once,
    short,
    unreachable_lines,
    UnreachableServer,
)
from sqla_shard.exc import CommitUnknownError, JobClaimLostError
from sqla_shard.jobs.claims import (
    acknowledge,
    claim,
    ClaimedJob,
    confirm,
    fail,
    free_key,
    JobState,
    locked_batch,
    MOST_IDS,
    release,
    reopened,
    RUNNING,
)
from sqla_shard.jobs.context import Ending, JobOutcome
from sqla_shard.jobs.hints import hints_of
from sqla_shard.jobs.survey import Ages, due_rows, DueGroup, windows_of
from sqla_shard.jobs.tasks import is_periodic, repeat
from sqla_shard.outbox.apply import Address, place_at
from sqla_shard.outbox.invalidations import WHICH
from sqla_shard.outbox.pending_operations import KEEP, since, WHICH_DUE, WHICH_OLD
from sqla_shard.outbox.scan import read_all
from sqla_shard.outbox.tables import JOB_KEYS, JOBS
from sqla_shard.session import ShardSession
from sqla_shard.util.logs import careful_log

if TYPE_CHECKING:
    from sqla_shard import Cluster

# -- Recovery of expired claims, and deletion of old jobs, on every shard.
#
# Every worker looks for them, with the same statements as for work; one at
# a time changes a shard: the others find its lock taken, and go on.  Rows
# are changed in batches, each in a transaction of its own.

#: The retention time of jobs that have succeeded.
KEEP_DONE = timedelta(days=1)

#: The retention time of failed jobs.
KEEP_FAILED = timedelta(days=7)


@dataclass(frozen=True, kw_only=True)
class CleanupReport:
    """The result of one pass.

    :ivar due: where jobs were due before, if that was looked for.
    :ivar recovered: number of jobs whose claims had expired.
    :ivar deleted: number of finished jobs that were deleted.
    :ivar unreachable: servers of which shards could not be read or written.
    """

    due: tuple[DueGroup, ...]
    recovered: int
    deleted: int
    unreachable: tuple[UnreachableServer, ...]

    @property
    def ok(self) -> bool:
        """Whether every server was read and written."""
        return not self.unreachable


def clean_up(
    cluster: Cluster,
    queues: Collection[str],
    *,
    keep_done: timedelta = KEEP_DONE,
    keep_failed: timedelta = KEEP_FAILED,
    looks: bool = False,
) -> CleanupReport:
    """Recover jobs with expired claims and delete old jobs, on all shards.

    Workers are notified of the jobs that were recovered.

    :param queues: names of queues.
    :param keep_done: time for which jobs that have succeeded are kept.
    :param keep_failed: time for which failed jobs are kept.
    :param looks: whether the same statement also looks for due jobs.
    :raises UnsafeBinaryLogError: if a server has a binary log of statements.
    """
    ages: dict[JobState, timedelta] = {}
    if looks:
        ages[JobState.PENDING] = timedelta(0)
    ages |= {
        JobState.RUNNING: timedelta(0),
        JobState.DONE: keep_done,
        JobState.FAILED: keep_failed,
    }
    groups, unreachable = due_rows(cluster, queues, ages, checks_logs=True)
    counts = dict.fromkeys(JobState, 0)
    due: list[DueGroup] = []
    by_shard: dict[tuple[str, int], list[DueGroup]] = {}
    for group in groups:
        if group.state is JobState.PENDING:
            due.append(group)
        else:
            by_shard.setdefault(group.address, []).append(group)
    for address, its in by_shard.items():
        try:
            _clean_shard(cluster, its, ages, counts)
        except SQLAlchemyError as error:
            unreachable.append(UnreachableServer.at(cluster.places, address, error))
    return CleanupReport(
        due=tuple(due),
        recovered=counts[JobState.RUNNING],
        deleted=counts[JobState.DONE] + counts[JobState.FAILED],
        unreachable=each_once(unreachable),
    )


def _clean_shard(
    cluster: Cluster,
    groups: Iterable[DueGroup],
    ages: Ages,
    counts: dict[JobState, int],
) -> None:
    """Change the due rows of a shard until there are none, or it is locked.

    :param counts: is increased by the number of changed rows.
    """
    for group in groups:
        count: int | None = MOST_IDS
        while count is not None and count >= MOST_IDS:
            count = cluster.run(_change, group, ages[group.state])
            counts[group.state] += count or 0
            if count and group.state is JobState.RUNNING:
                # A look for work may be made before, and the next one late.
                pending = replace(group, state=JobState.PENDING)
                hints_of(cluster).publish(frozenset([pending]))


def _change(session: ShardSession, group: DueGroup, age: timedelta) -> int | None:
    """Change one batch of rows.

    :returns: the number of rows; None if another process does the same.
    """
    place = place_at(session, group.address)
    connection = session.root_connection(place)
    place.backend.begin_skipping(connection)
    name = f"sqla_shard_job {place.schema}"
    if not place.backend.try_lock(connection, name):
        return None
    try:
        return _change_locked(session, group, age)
    finally:
        # After an error the connection, which has the lock, is closed.
        if not connection.invalidated:
            place.backend.unlock(connection, name)


_job = JOBS.c

_DUE = locked_batch(_job.id, _job.unique_key, _job.attempts, _job.max_attempts)

_RECOVER = (
    update(JOBS)
    .where(
        _job.id == bindparam("the_id"),
        _job.state == RUNNING,
        _job.due_at <= ServerTime(),
    )
    .values(reopened(ServerTime(), JOBS.c.token))
)

_DELETE = delete(JOBS).where(
    _job.id.in_(bindparam("ids", expanding=True)), _job.state == bindparam("state")
)

_LOST = "its claim has expired: the worker was killed, or has hung"


def _change_locked(session: ShardSession, group: DueGroup, age: timedelta) -> int:
    at = {"place": place_at(session, group.address)}
    what: dict[str, Any] = {
        "state": group.state.value,
        "queue": group.queue,
        "priority": group.priority,
        "batch": MOST_IDS,
        "since": age // timedelta(microseconds=-1),
    }
    rows = session.execute(_DUE, what, bind_arguments=at).all()
    if group.state is JobState.RUNNING:
        return sum(_recover(session, at, row) for row in rows)
    if not rows:
        return 0
    values: dict[str, Any] = {
        "ids": sorted(row.id for row in rows),
        "state": group.state.value,
    }
    result: Any = session.execute(_DELETE, values, bind_arguments=at)
    count: int = result.rowcount
    return count


@dataclass(frozen=True)
class _Lost:
    """A job whose claim has expired, and the count that is known of it.

    Of the last attempt: whether its key was enqueued before or after the
    claim is unknown, and no duplicate must be dropped.
    """

    local_id: int
    unique_key: bytes | None
    duplicates: int = 0


_START_COUNT = (
    update(JOB_KEYS)
    .where(JOB_KEYS.c.unique_key == bindparam("the_key"))
    .values(duplicates=0)
)


def _recover(session: ShardSession, at: dict[str, Any], row: Any) -> int:
    """Reopen a job, or let it fail; return 1 if it was changed."""
    attempts = row.attempts
    ends = attempts >= row.max_attempts
    if ends and not free_key(session, at, _Lost(row.id, row.unique_key)):
        ends, attempts = False, 0
        # Otherwise a job that kills each worker would run for ever.
        session.execute(_START_COUNT, {"the_key": row.unique_key}, bind_arguments=at)
    values = {
        "the_id": row.id,
        "the_error": _LOST,
        "the_attempts": attempts,
        "ends": ends,
    }
    result: Any = session.execute(_RECOVER, values, bind_arguments=at)
    count: int = result.rowcount
    return count


# -- Delivery of pending operations and cache invalidations.
#
# A worker does it in addition to its jobs, with `Worker(delivers=True)`:
# one daemon to deploy, not three.  One statement for a server looks for all
# of them; only where something is found do the passes of `sqla-shard
# repair` and `sqla-shard cache repair` follow.


@dataclass(kw_only=True)
class DeliveryReport:
    """The result of one pass.

    :ivar applied: number of operations that were applied.
    :ivar invalidated: number of keys of caches that were invalidated.
    :ivar problems: a line for each failed or unknown operation, each region
        whose node does not respond or that is not configured, and each server
        that could not be read or written.
    """

    applied: int = 0
    invalidated: int = 0
    problems: list[str] = field(default_factory=list)


_OPERATIONS, _INVALIDATIONS = 1, 2


def _kind(statement: Select[int], kind: int) -> Select[int]:
    return statement.add_columns(literal_column(str(kind)).label("kind"))


#: The shards with due operations, old tokens or pending invalidations.
_WHICH = union_all(
    _kind(WHICH_DUE, _OPERATIONS),
    _kind(WHICH_OLD, _OPERATIONS),
    _kind(WHICH, _INVALIDATIONS),
)


def deliver(cluster: Cluster) -> DeliveryReport:
    """Apply due operations and pending invalidations, on all shards, once.

    Invalidations are left to others, and reported, if the cluster has no
    cache.
    """
    rows, unreachable = read_all(cluster, _WHICH, _WHICH, since(KEEP))
    report = DeliveryReport(problems=unreachable_lines(unreachable))
    kinds = {row.kind for _, row in rows}
    if _OPERATIONS in kinds:
        done = cluster.repair()
        report.applied = done.applied
        report.problems = [
            *unreachable_lines(done.unreachable),
            *done.failed,
            *(
                f"operation {name!r} is not defined in this process"
                for name in sorted({one.operation for one in done.unknown})
            ),
        ]
    if _INVALIDATIONS in kinds and cluster.cache is None:
        report.problems.append(
            "invalidations of a cache are pending, and the cluster of this "
            "process has none: configure it, or run sqla-shard cache repair"
        )
    elif _INVALIDATIONS in kinds:
        drained = cluster.repair_cache()
        report.invalidated = drained.removed
        report.problems += [
            *(
                f"region {one.region!r}: a node of the cache does not respond"
                for one in drained.left
            ),
            *(
                f"region {one.region!r} of the cache is not configured"
                for one in drained.unknown
            ),
            *(
                one
                for one in unreachable_lines(drained.unreachable)
                if one not in report.problems
            ),
        ]
    return report


_log = careful_log(__name__)


# -- One transaction of a worker on a shard: outcomes go, new jobs come.
#
# Acknowledgements ride with the next claim on their shard: a worker that is
# busy sends one transaction for a batch of jobs.


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """The result of a transaction.

    :ivar claimed: the new jobs.
    :ivar emptied: the groups that have had fewer jobs than asked for.
    :ivar lost: the jobs whose outcomes were refused: their claims are lost.
    """

    claimed: list[ClaimedJob]
    emptied: list[DueGroup]
    lost: list[str]


def exchange(
    session: ShardSession,
    address: Address,
    outcomes: Sequence[JobOutcome],
    groups: Iterable[DueGroup],
    limit: int,
    allowed: Mapping[str, int],
    lease: float,
) -> Exchange:
    """Write the outcomes of jobs of a shard, and claim others.

    :param groups: where to claim, in this order.
    :param limit: maximum number of claimed jobs.
    :param allowed: the same for each queue.
    :param lease: seconds until the claims expire.
    """
    place = place_at(session, address)
    place.backend.begin_skipping(session.root_connection(place))
    lost = _write(session, outcomes)
    claimed: list[ClaimedJob] = []
    emptied: list[DueGroup] = []
    room = dict(allowed)
    for group in groups:
        wanted = min(limit - len(claimed), room[group.queue])
        if wanted < 1:
            continue
        taken = claim(session, place, group.queue, group.priority, wanted, lease=lease)
        claimed += taken
        room[group.queue] -= len(taken)
        if len(taken) < wanted:
            emptied.append(group)
    return Exchange(claimed=claimed, emptied=emptied, lost=lost)


def _write(session: ShardSession, outcomes: Sequence[JobOutcome]) -> list[str]:
    """Write outcomes; return the jobs whose claims are lost."""
    lost: list[str] = []
    done: list[ClaimedJob] = []
    others: list[JobOutcome] = []
    for one in outcomes:
        if one.ending is Ending.SUCCEEDED and not is_periodic(one.job):
            done.append(one.job)
        else:
            others.append(one)
    if done:
        try:
            acknowledge(session, done)
        except JobClaimLostError as error:
            lost += error.jobs
    # In one order: otherwise two workers could deadlock.
    for one in sorted(others, key=lambda outcome: outcome.job.local_id):
        try:
            if is_periodic(one.job) and _ends(one):
                repeat(session, one.job, one.error or None)
            elif one.ending is Ending.FAILED:
                fail(session, one.job, one.error, one.delay, is_final=one.is_final)
            elif one.ending in (Ending.UNKNOWN, Ending.RELEASED):
                release(session, one.job, delay=one.delay, error=one.error)
        except JobClaimLostError as error:
            lost += error.jobs
    return lost


def _ends(outcome: JobOutcome) -> bool:
    """Return whether no attempt follows."""
    if outcome.ending is Ending.FAILED:
        return outcome.is_final or outcome.job.attempt >= outcome.job.max_attempts
    return outcome.ending is Ending.SUCCEEDED


#: Seconds after which no further attempt of a transaction begins: the worker
#: has other shards.
_TIMEOUT = 2.0

_PAUSE = 0.2

_REFUSED = "the server has refused the text of the error"


@dataclass(kw_only=True)
class _Doubt:
    """A transaction whose COMMIT has an unknown outcome.

    :ivar claimed: the jobs that it has claimed, if it was committed.
    :ivar outcomes: what else it has written.
    :ivar expires: when the claims expire, by the monotonic clock.
    """

    claimed: list[ClaimedJob]
    outcomes: list[JobOutcome]
    expires: float
    next_try: float = 0.0


class Exchanges:
    """The transactions of a worker, and the outcomes that they have to write.

    :param lease: seconds until claims expire.
    """

    def __init__(self, cluster: Cluster, lease: float) -> None:
        self._cluster = cluster
        self._lease = lease
        self._windows = windows_of(cluster)
        self._waiting: dict[Address, list[JobOutcome]] = {}
        self._doubts: list[_Doubt] = []
        self._oldest = 0.0

    @property
    def has_outcomes(self) -> bool:
        """Whether there are outcomes to be written."""
        return bool(self._waiting)

    @property
    def has_doubts(self) -> bool:
        """Whether the outcome of a transaction is unknown."""
        return bool(self._doubts)

    @property
    def age(self) -> float:
        """Seconds for which the oldest outcome has waited."""
        return monotonic() - self._oldest if self._waiting else 0.0

    def add(self, outcome: JobOutcome) -> None:
        """Let the next transaction on the shard write an outcome."""
        if not self._waiting:
            self._oldest = monotonic()
        self._waiting.setdefault(outcome.job.address, []).append(outcome)

    def _add_again(self, outcomes: Iterable[JobOutcome]) -> None:
        # Until its claim has expired, no other worker runs the job.
        for one in outcomes:
            self.add(one)

    def send(
        self,
        address: Address,
        groups: Sequence[DueGroup] = (),
        limit: int = 0,
        allowed: Mapping[str, int] = MappingProxyType({}),
    ) -> Exchange | None:
        """Send a transaction; return None if the shard cannot be used now.

        Outcomes that could not be written wait for another one.

        :param groups: where to claim.
        :param limit: maximum number of claimed jobs.
        :param allowed: the same for each queue.
        """
        places = self._cluster.places
        keyspace, shard_id = address
        outcomes = self._waiting.pop(address, [])
        tried: list[Exchange] = []

        def attempt(session: ShardSession) -> Exchange:
            tried[:] = [
                exchange(
                    session, *(address, outcomes, groups, limit, allowed, self._lease)
                )
            ]
            return tried[0]

        expires = monotonic() + self._lease
        failure: SQLAlchemyError | None = None
        try:
            space = places.topology.keyspace(keyspace)
            engine = places.place(space, shard_id).engine
            if not self._windows.allows(engine):
                self._add_again(outcomes)
                return None
            try:
                return self._cluster.run(attempt, timeout=_TIMEOUT)
            except SQLAlchemyError as error:
                failure = error
                raise
            finally:
                self._windows.record(engine, failure)
        except CommitUnknownError:
            if tried and tried[0].claimed:
                self._doubts.append(
                    _Doubt(claimed=tried[0].claimed, outcomes=outcomes, expires=expires)
                )
                return None
        except SQLAlchemyError as error:
            _log.warning(
                "shard %d of %s cannot be used now: %s",
                *(shard_id, keyspace, short(error)),
                extra={"action": "claim"},
            )
            if isinstance(error, DataError):
                # Otherwise one error's text would stop its shard for ever.
                outcomes = [
                    replace(one, error=one.error and _REFUSED) for one in outcomes
                ]
        self._add_again(outcomes)
        return None

    def send_all(self) -> tuple[list[str], int]:
        """Write all outcomes.

        :returns: the jobs whose claims are lost, and the number of shards
            that were written.
        """
        lost: list[str] = []
        count = 0
        for address in list(self._waiting):
            failed = self.send(address)
            if failed is not None:
                lost += failed.lost
                count += 1
        # Do not retry immediately outcomes that could not be written.
        self._oldest = monotonic() + _PAUSE
        return lost, count

    def settle(self) -> list[tuple[list[ClaimedJob], float]]:
        """Look up the outcome of a COMMIT; return the jobs that were claimed.

        Without it they would wait until their claims expire.

        :returns: jobs, and when their claims expire.
        """
        settled: list[tuple[list[ClaimedJob], float]] = []
        for doubt in list(self._doubts):
            now = monotonic()
            if now < doubt.next_try:
                continue
            doubt.next_try = now + _PAUSE
            try:
                claimed = self._cluster.run(confirm, doubt.claimed, attempts=1)
            except SQLAlchemyError as error:
                if now < doubt.expires:
                    continue
                _log.warning(
                    "whether %d jobs were claimed is unknown; they are run again: %s",
                    *(len(doubt.claimed), short(error)),
                    extra={"action": "claim"},
                )
                claimed = []
            self._doubts.remove(doubt)
            if claimed:
                settled.append((claimed, doubt.expires))
            else:
                self._add_again(doubt.outcomes)
        return settled
