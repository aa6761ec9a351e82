"""The store on a Redis server."""

from __future__ import annotations

import contextlib

import pytest
import redis
from redis._parsers.base import _RESPBase

from sqla_shard.cache.regions import open_region, store_of
from sqla_shard.cache.stores.redis import RedisStore
from sqla_shard.contrib.redis_stores import RedisDatabases
from tests.servers.processes import count_sockets_to
from tests.servers.redis import client_of, grow_old, old_server
from tests.suites import cache_store

pytestmark = pytest.mark.live


class OnRedis(cache_store.Harness):
    def __init__(self, server, client):
        self.server = server
        # A busy machine may take its time: faults are tested elsewhere.
        self.store = RedisStore(client, timeout=5.0)

    def flush(self):
        self.server.flush()
        grow_old(self.server)


@pytest.fixture(scope="module")
def server(redis_installed):
    with old_server() as server:
        yield server


@pytest.fixture(params=["as bytes", "as text"])
def harness(server, request):
    """Return a harness with a client of either kind; both read bytes."""
    decode = request.param == "as text"
    with redis.Redis(port=server.port, decode_responses=decode) as client:
        harness = OnRedis(server, client)
        with contextlib.closing(harness.store):
            yield harness


@pytest.fixture
def mark(rng):
    return f"{rng.getrandbits(64):x}"


TestValues = cache_store.Values
TestLeases = cache_store.Leases
TestTombstones = cache_store.Tombstones


def test_opened_as_a_region(server, mark):
    arguments = {"port": server.port, "socket_timeout": 5.0}
    config = {"backend": "dogpile.cache.redis", "arguments": arguments}
    opened = open_region("objects", {**config, "tombstone": 90})
    with contextlib.closing(opened.region.backend.writer_client):
        assert isinstance(opened.store, RedisStore)
        assert opened.store.longest == 90
        assert store_of(opened.region) is opened.store
        cache_store.put(opened.store, mark, b"1")
        opened.region.set(mark, "of the application")
        assert opened.region.get(mark) == "of the application"
        assert opened.store.fetch([mark], 5)[mark].value == b"1"
        opened.region.delete(mark)
        opened.store.close()


def test_items_of_other_programs(server, mark):
    with client_of(server) as client:
        client.set(mark, b"of the application")
        store = RedisStore(client, timeout=5.0)
        cache_store.put(store, mark, b"ours")
        assert store.block([mark], b"x" * 16, 10) == set()
        assert store.unblock([mark], b"x" * 16) == set()
        assert client.get(mark) == b"of the application"
        store.close()


def test_an_item_that_is_no_text_is_a_miss(server, mark):
    """An item of another program does not count as a server that is down."""
    with client_of(server) as client:
        store = RedisStore(client, timeout=5.0)
        for there in ("fetched", "blocked", "unblocked", "filled"):
            key = f"{mark}{there}"
            client.rpush(f"sqla_shard:{key}", b"a", b"list")
            if there == "blocked":
                assert store.block([key], b"x" * 16, 10) == set()
            elif there == "filled":
                token = b"y" * 16
                assert store.fill({key: (token, b"value")}, 10) == set()
            if there != "fetched":
                assert store.unblock([key], b"x" * 16) == set()
            cache_store.put(store, key, b"again")
            assert store.fetch([key], 0)[key].value == b"again"
        assert store.failures == 0
        store.close()


@pytest.mark.parametrize("point", ["connecting", "reading"])
def test_an_interrupt_closes_the_connection(server, mark, point, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    where = _RESPBase, "on_connect"
    databases = RedisDatabases([f"redis://localhost:{server.port}/0"])
    with client_of(server) as client, contextlib.closing(databases):
        before = count_sockets_to(server.port)
        store = RedisStore(client, timeout=5.0)
        if point == "reading":
            where = redis.Connection, "read_response"
            cache_store.put(store, mark, b"value")
            databases.pipeline(0, [["GET", mark]])
        with monkeypatch.context() as patch:
            patch.setattr(*where, interrupt)
            with pytest.raises(KeyboardInterrupt):
                store.fetch([mark], 0)
            with pytest.raises(KeyboardInterrupt):
                databases.pipeline(0, [["GET", mark]])
        assert count_sockets_to(server.port) == before
        if point == "connecting":
            cache_store.put(store, mark, b"value")
        assert store.fetch([mark], 0)[mark].value == b"value"
        assert databases.pipeline(0, [["GET", mark]]) == [None]
        store.close()


def test_everything_there_ends(server, mark):
    """Nothing stays for ever of a program that has died at any point."""
    with client_of(server) as client:
        store = RedisStore(client, timeout=5.0)
        cache_store.leased(store, [f"{mark}:lease"], lease=5)
        cache_store.put(store, f"{mark}:value", b"1", expire=60)
        store.block([f"{mark}:one"], b"x" * 16, 10)
        store.block([f"{mark}:two"], b"x" * 16, 20)
        store.block([f"{mark}:two"], b"y" * 16, 10)
        store.close()
        for name, most in (("lease", 5), ("value", 60), ("one", 10), ("two", 20)):
            left = client.pttl(f"sqla_shard:{mark}:{name}")
            assert most - 3 < left / 1000 <= most


def test_the_token_of_a_dead_process_ends_by_itself(server, mark):
    """Writes of other processes to the same key must not renew it."""
    with client_of(server) as client:
        store = RedisStore(client, timeout=5.0)
        assert store.block([mark], b"dead" * 4, 1) == set()
        assert store.block([mark], b"ours" * 4, 10) == set()

        def only_ours():
            store.block([mark], b"ours" * 4, 10)
            return b"dead" not in client.get(f"sqla_shard:{mark}")

        assert cache_store.Harness().until(only_ours)
        assert store.unblock([mark], b"ours" * 4) == set()
        assert cache_store.state(store, mark) is cache_store.KeyState.LEASED
        store.close()
