"""Clusters for the command: SQLite files, servers of ours, or yours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from examples.pinboard.caching import MEMORY
from sqla_shard import Cluster
from sqla_shard.testing import sqlite_topology

__all__ = [
    "mariadb_cluster",
    "memcached_if_there",
    "sqlite_cluster",
    "topology_cluster",
]

_SERVERS = 2
_SHARDS = 64
_LOOKUP = 16


@contextmanager
def sqlite_cluster(data: Path) -> Iterator[Cluster]:
    """Open 64 virtual shards on two servers, which are folders.

    :param data: directory for them, made if it is not there.
    """
    document = sqlite_topology(data, _SERVERS, _SHARDS, lookup=_LOOKUP)
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
        document = fleet.topology_mapping(lookup=_LOOKUP)
        with Cluster.from_topology(document) as cluster:
            yield cluster


@contextmanager
def memcached_if_there() -> Iterator[str]:
    """Start a memcached on 127.0.0.1, and end it afterwards.

    :returns: its address; "memory" where memcached is not installed.
    """
    from sqla_shard.testing import MemcachedServer
    from sqla_shard.testing.programs import find_memcached

    if find_memcached() is None:
        yield MEMORY
        return
    with MemcachedServer() as server:
        yield server.address
