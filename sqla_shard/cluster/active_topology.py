"""The topology in use by a cluster: its sources, and its replacement by a newer one.

A transaction uses the shard locations that were valid when it began until it
ends; a newer topology is used by the next one.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Collection, Mapping
from typing import Any, TYPE_CHECKING, TypeVar

from sqla_shard.cluster.event_loops import Loops
from sqla_shard.engine import Engines, Places
from sqla_shard.topology import (
    DEFAULT_PLACEHOLDERS,
    FileSource,
    Topology,
    TopologySource,
)
from sqla_shard.topology.follow import (
    check_newer,
    Fixed,
    followed,
    Follower,
    is_zookeeper,
    open_follower,
    SnapshotPath,
    zookeeper_options,
)
from sqla_shard.topology.follow.locations import check_hosts
from sqla_shard.util.processes import in_children

T = TypeVar("T", bound="FromSources")


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


class FromSources:
    """Class methods that open a :class:`~sqla_shard.Cluster`."""

    _active: ActiveTopology

    if TYPE_CHECKING:

        def __init__(self, topology: Topology, **kwargs: Any) -> None: ...

    @classmethod
    def from_topology(
        cls: type[T],
        topology: Topology | Mapping[str, Any],
        *,
        placeholders: Collection[str] = DEFAULT_PLACEHOLDERS,
        environ: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> T:
        """Return the cluster of a topology.

        :param topology: a :class:`~sqla_shard.topology.Topology`, or a
            mapping in the form of a topology file.
        :param placeholders: names that ``${NAME}`` in a URL may have.
        :param kwargs: as for :class:`Cluster`.
        :raises TopologyError: if a mapping is not a valid topology.
        """
        if not isinstance(topology, Topology):
            topology = Topology.from_mapping(
                topology, placeholders=placeholders, environ=environ
            )
        return cls(topology, environ=environ, **kwargs)

    @classmethod
    def from_file(
        cls: type[T],
        path: str | os.PathLike[str],
        *,
        watch: bool = True,
        placeholders: Collection[str] = DEFAULT_PLACEHOLDERS,
        environ: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> T:
        """Return the cluster of a topology file, TOML or JSON.

        :param path: path of the file.
        :param watch: follow the file: a newer topology in it is used within a
            second or two.
        :param placeholders: names that ``${NAME}`` in a URL may have.
        :param kwargs: as for :class:`Cluster`.
        :raises TopologyError: if the file cannot be read or is not valid.
        """
        source = FileSource(path, placeholders=placeholders, environ=environ)
        if not watch:
            return cls(source.load(), environ=environ, **kwargs)
        return cls.from_source(source, environ=environ, **kwargs)

    @classmethod
    def from_zookeeper(
        cls: type[T],
        hosts: str,
        *,
        snapshot: SnapshotPath = None,
        timeout: float = 5.0,
        reread: float = 60.0,
        register: bool = True,
        kazoo_options: Mapping[str, Any] | None = None,
        placeholders: Collection[str] = DEFAULT_PLACEHOLDERS,
        environ: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> T:
        """Return a cluster that follows the topology in a ZooKeeper.

        If ZooKeeper cannot be reached, now or later, the last good
        topology is used; see :class:`~sqla_shard.topology.follow.Follower`.

        :param hosts: ``"zk1:2181,zk2:2181/path"``.
        :param snapshot: path of the file for the last good topology; None for
            one in ``$XDG_STATE_HOME/sqla_shard``, False for no file.
        :param timeout: seconds to wait for a response from ZooKeeper.
        :param reread: seconds after which the topology is read again, even
            without a notification.
        :param register: whether this process shows its host, process number,
            program and epoch in ZooKeeper, for ``sqla-shard fleet doctor``.
            Without permission it goes on without.
        :param kazoo_options: arguments of :class:`kazoo.client.KazooClient`,
            such as ``auth_data``, ``use_ssl`` and ``ca``.  The environment
            variable of :meth:`from_location` is not read here.
        :param placeholders: names that ``${NAME}`` in a URL may have.
        :param kwargs: as for :class:`Cluster`.
        :raises TopologyUnavailableError: if neither ZooKeeper nor the
            snapshot has a topology.
        :raises TopologyError: if the topology or ``hosts`` is not valid.
        :raises MissingExtraError: if kazoo is not installed.
        """
        check_hosts(hosts, credentials="pass kazoo_options={'auth_data': ...}")
        from sqla_shard.topology.zookeeper.source import ZooKeeperSource

        source = ZooKeeperSource(
            hosts,
            timeout=timeout,
            options=kazoo_options,
            placeholders=placeholders,
            environ=environ,
            register={"role": "cluster"} if register else None,
        )
        return cls.from_source(
            source,
            snapshot=snapshot,
            reread=reread,
            placeholders=placeholders,
            environ=environ,
            **kwargs,
        )

    @classmethod
    def from_location(
        cls: type[T], location: str | os.PathLike[str], **kwargs: Any
    ) -> T:
        """Return the cluster of a topology file, or of a ZooKeeper.

        :param location: a path; or a URL such as
            ``zookeeper://zk1:2181,zk2:2181/prod``, or with ``zookeeper+tls``
            and the options ``ca``, ``certfile`` and ``keyfile``.
            Credentials are taken from the environment variable
            ``SQLA_SHARD_ZOOKEEPER_AUTH``, ``digest:user:password``.
        :param kwargs: as for :meth:`from_file` or :meth:`from_zookeeper`.
        :raises TopologyUnavailableError: see :meth:`from_zookeeper`.
        :raises TopologyError: if the topology is not valid.
        :raises MissingExtraError: if kazoo is needed and not installed.
        """
        if not is_zookeeper(location):
            return cls.from_file(location, **kwargs)
        hosts, options = zookeeper_options(os.fspath(location))
        options.update(kwargs.pop("kazoo_options", None) or {})
        return cls.from_zookeeper(hosts, kazoo_options=options, **kwargs)

    @classmethod
    def from_source(
        cls: type[T],
        source: TopologySource,
        *,
        interval: float = 5.0,
        snapshot: SnapshotPath = False,
        reread: float = 60.0,
        placeholders: Collection[str] = DEFAULT_PLACEHOLDERS,
        environ: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> T:
        """Return a cluster that follows a source.

        :param source: an object with a method ``load()`` that returns the
            present topology.
        :param interval: seconds between two calls of ``load()``.
        :param snapshot: as for :meth:`from_zookeeper`; no file by default.
        :param reread: as for :meth:`from_zookeeper`.
        :param placeholders: names that ``${NAME}`` in the snapshot may have.
        :param kwargs: as for :class:`Cluster`.
        :raises TopologyUnavailableError: if there is no topology.
        :raises TopologyError: if it is not valid.
        """
        follower = open_follower(
            followed(source, interval),
            snapshot=snapshot,
            reread=reread,
            placeholders=placeholders,
            environ=environ,
        )
        try:
            cluster = cls(follower.topology, environ=environ, **kwargs)
        except BaseException:
            follower.close_soon()
            raise
        cluster._active.follow(follower)
        return cluster
