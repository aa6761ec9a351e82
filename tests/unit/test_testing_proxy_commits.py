"""The proxy recognises statements, however their bytes arrive."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from sqla_shard.exc import EncryptedStatementsError
from sqla_shard.testing import Proxy

PATIENCE = 60
HELLO = b"\x00" * 40  # what a client says first, shortened
SSL_FLAG = 0x800


def packet(body: bytes, number: int = 0) -> bytes:
    return len(body).to_bytes(3, "little") + bytes([number]) + body


GREETED = packet(HELLO, 1)
COMMIT = packet(b"\x03COMMIT")
PING = packet(b"\x0e")


class Server:
    """Says ``.`` for each byte of the first connection, and keeps them."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.got = bytearray()
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self.listener.accept()
            with connection:
                while data := connection.recv(65_536):
                    self.got += data
                    connection.sendall(b"." * len(data))

    def all(self) -> bytes:
        """Return what came until the connection was lost."""
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()
        return bytes(self.got)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    with contextlib.suppress(OSError):
        server.listener.shutdown(socket.SHUT_RDWR)
    server.listener.close()
    server.thread.join(PATIENCE)


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", server.port) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy) -> Iterator[socket.socket]:
    address = proxy.host, proxy.port
    with socket.create_connection(address, timeout=PATIENCE) as made:
        yield made


def say(client: socket.socket, data: bytes) -> None:
    """Send, and wait for as many bytes."""
    client.sendall(data)
    left = len(data)
    while left:
        left -= len(client.recv(left)) or pytest.fail("closed")


@pytest.mark.parametrize("size", [1, 3, 4, 5, 7, 1000])
def test_before_the_server_has_all_of_it(
    proxy: Proxy, server: Server, client: socket.socket, size: int
) -> None:
    say(client, GREETED)
    proxy.cut_at_commit(2, when="before")
    say(client, COMMIT + PING)
    pieces = [COMMIT[i : i + size] for i in range(0, len(COMMIT), size)]
    for piece in pieces[:-1]:
        say(client, piece)
    with pytest.raises(ConnectionResetError):
        say(client, pieces[-1])
    assert server.all() == GREETED + COMMIT + PING + b"".join(pieces[:-1])
    assert proxy.counts.commits == 2


def test_after_the_server_has_it(
    proxy: Proxy, server: Server, client: socket.socket
) -> None:
    say(client, GREETED)
    proxy.cut_at_commit(when="after")
    say(client, PING)
    with pytest.raises(ConnectionResetError):
        say(client, COMMIT)
    assert server.all() == GREETED + PING + COMMIT


def test_two_in_one_piece(proxy: Proxy, server: Server, client: socket.socket) -> None:
    say(client, GREETED)
    proxy.cut_at_commit(3, when="before")
    say(client, COMMIT + COMMIT)
    with pytest.raises(ConnectionResetError):
        say(client, PING + COMMIT)
    assert proxy.counts.commits == 3


@pytest.mark.parametrize("when", ["before", "after"])
def test_statements_of_any_kind(
    proxy: Proxy, server: Server, client: socket.socket, when: Any
) -> None:
    long = packet(b"\x03SELECT '" + b"x" * 70_000 + b"'")
    say(client, GREETED)
    proxy.cut_at_statement(3, when=when)
    say(client, PING + long + COMMIT)
    with pytest.raises(ConnectionResetError):
        say(client, packet(b"\x03SELECT 1"))
    assert server.all().endswith(b"SELECT 1" if when == "after" else COMMIT)
    assert (proxy.counts.statements, proxy.counts.commits) == (3, 1)


@pytest.mark.parametrize(
    "data",
    [
        packet(b"\x03COMMIT", 1),  # no command
        packet(b"\x16COMMIT"),  # prepares it
        packet(b"\x03COMMIT AND CHAIN"),
        packet(b"\x03SELECT '" + COMMIT + b"'"),
        packet(b"\x03" + b" " * 70_000 + COMMIT),
        packet(b""),
    ],
)
def test_statements_that_are_no_commit(
    proxy: Proxy, client: socket.socket, data: bytes
) -> None:
    say(client, GREETED)
    proxy.cut_at_commit(when="before")
    say(client, data)
    assert proxy.counts.commits == 0
    # And what comes next is read from its beginning.
    with pytest.raises(ConnectionResetError):
        say(client, packet(b"\x03 commit;"))
    assert proxy.counts.commits == 1


WISH = packet(SSL_FLAG.to_bytes(4, "little") + b"\x00" * 28, 1)


def test_counts_are_refused_where_a_client_uses_tls(
    proxy: Proxy, client: socket.socket
) -> None:
    assert (proxy.counts.statements, proxy.counts.commits) == (0, 0)
    say(client, WISH + COMMIT)
    counts = proxy.counts
    assert (counts.encrypted, counts.sent) == (1, len(WISH + COMMIT))
    for name in ("statements", "commits"):
        with pytest.raises(EncryptedStatementsError, match="tls=False"):
            getattr(counts, name)


@pytest.mark.parametrize("cut", ["cut_at_commit", "cut_at_statement"])
def test_cuts_are_refused_where_a_client_uses_tls(
    proxy: Proxy, client: socket.socket, cut: str
) -> None:
    say(client, WISH)
    with pytest.raises(EncryptedStatementsError) as caught:
        getattr(proxy, cut)(when="before")
    assert caught.value.connections == 1
    say(client, COMMIT)


def test_a_request_for_tls_before_a_cut_is_reset_and_told(
    proxy: Proxy, client: socket.socket
) -> None:
    proxy.cut_at_commit(when="before")
    with pytest.raises(ConnectionResetError):
        say(client, WISH)
    with pytest.raises(EncryptedStatementsError):
        proxy.restore()
    proxy.restore()


def greeting(flags: int) -> bytes:
    """Return the first packet of a server of MySQL, shortened."""
    version = b"\x0a9.7.4\x00"
    salt = b"\x07\x00\x00\x00" + b"s\xffltsalt" + b"\x00"
    return packet(version + salt + flags.to_bytes(2, "little") + b"\xff" * 7)


@pytest.mark.parametrize("size", [1, 3, 5, 1000])
@pytest.mark.parametrize(
    ("sent", "received"),
    [
        (greeting(0xFFFF), greeting(0xFFFF & ~SSL_FLAG)),
        (greeting(0xF7FF), greeting(0xF7FF)),
        (packet(b"\xff\x10\x04Too many"), packet(b"\xff\x10\x04Too many")),
    ],
    ids=["tls", "no tls", "error"],
)
def test_the_offer_of_tls_is_removed_from_the_greeting(
    size: int, sent: bytes, received: bytes
) -> None:
    # What comes later may look like it.
    later = greeting(0xFFFF)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        Proxy("127.0.0.1", listener.getsockname()[1], tls=False) as proxy,
        socket.create_connection((proxy.host, proxy.port), timeout=PATIENCE) as client,
    ):
        listener.settimeout(PATIENCE)
        connection, _ = listener.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            data = sent + later
            for start in range(0, len(data), size):
                connection.sendall(data[start : start + size])
            found = b""
            while len(found) < len(data):
                found += client.recv(1000) or pytest.fail("closed")
    assert found == received + later


def test_only_once_and_on_any_connection(proxy: Proxy, client: socket.socket) -> None:
    say(client, GREETED)
    proxy.cut_at_commit(when="before")
    proxy.cut_at_commit(2, when="before")
    say(client, COMMIT)
    with pytest.raises(ConnectionResetError):
        say(client, COMMIT)
    assert proxy.counts.open == 0
