"""Databases for the virtual shards that a new topology opens.

``opening``    what a topology opens, and what forbids it
``marking``    the mark of a database that a run has made
``accepting``  databases compared with a shard that is in use
``existing``   databases that are there already
``databases``  making them
"""

from __future__ import annotations

from sqla_shard.schema.provisioning.databases import provision
from sqla_shard.schema.provisioning.databases import ProvisionReport

__all__ = ["ProvisionReport", "provision"]
