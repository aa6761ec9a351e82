"""memcached servers for tests are what their documentation says."""

from __future__ import annotations

import pytest
from pymemcache import Client

from sqla_shard import exc
from sqla_shard.testing import MemcachedServer
from sqla_shard.testing.programs import find_memcached
from tests.suites import cache_servers

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("memcached_installed")]


@pytest.fixture
def server():
    with MemcachedServer() as server:
        yield server


@pytest.fixture
def client_of():
    clients = []

    def client_of(server, timeout=5.0):
        client = Client(server.address, connect_timeout=5, timeout=timeout)
        clients.append(client)
        return client

    yield client_of
    for client in clients:
        client.close()


class TestMemcachedServers(cache_servers.CacheServers):
    kind = MemcachedServer
    variable = "SQLA_SHARD_MEMCACHED"
    find = find_memcached


def test_a_client_reads_what_it_wrote(server, client_of):
    assert server.address == f"127.0.0.1:{server.port}"
    assert server.alive
    assert "running" in repr(server)
    client = client_of(server)
    client.set("a", b"1", noreply=False)
    assert client.get("a") == b"1"


@pytest.mark.parametrize("end", ["kill", "restart"])
def test_comes_back_empty_on_its_port(server, client_of, end):
    port, pid = server.port, server.pid
    client_of(server).set("a", b"1", noreply=False)
    getattr(server, end)()
    if end == "kill":
        assert not server.running
        assert not server.alive
        with pytest.raises(ConnectionRefusedError):
            client_of(server).get("a")
        server.start()
    assert server.port == port
    assert server.pid != pid
    assert client_of(server).get("a") is None


def test_paused_it_answers_nothing_and_forgets_nothing(server, client_of):
    client_of(server).set("a", b"1", noreply=False)
    server.pause()
    assert not server.alive
    assert server.running
    with pytest.raises(TimeoutError):
        client_of(server, timeout=0.2).get("a")
    server.resume()
    assert server.alive
    assert client_of(server).get("a") == b"1"


def test_a_paused_one_can_be_restarted_and_stopped(server):
    server.pause()
    server.restart()
    assert server.alive
    server.pause()
    server.stop()
    assert server.pid is None


def test_flush_forgets_the_items_and_keeps_connections(server, client_of):
    client = client_of(server)
    client.set("a", b"1", noreply=False)
    server.flush()
    assert client.get("a") is None
    server.pause()
    server.kill()
    with pytest.raises(exc.ServerProcessError, match="is not running"):
        server.flush()


def test_takes_memory_and_options(client_of):
    with MemcachedServer(megabytes=8, options=["-t", "1"]) as server:
        found = client_of(server).stats("settings")
        assert found[b"maxbytes"] == 8 * 1024 * 1024
        assert found[b"num_threads"] == 1
