"""COMMIT that fails, and transactions that are repeated."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import OperationalError

from sqla_shard import Cluster
from sqla_shard.exc import CommitUnknownError, PartialCommitError, RetriesExhaustedError
from sqla_shard.testing.server_fleet import ServerFleet
from tests.models.backends import Clusters
from tests.models.models import Base, Note, Pin

pytestmark = pytest.mark.live


cluster = Clusters(Base.metadata, 8, main=("main",)).on_servers("commits")


def kill(fleet: ServerFleet[Any], connection: Any) -> None:
    """Let the server drop a connection, as a failover would."""
    number = connection.connection.dbapi_connection.thread_id()
    port = connection.engine.url.port
    (server,) = [s for s in fleet.servers if s.port == port]
    server.root_execute(f"KILL {number}")


def counted(cluster: Cluster, shard_id: int) -> int:
    with cluster.session() as session:
        found: int = session.execute(
            text("SELECT count(*) FROM pins"), bind_arguments={"shard_id": shard_id}
        ).scalar_one()
        return found


def pin(title: str, shard_id: int) -> Any:
    made = Pin(title=title)
    made.__dict__["_sqla_shard_requested"] = shard_id
    return made


def test_a_connection_lost_at_commit(cluster: Cluster, fleet: ServerFleet[Any]) -> None:
    before = counted(cluster, 1)
    attempts = []

    def write(session: Any) -> None:
        attempts.append(1)
        session.add(pin("unknown", 1))
        session.flush()
        kill(fleet, session.root_connection(session.log.first[0]))

    with pytest.raises(CommitUnknownError, match="server1"):
        cluster.run(write)
    # Whether it took effect is not known, so it was not repeated.
    assert len(attempts) == 1
    assert counted(cluster, 1) == before


def test_a_connection_lost_before_commit_is_repeated(
    cluster: Cluster, fleet: ServerFleet[Any]
) -> None:
    before = counted(cluster, 1)
    attempts = []

    def write(session: Any) -> None:
        attempts.append(1)
        session.add(pin("repeated", 1))
        session.flush()
        if len(attempts) == 1:
            kill(fleet, session.root_connection(session.log.first[0]))
        session.add(pin("repeated", 1))
        session.flush()

    cluster.run(write)
    assert len(attempts) == 2
    assert counted(cluster, 1) == before + 2


def test_half_of_a_commit(cluster: Cluster, fleet: ServerFleet[Any]) -> None:
    before = {shard_id: counted(cluster, shard_id) for shard_id in (1, 2)}
    session = cluster.session(cross_shard="unordered")
    session.add_all([pin("half", 1), pin("half", 2)])
    session.flush()
    roots = {connection.engine: connection for connection, _ in session._views.values()}
    assert len(roots) == 2
    committing: list[Any] = []

    def kill_the_second(connection: Any) -> None:
        committing.append(connection.engine)
        if len(committing) == 1:
            (other,) = [e for e in roots if e is not connection.engine]
            kill(fleet, roots[other])

    for engine in roots:
        event.listen(engine, "commit", kill_the_second)
    try:
        with pytest.raises(PartialCommitError) as caught:
            session.commit()
    finally:
        for engine in roots:
            event.remove(engine, "commit", kill_the_second)
        session.close()
    error = caught.value
    assert {*error.committed, error.failed} == {"server1", "server2"}
    assert error.unknown
    # The error agrees with the rows of the servers.
    homes = {"server1": 1, "server2": 2}
    (done,) = error.committed
    assert counted(cluster, homes[done]) == before[homes[done]] + 1
    assert counted(cluster, homes[error.failed]) == before[homes[error.failed]]


def test_a_lost_reader_is_an_ordinary_error(
    cluster: Cluster, fleet: ServerFleet[Any]
) -> None:
    with cluster.session() as session:
        connection = session.connection({"shard_id": 1})
        connection.execute(text("SELECT 1"))
        kill(fleet, connection)
        with pytest.raises(OperationalError):
            session.execute(text("SELECT 1"), bind_arguments={"shard_id": 1})
    # The pool gives out a new one.
    assert counted(cluster, 1) >= 0


@pytest.fixture
def note(cluster: Cluster) -> int:
    with cluster.begin() as session:
        parent = pin("parent", 3)
        session.add(parent)
        session.flush()
        made = Note(pin_id=parent.id, text="counter", n=0)
        session.add(made)
        session.flush()
        return int(made.id)


@pytest.mark.parametrize("locking", [True, False])
def test_twenty_racing_writers(cluster: Cluster, note: int, locking: bool) -> None:
    start = threading.Barrier(20)

    def count(session: Any) -> None:
        found = session.get(Note, note, with_for_update=locking or None)
        found.n += 1

    def race() -> None:
        start.wait(60)
        for _ in range(3):
            cluster.run(count, attempts=500, timeout=120)

    with ThreadPoolExecutor(20) as executor:
        for done in [executor.submit(race) for _ in range(20)]:
            done.result(150)
    with cluster.session() as session:
        assert session.get_one(Note, note).n == 60


def test_the_victim_of_a_deadlock_is_repeated(cluster: Cluster) -> None:
    with cluster.begin() as session:
        pins = [pin("first", 2), pin("second", 2)]
        session.add_all(pins)
        session.flush()
        ids = [p.id for p in pins]
    met = threading.Barrier(2)
    attempts: list[str] = []

    def lock(session: Any, name: str, order: list[int]) -> None:
        attempts.append(name)
        session.get(Pin, order[0], with_for_update=True).n = 1
        session.flush()
        if attempts.count(name) == 1:
            met.wait(30)
        session.get(Pin, order[1], with_for_update=True).n = 1

    with ThreadPoolExecutor(2) as executor:
        runs = [
            executor.submit(cluster.run, lock, name, order)
            for name, order in (("a", ids), ("b", ids[::-1]))
        ]
        for run in runs:
            run.result(60)
    assert len(attempts) == 3


def test_giving_up(cluster: Cluster, note: int) -> None:
    with cluster.session() as holder:
        holder.get(Note, note, with_for_update=True)

        def wait(session: Any) -> None:
            session.connection({"shard_id": 3}).execute(
                text("SET SESSION innodb_lock_wait_timeout = 1")
            )
            session.get(Note, note, with_for_update=True)

        with pytest.raises(RetriesExhaustedError) as caught:
            cluster.run(wait, attempts=2)
    assert caught.value.attempts == 2
    assert isinstance(caught.value.__cause__, OperationalError)
