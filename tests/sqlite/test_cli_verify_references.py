"""sqla-shard verify references."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sqla_shard import Cluster
from sqla_shard.testing import sqlite_topology
from tests.models.reference_models import Base, COUNTRIES, Country, SHARDS, spoil
from tests.servers.command_line import invoke, write


@pytest.fixture
def topology(tmp_path: Path) -> Any:
    path = write(tmp_path, sqlite_topology(tmp_path, 2, SHARDS))
    with Cluster.from_file(path) as cluster:
        cluster.create_all(Base.metadata)
        Country.replace(cluster, COUNTRIES)
    return path


def verify(topology: Any, *options: str) -> Any:
    models = "tests.models.reference_models"
    return invoke(
        *("-t", topology, "verify", "references", "--models", models), *options
    )


def test_dry_first_and_then_for_real(topology: Any) -> None:
    assert verify(topology).exit_code == 0
    with Cluster.from_file(topology) as cluster:
        spoil(cluster, 5, "DELETE FROM country WHERE code = 'de'")
    done = verify(topology, "--class", "Country")
    assert done.exit_code == 1
    assert "Country: 3 row(s)" in done.stdout
    assert "shard 5 on server2: missing de" in done.stdout
    assert "Rate" not in done.stdout
    assert json.loads(verify(topology, "--json").stdout)["ok"] is False
    done = verify(topology, "--repair")
    assert (done.exit_code, "(repaired)" in done.stdout) == (0, True)
    assert verify(topology).exit_code == 0


def test_modules_without_any(topology: Any) -> None:
    done = invoke("-t", topology, "verify", "references", "--models", "json")
    assert done.exit_code == 2
    assert "no subclass of ReferenceMixin" in done.stderr
