"""The seed of the run, and how hard hypothesis tries."""

from __future__ import annotations

import gc
import importlib.util
import os
import random
import secrets
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis
import pytest
from sqlalchemy import event

from sqla_shard import Cluster
from sqla_shard.testing import MariaDBFleet, MySQLFleet, MySQLServer
from sqla_shard.testing.plugin import proxies_of, skip_or_fail
from sqla_shard.testing.proxy import Proxy
from sqla_shard.testing.server_fleet import ServerFleet
from tests.collecting import is_suite, run_in_loop, server_of, SERVERS, SuiteFile
from tests.models.backends import On
from tests.servers.kinds import Kind, KINDS, kinds_of
from tests.tiers import ignores, mark, select, TIERS

# Hypothesis chooses a profile of its own where CI is set, with one fixed
# seed for all time; we want a new one for each change, printed.
hypothesis.settings.register_profile("default", max_examples=50, deadline=None)
# Fewer examples than the 50 of the tier `all`.
hypothesis.settings.register_profile("few", max_examples=15, deadline=None)
hypothesis.settings.register_profile(
    "soak", max_examples=2000, deadline=None, print_blob=True
)

#: A file system in memory, and the bytes that a whole run may need there.
_MEMORY = "/dev/shm"  # noqa: S108 - only where the system has it
_NEEDED = 4 << 30

#: Those of Python.
_THRESHOLDS = gc.get_threshold()

#: What `make servers` has unpacked beside the programs of the system.
_SERVERS = Path(__file__).parents[1] / ".servers"
if "SQLA_SHARD_MYSQL" not in os.environ and (_SERVERS / "mysql").is_dir():
    os.environ["SQLA_SHARD_MYSQL"] = str(_SERVERS / "mysql")

