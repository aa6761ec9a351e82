"""Several servers that one thread waits for, with and without TLS."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, func, select, text
from sqlalchemy.exc import OperationalError

from sqla_shard import Cluster, scatter
from sqla_shard.dialects.polling import PolledConnection, PolledSocket, PolledSSLSocket
from sqla_shard.testing import Proxy
from sqla_shard.testing.server_fleet import ServerFleet
from tests.servers.faults import Base, busy, opened, Pin, SERVERS, SHARDS
from tests.servers.following import until
from tests.servers.greenlets import others, thread_greenlets
from tests.servers.kinds import Kind
from tests.servers.processes import running, started_since
from tests.test_docs import certificates  # noqa: F401  # a fixture

pytestmark = pytest.mark.live

#: More than the buffers of a socket can hold, in both directions.
LARGE = 6_000_000


@pytest.fixture(scope="module")
def fleet(
    server_kind: Kind,
    certificates: Path,  # noqa: F811  # the fixture
) -> Iterator[ServerFleet[Any]]:
    files = {"cert": "server.pem", "key": "server.key"}
    options = [
        *(f"--ssl-{key}={certificates / name}" for key, name in files.items()),
        "--max-allowed-packet=64M",
    ]
    with server_kind.fleet(
        servers=SERVERS, shards=SHARDS, fast=True, options=options
    ) as made:
        yield made


@pytest.fixture(params=["plain", "tls", "mysqlclient", "mysqlclient-tls"])
def cluster(
    request: pytest.FixtureRequest,
    fleet: ServerFleet[Any],
    certificates: Path,  # noqa: F811  # the fixture
) -> Iterator[Cluster]:
    arguments: dict[str, Any] = {}
    if request.param.endswith("tls"):
        ca = str(certificates / "ca.pem")
        arguments["ssl"] = {"ca": ca, "check_hostname": False}
    driver = "pymysql"
    if request.param.startswith("mysqlclient"):
        request.getfixturevalue("mysqlclient_installed")
        driver = "mysqldb"
    else:
        arguments["max_allowed_packet"] = 1 << 26
    if request.param == "plain":
        arguments["ssl_disabled"] = True
    with opened(fleet, driver=driver, connect_args=arguments) as made:
        made.create_all(Base.metadata)
        check_wires(made, request.param)
        yield made
        assert busy(made) == 0


def check_wires(cluster: Cluster, kind: str) -> None:
    """Check that the connections are polled, and encrypted where asked."""
    sockets = {"plain": PolledSocket, "tls": PolledSSLSocket}
    for wire in wires(cluster):
        assert isinstance(wire, PolledConnection)
        if kind in sockets:
            assert type(vars(wire)["_sock"]) is sockets[kind]
        with wire.cursor() as cursor:  # type: ignore[attr-defined]
            cursor.execute("SHOW STATUS LIKE 'Ssl_cipher'")
            ((_, cipher),) = cursor.fetchall()
        assert bool(cipher) is kind.endswith("tls")


def wires(cluster: Cluster) -> list[Any]:
    """Return a connection of the driver to each server."""
    with cluster.session() as session:
        return [
            session.connection({"shard_id": shard_id}).connection.dbapi_connection
            for shard_id in range(0, SHARDS, SHARDS // SERVERS)
        ]


def add(cluster: Cluster, body: str) -> list[int]:
    ids = []
    for shard_id in range(0, SHARDS, SHARDS // SERVERS):
        with cluster.begin(shard_id=shard_id) as session:
            pin = Pin(body=body)
            session.add(pin)
            session.flush()
            ids.append(pin.id)
    return ids


def test_no_thread_is_started(cluster: Cluster) -> None:
    ids = add(cluster, "it")
    before = running()
    with cluster.session() as session:
        assert None not in session.get_many(Pin, ids)
        found = select(Pin).options(scatter(timeout=60))
        assert {pin.id for pin in session.scalars(found)} >= set(ids)
    assert started_since(before) == []


def test_threads_that_poll_nothing_do_not_ask_for_a_greenlet(cluster: Cluster) -> None:
    """Or a child that is forked while one of them ends could hang."""
    ids = add(cluster, "it")
    with cluster.session() as session:
        # From now on statements of these engines may overlap.
        assert None not in session.get_many(Pin, ids)
    engines = cluster.places.engines
    before = thread_greenlets()

    def job(engine: Engine) -> list[Any]:
        # The thread connects, and ends a transaction, too.
        engine.dispose()
        with engines.visit(engine) as connection:
            assert connection.scalar(select(func.length("it"))) == 2
        return others(before)

    jobs = [partial(job, engine) for engine in engines]
    assert len(jobs) == SERVERS
    assert engines.in_parallel(jobs, "test") == [[]] * SERVERS


def test_large_statements_and_responses_do_not_block_each_other(
    cluster: Cluster,
) -> None:
    ids = add(cluster, "it")
    long = func.repeat(Pin.body, LARGE // 2)
    statement = select(Pin.id, long.label("long")).where(
        Pin.id.in_(ids), Pin.body != "x" * LARGE
    )
    with cluster.session() as session:
        rows = session.execute(statement).all()
    assert {row.id for row in rows} == set(ids)
    assert all(row.long == "it" * (LARGE // 2) for row in rows)


@pytest.mark.parametrize("number", range(SERVERS))
def test_a_lost_connection_leaves_the_others_in_order(
    cluster: Cluster, fleet: ServerFleet[Any], number: int
) -> None:
    ids = add(cluster, "it")
    with cluster.session() as session:
        assert None not in session.get_many(Pin, ids)
        session.expunge_all()
        used = session.connection(
            {"shard_id": number * (SHARDS // SERVERS)}
        ).connection.dbapi_connection
        lost = used.thread_id()  # type: ignore[attr-defined]  # the drivers'
        fleet.servers[number].root_execute(f"KILL {lost}")
        with pytest.raises(OperationalError) as raised:
            session.get_many(Pin, ids)
        assert raised.value.connection_invalidated
    with cluster.session() as session:
        found = session.get_many(Pin, ids)
        assert [pin.id for pin in found if pin is not None] == ids


# -- the response to ROLLBACK


def on_first(session: Any) -> Any:
    """Return the driver's connection to the first server."""
    return session.connection({"shard_id": 0}).connection.dbapi_connection


