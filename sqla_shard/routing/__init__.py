"""Routing of statements to virtual shards, with the reasons.

``specs``       the keyspace and shard key of a table
``clauses``     functions that examine parts of a statement
``sources``     the SELECTs of a statement, and the rows that they combine
``conditions``  the shards that a WHERE clause allows, given its values
``aggregates``  parts of a SELECT that depend on more than one row
``reader``      a whole SELECT, UPDATE or DELETE
``router``      the shards that a statement is sent to
"""

from __future__ import annotations

from sqla_shard.routing.aggregates import constant
from sqla_shard.routing.aggregates import counted_select
from sqla_shard.routing.aggregates import exists_columns
from sqla_shard.routing.aggregates import shows_if
from sqla_shard.routing.router import as_statement
from sqla_shard.routing.router import check
from sqla_shard.routing.router import check_mergeable
from sqla_shard.routing.router import Decision
from sqla_shard.routing.router import keyspace_of
from sqla_shard.routing.router import locate
from sqla_shard.routing.router import refusal_of
from sqla_shard.routing.router import route
from sqla_shard.routing.router import RoutingShape
from sqla_shard.routing.router import shape_of
from sqla_shard.routing.router import Spread
from sqla_shard.routing.specs import ANY_VALUE
from sqla_shard.routing.specs import Colocation
from sqla_shard.routing.specs import columns_set
from sqla_shard.routing.specs import declare
from sqla_shard.routing.specs import declare_new_ids
from sqla_shard.routing.specs import has_objects
from sqla_shard.routing.specs import is_placed
from sqla_shard.routing.specs import kind_of
from sqla_shard.routing.specs import name_of
from sqla_shard.routing.specs import new_ids_of
from sqla_shard.routing.specs import routes
from sqla_shard.routing.specs import routing_column
from sqla_shard.routing.specs import spec_of
from sqla_shard.routing.specs import supposing
from sqla_shard.routing.specs import Supposition
from sqla_shard.routing.specs import TableSpec

__all__ = [
    "ANY_VALUE",
    "Colocation",
    "Decision",
    "RoutingShape",
    "Spread",
    "Supposition",
    "TableSpec",
    "as_statement",
    "check",
    "check_mergeable",
    "columns_set",
    "constant",
    "counted_select",
    "declare",
    "declare_new_ids",
    "exists_columns",
    "has_objects",
    "is_placed",
    "keyspace_of",
    "kind_of",
    "locate",
    "name_of",
    "new_ids_of",
    "refusal_of",
    "route",
    "routes",
    "routing_column",
    "shape_of",
    "shows_if",
    "spec_of",
    "supposing",
]
