"""Statements whose caller names the keyspace or the shard, on MariaDB."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sqla_shard import Cluster
from sqla_shard.testing import MariaDBFleet
from tests.shared.named_keyspaces import Base
from tests.shared.named_keyspaces import grown
from tests.shared.named_keyspaces import make_notes
from tests.shared.named_keyspaces import NamedKeyspaces

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def cluster(mariadb_fleet: MariaDBFleet) -> Iterator[Cluster]:
    document = grown(
        mariadb_fleet.topology_mapping(
            shards=4, database="db_named_{shard:05d}", main="db_named_main"
        )
    )
    mariadb_fleet.drop_databases(document)
    with Cluster.from_topology(document) as cluster:
        cluster.create_all(Base.metadata)
        make_notes(cluster)
        yield cluster
    mariadb_fleet.drop_databases(document)


class TestNamedKeyspaces(NamedKeyspaces):
    pass
