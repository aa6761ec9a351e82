"""Jobs as they are stored: by id, by unique key, or those of a queue.

Every read is answered by an index, with one statement for a server.  Of each
shard and state at most :data:`MOST_EXAMINED` jobs of a queue are read, so a
search for a task ends also with a backlog of millions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, ClassVar, TYPE_CHECKING

from sqlalchemy import bindparam, delete, or_, select, String, type_coerce, update
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.dialects.sql import ServerTime
from sqla_shard.engine.rendering import Place
from sqla_shard.engine.unreachable import ShardsReport, UnreachableServer
from sqla_shard.exc import JobOptionError
from sqla_shard.jobs.claims import (
    BY_KEY,
    JobState,
    PENDING,
    readable,
    using_index,
    with_hint,
)
from sqla_shard.jobs.enqueue import check_queue, hint_after_commit, stored_key, take_key
from sqla_shard.jobs.survey import due_rows, DueGroup
from sqla_shard.jobs.tasks import task_names
from sqla_shard.outbox.apply import Address, place_at
from sqla_shard.outbox.scan import scan
from sqla_shard.outbox.tables import JOB_KEYS, JOBS
from sqla_shard.session import ShardSession
from sqla_shard.types import UTCTimestamp
from sqla_shard.util.json_values import JsonObject

if TYPE_CHECKING:
    from sqla_shard import Cluster

#: Maximum number of jobs that are read of a shard, a state and a queue.
MOST_EXAMINED = 10_000

_ADDRESS = re.compile(r"(.+)/([0-9]{1,5})/([0-9]{1,19})")

#: Of the type BIGINT.
_HIGHEST_ID = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class StoredJob(JsonObject):
    """A row of the table of jobs.

    :ivar keyspace: keyspace of its shard.
    :ivar shard_id: number of its shard.
    :ivar local_id: its number on that shard.
    :ivar task: name of its task.
    :ivar queue: its queue.
    :ivar priority: 1 to 3; 1 is the most urgent.
    :ivar state: its state.
    :ivar due_at: the time at which a pending job may run, a claim expires, or
        a job has finished; by the clock of the server.
    :ivar created_at: the time at which it was enqueued.
    :ivar attempts: number of attempts that have begun, and of those before the
        last one that a worker has claimed.
    :ivar max_attempts: maximum number of attempts.
    :ivar unique_key: its unique key; None if it has none.
    :ivar error: the error of the last attempt, or why the row cannot be read;
        None if there is none.
    :ivar arguments: its arguments, by name; empty if they cannot be read.
    :ivar checkpoint: its progress; None if there is none, or it cannot be read.
    """

    derived: ClassVar[tuple[str, ...]] = ("id",)

    keyspace: str
    shard_id: int
    local_id: int
    task: str
    queue: str
    priority: int
    state: JobState
    due_at: datetime
    created_at: datetime
    attempts: int
    max_attempts: int
    unique_key: str | None
    error: str | None
    arguments: Mapping[str, Any]
    checkpoint: Any

    @property
    def address(self) -> Address:
        """The keyspace and the number of the shard."""
        return self.keyspace, self.shard_id

    @property
    def is_known(self) -> bool:
        """Whether the task is defined in this process."""
        return self.task in task_names()

    @property
    def id(self) -> str:
        """Keyspace, shard and number, as text."""
        return f"{self.keyspace}/{self.shard_id}/{self.local_id}"

    def __str__(self) -> str:
        when = {JobState.PENDING: "due at", JobState.RUNNING: "claimed until"}.get(
            self.state, "since"
        )
        key = f", key {self.unique_key}" if self.unique_key else ""
        error = f": {self.error}" if self.error else ""
        return (
            f"{self.id} {self.task}, queue {self.queue}, priority "
            f"{self.priority}{key}, {self.state.name.lower()} {when} "
            f"{self.due_at:%Y-%m-%d %H:%M:%S} UTC, attempt {self.attempts} "
            f"of {self.max_attempts}{error}"
        )


@dataclass(frozen=True, kw_only=True)
class JobPage:
    """The result of a search.

    :ivar jobs: the jobs, by state, priority and the time at which they are
        due, or have finished.
    :ivar is_complete: whether there are no more.
    :ivar unreachable: the servers that were not read.
    """

    jobs: list[StoredJob]
    is_complete: bool
    unreachable: list[UnreachableServer]


def job_address(text: str) -> tuple[Address, int]:
    """Return the shard of a job and its number there.

    :param text: keyspace, shard and number, such as ``objects/7/1234``.
    :raises JobOptionError: if it is not of this form.
    """
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match[3]) > _HIGHEST_ID:
        raise JobOptionError(
            "the id of a job is its keyspace, shard and number, such as objects/7/1234",
            option="id",
            value=text,
        )
    return (match[1], int(match[2])), int(match[3])


def _found_address(cluster: Cluster, job_id: str) -> tuple[Address, int]:
    """Return the shard of a job, which is open, and its number there."""
    address, local_id = job_address(job_id)
    places, (keyspace, shard_id) = cluster.places, address
    space = places.topology.keyspace(keyspace)
    if space.kind != "objects":
        raise JobOptionError(
            "jobs are in keyspaces of objects", option="id", value=job_id
        )
    places.place(space, shard_id)
    return address, local_id


_job = JOBS.c

_TIMES = ("due_at", "created_at")

_COLUMNS = [
    type_coerce(c, UTCTimestamp()).label(c.name) if c.name in _TIMES else c
    for c in JOBS.c
    if c.name not in ("token", "context")
]

_ONE = select(*_COLUMNS).where(_job.id == bindparam("the_id"))

_BY_KEY = (
    select(*_COLUMNS)
    .join_from(JOB_KEYS, JOBS, _job.id == JOB_KEYS.c.job_id)
    .where(JOB_KEYS.c.unique_key == bindparam("the_key"))
)


# Subqueries with a LIMIT: unlike a statement with one, UNION ALL can combine
# them for many shards.
_first = (
    using_index(
        select(_job.id, _job.task).where(
            _job.state == bindparam("state"), _job.queue == bindparam("queue")
        )
    )
    .order_by(_job.priority, _job.due_at, _job.id)
    .limit(bindparam("examined"))
    .subquery("first")
)

_task: Any = bindparam("task", type_=String())

_found = (
    select(_first.c.id)
    .where(or_(_task.is_(None), _first.c.task == _task))
    .limit(bindparam("most"))
    .subquery("found")
)

_OF_QUEUE = select(*_COLUMNS).join_from(_found, JOBS, _job.id == _found.c.id)


def stored_job(cluster: Cluster, job_id: str) -> StoredJob | None:
    """Return a job; None if there is none with this id.

    :param job_id: keyspace, shard and number, such as ``objects/7/1234``.
    :raises JobOptionError: if it is not of this form.
    :raises UnknownKeyspaceError: if there is no such keyspace.
    :raises UnknownShardError: if the shard is not open.
    """
    address, local_id = _found_address(cluster, job_id)
    with ShardSession(cluster=cluster) as session:
        row = session.execute(
            _ONE,
            {"the_id": local_id},
            bind_arguments={"place": place_at(session, address)},
        ).one_or_none()
    return None if row is None else _stored(address[0], row)


def jobs_by_key(cluster: Cluster, unique_key: str) -> JobPage:
    """Return the jobs with a unique key that have not finished.

    :raises JobOptionError: if it is not a valid key.
    """
    values = {"the_key": stored_key(unique_key)}
    jobs, unreachable = scan(
        cluster, partial(_read, _BY_KEY, values), purpose="jobs", kinds=("objects",)
    )
    return JobPage(jobs=_sorted(jobs), is_complete=True, unreachable=unreachable)


def jobs_of(
    cluster: Cluster,
    queue: str,
    states: Collection[JobState] = tuple(JobState),
    *,
    task: str | None = None,
    limit: int = 100,
) -> JobPage:
    """Return the first jobs of a queue, by state, priority and time.

    :param states: their states.
    :param task: only jobs of this task; of each shard and state the first
        :data:`MOST_EXAMINED` jobs are searched.
    :param limit: maximum number of jobs.
    :raises JobOptionError: if the name of the queue is not valid.
    """
    most = limit + 1
    values = {
        "queue": check_queue(queue),
        "task": task,
        "most": most,
        "examined": most if task is None else MOST_EXAMINED,
    }
    jobs: list[StoredJob] = []
    unreachable: dict[str, UnreachableServer] = {}
    for state in states:
        rows, missed = scan(
            cluster,
            partial(_read, _OF_QUEUE, {**values, "state": state.value}),
            purpose="jobs",
            kinds=("objects",),
        )
        jobs += rows
        unreachable.update((one.server, one) for one in missed)
    return JobPage(
        jobs=_sorted(jobs)[:limit],
        is_complete=len(jobs) <= limit,
        unreachable=list(unreachable.values()),
    )


_PENDING = select(*_COLUMNS).where(_job.state == PENDING)


def pending_on(session: ShardSession, places: Sequence[Place]) -> list[StoredJob]:
    """Return all pending jobs of shards of a server that a session sees."""
    return _read(_PENDING, {}, session, places)


def _sorted(jobs: Iterable[StoredJob]) -> list[StoredJob]:
    # As each shard sorts them: otherwise the first could be cut off.
    return sorted(
        jobs,
        key=lambda one: (
            *(one.state, one.priority, one.due_at),
            *(one.address, one.local_id),
        ),
    )


def _read(
    statement: Any,
    values: Mapping[str, Any],
    session: ShardSession,
    places: Sequence[Place],
) -> list[StoredJob]:
    rows = session.execute(statement, values, bind_arguments={"places": places})
    return [_stored(places[0].keyspace, row) for row in rows]


def _stored(keyspace: str, row: Any) -> StoredJob:
    key = row.unique_key
    values = readable(row, "arguments", "checkpoint")
    damage = values.pop("damage")
    return StoredJob(
        keyspace=keyspace,
        shard_id=row.shard_id,
        local_id=row.id,
        task=row.task,
        queue=row.queue,
        priority=row.priority,
        state=JobState(row.state),
        due_at=row.due_at,
        created_at=row.created_at,
        attempts=row.attempts,
        max_attempts=row.max_attempts,
        unique_key=None if key is None else key.decode(errors="backslashreplace"),
        error=str(damage) if row.error is None and damage else row.error,
        **values,
    )


# -- Changes of stored jobs by an operator: to run failed jobs again, to delete.
#
# A batch is one transaction of one shard.  Rows are updated by primary key
# and only if they still have their state, so workers may run at the same
# time.

#: Number of jobs that a transaction changes.
_BATCH = 500

#: Selects pending jobs that are due at any time.
_ANY_TIME = timedelta(days=-36_500)

_FIRST = datetime(1971, 1, 1)  # UTC, as it is stored

_LAST = datetime(9000, 1, 1)  # likewise

#: The states of jobs that can be deleted: a running one is its holder's.
DELETABLE = (JobState.PENDING, JobState.DONE, JobState.FAILED)


@dataclass(kw_only=True)
class ChangeReport(ShardsReport):
    """Report of a change of stored jobs.

    :ivar changed: number of jobs that were changed; in a dry run, that would
        be.
    :ivar skipped: a line for each job that was not changed.
    :ivar unreachable: servers of which shards could not be read or written.
    """

    changed: int = 0
    skipped: list[str] = field(default_factory=list)
    unreachable: list[UnreachableServer] = field(default_factory=list)


_ids: Any = bindparam("ids", expanding=True)

_moment = _job.due_at.type


def _by_id(statement: Any) -> Any:
    """Return a locking SELECT of rows by primary key."""
    return with_hint(statement, BY_KEY).order_by(_job.id).with_for_update()


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
    select(_job.id, _job.state, _job.unique_key, _job.queue, _job.priority).where(
        _job.id.in_(_ids)
    )
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
    if again := [row for row in rows if row.id not in skipped]:
        ids = [row.id for row in again]
        session.execute(_RETRY, {"ids": ids}, bind_arguments=at)
        for queue, priority in {(row.queue, row.priority) for row in again}:
            hint_after_commit(session, at["place"], queue, priority)
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
    :raises UnknownKeyspaceError: if there is no such keyspace.
    :raises UnknownShardError: if a shard is not open.
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
    :raises UnknownKeyspaceError: if there is no such keyspace.
    :raises UnknownShardError: if a shard is not open.
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
        address, number = _found_address(cluster, job_id)
        by_shard.setdefault(address, set()).add(number)
    report = ChangeReport()
    for address, numbers in by_shard.items():
        ids = sorted(numbers)
        try:
            for start in range(0, len(ids), _BATCH):
                some = ids[start : start + _BATCH]
                count, why = cluster.run(_change, address, some, states, change)
                report.changed += count
                report.skipped += why
        except SQLAlchemyError as error:
            report.unreachable.append(
                UnreachableServer.at(cluster.places, address, error)
            )
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
