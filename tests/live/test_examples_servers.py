"""The small examples on real servers; on SQLite they run as commands."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import examples.conduit.__main__ as conduit
from examples import colocation, ordering, starlette_app, transfers
from sqla_shard import Cluster

pytestmark = pytest.mark.live


@pytest.fixture
def cluster(fleet: Any, example: ModuleType) -> Iterator[Cluster]:
    lookups: dict[str, Any] = {}
    if example is conduit:
        lookups = {"lookup": 8, "lookup_database": "lookup_examples{shard:05d}"}
    document = fleet.topology_mapping(
        database="db_examples{shard:05d}", shards=16, **lookups
    )
    fleet.drop_databases(document)
    with Cluster.from_topology(document) as cluster:
        yield cluster
    fleet.drop_databases(document)


@pytest.mark.parametrize("example", [colocation, ordering, transfers])
def test_example(cluster: Cluster, example: ModuleType) -> None:
    example.show(cluster)


@pytest.mark.parametrize("example", [starlette_app, conduit])
def test_asynchronous_example(cluster: Cluster, example: ModuleType) -> None:
    asyncio.run(example.show(cluster))
