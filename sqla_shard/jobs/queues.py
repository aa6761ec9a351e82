"""Queues: counts of jobs, pauses and limits."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache, partial
from math import inf
from time import monotonic
from typing import Any, TYPE_CHECKING

from sqlalchemy import BigInteger, bindparam, func, literal, select, type_coerce, update
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.dialects.sql import InsertMissing, ServerTime
from sqla_shard.engine import Places
from sqla_shard.engine.rendering import Place
from sqla_shard.engine.unreachable import complete, short, UnreachableServer
from sqla_shard.exc import JobOptionError
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
from sqla_shard.outbox.tables import JOBS, QUEUES
from sqla_shard.session import ShardSession
from sqla_shard.types import UTCTimestamp
from sqla_shard.util.json_values import JsonObject
from sqla_shard.util.logs import careful_log

if TYPE_CHECKING:
    from sqla_shard import Cluster

# -- Numbers of jobs of each queue, by state and by task.
#
# Counts end at MOST_COUNTED jobs of a shard, so they take as long for a
# backlog of millions as for one of thousands.  The queues of all shards are
# found by the first columns of the index; nothing registers a queue.

#: Maximum number of jobs that are counted of a shard, a queue and a state.
MOST_COUNTED = 10_000

#: Seconds of the counts of jobs that have succeeded recently.
RECENT = 60

_NUMBERS = ("due", "scheduled", "running", "expired", "failed", "done", "recent")


@dataclass(frozen=True, kw_only=True)
class QueueCount(JsonObject):
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
class TaskCount(JsonObject):
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
    rows, unreachable = scan(cluster, _read_counts, purpose="jobs", kinds=("objects",))
    sums: dict[str, QueueCount] = {}
    for one in rows:
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


def _read_counts(session: ShardSession, places: Sequence[Place]) -> list[QueueCount]:
    ages: dict[str, timedelta] = {}
    names: set[str] = set()
    for row in session.execute(_GROUPS, bind_arguments={"places": places}):
        names.add(row.queue)
        if row.state == PENDING and row.first <= row.now:
            age = row.now - row.first
            ages[row.queue] = max(ages.get(row.queue, age), age)
    counts: list[QueueCount] = []
    queues = sorted(names)
    for start in range(0, len(queues), _MOST_QUEUES):
        some = queues[start : start + _MOST_QUEUES]
        rows = session.execute(
            _counts(len(some)),
            {f"queue{number}": name for number, name in enumerate(some)},
            bind_arguments={"places": places},
        ).all()
        counts += [
            _counted(rows, number, name, ages.get(name))
            for number, name in enumerate(some)
        ]
    return counts


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
        rows, missed = scan(
            cluster, partial(_read_tasks, values), purpose="jobs", kinds=("objects",)
        )
        unreachable.update((one.server, one) for one in missed)
        for row in rows:
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


_log = careful_log(__name__)

# -- Pauses and limits of queues, which all workers share.
#
# They are rows of `sqla_shard_queue` on one shard: shard 0 of the first
# keyspace with objects.  Workers read them every second.  If that server
# does not respond, what was read last remains valid, and a queue with a
# limit waits.
#
# A limit is a token bucket: the row has a number of tokens, which grows by
# the clock of the server, up to those of two seconds.  A worker takes some
# before it claims, and uses them for the jobs that it gets: a shard without
# jobs costs none.

_HIGHEST = 1_000_000

#: Seconds between two reads of a worker.
_REFRESH = 1.0

#: Seconds of jobs that may be claimed at once: as long as a worker without
#: tokens waits at most, or the limit could not be reached.
_BURST = 2.0

#: Seconds for which a worker may use its tokens.
_VALID = 1.0


@dataclass(frozen=True, kw_only=True)
class QueueLimit(JsonObject):
    """The settings of a queue.

    :ivar queue: its name.
    :ivar is_paused: whether no jobs are claimed.
    :ivar per_second: maximum number of jobs that all workers claim in a
        second, on average; None for no limit.
    """

    queue: str
    is_paused: bool
    per_second: float | None

    @property
    def is_open(self) -> bool:
        """Whether jobs are claimed: a limit of 0 is a pause."""
        return not self.is_paused and self.per_second != 0


_queue = QUEUES.c

_this = _queue.queue == bindparam("the_queue")

_SELECT = select(_queue.queue, _queue.is_paused, _queue.per_second).order_by(
    _queue.queue
)

_INSERT = InsertMissing(QUEUES).values(
    queue=bindparam("the_queue"),
    is_paused=False,
    per_second=None,
    tokens=0,
    filled_at=ServerTime(),
)


def limits(cluster: Cluster) -> list[QueueLimit]:
    """Return the queues that are paused, or were, or have a limit.

    :raises SQLAlchemyError: if they cannot be read.
    """
    return cluster.run(_read_limits)


def set_limit(cluster: Cluster, queue: str, per_second: float | None) -> QueueLimit:
    """Limit the jobs that all workers of a queue claim in a second.

    :param per_second: number of jobs on average; 0 claims none until another
        limit is set; None for no limit.
    :raises JobOptionError: if an argument is not valid.
    """
    given: Any = per_second
    if given is not None and (
        isinstance(given, bool)
        or not isinstance(given, int | float)
        or not 0 <= given <= _HIGHEST
    ):
        raise JobOptionError(
            f"must be a number from 0 to {_HIGHEST}, or None for no limit",
            option="per_second",
            value=per_second,
        )
    return _set(cluster, queue, per_second=per_second)


def pause(cluster: Cluster, queue: str) -> QueueLimit:
    """Let workers claim no more jobs of a queue; those that run go on.

    :raises JobOptionError: if the name is not valid.
    """
    return _set(cluster, queue, is_paused=True)


def resume(cluster: Cluster, queue: str) -> QueueLimit:
    """End the pause of a queue; its limit is as before.

    :raises JobOptionError: if the name is not valid.
    """
    return _set(cluster, queue, is_paused=False)


def _set(cluster: Cluster, queue: str, **values: Any) -> QueueLimit:
    return cluster.run(_change, check_queue(queue), values)


def _at(places: Places) -> dict[str, Place]:
    """Return the shard with the rows, as ``bind_arguments``."""
    for space in places.topology.keyspaces.values():
        if space.kind == "objects":
            return {"place": places.place(space, 0)}
    # Raises UnknownKeyspaceError.
    return {"place": places.place(places.keyspace(None, "objects"), 0)}


def _read_limits(session: ShardSession) -> list[QueueLimit]:
    at = _at(session.places)
    return [
        QueueLimit(**row._mapping)
        for row in session.execute(_SELECT, bind_arguments=at)
    ]


def _change(session: ShardSession, queue: str, values: dict[str, Any]) -> QueueLimit:
    at = _at(session.places)
    which = {"the_queue": queue}
    session.execute(_INSERT, which, bind_arguments=at)
    session.execute(
        update(QUEUES).where(_this).values(**values), which, bind_arguments=at
    )
    row = session.execute(_SELECT.where(_this), which, bind_arguments=at)
    return QueueLimit(**row.one()._mapping)


_BUCKET = (
    select(
        _queue.is_paused,
        _queue.per_second,
        _queue.tokens,
        _queue.filled_at,
        ServerTime().label("now"),
    )
    .where(_this)
    .with_for_update()
)

_FILL = (
    update(QUEUES)
    .where(_this)
    .values(tokens=bindparam("the_tokens"), filled_at=bindparam("now"))
)


def take_tokens(session: ShardSession, queue: str, wanted: int) -> int:
    """Take tokens of a queue for jobs to be claimed.

    :param wanted: maximum number.
    :returns: the number; ``wanted`` if the queue has no limit.
    """
    at = _at(session.places)
    which = {"the_queue": queue}
    row = session.execute(_BUCKET, which, bind_arguments=at).first()
    if row is None or row.is_paused or row.per_second is None:
        return 0 if row is not None and row.is_paused else wanted
    now = row.now.replace(tzinfo=None)
    # Not below 0 after the clock of the server was set back.
    seconds = max(0.0, (now - row.filled_at).total_seconds())
    # A limit of less than one job a second must reach a whole token.
    most = max(1.0, row.per_second * _BURST)
    tokens = min(most, row.tokens + seconds * row.per_second)
    taken = min(wanted, int(tokens)) if row.per_second else 0
    session.execute(
        _FILL, {**which, "the_tokens": tokens - taken, "now": now}, bind_arguments=at
    )
    return taken


class LimitedQueues:
    """The queues and numbers of jobs that a worker may claim.

    :param queues: names of its queues.
    """

    def __init__(self, cluster: Cluster, queues: Collection[str]) -> None:
        self._cluster = cluster
        self._queues = queues
        self._limits: dict[str, QueueLimit] = {}
        self._is_known = False
        self.error: SQLAlchemyError | None = None  #: of the last read
        self._next_read = 0.0
        #: Number of tokens, and until when they may be used, by queue.
        self._tokens: dict[str, tuple[int, float]] = {}

    def open_queues(self) -> list[str]:
        """Return the queues that are not paused.

        Without a first response there are none: a queue that is paused must
        not run because its server does not respond.
        """
        self._refresh()
        if not self._is_known:
            return []
        closed = {one.queue for one in self._limits.values() if not one.is_open}
        return [name for name in self._queues if name not in closed]

    def allowance(self, queue: str, wanted: int) -> int:
        """Return how many jobs of a queue may be claimed now.

        :param wanted: maximum number.
        """
        self._refresh()
        limit = self._limits.get(queue)
        if limit is None or (limit.is_open and limit.per_second is None):
            return wanted
        if not limit.is_open:
            return 0
        tokens, end = self._tokens.get(queue, (0, -inf))
        if monotonic() >= end:
            granted = self._call(self._cluster.run, take_tokens, queue, wanted)
            tokens, end = granted or 0, monotonic() + _VALID
            if granted == 0 and limit.per_second:
                # Others have them; do not ask before there is one again.
                end = monotonic() + min(_VALID, 1 / limit.per_second)
            self._tokens[queue] = tokens, end
        return min(tokens, wanted)

    def _refresh(self) -> None:
        """Read the settings again if it is time to."""
        if monotonic() >= self._next_read:
            self._next_read = monotonic() + _REFRESH
            limits_now = self._call(limits, self._cluster)
            if limits_now is not None:
                self._limits = {one.queue: one for one in limits_now}
                self._is_known = True

    def use(self, queue: str, count: int) -> None:
        """Record that jobs of a queue were claimed."""
        if queue in self._tokens:
            tokens, end = self._tokens[queue]
            rest = tokens - count
            self._tokens[queue] = rest, end if rest > 0 else -inf

    def _call(self, function: Any, *arguments: Any) -> Any:
        """Return the result of a function; None if the server has failed."""
        try:
            result = function(*arguments)
        except SQLAlchemyError as error:
            if self.error is None:
                _log.warning(
                    "the limits of queues cannot be read: %s",
                    short(error),
                    extra={"action": "read limits"},
                )
            self.error = error
            return None
        self.error = None
        return result
