"""Regions: their options, and the effects."""

from __future__ import annotations

import gc
import os
import sys
from datetime import timedelta
from time import monotonic

import pytest
from dogpile.cache import CacheRegion, make_region
from dogpile.cache.api import NO_VALUE
from dogpile.cache.proxy import ProxyBackend

from sqla_shard import exc
from sqla_shard.cache.protocol import Times
from sqla_shard.cache.regions import BACKEND, open_region, store_of
from sqla_shard.cache.stores import KeyState
from sqla_shard.cache.stores.memcached import MemcachedStore
from tests.suites import cache_store
from tests.suites.cache_store import put, state

MEMORY = "dogpile.cache.memory"
ON_NODES = {"backend": BACKEND, "arguments": {"servers": ["127.0.0.1:1"]}}


class InMemory(cache_store.Harness):
    def __init__(self):
        self.store = open_region("objects", {"backend": MEMORY}).store
        self.store._clock = self.clock
        self._ahead = 0.0

    def clock(self):
        return monotonic() + self._ahead

    def until(self, condition):
        for _ in range(600):
            if condition():
                return True
            self._ahead += 0.1
        return False

    def flush(self):
        self.store.flush()


@pytest.fixture
def harness():
    return InMemory()


@pytest.fixture
def mark():
    return "test"


TestValues = cache_store.Values
TestLeases = cache_store.Leases
TestTombstones = cache_store.Tombstones
TestTaken = cache_store.Taken


# -- the memory of dogpile.cache --------------------------------------------


@pytest.fixture
def region():
    return make_region().configure(MEMORY)


def test_values_are_where_the_region_has_its_own(region):
    store = store_of(region)
    put(store, "k", b"ours")
    assert region.get("sqla_shard:k") == b"ours"
    assert region.get("k") is NO_VALUE
    region.set("k", "of the application")
    assert store.fetch(["k"], 5)["k"].value == b"ours"
    store.block(["k"], b"x" * 16, 5)
    assert region.get("sqla_shard:k") is NO_VALUE
    store.unblock(["k"], b"x" * 16)
    put(store, "k", b"new")
    store.close()
    assert region.get("sqla_shard:k") is NO_VALUE
    assert region.get("k") == "of the application"


@pytest.mark.parametrize("how", ["deleted", "replaced", "foreign", "older"])
def test_values_of_another_store_are_not_served(region, how):
    store = store_of(region)
    put(store, "k", b"old")
    old = region.backend.get("sqla_shard:k")
    if how == "deleted":
        region.delete("sqla_shard:k")
    elif how == "replaced":
        region.set("sqla_shard:k", b"not ours")
    elif how == "foreign":
        region.backend.set("sqla_shard:k", 7)
    else:
        store.unblock(["k"], b"x" * 16)
        put(store, "k", b"new")
        region.backend.set("sqla_shard:k", old)
    assert state(store, "k") is KeyState.LEASED


def test_values_that_ended_are_not_left_there(region):
    store = store_of(region)
    put(store, "k", b"1", expire=1)
    harness = cache_store.Harness()
    assert harness.until(lambda: state(store, "k") is KeyState.LEASED)
    assert region.get("sqla_shard:k") is NO_VALUE


def test_all_who_ask_have_one_store(region):
    """Two would not hear of each other's tombstones."""
    store = store_of(region)
    assert store_of(region) is store
    assert open_region("objects", region).store is store
    assert open_region("lists", region).store is store


def test_it_goes_with_its_region():
    before = len(gc.get_objects())
    for _ in range(200):
        put(open_region("objects", {"backend": MEMORY}).store, "k", b"1")
    gc.collect()
    assert len(gc.get_objects()) - before < 2000


# -- what may be said -------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (60, 60),
        (60.0, 60),
        (timedelta(minutes=2), 120),
        (None, 3600),
        (0, 3600),
        (-1, 3600),
    ],
    ids=str,
)
def test_the_expiration_of_a_value(given, expected):
    config = {"backend": MEMORY, "expiration_time": given}
    opened = open_region("objects", config)
    assert opened.times == Times(expire=expected)
    assert opened.region.expiration_time == expected
    region = make_region().configure(MEMORY, expiration_time=given)
    opened = open_region("objects", region)
    assert opened.times == Times(expire=expected)
    assert opened.region is region


def test_all_options():
    opened = open_region(
        "objects",
        {
            "backend": BACKEND,
            "arguments": {"servers": "127.0.0.1:1, 127.0.0.1:2"},
            "expiration_time": 100,
            "expire_nothing": 10,
            "lease": 3,
            "tombstone": 90,
            "wait": 0.5,
        },
    )
    assert opened.name == "objects"
    assert opened.times == Times(
        expire=100, expire_nothing=10, lease=3, tombstone=90, wait=0.5
    )
    assert isinstance(opened.store, MemcachedStore)
    assert isinstance(opened.region, CacheRegion)
    assert opened.region.name == "objects"
    # A node that was started waits for as long as a tombstone may last.
    assert opened.store.longest == 90
    assert open_region("objects", ON_NODES).store.longest == 60


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("expiration_time", 0.5),
        ("expiration_time", "60"),
        ("expiration_time", True),
        ("expiration_time", 2_592_001),
        ("expire_nothing", 0),
        ("lease", 1.5),
        ("lease", None),
        ("tombstone", 0),
        ("wait", -1),
        ("wait", "1"),
        ("wait", float("nan")),
        ("expires", 60),
        ("backend", "dogpile.cache.dbm"),
        ("backend", "dogpile.cache.memcached"),
        ("backend", "dogpile.cache.memory_pickle"),
        ("backend", "dogpile.cache.redis_sentinel"),
        ("backend", "no such"),
        ("backend", None),
    ],
    ids=str,
)
def test_invalid_option_values(option, value):
    with pytest.raises(exc.OptionError) as caught:
        open_region("objects", {"backend": MEMORY, option: value})
    assert caught.value.option == option
    if option == "backend":
        assert "leases" in str(caught.value)
        assert BACKEND in str(caught.value)


