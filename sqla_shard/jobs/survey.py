"""Survey of the shards with jobs that are due: one statement for a server.

A statement reads up to 256 shards.  On each of them it reads, for each queue
and priority, the first entry of the index with the state: not the backlog,
and no job that is scheduled for later.  So it takes as long for a million
jobs as for one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache, partial
from typing import Any, TYPE_CHECKING

from sqlalchemy import BigInteger, bindparam, exists, literal, select
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.dialects.sql import ServerTime
from sqla_shard.engine.rendering import Place
from sqla_shard.engine.unreachable import UnreachableServer
from sqla_shard.exc import NoHealthyShardsError
from sqla_shard.jobs.claims import JobState, PRIORITIES
from sqla_shard.jobs.health import HealthWindows, windows_of
from sqla_shard.outbox.scan import Read, scan
from sqla_shard.outbox.tables import JOBS
from sqla_shard.session import ShardSession
from sqla_shard.types.shard_bound import ShardNumber

if TYPE_CHECKING:
    from sqla_shard import Cluster


@dataclass(frozen=True, kw_only=True)
class DueGroup:
    """Jobs of a shard with a state, a queue and a priority; one is due."""

    keyspace: str
    shard_id: int
    state: JobState
    queue: str
    priority: int

    @property
    def address(self) -> tuple[str, int]:
        """The keyspace and the number of the shard."""
        return self.keyspace, self.shard_id


_AGO = timedelta(microseconds=-1)

#: How long a state has lasted at least, for a row to be due.
Ages = Mapping[JobState, timedelta]


def due_jobs(
    cluster: Cluster, queues: Collection[str]
) -> tuple[list[DueGroup], list[UnreachableServer]]:
    """Return the pending jobs that are due, by shard, queue and priority.

    :param queues: names of queues.
    :returns: the groups, and the servers that were not read.
    """
    return due_rows(cluster, queues, {JobState.PENDING: timedelta(0)})


def due_rows(
    cluster: Cluster, queues: Collection[str], ages: Ages
) -> tuple[list[DueGroup], list[UnreachableServer]]:
    """Return the due rows of some states, by shard, queue and priority.

    :param queues: names of queues.
    :param ages: the states, and how long rows must have been due.
    :returns: the groups, and the servers that were not read.
    """
    if not queues:
        return [], []
    groups = [
        (state, name, priority)
        for state in ages
        for name in sorted(set(queues))
        for priority in PRIORITIES
    ]
    parameters: dict[str, Any] = {
        f"the_state{number}": state.value for number, state in enumerate(ages)
    }
    for number, (state, name, priority) in enumerate(groups):
        parameters[f"state{number}"] = state.value
        parameters[f"queue{number}"] = name
        parameters[f"priority{number}"] = priority
        parameters[f"since{number}"] = ages[state] // _AGO
    return scan(
        cluster,
        _watched(windows_of(cluster), partial(_read, len(ages), groups, parameters)),
        purpose="jobs",
        kinds=("objects",),
    )


def _watched(windows: HealthWindows, read: Read[DueGroup]) -> Read[DueGroup]:
    """Return a function that does not read a server which has a rest."""

    def watched(session: ShardSession, places: Sequence[Place]) -> list[DueGroup]:
        first = places[0]
        if not windows.allows(first.engine):
            last = windows.last_error(first.engine)
            raise NoHealthyShardsError(
                keyspace=first.keyspace,
                servers={first.server: f"has failed repeatedly: {last}"},
            )
        failure: SQLAlchemyError | None = None
        try:
            return read(session, places)
        except SQLAlchemyError as error:
            failure = error
            raise
        finally:
            windows.record(first.engine, failure)

    return watched


_job = JOBS.c


@lru_cache(maxsize=8)
def _which(states: int) -> Any:
    """Return a SELECT with a column for each state: whether it has rows.

    For each state a table is opened once: of thousands of shards most have no
    work, and that takes most of the time.  A statement with a LIMIT could not
    read hundreds of shards.

    :param states: number of states.
    """
    there = [
        exists()
        .where(_job.state == bindparam(f"the_state{number}"))
        .label(f"there{number}")
        for number in range(states)
    ]
    return select(literal(ShardNumber(), BigInteger()).label("shard_id"), *there)


def _shard_number() -> Any:
    return literal(ShardNumber(), BigInteger()).label("shard_id")


def _ago(name: str) -> ServerTime:
    return ServerTime(bindparam(name, type_=BigInteger()))


@lru_cache(maxsize=64)
def _statement(count: int) -> Any:
    """Return a SELECT that tells of each of some groups whether one is due.

    Each is a subquery with constants, which reads one entry of the index.
    The server would answer a GROUP BY by reading all entries, if it takes the
    backlog for small.
    """
    due = [
        exists()
        .where(
            _job.state == bindparam(f"state{number}"),
            _job.queue == bindparam(f"queue{number}"),
            _job.priority == bindparam(f"priority{number}"),
            _job.due_at <= _ago(f"since{number}"),
        )
        .label(f"due{number}")
        for number in range(count)
    ]
    return select(_shard_number(), *due)


def _read(
    states: int,
    groups: Sequence[tuple[JobState, str, int]],
    parameters: dict[str, Any],
    session: ShardSession,
    places: Sequence[Place],
) -> list[DueGroup]:
    found = session.execute(
        _which(states), parameters, bind_arguments={"places": places}
    )
    numbers = {shard_id for shard_id, *there in found if any(there)}
    places = [place for place in places if place.shard_id in numbers]
    if not places:
        return []
    rows = session.execute(
        _statement(len(groups)), parameters, bind_arguments={"places": places}
    )
    return [
        DueGroup(
            keyspace=places[0].keyspace,
            shard_id=shard_id,
            state=state,
            queue=name,
            priority=priority,
        )
        for shard_id, *due in rows
        for (state, name, priority), is_due in zip(groups, due, strict=True)
        if is_due
    ]
