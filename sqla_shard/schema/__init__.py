"""Alembic over every virtual shard; with the extra ``alembic``.

``drift``         whether the tables of all shards are alike
``drift_reading``, ``drift_comparing``, ``drift_report``  its parts
"""

from __future__ import annotations

from sqla_shard.schema.drift import verify
from sqla_shard.schema.drift_report import DriftReport

__all__ = ["DriftReport", "verify"]
