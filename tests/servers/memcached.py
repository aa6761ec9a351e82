"""memcached nodes for tests of the cache."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import IO

from sqla_shard.cache.stores import LONGEST
from sqla_shard.testing import MemcachedServer


@contextlib.contextmanager
def _sent(server: MemcachedServer, sent: bytes) -> Iterator[IO[bytes]]:
    address = (server.host, server.port)
    with (
        socket.create_connection(address, timeout=5) as asking,
        asking.makefile("rb") as answers,
    ):
        asking.sendall(sent)
        yield answers


def command(server: MemcachedServer, sent: bytes) -> bytes:
    """Send a command to a node; return the first line of its answer."""
    with _sent(server, sent) as answers:
        return answers.readline()


def stats(server: MemcachedServer) -> dict[str, str]:
    """Return the statistics of a node, by name."""
    with _sent(server, b"stats\r\n") as answers:
        lines = iter(answers.readline, b"END\r\n")
        rows = [line.decode().split(None, 2)[1:] for line in lines]
    return {name: value.strip() for name, value in rows}


def grow_old(server: MemcachedServer) -> None:
    """Make a node one that has been up for long: it gives leases at once."""
    left = LONGEST - 10_000
    sent = f"ms sqla_shard:guard 0 T{left}\r\n\r\n".encode()
    assert command(server, sent) == b"HD\r\n"


@contextlib.contextmanager
def no_node() -> Iterator[str]:
    """Keep a port where no node answers, and none can be started meanwhile."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as kept:
        kept.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{kept.getsockname()[1]}"


@contextlib.contextmanager
def nodes(count: int) -> Iterator[list[MemcachedServer]]:
    """Start nodes that have been up for long, so to speak."""
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(MemcachedServer(f"memcached{number}"))
            for number in range(1, count + 1)
        ]
        for server in servers:
            grow_old(server)
        yield servers
