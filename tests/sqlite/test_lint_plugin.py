"""The linter in pytest runs: off, on, allowed, and its output."""

from __future__ import annotations

import pytest

# Here, since pytester forgets what is first imported by the runs inside.
import sqla_shard.testing.lint  # noqa: F401  # see above

pytest_plugins = ["pytester"]

CONFTEST = """
    import pytest
    from sqlalchemy.orm import DeclarativeBase
    from sqlalchemy.orm import Mapped

    from sqla_shard import blob_field
    from sqla_shard import Cluster
    from sqla_shard import ObjectMixin
    from sqla_shard.testing import sqlite_topology


    class Base(DeclarativeBase):
        pass


    class User(ObjectMixin, Base, type_id=1):
        __tablename__ = "users"
        name: Mapped[str] = blob_field()


    @pytest.fixture(scope="session")
    def cluster(tmp_path_factory):
        topology = sqlite_topology(tmp_path_factory.mktemp("c"), 2, 4)
        with Cluster.from_topology(topology) as cluster:
            cluster.create_all(Base.metadata)
            yield cluster


    @pytest.fixture
    def users(cluster):
        found = []
        with cluster.begin(cross_shard="unordered") as session:
            for shard in (0, 1, 2, 3):
                user = User(name="u", shard_id=shard)
                session.add(user)
                session.flush()
                found.append(user.id)
        return found
"""

HEAD = """\
import pytest
from sqlalchemy import select
from conftest import User
from sqla_shard import scatter


def scan(cluster):
    with cluster.session() as session:
        return session.scalars(select(User.id).options(scatter())).all()


"""

SCATTER = """
def test_scan(cluster):
    scan(cluster)
"""

N_PLUS_ONE = """
def test_loop(cluster, users):
    with cluster.session() as session:
        for user_id in users * 2:
            session.get(User, user_id)
            session.expunge_all()
"""

WRITES = """
def test_write(cluster):
    with cluster.begin(cross_shard="unordered") as session:
        for shard in (1, 2):
            session.add(User(name="u", shard_id=shard))
            session.flush()
"""

ALL = SCATTER + N_PLUS_ONE + WRITES


@pytest.fixture(autouse=True)
def _project(pytester, monkeypatch):
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makeconftest(CONFTEST)


def run(pytester, tests, *args, ini=""):
    pytester.makeini(f"[pytest]\nfilterwarnings = error\n{ini}\n")
    path = pytester.path / "test_users.py"
    path.write_text(HEAD + tests, "utf-8")
    return pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", "--strict-markers", *args
    )


def test_off_by_default(no_listeners, pytester):
    check = "\ndef test_no_listeners(cluster):\n    assert cluster.watch is None"
    run(pytester, ALL + check).assert_outcomes(passed=4)


@pytest.mark.parametrize(
    ("args", "ini"), [(["--sqla-shard-lint"], ""), ([], "sqla_shard_lint = true")]
)
def test_on_for_all(pytester, args, ini):
    result = run(pytester, ALL, *args, ini=ini)
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(
        [
            "*_ test_scan _*",
            "sqla_shard: scatter",
            "test_users.py:9: scatter, in scan",
            "    return session.scalars(*.options(scatter())).all()",
            "  scatter() has sent it to all 4 shards of 'objects':",
            "    SELECT users.local_id*",
            '*@pytest.mark.sqla_shard_allow("scatter")',
            "*_ test_loop _*",
            "sqla_shard: n_plus_one",
            "test_users.py:19: n_plus_one, in test_loop",
            "    session.get(User, user_id)",
            "  it was sent 8 times in one session*",
            "*_ test_write _*",
            "sqla_shard: cross_shard_write",
            "test_users.py:26: cross_shard_write, in test_write",
            "    session.flush()",
            "  it writes shard 2 of 'objects' * has written shard 1 *",
            "FAILED test_users.py::test_scan - Failed: sqla_shard: scatter",
        ]
    )
    # Not where pytest or the linter itself have failed it.
    result.stdout.no_fnmatch_line("*lint_plugin.py*")


def test_clean_tests_pass(pytester):
    tests = """
def test_many(cluster, users):
    with cluster.session() as session:
        assert len(session.get_many(User, users)) == 4
"""
    run(pytester, tests, "--sqla-shard-lint").assert_outcomes(passed=1)


def test_on_for_single_tests(pytester):
    marked = (
        "@pytest.mark.sqla_shard_lint\ndef test_one(cluster):\n"
        "    scan(cluster)\n\n"
        "@pytest.mark.sqla_shard_lint\nclass TestAll:\n"
        "    def test_two(self, cluster):\n        scan(cluster)\n\n"
        "def test_three(cluster, shard_lint):\n    scan(cluster)\n"
    )
    result = run(pytester, marked + SCATTER)
    result.assert_outcomes(failed=3, passed=1)


def test_allowed_by_marks(pytester):
    tests = """
@pytest.mark.sqla_shard_allow("scatter", "n_plus_one")
class TestAll:
    def test_scan(self, cluster):
        scan(cluster)

    @pytest.mark.sqla_shard_allow("cross_shard_write")
    def test_more(self, cluster):
        with cluster.begin(cross_shard="unordered") as session:
            for shard in (1, 2):
                session.add(User(name="u", shard_id=shard))
                session.flush()
        scan(cluster)

    def test_not_that(self, cluster):
        with cluster.begin(cross_shard="unordered") as session:
            for shard in (1, 2):
                session.add(User(name="u", shard_id=shard))
                session.flush()
"""
    result = run(pytester, tests, "--sqla-shard-lint")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["FAILED *test_not_that - * cross_shar*"])
    module = '\npytestmark = pytest.mark.sqla_shard_allow("scatter")\n'
    result = run(pytester, module + ALL, "--sqla-shard-lint")
    result.assert_outcomes(passed=1, failed=2)


