"""What watchers see of the primaries, and who of them leads, in ZooKeeper.

Below the path of the topology, ``/fleet/watch/votes/ID`` is what one watcher
sees, and ``/fleet/watch/leader`` names the one that acts.  Both end with the
session of their watcher.  The clocks of watchers may differ: a vote has
durations, and it counts while it is renewed.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection
from collections.abc import Mapping
from dataclasses import asdict
from dataclasses import dataclass

from sqla_shard.exc import FleetSetupError
from sqla_shard.fleet.dead_failover import SemiSyncProbe
from sqla_shard.fleet.fleet import Fleet
from sqla_shard.topology.follow import is_zookeeper
from sqla_shard.topology.follow.locations import zookeeper_options
from sqla_shard.topology.zookeeper.publications import FLEET
from sqla_shard.topology.zookeeper.publications import OPERATION
from sqla_shard.topology.zookeeper.publications import TOPOLOGY
from sqla_shard.topology.zookeeper.store import Create
from sqla_shard.topology.zookeeper.store import Replace
from sqla_shard.topology.zookeeper.store import ZooKeeperStore

__all__ = ["Sight", "Votes", "doubt", "probe_of"]

_VOTES = f"{FLEET}/watch/votes"
_LEADER = f"{FLEET}/watch/leader"


@dataclass(frozen=True, kw_only=True)
class Sight:
    """What a watcher sees of a primary.

    :ivar lost_for: seconds since the first look that failed; None if the
        last look succeeded.
    :ivar seen_ago: seconds since the last look that succeeded; None if none
        has.
    :ivar semi_sync: whether COMMIT waited for a standby then.
    :ivar timeout: seconds after which it stops waiting.
    :ivar standbys: number of standbys that acknowledged.
    """

    lost_for: float | None
    seen_ago: float | None
    semi_sync: bool = False
    timeout: float = 0.0
    standbys: int = 0


def doubt(
    sights: Collection[Sight], *, watchers: int, dead_after: float
) -> str | None:
    """Return why a primary is not certainly lost; None if it is.

    :param sights: of the watchers that respond.
    :param watchers: number of watchers, with those that do not respond.
    :param dead_after: seconds for which a majority must see it lost.
    """
    alive = sum(sight.lost_for is None for sight in sights)
    if alive:
        return f"{alive} of {watchers} watchers still see it"
    lost = [
        sight
        for sight in sights
        if sight.lost_for is not None and sight.lost_for >= dead_after
    ]
    if 2 * len(lost) <= watchers:
        return (
            f"{len(lost)} of {watchers} watchers have not seen it for "
            f"{dead_after:g} s, which is no majority"
        )
    return None


def probe_of(sights: Collection[Sight], now: float) -> SemiSyncProbe | None:
    """Return the last look at a lost primary, of any watcher.

    :param sights: of all watchers, which do not see it any more.
    :param now: seconds since the epoch.
    """
    seen = [sight for sight in sights if sight.seen_ago is not None]
    if not seen:
        return None
    last = min(seen, key=lambda sight: sight.seen_ago or 0.0)
    # When even the last of them had missed it.
    lost_for = min(sight.lost_for or 0.0 for sight in sights)
    return SemiSyncProbe(
        seen=now - (last.seen_ago or 0.0),
        lost=now - lost_for,
        on=last.semi_sync,
        timeout=last.timeout,
        standbys=last.standbys,
    )


class Votes:
    """The votes at the location of a fleet.

    :param fleet: its topology must be in ZooKeeper.
    :param stale: seconds after which a vote that is not renewed is ignored.
    :raises FleetSetupError: if the topology is a file.
    """

    def __init__(self, fleet: Fleet, *, stale: float) -> None:
        if not is_zookeeper(fleet.location):
            raise FleetSetupError(
                f"{fleet.location} is not in ZooKeeper, where watchers vote; "
                "publish the topology there: sqla-shard topology publish"
            )
        hosts, options = zookeeper_options(fleet.location)
        self.name = uuid.uuid4().hex
        self._stale = stale
        self._mine = f"{_VOTES}/{self.name}"
        # Version of each vote, and when it has changed.
        self._renewed: dict[str, tuple[int, float | None]] = {}
        self._store = ZooKeeperStore(
            hosts, options={**options, "timeout": fleet.session_timeout}
        )

    def close(self) -> None:
        """End the session, and with it the vote."""
        self._store.close()

    def cast(self, sights: Mapping[str, Sight]) -> None:
        """Replace the vote of this watcher.

        :param sights: by the name of the pair.
        :raises TopologyUnavailableError: if ZooKeeper does not respond.
        """
        data = json.dumps(
            {name: asdict(sight) for name, sight in sights.items()}
        ).encode()
        node = self._store.read(self._mine)
        if node is not None:
            self._store.commit(Replace(self._mine, data, node.version))
            return
        self._store.prepare(_VOTES, like=TOPOLOGY)
        self._store.commit(Create(self._mine, data, is_ephemeral=True))

    def collect(self) -> list[dict[str, Sight]]:
        """Return the votes that are renewed, by the name of the pair.

        :raises TopologyUnavailableError: if ZooKeeper does not respond.
        """
        now = time.monotonic()
        found = []
        renewed = {}
        for name in self._store.names(_VOTES):
            node = self._store.read(f"{_VOTES}/{name}")
            if node is None:
                continue
            version, when = self._renewed.get(name, (node.version, None))
            if name == self.name or version != node.version:
                when = now
            # One that was never seen to change may be of a dead process.
            renewed[name] = node.version, when
            if when is not None and now - when <= self._stale:
                vote = json.loads(node.data)
                found.append({one: Sight(**vote[one]) for one in vote})
        self._renewed = renewed
        return found

    def leads(self) -> bool:
        """Return whether this watcher leads; it does if nobody else does.

        :raises TopologyUnavailableError: if ZooKeeper does not respond.
        """
        node = self._store.read(_LEADER)
        if node is not None:
            return node.data.decode() == self.name
        new = Create(_LEADER, self.name.encode(), is_ephemeral=True)
        return self._store.commit(new) is not None

    def is_pending(self) -> bool:
        """Return whether the fleet has a pending operation.

        :raises TopologyUnavailableError: if ZooKeeper does not respond.
        """
        node = self._store.read(OPERATION)
        return node is not None and bool(node.data)
