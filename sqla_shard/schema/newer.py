"""Shards that a topology published during a run has elsewhere.

A run takes minutes or hours, and reads the topology at its beginning.  A
shard that was moved meanwhile was copied with the tables of before, or after,
its turn; one that was opened was provisioned with some revision.  So the
report says that neither is known to be as the command wants it.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from dataclasses import replace
from typing import TypeVar

from sqla_shard.exc import ShardError
from sqla_shard.schema.reports import Outcome
from sqla_shard.schema.reports import RunReport
from sqla_shard.schema.reports import State
from sqla_shard.topology import Keyspace
from sqla_shard.topology import Topology
from sqla_shard.topology.urls import address_of

__all__ = ["Newer"]

R = TypeVar("R", bound=RunReport)


class Newer:
    """Compares the topology of a run with the one that is there now.

    :param old: that of the run.
    :param keyspace: the name of the run's keyspace.
    :param read: returns the topology that is there now.
    """

    def __init__(
        self, old: Topology, keyspace: str, read: Callable[[], Topology]
    ) -> None:
        self._old = old
        self._name = keyspace
        self._read = read

    def moves(self, shard_ids: Collection[int]) -> bool:
        """Tell whether one of some shards is elsewhere, as far as is known.

        False where the topology cannot be read: :meth:`judged` says so.
        """
        try:
            found = self._elsewhere(self._read())
        except ShardError:
            return False
        return not found.isdisjoint(shard_ids)

    def judged(self, report: RunReport, *, all_shards: bool) -> RunReport:
        """Return a report again, with what a newer topology changes in it.

        :param all_shards: whether the run was for all of the keyspace.
        """
        try:
            new = self._read()
        except ShardError as error:
            return _unread(report, error)
        changed = self._elsewhere(new)
        had = {one.shard_id for one in report.outcomes}
        outcomes = [
            replace(one, state=State.MOVED, error=self._reason(new, one))
            if one.shard_id in changed
            else one
            for one in report.outcomes
        ]
        after = new.keyspaces.get(self._name)
        if all_shards and after is not None:
            outcomes += [
                _opened(new, after, shard_id)
                for shard_id in sorted(changed - had)
            ]
        return replace(report, outcomes=tuple(outcomes))

    def unchanged(self, report: R, new: Topology) -> R:
        """Return a report again; not good if the topology is another now.

        :param new: what may have been published meanwhile.
        """
        try:
            found = self._read()
        except ShardError as error:
            return _unread(report, error)
        if found in (self._old, new):
            return report
        return replace(
            report,
            topology_error=f"the topology of epoch {found.epoch} was "
            "published during this run",
        )

    def _elsewhere(self, new: Topology) -> set[int]:
        """Return the shards that are elsewhere, opened or closed."""
        before = self._old.keyspace(self._name)
        after = new.keyspaces.get(self._name)
        if new == self._old:
            return set()
        if after is None:
            return set(before.shard_ids)
        common = min(before.shards, after.shards)
        found = set(range(common, max(before.shards, after.shards)))
        return found | {
            shard_id
            for shard_id in range(common)
            if _place(before, shard_id) != _place(after, shard_id)
        }

    def _reason(self, new: Topology, outcome: Outcome) -> str:
        after = new.keyspaces.get(self._name)
        where = "is not there any more"
        if after is not None and outcome.shard_id < after.shards:
            server = after.server_for(outcome.shard_id)
            where = f"is on {server.name} ({address_of(server.primary)})"
        text = (
            f"the topology of epoch {new.epoch} was published during this "
            f"run, and the shard {where} there; repeat the command"
        )
        return text if outcome.error is None else f"{text}\n{outcome.error}"


def _unread(report: R, error: ShardError) -> R:
    return replace(
        report,
        topology_error="whether a topology was published during this run is "
        f"not known: {error}",
    )


def _place(keyspace: Keyspace, shard_id: int) -> tuple[object, str]:
    server = keyspace.server_for(shard_id)
    return address_of(server.primary), keyspace.database_for(shard_id)


def _opened(new: Topology, keyspace: Keyspace, shard_id: int) -> Outcome:
    return Outcome(
        shard_id=shard_id,
        server=keyspace.server_for(shard_id).name,
        database=keyspace.database_for(shard_id),
        state=State.MOVED,
        error=f"the topology of epoch {new.epoch}, published during this "
        "run, has opened the shard; repeat the command",
    )
