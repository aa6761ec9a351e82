"""Limits of scatter(), and servers that fail in the middle of it."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event, func, select, text, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_shard import Cluster, ObjectMixin, scatter, scatter_errors
from sqla_shard.exc import (
    ScatterDisabledError,
    ScatterFailedError,
    ScatterLimitError,
    ScatterTimeoutError,
    ServerUnreachableError,
    UnsupportedStatementError,
)
from sqla_shard.testing.server_fleet import ServerFleet
from tests.servers.faults import busy, locked, SERVERS, SHARDS, TIMEOUT, until_waiting
from tests.servers.kinds import own_fleet
from tests.servers.processes import running, started_since

pytestmark = pytest.mark.live


class Base(DeclarativeBase):
    pass


class Pin(ObjectMixin, Base, type_id=1):
    __tablename__ = "pins"

    n: Mapped[int] = mapped_column()


#: All pins, in their order.
PINS = select(Pin).order_by(Pin.n.desc())


fleet = own_fleet(SERVERS, SHARDS)


@pytest.fixture(scope="module")
def ids(fleet: ServerFleet[Any]) -> list[int]:
    found = []
    with opened(fleet) as cluster:
        cluster.create_all(Base.metadata)
        for shard_id in range(SHARDS):
            with cluster.begin(shard_id=shard_id) as session:
                pin = Pin(n=shard_id)
                session.add(pin)
                session.flush()
                found.append(pin.id)
    return found


def opened(fleet: ServerFleet[Any], **options: Any) -> Cluster:
    engine_options = options.pop("engine_options", {})
    return Cluster.from_topology(
        fleet.topology_mapping(),
        environ=fleet.environ,
        engine_options={"connect_args": {"connect_timeout": 3}, **engine_options},
        **options,
    )


@pytest.fixture
def cluster(fleet: ServerFleet[Any], ids: list[int]) -> Iterator[Cluster]:
    before = running()
    with opened(fleet) as cluster:
        yield cluster
        assert busy(cluster) == 0
        assert cluster.close()
    assert started_since(before) == []


@contextmanager
def stopped(server: Any) -> Iterator[None]:
    server.kill()
    try:
        yield
    finally:
        server.start()


@contextmanager
def paused(server: Any) -> Iterator[None]:
    """Let a server take connections and answer nothing."""
    server.pause()
    try:
        yield
    finally:
        server.resume()


def shards_of(cluster: Cluster, number: int) -> set[int]:
    (keyspace,) = cluster.topology.keyspaces.values()
    return {i for r in keyspace.servers[number].shards for i in r}


def all_work(cluster: Cluster) -> None:
    """Every connection of the pools can be used."""
    for _ in range(2):
        with cluster.session() as session:
            found = session.scalars(PINS.options(scatter())).all()
            assert [pin.n for pin in found] == list(range(SHARDS))[::-1]


def test_limits_of_shards_and_rows(cluster: Cluster, ids: list[int]) -> None:
    with cluster.session() as session:
        with pytest.raises(ScatterLimitError) as caught:
            session.scalars(PINS.options(scatter(max_shards=11)))
        error = caught.value
        assert (error.limit, error.allowed, error.found) == ("max_shards", 11, 12)
        named = PINS.where(Pin.id.in_(ids[:5])).options(scatter(max_shards=5))
        assert len(session.scalars(named).all()) == 5
        for made in (
            PINS,
            select(Pin.n),
            select(Pin.n, func.count()).group_by(Pin.n),
            PINS.with_for_update(),
        ):
            with pytest.raises(ScatterLimitError) as caught:
                session.execute(made.options(scatter(max_rows=11)))
            assert caught.value.limit == "max_rows"
            enough = made.options(scatter(max_rows=12))
            assert len(session.execute(enough).all()) == 12
        few = PINS.limit(3).options(scatter(max_rows=3))
        assert [p.n for p in session.scalars(few)] == [11, 10, 9]
        count = select(func.count(Pin.id)).options(scatter(max_rows=1))
        assert session.scalar(count) == SHARDS


def test_no_more_rows_are_read_than_allowed(cluster: Cluster) -> None:
    reports: list[Any] = []
    event.listen(cluster, "after_statement", lambda c, r: reports.append(r))
    with cluster.session() as session, pytest.raises(ScatterLimitError):
        session.execute(select(Pin.n).options(scatter(max_rows=2)))
    # Of a server that answers after the error none are read.
    rows = [server.rows for server in reports[-1].servers]
    assert set(rows) <= {0, 3}
    assert 3 in rows
    assert isinstance(reports[-1].error, ScatterLimitError)


def test_no_more_rows_of_one_shard(fleet: ServerFleet[Any]) -> None:
    """There is no UNION to put the limit around."""
    reports: list[Any] = []
    with opened(fleet) as cluster:
        event.listen(cluster, "after_statement", lambda c, r: reports.append(r))
        with cluster.begin(shard_id=5) as session:
            session.add_all([Pin(n=1000) for _ in range(50)])
            session.flush()
            ids = session.scalars(
                select(Pin.id).where(Pin.n == 1000).options(scatter())
            ).all()
            for made in (select(Pin.n), select(Pin.n).order_by(Pin.n)):
                named = made.where(Pin.id.in_(ids))
                with pytest.raises(ScatterLimitError):
                    session.execute(named.options(scatter(max_rows=4)))
                assert [s.rows for s in reports[-1].servers] == [5]
                few = named.limit(3).options(scatter(max_rows=4))
                assert len(session.execute(few).all()) == 3
            session.rollback()


def test_the_switch(fleet: ServerFleet[Any], ids: list[int]) -> None:
    with opened(fleet, scatters=False) as cluster:
        with cluster.session() as session:
            with pytest.raises(ScatterDisabledError, match="scatters = True"):
                session.scalars(PINS.options(scatter()))
            named = PINS.where(Pin.id.in_(ids)).options(scatter())
            assert len(session.scalars(named).all()) == SHARDS
        refusal = cluster.explain(PINS.options(scatter())).refusal
        assert isinstance(refusal, ScatterDisabledError)
        cluster.scatters = True
        all_work(cluster)


def test_limits_are_for_reads(cluster: Cluster) -> None:
    made = update(Pin).values(n=Pin.n)
    with cluster.session(cross_shard="unordered") as session:
        for limits in (
            scatter(timeout=1),
            scatter(max_rows=1),
            scatter(on_error="partial"),
        ):
            with pytest.raises(UnsupportedStatementError):
                session.execute(made.options(limits))
        result: Any = session.execute(made.options(scatter(max_shards=12)))
        assert result.rowcount == SHARDS


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_shards": 0},
        {"max_rows": "9"},
        {"max_rows": True},
        {"timeout": 0},
        {"timeout": "1"},
        {"on_error": "ignore"},
    ],
    ids=repr,
)
def test_limits_that_make_no_sense(wrong: Any) -> None:
    (value,) = wrong.values()
    with pytest.raises(ValueError, match=repr(value)):
        scatter(**wrong)


@pytest.mark.parametrize("number", range(SERVERS))
def test_a_server_takes_too_long(
    cluster: Cluster, fleet: ServerFleet[Any], number: int
) -> None:
    """The server ends the statement; its connection goes on."""
    all_work(cluster)
    start = time.monotonic()
    with locked(fleet.servers[number]), cluster.session() as session:
        with pytest.raises(ScatterTimeoutError) as caught:
            session.scalars(PINS.options(scatter(timeout=1.0)))
        assert caught.value.servers == (f"server{number + 1}",)
        partial = PINS.options(scatter(timeout=1.0, on_error="partial"))
        result = session.scalars(partial)
        errors = scatter_errors(result)
        there = {pin.n for pin in result}
    assert time.monotonic() - start < 20
    missing = shards_of(cluster, number)
    assert set(errors) == missing
    assert all(isinstance(e, ScatterTimeoutError) for e in errors.values())
    assert there == set(range(SHARDS)) - missing
    all_work(cluster)


@pytest.mark.parametrize("number", range(SERVERS))
def test_a_server_hangs(cluster: Cluster, fleet: ServerFleet[Any], number: int) -> None:
    """It answers nothing at all: its connection is cut."""
    all_work(cluster)
    start = time.monotonic()
    with paused(fleet.servers[number]):
        session = cluster.session()
        with pytest.raises(ScatterTimeoutError) as caught:
            session.scalars(PINS.options(scatter(timeout=1.0)))
        assert caught.value.servers == (f"server{number + 1}",)
        session.close()
        # The pool has no connection to it any more: a new one hangs too.
        with cluster.session() as session:
            partial = PINS.options(scatter(timeout=1.0, on_error="partial"))
            result = session.scalars(partial)
            assert set(scatter_errors(result)) == shards_of(cluster, number)
            assert len(result.all()) == SHARDS - len(shards_of(cluster, number))
    assert time.monotonic() - start < 20
    all_work(cluster)


@pytest.mark.parametrize("number", range(SERVERS))
def test_a_server_is_down(
    cluster: Cluster, fleet: ServerFleet[Any], ids: list[int], number: int
) -> None:
    all_work(cluster)
    name = f"server{number + 1}"
    with stopped(fleet.servers[number]):
        for _ in range(3):  # with connections that have died, then without
            session = cluster.session()
            with session, pytest.raises(ServerUnreachableError) as caught:
                session.scalars(PINS.options(scatter())).all()
            assert name in caught.value.server
            assert isinstance(caught.value, OperationalError)
            assert caught.value.orig is not None
        with cluster.session() as session:
            partial = PINS.options(scatter(on_error="partial"))
            result = session.execute(partial)
            errors = scatter_errors(result)
            assert len(result.all()) == SHARDS - len(errors)
            assert set(errors) == shards_of(cluster, number)
            for error in errors.values():
                assert isinstance(error, ServerUnreachableError)
            there = min(shards_of(cluster, number))
            with pytest.raises(ServerUnreachableError, match=name):
                session.get(Pin, ids[there])
    all_work(cluster)


def test_partial_over_connections_that_died(
    ids: list[int], fleet: ServerFleet[Any]
) -> None:
    # With a deferred ROLLBACK a connection may be replaced before its use.
    with opened(fleet, deferred_rollback=False) as cluster:
        all_work(cluster)
        fleet.servers[0].restart()
        with cluster.session() as session:
            result = session.scalars(PINS.options(scatter(on_error="partial")))
            errors = scatter_errors(result)
            assert len(result.all()) == SHARDS - len(errors)
            assert set(errors) == shards_of(cluster, 0)
        all_work(cluster)


def test_all_servers_fail(cluster: Cluster, fleet: ServerFleet[Any]) -> None:
    made = PINS.options(scatter(on_error="partial"))
    with cluster.session() as session:
        broken = made.where(func.no_such_function(Pin.n) == 1)
        with pytest.raises(ScatterFailedError) as caught:
            session.scalars(broken)
        assert set(caught.value.errors) == set(range(SHARDS))
        # Its number alone: the text of an error may have values.
        assert re.search(r"OperationalError: (1305|1046)", str(caught.value))
    all_work(cluster)
    one, two, three = fleet.servers
    with stopped(one), stopped(two), stopped(three):
        for _ in range(2):
            session = cluster.session()
            with session, pytest.raises(ScatterFailedError) as caught:
                session.scalars(made)
            assert set(caught.value.errors) == set(range(SHARDS))
    all_work(cluster)


def test_a_missing_table_on_one_server(
    cluster: Cluster, fleet: ServerFleet[Any]
) -> None:
    """A shard that is not migrated yet fails with all of its server."""
    server = fleet.servers[1]
    (shard, *_) = sorted(shards_of(cluster, 1))
    database = f"db{shard:05d}"
    server.root_execute(f"RENAME TABLE {database}.pins TO {database}.old")
    try:
        with cluster.session() as session:
            with pytest.raises(Exception, match="doesn't exist") as caught:
                session.scalars(PINS.options(scatter()))
            assert not isinstance(caught.value, ServerUnreachableError)
            partial = PINS.options(scatter(on_error="partial"))
            result = session.scalars(partial)
            assert set(scatter_errors(result)) == shards_of(cluster, 1)
            assert len(result.all()) == SHARDS - len(shards_of(cluster, 1))
    finally:
        server.root_execute(f"RENAME TABLE {database}.old TO {database}.pins")
    all_work(cluster)


def test_killed_in_mid_scatter(cluster: Cluster, fleet: ServerFleet[Any]) -> None:
    """The process of a server dies while it is asked."""
    all_work(cluster)
    server = fleet.servers[2]
    failed: list[Exception] = []

    def read() -> None:
        with cluster.session() as session:
            try:
                session.scalars(PINS.options(scatter()))
            except ServerUnreachableError as error:
                failed.append(error)

    lock = server.root_connect()
    with lock.cursor() as cursor:
        names = [f"db{i:05d}.pins WRITE" for i in shards_of(cluster, 2)]
        cursor.execute(f"LOCK TABLES {', '.join(names)}")
    reader = threading.Thread(target=read)
    reader.start()
    until_waiting(server)
    server.kill()
    reader.join(TIMEOUT)
    assert not reader.is_alive()
    (error,) = failed
    assert "server3" in str(error)
    server.start()
    all_work(cluster)


def test_a_transaction_goes_on_after_a_partial_answer(
    cluster: Cluster, fleet: ServerFleet[Any], ids: list[int]
) -> None:
    """Rows that were written before it are committed."""
    here = min(shards_of(cluster, 0))
    with cluster.begin() as session:
        session.get(Pin, ids[here]).n = 100
        session.flush()
        with locked(fleet.servers[1]):
            result = session.scalars(
                PINS.options(scatter(timeout=1.0, on_error="partial"))
            )
            assert scatter_errors(result)
            assert result.first().n == 100
    with cluster.begin() as session:
        assert session.get(Pin, ids[here]).n == 100
        session.get(Pin, ids[here]).n = here
    all_work(cluster)


def test_errors_of_other_results(cluster: Cluster) -> None:
    with cluster.session() as session:
        result = session.scalars(PINS.options(scatter()))
        assert scatter_errors(result) == {}
        assert len(result.all()) == SHARDS
        made = select(Pin.__table__.c.n).options(scatter())
        assert scatter_errors(session.execute(made)) == {}
        engine = session.connection({"shard_id": 0}).engine
        with engine.connect() as connection:
            other = connection.execute(text("SELECT 1"))
            with pytest.raises(ValueError, match="not the result"):
                scatter_errors(other)


def test_many_threads_with_timeouts(cluster: Cluster) -> None:
    """No thread watches the clock: their sockets are polled."""
    before = running()
    all_work(cluster)
    wrong: list[BaseException] = []

    def read() -> None:
        try:
            for _ in range(20):
                with cluster.session() as session:
                    made = PINS.options(scatter(timeout=20))
                    assert len(session.scalars(made).all()) == SHARDS
        except BaseException as error:
            wrong.append(error)

    readers = [threading.Thread(target=read) for _ in range(6)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(TIMEOUT * 2)
    assert wrong == []
    assert "sqla-shard-deadlines" not in started_since(before)


def test_closing_with_savepoints(cluster: Cluster, ids: list[int]) -> None:
    """Each connection is killed once, whatever runs on it."""
    for _ in range(5):
        with cluster.session() as session:
            assert len(session.get_many(Pin, ids)) == SHARDS
            with session.begin_nested():
                session.scalars(PINS.options(scatter())).all()
                nested = session.begin_nested()
                session.scalars(PINS.options(scatter())).all()
                assert nested.is_active
        assert busy(cluster) == 0
    all_work(cluster)
