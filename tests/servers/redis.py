"""Redis servers for tests of the cache."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from collections.abc import Sequence
from time import time

import redis

from sqla_shard.testing import RedisServer

__all__ = ["client_of", "grow_old", "old_server"]


@contextlib.contextmanager
def client_of(server: RedisServer) -> Iterator[redis.Redis]:
    """Connect to a server."""
    client = redis.Redis(server.host, server.port, socket_timeout=5)
    with contextlib.closing(client):
        yield client


def grow_old(server: RedisServer) -> None:
    """Make a server one that has been up for long: it gives leases."""
    with client_of(server) as client:
        run = client.info("server")["run_id"][:16]
        began = int(time() * 1000) - 10_000_000
        client.set("sqla_shard: guard", f"{run} {began}")


@contextlib.contextmanager
def old_server(
    options: Sequence[str] = (), megabytes: int = 64
) -> Iterator[RedisServer]:
    """Start a server that has been up for long, so to speak."""
    with RedisServer(options=options, megabytes=megabytes) as server:
        grow_old(server)
        yield server
