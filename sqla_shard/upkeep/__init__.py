"""Verification and repair of rows that contradict rows on other shards.

Two shards do not commit atomically, so an interruption can leave a lookup key
or a mapping row without its object.  A run scans whole tables for such rows
while the application is running: it reads primaries in small transactions,
at a limited rate if one is given.

An application that changes related rows in several transactions must not take
longer than ``grace`` from one transaction to the next.

``findings``       kinds of findings, and the report
``position``       the position file of an interrupted run
``check``          interface of a check of one table
``run``            one run: the scan, the second check, repairs
``targets``        the objects to which rows refer
``lookup_repair``  repair of lookup keys
``lookups``        the functions for lookups
``relations``      check and repair of mapping rows
``list_sizes``     the largest lists
``spreading``      moves rows of lists that have more pieces now
``blobs/``         dictionaries of compressed blobs: training, roll-out
"""

from __future__ import annotations

from sqla_shard.engine.unreachable import UnreachableServer
from sqla_shard.upkeep.findings import Finding, Tally, VerifyReport
from sqla_shard.upkeep.list_sizes import largest_lists, ListSize, ListSizes
from sqla_shard.upkeep.lookups import (
    delete_abandoned,
    open_claims,
    OpenClaim,
    verify_lookups,
)
from sqla_shard.upkeep.relations import verify_relations
from sqla_shard.upkeep.run import VerifyProgress
from sqla_shard.upkeep.spreading import spread_rows, SpreadProgress, SpreadReport

__all__ = [
    "Finding",
    "ListSize",
    "ListSizes",
    "OpenClaim",
    "SpreadProgress",
    "SpreadReport",
    "Tally",
    "UnreachableServer",
    "VerifyProgress",
    "VerifyReport",
    "delete_abandoned",
    "largest_lists",
    "open_claims",
    "spread_rows",
    "verify_lookups",
    "verify_relations",
]
