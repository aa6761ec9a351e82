"""Nodes that fail: the delay, and the values that may be read afterwards."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import ClassVar

import pytest

from sqla_shard.cache.stores import KeyState
from sqla_shard.cache.stores.memcached import MemcachedStore
from sqla_shard.testing import MemcachedServer
from sqla_shard.testing.local_server import free_port, wait_until
from tests.servers.following import in_child
from tests.servers.memcached import grow_old, nodes, stats
from tests.servers.processes import count_sockets_to
from tests.suites import cache_store_faults
from tests.suites.cache_store import leased, put, state, states, token
from tests.suites.cache_store_faults import PATIENT, RETRY, SECONDS, TIMEOUT, within

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("memcached_installed")]


@contextlib.contextmanager
def connected(servers, **options):
    options = {"timeout": TIMEOUT, "retry": RETRY, "longest": 5, **options}
    store = MemcachedStore([one.address for one in servers], **options)
    with contextlib.closing(store):
        yield store


@pytest.fixture
def server():
    with nodes(1) as servers:
        yield servers[0]


@pytest.fixture(name="connected")
def opening():
    return lambda server, **options: connected([server], **options)


@pytest.fixture(name="grow_old")
def growing():
    return grow_old


@pytest.fixture(params=["restart", "flush"])
def forget(request):
    def forget(server):
        getattr(server, request.param)()

    return forget


class TestFaults(cache_store_faults.Faults):
    more: ClassVar[dict[str, int]] = {"connections": 2}
    opens = """
