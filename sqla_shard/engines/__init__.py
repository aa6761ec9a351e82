"""One engine and one pool for each physical server.

An engine is opened on first use and serves every virtual shard of its
server.  :class:`Engines` owns them all; :class:`Places` says, for one
topology, which of them has a shard.

``connections``  what happens to connections, from taking to giving back
``pools``        what a pool holds
``retiring``     servers that have left the topology
``urls``         of servers, with their secrets
``asking``       whether servers answer
``registry``     the engines, by server
``places``       the virtual shards on them
``troubles``     those that could not be read

Fork: a child process finds every pool empty and opens connections of its
own.  Its copies of the parent's sockets, idle or in use, are closed at once
and without a word to the server, since the parent goes on using them.
"""

from __future__ import annotations

from sqla_shard.engines.asking import Answer
from sqla_shard.engines.asking import no_answer
from sqla_shard.engines.places import by_server
from sqla_shard.engines.places import Places
from sqla_shard.engines.pools import EngineStats
from sqla_shard.engines.registry import Engines

__all__ = [
    "Answer",
    "EngineStats",
    "Engines",
    "Places",
    "by_server",
    "no_answer",
]
