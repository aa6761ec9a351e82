"""The cluster of an application: a topology, its engines, its sessions.

``cluster``          :class:`~sqla_shard.Cluster`, and its events
``active_topology``  the topology in use, its sources, and newer ones
``event_loops``      :class:`~sqla_shard.AsyncShardSession`, and its engines
``retries``          :meth:`~sqla_shard.Cluster.run`: a transaction, repeated
``creation``         databases and tables, for development and tests
``explain``          the route of an id or a statement, and its dry run
``health``           the state of the servers
"""

from __future__ import annotations

from sqla_shard.cluster.cluster import Cluster, ClusterEvents
from sqla_shard.cluster.event_loops import AsyncShardSession
from sqla_shard.cluster.explain import Explanation, Sent, Target
from sqla_shard.cluster.health import Health

__all__ = [
    "AsyncShardSession",
    "Cluster",
    "ClusterEvents",
    "Explanation",
    "Health",
    "Sent",
    "Target",
]
