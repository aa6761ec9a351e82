"""Suites of reading, writing, lists and lookups with another id layout."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers.other_layout import run_suites


@pytest.mark.timeout(1600)
def test_suites(tmp_path: Path) -> None:
    run_suites("sqlite", tmp_path, least=300)
