"""Real servers, faults, statement logs and a linter for tests.

Nothing of the package itself imports this folder.  A test run gets it as a
pytest plugin (:mod:`sqla_shard.testing.plugin`, registered on installation);
everything works without pytest, too::

    from sqla_shard.testing import MariaDBFleet

    with MariaDBFleet(servers=2, shards=16) as fleet:
        fleet.create_databases()
        document = fleet.topology_mapping()

The servers need MariaDB on the machine and PyMySQL (the extra ``testing``);
:class:`ZooKeeperServer` needs ZooKeeper and Java, :class:`MemcachedServer`
memcached, :class:`RedisServer` Redis.  :func:`sqlite_topology`,
:class:`StatementLog`, :class:`ShardLint` and :class:`Proxy` need none of it,
which is why the names below are imported on use only.
"""

from __future__ import annotations

import importlib
from typing import Any
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqla_shard.testing.callers import SourceLine
    from sqla_shard.testing.documents import sqlite_topology
    from sqla_shard.testing.ensemble import ZooKeeperEnsemble
    from sqla_shard.testing.external import ExternalServer
    from sqla_shard.testing.findings import Finding
    from sqla_shard.testing.fleet import MariaDBFleet
    from sqla_shard.testing.linting import ShardLint
    from sqla_shard.testing.mariadb import MariaDBServer
    from sqla_shard.testing.memcached import MemcachedServer
    from sqla_shard.testing.pairs import MariaDBPair
    from sqla_shard.testing.proxy import Proxy
    from sqla_shard.testing.proxy import ProxyCounts
    from sqla_shard.testing.querylog import LoggedCommand
    from sqla_shard.testing.querylog import QueryLog
    from sqla_shard.testing.redis import RedisServer
    from sqla_shard.testing.statements import LoggedEvent
    from sqla_shard.testing.statements import StatementLog
    from sqla_shard.testing.zookeeper import ZooKeeperServer

__all__ = [
    "ExternalServer",
    "Finding",
    "LoggedCommand",
    "LoggedEvent",
    "MariaDBFleet",
    "MariaDBPair",
    "MariaDBServer",
    "MemcachedServer",
    "Proxy",
    "ProxyCounts",
    "QueryLog",
    "RedisServer",
    "ShardLint",
    "SourceLine",
    "StatementLog",
    "ZooKeeperEnsemble",
    "ZooKeeperServer",
    "sqlite_topology",
]

_HOMES = {
    "ExternalServer": "external",
    "Finding": "findings",
    "LoggedCommand": "querylog",
    "LoggedEvent": "statements",
    "MariaDBFleet": "fleet",
    "MariaDBPair": "pairs",
    "MariaDBServer": "mariadb",
    "MemcachedServer": "memcached",
    "Proxy": "proxy",
    "ProxyCounts": "proxy",
    "QueryLog": "querylog",
    "RedisServer": "redis",
    "ShardLint": "linting",
    "SourceLine": "callers",
    "StatementLog": "statements",
    "ZooKeeperEnsemble": "ensemble",
    "ZooKeeperServer": "zookeeper",
    "sqlite_topology": "documents",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
