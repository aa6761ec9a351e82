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
    :class:`~.mysql.MariaDBServer`.
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
    The linter of the test.

A test is skipped if a program that it needs is not installed, and the last
lines of the run have the number of such tests.  If servers are required the
test fails instead: a run that tests nothing must not pass.

Options: ``--shard-servers N``, the size of the fleet (4).  Under
pytest-xdist each worker has a fleet of its own, except on servers of
``SQLA_SHARD_TEST_SERVERS``: there its databases need names of their own.

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

Where a parameter of a test is ``"sqlite"``, ``"mariadb"`` or ``"mysql"``, as of
the fixture ``cluster`` of ``sqla-shard init``, the run ends with the tests that
have passed on SQLite and failed on a server.

The linter of :mod:`.lint` is off by default.  Switch it on for all tests in
the configuration, ::

    [tool.pytest.ini_options]
    sqla_shard_lint = true

or with ``--sqla-shard-lint``; for one test, class or module with
``@pytest.mark.sqla_shard_lint``, or with the fixture ``shard_lint``.  A test
that has passed fails if there are findings; one that has failed shows them in
addition to its own error.  Statements of fixtures before the test are not
checked.

Kinds of findings can be allowed for a test, a class or a module::

    @pytest.mark.sqla_shard_allow("scatter")
    def test_report(cluster): ...

or for a part of a test, with the fixture, a :class:`.ShardLint`::

    def test_report(cluster, shard_lint):
        with shard_lint.allow("scatter"):
            ...

Options in the configuration, which are also keywords of the mark
``sqla_shard_lint``, without the prefix:

``sqla_shard_lint_max_repeats``
    Maximum number of times that a line may send the same SELECT in a session
    (5).
``sqla_shard_lint_max_shards``
    Maximum number of shards of the ids of a statement (no limit).
``sqla_shard_lint_setup``
    Whether to also check statements of fixtures before the test (false).

Shadow mode of :mod:`sqla_shard.migrate` is off by default.  With a declaration
and the metadata of the application, it plans the statements of all tests, and
prints a summary at the end::

    [tool.pytest.ini_options]
    sqla_shard_shadow = "declaration.toml"
    sqla_shard_shadow_metadata = "shop.models:Base"
    sqla_shard_shadow_reports = "shadow-reports"

The reports, one of each process of pytest-xdist, are in the directory
``sqla_shard_shadow_reports`` (``.sqla_shard_shadow``); ``sqla-shard migrate
shadow`` shows them, and ``sqla-shard migrate suggest`` reads them.  The
command line option ``--sqla-shard-shadow DECLARATION`` replaces the first of
these settings; an empty one switches it off.

The reports of an earlier run in the directory are deleted.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TYPE_CHECKING

import pytest

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

if TYPE_CHECKING:
    # Imported for type checking only: pytest imports this plugin in every
    # project whose environment has this package.
    from sqla_shard.migrate import Shadow
    from sqla_shard.testing.lint import ShardLint
    from sqla_shard.testing.proxy import Proxy
    from sqla_shard.testing.server_fleet import MariaDBFleet, MySQLFleet, ServerFleet
    from sqla_shard.testing.zookeeper import ZooKeeperServer

_MARKS = (
    (
        "sqla_shard_lint(max_repeats=5, max_shards=None, setup=False): fail "
        "on scatters, cross-shard writes and N+1 over shards"
    ),
    (
        "sqla_shard_allow(*kinds): let the linter allow scatter, fan_out, "
        "cross_shard_write or n_plus_one"
    ),
)

_OPTIONS = ("max_repeats", "max_shards", "setup")


def add_options(parser: pytest.Parser) -> None:
    """Add the options of the linter."""
    parser.getgroup("sqla_shard").addoption(
        "--sqla-shard-lint",
        action="store_true",
        help="fail tests on scatters, cross-shard writes and N+1 over shards",
    )
    parser.addini(
        "sqla_shard_lint",
        "fail tests on scatters, cross-shard writes and N+1 over shards",
        type="bool",
        default=False,
    )
    parser.addini(
        "sqla_shard_lint_max_repeats",
        "maximum number of times that a line may send a SELECT in a session",
        default="",
    )
    parser.addini(
        "sqla_shard_lint_max_shards",
        "maximum number of shards of the ids of a statement",
        default="",
    )
    parser.addini(
        "sqla_shard_lint_setup",
        "whether to check statements of fixtures before the test",
        type="bool",
        default=False,
    )


@pytest.fixture
def shard_lint(request: pytest.FixtureRequest) -> ShardLint:
    """Return the linter of this test, and switch it on."""
    item: pytest.Item = request.node
    found = item.stash.get(_LINT, None)
    if found is None:
        raise pytest.UsageError(
            "shard_lint must be an argument of the test or of its fixtures: "
            "getfixturevalue() is too late to lint the test"
        )
    return found


