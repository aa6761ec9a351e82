"""A server in the place of another asks for the password in the clear."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from sqla_shard import Cluster
from sqla_shard.testing.topology_documents import topology_document
from tests.test_docs import certificates  # noqa: F401  # a fixture

pytest.importorskip("pymysql")

pytestmark = pytest.mark.live

SECRET = "asecretword"
#: LONG_PASSWORD, PROTOCOL_41, SECURE_CONNECTION, PLUGIN_AUTH.
_CAPABILITIES = 0x1 | 0x200 | 0x8000 | 0x80000
_SSL = 0x800
_PATIENCE = 60.0


class Rogue:
    """Requests a plugin from each client, and records its packets.

    :param plugin: such as ``mysql_clear_password``.
    :param context: for TLS; None offers none.
    """

    def __init__(self, plugin: str, context: ssl.SSLContext | None) -> None:
        self._plugin = plugin.encode()
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.received: list[bytes] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                taken, _ = self._listener.accept()
            except OSError:
                return
            taken.settimeout(_PATIENCE)
            try:
                self._serve(taken)
            except OSError:
                # The client has refused, and is gone.
                continue
            finally:
                taken.close()

    def _serve(self, client: socket.socket) -> None:
        _send(client, 0, self._hello())
        number, login = _receive(client)
        if self._context is not None and len(login) == 32:
            with self._context.wrap_socket(client, server_side=True) as inner:
                self._ask(inner, *_receive(inner))
        else:
            self._ask(client, number, login)

    def _ask(self, client: socket.socket, number: int, login: bytes) -> None:
        self.received.append(login)
        # A client of "dialog" answers its prompt.
        more = b"\x04Password: " if self._plugin == b"dialog" else b""
        _send(client, number + 1, b"\xfe" + self._plugin + b"\0" + more)
        self.received.append(_receive(client)[1])

    def _hello(self) -> bytes:
        capabilities = _CAPABILITIES | (_SSL if self._context else 0)
        return b"".join(
            [
                *(b"\x0a", b"5.7.0\0", struct.pack("<I", 1), b"a" * 8, b"\0"),
                *(struct.pack("<H", capabilities & 0xFFFF), b"\x2d"),
                struct.pack("<HH", 2, capabilities >> 16),
                *(b"\x15", b"\0" * 10, b"b" * 12 + b"\0"),
                b"mysql_native_password\0",
            ]
        )

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(_PATIENCE)


def _send(client: socket.socket, number: int, data: bytes) -> None:
    client.sendall(struct.pack("<I", len(data))[:3] + bytes([number]) + data)


def _receive(client: socket.socket) -> tuple[int, bytes]:
    head = _exactly(client, 4)
    return head[3], _exactly(client, int.from_bytes(head[:3], "little"))


def _exactly(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = client.recv(size - len(data))
        if not part:
            raise ConnectionError("the client has closed the connection")
        data += part
    return data


@contextmanager
def rogue(plugin: str, directory: Path | None = None) -> Iterator[Rogue]:
    """A rogue with the certificate of a directory, or without TLS."""
    context = None
    if directory is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(directory / "server.pem", directory / "server.key")
    server = Rogue(plugin, context)
    try:
        yield server
    finally:
        server.close()


def connect(kind: str, server: Rogue, query: str, **arguments: Any) -> str:
    """Return the error of a connection."""
    url = f"mysql://app:{SECRET}@localhost:{server.port}{query}"
    options = {"connect_args": arguments}
    document = topology_document({"one": url}, 1)

    async def in_a_loop(cluster: Cluster) -> None:
        async with cluster.async_session() as session:
            await session.connection({"shard_id": 0})

    def in_this_thread(cluster: Cluster) -> None:
        with cluster.session() as session:
            session.connection({"shard_id": 0})

    def attempt(cluster: Cluster) -> None:
        if kind == "loop":
            pytest.importorskip("asyncmy")
            asyncio.run(in_a_loop(cluster))
        else:
            in_this_thread(cluster)

    with Cluster.from_topology(document, engine_options=options) as cluster:
        with pytest.raises(OperationalError) as caught:
            attempt(cluster)
        return str(caught.value)


@pytest.mark.parametrize("kind", ["threads", "loop"])
@pytest.mark.parametrize("plugin", ["mysql_clear_password", "dialog"])
@pytest.mark.parametrize(
    ("tls", "query"),
    [
        (False, ""),
        (True, ""),
        (True, "?ssl_check_hostname=1"),
        (True, "?ssl_ca={}/other.pem"),
        (False, "?ssl_ca={}/ca.pem"),
    ],
)
def test_no_password_in_the_clear_for_who_is_not_verified(
    certificates: Path,  # noqa: F811  # the fixture
    kind: str,
    plugin: str,
    tls: bool,
    query: str,
) -> None:
    with rogue(plugin, certificates if tls else None) as server:
        error = connect(kind, server, query.format(certificates))
    assert not any(SECRET.encode() in part for part in server.received)
    assert SECRET not in error
    if "ssl_ca" not in query:
        assert "2061" in error
        assert "over verified TLS only: add ssl_ca=FILE" in error


@pytest.mark.parametrize("kind", ["threads", "loop"])
def test_the_password_is_sent_to_a_verified_server(
    certificates: Path,  # noqa: F811  # the fixture
    kind: str,
) -> None:
    query = f"?ssl_ca={certificates / 'ca.pem'}"
    with rogue("mysql_clear_password", certificates) as server:
        connect(kind, server, query)
    assert server.received[-1] == SECRET.encode() + b"\0"


def test_arguments_of_the_application_verify_too(
    certificates: Path,  # noqa: F811  # the fixture
) -> None:
    """PyMySQL's own take any certificate unless they say otherwise."""
    ca = str(certificates / "ca.pem")
    for arguments, is_sent in (
        ({"ssl_ca": ca}, False),
        ({"ssl_ca": ca, "ssl_verify_cert": False}, False),
        ({"ssl_ca": ca, "ssl_verify_cert": True}, True),
        ({"ssl_ca": ca, "ssl_verify_identity": True}, True),
        ({"ssl": ssl.create_default_context(cafile=ca)}, True),
        ({"ssl_ca": ca, "ssl_disabled": True}, False),
    ):
        with rogue("mysql_clear_password", certificates) as server:
            connect("threads", server, "", **arguments)
        found = any(SECRET.encode() in part for part in server.received)
        assert found is is_sent, arguments
