"""A cluster whose topology a test changes while it runs."""

from __future__ import annotations

import threading
from typing import Any

from sqla_shard import Cluster, Topology


class Swaps:
    """Lets a cluster ask the test for newer topologies.

    :ivar asked: the number of its requests.
    :ivar next: the response to its next request.
    """

    is_live = True
    is_running = True

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._changed = threading.Condition()
        self.asked = 0
        self.next: Topology | None = None
        current: Any = cluster._active
        current.follower = self

    @property
    def epoch(self) -> int:
        return self._cluster.topology.epoch

    def swap(self, topology: Topology) -> None:
        self._cluster._active._take(self._cluster.topology, topology)
        with self._changed:
            self._changed.notify_all()

    def refresh(self) -> None:
        self.asked += 1
        topology, self.next = self.next, None
        if topology is not None:
            self.swap(topology)

    def wait(self, epoch: int, timeout: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.epoch > epoch, timeout)

    def close_soon(self) -> None:
        """Do nothing."""

    def close(self, timeout: float) -> bool:
        """Do nothing."""
        return True


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
