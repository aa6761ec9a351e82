"""The topology that a cluster uses now, and how a newer one takes its place.

A session takes the places of the moment when its transaction begins and keeps
them until it ends.  So a newer topology tears nothing: it is what the next
transaction begins with.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from sqla_shard.engines import Engines
from sqla_shard.engines import Places
from sqla_shard.following import check_newer
from sqla_shard.following import Fixed
from sqla_shard.following import Follower
from sqla_shard.forking import in_children
from sqla_shard.loops import Loops
from sqla_shard.topology import Topology

__all__ = ["Current"]


class Current:
    """The topology in use, with the places and engines that belong to it.

    :param topology: the first one.
    :param engines: of the process.
    :param loops: engines of its event loops.
    :param changed: called with the old and the new one when a newer one is
        in use.
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
        #: Where newer ones come from.
        self.feed: Fixed | Follower = Fixed(topology)
        in_children(self)

    @property
    def places(self) -> Places:
        """Where the shards are now."""
        if not self.feed.is_running:
            # The first use, in this process: a fork leaves threads behind.
            self.feed.start()
        return self._places

    def follow(self, follower: Follower) -> None:
        """Use what a follower finds, from now on.

        :param follower: it has the topology in use.
        """
        self.feed = follower
        # Not by a strong reference: the thread would keep for ever what
        # nobody has any more.
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
        """Use a newer topology, where no source is followed.

        :returns: False where it is the one in use.
        :raises StaleTopologyError: when it is not newer.
        :raises TopologyRefusedError: when it would lose what the one in use
            has.
        :raises MissingDriverError: when it names a driver that is not there.
        :raises ValueError: when a source is followed.
        """
        if not isinstance(self.feed, Fixed):
            raise ValueError(
                f"the cluster follows {self.feed.report().source}; publish "
                "the topology there"
            )
        with self._updating:
            old = self._places.topology
            if topology == old:
                return False
            check_newer(old, topology, source="update_topology()")
            self._engines.check(topology)
            self._take(old, topology)
            self.feed.replace(topology)
        return True

    def _take(self, old: Topology, new: Topology) -> None:
        # In this order: transactions that begin meanwhile find no server that
        # is let in too late, or gone too early.
        self._engines.expect(new)
        self._places = Places(new, self._engines)
        self._engines.follow(new)
        self._loops.follow(new)
        self._changed(old, new)

    def after_fork(self) -> None:
        """Forget, in a child process, who holds a lock in the parent."""
        self._updating = threading.Lock()
        if isinstance(self.feed, Fixed):
            self.feed.after_fork()
