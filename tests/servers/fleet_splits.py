"""Splits of a pair with all shards: the second half moves to a spare pair."""

from __future__ import annotations

from typing import Any

from sqla_shard.fleet import Fleet
from sqla_shard.fleet.operation import FleetPlan
from sqla_shard.fleet.split import Split
from sqla_shard.testing.database_server import DatabaseServer, system_user
from tests.servers.fleet_load import create
from tests.servers.fleet_pairs import empty_server, FleetPairs
from tests.servers.published import publish_to


def renewed(pairs: FleetPairs) -> Fleet:
    """Return the fleet with one pair in its topology, and an empty one.

    No server has a history, so that there is little to replicate.
    """
    source, target = pairs["server1"], pairs["server2"]
    for pair in (source, target):
        # First the standbys, which would replicate the DROP.
        for server in (*pair.standbys, pair.primary):
            empty_server(server)
        pair.attach(pair.standby)
    source.primary.root_execute("SET GLOBAL read_only = 0")
    create(pairs)
    source.wait_caught_up()
    publish_to(pairs.path, pairs.document())
    return pairs.fleet()


def planned(fleet: Fleet, pairs: FleetPairs, **changes: Any) -> FleetPlan:
    """Return the plan to move the second half of the shards."""
    target = pairs["server2"]
    half = pairs.shards // 2
    arguments = {
        "server": "server1",
        "shards": [f"{half}-{pairs.shards - 1}"],
        "target": "server2",
        "primary": address(target.primary),
        "standby": address(target.standby),
        "allowed_users": [system_user()],
        # The machine of the tests is shared.
        "patience": 30.0,
        **changes,
    }
    return Split.planned(fleet, **arguments)


def address(server: DatabaseServer) -> str:
    """Return host and port, as plans have them."""
    return f"{server.host}:{server.port}"
