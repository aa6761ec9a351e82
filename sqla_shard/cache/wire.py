"""One connection to a memcached, and what is said on it.

Anything that is no answer, or not the answer to what was asked, is an
:class:`OSError`, after which the connection must be closed: what is still to
come would be taken for the answer to the next question.

What is said ends in time, however slowly the node sends.  Finding the address
of a name is not timed: that is the system's, so that nodes are better named
by their addresses.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence
from time import monotonic
from typing import NamedTuple

from sqla_shard import exc
from sqla_shard.forking import in_children

__all__ = ["Answer", "Connection", "parse_server"]

_PORT = 11_211
_RECEIVED = 65_536
#: Answers without a value; each is followed by flags, if any.
_CODES = frozenset([b"HD", b"EN", b"NS", b"EX", b"NF"])
#: What is sent at once.  It must fit into the buffers of both sides, which
#: would wait for each other otherwise: we to send, and the node too.
_COMMANDS, _BYTES = 100, 262_144


class Answer(NamedTuple):
    """What a node has answered to a meta command.

    :ivar code: such as ``b"HD"``; ``b"SERVER_ERROR"`` for what it could not
        do, such as keep an item that is too large.
    :ivar flags: what follows, by the letter.
    :ivar data: the value; None where there is none.
    """

    code: bytes
    flags: dict[bytes, bytes]
    data: bytes | None = None

    def flag(self, letter: bytes) -> bytes:
        """Return a flag that was asked for.

        :raises OSError: when it is not there.
        """
        try:
            return self.flags[letter]
        except KeyError:
            raise _garbled(self) from None

    def number(self, letter: bytes) -> int:
        """Return a flag that is a number.

        :raises OSError: when it is none.
        """
        try:
            return int(self.flag(letter))
        except ValueError:
            raise _garbled(self) from None

    def check_key(self, key: str) -> None:
        """Look whether it is the answer to a question for a key.

        :raises OSError: when it is that for another key.
        """
        if self.flags.get(b"k") != key.encode():
            raise _garbled(self)


def parse_server(server: str) -> tuple[str, int] | str:
    """Return where a node is: host and port, or the path of its socket.

    :param server: ``host``, ``host:port``, ``[address]:port``, for IPv6 also
        a bare address, or the path of a Unix socket.
    :raises sqla_shard.exc.CacheOptionError: for anything else.
    """
    if not isinstance(server, str):
        raise _no_server(server)
    if server.startswith("/"):
        return server
    host, port = server, ""
    if server.startswith("["):
        host, closing, port = server[1:].partition("]")
        if not closing or (port and not port.startswith(":")):
            host = ""
        port = port[1:] if port else str(_PORT)
    elif server.count(":") == 1:
        host, _, port = server.partition(":")
    else:
        port = str(_PORT)
    is_port = port.isascii() and port.isdecimal()
    if not host or not is_port or not 1 <= int(port) <= 65_535:
        raise _no_server(server)
    return host, int(port)


def _no_server(server: object) -> exc.CacheOptionError:
    return exc.CacheOptionError(
        "is no memcached; write host:port, [address]:port for IPv6, or "
        "the path of a Unix socket",
        option="servers",
        value=server,
    )


def _connect(address: tuple[str, int] | str, timeout: float) -> socket.socket:
    if isinstance(address, tuple):
        connected = socket.create_connection(address, timeout)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.settimeout(timeout)
        connected.connect(address)
    except BaseException:
        connected.close()
        raise
    return connected


def _garbled(what: object) -> ConnectionAbortedError:
    return ConnectionAbortedError(f"not an answer: {what!r:.200}")


class Connection:
    """A connection that is open.

    :param address: of :func:`parse_server`.
    :param timeout: seconds that a question and its answers may take.
    :ivar serial: for who keeps several, to tell which was opened first.
    :raises OSError: when it cannot be opened.
    """

    __slots__ = (
        *("__weakref__", "_deadline", "_poll", "_socket", "_timeout"),
        "serial",
    )

    def __init__(self, address: tuple[str, int] | str, timeout: float) -> None:
        self.serial = 0
        self._timeout = timeout
        self._deadline = 0.0
        self._socket = _connect(address, timeout)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        in_children(self)

    def close(self) -> None:
        """Close it; a process that was forked may still use its own."""
        self._socket.close()

    def after_fork(self) -> None:
        """Close the child's copy, which a thread of the parent may use."""
        self.close()

    @property
    def is_idle(self) -> bool:
        """Whether it is open still, with nothing left of earlier answers."""
        return not self._poll.poll(0)

    def send(self, commands: bytes) -> None:
        """Ask, and let the time of the answers begin.

        :raises OSError: when that cannot be done in time.
        """
        self._deadline = monotonic() + self._timeout
        self._socket.settimeout(self._timeout)
        self._socket.sendall(commands)

    def exchange(self, commands: Sequence[bytes]) -> list[Answer]:
        """Send meta commands, and return the answer to each.

        :raises OSError: when one of them is none, or does not come in time.
        """
        answers: list[Answer] = []
        for part in _parts(commands):
            self.send(b"".join(part))
            answers += self._answers(len(part))
        return answers

    def values(
        self, keys: Collection[str]
    ) -> Iterator[tuple[str, bytes, bytes]]:
        """Yield the answers to ``get``, which was sent.

        :param keys: that were asked for.
        :returns: key, client flags and value of each item that is there.
        :raises OSError: as :meth:`exchange`.
        """
        # Other nodes were asked meanwhile: what came in time is there.
        self._deadline = max(self._deadline, monotonic() + self._timeout * 0.2)
        buffer, at = b"", 0
        number = 0
        while True:
            end = buffer.find(b"\r\n", at)
            if end < 0:
                buffer, at = self._receive(buffer[at:], 0), 0
                continue
            line = buffer[at:end]
            if line == b"END":
                break
            try:
                word, name, flags, size = line.split(b" ")
                key, length = name.decode("ascii"), int(size)
            except ValueError:
                raise _garbled(line) from None
            at = end + 2
            stop = at + length
            if len(buffer) < stop + 2:
                buffer = self._receive(buffer[at:], length + 2)
                at, stop = 0, length
            if word != b"VALUE" or key not in keys or length < 0:
                raise _garbled(line)
            if buffer[stop : stop + 2] != b"\r\n":
                raise _garbled(buffer[stop : stop + 2])
            yield key, flags, buffer[at:stop]
            at = stop + 2
            number += 1
            if number % _COMMANDS == 0:
                # So many take as long as those of one exchange(): ten
                # thousand would have the node taken for one that is down.
                self._deadline = monotonic() + self._timeout
        if end + 2 != len(buffer):
            raise _garbled(buffer[end:])

    def statistics(self) -> dict[str, str]:
        """Return what the node says of itself, by name.

        :raises OSError: as :meth:`exchange`.
        """
        self.send(b"stats\r\n")
        found: dict[str, str] = {}
        buffer = b""
        while True:
            buffer = self._receive(buffer, 0)
            *lines, buffer = buffer.split(b"\r\n")
            for number, line in enumerate(lines, start=1):
                if line == b"END":
                    if number < len(lines) or buffer:
                        raise _garbled(buffer or lines[number])
                    return found
                word, name, value = (*line.split(b" ", 2), b"", b"")[:3]
                if word != b"STAT" or not name:
                    raise _garbled(line)
                found[name.decode("latin-1")] = value.decode("latin-1")

    def _answers(self, count: int) -> list[Answer]:
        answers: list[Answer] = []
        buffer, at = b"", 0
        while len(answers) < count:
            end = buffer.find(b"\r\n", at)
            if end < 0:
                buffer, at = self._receive(buffer[at:], 0), 0
                continue
            code, *rest = buffer[at:end].split(b" ")
            at = end + 2
            if code == b"SERVER_ERROR":
                answers.append(Answer(code, {}))
                continue
            length = -1
            if code == b"VA" and rest and rest[0].isdigit():
                length = int(rest.pop(0))
            elif code not in _CODES:
                raise _garbled(buffer[at - 80 if at > 80 else 0 : end])
            flags = {flag[:1]: flag[1:] for flag in rest}
            if length < 0:
                answers.append(Answer(code, flags))
                continue
            if len(buffer) < at + length + 2:
                buffer, at = self._receive(buffer[at:], length + 2), 0
            stop = at + length
            if buffer[stop : stop + 2] != b"\r\n":
                raise _garbled(buffer[stop : stop + 2])
            answers.append(Answer(code, flags, buffer[at:stop]))
            at = stop + 2
        if at != len(buffer):
            raise _garbled(buffer[at:])
        return answers

    def _receive(self, rest: bytes, least: int) -> bytes:
        """Return what is not read yet, and more; of some length, if told."""
        parts, length = [rest], len(rest)
        while length < least or len(parts) == 1:
            left = self._deadline - monotonic()
            if left <= 0:
                raise TimeoutError("timed out")
            self._socket.settimeout(left)
            # Not all that a garbled length asks for: there is no such memory.
            want = min(max(_RECEIVED, least - length), _BYTES)
            got = self._socket.recv(want)
            if not got:
                raise ConnectionResetError("closed by the node")
            parts.append(got)
            length += len(got)
        return b"".join(parts)


def _parts(commands: Sequence[bytes]) -> Iterator[list[bytes]]:
    part: list[bytes] = []
    size = 0
    for command in commands:
        if part and (len(part) == _COMMANDS or size + len(command) > _BYTES):
            yield part
            part, size = [], 0
        part.append(command)
        size += len(command)
    if part:
        yield part
