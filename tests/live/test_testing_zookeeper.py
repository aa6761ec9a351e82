"""ZooKeeper servers for tests are what their documentation says."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.loggingsupport import BLATHER
from kazoo.protocol.states import KazooState
from kazoo.security import make_digest_acl

from sqla_shard import exc
from sqla_shard.testing import local_server, ZooKeeperEnsemble, ZooKeeperServer
from sqla_shard.testing.local_server import free_port, wait_until
from sqla_shard.testing.programs import find_zookeeper
from sqla_shard.testing.zookeeper import four_letter_word, make_certificates
from tests.servers.processes import gone, listening

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("zookeeper_installed")]


class States:
    """The states of a client's connection, in order."""

    def __init__(self, client):
        self.seen = []
        self._changed = threading.Condition()
        client.add_listener(self._listen)

    def _listen(self, state):
        with self._changed:
            self.seen.append(state)
            self._changed.notify_all()

    def wait_for(self, *states, seconds=20):
        """Wait until the client has had these states, in this order."""

        def was_called():
            rest = iter(self.seen)
            return all(state in rest for state in states)

        with self._changed:
            assert self._changed.wait_for(was_called, seconds), self.seen


@contextlib.contextmanager
def connected(hosts, **options):
    # Quick repetitions: the default waits for up to a minute.
    options.setdefault("timeout", 5.0)
    patient = {"max_tries": -1, "delay": 0.02, "max_delay": 0.1}
    client = KazooClient(
        hosts, connection_retry=patient, command_retry=patient, **options
    )
    try:
        client.start(timeout=30)
        yield client
    finally:
        client.stop()
        client.close()


@pytest.fixture
def server():
    with ZooKeeperServer() as server:
        yield server


# -- one server -----------------------------------------------------------


def test_a_client_reads_what_it_wrote(zookeeper_server):
    assert zookeeper_server.hosts == f"127.0.0.1:{zookeeper_server.port}"
    assert zookeeper_server.alive
    assert zookeeper_server.mode == "standalone"
    assert "running" in repr(zookeeper_server)
    with connected(zookeeper_server.hosts) as client:
        client.create("/test_reads/a", b"1", makepath=True)
        assert client.get("/test_reads/a")[0] == b"1"


def test_it_listens_on_the_local_host_alone(zookeeper_server):
    expected = {("127.0.0.1", zookeeper_server.port)}
    assert listening(zookeeper_server.pid) == expected


@pytest.mark.parametrize(
    ("asked", "given"), [(0.1, 400), (0.4, 400), (30.0, 30_000), (50.0, 40_000)]
)
def test_sessions_may_be_short_and_long(zookeeper_server, caplog, asked, given):
    # The only place where kazoo exposes its arguments.
    caplog.set_level(BLATHER, "kazoo.client")
    with connected(zookeeper_server.hosts, timeout=asked):
        assert f"negotiated session timeout: {given}\n" in caplog.text


def test_kill_keeps_data_and_port(server):
    with connected(server.hosts) as client:
        client.create("/kept", b"x")
        states = States(client)
        port, first = server.port, server.pid
        server.kill()
        assert not server.running
        assert not server.alive
        assert gone(first)
        states.wait_for(KazooState.SUSPENDED)
        server.start()
        assert (server.port, server.pid != first) == (port, True)
        states.wait_for(KazooState.SUSPENDED, KazooState.CONNECTED)
        assert client.retry(client.get, "/kept")[0] == b"x"


def test_restart_keeps_sessions_and_their_nodes(server):
    # The longest one.  A server that is starting may not answer a client that
    # connects; kazoo tries again after the timeout, divided by the hosts.
    hosts = ",".join([server.hosts] * 8)
    with connected(hosts, timeout=40.0) as client:
        client.create("/mine", ephemeral=True)
        session = client.client_id
        server.restart()
        assert client.retry(client.exists, "/mine") is not None
        assert client.client_id == session


def test_wipe_loses_data_and_keeps_the_port(server):
    port = server.port
    with connected(server.hosts) as client:
        client.create("/lost")
    server.wipe()
    assert not server.running
    server.start()
    assert server.port == port
    with connected(server.hosts) as client:
        assert client.exists("/lost") is None


