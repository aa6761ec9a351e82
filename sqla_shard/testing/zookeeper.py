"""A ZooKeeper server for tests.

::

    with ZooKeeperServer() as server:
        client = KazooClient(server.hosts, timeout=1.0)
        client.start()
        server.expire(client.client_id)     # the client loses its session
        server.kill()                       # like a crash
        server.start()                      # and recover

Needs Linux, and ZooKeeper 3.8 or later with Java on the machine (Debian:
``libzookeeper-java`` and ``default-jre-headless``, jars only).  No client:
the examples use kazoo, the extra ``zookeeper``.  The server listens on
127.0.0.1 only, starts in about half a second and takes about 80 MB of memory.
All clients have all permissions; digest authentication and ACLs need no
configuration.

Session timeouts are from two ticks of 0.2 s to 40 s.  The server checks them
once a tick, so that a session expires up to a tick later.  Sessions survive a
restart unless they expire meanwhile.

With ``tls=True`` the server accepts TLS only, and requires a certificate of
its clients::

    with ZooKeeperServer(tls=True) as server:
        client = KazooClient(
            server.hosts,
            use_ssl=True,
            ca=str(server.ca),
            certfile=str(server.certificate),
            keyfile=str(server.key),
        )

For a partition connect through a :class:`~.proxy.Proxy`.

Everything is in one directory, removed by :meth:`ZooKeeperServer.stop`, when
the interpreter exits, or by a guard process when the test run is killed.  Do
not control (start, stop, kill) a server from several threads at the same time.
"""

from __future__ import annotations

import shutil
import socket
import ssl
import struct
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sqla_shard import exc
from sqla_shard.testing.local_server import (
    free_port,
    in_parallel,
    LocalServer,
    on_free_ports,
    Startable,
    wait_until,
)
from sqla_shard.testing.programs import (
    find_zookeeper,
    MISSING_ZOOKEEPER,
    ZooKeeperPrograms,
)


