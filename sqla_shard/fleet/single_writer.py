"""Closing a standby that can be written.

Two writable servers in a pair are the worst state that it can have: writes to
the standby are lost with the next rebuild, and stop its replication.  Watchers
close the standby.  They do it as an operation, under the lock of the fleet: a
failover that makes the standby the primary cannot run at the same time.  If
the primary is lost or closed, nothing is done: the standby may be the only
server that applications can write to.
"""

from __future__ import annotations

from sqla_shard.exc import FleetServerError, Problem
from sqla_shard.fleet.fleet import Fleet
from sqla_shard.fleet.plans import Plan, Step
from sqla_shard.fleet.role_change import RoleChange


class CloseStandby(RoleChange):
    """Make the standby of a pair read-only."""

    kind = "close-standby"
    STEPS = (Step("close", "make {new} read-only"),)

    @classmethod
    def planned(cls, fleet: Fleet, server: str) -> Plan:
        """Return the plan, with all problems.

        :param server: name of the server in the topology, or
            ``keyspace/name``.
        :raises UnknownServerError: if the topology has no such server.
        """
        return cls.plan_of(
            fleet,
            server,
            title="closing of the standby {new} of {server}",
            costs=("none: applications write to the primary",),
            # It is finished by another watcher.
            is_automatic=True,
        )

    def check(self) -> list[Problem]:
        """Look whether both servers can be written."""
        if self.plan.arguments["new"] is None:
            return [self.lacks_standby()]
        try:
            if self.new.is_read_only():
                text = "it is closed; there is nothing to do"
                return [Problem(self.new.admin.name, text)]
            if self.old.is_read_only():
                return [Problem(self.old.admin.name, self._alone())]
        except FleetServerError as error:
            return [error.as_problem(self._alone())]
        return []

    def _alone(self) -> str:
        return (
            f"it cannot be written, and {self.plan.arguments['new']} may be "
            "what applications use; find out which one has the last writes, "
            "and make the other one read-only"
        )

    def undo(self) -> str | None:
        """Leave it closed."""
        return None

    def _do_close(self) -> None:
        # The primary may have been lost since the check, or before a resume.
        if self.old.is_read_only():
            raise self.old.admin.error(self._alone())
        self.new.close_writes()
