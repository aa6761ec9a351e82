"""Timeouts for a server that accepts connections and does not answer."""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from sqla_shard import Cluster
from sqla_shard.testing.server_fleet import ServerFleet
from tests.servers.faults import Base, locked, opened, SERVERS, SHARDS
from tests.servers.kinds import own_fleet

pytestmark = pytest.mark.live

fleet = own_fleet(SERVERS, SHARDS)

_SESSION = text(
    "SELECT @@session.innodb_lock_wait_timeout, @@session.lock_wait_timeout"
)


@pytest.fixture(scope="module", autouse=True)
def tables(fleet: ServerFleet[Any]) -> None:
    with opened(fleet) as cluster:
        cluster.create_all(Base.metadata)


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.WARNING, logger="sqla_shard")
    return lambda: [
        record.getMessage()
        for record in caplog.records
        if getattr(record, "action", "") == "open engine"
    ]


def with_option(fleet: ServerFleet[Any], option: str) -> dict[str, Any]:
    document = fleet.topology_mapping()
    for server in document["keyspaces"]["objects"]["servers"]:
        server["primary"] += f"?{option}"
    return document


def limits_of(cluster: Cluster) -> tuple[Any, ...]:
    with cluster.session() as session:
        connection = session.connection({"shard_id": 0})
        wire: Any = connection.connection.dbapi_connection
        return (
            wire.connect_timeout,
            wire._read_timeout,
            wire._write_timeout,
            *connection.execute(_SESSION).one(),
        )


def test_by_default(fleet: ServerFleet[Any], warned: Any) -> None:
    with opened(fleet) as cluster:
        assert limits_of(cluster) == (10, 30, 30, 24, 24)
    assert warned() == []


def test_of_an_event_loop_by_default(fleet: ServerFleet[Any], warned: Any) -> None:
    async def found(cluster: Cluster) -> tuple[Any, ...]:
        async with cluster.async_session() as session:
            connection = await session.connection({"shard_id": 0})
            raw = await connection.get_raw_connection()
            row = (await connection.execute(_SESSION)).one()
            wire: Any = raw.driver_connection
            return wire._connect_timeout, wire._read_timeout, *row

    with opened(fleet) as cluster:
        assert asyncio.run(found(cluster)) == (10, 30, 24, 24)
    assert warned() == []


def test_a_url_says_others(fleet: ServerFleet[Any]) -> None:
    document = with_option(fleet, "read_timeout=7&connect_timeout=3")
    with Cluster.from_topology(document, environ=fleet.environ) as cluster:
        assert limits_of(cluster) == (3, 7, 30, 5, 5)


def test_connect_args_say_others(fleet: ServerFleet[Any]) -> None:
    with opened(fleet, connect_args={"read_timeout": 100}) as cluster:
        # No lock is waited for longer than the server says: 50 seconds.
        assert limits_of(cluster) == (10, 100, 30, 50, 80)


def test_switched_off_it_is_logged_once_for_each_server(
    fleet: ServerFleet[Any], warned: Any
) -> None:
    server = fleet.servers[0]
    with opened(fleet, connect_args={"read_timeout": None}) as cluster:
        found = limits_of(cluster)
        assert found[1] is None
        assert found[3] == 50
        for _ in range(2):
            with cluster.session() as session:
                session.connection({"shard_id": 0})
            engine = next(iter(cluster.places.engines))
            with cluster.places.engines.visit(engine):
                pass
    (message,) = warned()
    assert message == (
        f"{server.host}:{server.port} has no read_timeout (driver pymysql): "
        "if the server hangs, callers wait without limit"
    )


def test_a_lock_is_not_taken_for_a_server_that_hangs(fleet: ServerFleet[Any]) -> None:
    with (
        opened(fleet, connect_args={"read_timeout": 2}) as cluster,
        cluster.session() as session,
        locked(fleet.servers[0]),
    ):
        began = monotonic()
        with pytest.raises(OperationalError, match="Lock wait timeout") as no:
            session.execute(
                text("SELECT COUNT(*) FROM pins"), bind_arguments={"shard_id": 0}
            )
        assert monotonic() - began < 2 + 20
        assert not no.value.connection_invalidated
