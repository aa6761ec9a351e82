"""Sessions while the topology changes, on directories of SQLite files."""

from __future__ import annotations

import asyncio
import copy
import faulthandler
import gc
import logging
import os
import pickle
import random
import shutil
import sqlite3
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from sqlalchemy import event, select, text
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from sqla_shard import Cluster, scatter, Topology
from sqla_shard.cluster.health import Health
from sqla_shard.engine import Places as EnginePlaces
from sqla_shard.exc import (
    ClusterClosedError,
    MissingDriverError,
    ServerRetiredError,
    StaleTopologyError,
    TopologyRefusedError,
)
from sqla_shard.topology import to_json
from tests.models.clusters import at
from tests.models.sqlite_files import with_files
from tests.servers.following import (
    Base,
    document,
    Feed,
    in_child,
    Pin,
    SHARDS,
    TIMEOUT,
    until,
)
from tests.servers.processes import running, started_since


class Places:
    """Directories that stand for servers, and topologies of them."""

    def __init__(self, base: Path) -> None:
        self.base = base

    def url(self, server: int) -> str:
        return f"sqlite:///{self.base / f's{server}'}"

    def document(
        self, epoch: int, *servers: int, shards: int = SHARDS
    ) -> dict[str, Any]:
        """Divide the shards among servers, evenly and in order."""
        each = shards // len(servers)
        return document(
            epoch,
            {
                f"server{server}": (
                    self.url(server),
                    [place * each, (place + 1) * each - 1],
                )
                for place, server in enumerate(servers)
            },
            shards=shards,
        )

    def topology(self, epoch: int, *servers: int, **more: int) -> Topology:
        return Topology.from_mapping(self.document(epoch, *servers, **more))

    def copy(self, source: int, target: int) -> None:
        """Copy the files of a server, as a move of shards does."""
        there = self.base / f"s{target}"
        there.mkdir(exist_ok=True)
        for file in sorted((self.base / f"s{source}").glob("*.sqlite")):
            with (
                sqlite3.connect(file) as one,
                sqlite3.connect(there / file.name) as other,
            ):
                one.backup(other)
            one.close()
            other.close()

    def where(self, cluster: Cluster) -> Counter[str]:
        """Count the open pools by directory."""
        return Counter(Path(stats.address).parent.name for stats in cluster.stats())


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


@pytest.fixture
def cluster(places: Places) -> Iterator[Cluster]:
    """Two servers, s1 and s2, with a pin on each shard."""
    with Cluster.from_topology(places.topology(1, 1, 2), grace=TIMEOUT) as cluster:
        fill(cluster)
        yield cluster


def fill(cluster: Cluster) -> None:
    cluster.create_all(Base.metadata)
    for shard in range(SHARDS):
        with cluster.begin() as session:
            session.add(at(shard, Pin(title=f"pin {shard}")))


def directory_of(session: Any, shard: int) -> str:
    """Return the directory that a session asks for a shard."""
    connection = session.connection({"shard_id": shard})
    return Path(connection.engine.url.database).parent.name


async def adirectory_of(session: Any, shard: int) -> str:
    found: str = await session.run_sync(directory_of, shard)
    return found


def on(shard: int) -> dict[str, Any]:
    return {"bind_arguments": {"shard_id": shard}}


# -- sessions across a change


def test_a_transaction_keeps_its_topology_and_the_next_has_the_new(
    cluster: Cluster, places: Places
) -> None:
    places.copy(2, 1)
    with cluster.session() as session:
        assert directory_of(session, 4) == "s2"
        # Both stay; shard 4 has moved.
        moved = places.document(2, 1, 2)
        moved["keyspaces"]["objects"]["servers"][0]["shards"] = [0, 5]
        moved["keyspaces"]["objects"]["servers"][1]["shards"] = [6, 7]
        cluster.update_topology(Topology.from_mapping(moved))
        assert directory_of(session, 4) == "s2"
        # One that it had not asked before is where it was, too.
        assert directory_of(session, 5) == "s2"
        with cluster.session() as other:
            assert directory_of(other, 4) == "s1"
        session.commit()
        assert directory_of(session, 4) == "s1"
        session.rollback()
        assert directory_of(session, 5) == "s1"


