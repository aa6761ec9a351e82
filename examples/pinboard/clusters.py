"""Clusters for the command: SQLite files, servers of ours, or yours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqla_shard import Cluster
from sqla_shard.testing import sqlite_topology

__all__ = ["mariadb_cluster", "sqlite_cluster", "topology_cluster"]

_SERVERS = 2
_SHARDS = 64


@contextmanager
def sqlite_cluster(data: Path) -> Iterator[Cluster]:
    """Open 64 virtual shards on two servers, which are folders.

    :param data: directory for them, made if it is not there.
    """
    document = sqlite_topology(data, _SERVERS, _SHARDS, main=True)
    with Cluster.from_topology(document) as cluster:
        yield cluster


@contextmanager
def topology_cluster(path: Path) -> Iterator[Cluster]:
    """Open the servers that a topology file names."""
    with Cluster.from_file(path) as cluster:
        yield cluster


@contextmanager
def mariadb_cluster() -> Iterator[Cluster]:
    """Start two MariaDB servers on 127.0.0.1, and end them afterwards.

    Their data is gone then.  They are those of the tests, with which the
    account of the application has a random password and may make databases.

    :raises sqla_shard.exc.ServerProcessError: when MariaDB is missing or a
        server does not start.
    """
    # It needs PyMySQL, which SQLite does not.
    from sqla_shard.testing import MariaDBFleet

    with MariaDBFleet(_SERVERS, _SHARDS) as fleet:
        document = fleet.topology_mapping(main=True)
        with Cluster.from_topology(document) as cluster:
            yield cluster
