"""A cluster with empty tables for each test."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from sqla_shard import Cluster
from sqla_shard.testing import sqlite_topology

from models import Base


@pytest.fixture(params=["sqlite", "mariadb", "mysql"])
def cluster(request, tmp_path):
    """Run each test on SQLite, and on the servers that are installed."""
    if request.param == "sqlite":
        copytree(request.getfixturevalue("sqlite_tables"), tmp_path, dirs_exist_ok=True)
        topology = sqlite_topology(tmp_path, servers=2, shards=4)
        with Cluster.from_topology(topology) as cluster:
            yield cluster
    else:
        cluster, empty = request.getfixturevalue(f"{request.param}_tables")
        yield cluster
        empty()


@pytest.fixture(scope="session")
def sqlite_tables(tmp_path_factory) -> Path:
    """Create the tables in files that each test copies."""
    path: Path = tmp_path_factory.mktemp("tables")
    topology = sqlite_topology(path, servers=2, shards=4)
    with Cluster.from_topology(topology) as cluster:
        cluster.create_all(Base.metadata)
    return path


@pytest.fixture(scope="session")
def mariadb_tables(mariadb_fleet):
    """Create the tables on MariaDB."""
    yield from create_tables(mariadb_fleet)


@pytest.fixture(scope="session")
def mysql_tables(mysql_fleet):
    """Create the tables on MySQL."""
    yield from create_tables(mysql_fleet)


def create_tables(fleet: Any) -> Iterator[Any]:
    """Create the tables on servers; yield a cluster, and what empties them."""
    # Processes of pytest-xdist share the servers of SQLA_SHARD_TEST_SERVERS.
    database = "db_" + os.environ.get("PYTEST_XDIST_WORKER", "test") + "{shard:05d}"
    topology = fleet.topology_mapping(shards=4, database=database)
    fleet.drop_databases(topology)  # those of a run that was killed
    with Cluster.from_topology(topology) as cluster:
        cluster.create_all(Base.metadata)
        yield cluster, partial(fleet.empty, topology)
    fleet.drop_databases(topology)
