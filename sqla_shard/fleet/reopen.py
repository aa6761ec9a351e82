"""Opening a primary that was restarted.

Servers start read-only by their configuration, so that a former primary never
takes a write.  The price is that the current primary stays closed after a
restart.  It is opened only if the topology still names it and its standby has
nothing, applied or only received, that it lacks.

Once it is open, applications write to it.  Undoing the operation does not
close it again, unless the topology names another primary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sqla_shard.exc import (
    FleetServerError,
    FleetSetupError,
    Problem,
    UnknownServerError,
)
from sqla_shard.fleet.fleet import Fleet, pair_named
from sqla_shard.fleet.plans import as_list, Plan, Step
from sqla_shard.fleet.role_change import RoleChange
from sqla_shard.topology.urls import address_of


class Reopen(RoleChange):
    """Make the primary of a pair writable again."""

    kind = "reopen"
    STEPS = (
        Step("open", "let applications write to {old}"),
        Step("verify", "check that its standby replicates"),
    )

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
            title="reopening of {server} at {old}",
            costs=("none: the server is closed now",),
        )

    def check(self) -> list[Problem]:
        """Compare the primary with its standby."""
        return self._found(self._is_open, self._primary, self._standby)

    def _found(self, *looks: Callable[[], Sequence[Problem]]) -> list[Problem]:
        """Return the problems of some looks; a silent server is one, too."""
        found: list[Problem] = []
        try:
            for look in looks:
                found += look()
        except FleetServerError as error:
            found.append(error.as_problem("whether it has later writes is unknown"))
        return found

    def _is_open(self) -> list[Problem]:
        if self.old.is_read_only():
            return []
        text = "it is open; there is nothing to do"
        return [Problem(self.old.admin.name, text)]

    @as_list
    def _primary(self) -> Iterator[Problem]:
        place = self.old.admin.name
        if self.old.status() is not None:
            yield Problem(
                place,
                "it replicates from another server, so another one may "
                "be the primary; look at the topology",
            )

    @as_list
    def _standby(self) -> Iterator[Problem]:
        if self.plan.arguments["new"] is None:
            self.warnings.append(
                "the topology names no standby; whether another server has "
                "later writes cannot be seen"
            )
            return
        place = self.new.admin.name
        if not self.new.is_read_only():
            yield Problem(place, "it can be written; close it before you go on")
        promote = (
            "promote it: stop the primary, then sqla-shard fleet failover "
            f"{self.server} --dead"
        )
        for origin, number in self.old.errant(self.new.history()).items():
            yield Problem(
                place,
                f"it has {number} transactions of {origin} that the "
                f"primary has not; {promote}",
            )
        status = self.new.status()
        # Their numbers would be given to others, which it would not receive.
        if status is not None and status.received:
            here = self.old.committed()
            if not self.old.covers(here, status.received):
                yield Problem(
                    place,
                    f"it has received {status.received}, and the primary has "
                    f"{here or 'nothing'}; {promote}",
                )

    def undo(self) -> str | None:
        """Leave it open if it was opened: applications write to it."""
        try:
            if self.old.is_read_only():
                return None
            if not self._named():
                return f"{self.old.admin} stays open: applications write to it"
            self.old.close_writes()
        except FleetServerError as error:
            if not error.is_unanswered:
                raise
            # A server that is away must not keep the fleet locked; it starts
            # closed.
            return f"{error}; look whether it can be written"
        except (FleetSetupError, UnknownServerError) as error:
            # Nor must one that has left the topology.
            return f"{error}; look whether it can be written"
        return None

    def _do_open(self) -> Mapping[str, Any] | None:
        # Again: a step that is resumed may have been checked long ago.
        found = self._found(self._named, self._primary, self._standby)
        if not found:
            self.old.open_writes()
            return None
        reason = "; ".join(map(str, found))
        if not self.old.is_read_only():
            # It was opened before, and applications write to it.
            return {"problem": f"{self.old.admin} is open, but: {reason}"}
        raise self.old.admin.error(f"it must not be opened: {reason}")

    def _named(self) -> list[Problem]:
        """Return a problem if the topology names another primary."""
        # While it is applied, read with the session of the lock: that of the
        # fleet may be behind.
        topology = (self.hold or self.fleet).topology()
        pair = pair_named(topology, self.server)
        if str(address_of(pair.primary)) == self.plan.arguments["old"]:
            return []
        text = "the topology does not name it as the primary any more"
        return [Problem(self.old.admin.name, text)]

    def _do_verify(self) -> Mapping[str, Any] | None:
        if self.plan.arguments["new"] is None:
            return None
        try:
            status = self.new.status()
            name = str(self.new.admin)
        except FleetServerError as error:
            # Without its standby the primary stays open.
            return {"problem": str(error)}
        if status is None or not status.runs:
            return {
                "problem": f"{name} does not replicate; see: sqla-shard fleet doctor"
            }
        return None
