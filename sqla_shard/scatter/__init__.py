"""Running one statement on many shards: all servers at the same time.

``union``      one statement for the shards of a server
``lanes``      the threads that wait for servers
``awaiting``   the same in an event loop, without threads
``executing``  what SQLAlchemy calls around each statement
"""

from __future__ import annotations

from sqla_shard.scatter.awaiting import AwaitedLanes
from sqla_shard.scatter.executing import execute_everywhere
from sqla_shard.scatter.executing import render_event
from sqla_shard.scatter.lanes import Lanes

__all__ = ["AwaitedLanes", "Lanes", "execute_everywhere", "render_event"]
