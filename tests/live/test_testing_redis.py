"""Redis servers for tests are what their documentation says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import redis

from sqla_shard import exc
from sqla_shard.testing import RedisServer
from sqla_shard.testing.local_server import wait_until
from sqla_shard.testing.programs import find_redis
from tests.servers.processes import is_running, sockets_of
from tests.servers.redis import client_of

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("redis_installed")]


@pytest.fixture
def server():
    with RedisServer() as server:
        yield server


def test_a_client_reads_what_it_wrote(server):
    assert server.address == f"127.0.0.1:{server.port}"
    assert server.alive
    assert "running" in repr(server)
    with client_of(server) as client:
        client.set("a", b"1")
        assert client.get("a") == b"1"


def test_it_listens_on_the_local_host_alone(server):
    assert sockets_of(server.pid, "tcp") == [f"0100007F:{server.port:04X}"]
    for table in ("tcp6", "udp", "udp6"):
        assert sockets_of(server.pid, table) == []


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


def test_says_what_is_wrong_with_options():
    server = RedisServer(options=["--no-such-option"])
    with pytest.raises(exc.ServerProcessError, match="while it started"):
        server.start()
    assert server.directory is None
    with pytest.raises(ValueError, match="megabytes=0"):
        RedisServer(megabytes=0)


def test_says_that_redis_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("SQLA_SHARD_REDIS", str(tmp_path / "none"))
    assert find_redis() is None
    with pytest.raises(exc.ServerProcessError, match="apt-get install"):
        RedisServer().start()


def test_ends_with_the_process_that_started_it():
    program = (
        "import os, signal\n"
        "from sqla_shard.testing import RedisServer\n"
        "server = RedisServer().start()\n"
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
