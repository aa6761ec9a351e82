"""Events of a cluster, for listeners of the application."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy.event import Events

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.engine import StatementReport
from sqla_shard.topology import Topology

if TYPE_CHECKING:
    from sqla_shard.jobs import ClaimedJob
    from sqla_shard.jobs import JobReport

__all__ = ["ClusterEvents"]


class ClusterEvents(Events[Cluster]):
    """Events of a :class:`Cluster`, for :func:`sqlalchemy.event.listen`.

    ::

        @event.listens_for(cluster, "after_statement")
        def count(cluster, report):
            metrics.histogram("fan_out", report.fan_out)
    """

    _target_class_doc = "SomeCluster"
    _dispatch_target = Cluster

    def after_statement(
        self, cluster: Cluster, report: StatementReport
    ) -> None:
        """Called after a statement, whether it failed or not.

        It is called in the thread of the session, before objects are loaded
        from the rows; exceptions of the listener are raised there.
        """

    def topology_changed(
        self, cluster: Cluster, old: Topology, new: Topology
    ) -> None:
        """Called when a newer topology is in use.

        It is called once for each topology, in the order of epochs, in a
        thread of the cluster; exceptions are only logged.  The source is not
        read until the listener returns: leave long work to another thread.
        After ten seconds ``cluster.health()`` is ``"stale"``.
        """

    def before_enqueue(
        self, cluster: Cluster, task: str, carrier: dict[str, str]
    ) -> None:
        """Called before jobs of a task are inserted.

        Exceptions of the listener are raised by ``enqueue()``.

        :param carrier: what a listener adds to it, such as ``traceparent``,
            is stored with the jobs; workers get it as ``job.context``.
        """

    def before_job(self, cluster: Cluster, job: ClaimedJob) -> None:
        """Called before a worker calls the task of a job.

        It is called in the thread, or in the task of the event loop, that
        runs the job; exceptions are only logged.
        """

    def after_job(self, cluster: Cluster, report: JobReport) -> None:
        """Called after a task has returned or failed, where it was called.

        A job whose task returns its result outside a transaction is
        acknowledged later.  Exceptions of the listener are only logged.
        """

    def job_claims_lost(self, cluster: Cluster, jobs: tuple[str, ...]) -> None:
        """Called when what a worker writes for jobs was refused.

        Their claims had expired, and other workers may have run them.
        Exceptions of the listener are only logged.
        """
