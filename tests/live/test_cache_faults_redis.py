"""Redis servers that fail: what it costs, and what may be read afterwards."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from time import monotonic

import pytest
import redis

from sqla_shard import exc
from sqla_shard.cache.redis import RedisStore
from sqla_shard.cache.store import State
from sqla_shard.testing import Proxy
from sqla_shard.testing._processes import free_port
from sqla_shard.testing._processes import wait_until
from tests.shared.cache_store import leased
from tests.shared.cache_store import put
from tests.shared.cache_store import state
from tests.shared.cache_store import states
from tests.shared.cache_store import token
from tests.shared.following import in_child
from tests.shared.redis import client_of
from tests.shared.redis import grow_old
from tests.shared.redis import old_server
from tests.shared.sockets import count_sockets_to

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("redis_installed")]

#: A server that is well must answer within the timeout on a busy machine, too.
TIMEOUT, RETRY = 1.0, 0.4
#: Beside the timeouts themselves, on a busy machine.
SLACK = 3.0
#: For a test in which no server fails to answer.
PATIENT = 5.0
#: A machine that is busy may take so long.
SECONDS = 30


@contextlib.contextmanager
def connected(server, **options):
    options = {"timeout": TIMEOUT, "retry": RETRY, "longest": 5, **options}
    # A client that waits for long and tries again, as they come.
    with redis.Redis(server.host, server.port) as client:
        store = RedisStore(client, **options)
        with contextlib.closing(store):
            yield store


@contextlib.contextmanager
def within(seconds):
    start = monotonic()
    yield
    assert monotonic() - start < seconds + SLACK


@pytest.fixture
def server():
    with old_server() as server:
        yield server


@pytest.mark.parametrize("fault", ["killed", "paused", "refused", "hung"])
def test_a_server_that_fails_costs_a_timeout_and_no_error(
    server, fault, caplog
):
    with (
        Proxy(server.host, server.port) as proxy,
        connected(proxy) as store,
    ):
        put(store, "a", b"1")
        lease = leased(store, ["b"])["b"]
        if fault == "killed":
            server.kill()
        elif fault == "paused":
            server.pause()
        elif fault == "refused":
            proxy.refuse()
            proxy.cut()
        else:
            proxy.hang()
        with within(2 * TIMEOUT):
            assert state(store, "a") is State.LOST
        # It is left alone from now on.
        with within(0):
            for _ in range(50):
                assert state(store, "a") is State.LOST
                assert store.fill({"b": (lease, b"1")}, 60) == set()
                # Of another key: should one of them come to be the try after a
                # while, the server does it when it goes on.
                assert store.block(["c"], token(), 5) == {"c"}
                assert store.unblock(["c"], token()) == {"c"}
        assert "is left alone for 0.4 s" in caplog.text
        expected = State.VALUE
        if fault == "killed":
            server.start()
            grow_old(server)
            expected = State.LEASED
        elif fault == "paused":
            server.resume()
        else:
            proxy.restore()
        assert wait_until(
            lambda: state(store, "a") is expected, seconds=SECONDS
        )


@pytest.mark.parametrize("call", ["block", "unblock", "fill"])
def test_calls_that_write_are_bounded_too(server, call):
    with connected(server) as store:
        lease = leased(store, ["a"])["a"]
        server.pause()
        with within(2 * TIMEOUT):
            if call == "block":
                assert store.block(["a"], token(), 5) == {"a"}
            elif call == "unblock":
                assert store.unblock(["a"], token()) == {"a"}
            else:
                assert store.fill({"a": (lease, b"1")}, 60) == set()


def test_one_caller_tries_a_server_again(server):
    # So long that a caller which is late is still one of those who leave it
    # alone, and that nobody is taken for one who has waited.
    retry, timeout = 1.0, 2.0
    with connected(server, timeout=timeout, retry=retry) as store:
        assert state(store, "a") is State.LEASED
        server.pause()
        assert state(store, "a") is State.LOST
        waited = threading.Event()
        assert not waited.wait(retry + 0.05)
        times = []
        barrier = threading.Barrier(6)

        def ask():
            barrier.wait(10)
            start = monotonic()
            store.fetch(["a"], 30)
            times.append(monotonic() - start)

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        # Races are possible: two may find at once that it is time.
        assert sum(taken >= timeout / 2 for taken in times) <= 2, times
        assert sum(taken < timeout / 2 for taken in times) >= 4, times


@pytest.mark.parametrize("how", ["restart", "kill", "flush"])
def test_one_that_has_forgotten_gives_no_leases_for_a_while(server, how):
    # So long that it is young until everybody has asked.
    longest = 4
    with connected(server, longest=longest, timeout=PATIENT) as store:
        put(store, "a", b"1")
        stale = leased(store, ["b"])["b"]
        getattr(server, how)()
        server.start()
        start = monotonic()
        assert state(store, "a") is State.BLOCKED
        assert state(store, "b") is State.BLOCKED
        assert store.fill({"b": (stale, b"old")}, 60) == set()
        # Another process hears of it, too.
        with connected(server, longest=longest, timeout=PATIENT) as other:
            assert state(other, "c") is State.BLOCKED
        assert wait_until(
            lambda: state(store, "d") is State.LEASED, seconds=SECONDS
        )
        assert monotonic() - start >= longest
        # What had idle connections to it has not failed.
        assert store.failures == 0


@pytest.mark.parametrize("how", ["saved", "appended"])
def test_old_values_that_are_back_are_not_served(how):
    """Those of a dump, and those of a log that somebody has cut off."""
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
            # What comes after it is forgotten.
            assert store.block(["a"], token(), 60) == set()
        server.kill()
        server.start()
        assert client.get("sqla_shard:a").endswith(b"old")
        found = states(store.fetch("abc", 30))
        assert set(found.values()) == {State.BLOCKED}
        assert store.fill({"b": (stale, b"old")}, 60) == set()
        # Nor when it has been up for long.
        grow_old(server)
        found = states(store.fetch("ab", 30))
        assert found == {"a": State.LEASED, "b": State.LEASED}
        assert store.fill({"b": (stale, b"old")}, 60) == set()
        # A tombstone is one in any life.
        assert state(store, "c") is State.BLOCKED
        assert store.unblock("abc", ours) == set()
        assert state(store, "c") is State.LEASED


def test_a_replica_serves_nothing_and_promises_nothing(server):
    with old_server() as other, connected(server, timeout=5.0) as store:
        put(store, "a", b"1")
        with (
            client_of(other) as client,
            connected(other, timeout=5.0) as behind,
        ):
            client.replicaof(server.host, server.port)
            assert wait_until(
                lambda: client.get("sqla_shard:a") is not None, seconds=SECONDS
            )
            assert state(behind, "a") is State.BLOCKED
            assert behind.block(["a"], token(), 5) == {"a"}
            assert behind.unblock(["a"], token()) == {"a"}
            assert behind.failures == 0
            # Once promoted it has to wait as one that was started.
            client.replicaof("no", "one")
            assert wait_until(
                lambda: client.role()[0] == b"master", seconds=SECONDS
            )
            assert state(behind, "a") is State.BLOCKED
            grow_old(other)
            assert state(behind, "a") is State.LEASED


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
        assert state(store, "a0") is State.VALUE
        assert state(store, "new") is State.BLOCKED
        assert store.fill({"lease": (lease, b"1")}, 60) == set()
        assert store.block(["a1"], ours, 5) == {"a1"}
        # No tombstone, but no value either.
        assert state(store, "a1") is State.BLOCKED
        assert store.unblock(["a2"], ours) == set()
        assert state(store, "a2") is State.BLOCKED
        assert store.unblock(["both"], ours) == {"both"}
        assert state(store, "both") is State.BLOCKED
        assert store.failures == 0


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-lru"])
def test_a_server_that_forgets_its_guard_gives_no_leases(policy):
    with (
        old_server(["--maxmemory-policy", policy], megabytes=8) as server,
        connected(server, timeout=5.0) as store,
        client_of(server) as client,
    ):
        assert state(store, "before") is State.LEASED
        for number in range(3000):
            client.set(f"other:{number}", b"x" * 10_000, ex=60)
        # Or the next question may make it forget the guard after all.
        client.config_set("maxmemory", "64mb")
        kept = client.get("sqla_shard: guard") is not None
        expected = State.LEASED if kept else State.BLOCKED
        assert state(store, "after") is expected
        assert kept or policy != "volatile-lru"


def test_a_server_that_forbids_what_is_needed(server, caplog):
    with client_of(server) as client:
        client.execute_command(
            *("ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all"),
            "-info",
        )
    with redis.Redis(
        port=server.port, username="app", password="secret"
    ) as client:
        store = RedisStore(client, timeout=5.0)
        assert state(store, "a") is State.LOST
        assert "can't run this command" in caplog.text
        store.close()


def test_more_threads_than_that(server):
    with connected(server, timeout=5.0) as store:
        put(store, "a", b"1")
        wrong = []

        def ask():
            for number in range(50):
                found = store.fetch(["a", f"x{number % 7}"], 30)
                if found["a"].value != b"1":
                    wrong.append(found)

        threads = [threading.Thread(target=ask) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert wrong == []


FORKING = """
import os, sys
import redis
from sqla_shard.cache.redis import RedisStore
store = RedisStore(redis.Redis(port=int(sys.argv[1])), timeout=5.0)
keys = [f"key:{i}" for i in range(20)]
found = store.fetch(keys, 30)
store.fill({k: (found[k].lease, k.encode()) for k in keys}, 60)
children = []
for number in range(4):
    pid = os.fork()
    if pid == 0:
        break
    children.append(pid)
