"""One engine for each server, opened on use and closed for good."""

from __future__ import annotations

import gc
import logging
import pickle
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from sqlite3 import connect, ProgrammingError
from typing import Any

import pytest
from sqlalchemy import MetaData, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.pool import base as pool_base, impl as pool_impl, NullPool
from sqlalchemy.util import queue as sqlalchemy_queue

from sqla_shard import blob_field, Cluster, ObjectMixin
from sqla_shard.engine import hooks, pools, registry
from sqla_shard.exc import (
    ClusterClosedError,
    MissingDriverError,
    NoShardKeyError,
    UnknownKeyspaceError,
    UnknownShardError,
)
from sqla_shard.testing import sqlite_topology, StatementLog
from tests.models.sqlite_files import with_files
from tests.servers.interrupting import interrupt_each_line


class Base(DeclarativeBase):
    pass


class User(ObjectMixin, Base, type_id=3):
    __tablename__ = "users"

    name: Mapped[str] = blob_field()


class Setting(Base):
    __tablename__ = "settings"

    name: Mapped[str] = mapped_column(primary_key=True)


SECRET = "p%40ss${notaplaceholder".replace("${", "$$")


def mysql_document(**extra: Any) -> dict[str, Any]:
    servers = [
        {
            "name": f"server{n}",
            "primary": f"mysql://app:{SECRET}@127.0.0.1:{1 + n}",
            "shards": [n * 4, n * 4 + 3],
        }
        for n in range(2)
    ]
    keyspaces: dict[str, Any] = {
        "objects": {
            "kind": "objects",
            "shards": 8,
            "database": "db{shard:05d}",
            "servers": servers,
        },
        "main": {
            "kind": "global",
            "database": "main",
            "servers": [{"name": "main", "primary": servers[0]["primary"], **extra}],
        },
    }
    return {"epoch": 1, "keyspaces": keyspaces}


def test_one_engine_for_all_shards_and_keyspaces_of_a_server() -> None:
    cluster = Cluster.from_topology(mysql_document())
    assert cluster.stats() == []
    places, topology = cluster.places, cluster.topology
    objects = topology.keyspace("objects")
    found = places.all_places(objects)
    assert [p.engine for p in found[:4]] == [found[0].engine] * 4
    assert [p.engine for p in found[4:]] == [found[4].engine] * 4
    assert found[0].engine is not found[4].engine
    main = places.place(topology.keyspace("main"), 0)
    assert main.engine is found[0].engine
    assert [p.schema for p in found[:2]] == ["db00000", "db00001"]
    assert main.schema == "main"
    # Pooled connections have no default database.
    assert found[0].engine.url.database is None
    assert [s.address for s in cluster.stats()] == ["127.0.0.1:1", "127.0.0.1:2"]


def test_no_secret_is_shown() -> None:
    cluster = Cluster.from_topology(mysql_document())
    place = cluster.places.place(cluster.topology.keyspace("objects"), 0)
    with pytest.raises(SQLAlchemyError) as caught:
        place.engine.connect()
    shown = [
        repr(cluster),
        repr(cluster.topology),
        repr(place.engine),
        repr(place),
        str(place),
        repr(cluster.stats()),
        repr(cluster.places.engines),
        str(caught.value),
        str(cluster.explain(0)),
        repr(cluster.health()),
    ]
    assert all("p@ss" not in text for text in shown), shown
    assert place.engine.url.password == "p@ss${notaplaceholder".replace("${", "$")


def test_health_names_what_is_wrong() -> None:
    with Cluster.from_topology(mysql_document()) as cluster:
        health = cluster.health().servers
        stats = cluster.stats()
    # The server of "main" is that of "server0".
    assert set(health) == {"server0", "server1"}
    assert {one.server for one in stats} == set(health)
    for name, answer in health.items():
        assert "ServerUnreachableError: server " in str(answer)
        assert name in str(answer)


def test_nothing_is_opened_before_it_is_used(tmp_path: Path) -> None:
    document = with_files(sqlite_topology(tmp_path, shards=8))
    with Cluster.from_topology(document) as cluster:
        assert cluster.stats() == []
        with cluster.session() as session:
            session.connection({"shard_id": 5}).execute(text("SELECT 1"))
        (stats,) = cluster.stats()
        assert (stats.idle, stats.busy) == (1, 0)


