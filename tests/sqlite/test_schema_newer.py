"""Topologies that are published while an upgrade runs."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sqla_shard import Cluster, schema, Topology
from sqla_shard.cli.program import program
from sqla_shard.exc import MigrationFailedError
from sqla_shard.schema import RunOptions
from sqla_shard.schema.reports import CommandProgress
from sqla_shard.testing import sqlite_topology
from tests.models.schema import Project

PINS = 'op.execute("CREATE TABLE pins (n INT)")'
MOVED = "elsewhere in a newer topology"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    document = sqlite_topology(tmp_path / "data", 2, 4)
    found = Project(tmp_path, document)
    found.add("0001", PINS)
    schema.provision(found.config(), initial=True)
    return found


def moved(project: Project, shards: int = 4) -> dict[str, Any]:
    """Return a topology with shard 3 on server1."""
    document = copy.deepcopy(project.document)
    document["epoch"] = 2
    keyspace = document["keyspaces"]["objects"]
    keyspace["shards"] = shards
    first, second = keyspace["servers"]
    first["shards"] = [[0, 1], [3, shards - 1]]
    second["shards"] = [2, 2]
    return document


class During(CommandProgress):
    """Does something once, when so many shards are done.

    :param number: how many.
    """

    def __init__(self, number: int, do: Callable[[], object]) -> None:
        self._left = number
        self._do = do

    def advance(self, outcome: Any) -> None:
        self._left -= 1
        if not self._left:
            self._do()


def failed(project: Project, progress: During, **more: Any) -> Any:
    project.add("0002", 'op.execute("CREATE TABLE boards (n INT)")')
    options = RunOptions(jobs=1, **more)
    with pytest.raises(MigrationFailedError) as caught:
        schema.upgrade(project.config(), options=options, progress=progress)
    return caught.value


def states(error: Any) -> list[str]:
    return [one["state"] for one in error.report["shards"]]


def publish(project: Project, document: dict[str, Any]) -> None:
    """Copy as a move does: the copy has the old tables."""
    source = project.file(3)
    project.document = document
    source.rename(project.file(3))
    project.write_topology(document)


def test_a_shard_that_is_moved_between_waves_ends_the_run(project: Project) -> None:
    during = During(1, lambda: publish(project, moved(project)))
    error = failed(project, during)
    assert states(error) == ["changed", *["not attempted"] * 2, MOVED]
    assert "epoch 2 was published" in str(error)
    assert "the shard is on server1" in str(error)
    schema.upgrade(project.config())
    assert schema.status(project.config()).ok


def test_one_that_is_moved_at_the_end_is_reported(project: Project) -> None:
    during = During(4, lambda: publish(project, moved(project)))
    error = failed(project, during)
    assert states(error) == [*["changed"] * 3, MOVED]
    schema.upgrade(project.config())


def test_others_go_on_where_errors_do_not_end_it(project: Project) -> None:
    during = During(1, lambda: publish(project, moved(project)))
    error = failed(project, during, continue_on_error=True)
    assert states(error) == [*["changed"] * 3, MOVED]


def test_shards_that_were_opened_meanwhile_are_reported(project: Project) -> None:
    document = copy.deepcopy(project.document)
    document["epoch"] = 2
    keyspace = document["keyspaces"]["objects"]
    keyspace["shards"] = 6
    keyspace["servers"][1]["shards"] = [2, 5]
    during = During(4, lambda: project.write_topology(document))
    error = failed(project, during)
    assert states(error) == [*["changed"] * 4, MOVED, MOVED]
    assert error.shards == (4, 5)


def test_shards_that_were_not_selected_are_ignored(project: Project) -> None:
    project.add("0002", 'op.execute("CREATE TABLE boards (n INT)")')
    during = During(1, lambda: project.write_topology(moved(project, 6)))
    report = schema.upgrade(
        project.config(), options=RunOptions(shards=(0, 1, 2)), progress=during
    )
    assert report.ok


def test_another_epoch_with_all_shards_where_they_are(project: Project) -> None:
    document = copy.deepcopy(project.document)
    document["epoch"] = 2
    document["keyspaces"]["objects"]["servers"][0]["weight"] = 3
    project.add("0002", 'op.execute("CREATE TABLE boards (n INT)")')
    during = During(1, lambda: project.write_topology(document))
    assert schema.upgrade(project.config(), progress=during).ok


def test_a_topology_that_cannot_be_read_again(project: Project) -> None:
    path = project.directory / "topology.json"
    error = failed(project, During(4, path.unlink))
    assert states(error) == ["changed"] * 4
    assert not error.report["ok"]
    assert "topology.json" in error.report["topology_error"]
    assert "repeat the command" in str(error)


def test_a_cluster_that_follows_its_topology(project: Project) -> None:
    project.add("0002", 'op.execute("CREATE TABLE boards (n INT)")')
    with Cluster.from_topology(project.document) as cluster:
        new = Topology.from_mapping(moved(project))
        during = During(4, lambda: cluster.update_topology(new))
        with pytest.raises(MigrationFailedError) as caught:
            schema.upgrade(project.config(), cluster=cluster, progress=during)
    assert states(caught.value) == [*["changed"] * 3, MOVED]


def test_the_program_reads_its_topology_again(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.add("0002", 'op.execute("CREATE TABLE boards (n INT)")')
    path = project.directory / "other.json"
    (project.directory / "topology.json").rename(path)
    new = json.dumps(moved(project))
    during = During(4, lambda: path.write_text(new))
    monkeypatch.setattr(schema, "progress_on", lambda file: during)
    arguments = ("schema", "--config", project.ini, "upgrade")
    done = CliRunner().invoke(program, ["-t", str(path), *arguments])
    assert done.exit_code == 1
    assert f"1 {MOVED}: 3" in done.stdout


def test_provision_reports_another_topology(project: Project) -> None:
    document = copy.deepcopy(project.document)
    document["epoch"] = 2
    keyspace = document["keyspaces"]["objects"]
    keyspace["shards"] = 6
    keyspace["servers"][1]["shards"] = [2, 5]
    new = Topology.from_mapping(document)
    schema.upgrade(project.config())
    # By mistake, before its databases were there.
    during = During(1, lambda: project.write_topology(document))
    assert schema.provision(project.config(), new, progress=during).ok
    for shard_id in (4, 5):
        (project.file(3).parent / f"db{shard_id:05d}.sqlite").unlink()
    project.write_topology(project.document)
    other = During(2, lambda: project.write_topology(moved(project)))
    with pytest.raises(MigrationFailedError, match="epoch 2 was published"):
        schema.provision(
            project.config(), new, progress=other, options=RunOptions(jobs=1)
        )
