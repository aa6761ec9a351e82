"""The versions of the topology, and the differences between them, drawn.

The history of a topology in ZooKeeper is read there.  A file has no history:
then the versions that this process has seen are shown.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, UTC
from typing import Any

from sqlalchemy import event

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.engine.unreachable import short
from sqla_shard.exc import TopologyError, TopologyUnavailableError
from sqla_shard.topology import diff, Keyspace, Topology
from sqla_shard.topology.follow import is_zookeeper
from sqla_shard.util.processes import in_children

#: Maximum number of versions that are shown.
_SHOWN = 20
_HUES = 8


@dataclass(frozen=True, kw_only=True)
class DrawnRange:
    """A range of shards in a drawing, in per cent of the keyspace.

    :ivar hue: class of its server in the style sheet.
    :ivar is_changed: whether it was on another server before.
    """

    server: str
    shards: str
    left: float
    width: float
    hue: str
    is_changed: bool = False


@dataclass(frozen=True, kw_only=True)
class Strip:
    """A keyspace before and after a change."""

    keyspace: str
    before: tuple[DrawnRange, ...]
    after: tuple[DrawnRange, ...]


@dataclass(frozen=True, kw_only=True)
class Change:
    """A version of the topology.

    :ivar seen: when it was published, or seen by this process.
    :ivar lines: the differences from the version before, one each.
    :ivar strips: the keyspaces of which shards have moved or were opened.
    :ivar is_first: whether the version before it is not known.
    :ivar error: why it could not be read; None if it was.
    """

    epoch: int
    seen: datetime
    lines: tuple[str, ...] = ()
    strips: tuple[Strip, ...] = ()
    is_first: bool = False
    error: str | None = None


class TopologyHistory:
    """The versions of the topology of a cluster.

    :param location: location of the topology; None if it is not known.
    :param placeholders: allowed names in ``${NAME}``.
    """

    def __init__(
        self, cluster: Cluster, location: str | None, placeholders: Collection[str]
    ) -> None:
        self._location = location
        self._placeholders = placeholders
        self._seen: deque[tuple[datetime, Topology]] = deque(maxlen=_SHOWN)
        self._seen.append((_now(), cluster.topology))
        self._published: dict[int, Topology] = {}
        self.after_fork()
        in_children(self)
        event.listen(cluster, "topology_changed", self._note)

    def after_fork(self) -> None:
        """Replace the lock, which a thread of the parent may hold."""
        self._lock = threading.Lock()

    @property
    def is_published(self) -> bool:
        """Whether it is the history in ZooKeeper."""
        return is_zookeeper(self._location)

    def _note(self, cluster: Cluster, old: Topology, new: Topology) -> None:
        with self._lock:
            self._seen.append((_now(), new))

    def read(self) -> tuple[Change, ...]:
        """Return the latest versions, the newest first.

        :raises TopologyUnavailableError: if ZooKeeper does not respond.
        """
        if self.is_published:
            return self._read_published()
        with self._lock:
            seen = list(self._seen)
        return tuple(
            _change(new.epoch, when, seen[at - 1][1] if at else None, new)
            for at, (when, new) in reversed(list(enumerate(seen)))
        )

    def _read_published(self) -> tuple[Change, ...]:
        # kazoo is needed for this alone.
        from sqla_shard.topology.zookeeper import Publisher

        found: list[Change] = []
        with Publisher(
            str(self._location), placeholders=self._placeholders
        ) as publisher:
            entries = publisher.history()[: _SHOWN + 1]
            versions: list[Any] = []
            for entry in entries:
                try:
                    if entry.epoch not in self._published:
                        self._published[entry.epoch] = publisher.at(entry.epoch)
                    versions.append(self._published[entry.epoch])
                except (TopologyError, TopologyUnavailableError) as error:
                    versions.append(error)
        for at, (entry, new) in enumerate(zip(entries, versions, strict=True)):
            old = versions[at + 1] if at + 1 < len(versions) else None
            if isinstance(new, Topology):
                old = old if isinstance(old, Topology) else None
                found.append(_change(entry.epoch, entry.published, old, new))
            else:
                found.append(
                    Change(epoch=entry.epoch, seen=entry.published, error=short(new))
                )
        return tuple(found[:_SHOWN])


def _now() -> datetime:
    return datetime.now(UTC)


def _change(epoch: int, seen: datetime, old: Topology | None, new: Topology) -> Change:
    if old is None:
        return Change(epoch=epoch, seen=seen, is_first=True)
    found = diff(old, new)
    touched = dict.fromkeys(
        [
            *(one.keyspace for one in found.moved),
            *(one.keyspace for one in found.opened),
            *(one.keyspace for one in found.closed),
        ]
    )
    # The first line has the epochs.
    lines = str(found).splitlines()[1:]
    return Change(
        epoch=epoch,
        seen=seen,
        lines=tuple(lines),
        strips=tuple(
            _strip(old.keyspaces[name], new.keyspaces[name]) for name in touched
        ),
    )


def _strip(old: Keyspace, new: Keyspace) -> Strip:
    names = dict.fromkeys(one.name for one in (*old.servers, *new.servers))
    hues = {name: f"s{at % _HUES}" for at, name in enumerate(names)}
    count = max(old.shards, new.shards)
    return Strip(
        keyspace=new.name,
        before=tuple(_parts(old, count, hues, None)),
        after=tuple(_parts(new, count, hues, old)),
    )


def _parts(
    keyspace: Keyspace, count: int, hues: dict[str, str], before: Keyspace | None
) -> Iterator[DrawnRange]:
    for shards, server in keyspace.placements():
        yield DrawnRange(
            server=server.name,
            shards=str(shards),
            left=round(100 * shards.first / count, 4),
            width=round(100 * len(shards) / count, 4),
            hue=hues[server.name],
            is_changed=before is not None
            and (
                shards.first >= before.shards
                or before.server_for(shards.first).name != server.name
            ),
        )
