"""Fixtures of commands that run on a cluster with operations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sqla_shard import Cluster
from sqla_shard.testing import sqlite_topology
from tests.models.operation_models import Base, first_of_each, SHARDS
from tests.servers.command_line import write


def for_commands() -> Any:
    """Return fixtures: a topology file, its cluster, an id of each shard."""

    @pytest.fixture
    def topology(tmp_path: Path) -> Path:
        return write(
            tmp_path, sqlite_topology(tmp_path, 2, SHARDS, main=True, lookup=4)
        )

    @pytest.fixture
    def cluster(topology: Path) -> Iterator[Cluster]:
        with Cluster.from_file(topology, watch=False) as cluster:
            cluster.create_all(Base.metadata)
            yield cluster

    @pytest.fixture
    def ids(cluster: Cluster) -> list[int]:
        return first_of_each(cluster)

    return topology, cluster, ids
