"""Recovery of expired claims, and deletion of old jobs, on every shard.

Every worker looks for them, with the same statements as for work; one at a
time changes a shard: the others find its lock taken, and go on.  Rows are
changed in batches, each in a transaction of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TYPE_CHECKING

from sqlalchemy import bindparam, delete, update
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.dialects.sql import ServerTime
from sqla_shard.engine.unreachable import each_once, UnreachableServer
from sqla_shard.jobs.claims import JobState, locked_batch, reopened, RUNNING
from sqla_shard.jobs.survey import Ages, due_rows, DueGroup
from sqla_shard.jobs.unique_keys import free_key
from sqla_shard.outbox.apply import place_at
from sqla_shard.outbox.tables import JOB_KEYS, JOBS
from sqla_shard.session import ShardSession

if TYPE_CHECKING:
    from sqla_shard import Cluster

#: The retention time of jobs that have succeeded.
KEEP_DONE = timedelta(days=1)
#: The retention time of failed jobs.
KEEP_FAILED = timedelta(days=7)
#: Maximum number of rows that a transaction changes.
_BATCH = 1000


@dataclass(frozen=True, kw_only=True)
class CleanupReport:
    """The result of one pass.

    :ivar recovered: number of jobs whose claims had expired.
    :ivar deleted: number of finished jobs that were deleted.
    :ivar unreachable: servers of which shards could not be read or written.
    """

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
) -> CleanupReport:
    """Recover jobs with expired claims and delete old jobs, on all shards.

    :param queues: names of queues.
    :param keep_done: time for which jobs that have succeeded are kept.
    :param keep_failed: time for which failed jobs are kept.
    """
    ages = {
        JobState.RUNNING: timedelta(0),
        JobState.DONE: keep_done,
        JobState.FAILED: keep_failed,
    }
    groups, unreachable = due_rows(cluster, queues, ages)
    counts = dict.fromkeys(JobState, 0)
    by_shard: dict[tuple[str, int], list[DueGroup]] = {}
    for group in groups:
        by_shard.setdefault(group.address, []).append(group)
    for address, its in by_shard.items():
        try:
            _clean_shard(cluster, its, ages, counts)
        except SQLAlchemyError as error:
            unreachable.append(UnreachableServer.at(cluster.places, address, error))
    return CleanupReport(
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
        found: int | None = _BATCH
        while found is not None and found >= _BATCH:
            found = cluster.run(_change, group, ages[group.state])
            counts[group.state] += found or 0


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
        "batch": _BATCH,
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
