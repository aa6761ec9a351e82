"""Mappings that keep their reverse, on MariaDB servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sqla_shard import Cluster
from sqla_shard.testing import MariaDBFleet
from tests.shared import mapping_inverse

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def cluster(mariadb_fleet: MariaDBFleet) -> Iterator[Cluster]:
    document = mariadb_fleet.topology_mapping(
        shards=mapping_inverse.SHARDS, database="db_inverse_{shard:05d}"
    )
    mariadb_fleet.drop_databases(document)
    with Cluster.from_topology(document) as cluster:
        cluster.create_all(mapping_inverse.Base.metadata)
        yield cluster
    mariadb_fleet.drop_databases(document)


class TestFollowing(mapping_inverse.Following):
    pass


class TestDeferred(mapping_inverse.Deferred):
    pass


class TestRacing(mapping_inverse.Racing):
    pass


class TestRefused(mapping_inverse.Refused):
    pass
