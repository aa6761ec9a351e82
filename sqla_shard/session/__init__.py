"""The session and its parts.

``session``        :class:`ShardSession`, and its listeners of events
``get``            get and get_many, from the row cache or the database
``execute``        the routing of each statement
``connections``    the connections to servers, and their views by shard
``flush``          the shards of objects, before a flush
``insert``         the shards of the rows of an INSERT
``placement``      the virtual shard of a new object, and its id
``transaction``    the writes of a transaction
``commit``         COMMIT, one server after another; invalidation of cached rows
``paging``         pages and bookmarks
``scatter_pages``  pages of a statement on all shards
"""

from __future__ import annotations

from sqla_shard.session.get import INCLUDE_INACTIVE, no_cache
from sqla_shard.session.placement import PlacementPolicy, RandomPlacement
from sqla_shard.session.session import CrossShard, ShardSession

__all__ = [
    "INCLUDE_INACTIVE",
    "CrossShard",
    "PlacementPolicy",
    "RandomPlacement",
    "ShardSession",
    "no_cache",
]