def test_a_savepoint_is_no_end_of_a_transaction(
    cluster: Cluster, places: Places
) -> None:
    with cluster.session() as session:
        session.add(at(4, Pin(title="before")))
        session.flush()
        with session.begin_nested():
            session.add(at(4, Pin(title="inside")))
        cluster.update_topology(places.topology(2, 1, 3))
        assert directory_of(session, 4) == "s2"
        session.commit()
    assert places.where(cluster)["s2"] == 0


def test_objects_of_a_moved_shard_are_found_and_written_there(
    cluster: Cluster, places: Places
) -> None:
    with cluster.session() as session:
        known = {
            pin.id: pin.title
            for shard in range(SHARDS)
            for pin in session.scalars(select(Pin), **on(shard))
        }
    places.copy(2, 3)
    cluster.update_topology(places.topology(2, 1, 3))
    shutil.rmtree(places.base / "s2")
    with cluster.begin(cross_shard="unordered") as session:
        for key, title in known.items():
            found = session.get(Pin, key)
            assert found is not None
            assert found.title == title
            found.title = f"{title}, moved"
    with cluster.session() as session:
        titles = session.scalars(select(Pin).options(scatter())).all()
    assert len(titles) == SHARDS
    assert all(pin.title.endswith(", moved") for pin in titles)
    assert not (places.base / "s2").exists()


def test_update_topology_refuses_what_may_not_follow(
    cluster: Cluster, places: Places
) -> None:
    used = cluster.topology
    assert cluster.update_topology(used) is False
    assert cluster.update_topology(places.topology(1, 1, 2)) is False
    for epoch, servers in ((1, (1, 3)), (0, (1, 2))):
        with pytest.raises(StaleTopologyError) as stale:
            cluster.update_topology(places.topology(epoch, *servers))
        assert (stale.value.epoch, stale.value.current) == (epoch, 1)
        assert pickle.loads(pickle.dumps(stale.value)).current == 1
    with pytest.raises(TopologyRefusedError) as refused:
        cluster.update_topology(places.topology(2, 1, 2, shards=4))
    assert "8 -> 4" in str(refused.value)
    assert cluster.topology is used
    assert cluster.source_report().epoch == 1
    assert cluster.update_topology(places.topology(2, 1, 2)) is True
    assert cluster.source_report().epoch == 2


def test_a_topology_with_a_driver_that_is_not_here_is_not_used(places: Places) -> None:
    def document(epoch: int, scheme: str) -> Topology:
        values = places.document(epoch, 1)
        values["keyspaces"]["main"] = {
            "kind": "global",
            "database": "shop",
            "servers": [{"name": "main", "primary": f"{scheme}://app@127.0.0.1:1"}],
        }
        return Topology.from_mapping(values)

    used = document(1, "mysql")
    with Cluster.from_topology(used) as cluster:
        with pytest.raises(MissingDriverError, match="'nodriver'"):
            cluster.update_topology(document(2, "mysql+nodriver"))
        assert cluster.topology is used
    feed = Feed(used)
    with Cluster.from_source(feed) as cluster:
        assert cluster.topology.epoch == 1
        feed.tell(document(2, "mysql+nodriver"))
        until(lambda: cluster.source_report().state == "stale")
        report = cluster.source_report()
        assert report.epoch == cluster.topology.epoch == 1
        assert "'nodriver'" in str(report.last_error)
        feed.tell(document(2, "mysql+pymysql"))
        until(lambda: cluster.topology.epoch == 2)


def test_update_topology_is_not_for_a_cluster_that_follows(places: Places) -> None:
    feed = Feed(places.topology(1, 1))
    with Cluster.from_source(feed) as cluster:
        with pytest.raises(ValueError, match="follows feed; publish"):
            cluster.update_topology(places.topology(2, 1))
        assert cluster.topology.epoch == 1


def test_listeners_are_called_in_order_and_cannot_stop_each_other(
    cluster: Cluster, places: Places, caplog: pytest.LogCaptureFixture
) -> None:
    notified: list[tuple[int, int, int]] = []

    @event.listens_for(cluster, "topology_changed")
    def fail(*details: object) -> None:
        raise TypeError("of the application")

    @event.listens_for(cluster, "topology_changed")
    def note(cluster: Cluster, old: Topology, new: Topology) -> None:
        notified.append((old.epoch, new.epoch, cluster.topology.epoch))

    with caplog.at_level(logging.ERROR):
        for epoch in (2, 5, 9):
            cluster.update_topology(places.topology(epoch, 1, 2))
    assert notified == [(1, 2, 2), (2, 5, 5), (5, 9, 9)]
    assert [r.exc_info[0] for r in caplog.records if r.exc_info] == [TypeError] * 3


