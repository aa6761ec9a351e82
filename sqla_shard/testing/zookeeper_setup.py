"""The setup of ZooKeeper servers: certificates, zoo.cfg and command."""

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
from sqla_shard.testing.programs import ZooKeeperPrograms

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
