"""``sqla-shard check`` without servers; test_cli_check_servers.py has some."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest
from sqlalchemy import MetaData

from sqla_shard import Cluster
from sqla_shard.testing import sqlite_topology
from tests.servers.command_line import invoke, write


@pytest.fixture
def topology(tmp_path):
    document = sqlite_topology(tmp_path, 2, 4)
    with Cluster.from_topology(document) as cluster:
        cluster.create_all(MetaData())
    return write(tmp_path, document)


def test_nothing_to_mend_is_status_0(topology):
    done = invoke("-t", topology, "check", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert {one["severity"] for one in found["findings"]} == {"info"}
    files = [one["server"] for one in found["findings"] if "SQLite" in one["what"]]
    assert files == ["server1", "server2"]


def test_a_pool_that_is_smaller_than_the_threads(topology, monkeypatch):
    options = {"pool_size": 2, "max_overflow": 1}
    with Cluster.from_file(topology, engine_options=options) as cluster:
        monkeypatch.setitem(sys.modules, "shop", SimpleNamespace(cluster=cluster))
        enough = invoke("check", "shop", "--threads", 3)
        scarce = invoke("check", "shop:cluster", "--threads", 4)
        lax = invoke("check", "shop", "--threads", 4, "--fail-on", "critical")
    assert (enough.exit_code, scarce.exit_code, lax.exit_code) == (0, 1, 0)
    assert scarce.output.startswith(
        "warning: application: has 4 threads, and 3 connections to a server"
    )
    assert scarce.output.endswith("1 warning, 4 info\n")


def test_a_missing_driver_leaves_the_rest_of_the_report(monkeypatch):
    document = {"old1": {"range": [0, 3], "master": "mysql://app@db1"}}
    with Cluster.from_topology(document, driver="nosuch") as cluster:
        monkeypatch.setitem(sys.modules, "shop", SimpleNamespace(cluster=cluster))
        done = invoke("check", "shop")
    assert done.exit_code == 3
    assert "unknown: application: cannot be checked on its servers: " in done.output
    assert "info: application: runs on Python" in done.output


def test_a_password_of_a_standby_in_clear(monkeypatch):
    server = {
        "name": "server1",
        "primary": "mysql://app:${MYSQL_PASSWORD}@127.0.0.1:1",
        "standby": "mysql://app:secret@127.0.0.1:2",
        "shards": [[0, 3]],
    }
    keyspace = {"kind": "objects", "shards": 4, "servers": [server]}
    document = {
        "epoch": 1,
        "keyspaces": {"objects": {**keyspace, "database": "db{shard:05d}"}},
    }
    environ = {"MYSQL_PASSWORD": ""}
    with Cluster.from_topology(document, environ=environ) as cluster:
        monkeypatch.setitem(sys.modules, "shop", SimpleNamespace(cluster=cluster))
        done = invoke("check", "shop")
    # Nothing listens there.
    assert done.exit_code == 3
    assert "has passwords in the URLs of server1" in done.output
    assert "secret" not in done.output


def test_what_is_no_cluster_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "shop", SimpleNamespace(cluster=3))
    done = invoke("check", "shop")
    assert done.exit_code == 2
    assert "'shop' is a int; name a Cluster" in done.output


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["check", "mistaken"], "MODULE:NAME"),
        (["worker", "--app", "mistaken:cluster"], "--app"),
        (["worker", "--models", "mistaken"], "--models"),
    ],
)
def test_a_mistake_of_the_application_is_one_line(tmp_path, monkeypatch, words, hint):
    (tmp_path / "mistaken.py").write_text("{}['absent']")
    monkeypatch.syspath_prepend(tmp_path)
    done = invoke(*words)
    assert done.exit_code == 2
    (line, _) = done.stderr.splitlines()
    assert f"Invalid value for {hint}: " in line
    assert line.endswith(f"{words[-1]!r} cannot be imported: KeyError: 'absent'")
