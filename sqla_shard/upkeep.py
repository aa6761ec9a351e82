"""What is done for a cluster beside its sessions, from time to time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqla_shard.committed import CommittedKey
from sqla_shard.committed import find_halves
from sqla_shard.committed import find_key
from sqla_shard.committed import HalfCommit
from sqla_shard.committed import MINUTE
from sqla_shard.intents import count_pending
from sqla_shard.intents import Pending
from sqla_shard.intents import pending
from sqla_shard.intents import PendingCount
from sqla_shard.intents import repair
from sqla_shard.intents import RepairReport
from sqla_shard.intents.repairing import KEEP
from sqla_shard.tokens import forget

__all__ = ["Upkeep"]


class Upkeep:
    """The part of :class:`~sqla_shard.Cluster` for its operators."""

    def pending(self: Any) -> list[Pending]:
        """Return the operations that transactions have left, oldest first.

        A healthy cluster has those of the last moments; see :meth:`repair`.

        :returns: of each shard at most 200; :meth:`count_pending` counts
            all of them.
        """
        return pending(self)

    def count_pending(self: Any) -> list[PendingCount]:
        """Return how many calls of each operation wait to be done.

        It counts all of them, on every shard.

        :returns: in the order of the operations' names.
        :raises SQLAlchemyError: when a server cannot be asked.
        """
        return count_pending(self)

    def repair(
        self: Any, *, keep: timedelta = KEEP, now: bool = False
    ) -> RepairReport:
        """Apply the operations that transactions have left and not done.

        That is what ``sqla-shard repair`` calls again and again.  The
        modules that define the operations must have been imported.

        :param keep: how long an operation that was applied is remembered: a
            process that stands still for longer in the middle of applying
            one would do it a second time.
        :param now: also apply what is not due yet: what the process that has
            left it, or another worker, is given time for; and what has
            failed a short time ago.
        :raises ValueError: when that makes no sense.
        """
        return repair(self, keep=keep, now=now)

    def find_key(self: Any, key: str) -> list[CommittedKey]:
        """Return the shards on which a key of :meth:`run` has committed.

        That answers what became of a transaction whose caller is gone.  All
        shards are asked, and none is locked: one that is about to commit is
        not among them yet.  Nor is a key that was forgotten, or one whose
        transaction has written nothing.

        :returns: mostly one; several where transactions with one key have
            written different shards first; none where none has committed.
        :raises ValueError: when it cannot be a key.
        :raises SQLAlchemyError: when a server cannot be asked, or a shard
            does not have the table.
        """
        return find_key(self, key)

    def find_halves(
        self: Any, older_than: timedelta = MINUTE
    ) -> list[HalfCommit]:
        """Return what :meth:`run` has committed on some servers only.

        That is what a process has left that was killed between two COMMITs
        of ``run(key=..., cross_shard="ordered")``; without a key nothing is
        known of it.  It is listed until its key is forgotten.

        :param older_than: more than the COMMITs of one transaction take.
        :returns: the oldest first.
        :raises ValueError: when the age makes no sense.
        :raises SQLAlchemyError: when a server cannot be asked, or a shard
            does not have the table.
        """
        return find_halves(self, older_than)

    def forget_keys(
        self: Any, older_than: timedelta, *, batch: int = 1000
    ) -> int:
        """Delete old keys of :meth:`run` on every shard.

        A transaction that is repeated with a key that was forgotten is done
        a second time: let them be older than anything that may still be
        repeated, such as a message in a queue.

        :param older_than: by the clocks of the servers.
        :param batch: how many a transaction deletes at most.
        :returns: how many were deleted.
        :raises ValueError: when an argument makes no sense.
        """
        return forget(self.places, older_than, batch)

    async def async_forget_keys(
        self: Any, older_than: timedelta, *, batch: int = 1000
    ) -> int:
        """Delete old keys on every shard; see :meth:`forget_keys`."""
        count: int = await self._loops.run(
            forget, older_than=older_than, batch=batch
        )
        return count