from sqla_shard.cache.stores.memcached import MemcachedStore
store = MemcachedStore([f"127.0.0.1:{sys.argv[1]}"], timeout=5.0)
"""

    def failures(self, store):
        return sum(node.breaker.failures for node in store._nodes)

    def check_free(self, store):
        assert len(store._nodes[0]._pool.free) <= 2


@pytest.mark.parametrize("fault", ["killed", "paused"])
def test_the_other_nodes_go_on(fault):
    with nodes(3) as servers, connected(servers) as store:
        keys = [f"key:{i}" for i in range(60)]
        leases = leased(store, keys)
        store.fill({key: (leases[key], b"1") for key in keys}, 60)
        name = servers[1].address
        servers[1].pause() if fault == "paused" else servers[1].kill()
        for _ in range(3):
            with within(2 * TIMEOUT):
                found = states(store.fetch(keys, 30))
            for key in keys:
                lost = store.node_of(key) == name
                assert found[key] is (KeyState.LOST if lost else KeyState.VALUE)
        shares = [sum(store.node_of(k) == s.address for k in keys) for s in servers]
        assert min(shares) > 5, shares


def test_all_nodes_hung_cost_little_more_than_one():
    with contextlib.ExitStack() as stack:
        servers = stack.enter_context(nodes(3))
        # One after the other they would take longer than the slack.
        store = stack.enter_context(connected(servers, timeout=2.0))
        keys = [f"key:{i}" for i in range(60)]
        leased(store, keys)
        for server in servers:
            server.pause()
        with within(2.0):
            found = store.fetch(keys, 30)
        assert set(states(found).values()) == {KeyState.LOST}


def _number(store, key):
    return store.items([key])[key].cas


def test_a_lease_of_an_earlier_life_is_of_no_use(server):
    with (
        connected([server], timeout=PATIENT) as store,
        connected([server], timeout=PATIENT) as other,
    ):
        server.restart()
        grow_old(server)
        old = leased(store, ["a"])["a"]
        number = _number(store, "a")
        server.restart()
        # Its items are counted anew, and in the same way.
        grow_old(server)
        new = leased(other, ["a"])["a"]
        assert _number(other, "a") == number
        # A connection of the new life is open, and waits for work.
        assert state(store, "b") is KeyState.LEASED
        assert store.fill({"a": (old, b"old")}, 60) == set()
        assert other.fill({"a": (new, b"new")}, 60) == {"a"}


def test_a_lease_is_used_on_any_connection(server):
    with connected([server], timeout=5.0) as store:
        leases = leased(store, ["a", "b"])
        node = store._nodes[0]
        # Two callers at once, so that there is a newer one.
        older, newer = node.begin(["c"]), node.begin(["c"])
        for connection in (older, newer):
            node.finish(connection, lambda one: one.read_get(["c"]))
        assert len(node._pool.free) == 2
        assert store.fill({"a": (leases["a"], b"1")}, 60) == {"a"}
        assert len(node._pool.free) == 2
        store.close()
        assert len(node._pool.free) == 0
        assert store.fill({"b": (leases["b"], b"1")}, 60) == {"b"}


def test_a_lease_of_another_is_not_filled_by_its_number(server):
    with connected([server], timeout=5.0) as store:
        old = leased(store, ["a"])["a"]
        server.flush()
        grow_old(server)
        new = leased(store, ["a"])["a"]
        mixed = old._replace(cas=_number(store, "a"))
        assert store.fill({"a": (mixed, b"old")}, 60) == set()
        assert store.fill({"a": (new, b"new")}, 60) == {"a"}


def test_a_node_without_numbers_of_items_gives_no_leases():
    with MemcachedServer(options=["-C"]) as server:
        grow_old(server)
        with connected([server], timeout=5.0) as store:
            for _ in range(2):
                assert state(store, "a") is not KeyState.LEASED
            assert store.block(["a"], token(), 5) == {"a"}


def test_a_lease_that_was_paused_for_too_long(server):
    with connected([server], timeout=5.0) as store:
        old = leased(store, ["a"], lease=1)["a"]
        assert wait_until(lambda: state(store, "a") is KeyState.LEASED, seconds=SECONDS)
        assert store.fill({"a": (old, b"old")}, 60) == set()


def test_no_memory_is_no_error():
    with MemcachedServer(megabytes=4, options=["-M"]) as server:
        grow_old(server)
        with connected([server], timeout=2.0) as store:
            seen = set()
            for number in range(400):
                key = f"key:{number}"
                one = store.fetch([key], 30)[key]
                seen.add(one.state)
                if one.lease:
                    store.fill({key: (one.lease, b"x" * 20_000)}, 60)
            assert KeyState.LEASED in seen
            assert KeyState.LOST not in seen
            failed = store.block([f"b{i}" for i in range(400)], token(), 5)
            found = states(store.fetch([f"b{i}" for i in range(400)], 30))
            for key, what in found.items():
                assert what is KeyState.BLOCKED or key in failed


def test_a_unix_socket(tmp_path):
    # The server that we start speaks TCP: something stands before it.
    path = str(tmp_path / "socket")
    with nodes(1) as servers, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        thread = threading.Thread(target=_pass_on, args=(listener, servers[0]))
        thread.start()
        store = MemcachedStore([path], timeout=5.0)
        with contextlib.closing(store):
            put(store, "a", b"1")
            assert state(store, "a") is KeyState.VALUE
        thread.join(60)


def _pass_on(listener, server):
    ours, _ = listener.accept()
    theirs = socket.create_connection((server.host, server.port))
    with ours, theirs:
        back = threading.Thread(target=_copy, args=(theirs, ours))
        back.start()
        _copy(ours, theirs)
        theirs.shutdown(socket.SHUT_WR)
        back.join(60)


def _copy(source, target):
    while data := source.recv(65_536):
        target.sendall(data)


def test_a_child_process_has_no_copy_of_a_connection(server, tmp_path):
    """Not even of one that a thread of its parent uses at the fork."""
    with connected([server]) as store:
        assert state(store, "a") is KeyState.LEASED
        (node,) = store._nodes
        waiting = node.begin(["nothing"])
        assert waiting is not None
        assert state(store, "b") is KeyState.LEASED
        assert count_sockets_to(server.port) == 2

        def child():
            assert count_sockets_to(server.port) == 0
            assert state(store, "c") is KeyState.LEASED

        in_child(child, tmp_path)
        answer = node.finish(waiting, lambda one: one.read_get(["nothing"]))
        assert answer == {}
        assert state(store, "d") is KeyState.LEASED
        assert count_sockets_to(server.port) == 2


def test_no_listeners():
    store = MemcachedStore([f"127.0.0.1:{free_port()}"], timeout=TIMEOUT)
    with within(TIMEOUT):
        assert state(store, "a") is KeyState.LOST
    store.close()


def test_requests_for_hits(server):
    with connected([server], timeout=5.0) as store:
        keys = [f"key:{i}" for i in range(50)]
        leases = leased(store, keys)
        store.fill({key: (leases[key], b"1") for key in keys}, 60)
        before = _counts(server)
        store.fetch(keys, 30)
        after = _counts(server)
        assert after["cmd_get"] - before["cmd_get"] == 50
        assert after["cmd_meta"] - before["cmd_meta"] == 0
        assert after["total_connections"] - before["total_connections"] == 1


def _counts(server):
    found = stats(server)
    return {
        name: int(found.get(name, 0))
        for name in ("cmd_get", "cmd_meta", "total_connections")
    }
