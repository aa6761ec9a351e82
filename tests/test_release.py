"""A tag is released by one command, or not at all."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from hashlib import sha256
from pathlib import Path

import pytest

from tests.release import check, ReleaseError
from tests.test_packaging import find_tracked

ROOT = Path(__file__).parents[1]
VERSION = "9.8.7"

pytestmark = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ["hatchling", "towncrier"])),
    reason="the packages of the groups 'build' and 'docs' are not installed",
)


def git(directory: Path, *arguments: str) -> None:
    options = ("-c", "user.name=A", "-c", "user.email=a@example.com")
    subprocess.run(
        ["git", *options, *arguments],  # noqa: S607  # the one of the path
        cwd=directory,
        capture_output=True,
        check=True,
    )


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a repository of these files with tags of three releases."""
    directory = tmp_path_factory.mktemp("repository")
    for path in find_tracked():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, directory / path)

    def commit(tag: str) -> None:
        git(directory, "add", "--all")
        git(directory, "commit", "--quiet", "--message", tag)
        git(directory, "tag", tag)

    git(directory, "init", "--quiet")
    commit("v0.0.1")
    project = directory / "pyproject.toml"
    text = project.read_text("utf-8")
    start = text.index('version = "')
    end = text.index("\n", start)
    project.write_text(f'{text[:start]}version = "{VERSION}"{text[end:]}')
    (directory / "changelog.d" / "+one.bugfix.rst").write_text("It works.\n")
    commit("with-fragments")
    git(directory, "tag", f"v{VERSION}")
    subprocess.run(
        [
            *(sys.executable, "-m", "towncrier", "build", "--yes"),
            *("--version", VERSION),
        ],
        cwd=directory,
        capture_output=True,
        check=True,
    )
    (directory / ".env").write_text("A_SECRET=1\n")
    return directory


def release(
    repository: Path, tag: str, output: Path
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.release", tag, "--output", str(output)],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )


def test_a_tag_of_another_version_is_refused(repository: Path, tmp_path: Path) -> None:
    done = release(repository, "v0.0.1", tmp_path / "dist")
    assert done.returncode == 1
    assert "v0.0.1 names version " in done.stderr
    assert not (tmp_path / "dist").exists()


def test_changes_that_no_release_names_are_refused(
    repository: Path, tmp_path: Path
) -> None:
    done = release(repository, f"v{VERSION}", tmp_path / "dist")
    assert done.returncode == 1
    assert f"run: towncrier build --version {VERSION}" in done.stderr


def test_a_part_of_the_changelog_without_a_date_is_refused(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    project = f'[project]\nversion = "{VERSION}"\n'
    (tmp_path / "pyproject.toml").write_text(project)
    part = tmp_path / "docs" / "changelog.rst"
    part.write_text(f"{VERSION} (not released yet)\n")
    with pytest.raises(ReleaseError, match=f"no part on {VERSION} with a date"):
        check(tmp_path, f"v{VERSION}")
    part.write_text(f"{VERSION} (2030-12-31)\n")
    check(tmp_path, f"v{VERSION}")


def test_an_unknown_tag_is_refused(repository: Path, tmp_path: Path) -> None:
    done = release(repository, "v1.2.3", tmp_path / "dist")
    assert done.returncode == 1
    assert "v1.2.3 not found" in done.stderr


def test_no_tag_is_refused(repository: Path, tmp_path: Path) -> None:
    done = release(repository, "", tmp_path / "dist")
    assert done.returncode == 2
    assert "make release TAG=v1.0" in done.stderr


def test_a_tag_is_built_and_installed(repository: Path, tmp_path: Path) -> None:
    (repository / ".env").unlink()
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", "release")
    git(repository, "tag", "--force", f"v{VERSION}")
    (repository / ".env").write_text("A_SECRET=1\n")
    (repository / "sqla_shard" / "left.py").write_text("raise SystemExit\n")
    done = release(repository, f"v{VERSION}", tmp_path / "dist")
    if "Failed to establish a new connection" in done.stderr:
        reason = f"no release was built: pip failed\n{done.stderr}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    assert done.returncode == 0, done.stderr
    names = sorted(path.name for path in (tmp_path / "dist").iterdir())
    source = f"sqla_shard-{VERSION}.tar.gz"
    wheel = f"sqla_shard-{VERSION}-py3-none-any.whl"
    assert names == [wheel, f"sqla_shard-{VERSION}.cdx.json", source]
    materials = json.loads((tmp_path / "dist" / names[1]).read_text("utf-8"))
    own = materials["metadata"]["component"]
    assert (own["purl"], own["licenses"]) == (
        f"pkg:pypi/sqla-shard@{VERSION}",
        [{"expression": "MIT"}],
    )
    digests = {one["name"]: one["hashes"][0]["content"] for one in own["components"]}
    assert digests == {
        name: sha256((tmp_path / "dist" / name).read_bytes()).hexdigest()
        for name in (wheel, source)
    }
    locked = (repository / "requirements" / "demo.txt").read_text("utf-8")
    parts = {one["purl"].rpartition("/")[2] for one in materials["components"]}
    assert parts == {
        one.replace("==", "@") for one in re.findall(r"(?m)^[\w.-]+==[\w.]+", locked)
    }
    with tarfile.open(tmp_path / "dist" / source) as archive:
        files = archive.getnames()
        changelog = archive.extractfile(f"sqla_shard-{VERSION}/docs/changelog.rst")
        assert changelog
        assert f"{VERSION} (" in changelog.read().decode()
    assert f"sqla_shard-{VERSION}/.env" not in files
    assert f"sqla_shard-{VERSION}/sqla_shard/left.py" not in files
