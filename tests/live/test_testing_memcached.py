"""memcached servers for tests are what their documentation says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pymemcache import Client

from sqla_shard import exc
from sqla_shard.testing import MemcachedServer
from sqla_shard.testing.local_server import wait_until
from sqla_shard.testing.programs import find_memcached
from tests.servers.processes import is_running, sockets_of

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


def test_a_client_reads_what_it_wrote(server, client_of):
    assert server.address == f"127.0.0.1:{server.port}"
    assert server.alive
    assert "running" in repr(server)
    client = client_of(server)
    client.set("a", b"1", noreply=False)
    assert client.get("a") == b"1"


def test_it_listens_on_the_local_host_alone_and_never_by_udp(server):
    assert sockets_of(server.pid, "tcp") == [f"0100007F:{server.port:04X}"]
    for table in ("tcp6", "udp", "udp6"):
        assert sockets_of(server.pid, table) == []


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


def test_says_what_is_wrong_with_options():
    server = MemcachedServer(options=["--no-such-option"])
    with pytest.raises(exc.ServerProcessError, match="while it started"):
        server.start()
    assert server.directory is None
    with pytest.raises(ValueError, match="megabytes=0"):
        MemcachedServer(megabytes=0)


def test_says_that_memcached_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("SQLA_SHARD_MEMCACHED", str(tmp_path / "none"))
    assert find_memcached() is None
    with pytest.raises(exc.ServerProcessError, match="apt-get install"):
        MemcachedServer().start()


def test_ends_with_the_process_that_started_it():
    program = (
        "import os, signal\n"
        "from sqla_shard.testing import MemcachedServer\n"
        "server = MemcachedServer().start()\n"
        "print(server.pid, server.directory, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    pid, directory = done.stdout.split()
    gone = wait_until(lambda: not Path(directory).exists(), seconds=60)
    assert gone, done.stderr
    assert wait_until(lambda: not is_running(int(pid)), seconds=60)
