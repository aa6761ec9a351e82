"""Differences with mysqlclient: faults, threads, and refused statements."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import delete, select, text, update
from sqlalchemy.exc import DBAPIError, OperationalError

from sqla_shard import Cluster, scatter
from sqla_shard.exc import ScatterTimeoutError, ServerUnreachableError
from sqla_shard.testing import Proxy
from sqla_shard.testing.server_fleet import ServerFleet
from tests.servers.faults import (
    Base,
    busy,
    locked,
    opened,
    own_ids,
    Pin,
    SERVERS,
    SHARDS,
)
from tests.servers.kinds import own_fleet

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("mysqlclient_installed")]

fleet = own_fleet(SERVERS, SHARDS)
ids = own_ids()
ALL = select(Pin)
FIRST = {"bind_arguments": {"shard_id": 0}}


@pytest.fixture
def cluster(fleet: ServerFleet[Any], ids: list[int]) -> Iterator[Cluster]:
    with opened(fleet, driver="mysqldb", pool_size=1) as cluster:
        yield cluster
        assert busy(cluster) == 0


def through(fleet: ServerFleet[Any], proxies: list[Proxy], **arguments: Any) -> Cluster:
    return Cluster.from_topology(
        fleet.topology_mapping(proxies=proxies),
        driver="mysqldb",
        environ=fleet.environ,
        engine_options={"connect_args": arguments},
    )


@pytest.fixture
def proxies(fleet: ServerFleet[Any]) -> Iterator[list[Proxy]]:
    made = [Proxy(s.host, s.port) for s in fleet.servers]
    for proxy in made:
        proxy.start()
    yield made
    for proxy in made:
        proxy.stop()


def test_a_server_that_waits_is_cut_at_the_timeout(
    cluster: Cluster, fleet: ServerFleet[Any], ids: list[int]
) -> None:
    with locked(fleet.servers[1]), cluster.session() as session:
        with pytest.raises(ScatterTimeoutError) as caught:
            session.scalars(ALL.options(scatter(timeout=1))).all()
        assert caught.value.servers == ("server2",)
    with cluster.session() as session:
        assert None not in session.get_many(Pin, ids)


@pytest.mark.parametrize("polled", [True, False])
def test_the_response_of_a_server_that_hangs_has_an_end(
    fleet: ServerFleet[Any], proxies: list[Proxy], ids: list[int], polled: bool
) -> None:
    with through(fleet, proxies, read_timeout=1) as cluster:
        with cluster.session() as session:
            assert None not in session.get_many(Pin, ids)
            session.expunge_all()
            proxies[2].hang()
            start = time.monotonic()
            wanted = ids if polled else ids[-1:]
            with pytest.raises(OperationalError) as caught:
                session.get_many(Pin, wanted)
            assert caught.value.connection_invalidated
            assert time.monotonic() - start < 20
        proxies[2].restore()
        with cluster.session() as session:
            assert None not in session.get_many(Pin, ids)


def test_connecting_to_a_server_that_hangs_has_an_end(
    fleet: ServerFleet[Any], proxies: list[Proxy], ids: list[int]
) -> None:
    with through(fleet, proxies, connect_timeout=1) as cluster:
        proxies[0].hang()
        start = time.monotonic()
        with cluster.session() as session, pytest.raises(ServerUnreachableError):
            session.get(Pin, ids[0])
        assert time.monotonic() - start < 20


def test_a_host_that_is_called_localhost_is_connected_by_tcp(
    fleet: ServerFleet[Any], ids: list[int]
) -> None:
    document = fleet.topology_mapping()
    for server in document["keyspaces"]["objects"]["servers"]:
        server["primary"] = server["primary"].replace("127.0.0.1", "localhost")
    assert "localhost" in str(document)
    with (
        Cluster.from_topology(
            document, driver="mysqldb", environ=fleet.environ
        ) as cluster,
        cluster.session() as session,
    ):
        assert None not in session.get_many(Pin, ids)


def test_changes_on_all_servers_at_once(cluster: Cluster) -> None:
    with cluster.begin(cross_shard="unordered") as session:
        pins = [Pin(body="old") for _ in range(SHARDS)]
        for shard, pin in enumerate(pins):
            session.add(pin)
            session.flush()
            assert pin.id is not None, shard
        mine = [pin.id for pin in pins]
    with cluster.begin(cross_shard="unordered") as session:
        for statement in (
            update(Pin).where(Pin.id.in_(mine)).values(body="new"),
            delete(Pin).where(Pin.id.in_(mine)),
        ):
            assert session.execute(statement).rowcount == len(mine)


def test_a_transaction_of_a_cursor_ends_with_its_checkout(
    cluster: Cluster, fleet: ServerFleet[Any]
) -> None:
    with cluster.session() as session:
        engine = session.connection({"shard_id": 0}).engine
    with engine.connect() as connection:
        connection.exec_driver_sql("SELECT 1")
        connection.rollback()
        with connection.connection.cursor() as cursor:
            cursor.execute("UPDATE db00000.pins SET body = 'never'")
    with cluster.session() as session:
        bodies = session.scalars(text("SELECT body FROM pins"), **FIRST)
        assert "never" not in bodies.all()


def test_results_of_a_procedure_are_read_to_their_end(
    cluster: Cluster, fleet: ServerFleet[Any]
) -> None:
    fleet.servers[0].root_execute("DROP PROCEDURE IF EXISTS db00000.two")
    fleet.servers[0].root_execute(
        "CREATE PROCEDURE db00000.two() BEGIN SELECT 1; SELECT 2; END"
    )
    with cluster.session() as session:
        for _ in range(2):
            found = session.execute(text("CALL two()"), **FIRST)
            assert found.scalars().all() == [1]
            assert session.scalar(text("SELECT 3"), **FIRST) == 3


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1; SELECT 2",
        "LOAD DATA LOCAL INFILE '/etc/hostname' INTO TABLE pins (body)",
    ],
)
def test_neither_two_statements_nor_files_are_sent(
    cluster: Cluster, statement: str
) -> None:
    with cluster.session() as session, pytest.raises(DBAPIError):
        session.execute(text(statement), **FIRST)


def test_tables_of_another_driver(cluster: Cluster) -> None:
    cluster.create_all(Base.metadata)
    assert cluster.health().is_good
