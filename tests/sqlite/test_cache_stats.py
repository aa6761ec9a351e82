"""Counters of the cache, and their sums."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields

import pytest
from sqlalchemy import text

from sqla_shard import exc
from sqla_shard.cache import counting, Counts
from sqla_shard.ids import pack
from tests.models.clusters import at, on_sqlite
from tests.models.models import Board, Pin

cluster = on_sqlite()

_MEMORY = {"backend": "dogpile.cache.memory"}


@pytest.fixture
def cache(cluster):
    yield cluster.configure_cache(
        {"objects": _MEMORY, "boards": _MEMORY, "idle": _MEMORY},
        classes={Pin: "objects", Board: "boards"},
        prefix="test",
    )
    cluster.cache = None


@pytest.fixture
def pins(cluster, cache):
    found = []
    for shard in (2, 2, 3, 20):
        with cluster.begin() as session:
            pin = at(shard, Pin(title="a"))
            session.add(pin)
            session.flush()
            found.append(pin.id)
    return found


def of(cache, name="objects"):
    (found,) = [one for one in cache.stats() if one.name == name]
    return found


def read(cluster, *ids, **options):
    with cluster.session(**options) as session:
        return session.get_many(Pin, ids)


def test_no_requests(cache):
    assert [one.name for one in cache.stats()] == ["objects", "boards", "idle"]
    assert [one.hit_ratio for one in cache.stats()] == [None] * 3
    assert [len(one.classes) for one in cache.stats()] == [1, 1, 0]


def test_a_block_counts_what_its_own_thread_reads(cluster, cache, pins):
    read(cluster, *pins)
    with counting() as outer, ThreadPoolExecutor(1) as threads:
        read(cluster, *pins[:2])
        with counting() as inner:
            read(cluster, pins[2])
            threads.submit(read, cluster, *pins).result()
        read(cluster, pack(2, 1, 12345))
    read(cluster, *pins)
    assert (inner().hits, inner().misses) == (1, 0)
    assert (outer().hits, outer().misses) == (2, 1)
    assert of(cache).hits == 2 + 1 + len(pins) + len(pins)


def test_hits_and_misses_are_the_requested_keys(cluster, cache, pins):
    asked = 0
    absent = pack(2, 1, 12345)
    for ids in (pins[:1], pins[:3], pins, [absent], [*pins, absent]):
        read(cluster, *ids)
        asked += len(ids)
        stats = of(cache)
        assert stats.hits + stats.misses == asked
    assert (stats.hits, stats.misses) == (0 + 1 + 3 + 0 + 5, 1 + 2 + 1 + 1)
    assert stats.fills == stats.misses
    assert stats.hit_ratio == stats.hits / asked
    assert 0 < stats.bytes_written < stats.bytes_read
    assert 0 < stats.seconds < 10
    # Objects in the session are not requested.
    with cluster.session() as session:
        held = [session.get(Pin, pins[0]) for _ in range(3)]
    assert held[0] is held[2]
    assert of(cache).hits == stats.hits + 1


def test_an_absence_that_is_over_is_a_miss(cluster, cache, pins):
    absent = pack(2, 1, 12345)
    read(cluster, absent)
    read(cluster, absent)
    assert (of(cache).hits, of(cache).misses) == (1, 1)
    with cluster.begin() as session:
        session.add(at(2, Pin(title="b")))
    assert read(cluster, absent) == [None]
    stats = of(cache)
    assert (stats.hits, stats.misses, stats.unreadable) == (1, 2, 1)
    assert read(cluster, absent) == [None]
    assert read(cluster, absent) == [None]
    assert (of(cache).hits, of(cache).misses) == (2, 3)


def test_tombstones_are_counted_for_the_region(cluster, cache, pins):
    before = of(cache)
    with cluster.begin() as session:
        session.get(Pin, pins[0]).title = "b"
    stats = of(cache)
    assert stats.invalidations == before.invalidations + 1
    assert stats.outbox == 0
    assert stats.seconds > before.seconds
    (pin,) = stats.classes
    assert pin.seconds < stats.seconds
    assert not hasattr(pin, "invalidations")


def test_a_read_under_a_tombstone_is_blocked(cluster, cache, pins):
    key = f"test:{Pin.__tablename__}:{pins[0]}"
    cache.region("objects").store.block([key], b"x" * 16, 60)
    read(cluster, *pins[:2])
    stats = of(cache)
    assert (stats.misses, stats.blocked, stats.fills) == (2, 1, 1)


def test_a_snapshot_fills_nothing(cluster, cache, pins):
    with cluster.session() as session:
        look = text("SELECT 1")
        session.execute(look, bind_arguments={"shard_id": 2})
        session.get(Pin, pins[0])
    stats = of(cache)
    assert (stats.misses, stats.unfillable, stats.blocked) == (1, 1, 0)
    assert stats.fills == 0


def test_a_lost_lease_is_no_fill(cluster, cache, pins, monkeypatch):
    store = cache.region("objects").store
    fill = store.fill

    def too_late(values, expire):
        store.block(values, b"x" * 16, 60)
        store.unblock(values, b"x" * 16)
        return fill(values, expire)

    monkeypatch.setattr(store, "fill", too_late)
    read(cluster, pins[0])
    stats = of(cache)
    assert (stats.misses, stats.fills, stats.lease_losses) == (1, 0, 1)
    assert stats.bytes_written == 0


def test_reads_without_the_cache_are_not_counted(cluster, cache, pins):
    read(cluster, *pins, cache=False)
    cache.disable(Pin)
    read(cluster, *pins)
    assert of(cache).hit_ratio is None
    cache.enable(Pin)
    read(cluster, *pins)
    assert of(cache).misses == len(pins)


def test_a_region_is_the_sum_of_its_classes(cluster):
    cluster.cache = None
    cache = cluster.configure_cache(
        {"all": _MEMORY}, classes={Pin: "all", Board: "all"}, prefix="test"
    )
    try:
        with cluster.begin() as session:
            board = at(3, Board(name="b"))
            session.add(board)
            session.flush()
            ids = board.id, pack(3, 1, 999)
        for _ in range(2):
            with cluster.session() as session:
                session.get(Board, ids[0])
            with cluster.session() as session:
                session.get(Pin, ids[1])
        (stats,) = cache.stats()
    finally:
        cluster.cache = None
    assert [one.name for one in stats.classes] == ["Pin", "Board"]
    for name in (one.name for one in fields(Counts)):
        parts = sum(getattr(one, name) for one in stats.classes)
        if name == "seconds":
            # Those of tombstones are of the region alone.
            assert parts < stats.seconds
        else:
            assert parts == getattr(stats, name)
    assert [one.hits for one in stats.classes] == [1, 1]


def test_classes_are_switched_one_by_one(cluster, cache):
    assert cache.classes == (Pin, Board)
    cache.disable(Board)
    assert [cache.is_enabled(cls) for cls in cache.classes] == [True, False]
    assert [c.is_enabled for r in cache.stats() for c in r.classes] == [True, False]
    cache.enable(Board)
    assert all(cache.is_enabled(cls) for cls in cache.classes)
    with pytest.raises(exc.CacheClassError):
        cache.is_enabled(str)
