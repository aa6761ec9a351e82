"""sqla-shard load and exporter, on SQLite."""

from __future__ import annotations

import json
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event, Semaphore
from time import time

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sqla_shard import pack
from sqla_shard.monitor import LoadDirectory, measure_load
from sqla_shard.monitor.fleet_metrics import FleetMetrics
from sqla_shard.monitor.metrics import metric
from sqla_shard.testing.local_server import wait_until
from sqla_shard.topology import to_json
from tests.models.clusters import at, on_sqlite
from tests.models.models import PIN, Pin
from tests.servers.cache_files import write_regions
from tests.servers.command_line import COMMAND, environment, invoke, ROOT

cluster = on_sqlite()


@pytest.fixture
def topology(cluster, tmp_path):
    path = tmp_path / "topology.json"
    path.write_bytes(to_json(cluster.topology))
    return path


@pytest.fixture
def published(cluster, tmp_path):
    """Publish reads of one shard, and one of another."""
    meter = measure_load(cluster, rate=1)
    with cluster.session() as session:
        for shard in (3,) * 40 + (20,):
            session.get(Pin, pack(shard, PIN, 1))
    store = LoadDirectory(tmp_path / "load")
    snapshot = meter.snapshot()
    meter.stop()
    ended = Event()

    def put():
        # Fresh for long: a busy machine needs seconds to start the program.
        while not ended.is_set():
            store.put(replace(snapshot, at=time()))
            ended.wait(1)

    store.put(replace(snapshot, at=time()))
    # Other files are not read.
    (store.path / "readme.txt").write_text("not JSON")
    (store.path / "empty.load").touch()
    with ThreadPoolExecutor(1) as executor:
        putting = executor.submit(put)
        yield store.path
        ended.set()
        putting.result()


def test_load(topology, published):
    found = invoke("-t", topology, "load", "--directory", published)
    assert found.exit_code == 1
    assert "HOT: shard 3 of objects on server1 takes 97.6 %" in found.stdout
    found = invoke(
        *("-t", topology, "load", "--directory", published), *("--top", "1", "--json")
    )
    (shard,) = json.loads(found.stdout)["shards"]
    assert (shard["shard_id"], shard["is_hot"]) == (3, True)


def test_load_without_a_place(topology):
    found = invoke("-t", topology, "load")
    assert found.exit_code == 2
    assert "--directory PATH or --cache FILE" in found.stderr
    for arguments in (("--directory", ".", "--cache", "c.toml"), ("--region", "pins")):
        found = invoke("-t", topology, "load", *arguments)
        assert found.exit_code == 2


def test_load_of_no_process(topology, tmp_path):
    found = invoke("-t", topology, "load", "--directory", tmp_path)
    assert found.exit_code == 1
    assert "no process has published" in found.stderr
    missing = tmp_path / "missing"
    found = invoke("-t", topology, "load", "--directory", missing)
    assert found.exit_code == 1
    assert f"{str(missing)!r}, which does not exist" in found.stderr
    assert "publish_load" in found.stderr


def test_load_of_a_cache_without_a_prefix(topology, tmp_path):
    file = write_regions(tmp_path / "cache.toml", {"pins": ["127.0.0.1:1"]})
    found = invoke("-t", topology, "load", "--cache", file)
    assert found.exit_code == 1
    assert "prefix" in found.stderr


@pytest.fixture
def exporter(topology, published):
    """Start the program; yield its URL."""
    process = subprocess.Popen(
        [
            *COMMAND,
            *("-t", topology, "exporter", "--port", "0", "--timeout", "60"),
            *("--directory", published),
        ],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    line = process.stdout.readline()
    yield line.removeprefix("serving ").strip()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    process.stdout.close()


def test_the_exporter(cluster, exporter):
    assert exporter.startswith("http://127.0.0.1:")
    with cluster.begin() as session:
        session.add(at(3, Pin(title="a")))
    response = httpx.get(exporter, timeout=120)
    assert response.headers["Cache-Control"] == "no-store"
    exposition = response.text
    found = {
        (
            sample.name,
            *(value for _, value in sorted(sample.labels.items())),
        ): sample.value
        for family in text_string_to_metric_families(exposition)
        for sample in family.samples
    }
    assert found["sqla_shard_server_up", "primary", "server1"] == 1
    assert found["sqla_shard_server_up", "primary", "server2"] == 1
    assert found["sqla_shard_published_epoch",] == 1
    assert found["sqla_shard_exporter_read", "operations"] == 1
    shares = "sqla_shard_load_share"
    assert found[shares, "objects", "read", "3"] == pytest.approx(40 / 41)
    assert found["sqla_shard_load_hot", "objects", "read"] == 1
    assert httpx.get(exporter.replace("/metrics", "/")).status_code == 404


def test_scrapes_do_not_wait_for_each_other(cluster):
    metrics = FleetMetrics(cluster, timeout=60, interval=0)
    started, resumed = Semaphore(0), Event()
    probes, read = metrics._probes, metrics._ping

    def probed():
        started.release()
        return probes()

    def held(name, role):
        resumed.wait(60)
        return read(name, role)

    metrics._probes, metrics._ping = probed, held
    with ThreadPoolExecutor(4) as pool:
        scrapes = [pool.submit(metrics.collect) for _ in range(4)]
        try:
            for _ in scrapes:
                assert started.acquire(timeout=30)
        finally:
            resumed.set()
        for scrape in scrapes:
            up = [o for o in scrape.result() if o.metric is metric("server.up")]
            assert [one.value for one in up] == [True, True]


def test_a_scrape_keeps_what_was_read_while_another_reads_again(cluster):
    metrics = FleetMetrics(cluster, timeout=60, interval=0)
    first, second, again = Event(), Event(), Event()
    calls = []
    read = metrics._ping

    def held(name, role):
        calls.append(name)
        if name == "server1":
            first.wait(60)
        elif calls.count(name) > 1:
            again.set()
            second.wait(60)
        return read(name, role)

    metrics._ping = held

    def is_read_again():
        for (name, _, _), part in metrics._servers.items():
            if name == "server2":
                part.start()
        return again.is_set()

    with ThreadPoolExecutor(1) as pool:
        scrape = pool.submit(metrics.collect)
        try:
            assert wait_until(is_read_again, seconds=30)
            first.set()
            observed = scrape.result(30)
        finally:
            first.set()
            second.set()
    up = [o for o in observed if o.metric is metric("server.up")]
    assert [one.value for one in up] == [True, True]
