"""sqla-shard cache with real nodes, which are killed and come back."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sqla_shard import Cluster
from sqla_shard.cache.memcached import MemcachedStore
from sqla_shard.cache.store import State
from sqla_shard.testing import MemcachedServer
from sqla_shard.testing import sqlite_topology
from tests.shared.cache_files import write_regions
from tests.shared.cache_store import put
from tests.shared.cache_store import state
from tests.shared.command_line import COMMAND
from tests.shared.command_line import environment
from tests.shared.command_line import invoke
from tests.shared.command_line import ROOT
from tests.shared.command_line import write
from tests.shared.memcached import grow_old
from tests.shared.memcached import nodes
from tests.shared.operation_models import Base
from tests.shared.operation_models import first_of_each
from tests.shared.operation_models import SHARDS
from tests.shared.outbox import leave
from tests.shared.outbox import rows

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("memcached_installed")]

SECONDS = 60


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    return write(
        tmp_path, sqlite_topology(tmp_path, 2, SHARDS, main=True, lookup=4)
    )


@pytest.fixture
def cluster(topology: Path) -> Iterator[Cluster]:
    with Cluster.from_file(topology, watch=False) as cluster:
        cluster.create_all(Base.metadata)
        yield cluster


@pytest.fixture
def ids(cluster: Cluster) -> list[int]:
    return first_of_each(cluster)


@pytest.fixture
def servers() -> Iterator[list[MemcachedServer]]:
    with nodes(2) as servers:
        yield servers


@pytest.fixture
def store(servers: list[MemcachedServer]) -> Iterator[MemcachedStore]:
    addresses = [one.address for one in servers]
    # A busy machine may take its time.
    store = MemcachedStore(addresses, timeout=5.0, retry=0.1)
    with contextlib.closing(store):
        yield store


@pytest.fixture
def file(tmp_path: Path, servers: list[MemcachedServer]) -> Path:
    addresses = [one.address for one in servers]
    return write_regions(
        tmp_path / "cache.toml", {"pins": addresses, "lists": addresses[:1]}
    )


def cache(topology: Path, command: str, file: Path, *more: object) -> Any:
    return invoke("-t", topology, "cache", command, "--cache", file, *more)


def test_once(cluster, topology, ids, store, file):
    keys = [f"k{n}" for n in range(30)]
    for key in keys:
        put(store, key, b"old")
    for number, key in enumerate(keys):
        leave(cluster, ids[number % SHARDS], [("pins", key)])
    found = cache(topology, "repair", file, "--once")
    assert found.exit_code == 0, found.output
    (line,) = found.stdout.splitlines()
    assert line.endswith("30 removed, 0 left, 0 of unknown regions")
    assert {state(store, key) for key in keys} == {State.LEASED}
    assert rows(cluster) == []


def test_stats(topology, cluster, ids, store, servers, file):
    put(store, "a", b"1")
    found = cache(topology, "stats", file)
    assert found.exit_code == 0, found.output
    lines = found.stdout.splitlines()
    assert len(lines) == 8
    assert lines[0] == "pins: no keys wait"
    for line, server in zip(lines[1:5:2], servers, strict=True):
        assert line.startswith(f"  {server.address}: ")
        assert line.endswith(" of 67,108,864 bytes")
    assert lines[2].startswith("    0 evictions, ")
    assert lines[5] == "lists: no keys wait"
    servers[1].kill()
    found = cache(topology, "stats", file, "--json")
    assert found.exit_code == 1
    pins, lists = json.loads(found.stdout)["regions"]
    assert [one["answers"] for one in pins["nodes"]] == [True, False]
    (one,) = lists["nodes"]
    assert one == {**pins["nodes"][0], **_counted(one)}
    assert (one["limit"], one["evictions"]) == (67_108_864, 0)
    assert (lists["waiting"], lists["oldest"]) == (0, None)


def _counted(node: dict[str, Any]) -> dict[str, Any]:
    """Return what may have changed between two questions."""
    return {name: node[name] for name in ("uptime",)}


def test_a_node_that_is_killed_and_comes_back(
    topology, cluster, ids, store, servers, file
):
    dead, _ = servers
    keys = [f"k{n}" for n in range(30)]
    its = [key for key in keys if store.node_of(key) == dead.address]
    dead.kill()
    arguments = ("cache", "repair", "--cache", str(file), "--interval", "0.1")
    with subprocess.Popen(
        [*COMMAND, "-t", str(topology), *arguments, "--json"],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            leave(cluster, ids[3], [("pins", key) for key in keys])
            first = json.loads(process.stdout.readline())
            assert first["removed"] == len(keys) - len(its)
            (left,) = first["left"]
            assert (left["region"], left["rows"]) == ("pins", len(its))
            assert len(rows(cluster)) == len(its)
            dead.start()
            grow_old(dead)
            removed = 0
            while removed < len(its):
                removed += json.loads(process.stdout.readline())["removed"]
            assert rows(cluster) == []
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
    assert (process.returncode, err) == (0, "")
