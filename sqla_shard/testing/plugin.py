"""The pytest plugin: real servers for a test run, and a linter.

Registered on installation.  It costs nothing until a test asks for::

    def test_against_mariadb(mariadb_fleet):
        document = mariadb_fleet.topology_mapping()

``mariadb_fleet``
    A :class:`~.fleet.MariaDBFleet` with 256 virtual shards, started when
    the first test asks for it and stopped at the end of the run.  Its
    databases exist; tests that need clean ones name their own, see
    :meth:`~.fleet.MariaDBFleet.topology_mapping`.
``mariadb_proxies``
    A running :class:`~.proxy.Proxy` before each server of ``mariadb_fleet``,
    in order, anew for each test::

        def test_with_a_slow_server(mariadb_fleet, mariadb_proxies):
            mariadb_proxies[0].delay = 0.02
            document = mariadb_fleet.topology_mapping(proxies=mariadb_proxies)
``mariadb_installed``
    Nothing, for tests that start a :class:`~.mariadb.MariaDBServer` of
    their own.
``zookeeper_server``
    A :class:`~.zookeeper.ZooKeeperServer`, started when the first test asks
    for it and stopped at the end of the run.  All tests see one tree: take
    a path of your own, such as ``/test_x``.
``zookeeper_proxy``
    A running :class:`~.proxy.Proxy` before it, anew for each test.
``zookeeper_installed``
    Nothing, for tests that start a :class:`~.zookeeper.ZooKeeperServer` or
    a :class:`~.ensemble.ZooKeeperEnsemble` of their own.
``memcached_installed``
    Nothing, for tests that start a :class:`~.memcached.MemcachedServer` of
    their own.
``redis_installed``
    Nothing, for tests that start a :class:`~.redis.RedisServer` of their own.
``shard_lint``
    The linter of the test, see :mod:`.lint_plugin`.

Where MariaDB or PyMySQL is missing, ZooKeeper or Java, memcached or Redis, a
test that asks for it is skipped, and the last lines of the run say how many
were.  Where servers are promised it fails instead, since a run that tests
nothing would look like a good one.

Options: ``--shard-servers N``, the size of the fleet (4).  Under
pytest-xdist each worker has a fleet of its own.

Environment variables:

``CI=true``, ``SQLA_SHARD_REQUIRE_SERVERS=1``
    Servers are promised.
``SQLA_SHARD_TEST_SERVERS``
    Use these servers, see :mod:`.external`.
``SQLA_SHARD_MARIADB``, ``SQLA_SHARD_TEST_PASSWORD``
    See :mod:`.binaries` and :mod:`.mariadb`.
``SQLA_SHARD_MEMCACHED``, ``SQLA_SHARD_REDIS``
    See :mod:`.binaries`.
``SQLA_SHARD_ZOOKEEPER``, ``JAVA_HOME``
    See :mod:`.jars`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from typing import NoReturn
from typing import TYPE_CHECKING

import pytest

from sqla_shard.testing.binaries import find_binaries
from sqla_shard.testing.binaries import find_memcached
from sqla_shard.testing.binaries import find_redis
from sqla_shard.testing.binaries import MISSING
from sqla_shard.testing.binaries import MISSING_MEMCACHED
from sqla_shard.testing.binaries import MISSING_REDIS
from sqla_shard.testing.jars import find_zookeeper
from sqla_shard.testing.jars import MISSING_ZOOKEEPER
from sqla_shard.testing.lint_plugin import add_options
from sqla_shard.testing.lint_plugin import LintHooks
from sqla_shard.testing.lint_plugin import shard_lint

if TYPE_CHECKING:
    # Not at run time: every pytest run of every project of an environment
    # with this package imports the plugin.
    from sqla_shard.testing.fleet import MariaDBFleet
    from sqla_shard.testing.proxy import Proxy
    from sqla_shard.testing.zookeeper import ZooKeeperServer

__all__ = [
    "mariadb_fleet",
    "mariadb_installed",
    "mariadb_proxies",
    "memcached_installed",
    "redis_installed",
    "shard_lint",
    "zookeeper_installed",
    "zookeeper_proxy",
    "zookeeper_server",
]

_MARK = "sqla_shard: no servers: "
_SHARDS = 256


def _promised() -> bool:
    return (
        os.environ.get("CI") == "true"
        or os.environ.get("SQLA_SHARD_REQUIRE_SERVERS") == "1"
    )


def _require(*, processes: bool) -> None:
    """Skip or fail the test if there can be no servers.

    :param processes: whether servers that others run will not do.
    """
    reason = None
    if importlib.util.find_spec("pymysql") is None:
        reason = (
            "PyMySQL is not installed: run `pip install sqla-shard[testing]`"
        )
    elif processes or not os.environ.get("SQLA_SHARD_TEST_SERVERS"):
        reason = None if find_binaries() else MISSING
    if reason is not None:
        _do_without(reason)


def _do_without(reason: str) -> NoReturn:
    if _promised():
        pytest.fail(_MARK + reason, pytrace=False)
    pytest.skip(_MARK + reason)


@pytest.fixture(scope="session")
def mariadb_installed() -> None:
    """Let a test run only where MariaDB can be started."""
    _require(processes=True)


@pytest.fixture(scope="session")
def mariadb_fleet(request: pytest.FixtureRequest) -> Iterator[MariaDBFleet]:
    """Run real servers for the whole session, with 256 virtual shards."""
    _require(processes=False)
    from sqla_shard.testing.fleet import MariaDBFleet

    servers = request.config.getoption("--shard-servers")
    with MariaDBFleet(servers, _SHARDS, fast=True) as fleet:
        fleet.create_databases()
        yield fleet


@pytest.fixture
def mariadb_proxies(mariadb_fleet: MariaDBFleet) -> Iterator[list[Proxy]]:
    """Stand before each server of the fleet, with no delay at first."""
    from sqla_shard.testing.proxy import Proxy

    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(Proxy(server.host, server.port))
            for server in mariadb_fleet.servers
        ]


@pytest.fixture(scope="session")
def zookeeper_installed() -> None:
    """Let a test run only where ZooKeeper can be started."""
    if find_zookeeper() is None:
        _do_without(MISSING_ZOOKEEPER)


@pytest.fixture(scope="session")
def zookeeper_server(zookeeper_installed: None) -> Iterator[ZooKeeperServer]:
    """Run one ZooKeeper server for the whole session."""
    from sqla_shard.testing.zookeeper import ZooKeeperServer

    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def zookeeper_proxy(zookeeper_server: ZooKeeperServer) -> Iterator[Proxy]:
    """Stand before the ZooKeeper server, with no delay at first."""
    from sqla_shard.testing.proxy import Proxy

    with Proxy(zookeeper_server.host, zookeeper_server.port) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def memcached_installed() -> None:
    """Let a test run only where memcached can be started."""
    if find_memcached() is None:
        _do_without(MISSING_MEMCACHED)


@pytest.fixture(scope="session")
def redis_installed() -> None:
    """Let a test run only where Redis can be started."""
    if find_redis() is None:
        _do_without(MISSING_REDIS)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare our options."""
    group = parser.getgroup("sqla_shard", "sharded databases")
    group.addoption(
        "--shard-servers",
        type=int,
        default=4,
        metavar="N",
        help="number of MariaDB servers of mariadb_fleet (default: 4)",
    )
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Register the linter."""
    config.pluginmanager.register(LintHooks(config), "sqla_shard_lint")


# Around all others, so as to come after the list of what was skipped.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter,
) -> Iterator[None]:
    """Say how much was not tested, and why."""
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
