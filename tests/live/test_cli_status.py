"""``sqla-shard status`` on real servers, one of which ends."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from sqla_shard import Cluster
from sqla_shard.cli.output import coloured, NOT_READ
from sqla_shard.cli.program import program
from sqla_shard.testing.topology_documents import topology_document
from tests.models.unread_models import Base


@pytest.fixture(scope="module")
def pair(server_kind):
    with server_kind.pair(fast=True) as pair:
        yield pair


@pytest.fixture(scope="module")
def topology(pair, server_kind, tmp_path_factory):
    document = topology_document({pair.name: pair.primary.url}, 4, lookup=2)
    for keyspace in document["keyspaces"].values():
        for server in keyspace["servers"]:
            server["standby"] = pair.standby.url
    path = tmp_path_factory.mktemp("status") / "topology.json"
    path.write_text(json.dumps(document))
    for number in range(4):
        pair.primary.root_execute(f"CREATE DATABASE db{number:05d}")
    for number in range(2):
        pair.primary.root_execute(f"CREATE DATABASE lookup{number:05d}")
    with Cluster.from_file(path, watch=False) as cluster:
        cluster.create_all(Base.metadata)
    pair.wait_caught_up()
    for server in pair.servers:
        with server.root_connect() as connection:
            cursor = connection.cursor()
            cursor.execute("SET SESSION sql_log_bin = 0")
            name = f"'{server.user}'@'{server.host}'"
            cursor.execute(f"GRANT {server_kind.lag_privilege} ON *.* TO {name}")
    return path


def status(topology, *options):
    return CliRunner().invoke(
        program, ["status", "-t", str(topology), "--timeout", "30", *options]
    )


def test_servers_that_are_up(topology, pair):
    done = status(topology)
    assert done.exit_code == 0, done.output
    first, primary, standby, *pending = done.output.splitlines()
    assert first == "epoch 1"
    address = f"127.0.0.1:{pair.primary.port}"
    shards = "(objects 0-3; lookup 0-1)"
    assert primary.startswith(f"server1 primary {address} {shards}: up, round")
    assert ", read-only no, connections " in primary
    assert ", read-only yes, " in standby
    assert ", lag 0" in standby
    assert pending == [
        "shards of objects: 4 at no revision",
        "shards of lookup: 2 at no revision",
        "pending operations: none",
        "pending invalidations: none",
    ]


def test_a_server_that_ends_is_one_line(topology, pair):
    pair.standby.kill()
    try:
        done = status(topology)
        document = json.loads(status(topology, "--json").output)
    finally:
        pair.standby.start()
    assert done.exit_code == NOT_READ
    lines = done.output.splitlines()
    down = [line for line in lines if "unreachable" in line]
    assert len(down) == 1
    assert down[0].startswith(
        "server1 (standby) unreachable (2003): 6 shards objects 0-3, "
        "lookup 0-1: Can't connect"
    )
    assert [one["is_up"] for one in document["servers"]] == [True, False]
    assert pair.primary.password not in done.output


def test_a_lag_that_may_not_be_seen_is_no_failure(
    topology, pair, server_kind, monkeypatch
):
    privilege = server_kind.lag_privilege
    name = f"'{pair.standby.user}'@'{pair.standby.host}'"
    operator = f"operator@'{pair.standby.host}'"
    with pair.standby.root_connect() as connection:
        cursor = connection.cursor()
        cursor.execute("SET SESSION sql_log_bin = 0")
        cursor.execute(f"REVOKE {privilege} ON *.* FROM {name}")
        try:
            done = status(topology)
            cursor.execute(f"CREATE USER {operator} IDENTIFIED BY 'secret'")
            cursor.execute(f"GRANT {privilege}, PROCESS ON *.* TO {operator}")
            monkeypatch.setenv("SQLA_SHARD_OPERATOR_USER", "operator")
            monkeypatch.setenv("SQLA_SHARD_OPERATOR_PASSWORD", "secret")
            seen = status(topology)
            monkeypatch.setenv("SQLA_SHARD_OPERATOR_PASSWORD", "wrong")
            refused = status(topology)
        finally:
            cursor.execute(f"GRANT {privilege} ON *.* TO {name}")
            cursor.execute(f"DROP USER IF EXISTS {operator}")
    assert done.exit_code == 0, done.output
    last = done.output.splitlines()[-1]
    assert last.startswith("lag of server1: not shown without the privilege")
    assert privilege in last
    assert last.endswith("SQLA_SHARD_OPERATOR_PASSWORD")
    assert coloured(last) == last
    # The account of the operator may see it.
    assert seen.exit_code == 0, seen.output
    assert ", lag 0" in seen.output
    assert "not shown" not in seen.output
    assert refused.exit_code == NOT_READ
    assert "server1 (standby) not read (1045): 6 shards" in refused.output


@pytest.fixture
def unprovisioned(topology, tmp_path):
    """A topology without databases; lookup has no grants either."""
    document = json.loads(topology.read_text())
    keyspaces = document["keyspaces"]
    keyspaces["objects"]["database"] = "db9{shard:04d}"
    keyspaces["lookup"]["database"] = "other{shard:05d}"
    path = tmp_path / "topology.json"
    path.write_text(json.dumps(document))
    return path


def test_shards_without_databases_are_one_line(unprovisioned):
    done = status(unprovisioned)
    assert done.exit_code == NOT_READ
    *pending, missing, remedy = done.output.splitlines()[3:]
    assert pending == [
        "pending operations: not read",
        "pending invalidations: not read",
    ]
    assert missing == (
        "server1 not read: 6 shards objects 0-3, lookup 0-1: no "
        "such database, or no privilege on it"
    )
    assert remedy == (
        "if they are new: sqla-shard schema provision (--initial before the "
        "first use); if they were lost, restore them"
    )


def test_shards_without_tables_or_grants(unprovisioned, pair):
    user = f"'{pair.primary.user}'@'{pair.primary.host}'"
    execute = pair.primary.root_execute
    for name in ("db90002", "other00001"):
        execute(f"CREATE DATABASE {name}")
    execute(f"GRANT CREATE ON other00001.* TO {user}")
    try:
        document = json.loads(status(unprovisioned, "--json").output)
    finally:
        execute(f"REVOKE CREATE ON other00001.* FROM {user}")
        for name in ("db90002", "other00001"):
            execute(f"DROP DATABASE {name}")
    assert "shards of objects: 1 at no revision" in document["pending"]
    databases, tables, grants = document["problems"]
    assert grants.startswith("server1 not read (1142): 1 shard 1: SELECT")
    assert databases == (
        "server1 not read: 4 shards objects 0-1, 3, lookup 0: no "
        "such database, or no privilege on it"
    )
    assert tables.startswith("server1 not read (1146): 1 shard 2: Table 'db9")
    provision, upgrade, grant = document["remedies"]
    assert "sqla-shard schema provision" in provision
    assert "sqla-shard schema upgrade" in upgrade
    assert grant.startswith("grant the privilege")


def test_an_outage_is_one_line(topology, pair):
    pair.primary.kill()
    try:
        lines = status(topology).output.splitlines()
    finally:
        pair.primary.start()
    # Ports may have the same digits.
    (line,) = [line for line in lines if "(2003)" in line]
    assert line.startswith("server1 unreachable (2003)")


def test_a_server_that_is_silent_is_named(topology, pair):
    pair.standby.pause()
    try:
        done = status(topology, "--timeout", "1")
    finally:
        pair.standby.resume()
    assert done.exit_code == 3
    assert "\nserver1 (standby) unreachable" in done.output
