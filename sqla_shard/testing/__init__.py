"""Real servers, faults, statement logs and a linter for tests.

The rest of the package does not import it.  It is also a pytest plugin
(:mod:`sqla_shard.testing.plugin`, registered on installation); everything
also works without pytest::

    from sqla_shard.testing import MySQLFleet

    with MySQLFleet(servers=2, shards=16) as fleet:
        fleet.create_databases()
        document = fleet.topology_mapping()

The servers need MySQL or MariaDB on the machine and PyMySQL (the extra
``testing``);
:class:`ZooKeeperServer` needs ZooKeeper and Java, :class:`MemcachedServer`
memcached, :class:`RedisServer` Redis.  :func:`sqlite_topology`,
:class:`StatementLog`, :class:`ShardLint` and :class:`Proxy` need none of
these, so the names below are imported when they are used.

``plugin``                the pytest plugin: fixtures, the linter, shadow mode
``programs``              the programs of each kind: where they are
``local_server``          a server process
``database_server``       a database server, its accounts, its log of statements
``mysql``                 MySQL, and MariaDB
``server_fleet``          fleets of servers, and primaries with standbys
``cache_servers``         memcached and Redis
``zookeeper``             ZooKeeper, one server or an ensemble
``proxy``, ``_proxying``  a network that is slow, or is cut; its process
``_guard``                a process that removes servers of a run that was killed
``topology_documents``    topologies of SQLite files and of servers
``statement_log``         the statements that SQLAlchemy sends
``lint``                  finds statements that become slow as shards are added
``savepoints``            tests whose rows are rolled back
``job_runs``              jobs that were enqueued, and running them
"""

from __future__ import annotations

import importlib
from typing import Any, TYPE_CHECKING

if TYPE_CHECKING:
    from sqla_shard.testing.cache_servers import MemcachedServer, RedisServer
    from sqla_shard.testing.database_server import LoggedCommand, QueryLog
    from sqla_shard.testing.job_runs import jobs_enqueued, JobsFailedError, run_jobs
    from sqla_shard.testing.lint import Finding, ShardLint, SourceLine
    from sqla_shard.testing.mysql import MariaDBServer, MySQLServer
    from sqla_shard.testing.proxy import Proxy, ProxyCounts
    from sqla_shard.testing.savepoints import rolled_back
    from sqla_shard.testing.server_fleet import (
        ExternalServer,
        MariaDBFleet,
        MariaDBPair,
        MySQLFleet,
        MySQLPair,
    )
    from sqla_shard.testing.statement_log import LoggedEvent, StatementLog
    from sqla_shard.testing.topology_documents import sqlite_topology
    from sqla_shard.testing.zookeeper import ZooKeeperEnsemble, ZooKeeperServer

__all__ = [
    "ExternalServer",
    "Finding",
    "JobsFailedError",
    "LoggedCommand",
    "LoggedEvent",
    "MariaDBFleet",
    "MariaDBPair",
    "MariaDBServer",
    "MemcachedServer",
    "MySQLFleet",
    "MySQLPair",
    "MySQLServer",
    "Proxy",
    "ProxyCounts",
    "QueryLog",
    "RedisServer",
    "ShardLint",
    "SourceLine",
    "StatementLog",
    "ZooKeeperEnsemble",
    "ZooKeeperServer",
    "jobs_enqueued",
    "rolled_back",
    "run_jobs",
    "sqlite_topology",
]

_MODULES = {
    "cache_servers": ("MemcachedServer", "RedisServer"),
    "database_server": ("LoggedCommand", "QueryLog"),
    "job_runs": ("JobsFailedError", "jobs_enqueued", "run_jobs"),
    "lint": ("Finding", "ShardLint", "SourceLine"),
    "mysql": ("MariaDBServer", "MySQLServer"),
    "proxy": ("Proxy", "ProxyCounts"),
    "savepoints": ("rolled_back",),
    "server_fleet": (
        *("ExternalServer", "MariaDBFleet", "MariaDBPair"),
        *("MySQLFleet", "MySQLPair"),
    ),
    "statement_log": ("LoggedEvent", "StatementLog"),
    "topology_documents": ("sqlite_topology",),
    "zookeeper": ("ZooKeeperEnsemble", "ZooKeeperServer"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            found = importlib.import_module(f"{__name__}.{module}")
            return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
