"""The worker: claims jobs on all shards and runs them in threads.

One thread, that of :meth:`Worker.run`, surveys the shards, claims jobs and
writes outcomes; the threads of an executor run the tasks.  Between the two
are a queue of outcomes and a number: how many jobs the worker holds.

How many jobs are claimed ahead follows from how long jobs take: enough for
half a second, so short jobs come in large batches, and a long one does not
hold back others that an idle worker could run.
"""

from __future__ import annotations

import logging
import queue
import random
from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from dataclasses import field
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.engine.unread import describe_unread
from sqla_shard.engine.unread import short
from sqla_shard.exc import JobOptionError
from sqla_shard.jobs.claims import ClaimedJob
from sqla_shard.jobs.claims import LEASE
from sqla_shard.jobs.enqueue import check_queue
from sqla_shard.jobs.handling import check_binary_logs
from sqla_shard.jobs.handling import Exchange
from sqla_shard.jobs.handling import exchange
from sqla_shard.jobs.job_events import job_begins
from sqla_shard.jobs.job_events import job_ends
from sqla_shard.jobs.job_events import report_lost_claims
from sqla_shard.jobs.queue_limits import LimitedQueues
from sqla_shard.jobs.running import Ending
from sqla_shard.jobs.running import Outcome
from sqla_shard.jobs.running import run_job
from sqla_shard.jobs.schedule import Schedule
from sqla_shard.jobs.survey import due_jobs
from sqla_shard.jobs.survey import DueGroup
from sqla_shard.jobs.upkeep import KEEP_DONE
from sqla_shard.jobs.upkeep import KEEP_FAILED
from sqla_shard.jobs.upkeep import keep_up
from sqla_shard.outbox.apply import Address
from sqla_shard.util.jitter import jittered

if TYPE_CHECKING:
    from sqla_shard import Cluster

__all__ = ["RunReport", "Worker"]

_log = logging.getLogger(__name__)

#: Seconds of work that are claimed ahead.
_AHEAD = 0.5
_MOST_AHEAD = 256
#: Seconds that an outcome waits for the next claim on its shard.
_PATIENCE = 0.05
#: Seconds between two passes of upkeep, about.
_UPKEEP = 30.0
_MOST_THREADS = 1000
_LONGEST_LEASE = 86400


@dataclass(kw_only=True)
class RunReport:
    """What a worker has done.

    :ivar succeeded: number of jobs that have succeeded.
    :ivar failed: number of failed attempts.
    :ivar lost: number of runs whose claim was lost.
    :ivar unknown: the names of tasks that are not defined in this process,
        with the number of jobs, which stay in their queues.
    :ivar recovered: number of expired claims of other workers.
    :ivar deleted: number of old jobs that were deleted.
    """

    succeeded: int = 0
    failed: int = 0
    lost: int = 0
    unknown: Counter[str] = field(default_factory=Counter)
    recovered: int = 0
    deleted: int = 0


