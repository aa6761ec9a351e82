"""Operations on other shards, which take effect exactly once.

A transaction is atomic on one virtual shard.  For a write to another shard it
inserts a *pending operation*, a row of ``sqla_shard_intent``, on the shard
that it writes: the name of an :class:`Operation` and its arguments.  The row
exists if, and only if, the transaction has committed.  The operation is
applied right after COMMIT, in a transaction of the other shard that inserts
its token into ``sqla_shard_applied``: if it is applied again, the token is
found, and nothing is done.  After a crash :func:`repair` applies it.

``tables``              tables of the library
``apply``               applying pending operations once
``operations``          functions that are used as operations
``scan``                reads of tables of the library on all shards
``pending_operations``  lists and repair of pending operations
``transaction_keys``    keys of committed transactions
``invalidations``       pending invalidations of the row cache
"""

from __future__ import annotations

from sqla_shard.outbox.operations import Operation, operation
from sqla_shard.outbox.pending_operations import (
    count_pending,
    discard,
    Pending,
    pending,
    PendingCount,
    repair,
    RepairReport,
)

__all__ = [
    "Operation",
    "Pending",
    "PendingCount",
    "RepairReport",
    "count_pending",
    "discard",
    "operation",
    "pending",
    "repair",
]
