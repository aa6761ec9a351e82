"""Asynchronous sessions on MariaDB, through asyncmy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sqla_shard import Cluster
from sqla_shard.testing import MariaDBFleet
from tests.shared import awaited
from tests.shared.clusters import on_mariadb

pytestmark = pytest.mark.live

cluster = on_mariadb("awaited")
data = awaited.pins_with_boards()


@pytest.fixture
def fresh(mariadb_fleet: MariaDBFleet) -> Iterator[Cluster]:
    document = mariadb_fleet.topology_mapping()
    with Cluster.from_topology(
        document, environ=mariadb_fleet.environ
    ) as cluster:
        yield cluster


class TestSessions(awaited.Sessions):
    pass


class TestLoops(awaited.Loops):
    pass
