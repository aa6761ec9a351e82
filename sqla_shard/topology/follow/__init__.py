"""Following a topology source: how processes learn of changes.

A :class:`Follower` reads the source in its own thread, has the last good
topology, and notifies of newer ones.  No request waits for a source.

``follower``   the follower, the interface of its sources, its snapshot
``locations``  sources for paths and URLs, polled or fixed
"""

from __future__ import annotations

from sqla_shard.topology.changes import check_newer
from sqla_shard.topology.follow.follower import (
    FollowedSource,
    Follower,
    Snapshot,
    SourceReport,
    State,
)
from sqla_shard.topology.follow.locations import (
    Fixed,
    followed,
    is_zookeeper,
    load_location,
    open_follower,
    SnapshotPath,
    source_at,
    zookeeper_options,
)

__all__ = [
    "Fixed",
    "FollowedSource",
    "Follower",
    "Snapshot",
    "SnapshotPath",
    "SourceReport",
    "State",
    "check_newer",
    "followed",
    "is_zookeeper",
    "load_location",
    "open_follower",
    "source_at",
    "zookeeper_options",
]
