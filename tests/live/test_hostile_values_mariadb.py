"""Values that are no values, on MariaDB."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sqla_shard import Cluster
from sqla_shard.testing import MariaDBFleet
from tests.shared.hostile_values import HostileValues
from tests.shared.hostile_values import ItemBase


@pytest.fixture(scope="module")
def cluster(mariadb_fleet: MariaDBFleet) -> Iterator[Cluster]:
    document = mariadb_fleet.topology_mapping(
        shards=4, database="db_hostile_{shard:05d}"
    )
    mariadb_fleet.drop_databases(document)
    with Cluster.from_topology(document) as cluster:
        cluster.create_all(ItemBase.metadata)
        yield cluster
    mariadb_fleet.drop_databases(document)


class TestHostileValues(HostileValues):
    pass
