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

from sqla_shard.routing.aggregates import (
    constant,
    counted_select,
    exists_columns,
    shows_if,
)
from sqla_shard.routing.router import (
    as_statement,
    check,
    check_mergeable,
    Decision,
    keyspace_of,
    locate,
    refusal_of,
    route,
    RoutingShape,
    shape_of,
    Spread,
)
from sqla_shard.routing.specs import (
    ANY_VALUE,
    Colocation,
    columns_set,
    declare,
    declare_new_ids,
    has_objects,
    is_placed,
    kind_of,
    name_of,
    new_ids_of,
    routes,
    routing_column,
    spec_of,
    supposing,
    Supposition,
    TableSpec,
)

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