def test_a_backend_that_will_not_do_is_not_even_made(tmp_path):
    file = tmp_path / "file"
    arguments = {"filename": str(file)}
    config = {"backend": "dogpile.cache.dbm", "arguments": arguments}
    with pytest.raises(exc.OptionError):
        open_region("objects", config)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("config", [None, "memory", [("backend", MEMORY)]])
def test_invalid_configurations(config):
    with pytest.raises(exc.OptionError) as caught:
        open_region("objects", config)
    assert caught.value.option == "regions['objects']"


def test_a_region_must_be_configured():
    for call in (lambda r: open_region("objects", r), store_of):
        with pytest.raises(exc.OptionError, match="configure"):
            call(make_region())


@pytest.mark.parametrize("backend", ["null", "memory_pickle"])
def test_a_region_must_have_a_backend_that_will_do(backend):
    region = make_region().configure(f"dogpile.cache.{backend}")
    with pytest.raises(exc.OptionError, match="leases"):
        open_region("objects", region)


def test_unknown_arguments():
    arguments = {"servers": ["127.0.0.1:1"], "timout": 1}
    config = {"backend": BACKEND, "arguments": arguments}
    with pytest.raises(exc.OptionError, match="timeout") as caught:
        open_region("objects", config)
    assert caught.value.option == "arguments['timout']"


@pytest.mark.parametrize(
    ("backend", "argument"),
    [
        ("dogpile.cache.memory", "cache_dic"),
        ("dogpile.cache.redis", "hots"),
        (BACKEND, "url"),
    ],
)
def test_arguments_of_other_backends(backend, argument):
    config = {"backend": backend, "arguments": {argument: "x"}}
    with pytest.raises(exc.OptionError, match="valid are") as caught:
        open_region("objects", config)
    assert caught.value.option == f"arguments[{argument!r}]"


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("timeout", "1"),
        ("timeout", 0),
        ("timeout", True),
        ("timeout", float("nan")),
        ("retry", -1),
        ("largest", 0),
        ("largest", "1m"),
        ("connections", 0),
        ("connections", 1.5),
        ("longest", 0),
        ("lock_timeout", "x"),
        ("servers", []),
        ("servers", None),
        ("servers", 11211),
        ("servers", [11211]),
        ("servers", [["127.0.0.1:1"]]),
        ("servers", ["127.0.0.1:1", "127.0.0.1:1"]),
    ],
    ids=str,
)
def test_arguments_that_make_no_sense(argument, value):
    arguments = {"servers": ["127.0.0.1:1"], argument: value}
    with pytest.raises(exc.OptionError) as caught:
        open_region("objects", {"backend": BACKEND, "arguments": arguments})
    assert caught.value.option == argument


def test_arguments_are_a_mapping():
    for given in ("servers", ["servers"], 1):
        config = {"backend": BACKEND, "arguments": given}
        with pytest.raises(exc.OptionError, match="mapping") as caught:
            open_region("objects", config)
        assert caught.value.option == "arguments"


def test_an_invalid_port_of_redis():
    """The client would raise ValueError, in the first transaction."""
    config = {"backend": "dogpile.cache.redis", "arguments": {"port": "x"}}
    with pytest.raises(exc.OptionError, match="port"):
        open_region("objects", config)


def test_a_tombstone_must_not_be_longer_than_a_node_waits():
    arguments = {"servers": ["127.0.0.1:1"], "longest": 60}
    config = {"backend": BACKEND, "arguments": arguments, "tombstone": 70}
    with pytest.raises(exc.OptionError, match="longest=70"):
        open_region("objects", config)
    assert arguments == {"servers": ["127.0.0.1:1"], "longest": 60}


def test_arguments_are_not_changed():
    arguments = {"servers": ["127.0.0.1:1"]}
    config = {"backend": BACKEND, "arguments": arguments, "tombstone": 70}
    before = {**config, "arguments": dict(arguments)}
    open_region("objects", config)
    assert config == before


class Seen(ProxyBackend):
    def set(self, key, value):
        raise AssertionError("seen")


def test_rows_are_stored_below_proxies(caplog):
    config = {"backend": MEMORY, "wrap": [Seen, Seen]}
    opened = open_region("objects", config)
    put(opened.store, "k", b"1")
    assert "rows bypass the proxy Seen" in caplog.text
    with pytest.raises(AssertionError, match="seen"):
        opened.region.set("k", 1)
    assert store_of(opened.region) is opened.store


# -- packages ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "backend", "package", "extra"),
    [
        ("dogpile.cache", MEMORY, "dogpile.cache", "cache"),
        ("redis", "dogpile.cache.redis", "redis", "redis"),
    ],
)
def test_a_package_that_is_missing(monkeypatch, module, backend, package, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(exc.MissingExtraError) as caught:
        open_region("objects", {"backend": backend})
    assert caught.value.package == package
    assert caught.value.extra == extra


def test_a_forked_process_has_its_own(region):
    store = store_of(region)
    put(store, "k", b"1")
    pid = os.fork()
    if pid == 0:
        store.block(["k"], b"x" * 16, 5)
        os._exit(state(store, "k") is not KeyState.BLOCKED)
    assert os.waitpid(pid, 0)[1] == 0
    assert state(store, "k") is KeyState.VALUE
