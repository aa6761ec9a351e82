"""One schema on every virtual shard, by alembic."""

from __future__ import annotations

from sqla_shard.schema.env import current_shard
from sqla_shard.schema.env import run_env

__all__ = ["current_shard", "run_env"]
