"""Operations on other shards, done once, whatever happens in between.

A transaction is atomic on one virtual shard.  What it wants done on others
it leaves there as an *intent*: the name of an :class:`Operation` and its
arguments, a row of ``sqla_shard_intent`` on the shard that it writes itself.
So the intent is there if, and only if, the transaction has committed.  It is
applied right after COMMIT, in a transaction of the other shard that writes
the intent's token into ``sqla_shard_applied``: whoever applies it again
finds that, and does nothing.  What a crash has left is found, and finished,
by :func:`repair`.

``registry``   functions by name
``intent``     an intent, and where it is
``applying``   doing what intents say
``writing``    leaving intents in a transaction
``operations`` functions that can be left so
``reading``    what all shards have
``pending``    which intents there are
``repairing``  finishing what was left, and forgetting what is done
"""

from __future__ import annotations

from sqla_shard.intents.operations import Operation
from sqla_shard.intents.operations import operation
from sqla_shard.intents.pending import count_pending
from sqla_shard.intents.pending import discard
from sqla_shard.intents.pending import Pending
from sqla_shard.intents.pending import pending
from sqla_shard.intents.pending import PendingCount
from sqla_shard.intents.repairing import repair
from sqla_shard.intents.repairing import RepairReport

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
