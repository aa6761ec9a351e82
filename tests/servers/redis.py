"""Redis servers for tests of the cache, of feeds and of follow graphs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from time import time

import redis

from sqla_shard import Cluster
from sqla_shard.jobs import count_queues, Worker
from sqla_shard.testing import RedisServer
from sqla_shard.testing.local_server import wait_until


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


def two_databases(server: RedisServer) -> list[str]:
    """Return the URLs of two databases of a server, which are empty."""
    if not server.alive:
        server.start()
    server.flush()
    return [f"redis://{server.address}/{number}" for number in (0, 1)]


def finish_jobs(cluster: Cluster, queue: str) -> None:
    """Run jobs until those that wait for a retry have run as well."""

    def finished() -> bool:
        Worker(cluster, [queue]).run(until_empty=True)
        left = ("due", "scheduled", "running", "expired")
        return not any(
            getattr(one, name) for one in count_queues(cluster) for name in left
        )

    assert wait_until(finished, seconds=120, every=0.1)
