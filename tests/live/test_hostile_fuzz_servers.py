"""Random bookmarks and values, with limits on memory and time, on servers."""

from __future__ import annotations

import os
from typing import Any

import pytest

from sqla_shard.testing.server_fleet import ServerFleet
from tests.workers.hostile_fuzz import check_fuzzed, KINDS

COUNT = 20_000 if os.environ.get("SQLA_SHARD_SOAK") == "1" else 400


@pytest.mark.parametrize("kind", KINDS)
def test_fuzzed(kind, fleet: ServerFleet[Any], request, record_property):
    topology = fleet.topology_mapping(
        shards=8, database=f"db_fuzz_{kind}_{{shard:05d}}"
    )
    fleet.drop_databases(topology)
    check_fuzzed(kind, topology, COUNT, request, record_property)
    fleet.drop_databases(topology)
