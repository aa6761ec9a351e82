"""The cache's store on memcached nodes, against pymemcache alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from itertools import count
from typing import Any

from pymemcache import HashClient, PooledClient

from sqla_shard.cache.stores import KeyState
from sqla_shard.cache.stores.memcached import MemcachedStore
from sqla_shard.testing.programs import find_memcached, MISSING_MEMCACHED
from tests.benchmarks.timing import compare, show
from tests.servers.memcached import nodes

_VALUE = b"x" * 400


def _keys(prefix: str) -> list[str]:
    return [f"{prefix}:3:{241294492511762325 + i * 7}" for i in range(50)]


def _read_and_fill(store: MemcachedStore, keys: list[str]) -> None:
    found = store.fetch(keys, 30)
    assert {one.state for one in found.values()} == {KeyState.LEASED}
    filled = {key: (one.lease, _VALUE) for key, one in found.items()}
    assert len(store.fill(filled, 3600)) == len(keys)


def _on(servers: list[str], store: MemcachedStore) -> None:
    hashing = HashClient(servers, use_pooling=True, no_delay=True)
    pooled = PooledClient(servers[0], no_delay=True)
    ours, raw, alone = _keys("ours"), _keys("hash"), _keys("pool")
    _read_and_fill(store, ours)
    hashing.set_many(dict.fromkeys(raw, _VALUE))
    pooled.set_many(dict.fromkeys(alone, _VALUE))
    for found in (hashing.get_many(raw), pooled.get_many(alone)):
        assert len(found) == 50
    hits: dict[str, Callable[[], Any]] = {
        "pymemcache HashClient.get_many": lambda: hashing.get_many(raw),
        "pymemcache PooledClient.get_many, on one of them": lambda: pooled.get_many(
            alone
        ),
        "MemcachedStore.fetch": lambda: store.fetch(ours, 30),
    }
    show(f"cache: 50 hits, memcached nodes: {len(servers)}", compare(hits))

    turns = count()

    def raw_misses() -> None:
        keys = _keys(f"hash{next(turns)}")
        assert not hashing.get_many(keys)
        hashing.set_many(dict.fromkeys(keys, _VALUE), noreply=False)

    def our_misses() -> None:
        _read_and_fill(store, _keys(f"ours{next(turns)}"))

    misses: dict[str, Callable[[], Any]] = {
        "pymemcache HashClient.get_many, set_many": raw_misses,
        "MemcachedStore.fetch, with leases, and fill": our_misses,
    }
    title = f"cache: 50 misses and fills, memcached nodes: {len(servers)}"
    show(title, compare(misses, turns=100))
    hashing.close()
    pooled.close()


def run() -> None:
    """Print the tables."""
    if find_memcached() is None:
        print(f"\ncache: {MISSING_MEMCACHED}")
        return
    for number in (1, 3):
        with nodes(number) as servers:
            names = [server.address for server in servers]
            with contextlib.closing(MemcachedStore(names, timeout=5)) as store:
                _on(names, store)
