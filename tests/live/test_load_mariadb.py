"""A hot shard is named, with samples of two processes on real servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from time import monotonic

import pytest

from sqla_shard import unpack
from tests.benchmarks.load import costs_of
from tests.models.mapping_models import Board
from tests.models.mapping_models import BoardHasPins
from tests.models.mapping_models import lists_on_mariadb
from tests.models.mapping_models import pins
from tests.models.mapping_models import SHARDS
from tests.servers.command_line import invoke
from tests.servers.command_line import ROOT
from tests.servers.command_line import write

pytestmark = pytest.mark.live

cluster = lists_on_mariadb("load")

#: Seconds within which a hot shard is named.
PROMISED = 10
HOT = 17


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
    for one in running:
        one.stdin.close()
        one.stdout.close()
        assert one.wait(60) == 0


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


def test_a_hot_shard_is_named_in_time(generators, boards, tmp_path):
    # Both have published, and all shards have the same load.
    end = monotonic() + 60
    while monotonic() < end:
        found, report = load(tmp_path)
        if report and len(report["processes"]) == 2:
            break
    assert found.exit_code == 0, found.output
    assert report["sentences"] == []
    start = monotonic()
    for one in generators:
        one.stdin.write("\n")
        one.stdin.flush()
    while found.exit_code == 0 and monotonic() < start + 6 * PROMISED:
        found, report = load(tmp_path)
    seconds = monotonic() - start
    assert found.exit_code == 1
    hot = [shard for shard in report["shards"] if shard["is_hot"]]
    assert [shard["shard_id"] for shard in hot] == [HOT]
    assert hot[0]["server"]
    assert {key["object_id"] for key in hot[0]["keys"]} == {boards[0]}
    assert {key["is_list"] for key in hot[0]["keys"]} == {True, False}
    assert seconds < PROMISED
    assert unpack(boards[0]).shard_id == HOT


def test_sampling_costs_less_than_1_percent_of_a_get(cluster, boards):
    _, samples = costs_of(cluster, Board, boards[0])
    assert samples.ratio < 0.01
