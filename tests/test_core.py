"""The core works in a package that has no other room, but for the tests' own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_layers import CORE, PACKAGE, ROOT

#: Some of the suites whose models are those of the core.
SUITES = ("lookup_reading", "mapping_sets", "operations", "reading", "writing")


@pytest.fixture
def core(tmp_path: Path) -> Path:
    package = tmp_path / PACKAGE
    package.mkdir()
    for path in (ROOT / PACKAGE).iterdir():
        if path.name == "testing" or path.stem in CORE:
            copy = shutil.copytree if path.is_dir() else shutil.copy
            copy(path, package / path.name)
    for name in ("tests", "examples", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def test_its_suites_pass(core: Path) -> None:
    suites = [f"tests/suites/{name}.py" for name in SUITES]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-k", "sqlite"]
    own = {name: v for name, v in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [*command, *suites],
        cwd=core,
        env={**own, "PYTHONPATH": str(core)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
