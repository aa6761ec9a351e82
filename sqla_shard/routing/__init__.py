"""Statement or id -> virtual shards, and why.

``specs``       what is known of a table
``clauses``     questions about parts of a statement
``conditions``  what a WHERE clause says, given its values
``reading``     the tables of a statement and what ties them
``router``      the decision
"""

from __future__ import annotations

from sqla_shard.routing.router import Decision
from sqla_shard.routing.router import keyspace_of
from sqla_shard.routing.router import route
from sqla_shard.routing.specs import Colocation
from sqla_shard.routing.specs import declare
from sqla_shard.routing.specs import spec_of
from sqla_shard.routing.specs import TableSpec

__all__ = [
    "Colocation",
    "Decision",
    "TableSpec",
    "declare",
    "keyspace_of",
    "route",
    "spec_of",
]
