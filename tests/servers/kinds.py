"""Kinds of servers: MariaDB and MySQL, and the classes of each.

A test that asks for the fixture ``server_kind``, or for one that does, such as
``fleet``, runs once for each kind, see tests/conftest.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from sqla_shard.testing import (
    MariaDBFleet,
    MariaDBPair,
    MariaDBServer,
    MySQLFleet,
    MySQLPair,
    MySQLServer,
    Proxy,
)
from sqla_shard.testing.database_server import DatabaseServer
from sqla_shard.testing.server_fleet import ServerFleet, ServerPair


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
        Kind("mariadb", MariaDBServer, MariaDBFleet, MariaDBPair, "SLAVE MONITOR"),
        Kind("mysql", MySQLServer, MySQLFleet, MySQLPair, "REPLICATION CLIENT"),
    )
}


def own_fleet(servers: int, shards: int, **options: Any) -> Any:
    """Return a fixture for a module: servers that no other module uses."""

    @pytest.fixture(scope="module")
    def fleet(server_kind: Kind) -> Iterator[ServerFleet[Any]]:
        with server_kind.fleet(servers, shards, fast=True, **options) as fleet:
            yield fleet

    return fleet


def own_lines() -> Any:
    """Return a fixture: a proxy before each server of ``fleet``."""

    @pytest.fixture(scope="module")
    def lines(fleet: ServerFleet[Any]) -> Iterator[list[Proxy]]:
        with contextlib.ExitStack() as stack:
            yield [
                stack.enter_context(Proxy(server.host, server.port, tls=False))
                for server in fleet.servers
            ]

    return lines


#: The kind of server of modules, and of tests, that take long and whose subject
#: is another one, such as a cache, a command or an example.
_ONE = {
    **dict.fromkeys(
        (
            "test_blobs_kill",
            "test_browser_dashboard",
            "test_cached_promises",
            "test_cli_servers",
            "test_feeds_redis",
            "test_fleet_load.test_losses_are_found",
            "test_fleet_start",
            "test_follows_redis",
            "test_hostile_fuzz_servers",
            "test_jobs_rounds",
            "test_mappings_rows",
            "test_other_layout_servers",
            "test_pinboard_tables_servers",
            "test_schema_many",
            "test_sign_ups",
            "test_tickets",
        ),
        "mariadb",
    ),
    **dict.fromkeys(
        (
            "test_cache_protocol",
            "test_cli_unread_servers",
            "test_docs.test_code_runs_on_real_servers",
            "test_following_zookeeper",
            "test_follows_killed",
            "test_frozen_commands",
            "test_logged_fuzz",
            "test_microblog_servers",
            "test_moving_lag",
            "test_moving_servers",
            "test_ordered_fuzz",
            "test_pinboard",
            "test_pinboard_lab_servers",
            "test_quickstart",
            "test_random_edits_zookeeper",
            "test_spread_moves",
        ),
        "mysql",
    ),
}


def kinds_of(test: pytest.Function) -> list[str]:
    """Return the kinds of servers that a test runs on.

    The marker ``only_on`` names the one whose own behaviour is tested.  Tests
    that take long and depend little on the server, those of ``_ONE`` and with
    ``slow_on_servers``, run on one of them, unless ``--every-server`` is
    given.
    """
    option = test.config.getoption
    marker = test.get_closest_marker("only_on")
    if marker is not None:
        return [marker.args[0]]
    names = list(KINDS)
    if option("--tier") != "all":
        return names[:1]
    if option("--every-server"):
        return names
    if test.get_closest_marker("slow_on_servers") is not None:
        return names[:1]
    stem = test.path.stem
    one = _ONE.get(stem) or _ONE.get(f"{stem}.{test.originalname}")
    return names if one is None else [one]
