"""Publishing with --check-servers: a real pair, and a server that is gone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from sqla_shard.testing.server_fleet import ServerPair
from tests.servers.kinds import Kind

pytest.importorskip("kazoo")

from click.testing import Result

from sqla_shard.cli import topology_commands
from sqla_shard.topology.zookeeper.publisher import Publisher
from tests.models.provisioning import Project
from tests.servers.command_line import invoke, write
from tests.servers.zookeeper import place

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def pair(server_kind: Kind) -> Iterator[ServerPair[Any]]:
    with server_kind.pair("server1", fast=True) as found:
        yield found


def document(
    pair: ServerPair[Any], epoch: int, shards: list[Any], *others: Any
) -> dict[str, Any]:
    def url(server: Any) -> str:
        return f"mysql://{server.user}:${{MYSQL_PASSWORD}}@{server.host}:{server.port}"

    servers = [
        {
            "name": "server1",
            "primary": url(pair.primary),
            "standby": url(pair.standby),
            "shards": shards,
        },
        *others,
    ]
    count = max(last for one in servers for _, last in one["shards"]) + 1
    return {
        "epoch": epoch,
        "keyspaces": {
            "objects": {
                "kind": "objects",
                "database": "db_check_{shard:05d}",
                "shards": count,
                "servers": servers,
            }
        },
    }


def test_servers_that_are_not_ready_refuse_a_push(
    pair: ServerPair[Any], zookeeper_server: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    # A busy machine has all the time that it needs.
    monkeypatch.setattr(topology_commands, "_TIMEOUT", 60.0)
    monkeypatch.setenv("MYSQL_PASSWORD", pair.primary.password)
    monkeypatch.setenv("SQLA_SHARD_ZOOKEEPER_AUTH", "digest:me:secret")
    location = place(zookeeper_server.hosts)

    def push(given: dict[str, Any], *more: str) -> Result:
        path = write(tmp_path, given, "next.json")
        return invoke(
            *("-t", location, "topology", "push", path, "--yes"),
            *("--check-servers", *more),
        )

    first = document(pair, 1, [[0, 3]])
    done = push(first)
    assert done.exit_code == 1
    at = f"{pair.primary.host}:{pair.primary.port}"
    assert done.stderr == (
        f"refused: server1 ({at}) has 4 shards 0-3 of objects without a "
        "database; create them: sqla-shard schema provision --initial\n"
    )
    Project(tmp_path, first).provision()
    pair.wait_caught_up()
    assert push(first).exit_code == 0

    gone = {"name": "server2", "primary": "mysql://app@127.0.0.1:1"}
    grown = document(pair, 2, [[0, 3], [6, 6]], {**gone, "shards": [[4, 5]]})
    grown["keyspaces"]["objects"]["shards"] = 7
    done = push(grown)
    assert done.exit_code == 3
    one, two = done.stderr.splitlines()
    assert one == (
        f"refused: server1 ({at}) has 1 shard 6 of objects without a "
        "database; create them: sqla-shard schema provision"
    )
    assert two.startswith("refused: server2 unreachable (2003): 2 shards 4-5:")
    assert two.endswith("; start it, or correct its address or account")

    try:
        pair.primary.root_execute(
            "UPDATE db_check_00002.alembic_version SET version_num = '0000'"
        )
        pair.primary.root_execute("SET GLOBAL read_only = 1")
        pair.standby.root_execute("SET GLOBAL read_only = 0")
        done = push(document(pair, 2, [[0, 3]]), "--json")
        assert done.exit_code == 1
        found = json.loads(done.stdout)
        assert not found["published"]
        primary, standby = found["faults"]
        assert primary["what"] == (
            "is read-only, and has 1 shard 2 of objects at 0000 (others: 0001)"
        )
        assert primary["remedy"] == (
            "if it is to be the primary: SET GLOBAL read_only = OFF there; "
            "sqla-shard schema upgrade"
        )
        assert standby["server"] == "server1 (standby)"
        assert standby["what"] == "is not read-only"
    finally:
        pair.primary.root_execute("SET GLOBAL read_only = 0")
        pair.standby.root_execute("SET GLOBAL read_only = 1")
    with Publisher(location) as publisher:
        assert [one.epoch for one in publisher.history()] == [1]
