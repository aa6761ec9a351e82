"""Pages of rows of all shards, on MariaDB."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sqla_shard import Cluster
from sqla_shard.testing import MariaDBFleet
from tests.shared.scatter_pages import PagesBase
from tests.shared.scatter_pages import ScatterPages
from tests.shared.scatter_pages import things


@pytest.fixture(scope="module")
def cluster(mariadb_fleet: MariaDBFleet) -> Iterator[Cluster]:
    document = mariadb_fleet.topology_mapping(
        shards=8, database="db_pages_{shard:05d}"
    )
    mariadb_fleet.drop_databases(document)
    with Cluster.from_topology(document) as cluster:
        cluster.create_all(PagesBase.metadata)
        yield cluster
    mariadb_fleet.drop_databases(document)


filled = things()


class TestScatterPages(ScatterPages):
    pass
