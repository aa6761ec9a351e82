"""Jobs as they are stored: by id, by unique key, or those of a queue.

Every read is answered by an index, with one statement for a server.  Of each
shard and state at most :data:`MOST_EXAMINED` jobs of a queue are read, so a
search for a task ends also with a backlog of millions.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from typing import Any, TYPE_CHECKING

from sqlalchemy import bindparam, or_, select, String, type_coerce

from sqla_shard.engine.rendering import Place
from sqla_shard.engine.unreachable import UnreachableServer
from sqla_shard.exc import JobOptionError
from sqla_shard.jobs.claims import JobState, PENDING, readable, using_index
from sqla_shard.jobs.enqueue import check_queue, stored_key
from sqla_shard.jobs.tasks import task_names
from sqla_shard.outbox.apply import Address, place_at
from sqla_shard.outbox.scan import scan
from sqla_shard.outbox.tables import JOB_KEYS, JOBS
from sqla_shard.session import ShardSession
from sqla_shard.types import UTCTimestamp

if TYPE_CHECKING:
    from sqla_shard import Cluster

#: Maximum number of jobs that are read of a shard, a state and a queue.
MOST_EXAMINED = 10_000

_ADDRESS = re.compile(r"(.+)/([0-9]{1,5})/([0-9]{1,19})")


@dataclass(frozen=True, kw_only=True)
class StoredJob:
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

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        return {
            "id": self.id,
            **asdict(self),
            "state": self.state.name.lower(),
            "due_at": self.due_at.isoformat(),
            "created_at": self.created_at.isoformat(),
        }

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
    if match is None:
        raise JobOptionError(
            "the id of a job is its keyspace, shard and number, such as objects/7/1234",
            option="id",
            value=text,
        )
    return (match[1], int(match[2])), int(match[3])


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
    address, local_id = job_address(job_id)
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
        found, missed = scan(
            cluster,
            partial(_read, _OF_QUEUE, {**values, "state": state.value}),
            purpose="jobs",
            kinds=("objects",),
        )
        jobs += found
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
    found = readable(row, "arguments", "checkpoint")
    damage = found.pop("damage")
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
        **found,
    )