def test_a_wiped_server_turns_away_who_has_seen_more(server):
    with connected(server.hosts) as client:
        for _ in range(100):
            client.create("/n", sequence=True)
        states = States(client)
        server.wipe()
        server.start()
        states.wait_for(KazooState.SUSPENDED)
        turned_away = "client must try another server"
        assert wait_until(lambda: turned_away in server.log_tail, seconds=60)
        with connected(server.hosts) as other:
            for _ in range(100):
                other.create("/n", sequence=True)
        # It has caught up, and does not know the session.
        states.wait_for(KazooState.LOST, KazooState.CONNECTED)


def test_a_paused_server_answers_no_more(server):
    with connected(server.hosts, timeout=1.0) as client:
        states = States(client)
        server.pause()
        assert (server.running, server.alive) == (True, False)
        assert "paused" in repr(server)
        states.wait_for(KazooState.SUSPENDED)
        server.resume()
        assert wait_until(lambda: server.alive, seconds=60)
        states.wait_for(KazooState.SUSPENDED, KazooState.CONNECTED)
        assert client.retry(client.exists, "/") is not None


def test_a_paused_server_can_be_restarted(server):
    server.pause()
    server.restart()
    assert server.alive


def test_a_client_sees_that_its_session_has_expired(zookeeper_server):
    hosts = zookeeper_server.hosts
    with connected(hosts, timeout=30.0) as client, connected(hosts) as other:
        client.create("/expiring", ephemeral=True)
        expired = client.client_id
        states = States(client)
        assert zookeeper_server.expire(expired) is True
        assert other.exists("/expiring") is None
        # Long before the thirty seconds are over.
        states.wait_for(KazooState.LOST, KazooState.CONNECTED, seconds=10)
        assert client.client_id != expired
        assert zookeeper_server.expire(expired) is False


def test_a_stopped_server_expires_no_session(server):
    server.kill()
    with pytest.raises(exc.ServerProcessError, match="not running"):
        server.expire((1, b"0" * 16))


def test_digest_authentication_needs_no_set_up(zookeeper_server):
    acl = make_digest_acl("app", "secret", all=True)
    auth = [("digest", "app:secret")]
    with connected(zookeeper_server.hosts, auth_data=auth) as client:
        client.create("/closed", b"x", acl=[acl])
    with connected(zookeeper_server.hosts) as other, pytest.raises(NoAuthError):
        other.get("/closed")


# -- through a proxy ------------------------------------------------------


def test_a_cut_connection_comes_back(zookeeper_proxy):
    hosts = f"{zookeeper_proxy.host}:{zookeeper_proxy.port}"
    with connected(hosts, timeout=30.0) as client:
        session = client.client_id
        states = States(client)
        zookeeper_proxy.refuse()
        zookeeper_proxy.cut()
        states.wait_for(KazooState.SUSPENDED)
        zookeeper_proxy.restore()
        states.wait_for(KazooState.SUSPENDED, KazooState.CONNECTED)
        assert client.client_id == session
        assert KazooState.LOST not in states.seen


def test_a_partition_costs_the_session(zookeeper_server, zookeeper_proxy):
    hosts = f"{zookeeper_proxy.host}:{zookeeper_proxy.port}"
    with (
        # Long enough for it to live until it is parted.
        connected(hosts, timeout=2.0) as client,
        connected(zookeeper_server.hosts) as other,
    ):
        client.create("/parted", ephemeral=True)
        states = States(client)
        zookeeper_proxy.hang()
        assert wait_until(lambda: other.exists("/parted") is None, seconds=60)
        zookeeper_proxy.restore()
        states.wait_for(KazooState.LOST, KazooState.CONNECTED)


# -- TLS ------------------------------------------------------------------


@pytest.fixture(scope="module")
def tls(zookeeper_installed):
    with ZooKeeperServer(tls=True) as server:
        yield server


def tls_options(server):
    return {
        "use_ssl": True,
        "ca": str(server.ca),
        "certfile": str(server.certificate),
        "keyfile": str(server.key),
    }


def test_a_client_with_a_certificate_is_let_in(tls):
    with connected(tls.hosts, **tls_options(tls)) as client:
        assert client.create("/tls") == "/tls"
        assert tls.expire(client.client_id)
    assert tls.mode == "standalone"
    assert tls.key.stat().st_mode & 0o077 == 0


