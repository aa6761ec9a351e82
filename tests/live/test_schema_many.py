"""The pinboard's tables on many virtual shards of all servers.

256 with ``SQLA_SHARD_SOAK=1``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config

from sqla_shard import Cluster, schema
from sqla_shard.schema import RunOptions, State

pytestmark = pytest.mark.live

SHARDS = 256 if os.environ.get("SQLA_SHARD_SOAK") == "1" else 96
SECOND = """
import sqlalchemy as sa
from alembic import op

revision = "second"
down_revision = {first!r}


def upgrade() -> None:
    op.add_column("pins", sa.Column("likes", sa.Integer(), nullable=True))
"""


def counts(report: schema.RunReport) -> dict[State, int]:
    found = {state: len(report.of(state)) for state in State}
    return {state: count for state, count in found.items() if count}


def test_from_nothing_to_the_second_revision(fleet, tmp_path: Path):
    document = fleet.topology_mapping(
        shards=SHARDS,
        database="db_many{shard:05d}",
        lookup=2,
        lookup_database="lookup_many{shard:05d}",
    )
    topology, ini = tmp_path / "topology.json", tmp_path / "alembic.ini"
    topology.write_text(json.dumps(document), "utf-8")
    fleet.drop_databases(document)
    schema.init(
        tmp_path / "migrations",
        topology=topology,
        config=ini,
        models="examples.pinboard.models:Base",
    )
    config = Config(str(ini))
    options = RunOptions(jobs=2)
    with Cluster.from_file(topology) as cluster:
        try:
            made = schema.provision(config, initial=True, options=options)
            assert counts(made) == {State.CHANGED: SHARDS}
            command.revision(config, "first", autogenerate=True)
            assert counts(schema.upgrade(config, options=options)) == {
                State.CHANGED: SHARDS
            }
            versions = tmp_path / "migrations" / "objects" / "versions"
            [path] = versions.glob("*_first.py")
            (versions / "second.py").write_text(
                SECOND.format(first=path.name[:12]), "utf-8"
            )
            assert not schema.status(config).ok
            assert counts(schema.upgrade(config, options=options)) == {
                State.CHANGED: SHARDS
            }
            again = schema.upgrade(config, options=options)
            assert counts(again) == {State.CURRENT: SHARDS}
            found = schema.status(config)
            assert found.ok
            assert found.histogram() == {("second",): list(range(SHARDS))}
            drift = schema.verify(cluster, keyspace="objects")
            assert drift.ok, str(drift)
        finally:
            fleet.drop_databases(document)
