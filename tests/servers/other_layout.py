"""Runs suites in a process whose classes have another id layout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.models.layouts import VARIABLE
from tests.suite_table import WITH_ANOTHER_LAYOUT, WITH_TIME_IDS

#: Fewer shards, fewer types and more rows than the default.
LAYOUT = "13,8,42"
#: Ids that begin with the time.
TIME_LAYOUT = "time,13,10"

_ROOT = Path(__file__).parents[2]


def run_suites(backend: str, tmp_path: Path, layout: str, least: int) -> None:
    """Run the suites of the table on a backend, with another layout.

    :param layout: see :mod:`tests.models.layouts`.
    :param least: the number of tests that pass at least.
    """
    environment = {**os.environ, VARIABLE: layout}
    suites = dict.fromkeys(WITH_ANOTHER_LAYOUT, "")
    if layout == TIME_LAYOUT:
        suites = WITH_TIME_IDS
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
        environment.pop(name, None)
    done = subprocess.run(
        [
            # Ids of all shapes are in each function, not in its parameters.
            *(sys.executable, "-m", "pytest", "-q", "-n", "0", "--once"),
            *("-p", "no:cacheprovider", f"--basetemp={tmp_path / 'suites'}"),
            *(f"tests/suites/{suite}.py::{backend}" for suite in suites),
            *("-k", _without(" ".join(suites.values()).split())),
        ],
        cwd=_ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed, done.stdout
    assert int(passed[1]) >= least, done.stdout[-300:]
    assert "skipped" not in done.stdout


def _without(names: list[str]) -> str:
    """Return the expression of pytest that excludes tests."""
    return " and ".join(f"not {name}" for name in names)
