"""Claiming jobs, and updates of jobs by the holders of claims.

A claim is a random token with a time at which it expires, by the clock of the
server.  Whatever a holder writes is an UPDATE that matches the token, the
state and that time; if it matches no row, the claim is lost, nothing is
changed, and :exc:`~sqla_shard.exc.JobClaimLostError` is raised.  The token
stays in a finished row, so an acknowledgement whose COMMIT had an unknown
outcome can be repeated.

All functions run in the transaction of a session, which the caller commits.
Rows are updated by primary key only, in one order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from secrets import token_bytes
from typing import Any, Protocol, TypeVar

from sqlalchemy import (
    and_,
    BigInteger,
    bindparam,
    Boolean,
    case,
    ColumnElement,
    delete,
    select,
    update,
)

from sqla_shard.dialects.sql import ServerTime, SkipLocked
from sqla_shard.engine.rendering import Place
from sqla_shard.exc import JobArgumentError, JobClaimLostError
from sqla_shard.outbox.apply import Address, microseconds, place_at
from sqla_shard.outbox.tables import JOB_INDEX, JOB_KEYS, JOBS, TOKEN_BYTES
from sqla_shard.session import ShardSession
from sqla_shard.util.json_values import parsed_json

T = TypeVar("T")

# -- The unique keys of jobs that have not finished.
#
# A key is a row of `sqla_shard_job_key`, which counts how often it was
# enqueued again.  A claim reads the count without a lock, so it does not
# wait for a transaction that is enqueueing the key.  When the job ends, the
# row is deleted if the count is still the same; otherwise the job is run
# again: it may have read before that transaction has written.


class Keyed(Protocol):
    """A claimed job with its key.

    :ivar local_id: number of the job.
    :ivar unique_key: its key; None if it has none.
    :ivar duplicates: how often the key was enqueued again before the claim.
    """

    @property
    def local_id(self) -> int:
        """The number of the job."""
        ...

    @property
    def unique_key(self) -> bytes | None:
        """The key."""
        ...

    @property
    def duplicates(self) -> int:
        """The count at the time of the claim."""
        ...


_key = JOB_KEYS.c

_COUNTS = select(_key.job_id, _key.duplicates).where(
    _key.unique_key.in_(bindparam("keys", expanding=True))
)

_this = (_key.unique_key == bindparam("the_key"), _key.job_id == bindparam("the_id"))

_FREE = delete(JOB_KEYS).where(*_this, _key.duplicates == bindparam("the_count"))

_FIND = select(_key.job_id).where(*_this)


def duplicates_of(
    session: ShardSession, at: dict[str, Any], jobs: Iterable[Keyed]
) -> dict[int, int]:
    """Return how often the keys of jobs were enqueued again, by job.

    :param at: the shard, as ``bind_arguments``.
    """
    keys = sorted(one.unique_key for one in jobs if one.unique_key is not None)
    if not keys:
        return {}
    rows = session.execute(_COUNTS, {"keys": keys}, bind_arguments=at)
    return {row.job_id: row.duplicates for row in rows}


def free_key(session: ShardSession, at: dict[str, Any], job: Keyed) -> bool:
    """Free the key of a job that ends.

    :param at: the shard, as ``bind_arguments``.
    :returns: False if it was enqueued again since the claim: the job must be
        run again, and has its key still.
    """
    if job.unique_key is None:
        return True
    values: dict[str, Any] = {"the_key": job.unique_key, "the_id": job.local_id}
    result: Any = session.execute(
        _FREE, {**values, "the_count": job.duplicates}, bind_arguments=at
    )
    if result.rowcount == 1:
        return True
    # A key that was deleted by hand must not run the job for ever.
    return session.execute(_FIND, values, bind_arguments=at).first() is None


#: The priorities of jobs: 1 is the most urgent.
PRIORITIES = (1, 2, 3)

#: Seconds until a claim expires.
LEASE = 60.0


class JobState(IntEnum):
    """The states of a job, as stored."""

    PENDING = 0
    RUNNING = 1
    DONE = 2
    FAILED = 3


# Plain integers for statements: drivers do not know an enumeration.
PENDING, RUNNING, DONE, FAILED = (state.value for state in JobState)


@dataclass(frozen=True, kw_only=True)
class ClaimedJob:
    """A job, and the claim of its holder.

    :ivar keyspace: keyspace of its shard.
    :ivar shard_id: number of its shard.
    :ivar local_id: its number on that shard.
    :ivar token: the token of the claim.
    :ivar task: name of its task.
    :ivar queue: its queue.
    :ivar priority: 1 to 3; 1 is the most urgent.
    :ivar arguments: its arguments, by name.
    :ivar checkpoint: the last value of :func:`checkpoint`; None if none.
    :ivar attempt: number of this attempt, from 1.
    :ivar max_attempts: maximum number of attempts.
    :ivar context: what listeners of ``before_enqueue`` have stored with it.
    :ivar unique_key: its unique key; None if it has none.
    :ivar duplicates: how often the key was enqueued again before the claim.
    :ivar was_lost: whether its last claim has expired: it may be the job that
        has killed its worker.
    :ivar damage: why its row cannot be read: the job fails; None if it can.
    """

    keyspace: str
    shard_id: int
    local_id: int
    token: bytes = field(repr=False)
    task: str
    queue: str
    priority: int
    arguments: Mapping[str, Any] = field(repr=False)
    checkpoint: Any = field(repr=False)
    attempt: int
    max_attempts: int
    context: Mapping[str, str] = field(default_factory=dict, repr=False)
    unique_key: bytes | None = None
    duplicates: int = 0
    was_lost: bool = False
    damage: JobArgumentError | None = None

    @property
    def counts_at_start(self) -> bool:
        """Whether the attempt counts when the function begins, not earlier.

        A claim counts others, which have attempts left.  But a worker that was
        killed may not have begun its jobs: the last attempt must not be lost
        so, nor any that follows a lost claim, which may be lost again.
        """
        return self.was_lost or self.attempt >= self.max_attempts

    @property
    def address(self) -> tuple[str, int]:
        """The keyspace and the number of the shard."""
        return self.keyspace, self.shard_id

    def __str__(self) -> str:
        return f"{self.keyspace}/{self.shard_id}/{self.local_id}"


_job = JOBS.c

_ids: Any = bindparam("ids", expanding=True)

#: Maximum number of ids in a statement.  MariaDB makes a table of 1,000 values,
#: and may join it with all rows, which a SELECT .. FOR UPDATE locks.
MOST_IDS = 900

_later = bindparam("later", type_=BigInteger())

# The optimizer must not sort a backlog, or read the primary key in order.
_HINT = f"FORCE INDEX ({JOB_INDEX})"

BY_KEY = "FORCE INDEX (PRIMARY)"

_MYSQL = ("mysql", "mariadb")


def locked_batch(*columns: Any) -> Any:
    """Return a SELECT of due rows of a state, oldest first.

    The rows are locked, and rows that others have locked are skipped, where
    the server can do that.  Its parameters are ``state``, ``queue``,
    ``priority`` and ``batch``.
    """
    return using_index(
        select(*columns)
        .where(
            _job.state == bindparam("state"),
            _job.queue == bindparam("queue"),
            _job.priority == bindparam("priority"),
            _job.due_at <= ServerTime(bindparam("since", value=0, type_=BigInteger())),
        )
        .order_by(_job.due_at, _job.id)
        .limit(bindparam("batch"))
        .suffix_with(SkipLocked())
    )


def using_index(statement: Any) -> Any:
    """Return a SELECT of jobs that reads their index in its order."""
    return with_hint(statement, _HINT)


def with_hint(statement: Any, hint: str) -> Any:
    """Return a SELECT of jobs with the index that it uses."""
    for name in _MYSQL:
        statement = statement.with_hint(JOBS, hint, name)
    return statement


def update_rows(*conditions: Any) -> Any:
    """Return an UPDATE of rows by primary key.

    On a table of a few rows the server would read, and lock, all of them.
    """
    statement = update(JOBS).where(*conditions)
    for name in _MYSQL:
        statement = statement.with_hint(BY_KEY, JOBS, name)
    return statement


_BATCH = locked_batch(
    _job.id,
    _job.task,
    _job.arguments,
    _job.checkpoint,
    _job.context,
    _job.attempts,
    _job.max_attempts,
    _job.unique_key,
    # Of a pending job it is that of a claim that has expired.
    _job.token,
)

_CLAIM = update_rows(_job.id.in_(_ids), _job.state == PENDING).values(
    state=RUNNING, token=bindparam("the_token"), due_at=ServerTime(_later)
)

_CLAIM_AND_COUNT = _CLAIM.values(attempts=_job.attempts + 1)

_MINE = select(_job.id).where(
    _job.id.in_(_ids),
    _job.token == bindparam("the_token"),
    _job.state == bindparam("state"),
)


def claim(
    session: ShardSession,
    place: Place,
    queue: str,
    priority: int,
    limit: int,
    *,
    lease: float = LEASE,
) -> list[ClaimedJob]:
    """Claim the oldest due jobs of a queue with a priority on a shard.

    Call :meth:`.Backend.begin_skipping` before, as the first statement of the
    transaction.

    :param limit: maximum number of jobs.
    :param lease: seconds until the claims expire.
    :returns: the jobs, oldest first; empty if there are none.
    """
    at = {"place": place}
    what = {"state": PENDING, "queue": queue, "priority": priority, "batch": limit}
    rows = session.execute(_BATCH, what, bind_arguments=at).all()
    if not rows:
        return []
    token = token_bytes(TOKEN_BYTES)
    jobs = _claimed(place, rows, token, queue, priority)
    counted: list[int] = []
    others: list[int] = []
    for job in jobs:
        (others if job.counts_at_start else counted).append(job.local_id)
    values = {"the_token": token, "later": microseconds(lease)}
    count = sum(
        result.rowcount
        for statement, ids in ((_CLAIM_AND_COUNT, counted), (_CLAIM, others))
        for result in _in_parts(session, statement, ids, values, at)
    )
    if count != len(jobs):
        # The server cannot skip locked rows, and others have claimed some.
        ids = [job.local_id for job in jobs]
        values = {"the_token": token, "state": RUNNING}
        mine = {
            number
            for result in _in_parts(session, _MINE, ids, values, at)
            for number in result.scalars()
        }
        jobs = [job for job in jobs if job.local_id in mine]
    duplicates = duplicates_of(session, at, jobs)
    if not duplicates:
        return jobs
    return [
        replace(job, duplicates=duplicates[job.local_id])
        if job.local_id in duplicates
        else job
        for job in jobs
    ]


def _in_parts(
    session: ShardSession,
    statement: Any,
    ids: Iterable[int],
    values: Mapping[str, Any],
    at: dict[str, Any],
) -> Iterator[Any]:
    """Yield the results of a statement about some jobs, in parts."""
    for some in _chunked(sorted(ids)):
        yield session.execute(statement, {"ids": some, **values}, bind_arguments=at)


def _claimed(
    place: Place, rows: Iterable[Any], token: bytes, queue: str, priority: int
) -> list[ClaimedJob]:
    """Return the jobs of rows."""
    return [
        ClaimedJob(
            keyspace=place.keyspace,
            shard_id=place.shard_id,
            local_id=row.id,
            token=token,
            task=row.task,
            queue=queue,
            priority=priority,
            attempt=row.attempts + 1,
            max_attempts=row.max_attempts,
            unique_key=row.unique_key,
            was_lost=row.token is not None,
            **readable(row, "arguments", "checkpoint", "context"),
        )
        for row in rows
    ]


def readable(row: Any, *columns: str) -> dict[str, Any]:
    """Return the values of columns of a job, and ``damage``.

    A row that was damaged, or written by a process with other limits, must not
    hold other jobs.  A value that cannot be read is empty.

    :param columns: their names.
    """
    values: dict[str, Any] = {"damage": None}
    for name in columns:
        text = getattr(row, name)
        is_object = name != "checkpoint"
        values[name] = {} if is_object else None
        if text is None:
            continue
        try:
            value = parsed_json(text)
            if is_object and not isinstance(value, dict):
                raise ValueError("it is not a JSON object")
        except ValueError as error:
            values["damage"] = JobArgumentError(
                f"cannot be read: {error}. The job fails; delete it, or repair its row",
                task=row.task,
                parameter=name,
            )
        else:
            values[name] = value
    return values


held: ColumnElement[bool] = and_(
    _job.token == bindparam("the_token"),
    _job.state == RUNNING,
    _job.due_at > ServerTime(),
)

_ACKNOWLEDGE = update_rows(_job.id.in_(_ids), held).values(
    state=DONE, due_at=ServerTime(), error=None
)

# A job that was enqueued again while it ran is run again.
_AGAIN = update_rows(_job.id.in_(_ids), held).values(
    state=PENDING, due_at=ServerTime(), attempts=0, token=None, error=None
)


def acknowledge(session: ShardSession, jobs: Sequence[ClaimedJob]) -> None:
    """Record that jobs have succeeded; all jobs are of one shard.

    A job that was enqueued again while it ran, with its unique key, becomes
    pending again.  To acknowledge a job twice with the same claim does
    nothing.

    :raises JobClaimLostError: if claims are lost; the jobs that are not in
        the error are acknowledged.
    """
    lost: list[ClaimedJob] = []
    for token, claimed in _by_token(jobs):
        at = {"place": place_at(session, claimed[0].address)}
        again = {
            job.local_id
            for job in _locked(session, at, token, claimed)
            if not free_key(session, at, job)
        }
        last = [job for job in claimed if job.local_id not in again]
        lost += _end(session, at, token, last, _ACKNOWLEDGE)
        repeated = [job for job in claimed if job.local_id in again]
        lost += _end(session, at, token, repeated, _AGAIN)
    if lost:
        raise JobClaimLostError(jobs=tuple(map(str, lost)))


_LOCK = select(_job.id).where(_job.id.in_(_ids), held).with_for_update()


def _locked(
    session: ShardSession, at: dict[str, Any], token: bytes, jobs: Iterable[ClaimedJob]
) -> list[ClaimedJob]:
    """Lock the jobs with a unique key; return those whose claims are valid.

    The key of any other belongs to its next holder.
    """
    keyed = {job.local_id: job for job in jobs if job.unique_key is not None}
    if not keyed:
        return []
    values = {"ids": sorted(keyed), "the_token": token}
    numbers = session.execute(_LOCK, values, bind_arguments=at).scalars()
    return [keyed[number] for number in sorted(numbers)]


def _end(
    session: ShardSession,
    at: dict[str, Any],
    token: bytes,
    jobs: Sequence[ClaimedJob],
    statement: Any,
) -> list[ClaimedJob]:
    """Update jobs that have succeeded; return those whose claims are lost."""
    if not jobs:
        return []
    values: dict[str, Any] = {
        "ids": sorted(job.local_id for job in jobs),
        "the_token": token,
    }
    result: Any = session.execute(statement, values, bind_arguments=at)
    if result.rowcount == len(jobs):
        return []
    values["state"] = DONE
    done = set(session.execute(_MINE, values, bind_arguments=at).scalars())
    return [job for job in jobs if job.local_id not in done]


def reopened(pause: Any, token: Any = None) -> dict[Any, Any]:
    """Return the columns that an attempt without success sets.

    :param pause: the time of the next one, in SQL.
    :param token: the token until then.
    """
    ends = bindparam("ends", type_=Boolean(create_constraint=False))
    return {
        _job.state: case((ends, FAILED), else_=PENDING),
        _job.due_at: case((ends, ServerTime()), else_=pause),
        _job.token: case((ends, _job.token), else_=token),
        _job.error: bindparam("the_error"),
        _job.attempts: bindparam("the_attempts"),
    }


_one = _job.id == bindparam("the_id")

_FAIL = update_rows(_one, held).values(reopened(ServerTime(_later)))


def fail(
    session: ShardSession,
    job: ClaimedJob,
    error: str,
    delay: float,
    *,
    is_final: bool = False,
) -> None:
    """Record that an attempt has failed.

    The job becomes pending again, or failed after its last attempt.

    :param error: the error, for people.
    :param delay: seconds until the next attempt.
    :param is_final: whether the job is not to be tried again.
    :raises JobClaimLostError: if the claim is lost.
    """
    at = {"place": place_at(session, job.address)}
    ends = is_final or job.attempt >= job.max_attempts
    attempts = job.attempt
    if ends and _locked(session, at, job.token, [job]):
        ends = free_key(session, at, job)
        # The one who has enqueued it again gets all attempts.
        attempts = attempts if ends else 0
    fenced(
        session,
        job,
        _FAIL,
        the_error=error,
        the_attempts=attempts,
        later=microseconds(delay),
        ends=ends,
    )


_RELEASE = update_rows(_one, held).values(
    state=PENDING,
    due_at=ServerTime(_later),
    attempts=bindparam("the_attempts"),
    token=None,
    error=bindparam("the_error"),
)


def release(
    session: ShardSession,
    job: ClaimedJob,
    *,
    delay: float = 0.0,
    error: str | None = None,
) -> None:
    """Give a job back that was not tried; the attempt does not count.

    :param delay: seconds until it may be claimed again.
    :param error: why, for people.
    :raises JobClaimLostError: if the claim is lost.
    """
    fenced(
        session,
        job,
        _RELEASE,
        the_error=error,
        the_attempts=job.attempt - 1,
        later=microseconds(delay),
    )


_START = update_rows(_one, held).values(
    attempts=bindparam("the_attempts"), due_at=ServerTime(_later)
)


def start(session: ShardSession, job: ClaimedJob, lease: float = LEASE) -> None:
    """Count an attempt whose function begins now, and extend the claim.

    :param lease: seconds until it expires.
    :raises JobClaimLostError: if the claim is lost.
    """
    fenced(session, job, _START, the_attempts=job.attempt, later=microseconds(lease))


_CHECKPOINT = update_rows(_one, held).values(
    checkpoint=bindparam("the_checkpoint"), due_at=ServerTime(_later)
)

_CONTINUE = update_rows(_one, held).values(
    checkpoint=bindparam("the_checkpoint"),
    state=PENDING,
    due_at=ServerTime(_later),
    attempts=0,
    token=None,
    error=None,
)


def checkpoint(
    session: ShardSession,
    job: ClaimedJob,
    text: str,
    *,
    lease: float = LEASE,
    again_after: float | None = None,
) -> None:
    """Store the progress of a job, which its next attempt gets.

    :param text: the progress as JSON.
    :param lease: seconds until the claim expires.
    :param again_after: makes the job pending with all its attempts, to be
        run again after this many seconds: for a chain of steps.
    :raises JobClaimLostError: if the claim is lost.
    """
    is_end = again_after is not None
    fenced(
        session,
        job,
        _CONTINUE if is_end else _CHECKPOINT,
        the_checkpoint=text,
        later=microseconds(lease if again_after is None else again_after),
    )


def fenced(
    session: ShardSession, job: ClaimedJob, statement: Any, **values: Any
) -> None:
    """Update one job, if its claim is valid.

    :raises JobClaimLostError: if it is not.
    """
    result: Any = session.execute(
        statement,
        {"the_id": job.local_id, "the_token": job.token, **values},
        bind_arguments={"place": place_at(session, job.address)},
    )
    if result.rowcount != 1:
        raise JobClaimLostError(jobs=(str(job),))


def _by_token(
    jobs: Iterable[ClaimedJob],
) -> Iterator[tuple[bytes, Sequence[ClaimedJob]]]:
    """Yield tokens with their jobs, for one statement each."""
    groups: dict[bytes, list[ClaimedJob]] = {}
    for job in jobs:
        groups.setdefault(job.token, []).append(job)
    for token, claimed in groups.items():
        for some in _chunked(claimed):
            yield token, some


def _chunked(values: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(values), MOST_IDS):
        yield values[start : start + MOST_IDS]


_STATES = select(
    _job.id, _job.token, _job.state, (_job.due_at > ServerTime()).label("is_valid")
).where(_job.id.in_(_ids))

_LOCKED_STATES = with_hint(_STATES, BY_KEY).suffix_with(SkipLocked())

_EXTEND = update_rows(_job.id.in_(_ids), _job.state == RUNNING).values(
    due_at=ServerTime(_later)
)


def extend(
    session: ShardSession, jobs: Sequence[ClaimedJob], lease: float = LEASE
) -> list[ClaimedJob]:
    """Extend claims; all jobs are on one server.

    The claim of a job whose row another transaction has locked, such as that
    of its task, is neither extended nor lost.

    Call it at the beginning of a transaction.

    :param lease: seconds until they expire.
    :returns: the jobs whose claims are lost; they must not be continued.
    """
    by_shard: dict[Address, list[ClaimedJob]] = {}
    for job in jobs:
        by_shard.setdefault(job.address, []).append(job)
    lost: list[ClaimedJob] = []
    is_first = True
    for address, claimed in sorted(by_shard.items()):
        place = place_at(session, address)
        if is_first:
            place.backend.begin_skipping(session.root_connection(place))
        is_first = False
        for some in _chunked(claimed):
            lost += _extend(session, {"place": place}, some, lease)
    return lost


def _extend(
    session: ShardSession, at: dict[str, Any], jobs: Sequence[ClaimedJob], lease: float
) -> list[ClaimedJob]:
    which = {"ids": sorted({job.local_id for job in jobs})}
    states = session.execute(_LOCKED_STATES, which, bind_arguments=at).all()
    rows = {row.id: row for row in states}
    valid = [
        job for job in jobs if job.local_id in rows and _holds(job, rows[job.local_id])
    ]
    if valid:
        session.execute(
            _EXTEND,
            {
                "ids": sorted(job.local_id for job in valid),
                "later": microseconds(lease),
            },
            bind_arguments=at,
        )
    rest = [job for job in jobs if job not in valid]
    if not rest:
        return []
    # Without locks: a row that is locked still has the token.
    which = {"ids": sorted({job.local_id for job in rest})}
    states = session.execute(_STATES, which, bind_arguments=at).all()
    theirs = {row.id: row for row in states}
    return [
        job
        for job in rest
        if job.local_id in rows
        or job.local_id not in theirs
        or theirs[job.local_id].token != job.token
    ]


def _holds(job: ClaimedJob, row: Any) -> bool:
    """Return whether a row has a valid claim of a job."""
    return bool(row.token == job.token and row.state == RUNNING and row.is_valid)


_HELD = with_hint(
    select(_job.id).where(_job.id.in_(_ids), held).with_for_update(), BY_KEY
)


def confirm(session: ShardSession, jobs: Sequence[ClaimedJob]) -> list[ClaimedJob]:
    """Return which of some jobs were claimed by a transaction.

    It waits for the locks of that transaction: after an unknown outcome of
    COMMIT, the server may still be executing it.

    :param jobs: jobs of one shard, at least one; each queue has its own token.
    """
    place = place_at(session, jobs[0].address)
    place.backend.begin_skipping(session.root_connection(place))
    ids: set[int] = set()
    for token, claimed in _by_token(jobs):
        values = {"ids": sorted(job.local_id for job in claimed), "the_token": token}
        ids.update(
            session.execute(_HELD, values, bind_arguments={"place": place}).scalars()
        )
    return [job for job in jobs if job.local_id in ids]
