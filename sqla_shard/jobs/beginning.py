"""The start of a job: what must be written, and waited for, before its function.

An attempt that counts when the function begins is counted by a transaction of
its own.  Jobs whose last claim has expired begin one after another in a
process: one of them may kill it each time, and must not take with it, time
after time, others that were lost with it.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
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
#: Seconds after which no further attempt to write a start begins.
_TIMEOUT = 2.0
#: Jobs of event loops that are counted at the same time.
_MOST_COUNTING = 32
#: Seconds until a job is claimed again whose start could not be written.
_AGAIN_AFTER = 5.0


class Beginnings:
    """Begins the jobs of a process."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._turn = threading.Lock()
        self._last: RunningJob | None = None
        self._pools: dict[int, ThreadPoolExecutor] = {}

    def begin(self, running: RunningJob) -> Outcome | None:
        """Wait for the turn of a job, and count its attempt, if it needs that.

        Call :meth:`end` when it has ended.

        :returns: its outcome, if it cannot begin.
        """
        if running.job.was_lost:
            self._take_turn(running)
        return self._count(running) if running.job.counts_at_start else None

    async def async_begin(self, running: RunningJob) -> Outcome | None:
        """Wait, and count, in an event loop; see :meth:`begin`."""
        # Not in the threads of the loop, which functions of jobs need: many
        # jobs that wait, or count on a server that is silent, would fill them.
        loop = asyncio.get_running_loop()
        if running.job.was_lost:
            await loop.run_in_executor(self._pool(1), self._take_turn, running)
        if not running.job.counts_at_start:
            return None
        return await loop.run_in_executor(
            self._pool(_MOST_COUNTING), self._count, running
        )

    def _pool(self, most: int) -> ThreadPoolExecutor:
        """Return the threads for waiting, or for counting."""
        if most not in self._pools:
            self._pools[most] = ThreadPoolExecutor(most, "sqla-shard-beginning")
        return self._pools[most]

    def end(self, running: RunningJob) -> None:
        """Let the next job begin."""
        running.has_ended.set()

    def close(self) -> None:
        """Give up the jobs of event loops that wait."""
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.shutdown(wait=False, cancel_futures=True)

    def _take_turn(self, running: RunningJob) -> None:
        with self._turn:
            if self._last is not None and not running.is_lost:
                self._last.has_ended.wait(_ALONE)
            self._last = running

    def _count(self, running: RunningJob) -> Outcome | None:
        job, before = running.job, monotonic()
        try:
            running.check()
            self._cluster.run(claims.start, job, running.lease, timeout=_TIMEOUT)
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
