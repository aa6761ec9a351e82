"""The backend on memcached: dogpile.cache's own tests, and of its locks."""

from __future__ import annotations

import contextlib
import threading
import time
from time import monotonic
from typing import ClassVar

import pytest
from dogpile.cache import CacheRegion, make_region, register_backend
from dogpile.cache.api import NO_VALUE
from dogpile.testing.fixtures import (
    _GenericBackendFixture,
    _GenericBackendTestSuite,
    _GenericMutexTestSuite,
    _GenericSerializerTestSuite,
)

from sqla_shard import exc
from sqla_shard.cache.regions import BACKEND, open_region
from sqla_shard.cache.stores import KeyState
from sqla_shard.cache.stores.dogpile import MemcachedBackend
from sqla_shard.testing.local_server import wait_until
from tests.servers.memcached import command, nodes
from tests.suites.cache_store import leased, put, state

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("memcached_installed")]

TIMEOUT, RETRY = 1.0, 0.4
SLACK = 30.0
#: Seconds until a lock ends, or one less: memcached counts full seconds.  So
#: many that it is there while it is looked at.
ENDS = 4


@pytest.fixture(scope="module", autouse=True)
def servers(memcached_installed):
    # An installation of an earlier version has no entry point for it.
    register_backend(BACKEND, "sqla_shard.cache.stores.dogpile", "MemcachedBackend")
    with nodes(2) as servers:
        Suite.config_args["arguments"].update(
            # A busy machine may take its time.
            {"servers": [one.address for one in servers], "timeout": 5.0}
        )
        yield servers


class Suite:
    backend = BACKEND
    config_args: ClassVar[dict] = {"arguments": {}}


