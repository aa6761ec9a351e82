"""From which life of a server's data a cached row is."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import thread_time
from typing import Any
from weakref import ref

import pytest

from sqla_shard import Cluster, Topology
from sqla_shard.cache import rows
from sqla_shard.cache.rows import generation_of
from sqla_shard.engine import Places


def document(
    primary: str = "mysql://app:x@one",
    *,
    number: int | None = None,
    name: str = "a",
    keyspace: str = "objects",
    database: str = "db{shard}",
    kind: str = "objects",
) -> dict[str, Any]:
    server: dict[str, Any] = {"name": name, "primary": primary}
    space: dict[str, Any] = {"kind": kind, "database": database, "servers": [server]}
    if kind != "global":
        space["shards"] = 65_536
        server["shards"] = [0, 65_535]
    if number is not None:
        server["generation"] = number
    return {"epoch": 1, "keyspaces": {keyspace: space}}


def text(shard: int = 0, **more: Any) -> str:
    with Cluster.from_topology(document(**more)) as cluster:
        places = cluster.places
        (keyspace,) = places.topology.keyspaces.values()
        return generation_of(places, places.place(keyspace, shard))


@pytest.fixture
def cluster():
    with Cluster.from_topology(document(number=1)) as found:
        yield found


def test_it_can_stand_in_a_key():
    for one in (text(), text(number=1), text(primary="sqlite:///data")):
        assert one.isascii()
        assert len(one) == 12
        assert one.replace("-", "").replace("_", "").isalnum()


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, "_o727YwQnw8j"),
        ({"number": 0}, "K44OUU-R6pC-"),
        ({"primary": "sqlite:///data/one"}, "b4DyRocVlAJ_"),
    ],
    ids=["address", "number", "file"],
)
def test_it_is_the_same_for_ever(more, expected):
    """A text that changes with a release makes all caches cold."""
    assert text(shard=5, **more) == expected


@pytest.mark.parametrize(
    "more",
    [
        {"primary": "mysql://other:y@one"},
        {"primary": "mysql://one"},
        {"primary": "mysql://app:x@one:3306"},
        {"primary": "mysql://app:x@ONE"},
        {"primary": "mysql+pymysql://app:x@one"},
        {"primary": "mariadb://app:x@one"},
        {"name": "b"},
        {"keyspace": "other"},
    ],
    ids=repr,
)
def test_changes_that_keep_the_address(more):
    assert text(**more) == text()


@pytest.mark.parametrize(
    "more",
    [
        {"primary": "mysql://app:x@two"},
        {"primary": "mysql://app:x@one:3307"},
        {"primary": "sqlite:///one"},
        {"shard": 1},
        {"number": 0},
        {"database": "other{shard}"},
    ],
    ids=repr,
)
def test_generations_of_an_address(more):
    assert text(**more) != text()


def test_generations_with_a_number():
    """It is identified by these, and by nothing else."""
    one = {"number": 1}
    assert text(primary="mysql://other@two:3307", **one) == text(**one)
    assert text(primary="sqlite:///data", **one) == text(**one)
    others = [
        text(),
        text(number=2),
        text(number=1, name="b"),
        text(number=1, keyspace="other"),
        text(number=1, shard=1),
        text(number=1, database="other{shard}"),
    ]
    assert len({text(**one), *others}) == 7


def test_there_and_back():
    """A failback: the address comes back, the number does not."""
    lives = [("one", 1), ("two", 2), ("one", 3)]
    found = [text(primary=f"mysql://{h}", number=n) for h, n in lives]
    assert len(set(found)) == 3
    found = [text(primary=f"mysql://{host}") for host, _ in lives]
    assert len(set(found)) == 2


def test_files():
    assert text(primary="sqlite:///x") != text(primary="sqlite:///y")
    assert text(primary="sqlite:///x") != text(primary="sqlite:///x", shard=1)


@pytest.mark.parametrize("number", [None, 3])
@pytest.mark.parametrize(
    ("driver", "primary", "more"),
    [
        ("asyncmy", "mysql://app:x@one", {}),
        ("asyncmy", "mysql://app:x@one", {"database": "select", "kind": "global"}),
        ("asyncmy", "mysql://app:x@one", {"database": "DB{shard}"}),
        ("aiosqlite", "sqlite:///data", {}),
    ],
    ids=["plain", "reserved", "upper case", "file"],
)
def test_the_same_in_event_loops(driver, primary, more, number):
    pytest.importorskip(driver)
    described = document(primary, number=number, **more)

    async def compare(cluster):
        (keyspace,) = cluster.topology.keyspaces.values()
        threads = cluster.places
        async with cluster.async_session() as session:
            loop = session.sync_session.places
            ours, theirs = (one.place(keyspace, 0) for one in (threads, loop))
            assert ours.engine.url.drivername != theirs.engine.url.drivername
            assert generation_of(threads, ours) == generation_of(loop, theirs)
        await cluster.aclose()

    with Cluster.from_topology(described) as cluster:
        asyncio.run(compare(cluster))


def test_the_same_in_every_process(cluster):
    code = (
        "from tests.unit.test_cache_generations import text\n"
        "print(text(), text(number=1), text(primary='sqlite:///x'))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    }
    expected = f"{text()} {text(number=1)} {text(primary='sqlite:///x')}\n"
    assert found == {expected}


def test_a_newer_topology_has_its_own(cluster):
    keyspace = cluster.topology.keyspace("objects")
    before = cluster.places
    one = generation_of(before, before.place(keyspace, 7))
    newer = document("mysql://two", number=2)
    cluster.update_topology(Topology.from_mapping({**newer, "epoch": 2}))
    after = cluster.places
    keyspace = cluster.topology.keyspace("objects")
    two = generation_of(after, after.place(keyspace, 7))
    assert one != two
    # A transaction that began before goes on with its places.
    keyspace = before.topology.keyspace("objects")
    assert generation_of(before, before.place(keyspace, 7)) == one


def test_it_keeps_nothing_alive(cluster):
    places = Places(cluster.topology, cluster.places.engines)
    keyspace = cluster.topology.keyspace("objects")
    generation_of(places, places.place(keyspace, 0))
    gone = ref(places)
    del places
    gc.collect()
    assert gone() is None


def test_the_number_of_entries_is_limited(cluster, monkeypatch):
    monkeypatch.setattr(rows, "_MAX_DIGESTS", 10)
    places = Places(cluster.topology, cluster.places.engines)
    keyspace = cluster.topology.keyspace("objects")
    found = [generation_of(places, places.place(keyspace, i)) for i in range(25)]
    assert len(set(found)) == 25
    assert len(places.generations) <= 10
    again = [generation_of(places, places.place(keyspace, i)) for i in range(25)]
    assert again == found


def test_threads_at_once(cluster):
    keyspace = cluster.topology.keyspace("objects")
    start = threading.Barrier(8)
    places = Places(cluster.topology, cluster.places.engines)

    def read(_):
        start.wait(60)
        return [generation_of(places, places.place(keyspace, i)) for i in range(99)]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(read, range(8)))
    assert all(one == found[0] for one in found)


def test_it_costs_next_to_nothing(cluster):
    """Some 0.2 microseconds; the limit here is for busy machines."""
    places = cluster.places
    keyspace = cluster.topology.keyspace("objects")
    place = places.place(keyspace, 3)
    generation_of(places, place)

    def turn():
        start = thread_time()
        for _ in range(10_000):
            generation_of(places, place)
        return (thread_time() - start) / 10_000

    best = min(turn() for _ in range(10))
    assert best < 2e-6
