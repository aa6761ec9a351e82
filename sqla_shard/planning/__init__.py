"""From a statement to its shards, and from their rows to one result.

Routing: the virtual shards that a statement is sent to, with the reasons.

``specs``        the keyspace and shard key of a table
``clauses``      parts of a statement, and which depend on more than one row
``sources``      the SELECTs of a statement, the rows that they combine, and
                 the shards that a WHERE clause allows, given its values
``reader``       a whole SELECT, UPDATE or DELETE
``router``       the shards that a statement is sent to

Merging: the statement that each shard executes, and the plan of what
:mod:`sqla_shard.engine.merge` makes of its rows.

``elements``     ORDER BY, GROUP BY, LIMIT and hidden columns
``groups``       counts, sums and groups, and expressions of them
``having``       conditions on merged groups
``merge_plan``   the plan of the merge of a SELECT
"""

from __future__ import annotations

from sqla_shard.planning.clauses import (
    constant,
    counted_select,
    exists_columns,
    shows_if,
)
from sqla_shard.planning.elements import (
    by_id_columns,
    capped,
    is_random,
    Ordering,
    orderings,
    same,
    sorted_by_shown,
)
from sqla_shard.planning.groups import is_combined
from sqla_shard.planning.having import of_groups
from sqla_shard.planning.merge_plan import plan
from sqla_shard.planning.router import (
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
from sqla_shard.planning.specs import (
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
    "Ordering",
    "RoutingShape",
    "Spread",
    "Supposition",
    "TableSpec",
    "as_statement",
    "by_id_columns",
    "capped",
    "check",
    "check_mergeable",
    "columns_set",
    "constant",
    "counted_select",
    "declare",
    "declare_new_ids",
    "exists_columns",
    "has_objects",
    "is_combined",
    "is_placed",
    "is_random",
    "keyspace_of",
    "kind_of",
    "locate",
    "name_of",
    "new_ids_of",
    "of_groups",
    "orderings",
    "plan",
    "refusal_of",
    "route",
    "routes",
    "routing_column",
    "same",
    "shape_of",
    "shows_if",
    "sorted_by_shown",
    "spec_of",
    "supposing",
]
