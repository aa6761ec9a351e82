"""Finishing what transactions have left, on SQLite."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sqla_shard import Cluster
from tests.shared import repairing
from tests.shared.operation_models import operations_on_sqlite

cluster = operations_on_sqlite()


@pytest.fixture
def topology(cluster: Cluster, tmp_path: Path) -> Path:
    path = tmp_path / "topology.json"
    document: Any = cluster.topology.to_mapping()
    path.write_text(json.dumps(document), "utf-8")
    return path


class TestRepairing(repairing.Repairing):
    pass
