"""The store in memory, on a clock of the tests."""

from __future__ import annotations

import pytest

from sqla_shard import exc
from sqla_shard.cache.stores import KeyState, MemoryStore
from tests.suites import cache_store


class Memory(cache_store.Harness):
    def __init__(self):
        self.now = 1000.0
        self.store = MemoryStore(clock=lambda: self.now)

    def until(self, condition):
        for _ in range(20):
            if condition():
                return True
            self.now += 0.25
        return False

    def flush(self):
        self.store.flush()


@pytest.fixture
def harness():
    return Memory()


@pytest.fixture
def mark():
    return "test"


TestValues = cache_store.Values
TestLeases = cache_store.Leases
TestTombstones = cache_store.Tombstones
TestTaken = cache_store.Taken


def test_the_oldest_make_way_but_never_a_tombstone():
    store = MemoryStore(most=100)
    tombstones = [f"t{i}" for i in range(5)]
    store.block(tombstones, b"t" * 16, 60)
    for number in range(500):
        key = f"k{number}"
        lease = store.fetch([key], 30)[key].lease
        assert store.fill({key: (lease, b"v")}, 60) == {key}
    found = store.fetch(tombstones, 30)
    assert {one.state for one in found.values()} == {KeyState.BLOCKED}
    assert store.fetch(["k499"], 30)["k499"].value == b"v"
    assert store.fetch(["k0"], 30)["k0"].state is KeyState.LEASED
    assert len(store._items) <= 100


def test_expired_entries_are_evicted_first():
    harness = Memory()
    harness.store = MemoryStore(most=3, clock=lambda: harness.now)
    for key, expire in (("kept", 60), ("short", 1), ("shorter", 1)):
        lease = harness.store.fetch([key], 30)[key].lease
        harness.store.fill({key: (lease, b"v")}, expire)
    harness.now += 2
    harness.store.fetch(["new"], 30)
    assert harness.store.fetch(["kept"], 30)["kept"].value == b"v"


def test_a_dead_writers_token_does_not_last():
    harness = Memory()
    dead, ours = b"d" * 16, b"o" * 16
    harness.store.block(["a"], dead, 10)
    for _ in range(4):
        harness.now += 4
        harness.store.block(["a"], ours, 10)
        harness.store.unblock(["a"], ours)
    assert harness.store.fetch(["a"], 30)["a"].state is KeyState.LEASED


def test_room_for_nothing():
    with pytest.raises(exc.OptionError, match="most=0"):
        MemoryStore(most=0)
