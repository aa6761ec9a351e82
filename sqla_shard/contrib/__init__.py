"""Parts of applications on shards: a follow graph and home feeds.

The modules use the package as an application does, and are meant to be read,
and copied where another rule is needed.

``edges``           the four tables of a follow graph
``follows``         who follows whom: lists, counts, following and blocking
``redis_stores``    feeds and lists of a follow graph in Redis
``feeds``           home feeds, of the tables or in Redis
``follow_repair``   both sides of the edges are compared and repaired
``stored_follows``  the lists of a follow graph, read from Redis
"""

from __future__ import annotations

from sqla_shard.contrib.edges import BoardChoice, FollowKind, Related
from sqla_shard.contrib.feeds import Feed, FeedItem
from sqla_shard.contrib.follow_repair import (
    forget_deleted_board,
    purge_follows,
    repair_follows,
    RepairedFollows,
)
from sqla_shard.contrib.follows import Follows, Relations
from sqla_shard.contrib.redis_stores import Entry, FeedStore, FollowStore
from sqla_shard.contrib.stored_follows import StoredFollows

__all__ = [
    "BoardChoice",
    "Entry",
    "Feed",
    "FeedItem",
    "FeedStore",
    "FollowKind",
    "FollowStore",
    "Follows",
    "Related",
    "Relations",
    "RepairedFollows",
    "StoredFollows",
    "forget_deleted_board",
    "purge_follows",
    "repair_follows",
]
