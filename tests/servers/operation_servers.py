"""Two servers of its own for a module of operations, behind proxies.

What is there is read, and repaired, past the proxies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sqla_shard import Cluster
from sqla_shard.testing import Proxy
from sqla_shard.testing.server_fleet import ServerFleet
from tests.models.operation_models import Base


def own_cluster() -> Any:
    """Return a fixture: a cluster on ``fleet``, with the tables."""

    @pytest.fixture(scope="module")
    def cluster(fleet: ServerFleet[Any]) -> Iterator[Cluster]:
        document = fleet.topology_mapping(main=True, lookup=8)
        with Cluster.from_topology(document, environ=fleet.environ) as cluster:
            cluster.create_all(Base.metadata)
            yield cluster

    return cluster


def own_proxied() -> Any:
    """Return a fixture: a cluster that goes through ``lines``."""

    @pytest.fixture
    def proxied(
        fleet: ServerFleet[Any], cluster: Cluster, lines: list[Proxy]
    ) -> Iterator[Cluster]:
        document = fleet.topology_mapping(main=True, lookup=8, proxies=lines)
        with Cluster.from_topology(document, environ=fleet.environ) as proxied:
            yield proxied
            for line in lines:
                line.restore()
            assert sum(stats.busy for stats in proxied.stats()) == 0

    return proxied
