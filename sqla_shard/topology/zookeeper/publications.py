"""The published topology, its history, and the results of publishing."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, UTC
from operator import attrgetter
from typing import TYPE_CHECKING

from sqla_shard.exc import Problem, TopologyError, TopologyUnavailableError
from sqla_shard.topology import read_document, redact, Topology, TopologyDiff
from sqla_shard.topology.generations import numbers
from sqla_shard.topology.history import HistoryEntry, PublicationNote
from sqla_shard.util.json_values import parsed_json
from sqla_shard.util.logs import careful_log

if TYPE_CHECKING:
    from sqla_shard.topology.zookeeper.store import ZooKeeperStore


MAX_BYTES = 500_000
"""Maximum size of a topology document.

ZooKeeper refuses requests of more than 1 MiB, and a request contains the
document twice.
"""

NOT_PUBLISHED = -1
"""Value of ``expected_epoch`` if no topology is published yet."""

TOPOLOGY = "/topology"
HISTORY = "/history"

#: Ending of a note in the history.  Versions of this package without notes
#: ignore nodes whose names are no numbers.
NOTE = ".note"

#: Parent node of the journal of fleet operations.
FLEET = "/fleet"

#: The pending fleet operation.
OPERATION = f"{FLEET}/operation"

#: Exists while a process runs that operation.
LOCK = f"{FLEET}/lock"

#: Fleet operations that have ended.
OPERATIONS = f"{FLEET}/history"

_log = careful_log(__name__)


@dataclass(frozen=True, kw_only=True)
class RaisedGeneration:
    """A generation that was raised by publishing.

    :ivar keyspace: name of the keyspace.
    :ivar server: name of the server.
    :ivar given: generation in the given topology, or in the topology of the
        history.
    :ivar published: the published generation.
    """

    keyspace: str
    server: str
    given: int | None
    published: int | None

    def __str__(self) -> str:
        given = "none" if self.given is None else self.given
        return (
            f"{self.keyspace}: generation of {self.server!r} is "
            f"{self.published} instead of {given}"
        )


@dataclass(frozen=True, kw_only=True)
class Publication:
    """The result of publishing, or of a dry run.

    :ivar old: the former topology; None for the first one.
    :ivar new: the new topology.
    :ivar diff: the differences; None for the first one.
    :ivar version: version of the node in ZooKeeper; None if nothing was
        written.
    :ivar is_published: False after a dry run, or if ``new`` was already
        published.
    :ivar generations: the generations of ``new`` that were raised.
    """

    old: Topology | None
    new: Topology
    diff: TopologyDiff | None
    version: int | None
    is_published: bool
    generations: tuple[RaisedGeneration, ...] = ()


def raises(given: Topology, new: Topology) -> Iterator[RaisedGeneration]:
    """Yield the generations that differ between two topologies.

    :param given: topology that is equal to ``new`` apart from generations.
    """
    for name, keyspace in given.keyspaces.items():
        pairs = zip(keyspace.servers, new.keyspaces[name].servers, strict=True)
        for before, after in pairs:
            if before.generation != after.generation:
                yield RaisedGeneration(
                    keyspace=name,
                    server=before.name,
                    given=before.generation,
                    published=after.generation,
                )


def faults(topology: Topology, data: bytes) -> Iterator[Problem]:
    """Yield the reasons why a topology must not be published.

    :param data: the document of the topology.
    """
    for name, keyspace in topology.keyspaces.items():
        for index, server in enumerate(keyspace.servers):
            for role in ("primary", "standby"):
                url = getattr(server, role)
                # This includes "***" itself, copied from a masked output.
                if url is not None and "***" in redact(url):
                    yield Problem(
                        f"keyspaces.{name}.servers[{index}].{role}",
                        f"{redact(url)!r} contains a password, which anyone who can "
                        "read ZooKeeper would see; write ${MYSQL_PASSWORD} instead",
                    )
    if len(data) > MAX_BYTES:
        yield Problem(
            "document",
            f"has {len(data)} bytes, and at most {MAX_BYTES} fit into a "
            "transaction of ZooKeeper; give servers fewer and longer ranges",
        )


@dataclass(frozen=True, kw_only=True)
class FormerState:
    """The state before a publication.

    :ivar newest: the topology that processes use: the published one, or the
        newest of the history if that is newer.
    :ivar version: version of the node; None if it does not exist.
    :ivar fault: reason why the node is not a valid topology.
    :ivar last: the highest known epoch; ``NOT_PUBLISHED`` if there is none.
    """

    newest: Topology | None
    version: int | None
    fault: TopologyError | None
    last: int


class PublishedTopologies:
    """Reads the published topology and the history.

    :param store: the nodes.
    :param placeholders: allowed names in ``${NAME}``.
    """

    def __init__(self, store: ZooKeeperStore, placeholders: Collection[str]) -> None:
        self._store = store
        self._placeholders = placeholders

    def current(self) -> Topology | None:
        """Return the published topology; None if there is none.

        :raises TopologyUnavailableError: if ZooKeeper does not respond.
        :raises TopologyError: if the published document is not valid.
        """
        # Otherwise a server of ZooKeeper that is behind would answer with an
        # earlier one.
        self._store.sync()
        node = self._store.read(TOPOLOGY)
        return None if node is None else self._parsed(node.data, TOPOLOGY)

    def history(self) -> list[HistoryEntry]:
        """Return the published topologies, newest first.

        :raises TopologyUnavailableError: if ZooKeeper does not respond.
        """
        epochs = self._epochs()
        stats = self._store.stats(map(node_of, epochs))
        notes = self._store.read_all(map(note_of, epochs))
        entries = []
        for epoch, stat, node in zip(epochs, stats, notes, strict=True):
            if stat is None:
                continue
            # Earlier versions of this package wrote none.
            data = b"{}" if node is None else node.data
            note = PublicationNote.from_json(data)
            entries.append(
                HistoryEntry(
                    epoch=epoch,
                    published=datetime.fromtimestamp(stat.created, UTC),
                    size=stat.size,
                    author=note.author,
                    message=note.message,
                )
            )
        return entries

    def at(self, epoch: int) -> Topology:
        """Return a topology of the history.

        :raises TopologyUnavailableError: if the history does not contain it,
            or ZooKeeper does not respond.
        :raises TopologyError: if its document is not valid.
        """
        node = self._store.read(node_of(epoch))
        if node is None:
            known = self._epochs()
            has = (
                f"has {', '.join(map(str, known[:5]))}"
                f"{' and older ones' if known[5:] else ''}"
                if known
                else "is empty"
            )
            raise self._store.unavailable(f"the history has no epoch {epoch}; it {has}")
        return self._parsed(node.data, node_of(epoch))

    def _look(self) -> FormerState:
        self._store.sync()
        node = self._store.read(TOPOLOGY)
        epochs = self._epochs()
        fault: TopologyError | None = None
        newest: Topology | None = None
        if node is not None:
            try:
                newest = self._parsed(node.data, TOPOLOGY)
            except TopologyError as error:
                fault = error
        if newest is None or (epochs and epochs[0] > newest.epoch):
            # The node was edited by hand, or removed; processes still use
            # the newest topology.
            newest = max(
                filter(None, (self._newest(epochs), newest)),
                key=attrgetter("version"),
                default=None,
            )
        return FormerState(
            newest=newest,
            version=None if node is None else node.version,
            fault=fault,
            last=self._last(epochs, newest),
        )

    def _invalidated_by(self, new: Topology) -> Iterator[int]:
        """Yield the epochs of the history that a reset invalidates."""
        for epoch in self._epochs():
            if epoch < new.epoch:
                continue
            try:
                if self.at(epoch).resets >= new.resets:
                    # The node belongs to a concurrent reset by another
                    # process.
                    continue
            except (TopologyError, TopologyUnavailableError) as error:
                _log.info("removed from the history: %s", error)
            yield epoch

    def _last(self, epochs: list[int], newest: Topology | None) -> int:
        """Return the highest valid epoch."""
        if newest is not None and newest.resets:
            # Higher epochs were published before the reset, and are not
            # deleted yet.
            return newest.epoch
        known = NOT_PUBLISHED if newest is None else newest.epoch
        return max([known, *epochs[:1]])

    def _newest(self, epochs: list[int]) -> Topology | None:
        """Return the newest valid topology of the history."""
        for epoch in epochs:
            try:
                return self.at(epoch)
            except TopologyError:
                _log.warning(
                    "%s: epoch %d of the history is not a topology",
                    self._store.name,
                    epoch,
                    extra={"action": "read history", "epoch": epoch},
                )
        return None

    def _epochs(self) -> list[int]:
        """Return the epochs of the history, newest first."""
        names = self._store.names(HISTORY)
        return sorted(map(int, filter(str.isdecimal, names)))[::-1]

    def _notes(self) -> list[str]:
        """Return the nodes of the notes."""
        return [
            f"{HISTORY}/{name}"
            for name in self._store.names(HISTORY)
            if name.endswith(NOTE)
        ]

    def _parsed(self, data: bytes, node: str) -> Topology:
        """Return the topology of a document.

        :param node: path of its node, for the error.
        :raises TopologyError: if the document is not valid.
        """
        return read_document(
            data,
            "json",
            source=f"{self._store.name}{node}",
            placeholders=self._placeholders,
            # No values are needed, since nothing connects.
            environ=dict.fromkeys(self._placeholders, ""),
        )

    def _used(self, *, below: int | None = None) -> dict[tuple[str, str], int]:
        """Return the highest generation that each server has had.

        Includes documents of the history that are not valid topologies.

        :param below: read only lower epochs than this; None for all.
        """
        highest: dict[tuple[str, str], int] = {}
        for epoch in self._epochs():
            if below is not None and epoch >= below:
                continue
            node = self._store.read(node_of(epoch))
            # Another process may have shortened the history.
            data = b"{}" if node is None else node.data
            try:
                document = parsed_json(data)
            except ValueError:
                _log.warning(
                    "%s: epoch %d of the history is not a document",
                    self._store.name,
                    epoch,
                    extra={"action": "read history", "epoch": epoch},
                )
                continue
            for server, number in numbers(document).items():
                highest[server] = max(number, highest.get(server, number))
        return highest


def pending_names(data: bytes) -> tuple[str, str]:
    """Return the title of a fleet operation, and the process that has it.

    :param data: content of its node, which may be damaged.
    """
    try:
        document = parsed_json(data)
        return str(document["plan"]["title"]), str(document["holder"])
    except (ValueError, KeyError, TypeError):
        return "an operation", "another process"


def node_of(epoch: int) -> str:
    """Return the node of an epoch in the history."""
    return f"{HISTORY}/{epoch:010d}"


def note_of(epoch: int) -> str:
    """Return the node of the note about the publication of an epoch."""
    return f"{node_of(epoch)}{NOTE}"
