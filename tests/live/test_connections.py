"""Connections to real servers: their settings, their number, their cost."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.pool import NullPool

from sqla_shard import blob_field, Cluster, ObjectMixin, Topology
from sqla_shard.exc import ServerRetiredError
from sqla_shard.testing import Proxy, StatementLog
from sqla_shard.testing.topology_documents import topology_document
from tests.servers.kinds import Kind

pytestmark = pytest.mark.live

SECRET = "asecretword"


class Base(DeclarativeBase):
    pass


class User(ObjectMixin, Base, type_id=3):
    __tablename__ = "users"

    name: Mapped[str] = blob_field()


class Setting(Base):
    __tablename__ = "settings"

    name: Mapped[str] = mapped_column(primary_key=True)


class Country(Base):
    __tablename__ = "countries"

    name: Mapped[str] = mapped_column(primary_key=True)


for table in (Setting.__table__, Country.__table__):
    table.c.name.type.length = 30


@pytest.fixture(scope="module")
def cluster(fleet: Any) -> Iterator[Cluster]:
    document = fleet.topology_mapping(
        shards=32, database="db_connections{shard:05d}", main=True
    )
    with Cluster.from_topology(document, environ=fleet.environ) as cluster:
        cluster.create_all(Base.metadata)
        yield cluster
    fleet.drop_databases(document)


@pytest.mark.parametrize("command", ["SELECT 1", "SET @mark = 1"])
def test_an_init_command_may_return_rows(
    cluster: Cluster, fleet: Any, command: str
) -> None:
    options = {"connect_args": {"init_command": command}}
    with (
        Cluster.from_topology(
            cluster.topology.to_mapping(), environ=fleet.environ, engine_options=options
        ) as other,
        other.session() as session,
    ):
        statement = text("SELECT @mark, 2")
        row = session.execute(statement, bind_arguments={"shard_id": 31}).one()
    assert tuple(row) == (1 if "mark" in command else None, 2)


def test_sessions_are_utc_and_strict(cluster: Cluster) -> None:
    with cluster.session() as session:
        for shard_id in (0, 31):
            zone, mode = session.execute(
                text("SELECT @@session.time_zone, @@session.sql_mode"),
                bind_arguments={"shard_id": shard_id},
            ).one()
            assert zone == "+00:00"
            assert "STRICT_TRANS_TABLES" in mode


def test_one_connection_per_server(cluster: Cluster) -> None:
    servers = len(cluster.topology.keyspace("objects").servers)
    with StatementLog() as log, cluster.session() as session:
        for shard_id in range(32):
            session.scalars(select(User), bind_arguments={"shard_id": shard_id}).all()
        session.scalars(select(Setting)).all()
        assert len(log.connections) == servers
        assert log.count("begin") == servers
        assert len(log.statements) == 33


def test_no_ca_bundle_is_read_to_connect(
    cluster: Cluster, fleet: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts: list[Any] = []
    make = ssl.create_default_context

    def counted(*args: Any, **kwargs: Any) -> Any:
        contexts.append(args)
        return make(*args, **kwargs)

    monkeypatch.setattr(ssl, "create_default_context", counted)
    with Cluster.from_topology(
        cluster.topology, environ=fleet.environ, engine_options={"poolclass": NullPool}
    ) as unpooled:
        for _ in range(5):
            assert set(unpooled.health().servers.values()) == {None}
    assert len(contexts) <= 1


def test_text_runs_in_the_database_of_its_place(cluster: Cluster) -> None:
    def database(session: Any, **bind_arguments: Any) -> str:
        found: str = session.scalar(
            text("SELECT DATABASE()"), bind_arguments=bind_arguments
        )
        return found

    with cluster.session() as session:
        assert database(session, shard_id=3) == "db_connections00003"
        assert database(session, shard_id=4) == "db_connections00004"
        assert database(session) == "main"
        assert database(session, shard_id=3) == "db_connections00003"
        connection = session.connection({"shard_id": 5})
        assert connection.scalar(text("SELECT DATABASE()")) == ("db_connections00005")


def test_a_server_that_is_gone_and_back(server_kind: Kind) -> None:
    server = server_kind.server("phoenix", password=SECRET, fast=True)
    document = {
        "epoch": 1,
        "keyspaces": {
            "main": {
                "kind": "global",
                "database": "main",
                "servers": [{"name": "phoenix", "primary": ""}],
            }
        },
    }
    with server:
        document["keyspaces"]["main"]["servers"][0]["primary"] = server.url  # type: ignore[index]
        with Cluster.from_topology(document) as cluster:
            cluster.create_all(Base.metadata, keyspace="main")
            server.kill()
            (answer,) = cluster.health().servers.values()
            assert "server phoenix cannot be reached" in str(answer)
            assert SECRET not in str(answer)
            server.restart()
            assert list(cluster.health().servers.values()) == [None]
            with cluster.begin() as session:
                session.add(Country(name="Iceland"))


@pytest.mark.parametrize("driver", ["pymysql", "mysqldb"])
def test_no_connection_is_opened_to_a_server_that_was_removed(
    fleet: Any, driver: str, request: pytest.FixtureRequest
) -> None:
    if driver == "mysqldb":
        request.getfixturevalue("mysqlclient_installed")
    server = fleet.servers[0]
    with Proxy(server.host, server.port, tls=False) as proxy:
        old = topology_document({"server1": server.url}, 1)
        new = {**topology_document({"server1": server.url}, 1), "epoch": 2}
        (listed,) = old["keyspaces"]["objects"]["servers"]
        listed["primary"] = server.url.replace(f":{server.port}", f":{proxy.port}")
        with Cluster.from_topology(old, driver=driver) as cluster:
            (engine,) = {place.engine for _, place in cluster.places.servers()}
            cluster.update_topology(Topology.from_mapping(new))
            with pytest.raises(ServerRetiredError):
                engine.connect()
        assert proxy.counts.connections == 0
