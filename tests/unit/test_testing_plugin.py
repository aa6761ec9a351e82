"""The pytest plugin where there are no servers: skip, or fail if promised."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]

TESTS = """
    import pytest

    def test_fleet(mariadb_fleet):
        raise AssertionError("ran")

    def test_fleet_again(mariadb_fleet):
        raise AssertionError("ran")

    def test_own(mariadb_installed):
        raise AssertionError("ran")

    def test_zookeeper(zookeeper_server, zookeeper_proxy):
        raise AssertionError("ran")

    def test_own_zookeeper(zookeeper_installed):
        raise AssertionError("ran")

    def test_own_memcached(memcached_installed):
        raise AssertionError("ran")

    def test_own_redis(redis_installed):
        raise AssertionError("ran")

    def test_no_servers_needed():
        pass

    @pytest.mark.skip(reason="of another kind")
    def test_skipped():
        pass
"""


@pytest.fixture(autouse=True)
def _without_mariadb(pytester, monkeypatch):
    monkeypatch.setenv("SQLA_SHARD_MARIADB", str(pytester.path / "none"))
    monkeypatch.setenv("SQLA_SHARD_ZOOKEEPER", str(pytester.path / "none"))
    monkeypatch.setenv("SQLA_SHARD_MEMCACHED", str(pytester.path / "none"))
    monkeypatch.setenv("SQLA_SHARD_REDIS", str(pytester.path / "none"))
    for name in (
        "CI",
        "PYTEST_ADDOPTS",
        "SQLA_SHARD_REQUIRE_SERVERS",
        "SQLA_SHARD_TEST_SERVERS",
    ):
        monkeypatch.delenv(name, raising=False)


def run(pytester, tests=TESTS, *, apart=False):
    pytester.makepyfile(tests)
    run = pytester.runpytest_inprocess
    if apart:
        run = pytester.runpytest_subprocess
    return run("-rs", "-p", "no:cacheprovider")


@pytest.mark.parametrize("apart", [True, False])
def test_skips_and_says_so_at_the_end(pytester, apart):
    result = run(pytester, apart=apart)
    result.assert_outcomes(passed=1, skipped=8)
    result.stdout.fnmatch_lines(
        [
            "SKIPPED*MariaDB is not installed: apt-get install *",
            "SKIPPED*ZooKeeper is not installed: apt-get install *",
            "SKIPPED*memcached is not installed: apt-get install *",
            "SKIPPED*Redis is not installed: apt-get install *",
            "sqla_shard: 7 live tests skipped for lack of servers. *install*",
            "*1 passed, 8 skipped*",
        ]
    )


@pytest.mark.parametrize(
    ("name", "value"), [("CI", "true"), ("SQLA_SHARD_REQUIRE_SERVERS", "1")]
)
def test_fails_where_servers_are_promised(pytester, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    result = run(pytester)
    result.assert_outcomes(passed=1, skipped=1, errors=7)
    result.stdout.fnmatch_lines(
        [
            "*MariaDB is not installed*",
            "*ZooKeeper is not installed*",
            "*memcached is not installed*",
            "*Redis is not installed*",
        ]
    )
    result.stdout.no_fnmatch_line("*for lack of servers*")


@pytest.mark.parametrize("value", ["", "0", "false"])
def test_a_variable_that_says_no_promises_nothing(pytester, monkeypatch, value):
    monkeypatch.setenv("CI", value)
    monkeypatch.setenv("SQLA_SHARD_REQUIRE_SERVERS", value)
    run(pytester).assert_outcomes(passed=1, skipped=8)


def test_servers_of_others_are_enough_for_the_fleet(pytester, monkeypatch):
    # No server listens on port 1: an attempt shows that it is not skipped.
    monkeypatch.setenv("SQLA_SHARD_TEST_SERVERS", "mysql://a:b@127.0.0.1:1")
    pytest.importorskip("pymysql")
    result = run(pytester)
    result.assert_outcomes(passed=1, skipped=6, errors=2)
    result.stdout.fnmatch_lines(["*ServerProcessError*does not respond*"])


def test_one_is_singular(pytester):
    result = run(pytester, "def test_one(mariadb_installed): pass")
    result.stdout.fnmatch_lines(["sqla_shard: 1 live test skipped for *"])


def test_says_nothing_in_a_project_that_does_not_use_it(pytester):
    result = run(pytester, "def test_one(): pass")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("sqla_shard: *")


BACKENDS = """
    import pytest

    from sqla_shard.testing.plugin import skip_or_fail

    @pytest.fixture(params=["sqlite", "mariadb", "mysql"])
    def backend(request):
        return request.param

    @pytest.mark.parametrize("rows", [1, 2])
    def test_on_one_server_only(backend, rows):
        assert (backend, rows) != ("mysql", 2), f"rows\\nof {backend}"

    def test_everywhere(backend):
        pass

    def test_nowhere(backend):
        raise AssertionError(backend)

    @pytest.fixture
    def tables(backend):
        assert backend == "sqlite", "no tables"

    def test_without_tables(tables):
        pass

    @pytest.fixture
    def servers(backend):
        if backend != "sqlite":
            skip_or_fail("none is installed")

    def test_without_servers(servers):
        pass

    @pytest.mark.xfail
    def test_expected(backend):
        assert backend == "sqlite"
"""


def test_what_fails_on_servers_only_is_named(pytester, monkeypatch):
    monkeypatch.setenv("CI", "true")
    pytester.makepyfile(test_rows=BACKENDS)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    lines = result.outlines
    start = next(n for n, line in enumerate(lines) if "passed on SQLite" in line)
    assert sorted(lines[start + 1 : start + 4]) == [
        "test_rows.py::test_on_one_server_only[2][mysql]: AssertionError: rows",
        "test_rows.py::test_without_tables[mariadb]: AssertionError: no tables",
        "test_rows.py::test_without_tables[mysql]: AssertionError: no tables",
    ]
    assert lines[start + 4].startswith("=")


def test_importing_it_imports_no_driver_and_no_sqlalchemy():
    # Imports of the package itself do not count; the plugin adds none.
    program = (
        "import sys, pytest, sqla_shard\n"
        "before = set(sys.modules)\n"
        "import sqla_shard.testing.plugin\n"
        "print(sorted(m for m in set(sys.modules) - before\n"
        "             if m.startswith(('sqlalchemy', 'pymysql', 'kazoo'))))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
