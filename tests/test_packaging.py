"""The published files, their metadata, and the tools that build them."""

from __future__ import annotations

import configparser
import email
import email.message
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]


def find_tracked() -> list[str]:
    done = subprocess.run(
        ["git", "ls-files", "-z"],  # noqa: S607  # the one of the path
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"no checkout: {done.stderr}")
    paths = done.stdout.rstrip("\0").split("\0")
    return [path for path in paths if (ROOT / path).exists()]


@pytest.fixture(scope="module")
def tracked() -> list[str]:
    return find_tracked()


#: Untracked files of a working directory.
PLANTED = [
    ".env",
    "notes.txt",
    "topology.toml",
    "sqla_shard/.env",
    "sqla_shard/topology.json",
    "sqla_shard/schema/revisions/templates/sharded/.env",
    "docs/explanation/private.svg",
    "docs/id_rsa",
    "examples/topology.production.toml",
    "examples/pinboard/.env",
    "examples/pinboard/shards.sqlite",
    "tests/dump.sql",
]


@pytest.fixture(scope="module")
def built(tmp_path_factory, tracked):
    """A wheel and a source distribution, from where other files lie, too."""
    source = tmp_path_factory.mktemp("source")
    for path in [*tracked, *PLANTED]:
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        if path in PLANTED:
            (source / path).write_text("a secret")
        else:
            shutil.copy(ROOT / path, source / path)
    pytest.importorskip("hatchling")
    directory = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(directory)],
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture(scope="module")
def wheel(built):
    (path,) = built.glob("sqla_shard-*-py3-none-any.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def read(wheel, name):
    (path,) = [n for n in wheel.namelist() if n.endswith(f".dist-info/{name}")]
    return wheel.read(path).decode()


@pytest.fixture(scope="module")
def metadata(wheel) -> email.message.Message:
    return email.message_from_string(read(wheel, "METADATA"))


def test_has_every_module_and_nothing_else(wheel, tracked):
    found = {n for n in wheel.namelist() if ".dist-info/" not in n}
    assert found == {p for p in tracked if p.startswith("sqla_shard/")}
    assert "sqla_shard/py.typed" in found
    assert "sqla_shard/testing/plugin.py" in found


def test_the_source_distribution_has_what_is_tracked_alone(built, tracked):
    (path,) = built.glob("sqla_shard-*.tar.gz")
    with tarfile.open(path) as archive:
        found = {
            member.name.partition("/")[2]
            for member in archive.getmembers()
            if member.isfile()
        }
    # Except for metadata of PyPI, and files of the repository only.
    assert found - {"PKG-INFO"} == set(tracked) - {".ci/run"}


def test_pytest_finds_the_plugin(wheel):
    entries = configparser.ConfigParser()
    entries.read_string(read(wheel, "entry_points.txt"))
    assert entries["pytest11"] == {"sqla_shard": "sqla_shard.testing.plugin"}


def test_extras(metadata):
    extras = set(metadata.get_all("Provides-Extra"))
    assert {"aiosqlite", "asyncmy", "flask", "mysql", "testing"} <= extras
    assert {"cache", "zookeeper"} <= extras
    always = [
        requirement
        for requirement in metadata.get_all("Requires-Dist")
        if "extra ==" not in requirement
    ]
    names = {r.split(">")[0].split("<")[0].split(";")[0] for r in always}
    assert names == {"greenlet", "sqlalchemy"}


def test_metadata(metadata):
    assert metadata["Name"] == "sqla-shard"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "MIT"
    assert "Typing :: Typed" in metadata.get_all("Classifier")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert metadata.get_payload().strip() == readme.strip()


def test_license_is_in_it(wheel):
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert read(wheel, "licenses/LICENSE") == text
    # Where `reuse lint` looks for it.
    assert (ROOT / "LICENSES" / "MIT.txt").read_text(encoding="utf-8") == text


# -- requirements/ ---------------------------------------------------------

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
# mysqlclient is compiled, and has a file of its own.
EXTRAS = [
    name
    for name in PROJECT["project"]["optional-dependencies"]
    if name != "mysqlclient"
]
LOCKS = {
    "test": (EXTRAS, ["dev"]),
    "demo": (["mysql", "cli", "cache"], ["build", "examples"]),
    "lowest": (EXTRAS, ["build", "test", "examples"]),
}


def requirements_of(extras: list[str], groups: list[str]) -> list[Requirement]:
    """Return the requirements of pyproject.toml for this Python."""
    extra = PROJECT["project"]["optional-dependencies"]
    texts = list(PROJECT["project"]["dependencies"])
    for name in extras:
        texts += extra[name]
    pending = list(groups)
    while pending:
        for entry in PROJECT["dependency-groups"][pending.pop()]:
            if isinstance(entry, str):
                texts.append(entry)
            else:
                pending.append(entry["include-group"])
    found = [Requirement(text) for text in texts]
    return [r for r in found if r.marker is None or r.marker.evaluate()]


def pins_of(name: str) -> dict[str, str]:
    """The versions in one of the files, of this Python."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text("utf-8")
    entries = text.replace("\\\n", " ").splitlines()
    pins = {}
    for entry in entries:
        requirement = Requirement(entry.partition("--hash")[0].strip())
        assert "--hash=sha256:" in entry, entry
        if requirement.marker is None or requirement.marker.evaluate():
            (pin,) = requirement.specifier
            assert pin.operator == "=="
            pins[canonicalize_name(requirement.name)] = pin.version
    return pins


@pytest.mark.parametrize("name", LOCKS)
def test_locks_have_what_the_project_asks_for(name):
    pins = pins_of(name)
    for requirement in requirements_of(*LOCKS[name]):
        pin = pins.get(canonicalize_name(requirement.name))
        assert pin, f"{requirement}: not there; run: make lock"
        assert requirement.specifier.contains(pin, prereleases=True), (
            f"{requirement}: {pin} is there; run: make lock"
        )


def test_mysqlclient_has_a_lock_of_its_own():
    (wanted,) = PROJECT["project"]["optional-dependencies"]["mysqlclient"]
    ((name, pin),) = pins_of("mysqlclient").items()
    assert name == Requirement(wanted).name
    assert Requirement(wanted).specifier.contains(pin)


def test_locks_name_no_index():
    for path in (ROOT / "requirements").iterdir():
        assert "://" not in path.read_text("utf-8")
        assert not re.search(r"^\s*--(?!hash)", path.read_text("utf-8"), re.M)


def test_the_demo_has_the_versions_of_the_tests():
    tested = pins_of("test")
    assert {k: tested.get(k) for k in pins_of("demo")} == pins_of("demo")


def test_the_lowest_versions_are_the_lower_bounds():
    pins = pins_of("lowest")
    bounds: dict[str, Version] = {}
    for requirement in requirements_of(*LOCKS["lowest"]):
        name = canonicalize_name(requirement.name)
        for bound in requirement.specifier:
            if bound.operator == ">=":
                version = Version(bound.version)
                bounds[name] = max(version, bounds.get(name, version))
    # A bound without a release would never be tested.
    assert {k: Version(pins[k]) for k in bounds} == bounds