# -- a server that leaves


def test_no_new_connection_to_a_server_that_left(
    cluster: Cluster, places: Places
) -> None:
    with cluster.session() as session:
        # Found, but not asked yet.
        place = session.places.place(cluster.topology.keyspace("objects"), 4)
        assert directory_of(session, 0) == "s1"
        cluster.update_topology(with_files(places.topology(2, 1, 3)))
        with pytest.raises(ServerRetiredError) as known:
            directory_of(session, 4)
        # Neither found nor asked.
        with pytest.raises(ServerRetiredError) as unknown:
            directory_of(session, 5)
        for caught in (known, unknown):
            assert caught.value.server == "server2"
            assert pickle.loads(pickle.dumps(caught.value)).server == "server2"
        # The rest of its transaction goes on.
        assert directory_of(session, 0) == "s1"
        session.rollback()
        assert directory_of(session, 4) == "s3"
    with pytest.raises(ServerRetiredError):
        place.engine.connect()
    assert places.where(cluster)["s2"] == 0


def test_no_connection_to_a_server_that_left_before_it_was_used(places: Places) -> None:
    with_files(places.topology(1, 1))
    with Cluster.from_topology(places.topology(1, 1, 2)) as cluster:
        with cluster.session() as session:
            assert directory_of(session, 0) == "s1"
            cluster.update_topology(places.topology(2, 1, 3))
            with pytest.raises(ServerRetiredError):
                directory_of(session, 4)
        assert places.where(cluster) == {"s1": 1}
        assert not (places.base / "s2").exists()


def test_a_removed_server_is_not_contacted_even_to_refuse(
    cluster: Cluster, places: Places
) -> None:
    """A connection is not opened in order to be refused."""
    with cluster.session() as session:
        place = session.places.place(cluster.topology.keyspace("objects"), 4)
        directory_of(session, 0)
        cluster.update_topology(places.topology(2, 1, 3))
        shutil.rmtree(places.base / "s2")
        with pytest.raises(ServerRetiredError):
            session.execute(text("SELECT 1"), **on(4))
        assert place.engine.pool.checkedout() == 0
    assert list(places.base.glob("s2/*")) == []


def test_the_pool_ends_with_the_last_connection(
    cluster: Cluster, places: Places
) -> None:
    one, two = cluster.session(), cluster.session()
    with one, two:
        for session in (one, two):
            assert directory_of(session, 4) == "s2"
        gone = weakref.ref(
            one.places.place(cluster.topology.keyspace("objects"), 4).engine
        )
        assert places.where(cluster) == {"s1": 4, "s2": 4}
        cluster.update_topology(places.topology(2, 1, 3))
        # Of what is idle nothing is left; of what is in use, that.
        (left,) = [s for s in cluster.stats() if s.retired]
        assert (left.idle, left.busy) == (0, 2)
        assert (left.server, Path(left.address).parent.name) == ("server2", "s2")
        one.rollback()
        (left,) = [s for s in cluster.stats() if s.retired]
        assert (left.idle, left.busy) == (0, 1)
        two.rollback()
        assert [s for s in cluster.stats() if s.retired] == []
        assert places.where(cluster)["s2"] == 0
    del one, two, session
    gc.collect()
    assert gone() is None


def test_running_statements_may_continue_until_the_deadline(places: Places) -> None:
    with Cluster.from_topology(places.topology(1, 1, 2), grace=TIMEOUT) as cluster:
        fill(cluster)
        with cluster.begin() as session:
            session.add(at(4, Pin(title="begun before")))
            session.flush()
            cluster.update_topology(places.topology(2, 1, 3))
            session.add(at(4, Pin(title="went on")))
        assert count(places.base / "s2" / "db00004.sqlite") == 3


