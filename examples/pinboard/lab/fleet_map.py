"""The map of the top bar: servers, and a cell for each virtual shard.

It is drawn as in the dashboard: one path of SVG for the cells of a level.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqla_shard.monitor.dashboard.maps import by_category, CellBlock, map_of
from sqla_shard.topology import Topology


@dataclass(frozen=True, kw_only=True)
class MapServer:
    """A server of the map.

    :ivar state: ``"up"``, ``"slow"`` or ``"stopped"``.
    :ivar has_user: whether the current user is on it.
    """

    name: str
    count: int
    blocks: tuple[CellBlock, ...]
    state: str
    has_user: bool


@dataclass(frozen=True, kw_only=True)
class FleetMap:
    """The servers with objects.

    :ivar shard_id: virtual shard of the current user; None if signed out.
    :ivar server: its server.
    """

    servers: tuple[MapServer, ...]
    columns: int
    epoch: int
    shard_id: int | None
    server: str | None


def fleet_map(
    topology: Topology,
    *,
    shard_id: int | None,
    read: Collection[int],
    states: Mapping[str, str],
) -> FleetMap:
    """Return the map of the keyspace of objects.

    :param shard_id: virtual shard of the current user.
    :param read: virtual shards that the page has used.
    :param states: state of each server that is not up, by name.
    """
    keyspace = topology.sole("objects")
    levels = dict.fromkeys(read, "read")
    if shard_id is not None:
        levels[shard_id] = "mine"
    server = None if shard_id is None else keyspace.server_for(shard_id).name
    drawn = map_of(topology, keyspace, by_category(levels, ()))
    return FleetMap(
        servers=tuple(
            MapServer(
                name=one.name,
                count=one.count,
                blocks=one.blocks,
                state=states.get(one.name, "up"),
                has_user=one.name == server,
            )
            for one in drawn.servers
        ),
        columns=drawn.columns,
        epoch=topology.epoch,
        shard_id=shard_id,
        server=server,
    )
