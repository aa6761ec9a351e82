"""Runs suites in a process whose classes have another id layout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.models.layouts import VARIABLE
from tests.suite_table import WITH_ANOTHER_LAYOUT

__all__ = ["LAYOUT", "run_suites"]

#: Fewer shards, fewer types and more rows than the default.
LAYOUT = "13,8,42"

_ROOT = Path(__file__).parents[2]


def run_suites(backend: str, tmp_path: Path, least: int) -> None:
    """Run the suites of the table on a backend, with another layout.

    :param least: the number of tests that pass at least.
    """
    environment = {**os.environ, VARIABLE: LAYOUT}
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
        environment.pop(name, None)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-n", "0"),
            *("-p", "no:cacheprovider", f"--basetemp={tmp_path / 'suites'}"),
            *(
                f"tests/suites/{suite}.py::{backend}"
                for suite in WITH_ANOTHER_LAYOUT
            ),
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
    assert int(passed[1]) >= least
    assert "skipped" not in done.stdout
