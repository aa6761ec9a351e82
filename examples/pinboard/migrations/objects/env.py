"""Alembic runs this file for every command."""

from __future__ import annotations

from alembic import context

from examples.pinboard.models import Base
from sqla_shard.schema import run_env

# The cluster of the demo, if it runs this; otherwise a topology file is used.
cluster = context.config.attributes.get("cluster")

run_env(context, Base.metadata, cluster=cluster)
