"""Servers that are fenced, and shards that are not where they were."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import monotonic
from typing import Any

import pytest
from sqlalchemy import func, insert, select, text
from sqlalchemy.exc import OperationalError, ProgrammingError

from sqla_shard import Cluster, pack, scatter, scatter_errors, Topology
from sqla_shard.cluster import retries
from sqla_shard.exc import (
    RetriesExhaustedError,
    ServerFencedError,
    ShardMissingError,
    ShardMovedError,
)
from sqla_shard.testing.server_fleet import ServerFleet
from tests.models.models import Base, PIN, Pin
from tests.servers.kinds import Kind, own_fleet
from tests.servers.swapping import moved, Swaps

pytestmark = pytest.mark.live

#: The last shard of server1, and one of server2.
EDGE, OTHER = 3, 5


fleet = own_fleet(2, 8)


@pytest.fixture
def document(fleet: ServerFleet[Any]) -> Any:
    return fleet.topology_mapping(main=True)


@pytest.fixture
def cluster(document: Any, fleet: ServerFleet[Any]) -> Iterator[Cluster]:
    with Cluster.from_topology(document, environ=fleet.environ) as cluster:
        cluster.create_all(Base.metadata)
        yield cluster


@contextmanager
def read_only(server: Any) -> Iterator[None]:
    server.root_execute("SET GLOBAL read_only = 1")
    try:
        yield
    finally:
        server.root_execute("SET GLOBAL read_only = 0")


@contextmanager
def without(fleet: ServerFleet[Any], database: str) -> Iterator[None]:
    """Let the server of a database be without it."""
    number = int(int(database[2:]) > EDGE)
    server = fleet.servers[number]
    server.root_execute(f"DROP DATABASE {database}")
    try:
        yield
    finally:
        server.root_execute(f"CREATE DATABASE IF NOT EXISTS {database}")


@contextmanager
def granted(server: Any, database: str, what: str) -> Iterator[None]:
    """Let the application do less in one database."""
    account = f"'{server.user}', '{server.host}'"
    # A row of its own, which comes before the one with a wildcard.
    column, value = (", Select_priv", ", 'Y'") if what else ("", "")
    server.root_execute(
        f"INSERT INTO mysql.db (Db, User, Host{column}) "
        f"VALUES ('{database}', {account}{value})"
    )
    server.root_execute("FLUSH PRIVILEGES")
    try:
        yield
    finally:
        server.root_execute(f"DELETE FROM mysql.db WHERE Db = '{database}'")
        server.root_execute("FLUSH PRIVILEGES")


def add(session: Any, shard_id: int, title: str = "it") -> None:
    pin = Pin(title=title)
    pin.__dict__["_sqla_shard_requested"] = shard_id
    session.add(pin)
    session.flush()


def count(cluster: Cluster, shard_id: int, title: str) -> int:
    counted = select(func.count(Pin.id)).where(Pin.title == title)
    with cluster.session() as session:
        found = session.scalar(counted, bind_arguments={"shard_id": shard_id})
        return int(found or 0)


# -- a server that is read-only


def test_a_write_to_a_fenced_server(cluster: Cluster, fleet: ServerFleet[Any]) -> None:
    swaps = Swaps(cluster)
    with (
        read_only(fleet.servers[0]),
        cluster.session() as session,
        pytest.raises(ServerFencedError, match="server1") as caught,
    ):
        add(session, EDGE)
    error = caught.value
    assert error.server == "server1"
    assert error.orig is not None
    assert error.orig.args[0] == 1290
    assert isinstance(error, OperationalError)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert swaps.asked


def test_a_server_that_is_fenced_before_commit(
    cluster: Cluster, fleet: ServerFleet[Any]
) -> None:
    session = cluster.session()
    add(session, EDGE, "fenced")
    with read_only(fleet.servers[0]):
        with pytest.raises(ServerFencedError, match="server1") as caught:
            session.commit()
        session.close()
    assert caught.value.orig is not None
    assert caught.value.orig.args[0] == 1290
    assert count(cluster, EDGE, "fenced") == 0


def test_a_transaction_fenced_at_commit_is_repeated(
    cluster: Cluster, fleet: ServerFleet[Any]
) -> None:
    server = fleet.servers[0]
    attempts = []

    def write(session: Any) -> None:
        attempts.append(1)
        if len(attempts) == 3:
            server.root_execute("SET GLOBAL read_only = 0")
        add(session, EDGE, "opened")
        if len(attempts) == 1:
            server.root_execute("SET GLOBAL read_only = 1")

    try:
        cluster.run(write)
    finally:
        server.root_execute("SET GLOBAL read_only = 0")
    # At COMMIT, at INSERT, not at all.
    assert len(attempts) == 3
    assert count(cluster, EDGE, "opened") == 1


def test_others_are_not_delayed(cluster: Cluster, fleet: ServerFleet[Any]) -> None:
    Swaps(cluster)
    fenced = threading.Event()
    stop = threading.Event()

    def wait(session: Any) -> None:
        if stop.is_set():
            return
        try:
            add(session, EDGE)
        finally:
            fenced.set()

    with ThreadPoolExecutor(1) as executor, read_only(fleet.servers[0]):
        waiting = executor.submit(cluster.run, wait)
        try:
            assert fenced.wait(60)
            start = monotonic()
            for _ in range(20):
                cluster.run(add, OTHER, "other")
            seconds = monotonic() - start
            assert not waiting.done()
        finally:
            stop.set()
        waiting.result(60)
    # One pause of the one that waits takes half of a second by then.
    assert seconds < 5
    assert count(cluster, OTHER, "other") == 20


def test_the_end_of_time(cluster: Cluster, fleet: ServerFleet[Any]) -> None:
    start = monotonic()
    with read_only(fleet.servers[0]), pytest.raises(RetriesExhaustedError) as caught:
        cluster.run(add, EDGE, timeout=2)
    assert monotonic() - start < 15
    error = caught.value
    assert error.attempts == len(error.failures) > 2
    assert error.counts == {"ServerFencedError": error.attempts}
    assert all("read-only" in text for text in error.failures)
    assert f"{error.attempts} x ServerFencedError" in str(error)
    assert isinstance(error.__cause__, ServerFencedError)


def test_a_read_only_transaction_is_the_clients_own(cluster: Cluster) -> None:
    attempts = []

    def write(session: Any) -> None:
        attempts.append(1)
        on_edge = {"shard_id": EDGE}
        session.execute(text("START TRANSACTION READ ONLY"), bind_arguments=on_edge)
        add(session, EDGE)

    with pytest.raises(OperationalError) as caught:
        cluster.run(write)
    assert caught.value.orig is not None
    assert caught.value.orig.args[0] == 1792
    assert not isinstance(caught.value, ServerFencedError)
    assert len(attempts) == 1


# -- a shard that is not there


def test_a_missing_database(
    cluster: Cluster, fleet: ServerFleet[Any], server_kind: Kind
) -> None:
    # MySQL says at once that it is the database.
    lacks, code = ("database", 1049) if server_kind.is_mysql else ("table", 1146)
    with without(fleet, "db00003"), cluster.session() as session:
        with pytest.raises(ShardMissingError, match="create_all") as caught:
            session.get(Pin, pack(EDGE, PIN, 1))
        error = caught.value
        assert (error.keyspace, error.shards) == ("objects", (EDGE,))
        assert (error.server, error.lacks) == ("server1", lacks)
        assert error.orig is not None
        assert error.orig.args[0] == code
        assert isinstance(error, ProgrammingError)
        assert isinstance(error, OperationalError)
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
        session.rollback()
        with pytest.raises(ShardMissingError, match="rovision") as caught:
            session.execute(
                text("SELECT 1 FROM pins"), bind_arguments={"shard_id": EDGE}
            )
        assert caught.value.orig is not None
        assert caught.value.orig.args[0] == 1049
        assert caught.value.lacks == "database"


def test_a_missing_grant(cluster: Cluster, fleet: ServerFleet[Any]) -> None:
    with granted(fleet.servers[0], "db00003", "SELECT"):
        with cluster.session() as session:
            session.get(Pin, pack(EDGE, PIN, 1))
            with pytest.raises(ShardMissingError, match="lacks a privilege") as caught:
                add(session, EDGE)
        assert caught.value.orig is not None
        assert caught.value.orig.args[0] == 1142
        assert caught.value.lacks == "grant"
    with granted(fleet.servers[0], "db00003", ""):
        with (
            cluster.session() as session,
            pytest.raises(ShardMissingError, match="lacks a privilege") as caught,
        ):
            session.execute(
                text("SELECT 1 FROM pins"), bind_arguments={"shard_id": EDGE}
            )
        assert caught.value.orig is not None
        assert caught.value.orig.args[0] == 1044
        assert caught.value.lacks == "grant"


def test_no_repetition_where_topologies_stay(
    cluster: Cluster, fleet: ServerFleet[Any]
) -> None:
    attempts = []

    def read(session: Any) -> None:
        attempts.append(1)
        session.get(Pin, pack(EDGE, PIN, 1))

    with without(fleet, "db00003"), pytest.raises(ShardMissingError):
        cluster.run(read)
    assert len(attempts) == 1


def test_patience_has_an_end(
    cluster: Cluster, fleet: ServerFleet[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "_MISSING_SHARD_SECONDS", 1.0)
    swaps = Swaps(cluster)
    attempts = []

    def read(session: Any) -> None:
        attempts.append(monotonic())
        session.get(Pin, pack(EDGE, PIN, 1))

    with without(fleet, "db00003"), pytest.raises(ShardMissingError):
        cluster.run(read)
    assert len(attempts) > 2
    # The last pause begins in time, and is one second and a half at most.
    assert attempts[-1] - attempts[0] < 10
    assert swaps.asked


def test_a_stale_session_meets_a_moved_shard(
    cluster: Cluster, document: Any, fleet: ServerFleet[Any]
) -> None:
    swaps = Swaps(cluster)
    with without(fleet, "db00003"), cluster.session() as session:
        session.get(Pin, pack(0, PIN, 1))
        # Its places are those of its transaction.
        swaps.swap(moved(document, EDGE, 2))
        with pytest.raises(ShardMovedError) as caught:
            session.get(Pin, pack(EDGE, PIN, 1))
    error = caught.value
    assert (error.keyspace, error.shards) == ("objects", (EDGE,))
    assert (error.from_server, error.to_server) == ("server1", "server2")
    assert error.epoch == 2
    assert isinstance(error, ProgrammingError)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_shard_that_moves_is_followed(
    cluster: Cluster, document: Any, fleet: ServerFleet[Any]
) -> None:
    swaps = Swaps(cluster)
    homes = []

    def write(session: Any) -> None:
        (place,) = [
            session.places.place(session.places.keyspace(None, "objects"), i)
            for i in [EDGE]
        ]
        homes.append(place.server)
        add(session, EDGE, "moved")

    fleet.servers[0].root_execute("DROP DATABASE db00003")
    after = moved(document, EDGE, 2)
    with Cluster(after, environ=fleet.environ) as new:
        new.create_all(Base.metadata)
        try:
            swaps.next = after
            start = monotonic()
            cluster.run(write)
            assert monotonic() - start < 2
            assert homes == ["server1", "server2"]
            assert count(new, EDGE, "moved") == 1
        finally:
            fleet.servers[1].root_execute("DROP DATABASE db00003")


def test_a_keyspace_that_is_gone(
    cluster: Cluster, document: Any, fleet: ServerFleet[Any]
) -> None:
    swaps = Swaps(cluster)
    keyspaces = {"main": document["keyspaces"]["main"]}
    with without(fleet, "db00003"), cluster.session() as session:
        assert session.places
        swaps.swap(Topology.from_mapping({"epoch": 2, "keyspaces": keyspaces}))
        with pytest.raises(ShardMovedError, match="no server") as caught:
            session.get(Pin, pack(EDGE, PIN, 1))
    assert caught.value.to_server is None


@pytest.mark.parametrize("shard_id", [EDGE, OTHER])
def test_one_of_many_shards_is_missing(
    cluster: Cluster, fleet: ServerFleet[Any], shard_id: int
) -> None:
    """Each server is identified, the first and those after it."""
    server = "server1" if shard_id == EDGE else "server2"
    with without(fleet, f"db0000{shard_id}"), cluster.session() as session:
        every = select(Pin.title).options(scatter())
        with pytest.raises(ShardMissingError, match=server) as caught:
            session.scalars(every)
        assert caught.value.server == server
        assert shard_id in caught.value.shards
        assert len(caught.value.shards) == 4
        session.rollback()
        some = select(Pin.title).options(scatter(on_error="partial"))
        errors = scatter_errors(session.execute(some))
        assert len(errors) == 4
        assert {type(one) for one in errors.values()} == {ShardMissingError}


def test_changes_of_the_schema_get_the_drivers_errors(cluster: Cluster) -> None:
    place = next(iter(dict(cluster.places.servers()).values()))
    with place.engine.connect() as connection:
        with pytest.raises(ProgrammingError) as caught:
            connection.execute(text("SELECT 1 FROM db00000.nothing"))
        assert not isinstance(caught.value, ShardMissingError)


# -- the default database


def test_no_default_database_in_the_pool(cluster: Cluster) -> None:
    for shard_id in range(8):
        with cluster.session() as session:
            found = session.execute(
                text("SELECT DATABASE()"), bind_arguments={"shard_id": shard_id}
            ).scalar_one()
            assert found == f"db0000{shard_id}"
    for engine in cluster.places.engines:
        with engine.connect() as connection:
            sql = "SELECT DATABASE()"
            assert connection.exec_driver_sql(sql).scalar_one() is None


def test_an_unused_connection_stays_open(cluster: Cluster) -> None:
    numbers = set()
    for _ in range(3):
        with cluster.session() as session:
            connection = session.connection({"shard_id": EDGE})
            connection.execute(select(func.count(Pin.id)))
            wire: Any = connection.connection.dbapi_connection
            numbers.add(wire.thread_id())
    assert len(numbers) == 1


def test_no_default_database_in_the_pool_of_a_loop(
    document: Any, fleet: ServerFleet[Any]
) -> None:
    async def check() -> None:
        cluster = Cluster.from_topology(document, environ=fleet.environ)
        for shard_id in range(4):
            async with cluster.async_session() as session:
                found = await session.execute(
                    text("SELECT DATABASE()"), bind_arguments={"shard_id": shard_id}
                )
                assert found.scalar_one() == f"db0000{shard_id}"
            async with cluster.async_session() as session:
                on = await session.connection(bind_arguments={"shard_id": shard_id})
                raw = on.sync_connection
                assert raw is not None
                known = await session.run_sync(
                    lambda _, raw=raw: raw.execute(select(func.database())).scalar_one()
                )
                assert known is None
        await cluster.aclose()

    asyncio.run(check())


def test_a_bulk_insert_names_its_shard(
    cluster: Cluster, fleet: ServerFleet[Any]
) -> None:
    rows = [{"title": "bulk"} for _ in range(3)]
    with (
        without(fleet, "db00003"),
        cluster.session() as session,
        pytest.raises(ShardMissingError) as caught,
    ):
        session.execute(insert(Pin), rows, bind_arguments={"shard_id": EDGE})
    assert caught.value.shards == (EDGE,)


def test_a_shard_that_moves_is_followed_in_a_loop(
    cluster: Cluster, document: Any, fleet: ServerFleet[Any]
) -> None:
    swaps = Swaps(cluster)
    attempts = []

    async def write(session: Any) -> None:
        attempts.append(1)
        pin = Pin(title="looped")
        pin.__dict__["_sqla_shard_requested"] = EDGE
        session.add(pin)

    async def main() -> None:
        await cluster.async_run(write)
        await cluster.aclose()

    fleet.servers[0].root_execute("DROP DATABASE db00003")
    after = moved(document, EDGE, 2)
    with Cluster(after, environ=fleet.environ) as new:
        new.create_all(Base.metadata)
        try:
            swaps.next = after
            asyncio.run(main())
            assert len(attempts) == 2
            assert count(new, EDGE, "looped") == 1
        finally:
            fleet.servers[1].root_execute("DROP DATABASE db00003")


def test_a_fenced_server_in_a_loop(cluster: Cluster, fleet: ServerFleet[Any]) -> None:
    async def main() -> None:
        async with cluster.async_session() as session:
            pin = Pin(title="fenced loop")
            pin.__dict__["_sqla_shard_requested"] = EDGE
            session.add(pin)
            await session.flush()
            with read_only(fleet.servers[0]), pytest.raises(ServerFencedError):
                await session.commit()
        await cluster.aclose()

    asyncio.run(main())
    with Cluster.from_topology(
        fleet.topology_mapping(main=True), environ=fleet.environ
    ) as again:
        assert count(again, EDGE, "fenced loop") == 0
