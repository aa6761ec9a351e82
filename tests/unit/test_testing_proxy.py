"""The proxy delays, hangs, refuses and cuts as its documentation says."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import statistics
import struct
import subprocess
import sys
import threading
from pathlib import Path
from time import monotonic

import pytest

from sqla_shard import exc
from sqla_shard.testing import Proxy
from sqla_shard.testing.local_server import wait_until
from tests.servers.processes import is_running

ROOT = Path(__file__).parents[2]
PATIENCE = 60


class Echo:
    """Sends received data back, and records the times."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.accepted = []
        self.arrived = []
        self.ended = []
        self._connections = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.accepted.append(monotonic())
            self._connections.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection):
        with connection:
            try:
                while data := connection.recv(65_536):
                    self.arrived.append((monotonic(), data))
                    connection.sendall(data)
                self.ended.append("closed")
            except ConnectionResetError:
                self.ended.append("reset")
            except OSError:
                self.ended.append("stopped")

    def close(self):
        for made in (self.listener, *self._connections):
            with contextlib.suppress(OSError):
                made.shutdown(socket.SHUT_RDWR)
            made.close()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()


@pytest.fixture
def echo():
    with contextlib.closing(Echo()) as server:
        yield server


@pytest.fixture
def proxy(echo):
    with Proxy("127.0.0.1", echo.port) as proxy:
        yield proxy


@contextlib.contextmanager
def client(proxy, timeout=PATIENCE):
    address = (proxy.host, proxy.port)
    with socket.create_connection(address, timeout=timeout) as made:
        yield made


def receive(connection, size):
    data = bytearray()
    while len(data) < size:
        more = connection.recv(min(size - len(data), 1_000_000))
        assert more
        data += more
    return bytes(data)


def ask(connection, data=b"ping"):
    """Return how long an answer took, in seconds."""
    start = monotonic()
    connection.sendall(data)
    assert receive(connection, len(data)) == data
    return monotonic() - start


def silent(connection, data=b"ping"):
    connection.settimeout(0.2)
    with pytest.raises(TimeoutError):
        ask(connection, data)
    return True


def refused(port):
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return True
    return False


# -- passing on -----------------------------------------------------------


def test_passes_bytes_on_and_counts_them(proxy):
    with client(proxy) as first, client(proxy) as second:
        ask(first, b"12345")
        ask(second, b"678")
        counts = proxy.counts
        assert (counts.connections, counts.open) == (2, 2)
        assert (counts.sent, counts.received) == (8, 8)
        assert counts.swallowed == 0
    assert wait_until(lambda: proxy.counts.open == 0, seconds=PATIENCE)


def test_many_bytes_come_through_in_order(proxy):
    proxy.delay = 0.02
    data = os.urandom(20_000_000)
    with client(proxy) as connection:
        thread = threading.Thread(target=connection.sendall, args=(data,))
        thread.start()
        assert receive(connection, len(data)) == data
        thread.join()


def test_many_bytes_that_are_there_before_the_server(echo):
    data = os.urandom(20_000_000)
    with Proxy("127.0.0.1", echo.port, delay=0.3) as proxy, client(proxy) as connection:
        thread = threading.Thread(target=connection.sendall, args=(data,))
        thread.start()
        assert receive(connection, len(data)) == data
        thread.join()


def test_end_of_one_direction_leaves_the_other_open(proxy, echo):
    proxy.delay = 0.05
    with client(proxy) as connection:
        connection.sendall(b"last words")
        connection.shutdown(socket.SHUT_WR)
        assert receive(connection, 10) == b"last words"
        assert connection.recv(1) == b""
    assert echo.ended == ["closed"]