class Clock:
    """A clock that advances by sleep() only."""

    def __init__(self):
        self.now = time.time()

    def time(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class Backends(Suite, _GenericBackendTestSuite):
    def test_region_expire(self, monkeypatch):
        """It makes a value, and must read that within a second."""
        clock = Clock()
        for module in ("cache.region", "lock", "testing.fixtures"):
            monkeypatch.setattr(f"dogpile.{module}.time", clock)
        super().test_region_expire()


TestBackend = Backends


class TestSerializer(Suite, _GenericSerializerTestSuite, _GenericBackendFixture):
    pass


class TestLocks(Suite, _GenericMutexTestSuite):
    extra_arguments: ClassVar[dict] = {"distributed_lock": True}


class TestBackendWithLocks(Backends):
    extra_arguments: ClassVar[dict] = {"distributed_lock": True}
    region_args: ClassVar[dict] = {}

    def _region(self, backend=None, region_args=(), config_args=()):
        arguments = {**Suite.config_args["arguments"], "lock_timeout": 20}
        arguments.update(self.extra_arguments)
        given = {"arguments": arguments, **dict(config_args)}
        return super()._region(backend, dict(region_args), given)


@pytest.fixture
def region(servers):
    return region_on(servers)


def region_on(servers, **arguments):
    arguments = {"timeout": 5.0, "distributed_lock": True, **arguments}
    return make_region().configure(
        BACKEND, arguments={"servers": [one.address for one in servers], **arguments}
    )


@pytest.mark.parametrize(
    "key",
    ["a b", "ä\n", "x" * 1000, "", "\ud800", "#", "mod:f|1 2", "\r\nget a"],
    ids=str.__repr__,
)
def test_any_text_is_a_key(region, key):
    region.set(key, {"a": [1, None, "ü"]})
    assert region.get(key) == {"a": [1, None, "ü"]}
    assert region.get_multi([key, "another"]) == [{"a": [1, None, "ü"]}, NO_VALUE]
    assert region.get_or_create(f"{key}!", lambda: 1) == 1
    region.delete(key)
    region.delete(f"{key}!")
    assert region.get(key) is NO_VALUE


def test_values_are_json_and_never_pickles(servers, region):
    region.set("k", {"a": 1})
    raw = region.backend.get_serialized("k")
    assert raw.endswith(b'|{"a":1}')
    with pytest.raises(TypeError, match="not JSON serializable"):
        region.set("k", object())
    other = make_region(
        serializer=lambda value: b"\x80 not JSON", deserializer=lambda data: data
    ).configure(BACKEND, arguments=Suite.config_args["arguments"])
    other.set("k", 1)
    assert region.get("k") is NO_VALUE


def test_one_that_is_too_large_ends_the_old_one(servers):
    region = region_on(servers, largest=1000)
    region.set("k", "old")
    region.set("k", "x" * 2000)
    assert region.get("k") is NO_VALUE


def test_values_end_on_the_node(servers):
    region = region_on(servers, memcached_expire_time=1)
    region.set("k", 1)
    assert wait_until(lambda: region.get("k") is NO_VALUE, seconds=60)
    with pytest.raises(exc.OptionError, match="memcached_expire_time"):
        region_on(servers, memcached_expire_time=0.5)


def test_the_store_and_the_region_do_not_meet(region):
    store = region.backend.store
    region.set("k", "of the region")
    put(store, "k", b"of the store")
    assert region.get("k") == "of the region"
    assert store.block(["k"], b"x" * 16, 10) == set()
    region.set("k", "new")
    assert state(store, "k") is KeyState.BLOCKED
    assert store.unblock(["k"], b"x" * 16) == set()
    region.delete("k")
    leased(store, ["k"])


def test_servers_as_a_file_of_settings_has_them(servers):
    text = ", ".join(one.address for one in servers)
    region = CacheRegion().configure_from_config(
        {
            "cache.backend": BACKEND,
            "cache.arguments.servers": text,
            "cache.arguments.timeout": "5.0",
            "cache.arguments.distributed_lock": "true",
        },
        "cache.",
    )
    region.set("k", 1)
    assert region.get("k") == 1
    assert region.backend.get_mutex("k") is not None
    with pytest.raises(exc.OptionError, match="list of different"):
        make_region().configure(BACKEND)


# -- locks ------------------------------------------------------------------


def test_a_lock_is_given_back_by_its_owner_only(servers):
    first, second = (
        region_on(servers, lock_timeout=ENDS).backend.get_mutex("k") for _ in range(2)
    )
    assert first.acquire()
    assert second.locked()
    assert not second.acquire(False)
    # Not ours to give back.
    second.release()
    assert first.locked()
    assert wait_until(lambda: second.acquire(False), seconds=60)
    # It has ended, and is another's now.
    first.release()
    assert second.locked()
    second.release()
    assert not first.locked()


def test_a_lock_that_ended_is_not_mistaken_for_that_of_a_thread(servers):
    """dogpile.cache has one object for all threads of a process."""
    mutex = region_on(servers, lock_timeout=ENDS).backend.get_mutex("k")
    assert mutex.acquire()
    taken = threading.Event()
    done = threading.Event()

    def other():
        if mutex.acquire():
            taken.set()
        done.wait(20)
        mutex.release()

    thread = threading.Thread(target=other)
    thread.start()
    assert taken.wait(60)
    mutex.release()
    assert mutex.locked()
    done.set()
    thread.join(60)
    assert not mutex.locked()


def test_a_lock_may_be_given_back_by_another_thread(region):
    """As it is with an async_creation_runner."""
    mutex = region.backend.get_mutex("k")
    assert mutex.acquire()
    thread = threading.Thread(target=mutex.release)
    thread.start()
    thread.join(60)
    assert not mutex.locked()


def test_waits_until_it_is_free(servers):
    first, second = (region_on(servers).backend.get_mutex("k") for _ in range(2))
    assert first.acquire()
    got = []
    thread = threading.Thread(target=lambda: got.append(second.acquire()))
    thread.start()
    assert not wait_until(lambda: bool(got), seconds=0.2)
    first.release()
    thread.join(60)
    assert got == [True]
    # By another thread than the one that has it.
    second.release()
    assert not second.locked()


# -- nodes that fail --------------------------------------------------------


@pytest.mark.parametrize("fault", ["killed", "paused"])
def test_a_node_that_fails_is_a_miss_and_no_error(fault):
    with nodes(1) as servers:
        region = region_on(servers, timeout=TIMEOUT, retry=RETRY)
        region.set("k", 1)
        mutex = region.backend.get_mutex("k")
        assert mutex.acquire()
        servers[0].pause() if fault == "paused" else servers[0].kill()
        start = monotonic()
        assert region.get("k") is NO_VALUE
        assert region.get_multi(["k", "l"]) == [NO_VALUE, NO_VALUE]
        region.set("k", 2)
        region.set_multi({"k": 2, "l": 3})
        region.delete("k")
        region.delete_multi(["k", "l"])
        assert not mutex.locked()
        mutex.release()
        # The lock is not acquired, and callers do not wait for it.
        assert not mutex.acquire()
        mutex.release()
        assert region.get_or_create("k", lambda: 7) == 7
        assert region.get_or_create_multi(["k"], lambda key: [key]) == ["k"]
        for _ in range(50):
            fetched = region.backend.store.fetch(["k"], 5)
            assert fetched["k"].state is KeyState.LOST
        assert monotonic() - start < 4 * TIMEOUT + SLACK
        if fault == "paused":
            servers[0].resume()
        else:
            servers[0].start()

        def is_back():
            region.set("k", 3)
            return region.get("k") == 3

        assert wait_until(is_back, seconds=60)


def test_a_lock_of_a_dead_node_does_not_take_that_of_a_thread(servers):
    """A caller whose acquire() failed calls release() too, as dogpile does."""
    with nodes(1) as own:
        backend = region_on(own, timeout=TIMEOUT, retry=0.05, lock_timeout=ENDS).backend
        mutex = backend.get_mutex("k")
        own[0].pause()
        assert not mutex.acquire()
        own[0].resume()
        thread = threading.Thread(
            target=wait_until,
            args=(lambda: mutex.acquire(False),),
            kwargs={"seconds": 20},
        )
        thread.start()
        thread.join(60)
        assert mutex.locked()
        mutex.release()
        assert mutex.locked()


def test_opened_as_a_region(servers):
    region = open_region(
        "objects",
        {
            "backend": BACKEND,
            "expiration_time": 60,
            "tombstone": 100,
            "arguments": {"servers": [one.address for one in servers], "timeout": 5.0},
        },
    )
    with contextlib.closing(region.store):
        assert isinstance(region.region.backend, MemcachedBackend)
        assert region.store is region.region.backend.store
        assert region.store.longest == 100
        assert command(servers[0], b"mn\r\n") == b"MN\r\n"
