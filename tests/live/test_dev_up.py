"""``sqla-shard dev up`` runs servers until it is terminated."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from sqla_shard import Cluster
from sqla_shard.cli.dev_command import _show, _to_move, LocalServers
from sqla_shard.testing.local_server import wait_until

#: Seconds for the servers to start, or to stop.
PATIENCE = 120


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "sqla_shard.cli", *arguments]


@contextmanager
def dev_up(folder: Path, *options: str) -> Iterator[dict[str, Any]]:
    """Run the command, and yield its output; terminate it at the end."""
    with (
        (folder / "up.log").open("wb") as log,
        subprocess.Popen(
            command("dev", "up", "--json", *options),
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        try:

            def printed() -> bool:
                assert process.poll() is None, (folder / "up.log").read_text()
                return (folder / "up.log").read_text().endswith("}\n")

            assert wait_until(printed, seconds=PATIENCE)
            yield json.loads((folder / "up.log").read_text())
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(PATIENCE)
    assert not (folder / "topology.json").exists()


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def run(folder: Path, document: Any, *arguments: str) -> str:
    return subprocess.run(
        command(*arguments),
        cwd=folder,
        env={**os.environ, **document["environ"]},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_two_servers_with_a_lookup(tmp_path, server_kind):
    options = ("--servers", "2", "--shards", "4", "--lookup", "2")
    with dev_up(tmp_path, "--server", server_kind.name, *options) as document:
        path = tmp_path / "topology.json"
        assert path.stat().st_mode & 0o777 == 0o600
        secret = document["environ"]["MYSQL_PASSWORD"]
        assert secret not in path.read_text()
        with Cluster.from_file(path, environ=document["environ"]) as cluster:
            health = cluster.health()
            assert health.ok
            for shard in range(4):
                with cluster.session() as session:
                    connection = session.connection(bind_arguments={"shard_id": shard})
                    database = connection.exec_driver_sql("SELECT DATABASE()")
                    assert database.scalar() == f"db{shard:05d}"
    assert sorted(document["pids"]) == ["server1", "server2"]
    assert not any(map(is_running, document["pids"].values()))


@pytest.mark.usefixtures("zookeeper_installed", "memcached_installed")
def test_a_fleet_that_is_operated(tmp_path, server_kind):
    options = ("--servers", "1", "--shards", "2", "--pairs", "--spare")
    more = ("--zookeeper", "--memcached", "--server", server_kind.name)
    with dev_up(tmp_path, *options, *more) as document:
        url = document["zookeeper"]
        operate = partial(run, tmp_path, document, "-t", url)
        assert "epoch 1" in operate("topology", "show")
        spare = document["spare"]
        operate(
            *("fleet", "split", "server1", "--yes", "--shards", "1-1"),
            *("--to", spare["name"], "--primary", spare["primary"]),
            *("--standby", spare["standby"]),
        )
        operate("fleet", "failover", "server2", "--yes")
        shown = operate("topology", "show")
        assert "epoch 3" in shown
        assert spare["name"] in shown
        assert len(document["pids"]) == 6
    assert not any(map(is_running, document["pids"].values()))


def test_the_split_that_is_printed_names_its_keyspace():
    servers = Mock()
    servers.document.return_value = {
        "keyspaces": {
            "objects": {"servers": [{"name": "server1", "shards": [0, 7]}]},
            "lookup": {"servers": [{"name": "server1", "shards": [0, 7]}]},
        }
    }
    assert _to_move(servers) == "split server1 --shards objects:4-7"


def test_what_is_printed_names_the_topology_for_all_commands(capsys):
    servers = LocalServers(
        kind="mariadb",
        servers=1,
        shards=2,
        lookup=0,
        pairs=False,
        spare=False,
        zookeeper=False,
        memcached=False,
    )
    _show(servers, Path("my topology.json"), None, as_data=False)
    printed = capsys.readouterr().out.splitlines()
    assert "  export SQLA_SHARD_TOPOLOGY='my topology.json'" in printed
    assert "  sqla-shard topology show" in printed


def test_a_topology_that_exists_is_not_replaced(tmp_path):
    (tmp_path / "topology.json").write_text("mine")
    done = subprocess.run(
        command("dev", "up"), cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 2
    assert b"topology.json exists" in done.stderr
    assert (tmp_path / "topology.json").read_text() == "mine"


def test_a_spare_server_is_a_pair(tmp_path):
    done = subprocess.run(
        command("dev", "up", "--spare"), cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 2
    assert b"give --pairs, too" in done.stderr
