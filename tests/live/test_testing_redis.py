"""Redis servers for tests are what their documentation says."""

from __future__ import annotations

import pytest
import redis

from sqla_shard import exc
from sqla_shard.testing import RedisServer
from sqla_shard.testing.programs import find_redis
from tests.servers.redis import client_of
from tests.suites import cache_servers

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("redis_installed")]


@pytest.fixture
def server():
    with RedisServer() as server:
        yield server


class TestRedisServers(cache_servers.CacheServers):
    kind = RedisServer
    variable = "SQLA_SHARD_REDIS"
    find = find_redis


def test_a_client_reads_what_it_wrote(server):
    assert server.address == f"127.0.0.1:{server.port}"
    assert server.alive
    assert "running" in repr(server)
    with client_of(server) as client:
        client.set("a", b"1")
        assert client.get("a") == b"1"


@pytest.mark.parametrize("end", ["kill", "restart"])
def test_comes_back_with_what_was_saved(server, end):
    port, pid = server.port, server.pid
    with client_of(server) as client:
        client.set("a", b"saved")
        server.save()
        client.set("a", b"lost")
        getattr(server, end)()
        if end == "kill":
            assert not server.running
            assert not server.alive
            with pytest.raises(redis.ConnectionError):
                client.get("a")
            server.start()
        assert server.port == port
        assert server.pid != pid
        assert client.get("a") == b"saved"


def test_paused_it_answers_nothing_and_forgets_nothing(server):
    with client_of(server) as client:
        client.set("a", b"1")
        server.pause()
        assert not server.alive
        assert server.running
        server.resume()
        assert server.alive
        assert client.get("a") == b"1"


def test_flush_forgets_the_items(server):
    with client_of(server) as client:
        client.set("a", b"1")
        server.flush()
        assert client.get("a") is None
    server.kill()
    for call in (server.flush, server.save):
        with pytest.raises(exc.ServerProcessError, match="is not running"):
            call()


def test_takes_memory_and_options():
    options = ["--appendonly", "yes"]
    with (
        RedisServer(megabytes=8, options=options) as server,
        client_of(server) as client,
    ):
        assert client.info("memory")["maxmemory"] == 8 * 1024 * 1024
        client.set("a", b"1")
        server.restart()
        assert client.get("a") == b"1"
