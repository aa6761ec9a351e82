"""Clusters for the command: SQLite files, test servers, or a fleet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sqla_shard import Cluster
from sqla_shard.testing import sqlite_topology

if TYPE_CHECKING:
    from examples.pinboard.lab.local_fleet import LocalFleet

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


def local_fleet(kind: str) -> LocalFleet:
    """Return two servers on 127.0.0.1, not started yet.

    Their data is removed at the end.  They are servers of the tests: the
    application's account has a random password and may create databases.

    :param kind: ``mysql`` or ``mariadb``.
    """
    # They need PyMySQL, which SQLite does not.
    from examples.pinboard.lab.local_fleet import LocalFleet
    from sqla_shard.testing import MariaDBServer, MySQLServer

    servers = {"mariadb": MariaDBServer, "mysql": MySQLServer}
    return LocalFleet(servers[kind], _SHARDS, _LOOKUP)


@contextmanager
def fleet_cluster(fleet: LocalFleet) -> Iterator[Cluster]:
    """Open the servers of a fleet, whose topology changes."""
    with Cluster.from_file(
        fleet.path,
        environ=fleet.environ,
        # Servers that were stopped, and operations that move shards, have
        # ended the connections of the pool: a page is not to fail for that.
        engine_options={"pool_pre_ping": True},
    ) as cluster:
        yield cluster
