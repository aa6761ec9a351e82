"""What an application can be told of by its cluster."""

from __future__ import annotations

from sqlalchemy.event import Events

from sqla_shard.cluster import Cluster
from sqla_shard.scattering import StatementReport
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
        """Receive what became of a statement, whether it failed or not.

        It is called in the thread of the session, before the rows are
        turned into objects; what it raises is raised there.
        """

    def topology_changed(
        self, cluster: Cluster, old: Topology, new: Topology
    ) -> None:
        """Be told that a newer topology is in use.

        It is called once for each, in the order of epochs, in a thread of
        the cluster; what it raises is logged, and nothing else.  Nothing
        newer is looked for until it has returned: leave what takes long to
        another thread.  After ten seconds ``cluster.health()`` is
        ``"stale"``.
        """
