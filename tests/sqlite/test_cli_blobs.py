"""sqla-shard blobs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sqla_shard import Cluster
from sqla_shard.testing import sqlite_topology
from tests.models.compressed_models import (
    Base,
    fill,
    forget,
    MODELS,
    Packed,
    set_raw,
    SHARDS,
)
from tests.servers.command_line import invoke, write


@pytest.fixture
def topology(tmp_path: Any) -> Any:
    return write(tmp_path, sqlite_topology(tmp_path, 2, SHARDS))


@pytest.fixture
def ids(topology: Any) -> Any:
    with Cluster.from_file(topology) as cluster:
        cluster.create_all(Base.metadata)
        yield fill(cluster, 40)
    forget()


def run(topology: Any, name: str, *options: str, cls: str = "Packed") -> Any:
    return invoke(
        *("-t", topology, "blobs", name, "--models", MODELS, "--class", cls), *options
    )


def document(topology: Any, name: str, *options: str) -> Any:
    done = run(topology, name, "--json", *options)
    assert done.exit_code == 0
    return json.loads(done.stdout)


def test_from_training_to_json_again(topology, ids):
    shown = run(topology, "train", "--dry-run").stdout
    assert "not stored (dry run)" in shown
    assert "expected ratio: " in shown
    trained = document(topology, "train")
    assert trained["version"] == 1
    assert trained["rows"] == trained["validation_rows"] * 5 == len(ids)
    assert trained["ratio"] > 1.5
    assert "4 shards write version 1" in run(topology, "activate").stdout
    found = document(topology, "rewrite")
    assert found["rewritten"] == len(ids)
    assert found["bytes_after"] < found["bytes_before"] / 2
    json_, version = document(topology, "status", "--rows")["versions"]
    assert (json_["rows"], version["rows"]) == (0, len(ids))
    assert version["dictionary_id"] == trained["dictionary_id"]
    assert f"active on {SHARDS}" in run(topology, "status").stdout
    assert document(topology, "deactivate")["version"] is None
    assert document(topology, "rewrite")["rewritten"] == len(ids)
    assert run(topology, "check").exit_code == 0


def test_an_unreadable_row(topology, ids):
    with Cluster.from_file(topology) as cluster:
        set_raw(cluster, Packed, ids[50], b"\xfdabc and more")
    done = run(topology, "check")
    assert done.exit_code == 1
    assert f"{ids[50]}: a row of packed: no dictionary has" in done.stdout
    (row,) = json.loads(run(topology, "check", "--json").stdout)["unreadable"]
    assert row["object_id"] == str(ids[50])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("train", {"cls": "Nothing"}, "'Nothing' is not defined"),
        ("train", {"cls": "Plain"}, "Plain: its blobs are not compressed"),
        ("activate", {}, "packed: no version is stored on the shards"),
        ("train", {"cls": "Small"}, "small: only 0 rows were read"),
    ],
)
def test_usage_errors(topology, ids, name, options, message):
    done = run(topology, name, **options)
    assert done.exit_code in (1, 2)
    assert message in done.stderr


def test_a_shard_that_was_missing_is_rewritten_when_the_run_is_repeated(topology, ids):
    document(topology, "train")
    run(topology, "activate")
    position = topology.parent / "position.json"
    file = min(topology.parent.glob("server1/*"))
    moved = file.rename(file.with_name("away"))
    missing = run(topology, "rewrite", "--resume", position)
    assert missing.exit_code == 3
    moved.rename(file)
    assert document(topology, "rewrite", "--resume", position)["rewritten"] == len(ids)
    assert not position.exists()
    assert document(topology, "status", "--rows")["versions"][0]["rows"] == 0


def test_a_row_that_was_unreadable_before_an_interruption(topology, ids):
    with Cluster.from_file(topology) as cluster:
        set_raw(cluster, Packed, ids[-1], b"\xfdabc and more")
    position = topology.parent / "position.json"
    file = min(topology.parent.glob("server1/*"))
    moved = file.rename(file.with_name("away"))
    done = run(topology, "rewrite", "--resume", position)
    assert (done.exit_code, f"{ids[-1]}: " in done.stdout) == (3, True)
    moved.rename(file)
    done = run(topology, "rewrite", "--resume", position)
    assert done.exit_code == 1
    assert "1 unreadable\n1 more are unreadable; see: sqla-shard" in done.stdout
