"""Nodes that fail: what it costs, and what may be read afterwards."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from itertools import count
from time import monotonic

import pytest

from sqla_shard.cache.memcached import MemcachedStore
from sqla_shard.cache.store import State
from sqla_shard.testing import MemcachedServer
from sqla_shard.testing import Proxy
from sqla_shard.testing._processes import free_port
from sqla_shard.testing._processes import wait_until
from tests.shared.cache_store import leased
from tests.shared.cache_store import put
from tests.shared.cache_store import state
from tests.shared.cache_store import states
from tests.shared.cache_store import token
from tests.shared.following import in_child
from tests.shared.memcached import grow_old
from tests.shared.memcached import nodes
from tests.shared.memcached import stats
from tests.shared.sockets import count_sockets_to

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("memcached_installed")]

#: A node that is well must answer within the timeout on a busy machine, too.
TIMEOUT, RETRY = 1.0, 0.4
#: Beside the timeouts themselves, on a busy machine.
SLACK = 3.0
#: For a test in which no node fails to answer.
PATIENT = 5.0
#: A machine that is busy may take so long.
SECONDS = 30


@contextlib.contextmanager
def connected(servers, **options):
    options = {"timeout": TIMEOUT, "retry": RETRY, "longest": 5, **options}
    store = MemcachedStore([one.address for one in servers], **options)
    with contextlib.closing(store):
        yield store


@contextlib.contextmanager
def within(seconds):
    start = monotonic()
    yield
    assert monotonic() - start < seconds + SLACK


class Behind(Proxy):
    """A proxy that has an address as a node has one."""

    @property
    def address(self):
        return f"{self.host}:{self.port}"


@contextlib.contextmanager
def failing(server, proxy, fault):
    """Make a node behind a proxy fail."""
    if fault == "killed":
        server.kill()
    elif fault == "paused":
        server.pause()
    elif fault == "refused":
        proxy.refuse()
        proxy.cut()
    elif fault == "hung":
        proxy.hang()
    yield
    if fault == "killed":
        server.start()
        grow_old(server)
    elif fault == "paused":
        server.resume()
    elif fault in ("refused", "hung"):
        proxy.restore()


@pytest.fixture
def server():
    with nodes(1) as servers:
        yield servers[0]


@pytest.fixture
def proxy(server):
    with Behind(server.host, server.port) as proxy:
        yield proxy


@pytest.mark.parametrize("fault", ["killed", "paused", "refused", "hung"])
def test_a_node_that_fails_costs_a_timeout_and_no_error(
    server, proxy, fault, caplog
):
    with connected([proxy]) as store:
        put(store, "a", b"1")
        lease = leased(store, ["b"])["b"]
        with failing(server, proxy, fault):
            with within(2 * TIMEOUT):
                assert state(store, "a") is State.LOST
            # It is left alone from now on.
            with within(0):
                for _ in range(50):
                    assert state(store, "a") is State.LOST
                    assert store.fill({"b": (lease, b"1")}, 60) == set()
                    # Of another key: should one of them come to be the try
                    # after a while, the node does it when it goes on.
                    assert store.block(["c"], token(), 5) == {"c"}
                    assert store.unblock(["c"], token()) == {"c"}
            assert "is left alone for 0.4 s" in caplog.text
        expected = State.VALUE
        if fault == "killed":
            expected = State.LEASED
        assert wait_until(
            lambda: state(store, "a") is expected, seconds=SECONDS
        )


@pytest.mark.parametrize("call", ["block", "unblock", "fill"])
def test_calls_that_write_are_bounded_too(server, call):
    with connected([server]) as store:
        lease = leased(store, ["a"])["a"]
        server.pause()
        with within(2 * TIMEOUT):
            if call == "block":
                assert store.block(["a"], token(), 5) == {"a"}
            elif call == "unblock":
                assert store.unblock(["a"], token()) == {"a"}
            else:
                assert store.fill({"a": (lease, b"1")}, 60) == set()


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
                assert found[key] is (State.LOST if lost else State.VALUE)
        shares = [
            sum(store.node_of(k) == s.address for k in keys) for s in servers
        ]
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
        assert set(states(found).values()) == {State.LOST}


def test_one_caller_tries_a_node_again(server):
    # So long that a caller which is late is still one of those who leave it
    # alone, and that nobody is taken for one who has waited.
    retry, timeout = 1.0, 2.0
    with connected([server], timeout=timeout, retry=retry) as store:
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


@pytest.mark.parametrize("how", ["restart", "flush"])
def test_one_that_has_forgotten_gives_no_leases_for_a_while(server, how):
    # So long that it is young until everybody has asked.
    longest = 4
    with connected([server], longest=longest, timeout=PATIENT) as store:
        put(store, "a", b"1")
        stale = leased(store, ["b"])["b"]
        getattr(server, how)()
        start = monotonic()
        assert state(store, "a") is State.BLOCKED
        assert state(store, "b") is State.BLOCKED
        assert store.fill({"b": (stale, b"old")}, 60) == set()
        # Another process hears of it, too.
        with connected([server], longest=longest, timeout=PATIENT) as other:
            assert state(other, "c") is State.BLOCKED
        # Another key each time: one that it is asked for too early, since its
        # seconds are longer than ours, is busy as long as a lease lasts.
        keys = map("d{}".format, count())
        assert wait_until(
            lambda: state(store, next(keys)) is State.LEASED, seconds=SECONDS
        )
        assert monotonic() - start >= longest
        # What had idle connections to it has not failed.
        assert [node.failures for node in store._nodes] == [0]


def test_a_lease_of_an_earlier_life_is_of_no_use(server):
    with (
        connected([server], timeout=PATIENT) as store,
        connected([server], timeout=PATIENT) as other,
    ):
        server.restart()
        grow_old(server)
        old = leased(store, ["a"])["a"]
        server.restart()
        # Its items are counted anew, and in the same way.
        grow_old(server)
        new = leased(other, ["a"])["a"]
        assert new.cas == old.cas
        # A connection of the new life is open, and waits for work.
        assert state(store, "b") is State.LEASED
        assert store.fill({"a": (old, b"old")}, 60) == set()
        assert other.fill({"a": (new, b"new")}, 60) == {"a"}


def test_a_lease_is_used_on_an_older_connection(server):
    with connected([server], timeout=5.0) as store:
        lease = leased(store, ["a"])["a"]
        node = store._nodes[0]
        # Two callers at once, so that there is a newer one; it is on top.
        older, newer = node.begin(b"get b\r\n"), node.begin(b"get b\r\n")
        for connection in (older, newer):
            node.finish(connection, lambda one: list(one.values({"b"})))
        assert node.opened == 2
        assert store.fill({"a": (lease, b"1")}, 60) == {"a"}
        assert len(node._idle) == 2


def test_a_node_without_numbers_of_items_gives_no_leases():
    with MemcachedServer(options=["-C"]) as server:
        grow_old(server)
        with connected([server], timeout=5.0) as store:
            for _ in range(2):
                assert state(store, "a") is not State.LEASED
            assert store.block(["a"], token(), 5) == {"a"}


def test_a_lease_that_was_paused_for_too_long(server):
    with connected([server], timeout=5.0) as store:
        old = leased(store, ["a"], lease=1)["a"]
        assert wait_until(
            lambda: state(store, "a") is State.LEASED, seconds=SECONDS
        )
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
            assert State.LEASED in seen
            assert State.LOST not in seen
            failed = store.block([f"b{i}" for i in range(400)], token(), 5)
            found = states(store.fetch([f"b{i}" for i in range(400)], 30))
            for key, what in found.items():
                assert what is State.BLOCKED or key in failed


def test_more_threads_than_connections(server):
    with connected([server], connections=2, timeout=5.0) as store:
        put(store, "a", b"1")
        wrong = []

        def ask():
            for number in range(100):
                found = store.fetch(["a", f"x{number % 7}"], 30)
                if found["a"].value != b"1":
                    wrong.append(found)

        threads = [threading.Thread(target=ask) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert wrong == []
        assert len(store._nodes[0]._idle) <= 2


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
            assert state(store, "a") is State.VALUE
        thread.join(10)


def _pass_on(listener, server):
    ours, _ = listener.accept()
    theirs = socket.create_connection((server.host, server.port))
    with ours, theirs:
        back = threading.Thread(target=_copy, args=(theirs, ours))
        back.start()
        _copy(ours, theirs)
        theirs.shutdown(socket.SHUT_WR)
        back.join(10)


def _copy(source, target):
    while data := source.recv(65_536):
        target.sendall(data)


FORKING = """
import os, sys
from sqla_shard.cache.memcached import MemcachedStore
store = MemcachedStore([sys.argv[1]], timeout=5.0)
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
for turn in range(300):
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
        [sys.executable, "-c", FORKING, server.address],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_a_child_process_has_no_copy_of_a_connection(server, tmp_path):
    """Not even of one that a thread of its parent uses at the fork."""
    with connected([server]) as store:
        assert state(store, "a") is State.LEASED
        (node,) = store._nodes
        waiting = node.begin(b"mg nothing v\r\n")
        assert waiting is not None
        assert state(store, "b") is State.LEASED
        assert count_sockets_to(server.port) == 2

        def child():
            assert count_sockets_to(server.port) == 0
            assert state(store, "c") is State.LEASED

        in_child(child, tmp_path)
        (answer,) = node.finish(waiting, lambda one: one._answers(1))
        assert answer.code == b"EN"
        assert state(store, "d") is State.LEASED
        assert count_sockets_to(server.port) == 2


def test_nobody_listens():
    store = MemcachedStore([f"127.0.0.1:{free_port()}"], timeout=TIMEOUT)
    with within(TIMEOUT):
        assert state(store, "a") is State.LOST
    store.close()


def test_what_is_sent_for_hits(server):
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