_SEED = pytest.StashKey[int]()
#: A release has another one.
_SEED_OF_BUILDS = 2015
_DESELECTED = pytest.StashKey[int]()
_SAID = "said"
_SERVER = "server"
_NO_BROWSER = "pinboard: no browser: "


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("sqla_shard")
    group.addoption(
        "--tier",
        choices=TIERS,
        default="all",
        help="which tests: see tests/tiers.py (default: all)",
    )
    group.addoption(
        "--area",
        default="",
        metavar="NAME",
        help="only tests of a package of sqla_shard, such as cache",
    )
    group.addoption(
        "--every-server",
        action="store_true",
        help="also what takes too long there for the tier `all`",
    )
    group.addoption(
        "--once",
        action="store_true",
        help="each function with the first of its parameters",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return ignores(collection_path, config) or None


def pytest_collect_file(
    file_path: Path, parent: pytest.Collector
) -> pytest.Collector | None:
    if not is_suite(file_path) or parent.session.isinitpath(file_path):
        return None  # or what makes a module of the file
    return SuiteFile.from_parent(parent, path=file_path)


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Collector | None:
    # pytest makes one of each file that it is given.
    if not is_suite(module_path):
        return None
    return SuiteFile.from_parent(parent, path=module_path)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server_kind" in metafunc.fixturenames:
        names = kinds_of(metafunc.definition)
        metafunc.parametrize("server_kind", names, indirect=True, scope="module")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    return run_in_loop(pyfuncitem)


@pytest.hookimpl(tryfirst=True)  # before -m reads the markers
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    for item in items:
        mark(item)
        item.user_properties.append((_SERVER, server_of(item)))
    select(config, items)


def _use_memory() -> None:
    """Have the directories of tests in memory, where there is enough.

    Each COMMIT of SQLite waits for the disk otherwise.
    """
    if "PYTEST_DEBUG_TEMPROOT" in os.environ or not hasattr(os, "statvfs"):
        return
    try:
        found = os.statvfs(_MEMORY)
    except OSError:
        return
    # Programs are started there, such as those of virtual environments.
    usable = os.access(_MEMORY, os.W_OK) and not found.f_flag & os.ST_NOEXEC
    if usable and found.f_bavail * found.f_frsize >= _NEEDED:
        os.environ["PYTEST_DEBUG_TEMPROOT"] = _MEMORY


def _profile(config: pytest.Config) -> str:
    if os.environ.get("SQLA_SHARD_SOAK") == "1":
        return "soak"
    return "default" if config.getoption("--tier") == "all" else "few"


@pytest.hookimpl(tryfirst=True)  # before hypothesis reads its option
def pytest_configure(config: pytest.Config) -> None:
    _use_memory()
    hypothesis.settings.load_profile(_profile(config))
    # A tenth of the processor time was for collections at each 700 new
    # objects.  One process of `all` has them, for errors that come at such
    # moments.
    gc.set_threshold(10_000)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell has started us in the background.  Tests of Ctrl-C, and the
        # programs that they start, would never hear of it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # A process of pytest-xdist has the seed of the run, not one of its own.
    given = getattr(config, "workerinput", {}).get("sqla_shard_seed")
    given = given or os.environ.get("SQLA_SHARD_SEED")
    seed = int(given or _drawn_seed())
    config.stash[_SEED] = seed
    if config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(seed)

    config.pluginmanager.register(_Said(config), "sqla_shard_said")


def _drawn_seed() -> int:
    """Return a new seed, or in CI that of all builds.

    A build fails by what was changed, not by the luck of the draw.  Runs of
    developers, and ``make soak``, look for new examples.
    """
    if os.environ.get("CI") == "true":
        return _SEED_OF_BUILDS
    return secrets.randbelow(10**9)


class _Said:
    """Writes what tests ``say``, wherever they run, as soon as they end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        lines = [said for key, said in report.user_properties if key == _SAID]
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.when != "call" or not lines or terminal is None:
            return
        terminal.write_line("\n" + "\n".join(map(str, lines)))


@pytest.hookimpl(optionalhook=True)  # pytest-xdist's
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "loadfile":
        return None
    from tests.scheduling import TimedLast

    return TimedLast(config, log)


@pytest.hookimpl(optionalhook=True)  # pytest-xdist's
def pytest_configure_node(node: Any) -> None:
    node.workerinput["sqla_shard_seed"] = str(node.config.stash[_SEED])


def pytest_collection_finish(session: pytest.Session) -> None:
    process = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    if session.config.getoption("--tier") == "all" and process == "gw0":
        gc.set_threshold(*_THRESHOLDS)
    # Or each collection looks at all of the modules and tests again, which
    # takes longer than most of the tests that ask for one.
    _settle()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Iterator[None]:
    yield
    if nextitem is None or nextitem.path != item.path:
        # Nor at the mapped classes of all files that are done.
        _settle()
        _check_clients(item.path)


def _check_clients(path: Path) -> None:
    # One that is left open draws random numbers when it connects again, for
    # which hypothesis fails some later test.
    left = [one for one in threading.enumerate() if "zk_loop" in one.name]
    for thread in left:
        thread.join(30)
    if any(thread.is_alive() for thread in left):
        pytest.fail(f"{path.name} has left clients of ZooKeeper open")


def _settle() -> None:
    gc.collect()
    gc.freeze()


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    for item in items:
        stash = item.config.stash
        stash[_DESELECTED] = stash.get(_DESELECTED, 0) + 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        count = session.config.stash.get(_DESELECTED, 0)
        session.config.workeroutput["sqla_shard_deselected"] = count


@pytest.hookimpl(optionalhook=True)  # pytest-xdist's
def pytest_testnodedown(node: Any) -> None:
    # All have deselected the same tests, which pytest-xdist does not report.
    terminal = node.config.pluginmanager.get_plugin("terminalreporter")
    output = getattr(node, "workeroutput", {})  # none after a crash
    if terminal is not None and "sqla_shard_deselected" in output:
        count = output["sqla_shard_deselected"]
        # Of objects, since hypothesis looks for its statistics in them.
        terminal.stats["deselected"] = [SimpleNamespace()] * count


def pytest_report_header(config: pytest.Config) -> str:
    seed = config.stash[_SEED]
    return (
        f"seed: {seed} (also of hypothesis, profile {_profile(config)!r}); "
        f"repeat with SQLA_SHARD_SEED={seed}"
    )


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    # The header is far away by now, and not there at all with -q.
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(f"seed: {config.stash[_SEED]}")
    counts = Counter(
        dict(report.user_properties).get(_SERVER)
        for report in terminalreporter.stats.get("passed", ())
    )
    shown = [f"{name} {counts[name]:,}" for name in SERVERS if counts[name]]
    if shown:
        terminalreporter.write_line(f"passed on servers: {', '.join(shown)}")


# Not beside the browser's tests: where processes of pytest-xdist run them,
# the one that writes the summary does not load their conftest.py.
@pytest.hookimpl(wrapper=True, tryfirst=True, specname="pytest_terminal_summary")
def pytest_count_tests_without_browser(
    terminalreporter: pytest.TerminalReporter,
) -> Iterator[None]:
    yield
    reasons = [
        report.longrepr[2]
        for report in terminalreporter.stats.get("skipped", ())
        if isinstance(report.longrepr, tuple)
    ]
    missing = [r.split(_NO_BROWSER)[1] for r in reasons if _NO_BROWSER in r]
    if missing:
        count = len(missing)
        terminalreporter.write_line(
            f"pinboard: {count} browser test{'' if count == 1 else 's'} "
            f"skipped for lack of a browser. {missing[0]}",
            yellow=True,
        )


@pytest.fixture(scope="session")
def mysqlclient_installed(mariadb_installed: None) -> None:
    """Skip a test if mysqlclient is not installed."""
    if importlib.util.find_spec("MySQLdb") is None:
        skip_or_fail("mysqlclient is not installed: run `make mysqlclient`")


@pytest.fixture(scope="module")
def server_kind(request: pytest.FixtureRequest) -> Kind:
    """Return a kind of server that is installed; once for each kind."""
    request.getfixturevalue(f"{request.param}_installed")
    return KINDS[request.param]


@pytest.fixture(scope="module")
def mysql_fleet(mysql_fleet: MySQLFleet) -> Iterator[MySQLFleet]:
    """Return the MySQL servers of the session, which are paused between modules.

    InnoDB wakes a hundred times a second when it has nothing to do.  All servers
    of a build took 6 % of its processor time by that.
    """
    local = [one for one in mysql_fleet.servers if isinstance(one, MySQLServer)]
    for server in local:
        server.resume()
    yield mysql_fleet
    # A session that was left open sends ROLLBACK when it is collected.
    gc.collect()
    for server in local:
        if server.pid is not None:
            # Not by pause(), which fails where a thread waits for the disk.
            os.kill(server.pid, signal.SIGSTOP)


@pytest.fixture(scope="module")
def fleet(request: pytest.FixtureRequest, server_kind: Kind) -> ServerFleet[Any]:
    """Return the fleet of the session, of one kind."""
    return request.getfixturevalue(f"{server_kind.name}_fleet")


@pytest.fixture
def proxies(fleet: ServerFleet[Any]) -> Iterator[list[Proxy]]:
    """Return a proxy for each server of the fleet, without delay."""
    with proxies_of(fleet) as proxies:
        yield proxies


@pytest.fixture(scope="session")
def mariadb11_fleet() -> Iterator[MariaDBFleet]:
    """Run servers of MariaDB 11.8, whose transactions see snapshots."""
    base = Path(os.environ.get("SQLA_SHARD_MARIADB_11", _SERVERS / "mariadb-11"))
    if not base.is_dir():
        skip_or_fail("MariaDB 11 is not unpacked: run `make mariadb-11`")
    with MariaDBFleet(4, 256, fast=True, base=base) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def backend(request: pytest.FixtureRequest) -> On:
    """Return the backend that a suite is collected for."""
    return request.node.on


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Randomness that depends on the seed of the run and the test alone.

    Not on the order of the tests: one that failed fails again by itself.
    """
    seed = request.config.stash[_SEED]
    return random.Random(f"{seed} {request.node.nodeid}")


@pytest.fixture
def say(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Return a function that prints a line during the run.

    Written past the capturing, it would be lost where processes of
    pytest-xdist run the test.
    """
    return lambda line: request.node.user_properties.append((_SAID, line))


@pytest.fixture
def no_listeners(request: pytest.FixtureRequest) -> None:
    """Remove the listener of the run's own linter from all clusters.

    It stays after the first test that is linted, in any module that this
    process has run before.
    """
    hooks: Any = request.config.pluginmanager.get_plugin("sqla_shard_lint")
    if hooks._listening:
        event.remove(Cluster, "after_statement", hooks._see)
        hooks._listening = False


@pytest.fixture(autouse=True)
def _seeded(request: pytest.FixtureRequest) -> Iterator[None]:
    seed = request.config.stash[_SEED]
    state = random.getstate()
    random.seed(f"{seed} {request.node.nodeid}")
    yield
    random.setstate(state)
