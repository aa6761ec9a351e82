"""Servers of a cache that fail: what that costs, and what is read afterwards.

A module of tests has the fixtures ``server``, ``connected``, a function that
opens a store on a server or on a proxy before it, and ``grow_old``, a
function that makes a started server give leases again.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from itertools import count
from time import monotonic
from typing import ClassVar

import pytest

from sqla_shard.cache.stores import KeyState
from sqla_shard.testing import Proxy
from sqla_shard.testing.local_server import wait_until
from tests.suites.cache_store import leased, put, state, token

#: A server that is well must answer within the timeout on a busy machine, too.
TIMEOUT, RETRY = 1.0, 0.4
#: In addition to the timeouts themselves, on a busy machine.
SLACK = 30.0
#: For a test in which no server fails to answer.
PATIENT = 5.0
#: A machine that is busy may take so long.
SECONDS = 60

#: A program that uses a store in five processes at once.
FORKING = """
import os, sys
{store}
keys = [f"key:{{i}}" for i in range(20)]
found = store.fetch(keys, 30)
store.fill({{k: (found[k].lease, k.encode()) for k in keys}}, 60)
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


class Behind(Proxy):
    """A proxy that has an address as a server has one."""

    @property
    def address(self):
        return f"{self.host}:{self.port}"


@contextlib.contextmanager
def within(seconds):
    start = monotonic()
    yield
    assert monotonic() - start < seconds + SLACK


class Faults:
    """
    :cvar more: arguments for a store that more threads use than it has
        connections.
    :cvar opens: Python text that binds ``store``, on the port
        ``sys.argv[1]``.
    """

    more: ClassVar[dict[str, int]] = {}
    opens: str

    def failures(self, store):
        """Return how many errors a store has counted."""
        return store.failures

    @pytest.mark.parametrize("fault", ["killed", "paused", "refused", "hung"])
    def test_a_failure_costs_a_timeout_and_no_error(
        self, server, connected, grow_old, fault, caplog
    ):
        with Behind(server.host, server.port) as proxy, connected(proxy) as store:
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
                assert state(store, "a") is KeyState.LOST
            # It is left alone from now on.
            with within(0):
                for _ in range(50):
                    assert state(store, "a") is KeyState.LOST
                    assert store.fill({"b": (lease, b"1")}, 60) == set()
                    # Of another key: should one of them be the retry after
                    # a while, the server executes it when it runs again.
                    assert store.block(["c"], token(), 5) == {"c"}
                    assert store.unblock(["c"], token()) == {"c"}
            assert "is skipped for 0.4 s" in caplog.text
            expected = KeyState.VALUE
            if fault == "killed":
                server.start()
                grow_old(server)
                expected = KeyState.LEASED
            elif fault == "paused":
                server.resume()
            else:
                proxy.restore()
            assert wait_until(lambda: state(store, "a") is expected, seconds=SECONDS)

    @pytest.mark.parametrize("call", ["block", "unblock", "fill"])
    def test_calls_that_write_are_bounded_too(self, server, connected, call):
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

    def test_one_caller_tries_it_again(self, server, connected):
        # So long that a late caller still finds it left alone, and that no
        # caller is counted as one that has waited.
        retry, timeout = 1.0, 4.0
        with connected(server, timeout=timeout, retry=retry) as store:
            assert state(store, "a") is KeyState.LEASED
            server.pause()
            assert state(store, "a") is KeyState.LOST
            waited = threading.Event()
            assert not waited.wait(retry + 0.05)
            times = []
            barrier = threading.Barrier(6)

            def ask():
                barrier.wait(60)
                start = monotonic()
                store.fetch(["a"], 30)
                times.append(monotonic() - start)

            threads = [threading.Thread(target=ask) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            # Races are possible: two may find at once that it is time.
            assert sum(taken >= timeout / 2 for taken in times) <= 2, times
            assert sum(taken < timeout / 2 for taken in times) >= 4, times

    def test_one_that_has_forgotten_gives_no_leases_for_a_while(
        self, server, connected, forget
    ):
        # So long that it is young until all have asked.
        longest = 4
        with connected(server, longest=longest, timeout=PATIENT) as store:
            put(store, "a", b"1")
            stale = leased(store, ["b"])["b"]
            forget(server)
            start = monotonic()
            assert state(store, "a") is KeyState.BLOCKED
            assert state(store, "b") is KeyState.BLOCKED
            assert store.fill({"b": (stale, b"old")}, 60) == set()
            # Another process detects it, too.
            with connected(server, longest=longest, timeout=PATIENT) as other:
                assert state(other, "c") is KeyState.BLOCKED
            # Another key each time: one that is read too early, since the
            # server's seconds are longer than ours, is leased for a while.
            keys = map("d{}".format, count())
            assert wait_until(
                lambda: state(store, next(keys)) is KeyState.LEASED, seconds=SECONDS
            )
            assert monotonic() - start >= longest
            # Idle connections to it are no failures.
            assert self.failures(store) == 0

    def test_more_threads_than_connections(self, server, connected):
        with connected(server, timeout=5.0, **self.more) as store:
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
                thread.join(60)
            assert wrong == []
            self.check_free(store)

    def check_free(self, store):
        """Check the connections that threads have left."""

    def test_a_forked_process_has_connections_of_its_own(self, server):
        program = FORKING.format(store=self.opens)
        done = subprocess.run(
            [sys.executable, "-c", program, str(server.port)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