def test_a_client_without_tls_is_not(tls):
    client = KazooClient(tls.hosts)
    try:
        with pytest.raises(KazooTimeoutError):
            client.start(timeout=1.0)
    finally:
        client.stop()
        client.close()


# Not with kazoo below: it leaves open what failed in the middle of TLS.


def test_nor_one_without_a_certificate(tls):
    context = ssl.create_default_context(cafile=str(tls.ca))
    with pytest.raises(ssl.SSLError, match=r"(?i)bad.certificate"):
        four_letter_word(tls.host, tls.port, "ruok", context)


def test_a_client_refuses_a_server_of_another_authority(tls, tmp_path):
    other = make_certificates(tmp_path / "other")
    context = ssl.create_default_context(cafile=str(other.ca))
    context.load_cert_chain(tls.certificate, tls.key)
    with pytest.raises(ssl.SSLCertVerificationError):
        four_letter_word(tls.host, tls.port, "ruok", context)


def test_a_server_refuses_a_client_of_another_authority(tls, tmp_path):
    other = make_certificates(tmp_path / "other")
    context = ssl.create_default_context(cafile=str(tls.ca))
    context.load_cert_chain(other.certificate, other.key)
    with pytest.raises(ssl.SSLError, match=r"(?i)certificate.unknown"):
        four_letter_word(tls.host, tls.port, "ruok", context)


def test_without_tls_there_are_no_certificates(zookeeper_server):
    with pytest.raises(exc.ServerProcessError, match="tls=True"):
        zookeeper_server.ca  # noqa: B018 - it is a property that fails


# -- failing to start -----------------------------------------------------


def test_a_server_that_fails_shows_its_log_and_leaves_nothing(tmp_path):
    bad = ZooKeeperServer(options={"dataDir": "/dev/null"}, parent=tmp_path)
    with pytest.raises(exc.ServerProcessError, match="while it star") as info:
        bad.start()
    assert "/dev/null" in info.value.log
    assert list(tmp_path.iterdir()) == []
    assert bad.directory is None


def test_a_start_that_takes_too_long_is_given_up(tmp_path):
    server = ZooKeeperServer(start_timeout=0, parent=tmp_path)
    with pytest.raises(exc.ServerProcessError, match="did not respond within"):
        server.start()
    assert list(tmp_path.iterdir()) == []


