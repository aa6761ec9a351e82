"""What goes into the wheel, and what its metadata promises."""

from __future__ import annotations

import configparser
import email
import email.message
import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    if importlib.util.find_spec("hatchling"):
        command.append("--no-build-isolation")
    done = subprocess.run(
        [*command, "--wheel-dir", str(directory), str(ROOT)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (path,) = directory.glob("sqla_shard-*-py3-none-any.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def read(wheel, name):
    (path,) = [n for n in wheel.namelist() if n.endswith(f".dist-info/{name}")]
    return wheel.read(path).decode()


@pytest.fixture(scope="module")
def metadata(wheel) -> email.message.Message:
    return email.message_from_string(read(wheel, "METADATA"))


def test_has_every_module_and_nothing_else(wheel):
    package = ROOT / "sqla_shard"
    expected = {
        str(path.relative_to(ROOT))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    found = {n for n in wheel.namelist() if ".dist-info/" not in n}
    assert found == expected
    assert "sqla_shard/py.typed" in found
    assert "sqla_shard/testing/plugin.py" in found


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
    assert names == {"greenlet", "sqlalchemy", "tomli"}


def test_metadata(metadata):
    assert metadata["Name"] == "sqla-shard"
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["License-Expression"] == "MIT"
    assert "Typing :: Typed" in metadata.get_all("Classifier")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert metadata.get_payload().strip() == readme.strip()


def test_license_is_in_it(wheel):
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert read(wheel, "licenses/LICENSE") == text
