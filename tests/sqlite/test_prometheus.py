"""Metrics of an application for Prometheus: Flask, ASGI, several workers."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys

import httpx
import pytest
from flask import Flask
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import select, text
from sqlalchemy.exc import OperationalError
from starlette.applications import Starlette
from starlette.routing import Mount

from sqla_shard import pack, scatter
from sqla_shard.exc import (
    ExtensionSetupError,
    NoShardKeyError,
    OptionError,
    RetriesExhaustedError,
    StaleDataError,
)
from sqla_shard.ext.flask import FlaskCluster
from sqla_shard.monitor.metrics import APPLICATION
from sqla_shard.monitor.prometheus import CONTENT_TYPE, PrometheusMetrics
from sqla_shard.topology import to_json
from tests.models.clusters import at, on_sqlite
from tests.models.models import PIN, Pin

cluster = on_sqlite()


@pytest.fixture
def metrics(cluster):
    found = PrometheusMetrics(cluster)
    yield found
    found.stop()


def samples(metrics):
    """Return the values by name and labels."""
    return parsed(metrics.render().decode())


def parsed(exposition):
    """Return the values by name and labels, in the order of their names."""
    return {
        (
            sample.name,
            *(value for _, value in sorted(sample.labels.items())),
        ): sample.value
        for family in text_string_to_metric_families(exposition)
        for sample in family.samples
    }


def test_statements_of_a_session(cluster, metrics):
    with cluster.begin() as session:
        session.add(at(3, Pin(title="a")))
    with cluster.session() as session:
        session.get_many(Pin, [pack(n, PIN, 1) for n in (3, 4, 20)])
        session.scalars(select(Pin).options(scatter())).all()
        with pytest.raises(NoShardKeyError):
            session.scalars(select(Pin)).all()
        with pytest.raises(OperationalError):
            session.execute(text("SELECT nothing"), bind_arguments={"shard_id": 3})
    found = samples(metrics)
    count = "sqla_shard_statement_duration_seconds_count"
    assert found[count, "objects", "write", "server1"] == 1
    assert found[count, "objects", "read", "server1"] > 2
    assert found[count, "objects", "read", "server2"] > 1
    errors = "sqla_shard_statement_errors_total"
    assert found[errors, "OperationalError", "objects", "server1"] == 1
    commits = "sqla_shard_transaction_commits_total"
    assert found[commits, "committed"] == 1
    sites = {
        (name, *labels): value
        for (name, *labels), value in found.items()
        if name.endswith(("_scatters_total", "_refusals_total"))
    }
    assert list(sites.values()) == [1, 1]
    for _, what, site in sites:
        assert what in ("objects", "NoShardKeyError")
        assert re.fullmatch(r"tests/sqlite/test_prometheus\.py:\d+", site)
    waits = "sqla_shard_connection_wait_seconds_count"
    assert found[waits, "server1"] >= 2
    assert found["sqla_shard_pool_connections", "server1", "busy"] == 0
    assert found["sqla_shard_topology_epoch",] == 1
    assert found["sqla_shard_topology_age_seconds",] >= 0


def test_retries_by_cause(cluster, metrics):
    def fail(session):
        raise StaleDataError(class_name="A", object_id=1, fields=())

    with pytest.raises(RetriesExhaustedError):
        cluster.run(fail, attempts=3)
    found = samples(metrics)
    retries = "sqla_shard_transaction_retries_total"
    assert found[retries, "StaleDataError"] == 2


def test_call_sites_are_bounded(cluster, metrics):
    lines = ["def call(n, session, statement):"]
    for number in range(150):
        lines += [f"    if n == {number}:", "        session.execute(statement)"]
    names = {}
    exec("\n".join(lines), names)  # noqa: S102  # 150 lines that scatter
    with cluster.session() as session:
        for number in range(150):
            names["call"](number, session, select(Pin.id).options(scatter()))
    found = {
        labels[1]: value
        for (name, *labels), value in samples(metrics).items()
        if name == "sqla_shard_statement_scatters_total"
    }
    assert len(found) == 101
    assert found["other"] == 50


def test_every_metric_is_defined_once(metrics):
    names = [one.prometheus_name for one in APPLICATION]
    assert len(set(names)) == len(names)
    families = text_string_to_metric_families(metrics.render().decode())
    defined = {name.removesuffix("_total") for name in names}
    shown = {family.name.removesuffix("_created") for family in families}
    assert shown <= defined


def test_a_registry_has_one_cluster(cluster):
    registry = CollectorRegistry()
    first = PrometheusMetrics(cluster, registry)
    with pytest.raises(OptionError, match="already"):
        PrometheusMetrics(cluster, registry)
    first.stop()
    PrometheusMetrics(cluster, registry).stop()


def test_nothing_is_recorded_after_the_end(cluster):
    # The linter listens to all clusters of a process once a test has used it.
    listeners = list(cluster.dispatch.after_statement)
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(cluster, registry)
    assert list(cluster.dispatch.after_statement) != listeners
    metrics.stop()
    with cluster.session() as session:
        session.get(Pin, pack(3, PIN, 1))
    assert metrics.render() == b""
    assert not cluster.listens("commit_ended")
    assert list(cluster.dispatch.after_statement) == listeners


def test_asgi(cluster, metrics):
    app = Starlette(routes=[Mount("/metrics", metrics.asgi_app)])

    async def ask(method):
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://test"
        ) as client:
            return await client.request(method, "/metrics/")

    found = asyncio.run(ask("GET"))
    assert found.status_code == 200
    assert found.headers["content-type"] == CONTENT_TYPE
    assert parsed(found.text)["sqla_shard_topology_epoch",] == 1
    assert asyncio.run(ask("HEAD")).text == ""
    assert asyncio.run(ask("POST")).status_code == 405
    with pytest.raises(OptionError, match=r"scope\.type"):
        asyncio.run(metrics.asgi_app({"type": "websocket"}, None, None))


def test_flask(cluster):
    app = Flask("shop")
    app.config["SQLA_SHARD_METRICS"] = "/metrics"
    FlaskCluster(cluster=cluster).init_app(app)
    found = app.test_client().get("/metrics")
    assert found.content_type == CONTENT_TYPE
    assert parsed(found.text)["sqla_shard_topology_epoch",] == 1


def test_flask_with_a_wrong_path(cluster):
    app = Flask("shop")
    app.config["SQLA_SHARD_METRICS"] = "metrics"
    with pytest.raises(ExtensionSetupError, match="SQLA_SHARD_METRICS"):
        FlaskCluster(cluster=cluster).init_app(app)


def test_asynchronous_sessions(cluster, metrics):
    async def work():
        async with cluster.async_session() as session:
            await session.execute(select(Pin.id).options(scatter()))
            with pytest.raises(NoShardKeyError):
                await session.execute(select(Pin.id))
        await cluster.aclose()

    asyncio.run(work())
    found = samples(metrics)
    for (name, *labels), value in found.items():
        if name.endswith(("_scatters_total", "_refusals_total")):
            assert "test_prometheus" in labels[1]
            assert value == 1


WORKERS = """
import os, sys
from sqla_shard import Cluster, pack
from sqla_shard.monitor.prometheus import PrometheusMetrics
from tests.models.models import PIN, Pin

cluster = Cluster.from_file(sys.argv[1])
metrics = PrometheusMetrics(cluster)
children = []
for _ in range(2):
    child = os.fork()
    if not child:
        with cluster.session() as session:
            session.get(Pin, pack(3, PIN, 1))
            metrics.refresh()
        os._exit(0)
    children.append(child)
for child in children:
    assert os.waitpid(child, 0)[1] == 0
sys.stdout.write(metrics.render().decode())
"""


def test_several_workers(cluster, tmp_path):
    """The process that is asked has the numbers of all."""
    path = tmp_path / "topology.json"
    path.write_bytes(to_json(cluster.topology))
    shared = tmp_path / "shared"
    shared.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", WORKERS, path],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(shared)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = parsed(done.stdout)
    count = "sqla_shard_statement_duration_seconds_count"
    assert found[count, "objects", "read", "server1"] == 2
    epochs = [
        (labels, value)
        for (name, *labels), value in found.items()
        if name == "sqla_shard_topology_epoch"
    ]
    # The master and both workers, which are not yet marked as ended.
    assert len(epochs) == 3
    assert {value for _, value in epochs} == {1}
