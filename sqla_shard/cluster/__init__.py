"""The cluster of an application: a topology, its engines, its sessions.

``cluster``          :class:`~sqla_shard.Cluster`
``factories``        :meth:`~sqla_shard.Cluster.from_file` and the like
``active_topology``  the topology in use, and its replacement by a newer one
``event_loops``      the engines of each event loop
``async_session``    :class:`~sqla_shard.AsyncShardSession`
``run``              :meth:`~sqla_shard.Cluster.run`: a transaction, repeated
``retries``          errors after which it may be repeated, and its pauses
``creation``         databases and tables, for development and tests
``explain``          the route of an id or a statement
``dry_run``          the statements that a session would send
``health``           the state of the servers
``cluster_events``   events for the application
"""

from __future__ import annotations

from sqla_shard.cluster.async_session import AsyncShardSession
from sqla_shard.cluster.cluster import Cluster
from sqla_shard.cluster.cluster_events import ClusterEvents
from sqla_shard.cluster.dry_run import Sent
from sqla_shard.cluster.explain import Explanation, Target
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
