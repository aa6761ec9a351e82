"""Following a topology source: how processes learn of changes.

A :class:`Follower` reads the source in its own thread, has the last good
topology, and notifies of newer ones.  No request waits for a source.

``follower``   the follower, and the interface of its sources
``polling``    sources that are polled, such as files; fixed topologies
``snapshot``   the last good topology, in a file
``locations``  sources for paths and URLs
"""

from __future__ import annotations

from sqla_shard.topology.admission import check_newer
from sqla_shard.topology.follow.follower import (
    FollowedSource,
    Follower,
    SourceReport,
    State,
)
from sqla_shard.topology.follow.locations import (
    followed,
    is_zookeeper,
    load_location,
    open_follower,
    SnapshotPath,
    source_at,
    zookeeper_options,
)
from sqla_shard.topology.follow.polling import Fixed
from sqla_shard.topology.follow.snapshot import Snapshot

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