def test_after_the_deadline_only_the_end_is_sent(places: Places) -> None:
    with Cluster.from_topology(places.topology(1, 1, 2), grace=0) as cluster:
        fill(cluster)
        file = places.base / "s2" / "db00004.sqlite"
        for end in ("rollback", "commit"):
            with cluster.session() as session:
                session.add(at(4, Pin(title="begun before")))
                session.flush()
                epoch = cluster.topology.epoch
                cluster.update_topology(places.topology(epoch + 1, 1, 3))
                with pytest.raises(ServerRetiredError) as caught:
                    session.execute(text("SELECT 1"), **on(4))
                assert caught.value.server == "server2"
                getattr(session, end)()
            assert count(file) == (1 if end == "rollback" else 2)
            assert places.where(cluster)["s2"] == 0
            cluster.update_topology(places.topology(epoch + 2, 1, 2))


def test_the_deadline_holds_for_every_server_of_a_statement(places: Places) -> None:
    with Cluster.from_topology(places.topology(1, 1, 2), grace=0) as cluster:
        fill(cluster)
        with cluster.session() as session:
            statement = select(Pin).options(scatter())
            assert len(session.scalars(statement).all()) == SHARDS
            session.expunge_all()
            cluster.update_topology(places.topology(2, 1, 3))
            with pytest.raises(ServerRetiredError):
                session.scalars(statement).all()


def count(file: Path) -> int:
    connection = sqlite3.connect(file)
    try:
        rows = connection.execute("SELECT count(*) FROM pins")
        found: int = rows.fetchone()[0]
        return found
    finally:
        connection.close()


def test_a_statement_that_runs_is_not_torn(places: Places) -> None:
    with Cluster.from_topology(places.topology(1, 1, 2), grace=0) as cluster:
        fill(cluster)
        running, go = threading.Event(), threading.Event()

        def wait() -> int:
            running.set()
            assert go.wait(TIMEOUT)
            return 7

        def work() -> None:
            with cluster.session() as session:
                connection = session.connection({"shard_id": 4})
                raw: Any = connection.connection.driver_connection
                raw.create_function("waited", 0, wait)
                answers.append(session.scalar(text("SELECT waited()"), **on(4)))

        answers: list[Any] = []
        thread = threading.Thread(target=work)
        thread.start()
        try:
            assert running.wait(TIMEOUT)
            cluster.update_topology(places.topology(2, 1, 3))
            (left,) = [s for s in cluster.stats() if s.retired]
            assert left.busy == 1
        finally:
            go.set()
            thread.join(TIMEOUT)
        assert answers == [7]
        assert places.where(cluster)["s2"] == 0


def test_waiting_for_a_connection_is_refused(places: Places) -> None:
    with Cluster.from_topology(
        places.topology(1, 1, 2),
        engine_options={"pool_size": 1, "max_overflow": 0, "pool_timeout": TIMEOUT},
    ) as cluster:
        fill(cluster)
        holder = cluster.session()
        assert directory_of(holder, 4) == "s2"
        engine = holder.places.place(cluster.topology.keyspace("objects"), 4).engine
        failed: list[BaseException] = []

        def work() -> None:
            try:
                with cluster.session() as session:
                    directory_of(session, 4)
            except (ServerRetiredError, PoolTimeoutError) as error:
                failed.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        pool: Any = engine.pool
        assert until(lambda: pool._pool.not_empty._waiters)
        cluster.update_topology(places.topology(2, 1, 3))
        holder.close()
        thread.join(TIMEOUT)
        assert [type(error) for error in failed] == [ServerRetiredError]
        assert places.where(cluster)["s2"] == 0


def test_a_changed_url_gets_a_new_pool_and_a_former_one_too(
    cluster: Cluster, places: Places
) -> None:
    def engine(shard: int) -> Any:
        keyspace = cluster.topology.keyspace("objects")
        return cluster.places.place(keyspace, shard).engine

    def named(epoch: int, server: int) -> Topology:
        """One server, whose URL changes and whose name does not."""
        given = places.document(epoch, 1, server)
        given["keyspaces"]["objects"]["servers"][1]["name"] = "server2"
        return Topology.from_mapping(given)

    first, stays = engine(4), engine(0)
    places.copy(2, 3)
    cluster.update_topology(named(2, 3))
    second = engine(4)
    assert second.url != first.url
    assert engine(0) is stays
    with cluster.session() as session:
        assert directory_of(session, 4) == "s3"
    cluster.update_topology(named(3, 2))
    third = engine(4)
    assert third.url == first.url
    assert third is not first
    with cluster.session() as session:
        assert directory_of(session, 4) == "s2"
    for retired in (first, second):
        with pytest.raises(ServerRetiredError):
            retired.connect()
    assert places.where(cluster) == {"s1": 4, "s2": 1}


