"""Tasks, and what tests do with the rows of jobs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from sqlalchemy import BigInteger, delete, literal, select, update
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_shard import AsyncShardSession, Cluster, ObjectMixin, ShardSession
from sqla_shard.dialects.sql import ServerTime
from sqla_shard.jobs import ClaimedJob, claims, current_job, EnqueuedJob, Linear, task
from sqla_shard.outbox.tables import JOB_KEYS, JOBS
from tests.models.backends import Clusters
from tests.models.layouts import LAYOUT, unpack

SHARDS = 6


class Base(DeclarativeBase):
    id_layout = LAYOUT


class Counter(ObjectMixin, Base, type_id=1):
    __tablename__ = "counters"
    count: Mapped[int] = mapped_column(BigInteger, default=0)


@task("tests.add", queue="adding", retry=Linear(2, step=0), max_attempts=3)
def add(session: ShardSession, counter_id: int, n: int = 1) -> None:
    """Add to a counter; a second run is seen."""
    more = update(Counter).where(Counter.id == counter_id)
    session.execute(more.values(count=Counter.count + n))


def pause() -> None:
    """Do nothing; a process may have another function here."""


@task("tests.pausing", queue="pausing", retry=Linear(2, step=0))
def pausing(session: ShardSession, counter_id: int) -> None:
    pause()
    add(session, counter_id)


@task("tests.fails", queue="failing", retry=Linear(2, step=0))
def fails(session: ShardSession, counter_id: int) -> None:
    add(session, counter_id)
    raise RuntimeError("as it always does")


@task(
    "tests.at_least_once", queue="adding", retry=Linear(2, step=0), in_transaction=False
)
def outside(counter_id: int) -> None:
    """Add in a transaction that does not acknowledge the job."""
    with current_job().cluster.begin() as session:
        add(session, counter_id)


@task("tests.acking", queue="adding", retry=Linear(2, step=0), in_transaction=False)
def acking(counter_id: int) -> None:
    """Add in a transaction that acknowledges the job."""
    job = current_job()
    with job.cluster.begin() as session:
        add(session, counter_id)
        job.ack_with(session)


#: Ways to end the process of a worker, of which no program knows more.
DEATHS: dict[str, Callable[[], object]] = {
    "exit": lambda: os._exit(3),
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
}


@task("tests.kills", queue="adding", retry=Linear(2, step=0), in_transaction=False)
def kills(how: str) -> None:
    """End the process."""
    DEATHS[how]()


@task("tests.awaiting", queue="adding", retry=Linear(2, step=0))
async def awaiting(session: AsyncShardSession, counter_id: int) -> None:
    """Add in the event loop."""
    await session.run_sync(add, counter_id)


def counter(cluster: Cluster, shard_id: int = 1) -> int:
    """Return the id of a new counter."""
    with cluster.begin(shard_id=shard_id) as session:
        made = Counter()
        session.add(made)
        session.flush()
        return made.id


def counters(cluster: Cluster, ids: list[int]) -> list[int]:
    with cluster.session() as session:
        found = session.get_many(Counter, ids)
    return [one.count for one in found if one is not None]


def on_shard(cluster: Cluster, shard_id: int, statement: Any) -> Any:
    """Execute a statement on a shard; return its rows, if it has any."""
    space = cluster.places.keyspace(None, "objects")
    place = cluster.places.place(space, shard_id)
    with cluster.begin() as session:
        found = session.execute(statement, bind_arguments={"place": place})
        return found.all() if found.returns_rows else None


def rows(cluster: Cluster, shard_id: int = 1) -> list[Any]:
    """Return the jobs of a shard, in the order of their numbers."""
    found: list[Any] = on_shard(cluster, shard_id, select(JOBS).order_by(JOBS.c.id))
    return found


def empty(cluster: Cluster) -> None:
    """Delete all jobs."""
    for shard_id in range(SHARDS):
        on_shard(cluster, shard_id, delete(JOBS))
        on_shard(cluster, shard_id, delete(JOB_KEYS))


def expire(cluster: Cluster, job: ClaimedJob | EnqueuedJob) -> None:
    """Let the time of a claim, or of a finished job, pass."""
    past = ServerTime(literal(-1_000_000, BigInteger()))
    this = update(JOBS).where(JOBS.c.id == job.local_id)
    on_shard(cluster, job.shard_id, this.values(due_at=past))


def take(
    session: ShardSession,
    near: int,
    queue: str = "adding",
    priority: int = 2,
    limit: int = 10,
) -> list[ClaimedJob]:
    """Claim jobs of the shard of an object, as a worker does."""
    space = session.places.keyspace(None, "objects")
    place = session.places.place(space, unpack(near).shard_id)
    if not session.is_connected(place):
        place.backend.begin_skipping(session.root_connection(place))
    return claims.claim(session, place, queue, priority, limit)


#: Clusters with these tables.
JOB_CLUSTERS = Clusters(Base.metadata, SHARDS, main=("main",))
