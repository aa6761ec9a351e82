"""Kinds of servers: MariaDB and MySQL, and the classes of each.

A test that asks for the fixture ``server_kind``, or for one that does, such as
``fleet``, runs once for each kind, see tests/conftest.py.
"""

from __future__ import annotations

from typing import Any
from typing import NamedTuple

import pytest

from sqla_shard.testing import MariaDBFleet
from sqla_shard.testing import MariaDBPair
from sqla_shard.testing import MariaDBServer
from sqla_shard.testing import MySQLFleet
from sqla_shard.testing import MySQLPair
from sqla_shard.testing import MySQLServer
from sqla_shard.testing.database_server import DatabaseServer
from sqla_shard.testing.server_fleet import ServerFleet
from sqla_shard.testing.server_pair import ServerPair

__all__ = ["KINDS", "Kind", "kinds_of"]


class Kind(NamedTuple):
    """The classes of one kind of server.

    :param name: ``mariadb`` or ``mysql``.
    :param lag_privilege: privilege to see the state of a standby.
    """

    name: str
    server: type[DatabaseServer]
    fleet: type[ServerFleet[Any]]
    pair: type[ServerPair[Any]]
    lag_privilege: str

    @property
    def is_mysql(self) -> bool:
        return self.name == "mysql"


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "mariadb",
            MariaDBServer,
            MariaDBFleet,
            MariaDBPair,
            "SLAVE MONITOR",
        ),
        Kind(
            "mysql",
            MySQLServer,
            MySQLFleet,
            MySQLPair,
            "REPLICATION CLIENT",
        ),
    )
}


def kinds_of(test: pytest.Function) -> list[str]:
    """Return the kinds of servers that a test runs on.

    The marker ``only_on`` names the one whose own behaviour is tested.  With
    ``slow_on_servers`` a test that takes long, and depends little on the
    server, runs on one of them, unless ``--every-server`` is given.
    """
    option = test.config.getoption
    marker = test.get_closest_marker("only_on")
    names = list(KINDS) if marker is None else [marker.args[0]]
    is_slow = test.get_closest_marker("slow_on_servers") is not None
    if option("--tier") != "all" or (is_slow and not option("--every-server")):
        return names[:1]
    return names
