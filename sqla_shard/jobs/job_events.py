"""Events of jobs for listeners of the application, such as OpenTelemetry."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from time import monotonic
from typing import Any, TYPE_CHECKING

from sqla_shard.jobs.claims import ClaimedJob
from sqla_shard.jobs.running import Ending, Outcome, RunningJob

if TYPE_CHECKING:
    from sqla_shard import Cluster

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class JobReport:
    """The result of one run of a job, for listeners of ``after_job``.

    :ivar job: the job.
    :ivar ending: ``"succeeded"``, also for one step of several; ``"failed"``;
        ``"unknown"``: the task is not defined in this process;
        ``"released"``: the worker ends; or ``"lost"``: the claim was lost.
    :ivar seconds: duration of the run; 0 if the function has not begun.
    :ivar error: the error, as text; empty if there is none.
    """

    job: ClaimedJob
    ending: str
    seconds: float
    error: str


def job_begins(cluster: Cluster, job: ClaimedJob) -> None:
    """Call the listeners of ``before_job``."""
    _call(cluster.dispatch.before_job, cluster, job)


def job_ends(cluster: Cluster, running: RunningJob, outcome: Outcome) -> Outcome:
    """Call the listeners of ``after_job``; return the outcome."""
    if cluster.dispatch.after_job:
        began = running.began
        ending = outcome.ending
        if ending is Ending.WRITTEN:
            ending = Ending.SUCCEEDED
        report = JobReport(
            job=outcome.job,
            ending=ending.name.lower(),
            seconds=0.0 if began is None else monotonic() - began,
            error=outcome.error,
        )
        _call(cluster.dispatch.after_job, cluster, report)
    return outcome


def report_lost_claims(cluster: Cluster, jobs: tuple[str, ...]) -> None:
    """Call the listeners of ``job_claims_lost``."""
    _call(cluster.dispatch.job_claims_lost, cluster, jobs)


def _call(listeners: Any, *arguments: Any) -> None:
    for listener in listeners:
        try:
            listener(*arguments)
        # The job must be acknowledged nevertheless.
        except BaseException:
            _log.exception(
                "a listener of an event of jobs failed", extra={"action": "report"}
            )