wrong = 0
for turn in range(200):
    some = keys[turn % 7 :]
    found = store.fetch(some, 30)
    wrong += any(found[k].value != k.encode() for k in some)
if pid == 0:
    os._exit(wrong > 0)
for child in children:
    wrong += os.waitpid(child, 0)[1] != 0
store.close()
sys.exit(wrong > 0)
"""


def test_a_forked_process_has_connections_of_its_own(server):
    done = subprocess.run(
        [sys.executable, "-c", FORKING, str(server.port)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_a_child_process_has_no_copy_of_a_connection(server, tmp_path):
    """Not even of one that a thread of its parent uses at the fork."""
    with connected(server) as store:
        assert state(store, "a") is State.LEASED
        waiting = store._client.connection_pool.get_connection()
        assert count_sockets_to(server.port) == 1
        assert state(store, "b") is State.LEASED
        assert count_sockets_to(server.port) == 2

        def child():
            assert count_sockets_to(server.port) == 0
            assert state(store, "c") is State.LEASED

        in_child(child, tmp_path)
        waiting.send_command("PING")
        assert waiting.read_response() == b"PONG"
        store._client.connection_pool.release(waiting)
        assert state(store, "d") is State.LEASED
        assert count_sockets_to(server.port) == 2


def test_nobody_listens():
    with redis.Redis(port=free_port()) as client:
        store = RedisStore(client, timeout=TIMEOUT)
        with within(TIMEOUT):
            assert state(store, "a") is State.LOST


def test_clients_of_several_servers_are_refused():
    sentinel = redis.Sentinel([("127.0.0.1", 1)])
    for client in (sentinel.master_for("main"), object()):
        with pytest.raises(exc.CacheOptionError, match="single") as caught:
            RedisStore(client)
        assert caught.value.option == "client"


@pytest.mark.parametrize("option", ["longest", "timeout", "retry"])
def test_times_that_cannot_be(option):
    with pytest.raises(exc.CacheOptionError) as caught:
        RedisStore(redis.Redis(), **{option: 0})
    assert caught.value.option == option
