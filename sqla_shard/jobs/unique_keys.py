"""The unique keys of jobs that have not finished.

A key is a row of ``sqla_shard_job_key``, which counts how often it was
enqueued again.  A claim reads the count without a lock, so it does not wait
for a transaction that is enqueueing the key.  When the job ends, the row is
deleted if the count is still the same; otherwise the job is run again: it may
have read before that transaction has written.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from sqlalchemy import bindparam, delete, select

from sqla_shard.outbox.tables import JOB_KEYS
from sqla_shard.session import ShardSession


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
    found = session.execute(_COUNTS, {"keys": keys}, bind_arguments=at)
    return {row.job_id: row.duplicates for row in found}


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