class ZooKeeperServer(LocalServer):
    """A ZooKeeper server for tests.

    :param name: name of the server, for messages.
    :param tick: milliseconds; the shortest session timeout is two ticks.
    :param tls: use TLS, and require a certificate of each client.
    :param options: settings of ``zoo.cfg``, which override the others.
    :param parent: parent of the server's directory; by default the
        directory for temporary files (``TMPDIR``).
    :param start_timeout: seconds to wait for a start.
    :param stop_timeout: seconds to wait for a clean shutdown before SIGKILL.
    :raises ValueError: if an argument is not valid.
    """

    _log_name = "zookeeper.log"

    def __init__(
        self,
        name: str = "zookeeper1",
        *,
        tick: int = 200,
        tls: bool = False,
        options: Mapping[str, str] | None = None,
        parent: Path | None = None,
        start_timeout: float = 60.0,
        stop_timeout: float = 30.0,
    ) -> None:
        if type(tick) is not int or not 1 <= tick <= 20_000:
            raise ValueError(f"tick={tick!r} must be from 1 to 20000 ms")
        super().__init__(
            name, parent=parent, start_timeout=start_timeout, stop_timeout=stop_timeout
        )
        self.tick = tick
        self.tls = tls
        self.options: dict[str, str] = dict(options or {})
        self.membership: Membership | None = None
        """Place in an ensemble; None for a standalone server."""
        self._certificates: Certificates | None = None

    @property
    def hosts(self) -> str:
        """Host and port, in the form for clients."""
        return f"{self.host}:{self.port}"

    @property
    def alive(self) -> bool:
        """Whether the server responds and serves clients.

        A paused server does not, nor one of an ensemble without a quorum.
        """
        return self.mode is not None

    @property
    def mode(self) -> str | None:
        """``standalone``, ``leader`` or ``follower``; None if not alive."""
        for line in self._ask("srvr").splitlines():
            key, _, value = line.partition(": ")
            if key == "Mode":
                return value
        return None

    @property
    def ca(self) -> Path:
        """PEM file of the certificate authority, with TLS.

        :raises sqla_shard.exc.ServerProcessError: without TLS, or if the
            server was not started.
        """
        return self._with_tls().ca

    @property
    def certificate(self) -> Path:
        """PEM file of a client's certificate, with TLS.

        :raises sqla_shard.exc.ServerProcessError: as :attr:`ca`.
        """
        return self._with_tls().certificate

    @property
    def key(self) -> Path:
        """PEM file of a client's key, with TLS.

        :raises sqla_shard.exc.ServerProcessError: as :attr:`ca`.
        """
        return self._with_tls().key

    def wipe(self) -> None:
        """Kill the server and delete its data.

        :meth:`start` then starts it on its port without nodes and sessions.
        A server of an ensemble gets the data of the others.

        A client that was connected before cannot connect: ZooKeeper refuses
        clients that have seen later transactions than the server.  It is
        ``SUSPENDED``, never ``LOST``, until it is created again or the server
        has caught up with it.

        :raises sqla_shard.exc.ServerProcessError: if it was not started.
        """
        self.kill()
        shutil.rmtree(self._directory() / "data")

    def expire(self, client_id: tuple[int, bytes]) -> bool:
        """End the session of a client.

        Its ephemeral nodes have been deleted when this returns.  The client
        loses its connection, and learns of the expiry when it reconnects.

        :param client_id: number and password of the session; kazoo's
            ``client.client_id``.
        :return: whether the session existed.
        :raises sqla_shard.exc.ServerProcessError: if the server is not
            running or does not respond.
        """
        self._running_process()
        session, password = client_id
        try:
            return end_session(self.host, self.port, session, password, self._context())
        except OSError as error:
            raise exc.ServerProcessError(
                f"{self!r} did not end session {session:#x}: {error}", log=self.log_tail
            ) from error

    def _with_tls(self) -> Certificates:
        if self._certificates is None or self.directory is None:
            missing = "was not started" if self.tls else "is without tls=True"
            raise exc.ServerProcessError(f"{self!r} {missing}", log="")
        return self._certificates

    def _context(self) -> ssl.SSLContext | None:
        if not self.tls:
            return None
        context = ssl.create_default_context(cafile=str(self.ca))
        context.load_cert_chain(self.certificate, self.key)
        return context

    def _ask(self, word: str) -> str:
        """Return the response to a four-letter word; empty if none."""
        if self._paused or not self.running:
            return ""
        try:
            return four_letter_word(self.host, self.port, word, self._context())
        except OSError:
            return ""

    def _prepare(self, directory: Path) -> None:
        if self.tls:
            self._certificates = make_certificates(directory / "tls")

    def _write_zoo_cfg(self, directory: Path) -> Path:
        data = directory / "data"
        data.mkdir(exist_ok=True)
        if self.membership is not None:
            (data / "myid").write_text(f"{self.membership.number}\n")
        file = directory / "zoo.cfg"
        file.write_text(
            zoo_cfg(
                data,
                port=self.port,
                tick=self.tick,
                membership=self.membership,
                certificates=self._certificates,
                options=self.options,
            )
        )
        return file

    def _command(self, directory: Path) -> list[str]:
        jars = find_zookeeper()
        if jars is None:
            raise exc.ServerProcessError(MISSING_ZOOKEEPER, log="")
        return java_command(jars, self._write_zoo_cfg(directory))

    def _is_ready(self) -> bool:
        if self.membership is None:
            return self.alive
        # A server serves clients only after it has found the other servers.
        return self._ask("ruok") == "imok"


