"""Numbers of jobs of each queue, by state and by task.

Counts end at :data:`MOST_COUNTED` jobs of a shard, so they take as long for a
backlog of millions as for one of thousands.  The queues of all shards are
found by the first columns of the index; nothing registers a queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import lru_cache, partial
from typing import Any, TYPE_CHECKING

from sqlalchemy import BigInteger, bindparam, func, literal, select, type_coerce

from sqla_shard.dialects.sql import ServerTime
from sqla_shard.engine.rendering import Place
from sqla_shard.engine.unreachable import complete, UnreachableServer
from sqla_shard.jobs.claims import (
    DONE,
    FAILED,
    JobState,
    PENDING,
    PRIORITIES,
    RUNNING,
    using_index,
)
from sqla_shard.jobs.enqueue import check_queue
from sqla_shard.jobs.tasks import task_names
from sqla_shard.outbox.scan import scan
from sqla_shard.outbox.tables import JOBS
from sqla_shard.session import ShardSession
from sqla_shard.types import UTCTimestamp

if TYPE_CHECKING:
    from sqla_shard import Cluster

#: Maximum number of jobs that are counted of a shard, a queue and a state.
MOST_COUNTED = 10_000
#: Seconds of the counts of jobs that have succeeded recently.
RECENT = 60

_NUMBERS = ("due", "scheduled", "running", "expired", "failed", "done", "recent")


@dataclass(frozen=True, kw_only=True)
class QueueCount:
    """The numbers of jobs of a queue.

    A number is a minimum if it was counted on a shard with more than
    :data:`MOST_COUNTED` such jobs.

    :ivar queue: name of the queue.
    :ivar due: pending jobs that are due.
    :ivar scheduled: pending jobs that are not due yet.
    :ivar running: jobs that are running.
    :ivar expired: running jobs whose claim has expired; a worker recovers
        them.
    :ivar failed: jobs that have failed, after their last attempt.
    :ivar done: jobs that have succeeded, and were not deleted yet.
    :ivar recent: those that have succeeded in the last minute.
    :ivar oldest: time for which the oldest due job has been due; None if no
        job is due.
    :ivar capped: the names of the numbers that are minimums.
    """

    queue: str
    due: int = 0
    scheduled: int = 0
    running: int = 0
    expired: int = 0
    failed: int = 0
    done: int = 0
    recent: int = 0
    oldest: timedelta | None = None
    capped: tuple[str, ...] = ()

    def text(self, name: str) -> str:
        """Return a number, with a plus sign if it is a minimum."""
        plus = "+" if name in self.capped else ""
        return f"{getattr(self, name):,}{plus}"

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values, with the age in seconds."""
        oldest = self.oldest
        return {
            **asdict(self),
            "oldest": None if oldest is None else oldest.total_seconds(),
        }

    def __str__(self) -> str:
        oldest = ""
        if self.oldest is not None:
            seconds = self.oldest // timedelta(seconds=1)
            oldest = f", the oldest for {seconds:,} s"
        expired = ""
        if self.expired:
            expired = f", {self.text('expired')} with an expired claim"
        return (
            f"{self.queue}: {self.text('due')} due{oldest}, "
            f"{self.text('scheduled')} scheduled, {self.text('running')} "
            f"running{expired}, {self.text('failed')} failed, "
            f"{self.text('done')} done, {self.text('recent')} in the last "
            "minute"
        )


@dataclass(frozen=True, kw_only=True)
class TaskCount:
    """The number of jobs of a task with a state.

    :ivar task: name of the task.
    :ivar state: the state.
    :ivar count: number of jobs, among the first :data:`MOST_COUNTED` of the
        queue on each shard.
    :ivar retries: number of attempts after the first one.
    """

    task: str
    state: JobState
    count: int
    retries: int

    @property
    def is_known(self) -> bool:
        """Whether the task is defined in this process."""
        return self.task in task_names()

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        return {**asdict(self), "state": self.state.name.lower()}

    def __str__(self) -> str:
        retries = f", {self.retries:,} retries" if self.retries else ""
        return f"{self.task}: {self.count:,} {self.state.name.lower()}{retries}"


def count_queues(cluster: Cluster) -> list[QueueCount]:
    """Return the numbers of jobs of all queues, in the order of their names.

    :raises SQLAlchemyError: if a server cannot be read.
    """
    return complete(queue_counts(cluster))


def queue_counts(cluster: Cluster) -> tuple[list[QueueCount], list[UnreachableServer]]:
    """Return the numbers of jobs of all queues, and the unreachable servers."""
    found, unreachable = scan(cluster, _read, purpose="jobs", kinds=("objects",))
    sums: dict[str, QueueCount] = {}
    for one in found:
        before = sums.get(one.queue)
        sums[one.queue] = one if before is None else _sum(before, one)
    return [sums[name] for name in sorted(sums)], unreachable


def _sum(one: QueueCount, other: QueueCount) -> QueueCount:
    ages = [age for age in (one.oldest, other.oldest) if age is not None]
    return QueueCount(
        queue=one.queue,
        **{name: getattr(one, name) + getattr(other, name) for name in _NUMBERS},
        oldest=max(ages, default=None),
        capped=tuple(sorted({*one.capped, *other.capped})),
    )


