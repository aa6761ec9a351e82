"""sqla-shard key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sqla_shard import Cluster
from sqla_shard.testing import sqlite_topology
from tests.models.models import Base, Setting
from tests.servers.command_line import invoke, write


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    path = write(tmp_path, sqlite_topology(tmp_path, 2, 4, main=True))
    with Cluster.from_file(path, watch=False) as cluster:
        cluster.create_all(Base.metadata)
        cluster.run(set_color, key="order-17")
    return path


def set_color(session: Any) -> None:
    session.merge(Setting(name="color", value="red"))


def test_it_has_committed(topology: Path) -> None:
    done = invoke("-t", topology, "key", "order-17")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(
        "order-17 has committed on shard 0 of main, on server1, at 20"
    )
    done = invoke("-t", topology, "key", "order-17", "--json")
    document = json.loads(done.stdout)
    (one,) = document["committed"]
    assert (document["key"], one["keyspace"]) == ("order-17", "main")
    assert set(one) == {*("key", "keyspace", "shard_id", "server", "committed_at")}


def test_it_has_not(topology: Path) -> None:
    done = invoke("-t", topology, "key", "order-18")
    assert (done.exit_code, done.stdout) == (1, "order-18: not on any shard\n")
    done = invoke("-t", topology, "key", "order-18", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout) == {
        "key": "order-18",
        "committed": [],
        "unreachable": [],
    }


def test_invalid_keys(topology: Path) -> None:
    done = invoke("-t", topology, "key", "x" * 256)
    assert done.exit_code == 2
    assert "256 bytes" in done.output


def test_a_shard_that_cannot_say(topology: Path) -> None:
    with Cluster.from_file(topology, watch=False) as cluster:
        path = cluster.topology.keyspace("objects").servers[0].primary
    next(Path(path.partition(":///")[2]).glob("db00000*")).unlink()
    done = invoke("-t", topology, "key", "order-17")
    assert done.exit_code == 3
    assert "shard 0 of objects" in done.stdout
