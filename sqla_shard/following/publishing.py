"""Publishing topologies in ZooKeeper, so that nothing is lost by it.

A publisher changes the map, and moves no data.  It cannot know whether the
data is where a topology says, nor that two host names are one machine.

Below the path of the connection, ``/topology`` holds the topology in use and
``/history/0000000007`` that of epoch 7, for the last ones.  Both are written
in one transaction of ZooKeeper, under the condition that ``/topology`` is
what was looked at: of several publishers at the same time exactly one
succeeds, and the history always has what is in use.  Nodes have the ACL that
:class:`~.zookeeper_store.ZooKeeperStore` tells.

The bytes are those of a topology file in JSON.  Placeholders are unexpanded,
and a password that was typed into a URL is refused, since everybody who may
read ZooKeeper would have it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sqla_shard.exc import Problem
from sqla_shard.exc import StaleTopologyError
from sqla_shard.exc import TopologyConflictError
from sqla_shard.exc import TopologyError
from sqla_shard.exc import TopologyRefusedError
from sqla_shard.exc import TopologyUnavailableError
from sqla_shard.following.follower import check_newer
from sqla_shard.following.locations import is_zookeeper
from sqla_shard.following.locations import zookeeper_options
from sqla_shard.following.publications import faults
from sqla_shard.following.publications import HistoryEntry
from sqla_shard.following.publications import NOT_PUBLISHED
from sqla_shard.following.publications import ProtectedNode
from sqla_shard.following.publications import Publication
from sqla_shard.following.publications import raises
from sqla_shard.following.published import Found
from sqla_shard.following.published import HISTORY
from sqla_shard.following.published import node_of
from sqla_shard.following.published import Published
from sqla_shard.following.published import TOPOLOGY
from sqla_shard.topology import DEFAULT_PLACEHOLDERS
from sqla_shard.topology import diff
from sqla_shard.topology import generations
from sqla_shard.topology import to_json
from sqla_shard.topology import Topology
from sqla_shard.topology.admission import exchanges
from sqla_shard.topology.admission import leaps
from sqla_shard.topology.generations import kept
from sqla_shard.topology.generations import lowered
from sqla_shard.topology.generations import raised
from sqla_shard.topology.generations import without

__all__ = ["Publisher"]

_log = logging.getLogger(__name__)


class Publisher:
    """Publishes topologies at a place in ZooKeeper.

    It is a context manager, which closes it; for one thread at a time.
    Nothing is opened before it is used.

    :param location: ``zookeeper://host:port,host:port/path``, or
        ``zookeeper+tls://``.
    :param keep: how many topologies the history has, that in use included.
    :param timeout: seconds to wait for an answer of ZooKeeper.
    :param options: further arguments of :class:`kazoo.client.KazooClient`.
    :param acl: who may do what with nodes that are made or protected, as
        ``["auth::cdrwa", "world:anyone:r"]``.  By default they are as
        protected as the topology that is there, or the folder; else all may
        read, and those with the credentials may write.  Nodes that are
        there keep what they have.
    :param placeholders: names that ``${NAME}`` in a URL may have; no value
        is needed.
    :raises TopologyError: when the location is no such URL, or the ACL none.
    :raises ValueError: when ``keep`` is less than 1.
    :raises MissingExtraError: when kazoo is not installed.
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
            raise ValueError(f"keep={keep!r} would not keep the one in use")
        if not is_zookeeper(location):
            raise TopologyError(
                [
                    Problem(
                        "location",
                        "is not a ZooKeeper; write zookeeper://host:port,"
                        "host:port/path, or zookeeper+tls://...",
                    )
                ],
                source=os.fspath(location),
            )
        hosts, found = zookeeper_options(location)
        from sqla_shard.following.zookeeper_store import ZooKeeperStore

        self._keep = keep
        self._store = ZooKeeperStore(
            hosts,
            timeout=timeout,
            options={**found, **(options or {})},
            acl=acl,
        )
        self._published = Published(self._store, placeholders)

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        """Where it publishes; no password is part of it."""
        return self._store.name

    def close(self) -> None:
        """End the session with ZooKeeper; the next use opens another."""
        self._store.close()

    # -- reading

    def current(self) -> Topology | None:
        """Return the topology that is published; None where none is.

        :raises TopologyUnavailableError: when ZooKeeper does not answer.
        :raises TopologyError: when what is there is not a topology.
        """
        return self._published.current()

    def history(self) -> list[HistoryEntry]:
        """Return what was published, newest first.

        :raises TopologyUnavailableError: when ZooKeeper does not answer.
        """
        return self._published.history()

    def last_epoch(self) -> int:
        """Return the highest epoch that was published, also if it is gone.

        :returns: :data:`NOT_PUBLISHED` where there is none.
        :raises TopologyUnavailableError: when ZooKeeper does not answer.
        """
        return self._published.look().last

    def at(self, epoch: int) -> Topology:
        """Return a topology of the history.

        :raises TopologyUnavailableError: when the history does not have it.
        :raises TopologyError: when what is there is not a topology.
        """
        return self._published.at(epoch)

    def has(self, topology: Topology) -> bool:
        """Whether to publish a topology again would change nothing.

        It is there, epoch and all; or what is there has come of it, by
        raising generations.

        :raises TopologyUnavailableError: when ZooKeeper does not answer.
        :raises TopologyError: when what is there is not a topology.
        """
        found = self._published.look()
        topology = _continued(found.newest, topology)
        return found.fault is None and self._has(found, topology)

    def open_nodes(self) -> list[str]:
        """Return the paths of nodes that everybody may change.

        Who may change the topology has the passwords of the databases, for
        processes send them to the servers that it names.

        :returns: those of the topology, the history and the folder of both
            that are there.
        :raises TopologyUnavailableError: when ZooKeeper does not answer.
        """
        return self._store.open_nodes(["", TOPOLOGY, *self._of_history()])

    def _of_history(self) -> list[str]:
        return [HISTORY, *map(node_of, self._published.epochs())]

    # -- writing

    def protect(self, *, dry_run: bool = False) -> list[ProtectedNode]:
        """Let nobody else change what was published.

        The topology gets the ACL that was given to the publisher; without
        one, where everybody may change it, all may read and who has these
        credentials may do everything.  The history gets that of the topology,
        so it is what was protected before, too; so does the folder where
        everybody may change it.  The root of a ZooKeeper stays as it is.

        :param dry_run: write nothing.
        :returns: the nodes that were changed, or would be.
        :raises TopologyUnavailableError: when nothing was published, neither
            an ACL nor credentials were given, they may not change an ACL, or
            ZooKeeper does not answer.
        """
        return self._store.protect(
            TOPOLOGY, self._of_history(), folder="", dry_run=dry_run
        )

    def publish(
        self,
        topology: Topology,
        *,
        expected_epoch: int | None = None,
        dry_run: bool = False,
        renamed: bool = False,
    ) -> Publication:
        """Publish a topology in place of the one that is there.

        A topology that is there already, epoch and all, is not published
        again; that is no error, so that what has failed halfway can be
        repeated.  Look at :meth:`open_nodes` afterwards.

        Where the primary of a server that has a generation changes, and the
        number does not, it is raised above all that the server has had in
        the history; so is the number of a server that comes back, or gets
        one again.  ``generations`` of the result tells it.

        :param expected_epoch: the epoch of the topology that it was made
            from; :data:`NOT_PUBLISHED` where it is to be the first.
        :param dry_run: check everything, and write nothing.
        :param renamed: primaries that change are the machines that they
            were, by other names: no generation is raised for it.
        :raises StaleTopologyError: when its epoch is not higher.
        :raises TopologyRefusedError: when it would lose shards, give one a
            second primary, lower a generation, or make a password known.
        :raises TopologyConflictError: when the epoch is not the expected
            one, or somebody else has published meanwhile; nothing is
            written.
        :raises TopologyUnavailableError: when ZooKeeper does not answer; the
            message tells if it is not known whether it was published.
        :raises TopologyError: when it uses a placeholder that is not
            allowed, or what is there is not a topology.
        """
        found = self._published.look()
        if found.fault is not None:
            raise self._unreadable(found.fault)
        topology = _continued(found.newest, topology)
        if found.newest is not None and self._has(found, topology):
            return self._publication(found, found.newest, None, topology)
        new = raised(
            found.newest, topology, self._published.used, renamed=renamed
        )
        return self._replace(found, new, topology, expected_epoch, dry_run)

    def rollback(
        self,
        *,
        to: int,
        expected_epoch: int | None = None,
        dry_run: bool = False,
        renamed: bool = False,
    ) -> Publication:
        """Publish a topology of the history again, with a new epoch.

        All is checked that :meth:`publish` checks: shards that were opened
        since are not closed.  It works also where what is there is not a
        topology; then the newest of the history is what it follows.

        Generations are not taken back: servers keep theirs, raised where the
        primary changes.

        :param to: the epoch whose content is wanted.
        :param expected_epoch: see :meth:`publish`.
        :param dry_run: see :meth:`publish`.
        :param renamed: see :meth:`publish`.
        :raises TopologyError: when that of the history cannot be used, or
            see :meth:`publish`.
        """
        wanted = self.at(to)
        found = self._published.look()
        given = _continued(found.newest, replace(wanted, epoch=found.last + 1))
        new = raised(
            found.newest,
            given if found.newest is None else kept(found.newest, given),
            self._published.used,
            renamed=renamed,
        )
        return self._replace(found, new, given, expected_epoch, dry_run)

    def reset(
        self,
        topology: Topology,
        *,
        expected_epoch: int | None = None,
        dry_run: bool = False,
        renamed: bool = False,
    ) -> Publication:
        """Publish a topology with any epoch, also a lower one.

        For when an epoch was published that leaves no higher ones.  It gets
        one more of ``resets``, by which it is newer for all processes and
        snapshots.  What :meth:`publish` checks besides epochs is checked.
        Topologies of the history with this epoch or a higher one are removed.

        :param topology: with the epoch to go on from.
        :param expected_epoch: see :meth:`publish`.
        :param dry_run: see :meth:`publish`.
        :param renamed: see :meth:`publish`.
        :raises TopologyError: see :meth:`publish`.
        """
        found = self._published.look()
        known = 0 if found.newest is None else found.newest.resets + 1
        given = replace(topology, resets=max(topology.resets, known, 1))
        new = raised(
            found.newest, given, self._published.used, renamed=renamed
        )
        found = replace(found, last=NOT_PUBLISHED)
        return self._replace(found, new, given, expected_epoch, dry_run)

    def _replace(
        self,
        found: Found,
        new: Topology,
        given: Topology,
        expected_epoch: int | None,
        dry_run: bool,
    ) -> Publication:
        old = found.newest
        self._check_expected(old, expected_epoch)
        data = self._checked(found, new)
        if dry_run:
            return self._publication(found, new, None, given)
        # Before, so that what is lost then is known not to be written.
        self._store.prepare(HISTORY, like=TOPOLOGY)
        if old is not None and old.resets < new.resets:
            self._store.remove(map(node_of, self._published.replaced_by(new)))
        version = self._write(found, new, data)
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
        return self._publication(found, new, version, given)

    def _write(self, found: Found, new: Topology, data: bytes) -> int:
        try:
            version = self._store.write(
                data,
                node=TOPOLOGY,
                version=found.version,
                copy=node_of(new.epoch),
            )
        except TopologyUnavailableError as error:
            return self._outcome(found, new, data, error)
        if version is None:
            raise self._conflict(found.newest)
        return version

    def _outcome(
        self,
        found: Found,
        new: Topology,
        data: bytes,
        error: TopologyUnavailableError,
    ) -> int:
        """Find out whether something was written whose answer is lost."""
        try:
            self._store.sync()
            copy = self._store.read(node_of(new.epoch))
            node = self._store.read(TOPOLOGY)
        except TopologyUnavailableError:
            raise self._store.unavailable(
                f"{error.reason}; whether epoch {new.epoch} was published is "
                "not known. Publish it again as it is: nothing happens if it "
                "was"
            ) from error
        version = None if node is None else node.version
        if copy is not None and copy.data == data and version is not None:
            return version
        if version != found.version:
            raise self._conflict(found.newest) from error
        raise self._store.unavailable(
            f"{error.reason}; nothing was published"
        ) from error

    def _trim(self) -> None:
        """Remove the oldest of the history."""
        try:
            old = self._published.epochs()[self._keep :]
            self._store.remove(map(node_of, old))
        except TopologyUnavailableError as error:
            # It is published; the next publication removes them.
            _log.warning(
                "the history was not shortened: %s",
                error,
                extra={"action": "shorten history"},
            )

    # -- what may be published

    def _has(self, found: Found, topology: Topology) -> bool:
        newest = found.newest
        if (
            newest is None
            or newest.epoch != topology.epoch
            or without(newest) != without(topology)
            # Not one of the history alone: /topology may be older, or gone.
            or self.current() != newest
        ):
            return False
        if newest == topology:
            return True
        earlier = [
            one for one in self._published.epochs() if one < newest.epoch
        ]
        try:
            before = self.at(earlier[0]) if earlier else None
        except TopologyError:
            # Nobody knows what was raised then.
            return False
        used = partial(self._published.used, below=newest.epoch)
        return raised(before, topology, used) == newest

    def _checked(self, found: Found, new: Topology) -> bytes:
        """Return the document of a topology that may be published."""
        data = to_json(new)
        # Also for its placeholders, of which a Topology knows only the form.
        self._published.parsed(data, f"{TOPOLOGY}, epoch {new.epoch}")
        old = found.newest
        problems = [*faults(new, data), *generations.leaps(old, new)]
        if not problems and old is None:
            problems += leaps(replace(new, epoch=0, resets=0), new)
        if not problems and old is not None:
            check_newer(old, new, source=self.name)
            problems += exchanges(old, new)
            problems += lowered(old, new)
        if problems:
            raise TopologyRefusedError(
                problems,
                source=self.name,
                epoch=new.epoch,
                current=None if old is None else old.epoch,
            )
        if new.epoch <= found.last:
            # The history has a newer one, which cannot be read.
            raise StaleTopologyError(
                source=self.name, epoch=new.epoch, current=found.last
            )
        return data

    def _check_expected(
        self, old: Topology | None, expected_epoch: int | None
    ) -> None:
        found = NOT_PUBLISHED if old is None else old.epoch
        if expected_epoch is not None and expected_epoch != found:
            raise TopologyConflictError(
                source=self.name,
                expected=None
                if expected_epoch == NOT_PUBLISHED
                else expected_epoch,
                found=None if old is None else found,
            )

    def _conflict(self, old: Topology | None) -> TopologyConflictError:
        found: int | None = None
        try:
            current = self.current()
            found = None if current is None else current.epoch
        except (TopologyError, TopologyUnavailableError):
            # Only for the message, which can do without.
            found = None
        return TopologyConflictError(
            source=self.name,
            expected=None if old is None else old.epoch,
            found=found,
        )

    def _unreadable(self, fault: TopologyError) -> TopologyError:
        epochs = self._published.epochs()
        remedy = (
            f"go back to the newest of the history that is good, with: "
            f"sqla-shard topology rollback --to {epochs[0]}"
            if epochs
            else "remove the node, and publish again"
        )
        return TopologyError(
            [
                # First, for it is what a message of one line has room for.
                Problem("what is published", f"is not a topology; {remedy}"),
                *fault.problems,
            ],
            source=fault.source,
        )

    def _publication(
        self,
        found: Found,
        new: Topology,
        version: int | None,
        given: Topology,
    ) -> Publication:
        old = found.newest
        return Publication(
            old=old,
            new=new,
            diff=None if old is None else diff(old, new),
            version=version,
            is_published=version is not None,
            generations=tuple(raises(given, new)),
        )


def _continued(old: Topology | None, new: Topology) -> Topology:
    """Return ``new`` with the resets of ``old``, of which no file tells."""
    if old is None or old.resets <= new.resets:
        return new
    return replace(new, resets=old.resets)
