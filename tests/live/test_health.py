"""health() with servers that hang: its report, threads and sockets."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import pytest
from flask import Flask

from sqla_shard import Cluster
from sqla_shard.cluster.health import Health
from sqla_shard.ext.flask import FlaskCluster
from sqla_shard.testing import Proxy
from sqla_shard.testing.local_server import wait_until
from sqla_shard.testing.server_fleet import ServerFleet
from tests.servers.faults import opened, SERVERS, SHARDS
from tests.servers.kinds import own_fleet
from tests.servers.processes import count_sockets_to

pytestmark = pytest.mark.live

fleet = own_fleet(SERVERS, SHARDS)

NAMES = [f"server{number}" for number in range(1, SERVERS + 1)]
#: Longer than a busy machine stops: the others must respond.
SECONDS = 3
SILENT = f"TimeoutError: no response within {SECONDS} s"
#: More than a busy machine needs, and less than any limit of a driver.
PATIENCE = 9.0

#: How a cluster is asked how it is.
Asking = Callable[[Cluster], Health]


def asked(cluster: Cluster) -> Health:
    return cluster.health(timeout=SECONDS)


def asked_in_a_loop(cluster: Cluster) -> Health:
    return asyncio.run(cluster.async_health(timeout=SECONDS))


either = pytest.mark.parametrize("ask", [asked, asked_in_a_loop])


def frozen(server: Any, proxy: Proxy) -> None:
    server.pause()


def mute(server: Any, proxy: Proxy) -> None:
    proxy.hang()


@pytest.fixture
def proxies(fleet: ServerFleet[Any]) -> Iterator[list[Proxy]]:
    made = [Proxy(server.host, server.port) for server in fleet.servers]
    for proxy in made:
        proxy.start()
    yield made
    for proxy, server in zip(made, fleet.servers, strict=True):
        proxy.stop()
        server.resume()


@pytest.fixture
def cluster(fleet: ServerFleet[Any], proxies: list[Proxy]) -> Iterator[Cluster]:
    document = fleet.topology_mapping(proxies=proxies, lookup=4)
    with Cluster.from_topology(document, environ=fleet.environ) as cluster:
        yield cluster


def threads() -> set[str]:
    return {
        thread.name
        for thread in threading.enumerate()
        if thread.name.startswith("sqla-shard")
    }


@either
@pytest.mark.parametrize("fault", [frozen, mute])
def test_one_hangs(
    fleet: ServerFleet[Any],
    proxies: list[Proxy],
    cluster: Cluster,
    ask: Asking,
    fault: Callable[[Any, Proxy], None],
) -> None:
    before = threads()
    fault(fleet.servers[1], proxies[1])
    began = monotonic()
    health = ask(cluster)
    assert monotonic() - began < PATIENCE
    assert health.servers == {
        name: SILENT if name == "server2" else None for name in NAMES
    }
    assert health.down == ["server2"]
    assert not health.is_good
    assert health.process_id == os.getpid()
    assert threads() == before
    assert not any(count_sockets_to(proxy.port) for proxy in proxies)


@either
def test_all_hang(proxies: list[Proxy], cluster: Cluster, ask: Asking) -> None:
    """They are asked at the same time."""
    for proxy in proxies:
        proxy.hang()
    began = monotonic()
    assert ask(cluster).down == NAMES
    assert monotonic() - began < PATIENCE
    for proxy in proxies:
        proxy.restore()
    assert ask(cluster).is_good


@either
def test_a_server_is_asked_once(
    proxies: list[Proxy], cluster: Cluster, ask: Asking
) -> None:
    """Here two keyspaces are on each."""
    assert len(cluster.topology.keyspaces) == 2
    assert ask(cluster).is_good
    assert [proxy.counts.connections for proxy in proxies] == [1] * SERVERS
    assert wait_until(
        lambda: not any(proxy.counts.open for proxy in proxies), seconds=20
    )


def test_a_pool_in_use_is_not_waited_for(fleet: ServerFleet[Any]) -> None:
    options = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 60}
    with opened(fleet, **options) as cluster, cluster.session() as session:
        session.connection({"shard_id": 0})
        assert cluster.health().is_good


def test_stats_have_the_same_names(cluster: Cluster) -> None:
    cluster.warm()
    names = {name for stats in cluster.stats() for name in [stats.server]}
    assert names == set(cluster.health().servers)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_no_time(cluster: Cluster, timeout: float) -> None:
    with pytest.raises(ValueError, match=f"timeout must be.*{timeout!r}"):
        cluster.health(timeout)
    with pytest.raises(ValueError, match=f"timeout must be.*{timeout!r}"):
        asyncio.run(cluster.async_health(timeout))


def test_a_closed_cluster(cluster: Cluster) -> None:
    cluster.close()
    health = cluster.health()
    assert health.down == NAMES
    assert "ClusterClosedError" in str(health.servers["server1"])


@pytest.mark.thorough
@pytest.mark.parametrize(("count", "status"), [(1, 200), (SERVERS, 503)])
def test_the_route_of_flask(
    proxies: list[Proxy], cluster: Cluster, count: int, status: int
) -> None:
    app = Flask(__name__)
    app.config["SQLA_SHARD_HEALTH"] = "/health"
    FlaskCluster(app, cluster)
    client = app.test_client()
    for proxy in proxies[:count]:
        proxy.hang()
    began = monotonic()
    for path, expected in (("/health", status), ("/health?all=1", 503)):
        response = client.get(path)
        assert response.status_code == expected
        assert response.get_json()["down"] == NAMES[:count]
    assert monotonic() - began < 2 * (2 + PATIENCE)
