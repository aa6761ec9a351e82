"""Redis servers that fail: the delay, and values that may be read after it."""

from __future__ import annotations

import contextlib

import pytest
import redis

from sqla_shard import exc
from sqla_shard.cache.stores import KeyState
from sqla_shard.cache.stores.redis import RedisStore
from sqla_shard.testing.local_server import free_port, wait_until
from tests.servers.following import in_child
from tests.servers.processes import count_sockets_to
from tests.servers.redis import client_of, grow_old, old_server
from tests.suites import cache_store_faults
from tests.suites.cache_store import leased, put, state, states, token
from tests.suites.cache_store_faults import PATIENT, RETRY, SECONDS, TIMEOUT, within

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("redis_installed")]


@contextlib.contextmanager
def connected(server, **options):
    options = {"timeout": TIMEOUT, "retry": RETRY, "longest": 5, **options}
    # A client that waits for long and tries again, as they come.
    with redis.Redis(server.host, server.port) as client:
        store = RedisStore(client, **options)
        with contextlib.closing(store):
            yield store


@pytest.fixture
def server():
    with old_server() as server:
        yield server


@pytest.fixture(name="connected")
def opening():
    return connected


@pytest.fixture(name="grow_old")
def growing():
    return grow_old


@pytest.fixture(params=["restart", "kill", "flush"])
def forget(request):
    def forget(server):
        getattr(server, request.param)()
        server.start()

    return forget


class TestFaults(cache_store_faults.Faults):
    opens = """
import redis
from sqla_shard.cache.stores.redis import RedisStore
store = RedisStore(redis.Redis(port=int(sys.argv[1])), timeout=5.0)
"""


@pytest.mark.parametrize("how", ["saved", "appended"])
def test_old_values_that_are_back_are_not_served(how):
    """Items of a dump, and of a truncated append-only file."""
    append = ["--appendonly", "yes", "--appendfsync", "always"]
    with (
        old_server(append if how == "appended" else []) as server,
        # Its tombstones must outlast a start, which may take its time.
        connected(server, timeout=PATIENT, longest=60) as store,
        client_of(server) as client,
    ):
        put(store, "a", b"old")
        stale = leased(store, ["b"])["b"]
        ours = token()
        assert store.block(["c"], ours, 60) == set()
        if how == "saved":
            server.save()
            # Later writes are lost.
            assert store.block(["a"], token(), 60) == set()
        server.kill()
        server.start()
        assert client.get("sqla_shard:a").endswith(b"old")
        found = states(store.fetch("abc", 30))
        assert set(found.values()) == {KeyState.BLOCKED}
        assert store.fill({"b": (stale, b"old")}, 60) == set()
        # Nor when it has been up for long.
        grow_old(server)
        found = states(store.fetch("ab", 30))
        assert found == {"a": KeyState.LEASED, "b": KeyState.LEASED}
        assert store.fill({"b": (stale, b"old")}, 60) == set()
        # A tombstone is one in any life.
        assert state(store, "c") is KeyState.BLOCKED
        assert store.unblock("abc", ours) == set()
        assert state(store, "c") is KeyState.LEASED


def test_a_replica_serves_nothing_and_promises_nothing(server):
    with old_server() as other, connected(server, timeout=5.0) as store:
        put(store, "a", b"1")
        with client_of(other) as client, connected(other, timeout=5.0) as behind:
            client.replicaof(server.host, server.port)
            assert wait_until(
                lambda: client.get("sqla_shard:a") is not None, seconds=SECONDS
            )
            assert state(behind, "a") is KeyState.BLOCKED
            assert behind.block(["a"], token(), 5) == {"a"}
            assert behind.unblock(["a"], token()) == {"a"}
            assert behind.failures == 0
            # Once promoted it has to wait as one that was started.
            client.replicaof("no", "one")
            assert wait_until(lambda: client.role()[0] == b"master", seconds=SECONDS)
            assert state(behind, "a") is KeyState.BLOCKED
            grow_old(other)
            assert state(behind, "a") is KeyState.LEASED


