"""Every command of sqla-shard where one of two servers is down."""

from __future__ import annotations

import json

import pytest

from tests.models.unread_models import MODULUS, SHARDS
from tests.servers.command_line import write
from tests.suites import unread

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def scene(server_kind, tmp_path_factory):
    directory = tmp_path_factory.mktemp("unread")
    with server_kind.fleet(servers=2, shards=SHARDS, fast=True) as fleet:
        if not fleet.local:
            pytest.skip("servers of others are not stopped")
        document = fleet.topology_mapping(lookup=MODULUS)
        new = json.loads(json.dumps(document))
        new["epoch"] += 1
        objects = new["keyspaces"]["objects"]
        objects["shards"] = SHARDS + 2
        objects["servers"][0]["shards"] = [[0, 3], [8, 9]]
        project, ids = unread.prepared(directory, document)
        write(directory, new, "new.json")
        fleet.servers[1].stop()
        yield unread.Scene(
            project=project,
            ids=ids,
            reasons=["Can't connect to MySQL server", "server not reached"],
        )


TestWithoutAServer = unread.Unread