class LintHooks:
    """Lints the tests for which it is switched on.

    It listens from the first of them to the end of the run: threads that
    outlive a test may send statements at any time.
    """

    def __init__(self, config: pytest.Config) -> None:
        for mark in _MARKS:
            config.addinivalue_line("markers", mark)
        self._everywhere = bool(
            config.getoption("--sqla-shard-lint") or config.getini("sqla_shard_lint")
        )
        self._options: dict[str, Any] = {
            name: _number(config, f"sqla_shard_lint_{name}")
            for name in ("max_repeats", "max_shards")
        }
        self._options["setup"] = config.getini("sqla_shard_lint_setup")
        self._current: ShardLint | None = None
        self._listening = False

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Check the marks of all tests."""
        for item in items:
            marks = [*item.iter_markers("sqla_shard_allow")]
            lints = [*item.iter_markers("sqla_shard_lint")]
            if marks or lints:
                _check(item, marks, lints)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(
        self, item: pytest.Item
    ) -> Generator[None, object, object]:
        """Create the linter of a test; check its fixtures if configured."""
        item.stash.setdefault(_LINT, None)
        if not self._wanted(item):
            return (yield)
        options = {k: v for k, v in self._options.items() if v is not None}
        for mark in reversed([*item.iter_markers("sqla_shard_lint")]):
            options.update(mark.kwargs)
        setup = options.pop("setup")
        lint = item.stash[_LINT] = self._linter(item, options)
        with self._checking(lint if setup else None):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Check the test, and fail it if there are findings."""
        lint = item.stash.get(_LINT, None)
        if lint is None:
            return (yield)
        with self._checking(lint):
            result = yield
        text = lint.text()
        if text:
            pytest.fail(f"{text}\n\n{_hint(lint)}", pytrace=False)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Show the findings of a test that has failed."""
        report = yield
        lint = item.stash.get(_LINT, None)
        if lint is not None and call.when == "call" and report.failed:
            text = lint.text()
            if text and text not in report.longreprtext:
                report.sections.append(("sqla_shard lint", text))
        return report

    def pytest_unconfigure(self) -> None:
        """Stop listening."""
        if self._listening:
            from sqlalchemy import event

            from sqla_shard.cluster.cluster import Cluster

            event.remove(Cluster, "after_statement", self._see)
            self._listening = False

    def _wanted(self, item: pytest.Item) -> bool:
        return (
            self._everywhere
            or item.get_closest_marker("sqla_shard_lint") is not None
            or "shard_lint" in getattr(item, "fixturenames", ())
        )

    def _linter(self, item: pytest.Item, options: dict[str, Any]) -> ShardLint:
        from sqla_shard.testing.lint import ShardLint

        allowed = {
            kind for mark in item.iter_markers("sqla_shard_allow") for kind in mark.args
        }
        return ShardLint(allow=allowed, **options)

    @contextmanager
    def _checking(self, lint: ShardLint | None) -> Iterator[None]:
        """Check all statements inside the block with a linter."""
        if not self._listening:
            from sqlalchemy import event

            from sqla_shard.cluster.cluster import Cluster

            event.listen(Cluster, "after_statement", self._see)
            self._listening = True
        self._current = lint
        try:
            yield
        finally:
            self._current = None

    def _see(self, cluster: Any, report: Any) -> None:
        lint = self._current
        if lint is not None:
            lint.see(cluster, report)


_LINT: pytest.StashKey[ShardLint | None] = pytest.StashKey()


def _hint(lint: ShardLint) -> str:
    kinds = dict.fromkeys(finding.kind for finding in lint.findings)
    words = ", ".join(f'"{kind}"' for kind in kinds)
    return f"If it is intended: @pytest.mark.sqla_shard_allow({words})"


def _number(config: pytest.Config, name: str) -> int | None:
    text = str(config.getini(name)).strip()
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise pytest.UsageError(f"{name} = {text!r} must be an integer from 1")
    return int(text)


def _check(
    item: pytest.Item, allows: list[pytest.Mark], lints: list[pytest.Mark]
) -> None:
    """Refuse marks that are not valid.

    :raises pytest.UsageError: if a mark is not valid; has the name of the
        test.
    """
    from sqla_shard.testing.lint import KINDS, ShardLint

    for mark in allows:
        unknown = [kind for kind in mark.args if kind not in KINDS]
        if unknown or mark.kwargs or not mark.args:
            raise pytest.UsageError(
                f"{item.nodeid}: sqla_shard_allow takes {', '.join(map(repr, KINDS))}; "
                f"it was given {_given(mark)}"
            )
    for mark in lints:
        options = dict(mark.kwargs)
        try:
            if mark.args or not options.keys() <= {*_OPTIONS}:
                raise ValueError(f"it was given {_given(mark)}")
            options.pop("setup", None)
            ShardLint(**options)
        except ValueError as error:
            raise pytest.UsageError(
                f"{item.nodeid}: sqla_shard_lint takes "
                f"{', '.join(f'{name}=' for name in _OPTIONS)}; {error}"
            ) from error


def _given(mark: pytest.Mark) -> str:
    words = [repr(value) for value in mark.args]
    words += [f"{name}={value!r}" for name, value in mark.kwargs.items()]
    return ", ".join(words) or "nothing"


def add_shadow_options(parser: pytest.Parser) -> None:
    """Add the options of shadow mode."""
    parser.getgroup("sqla_shard").addoption(
        "--sqla-shard-shadow",
        metavar="DECLARATION",
        help="plan the statements of the application by this declaration, as "
        "if it were sharded",
    )
    parser.addini(
        "sqla_shard_shadow",
        "declaration (TOML) to plan the statements of the application by",
        default="",
    )
    parser.addini(
        "sqla_shard_shadow_metadata",
        "the tables of the application, as module:Base",
        default="",
    )
    parser.addini(
        "sqla_shard_shadow_reports",
        "directory for reports of shadow mode",
        default=".sqla_shard_shadow",
    )


class ShadowHooks:
    """Watches all engines from the end of the collection to that of the run.

    The modules of the application are imported by then.
    """

    def __init__(self, config: pytest.Config) -> None:
        given = config.getoption("--sqla-shard-shadow")
        self._declaration = str(
            config.getini("sqla_shard_shadow") if given is None else given
        )
        self._metadata = str(config.getini("sqla_shard_shadow_metadata"))
        self._root = Path(config.rootpath)
        self._directory = self._root / str(config.getini("sqla_shard_shadow_reports"))
        self._is_worker = hasattr(config, "workerinput")
        self._shadow: Shadow | None = None
        if self._declaration and not self._metadata:
            raise pytest.UsageError(
                "sqla_shard_shadow needs sqla_shard_shadow_metadata, the "
                "tables of the application, such as shop.models:Base"
            )

    def pytest_sessionstart(self) -> None:
        """Delete the reports of an earlier run."""
        if self._declaration and not self._is_worker:
            for path in self._directory.glob("shadow-*.json"):
                path.unlink()

    def pytest_collection_finish(self) -> None:
        """Start to watch."""
        if not self._declaration:
            return
        from sqlalchemy import Engine

        from sqla_shard.migrate import Declaration, Shadow

        module, _, name = self._metadata.partition(":")
        found = getattr(importlib.import_module(module), name or "Base")
        self._shadow = Shadow(
            Declaration.from_file(self._root / self._declaration),
            getattr(found, "metadata", found),
            budget=None,
            directory=self._directory,
        )
        self._shadow.watch(Engine)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Stop watching, and write the report."""
        if self._shadow is not None:
            self._shadow.close()

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter
    ) -> None:
        """Print the counts of all processes."""
        if not self._declaration:
            return
        from sqla_shard.migrate import load, merge

        paths = sorted(self._directory.glob("shadow-*.json"))
        report = merge(load(path) for path in paths)
        terminalreporter.section("sqla_shard shadow mode")
        terminalreporter.write_line(report.summary())
        terminalreporter.write_line(
            f"Lines and remedies: sqla-shard migrate shadow {self._directory}"
        )


