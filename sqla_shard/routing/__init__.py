"""Statement or id -> virtual shards, and why.

``specs``       what is known of a table
``clauses``     questions about parts of a statement
``conditions``  what a WHERE clause says, given its values
``rendered``    what SQLAlchemy makes of a statement
``rows``        rows that are combined, and what ties them to one shard
``forms``       local ids and whole ids, not to be mixed up
``blocks``      the SELECTs of a statement, and where a column is from
``cutting``     what looks at more than one row
``counting``    what counts the rows of a subquery, or looks for any
``reading``     all of a statement
``telling``     what its conditions say of the shards
``shapes``      what the form of a statement says
``router``      the decision
"""

from __future__ import annotations

from sqla_shard.routing.counting import constant
from sqla_shard.routing.counting import counted_select
from sqla_shard.routing.counting import shows_if
from sqla_shard.routing.counting import sought
from sqla_shard.routing.router import check
from sqla_shard.routing.router import Decision
from sqla_shard.routing.router import keyspace_of
from sqla_shard.routing.router import locate
from sqla_shard.routing.router import route
from sqla_shard.routing.shapes import Spread
from sqla_shard.routing.specs import Colocation
from sqla_shard.routing.specs import columns_set
from sqla_shard.routing.specs import declare
from sqla_shard.routing.specs import has_objects
from sqla_shard.routing.specs import is_placed
from sqla_shard.routing.specs import name_of
from sqla_shard.routing.specs import routes
from sqla_shard.routing.specs import routing_column
from sqla_shard.routing.specs import spec_of
from sqla_shard.routing.specs import TableSpec

__all__ = [
    "Colocation",
    "Decision",
    "Spread",
    "TableSpec",
    "check",
    "columns_set",
    "constant",
    "counted_select",
    "declare",
    "has_objects",
    "is_placed",
    "keyspace_of",
    "locate",
    "name_of",
    "route",
    "routes",
    "routing_column",
    "shows_if",
    "sought",
    "spec_of",
]