def test_allowed_for_a_part(pytester):
    tests = """
def test_part(cluster, shard_lint):
    with shard_lint.allow("scatter"):
        scan(cluster)
    assert shard_lint.findings == []

def test_rest(cluster, shard_lint):
    with shard_lint.allow("scatter"):
        scan(cluster)
    scan(cluster)
"""
    run(pytester, tests).assert_outcomes(passed=1, failed=1)


def test_fixtures_are_linted_on_request(pytester):
    tests = "def test_users(users):\n    pass\n"
    run(pytester, tests, "--sqla-shard-lint").assert_outcomes(passed=1)
    ini = "sqla_shard_lint = true\nsqla_shard_lint_setup = true"
    result = run(pytester, tests, ini=ini)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["conftest.py:*: cross_shard_write, in users", "*session.flush()"]
    )
    tests = f"@pytest.mark.sqla_shard_lint(setup=True)\n{tests}"
    run(pytester, tests).assert_outcomes(failed=1)


def test_limits(pytester):
    tests = """
@pytest.mark.sqla_shard_lint(max_repeats=8)
def test_mark(cluster, users):
    with cluster.session() as session:
        for user_id in users * 2:
            session.get(User, user_id)
            session.expunge_all()

@pytest.mark.sqla_shard_lint
def test_many(cluster, users):
    with cluster.session() as session:
        session.get_many(User, users)
"""
    run(pytester, N_PLUS_ONE + tests).assert_outcomes(passed=3)
    ini = (
        "sqla_shard_lint = true\nsqla_shard_lint_max_repeats = 7\n"
        "sqla_shard_lint_max_shards = 3\n"
    )
    result = run(pytester, N_PLUS_ONE + tests, ini=ini)
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(
        ["test_users.py:*: fan_out, *", "* on 4 shards, and at most 3 are allowed:"]
    )


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ('sqla_shard_allow("scater")', "*'scatter'*was given 'scater'"),
        ("sqla_shard_allow", "*was given nothing"),
        ("sqla_shard_allow(scatter=True)", "*was given scatter=True"),
        ("sqla_shard_lint(repeats=3)", "*max_repeats=*was given repeats=3"),
        ("sqla_shard_lint(max_shards=0)", "*max_shards=0 *from 1"),
    ],
)
def test_marks_that_mean_nothing_are_errors(pytester, mark, said):
    result = run(pytester, f"@pytest.mark.{mark}{SCATTER}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: test_users.py::test_scan: {said}"])


def test_options_that_mean_nothing_are_errors(pytester):
    result = run(pytester, SCATTER, ini="sqla_shard_lint_max_shards = none")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: sqla_shard_lint_max_shards = 'none'*"])


def test_a_test_that_fails_shows_both(pytester):
    tests = """
def test_wrong(cluster):
    scan(cluster)
    assert 1 == 2

def test_skipped(cluster):
    scan(cluster)
    pytest.skip("of another kind")

@pytest.mark.xfail(reason="known")
def test_known(cluster):
    scan(cluster)
"""
    result = run(pytester, tests, "--sqla-shard-lint")
    result.assert_outcomes(failed=1, skipped=1, xfailed=1)
    result.stdout.fnmatch_lines(
        [
            "E       assert 1 == 2",
            "*- sqla_shard lint -*",
            "sqla_shard: scatter",
            "test_users.py:9: scatter, in scan",
        ]
    )


def test_other_threads_and_unittest(pytester):
    tests = """
import threading
import unittest
from conftest import Base
from sqla_shard import Cluster
from sqla_shard.testing import sqlite_topology
import tempfile

def test_thread(cluster):
    thread = threading.Thread(target=scan, args=[cluster])
    thread.start()
    thread.join()

class TestCase(unittest.TestCase):
    def test_scan(self):
        with tempfile.TemporaryDirectory() as directory:
            topology = sqlite_topology(directory, 1, 2)
            with Cluster.from_topology(topology) as cluster:
                cluster.create_all(Base.metadata)
                scan(cluster)
"""
    result = run(pytester, tests, "--sqla-shard-lint")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        ["*all 4 shards of 'objects'*", "*all 2 shards of 'objects'*"]
    )


def test_a_late_fixture_says_so(pytester):
    tests = """
def test_late(request):
    request.getfixturevalue("shard_lint")
"""
    result = run(pytester, tests)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*shard_lint must be an argument*"])


def test_a_session_that_a_fixture_has_opened_is_heard(pytester):
    tests = """
@pytest.fixture
def session(cluster):
    with cluster.begin(cross_shard="unordered") as session:
        session.add(User(name="u", shard_id=1))
        session.flush()
        yield session

def test_write(session):
    session.add(User(name="u", shard_id=1))
    session.add(User(name="u", shard_id=2))
    session.flush()
"""
    result = run(pytester, tests, "--sqla-shard-lint")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["test_users.py:*: cross_shard_write, *"])
