"""Databases of virtual shards that a topology opens: real servers."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sqla_shard import Cluster
from sqla_shard.exc import MigrationFailedError, ProvisionError
from sqla_shard.schema import RunOptions, State
from sqla_shard.testing.server_fleet import ServerFleet
from tests.models.provisioning import Project, refused
from tests.servers.kinds import own_fleet

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
TWO = RunOptions(jobs=2)
_PROVISION = """
import json
import sys
from alembic.config import Config
from sqla_shard import Topology
from sqla_shard.schema import provision
from sqla_shard.schema import RunOptions

document = json.loads(sys.argv[2])
topology = Topology.from_mapping(document)
provision(Config(sys.argv[1]), topology, options=RunOptions(jobs=2))
"""


class World:
    """Two servers of the fleet, and their databases."""

    def __init__(self, fleet: ServerFleet[Any], directory: Path) -> None:
        self.fleet = fleet
        self.servers = fleet.servers[:2]
        self.document = self.topology(1, [[0, 7]], [[8, 15]])
        self.grown = self.topology(2, [[0, 7], [16, 19]], [[8, 15], [20, 23]])
        self.project = Project(directory, self.document)

    def topology(
        self, epoch: int, *ranges: Any, database: str = "db_prov_{shard:05d}"
    ) -> dict[str, Any]:
        """Return the topology of two servers."""
        document = self.fleet.topology_mapping(epoch=epoch, database=database)
        objects = document["keyspaces"]["objects"]
        objects["servers"] = objects["servers"][:2]
        for server, pairs in zip(objects["servers"], ranges, strict=True):
            server["shards"] = pairs
        objects["shards"] = 1 + max(last for pairs in ranges for _, last in pairs)
        return document

    def execute(self, server: int, *statements: str) -> list[Any]:
        """Run statements as the application, and fetch from the last."""
        rows: list[Any] = []
        with (
            closing(self.servers[server].connect(autocommit=True)) as found,
            found.cursor() as cursor,
        ):
            for statement in statements:
                cursor.execute(statement)
                rows = list(cursor.fetchall())
        return rows

    def databases(self) -> list[list[str]]:
        """Return the names of the databases on each server, in short."""
        return [
            sorted(
                row[0].removeprefix("db_prov_000")
                for row in self.execute(server, "SHOW DATABASES")
                if row[0].startswith("db_prov")
            )
            for server in range(2)
        ]

    def clean(self) -> None:
        """Drop the databases, wherever they are."""
        for server, names in enumerate(self.databases()):
            drops = [f"DROP DATABASE db_prov_000{name}" for name in names]
            self.execute(server, *drops)


fleet = own_fleet(2, 16)


@pytest.fixture
def world(fleet: ServerFleet[Any], tmp_path: Path) -> Iterator[World]:
    found = World(fleet, tmp_path)
    found.clean()
    yield found
    found.clean()


def start(world: World, document: dict[str, Any]) -> subprocess.Popen[str]:
    """Let another process provision."""
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            _PROVISION,
            str(world.project.ini),
            json.dumps(document),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_growing_from_16_to_24_shards(world: World) -> None:
    first = world.project.provision(options=TWO)
    assert len(first.of(State.CHANGED)) == 16
    # Made by a DBA, and empty.
    world.execute(
        0, "CREATE DATABASE db_prov_00017 CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    )
    with Cluster.from_topology(world.document) as cluster:
        report = world.project.provision(world.grown, options=TWO, cluster=cluster)
        # No connection of its pools is left with a database of its own.
        place = cluster.places.place(cluster.topology.keyspace("objects"), 0)
        with place.engine.connect() as connection:
            found = connection.exec_driver_sql("SELECT DATABASE()").scalar()
            assert found is None
    assert report.may_be_published
    assert [one.shard_id for one in report.outcomes] == list(range(16, 24))
    assert {one.state for one in report.outcomes} == {State.CHANGED}
    assert world.databases()[0][-4:] == ["16", "17", "18", "19"]
    assert world.databases()[1][-4:] == ["20", "21", "22", "23"]
    assert world.project.status(world.grown).ok
    assert world.execute(1, "SELECT id FROM db_prov_00023.kinds") == [(1,), (2,)]
    [mark] = world.execute(
        1,
        "SELECT revision, state, tables_before, is_open "
        "FROM db_prov_00023.sqla_shard_ledger WHERE direction = 'provision'",
    )
    assert mark == ("epoch 2", "finished", '{"kinds": 2}', 0)
    again = world.project.provision(world.grown, options=TWO)
    assert len(again.of(State.CURRENT)) == 8
    world.project.publish(world.grown)
    assert world.project.status().ok
    # An object there, and the old topology by mistake.
    world.execute(1, "INSERT INTO db_prov_00023.pins (data) VALUES ('x')")
    world.project.publish(world.document)
    with pytest.raises(ProvisionError) as raised:
        world.project.provision(world.grown, options=TWO)
    [(place, message)] = refused(raised.value)
    assert place == "db_prov_00023 on server2"
    assert "in pins; it may be in use" in message


def test_obstacles(world: World) -> None:
    small = world.topology(1, [[0, 0]], [[1, 1]])
    grown = world.topology(2, [[0, 0], [2, 3]], [[1, 1], [4, 4]])
    world.project.publish(small)
    world.project.provision(options=TWO)
    world.execute(1, "CREATE DATABASE db_prov_00002")
    world.execute(
        0, "CREATE DATABASE db_prov_00003", "CREATE TABLE db_prov_00003.pins (id INT)"
    )
    with pytest.raises(ProvisionError) as raised:
        world.project.provision(grown, options=TWO)
    found = dict(refused(raised.value))
    assert set(found) == {"db_prov_00002 on server2", "db_prov_00003 on server1"}
    assert "places on server1" in found["db_prov_00002 on server2"]
    assert "created: pins. It may" in found["db_prov_00003 on server1"]
    assert world.databases() == [["00", "03"], ["01", "02"]]
    assert world.fleet.servers[0].password not in str(raised.value)
    world.execute(1, "DROP DATABASE db_prov_00002")
    world.execute(0, "DROP TABLE db_prov_00003.pins")
    # With defaults of its own: its tables would not be like the others'.
    world.execute(0, "ALTER DATABASE db_prov_00003 CHARACTER SET latin1")
    with pytest.raises(MigrationFailedError) as failed:
        world.project.provision(grown, options=TWO)
    assert failed.value.shards == (3,)
    assert "defaults of the database" in str(failed.value)
    assert "latin1" in str(failed.value)
    world.execute(0, "DROP DATABASE db_prov_00003")
    assert world.project.provision(grown, options=TWO).may_be_published


def test_a_server_that_does_not_answer(world: World) -> None:
    small = world.topology(1, [[0, 0]], [[1, 1]])
    world.project.publish(small)
    world.project.provision(options=TWO)
    grown = world.topology(2, [[0, 0], [2, 2]], [[1, 1]])
    grown["keyspaces"]["objects"]["shards"] = 4
    grown["keyspaces"]["objects"]["servers"].append(
        {
            "name": "server3",
            "primary": "mysql://app:hidden@127.0.0.1:1",
            "shards": [3, 3],
        }
    )
    with pytest.raises(ProvisionError) as raised:
        world.project.provision(grown, options=TWO)
    [(place, message)] = refused(raised.value)
    assert place == "server3"
    assert "databases could not be listed" in message
    assert "hidden" not in str(raised.value)
    assert world.databases() == [["00"], ["01"]]


@pytest.mark.thorough
def test_killed_in_the_middle_and_run_again(world: World) -> None:
    small = world.topology(1, [[0, 0]], [[1, 1]])
    grown = world.topology(2, [[0, 0], [2, 5]], [[1, 1], [6, 9]])
    world.project.publish(small)
    world.project.provision(options=TWO)
    world.project.flag("kill4")
    process = start(world, grown)
    _, stderr = process.communicate()
    assert process.returncode == -9, stderr
    [(table,)] = world.execute(0, "SHOW TABLES FROM db_prov_00004 LIKE 'p%'")
    assert table == "pins"
    states = world.execute(
        0,
        "SELECT state FROM db_prov_00004.sqla_shard_ledger "
        "WHERE direction = 'provision'",
    )
    assert states == [("started",)]
    # Killed between CREATE DATABASE and its mark.
    world.execute(
        1,
        "CREATE DATABASE IF NOT EXISTS db_prov_00009 "
        "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    )
    world.project.flag("kill4", is_set=False)
    report = world.project.provision(grown, options=TWO)
    assert report.may_be_published
    assert report.of(State.CURRENT)
    assert world.project.status(grown).ok
    for shard_id in range(2, 10):
        rows = world.execute(
            shard_id // 6, f"SELECT id FROM db_prov_{shard_id:05d}.kinds"
        )
        assert rows == [(1,), (2,)], shard_id


@pytest.mark.thorough
def test_two_at_once(world: World) -> None:
    small = world.topology(1, [[0, 0]], [[1, 1]])
    grown = world.topology(2, [[0, 0], [2, 7]], [[1, 1], [8, 13]])
    world.project.publish(small)
    world.project.provision(options=TWO)
    for process in [start(world, grown) for _ in range(2)]:
        _, stderr = process.communicate()
        assert process.returncode == 0, stderr
    report = world.project.provision(grown, options=TWO)
    assert len(report.of(State.CURRENT)) == 12
    for shard_id in range(2, 14):
        rows = world.execute(
            shard_id // 8, f"SELECT id FROM db_prov_{shard_id:05d}.kinds"
        )
        assert rows == [(1,), (2,)], shard_id


def test_without_the_right_to_create(world: World) -> None:
    document = world.topology(1, [[0, 1]], [[2, 3]], database="nope_prov_{shard:05d}")
    world.project.publish(document)
    with pytest.raises(MigrationFailedError) as raised:
        world.project.provision(options=TWO)
    report = copy.deepcopy(raised.value.report)
    states = [one["state"] for one in report["shards"]]
    assert states == ["failed", *["not attempted"] * 3]
    message = str(raised.value)
    assert "nope_prov_00000 could not be created: (1044, " in message
    assert "the privilege to create nope_prov_00000" in message
    assert "must not be published" in message
