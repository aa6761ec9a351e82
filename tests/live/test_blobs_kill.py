"""Commands of ``sqla-shard blobs`` that are killed, and repeated."""

from __future__ import annotations

import os
import random
import subprocess
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from sqla_shard import Cluster
from sqla_shard.upkeep import blobs
from tests.models.compressed_models import Base, fill, forget, MODELS, Packed
from tests.servers.command_line import COMMAND, environment, ROOT, write

pytestmark = pytest.mark.live

KILLS = 12 if os.environ.get("SQLA_SHARD_SOAK") == "1" else 1
SHARDS = 8
ROWS = 60
_PATIENCE = 120.0


@pytest.fixture
def topology(fleet: Any, tmp_path: Path) -> Any:
    document = fleet.topology_mapping(
        shards=SHARDS, database="db_blobskill_{shard:05d}"
    )
    fleet.drop_databases(document)
    yield write(tmp_path, document)
    fleet.drop_databases(document)


@pytest.fixture
def cluster(topology: Any) -> Any:
    with Cluster.from_file(topology) as cluster:
        cluster.create_all(Base.metadata)
        yield cluster
        forget()


def start(topology: Any, *arguments: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            *COMMAND,
            *("-t", str(topology), "blobs", *map(str, arguments)),
            *("--models", MODELS, "--class", "Packed"),
        ],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def kill_when(process: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
    """Kill a process as soon as a condition is true, or it has ended."""
    deadline = monotonic() + _PATIENCE
    while process.poll() is None and not condition():
        assert monotonic() < deadline
        threading.Event().wait(0.002)
    process.kill()
    process.communicate()


def finish(topology: Any, *arguments: Any) -> None:
    process = start(topology, *arguments)
    _, error = process.communicate(timeout=_PATIENCE)
    assert process.returncode == 0, error.decode()


def test_killed_and_repeated(cluster, topology, tmp_path):
    chooser = random.Random(random.randrange(10**9))
    ids = fill(cluster, ROWS, shards=SHARDS)
    expected = documents(cluster, ids)
    for name, attribute in (("train", "stored"), ("activate", "active")):
        for _ in range(KILLS):
            least = count(cluster, attribute) + chooser.randrange(1, SHARDS)
            kill_when(start(topology, name), partial(has, cluster, attribute, least))
            forget()
            assert documents(cluster, ids) == expected
        finish(topology, name)
    assert blobs.status(cluster, Packed).versions[-1].active == SHARDS
    position = tmp_path / "position.json"
    options = ["rewrite", "--batch", 10, "--resume", position]
    for number in range(KILLS):
        # Fewer rows than the run rewrites before it is killed.
        least = count(cluster, "rows") + chooser.randrange(1, 30)
        kill_when(
            start(topology, *options, "--rate", 300),
            partial(has, cluster, "rows", least),
        )
        forget()
        assert documents(cluster, ids) == expected
        assert 0 < count(cluster, "rows") < len(ids), number
    finish(topology, *options)
    assert not position.exists()
    assert count(cluster, "rows") == len(ids)
    assert documents(cluster, ids) == expected
    assert not blobs.check(cluster, Packed).unreadable


def count(cluster: Cluster, attribute: str) -> int:
    """Return the sum of an attribute over all dictionaries."""
    found = blobs.status(cluster, Packed, rows=attribute == "rows")
    return sum(getattr(one, attribute) for one in found.versions[1:])


def has(cluster: Cluster, attribute: str, least: int) -> bool:
    return count(cluster, attribute) >= least


def documents(cluster: Cluster, ids: list[int]) -> list[Any]:
    with cluster.session() as session:
        found = session.get_many(Packed, ids)
    return [(dict(one.data), one.ts) for one in found]
