"""Random bookmarks and values, with limits on memory and time, on SQLite."""

from __future__ import annotations

import os

import pytest

from sqla_shard.testing import sqlite_topology
from tests.workers.hostile_fuzz import check_fuzzed, KINDS

COUNT = 60_000 if os.environ.get("SQLA_SHARD_SOAK") == "1" else 600


@pytest.mark.parametrize("kind", KINDS)
def test_fuzzed(kind, tmp_path, request, record_property):
    topology = sqlite_topology(tmp_path, 2, 8)
    check_fuzzed(kind, topology, COUNT, request, record_property)
