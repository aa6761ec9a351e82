"""Claims of jobs that a worker holds: extended while the jobs run.

A thread of the worker extends the claims of all its jobs, with one
transaction for each server, when a third of their time has passed; most jobs
have ended before.  The thread also learns which claims are lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TYPE_CHECKING

from sqlalchemy import BigInteger, bindparam, select

from sqla_shard.dialects.sql import ServerTime, SkipLocked
from sqla_shard.jobs.claims import (
    BY_KEY,
    ClaimedJob,
    held,
    LEASE,
    RUNNING,
    update_rows,
    with_hint,
)
from sqla_shard.outbox.apply import Address, microseconds, place_at
from sqla_shard.outbox.tables import JOBS
from sqla_shard.session import ShardSession

if TYPE_CHECKING:
    pass

_job = JOBS.c
_ids: Any = bindparam("ids", expanding=True)
_later = bindparam("later", type_=BigInteger())

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
    for address, its in sorted(by_shard.items()):
        place = place_at(session, address)
        if is_first:
            place.backend.begin_skipping(session.root_connection(place))
        is_first = False
        lost += _extend(session, {"place": place}, its, lease)
    return lost


def _extend(
    session: ShardSession, at: dict[str, Any], jobs: Sequence[ClaimedJob], lease: float
) -> list[ClaimedJob]:
    which = {"ids": sorted({job.local_id for job in jobs})}
    found = session.execute(_LOCKED_STATES, which, bind_arguments=at).all()
    rows = {row.id: row for row in found}
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
    found = session.execute(_STATES, which, bind_arguments=at).all()
    theirs = {row.id: row for row in found}
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


_MINE = with_hint(
    select(_job.id).where(_job.id.in_(_ids), held).with_for_update(), BY_KEY
)


def confirm(session: ShardSession, jobs: Sequence[ClaimedJob]) -> list[ClaimedJob]:
    """Return which of some jobs were claimed by a transaction.

    It waits for the locks of that transaction: after an unknown outcome of
    COMMIT, the server may still be executing it.

    :param jobs: jobs of one claim, at least one.
    """
    place = place_at(session, jobs[0].address)
    place.backend.begin_skipping(session.root_connection(place))
    found = set(
        session.execute(
            _MINE,
            {"ids": sorted(job.local_id for job in jobs), "the_token": jobs[0].token},
            bind_arguments={"place": place},
        ).scalars()
    )
    return [job for job in jobs if job.local_id in found]
