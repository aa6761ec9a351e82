"""Clusters for the suites: SQLite files, or real MariaDB servers.

A test module takes one for its suites::

    cluster = on_sqlite()

    class TestReading(Reading):
        pass
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from sqla_shard import Cluster
from sqla_shard.session.unit_of_work import REQUESTED
from sqla_shard.testing import MariaDBFleet
from sqla_shard.testing import sqlite_topology
from sqla_shard.testing import StatementLog
from tests.shared.models import Base

__all__ = ["SHARDS", "ShardLog", "at", "on_mariadb", "on_sqlite"]

#: Virtual shards of every cluster here; half of them on the first server.
SHARDS = 32

_CONTROL = ("BEGIN", "SAVEPOINT", "RELEASE", "ROLLBACK")
_SHARD = re.compile(r"db_?[a-z]*_?(\d{5})")


def at(shard_id: int, instance: Any) -> Any:
    """Ask for the shard of a new object of any class."""
    instance.__dict__[REQUESTED] = shard_id
    return instance


class ShardLog(StatementLog):
    """Counts statements by virtual shard.

    Of what reaches the drivers, the shard is read: from the file's name on
    SQLite, from the name of the database in the statement on MariaDB.
    """

    def take(self) -> dict[int, int]:
        """Return how many statements each shard has got since last asked."""
        found: Counter[int] = Counter()
        for event in self.executions:
            if event.statement.startswith(_CONTROL):
                continue
            names = set(_SHARD.findall(event.statement))
            # On MariaDB only SELECT 1 and the like name no shard.
            for name in names or set(_SHARD.findall(event.server)):
                found[int(name)] += 1
        self.clear()
        return dict(found)


def on_sqlite(**options: Any) -> Any:
    """Return a fixture for a test module: directories of SQLite files.

    :param options: for :class:`sqla_shard.Cluster`.
    """

    @pytest.fixture(scope="module")
    def cluster(tmp_path_factory: Any) -> Iterator[Cluster]:
        directory = tmp_path_factory.mktemp("cluster")
        document = sqlite_topology(directory, 2, SHARDS, main=True)
        with Cluster.from_topology(document, **options) as cluster:
            cluster.create_all(Base.metadata)
            yield cluster

    return cluster


def on_mariadb(name: str, **options: Any) -> Any:
    """Return a fixture for a test module: databases of the fleet's servers.

    :param name: part of the names of the databases, letters only.
    :param options: for :class:`sqla_shard.Cluster`.
    """

    @pytest.fixture(scope="module")
    def cluster(mariadb_fleet: MariaDBFleet) -> Iterator[Cluster]:
        document = mariadb_fleet.topology_mapping(
            shards=SHARDS,
            database=f"db_{name}_{{shard:05d}}",
            main=f"main_{name}",
        )
        mariadb_fleet.drop_databases(document)
        with Cluster.from_topology(document, **options) as cluster:
            cluster.create_all(Base.metadata)
            yield cluster
        mariadb_fleet.drop_databases(document)

    return cluster
