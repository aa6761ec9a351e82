"""sqla-shard cache, on SQLite, where no node answers."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from tests.servers.cache_files import write_regions
from tests.servers.command_line import COMMAND, environment, invoke, ROOT
from tests.servers.memcached import no_node
from tests.servers.operation_commands import for_commands
from tests.suites.outbox import leave, rows

SECONDS = 60
MEMORY = '[regions.m]\nbackend = "dogpile.cache.memory"\n'


topology, cluster, ids = for_commands()


@pytest.fixture
def node() -> Iterator[str]:
    """A node that does not respond."""
    with no_node() as address:
        yield address


@pytest.fixture
def file(tmp_path: Path, node: str) -> Path:
    return write_regions(tmp_path / "cache.toml", {"pins": [node]})


def cache(topology: Path, command: str, file: Path, *more: object) -> Any:
    return invoke("-t", topology, "cache", command, "--cache", file, *more)


def test_nothing_to_do(cluster, topology, file):
    found = cache(topology, "repair", file, "--once")
    assert (found.exit_code, found.output) == (0, "")


def test_remaining_keys(cluster, topology, ids, file):
    leave(cluster, ids[1], [("pins", "a"), ("pins", "b"), ("old", "a")])
    found = cache(topology, "repair", file, "--once")
    assert found.exit_code == 1
    first, second, third = found.stdout.splitlines()
    assert first.endswith("0 removed, 2 left, 1 of unknown regions")
    assert second.startswith("  pins: 2 pending invalidations, oldest ")
    assert second.endswith(" s ago; a node does not respond")
    assert third.startswith("  old: 1 pending invalidation, oldest ")
    assert third.endswith(" s ago; the region is not configured")
    # These lines name it, once.
    assert found.stderr == ""
    assert len(rows(cluster)) == 3


def test_remaining_keys_in_json(cluster, topology, ids, file):
    leave(cluster, ids[1], [("pins", "a"), ("old", "a")])
    found = cache(topology, "repair", file, "--once", "--json")
    assert found.exit_code == 1
    (line,) = found.stdout.splitlines()
    document = json.loads(line)
    assert set(document) == {"time", "removed", "left", "unknown", "unreachable"}
    (left,), (unknown,) = document["left"], document["unknown"]
    assert set(left) == {"region", "rows", "oldest"}
    assert (left["region"], left["rows"]) == ("pins", 1)
    assert unknown["region"] == "old"
    assert left["oldest"] >= 0


def test_entries_in_the_memory_of_another_process(cluster, topology, ids, tmp_path):
    """It cannot be deleted from here."""
    file = tmp_path / "memory.toml"
    file.write_text(MEMORY, "utf-8")
    leave(cluster, ids[1], [("m", "a")])
    found = cache(topology, "repair", file, "--once")
    assert found.exit_code == 1
    assert "1 of unknown regions" in found.stdout
    assert rows(cluster) == [(1, "m", "a")]
    found = cache(topology, "stats", file)
    assert found.exit_code == 0
    first, second = found.stdout.splitlines()
    assert first.startswith("m: 1 pending invalidation")
    assert second == "  no statistics: the backend has no nodes"
    found = cache(topology, "stats", file, "--json")
    (region,) = json.loads(found.stdout)["regions"]
    assert (region["nodes"], region["is_known"]) == (None, True)


def test_stats(cluster, topology, ids, file, node):
    found = cache(topology, "stats", file)
    assert found.exit_code == 1
    assert found.stdout.splitlines() == [
        "pins: no pending invalidations",
        f"  {node}: does not respond",
    ]
    assert found.stderr == ""
    leave(cluster, ids[1], [("pins", "a"), ("pins", "b"), ("old", "a")])
    leave(cluster, ids[7], [("pins", "a")])
    lines = cache(topology, "stats", file).stdout.splitlines()
    assert lines[0].startswith("pins: 3 pending invalidations, oldest ")
    assert lines[2].startswith("old (not configured): 1 pending invalidation")
    found = cache(topology, "stats", file, "--json")
    assert found.exit_code == 1
    document = json.loads(found.stdout)
    pins, old = document["regions"]
    assert (pins["region"], pins["waiting"]) == ("pins", 3)
    assert (old["region"], old["is_known"], old["nodes"]) == (*("old", False), None)
    (one,) = pins["nodes"]
    assert (one["node"], one["answers"], one["items"]) == (node, False, None)
    assert pins["oldest"] >= 0
    assert document["unreachable"] == []


@pytest.mark.parametrize("command", ["repair", "stats"])
def test_a_server_that_cannot_be_reached(
    topology, file, cluster, ids, tmp_path, command
):
    leave(cluster, ids[1], [("pins", "a")])
    cluster.close()
    (broken,) = tmp_path.rglob("db00007.sqlite")
    # Its journal could be read in its place.
    for one in broken.parent.glob("db00007.sqlite-*"):
        one.unlink()
    broken.write_bytes(b"this is no database " * 100)
    more = ["--once"] if command == "repair" else []
    found = cache(topology, command, file, "--json", *more)
    assert found.exit_code == 3
    document = json.loads(found.stdout)
    (lost,) = document["unreachable"]
    assert "not a database" in lost.pop("reason")
    assert lost == {
        "server": "server2",
        "role": "primary",
        "code": None,
        "responds": True,
        "shards": {"objects": "7"},
    }


@pytest.mark.parametrize("command", ["repair", "stats"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[regions.a]", "regions.a.backend: is missing"),
        ('[regions.a]\nbackend = "dogpile.cache.null"', "regions.a: backend="),
        ('[regions.a]\nbackend = "sqla_shard.memcached"', "regions.a: servers="),
    ],
    ids=["no backend", "unfit", "no nodes"],
)
def test_a_file_that_is_wrong(cluster, topology, tmp_path, command, text, said):
    file = tmp_path / "wrong.toml"
    file.write_text(text, "utf-8")
    found = cache(topology, command, file)
    assert found.exit_code == 1
    assert found.stdout == ""
    (line,) = found.stderr.splitlines()
    assert line.startswith(f"sqla-shard: error: {file}: {said}")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["repair"], "--cache"),
        (["repair", "--cache", "no.toml"], "does not exist"),
        (["stats"], "--cache"),
        (["repair", "--cache", __file__, "--interval", "0"], "--interval"),
        (["drain"], "No such command 'drain'."),
        (["repiar"], "No such command 'repiar'; did you mean 'repair'?"),
    ],
    ids=[
        "no file",
        "no such file",
        "no file of stats",
        "interval",
        "command",
        "misspelt",
    ],
)
def test_usage_errors(topology, arguments, said):
    found = invoke("-t", topology, "cache", *arguments)
    assert found.exit_code == 2
    assert said in found.stderr


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"]
)
def test_until_it_is_ended(cluster, topology, ids, file, number):
    """Invalidations that stay pending are reported once."""
    leave(cluster, ids[1], [("pins", "a")])
    arguments = ("cache", "repair", "--cache", str(file), "--interval", "0.1")
    with subprocess.Popen(
        [*COMMAND, "-t", str(topology), *arguments],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert "0 removed, 1 left" in process.stdout.readline()
            assert "pins: 1 pending invalidation" in process.stdout.readline()
            leave(cluster, ids[1], [("pins", "b")])
            leave(cluster, ids[2], [("old", "b")])
            # A second one of a region is not reported, another region is.
            assert "0 removed, 2 left, 1 of" in process.stdout.readline()
            assert "pins: 2 pending invalidations" in process.stdout.readline()
            assert "old: 1 pending invalidation" in process.stdout.readline()
            process.send_signal(number)
            out, err = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
    assert process.returncode == 0
    assert (out, err) == ("", "")


def test_a_shard_without_the_table(topology, cluster, tmp_path):
    """A transaction whose node does not answer would be rolled back."""
    regions = tmp_path / "memory.toml"
    regions.write_text(MEMORY)
    assert cache(topology, "stats", regions).exit_code == 0
    shard = {"shard_id": 1}
    with cluster.session() as session:
        drop = text("DROP TABLE sqla_shard_outbox")
        session.execute(drop, bind_arguments=shard)
        session.commit()
    found = cache(topology, "stats", regions)
    assert found.exit_code == 3
    assert found.stdout.startswith("m: no pending invalidations")
    last = found.stdout.splitlines()[-1]
    assert "sqla_shard_outbox" in last
    assert "sqla-shard schema upgrade" in last
