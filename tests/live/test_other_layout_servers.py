"""Suites of reading, writing, lists and lookups with another id layout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.servers.kinds import Kind
from tests.servers.other_layout import LAYOUT, run_suites, TIME_LAYOUT


@pytest.mark.timeout(1600)
@pytest.mark.parametrize(
    "layout", [LAYOUT, *([TIME_LAYOUT] if os.environ.get("SQLA_SHARD_SOAK") else [])]
)
def test_suites(server_kind: Kind, layout: str, tmp_path: Path) -> None:
    run_suites(server_kind.name, tmp_path, layout, least=150)
