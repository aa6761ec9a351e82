"""Databases that have lost the tables of a revision, on servers."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import text

from sqla_shard import Cluster, schema
from sqla_shard.exc import MigrationFailedError, ProvisionError, ShardMissingError
from tests.models.schema import on_servers, Project, runner_fixture
from tests.suites.schema_emptied import Emptied

pytestmark = pytest.mark.live
runner = runner_fixture()
project = on_servers("schempty")


class TestEmptied(Emptied):
    def names(self, project: Project, shard_id: int) -> set[str]:
        _, database = project.place(shard_id)
        rows = project.query(
            shard_id,
            "SELECT table_name FROM information_schema.tables "
            f"WHERE table_schema = '{database}'",
        )
        return {row[0] for row in rows}

    def drop(self, project: Project, shard_id: int) -> None:
        _, database = project.place(shard_id)
        project.query(shard_id, f"DROP DATABASE IF EXISTS {database}")

    def made_anew(self, project: Project, shard_id: int) -> None:
        self.drop(project, shard_id)
        _, database = project.place(shard_id)
        project.query(shard_id, f"CREATE DATABASE {database}")

    def set_aside(self, project: Project, shard_id: int) -> None:
        for name in self.names(project, shard_id):
            project.query(shard_id, f"RENAME TABLE {{db}}{name} TO {{db}}{name}_old")


def test_a_process_with_an_old_topology_gets_no_empty_tables(project: Project) -> None:
    """Shards 2 and 3 have left server2; a late process goes on there."""
    project.add(
        "0001",
        """
op.create_table(
    "pins",
    sa.Column("local_id", sa.BigInteger, primary_key=True),
    sa.Column("type_id", sa.Integer),
)
""",
    )
    schema.upgrade(project.config())
    path = project.directory / "topology.json"
    with Cluster.from_file(path) as late:
        for shard_id in (2, 3):
            _, name = project.place(shard_id)
            project.query(shard_id, f"DROP DATABASE {name}")
            project.query(shard_id, f"CREATE DATABASE {name}")

        def write() -> None:
            with late.begin() as session:
                session.execute(
                    text("INSERT INTO pins VALUES (1, 1)"),
                    bind_arguments={"shard_id": 3},
                )

        with pytest.raises(ShardMissingError, match="higher epoch") as caught:
            write()
        for remedy in re.findall(r"sqla-shard schema (\w+)", str(caught.value)):
            # The advised command creates no empty tables there.
            if remedy == "status":
                assert not schema.status(project.config()).ok
            elif remedy == "upgrade":
                with pytest.raises(MigrationFailedError, match="shard 0-1"):
                    schema.upgrade(project.config())
            else:
                assert remedy == "provision"
                with pytest.raises(ProvisionError):
                    schema.provision(project.config(), late.topology)
        with pytest.raises(ShardMissingError):
            write()
