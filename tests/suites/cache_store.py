"""The behaviour that all stores of the cache have in common."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from sqla_shard import exc
from sqla_shard.cache.stores import Found, KeyState
from sqla_shard.testing.local_server import wait_until

LARGEST = 1_000_000
BYTES = bytes(range(256))
BAD_KEYS = ["", "a b", "a\n", "a\r\nflush_all\r\n", "é", "\x7f", "a" * 251, 7]


class Harness:
    """A store, and what its surroundings can be made to do."""

    store: Any

    def until(self, condition: Callable[[], bool]) -> bool:
        """Let time pass until something is so."""
        return wait_until(condition, seconds=60)

    def flush(self) -> None:
        """Make the store forget leases and values."""
        raise NotImplementedError


def states(found: dict[str, Found]) -> dict[str, KeyState]:
    return {key: one.state for key, one in found.items()}


def state(store: Any, key: str) -> KeyState:
    return store.fetch([key], 30)[key].state


def leased(store: Any, keys: list[str], lease: int = 30) -> dict[str, Any]:
    """Return the leases of keys of which nothing is there."""
    found = store.fetch(keys, lease)
    assert set(states(found).values()) == {KeyState.LEASED}
    return {key: one.lease for key, one in found.items()}


def put(store: Any, key: str, value: bytes, expire: int = 60) -> None:
    lease = leased(store, [key])[key]
    assert store.fill({key: (lease, value)}, expire) == {key}


def token() -> bytes:
    return os.urandom(16)


class Suite:
    """Base of the suites; the test module provides ``harness``."""

    @pytest.fixture
    def store(self, harness):
        return harness.store


class Values(Suite):
    @pytest.mark.parametrize(
        "value", [b"1", b"", BYTES * 4, b"\r\nEND\r\n", b"VALUE a 1 1\r\n", b"\0"]
    )
    def test_stored_values_are_found(self, store, mark, value):
        put(store, mark, value)
        assert store.fetch([mark], 30) == {mark: Found(KeyState.VALUE, value)}

    def test_large_values(self, store, mark, rng):
        keys = [f"{mark}:{i}" for i in range(4)]
        values = {key: rng.randbytes(LARGEST - i) for i, key in enumerate(keys)}
        leases = leased(store, keys)
        done = store.fill({k: (leases[k], values[k]) for k in keys}, 60)
        assert done == set(keys)
        for key in keys:
            assert store.fetch([key], 30)[key].value == values[key]

    def test_a_value_that_is_too_large_is_not_stored(self, store, mark):
        large, small = f"{mark}:large", f"{mark}:small"
        leases = leased(store, [large, small])
        values = {large: b"x" * (LARGEST + 1), small: b"1"}
        done = store.fill({k: (leases[k], values[k]) for k in values}, 60)
        assert done == {small}
        assert store.fetch([small], 30)[small].value == b"1"
        # Later readers do not wait for the useless lease.
        assert state(store, large) is KeyState.LEASED

    def test_many_keys_at_once(self, store, mark, rng):
        keys = [f"{mark}:{i}" for i in range(1000)]
        values = {key: rng.randbytes(rng.randrange(300)) for key in keys}
        leases = leased(store, keys)
        some = keys[::2]
        done = store.fill({k: (leases[k], values[k]) for k in some}, 60)
        assert done == set(some)
        rng.shuffle(keys)
        found = store.fetch(keys, 30)
        assert set(found) == set(keys)
        for key, one in found.items():
            assert one.state is (KeyState.VALUE if key in done else KeyState.BUSY)
            assert one.value == (values[key] if key in done else b"")

    def test_a_value_ends(self, harness, store, mark):
        put(store, mark, b"1", expire=1)
        assert harness.until(lambda: state(store, mark) is KeyState.LEASED)

    def test_a_key_may_be_requested_twice(self, store, mark):
        found = store.fetch([mark, mark], 30)
        assert states(found) == {mark: KeyState.LEASED}

    def test_no_keys(self, store):
        assert store.fetch([], 30) == {}
        assert store.fill({}, 60) == set()
        assert store.block([], token(), 10) == set()
        assert store.unblock([], token()) == set()

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_keys_that_cannot_be(self, store, mark, key):
        put(store, mark, b"1")
        keys = [mark, key]
        for call in (
            lambda: store.fetch(keys, 30),
            lambda: store.fill({key: (None, b"")}, 60),
            lambda: store.block(keys, token(), 10),
            lambda: store.unblock(keys, token()),
        ):
            with pytest.raises(exc.CacheKeyError) as caught:
                call()
            assert caught.value.key == key
        assert state(store, mark) is KeyState.VALUE

    def test_the_longest_key(self, store, mark):
        key = mark.ljust(250, "~")
        put(store, key, b"1")
        assert state(store, key) is KeyState.VALUE

    @pytest.mark.parametrize("seconds", [0, -1, 2_592_001, 1.5, True, None])
    def test_times_that_cannot_be(self, store, mark, seconds):
        for option, call in (
            # None is leased for no time.
            ("lease", lambda: store.fetch([mark], seconds or -1)),
            ("expire", lambda: store.fill({}, seconds)),
            ("expire", lambda: store.block([mark], token(), seconds)),
        ):
            with pytest.raises(exc.OptionError) as caught:
                call()
            assert caught.value.option == option
        assert state(store, mark) is KeyState.LEASED


class Leases(Suite):
    def test_nothing_is_leased_for_no_time(self, store, mark):
        for _ in range(2):
            found = store.fetch([mark], 0)
            assert found == {mark: Found(KeyState.BLOCKED)}
        put(store, mark, b"1")
        assert store.fetch([mark], 0)[mark].value == b"1"

    def test_one_of_many_gets_it(self, store, mark):
        keys = [f"{mark}:{i}" for i in range(30)]
        barrier = threading.Barrier(12)
        wins: list[str] = []

        def ask() -> None:
            barrier.wait(60)
            found = store.fetch(keys, 30)
            assert set(states(found).values()) <= {KeyState.LEASED, KeyState.BUSY}
            wins.extend(k for k in keys if found[k].state is KeyState.LEASED)

        threads = [threading.Thread(target=ask) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(wins) == sorted(keys)

    def test_is_used_once(self, store, mark):
        lease = leased(store, [mark])[mark]
        assert store.fill({mark: (lease, b"1")}, 60) == {mark}
        assert store.fill({mark: (lease, b"2")}, 60) == set()
        assert store.fetch([mark], 30)[mark].value == b"1"

    def test_ends_by_time(self, harness, store, mark):
        # Memcached counts full seconds: one may be over at once.
        old = leased(store, [mark], lease=3)[mark]
        assert state(store, mark) is KeyState.BUSY
        new = []

        def is_free() -> bool:
            found = store.fetch([mark], 30)[mark]
            new.append(found.lease)
            return found.state is KeyState.LEASED

        assert harness.until(is_free)
        assert store.fill({mark: (old, b"old")}, 60) == set()
        assert state(store, mark) is KeyState.BUSY
        assert store.fill({mark: (new[-1], b"new")}, 60) == {mark}
        assert store.fill({mark: (old, b"old")}, 60) == set()
        assert store.fetch([mark], 30)[mark].value == b"new"

    @pytest.mark.parametrize("lifted", [False, True])
    def test_ends_by_a_tombstone(self, store, mark, lifted):
        lease = leased(store, [mark])[mark]
        ours = token()
        assert store.block([mark], ours, 10) == set()
        if lifted:
            assert store.unblock([mark], ours) == set()
        assert store.fill({mark: (lease, b"old")}, 60) == set()
        expected = KeyState.LEASED if lifted else KeyState.BLOCKED
        assert state(store, mark) is expected

    def test_ends_by_a_delete_of_another_client(self, store, mark):
        lease = leased(store, [mark])[mark]
        # A caller that finds no tombstone of its own does not know the value.
        assert store.unblock([mark], token()) == set()
        assert store.fill({mark: (lease, b"old")}, 60) == set()
        assert state(store, mark) is KeyState.LEASED

    def test_ends_when_all_is_forgotten(self, harness, store, mark):
        lease = leased(store, [mark])[mark]
        harness.flush()
        assert store.fill({mark: (lease, b"old")}, 60) == set()


class Tombstones(Suite):
    @pytest.mark.parametrize("before", ["nothing", "lease", "value"])
    def test_takes_the_place_of_what_is_there(self, store, mark, before):
        if before == "lease":
            leased(store, [mark])
        elif before == "value":
            put(store, mark, b"x" * LARGEST)
        ours = token()
        assert store.block([mark], ours, 10) == set()
        assert store.fetch([mark], 30) == {mark: Found(KeyState.BLOCKED)}
        assert store.unblock([mark], ours) == set()
        assert state(store, mark) is KeyState.LEASED

    @pytest.mark.parametrize("first_out", [0, 1])
    def test_that_of_others_stays(self, store, mark, first_out):
        tokens = [token(), token()]
        for one in tokens:
            assert store.block([mark], one, 10) == set()
        assert store.unblock([mark], token()) == set()
        assert store.unblock([mark], tokens[first_out]) == set()
        assert state(store, mark) is KeyState.BLOCKED
        assert store.unblock([mark], tokens[1 - first_out]) == set()
        assert state(store, mark) is KeyState.LEASED

    def test_may_be_put_there_again(self, store, mark):
        ours = token()
        for _ in range(2):
            assert store.block([mark], ours, 10) == set()
        assert store.unblock([mark], ours) == set()
        assert state(store, mark) is KeyState.LEASED

    def test_ends_by_itself(self, harness, store, mark):
        assert store.block([mark], token(), 1) == set()
        assert harness.until(lambda: state(store, mark) is KeyState.LEASED)

    def test_a_value_stored_in_its_place_is_removed_with_it(self, harness, store, mark):
        ours = token()
        assert store.block([mark], ours, 1) == set()
        found = []

        def is_free() -> bool:
            found.append(store.fetch([mark], 30)[mark])
            return found[-1].state is KeyState.LEASED

        assert harness.until(is_free)
        store.fill({mark: (found[-1].lease, b"read before the COMMIT")}, 60)
        assert state(store, mark) is KeyState.VALUE
        assert store.unblock([mark], ours) == set()
        assert state(store, mark) is KeyState.LEASED

    def test_many_keys_at_once(self, store, mark):
        keys = [f"{mark}:{i}" for i in range(1000)]
        for key in keys[:3]:
            put(store, key, b"1")
        ours = token()
        assert store.block(keys, ours, 10) == set()
        assert set(states(store.fetch(keys, 30)).values()) == {KeyState.BLOCKED}
        assert store.unblock(keys, ours) == set()
        assert set(states(store.fetch(keys, 30)).values()) == {KeyState.LEASED}

    def test_is_there_as_long_as_anybody_has_it(self, store, mark):
        wrong: list[object] = []

        def done(change: Callable[..., set[str]], *more: Any) -> None:
            # A store may give up where others change the key all the time.
            if not wait_until(lambda: not change([mark], *more), seconds=20):
                wrong.append(change)

        def write() -> None:
            ours = token()
            for _ in range(40):
                done(store.block, ours, 60)
                if state(store, mark) is not KeyState.BLOCKED:
                    wrong.append("another has taken it away")
                done(store.unblock, ours)

        threads = [threading.Thread(target=write) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert wrong == []
        assert state(store, mark) is KeyState.LEASED

    @pytest.mark.parametrize("wrong", [b"", b"short", b"x" * 17, "x" * 16])
    def test_tokens_that_cannot_be(self, store, mark, wrong):
        with pytest.raises(exc.OptionError, match="16 bytes"):
            store.block([mark], wrong, 10)


class Taken(Suite):
    """Values that are taken, and put back changed; not every store can."""

    def test_a_value_makes_place_for_a_tombstone(self, store, mark):
        keys = [f"{mark}:{i}" for i in range(4)]
        put(store, keys[0], BYTES)
        put(store, keys[1], b"")
        store.block([keys[2]], token(), 10)
        ours = token()
        taken = store.take(keys, ours, 10)
        assert {key: value for key, (_, value) in taken.items()} == {
            keys[0]: BYTES,
            keys[1]: b"",
        }
        found = states(store.fetch(keys, 30))
        assert [found[key] for key in keys[:3]] == [KeyState.BLOCKED] * 3
        assert found[keys[3]] is KeyState.LEASED
        put_back = {keys[0]: (taken[keys[0]][0], b"new")}
        assert store.fill(put_back, 60) == {keys[0]}
        assert store.fetch(keys[:1], 30)[keys[0]].value == b"new"
        assert store.fill(put_back, 60) == set()
        assert store.unblock(keys[:2], ours) == set()
        found = states(store.fetch(keys, 30))
        assert found[keys[1]] is KeyState.LEASED

    @pytest.mark.parametrize("ended", [False, True])
    def test_not_after_a_tombstone_of_another(self, store, mark, ended):
        put(store, mark, b"old")
        ours, others = token(), token()
        ((lease, value),) = store.take([mark], ours, 10).values()
        assert value == b"old"
        store.block([mark], others, 10)
        if ended:
            store.unblock([mark], others)
        assert store.fill({mark: (lease, b"new")}, 60) == set()
        assert state(store, mark) is KeyState.BLOCKED

    def test_not_under_the_tombstone_of_another(self, store, mark):
        put(store, mark, b"old")
        store.block([mark], token(), 10)
        assert store.take([mark], token(), 10) == {}

    def test_not_after_the_tombstone(self, harness, store, mark):
        put(store, mark, b"old")
        ((lease, _),) = store.take([mark], token(), 1).values()
        fresh: list[Any] = []

        def is_over() -> bool:
            found = store.fetch([mark], 30)[mark]
            fresh.append(found.lease)
            return found.state is KeyState.LEASED

        assert harness.until(is_over)
        assert store.fill({mark: (lease, b"new")}, 60) == set()
        assert store.fill({mark: (fresh[-1], b"newer")}, 60) == {mark}

    def test_one_of_many_takes_it(self, store, mark):
        put(store, mark, b"old")
        taken: list[Any] = []
        ready = threading.Barrier(6)

        def take() -> None:
            ready.wait(60)
            taken.extend(store.take([mark], token(), 10))

        threads = [threading.Thread(target=take) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert taken == [mark]
