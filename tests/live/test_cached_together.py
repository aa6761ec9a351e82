"""One cluster for threads, tasks and forked processes, with memcached."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import pytest

from sqla_shard import Cluster, pack
from sqla_shard.testing import MemcachedServer
from sqla_shard.testing.local_server import wait_until
from sqla_shard.testing.server_fleet import ServerFleet
from tests.models.cached_models import (
    Base,
    Board,
    BoardHasPins,
    configure,
    PIN,
    seen,
    sent,
    settled,
    SHARDS,
    stored,
    User,
)
from tests.servers.memcached import grow_old, stats

pytestmark = pytest.mark.live

THREADS = 8
PATIENCE = 60
#: Seconds that a node is waited for, which may take its time on a machine
#: that is busy: one that is given up misses writes, or is not asked.
PATIENT = 10.0
#: The same, of one that does not answer.
HUNG = 2.0


@pytest.fixture(scope="module")
def node(memcached_installed: None) -> Iterator[MemcachedServer]:
    with MemcachedServer() as node:
        yield node


@pytest.fixture(scope="module")
def cluster(fleet: ServerFleet[Any], node: MemcachedServer) -> Iterator[Cluster]:
    document = fleet.topology_mapping(
        shards=SHARDS, database="db_cachedtogether_{shard:05d}"
    )
    fleet.drop_databases(document)
    with Cluster.from_topology(document) as cluster:
        cluster.create_all(Base.metadata)
        cache_on(cluster, node, PATIENT)
        yield cluster
    fleet.drop_databases(document)


def cache_on(cluster: Cluster, node: MemcachedServer, timeout: float) -> None:
    arguments = {"servers": [node.address], "timeout": timeout, "retry": 0.05}
    region = {"backend": "sqla_shard.memcached", "arguments": arguments}
    configure(cluster, region)


@pytest.fixture(autouse=True)
def old(node: MemcachedServer) -> None:
    grow_old(node)


def test_threads(cluster: Cluster, rng: random.Random) -> None:
    """Each thread sees the commits of all threads."""
    users = [stored(cluster, User(name="u"), i) for i in range(3)]
    board = stored(cluster, Board())
    seeds = [rng.getrandbits(32) for _ in range(THREADS)]
    written = dict.fromkeys(users, 0)
    listed: set[int] = set()
    lock = threading.Lock()
    start = threading.Barrier(THREADS)

    def add(session: Any, user: int) -> int:
        found = session.get(User, user, with_for_update=True)
        found.n += 1
        return int(found.n)

    def work(number: int) -> None:
        own = random.Random(seeds[number])
        start.wait(PATIENCE)
        for turn in range(15):
            user = own.choice(users)
            kind = own.random()
            if kind < 0.25:
                n = cluster.run(add, user)
                with lock:
                    written[user] = max(written[user], n)
            elif kind < 0.4:
                pin = pack(2, PIN, 1000 * number + turn)
                cluster.run(BoardHasPins.append, board, pin)
                with lock:
                    listed.add(pin)
            else:
                with lock:
                    before, there = written[user], set(listed)
                with cluster.session() as session:
                    (found,) = session.get_many(User, [user])
                    assert found is not None
                    assert found.n >= before
                    rows = BoardHasPins.contains(session, board, there)
                    assert rows == there
                    BoardHasPins.page(session, board, 3)

    with ThreadPoolExecutor(THREADS) as executor:
        for done in [executor.submit(work, n) for n in range(THREADS)]:
            done.result(PATIENCE)
    for user in users:
        assert seen(cluster, User, user).n == written[user]
        settled(lambda user=user: seen(cluster, User, user))


def test_a_forked_process(cluster: Cluster) -> None:
    """It has connections of its own, and parent and child hear of both."""
    users = [stored(cluster, User(name=str(i)), i, warm=True) for i in range(3)]
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        outcome = b"failed"
        try:
            with sent() as statements:
                names = [seen(cluster, User, user).name for user in users]
            assert names == ["0", "1", "2"]
            assert statements == []
            with cluster.begin() as session:
                session.get(User, users[1]).name = "child"
            assert seen(cluster, User, users[1]).name == "child"
            outcome = b"well"
        finally:
            os.write(writing, outcome)
            os._exit(0)
    os.close(writing)
    try:
        for _ in range(20):
            assert seen(cluster, User, users[0]).name == "0"
        with os.fdopen(reading, "rb") as said:
            assert said.read() == b"well"
    finally:
        os.waitpid(child, 0)
    assert seen(cluster, User, users[1]).name == "child"
    with cluster.begin() as session:
        session.get(User, users[1]).name = "parent"
    assert seen(cluster, User, users[1]).name == "parent"


def test_a_node_that_hangs_holds_up_no_other_task(
    cluster: Cluster, node: MemcachedServer
) -> None:
    user = stored(cluster, User(name="u"), warm=True)
    impatient = Cluster(cluster.topology)
    cache_on(impatient, node, HUNG)

    async def beat(done: asyncio.Event) -> float:
        """Return how long another task was kept from running, at most."""
        worst, last = 0.0, monotonic()
        while not done.is_set():
            await asyncio.sleep(0.005)
            now = monotonic()
            worst, last = max(worst, now - last), now
        return worst

    async def work() -> tuple[float, float]:
        async with impatient.async_session() as session:
            found = await session.get(User, user)
            assert found is not None
        done = asyncio.Event()
        beating = asyncio.create_task(beat(done))
        node.pause()
        try:
            begun = monotonic()
            async with impatient.async_session() as session:
                found = await session.get(User, user)
                assert found is not None
                assert found.name == "u"
            async with impatient.async_begin() as session:
                (found,) = await session.get_many(User, [user])
                assert found is not None
                found.name = "changed"
            took = monotonic() - begun
        finally:
            node.resume()
            done.set()
        return took, await beating

    with impatient:
        took, worst = asyncio.run(work())
        assert took >= HUNG
        # A busy machine keeps everybody from running; a node that is waited
        # for does so for all of its time.
        assert worst < HUNG
        # Invalidations that failed are in the outbox, and are applied as soon
        # as the node is used again.
        assert wait_until(lambda: impatient.repair_cache().ok, seconds=PATIENCE)
    assert seen(cluster, User, user).name == "changed"


def connections(node: MemcachedServer) -> int:
    """Return how many connections a node has, but for the one that asks."""
    return int(stats(node)["curr_connections"]) - 1


def test_a_cluster_that_is_closed_leaves_no_connections(cluster, node):
    user = stored(cluster, User(name="u"))
    cluster.cache.close()
    # The node learns of it a moment later.
    assert wait_until(lambda: connections(node) == 0, seconds=60)
    other = Cluster(cluster.topology)
    cache_on(other, node, PATIENT)
    with other.session() as session:
        assert session.get(User, user).name == "u"
    assert connections(node) > 0
    other.close()
    assert wait_until(lambda: connections(node) == 0, seconds=60)
