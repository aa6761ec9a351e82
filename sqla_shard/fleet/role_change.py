"""Operations that change the writable server of a pair.

Events of a server run on the primary only.  An event whose definer may bypass
``read_only`` writes on a standby, too, and its transactions are missing on the
primary.  So a failover stops the event scheduler of the old primary before the
fence, disables its events, and enables them on the new one.  The statements
are not written into the binary log: each server has its own state of an event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqla_shard.exc import FleetSetupError, Problem
from sqla_shard.fleet.admin import Admin, marked
from sqla_shard.fleet.fleet import Fleet, pair_named
from sqla_shard.fleet.operation import FleetOperation, FleetPlan, Step
from sqla_shard.fleet.replication import Replication, replication_of
from sqla_shard.topology import Topology
from sqla_shard.topology.urls import address_of


class RoleChange(FleetOperation):
    """An operation on the primary and the standby of a pair.

    Its plan has the addresses of both: URLs of a topology may have passwords.

    :ivar server: name of the pair in the topology.
    """

    def __init__(self, fleet: Fleet, plan: FleetPlan) -> None:
        super().__init__(fleet, plan)
        self.server: str = str(plan.arguments["server"])
        self._urls: dict[str, str] = {}

    @classmethod
    def plan_of(
        cls,
        fleet: Fleet,
        server: str,
        *,
        title: str,
        costs: Sequence[str],
        **arguments: Any,
    ) -> FleetPlan:
        """Return a plan with all problems.

        :param server: name of the pair.
        :param title: with the fields ``{server}``, ``{old}`` and ``{new}``.
        :param arguments: further arguments of the plan.
        """
        topology = fleet.topology()
        pair = pair_named(topology, server)
        old = str(address_of(pair.primary))
        new = None if pair.standby is None else str(address_of(pair.standby))
        plan = FleetPlan(
            kind=cls.kind,
            title=title.format(server=server, old=old, new=new),
            epoch=topology.epoch,
            arguments={"server": server, "old": old, "new": new, **arguments},
            costs=tuple(costs),
        )
        return cls(fleet, plan).checked()

    def lacks_standby(self) -> Problem:
        """Return the problem of a pair without a standby."""
        return Problem(
            self.server,
            "the topology names no standby for it; build one with: "
            "sqla-shard fleet replica",
        )

    # -- servers ----------------------------------------------------------

    @property
    def old(self) -> Replication:
        """The primary when the plan was made.

        :raises FleetServerError: if it cannot be connected to.
        """
        return self._at(self.plan.arguments["old"])

    @property
    def new(self) -> Replication:
        """The standby when the plan was made.

        :raises FleetServerError: if it cannot be connected to.
        """
        return self._at(self.plan.arguments["new"])

    def url_of(self, address: str) -> str:
        """Return the URL of a server of the pair.

        :raises FleetSetupError: if the topology no longer has it.
        """
        if address not in self._urls:
            pair = pair_named(self.fleet.topology(), self.server)
            urls = pair.urls.values()
            self._urls.update({str(address_of(url)): url for url in urls})
        try:
            return self._urls[address]
        except KeyError:
            raise FleetSetupError(
                f"{address} is no longer a server of {self.server} in the "
                "topology; make a new plan"
            ) from None

    def full_name(self, address: str) -> str:
        """Return the name of a server as errors have it."""
        return f"{self.role(address)} ({address})"

    def role(self, address: str) -> str:
        """Return the name of a server, by its role before the operation."""
        is_old = address == self.plan.arguments["old"]
        return f"{self.server} {'primary' if is_old else 'standby'}"

    def _at(self, address: str) -> Replication:
        return replication_of(self.admin(self.url_of(address), self.role(address)))


class Promotion(RoleChange):
    """An operation that publishes the standby as the primary."""

    #: The steps of the cutover.
    CUTOVER = (
        Step(
            "publish", "publish the topology with {new} as the primary", critical=True
        ),
        Step("open", "let applications write to {new}", critical=True),
    )

    def check_promoted(self) -> None:
        """Check that the new primary can be written, and does not replicate.

        :raises FleetServerError: if it cannot, or does.
        """
        if self.new.is_read_only() or self.new.status() is not None:
            raise self.new.admin.error(
                "it is published as the primary, but it is read-only or replicates"
            )

    def is_published(self, topology: Topology) -> bool:
        """Check which server is the primary."""
        pair = pair_named(topology, self.server)
        return bool(
            topology.epoch > self.plan.epoch
            and str(address_of(pair.primary)) == self.plan.arguments["new"]
        )


#: The second one is that of MySQL 8.2 and later.
_REPLICATED = ("SLAVESIDE_DISABLED", "REPLICA_SIDE_DISABLED")


def events_of(admin: Admin) -> list[list[str]]:
    """Return the enabled events of a server.

    :returns: database, name and definer of each, which a journal can hold.
    """
    return _events(admin, "ENABLED")


def replicated_events_of(admin: Admin) -> list[list[str]]:
    """Return the events of a standby that are enabled on its primary."""
    return _events(admin, *_REPLICATED)


def _events(admin: Admin, *statuses: str) -> list[list[str]]:
    rows = admin.rows(
        "SELECT status, event_schema, event_name, definer"
        " FROM information_schema.events"
    )
    return [event for status, *event in rows if status in statuses]


def set_scheduler(admin: Admin, *, on: bool) -> bool:
    """Start or stop the event scheduler.

    :returns: whether it ran before.
    """
    found = admin.value("SELECT @@GLOBAL.event_scheduler")
    if found != "DISABLED" and (found == "ON") != on:
        admin.run(f"SET GLOBAL event_scheduler = {'ON' if on else 'OFF'}")
    return bool(found == "ON")


def enable_events(admin: Admin, events: Sequence[Sequence[str]]) -> None:
    """Enable events of a new primary, if they are there."""
    _alter(admin, events, "ENABLE")


def disable_events(admin: Admin, events: Sequence[Sequence[str]]) -> None:
    """Disable events of a former primary, if they are there."""
    _alter(admin, events, f"DISABLE ON {replication_of(admin).REPLICA}")


def _alter(admin: Admin, events: Sequence[Sequence[str]], end: str) -> None:
    there = set(
        admin.rows("SELECT event_schema, event_name FROM information_schema.events")
    )
    with admin.unlogged():
        for database, name, definer in events:
            if (database, name) not in there:
                continue
            user, _, host = definer.rpartition("@")
            # Without its definer it would become an event of the operator.
            admin.run(
                f"ALTER DEFINER = {marked(user)}@{marked(host)} EVENT "
                f"{marked(database)}.{marked(name)} {end}"
            )