class ZooKeeperEnsemble(Startable):
    """Servers ``zookeeper1``, ``zookeeper2``... that elect a leader.

    ::

        with ZooKeeperEnsemble(servers=3) as ensemble:
            client = KazooClient(ensemble.hosts)
            client.start()
            ensemble.leader().kill()    # the two others elect a new one

    They start in parallel, in about two seconds.  A new leader is elected
    about half a second after a crash, and after about two more seconds if the
    old one is paused.  The traffic between the servers is never encrypted,
    not even with ``tls=True``, and does not pass through a
    :class:`~.proxy.Proxy`: to partition the servers, pause or kill some.
    ZooKeeper 3.8.0 does not always recover from a pause without a majority
    that was longer than its sessions: in about one of ten trials it elected a
    leader and opened no session until all servers were restarted.

    :param servers: number of servers; odd, since one more would not allow
        more failures.
    :param tick: see :class:`~.zookeeper.ZooKeeperServer`.
    :param tls: see :class:`~.zookeeper.ZooKeeperServer`; each server has its
        own certificates.
    :param start_timeout: seconds to wait for each server, and then for the
        quorum.
    :raises ValueError: if an argument is not valid.
    """

    def __init__(
        self,
        servers: int = 3,
        *,
        tick: int = 200,
        tls: bool = False,
        start_timeout: float = 60.0,
    ) -> None:
        if type(servers) is not int or servers < 3 or servers % 2 == 0:
            raise ValueError(f"servers={servers!r} must be an odd number from 3")
        self.start_timeout = start_timeout
        self.servers: list[ZooKeeperServer] = [
            ZooKeeperServer(
                f"zookeeper{number}", tick=tick, tls=tls, start_timeout=start_timeout
            )
            for number in range(1, servers + 1)
        ]
        """The servers, in order; each can be killed and paused."""

    def __repr__(self) -> str:
        running = sum(server.running for server in self.servers)
        return f"<{type(self).__name__} servers={len(self.servers)} running={running}>"

    @property
    def hosts(self) -> str:
        """Hosts and ports of all servers, in the form for clients."""
        return ",".join(server.hosts for server in self.servers)

    def start(self) -> ZooKeeperEnsemble:
        """Start all servers in parallel and wait until all serve clients.

        Running servers are not restarted.  If one fails, all are stopped.

        :raises sqla_shard.exc.ServerProcessError: if ZooKeeper is missing,
            a server does not start, or they find no quorum.
        """
        on_free_ports(self._start_servers)
        with self._stopped_on_error():
            if not wait_until(self._complete, seconds=self.start_timeout):
                raise exc.ServerProcessError(
                    f"{self!r} found no quorum", log=self._logs()
                )
        return self

    def stop(self) -> None:
        """End all servers and remove their data."""
        in_parallel(self.servers, lambda server: server.stop())

    def leader(self) -> ZooKeeperServer:
        """Return the leader; wait until one is elected.

        :raises sqla_shard.exc.ServerProcessError: if none is elected within
            ``start_timeout``, such as without a majority.
        """
        found: list[ZooKeeperServer] = []

        def look() -> bool:
            found.extend(s for s in self.servers if s.mode == "leader")
            return bool(found)

        if not wait_until(look, seconds=self.start_timeout):
            raise exc.ServerProcessError(f"{self!r} has no leader", log=self._logs())
        return found[0]

    def _start_servers(self) -> None:
        with self._stopped_on_error():
            # The ports for their own traffic stay the same.
            if all(server.directory is None for server in self.servers):
                self._assign_ports()
            in_parallel(self.servers, lambda server: server.start())

    def _complete(self) -> bool:
        return all(server.alive for server in self.servers)

    def _assign_ports(self) -> None:
        peers = {
            number: (free_port(), free_port())
            for number in range(1, len(self.servers) + 1)
        }
        for number, server in enumerate(self.servers, 1):
            server.membership = Membership(number=number, peers=peers)

    def _logs(self) -> str:
        return "\n".join(s.log_tail for s in self.servers if s.running)


# -- The setup of ZooKeeper servers: certificates, zoo.cfg and command.


# For ``openssl`` 3.0 or later.  The file of the system is not used: its
# extensions differ between distributions.
_SETTINGS = """
[req]
distinguished_name = name
prompt = no
[name]
[authority]
basicConstraints = critical,CA:TRUE
keyUsage = critical,keyCertSign
subjectKeyIdentifier = hash
[end]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = serverAuth,clientAuth
subjectAltName = IP:127.0.0.1,DNS:localhost
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """Paths of PEM files.

    :ivar ca: certificate of the authority that has signed the other two.
    :ivar certificate: certificate of a client.
    :ivar key: key of a client, not encrypted.
    :ivar server: certificate and key of the server, for 127.0.0.1 and
        localhost.
    """

    ca: Path
    certificate: Path
    key: Path
    server: Path


def make_certificates(directory: Path) -> Certificates:
    """Create an authority, and certificates of a server and a client.

    :param directory: created if it does not exist.
    :raises sqla_shard.exc.ServerProcessError: if ``openssl`` is missing or
        fails.
    """
    directory.mkdir(mode=0o700, exist_ok=True)
    settings = directory / "openssl.cnf"
    settings.write_text(_SETTINGS)
    ca, ca_key = _make(settings, "authority")
    signed = ["-CA", str(ca), "-CAkey", str(ca_key)]
    certificate, key = _make(settings, "client", *signed)
    server, server_key = _make(settings, "server", *signed)
    both = directory / "store.pem"
    both.touch(mode=0o600)
    both.write_text(server_key.read_text() + server.read_text())
    return Certificates(ca=ca, certificate=certificate, key=key, server=both)


def _make(settings: Path, name: str, *signed: str) -> tuple[Path, Path]:
    certificate = settings.with_name(f"{name}.pem")
    key = settings.with_name(f"{name}.key")
    program = shutil.which("openssl")
    if program is None:
        raise exc.ServerProcessError(
            "openssl is not installed: apt-get install openssl", log=""
        )
    done = subprocess.run(
        [
            *(program, "req", "-x509", "-config", str(settings)),
            *("-extensions", "end" if signed else "authority"),
            *("-subj", f"/CN={name} of a test", "-days", "7", *signed),
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-keyout", str(key), "-out", str(certificate)),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise exc.ServerProcessError(
            f"openssl ended with status {done.returncode}", log=done.stderr
        )
    return certificate, key


_HOST = "127.0.0.1"
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The place of a server in an ensemble.

    :ivar number: number of the server, from 1.
    :ivar peers: for each number, the ports for followers and for votes.
    """

    number: int
    peers: Mapping[int, tuple[int, int]]

    @property
    def settings(self) -> dict[str, str]:
        """The part of the file that is the same for all members."""
        return {
            f"server.{number}": f"{_HOST}:{followers}:{votes}"
            for number, (followers, votes) in self.peers.items()
        }


