"""Opening a primary that was restarted.

Servers start read-only by their configuration, so that a former primary never
takes a write.  The price is that the current primary stays closed after a
restart.  It is opened only if the topology still names it and its standby has
nothing that it lacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from sqla_shard.exc import FleetServerError
from sqla_shard.exc import Problem
from sqla_shard.fleet.fleet import Fleet
from sqla_shard.fleet.plans import Plan
from sqla_shard.fleet.plans import Step
from sqla_shard.fleet.role_change import RoleChange

__all__ = ["Reopen"]


class Reopen(RoleChange):
    """Make the primary of a pair writable again."""

    kind = "reopen"

    @classmethod
    def planned(cls, fleet: Fleet, server: str) -> Plan:
        """Return the plan, with everything that speaks against it.

        :param server: name of the server in the topology, or
            ``keyspace/name``.
        :raises UnknownServerError: if the topology has no such server.
        """
        return cls.plan_of(
            fleet,
            server,
            title="reopening of {server} at {old}",
            costs=("none: the server is closed now",),
        )

    def check(self) -> list[Problem]:
        """Compare the primary with its standby."""
        self.warnings.clear()
        try:
            return self._primary() + self._standby()
        except FleetServerError as error:
            return [
                Problem(
                    error.server,
                    f"{error.reason} (error {error.number}); whether it has "
                    "later writes is unknown",
                )
            ]

    def _primary(self) -> list[Problem]:
        place = self.old.admin.name
        found = []
        if not self.old.is_read_only():
            found.append(Problem(place, "it is open; there is nothing to do"))
        if self.old.status() is not None:
            found.append(
                Problem(
                    place,
                    "it replicates from another server, so another one may "
                    "be the primary; look at the topology",
                )
            )
        return found

    def _standby(self) -> list[Problem]:
        if self.plan.arguments["new"] is None:
            self.warnings.append(
                "the topology names no standby; whether another server has "
                "later writes cannot be seen"
            )
            return []
        place = self.new.admin.name
        found = []
        if not self.new.is_read_only():
            found.append(
                Problem(place, "it can be written; close it before you go on")
            )
        for origin, number in self.old.errant(self.new.history()).items():
            found.append(
                Problem(
                    place,
                    f"it has {number} transactions of {origin} that the "
                    "primary has not; promote it: stop the primary, then "
                    f"sqla-shard fleet failover {self.server} --dead",
                )
            )
        return found

    def steps(self) -> Sequence[Step]:
        """Return the steps."""
        old = self.plan.arguments["old"]
        return (
            Step(
                name="open",
                text=f"let applications write to {old}",
                run=self._open_old,
            ),
            Step(
                name="verify",
                text="check that its standby replicates",
                run=self._verify,
            ),
        )

    def undo(self) -> None:
        """Close the primary."""
        self.old.close_writes()

    def _open_old(self) -> None:
        self.old.open_writes()

    def _verify(self) -> Mapping[str, Any] | None:
        if self.plan.arguments["new"] is None:
            return None
        status = self.new.status()
        if status is None or not status.runs:
            return {
                "problem": f"{self.new.admin} does not replicate; see: "
                "sqla-shard fleet doctor"
            }
        return None