def test_a_transaction_of_before_is_not_let_in_by_a_way_back(
    cluster: Cluster, places: Places
) -> None:
    """Its pool is gone for good, also when the server has come back."""
    with cluster.session() as session:
        keyspace = cluster.topology.keyspace("objects")
        old = session.places.place(keyspace, 4)
        cluster.update_topology(places.topology(2, 1, 3))
        cluster.update_topology(places.topology(3, 1, 2))
        with pytest.raises(ServerRetiredError):
            old.engine.connect()
        with pytest.raises(ServerRetiredError):
            directory_of(session, 4)
        session.rollback()
        assert directory_of(session, 4) == "s2"


def test_a_transaction_met_by_a_change_is_repeated(
    cluster: Cluster, places: Places
) -> None:
    places.copy(2, 3)
    seen: list[str] = []

    def work(session: Any) -> str:
        directory_of(session, 0)
        if not seen:
            seen.append("first")
            cluster.update_topology(places.topology(2, 1, 3))
        seen.append(directory_of(session, 4))
        return seen[-1]

    assert cluster.run(work) == "s3"
    assert seen == ["first", "s3"]


def test_close_disposes_what_left_as_well(cluster: Cluster, places: Places) -> None:
    with cluster.session() as session:
        directory_of(session, 4)
        cluster.update_topology(places.topology(2, 1, 3))
        assert cluster.close(0.0) is False
        session.rollback()
        with pytest.raises(ClusterClosedError):
            directory_of(session, 0)
    assert all(s.idle == s.busy == 0 for s in cluster.stats())


# -- many threads


def test_requests_never_fail_while_servers_come_and_go(
    cluster: Cluster, places: Places, rng: random.Random
) -> None:
    """Every way back and forth, with requests all the time."""
    for server in (3, 4):
        places.copy(2, server)
    with cluster.session() as session:
        ids = [pin.id for pin in session.scalars(select(Pin).options(scatter()))]
    stop = threading.Event()
    errors: list[BaseException] = []
    done = [0] * 4

    def read(session: Any, key: int) -> None:
        assert session.get(Pin, key) is not None

    def work(number: int) -> None:
        own = random.Random(f"{seed} {number}")
        try:
            while not stop.is_set():
                cluster.run(read, own.choice(ids))
                done[number] += 1
        except BaseException as error:
            errors.append(error)

    seed = rng.random()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        for epoch in range(2, 102):
            before = sum(done)
            cluster.update_topology(places.topology(epoch, 1, rng.choice([2, 3, 4])))
            if epoch % 10 == 0:
                assert until(lambda: errors or sum(done) > before + 4)  # noqa: B023 - called here
        # Each thread has had its turn.
        assert until(lambda: errors or min(done) > 0)
    finally:
        stop.set()
        for thread in threads:
            thread.join(TIMEOUT)
    assert errors == []
    assert min(done) > 0
    assert [s for s in cluster.stats() if s.retired] == []


def test_500_changes_leave_nothing_behind(cluster: Cluster, places: Places) -> None:
    def change(epochs: range) -> None:
        for epoch in epochs:
            topology = places.topology(epoch, 1, 2 + epoch % 40)
            cluster.update_topology(with_files(topology))
            with cluster.session() as session:
                session.execute(text("SELECT 1"), **on(4))

    change(range(2, 52))
    gc.collect()
    threads, files = running(), len(os.listdir("/proc/self/fd"))
    objects = len(gc.get_objects())
    change(range(52, 552))
    gc.collect()
    grown = len(gc.get_objects()) - objects
    assert grown < 2_000, grown
    assert started_since(threads) == []
    assert len(os.listdir("/proc/self/fd")) <= files + 2
    assert len(cluster.stats()) <= SHARDS


# -- event loops


def test_event_loops_follow_too(cluster: Cluster, places: Places) -> None:
    places.copy(2, 3)

    async def main() -> None:
        async with cluster.async_session() as session:
            assert await adirectory_of(session, 4) == "s2"
            cluster.update_topology(places.topology(2, 1, 3))
            assert await adirectory_of(session, 4) == "s2"
            with pytest.raises(ServerRetiredError):
                await adirectory_of(session, 5)
            async with cluster.async_session() as other:
                assert await adirectory_of(other, 4) == "s3"
            (left,) = [s for s in cluster.stats() if s.retired]
            assert (left.asynchronous, left.busy) == (True, 1)
            await session.commit()
            assert await adirectory_of(session, 5) == "s3"
        assert [s for s in cluster.stats() if s.retired] == []
        await cluster.aclose()

    asyncio.run(main())


