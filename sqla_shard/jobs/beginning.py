"""The start of a job: what must be written, and waited for, before its function.

An attempt that counts when the function begins is counted by a transaction of
its own.  Jobs whose last claim has expired begin one after another in a
process: one of them may kill it each time, and must not take with it, time
after time, others that were lost with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.exc import JobClaimLostError
from sqla_shard.exc.base import summary
from sqla_shard.jobs import claims
from sqla_shard.jobs.running import Ending, Outcome, RunningJob

if TYPE_CHECKING:
    from sqla_shard import Cluster

#: Seconds that a job whose claim was lost has alone; longer ones then run at
#: the same time.
_ALONE = 1.0
#: Seconds until a job is claimed again whose start could not be written.
_AGAIN_AFTER = 5.0


class Beginnings:
    """Begins the jobs of a process."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._turn = threading.Lock()
        self._last = threading.Event()
        self._last.set()

    def begin(self, running: RunningJob) -> tuple[Callable[[], None], Outcome | None]:
        """Wait for the turn of a job, and count its attempt, if it needs that.

        :returns: a function to be called when it has ended; and its outcome, if
            it cannot begin.
        """
        if not running.job.counts_at_start:
            return _nothing, None
        if not running.job.was_lost:
            return _nothing, self._count(running)
        ended = threading.Event()
        with self._turn:
            self._last.wait(_ALONE)
            self._last = ended
            return ended.set, self._count(running)

    def _count(self, running: RunningJob) -> Outcome | None:
        job, before = running.job, monotonic()
        try:
            self._cluster.run(claims.start, job, running.lease)
        except JobClaimLostError:
            return Outcome(job=job, ending=Ending.LOST)
        except SQLAlchemyError as error:
            return Outcome(
                job=job,
                ending=Ending.RELEASED,
                error=f"it could not begin: {summary(error)}",
                delay=_AGAIN_AFTER,
            )
        running.expires = before + running.lease
        return None


def _nothing() -> None:
    """Do nothing: nobody waits for this job."""
