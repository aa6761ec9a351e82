"""What has to be done with the rows of several shards, and asked for.

``elements``   the parts of a SELECT that look at many rows
``combining``  counts, sums and groups
``computing``  what is made of several aggregates
``having``     which groups are shown
``planning``   all of a SELECT
"""

from __future__ import annotations

from sqla_shard.merging.combining import is_combined
from sqla_shard.merging.elements import is_random
from sqla_shard.merging.elements import Ordering
from sqla_shard.merging.elements import orderings
from sqla_shard.merging.elements import same
from sqla_shard.merging.having import of_groups
from sqla_shard.merging.planning import plan

__all__ = [
    "Ordering",
    "is_combined",
    "is_random",
    "of_groups",
    "orderings",
    "plan",
    "same",
]