@pytest.mark.parametrize("is_open", [True, False])
def test_ctrl_c_costs_a_pool_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_open: bool
) -> None:
    """At each line of SQLAlchemy's pool and of what is told by it."""
    # What pytest keeps has the frames that have the connection.
    monkeypatch.setattr(sys, "unraisablehook", str)
    logger = logging.getLogger("sqlalchemy.pool.impl.QueuePool")
    monkeypatch.setattr(logger, "disabled", True)
    document = with_files(sqlite_topology(tmp_path, shards=2))
    options = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 0}
    modules = [pool_base, pool_impl, sqlalchemy_queue, hooks, pools]
    with Cluster.from_topology(document, engine_options=options) as cluster:

        def read(stop: Callable[[], object] = int) -> None:
            with cluster.session() as session:
                session.connection({"shard_id": 0}).execute(text("SELECT 1"))
                session.close()
                stop()

        read()
        (engine,) = cluster.places.engines
        for _ in interrupt_each_line(modules, read):
            if engine.pool.checkedout() or cluster.stats()[0].busy:
                # A connection without its proxy, or one that no session has.
                gc.collect()
            assert engine.pool.checkedout() == cluster.stats()[0].busy == 0
            read() if is_open else engine.dispose()
    del engine
    # Not in another test: what was interrupted warns when it is collected.
    gc.collect()


def test_an_error_that_is_kept_has_no_place_in_a_pool() -> None:
    def interrupt(frame: Any, event: str, value: Any) -> None:
        if "_overflow" in frame.f_code.co_name and "_create" in (
            frame.f_back.f_code.co_name
        ):
            raise KeyboardInterrupt

    pool = pools.CountedPool(lambda: connect(":memory:"), pool_size=1, max_overflow=0)
    before = sys.gettrace()

    def interrupted() -> None:
        sys.settrace(interrupt)
        try:
            pool.connect()
        finally:
            sys.settrace(before)

    with pytest.raises(KeyboardInterrupt) as kept:
        interrupted()
    assert kept.value.__traceback__
    assert pool.checkedout() == 0


def test_unopened_shards_are_refused(tmp_path: Path) -> None:
    with Cluster.from_topology(sqlite_topology(tmp_path, shards=8)) as cluster:
        with pytest.raises(UnknownShardError) as caught:
            cluster.explain(8 << 46 | 3 << 36 | 1)
        assert (caught.value.shard_id, caught.value.opened) == (8, 8)
        assert pickle.loads(pickle.dumps(caught.value)).opened == 8


def test_close_waits_for_what_is_in_use(tmp_path: Path) -> None:
    document = with_files(sqlite_topology(tmp_path, shards=4))
    cluster = Cluster.from_topology(document)
    session = cluster.session()
    session.connection({"shard_id": 1}).execute(text("SELECT 1"))
    assert cluster.stats()[0].busy == 1
    assert cluster.close(timeout=0.05) is False

    closed: list[bool] = []
    begun = threading.Event()

    def close() -> None:
        begun.set()
        closed.append(cluster.close(timeout=30))

    thread = threading.Thread(target=close)
    thread.start()
    assert begun.wait(60)
    # The running session continues to its end.
    session.connection({"shard_id": 1}).execute(text("SELECT 1"))
    session.close()
    thread.join(60)
    assert closed == [True]
    with pytest.raises(ClusterClosedError):
        session.connection({"shard_id": 1})
    with pytest.raises(ClusterClosedError):
        cluster.session().connection({"shard_id": 2})


def test_close_says_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(registry, "_SILENT", 0.01)
    document = with_files(sqlite_topology(tmp_path, shards=2))
    cluster = Cluster.from_topology(document)
    with cluster.session() as session:
        session.connection({"shard_id": 1})
        assert cluster.close(timeout=0.05) is False
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.message.startswith("close() waits up to 0.05 s for ")
    assert "(1 to " in record.message
    assert cluster.close() is True
    assert len(caplog.records) == 1


def test_a_connection_that_was_given_up_is_detached(tmp_path: Path) -> None:
    """As of a session that is collected after its event loop, or in a child."""
    document = with_files(sqlite_topology(tmp_path, shards=2))
    with Cluster.from_topology(document) as cluster:
        engines = cluster.places.engines
        with cluster.session() as session:
            engine = session.connection({"shard_id": 1}).engine
        with engine.connect() as connection:
            ((_, wire),) = engines.open_connections.take()
            assert wire is connection.connection.dbapi_connection
            connection.detach()
        assert engines.open_connections.take() == []
        with pytest.raises(ProgrammingError, match="closed database"):
            wire.execute("SELECT 1")