def zoo_cfg(
    data: Path,
    *,
    port: int,
    tick: int,
    membership: Membership | None,
    certificates: Certificates | None,
    options: Mapping[str, str],
) -> str:
    """Return the text of ``zoo.cfg``.

    :param data: directory for the data of the server.
    :param options: further settings, which override the others.
    """
    settings = {
        "dataDir": str(data),
        "tickTime": str(tick),
        # In ticks.  The first allows for a busy machine, the second is the
        # time until a paused leader is replaced.
        "initLimit": str(max(2, 10_000 // tick)),
        "syncLimit": str(max(2, 2_000 // tick)),
        # The default with ticks of two seconds.
        "maxSessionTimeout": "40000",
        "maxClientCnxns": "0",
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "ruok,srvr,mntr",
        # The data survives kill(), but not a power failure.
        "forceSync": "no",
        "preAllocSize": "1024",
    }
    if certificates is None:
        settings["clientPort"] = str(port)
        settings["clientPortAddress"] = _HOST
    else:
        settings |= {
            "secureClientPort": str(port),
            "secureClientPortAddress": _HOST,
            "serverCnxnFactory": ("org.apache.zookeeper.server.NettyServerCnxnFactory"),
            "ssl.keyStore.location": str(certificates.server),
            "ssl.keyStore.type": "PEM",
            "ssl.trustStore.location": str(certificates.ca),
            "ssl.trustStore.type": "PEM",
        }
    if membership is not None:
        settings |= membership.settings
    settings |= options
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def java_command(jars: ZooKeeperPrograms, file: Path) -> list[str]:
    """Return the command of a server.

    :param file: path of the ``zoo.cfg`` of the server.
    """
    return [
        jars.java,
        "-Xmx96m",
        # For a quick start: 0.3 s instead of 0.45 s.
        "-Xshare:auto",
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        # Otherwise SIGKILL leaves a file in /tmp.
        "-XX:-UsePerfData",
        "-Djava.awt.headless=true",
        "-Dzookeeper.jmx.log4j.disable=true",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
        *("-cp", jars.classpath, _MAIN, str(file)),
    ]


_PATIENCE = 2.0
#: Request code that closes a session.
_LONG_PATIENCE = 20.0
_CLOSE_SESSION = -11
# Complete answers: a server that is still loading its data does not close the
# connection after these.
_WHOLE = (b"imok", b"This ZooKeeper instance is not")


def _connect(
    host: str, port: int, context: ssl.SSLContext | None, patience: float
) -> socket.socket:
    plain = socket.create_connection((host, port), timeout=patience)
    if context is None:
        return plain
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise


def four_letter_word(
    host: str, port: int, word: str, context: ssl.SSLContext | None = None
) -> str:
    """Return the response to one of ZooKeeper's four-letter words.

    :param context: TLS context; None if the server does not use TLS.
    :raises OSError: if there is no response within two seconds.
    """
    answer = b""
    with _connect(host, port, context, _PATIENCE) as connection:
        connection.sendall(word.encode())
        while not answer.startswith(_WHOLE):
            part = connection.recv(4096)
            if not part:
                break
            answer += part
    return answer.decode(errors="replace")


def end_session(
    host: str,
    port: int,
    session: int,
    password: bytes,
    context: ssl.SSLContext | None = None,
) -> bool:
    """Take over a session and close it.

    :return: whether the session existed.
    :raises OSError: if the server does not respond within twenty seconds.
    """
    with _connect(host, port, context, _LONG_PATIENCE) as connection:
        # Protocol version, last transaction, timeout, session, password, and
        # whether a read-only server is accepted.
        head = struct.pack(">iqiqi", 0, 0, 10_000, session, len(password))
        _send(connection, head + password + b"\0")
        _, _, found = struct.unpack(">iiq", _receive(connection)[:16])
        if found == 0:
            return False
        _send(connection, struct.pack(">ii", 1, _CLOSE_SESSION))
        _receive(connection)
    return True


def _send(connection: socket.socket, body: bytes) -> None:
    connection.sendall(struct.pack(">i", len(body)) + body)


def _receive(connection: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", _exactly(connection, 4))
    return _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = connection.recv(size - len(found))
        if not part:
            raise ConnectionResetError("the server has closed the connection")
        found += part
    return found
