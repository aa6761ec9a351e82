"""SQLAlchemy's own tests, run against our ShardedSession and our session.

Those of its ORM get a session of one global keyspace.  They come from the
source distribution of each version, which is fetched once.  Of the two minor
versions that are supported, one is installed; the other is installed in a
directory of its own, for the tests of ShardedSession alone.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import pytest
import sqlalchemy

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".upstream"
MODULE = "test/ext/test_horizontal_shard.py"
MINORS = {"2.0": "SQLAlchemy>=2.0.45,<2.1", "2.1": "SQLAlchemy>=2.1,<2.2"}
#: How many tests the module had, and calls they made of drivers in lanes,
#: when this was written.
TESTS = 190
CALLS = 400

#: Modules of the ORM's tests that concern the session most.
ORM = [
    f"test/orm/test_{name}.py"
    for name in (
        *("cascade", "expire", "merge", "naturalpks", "scoping", "session", "text"),
        *("transaction", "unitofwork", "unitofworkv2", "versioning"),
    )
]
ORM += [
    f"test/orm/dml/test_{name}.py" for name in ("bulk_statements", "orm_upd_del_basic")
]
#: How many of them passed with a session of ours, when this was written.
OURS = 1600
#: What fails, by reason: the ends of the names of tests, or of their classes.
#: They also show that the sessions are ours, since plain ones pass.
FAILING = {
    "the session's connection is the view of a shard": ["TransactionConnectionsTest"],
    "the legacy bulk methods are refused": [
        "NullEvaluatingTest",
        "EagerDefaultsTest.test_insert_defaults_bulk_insert",
        "EagerDefaultsTest.test_update_defaults_bulk_update",
        "SessionStateTest.test_bulk_save_mappings_resets_flushing_on_pending_rollback",
        "VersioningTest.test_bulk_insert",
        "VersioningTest.test_bulk_update",
    ],
    "scoped_session has no proxies of our methods": [
        "ScopedSessionTest.test_attributes"
    ],
    "SQL as text inside of a statement is refused": [
        "TextTest.test_via_textasfrom_aliased"
    ],
    "the test sends a statement to engines of no keyspace": [
        "UpdateDeleteTest.test_sharding_extension_returning_mismatch"
    ],
}


def pip(*arguments: str) -> None:
    """Run pip, or skip the test, or fail it where CI=true."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", *arguments, "--no-deps", "--quiet"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    if done.returncode == 0:
        return
    reason = f"upstream's tests were not run: pip failed\n{done.stderr}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def installed(minor: str) -> tuple[str, Path | None]:
    """Return a version, and where it is if it is not the installed one."""
    if sqlalchemy.__version__.startswith(f"{minor}."):
        return sqlalchemy.__version__, None
    tag = f"{minor}-{sys.implementation.cache_tag}"
    place = CACHE / f"sqlalchemy-{tag}"
    if not place.exists():
        CACHE.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as directory:
            target = Path(directory) / "target"
            pip("install", "--target", str(target), MINORS[minor])
            # Whole or not at all.
            target.rename(place)
    text = (place / "sqlalchemy" / "__init__.py").read_text("utf-8")
    match = re.search(r'^__version__ = "([^"]+)"', text, re.M)
    assert match
    return match[1], place


def sources(version: str) -> Path:
    """Return the source distribution of a version."""
    found = CACHE / f"sqlalchemy-{version}.tar.gz"
    if not found.exists():
        CACHE.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as directory:
            pip(
                "download",
                "--no-binary=sqlalchemy",
                f"--dest={directory}",
                f"sqlalchemy=={version}",
            )
            (fetched,) = Path(directory).iterdir()
            with tarfile.open(fetched) as archive:
                assert f"sqlalchemy-{version}/{MODULE}" in archive.getnames()
            fetched.rename(found)
    return found


def run(
    version: str, place: Path | None, plugin: str, *modules: str, within: Path
) -> tuple[str, ElementTree.Element]:
    """Run modules of SQLAlchemy's tests with a plugin.

    :returns: what pytest printed, and its report.
    """
    with tarfile.open(sources(version)) as archive:
        # SQLAlchemy's own, as what we run.
        archive.extractall(within, filter="data")
    paths = [place, ROOT] if place else [ROOT]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    environment.pop("PYTEST_ADDOPTS", None)
    report = within / "report.xml"
    done = subprocess.run(
        [
            *(sys.executable, "-s", "-m", "pytest", *modules, "--tb=short"),
            *("-p", f"tests.workers.{plugin}"),
            *("-p", "no:cacheprovider", f"--junitxml={report}"),
        ],
        cwd=within / f"sqlalchemy-{version}",
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    printed = done.stdout + done.stderr
    assert done.returncode in (0, 1), printed
    (suite,) = ElementTree.parse(report).getroot()  # noqa: S314  # just written
    return printed, suite


@pytest.mark.parametrize("minor", MINORS)
def test_passes_whole(minor: str, tmp_path: Path) -> None:
    version, place = installed(minor)
    printed, suite = run(version, place, "upstream_plugin", MODULE, within=tmp_path)
    said = re.search(r"SQLAlchemy (\S+): (\d+) calls in lanes", printed)
    assert said, printed
    assert said[1] == version
    assert int(said[2]) >= CALLS
    counts = {
        name: int(suite.attrib[name])
        for name in ("tests", "failures", "errors", "skipped")
    }
    passed = counts.pop("tests")
    assert counts == {"failures": 0, "errors": 0, "skipped": 0}, printed
    assert passed >= TESTS


def test_orm_has_a_session_of_a_global_keyspace(tmp_path: Path) -> None:
    version = sqlalchemy.__version__
    printed, suite = run(version, None, "upstream_global", *ORM, within=tmp_path)
    said = re.search(r"SQLAlchemy \S+: (\d+) passed with our sessions", printed)
    assert said, printed
    assert int(said[1]) >= OURS
    failed = {
        # Classes have the version of SQLite in their names.
        re.sub(r"_sqlite\+[^.]*", "", "{classname}.{name}".format(**case.attrib))
        for case in suite
        if case.find("failure") is not None or case.find("error") is not None
    }
    known = {name: False for names in FAILING.values() for name in names}
    for name in sorted(failed):
        of_class, _, _ = name.rpartition(".")
        found = [one for one in known if f".{name}.".endswith(f".{one}.")]
        found += [one for one in known if f".{of_class}.".endswith(f".{one}.")]
        assert found, f"{name} failed\n{printed}"
        known.update(dict.fromkeys(found, True))
    assert all(known.values()), f"passed: {known}"
