"""The load of two processes, summed through memcached."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sqla_shard import Cluster, pack
from sqla_shard.testing import MemcachedServer
from sqla_shard.topology import to_json
from tests.models.clusters import on_sqlite
from tests.models.models import PIN
from tests.servers.cache_files import write_regions
from tests.servers.command_line import COMMAND, environment, invoke, ROOT
from tests.servers.memcached import nodes
from tests.workers.load_in_cache import PREFIX

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("memcached_installed")]

#: Reads of each process, by shard.
READS = ({1: 5, 3: 7}, {2: 3, 3: 11})
DEADLINE = 120

cluster = on_sqlite()


@pytest.fixture
def topology(cluster: Cluster, tmp_path: Path) -> Path:
    path = tmp_path / "topology.json"
    path.write_bytes(to_json(cluster.topology))
    return path


@pytest.fixture
def server() -> Iterator[MemcachedServer]:
    with nodes(1) as (server,):
        yield server


@pytest.fixture
def file(server: MemcachedServer, tmp_path: Path) -> Path:
    path = write_regions(tmp_path / "cache.toml", {"pins": [server.address]})
    path.write_text(f'prefix = "{PREFIX}"\n{path.read_text()}')
    return path


@contextmanager
def started(*command: object) -> Iterator[str]:
    """Run a program; yield its first line."""
    with subprocess.Popen(
        [*map(str, command)],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()
            process.send_signal(signal.SIGTERM)
            process.wait(60)


@pytest.fixture
def processes(topology: Path, server: MemcachedServer) -> Iterator[None]:
    program = (sys.executable, "-m", "tests.workers.load_in_cache")
    first, second = (
        [f"{pack(shard, PIN, 1)}:{n}" for shard, n in reads.items()] for reads in READS
    )
    with (
        started(*program, topology, server.address, *first) as one,
        started(*program, topology, server.address, *second) as two,
    ):
        assert (one, two) == ("ready", "ready")
        yield


def until_both(read: Callable[[], dict[int, float]]) -> dict[int, float]:
    """Repeat a reading until it has the shards of both processes."""
    end = monotonic() + DEADLINE
    while {*(found := read())} != {1, 2, 3}:
        assert monotonic() < end, found
    return found


@pytest.mark.usefixtures("processes")
def test_the_reads_of_processes_are_summed(topology: Path, file: Path) -> None:
    def samples() -> dict[int, float]:
        done = invoke("-t", topology, "load", "--cache", file, "--json")
        report = json.loads(done.stdout) if done.stdout else {"shards": []}
        if len(report.get("processes", ())) < len(READS):
            return {}
        return {one["shard_id"]: one["samples"] for one in report["shards"]}

    assert until_both(samples) == {1: 5, 2: 3, 3: 18}
    arguments = ("-t", topology, "exporter", "--port", "0", "--cache", file)
    with started(*COMMAND, *arguments, "--timeout", "60") as line:
        url = line.removeprefix("serving ")

        def shares() -> dict[int, float]:
            text = httpx.get(url, timeout=DEADLINE).text
            return {
                int(sample.labels["shard"]): sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
                if sample.name == "sqla_shard_load_share"
                and sample.labels["operation"] == "read"
            }

        found = until_both(shares)
    # The rate of a process is that of its own time.
    assert found[3] > found[1] > 0
    assert found[3] > found[2] > 0
    assert sum(found.values()) == pytest.approx(1)
