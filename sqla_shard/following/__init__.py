"""How a change of the topology reaches a process.

A source has the topology; a :class:`Follower` asks it, in a thread of its
own, keeps the last good answer, and hands on what is newer.  No request
ever waits for a source.

``contract``   what is asked of a source that is followed
``files``      files, by looking at them; any other source, by asking it
``zookeeper``  ZooKeeper, which tells of changes; the only user of kazoo
``locations``  from a text to the source that it names
``snapshots``  the last good topology, in a file
``follower``   what is accepted, and from when
``fixed``      in place of it, where nothing is followed
``opening``    from what an application says to a follower
"""

from __future__ import annotations

from sqla_shard.following.contract import FollowedSource
from sqla_shard.following.fixed import Fixed
from sqla_shard.following.follower import check_newer
from sqla_shard.following.follower import Follower
from sqla_shard.following.follower import SourceReport
from sqla_shard.following.follower import State
from sqla_shard.following.locations import followed
from sqla_shard.following.locations import source_at
from sqla_shard.following.opening import open_follower
from sqla_shard.following.opening import SnapshotPath
from sqla_shard.following.snapshots import Snapshot

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
    "open_follower",
    "source_at",
]
