"""Changes of stored jobs by an operator: to run failed jobs again, to delete.

A batch is one transaction of one shard.  Rows are updated by primary key and
only if they still have their state, so workers may run at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TYPE_CHECKING

from sqlalchemy import bindparam, delete, or_, select, update
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.dialects.sql import ServerTime
from sqla_shard.engine.unreachable import unreachable_values, UnreachableServer
from sqla_shard.exc import JobOptionError
from sqla_shard.jobs.claims import JobState, PENDING, using_index
from sqla_shard.jobs.enqueue import check_queue, take_key
from sqla_shard.jobs.stored_jobs import job_address
from sqla_shard.jobs.survey import due_rows, DueGroup
from sqla_shard.outbox.apply import Address, place_at
from sqla_shard.outbox.tables import JOB_KEYS, JOBS
from sqla_shard.session import ShardSession

if TYPE_CHECKING:
    from sqla_shard import Cluster

#: Number of jobs that a transaction changes.
_BATCH = 500
#: Selects pending jobs that are due at any time.
_ANY_TIME = timedelta(days=-36_500)
_FIRST = datetime(1971, 1, 1)  # UTC, as it is stored
_LAST = datetime(9000, 1, 1)  # likewise
#: The states of jobs that can be deleted: a running one is its holder's.
DELETABLE = (JobState.PENDING, JobState.DONE, JobState.FAILED)


@dataclass(kw_only=True)
class ChangeReport:
    """Report of a change of stored jobs.

    :ivar changed: number of jobs that were changed; in a dry run, that would
        be.
    :ivar skipped: a line for each job that was not changed.
    :ivar unreachable: servers of which shards could not be read or written.
    """

    changed: int = 0
    skipped: list[str] = field(default_factory=list)
    unreachable: list[UnreachableServer] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        return {**vars(self), "unreachable": unreachable_values(self.unreachable)}


_job = JOBS.c
_ids: Any = bindparam("ids", expanding=True)
_moment = _job.due_at.type


def _by_id(statement: Any) -> Any:
    """Return a locking SELECT of rows by primary key."""
    for name in ("mysql", "mariadb"):
        statement = statement.with_hint(JOBS, "FORCE INDEX (PRIMARY)", name)
    return statement.order_by(_job.id).with_for_update()


_after: Any = bindparam("after", type_=_moment)
_WALK = (
    using_index(
        select(_job.id, _job.task, _job.due_at).where(
            _job.state == bindparam("state"),
            _job.queue == bindparam("queue"),
            _job.priority == bindparam("priority"),
            _job.due_at >= _after,
            or_(_job.due_at > _after, _job.id > bindparam("after_id")),
            _job.due_at <= bindparam("until", type_=_moment),
        )
    )
    .order_by(_job.due_at, _job.id)
    .limit(_BATCH)
)
_LOCK = _by_id(
    select(_job.id, _job.task, _job.state, _job.unique_key).where(_job.id.in_(_ids))
)
_RETRY = (
    update(JOBS)
    .where(_job.id.in_(_ids))
    .values(state=PENDING, due_at=ServerTime(), attempts=0, token=None)
)
_DELETE = delete(JOBS).where(_job.id.in_(_ids))
_DELETE_KEYS = delete(JOB_KEYS).where(
    JOB_KEYS.c.unique_key.in_(bindparam("keys", expanding=True)),
    JOB_KEYS.c.job_id.in_(_ids),
)

#: Changes locked rows of a shard; returns why some were not changed, by id.
_Change = Callable[[ShardSession, dict[str, Any], Sequence[Any]], dict[int, str]]


def _retry(
    session: ShardSession, at: dict[str, Any], rows: Sequence[Any]
) -> dict[int, str]:
    """Make failed jobs pending, with all their attempts."""
    skipped = {}
    for row in rows:
        if row.unique_key is None:
            continue
        holder = take_key(session, at, row.unique_key, row.id)
        if holder != row.id:
            skipped[row.id] = f"job {holder} of the shard has its unique key"
    ids = [row.id for row in rows if row.id not in skipped]
    if ids:
        session.execute(_RETRY, {"ids": ids}, bind_arguments=at)
    return skipped


def _delete(
    session: ShardSession, at: dict[str, Any], rows: Sequence[Any]
) -> dict[int, str]:
    """Delete jobs, and their unique keys."""
    ids = [row.id for row in rows]
    keys = sorted(row.unique_key for row in rows if row.unique_key is not None)
    if keys:
        session.execute(_DELETE_KEYS, {"keys": keys, "ids": ids}, bind_arguments=at)
    session.execute(_DELETE, {"ids": ids}, bind_arguments=at)
    return {}


def retry_jobs(
    cluster: Cluster, job_ids: Iterable[str], *, dry_run: bool = False
) -> ChangeReport:
    """Make failed jobs pending, with all their attempts.

    A job whose unique key another job has by now stays as it is.

    :param job_ids: keyspace, shard and number of each, such as
        ``objects/7/1234``.
    :param dry_run: whether nothing is written.
    :raises JobOptionError: if an id is not of this form.
    """
    change = None if dry_run else _retry
    return _change_ids(cluster, job_ids, (JobState.FAILED,), change)


def delete_jobs(
    cluster: Cluster, job_ids: Iterable[str], *, dry_run: bool = False
) -> ChangeReport:
    """Delete jobs that are not running.

    :param job_ids: keyspace, shard and number of each.
    :param dry_run: whether nothing is written.
    :raises JobOptionError: if an id is not of this form.
    """
    change = None if dry_run else _delete
    return _change_ids(cluster, job_ids, DELETABLE, change)


def retry_failed(
    cluster: Cluster, queue: str, *, task: str | None = None, dry_run: bool = False
) -> ChangeReport:
    """Make the failed jobs of a queue pending, with all their attempts.

    :param task: only those of this task.
    :param dry_run: whether nothing is written.
    :raises JobOptionError: if the name of the queue is not valid.
    """
    change = None if dry_run else _retry
    return _change_queue(cluster, queue, (JobState.FAILED,), task, change)


def delete_of(
    cluster: Cluster,
    queue: str,
    states: Collection[JobState],
    *,
    task: str | None = None,
    dry_run: bool = False,
) -> ChangeReport:
    """Delete the jobs of a queue with some states.

    :param states: any of them but RUNNING.
    :param task: only those of this task.
    :param dry_run: whether nothing is written.
    :raises JobOptionError: if the name of the queue, or a state, is not
        valid.
    """
    for state in states:
        if state not in DELETABLE:
            raise JobOptionError(
                "a running job cannot be deleted: its worker would run it to "
                "the end. Stop the workers, and wait until it is pending",
                option="state",
                value=state.name.lower(),
            )
    change = None if dry_run else _delete
    return _change_queue(cluster, queue, states, task, change)


def _change_ids(
    cluster: Cluster,
    job_ids: Iterable[str],
    states: Collection[JobState],
    change: _Change | None,
) -> ChangeReport:
    by_shard: dict[Address, set[int]] = {}
    for job_id in job_ids:
        address, number = job_address(job_id)
        by_shard.setdefault(address, set()).add(number)
    report = ChangeReport()
    for address, numbers in by_shard.items():
        ids = sorted(numbers)
        try:
            count, why = cluster.run(_change, address, ids, states, change)
        except SQLAlchemyError as error:
            report.unreachable.append(
                UnreachableServer.at(cluster.places, address, error)
            )
            continue
        report.changed += count
        report.skipped += why
    return report


def _change_queue(
    cluster: Cluster,
    queue: str,
    states: Collection[JobState],
    task: str | None,
    change: _Change | None,
) -> ChangeReport:
    check_queue(queue)
    groups, unreachable = due_rows(cluster, [queue], dict.fromkeys(states, _ANY_TIME))
    report = ChangeReport(unreachable=unreachable)
    for group in groups:
        try:
            for ids in _batches(cluster, group, task):
                count, why = cluster.run(
                    _change, group.address, ids, [group.state], change
                )
                report.changed += count
                report.skipped += why
        except SQLAlchemyError as error:
            report.unreachable.append(
                UnreachableServer.at(cluster.places, group.address, error)
            )
    return report


def _batches(
    cluster: Cluster, group: DueGroup, task: str | None
) -> Iterator[list[int]]:
    """Yield the numbers of the jobs of a group that exist now, in batches."""
    until = _LAST
    if group.state is JobState.FAILED:
        # Jobs that are retried and fail again meanwhile are not.
        until = cluster.run(_now, group.address)
    after, after_id = _FIRST, 0
    while True:
        values = {
            "state": group.state.value,
            "queue": group.queue,
            "priority": group.priority,
            "after": after,
            "after_id": after_id,
            "until": until,
        }
        rows = cluster.run(_walk, group.address, values)
        if ids := [row.id for row in rows if task in (None, row.task)]:
            yield ids
        if len(rows) < _BATCH:
            return
        after, after_id = rows[-1].due_at, rows[-1].id


def _now(session: ShardSession, address: Address) -> datetime:
    at = {"place": place_at(session, address)}
    now: datetime = session.scalars(select(ServerTime()), bind_arguments=at).one()
    return now.replace(tzinfo=None)


def _walk(session: ShardSession, address: Address, values: dict[str, Any]) -> list[Any]:
    at = {"place": place_at(session, address)}
    return list(session.execute(_WALK, values, bind_arguments=at))


def _change(
    session: ShardSession,
    address: Address,
    ids: Sequence[int],
    states: Collection[JobState],
    change: _Change | None,
) -> tuple[int, list[str]]:
    """Change one batch of a shard, those that have one of some states.

    :returns: the number of changed jobs, and a line for each other one.
    """
    place = place_at(session, address)
    place.backend.begin_skipping(session.root_connection(place))
    at = {"place": place}
    rows = session.execute(_LOCK, {"ids": ids}, bind_arguments=at).all()
    found = {row.id: JobState(row.state) for row in rows}
    why = {
        number: f"is {found[number].name.lower()}"
        if number in found
        else "is not there"
        for number in ids
        if found.get(number) not in states
    }
    good = [row for row in rows if row.id not in why]
    if good and change is not None:
        why.update(change(session, at, good))
    name = f"{place.keyspace}/{place.shard_id}"
    lines = [f"{name}/{number} {text}" for number, text in why.items()]
    return len(ids) - len(why), lines