def test_a_transaction_of_a_loop_is_repeated(cluster: Cluster, places: Places) -> None:
    places.copy(2, 3)
    seen: list[str] = []

    async def work(session: Any) -> str:
        await adirectory_of(session, 0)
        if not seen:
            seen.append("first")
            cluster.update_topology(places.topology(2, 1, 3))
            # It is in use once this loop has come to it.
            await asyncio.sleep(0)
        seen.append(await adirectory_of(session, 4))
        return seen[-1]

    async def main() -> None:
        assert await cluster.async_run(work) == "s3"
        await cluster.aclose()

    asyncio.run(main())


def test_idle_pools_of_loops_are_drained_without_a_request(
    cluster: Cluster, places: Places
) -> None:
    """A loop that runs other tasks adopts the topology nevertheless."""
    ready, changed = threading.Barrier(4), threading.Event()
    errors: list[BaseException] = []

    async def main() -> None:
        async with cluster.async_session() as session:
            assert await adirectory_of(session, 4) == "s2"
        await asyncio.to_thread(ready.wait, TIMEOUT)
        await asyncio.to_thread(changed.wait, TIMEOUT)
        assert places.where(cluster)["s2"] == 0
        async with cluster.async_session() as session:
            assert await adirectory_of(session, 4) == "s3"
        await asyncio.to_thread(ready.wait, TIMEOUT)

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            errors.append(error)
            ready.abort()

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        ready.wait(TIMEOUT)
        assert places.where(cluster)["s2"] == 4 + 3
        cluster.update_topology(with_files(places.topology(2, 1, 3)))
        assert until(lambda: places.where(cluster)["s2"] == 0)
        changed.set()
        ready.wait(TIMEOUT)
    finally:
        changed.set()
        for thread in threads:
            thread.join(TIMEOUT)
    assert errors == []


def test_a_loop_that_ends_at_once_leaves_nothing_open(
    cluster: Cluster, places: Places
) -> None:
    before = running()

    async def main() -> None:
        async with cluster.async_session() as session:
            assert await adirectory_of(session, 4) == "s2"
        cluster.update_topology(places.topology(2, 1, 3))
        # Its own first step is this loop's last.
        asyncio.get_running_loop().call_soon(lambda: None)
        await cluster.async_health()

    asyncio.run(main())
    # aiosqlite has a thread for each connection.
    assert until(lambda: not started_since(before))


# -- following, and fork


def tell(cluster: Cluster, publish: Callable[[], object], epoch: int) -> None:
    """Publish something, and wait until a cluster uses it."""
    publish()
    assert until(lambda: cluster.topology.epoch == epoch)


def test_a_file_is_followed(places: Places) -> None:
    file = places.base / "topology.json"
    file.write_bytes(to_json(places.topology(1, 1, 2)))
    with Cluster.from_file(file) as cluster:
        fill(cluster)
        places.copy(2, 3)
        new = places.base / "new.json"
        new.write_bytes(to_json(places.topology(2, 1, 3)))
        tell(cluster, lambda: os.replace(new, file), 2)
        with cluster.session() as session:
            assert directory_of(session, 4) == "s3"
        health = cluster.health()
        assert (health.state, health.epoch) == ("current", 2)
        assert health.source == str(file)
    with Cluster.from_file(file, watch=False) as cluster:
        assert cluster.source_report().state == "fixed"


def test_following_begins_with_the_first_use(places: Places) -> None:
    feed = Feed(places.topology(1, 1, 2))
    threads = running()
    cluster = Cluster.from_source(feed)
    assert started_since(threads) == []
    assert feed.started == 0
    assert cluster.topology.epoch == 1
    assert len(started_since(threads)) == 1
    cluster.close()
    assert started_since(threads) == []
    assert feed.stopped == 1
    assert cluster.source_report().state == "closed"


