"""The pytest plugin: real servers for a test run, a linter, shadow mode.

It is registered on installation, and starts a server only when a test uses its
fixture::

    def test_against_mysql(mysql_fleet):
        document = mysql_fleet.topology_mapping()

``mysql_fleet``, ``mariadb_fleet``
    A :class:`.MySQLFleet` or :class:`.MariaDBFleet` with 256 virtual shards,
    which runs from the first test that uses it to the end of the run.  Its
    databases exist; for empty ones see :meth:`.ServerFleet.topology_mapping`.
``mysql_proxies``, ``mariadb_proxies``
    A running :class:`~.proxy.Proxy` for each server of the fleet, in order,
    without TLS, so that they can be cut at a COMMIT; new ones for each test::

        def test_with_a_slow_server(mysql_fleet, mysql_proxies):
            mysql_proxies[0].delay = 0.02
            document = mysql_fleet.topology_mapping(proxies=mysql_proxies)

``mysql_installed``, ``mariadb_installed``
    For tests that start their own :class:`~.mysql.MySQLServer` or
    :class:`~.mariadb.MariaDBServer`.
``zookeeper_server``
    A :class:`~.zookeeper.ZooKeeperServer`, which runs from the first test that
    uses it to the end of the run.  All tests share its nodes: use a path for
    each test, such as ``/test_x``.
``zookeeper_proxy``
    A running :class:`~.proxy.Proxy` for ``zookeeper_server``; a new one for
    each test.
``zookeeper_installed``
    For tests that start their own :class:`~.zookeeper.ZooKeeperServer` or
    :class:`.ZooKeeperEnsemble`.
``memcached_installed``
    For tests that start their own :class:`.MemcachedServer`.
``redis_installed``
    For tests that start their own :class:`.RedisServer`.
``shard_lint``
    The linter of the test, see :mod:`.lint_plugin`.

For applications on one database it also has :mod:`.shadow_plugin`.

A test is skipped if a program that it needs is not installed, and the last
lines of the run have the number of such tests.  If servers are required the
test fails instead: a run that tests nothing must not pass.

Options: ``--shard-servers N``, the size of the fleet (4).  Under
pytest-xdist each worker has a fleet of its own.

Environment variables:

``CI=true``, ``SQLA_SHARD_REQUIRE_SERVERS=1``
    Servers are required.
``SQLA_SHARD_TEST_SERVERS``
    Use these servers, see :class:`.ExternalServer`; tests of a kind that none
    of them is are skipped.
``SQLA_SHARD_MARIADB``, ``SQLA_SHARD_MYSQL``, ``SQLA_SHARD_TEST_PASSWORD``
    See :mod:`.programs` and :mod:`.database_server`.
``SQLA_SHARD_MEMCACHED``, ``SQLA_SHARD_REDIS``
    See :mod:`.programs`.
``SQLA_SHARD_ZOOKEEPER``, ``JAVA_HOME``
    See :mod:`.programs`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from typing import Any, NoReturn, TYPE_CHECKING

import pytest

from sqla_shard.testing.lint_plugin import add_options, LintHooks, shard_lint
from sqla_shard.testing.programs import (
    find_mariadb,
    find_memcached,
    find_mysql,
    find_redis,
    find_zookeeper,
    MISSING_MARIADB,
    MISSING_MEMCACHED,
    MISSING_MYSQL,
    MISSING_REDIS,
    MISSING_ZOOKEEPER,
)
from sqla_shard.testing.shadow_plugin import add_shadow_options, ShadowHooks

if TYPE_CHECKING:
    # Imported for type checking only: pytest imports this plugin in every
    # project whose environment has this package.
    from sqla_shard.testing.proxy import Proxy
    from sqla_shard.testing.server_fleet import MariaDBFleet, MySQLFleet, ServerFleet
    from sqla_shard.testing.zookeeper import ZooKeeperServer

__all__ = [
    "mariadb_fleet",
    "mariadb_installed",
    "mariadb_proxies",
    "memcached_installed",
    "mysql_fleet",
    "mysql_installed",
    "mysql_proxies",
    "redis_installed",
    "shard_lint",
    "zookeeper_installed",
    "zookeeper_proxy",
    "zookeeper_server",
]

_MARK = "sqla_shard: no servers: "
_SHARDS = 256


def _servers_required() -> bool:
    return (
        os.environ.get("CI") == "true"
        or os.environ.get("SQLA_SHARD_REQUIRE_SERVERS") == "1"
    )


def _require(missing: str | None) -> None:
    """Skip or fail the test if its servers cannot be used.

    :param missing: reason, if their program is not installed.
    """
    if importlib.util.find_spec("pymysql") is None:
        missing = "PyMySQL is not installed: run `pip install sqla-shard[testing]`"
    if missing is not None:
        skip_or_fail(missing)


def skip_or_fail(reason: str) -> NoReturn:
    """Skip the test, or fail it if servers are required."""
    if _servers_required():
        pytest.fail(_MARK + reason, pytrace=False)
    pytest.skip(_MARK + reason)


@pytest.fixture(scope="session")
def mariadb_installed() -> None:
    """Skip a test if MariaDB is not installed."""
    _require(None if find_mariadb() else MISSING_MARIADB)


@pytest.fixture(scope="session")
def mysql_installed() -> None:
    """Skip a test if MySQL is not installed."""
    _require(None if find_mysql() else MISSING_MYSQL)


def _require_fleet(kind: str, missing: str | None) -> None:
    """Skip or fail the test if there can be no fleet of a kind.

    :param missing: reason, if its program is not installed.
    """
    is_external = bool(os.environ.get("SQLA_SHARD_TEST_SERVERS"))
    _require(None if is_external else missing)
    from sqla_shard.testing import server_fleet

    external = server_fleet.external_servers()
    if external and not server_fleet.external_of(kind, external):
        skip_or_fail(server_fleet.none_of(kind))


@pytest.fixture(scope="session")
def mariadb_fleet(request: pytest.FixtureRequest) -> Iterator[MariaDBFleet]:
    """Run MariaDB servers with 256 virtual shards for the whole session."""
    _require_fleet("mariadb", None if find_mariadb() else MISSING_MARIADB)
    from sqla_shard.testing.server_fleet import MariaDBFleet

    servers = request.config.getoption("--shard-servers")
    with MariaDBFleet(servers, _SHARDS, fast=True) as fleet:
        fleet.create_databases()
        yield fleet


@pytest.fixture(scope="session")
def mysql_fleet(request: pytest.FixtureRequest) -> Iterator[MySQLFleet]:
    """Run MySQL servers with 256 virtual shards for the whole session."""
    _require_fleet("mysql", None if find_mysql() else MISSING_MYSQL)
    from sqla_shard.testing.server_fleet import MySQLFleet

    servers = request.config.getoption("--shard-servers")
    with MySQLFleet(servers, _SHARDS, fast=True) as fleet:
        fleet.create_databases()
        yield fleet


@pytest.fixture
def mariadb_proxies(mariadb_fleet: MariaDBFleet) -> Iterator[list[Proxy]]:
    """Return a proxy for each MariaDB server of the fleet, without delay."""
    with proxies_of(mariadb_fleet) as proxies:
        yield proxies


@pytest.fixture
def mysql_proxies(mysql_fleet: MySQLFleet) -> Iterator[list[Proxy]]:
    """Return a proxy for each MySQL server of the fleet, without delay."""
    with proxies_of(mysql_fleet) as proxies:
        yield proxies


@contextlib.contextmanager
def proxies_of(fleet: ServerFleet[Any]) -> Iterator[list[Proxy]]:
    """Yield a running proxy for each server of a fleet, in order.

    They hide that a server offers TLS: they could not read what is sent then.
    """
    from sqla_shard.testing.proxy import Proxy

    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(Proxy(server.host, server.port, tls=False))
            for server in fleet.servers
        ]


@pytest.fixture(scope="session")
def zookeeper_installed() -> None:
    """Skip a test if ZooKeeper is not installed."""
    if find_zookeeper() is None:
        skip_or_fail(MISSING_ZOOKEEPER)


@pytest.fixture(scope="session")
def zookeeper_server(zookeeper_installed: None) -> Iterator[ZooKeeperServer]:
    """Run one ZooKeeper server for the whole session."""
    from sqla_shard.testing.zookeeper import ZooKeeperServer

    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def zookeeper_proxy(zookeeper_server: ZooKeeperServer) -> Iterator[Proxy]:
    """Return a proxy for the ZooKeeper server, without delay."""
    from sqla_shard.testing.proxy import Proxy

    with Proxy(zookeeper_server.host, zookeeper_server.port) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def memcached_installed() -> None:
    """Skip a test if memcached is not installed."""
    if find_memcached() is None:
        skip_or_fail(MISSING_MEMCACHED)


@pytest.fixture(scope="session")
def redis_installed() -> None:
    """Skip a test if Redis is not installed."""
    if find_redis() is None:
        skip_or_fail(MISSING_REDIS)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the plugin."""
    group = parser.getgroup("sqla_shard", "sharded databases")
    group.addoption(
        "--shard-servers",
        type=int,
        default=4,
        metavar="N",
        help="number of servers of a fleet (default: 4)",
    )
    add_options(parser)
    add_shadow_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Register the linter, and shadow mode."""
    config.pluginmanager.register(ShadowHooks(config), "sqla_shard_shadow")
    config.pluginmanager.register(LintHooks(config), "sqla_shard_lint")


# The outermost wrapper: its line follows the list of skipped tests.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter,
) -> Iterator[None]:
    """Print the number of skipped tests, and the reason."""
    yield
    reasons = [
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", ())
        if isinstance(report.longrepr, tuple)
    ]
    missing = [r.removeprefix(_MARK) for r in reasons if r.startswith(_MARK)]
    if missing:
        count = len(missing)
        terminalreporter.write_line(
            f"sqla_shard: {count} live test{'' if count == 1 else 's'} "
            f"skipped for lack of servers. {missing[0]}",
            yellow=True,
        )
