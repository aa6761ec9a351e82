"""How a change of the topology reaches a process.

A source has the topology; a :class:`Follower` asks it, in a thread of its
own, keeps the last good answer, and hands on what is newer.  No request
ever waits for a source.

``contract``   what is asked of a source that is followed
``files``      files, by looking at them; any other source, by asking it
``zookeeper``  ZooKeeper, which tells of changes; it loads kazoo
``zookeeper_acls``   who may read and write what is made there; it does, too
``zookeeper_store``  ZooKeeper, to be written; the last one
``locations``  from a text to the source that it names
``snapshots``  the last good topology, in a file
``follower``   what is accepted, and from when
``fixed``      in place of it, where nothing is followed
``opening``    from what an application says to a follower
``publications``  what is published, and what must not be
``published``     what is there, and in the history
``publishing``    how that is done in ZooKeeper
"""

from __future__ import annotations

from sqla_shard.following.contract import FollowedSource
from sqla_shard.following.fixed import Fixed
from sqla_shard.following.follower import check_newer
from sqla_shard.following.follower import Follower
from sqla_shard.following.follower import SourceReport
from sqla_shard.following.follower import State
from sqla_shard.following.locations import followed
from sqla_shard.following.locations import is_zookeeper
from sqla_shard.following.locations import load_location
from sqla_shard.following.locations import source_at
from sqla_shard.following.locations import zookeeper_options
from sqla_shard.following.opening import open_follower
from sqla_shard.following.opening import SnapshotPath
from sqla_shard.following.publications import HistoryEntry
from sqla_shard.following.publications import NOT_PUBLISHED
from sqla_shard.following.publications import ProtectedNode
from sqla_shard.following.publications import Publication
from sqla_shard.following.publications import RaisedGeneration
from sqla_shard.following.publishing import Publisher
from sqla_shard.following.snapshots import Snapshot

__all__ = [
    "NOT_PUBLISHED",
    "Fixed",
    "FollowedSource",
    "Follower",
    "HistoryEntry",
    "ProtectedNode",
    "Publication",
    "Publisher",
    "RaisedGeneration",
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
