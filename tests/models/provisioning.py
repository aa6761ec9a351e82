"""A small application with revisions, to make databases for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from alembic.config import Config

from sqla_shard import Cluster, schema, Topology
from sqla_shard.exc import ProvisionError

_ENV = """
from alembic import context
from sqlalchemy import MetaData
from sqla_shard.schema import run_env

run_env(context, MetaData())
"""

_FIRST = """
import os
import signal
from pathlib import Path

import sqlalchemy as sa
from alembic import op
from sqla_shard.schema import current_shard

revision = "0001"
down_revision = None


def upgrade():
    shard_id = current_shard().shard_id
    op.create_table(
        "pins",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("data", sa.Text),
    )
    if Path({flags!r}, f"kill{{shard_id}}").exists():
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    if Path({flags!r}, f"fail{{shard_id}}").exists():
        raise RuntimeError("asked to fail")
    more = []
    if Path({flags!r}, f"differ{{shard_id}}").exists():
        more = [sa.Column("odd", sa.Integer)]
    op.create_table(
        "kinds", sa.Column("id", sa.Integer, primary_key=True), *more
    )
    op.execute("INSERT INTO kinds (id) VALUES (1), (2)")


def downgrade():
    op.drop_table("kinds")
    op.drop_table("pins")
"""

_SECOND = """
import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade():
    op.add_column("pins", sa.Column("more", sa.Integer))
    op.execute("INSERT INTO kinds (id) VALUES (3)")


def downgrade():
    raise NotImplementedError
"""


class Project:
    """An ``alembic.ini``, revisions, and the topology that is current.

    :param directory: where to write them.
    :param document: the topology.
    :param keyspace: whose revisions they are.
    """

    def __init__(
        self, directory: Path, document: Mapping[str, Any], keyspace: str = "objects"
    ) -> None:
        self.flags = directory / "flags"
        self.versions = directory / "migrations" / "versions"
        self.topology = directory / "topology.json"
        self.ini = directory / "alembic.ini"
        self.flags.mkdir()
        self.versions.mkdir(parents=True)
        (directory / "migrations" / "env.py").write_text(_ENV)
        self.ini.write_text(
            "[alembic]\nscript_location = %(here)s/migrations\n"
            f"topology = %(here)s/topology.json\nkeyspace = {keyspace}\n"
            "path_separator = os\n"
        )
        first = _FIRST.format(flags=str(self.flags))
        (self.versions / "0001_first.py").write_text(first)
        self.publish(document)

    def publish(self, document: Mapping[str, Any]) -> None:
        """Make a topology the current one."""
        self.topology.write_text(json.dumps(document))

    def second(self) -> None:
        """Write one more revision."""
        (self.versions / "0002_second.py").write_text(_SECOND)

    def config(self) -> Config:
        """Return the configuration for a command."""
        return Config(str(self.ini))

    def provision(
        self, document: Mapping[str, Any] | None = None, **more: Any
    ) -> schema.ProvisionReport:
        """Provision a topology, or the current one for the first time."""
        if document is None:
            return schema.provision(self.config(), initial=True, **more)
        topology = Topology.from_mapping(document)
        return schema.provision(self.config(), topology, **more)

    def flag(self, name: str, *, is_set: bool = True) -> None:
        """Tell the first revision to do something else on a shard."""
        path = self.flags / name
        if is_set:
            path.touch()
        else:
            path.unlink()

    def status(self, document: Mapping[str, Any] | None = None) -> schema.StatusReport:
        """Return where the shards of a topology are."""
        if document is None:
            return schema.status(self.config())
        with Cluster.from_topology(document) as cluster:
            return schema.status(self.config(), cluster=cluster)


def refused(error: ProvisionError) -> list[tuple[str, str]]:
    """Return the places and messages of the problems."""
    assert all(str(one) in str(error) for one in error.problems[:20])
    return [(one.place, one.message) for one in error.problems]