_DATABASES = frozenset(("sqlite", "mariadb", "mysql"))


class DifferenceHooks:
    """Names the tests that have passed on SQLite, and failed on a server.

    Parameters of a test say where it ran, such as ``test_boards[mysql]``.
    """

    def __init__(self) -> None:
        self._passed: set[str] = set()
        self._failed: dict[str, dict[str, str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note where a test has passed or failed."""
        name, _, parameters = report.nodeid.partition("[")
        words = parameters.removesuffix("]").split("-")
        where = next((one for one in words if one in _DATABASES), None)
        if where is None:
            return
        words.remove(where)
        test = name + (f"[{'-'.join(words)}]" if words else "")
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            first, *_ = getattr(crash, "message", "").splitlines() or [""]
            self._failed.setdefault(test, {}).setdefault(where, first)
        elif where == "sqlite" and report.when == "call" and report.passed:
            self._passed.add(test)

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter
    ) -> None:
        """Print the tests, and the first line of each error."""
        found = [
            f"{test}[{where}]: {message}"
            for test, failed in self._failed.items()
            if test in self._passed and "sqlite" not in failed
            for where, message in failed.items()
            # It has not run there: skip_or_fail() fails it without servers.
            if _MARK not in message
        ]
        if found:
            terminalreporter.section("sqla_shard: passed on SQLite, failed on servers")
            for line in found:
                terminalreporter.write_line(line)


_MARK = "sqla_shard: no servers: "

_SHARDS = 256


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
    if (
        os.environ.get("CI") == "true"
        or os.environ.get("SQLA_SHARD_REQUIRE_SERVERS") == "1"
    ):
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
    """Register the linter, shadow mode, and the comparison with SQLite."""
    config.pluginmanager.register(DifferenceHooks(), "sqla_shard_difference")
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
