"""The topology in use by a cluster, and its replacement by a newer one.

A transaction uses the shard locations that were valid when it began until it
ends; a newer topology is used by the next one.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from sqla_shard.cluster.event_loops import Loops
from sqla_shard.engine import Engines, Places
from sqla_shard.topology import Topology
from sqla_shard.topology.follow import check_newer, Fixed, Follower
from sqla_shard.util.processes import in_children


class ActiveTopology:
    """The topology in use, with the places and engines that belong to it.

    :param topology: the first topology.
    :param engines: the engines of the process.
    :param loops: the engines of the event loops of the process.
    :param changed: called with the old and the new topology after a change.
    """

    def __init__(
        self,
        topology: Topology,
        engines: Engines,
        loops: Loops,
        changed: Callable[[Topology, Topology], None],
    ) -> None:
        self._engines = engines
        self._loops = loops
        self._changed = changed
        self._updating = threading.Lock()
        self._places = Places(topology, engines)
        engines.follow(topology)
        #: The source of newer topologies.
        self.follower: Fixed | Follower = Fixed(topology)
        in_children(self)

    @property
    def places(self) -> Places:
        """The current shard locations."""
        if not self.follower.is_running:
            # First use in this process: a fork does not copy threads.
            self.follower.start()
        return self._places

    def follow(self, follower: Follower) -> None:
        """Use the topologies of a follower.

        :param follower: a follower that has the topology in use.
        """
        self.follower = follower
        # Weak references: an unused cluster must be garbage collected.
        take = weakref.WeakMethod(self._take)
        check = weakref.WeakMethod(self._engines.check)

        def admit(new: Topology) -> None:
            found = check()
            if found is not None:
                found(new)

        def change(old: Topology, new: Topology) -> None:
            found = take()
            if found is not None:
                found(old, new)

        follower.admit = admit
        follower.add_callback(change)
        weakref.finalize(self, follower.close_soon)

    def update(self, topology: Topology) -> bool:
        """Use a newer topology; see :meth:`.Cluster.update_topology`."""
        if not isinstance(self.follower, Fixed):
            raise ValueError(
                f"the cluster follows {self.follower.report().source}; "
                "publish the topology there"
            )
        with self._updating:
            old = self._places.topology
            if topology == old:
                return False
            check_newer(old, topology, source="update_topology()")
            self._engines.check(topology)
            self._take(old, topology)
            self.follower.replace(topology)
        return True

    def _take(self, old: Topology, new: Topology) -> None:
        # In this order: a transaction that begins meanwhile must not miss a
        # new server, or use a removed one.
        self._engines.expect(new)
        self._places = Places(new, self._engines)
        self._engines.follow(new)
        self._loops.follow(new)
        self._changed(old, new)

    def after_fork(self) -> None:
        """Replace the lock, which a thread of the parent may hold."""
        self._updating = threading.Lock()
        if isinstance(self.follower, Fixed):
            self.follower.after_fork()
