"""Inserting jobs: the shard, the options and the row of a job.

A row is inserted by the transaction of the caller, on the shard of the object
that the job is about, so the job exists if, and only if, that transaction
commits.  Times are computed by the clock of the server.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, UTC
from functools import cache
from typing import Any, TYPE_CHECKING, TypeVar

from sqlalchemy import BigInteger, bindparam, delete, insert, select
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.dialects.sql import InsertCounting, ServerTime
from sqla_shard.engine.rendering import Place
from sqla_shard.exc import (
    JobArgumentError,
    JobOptionError,
    NoHealthyShardsError,
    PlacementError,
    ServerFencedError,
    ServerUnreachableError,
)
from sqla_shard.exc.base import summary
from sqla_shard.jobs.claims import JobState, PENDING, PRIORITIES
from sqla_shard.jobs.hints import hints_of, publish_after_commit
from sqla_shard.jobs.survey import DueGroup, windows_of
from sqla_shard.outbox.apply import microseconds
from sqla_shard.outbox.tables import JOB_KEYS, JOBS, LONGEST_QUEUE, LONGEST_UNIQUE_KEY
from sqla_shard.session import ShardSession
from sqla_shard.session.placement import root_shard
from sqla_shard.util import sqlalchemy_private as private
from sqla_shard.util.json_values import compact_json

if TYPE_CHECKING:
    from sqla_shard import Cluster

T = TypeVar("T")

# -- The shard of a job that is not about an object.
#
# It is a random one, by the weights of the servers: a server of weight 0
# gets none, and its jobs are run, until it is empty.  If a server does not
# respond, another one is tried, unless COMMIT was sent: the job may exist.

#: Errors of a server, after which another one is tried.
_REFUSED = (ServerFencedError, ServerUnreachableError)

#: Maximum number of draws for a server that was not tried.
_DRAWS = 100


class _Choice:
    """The servers that were tried, and the next shard."""

    def __init__(self, cluster: Cluster, keyspace: str | None) -> None:
        self._cluster = cluster
        self._keyspace = keyspace
        self._name = keyspace or "objects"
        self._windows = windows_of(cluster)
        self._place: Place | None = None
        self._failed: dict[str, str] = {}

    def shard(self) -> int:
        """Return a shard on a server that has not failed.

        :raises NoHealthyShardsError: if there is none.
        """
        places = self._cluster.places
        space = places.keyspace(self._keyspace, "objects")
        self._name = space.name
        try:
            for _ in range(_DRAWS):
                shard_id = self._cluster.placement(keyspace=space, cls=None)
                place = places.place(space, shard_id)
                if place.server in self._failed:
                    continue
                if self._windows.allows(place.engine):
                    self._place = place
                    return shard_id
                last = self._windows.last_error(place.engine)
                self._failed[place.server] = f"has failed repeatedly: {last}"
        except PlacementError as error:
            self._failed.setdefault("placement", str(error))
        raise NoHealthyShardsError(keyspace=self._name, servers=self._failed)

    @contextmanager
    def tried(self) -> Iterator[None]:
        """Record the outcome of a transaction on the last shard.

        An error after which another server may be tried is not raised.
        """
        place, failure = self._place, None
        try:
            yield
        except SQLAlchemyError as error:
            failure = error
            if place is None or not isinstance(error, _REFUSED):
                raise
            self._failed[place.server] = summary(error)
        finally:
            if place is not None:
                self._windows.record(place.engine, failure)


def on_healthy_shard(
    cluster: Cluster, keyspace: str | None, fn: Callable[[Any], T]
) -> T:
    """Run ``fn(session)`` in a transaction on a random shard.

    :raises NoHealthyShardsError: if every server has failed.
    """
    choice = _Choice(cluster, keyspace)
    while True:
        shard_id = choice.shard()
        with choice.tried(), cluster.begin(shard_id=shard_id) as session:
            return fn(session)


async def async_on_healthy_shard(
    cluster: Cluster, keyspace: str | None, fn: Callable[[Any], Awaitable[T]]
) -> T:
    """Await ``fn(session)`` on a random shard; see :func:`on_healthy_shard`.

    :raises NoHealthyShardsError: if every server has failed.
    """
    choice = _Choice(cluster, keyspace)
    while True:
        shard_id = choice.shard()
        with choice.tried():
            async with cluster.async_begin(shard_id=shard_id) as session:
                return await fn(session)


#: Maximum bytes of the arguments, or of a checkpoint, as JSON.
_LONGEST = 1_000_000

_MOST_ATTEMPTS = 10_000

#: Maximum delay; a year.
LONGEST_DELAY = timedelta(days=366)

_QUEUE = re.compile(rf"[A-Za-z0-9_.\-]{{1,{LONGEST_QUEUE}}}")

#: The earliest time of the first attempt: a delay in seconds or as a
#: timedelta, a datetime with a time zone, or None for immediately.
RunAfter = datetime | timedelta | float | None


@dataclass(frozen=True, kw_only=True)
class EnqueuedJob:
    """The address of a job.

    :ivar keyspace: keyspace of its shard.
    :ivar shard_id: number of its shard.
    :ivar local_id: its number on that shard.
    :ivar is_new: False if a job with its unique key existed: the address is
        that of the existing job.
    """

    keyspace: str
    shard_id: int
    local_id: int
    is_new: bool = True

    def __str__(self) -> str:
        return f"{self.keyspace}/{self.shard_id}/{self.local_id}"


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """The options of one job, checked.

    :raises JobOptionError: if one of them is not valid.
    """

    queue: str
    priority: int
    max_attempts: int
    run_after: RunAfter = None
    unique_key: str | None = None

    def __post_init__(self) -> None:
        check_queue(self.queue)
        if type(self.priority) is not int or self.priority not in PRIORITIES:
            raise JobOptionError(
                "must be 1 (the most urgent), 2 or 3",
                option="priority",
                value=self.priority,
            )
        if (
            type(self.max_attempts) is not int
            or not 1 <= self.max_attempts <= _MOST_ATTEMPTS
        ):
            raise JobOptionError(
                f"must be an int from 1 to {_MOST_ATTEMPTS}",
                option="max_attempts",
                value=self.max_attempts,
            )
        if self.run_after is None:
            return
        if not isinstance(self.run_after, datetime):
            seconds_of(self.run_after)
        elif self.run_after.tzinfo is None:
            raise JobOptionError(
                "has no time zone; pass an aware datetime, or a delay as a timedelta",
                option="run_after",
                value=self.run_after,
            )
        else:
            try:
                self.run_after.astimezone(UTC)
            except OverflowError:
                raise JobOptionError(
                    "is outside the years 1 to 9999 in UTC; pass a time in them",
                    option="run_after",
                    value=self.run_after,
                ) from None


def stored_key(unique_key: str) -> bytes:
    """Return a unique key as it is stored.

    :raises JobOptionError: if it is not valid.
    """
    try:
        key = unique_key.encode()
    except (AttributeError, UnicodeEncodeError):
        key = b""
    if not 0 < len(key) <= LONGEST_UNIQUE_KEY:
        raise JobOptionError(
            f"must be a string of 1 to {LONGEST_UNIQUE_KEY} bytes",
            option="unique_key",
            value=unique_key,
        )
    return key


def check_queue(queue: object) -> str:
    """Return the name of a queue.

    :raises JobOptionError: if it is not valid.
    """
    if not isinstance(queue, str) or not _QUEUE.fullmatch(queue):
        raise JobOptionError(
            f"the name of a queue has 1 to {LONGEST_QUEUE} letters, digits "
            "and the characters . _ -",
            option="queue",
            value=queue,
        )
    return queue


def seconds_of(delay: timedelta | float | None, option: str = "run_after") -> float:
    """Return a delay in seconds.

    :param option: its name, for messages.
    :raises JobOptionError: if it is negative, or longer than a year.
    """
    if delay is None:
        return 0.0
    if isinstance(delay, timedelta):
        seconds: object = delay.total_seconds()
    else:
        seconds = delay
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not 0 <= seconds <= LONGEST_DELAY.total_seconds()
    ):
        raise JobOptionError(
            "must be a number of seconds or a timedelta, from 0 to "
            f"{LONGEST_DELAY.days} days",
            option=option,
            value=delay,
        )
    return float(seconds)


def encoded(value: Any, task: str, parameter: str | None = None) -> str:
    """Return a value as JSON.

    :param task: name of the task, for messages.
    :raises JobArgumentError: if it is too long.
    """
    text = compact_json(value)
    size = len(text.encode())
    if size > _LONGEST:
        raise JobArgumentError(
            f"have {size} bytes as JSON; the maximum is {_LONGEST}. "
            "Write their contents to a shard, and use the id as the argument",
            task=task,
            parameter=parameter,
        )
    return text


def place_near(session: ShardSession, near: int | None, keyspace: str | None) -> Place:
    """Return the shard of a job.

    :param near: id of an object on that shard; None for the shard that the
        transaction writes, or for a new one.
    :raises InvalidIdError: if ``near`` is not an id.
    """
    places = session.places
    space = places.keyspace(keyspace, "objects")
    if near is None:
        return places.place(space, root_shard(session, space, None))
    return places.place(space, space.id_layout.shard_of(near))


_COLUMNS = (*("task", "arguments", "context", "queue", "priority", "shard_id"),)

_DUE = {
    "now": ServerTime(),
    "later": ServerTime(bindparam("later", type_=BigInteger())),
    "at": bindparam("at", type_=JOBS.c.due_at.type),
}

_NEW: Mapping[str, Any] = {"state": PENDING, "attempts": 0}


@cache
def _statement(due: str) -> Any:
    """Return the INSERT of one job.

    :param due: how its time is given: a key of ``_DUE``.
    """
    names = (*_COLUMNS, "max_attempts", "unique_key")
    values: dict[str, Any] = {name: bindparam(name) for name in names}
    return insert(JOBS).values(
        **values, **_NEW, due_at=_DUE[due], created_at=ServerTime()
    )


_TAKE_KEY = InsertCounting(JOB_KEYS).values(
    unique_key=bindparam("the_key"), job_id=bindparam("the_id"), duplicates=0
)

_HOLDER = select(JOB_KEYS.c.job_id).where(JOB_KEYS.c.unique_key == bindparam("the_key"))

_DELETE = delete(JOBS).where(JOBS.c.id == bindparam("the_id"))


def insert_job(
    session: ShardSession,
    place: Place,
    task: str,
    arguments: Mapping[str, Any],
    options: JobOptions,
) -> EnqueuedJob:
    """Insert a job in the transaction of a session.

    :raises JobArgumentError: if the arguments are too long.
    :raises JobOptionError: if the session is in autocommit mode.
    """
    key = None if options.unique_key is None else stored_key(options.unique_key)
    row = {**_row(session, place, task, arguments, options), "unique_key": key}
    due = "now"
    after = options.run_after
    if isinstance(after, datetime):
        due = "at"
        row["at"] = after.astimezone(UTC).replace(tzinfo=None)
    elif after:
        due, row["later"] = "later", microseconds(seconds_of(after))
    at = {"place": place}
    _refuse_autocommit(session, place)
    result: Any = session.execute(_statement(due), row, bind_arguments=at)
    local_id: int = result.inserted_primary_key[0]
    if due == "now":
        hint_after_commit(session, place, options.queue, options.priority)
    holder = local_id if key is None else take_key(session, at, key, local_id)
    if holder != local_id:
        session.execute(_DELETE, {"the_id": local_id}, bind_arguments=at)
    return EnqueuedJob(
        keyspace=place.keyspace,
        shard_id=place.shard_id,
        local_id=holder,
        is_new=holder == local_id,
    )


def take_key(
    session: ShardSession, at: dict[str, Any], key: bytes, local_id: int
) -> int:
    """Take a unique key for a job, unless another job has it.

    :param at: the shard, as ``bind_arguments``.
    :returns: the number of the job that has it; another one is run again.
    """
    values: dict[str, Any] = {"the_key": key, "the_id": local_id}
    result: Any = session.execute(_TAKE_KEY, values, bind_arguments=at)
    if at["place"].backend.counts_upserts and result.rowcount == 1:
        return local_id  # without another round trip
    holder: int = session.execute(
        _HOLDER, {"the_key": key}, bind_arguments=at
    ).scalar_one()
    return holder


def insert_jobs(
    session: ShardSession,
    place: Place,
    task: str,
    calls: Sequence[Mapping[str, Any]],
    options: JobOptions,
) -> int:
    """Insert many jobs with the same options, with one INSERT.

    :param calls: the arguments of each.
    :returns: the number of jobs.
    :raises JobArgumentError: if arguments are too long.
    :raises JobOptionError: if the session is in autocommit mode.
    """
    if not calls:
        return 0
    _refuse_autocommit(session, place)
    at = {"place": place}
    # A statement with only parameters: drivers send its rows together.
    now = session.execute(select(ServerTime()), bind_arguments=at).scalar_one()
    now = now.replace(tzinfo=None)
    after = options.run_after
    if isinstance(after, datetime):
        due = after.astimezone(UTC).replace(tzinfo=None)
    else:
        due = now + timedelta(seconds=seconds_of(after))
    rows = [
        {
            **_row(session, place, task, arguments, options),
            **_NEW,
            "due_at": due,
            "created_at": now,
        }
        for arguments in calls
    ]
    session.execute(insert(JOBS), rows, bind_arguments=at)
    if not after:
        hint_after_commit(session, place, options.queue, options.priority)
    return len(rows)


def hint_after_commit(
    session: ShardSession, place: Place, queue: str, priority: int
) -> None:
    """Notify workers of a due job after COMMIT."""
    hints = hints_of(session.cluster)
    if hints.listeners or hints.channel is not None:
        group = DueGroup(
            keyspace=place.keyspace,
            shard_id=place.shard_id,
            state=JobState.PENDING,
            queue=queue,
            priority=priority,
        )
        session.log.after_commit(publish_after_commit, group)


def _row(
    session: ShardSession,
    place: Place,
    task: str,
    arguments: Mapping[str, Any],
    options: JobOptions,
) -> dict[str, Any]:
    context = session.cluster.job_context(task)
    return {
        "task": task,
        "arguments": encoded(arguments, task),
        "context": encoded(context, task) if context else None,
        "queue": options.queue,
        "priority": options.priority,
        "shard_id": place.shard_id,
        "max_attempts": options.max_attempts,
    }


def _refuse_autocommit(session: ShardSession, place: Place) -> None:
    """Refuse an engine that would commit the job without its transaction."""
    if private.is_autocommit(session.root_connection(place)):
        raise JobOptionError(
            f"{place.server} commits each statement on its own, so the job "
            "would exist without the transaction; use another isolation "
            "level",
            option="isolation_level",
            value="AUTOCOMMIT",
        )
