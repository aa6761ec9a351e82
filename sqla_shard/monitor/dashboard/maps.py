"""The map of a fleet: a cell for each virtual shard, drawn to scale.

Each range of shards on a server is a block of rows of cells, which are as
wide on all servers.  Cells of one level are one path of SVG, and neighbours in
a row one line of it, so 65,536 shards are a few paths for each block.

::

    0  1  2  3        M0 0h2 M3 1h1       level 1
    4  5  6  7        M2 0h2 M0 1h3       level 2
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from sqla_shard.monitor.cached_reading import Reading
from sqla_shard.monitor.dashboard.observer import Observer
from sqla_shard.monitor.dashboard.readings import DatabaseSize, Sizes
from sqla_shard.topology import Keyspace, ShardRange, Topology
from sqla_shard.topology.urls import address_of
from sqla_shard.util.processes import in_children

LEVELS = 6
"""Number of levels of a value, from 0 for nothing to the highest."""

UNKNOWN = "unknown"
"""Level of a shard whose value is not known."""

#: Columns of cells, by the number of shards of the largest server.
_COLUMNS = ((16, 8), (64, 16), (512, 32), (2048, 64), (8192, 128))
_MOST_COLUMNS = 256
#: A server with more ranges has one block: their labels would fill the page.
_MOST_BLOCKS = 12

#: Returns the level of a virtual shard, which is a class of the style sheet.
LevelOf = Callable[[int], str]


@dataclass(frozen=True, kw_only=True)
class CellBlock:
    """Cells of consecutive shards of one server.

    :ivar shards: the shards, ascending.
    :ivar columns: width in cells.
    :ivar rows: height in cells.
    :ivar paths: data of a path of SVG, by level.
    """

    shards: tuple[ShardRange, ...]
    columns: int
    rows: int
    paths: Mapping[str, str]

    @property
    def label(self) -> str:
        """The numbers of its shards."""
        first, last = self.shards[0].first, self.shards[-1].last
        if self.shards[1:]:
            return f"{len(self.shards)} ranges from {first} to {last}"
        return f"{first}" if first == last else f"{first}–{last}"

    @property
    def numbers(self) -> str:
        """The ranges, as ``0-255,512-600``, for the script of the page."""
        return ",".join(f"{one.first}-{one.last}" for one in self.shards)


@dataclass(frozen=True, kw_only=True)
class ServerMap:
    """The shards of a keyspace on one server.

    :ivar name: name of the server in the keyspace.
    :ivar address: address of its primary.
    :ivar count: number of its shards.
    """

    name: str
    address: str
    count: int
    blocks: tuple[CellBlock, ...]


@dataclass(frozen=True, kw_only=True)
class Legend:
    """The meaning of a level."""

    level: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Colours:
    """The level of every shard of a keyspace.

    :ivar legend: the levels that occur or could, in order.
    """

    level_of: LevelOf
    legend: tuple[Legend, ...]


@dataclass(frozen=True, kw_only=True)
class KeyspaceMap:
    """The map of one keyspace."""

    name: str
    kind: Literal["objects", "mod", "global"]
    count: int
    columns: int
    servers: tuple[ServerMap, ...]
    legend: tuple[Legend, ...]


def map_of(topology: Topology, keyspace: Keyspace, colours: Colours) -> KeyspaceMap:
    """Return the map of a keyspace."""
    counts = [sum(map(len, one.shards)) for one in keyspace.servers]
    largest = max(counts, default=1)
    columns = next(
        (width for most, width in _COLUMNS if largest <= most), _MOST_COLUMNS
    )
    return KeyspaceMap(
        name=keyspace.name,
        kind=keyspace.kind,
        count=keyspace.shards,
        columns=columns,
        servers=tuple(
            ServerMap(
                name=server.name,
                address=str(address_of(server.primary)),
                count=count,
                blocks=tuple(
                    _block(ranges, columns, colours.level_of)
                    for ranges in _blocks(server.shards)
                ),
            )
            for server, count in zip(keyspace.servers, counts, strict=True)
        ),
        legend=colours.legend,
    )


def _blocks(ranges: Sequence[ShardRange]) -> list[tuple[ShardRange, ...]]:
    if len(ranges) > _MOST_BLOCKS:
        return [tuple(ranges)]
    return [(one,) for one in ranges]


def _block(
    ranges: tuple[ShardRange, ...], columns: int, level_of: LevelOf
) -> CellBlock:
    shards = [shard_id for part in ranges for shard_id in part]
    parts: dict[str, list[str]] = {}
    for row, start in enumerate(range(0, len(shards), columns)):
        at = 0
        cells = map(level_of, shards[start : start + columns])
        for level, group in groupby(cells):
            length = sum(1 for _ in group)
            parts.setdefault(level, []).append(f"M{at} {row}h{length}")
            at += length
    return CellBlock(
        shards=ranges,
        columns=columns,
        rows=-(-len(shards) // columns),
        paths={level: "".join(parts[level]) for level in sorted(parts)},
    )


def by_value(values: Mapping[int, float], text: Callable[[float], str]) -> Colours:
    """Return the levels of numbers, in equal steps up to the highest.

    :param values: by number of the shard; others are unknown.
    :param text: returns a number as text, for the legend.
    """
    most = max(values.values(), default=0.0)
    steps = LEVELS - 1

    def level_of(shard_id: int) -> str:
        value = values.get(shard_id)
        if value is None:
            return UNKNOWN
        if value <= 0 or most <= 0:
            return "l0"
        # The highest value has the highest level, also after rounding.
        return f"l{min(steps, 1 + int(steps * value / most))}"

    legend = [Legend(level="l0", text="0")]
    if most > 0:
        legend += [
            Legend(
                level=f"l{step}",
                text=f"{text(most * (step - 1) / steps)} to "
                f"{text(most * step / steps)}",
            )
            for step in range(1, LEVELS)
        ]
    legend.append(Legend(level=UNKNOWN, text="unknown"))
    return Colours(level_of=level_of, legend=tuple(legend))


def by_category(
    categories: Mapping[int, str], names: Iterable[tuple[str, str]]
) -> Colours:
    """Return the levels of shards that belong to a category each.

    :param categories: level by number of the shard; others are unknown.
    :param names: level and text of each category, for the legend.
    """
    return Colours(
        level_of=lambda shard_id: categories.get(shard_id, UNKNOWN),
        legend=(
            *(Legend(level=level, text=text) for level, text in names),
            Legend(level=UNKNOWN, text="unknown"),
        ),
    )


def bytes_text(number: float) -> str:
    """Return a number of bytes with its unit, such as ``12.3 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        # Not 1024, which three digits would show as 1.02e+03.
        if number < 999.5:
            return f"{number:.3g} {unit}" if unit != "B" else f"{number:.0f} B"
        number /= 1024
    return f"{number:,.2f} TiB"


def number_text(number: float) -> str:
    """Return a number with thousands separated, without a fraction."""
    return f"{number:,.0f}"


# -- The maps of all keyspaces, drawn again only when a value has changed.


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
