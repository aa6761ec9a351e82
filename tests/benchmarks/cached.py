"""Cached objects and pages, against memcached alone and the database."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any

from pymemcache import HashClient, PooledClient

from sqla_shard import Cluster
from sqla_shard.testing.programs import find_memcached, MISSING_MEMCACHED
from sqla_shard.testing.server_fleet import ServerFleet
from tests.benchmarks import profiling
from tests.benchmarks.lists import Base, Board, BoardHasPins, Pin
from tests.benchmarks.servers import new_fleet
from tests.benchmarks.timing import compare, show
from tests.servers.memcached import nodes

_ROWS = 50


def run() -> None:
    """Print the tables."""
    if find_memcached() is None:
        print(f"\ncached: {MISSING_MEMCACHED}")
        return
    with new_fleet(servers=4, shards=256, fast=True) as fleet:
        with _cluster(fleet) as cluster:
            cluster.create_all(Base.metadata)
            board_id, ids = _fill(cluster)
        for number in (1, 2):
            with nodes(number) as servers, _cluster(fleet) as cluster:
                names = [server.address for server in servers]
                _configure(cluster, names)
                _objects(cluster, names, ids)
                _page(cluster, names, board_id, ids)


def profile() -> None:
    """Print where the time of cached objects and pages goes."""
    with (
        new_fleet(servers=4, shards=256, fast=True) as fleet,
        _cluster(fleet) as cluster,
        nodes(1) as servers,
    ):
        cluster.create_all(Base.metadata)
        board_id, ids = _fill(cluster)
        names = [server.address for server in servers]
        _configure(cluster, names)
        raw, close = _raw(names, ids)
        for title, way in raw.items():
            profiling.show(title, way)
        for title, way in {
            "get_many of 50 cached objects, new session": (lambda: _read(cluster, ids)),
            "a cached page of 50 rows with targets, new session": (
                lambda: _read_page(cluster, board_id)
            ),
        }.items():
            _warm(cluster, way)
            profiling.show(title, way)
        close()


def _read(cluster: Cluster, ids: list[int], **options: Any) -> None:
    with cluster.session(**options) as session:
        assert None not in session.get_many(Pin, ids)


def _read_page(cluster: Cluster, board_id: int, **options: Any) -> None:
    with cluster.session(**options) as session:
        found = BoardHasPins.page(session, board_id, _ROWS, targets=True)
        assert None not in [row.target for row in found]


def _cluster(fleet: ServerFleet[Any]) -> Cluster:
    return Cluster.from_topology(fleet.topology_mapping(), environ=fleet.environ)


def _fill(cluster: Cluster) -> tuple[int, list[int]]:
    ids = []
    for shard_id in range(0, 250, 5):
        with cluster.begin(shard_id=shard_id) as session:
            pin = Pin(title=f"pin {shard_id} {'x' * 400}")
            session.add(pin)
            session.flush()
            ids.append(pin.id)
    with cluster.begin(shard_id=3) as session:
        board = Board(title="of the pins")
        session.add(board)
        session.flush()
        BoardHasPins.append_many(session, board.id, ids)
        return board.id, ids


def _configure(cluster: Cluster, names: list[str]) -> None:
    region = {
        "backend": "sqla_shard.memcached",
        # Or a new node would not be filled for a minute.
        "tombstone": 1,
        "arguments": {"servers": names, "longest": 1},
    }
    cluster.configure_cache(
        {"objects": region, "lists": region},
        classes={Pin: "objects", BoardHasPins: "lists"},
        prefix="bench",
    )


def _warm(cluster: Cluster, read: Callable[[], Any]) -> None:
    """Read until nothing is missing."""
    end = monotonic() + 30
    while monotonic() < end:
        before = _misses(cluster)
        read()
        if _misses(cluster) == before:
            return
    raise AssertionError("the cache does not get warm")


def _misses(cluster: Cluster) -> int:
    assert cluster.cache is not None
    return sum(one.misses for one in cluster.cache.stats())


def _raw(
    names: list[str], ids: list[int]
) -> tuple[dict[str, Callable[[], Any]], Callable[[], None]]:
    """Return what pymemcache does with values like ours, and its end."""
    hashing = HashClient(names, use_pooling=True, no_delay=True)
    pooled = PooledClient(names[0], no_delay=True)
    title = f"pin 100 {'x' * 400}"
    values = {
        f"raw:{i}": json.dumps([i, {"title": title}, "2026-11-22 10:00:00"]).encode()
        for i in ids
    }
    hashing.set_many(values)
    pooled.set_many(values)
    keys = list(values)

    def read(client: Any) -> Callable[[], Any]:
        def call() -> dict[str, Any]:
            found = client.get_many(keys)
            assert len(found) == len(keys)
            return {key: json.loads(value) for key, value in found.items()}

        return call

    def close() -> None:
        hashing.close()
        pooled.close()

    return {
        "HashClient.get_many and json.loads": read(hashing),
        "PooledClient.get_many and json.loads, on one node": read(pooled),
    }, close


def _objects(cluster: Cluster, names: list[str], ids: list[int]) -> None:
    opened = cluster.session()

    new = partial(_read, cluster, ids)

    def again() -> None:
        opened.expunge_all()
        assert None not in opened.get_many(Pin, ids)

    _warm(cluster, new)
    raw, close = _raw(names, ids)
    before = _misses(cluster)
    compared: dict[str, Callable[[], Any]] = {
        **raw,
        "get_many, session open": again,
        "get_many, a new session": new,
        "get_many, a new session, not cached": partial(
            _read, cluster, ids, cache=False
        ),
    }
    show(
        f"50 objects of 50 shards on 4 servers, memcached nodes: {len(names)}",
        compare(compared),
    )
    assert _misses(cluster) == before
    opened.close()
    close()


def _page(cluster: Cluster, names: list[str], board_id: int, ids: list[int]) -> None:
    page = partial(_read_page, cluster, board_id)
    _warm(cluster, page)
    raw, close = _raw(names, ids)
    before = _misses(cluster)
    compared: dict[str, Callable[[], Any]] = {
        **raw,
        "page with targets": page,
        "page with targets, not cached": partial(page, cache=False),
    }
    show(
        f"a page of 50 pins, a new session, memcached nodes: {len(names)}",
        compare(compared),
    )
    assert _misses(cluster) == before
    close()
