"""Running one statement on many shards: all servers at the same time.

``plans``      where an execution goes, and within what limits
``listeners``  what comes after ours
``union``      one statement for the shards of a server
``merge``      one answer of the rows of several shards
``filtering``  which groups of them are shown: HAVING
``computing``  what a server makes of merged numbers
``lanes``      the threads that wait for servers
``awaited_lanes``  the same in an event loop, without threads
``deadlines``  the thread that watches the clock for them
``preparing``  the text of a statement, for each server
``reports``    what became of a statement, for those who want to know
``executing``  running it everywhere, and merging the rows
``hub``        several executions of one session, as greenlets
``awaiting``   the same under asyncio
``overlapping``which of the two, and what has to stay in its thread
"""

from __future__ import annotations

from sqla_shard.scattering.awaited_lanes import AwaitedLanes
from sqla_shard.scattering.executing import execute_everywhere
from sqla_shard.scattering.executing import execute_many
from sqla_shard.scattering.executing import get_ready
from sqla_shard.scattering.lanes import Lanes
from sqla_shard.scattering.merge import Combine
from sqla_shard.scattering.merge import First
from sqla_shard.scattering.merge import Key
from sqla_shard.scattering.merge import Merge
from sqla_shard.scattering.overlapping import overlap
from sqla_shard.scattering.overlapping import watch_calls
from sqla_shard.scattering.plans import limits_of
from sqla_shard.scattering.plans import OPTION
from sqla_shard.scattering.plans import PLACES
from sqla_shard.scattering.plans import Plan
from sqla_shard.scattering.plans import Scatter
from sqla_shard.scattering.plans import scatter
from sqla_shard.scattering.plans import scatter_errors
from sqla_shard.scattering.preparing import render_event
from sqla_shard.scattering.reports import ServerReport
from sqla_shard.scattering.reports import StatementReport
from sqla_shard.scattering.reports import Watch

__all__ = [
    "OPTION",
    "PLACES",
    "AwaitedLanes",
    "Combine",
    "First",
    "Key",
    "Lanes",
    "Merge",
    "Plan",
    "Scatter",
    "ServerReport",
    "StatementReport",
    "Watch",
    "execute_everywhere",
    "execute_many",
    "get_ready",
    "limits_of",
    "overlap",
    "render_event",
    "scatter",
    "scatter_errors",
    "watch_calls",
]