def test_a_session_that_has_read_ends_without_waiting(
    cluster: Cluster, fleet: ServerFleet[Any]
) -> None:
    ids = add(cluster, "it")
    for _ in range(3):
        with cluster.session() as session:
            assert session.get(Pin, ids[0]) is not None
            wire = on_first(session)
            assert not wire.pending
        assert wire.pending
    number = wire.thread_id()
    query = (
        "SELECT 1 FROM information_schema.innodb_trx "
        f"WHERE trx_mysql_thread_id = {number}"
    )
    assert until(lambda: not fleet.servers[0].root_execute(query))


@pytest.mark.parametrize("end", ["close", "rollback"])
def test_a_session_with_locks_waits_for_their_end(cluster: Cluster, end: str) -> None:
    ids = add(cluster, "it")

    def locking(session: Any) -> None:
        session.get(Pin, ids[0], with_for_update=True)

    def locking_text(session: Any) -> None:
        session.execute(
            text("select local_id from pins lock in share mode"),
            bind_arguments={"shard_id": 0},
        )

    def writing(session: Any) -> None:
        session.get(Pin, ids[0]).body = "never"
        session.flush()

    for work in (locking, locking_text, writing):
        with cluster.session() as session:
            work(session)
            wire = on_first(session)
            getattr(session, end)()
            assert not wire.pending, work
    with cluster.session() as session:
        session.get(Pin, ids[0])
        wire = on_first(session)
        getattr(session, end)()
        assert wire.pending


@pytest.mark.parametrize("driver", ["pymysql", "mysqldb"])
def test_a_connection_whose_response_does_not_come_is_not_given_out(
    request: pytest.FixtureRequest, fleet: ServerFleet[Any], driver: str
) -> None:
    if driver == "mysqldb":
        request.getfixturevalue("mysqlclient_installed")
    server = fleet.servers[0]
    with (
        Proxy(server.host, server.port) as proxy,
        Cluster.from_topology(
            fleet.topology_mapping(proxies=[proxy, *fleet.servers[1:]]),
            driver=driver,
            environ=fleet.environ,
            engine_options={"pool_size": 1, "max_overflow": 0},
        ) as cluster,
    ):
        cluster.create_all(Base.metadata)
        ids = add(cluster, "it")
        with cluster.session() as session:
            session.get(Pin, ids[0])
            wire = on_first(session)
            proxy.hang()
        assert wire.pending
        proxy.cut()
        proxy.restore()
        with cluster.session() as session:
            assert session.get(Pin, ids[0]) is not None
            assert on_first(session) is not wire


def test_every_session_waits_if_the_application_says_so(
    fleet: ServerFleet[Any],
) -> None:
    with opened(fleet, deferred_rollback=False) as cluster:
        cluster.create_all(Base.metadata)
        ids = add(cluster, "it")
        with cluster.session() as session:
            session.get(Pin, ids[0])
            wire = on_first(session)
        assert isinstance(wire, PolledConnection)
        assert not wire.pending
