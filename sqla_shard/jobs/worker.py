"""The worker: claims jobs on all shards and runs them.

One thread, that of :meth:`Worker.run`, surveys the shards, claims jobs and
writes outcomes; others run the tasks, extend claims, and recover and delete
jobs.  Between them are a queue of outcomes and the set of the jobs that the
worker holds.

How many jobs are claimed ahead follows from how long jobs take: enough for
half a second, so short jobs come in large batches, and a long one does not
hold back others that an idle worker could run.
"""

from __future__ import annotations

import queue
import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.engine.unreachable import short, unreachable_lines
from sqla_shard.exc import JobOptionError
from sqla_shard.jobs.claims import ClaimedJob, LEASE
from sqla_shard.jobs.context import Ending, Heartbeat, JobOutcome, RunningJob
from sqla_shard.jobs.enqueue import check_queue
from sqla_shard.jobs.hints import hints_of
from sqla_shard.jobs.queues import LimitedQueues
from sqla_shard.jobs.runners import Repeating, report_lost_claims, Runners
from sqla_shard.jobs.survey import due_jobs, DueGroup, Schedule
from sqla_shard.jobs.tasks import ensure_periodic
from sqla_shard.jobs.transactions import (
    clean_up,
    deliver,
    Exchanges,
    KEEP_DONE,
    KEEP_FAILED,
)
from sqla_shard.util.json_values import JsonObject
from sqla_shard.util.logs import careful_log

if TYPE_CHECKING:
    from sqla_shard import Cluster

_log = careful_log(__name__)

#: Seconds of work that are claimed ahead.
_AHEAD = 0.5
_MOST_AHEAD = 256
#: Seconds that an outcome waits for the next claim on its shard.
_PATIENCE = 0.05
#: Seconds to wait for an outcome: the handler of a signal that arrives just
#: before the wait is called after it.
_LONGEST_WAIT = 1.0
#: Seconds between two cleanups, about; half of a short lease.
_CLEANUP = 30.0
#: Seconds between two passes of delivery.
_DELIVERY = 5.0
#: Hints that wait for a busy worker, which looks for jobs without them, too.
_MOST_HINTS = 1000
_TOO_LATE = "the worker ended before it"
_MOST_THREADS = 1000
_LONGEST_LEASE = 86400


@dataclass(kw_only=True)
class RunReport(JsonObject):
    """Report of a worker's run.

    :ivar succeeded: number of jobs that have succeeded.
    :ivar failed: number of failed attempts, and of those that could not begin.
    :ivar lost: number of runs whose claim was lost.
    :ivar released: number of jobs that were given back when it ended.
    :ivar unknown: the names of tasks that are not defined in this process,
        with the number of jobs, which stay in their queues.
    :ivar recovered: number of expired claims of other workers.
    :ivar deleted: number of old jobs that were deleted.
    :ivar delivered: number of operations and cache invalidations of other
        transactions that were applied.
    """

    succeeded: int = 0
    failed: int = 0
    lost: int = 0
    released: int = 0
    unknown: Counter[str] = field(default_factory=Counter)
    recovered: int = 0
    deleted: int = 0
    delivered: int = 0

    def __str__(self) -> str:
        text = (
            f"{self.succeeded:,} succeeded, {self.failed:,} failed, "
            f"{self.lost:,} lost, {self.released:,} released"
        )
        if self.unknown:
            text += f"; not defined: {', '.join(sorted(self.unknown))}"
        return text


