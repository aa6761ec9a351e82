"""A cluster whose topology a test changes while it runs."""

from __future__ import annotations

import threading
from typing import Any

from sqla_shard import Cluster
from sqla_shard import Topology
from sqla_shard.engines import Places

__all__ = ["Swaps", "moved"]


class Swaps:
    """Where newer topologies come from: from the test.

    :ivar asked: how often somebody has asked for one.
    """

    is_live = True

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._engines = cluster.places.engines
        self._changed = threading.Condition()
        self.epoch = cluster.topology.epoch
        self.asked = 0
        self.next: Topology | None = None
        self._engines.topology = cluster.topology
        self._engines.trouble = self.refresh
        cluster._feed = self

    def swap(self, topology: Topology) -> None:
        self._engines.topology = topology
        self._cluster.places = Places(topology, self._engines)
        with self._changed:
            self.epoch = topology.epoch
            self._changed.notify_all()

    def refresh(self) -> None:
        """Take what the test has left in :attr:`next`."""
        self.asked += 1
        topology, self.next = self.next, None
        if topology is not None:
            self.swap(topology)

    def wait(self, epoch: int, timeout: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.epoch > epoch, timeout)

    def detach(self) -> None:
        self._cluster._feed = None


def moved(document: Any, shard_id: int, epoch: int) -> Topology:
    """Return a topology where the last shard of server1 is on server2."""
    first, second = document["keyspaces"]["objects"]["servers"]
    assert first["shards"][1] == shard_id
    changed = {
        **document["keyspaces"]["objects"],
        "servers": [
            {**first, "shards": [first["shards"][0], shard_id - 1]},
            {**second, "shards": [shard_id, second["shards"][1]]},
        ],
    }
    keyspaces = {**document["keyspaces"], "objects": changed}
    return Topology.from_mapping({"epoch": epoch, "keyspaces": keyspaces})
