"""The store on one, two and three memcached nodes."""

from __future__ import annotations

import contextlib

import pytest

from sqla_shard.cache.stores.memcached import MemcachedStore
from tests.servers.memcached import grow_old, nodes
from tests.suites import cache_store

pytestmark = pytest.mark.live


class OnNodes(cache_store.Harness):
    def __init__(self, servers):
        self.servers = servers
        # A busy machine may take its time: faults are tested elsewhere.
        self.store = MemcachedStore([s.address for s in servers], timeout=5.0)

    def flush(self):
        for server in self.servers:
            server.flush()
            grow_old(server)


@pytest.fixture(scope="module")
def servers(memcached_installed):
    with nodes(3) as servers:
        yield servers


@pytest.fixture(params=[1, 2, 3], ids="{} nodes".format)
def harness(servers, request):
    harness = OnNodes(servers[: request.param])
    with contextlib.closing(harness.store):
        yield harness


@pytest.fixture
def mark(rng):
    return f"{rng.getrandbits(64):x}"


TestValues = cache_store.Values
TestLeases = cache_store.Leases
TestTombstones = cache_store.Tombstones
TestTaken = cache_store.Taken
