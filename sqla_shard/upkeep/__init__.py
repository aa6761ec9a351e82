"""Verification and repair of rows that contradict rows on other shards.

Two shards do not commit atomically, so an interruption can leave a lookup key
or a mapping row without its object.  A run scans whole tables for such rows
while the application is running: it reads primaries in small transactions,
at a limited rate if one is given.

An application that changes related rows in several transactions must not take
longer than ``grace`` from one transaction to the next.

``checks``     kinds of findings, the interface of a check, references
``run``        one run: the scan, the second check, repairs, its position
``lookups``    verification and repair of lookup keys
``relations``  verification and repair of mapping rows
``lists``      the largest lists, and rows that belong to another piece
``blobs/``     dictionaries of compressed blobs: training, roll-out
"""

from __future__ import annotations

from sqla_shard.engine.unreachable import UnreachableServer
from sqla_shard.upkeep.checks import Finding, Tally, VerifyReport
from sqla_shard.upkeep.lists import (
    largest_lists,
    ListSize,
    ListSizes,
    spread_rows,
    SpreadProgress,
    SpreadReport,
)
from sqla_shard.upkeep.lookups import (
    delete_abandoned,
    open_claims,
    OpenClaim,
    verify_lookups,
)
from sqla_shard.upkeep.relations import verify_relations
from sqla_shard.upkeep.run import VerifyProgress

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
