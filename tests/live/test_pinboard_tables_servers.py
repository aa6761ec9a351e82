"""The tables of the pinboard, on MariaDB."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from typing import Any

import pytest

from sqla_shard import Cluster
from sqla_shard.testing.server_fleet import ServerFleet
from tests.servers.kinds import own_fleet
from tests.suites.pinboard_tables import MakeCluster, Tables

pytestmark = pytest.mark.live


fleet = own_fleet(2, 2)


@pytest.fixture
def make_cluster(fleet: ServerFleet[Any]) -> Iterator[MakeCluster]:
    numbers = count()
    with ExitStack() as stack:

        def make() -> Cluster:
            number = next(numbers)
            document = fleet.topology_mapping(
                database=f"db_pb{number}_{{shard:05d}}",
                lookup=2,
                lookup_database=f"lookup_pb{number}_{{shard:05d}}",
            )
            stack.callback(fleet.drop_databases, document)
            cluster = Cluster.from_topology(document, environ=fleet.environ)
            return stack.enter_context(cluster)

        yield make


TestTables = Tables
