"""Merging the rows of several shards into one result.

``values``     numbers and texts of several servers
``merge``      the merge of rows, and the recipes of its values
``elements``   ORDER BY, GROUP BY, LIMIT and hidden columns
``groups``     counts, sums and groups
``computing``  expressions of several aggregates
``having``     conditions on merged groups
``planning``   the plan of the merge of a SELECT
"""

from __future__ import annotations

from sqla_shard.merging.elements import (
    grouped_by_ids,
    is_random,
    Ordering,
    orderings,
    same,
    sorted_by_shown,
)
from sqla_shard.merging.groups import is_combined
from sqla_shard.merging.having import of_groups
from sqla_shard.merging.planning import plan

__all__ = [
    "Ordering",
    "grouped_by_ids",
    "is_combined",
    "is_random",
    "of_groups",
    "orderings",
    "plan",
    "same",
    "sorted_by_shown",
]
