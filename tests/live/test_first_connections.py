"""First connections that are lost while the dialect is being initialized.

Each statement of the first connection of an engine is cut once: those of the
drivers, and the queries of SQLAlchemy's dialect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from sqla_shard import Cluster
from sqla_shard.exc import ServerUnreachableError
from sqla_shard.testing import Proxy
from sqla_shard.testing.server_fleet import ServerFleet
from tests.models.models import Base, Pin
from tests.servers.kinds import Kind

pytestmark = pytest.mark.live

SHARD = 1
#: More than any driver, and the dialect, send before the first statement.
MOST = 20


@pytest.fixture(scope="module")
def fleet(server_kind: Kind) -> Iterator[ServerFleet[Any]]:
    with server_kind.fleet(servers=1, shards=4, fast=True) as fleet:
        document = fleet.topology_mapping(main=True)
        environ = fleet.environ
        with Cluster.from_topology(document, environ=environ) as cluster:
            cluster.create_all(Base.metadata)
        yield fleet


@pytest.fixture(scope="module")
def proxy(fleet: ServerFleet[Any]) -> Iterator[Proxy]:
    (server,) = fleet.servers
    with Proxy(server.host, server.port, tls=False) as proxy:
        yield proxy


def opened(fleet: ServerFleet[Any], proxy: Proxy) -> Cluster:
    document = fleet.topology_mapping(main=True, proxies=[proxy])
    return Cluster.from_topology(document, environ=fleet.environ)


def write(session: Any) -> None:
    made = Pin(title="first")
    made.__dict__["_sqla_shard_requested"] = SHARD
    session.add(made)


async def write_awaited(session: Any) -> None:
    write(session)


def sent_to_connect(fleet: ServerFleet[Any], proxy: Proxy, once: Any) -> int:
    """Return how many statements the first work of a cluster takes."""
    before = proxy.counts.statements
    with opened(fleet, proxy) as cluster:
        once(cluster)
    found = proxy.counts.statements - before
    assert 4 <= found <= MOST
    return found


def warm(cluster: Cluster) -> None:
    cluster.warm()


def warm_awaited(cluster: Cluster) -> None:
    async def main() -> None:
        await cluster.async_warm()
        await cluster.aclose()

    asyncio.run(main())


def run(cluster: Cluster) -> None:
    cluster.run(write)


def run_awaited(cluster: Cluster) -> None:
    async def main() -> None:
        await cluster.async_run(write_awaited)
        await cluster.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("connect", "work"),
    [
        pytest.param(warm, run, id="sync"),
        pytest.param(warm_awaited, run_awaited, id="async"),
    ],
)
def test_a_transaction_is_repeated(
    fleet: ServerFleet[Any], proxy: Proxy, connect: Any, work: Any, when: Any
) -> None:
    for n in range(1, sent_to_connect(fleet, proxy, connect) + 1):
        connections = proxy.counts.connections
        with opened(fleet, proxy) as cluster:
            proxy.cut_at_statement(n, when=when)
            work(cluster)
        assert proxy.counts.connections == connections + 2, n


@pytest.mark.parametrize("connect", [warm, warm_awaited])
def test_the_error_names_the_server(
    fleet: ServerFleet[Any], proxy: Proxy, connect: Any
) -> None:
    # The last one is a ROLLBACK, when the connection goes back to the pool.
    for n in range(1, sent_to_connect(fleet, proxy, connect)):
        with opened(fleet, proxy) as cluster:
            proxy.cut_at_statement(n, when="before")
            with pytest.raises(ServerUnreachableError) as caught:
                connect(cluster)
            assert caught.value.server == "server1", n
            assert caught.value.orig is not None
            # The next one is asked all of it.
            connect(cluster)


def test_a_worker_reports_the_server(fleet: ServerFleet[Any], proxy: Proxy) -> None:
    for n in range(1, sent_to_connect(fleet, proxy, warm) + 1):
        with opened(fleet, proxy) as cluster:
            proxy.cut_at_statement(n, when="before")
            report = cluster.repair()
            assert not report.ok
            assert "server1" in str(report.unreachable[0]), n
            assert cluster.repair().ok
