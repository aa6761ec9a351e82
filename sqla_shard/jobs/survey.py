"""Which shards have jobs that are due: one statement for a server.

A statement reads up to 256 shards.  On each of them it reads, for each queue
and priority, the first entry of the index with the state: not the backlog,
and no job that is scheduled for later.  So it takes as long for a million
jobs as for one, and returns nothing for a shard without work.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from datetime import timedelta
from functools import partial
from typing import Any
from typing import TYPE_CHECKING

from sqlalchemy import BigInteger
from sqlalchemy import bindparam
from sqlalchemy import func
from sqlalchemy import literal
from sqlalchemy import or_
from sqlalchemy import select

from sqla_shard.dialects.sql import Moment
from sqla_shard.engine.rendering import Place
from sqla_shard.engine.unread import UnreadServer
from sqla_shard.ids import SHARD_SHIFT
from sqla_shard.jobs.claims import DONE
from sqla_shard.jobs.claims import FAILED
from sqla_shard.jobs.claims import JobState
from sqla_shard.jobs.claims import PENDING
from sqla_shard.jobs.claims import RUNNING
from sqla_shard.outbox.scan import scan
from sqla_shard.outbox.tables import JOB_INDEX
from sqla_shard.outbox.tables import JOBS
from sqla_shard.session import ShardSession
from sqla_shard.types.shard_bound import Prefix

if TYPE_CHECKING:
    from sqla_shard.session.session import AnyCluster

__all__ = ["DueGroup", "due_for_repair", "due_jobs"]


@dataclass(frozen=True, kw_only=True)
class DueGroup:
    """Jobs of a shard with one state, queue and priority, of which one is due.

    :ivar oldest: the time at which the first of them was due, in UTC.
    """

    keyspace: str
    shard_id: int
    state: JobState
    queue: str
    priority: int
    oldest: datetime

    @property
    def address(self) -> tuple[str, int]:
        """The keyspace and the number of the shard."""
        return self.keyspace, self.shard_id


_job = JOBS.c
_oldest = func.min(_job.due_at).label("oldest")
_GROUPS = select(
    # The prefix of an id contains the number of the shard.
    literal(Prefix(0), BigInteger()).label("prefix"),
    _job.state,
    _job.queue,
    _job.priority,
    _oldest,
).group_by(_job.state, _job.queue, _job.priority)
for _name in ("mysql", "mariadb"):
    _GROUPS = _GROUPS.with_hint(JOBS, f"FORCE INDEX ({JOB_INDEX})", _name)
_PENDING = _GROUPS.where(
    _job.state == PENDING,
    _job.queue.in_(bindparam("queues", expanding=True)),
).having(_oldest <= Moment())


def _ago(name: str) -> Moment:
    return Moment(bindparam(name, type_=BigInteger()))


_UNCLEAN = _GROUPS.where(
    _job.state.in_((RUNNING, DONE, FAILED)),
).having(
    or_(
        (_job.state == RUNNING) & (_oldest <= Moment()),
        (_job.state == DONE) & (_oldest <= _ago("done_before")),
        (_job.state == FAILED) & (_oldest <= _ago("failed_before")),
    )
)


def due_jobs(
    cluster: AnyCluster, queues: Collection[str]
) -> tuple[list[DueGroup], list[UnreadServer]]:
    """Return the pending jobs that are due, by shard, queue and priority.

    :param queues: names of queues.
    :returns: the groups, and the servers that were not read.
    """
    return _survey(cluster, _PENDING, {"queues": list(queues)})


def due_for_repair(
    cluster: AnyCluster, *, keep_done: timedelta, keep_failed: timedelta
) -> tuple[list[DueGroup], list[UnreadServer]]:
    """Return expired claims, and finished jobs that are old enough to delete.

    :param keep_done: time for which jobs that have succeeded are kept.
    :param keep_failed: time for which failed jobs are kept.
    :returns: the groups, and the servers that were not read.
    """
    ago = timedelta(microseconds=-1)
    return _survey(
        cluster,
        _UNCLEAN,
        {
            "done_before": keep_done // ago,
            "failed_before": keep_failed // ago,
        },
    )


def _survey(
    cluster: AnyCluster, statement: Any, parameters: dict[str, Any]
) -> tuple[list[DueGroup], list[UnreadServer]]:
    return scan(
        cluster,
        partial(_read, statement, parameters),
        purpose="jobs",
        kinds=("objects",),
    )


def _read(
    statement: Any,
    parameters: dict[str, Any],
    session: ShardSession,
    places: Sequence[Place],
) -> list[DueGroup]:
    rows = session.execute(
        statement, parameters, bind_arguments={"places": places}
    )
    return [
        DueGroup(
            keyspace=places[0].keyspace,
            shard_id=row.prefix >> SHARD_SHIFT,
            state=JobState(row.state),
            queue=row.queue,
            priority=row.priority,
            oldest=row.oldest,
        )
        for row in rows
    ]