def test_a_source_that_hangs_blocks_no_session(places: Places) -> None:
    feed = Feed(places.topology(1, 1, 2))
    with Cluster.from_source(feed) as cluster:
        fill(cluster)
        feed.wait(2)
        feed.answers.clear()
        try:
            feed.wait(feed.tell(places.topology(2, 1, 3)) + 1)
            # All of this is done while the thread waits for an answer.
            with cluster.begin() as session:
                session.add(at(0, Pin(title="meanwhile")))
                assert directory_of(session, 4) == "s2"
            assert cluster.health().is_good
            assert cluster.source_report().epoch == 1
            assert cluster.topology.epoch == 1
            assert len(cluster.stats()) == SHARDS

            async def main() -> None:
                async with cluster.async_session() as session:
                    assert await adirectory_of(session, 4) == "s2"

            asyncio.run(main())
        finally:
            feed.answers.set()
        assert until(lambda: cluster.topology.epoch == 2)
        feed.answers.clear()
        feed.wait(feed.tell(places.topology(3, 1, 2)) + 1)
        # Nor does closing wait for it.
        assert cluster.close()
        assert feed.stopped == 0
        feed.answers.set()
        assert until(lambda: feed.stopped == 1)
        assert cluster.source_report().state == "closed"


# Its connections are collected with it: Python 3.13 warns of them, and 3.15
# says "while finalizing database connection".
@pytest.mark.filterwarnings(
    "ignore:Exception ignored (in.|while .*) <sqla_shard.dialects.sqlite"
    ":pytest.PytestUnraisableExceptionWarning"
)
def test_a_cluster_that_is_collected_ends_its_thread(places: Places) -> None:
    feed = Feed(places.topology(1, 1, 2))
    threads = running()
    cluster = Cluster.from_source(feed)
    fill(cluster)
    assert feed.stopped == 0
    gone = weakref.ref(cluster)
    del cluster

    def is_gone() -> bool:
        gc.collect()
        return gone() is None

    # A lane may be about to let go of its last job.
    assert until(is_gone)
    assert until(lambda: feed.stopped == 1)
    assert until(lambda: not started_since(threads))


def test_two_clusters_follow_each_its_own(places: Places) -> None:
    feeds = [Feed(places.topology(1, 1, 2)) for _ in range(2)]
    one, two = (Cluster.from_source(feed) for feed in feeds)
    with one, two:
        assert one.topology.epoch == two.topology.epoch == 1
        feeds[0].wait(2)
        tell(one, lambda: feeds[0].tell(places.topology(2, 1, 3)), 2)
        assert two.topology.epoch == 1
        one.close()
        feeds[1].wait(2)
        tell(two, lambda: feeds[1].tell(places.topology(3, 1, 3)), 3)
        assert one.topology.epoch == 2


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("used", [False, True])
def test_a_child_process_follows(places: Places, used: bool) -> None:
    file = places.base / "topology.json"
    file.write_bytes(to_json(places.topology(1, 1, 2)))
    with Cluster.from_topology(places.topology(1, 1, 2)) as first:
        fill(first)
    places.copy(2, 3)
    with Cluster.from_file(file) as cluster:
        if used:
            with cluster.session() as session:
                assert directory_of(session, 4) == "s2"

        def child() -> None:
            assert threading.active_count() == 1
            assert cluster.topology.epoch == 1
            assert threading.active_count() == 2
            file.write_bytes(to_json(places.topology(2, 1, 3)))
            assert until(lambda: cluster.topology.epoch == 2)
            with cluster.session() as session:
                assert directory_of(session, 4) == "s3"
            cluster.close()
            assert threading.active_count() == 1

        in_child(child, places.base)
        assert until(lambda: cluster.topology.epoch == 2)
        with cluster.session() as session:
            assert directory_of(session, 4) == "s3"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("used", [False, True])
