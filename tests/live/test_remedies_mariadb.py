"""Messages of refusals name a way that works, on MariaDB."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sqla_shard import Cluster
from sqla_shard.testing import MariaDBFleet
from tests.shared.remedies import Remedies
from tests.shared.remedy_models import Base
from tests.shared.remedy_models import filled
from tests.shared.remedy_models import SHARDS

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def cluster(mariadb_fleet: MariaDBFleet) -> Iterator[Cluster]:
    document = mariadb_fleet.topology_mapping(
        shards=SHARDS,
        database="db_remedies_{shard:05d}",
        main="db_remedies_main",
        lookup=2,
        lookup_database="db_remedies_mod_{shard:05d}",
    )
    mariadb_fleet.drop_databases(document)
    with Cluster.from_topology(document) as cluster:
        cluster.create_all(Base.metadata)
        yield cluster
    mariadb_fleet.drop_databases(document)


data = filled()


class TestRemedies(Remedies):
    pass
