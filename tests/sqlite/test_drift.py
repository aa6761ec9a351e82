"""verify() on SQLite, where a database is a file."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_shard import blob_field, Cluster, exc, ObjectMixin
from sqla_shard.schema import verify
from sqla_shard.schema.drift import Copies, Orphan
from sqla_shard.testing import sqlite_topology


class Base(DeclarativeBase):
    pass


class User(ObjectMixin, Base, type_id=3):
    __tablename__ = "users"

    name: Mapped[str] = blob_field()


class Setting(Base):
    __tablename__ = "settings"

    name: Mapped[str] = mapped_column(primary_key=True)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Two servers with standbys that nothing has copied to yet."""
    document = sqlite_topology(tmp_path, servers=2, shards=4, main=True)
    with Cluster.from_topology(document) as cluster:
        cluster.create_all(Base.metadata)
        yield cluster


def run(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def objects(report: Any) -> Any:
    return next(one for one in report.keyspaces if one.keyspace == "objects")


def test_all_well(cluster: Cluster) -> None:
    report = verify(cluster)
    assert report.ok
    assert [
        (one.keyspace, one.shards, one.servers, one.tables) for one in report.keyspaces
    ] == [("objects", 4, 2, 1), ("main", 1, 1, 1)]
    assert str(report).startswith("no drift; ")
    assert "main: 1 shard, 1 database on 1 server, 1 table" in str(report)
    assert report.as_dict()["ok"] is True


def test_an_altered_table(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "server2" / "db00003.sqlite"
    run(path, "ALTER TABLE users ADD COLUMN note TEXT DEFAULT 'a  b'")
    report = verify(cluster)
    assert not report.ok
    (drift,) = objects(report).drifted
    assert drift.table == "users"
    (variant,) = drift.others
    assert variant.copies == (Copies(server="server2", role="primary", shards=(3,)),)
    assert "+  note TEXT DEFAULT 'a  b'" in variant.diff.replace(", \n", "\n")
    assert "--- shard 0 on server1\n+++ shard 3 on server2" in variant.diff
    mapping = report.as_dict()
    assert json.loads(json.dumps(mapping)) == mapping


def test_white_space_means_nothing_but_in_a_text(
    cluster: Cluster, tmp_path: Path
) -> None:
    first = tmp_path / "server1" / "db00000.sqlite"
    others = [
        tmp_path / f"server{1 + shard // 2}" / f"db{shard:05d}.sqlite"
        for shard in (1, 2, 3)
    ]
    run(first, "CREATE TABLE t (\n\ta INT, \n\tb TEXT DEFAULT 'x y'\n)")
    for path in others:
        run(path, "CREATE TABLE t(a  INT,b TEXT DEFAULT 'x y')")
    assert verify(cluster).ok
    run(others[0], "DROP TABLE t", "CREATE TABLE t (a INT, b TEXT DEFAULT 'x  y')")
    (drift,) = objects(verify(cluster)).drifted
    assert drift.table == "t"


def test_indexes_triggers_and_views(cluster: Cluster, tmp_path: Path) -> None:
    run(
        tmp_path / "server1" / "db00001.sqlite",
        "CREATE INDEX by_ts ON users (ts)",
        "CREATE VIEW newest AS SELECT max(ts) FROM users",
    )
    drifted = objects(verify(cluster)).drifted
    assert [drift.table for drift in drifted] == ["newest", "users"]
    assert str(verify(cluster)).startswith("drift; ")
    assert "CREATE INDEX by_ts" in drifted[1].others[0].diff
    newest = drifted[0]
    assert (newest.reference.exists, newest.others[0].exists) == (False, True)
    report = verify(cluster, keyspace="objects", reference=1)
    newest = objects(report).drifted[0]
    assert newest.suspect
    assert newest.others[0].exists is False


def test_missing_and_orphaned_files(cluster: Cluster, tmp_path: Path) -> None:
    cluster.close()
    lost = tmp_path / "server2" / "db00002.sqlite"
    lost.rename(tmp_path / "server1" / "db00002.sqlite")
    (tmp_path / "server1" / "other.sqlite").touch()
    with Cluster.from_topology(cluster.topology) as again:
        report = verify(again)
        assert verify(again, shards=[0, 3]).ok
    found = objects(report)
    assert found.missing == (Copies(server="server2", role="primary", shards=(2,)),)
    assert found.orphaned == (
        Orphan(
            database="db00002",
            server="server1",
            role="primary",
            shard=2,
            home="server2",
        ),
    )
    assert not lost.exists()


def test_nothing_is_made_where_there_is_nothing(tmp_path: Path) -> None:
    document = sqlite_topology(tmp_path, servers=2, shards=4)
    (tmp_path / "server2").rmdir()
    with Cluster.from_topology(document) as cluster:
        report = verify(cluster)
        found = objects(report)
        assert (found.reference, found.databases) == (None, 0)
        assert [copies.shards for copies in found.missing] == [(0, 1), (2, 3)]
        with pytest.raises(exc.SchemaError):
            verify(cluster, reference=3)
    assert list(tmp_path.rglob("*")) == [tmp_path / "server1"]
    assert "keyspace objects: nothing could be read" in str(report)


def test_a_global_keyspace_is_compared_with_its_standby(tmp_path: Path) -> None:
    document = sqlite_topology(tmp_path, servers=1, shards=1, main=True)
    (server,) = document["keyspaces"]["main"]["servers"]
    server["standby"] = f"sqlite:///{tmp_path}/copy"
    with Cluster.from_topology(document) as cluster:
        cluster.create_all(Base.metadata)
        (found,) = verify(cluster, keyspace="main").keyspaces
        assert found.missing == (Copies(server="server1", role="standby", shards=(0,)),)
        assert verify(cluster, standby=False).ok
        (tmp_path / "copy").mkdir()
        run(tmp_path / "copy" / "main.sqlite", "CREATE TABLE settings (x)")
        (found,) = verify(cluster, keyspace="main").keyspaces
        (drift,) = found.drifted
        assert drift.others[0].copies[0].role == "standby"
        assert found.orphaned == ()


def test_unknown_names_are_refused(cluster: Cluster) -> None:
    with pytest.raises(exc.UnknownServerError, match="server1, server2"):
        verify(cluster, servers=["server3"])
    with pytest.raises(exc.UnknownShardError):
        verify(cluster, shards=[0, 4])
    with pytest.raises(exc.UnknownShardError):
        verify(cluster, keyspace="main", reference=1)
    with pytest.raises(exc.UnknownKeyspaceError):
        verify(cluster, keyspace="nix")
    cluster.close()
    with pytest.raises(exc.ClusterClosedError):
        verify(cluster)


def test_a_keyspace_without_such_shards_is_left_out(cluster: Cluster) -> None:
    (found,) = verify(cluster, shards=[2, 3]).keyspaces
    assert (found.keyspace, found.reference) == ("objects", 2)
    assert found.server == "server2"


def test_numbers_of_shards_in_few_words() -> None:
    def shown(*shards: int) -> str:
        return str(Copies(server="db1", role="primary", shards=shards))

    assert shown(4) == "db1: shard 4"
    assert shown(18, *range(17), *range(20, 4096)) == ("db1: shards 0-16, 18, 20-4095")
    assert shown(*range(0, 40, 2)).endswith(", 20, 22 and 8 more")
