"""Topologies in ZooKeeper: read, watched and published.

Nothing else imports kazoo but the completion of a shell, which must not load
SQLAlchemy, and only ``source`` and ``store`` do it here.

``source``        reads and watches a topology; ACLs
``store``         nodes as they are read and written
``publications``  the published topology, its history, and its rules
``publisher``     publishes a topology by compare-and-set
``message_node``  the last message of some processes, which others hear of
"""

from __future__ import annotations

from sqla_shard.topology.history import HistoryEntry
from sqla_shard.topology.zookeeper.publications import (
    NOT_PUBLISHED,
    Publication,
    RaisedGeneration,
)
from sqla_shard.topology.zookeeper.publisher import Publisher
from sqla_shard.topology.zookeeper.store import ProtectedNode

__all__ = [
    "NOT_PUBLISHED",
    "HistoryEntry",
    "ProtectedNode",
    "Publication",
    "Publisher",
    "RaisedGeneration",
]
