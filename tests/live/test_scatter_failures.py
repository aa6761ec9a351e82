"""Interrupts, hanging servers and scarce connections in a scattered read."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import event, select
from sqlalchemy.exc import OperationalError

from sqla_shard import Cluster
from sqla_shard.exc import ScatterUnsupportedError
from sqla_shard.testing import StatementLog
from sqla_shard.testing.server_fleet import ServerFleet
from tests.servers.faults import (
    busy,
    locked,
    opened,
    own_ids,
    Pin,
    SERVERS,
    SHARDS,
    TIMEOUT,
    until_waiting,
)
from tests.servers.interrupting import interruptible
from tests.servers.kinds import own_fleet

pytestmark = pytest.mark.live

fleet = own_fleet(SERVERS, SHARDS)
ids = own_ids()


@pytest.fixture
def cluster(fleet: ServerFleet[Any], ids: list[int]) -> Iterator[Cluster]:
    with opened(fleet) as cluster:
        yield cluster
        assert cluster.close()


@pytest.mark.parametrize("number", range(SERVERS))
def test_ctrl_c(
    cluster: Cluster, fleet: ServerFleet[Any], ids: list[int], number: int
) -> None:
    """No connection is used by two threads; the lock is not waited for."""
    server = fleet.servers[number]
    with locked(server), interruptible() as interrupt:
        interrupter = threading.Thread(
            target=lambda: (until_waiting(server), interrupt())
        )
        interrupter.start()
        with cluster.session() as session, pytest.raises(KeyboardInterrupt):
            session.scalars(select(Pin).where(Pin.id.in_(ids))).all()
        interrupter.join(TIMEOUT)
        assert busy(cluster) == 0
    for _ in range(3):
        with cluster.session() as session:
            assert None not in session.get_many(Pin, ids)
    assert busy(cluster) == 0


def test_ctrl_c_when_a_server_has_just_answered(
    fleet: ServerFleet[Any], ids: list[int]
) -> None:
    """It is not replaced by the error of rolling back a cut connection."""
    with opened(fleet, polling=False) as cluster, interruptible() as interrupt:
        _interrupted_at_the_end(cluster, ids, interrupt)


def _interrupted_at_the_end(
    cluster: Cluster, ids: list[int], interrupt: Callable[[], None]
) -> None:
    main = threading.main_thread()
    last = cluster.places.place(cluster.topology.sole("objects"), SHARDS - 1)

    def answered(connection: Any, *rest: Any) -> None:
        if threading.current_thread() is main:
            # It was the first to come to this server: again, then.
            return
        wire = connection.connection.dbapi_connection
        interrupt()
        # Nothing more is to come: this returns when it is cut.
        assert wire._sock.recv(1, socket.MSG_PEEK) == b""

    def read_on() -> None:
        for _ in range(100):
            with cluster.session() as session:
                session.get_many(Pin, ids)

    event.listen(last.engine, "after_cursor_execute", answered)
    try:
        with pytest.raises(KeyboardInterrupt):
            read_on()
    finally:
        event.remove(last.engine, "after_cursor_execute", answered)
    assert busy(cluster) == 0
    with cluster.session() as session:
        assert None not in session.get_many(Pin, ids)


@pytest.mark.parametrize("number", range(SERVERS))
def test_a_server_that_does_not_answer(
    fleet: ServerFleet[Any], ids: list[int], number: int
) -> None:
    # Enough for the servers that do answer, on a busy machine.
    arguments = {"read_timeout": 3, "connect_timeout": 3}
    with opened(fleet, connect_args=arguments) as cluster:
        session = cluster.session()
        assert None not in session.get_many(Pin, ids)
        session.expunge_all()
        fleet.servers[number].pause()
        try:
            with pytest.raises(OperationalError) as raised:
                session.get_many(Pin, ids)
            assert raised.value.connection_invalidated
            # The statement in the error is that of the server.
            first = ids[number * SHARDS // SERVERS] >> 46
            assert f"FROM db{first:05d}.pins" in str(raised.value.statement)
            session.close()
            assert busy(cluster) == 0
        finally:
            fleet.servers[number].resume()
        with cluster.session() as session:
            assert None not in session.get_many(Pin, ids)


def test_closing_while_a_server_does_not_answer(
    fleet: ServerFleet[Any], ids: list[int]
) -> None:
    """close() takes no longer than its limit."""
    cluster = opened(fleet)
    found: list[Any] = []

    def read() -> None:
        with cluster.session() as session:
            found.extend(session.get_many(Pin, ids))

    reader = threading.Thread(target=read)
    with locked(fleet.servers[1]):
        reader.start()
        until_waiting(fleet.servers[1])
        assert not cluster.close(0.1)
        assert not found
    reader.join(TIMEOUT)
    assert len(found) == len(ids)
    assert busy(cluster) == 0


def test_one_connection_to_each_server(fleet: ServerFleet[Any], ids: list[int]) -> None:
    """Sessions take them in one order, whatever shards they ask for."""
    options = {"pool_size": 1, "max_overflow": 0, "pool_timeout": TIMEOUT}
    problems: list[BaseException] = []
    with opened(fleet, **options) as cluster:

        def read(wanted: list[int]) -> None:
            try:
                for _ in range(30):
                    with cluster.session() as session:
                        statement = select(Pin).where(Pin.id.in_(wanted))
                        found = session.scalars(statement).all()
                        assert len(found) == len(wanted)
            except (AssertionError, OperationalError, TimeoutError) as error:
                problems.append(error)

        threads = [
            threading.Thread(target=read, args=(wanted,))
            for wanted in (ids, ids[::-1], ids[:6], ids[:5:-1], ids[::5])
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT)
        assert not any(thread.is_alive() for thread in threads)
        assert not problems
        assert busy(cluster) == 0


def test_long_values_fit_the_packets(cluster: Cluster, ids: list[int]) -> None:
    """Each branch repeats them; together they would be 24 MB."""
    statement = select(Pin.id).where(Pin.id.in_(ids), Pin.body != "x" * 6_000_000)
    with cluster.session() as session, StatementLog(*cluster.places.engines) as log:
        assert len(session.execute(statement).all()) == len(ids)
        assert len(log.executions) == SHARDS


@pytest.mark.parametrize("hint", ["-- why", "limit 0", "LIMIT 1"])
def test_hints_are_text_that_is_not_parsed(
    cluster: Cluster, ids: list[int], hint: str
) -> None:
    statement = select(Pin.id).where(Pin.id.in_(ids))
    with cluster.session() as session:
        with pytest.raises(ScatterUnsupportedError, match="a hint in SQL"):
            session.scalars(statement.with_statement_hint(hint))
        one = select(Pin.id).where(Pin.id == ids[0])
        found = session.scalars(one.with_statement_hint(hint)).all()
    assert found == ([] if hint == "limit 0" else [ids[0]])