class Worker:
    """Runs the jobs of some queues.

    ::

        Worker(cluster, queues=["titles"], concurrency=4).run()

    Start as many processes as there is work for.  The modules that define the
    tasks must have been imported.

    :param cluster: the cluster.
    :param queues: names of queues; of equal importance.
    :param concurrency: number of threads that run tasks, and maximum number
        of tasks that are awaited at the same time.
    :param lease: seconds until a claim of this worker expires.  Claims are
        extended while their tasks run: it is how long the jobs of a worker
        that was killed wait, and until the next look of another worker for
        expired claims: up to two thirds of the lease, or 40 seconds, later.
    :param delivers: whether it also applies, every five seconds, the
        operations and cache invalidations that transactions have left, as
        ``sqla-shard repair`` and ``sqla-shard cache repair`` do.  The modules
        of the operations must have been imported, and the cache of the
        cluster configured, if the application has one.
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
        delivers: bool = False,
        keep_done: timedelta = KEEP_DONE,
        keep_failed: timedelta = KEEP_FAILED,
    ) -> None:
        names: object = queues
        if isinstance(names, str) or not names:
            raise JobOptionError(
                "must be a list of names", option="queues", value=names
            )
        if type(concurrency) is not int or not (1 <= concurrency <= _MOST_THREADS):
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
        self._delivers = delivers
        self._undelivered: list[str] = []
        self._keep = {"keep_done": keep_done, "keep_failed": keep_failed}
        self._stops_at: float | None = None
        self._finished: queue.SimpleQueue[tuple[RunningJob, JobOutcome] | None] = (
            queue.SimpleQueue()
        )
        self._held: set[RunningJob] = set()
        #: Groups that are said to have a due job; None to look for all.
        self._hints: queue.SimpleQueue[Collection[DueGroup] | None] = (
            queue.SimpleQueue()
        )
        self._is_notified = False
        self._seconds = 0.0  # of a job, on average
        self._exchanges = Exchanges(cluster, self._lease)
        self._runners: Runners
        self._error: BaseException | None = None
        self._unread: list[str] = []
        self._survey_error: Exception | None = None
        self._report = RunReport()
        self._limits = LimitedQueues(cluster, self._queues)
        self._schedule = Schedule(random.Random())  # noqa: S311  # no secret

    def stop(self, timeout: float | None = None) -> None:
        """Claim no more jobs; :meth:`run` returns after those that run.

        This method can be called by any thread, and by a signal handler; a
        second call can shorten the time.

        :param timeout: seconds for the running tasks to end.  Others are then
            cancelled, if they are ``async def``, and their jobs released for
            other workers, or failed in their last attempt: what their threads
            still write for them is refused.  None waits for all tasks.
        """
        self._stops_at = monotonic() + (inf if timeout is None else timeout)
        self._finished.put(None)

    def wake(self) -> None:
        """Look for jobs now, not after the pause of an idle worker.

        After COMMIT workers of the process, and with
        :func:`~sqla_shard.jobs.share_hints` those of others, are notified of jobs;
        this is for others, such as rows that SQL has inserted.  It can be
        called by any thread, and by a signal handler.
        """
        self._notify(None)

    def _notify(self, groups: Collection[DueGroup] | None) -> None:
        if groups is None or self._hints.qsize() < _MOST_HINTS:
            self._hints.put(groups)
        if not self._is_notified:
            self._is_notified = True
            self._finished.put(None)

    def run(
        self,
        until_empty: bool = False,
        *,
        on_ready: Callable[[], object] = lambda: None,
    ) -> RunReport:
        """Run jobs until :meth:`stop` is called.

        :param until_empty: return when no job is due on any shard.
        :param on_ready: called when the servers were checked, before the
            first claim.
        :returns: what was done.
        :raises UnsafeBinaryLogError: if a server with keyspaces of objects has a
            binary log of statements.
        :raises SQLAlchemyError: with ``until_empty``, if a server cannot be
            read, and no job is due on the others.
        """
        self._report = report = RunReport()
        self._schedule.reset()
        self._runners = Runners(self._cluster, self._concurrency, self._ended)
        heartbeat = Heartbeat(self._cluster, self._lease, lambda: list(self._held))
        # Of what is enqueued or recovered from here on there are hints.
        with hints_of(self._cluster).listening(self._notify):
            # One statement for a server finds what to clean up, and the first work.
            due = self._clean_up(looks=True)
            open_queues = self._limits.open_queues()
            if due := [group for group in due if group.queue in open_queues]:
                self._schedule.surveyed(due, self._cluster.places)
            delivery: AbstractContextManager[object] = nullcontext()
            if self._delivers:
                self._deliver()
                delivery = Repeating("delivery", self._deliver, _DELIVERY, self._fail)
            with (
                delivery,
                Repeating(
                    "cleanup",
                    self._clean_up,
                    min(_CLEANUP, self._lease / 2),
                    self._fail,
                    spread=0.3,
                ),
                Repeating("heartbeat", heartbeat.beat, self._lease / 6, self._fail),
            ):
                on_ready()
                try:
                    while not self._is_over():
                        if until_empty and self._is_empty():
                            break
                        self._work()
                finally:
                    self._release_all()
        self._stops_at = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return report

    def _fail(self, error: BaseException) -> None:
        """Let :meth:`run` end, and raise the error of another thread."""
        self._error = error
        self.stop()

    @property
    def _is_stopped(self) -> bool:
        return self._stops_at is not None

    def _is_over(self) -> bool:
        if self._stops_at is None:
            return False
        if not self._held and not self._exchanges.has_doubts:
            return True
        return monotonic() >= self._stops_at

    def _work(self) -> None:
        """Do one round: claim, write, or wait."""
        if self._exchanges.has_doubts:
            for claimed, expires in self._exchanges.settle():
                self._begin(claimed, expires)
        if self._is_stopped:
            for running in self._runners.take_back():
                self._give_back(running)
        elif (free := self._room()) > 0:
            self._take_hints()
            if self._schedule.is_survey_due():
                self._survey()
            if groups := self._schedule.next_groups():
                self._claim(groups, free)
        if self._exchanges.age > _PATIENCE:
            self._write_all()
        self._runners.keep_threads()
        self._take(self._timeout())

    def _room(self) -> int:
        """Return how many jobs to claim; 0 if too few to be worth it."""
        ahead = 0
        if self._seconds > 0:
            ahead = int(_AHEAD * self._concurrency / self._seconds)
        capacity = self._concurrency + min(ahead, _MOST_AHEAD)
        free = capacity - len(self._held)
        return free if 2 * free >= capacity or free >= capacity - 1 else 0

    def _timeout(self) -> float | None:
        """Return the seconds to wait for an outcome; None not to wait."""
        pause = _LONGEST_WAIT
        if self._stops_at is not None:
            pause = min(pause, self._stops_at - monotonic())
        elif self._room() > 0:
            if self._schedule.has_work:
                return None
            pause = min(pause, self._schedule.until_survey())
        if self._exchanges.has_outcomes or self._exchanges.has_doubts:
            pause = min(pause, _PATIENCE)
        return pause

    def _take(self, timeout: float | None) -> None:
        """Take the outcomes of finished jobs."""
        try:
            if timeout is None:
                ended = self._finished.get_nowait()
            else:
                ended = self._finished.get(timeout=max(timeout, 0.001))
            while True:
                # A job that was released has no outcome any more.
                if ended is not None and ended[0] in self._held:
                    self._held.remove(ended[0])
                    self._note(ended[1])
                ended = self._finished.get_nowait()
        except queue.Empty:
            return

    def _note(self, outcome: JobOutcome) -> None:
        job, ending = outcome.job, outcome.ending
        could_not_begin = ending is Ending.RELEASED and outcome.error
        self._schedule.is_empty = False
        if ending in (Ending.SUCCEEDED, Ending.WRITTEN):
            self._report.succeeded += 1
        elif ending is Ending.FAILED or could_not_begin:
            self._report.failed += 1
        elif ending is Ending.UNKNOWN:
            self._report.unknown[job.task] += 1
        elif ending is Ending.RELEASED:
            self._report.released += 1
        else:
            self._lose([str(job)])
        # Before the log, whose stream may end the process.
        if ending not in (Ending.WRITTEN, Ending.LOST):
            self._exchanges.add(outcome)
        if ending in (Ending.FAILED, Ending.UNKNOWN) or could_not_begin:
            _log.warning(
                "job %s (%s), attempt %d of %d: %s",
                *(job, job.task, job.attempt, job.max_attempts, outcome.error),
                extra={"action": "run", "task": job.task},
            )

    def _lose(self, jobs: Sequence[str]) -> None:
        for job in jobs:
            self._report.lost += 1
            _log.warning(
                "job %s: its claim was lost, and nothing was written",
                job,
                extra={"action": "run"},
            )

    def _refused(self, jobs: Sequence[str]) -> None:
        """Report jobs whose outcomes could not be written any more."""
        if jobs:
            report_lost_claims(self._cluster, tuple(jobs))
            self._lose(jobs)

    def _ended(self, running: RunningJob, outcome: JobOutcome) -> None:
        """Take over the outcome of a job; called by the runners."""
        if running.began is not None:
            took = max(monotonic() - running.began, 1e-4)
            # Threads may overwrite each other's value: it is an estimate.
            self._seconds += (took - self._seconds) / 8
        self._finished.put((running, outcome))

    def _give_back(self, running: RunningJob) -> None:
        self._held.discard(running)
        job = running.job
        if running.began is None or job.attempt < job.max_attempts:
            self._note(JobOutcome(job=job, ending=Ending.RELEASED))
        else:
            # Its last attempt has begun, and may have done anything.
            self._note(JobOutcome(job=job, ending=Ending.FAILED, error=_TOO_LATE))

    def _release_all(self) -> None:
        """Write all outcomes, and release what still runs."""
        self._take(None)
        for running in list(self._held):
            running.lose()
            self._give_back(running)
        self._runners.close()
        self._write_all()

    def _take_hints(self) -> None:
        """Take over the hints since the last round."""
        self._is_notified = False
        hinted: set[DueGroup] = set()
        while not self._hints.empty():
            groups = self._hints.get()
            if groups is None:
                self._schedule.look_now()
            else:
                hinted.update(one for one in groups if one.queue in self._queues)
        if hinted:
            topology, queues = self._cluster.topology, self._limits.open_queues()
            self._schedule.add(
                one
                for one in hinted
                if one.queue in queues
                # Of another cluster, or of another epoch of this one.
                and (space := topology.keyspaces.get(one.keyspace)) is not None
                and space.kind == "objects"
                and 0 <= one.shard_id < space.shards
            )

    # -- Transactions.

    def _survey(self) -> None:
        queues = self._limits.open_queues()
        groups, unreachable = due_jobs(self._cluster, queues)
        lines = unreachable_lines(unreachable)
        if lines != self._unread:
            for line in lines:
                _log.warning("%s", line, extra={"action": "survey"})
        self._unread = lines
        self._survey_error = self._limits.error
        if unreachable:
            self._survey_error = unreachable[0].error
        self._schedule.surveyed(groups, self._cluster.places)

    def _claim(self, groups: Sequence[DueGroup], limit: int) -> None:
        """Claim jobs of a shard, write its outcomes, and run the jobs."""
        address = groups[0].address
        allowed = {
            name: self._limits.allowance(name, limit)
            for name in {group.queue for group in groups}
        }
        expires = monotonic() + self._lease
        exchange = None
        if any(allowed.values()):
            exchange = self._exchanges.send(address, groups, limit, allowed)
        if exchange is None:
            self._schedule.drop(address)
            return
        self._refused(exchange.lost)
        for name, count in Counter(j.queue for j in exchange.claimed).items():
            self._limits.use(name, count)
        self._schedule.emptied(address, exchange.emptied)
        self._begin(exchange.claimed, expires)

    def _begin(self, jobs: Sequence[ClaimedJob], expires: float) -> None:
        """Run jobs that were claimed.

        :param expires: when the claims expire, by the monotonic clock.
        """
        for job in jobs:
            running = RunningJob(self._cluster, job, expires=expires, lease=self._lease)
            self._held.add(running)
            self._runners.submit(running)

    def _write_all(self) -> None:
        """Write all outcomes, without claims."""
        lost, count = self._exchanges.send_all()
        self._refused(lost)
        if count:
            # A job that has failed, or is a step of many, may be due again.
            self._schedule.reset()

    def _clean_up(self, *, looks: bool = False) -> Sequence[DueGroup]:
        """Recover and delete jobs; return where jobs are due, if it looks."""
        try:
            ensure_periodic(self._cluster, self._queues)
        except SQLAlchemyError as error:
            _log.warning(
                "the jobs of periodic tasks cannot be inserted now: %s",
                short(error),
                extra={"action": "clean up"},
            )
        done = clean_up(self._cluster, self._queues, looks=looks, **self._keep)
        self._report.recovered += done.recovered
        self._report.deleted += done.deleted
        for line in unreachable_lines(done.unreachable):
            _log.warning("%s", line, extra={"action": "clean up"})
        return done.due

    def _deliver(self) -> None:
        done = deliver(self._cluster)
        self._report.delivered += done.applied + done.invalidated
        # A lasting error is logged once, not every few seconds.
        for line in done.problems:
            if line not in self._undelivered:
                _log.warning("%s", line, extra={"action": "deliver"})
        self._undelivered = done.problems

    def _is_empty(self) -> bool:
        """Return whether nothing is due, held or to be written."""
        if self._held or self._exchanges.has_doubts:
            return False
        if self._schedule.is_empty:
            self._write_all()
        if self._schedule.is_empty and self._survey_error is not None:
            raise self._survey_error
        return self._schedule.is_empty
