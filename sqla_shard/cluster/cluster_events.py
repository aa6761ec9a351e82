"""Events of a cluster, for listeners of the application."""

from __future__ import annotations

from typing import Any

from sqlalchemy.event import Events

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.engine import StatementReport
from sqla_shard.exc import RoutingError
from sqla_shard.session.commit import CommitReport
from sqla_shard.topology import Topology


class ClusterEvents(Events[Cluster]):
    """Events of a :class:`Cluster`, for :func:`sqlalchemy.event.listen`.

    ::

        @event.listens_for(cluster, "after_statement")
        def count(cluster, report):
            metrics.histogram("fan_out", report.fan_out)
    """

    _target_class_doc = "SomeCluster"
    _dispatch_target = Cluster

    def after_statement(self, cluster: Cluster, report: StatementReport) -> None:
        """Called after a statement, whether it failed or not.

        It is called in the thread of the session, before objects are loaded
        from the rows; exceptions of the listener are raised there.
        """

    def commit_ended(self, cluster: Cluster, report: CommitReport) -> None:
        """Called after the COMMITs of a transaction, whatever the outcome.

        It is called in the thread of the session; exceptions of the listener
        are raised there, although the transaction may have been committed.
        """

    def transaction_repeated(
        self, cluster: Cluster, error: Exception, attempt: int
    ) -> None:
        """Called before :meth:`Cluster.run` repeats a transaction.

        :param error: the error of the last attempt.
        :param attempt: its number, from 1.
        """

    def statement_refused(self, cluster: Cluster, error: RoutingError) -> None:
        """Called after a statement was refused, which has sent nothing.

        It is called in the thread of the session, below the line of the
        application that has executed the statement.
        """

    def connection_obtained(
        self, cluster: Cluster, server: str, seconds: float
    ) -> None:
        """Called after a transaction has got a connection to a server.

        :param server: name of the server, as in :meth:`Cluster.stats`.
        :param seconds: time for which the transaction has waited: for the
            pool, and for a new connection.
        """

    def topology_changed(self, cluster: Cluster, old: Topology, new: Topology) -> None:
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

    def before_job(self, cluster: Cluster, job: Any) -> None:
        """Called before a worker calls the task of a job.

        It is called in the thread, or in the task of the event loop, that
        runs the job; exceptions are only logged.

        :param job: a :class:`~sqla_shard.jobs.ClaimedJob`.
        """

    def after_job(self, cluster: Cluster, report: Any) -> None:
        """Called after a task has returned or failed, where it was called.

        A job whose task returns its result outside a transaction is
        acknowledged later.  Exceptions of the listener are only logged.

        :param report: a :class:`~sqla_shard.jobs.JobReport`.
        """

    def job_claims_lost(self, cluster: Cluster, jobs: tuple[str, ...]) -> None:
        """Called when what a worker writes for jobs was refused.

        Their claims had expired, and other workers may have run them.
        Exceptions of the listener are only logged.
        """
