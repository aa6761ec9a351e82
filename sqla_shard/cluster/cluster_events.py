"""Events of a cluster, for listeners of the application."""

from __future__ import annotations

from sqlalchemy.event import Events

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.engine import StatementReport
from sqla_shard.topology import Topology

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
