"""sqla-shard queue, on SQLite."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sqla_shard import Cluster
from sqla_shard.jobs import claims, tasks
from sqla_shard.testing import sqlite_topology
from tests.models.job_models import add, Base, counter, SHARDS, take
from tests.servers.command_line import invoke, write

MODELS = ("--models", "tests.models.job_models")


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    return write(tmp_path, sqlite_topology(tmp_path / "data", 1, SHARDS))


@pytest.fixture
def cluster(topology: Path) -> Iterator[Cluster]:
    with Cluster.from_file(topology, watch=False) as cluster:
        cluster.create_all(Base.metadata)
        yield cluster


@pytest.fixture
def jobs(cluster: Cluster) -> list[str]:
    """Enqueue jobs, of which the first has failed; return their ids."""
    near = counter(cluster)
    with cluster.begin() as session:
        made = [
            add.enqueue(session, near, near=near, unique_key=key)
            for key in ("a", "b", None)
        ]
    with cluster.begin() as session:
        (job,) = take(session, near, limit=1)
        claims.fail(session, job, "an\nerror", 0, is_final=True)
    return [str(one) for one in made]


@pytest.fixture
def queue(topology: Path, jobs: list[str]) -> Any:
    def run(*arguments: object, status: int = 0) -> Any:
        found = invoke("-t", topology, "queue", *arguments)
        assert found.exit_code == status, found.output
        if "--json" in arguments:
            return json.loads(found.stdout)
        return found.output

    return run


def test_list(queue):
    shown = queue("list", status=1)
    assert shown.startswith("adding: 2 due, the oldest for ")
    assert "1 failed, 0 done" in shown
    (found,) = queue("list", "--json", status=1)["queues"]
    assert (found["due"], found["failed"], found["capped"]) == (2, 1, [])


def test_stats(queue):
    shown = queue("stats", "adding")
    assert shown.splitlines() == ["tests.add: 2 pending", "tests.add: 1 failed"]
    assert queue("stats", "adding", *MODELS) == shown
    assert " --help' for help" in queue("stats", "a b", status=2)


def test_an_unknown_task(queue, cluster, jobs, monkeypatch):
    monkeypatch.delitem(tasks._tasks, "tests.add")
    shown = queue("stats", "adding", *MODELS, status=1)
    assert shown.count("not defined in the modules of --models") == 2
    found = queue("stats", "adding", *MODELS, "--json", status=1)
    assert found["unknown"] == ["tests.add"]
    assert "not defined" in queue("scan", "adding", *MODELS)
    # Without modules it cannot be said.
    assert "not defined" not in queue("scan", "adding")


def test_scan(queue, jobs):
    assert len(queue("scan", "adding").splitlines()) == 3
    (line,) = queue("scan", "adding", "--state", "failed").splitlines()
    assert line.startswith(f"{jobs[0]} tests.add, queue adding, priority 2")
    assert line.endswith("attempt 1 of 3: an error")
    found = queue("scan", "--unique-key", "b", "--json")
    assert [one["id"] for one in found["jobs"]] == [jobs[1]]
    shown = queue("scan", "adding", "--limit", 1)
    assert "more than 1 jobs" in shown
    for bad in ([], ["adding", "--unique-key", "b"], ["a b"]):
        assert " --help' for help" in queue("scan", *bad, status=2)


def test_show(queue, jobs):
    shown = queue("show", jobs[1])
    assert 'arguments: {"counter_id": ' in shown
    assert "key b, pending" in shown
    found = queue("show", jobs[0], "objects/3/9", "--json", status=1)
    assert found["jobs"][0]["error"] == "an\nerror"
    assert found["missing"] == ["objects/3/9"]
    assert " --help' for help" in queue("show", "7", status=2)


def test_retry(queue, jobs):
    assert queue("retry", "--queue", "adding", "--dry-run") == ("1 to be run again\n")
    assert queue("retry", "--queue", "adding") == "1 made pending\n"
    shown = queue("retry", jobs[0], status=1)
    assert shown == f"{jobs[0]} is pending\n0 made pending\n"
    shown = queue("retry", "objects/99/1", status=1)
    assert shown.startswith("sqla-shard: error: shard 99 is not open in keyspace")
    for bad in ([], [jobs[0], "--queue", "adding"], [jobs[0], "--task", "x"]):
        assert " --help' for help" in queue("retry", *bad, status=2)


def test_delete(queue, jobs):
    found = queue("delete", jobs[2], "--json")
    assert found == {"changed": 1, "skipped": [], "unreachable": []}
    assert " --help' for help" in queue("delete", "--queue", "adding", status=2)
    some = ("delete", "--queue", "adding", "--state", "failed")
    assert queue(*some, "--state", "pending") == "2 deleted\n"
    assert queue("list") == "no jobs\n"


def test_pause_and_limit(queue):
    assert queue("limit", "titles", "2.5") == ("titles: open, 2.5 jobs a second\n")
    assert queue("pause", "adding") == "adding: paused, no limit\n"
    assert queue("limit").splitlines() == [
        "adding: paused, no limit",
        "titles: open, 2.5 jobs a second",
    ]
    found = queue("resume", "adding", "--json")
    assert found == {"queue": "adding", "is_paused": False, "per_second": None}
    assert queue("limit", "titles", "none") == "titles: open, no limit\n"
    for bad in (["titles"], ["titles", "x"], ["titles", "-1"], ["a b", "1"]):
        assert " --help' for help" in queue("limit", *bad, status=2)
