"""Topology documents for tests, and where MariaDB is looked for."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, strategies as st
from sqlalchemy import make_url

from sqla_shard.testing import sqlite_topology
from sqla_shard.testing.programs import find_mariadb, find_mysql
from sqla_shard.testing.topology_documents import databases, divide, topology_document
from sqla_shard.topology import Topology


@given(st.integers(1, 70), st.integers(1, 5000))
def test_divides_evenly_without_a_gap(servers, extra):
    shards = servers + extra
    ranges = divide(shards, servers)
    covered = [n for first, last in ranges for n in range(first, last + 1)]
    assert covered == list(range(shards))
    sizes = [last - first + 1 for first, last in ranges]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("shards", "servers"), [(3, 4), (0, 0), (4, 0)])
def test_refuses_to_divide_among_too_many_or_none(shards, servers):
    with pytest.raises(ValueError, match="cannot be divided"):
        divide(shards, servers)


def test_document_of_mysql_servers():
    urls = {"a": "mysql://a", "b": "mysql://b", "c": "mysql://c"}
    document = topology_document(
        urls, 4, epoch=9, main=True, lookup=2, weights=[1.0, 0, 2.5]
    )
    assert document == {
        "epoch": 9,
        "keyspaces": {
            "objects": {
                "kind": "objects",
                "shards": 4,
                "database": "db{shard:05d}",
                "servers": [
                    {
                        "name": "a",
                        "primary": "mysql://a",
                        "shards": [0, 1],
                        "weight": 1.0,
                    },
                    {
                        "name": "b",
                        "primary": "mysql://b",
                        "shards": [2, 2],
                        "weight": 0,
                    },
                    {
                        "name": "c",
                        "primary": "mysql://c",
                        "shards": [3, 3],
                        "weight": 2.5,
                    },
                ],
            },
            "main": {
                "kind": "global",
                "database": "main",
                "servers": [{"name": "a", "primary": "mysql://a"}],
            },
            "lookup": {
                "kind": "mod",
                "shards": 2,
                "database": "lookup{shard:05d}",
                "servers": [
                    {"name": "a", "primary": "mysql://a", "shards": [0, 0]},
                    {"name": "b", "primary": "mysql://b", "shards": [1, 1]},
                ],
            },
        },
    }
    assert list(databases(document)) == [
        ("a", "db00000"),
        ("a", "db00001"),
        ("b", "db00002"),
        ("c", "db00003"),
        ("a", "main"),
        ("a", "lookup00000"),
        ("b", "lookup00001"),
    ]


def test_sqlite_servers_are_directories(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    document = sqlite_topology("data", 2, 8, main="main_x")
    servers = document["keyspaces"]["objects"]["servers"]
    assert [s["shards"] for s in servers] == [[0, 3], [4, 7]]
    for number, server in enumerate(servers, 1):
        path = tmp_path / "data" / f"server{number}"
        assert path.is_dir()
        assert make_url(server["primary"]).database == str(path)
    assert document["keyspaces"]["main"]["database"] == "main_x"
    assert sqlite_topology(tmp_path / "data", 2, 8, main="main_x") == document


@pytest.mark.parametrize("servers", [1, 3])
def test_the_topology_takes_them(tmp_path, servers):
    primaries = {
        f"server{n}": f"mysql://app:${{MYSQL_PASSWORD}}@127.0.0.1:{n}"
        for n in range(1, servers + 1)
    }
    more = {"main": True, "lookup": 4, "weights": [0.5] * servers}
    for document in (
        topology_document(primaries, 11, **more),
        sqlite_topology(tmp_path, servers, 11, **more),
    ):
        topology = Topology.from_mapping(document, environ={"MYSQL_PASSWORD": "secret"})
        placed = [
            (keyspace.server_for(shard).name, keyspace.database_for(shard))
            for keyspace in topology.keyspaces.values()
            for shard in keyspace.shard_ids
        ]
        assert placed == list(databases(document))


def test_finds_an_unpacked_mariadb(tmp_path):
    for name in ("bin/mariadbd", "scripts/mariadb-install-db"):
        path = tmp_path / name
        assert find_mariadb({"SQLA_SHARD_MARIADB": str(tmp_path)}) is None
        path.parent.mkdir()
        path.touch(mode=0o755)
    found = find_mariadb({"SQLA_SHARD_MARIADB": str(tmp_path)})
    assert found is not None
    assert found.server == str(tmp_path / "bin/mariadbd")
    assert found.options == ["--no-defaults", f"--basedir={tmp_path}"]


def test_finds_an_unpacked_mysql(tmp_path):
    environ = {"SQLA_SHARD_MYSQL": str(tmp_path)}
    assert find_mysql(environ) is None
    server = tmp_path / "bin/mysqld"
    server.parent.mkdir()
    server.touch(mode=0o755)
    found = find_mysql(environ)
    assert found is not None
    assert found.server == found.install == str(server)
    assert found.options == ["--no-defaults", f"--basedir={tmp_path}"]
    assert found.find("mysqlbinlog") is None
    client = tmp_path / "bin/mysqlbinlog"
    client.touch(mode=0o755)
    assert found.find("mysqlbinlog") == str(client)


@pytest.mark.parametrize(
    ("version", "is_taken"),
    [
        ("8.0.44-0ubuntu0.24.04.1", False),
        ("8.3.0", False),
        ("8.4.0-1", True),
        ("9.7.4", True),
        ("10.0.1", True),
    ],
)
def test_a_mysql_before_8_4_is_not_taken(tmp_path, version, is_taken):
    # The version at a path is read once, and pytest gives paths again.
    folder = tmp_path / version
    folder.mkdir()
    server = folder / "mysqld"
    server.write_text(
        f"#!/bin/sh\necho '{server}  Ver {version} for Linux on x86_64'\n"
    )
    server.chmod(0o755)
    assert (find_mysql({"PATH": str(folder)}) is not None) is is_taken


def test_a_mysqld_that_is_mariadb_is_not_taken(tmp_path):
    (tmp_path / "mariadbd").touch(mode=0o755)
    (tmp_path / "mysqld").symlink_to("mariadbd")
    assert find_mysql({"PATH": str(tmp_path)}) is None


def test_needs_neither_pymysql_nor_pytest():
    program = (
        "import sys\n"
        "from sqla_shard.testing import StatementLog, sqlite_topology\n"
        "print({'pymysql', 'pytest'} & set(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
