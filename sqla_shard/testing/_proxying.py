"""The process of a :class:`~sqla_shard.testing.proxy.Proxy`.

Run by path, never imported: ``_proxying.py HOST PORT DELAY TLS``, the last of
which is 1 if clients may use TLS, else 0.  Its standard
input is a socket.  Each line is a command, a JSON object; the answers, in
order, have the counts and the port.  The end of the input ends the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import selectors
import socket
import struct
import sys
from collections import deque
from typing import Any

# Limit of bytes in transit in one direction: with a long delay, a client that
# sends megabytes must not fill the memory.
_MOST_WAITING = 4_000_000


class _PreciseSelector(selectors.EpollSelector):
    """Waits for microseconds; epoll rounds up to whole milliseconds."""

    def select(
        self, timeout: float | None = None
    ) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            select.select([self.fileno()], (), (), timeout)
            timeout = 0
        return super().select(timeout)


class _Packets:
    """Finds statements, and COMMIT, in the packets of a MySQL client.

    A packet has a header of four bytes: its length and its number, which is 0
    for a command.  The first byte of a command is its kind.
    """

    _COM_QUERY = b"\x03"
    # Enough for COMMIT with spaces; the rest of a packet is skipped.
    _ENOUGH = 32
    _SSL_REQUEST = 32, 0x800

    def __init__(self) -> None:
        self._head = bytearray()
        self._left = 0
        self._first = True
        #: Whether the client has asked for TLS: what follows is encrypted.
        self.encrypted = False

    def statements(self, data: bytes) -> list[bool]:
        """Return whether it is COMMIT, for each statement that ends here."""
        found = []
        while data and not self.encrypted:
            if self._left == 0 and len(self._head) < 4:
                wanted = 4 - len(self._head)
                self._head += data[:wanted]
                data = data[wanted:]
                if len(self._head) == 4:
                    self._left = int.from_bytes(self._head[:3], "little")
            else:
                body = data[: self._left]
                data = data[self._left :]
                self._left -= len(body)
                self._head += body[: 4 + self._ENOUGH - len(self._head)]
            if len(self._head) >= 4 and self._left == 0:
                found += self._ended()
        return found

    def _ended(self) -> list[bool]:
        size = int.from_bytes(self._head[:3], "little")
        number, body = self._head[3], bytes(self._head[4:])
        self._head.clear()
        if self._first:
            self._first = False
            wanted, flag = self._SSL_REQUEST
            flags = int.from_bytes(body[:4], "little")
            self.encrypted = size == wanted and bool(flags & flag)
        if number != 0 or body[:1] != self._COM_QUERY:
            return []
        text = body[1:] if size <= self._ENOUGH else b""
        return [text.strip(b"; \t\r\n").upper() == b"COMMIT"]


class _Greeting:
    """Removes the offer of TLS from the first packet of a MySQL server."""

    _VERSION = 10
    #: Bytes between the version of the server and its capabilities: a zero,
    #: the id of the connection, eight of the salt, and a zero.
    _BETWEEN = 14
    _SSL = 0x08  # of the second byte

    def __init__(self) -> None:
        self._data = bytearray()
        self._done = False

    def without_tls(self, data: bytes) -> bytes:
        """Return the bytes to forward; none while the packet is not whole."""
        if self._done:
            return data
        self._data += data
        if len(self._data) < 4:
            return b""
        end = 4 + int.from_bytes(self._data[:3], "little")
        if len(self._data) < end:
            return b""
        self._done = True
        # Another first packet is an error: too many connections.
        if self._data[4] == self._VERSION:
            place = self._data.index(0, 5) + self._BETWEEN + 1
            self._data[place] &= ~self._SSL
        return bytes(self._data)


class _Line:
    """The proxy: its connections and faults.

    :ivar delay: additional time of a round trip, in seconds.
    :ivar hanging: whether bytes are dropped.
    :ivar what: ``commits`` or ``statements``: a connection is reset at one.
    :ivar left: number of these until the reset; 0 for none.
    :ivar when: ``before`` or ``after`` the server receives it.
    :ivar hidden: connections that were reset because they asked for TLS while
        ``left`` was above 0.
    """

    def __init__(self, host: str, port: int, delay: float, *, tls: bool) -> None:
        self.host = host
        self.port = port
        self.delay = delay
        self.hanging = False
        self.what = ""
        self.left = 0
        self.when = ""
        self.tls = tls
        self.hidden = 0
        self.counts = {
            "connections": 0,
            "encrypted": 0,
            "statements": 0,
            "commits": 0,
            "sent": 0,
            "received": 0,
            "swallowed": 0,
        }
        self.links: set[_Link] = set()
        # Bound, but not listening: reserves the port while connections are
        # refused.
        self._holder = self._socket(0)
        self._server: asyncio.Server | None = None

    @property
    def own_port(self) -> int:
        return int(self._holder.getsockname()[1])

    def _socket(self, port: int) -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(("127.0.0.1", port))
        return made

    async def listen(self) -> None:
        if self._server is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(
                lambda: _Link(self).client,
                sock=self._socket(self.own_port),
                backlog=512,
            )

    def refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def cut(self) -> None:
        for link in list(self.links):
            link.cut()

    def executing(self, is_commit: bool) -> str:
        """Count a statement; return when to cut the connection, or ""."""
        self.counts["statements"] += 1
        self.counts["commits"] += is_commit
        if self.left == 0 or (self.what == "commits" and not is_commit):
            return ""
        self.left -= 1
        return "" if self.left else self.when

    async def obey(self, command: dict[str, Any]) -> dict[str, Any]:
        match command:
            case {"do": "delay", "seconds": seconds}:
                self.delay = seconds
            case {"do": "hang"}:
                self.hanging = True
            case {"do": "refuse"}:
                self.refuse()
            case {"do": "cut"}:
                self.cut()
            case {"do": "cut at", "what": what, "n": n, "when": when}:
                self.hidden = sum(link.packets.encrypted for link in self.links)
                if not self.hidden:
                    self.what, self.left, self.when = what, n, when
            case {"do": "restore"}:
                self.hanging = False
                self.left = 0
                await self.listen()
        # Sockets are closed in the next iteration of the loop: they must be
        # closed before the answer.
        await asyncio.sleep(0)
        hidden, self.hidden = self.hidden, 0
        return {
            **self.counts,
            "port": self.own_port,
            "open": len(self.links),
            "hidden": hidden,
        }


class _Link:
    """A connection: the ends of the client and of the server."""

    def __init__(self, line: _Line) -> None:
        self.line = line
        self.client = _End(self, "sent")
        self.server = _End(self, "received")
        self.client.other, self.server.other = self.server, self.client
        # Whether bytes were dropped.  Then nothing more is forwarded: the next
        # answer would be mistaken for the answer to a dropped request.
        self.mute = False
        self.packets = _Packets()
        self.greeting = _Greeting()
        # Whether the connection is reset when the server answers.
        self.doomed = False
        self.opening: asyncio.Task[None] | None = None
        self._ended = 0

    def begin(self) -> None:
        self.line.links.add(self)
        self.line.counts["connections"] += 1
        self.opening = asyncio.create_task(self._open())

    async def _open(self) -> None:
        # The TCP handshake: the server accepts after one and a half round
        # trips.
        await asyncio.sleep(self.line.delay * 1.5)
        if self.line.hanging:
            self.mute = True
            return
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: self.server, self.line.host, self.line.port
            )
        except OSError:
            self.cut()

    def end(self) -> None:
        """Count the ends of both directions; close after the second."""
        self._ended += 1
        if self._ended == 2:
            self.close()

    def close(self) -> None:
        self._drop()
        for end in (self.client, self.server):
            if end.transport is not None:
                end.transport.close()

    def cut(self) -> None:
        """Reset both connections."""
        self._drop()
        for end in (self.client, self.server):
            if end.transport is not None and not end.transport.is_closing():
                end.reset()

    def _drop(self) -> None:
        self.line.links.discard(self)
        if self.opening is not None:
            self.opening.cancel()


class _End(asyncio.Protocol):
    """One end of a link, and its bytes in transit to the other end.

    :param count: name of the count of forwarded bytes.
    """

    other: _End

    def __init__(self, link: _Link, count: str) -> None:
        self._link = link
        self._count = count
        self._loop = asyncio.get_running_loop()
        # When to forward which bytes; b"" is the end of the stream.
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None
        self._blocked = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - typing
        self.transport = transport
        if self is self._link.client:
            self._link.begin()
        elif self._link not in self._link.line.links:
            self.reset()  # the client has disconnected
        else:
            self.other.deliver()

    def data_received(self, data: bytes) -> None:
        if self is self._link.client:
            self._look(data)
        elif self._link.doomed:
            self._link.cut()
        elif not self._link.line.tls:
            data = self._link.greeting.without_tls(data)
            if not data:
                return
        if self._link in self._link.line.links:
            self._pass(data)

    def _look(self, data: bytes) -> None:
        """Count statements of the client, and cut the connection at one."""
        link = self._link
        before = link.packets.encrypted
        found = link.packets.statements(data)
        if link.packets.encrypted and not before:
            link.line.counts["encrypted"] += 1
            if link.line.left:
                link.line.hidden += 1
                link.cut()
        for is_commit in found:
            if link.line.hanging or link.mute:
                return
            when = link.line.executing(is_commit)
            if when == "before":
                link.cut()
            elif when == "after":
                link.doomed = True

    def eof_received(self) -> bool:
        self._pass(b"")
        return True

    def connection_lost(self, error: Exception | None) -> None:
        if self._link in self._link.line.links:
            self._link.cut()

    def pause_writing(self) -> None:
        self.other.block(True)

    def resume_writing(self) -> None:
        self.other.block(False)

    def _pass(self, data: bytes) -> None:
        link = self._link
        if link.line.hanging or link.mute:
            self._swallow(data)
            return
        # In order of arrival, even after the delay was shortened.
        due = self._loop.time() + link.line.delay / 2
        self._waiting.append((due, data))
        self._size += len(data)
        self.deliver()

    def _swallow(self, data: bytes) -> None:
        self._link.mute = True
        self._link.line.counts["swallowed"] += len(data)
        if not data:
            self._link.close()

    def deliver(self) -> None:
        """Forward the bytes that are due, and set the timer for the rest."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        there = self.other.transport
        if there is None or there.is_closing():
            self.block(self._blocked)
            return
        now = self._loop.time()
        while self._waiting and self._waiting[0][0] <= now:
            _, data = self._waiting.popleft()
            self._size -= len(data)
            if self._link.line.hanging or self._link.mute:
                self._swallow(data)
            elif data:
                self._link.line.counts[self._count] += len(data)
                there.write(data)
            else:
                there.write_eof()
                self._link.end()
        if self._waiting:
            due = self._waiting[0][0]
            self._timer = self._loop.call_at(due, self.deliver)
        # Reading may have been paused before the server was connected.
        self.block(self._blocked)

    def block(self, blocked: bool) -> None:
        """Pause reading while the other end is blocked or much waits."""
        self._blocked = blocked
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if blocked or self._size > _MOST_WAITING:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def reset(self) -> None:
        assert self.transport is not None  # noqa: S101 - typing
        # Without lingering, closing sends RST.
        self.transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        self.transport.abort()


async def _watch(parent: int) -> None:
    # The input stays open in forked children of the test run; this process
    # must end with the test run itself.
    while os.getppid() == parent:
        await asyncio.sleep(0.5)


async def _obey(line: _Line) -> None:
    control = socket.socket(fileno=os.dup(0))
    reader, writer = await asyncio.open_unix_connection(sock=control)
    while command := await reader.readline():
        answer = await line.obey(json.loads(command))
        writer.write(json.dumps(answer).encode() + b"\n")
        await writer.drain()


async def _run(host: str, port: int, delay: float, *, tls: bool) -> None:
    line = _Line(host, port, delay, tls=tls)
    await line.listen()
    tasks = [
        asyncio.create_task(_obey(line)),
        asyncio.create_task(_watch(os.getppid())),
    ]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    line.refuse()
    line.cut()
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            await task


def main() -> None:
    """Forward bytes until the test run ends."""
    host, port, delay, tls = sys.argv[1:]
    loop = asyncio.SelectorEventLoop(_PreciseSelector())
    running = _run(host, int(port), float(delay), tls=tls == "1")
    loop.run_until_complete(running)
    loop.close()


if __name__ == "__main__":
    main()