class Worker:
    """Runs the jobs of some queues.

    ::

        Worker(cluster, queues=["titles"], concurrency=4).run()

    Start as many processes as there is work for.  The modules that define the
    tasks must have been imported.

    :param cluster: the cluster.
    :param queues: names of queues; of equal importance.
    :param concurrency: number of threads that run tasks.
    :param lease: seconds until a claim of this worker expires; longer than
        any task of these queues runs.
    :param keep_done: time for which jobs that have succeeded are kept.
    :param keep_failed: time for which failed jobs are kept.
    :raises JobOptionError: if an argument is not valid.
    """

    def __init__(
        self,
        cluster: Cluster,
        queues: Sequence[str] = ("default",),
        *,
        concurrency: int = 4,
        lease: float = LEASE,
        keep_done: timedelta = KEEP_DONE,
        keep_failed: timedelta = KEEP_FAILED,
    ) -> None:
        names: object = queues
        if isinstance(names, str) or not names:
            raise JobOptionError(
                "must be a list of names", option="queues", value=names
            )
        if type(concurrency) is not int or not (
            1 <= concurrency <= _MOST_THREADS
        ):
            raise JobOptionError(
                f"must be an int from 1 to {_MOST_THREADS}",
                option="concurrency",
                value=concurrency,
            )
        if not 1 <= lease <= _LONGEST_LEASE:
            raise JobOptionError(
                f"must be a number of seconds from 1 to {_LONGEST_LEASE}",
                option="lease",
                value=lease,
            )
        self._cluster = cluster
        self._queues = [check_queue(name) for name in queues]
        self._concurrency = concurrency
        self._lease = float(lease)
        self._keep = {"keep_done": keep_done, "keep_failed": keep_failed}
        self._is_stopped = False
        self._finished: queue.SimpleQueue[Outcome | None] = queue.SimpleQueue()
        self._holds = 0
        self._seconds = 0.0  # of a job, on average
        self._outcomes: dict[Address, list[Outcome]] = {}
        self._oldest = 0.0
        self._report = RunReport()
        self._limits = LimitedQueues(cluster, self._queues)
        self._schedule = Schedule(random.Random())  # noqa: S311  # no secret

    def stop(self) -> None:
        """Claim no more jobs; :meth:`run` returns after those that run.

        This method can be called by any thread, and by a signal handler.
        """
        self._is_stopped = True
        self._finished.put(None)

    def run(self, until_empty: bool = False) -> RunReport:
        """Run jobs until :meth:`stop` is called.

        :param until_empty: return when no job is due on any shard.
        :returns: what was done.
        :raises UnsafeBinaryLogError: if a server has a binary log of
            statements.
        :raises SQLAlchemyError: with ``until_empty``, if a server cannot be
            read.
        """
        self._report = report = RunReport()
        check_binary_logs(self._cluster)
        self._schedule.reset()
        with (
            ThreadPoolExecutor(1, "sqla-shard-upkeep") as upkeep,
            ThreadPoolExecutor(self._concurrency, "sqla-shard-job") as threads,
        ):
            keeping = upkeep.submit(self._keep_up)
            keeping.result()
            next_upkeep = monotonic() + jittered(_UPKEEP, 0.3)
            while not (self._is_stopped and self._holds == 0):
                self._work(threads)
                if until_empty and self._is_empty():
                    break
                if monotonic() >= next_upkeep and keeping.done():
                    keeping = upkeep.submit(self._keep_up)
                    next_upkeep = monotonic() + jittered(_UPKEEP, 0.3)
            self._write_all()
            self._is_stopped = False
        return report

    def _work(self, threads: ThreadPoolExecutor) -> None:
        """Do one round: claim, write, or wait."""
        free = self._room()
        if free > 0 and not self._is_stopped:
            address = self._schedule.next_shard()
            if address is None and self._schedule.is_survey_due():
                self._survey()
                address = self._schedule.next_shard()
            if address is not None:
                for job in self._exchange(address, free):
                    self._holds += 1
                    self._submit(threads, job)
        waits = bool(self._outcomes)
        if waits and monotonic() - self._oldest > _PATIENCE:
            self._write_all()
            waits = False
        self._take(self._timeout(waits))

    def _room(self) -> int:
        """Return how many jobs to claim; 0 if too few to be worth it."""
        ahead = 0
        if self._seconds > 0:
            ahead = int(_AHEAD * self._concurrency / self._seconds)
        capacity = self._concurrency + min(ahead, _MOST_AHEAD)
        free = capacity - self._holds
        return free if 2 * free >= capacity or free >= capacity - 1 else 0

    def _timeout(self, waits: bool) -> float | None:
        """Return the seconds to wait for an outcome; None not to wait."""
        if self._room() > 0 and not self._is_stopped:
            if self._schedule.has_work:
                return None
            pause = self._schedule.until_survey()
        else:
            pause = 3600.0
        return min(pause, _PATIENCE) if waits else pause

    def _take(self, timeout: float | None) -> None:
        """Take the outcomes of finished jobs."""
        try:
            if timeout is None:
                outcome = self._finished.get_nowait()
            else:
                outcome = self._finished.get(timeout=max(timeout, 0.001))
            while True:
                if outcome is not None:
                    self._holds -= 1
                    self._note(outcome)
                outcome = self._finished.get_nowait()
        except queue.Empty:
            return

    def _note(self, outcome: Outcome) -> None:
        job, ending = outcome.job, outcome.ending
        self._schedule.is_empty = False
        if ending in (Ending.SUCCEEDED, Ending.WRITTEN):
            self._report.succeeded += 1
        elif ending is Ending.FAILED:
            self._report.failed += 1
        elif ending is Ending.UNKNOWN:
            self._report.unknown[job.task] += 1
        else:
            self._lose([str(job)])
        if ending in (Ending.FAILED, Ending.UNKNOWN):
            _log.warning(
                "job %s (%s), attempt %d of %d: %s",
                *(job, job.task, job.attempt, job.max_attempts, outcome.error),
                extra={"action": "run", "task": job.task},
            )
        if ending not in (Ending.WRITTEN, Ending.LOST):
            if not self._outcomes:
                self._oldest = monotonic()
            self._outcomes.setdefault(job.address, []).append(outcome)

    def _lose(self, jobs: Sequence[str]) -> None:
        for job in jobs:
            self._report.lost += 1
            _log.warning(
                "job %s: its claim was lost, and nothing was written",
                job,
                extra={"action": "run"},
            )

    def _submit(self, threads: ThreadPoolExecutor, job: ClaimedJob) -> None:
        def ended(future: Future[Outcome]) -> None:
            # Also after SystemExit, or whatever else a task may raise.
            error = future.exception()
            self._finished.put(
                future.result()
                if error is None
                else Outcome(job=job, ending=Ending.FAILED, error=repr(error))
            )

        threads.submit(self._run, job).add_done_callback(ended)

    def _run(self, job: ClaimedJob) -> Outcome:
        begin = monotonic()
        began = job_begins(self._cluster, job)
        outcome = run_job(self._cluster, job)
        job_ends(self._cluster, outcome, began)
        took = monotonic() - begin
        # Threads may overwrite each other's value: it is an estimate.
        self._seconds += (max(took, 1e-4) - self._seconds) / 8
        return outcome

    # -- Transactions.

    def _survey(self) -> None:
        queues = self._limits.open_queues()
        groups, unread = due_jobs(self._cluster, queues)
        for line in describe_unread(unread):
            _log.warning("%s", line, extra={"action": "survey"})
        self._schedule.surveyed(
            groups,
            self._cluster.places,
            complete=self._limits.is_known and not unread,
        )

    def _exchange(self, address: Address, limit: int) -> list[ClaimedJob]:
        """Claim jobs of a shard, and write its outcomes."""
        groups = self._schedule.groups(address)
        allowed = {
            name: self._limits.allowance(name, limit)
            for name in {group.queue for group in groups}
        }
        found = None
        if any(allowed.values()):
            found = self._send(address, groups, limit, allowed)
        if found is None:
            self._schedule.drop(address)
            return []
        for name, count in Counter(j.queue for j in found.claimed).items():
            self._limits.use(name, count)
        self._schedule.emptied(address, found.emptied)
        return found.claimed

    def _write_all(self) -> None:
        """Write all outcomes, without claims."""
        if not self._outcomes:
            return
        for address in list(self._outcomes):
            self._send(address, [], 0, {})
        self._oldest = monotonic()
        # A job that has failed, or is one step of many, may be due again.
        self._schedule.reset()

    def _send(
        self,
        address: Address,
        groups: Sequence[DueGroup],
        limit: int,
        allowed: Mapping[str, int],
    ) -> Exchange | None:
        """Send a transaction; return None if the shard cannot be used.

        Outcomes that could not be written are written again later: until its
        claim has expired, no other worker runs the job.
        """
        outcomes = self._outcomes.pop(address, [])
        try:
            found = self._cluster.run(
                exchange,
                *(address, outcomes, groups, limit, allowed, self._lease),
            )
        except SQLAlchemyError as error:
            keyspace, shard_id = address
            _log.warning(
                "shard %d of %s cannot be used now: %s",
                *(shard_id, keyspace, short(error)),
                extra={"action": "claim"},
            )
            if outcomes:
                self._outcomes[address] = outcomes
            return None
        self._lose(found.lost)
        if found.lost:
            report_lost_claims(self._cluster, tuple(found.lost))
        return found

    def _keep_up(self) -> None:
        done = keep_up(self._cluster, self._queues, **self._keep)
        self._report.recovered += done.recovered
        self._report.deleted += done.deleted
        for line in done.troubles:
            _log.warning("%s", line, extra={"action": "keep up"})

    def _is_empty(self) -> bool:
        """Return whether nothing is due, held or to be written."""
        if self._holds or not self._schedule.is_empty:
            return False
        if self._outcomes:
            self._write_all()
        return self._schedule.is_empty
