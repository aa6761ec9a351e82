"""COMMITs of cached rows that fail, on servers with memcached."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy import event, update
from sqlalchemy.exc import OperationalError

from sqla_shard import Cluster, operation
from sqla_shard.cache.stores import KeyState
from sqla_shard.exc import (
    CachedWriteError,
    CommitUnknownError,
    PartialCommitError,
    ServerFencedError,
)
from sqla_shard.testing.server_fleet import ServerFleet
from sqla_shard.upkeep import verify_relations
from tests.models.cached_models import (
    Board,
    BoardKeepsPins,
    cached_on_servers,
    key_of,
    Pin,
    PinInBoards,
    seen,
    sent,
    stored,
    User,
    value_of,
)

pytestmark = pytest.mark.live

cluster = cached_on_servers("cachedcommits")
committed = cached_on_servers(
    "cachedcommitted", engine_options={"isolation_level": "READ COMMITTED"}
)


@operation("tests.cached.rename")
def rename(session: Any, user_id: int, city: str) -> None:
    session.get(User, user_id).city = city


def server_of(fleet: ServerFleet[Any], connection: Any) -> Any:
    port = connection.engine.url.port
    (server,) = [s for s in fleet.servers if s.port == port]
    return server


def kill(fleet: ServerFleet[Any], connection: Any) -> None:
    number = connection.connection.dbapi_connection.thread_id()
    server_of(fleet, connection).root_execute(f"KILL {number}")


def state_of(cluster: Cluster, user: int) -> KeyState:
    """Return the state of a key for a client that could fill it."""
    key = key_of(cluster, User, user)
    assert cluster.cache is not None
    store = cluster.cache.region("objects").store
    found = store.fetch([key], 1)[key]
    if found.lease is not None:
        store.unblock([key], b"t" * 16)
    return found.state


@pytest.fixture
def users(cluster: Cluster) -> list[int]:
    """Return users on two servers; both are in the cache."""
    return [
        stored(cluster, User(name="u", city="Rome"), shard_id, warm=True)
        for shard_id in (0, 7)
    ]


def roots(session: Any) -> dict[Any, Any]:
    return {c.engine: c for c in session._connections if c.engine.url.host}


def test_a_connection_that_is_lost_at_commit(
    cluster: Cluster, fleet: ServerFleet[Any], users: list[int]
) -> None:
    with cluster.session() as session:
        session.get(User, users[0]).city = "Oslo"
        session.flush()
        (connection,) = roots(session).values()
        kill(fleet, connection)
        with pytest.raises(CommitUnknownError):
            session.commit()
    # It may be done yet: nothing is put there until the tombstone ends.
    assert state_of(cluster, users[0]) is KeyState.BLOCKED
    for _ in range(2):
        with sent() as statements:
            assert seen(cluster, User, users[0]).city == "Rome"
        assert len(statements) == 1
    assert state_of(cluster, users[1]) is KeyState.VALUE


def test_half_of_a_commit(
    cluster: Cluster, fleet: ServerFleet[Any], users: list[int]
) -> None:
    with cluster.session(cross_shard="unordered") as session:
        for user in users:
            session.get(User, user).city = "Oslo"
        session.flush()
        begun = roots(session)
        assert len(begun) == 2
        committing: list[Any] = []

        def listen(connection: Any) -> None:
            committing.append(connection.engine)
            if len(committing) == 1:
                (other,) = [e for e in begun if e is not connection.engine]
                kill(fleet, begun[other])

        for engine in begun:
            event.listen(engine, "commit", listen)
        try:
            with pytest.raises(PartialCommitError):
                session.commit()
        finally:
            for engine in begun:
                event.remove(engine, "commit", listen)
    cities = [seen(cluster, User, user).city for user in users]
    assert sorted(cities) == ["Oslo", "Rome"]
    assert [state_of(cluster, user) for user in users] == [KeyState.BLOCKED] * 2


def test_a_server_that_is_fenced(
    cluster: Cluster, fleet: ServerFleet[Any], users: list[int]
) -> None:
    """It has refused: nothing is there that others have to wait for."""
    with cluster.session() as session:
        session.get(User, users[0]).city = "Oslo"
        session.flush()
        (connection,) = roots(session).values()
        server = server_of(fleet, connection)
        server.root_execute("SET GLOBAL read_only = 1")
        try:
            with pytest.raises(ServerFencedError):
                session.commit()
        finally:
            server.root_execute("SET GLOBAL read_only = 0")
    assert state_of(cluster, users[0]) is KeyState.LEASED
    for _ in range(2):
        assert seen(cluster, User, users[0]).city == "Rome"
    assert value_of(cluster, key_of(cluster, User, users[0]))


def test_a_listener_that_raises_at_commit(cluster: Cluster, users: list[int]) -> None:
    def fail(connection: Any) -> None:
        raise RuntimeError("not now")

    with cluster.session() as session:
        session.get(User, users[0]).city = "Oslo"
        session.flush()
        (engine,) = roots(session)
        event.listen(engine, "commit", fail)
        try:
            with pytest.raises(RuntimeError, match="not now"):
                session.commit()
        finally:
            event.remove(engine, "commit", fail)
    assert seen(cluster, User, users[0]).city == "Rome"
    assert state_of(cluster, users[0]) in (KeyState.BLOCKED, KeyState.VALUE)


def test_the_victim_of_a_deadlock(cluster: Cluster) -> None:
    """Its values are still used, and those of the other are deleted."""
    users = [
        stored(cluster, User(name="u", city="Rome"), 3, warm=True) for _ in range(2)
    ]
    cities = ["Oslo", "Bonn"]
    both = threading.Barrier(2)
    lost: list[str] = []

    def write(order: list[int], city: str) -> None:
        with cluster.session() as session:
            try:
                for number, user in enumerate(order):
                    session.execute(
                        update(User).where(User.id == user).values(city=city)
                    )
                    if number == 0:
                        both.wait(60)
                session.commit()
            except OperationalError:
                lost.append(city)

    threads = [
        threading.Thread(target=write, args=(order, city))
        for order, city in zip((users, users[::-1]), cities, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    (city,) = {*cities} - {*lost}
    for _ in range(2):
        assert [seen(cluster, User, u).city for u in users] == [city] * 2


def test_pending_operations_on_other_shards(cluster: Cluster, users: list[int]) -> None:
    with cluster.begin(cross_shard="logged") as session:
        session.get(User, users[0]).city = "Oslo"
        rename.intend(session, users[1], "Bonn")
        assert seen(cluster, User, users[1]).city == "Rome"
    for _ in range(2):
        cities = [seen(cluster, User, user).city for user in users]
        assert cities == ["Oslo", "Bonn"]


def test_repaired_commits(cluster: Cluster) -> None:
    """Lost rows of a list, and of its reverse."""
    board = stored(cluster, Board())
    pin = stored(cluster, Pin(title="p"), 6)
    cluster.run(BoardKeepsPins.append, board, pin)
    with cluster.begin() as session:
        there = {"shard_id": 6, "mapper": PinInBoards}
        connection = session.connection(there)
        connection.exec_driver_sql("DELETE FROM pin_in_boards")
        cluster.cache.invalidate(session, PinInBoards, pin)  # type: ignore[union-attr]  # there is one

    def boards() -> int:
        with cluster.session() as session:
            return PinInBoards.count(session, pin)

    assert [boards(), boards()] == [0, 0]
    report = verify_relations(
        cluster, [BoardKeepsPins, PinInBoards], grace=0.0, repair=True
    )
    assert sum(report.found(kind) for kind in report.kinds) == 1
    assert [boards(), boards()] == [1, 1]


def test_a_row_that_comes_to_match(committed: Cluster) -> None:
    """Between the read that selects the rows to write, and the write."""
    users = [
        stored(committed, User(name="u", city=city), 2, warm=True)
        for city in ("Rome", "Bonn")
    ]

    def change(connection: Any, cursor: Any, statement: str, *more: Any) -> None:
        if statement.startswith("UPDATE") and not changed:
            changed.append(statement)
            with committed.begin() as other:
                other.get(User, users[1]).city = "Rome"
            assert seen(committed, User, users[1]).city == "Rome"

    changed: list[str] = []
    with committed.session() as session:
        there = {"shard_id": 2, "mapper": User}
        engine = session.connection(there).engine
        event.listen(engine, "before_cursor_execute", change)
        try:
            with pytest.raises(CachedWriteError, match="1 more rows were written"):
                session.execute(
                    update(User).where(User.city == "Rome").values(city="x"),
                    bind_arguments={"shard_id": 2},
                )
        finally:
            event.remove(engine, "before_cursor_execute", change)
        session.rollback()
    assert changed
    for _ in range(2):
        cities = [seen(committed, User, user).city for user in users]
        assert cities == ["Rome", "Rome"]


def test_reads_that_see_the_present_fill(committed: Cluster) -> None:
    """With READ COMMITTED each statement is as new as can be."""
    users = [stored(committed, User(name=str(i)), 2) for i in range(2)]
    with committed.session() as session:
        assert [session.get(User, user).name for user in users] == ["0", "1"]
    with sent() as statements:
        assert [seen(committed, User, u).name for u in users] == ["0", "1"]
    assert statements == []