_job = JOBS.c
#: The queues of a state, with the first time of each priority.
_GROUPS = using_index(
    select(
        _job.state,
        _job.queue,
        _job.priority,
        type_coerce(func.min(_job.due_at), UTCTimestamp()).label("first"),
        ServerTime().label("now"),
    )
).group_by(_job.state, _job.queue, _job.priority)
#: Number of queues that a statement counts.
_MOST_QUEUES = 4


@lru_cache(maxsize=_MOST_QUEUES)
def _counts(queues: int) -> Any:
    """Return a SELECT with the numbers of some queues, one row for a shard.

    :param queues: number of queues.
    """
    since = ServerTime(literal(-RECENT * 1_000_000, BigInteger()))
    conditions: dict[str, tuple[Any, ...]] = {
        "due": (_job.state == PENDING, _job.due_at <= ServerTime()),
        "scheduled": (_job.state == PENDING, _job.due_at > ServerTime()),
        "running": (_job.state == RUNNING,),
        "expired": (_job.state == RUNNING, _job.due_at <= ServerTime()),
        "failed": (_job.state == FAILED,),
        "done": (_job.state == DONE,),
        "recent": (_job.state == DONE, _job.due_at > since),
    }
    columns = []
    for number in range(queues):
        for name in _NUMBERS:
            # Not the whole backlog: the index is read by priority.
            some = using_index(
                select(_job.id).where(
                    *conditions[name],
                    _job.queue == bindparam(f"queue{number}"),
                    _job.priority.in_(PRIORITIES),
                )
            ).limit(MOST_COUNTED + 1)
            count = select(func.count()).select_from(some.subquery())
            columns.append(count.scalar_subquery().label(f"{name}{number}"))
    return select(*columns)


def _read(session: ShardSession, places: Sequence[Place]) -> list[QueueCount]:
    ages: dict[str, timedelta] = {}
    names: set[str] = set()
    for row in session.execute(_GROUPS, bind_arguments={"places": places}):
        names.add(row.queue)
        if row.state == PENDING and row.first <= row.now:
            age = row.now - row.first
            ages[row.queue] = max(ages.get(row.queue, age), age)
    found: list[QueueCount] = []
    queues = sorted(names)
    for start in range(0, len(queues), _MOST_QUEUES):
        some = queues[start : start + _MOST_QUEUES]
        rows = session.execute(
            _counts(len(some)),
            {f"queue{number}": name for number, name in enumerate(some)},
            bind_arguments={"places": places},
        ).all()
        found += [
            _counted(rows, number, name, ages.get(name))
            for number, name in enumerate(some)
        ]
    return found


def _counted(
    rows: Sequence[Any], number: int, queue: str, oldest: timedelta | None
) -> QueueCount:
    """Return the sums of the shards for one queue."""
    sums: dict[str, int] = {}
    capped = []
    for name in _NUMBERS:
        counts = [getattr(row, f"{name}{number}") for row in rows]
        sums[name] = sum(min(count, MOST_COUNTED) for count in counts)
        if max(counts) > MOST_COUNTED:
            capped.append(name)
    return QueueCount(queue=queue, **sums, oldest=oldest, capped=tuple(capped))


_first = (
    using_index(
        select(_job.task, _job.attempts).where(
            _job.state == bindparam("state"), _job.queue == bindparam("queue")
        )
    )
    .order_by(_job.priority, _job.due_at, _job.id)
    .limit(MOST_COUNTED)
    .subquery("first")
)
_TASKS = select(
    _first.c.task,
    func.count().label("count"),
    func.sum(_first.c.attempts).label("attempts"),
).group_by(_first.c.task)


def task_counts(
    cluster: Cluster, queue: str
) -> tuple[list[TaskCount], list[UnreachableServer]]:
    """Return the numbers of jobs of a queue by task and state.

    Of each shard and state the first :data:`MOST_COUNTED` jobs are counted.

    :returns: the numbers, in the order of tasks and states, and the unreachable
        servers.
    :raises JobOptionError: if the name of the queue is not valid.
    """
    check_queue(queue)
    sums: dict[tuple[str, JobState], list[int]] = {}
    unreachable: dict[str, UnreachableServer] = {}
    for state in JobState:
        values = {"state": state.value, "queue": queue}
        found, missed = scan(
            cluster, partial(_read_tasks, values), purpose="jobs", kinds=("objects",)
        )
        unreachable.update((one.server, one) for one in missed)
        for row in found:
            sums_of = sums.setdefault((row.task, state), [0, 0])
            sums_of[0] += row.count
            # Of pending jobs every attempt has failed.
            first = 0 if state is JobState.PENDING else row.count
            sums_of[1] += max(int(row.attempts) - first, 0)
    return [
        TaskCount(task=task, state=state, count=count, retries=retries)
        for (task, state), (count, retries) in sorted(sums.items())
    ], list(unreachable.values())


def _read_tasks(
    values: Mapping[str, Any], session: ShardSession, places: Sequence[Place]
) -> list[Any]:
    return list(session.execute(_TASKS, values, bind_arguments={"places": places}))
