"""Detection of shards that were moved or opened during a run.

A run takes minutes or hours and reads the topology once.  A shard that was
moved meanwhile was copied with its old or its new tables; a shard that was
opened was provisioned with an unknown revision.  The report shows that the
revision of such a shard is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TypeVar

from sqla_shard.exc import ShardError
from sqla_shard.schema.reports import Outcome, RunReport, State
from sqla_shard.topology import Keyspace, Topology
from sqla_shard.topology.urls import address_of

R = TypeVar("R", bound=RunReport)


class TopologyChanges:
    """Compares the topology of a run with the published one.

    :param old: the topology of the run.
    :param keyspace: the name of the run's keyspace.
    :param read: returns the published topology.
    """

    def __init__(
        self, old: Topology, keyspace: str, read: Callable[[], Topology]
    ) -> None:
        self._old = old
        self._name = keyspace
        self._read = read

    def has_moved(self, shard_ids: Collection[int]) -> bool:
        """Return whether any of the given shards was moved.

        False if the topology cannot be read; :meth:`with_moved_shards`
        reports that.
        """
        try:
            found = self._elsewhere(self._read())
        except ShardError:
            return False
        return not found.isdisjoint(shard_ids)

    def with_moved_shards(self, report: RunReport, *, all_shards: bool) -> RunReport:
        """Return the report with the shards that were moved or opened since.

        :param all_shards: whether the run was for all shards of the keyspace.
        """
        try:
            new = self._read()
        except ShardError as error:
            return _with_read_error(report, error)
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
                _outcome_of_opened(new, after, shard_id)
                for shard_id in sorted(changed - had)
            ]
        return replace(report, outcomes=tuple(outcomes))

    def with_publication_check(self, report: R, new: Topology) -> R:
        """Return the report, with an error if another topology was published.

        :param new: the topology that may be published.
        """
        try:
            found = self._read()
        except ShardError as error:
            return _with_read_error(report, error)
        if found in (self._old, new):
            return report
        return replace(
            report,
            topology_error=f"the topology of epoch {found.epoch} was "
            "published during this run",
        )

    def _elsewhere(self, new: Topology) -> set[int]:
        """Return the shards that were moved, opened or closed."""
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
        where = "is closed"
        if after is not None and outcome.shard_id < after.shards:
            server = after.server_for(outcome.shard_id)
            where = f"is on {server.name} ({address_of(server.primary)})"
        text = (
            f"the topology of epoch {new.epoch} was published during this "
            f"run, in which the shard {where}; repeat the command"
        )
        return text if outcome.error is None else f"{text}\n{outcome.error}"


def _with_read_error(report: R, error: ShardError) -> R:
    return replace(
        report,
        topology_error="whether a topology was published during this run is "
        f"unknown: {error}",
    )


def _place(keyspace: Keyspace, shard_id: int) -> tuple[object, str]:
    server = keyspace.server_for(shard_id)
    return address_of(server.primary), keyspace.database_for(shard_id)


def _outcome_of_opened(new: Topology, keyspace: Keyspace, shard_id: int) -> Outcome:
    return Outcome(
        shard_id=shard_id,
        server=keyspace.server_for(shard_id).name,
        database=keyspace.database_for(shard_id),
        state=State.MOVED,
        error=f"the topology of epoch {new.epoch}, published during this "
        "run, has opened the shard; repeat the command",
    )
