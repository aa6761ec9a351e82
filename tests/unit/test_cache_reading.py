"""Reading through a store, and what writers tell it."""

from __future__ import annotations

import threading
from dataclasses import replace
from time import monotonic

import pytest

from sqla_shard import exc
from sqla_shard.cache.protocol import read_through as through, Times, Tombstones
from sqla_shard.cache.stores import KeyState, MemoryStore
from sqla_shard.cache.stores.memcached import MemcachedStore
from tests.models.cache_source import Plain
from tests.servers.memcached import no_node

TIMES = Times(wait=0.05)


def read_through(store, keys, load, times):
    return through(store, keys, Plain(load, times), times)


class Rows:
    """A database that counts."""

    def __init__(self, **rows):
        self.rows = rows
        self.asked = []

    def load(self, keys):
        self.asked.append(list(keys))
        return {key: self.rows[key] for key in keys if key in self.rows}


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(clock):
    return MemoryStore(clock=clock)


def at_once(work, count):
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def test_the_database_is_queried_once(store):
    rows = Rows(a=b"1", b=b"2")
    for _ in range(3):
        found = read_through(store, ["a", "b", "a"], rows.load, TIMES)
        assert found == {"a": b"1", "b": b"2"}
    assert rows.asked == [["a", "b"]]
    rows.rows["c"] = b"3"
    assert read_through(store, ["a", "c"], rows.load, TIMES) == {"a": b"1", "c": b"3"}
    assert rows.asked[1:] == [["c"]]


def test_absences_are_cached_for_a_shorter_time(store, clock):
    rows = Rows(a=b"1", b=None)
    for _ in range(2):
        found = read_through(store, ["a", "b", "c"], rows.load, TIMES)
        assert found == {"a": b"1", "b": None, "c": None}
    assert rows.asked == [["a", "b", "c"]]
    clock.now += TIMES.expire_nothing + 1
    read_through(store, ["a", "b", "c"], rows.load, TIMES)
    assert rows.asked[1:] == [["b", "c"]]


def test_under_a_tombstone_the_database_is_queried(store):
    rows = Rows(a=b"1")
    read_through(store, ["a"], rows.load, TIMES)
    tombstones = Tombstones(store, TIMES)
    assert tombstones.put(["a"]) == set()
    for version in (b"1", b"2"):
        rows.rows["a"] = version
        assert read_through(store, ["a"], rows.load, TIMES) == {"a": version}
    tombstones.remove()
    assert read_through(store, ["a"], rows.load, TIMES) == {"a": b"2"}
    assert read_through(store, ["a"], rows.load, TIMES) == {"a": b"2"}
    assert len(rows.asked) == 4


def test_values_read_before_a_tombstone_are_not_cached(store):
    rows = Rows(a=b"1")

    def load(keys):
        found = rows.load(keys)
        tombstones = Tombstones(store, TIMES)
        tombstones.put(["a"])
        rows.rows["a"] = b"2"
        tombstones.remove()
        return found

    assert read_through(store, ["a"], load, TIMES) == {"a": b"1"}
    assert read_through(store, ["a"], rows.load, TIMES) == {"a": b"2"}


def test_one_asks_the_database_for_all_who_want_a_row():
    store = MemoryStore()
    rows = Rows(a=b"1")
    ready = threading.Barrier(20)
    times = replace(TIMES, wait=60.0)
    found = []

    def load(keys):
        # The others have looked, and wait.
        slow = threading.Event()
        slow.wait(0.05)
        return rows.load(keys)

    def read():
        ready.wait(60)
        found.append(read_through(store, ["a"], load, times))

    at_once(read, 20)
    assert found == [{"a": b"1"}] * 20
    assert rows.asked == [["a"]]


def test_waiting_has_a_limit(store):
    rows = Rows(a=b"1")
    assert store.fetch(["a"], 30)["a"].state is KeyState.LEASED
    start = monotonic()
    assert read_through(store, ["a"], rows.load, TIMES) == {"a": b"1"}
    # The lease would never end; a busy machine may take its time.
    assert TIMES.wait <= monotonic() - start < TIMES.wait + 10
    # It has no lease: nothing may be put there.
    assert store.fetch(["a"], 30)["a"].state is KeyState.BUSY


def test_a_row_that_is_gone_after_waiting(store):
    assert store.fetch(["a"], 30)["a"].state is KeyState.LEASED
    times = replace(TIMES, wait=0.0)
    assert read_through(store, ["a"], Rows().load, times) == {"a": None}


def test_a_lease_that_ends_meanwhile_is_taken_over(store):
    rows = Rows(a=b"1")
    store.fetch(["a"], 30)
    writer = Tombstones(store, TIMES)
    threading.Timer(0.02, lambda: (writer.put(["a"]), writer.remove())).start()
    times = replace(TIMES, wait=60.0)
    assert read_through(store, ["a"], rows.load, times) == {"a": b"1"}
    assert store.fetch(["a"], 30)["a"].state is KeyState.VALUE


def test_an_error_of_the_database_is_reported(store):
    def load(keys):
        raise ConnectionError("no database")

    with pytest.raises(ConnectionError, match="no database"):
        read_through(store, ["a"], load, TIMES)
    assert read_through(store, ["a"], Rows(a=b"1").load, TIMES) == {"a": b"1"}


def test_without_a_node_the_database_is_queried():
    rows = Rows(a=b"1")
    with no_node() as address:
        store = MemcachedStore([address])
        for _ in range(3):
            assert read_through(store, ["a"], rows.load, TIMES) == {"a": b"1"}
        assert len(rows.asked) == 3
        tombstones = Tombstones(store, TIMES)
        assert tombstones.put(["a"]) == {"a"}
        tombstones.remove()


def test_tombstones_are_removed_once(store):
    tombstones = Tombstones(store, TIMES)
    tombstones.remove()
    tombstones.put(["a"])
    tombstones.put(["b"])
    tombstones.remove()
    leases = store.fetch(["a", "b"], 30)
    assert {one.state for one in leases.values()} == {KeyState.LEASED}
    tombstones.remove()
    filled = {key: (one.lease, b"1") for key, one in leases.items()}
    assert store.fill(filled, 60) == {"a", "b"}


def test_a_tombstone_that_a_store_cannot_promise():
    store = MemcachedStore(["127.0.0.1"], longest=10)
    with pytest.raises(exc.OptionError, match="expire=60"):
        Tombstones(store, TIMES).put(["a"])
