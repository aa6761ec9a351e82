"""A hot shard is named, with samples of two processes on real servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from time import monotonic

import pytest

from tests.benchmarks.load import costs_of
from tests.models.mapping_models import (
    Board,
    BoardHasPins,
    lists_on_servers,
    pins,
    SHARDS,
)
from tests.servers.command_line import invoke, ROOT, write

pytestmark = pytest.mark.live

cluster = lists_on_servers("load")

#: Statements within which a hot shard is named: those of 10 seconds, if two
#: processes send 1,000 in a second.
PROMISED = 10_000
HOT = 17
DEADLINE = 120


@pytest.fixture
def boards(cluster):
    found = []
    for shard in (HOT, *(n for n in range(SHARDS) if n != HOT)):
        with cluster.begin(shard_id=shard) as session:
            board = Board(title="b")
            session.add(board)
            session.flush()
            BoardHasPins.append_many(session, board.id, pins(3))
            found.append(board.id)
    return found


@pytest.fixture
def generators(cluster, boards, tmp_path):
    """Start two processes that read all boards alike."""
    document = cluster.topology.to_mapping()
    topology = write(tmp_path, document)
    running = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.workers.load_generator",
                topology,
                tmp_path / "load",
                *map(str, boards),
            ],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "MYSQL_USER": "", "MYSQL_PASSWORD": ""},
        )
        for _ in range(2)
    ]
    for one in running:
        assert one.stdout.readline() == "ready\n"
    yield running
    stop(running)


def stop(generators):
    """Stop the processes; return how many statements they have sent."""
    sent = 0
    for one in generators:
        if not one.stdin.closed:
            one.stdin.close()
            sent += int(one.stdout.readline())
            one.stdout.close()
            assert one.wait(60) == 0
    return sent


def load(tmp_path):
    found = invoke(
        "-t",
        tmp_path / "topology.json",
        "load",
        "--directory",
        tmp_path / "load",
        "--json",
    )
    return found, json.loads(found.stdout) if found.stdout else None


@pytest.mark.thorough
def test_a_hot_shard_is_named_in_time(generators, boards, tmp_path):
    # Both have published, and all shards have the same load.
    end = monotonic() + DEADLINE
    found, report = load(tmp_path)
    while not report or len(report["processes"]) < 2:
        assert monotonic() < end, found.output
        found, report = load(tmp_path)
    assert found.exit_code == 0, report["sentences"]
    for one in generators:
        one.stdin.write("\n")
        one.stdin.flush()
    while found.exit_code == 0:
        assert monotonic() < end, report
        found, report = load(tmp_path)
    assert stop(generators) < PROMISED
    hot = [shard for shard in report["shards"] if shard["is_hot"]]
    assert [shard["shard_id"] for shard in hot] == [HOT]
    assert hot[0]["server"]
    assert {key["object_id"] for key in hot[0]["keys"]} == {boards[0]}


def test_sampling_costs_less_than_1_percent_of_a_get(cluster, boards):
    _, samples = costs_of(cluster, Board, boards[0])
    assert samples.ratio < 0.01
