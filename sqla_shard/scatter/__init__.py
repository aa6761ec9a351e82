"""Running one statement on many shards: all servers at the same time.

``union``        one statement for the shards of a server
``lanes``        the threads that wait for servers
``executing``    what SQLAlchemy calls around each statement
``hub``          several executions of one session, as greenlets
``awaiting``     the same under asyncio
``overlapping``  which of the two, and what has to stay in its thread
"""

from __future__ import annotations

from sqla_shard.scatter.executing import execute_everywhere
from sqla_shard.scatter.executing import render_event
from sqla_shard.scatter.lanes import Lanes
from sqla_shard.scatter.overlapping import overlap
from sqla_shard.scatter.overlapping import watch_calls

__all__ = [
    "Lanes",
    "execute_everywhere",
    "overlap",
    "render_event",
    "watch_calls",
]
