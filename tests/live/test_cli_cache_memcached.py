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

from sqla_shard.cache.stores import KeyState
from sqla_shard.cache.stores.memcached import MemcachedStore
from sqla_shard.testing import MemcachedServer
from tests.models.operation_models import SHARDS
from tests.servers.cache_files import write_regions
from tests.servers.command_line import COMMAND, environment, invoke, ROOT
from tests.servers.memcached import grow_old, nodes
from tests.servers.operation_commands import for_commands
from tests.suites.cache_store import put, state
from tests.suites.outbox import leave, rows

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("memcached_installed")]

SECONDS = 60


topology, cluster, ids = for_commands()


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
    assert {state(store, key) for key in keys} == {KeyState.LEASED}
    assert rows(cluster) == []


def test_stats(topology, cluster, ids, store, servers, file):
    put(store, "a", b"1")
    found = cache(topology, "stats", file)
    assert found.exit_code == 0, found.output
    lines = found.stdout.splitlines()
    assert len(lines) == 8
    assert lines[0] == "pins: no pending invalidations"
    for line, server in zip(lines[1:5:2], servers, strict=True):
        assert line.startswith(f"  {server.address}: ")
        assert line.endswith(" of 67,108,864 bytes")
    assert lines[2].startswith("    0 evictions, ")
    assert lines[5] == "lists: no pending invalidations"
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
