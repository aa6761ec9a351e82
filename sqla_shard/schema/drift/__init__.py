"""Whether the tables of all virtual shards are alike.

``report``     what was found, for people and as JSON
``reading``    one server, asked what it has
``comparing``  databases against that of the reference shard
``verifying``  all servers at the same time
"""

from __future__ import annotations

from sqla_shard.schema.drift.report import DriftReport
from sqla_shard.schema.drift.verifying import verify

__all__ = ["DriftReport", "verify"]
