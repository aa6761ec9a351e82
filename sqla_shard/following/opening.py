"""From what an application says of its source to one that is followed."""

from __future__ import annotations

import os
from collections.abc import Collection
from collections.abc import Mapping
from typing import Literal

from sqla_shard.following.contract import FollowedSource
from sqla_shard.following.follower import Follower
from sqla_shard.following.snapshots import default_path
from sqla_shard.following.snapshots import Snapshot

__all__ = ["SnapshotPath", "open_follower"]

#: Where the last good topology is kept: a path, None for the usual place,
#: False for nowhere.
SnapshotPath = str | os.PathLike[str] | Literal[False] | None


def open_follower(
    source: FollowedSource,
    *,
    snapshot: SnapshotPath,
    placeholders: Collection[str],
    environ: Mapping[str, str] | None,
    reread: float = 60.0,
) -> Follower:
    """Return a follower that has its first topology.

    :param snapshot: see :data:`SnapshotPath`.
    :param placeholders: see :meth:`Topology.from_mapping`.
    :param environ: likewise.
    :param reread: see :class:`Follower`.
    :raises TopologyUnavailableError: when there is no topology.
    :raises TopologyError: when it cannot be used.
    """
    kept = None
    if snapshot is not False:
        path = default_path(source.name) if snapshot is None else snapshot
        kept = Snapshot(path, placeholders=placeholders, environ=environ)
    follower = Follower(source, snapshot=kept, reread=reread)
    try:
        follower.begin()
    except BaseException:
        # Its session would be kept alive for nobody.
        follower.close_soon()
        raise
    return follower
