"""One pool per server, and one statement on many shards in parallel.

An engine is opened on first use and serves every virtual shard of its
server.  :class:`Engines` owns them all; :class:`Places` finds, for one
topology, the engine of a shard.

``rendering``    the SQL for the shards of a server: UNION ALL
``plans``        the shards and limits of one execution, and its report
``preparation``  each statement, before it is sent
``lanes``        the threads, or event loop, that wait for several servers
``polled_lanes`` one thread that polls the sockets of several servers
``execution``    the statements of a plan, and the merged rows
``merge``        the merge of rows, and the recipes of its values
``values``       numbers and texts of several servers
``hub``          several executions of one session, as greenlets
``overlapping``  the same with or without an event loop
``hooks``        listeners of engines and pools; servers that are retired
``pools``        the pool of one server; probes with a timeout
``registry``     the engines, by server
``locations``    the virtual shards of a topology, by engine
``unread``       servers that could not be read

Fork: in a child process every pool is empty, and opens new connections.  The
child's copies of the parent's sockets, idle or in use, are closed
immediately, without sending anything to the server, since the parent still
uses them.
"""

from __future__ import annotations

from sqla_shard.engine.execution import execute_everywhere, execute_many, get_ready
from sqla_shard.engine.lanes import AwaitedLanes, Lanes
from sqla_shard.engine.locations import by_server, check_layout, Places
from sqla_shard.engine.overlapping import overlap, watch_calls
from sqla_shard.engine.plans import (
    ExecutionPlan,
    limits_of,
    OPTION,
    PLACES,
    Scatter,
    scatter,
    scatter_errors,
    ServerReport,
    StatementReport,
    StatementReports,
)
from sqla_shard.engine.pools import Answer, EngineStats, no_answer
from sqla_shard.engine.preparation import render_event, Sampling
from sqla_shard.engine.registry import Engines

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
