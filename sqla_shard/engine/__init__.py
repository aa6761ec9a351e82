"""One pool per server, and one statement on many shards in parallel.

An engine is opened on first use and serves every virtual shard of its
server.  :class:`Engines` owns them all; :class:`Places` finds, for one
topology, the engine of a shard.

``rendering``    the SQL for the shards of a server: UNION ALL
``plans``        the shards, limits and report of one execution, its statements
``lanes``        the threads, or event loop, that wait for several servers
``execution``    the statements of a plan, and the merged rows
``merge``        the merge of rows, and the recipes of its values
``values``       numbers and texts of several servers
``overlap``      several executions of one session at the same time
``hooks``        listeners of engines and pools; servers that are retired
``pools``        the pool of one server; probes with a timeout
``registry``     the engines, by server; the virtual shards, by engine
``unreachable``  servers that could not be read

Fork: in a child process every pool is empty, and opens new connections.  The
child's copies of the parent's sockets, idle or in use, are closed
immediately, without sending anything to the server, since the parent still
uses them.
"""

from __future__ import annotations

from sqla_shard.engine.execution import execute_everywhere, execute_many, get_ready
from sqla_shard.engine.lanes import AwaitedLanes, Lanes
from sqla_shard.engine.overlap import overlap, watch_calls
from sqla_shard.engine.plans import (
    ExecutionPlan,
    limits_of,
    OPTION,
    PLACES,
    render_event,
    Sampling,
    Scatter,
    scatter,
    scatter_errors,
    ServerReport,
    StatementReport,
    StatementReports,
)
from sqla_shard.engine.pools import Answer, EngineStats, no_answer
from sqla_shard.engine.registry import by_server, check_layout, Engines, Places

__all__ = [
    "OPTION",
    "PLACES",
    "Answer",
    "AwaitedLanes",
    "EngineStats",
    "Engines",
    "ExecutionPlan",
    "Lanes",
    "Places",
    "Sampling",
    "Scatter",
    "ServerReport",
    "StatementReport",
    "StatementReports",
    "by_server",
    "check_layout",
    "execute_everywhere",
    "execute_many",
    "get_ready",
    "limits_of",
    "no_answer",
    "overlap",
    "render_event",
    "scatter",
    "scatter_errors",
    "watch_calls",
]
