"""Former primaries, which a failover has replaced because they were lost.

A primary that was only unreachable comes back open: processes that still use
the old topology could write to it.  The topology does not name it any more;
the journal does, until the server is retired or gets a role again.  Watchers
close it, and the doctor looks at it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sqla_shard.exc import FleetServerError, Problem
from sqla_shard.fleet.addresses import roles_in, url_at
from sqla_shard.fleet.dead_failover import DeadFailover
from sqla_shard.fleet.fleet import all_pairs, Fleet
from sqla_shard.fleet.journal import Record
from sqla_shard.fleet.operation import Operation
from sqla_shard.fleet.plans import Plan, Step
from sqla_shard.fleet.replication import Replication, replication_of
from sqla_shard.fleet.retire import Retire
from sqla_shard.fleet.sessions import applications, AppSession, ended_note, programs
from sqla_shard.topology import Topology

#: Former primaries that are looked at at a time.
_THREADS = 32


def former_primaries(topology: Topology, records: Iterable[Record]) -> dict[str, str]:
    """Return the pair of each former primary, by its address.

    :param records: operations of the journal, the latest first.
    """
    retired = set()
    known = roles_in(topology)
    found: dict[str, str] = {}
    for record in records:
        arguments = record.plan.get("arguments", {})
        if record.state != "finished":
            continue
        if record.plan.get("kind") == Retire.kind:
            retired.add(arguments["target"])
        elif record.plan.get("kind") == DeadFailover.kind:
            address = arguments["old"]
            if address not in known and address not in retired:
                found.setdefault(address, arguments["server"])
    return found


def former_url(topology: Topology, address: str) -> str:
    """Return a URL of a server, with the TLS options of the first one."""
    return url_at(all_pairs(topology)[0].primary, address)


def writable_formers(
    fleet: Fleet, records: Iterable[Record], *, timeout: float
) -> list[str]:
    """Return the addresses of the former primaries that can be written.

    One that does not respond is lost, as it was.  They are looked at at once:
    a machine that is off takes the whole time.

    :param records: operations of the journal, the latest first.
    :param timeout: seconds to wait for each.
    """
    topology = fleet.topology()
    formers = former_primaries(topology, records)

    def is_open(address: str) -> bool:
        """Return whether a former primary responds and can be written."""
        try:
            with fleet.admin(
                former_url(topology, address),
                name=f"{formers[address]} former primary",
                timeout=timeout,
            ) as admin:
                return not replication_of(admin).is_read_only()
        except FleetServerError:
            return False

    with ThreadPoolExecutor(_THREADS) as pool:
        return [
            address
            for address, found in zip(formers, pool.map(is_open, formers), strict=True)
            if found
        ]


class CloseFormer(Operation):
    """Make a former primary read-only, and end the sessions there.

    A session that waits for the acknowledgement of a standby in COMMIT must
    not have it acknowledged after a timeout.
    """

    kind = "close-former"
    STEPS = (Step("close", "make {old} read-only, and end its sessions"),)

    @classmethod
    def planned(cls, fleet: Fleet, address: str) -> Plan:
        """Return the plan, with all problems.

        :param address: ``host:port`` of the server.
        """
        plan = Plan(
            kind=cls.kind,
            title=f"closing of the former primary {address}",
            epoch=fleet.topology().epoch,
            arguments={
                "old": address,
                "new": None,
                # It is finished by another watcher.
                "is_automatic": True,
            },
            costs=("the sessions of applications there end",),
        )
        return cls(fleet, plan).checked()

    def check(self) -> list[Problem]:
        """Look whether the topology names it, and whether it is open."""
        address = self._address
        found = [
            Problem(address, f"it is {role} in the topology")
            for role in roles_in(self.fleet.topology()).get(address, ())
        ]
        try:
            if self._server.is_read_only():
                text = "it is closed; there is nothing to do"
                found.append(Problem(address, text))
        except FleetServerError as error:
            text = error.cause
            found.append(Problem(error.server, text))
        return found

    def undo(self) -> str | None:
        """Leave it closed."""
        return None

    def _do_close(self) -> Mapping[str, Any]:
        known = programs(self._server.admin)
        # A COMMIT that waits for its standby would hold read_only up.
        ended = self._kill()
        self._server.close_writes()
        # Those that have come meanwhile would read old data.
        ended += self._kill()
        return ended_note(self._server.admin, ended, known)

    def _kill(self) -> list[AppSession]:
        accounts = self.fleet.accounts
        ours = {accounts.operator.user}
        if accounts.replication is not None:
            ours.add(accounts.replication.user)
        found = applications(self._server.admin, ours)
        for number in found:
            self._server.admin.kill(number)
        return list(found.values())

    @property
    def _address(self) -> str:
        return str(self.plan.arguments["old"])

    @property
    def _server(self) -> Replication:
        url = former_url(self.fleet.topology(), self._address)
        return replication_of(self.admin(url, "former primary"))
