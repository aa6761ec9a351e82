"""Suites of reading, writing, lists and lookups with another id layout."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers.other_layout import LAYOUT, run_suites, TIME_LAYOUT


@pytest.mark.timeout(1600)
@pytest.mark.parametrize("layout", [LAYOUT, TIME_LAYOUT])
def test_suites(layout: str, tmp_path: Path) -> None:
    run_suites("sqlite", tmp_path, layout, least=150)
