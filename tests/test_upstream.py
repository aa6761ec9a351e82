"""SQLAlchemy's own tests of its ShardedSession, run against ours.

They come from the source distribution of each version, which is fetched
once.  Of the two minor versions that are supported, one is installed; the
other is installed in a directory of its own, for these tests alone.
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


@pytest.mark.parametrize("minor", MINORS)
def test_passes_whole(minor: str, tmp_path: Path) -> None:
    version, place = installed(minor)
    with tarfile.open(sources(version)) as archive:
        archive.extractall(tmp_path)  # noqa: S202  # SQLAlchemy's, as what we run
    paths = [place, ROOT] if place else [ROOT]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    environment.pop("PYTEST_ADDOPTS", None)
    report = tmp_path / "report.xml"
    done = subprocess.run(
        [
            *(sys.executable, "-s", "-m", "pytest", MODULE),
            *("-p", "tests.workers.upstream_plugin"),
            *("-p", "no:cacheprovider", f"--junitxml={report}"),
        ],
        cwd=tmp_path / f"sqlalchemy-{version}",
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = re.search(r"SQLAlchemy (\S+): (\d+) calls in lanes", done.stdout)
    assert said, done.stdout
    assert said[1] == version
    assert int(said[2]) >= CALLS
    (suite,) = ElementTree.parse(report).getroot()  # noqa: S314  # just written
    counts = {
        name: int(suite.attrib[name])
        for name in ("tests", "failures", "errors", "skipped")
    }
    passed = counts.pop("tests")
    assert counts == {"failures": 0, "errors": 0, "skipped": 0}
    assert passed >= TESTS