def test_close_does_not_wait_for_what_is_never_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C can end a connection without a word to its pool."""
    monkeypatch.setattr(registry, "_SILENT", 0.01)
    waits = threading.Event()
    monkeypatch.setattr(registry._log, "warning", lambda *_, **__: waits.set())
    cluster = Cluster.from_topology(with_files(sqlite_topology(tmp_path, shards=2)))
    with cluster.session() as session:
        engine = session.connection({"shard_id": 1}).engine
    records = [threading.Event()]
    cluster.places.engines.in_use.put(records[0], engine)
    closed: list[bool] = []
    thread = threading.Thread(target=lambda: closed.append(cluster.close(timeout=50)))
    thread.start()
    assert waits.wait(60)
    records.clear()
    thread.join(25)
    assert closed == [True]


def test_connections_returned_later_are_closed(tmp_path: Path) -> None:
    document = with_files(sqlite_topology(tmp_path, shards=2))
    cluster = Cluster.from_topology(document)
    session = cluster.session()
    connection = session.connection({"shard_id": 1})
    wire: Any = connection.connection.dbapi_connection
    assert cluster.close(timeout=0.01) is False
    wire.execute("SELECT 1")
    session.close()
    with pytest.raises(ProgrammingError, match="closed"):
        wire.execute("SELECT 1")


def test_warm_opens_connections_to_every_server(tmp_path: Path) -> None:
    document = with_files(sqlite_topology(tmp_path, servers=3, shards=6))
    with Cluster.from_topology(document) as cluster:
        cluster.warm(2)
        assert [(s.idle, s.busy) for s in cluster.stats()] == [(2, 0)] * 3


def test_other_pools_can_be_chosen(tmp_path: Path) -> None:
    with Cluster.from_topology(
        with_files(sqlite_topology(tmp_path, shards=4)),
        engine_options={"poolclass": NullPool},
    ) as cluster:
        cluster.create_all(Base.metadata.__class__())
        with cluster.session() as session:
            session.connection({"shard_id": 1})
            assert sum(one.busy for one in cluster.stats()) == 1
        assert sum(one.busy for one in cluster.stats()) == 0


def test_a_keyspace_without_tables_is_not_down(tmp_path: Path) -> None:
    document = sqlite_topology(tmp_path, shards=4, main=True, lookup=4)
    with Cluster.from_topology(document) as cluster:
        cluster.create_all(MetaData(), keyspace="objects")
        assert cluster.health().down
        cluster.create_all(MetaData())
        assert not cluster.health().down


def test_create_all_creates_what_is_missing(tmp_path: Path) -> None:
    document = sqlite_topology(tmp_path, shards=4, main=True)
    with Cluster.from_topology(document) as cluster:
        cluster.create_all(Base.metadata)
        with cluster.begin() as session:
            session.add(Setting(name="kept"))
        with cluster.begin() as session:
            session.connection({"shard_id": 2}).execute(text("DROP TABLE users"))
        with StatementLog() as log:
            cluster.create_all(Base.metadata)
        created = [s for s in log.statements if s.lstrip().startswith("CREATE")]
        # One table and its trigger, on one shard.
        assert len(created) == 2
        with cluster.session() as session:
            assert session.get(Setting, "kept") is not None
            rows = session.execute(
                text("SELECT count(*) FROM users"), bind_arguments={"shard_id": 2}
            )
            assert rows.scalar() == 0


def test_create_all_refuses_tables_of_no_keyspace(tmp_path: Path) -> None:
    with Cluster.from_topology(sqlite_topology(tmp_path, shards=4)) as cluster:
        with pytest.raises(UnknownKeyspaceError):
            cluster.create_all(Base.metadata)
        assert not list(tmp_path.rglob("*.sqlite"))


def test_connections_come_back_clean(tmp_path: Path) -> None:
    with Cluster.from_topology(
        with_files(sqlite_topology(tmp_path, shards=2)),
        engine_options={"pool_size": 1, "max_overflow": 0},
    ) as cluster:
        cluster.create_all(type(Base.metadata)())
        place = cluster.places.place(cluster.topology.keyspace("objects"), 0)
        connection = place.engine.connect()
        connection.execute(text("CREATE TABLE t (n INTEGER)"))
        connection.commit()
        connection.execute(text("INSERT INTO t VALUES (1)"))
        connection.close()
        with place.engine.connect() as again:
            assert again.execute(text("SELECT count(*) FROM t")).scalar() == 0


def test_a_missing_driver_is_named() -> None:
    document = mysql_document()
    for keyspace in document["keyspaces"].values():
        for server in keyspace["servers"]:
            server["primary"] = server["primary"].replace(
                "mysql://", "mysql+cymysql://"
            )
    with pytest.raises(MissingDriverError, match=r"sqla-shard\[mysql\]"):
        Cluster.from_topology(document).health()


def test_a_keyspace_can_be_named(tmp_path: Path) -> None:
    document = sqlite_topology(tmp_path, shards=4, main=True)
    other = dict(document["keyspaces"]["main"], database="other")
    document["keyspaces"]["other"] = other
    with_files(document)
    with Cluster.from_topology(document) as cluster:
        cluster.create_all(Base.metadata, keyspace="objects")
        with cluster.session() as session:
            for name in ("main", "other"):
                connection = session.connection({"keyspace": name})
                assert name in str(connection.engine.url)
                on_keyspace = {"keyspace": name}
                assert session.scalar(text("SELECT 1"), bind_arguments=on_keyspace)
            with pytest.raises(NoShardKeyError, match="keyspace"):
                session.execute(text("SELECT name FROM users"))
            with pytest.raises(NoShardKeyError, match="objects"):
                session.connection({"keyspace": "objects"})