def test_reset_by_the_client_reaches_the_server(proxy, echo):
    with client(proxy) as connection:
        ask(connection)
        linger = struct.pack("ii", 1, 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    assert wait_until(lambda: echo.ended == ["reset"], seconds=PATIENCE)


def test_listens_on_loopback_only(proxy):
    listening = re.findall(
        rf"([0-9A-F]+):{proxy.port:04X} \S+ 0A",
        Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text(),
    )
    assert listening == ["0100007F"]


# -- delay ----------------------------------------------------------------


def test_without_delay_answers_come_at_once(proxy):
    with client(proxy) as connection:

        def median():
            return statistics.median(ask(connection) for _ in range(20))

        # Nor do they where the machine is busy, but for some moments.
        assert wait_until(lambda: median() < 0.05, seconds=PATIENCE)


def test_round_trip_takes_the_delay_longer(echo):
    with (
        Proxy("127.0.0.1", echo.port, delay=0.06) as proxy,
        client(proxy) as connection,
    ):
        ask(connection)
        times = [ask(connection) for _ in range(5)]
    assert min(times) >= 0.06
    assert statistics.median(times) < 0.3


def test_small_delays_are_not_rounded_to_milliseconds(echo):
    with (
        Proxy("127.0.0.1", echo.port, delay=0.0004) as proxy,
        client(proxy) as connection,
    ):
        times = [ask(connection) for _ in range(200)]
        # Rounded, each half of it would be a whole millisecond; so much is
        # added by a machine that is busy, but not for ever.
        deadline = monotonic() + PATIENCE
        while min(times) >= 0.0019 and monotonic() < deadline:
            times.append(ask(connection))
    assert min(times) >= 0.0004
    assert min(times) < 0.0019


def test_half_of_it_is_on_each_way(proxy, echo):
    with client(proxy) as connection:
        ask(connection)
        proxy.delay = 0.1
        start = monotonic()
        taken = ask(connection)
    there = echo.arrived[-1][0] - start
    assert there >= 0.05
    assert taken - there >= 0.05
    assert taken < 2


def test_connection_reaches_the_server_after_one_and_a_half(echo):
    with Proxy("127.0.0.1", echo.port, delay=0.1) as proxy:
        start = monotonic()
        with client(proxy) as connection:
            ask(connection)
            # Since connecting: the time of that is part of the delay.
            taken = monotonic() - start
    assert 0.15 <= echo.accepted[0] - start < 2
    assert 0.2 <= taken < 2


def test_a_request_without_a_response_waits_once(proxy):
    with client(proxy) as connection:
        ask(connection)
        proxy.delay = 0.3
        start = monotonic()
        pause = threading.Event()
        for number in range(10):
            connection.sendall(b"%d" % number)
            pause.wait(0.005)
        assert receive(connection, 10) == b"0123456789"
        # Each on its own would take 3 seconds.
        assert 0.3 <= monotonic() - start < 2.5


def test_shorter_delay_does_not_change_the_order(proxy):
    with client(proxy) as connection:
        ask(connection)
        proxy.delay = 1
        connection.sendall(b"a")
        # Two packets, as the proxy sees them.
        assert not wait_until(lambda: False, seconds=0.05)
        proxy.delay = 0
        connection.sendall(b"b")
        assert receive(connection, 2) == b"ab"
        assert ask(connection) < 0.9


# -- faults ---------------------------------------------------------------


def test_hanging_swallows_and_keeps_open(proxy, echo):
    with client(proxy) as used, client(proxy) as idle:
        ask(used)
        ask(idle)
        proxy.hang()
        assert silent(used, b"lost")
        with client(proxy) as new:
            assert silent(new)
            assert wait_until(lambda: proxy.counts.open == 3, seconds=PATIENCE)
            proxy.restore()
            # Its next answer would pass for the one that got lost.
            assert silent(used)
            assert silent(new)
        assert ask(idle) < PATIENCE
        with client(proxy) as newer:
            ask(newer)
    assert b"lost" not in [data for _, data in echo.arrived]
    assert proxy.counts.swallowed >= 4


def test_hanging_swallows_answers_that_are_under_way(proxy, echo):
    with client(proxy) as connection:
        ask(connection)
        # Half of it is left for us to notice that the answer is under way.
        proxy.delay = 3
        connection.sendall(b"asked")
        assert wait_until(lambda: len(echo.arrived) == 2, seconds=PATIENCE)
        proxy.hang()
        assert wait_until(lambda: proxy.counts.swallowed == 5, seconds=PATIENCE)
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(1)


def test_closing_is_passed_on_while_it_hangs(proxy, echo):
    with client(proxy) as connection:
        ask(connection)
        proxy.hang()
    assert wait_until(lambda: echo.ended == ["closed"], seconds=PATIENCE)


def test_refuses_new_connections_only(proxy):
    port = proxy.port
    with client(proxy) as connection:
        ask(connection)
        proxy.refuse()
        assert refused(port)
        ask(connection)
        proxy.restore()
        assert proxy.port == port
        with client(proxy) as new:
            ask(new)


def test_port_of_a_refusing_proxy_is_not_free(proxy):
    proxy.refuse()
    with pytest.raises(OSError, match="in use"), socket.socket() as other:
        other.bind((proxy.host, proxy.port))


def test_cutting_resets_both_sides(proxy, echo):
    with client(proxy) as connection:
        ask(connection)
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
        assert wait_until(lambda: echo.ended == ["reset"], seconds=PATIENCE)
        assert proxy.counts.open == 0
        with client(proxy) as new:
            ask(new)


def test_server_that_is_down_resets_and_may_come_later():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
        with Proxy("127.0.0.1", port) as proxy:
            # As early as in connect(), if that is slow to return.
            with pytest.raises(ConnectionResetError), client(proxy) as connection:
                connection.recv(1)
            holder.listen()
            with client(proxy) as connection:
                connection.sendall(b"hello")
                with holder.accept()[0] as there:
                    assert receive(there, 5) == b"hello"


# -- its process ----------------------------------------------------------


def test_stop_ends_it_and_it_can_start_again(echo):
    proxy = Proxy("127.0.0.1", echo.port)
    assert "port=0" in repr(proxy)
    with proxy:
        pid, port = proxy.pid, proxy.port
        assert f"port={port}" in repr(proxy)
        with client(proxy) as connection:
            ask(connection)
            proxy.stop()
            with pytest.raises(ConnectionResetError):
                connection.recv(1)
        assert not is_running(pid)
        assert refused(port)
        assert proxy.pid is None
    with proxy, client(proxy) as connection:
        ask(connection)


_STARTS_ONE = """
import os, signal, sys
from sqla_shard.testing import Proxy
proxy = Proxy("127.0.0.1", int(sys.argv[1])).start()
child = os.fork() if sys.argv[2] == "fork" else -1
if child == 0:
    proxy.stop()  # not ours to stop
    signal.pause()
assert proxy.counts.open == 0
print(proxy.pid, proxy.port, child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", ["alone", "fork"])
def test_ends_with_a_process_that_is_killed(echo, how):
    with subprocess.Popen(
        [sys.executable, "-c", _STARTS_ONE, str(echo.port), how],
        cwd=ROOT,
        stdout=subprocess.PIPE,
    ) as process:
        # Not to its end, which comes with that of the forked child.
        line = process.stdout.readline()
    pid, port, child = map(int, line.split())
    try:
        assert wait_until(lambda: not is_running(pid), seconds=PATIENCE)
        assert refused(port)
    finally:
        if child > 0:
            os.kill(child, signal.SIGKILL)


def test_dead_process_is_an_error(echo):
    with Proxy("127.0.0.1", echo.port) as proxy:
        os.kill(proxy.pid, signal.SIGKILL)
        with pytest.raises(exc.ServerProcessError, match="does not respond"):
            proxy.hang()
        assert "hanging" not in repr(proxy)
    with pytest.raises(exc.ServerProcessError, match="is not running"):
        proxy.cut()


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), "1", None])
def test_delays_that_make_no_sense(proxy, delay):
    with pytest.raises(ValueError, match="delay="):
        Proxy("127.0.0.1", 3306, delay=delay)
    with pytest.raises(ValueError, match="delay="):
        proxy.delay = delay
    assert proxy.delay == 0


@pytest.mark.parametrize("port", [0, 65_536, "3306", None])
def test_ports_that_make_no_sense(port):
    with pytest.raises(ValueError, match="port="):
        Proxy("127.0.0.1", port)
