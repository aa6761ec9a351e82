"""The two things that are asked of a ZooKeeper server without a client.

No driver is needed for them.
"""

from __future__ import annotations

import socket
import ssl
import struct

__all__ = ["ask", "end_session"]

_PATIENCE = 2.0
#: Of who has no other way to find out than to wait for the answer.
_LONG_PATIENCE = 20.0
_CLOSE_SESSION = -11
# Answers without an end to wait for: a server that has yet to load its data
# gives one and then fails to close the connection.
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


def ask(
    host: str, port: int, word: str, context: ssl.SSLContext | None = None
) -> str:
    """Return the answer to one of ZooKeeper's four-letter words.

    :param context: for a server with TLS.
    :raises OSError: if there is none within two seconds.
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
    """Take over a session and close it, as its own client would.

    :return: whether there was such a session.
    :raises OSError: if the server does not answer within twenty seconds.
    """
    with _connect(host, port, context, _LONG_PATIENCE) as connection:
        # The version, the last transaction seen, the timeout, the session
        # and its password, and whether a read-only server will do.
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