def test_the_first_health_of_a_child_process(
    places: Places, used: bool, asynchronous: bool
) -> None:
    """It waits for the source: a child process starts without an answer."""
    file = places.base / "topology.json"
    file.write_bytes(to_json(with_files(places.topology(1, 1, 2))))

    def health(cluster: Cluster) -> Health:
        if asynchronous:
            return asyncio.run(cluster.async_health(TIMEOUT))
        return cluster.health(TIMEOUT)

    with Cluster.from_file(file) as cluster:
        if used:
            assert health(cluster).process_id == os.getpid()
        parent = os.getpid()

        def child() -> None:
            found = health(cluster)
            assert (found.state, found.last_error) == ("current", None)
            assert found.process_id == os.getpid() != parent
            cluster.close()

        in_child(child, places.base)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_the_health_of_a_child_process_whose_source_hangs(places: Places) -> None:
    feed = Feed(with_files(places.topology(1, 1, 2)))
    with Cluster.from_source(feed) as cluster:

        def child() -> None:
            feed.answers.clear()
            began = monotonic()
            found = cluster.health(1)
            assert monotonic() - began < TIMEOUT
            assert (found.state, found.down) == ("stale", [])
            feed.answers.set()
            assert until(lambda: cluster.health().state == "current")
            cluster.close()

        in_child(child, places.base)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_while_a_server_drains(cluster: Cluster, places: Places) -> None:
    places.copy(2, 3)
    with cluster.session() as session:
        assert directory_of(session, 4) == "s2"
        cluster.update_topology(places.topology(2, 1, 3))

        def child() -> None:
            assert [s for s in cluster.stats() if s.retired] == []
            with cluster.session() as own:
                assert directory_of(own, 4) == "s3"
            cluster.update_topology(places.topology(3, 1, 2))
            with cluster.session() as own:
                assert directory_of(own, 4) == "s2"

        in_child(child, places.base)
        assert directory_of(session, 4) == "s2"
    assert [s for s in cluster.stats() if s.retired] == []


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_while_the_topology_is_updated(cluster: Cluster, places: Places) -> None:
    """A lock that a thread of the parent holds is free in the child."""
    inside, go = threading.Event(), threading.Event()

    def listen(cluster: Cluster, old: Topology, new: Topology) -> None:
        inside.set()
        assert go.wait(TIMEOUT)

    def child() -> None:
        go.set()
        faulthandler.dump_traceback_later(TIMEOUT, exit=True)
        assert cluster.update_topology(places.topology(3, 1, 2))
        assert cluster.topology.epoch == 3

    event.listen(cluster, "topology_changed", listen)
    thread = threading.Thread(
        target=cluster.update_topology, args=[places.topology(2, 1, 2)]
    )
    thread.start()
    try:
        assert inside.wait(TIMEOUT)
        in_child(child, places.base)
    finally:
        go.set()
        thread.join(TIMEOUT)
    assert cluster.topology.epoch == 2


@pytest.mark.parametrize("is_used", [False, True])
@pytest.mark.parametrize("how", ["health", "async_health", "warm"])
def test_a_server_that_leaves_while_all_are_asked(
    cluster: Cluster,
    places: Places,
    monkeypatch: pytest.MonkeyPatch,
    is_used: bool,
    how: str,
) -> None:
    """A server of the newer topology is asked in its place."""
    places.copy(2, 3)
    other = Cluster.from_topology(places.topology(1, 1, 2))
    asked = EnginePlaces.servers
    epochs: list[int] = []

    def servers(own: EnginePlaces) -> Any:
        epochs.append(own.topology.epoch)
        if len(epochs) == 1:
            if is_used:
                assert len(list(asked(own))) == 2
            other.update_topology(places.topology(2, 1, 3))
        return asked(own)

    monkeypatch.setattr(EnginePlaces, "servers", servers)
    with other:
        if how == "warm":
            other.warm()
            assert places.where(other) == {"s1": 1, "s3": 1}
        else:
            health = (
                other.health(TIMEOUT)
                if how == "health"
                else asyncio.run(other.async_health(TIMEOUT))
            )
            assert health.ok
            assert health.epoch == 2
            assert list(health.servers) == ["server1", "server3"]
    assert epochs[0] == 1
    assert epochs[-1] == 2


def test_health_of_servers_of_one_name(places: Places) -> None:
    """Neither of two keyspaces hides what the other one has to say."""
    found = places.document(1, 1, 2)
    keyspaces = found["keyspaces"]
    (objects,) = keyspaces.values()
    (places.base / "broken").write_text("this is no directory")
    # The last that is asked is well, and the first is not.
    broken = copy.deepcopy(objects) | {"database": "other{shard:05d}"}
    keyspaces.clear()
    keyspaces.update(broken=broken, objects=objects)
    with_files(found)
    broken["servers"][0]["primary"] = f"sqlite:///{places.base / 'broken'}"
    with Cluster.from_topology(found) as cluster:
        health = cluster.health()
        assert {one.server for one in cluster.stats()} == set(health.servers)
    assert health.servers["broken/server1"] is not None
    assert health.servers["objects/server1"] is None
    assert health.servers["server2"] is None
    assert not health.is_good
