"""The maps of all keyspaces, drawn again only when a value has changed."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sqla_shard.dashboard.maps import (
    by_category,
    by_value,
    bytes_text,
    Colours,
    KeyspaceMap,
    map_of,
    number_text,
)
from sqla_shard.dashboard.observer import Observer
from sqla_shard.dashboard.readings import Reading
from sqla_shard.dashboard.servers import DatabaseSize, Sizes
from sqla_shard.topology import Keyspace, Topology
from sqla_shard.topology.urls import address_of
from sqla_shard.util.forking import in_children

Colouring = Literal["size", "rows", "load", "revision"]

COLOURINGS: Mapping[Colouring, str] = {
    "size": "Size",
    "rows": "Rows",
    "load": "Load",
    "revision": "Revision",
}
"""Attributes to colour shards by, with the text of the choice."""


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """The maps of all keyspaces.

    :ivar reading: the reading that colours them, without its value.
    """

    maps: tuple[KeyspaceMap, ...]
    reading: Reading[Any]


class FleetMaps:
    """Draws the maps of a fleet."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._drawn: dict[Colouring, tuple[Any, tuple[KeyspaceMap, ...]]] = {}
        self.after_fork()
        in_children(self)

    def after_fork(self) -> None:
        """Replace the lock, which a thread of the parent may hold."""
        self._lock = threading.Lock()

    def draw(self, by: Colouring) -> Drawing:
        """Return the maps, with shards coloured by a value."""
        topology = self._observer.cluster.topology
        reading: Reading[Any]
        if by == "revision":
            reading = self._observer.rollouts()
        elif by == "load":
            reading = self._observer.load()
        else:
            reading = self._observer.sizes()
        key = topology.version, reading.version
        with self._lock:
            drawn = self._drawn.get(by)
            if drawn is None or drawn[0] != key:
                maps = tuple(
                    map_of(
                        topology,
                        keyspace,
                        _colours(by, topology, keyspace, reading.value),
                    )
                    for keyspace in topology.keyspaces.values()
                )
                self._drawn[by] = drawn = key, maps
        return Drawing(maps=drawn[1], reading=reading)


def _colours(
    by: Colouring, topology: Topology, keyspace: Keyspace, value: Any
) -> Colours:
    if by == "revision":
        for rollout in value or ():
            if rollout.keyspace == keyspace.name:
                return by_category(
                    rollout.levels(),
                    dict.fromkeys(
                        (one.level, one.text) for one in rollout.conditions()
                    ),
                )
        return by_category({}, ())
    if by == "load":
        rates = {}
        if value is not None:
            # Shards without a sample have about none.
            rates = dict.fromkeys(keyspace.shard_ids, 0.0)
            rates.update(
                (one.shard_id, one.reads + one.writes)
                for one in value.shards
                if one.keyspace == keyspace.name
            )
        return by_value(rates, lambda rate: f"{rate:,.3g}/s")
    sizes = sizes_of(keyspace, value)
    if by == "rows":
        rows = {
            shard_id: float(size.rows)
            for shard_id, size in sizes.items()
            if size.rows is not None
        }
        return by_value(rows, number_text)
    return by_value(
        {shard_id: float(size.bytes) for shard_id, size in sizes.items()}, bytes_text
    )


def sizes_of(keyspace: Keyspace, sizes: Sizes | None) -> dict[int, DatabaseSize]:
    """Return the known sizes of the shards of a keyspace, by number."""
    found: dict[int, DatabaseSize] = {}
    if sizes is None:
        return found
    for shards, server in keyspace.placements():
        address = str(address_of(server.primary))
        for shard_id in shards:
            name = keyspace.database_for(shard_id)
            size = sizes.databases.get((address, name))
            if size is not None:
                found[shard_id] = size
            elif server.name not in sizes.unread:
                # It has no table.
                found[shard_id] = DatabaseSize(bytes=0, rows=0)
    return found
