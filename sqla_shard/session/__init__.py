"""The session and its parts.

``placement``     the virtual shard of a new object
``transactions``  what a transaction has written, and where
``views``         a server's connection, seen from one shard
``contract``      what the parts ask of the session
``links``         what ties the shards of objects to one another
``unit_of_work``  before a flush
``loading``       get and get_many
``usage``         one thread or task at a time
``bypassing``     the option of reads that go past the cache
``arguments``     the place that a caller names
``inserting``     the shard of a row
``nearest``       where to ask for what every shard has
``statements``    between execute and the server
``core``          :class:`ShardSession`
``begun``         a session and its transaction, for ``with``
"""

from __future__ import annotations

from sqla_shard.session.bypassing import no_cache
from sqla_shard.session.contract import INCLUDE_INACTIVE
from sqla_shard.session.core import CrossShard
from sqla_shard.session.core import ShardSession
from sqla_shard.session.placement import PlacementPolicy
from sqla_shard.session.placement import RandomPlacement

__all__ = [
    "INCLUDE_INACTIVE",
    "CrossShard",
    "PlacementPolicy",
    "RandomPlacement",
    "ShardSession",
    "no_cache",
]