def test_no_memory_is_no_error():
    with (
        old_server(megabytes=8) as server,
        connected(server, timeout=5.0, longest=60) as store,
        client_of(server) as client,
    ):
        for number in range(3):
            put(store, f"a{number}", b"old")
        lease = leased(store, ["lease"])["lease"]
        ours, theirs = token(), token()
        for one in (ours, theirs):
            assert store.block(["both"], one, 60) == set()
        # Of the application, which shares the server.
        client.set("other", b"x" * 3_000_000)
        client.config_set("maxmemory", "2mb")
        assert state(store, "a0") is KeyState.VALUE
        assert state(store, "new") is KeyState.BLOCKED
        assert store.fill({"lease": (lease, b"1")}, 60) == set()
        assert store.block(["a1"], ours, 5) == {"a1"}
        # No tombstone, but no value either.
        assert state(store, "a1") is KeyState.BLOCKED
        assert store.unblock(["a2"], ours) == set()
        assert state(store, "a2") is KeyState.BLOCKED
        assert store.unblock(["both"], ours) == {"both"}
        assert state(store, "both") is KeyState.BLOCKED
        assert store.failures == 0


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-lru"])
def test_a_server_that_forgets_its_guard_gives_no_leases(policy):
    with (
        old_server(["--maxmemory-policy", policy], megabytes=8) as server,
        connected(server, timeout=5.0) as store,
        client_of(server) as client,
    ):
        assert state(store, "before") is KeyState.LEASED
        for number in range(3000):
            client.set(f"other:{number}", b"x" * 10_000, ex=60)
        # Or the next question may make it forget the guard after all.
        client.config_set("maxmemory", "64mb")
        kept = client.get("sqla_shard: guard") is not None
        expected = KeyState.LEASED if kept else KeyState.BLOCKED
        assert state(store, "after") is expected
        assert kept or policy != "volatile-lru"


def test_a_server_that_forbids_what_is_needed(server, caplog):
    with client_of(server) as client:
        client.execute_command(
            *("ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all"), "-info"
        )
    with redis.Redis(port=server.port, username="app", password="secret") as client:
        store = RedisStore(client, timeout=5.0)
        assert state(store, "a") is KeyState.LOST
        assert "can't run this command" in caplog.text
        store.close()


def test_a_child_process_has_no_copy_of_a_connection(server, tmp_path):
    """Not even of one that a thread of its parent uses at the fork."""
    with connected(server) as store:
        assert state(store, "a") is KeyState.LEASED
        waiting = store._client.connection_pool.get_connection()
        assert count_sockets_to(server.port) == 1
        assert state(store, "b") is KeyState.LEASED
        assert count_sockets_to(server.port) == 2

        def child():
            assert count_sockets_to(server.port) == 0
            assert state(store, "c") is KeyState.LEASED

        in_child(child, tmp_path)
        waiting.send_command("PING")
        assert waiting.read_response() == b"PONG"
        store._client.connection_pool.release(waiting)
        assert state(store, "d") is KeyState.LEASED
        assert count_sockets_to(server.port) == 2


def test_no_listeners():
    with redis.Redis(port=free_port()) as client:
        store = RedisStore(client, timeout=TIMEOUT)
        with within(TIMEOUT):
            assert state(store, "a") is KeyState.LOST


def test_clients_of_several_servers_are_refused():
    sentinel = redis.Sentinel([("127.0.0.1", 1)])
    for client in (sentinel.master_for("main"), object()):
        with pytest.raises(exc.OptionError, match="single") as caught:
            RedisStore(client)
        assert caught.value.option == "client"


@pytest.mark.parametrize("option", ["longest", "timeout", "retry"])
def test_times_that_cannot_be(option):
    with pytest.raises(exc.OptionError) as caught:
        RedisStore(redis.Redis(), **{option: 0})
    assert caught.value.option == option