def test_a_port_taken_at_the_last_moment_is_replaced(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as other:
        ports = [free_port(), other.getsockname()[1]]
        monkeypatch.setattr(local_server, "free_port", ports.pop)
        with ZooKeeperServer() as server:
            assert ports == []
            assert server.alive


def test_jars_of_an_unpacked_zookeeper_are_used(monkeypatch, tmp_path):
    folder = tmp_path / "zookeeper"
    (folder / "lib").mkdir(parents=True)
    jars = find_zookeeper()
    for jar in map(Path, jars.classpath.split(os.pathsep)):
        (folder / "lib" / jar.name).symlink_to(jar)
    monkeypatch.setenv("SQLA_SHARD_ZOOKEEPER", str(folder))
    with ZooKeeperServer() as server:
        assert server.alive
        command = Path(f"/proc/{server.pid}/cmdline").read_text()
        assert f"{folder}/lib/zookeeper.jar" in command


def test_missing_jars_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("SQLA_SHARD_ZOOKEEPER", str(tmp_path))
    with pytest.raises(exc.ServerProcessError, match="apt-get install"):
        ZooKeeperServer().start()


def test_methods_before_the_start_are_refused():
    server = ZooKeeperServer()
    for method in (
        server.kill,
        server.wipe,
        server.restart,
        server.pause,
        server.resume,
    ):
        with pytest.raises(exc.ServerProcessError):
            method()
    server.stop()


@pytest.mark.parametrize("tick", [0, -1, 1.5, True, 20_001])
def test_ticks_that_make_no_sense_are_refused(tick):
    with pytest.raises(ValueError, match="tick="):
        ZooKeeperServer(tick=tick)


# -- leaving nothing behind -----------------------------------------------


def test_stop_leaves_no_process_and_no_directory(tmp_path):
    with ZooKeeperServer(parent=tmp_path) as server:
        pid, directory = server.pid, server.directory
        assert list(tmp_path.iterdir()) == [directory]
    assert gone(pid)
    assert list(tmp_path.iterdir()) == []
    assert "stopped" in repr(server)
    server.stop()


PROGRAM = """
import os, signal, sys
from sqla_shard.testing import ZooKeeperServer
server = ZooKeeperServer().start()
print(server.pid, server.directory, flush=True)
assert "kazoo" not in sys.modules
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("how", "status"), [("killed", -signal.SIGKILL), ("ended", 0)])
def test_no_server_outlives_its_program(how, status):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, how],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (status, "")
    pid, directory = done.stdout.split()
    assert wait_until(lambda: gone(int(pid)), seconds=60)
    assert wait_until(lambda: not Path(directory).exists(), seconds=60)


# -- ensembles ------------------------------------------------------------


@pytest.fixture(scope="module")
def ensemble(zookeeper_installed):
    with ZooKeeperEnsemble() as ensemble:
        yield ensemble


@pytest.fixture
def whole(ensemble):
    """All servers serve, whatever the test before has done to them."""
    return ensemble.start()


def test_an_ensemble_has_one_leader(whole):
    def modes():
        return sorted(str(server.mode) for server in whole.servers)

    # On a machine that stands still they may choose once more.
    expected = ["follower", "follower", "leader"]
    assert wait_until(lambda: modes() == expected, seconds=60), modes()
    assert wait_until(lambda: whole.leader().mode == "leader", seconds=60)
    assert whole.hosts == ",".join(s.hosts for s in whole.servers)
    addresses = {a for s in whole.servers for a, _ in listening(s.pid)}
    assert addresses == {"127.0.0.1"}


def test_an_ensemble_survives_the_kill_of_its_leader(whole):
    with connected(whole.hosts, timeout=40.0) as client:
        client.create("/survivor", b"x")
        session = client.client_id
        old = whole.leader()
        old.kill()
        new = whole.leader()
        assert new is not old
        assert client.retry(client.get, "/survivor")[0] == b"x"
        client.retry(client.set, "/survivor", b"y")
        assert client.client_id == session
        old.start()
        assert wait_until(lambda: old.alive, seconds=60)
        with connected(old.hosts) as late:
            late.sync("/survivor")
            assert late.get("/survivor")[0] == b"y"


def test_a_wiped_server_gets_the_data_of_the_others(whole):
    with connected(whole.hosts) as client:
        client.create("/shared", b"x")
    wiped = next(s for s in whole.servers if s.mode == "follower")
    wiped.wipe()
    wiped.start()
    assert wait_until(lambda: wiped.alive, seconds=60)
    with connected(wiped.hosts) as client:
        client.sync("/shared")
        assert client.get("/shared")[0] == b"x"


def test_a_paused_leader_is_replaced(whole):
    old = whole.leader()
    old.pause()
    try:
        assert whole.leader() is not old
    finally:
        old.resume()
    assert wait_until(lambda: old.mode == "follower", seconds=60)


def test_without_a_majority_no_server_serves(whole):
    for server in whole.servers[:2]:
        server.kill()
    last = whole.servers[2]
    assert wait_until(lambda: not last.alive, seconds=60)
    assert last.running


def test_ensemble_without_a_quorum_is_reported(whole, monkeypatch):
    monkeypatch.setattr(whole, "start_timeout", 0.0)
    for server in whole.servers[:2]:
        server.kill()
    assert wait_until(lambda: not whole.servers[2].alive, seconds=60)
    with pytest.raises(exc.ServerProcessError, match="no leader") as info:
        whole.leader()
    assert info.value.log


def test_an_ensemble_that_cannot_start_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    broken = ZooKeeperEnsemble()
    broken.servers[1].options["dataDir"] = "/dev/null"
    with pytest.raises(exc.ServerProcessError, match="zookeeper2"):
        broken.start()
    assert not any(server.running for server in broken.servers)
    assert list(tmp_path.glob("sqlashard-*")) == []


@pytest.mark.parametrize("servers", [0, 1, 2, 4, 3.0])
def test_ensembles_that_make_no_sense_are_refused(servers):
    with pytest.raises(ValueError, match="odd number"):
        ZooKeeperEnsemble(servers)
