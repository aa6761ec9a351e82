"""The proxy before a real server, and the clients that feel it."""

from __future__ import annotations

import gc
import statistics
import warnings
from time import monotonic

import pymysql
import pytest

from sqla_shard import Cluster
from sqla_shard.exc import EncryptedStatementsError
from sqla_shard.testing import Proxy
from sqla_shard.testing.local_server import wait_until

pytestmark = pytest.mark.live

PATIENCE = 60


def connect(server, proxy, **arguments):
    return pymysql.connect(
        host=proxy.host,
        port=proxy.port,
        user=server.user,
        password=server.password,
        **arguments,
    )


@pytest.fixture
def server(fleet):
    return fleet.servers[0]


@pytest.fixture
def proxy(proxies):
    return proxies[0]


def taken(connection):
    start = monotonic()
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert cursor.fetchall() == ((1,),)
    return monotonic() - start


def test_statements_take_the_delay_longer(server, proxy):
    def median(connection):
        times.extend(taken(connection) for _ in range(10))
        return statistics.median(times[-10:])

    times = []
    with connect(server, proxy) as connection:
        direct = median(connection)
        proxy.delay = 0.05
        times.clear()
        # A busy machine adds a varying delay.
        assert wait_until(lambda: median(connection) < direct + 0.1, seconds=PATIENCE)
    assert min(times) >= 0.05


def test_hanging_server_times_out(server, proxy):
    with connect(server, proxy, read_timeout=3) as connection:
        taken(connection)
        proxy.hang()
        with pytest.raises(pymysql.err.OperationalError, match="timed out"):
            taken(connection)


def test_hanging_server_accepts_and_never_greets(server, proxy):
    proxy.hang()
    with pytest.raises(pymysql.err.OperationalError, match="timed out"):
        connect(server, proxy, connect_timeout=1, read_timeout=1)
    assert proxy.counts.connections == 1


def test_refusing_server(server, proxy):
    proxy.refuse()
    with pytest.raises(pymysql.err.OperationalError, match="refused"):
        connect(server, proxy)
    proxy.restore()
    with connect(server, proxy) as connection:
        taken(connection)


def test_cut_connection_is_lost_on_both_sides(server, proxy):
    connection = connect(server, proxy)
    number = connection.thread_id()
    proxy.cut()
    with pytest.raises(pymysql.err.OperationalError) as caught:
        taken(connection)
    assert caught.value.args[0] in (2006, 2013)
    deadline = monotonic() + 10
    sql = "SELECT COUNT(*) FROM information_schema.processlist WHERE id = %s"
    while server.root_execute(sql, [number]) != [(0,)]:
        assert monotonic() < deadline


CIPHER = "SHOW STATUS LIKE 'Ssl_cipher'"


@pytest.mark.only_on("mysql")
def test_statements_that_use_tls_are_not_miscounted(server):
    with Proxy(server.host, server.port) as proxy:
        with connect(server, proxy) as connection:
            taken(connection)
            assert proxy.counts.encrypted == 1
            with pytest.raises(EncryptedStatementsError):
                assert proxy.counts.statements
            with pytest.raises(EncryptedStatementsError):
                proxy.cut_at_commit(when="before")
            connection.commit()
        assert wait_until(lambda: proxy.counts.open == 0, seconds=PATIENCE)
        proxy.cut_at_commit(when="before")
        with pytest.raises(pymysql.err.OperationalError):
            connect(server, proxy)
        with pytest.raises(EncryptedStatementsError):
            proxy.restore()
    # PyMySQL leaves the socket of a failed handshake open.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def test_statements_are_read_without_tls(server):
    with Proxy(server.host, server.port, tls=False) as proxy:
        with connect(server, proxy) as connection:
            before = proxy.counts.statements
            cursor = connection.cursor()
            cursor.execute(CIPHER)
            assert cursor.fetchall() == (("Ssl_cipher", ""),)
            assert proxy.counts.statements == before + 1
            proxy.cut_at_commit(when="after")
            with pytest.raises(pymysql.err.OperationalError):
                connection.commit()
        assert proxy.counts.commits == 1


def test_cluster_goes_through_the_proxies(fleet, proxies):
    topology = fleet.topology_mapping(proxies=proxies)
    proxies[1].refuse()
    with Cluster.from_topology(topology) as cluster:
        health = cluster.health().servers
    assert [name for name, bad in health.items() if bad] == ["server2"]
    assert [proxy.counts.connections > 0 for proxy in proxies] == [
        index != 1 for index in range(len(proxies))
    ]


def test_topology_wants_a_proxy_for_each_server(fleet, server):
    with (
        Proxy(server.host, server.port) as proxy,
        pytest.raises(ValueError, match="proxies: 1 for"),
    ):
        fleet.topology_mapping(proxies=[proxy])
