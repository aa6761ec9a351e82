"""What is published in a ZooKeeper, and what was before it."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from datetime import timezone
from operator import attrgetter
from typing import TYPE_CHECKING

from sqla_shard.exc import TopologyError
from sqla_shard.exc import TopologyUnavailableError
from sqla_shard.following.publications import HistoryEntry
from sqla_shard.following.publications import NOT_PUBLISHED
from sqla_shard.topology import read_document
from sqla_shard.topology import Topology
from sqla_shard.topology.generations import numbers

if TYPE_CHECKING:
    from sqla_shard.following.zookeeper_store import ZooKeeperStore

__all__ = ["HISTORY", "TOPOLOGY", "Found", "Published", "node_of"]

_log = logging.getLogger(__name__)

TOPOLOGY = "/topology"
HISTORY = "/history"


@dataclass(frozen=True, kw_only=True)
class Found:
    """What is there before a publication.

    :ivar newest: what processes use: the topology, or one of the history
        where that is newer.
    :ivar version: of the node; None where there is none.
    :ivar fault: why the node cannot be read as a topology.
    :ivar last: the highest epoch that is known; ``NOT_PUBLISHED`` if none.
    """

    newest: Topology | None
    version: int | None
    fault: TopologyError | None
    last: int


class Published:
    """Reads the topology in use and the history.

    :param store: where they are.
    :param placeholders: names that ``${NAME}`` in a URL may have.
    """

    def __init__(
        self, store: ZooKeeperStore, placeholders: Collection[str]
    ) -> None:
        self._store = store
        self._placeholders = placeholders

    def current(self) -> Topology | None:
        """Return the topology that is published; None where none is.

        :raises TopologyUnavailableError: when ZooKeeper does not answer.
        :raises TopologyError: when what is there is not a topology.
        """
        node = self._store.read(TOPOLOGY)
        return None if node is None else self.parsed(node.data, TOPOLOGY)

    def history(self) -> list[HistoryEntry]:
        """Return what was published, newest first.

        :raises TopologyUnavailableError: when ZooKeeper does not answer.
        """
        epochs = self.epochs()
        stats = self._store.stats(map(node_of, epochs))
        return [
            HistoryEntry(
                epoch=epoch,
                published=datetime.fromtimestamp(stat.created, timezone.utc),
                size=stat.size,
            )
            for epoch, stat in zip(epochs, stats, strict=True)
            if stat is not None
        ]

    def at(self, epoch: int) -> Topology:
        """Return a topology of the history.

        :raises TopologyUnavailableError: when the history does not have it.
        :raises TopologyError: when what is there is not a topology.
        """
        node = self._store.read(node_of(epoch))
        if node is None:
            known = self.epochs()
            has = (
                f"has {', '.join(map(str, known[:5]))}"
                f"{' and older ones' if known[5:] else ''}"
                if known
                else "is empty"
            )
            raise self._store.unavailable(
                f"the history has no epoch {epoch}; it {has}"
            )
        return self.parsed(node.data, node_of(epoch))

    def look(self) -> Found:
        """Return what is there, as of now.

        :raises TopologyUnavailableError: when ZooKeeper does not answer.
        """
        self._store.sync()
        node = self._store.read(TOPOLOGY)
        epochs = self.epochs()
        fault: TopologyError | None = None
        newest: Topology | None = None
        if node is not None:
            try:
                newest = self.parsed(node.data, TOPOLOGY)
            except TopologyError as error:
                fault = error
        if newest is None or (epochs and epochs[0] > newest.epoch):
            # Somebody has written by hand, or removed it; processes stay
            # with the newest that they have seen.
            newest = max(
                filter(None, (self._newest(epochs), newest)),
                key=attrgetter("version"),
                default=None,
            )
        return Found(
            newest=newest,
            version=None if node is None else node.version,
            fault=fault,
            last=self._last(epochs, newest),
        )

    def replaced_by(self, new: Topology) -> Iterator[int]:
        """Yield the epochs of the history that a reset makes void."""
        for epoch in self.epochs():
            if epoch < new.epoch:
                continue
            try:
                if self.at(epoch).resets >= new.resets:
                    # Somebody else has done a reset meanwhile.
                    continue
            except (TopologyError, TopologyUnavailableError) as error:
                _log.info("removed from the history: %s", error)
            yield epoch

    def _last(self, epochs: list[int], newest: Topology | None) -> int:
        """Return the highest epoch that counts."""
        if newest is not None and newest.resets:
            # Higher ones are of before, and were not removed in time.
            return newest.epoch
        known = NOT_PUBLISHED if newest is None else newest.epoch
        return max([known, *epochs[:1]])

    def _newest(self, epochs: list[int]) -> Topology | None:
        """Return the newest of the history that can be read."""
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

    def epochs(self) -> list[int]:
        """Return the epochs of the history, newest first."""
        names = self._store.names(HISTORY)
        return sorted(map(int, filter(str.isdecimal, names)))[::-1]

    def parsed(self, data: bytes, node: str) -> Topology:
        """Return the topology of a document.

        :param node: where it is, for the error.
        :raises TopologyError: when it is none.
        """
        return read_document(
            data,
            "json",
            source=f"{self._store.name}{node}",
            placeholders=self._placeholders,
            # Nothing is connected to, so no value is needed.
            environ=dict.fromkeys(self._placeholders, ""),
        )

    def used(self, *, below: int | None = None) -> dict[tuple[str, str], int]:
        """Return the highest generation that each server has had.

        What the history has counts also where it is no topology any more.

        :param below: look at epochs lower than that only; None for all.
        :raises TopologyUnavailableError: when ZooKeeper does not answer.
        """
        found: dict[tuple[str, str], int] = {}
        for epoch in self.epochs():
            if below is not None and epoch >= below:
                continue
            node = self._store.read(node_of(epoch))
            # Somebody else may have shortened the history meanwhile.
            data = b"{}" if node is None else node.data
            try:
                document = json.loads(data)
            except (ValueError, RecursionError):
                _log.warning(
                    "%s: epoch %d of the history is not a document",
                    self._store.name,
                    epoch,
                    extra={"action": "read history", "epoch": epoch},
                )
                continue
            for server, number in numbers(document).items():
                found[server] = max(number, found.get(server, number))
        return found


def node_of(epoch: int) -> str:
    """Return the node of an epoch in the history."""
    return f"{HISTORY}/{epoch:010d}"
