"""Publishing topologies in ZooKeeper by compare-and-set.

A publisher moves no data.  It does not know whether the data is on the
servers that a topology names, nor whether two host names are one machine.

Below the path of the connection, ``/topology`` contains the topology in use
and ``/history/0000000007`` that of epoch 7, for the most recent epochs.  Both
are written in one transaction of ZooKeeper, on the condition that
``/topology`` has not changed since it was read: of several concurrent
publishers exactly one succeeds, and the history always contains the topology
in use.  ``/history/0000000007.note`` says who has published it and why, if
that was given, and is written in the same transaction.  For the ACLs of nodes
see :class:`~.store.ZooKeeperStore`.

The content is a topology file in JSON.  Placeholders are unexpanded, and
passwords in URLs are refused, since anyone who can read ZooKeeper would
see them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TYPE_CHECKING

from sqla_shard.exc import (
    FleetLockedError,
    Problem,
    StaleTopologyError,
    TopologyConflictError,
    TopologyError,
    TopologyUnavailableError,
)
from sqla_shard.topology import DEFAULT_PLACEHOLDERS, diff, to_json, Topology
from sqla_shard.topology.changes import check_next
from sqla_shard.topology.follow.locations import is_zookeeper, zookeeper_options
from sqla_shard.topology.generations import (
    inherited,
    with_raised_generations,
    without_generations,
)
from sqla_shard.topology.history import PublicationNote
from sqla_shard.topology.zookeeper.publications import (
    faults,
    FLEET,
    FormerState,
    HISTORY,
    LOCK,
    node_of,
    NOT_PUBLISHED,
    NOTE,
    note_of,
    OPERATION,
    OPERATIONS,
    pending_names,
    Publication,
    PublishedTopologies,
    raises,
    TOPOLOGY,
)
from sqla_shard.topology.zookeeper.store import ProtectedNode
from sqla_shard.util.logs import careful_log

if TYPE_CHECKING:
    from sqla_shard.topology.zookeeper.store import Change, VersionCheck


_log = careful_log(__name__)


class Publisher(PublishedTopologies):
    """Publishes topologies at a path in ZooKeeper.

    A context manager that closes the session; for one thread at a time.
    Connects on first use.

    :param location: ``zookeeper://host:port,host:port/path``, or
        ``zookeeper+tls://``.
    :param keep: number of topologies in the history, including the one in
        use.
    :param timeout: seconds to wait for a response from ZooKeeper.
    :param options: further arguments of :class:`kazoo.client.KazooClient`.
    :param acl: ACL of nodes that are created or protected, such as
        ``["auth::cdrwa", "world:anyone:r"]``.  By default, that of the
        published topology, or of its parent node; otherwise anyone can read,
        and only these credentials can write.  Existing nodes are not changed.
    :param placeholders: allowed names in ``${NAME}``; no values are needed.
    :raises TopologyError: if the location or the ACL is not valid.
    :raises ValueError: if ``keep`` is less than 1.
    :raises MissingExtraError: if kazoo is not installed.
    """

    def __init__(
        self,
        location: str,
        *,
        keep: int = 50,
        timeout: float = 5.0,
        options: Mapping[str, Any] | None = None,
        acl: Sequence[str] = (),
        placeholders: Collection[str] = DEFAULT_PLACEHOLDERS,
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep must be 1 or more, not {keep!r}")
        if not is_zookeeper(location):
            raise TopologyError(
                [
                    Problem(
                        "location",
                        "is not a ZooKeeper URL; write zookeeper://host:port,"
                        "host:port/path, or zookeeper+tls://...",
                    )
                ],
                source=os.fspath(location),
            )
        hosts, found = zookeeper_options(location)
        from sqla_shard.topology.zookeeper.store import ZooKeeperStore

        self._keep = keep
        store = ZooKeeperStore(
            hosts, timeout=timeout, options={**found, **(options or {})}, acl=acl
        )
        super().__init__(store, placeholders)

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        """URL of the published topology, without credentials."""
        return self._store.name

    def close(self) -> None:
        """Close the session with ZooKeeper; the next use opens another."""
        self._store.close()

    def last_epoch(self) -> int:
        """Return the highest epoch that was published, even if deleted.

        :returns: :data:`NOT_PUBLISHED` if there is none.
        :raises TopologyUnavailableError: if ZooKeeper does not respond.
        """
        return self._look().last

    def has(self, topology: Topology) -> bool:
        """Return whether a topology is already published.

        Generations that publishing has raised are not compared.

        :raises TopologyUnavailableError: if ZooKeeper does not respond.
        :raises TopologyError: if the published document is not valid.
        """
        former = self._look()
        topology = _continued(former.newest, topology)
        return former.fault is None and self._has(former, topology)

    def open_nodes(self) -> list[str]:
        """Return the paths of nodes that anyone can change.

        A user who can change the topology can get the passwords of the
        databases, since processes send them to the servers that it names.

        :returns: paths among those of the topology, the history and their
            parent node.
        :raises TopologyUnavailableError: if ZooKeeper does not respond.
        """
        return self._store.open_nodes(["", TOPOLOGY, *self._other_nodes()])

    def _other_nodes(self) -> list[str]:
        ended = self._store.names(OPERATIONS)
        return [
            HISTORY,
            *map(node_of, self._epochs()),
            *self._notes(),
            # Resuming an operation does what its node says.
            FLEET,
            OPERATION,
            OPERATIONS,
            *(f"{OPERATIONS}/{name}" for name in ended),
        ]

    def protect(self, *, dry_run: bool = False) -> list[ProtectedNode]:
        """Protect the published nodes from other users.

        The topology gets the ACL of the publisher.  Without one, if anyone
        can change it, anyone can read and only these credentials have all
        permissions.  The history gets the ACL of the topology, and so does
        the parent node if anyone can change it.  The root of ZooKeeper is
        not changed.

        :param dry_run: write nothing.
        :returns: the nodes that were changed, or would be.
        :raises TopologyUnavailableError: if nothing was published, neither an
            ACL nor credentials were given, these cannot change the ACL, or
            ZooKeeper does not respond.
        """
        return self._store.protect(
            TOPOLOGY, self._other_nodes(), folder="", dry_run=dry_run
        )

    def publish(
        self,
        topology: Topology,
        *,
        expected_epoch: int | None = None,
        dry_run: bool = False,
        renamed: bool = False,
        force: bool = False,
        guard: VersionCheck | None = None,
        note: PublicationNote | None = None,
    ) -> Publication:
        """Publish a topology.

        If the topology is already published, nothing is written; this is not
        an error, so a failed call can be repeated.  Call :meth:`open_nodes`
        afterwards.

        If the primary of a server with a generation changes and the
        generation does not, it is raised above all generations that the
        server has had in the history.  So is the generation of a server that
        was removed and added again.  See ``generations`` of the result.

        :param expected_epoch: epoch of the topology that this one was derived
            from; :data:`NOT_PUBLISHED` for the first one.
        :param dry_run: check everything, and write nothing.
        :param renamed: changed primaries are the same machines with new
            names: no generation is raised for them.
        :param force: publish although a fleet operation is pending.
        :param guard: the version of the pending fleet operation, if it is
            what publishes.
        :param note: who publishes, and why, for the history.
        :raises FleetLockedError: if a fleet operation is pending.
        :raises StaleTopologyError: if the epoch is not higher.
        :raises TopologyRefusedError: if the topology would lose shards, give
            one a second primary, lower a generation, or publish a password.
        :raises TopologyConflictError: if the published epoch is not the
            expected one, another process has just published, or the guard is
            not met; nothing is written.
        :raises TopologyUnavailableError: if ZooKeeper does not respond; the
            message says if the outcome is unknown.
        :raises TopologyError: if the topology has a placeholder that is not
            allowed, or the published document is not valid.
        """
        former = self._look()
        if former.fault is not None:
            raise self._unreadable(former.fault)
        topology = _continued(former.newest, topology)
        if former.newest is not None and self._has(former, topology):
            return self._publication(former, former.newest, None, topology)
        return self._replace(
            former,
            topology,
            topology,
            expected_epoch,
            dry_run,
            renamed,
            force,
            guard,
            note,
        )

    def rollback(
        self,
        *,
        to: int,
        expected_epoch: int | None = None,
        dry_run: bool = False,
        renamed: bool = False,
        force: bool = False,
        note: PublicationNote | None = None,
    ) -> Publication:
        """Publish a topology of the history again, with a new epoch.

        It is checked as by :meth:`publish`, so it cannot close shards that
        were opened since.  It also works if the published document is not
        valid; then it follows the newest topology of the history.

        Generations are not rolled back: servers have their current ones,
        raised if the primary changes.

        :param to: epoch of the topology to publish again.
        :param expected_epoch: see :meth:`publish`.
        :param dry_run: see :meth:`publish`.
        :param renamed: see :meth:`publish`.
        :param force: see :meth:`publish`.
        :param note: see :meth:`publish`.
        :raises TopologyError: if the topology of the history is not valid;
            also see :meth:`publish`.
        """
        wanted = self.at(to)
        former = self._look()
        old = former.newest
        given = _continued(old, replace(wanted, epoch=former.last + 1))
        new = given if old is None else inherited(old, given)
        return self._replace(
            former, new, given, expected_epoch, dry_run, renamed, force, note=note
        )

    def reset(
        self,
        topology: Topology,
        *,
        expected_epoch: int | None = None,
        dry_run: bool = False,
        renamed: bool = False,
        force: bool = False,
        note: PublicationNote | None = None,
    ) -> Publication:
        """Publish a topology with any epoch, even a lower one.

        Use this method if the published epoch is so high that none can follow.
        ``resets`` is raised by one, which makes the topology newer for all
        processes and snapshots.  Otherwise it is checked as by
        :meth:`publish`.  Topologies with this epoch or a higher one are
        deleted from the history.

        :param topology: topology with the new epoch.
        :param expected_epoch: see :meth:`publish`.
        :param dry_run: see :meth:`publish`.
        :param renamed: see :meth:`publish`.
        :param force: see :meth:`publish`.
        :param note: see :meth:`publish`.
        :raises TopologyError: see :meth:`publish`.
        """
        former = self._look()
        known = 0 if former.newest is None else former.newest.resets + 1
        given = replace(topology, resets=max(topology.resets, known, 1))
        former = replace(former, last=NOT_PUBLISHED)
        return self._replace(
            former, given, given, expected_epoch, dry_run, renamed, force, note=note
        )

    def _replace(
        self,
        former: FormerState,
        new: Topology,
        given: Topology,
        expected_epoch: int | None,
        dry_run: bool,
        renamed: bool,
        force: bool,
        guard: VersionCheck | None = None,
        note: PublicationNote | None = None,
    ) -> Publication:
        """Publish ``new`` with raised generations.

        :param given: topology to compare for the report of generations.
        """
        old = former.newest
        idle = self._none_pending() if guard is None and not force else None
        new = with_raised_generations(old, new, self._used, renamed=renamed)
        self._check_expected(old, expected_epoch)
        data = self._checked(former, new)
        if dry_run:
            return self._publication(former, new, None, given)
        # Do this first: if it fails, nothing was published.
        self._store.prepare(HISTORY, like=TOPOLOGY)
        if old is not None and old.resets < new.resets:
            self._store.remove(map(node_of, self._invalidated_by(new)))
        # A reset publishes an epoch again, and so may have left its note.
        self._store.remove(self._orphaned_notes())
        try:
            version = self._write(former, new, data, guard or idle, note)
        except TopologyConflictError:
            if idle is not None:
                # An operation may have begun since.
                self._none_pending()
            raise
        self._trim()
        _log.info(
            "%s: published the topology of epoch %d",
            self.name,
            new.epoch,
            extra={
                "action": "publish topology",
                "epoch": new.epoch,
                "old_epoch": None if old is None else old.epoch,
            },
        )
        return self._publication(former, new, version, given)

    def _none_pending(self) -> VersionCheck | None:
        """Return the condition that no fleet operation is pending.

        None if there has never been one.

        :raises FleetLockedError: if one is.
        """
        from sqla_shard.topology.zookeeper.store import VersionCheck

        node = self._store.read(OPERATION)
        if node is None:
            return None
        if not node.data:
            return VersionCheck(OPERATION, node.version)
        title, holder = pending_names(node.data)
        raise FleetLockedError(
            fleet=self.name,
            operation=title,
            holder=holder,
            running=self._store.read(LOCK) is not None,
        )

    def _write(
        self,
        former: FormerState,
        new: Topology,
        data: bytes,
        guard: VersionCheck | None,
        note: PublicationNote | None,
    ) -> int:
        from sqla_shard.topology.zookeeper.store import Create

        more: list[Change] = [] if guard is None else [guard]
        if note is not None and not note.is_empty:
            more.append(Create(note_of(new.epoch), note.to_json()))
        try:
            version = self._store.write(
                data,
                node=TOPOLOGY,
                version=former.version,
                copy=node_of(new.epoch),
                more=more,
            )
        except TopologyUnavailableError as error:
            return self._outcome(former, new, data, error)
        if version is None:
            raise self._conflict(former.newest)
        return version

    def _outcome(
        self,
        former: FormerState,
        new: Topology,
        data: bytes,
        error: TopologyUnavailableError,
    ) -> int:
        """Find out if a write whose response was lost took effect."""
        try:
            self._store.sync()
            copy = self._store.read(node_of(new.epoch))
            node = self._store.read(TOPOLOGY)
        except TopologyUnavailableError:
            raise self._store.unavailable(
                f"{error.reason}; it is unknown whether epoch {new.epoch} was "
                "published. Publish it again unchanged: if it was published, "
                "nothing happens"
            ) from error
        version = None if node is None else node.version
        if copy is not None and copy.data == data and version is not None:
            return version
        if version != former.version:
            raise self._conflict(former.newest) from error
        raise self._store.unavailable(
            f"{error.reason}; nothing was published"
        ) from error

    def _trim(self) -> None:
        """Delete the oldest topologies of the history."""
        try:
            old = self._epochs()[self._keep :]
            self._store.remove(map(node_of, old))
            self._store.remove(self._orphaned_notes())
        except TopologyUnavailableError as error:
            # The topology is published; the next publication deletes them.
            _log.warning(
                "the history was not shortened: %s",
                error,
                extra={"action": "shorten history"},
            )

    def _orphaned_notes(self) -> list[str]:
        """Return the notes about topologies that the history has not."""
        # The names are read at once: a note is created and found together
        # with its topology.
        names = self._store.names(HISTORY)
        return [
            f"{HISTORY}/{name}"
            for name in names
            if name.endswith(NOTE) and name.removesuffix(NOTE) not in names
        ]

    def _has(self, former: FormerState, topology: Topology) -> bool:
        newest = former.newest
        if (
            newest is None
            or newest.epoch != topology.epoch
            or without_generations(newest) != without_generations(topology)
            # The newest topology may be in the history only.
            or self.current() != newest
        ):
            return False
        if newest == topology:
            return True
        earlier = [one for one in self._epochs() if one < newest.epoch]
        try:
            before = self.at(earlier[0]) if earlier else None
        except TopologyError:
            # It is unknown which generations were raised.
            return False
        used = partial(self._used, below=newest.epoch)
        return with_raised_generations(before, topology, used) == newest

    def _checked(self, former: FormerState, new: Topology) -> bytes:
        """Return the document of a topology after all checks."""
        data = to_json(new)
        # Also checks that its placeholders are allowed.
        self._parsed(data, f"{TOPOLOGY}, epoch {new.epoch}")
        check_next(former.newest, new, source=self.name, found=faults(new, data))
        if new.epoch <= former.last:
            # The history has a newer one that is not valid.
            raise StaleTopologyError(
                source=self.name, epoch=new.epoch, current=former.last
            )
        return data

    def _check_expected(self, old: Topology | None, expected_epoch: int | None) -> None:
        epoch = NOT_PUBLISHED if old is None else old.epoch
        if expected_epoch is not None and expected_epoch != epoch:
            raise TopologyConflictError(
                source=self.name,
                expected=None if expected_epoch == NOT_PUBLISHED else expected_epoch,
                found=None if old is None else epoch,
            )

    def _conflict(self, old: Topology | None) -> TopologyConflictError:
        epoch: int | None = None
        # Read only for the message.
        with suppress(TopologyError, TopologyUnavailableError):
            if (current := self.current()) is not None:
                epoch = current.epoch
        return TopologyConflictError(
            source=self.name, expected=None if old is None else old.epoch, found=epoch
        )

    def _unreadable(self, fault: TopologyError) -> TopologyError:
        epochs = self._epochs()
        remedy = (
            "roll back to the newest valid one of the history: "
            f"sqla-shard topology rollback --to {epochs[0]}"
            if epochs
            else "remove the node, and publish again"
        )
        return TopologyError(
            [
                # Insert it first, since one-line messages show only the first
                # problem.
                Problem("published topology", f"is not valid; {remedy}"),
                *fault.problems,
            ],
            source=fault.source,
        )

    def _publication(
        self, former: FormerState, new: Topology, version: int | None, given: Topology
    ) -> Publication:
        old = former.newest
        return Publication(
            old=old,
            new=new,
            diff=None if old is None else diff(old, new),
            version=version,
            is_published=version is not None,
            generations=tuple(raises(given, new)),
        )


def _continued(old: Topology | None, new: Topology) -> Topology:
    """Return ``new`` with the resets of ``old``, which files lack."""
    if old is None or old.resets <= new.resets:
        return new
    return replace(new, resets=old.resets)
