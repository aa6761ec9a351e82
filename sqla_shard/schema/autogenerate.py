"""What alembic compares with the models."""

from __future__ import annotations

from typing import Any

from sqlalchemy import MetaData

from sqla_shard.topology import Topology

__all__ = ["comparing"]


def comparing(
    metadata: MetaData, *, keyspace: str, topology: Topology
) -> dict[str, Any]:
    """Return settings for ``context.configure()``."""
    return {"target_metadata": metadata}
