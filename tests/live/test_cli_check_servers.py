"""``sqla-shard check`` on real servers."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

from sqla_shard import Cluster
from tests.servers.command_line import invoke, write

pytestmark = pytest.mark.live


def findings(done, *, status):
    """Return texts by severity and check, of server1 or the application."""
    assert done.exit_code == status, done.output
    return {
        (one["severity"], one["check"]): one["what"]
        for one in json.loads(done.output)["findings"]
        if one["server"] in ("application", "server1")
    }


def test_a_topology_with_a_password(fleet, server_kind, tmp_path):
    topology = write(tmp_path, fleet.topology_mapping(shards=4))
    done = invoke("-t", topology, "check", "--json")
    assert fleet.servers[0].password not in done.output
    found = findings(done, status=1)
    name = {"mariadb": "MariaDB", "mysql": "MySQL"}[server_kind.name]
    assert found["info", "versions"].startswith(f"is {name} ")
    assert "a process opens up to 15 connections of " in found["info", "versions"]
    clear = found.pop(("warning", "topology"))
    assert clear.startswith("has passwords in the URLs of server1, server2")
    assert {severity for severity, _ in found} == {"info"}


def test_pools_tls_and_a_topology_that_is_not_followed(fleet, server_kind, monkeypatch):
    # As if it were not installed.
    monkeypatch.setitem(sys.modules, "cryptography", None)
    options = {"pool_size": 500, "connect_args": {"ssl_disabled": True}}
    document = fleet.topology_mapping(shards=4)
    with Cluster.from_topology(document, engine_options=options) as cluster:
        monkeypatch.setitem(sys.modules, "shop", SimpleNamespace(cluster=cluster))
        done = invoke("check", "shop", "--json", "--processes", 10)
    found = findings(done, status=1)
    assert "--processes 10 the pools open up to 5,100" in found["warning", "pools"]
    assert "clear text" in found["info", "tls"]
    assert ("warning", "topology") in found
    assert (("warning", "login") in found) == (server_kind.name == "mysql")


def test_a_password_that_is_refused(fleet, monkeypatch):
    document = fleet.topology_mapping(shards=4)
    with Cluster.from_topology(document, password=lambda login: "wrong") as cluster:
        monkeypatch.setitem(sys.modules, "shop", SimpleNamespace(cluster=cluster))
        done = invoke("check", "shop", "--json")
    found = findings(done, status=1)
    assert "the login to server server1 failed" in found["critical", "login"]


def test_an_account_without_a_free_connection(fleet, monkeypatch):
    server = fleet.servers[0]
    limit = f"ALTER USER '{server.user}'@'{server.host}' WITH MAX_USER_CONNECTIONS {{}}"
    document = fleet.topology_mapping(shards=4)
    with Cluster.from_topology(document) as cluster:
        monkeypatch.setitem(sys.modules, "shop", SimpleNamespace(cluster=cluster))
        server.root_execute(limit.format(1))
        try:
            # Its only connection suffices for the whole report.
            alone = invoke("check", "shop", "--json", "--fail-on", "critical")
            with server.connect():
                done = invoke("check", "shop", "--json")
        finally:
            server.root_execute(limit.format(0))
    assert alone.exit_code == 0, alone.output
    found = findings(done, status=1)
    assert "accepts no more: " in found["critical", "pools"]
    assert ("info", "versions") in found
