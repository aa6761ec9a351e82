"""Takes a server that the topology does not name out of service.

It is made read-only and forgets its primary.  Its content is not touched, and
it is not stopped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from sqla_shard.exc import FleetServerError, Problem
from sqla_shard.fleet.addresses import is_address, roles_in, url_at, with_port
from sqla_shard.fleet.fleet import all_pairs, Fleet
from sqla_shard.fleet.operation import Operation
from sqla_shard.fleet.plans import as_list, Plan, Step
from sqla_shard.fleet.replication import Replication, replication_of
from sqla_shard.fleet.requirements import followers
from sqla_shard.fleet.sessions import applications, described

#: Seconds for which a server may list a session that its client has closed.
_CLOSING = 1.0
_AFTERWARDS = (
    "afterwards: save its binary log if you need it, stop the server, remove "
    "it from monitoring and backups, and delete its data some days later"
)


class Retire(Operation):
    """Take a server out of service."""

    kind = "retire"
    STEPS = (
        Step("close", "make {target} read-only"),
        Step("detach", "stop replication on {target}, and forget its primary"),
    )

    @classmethod
    def planned(cls, fleet: Fleet, target: str) -> Plan:
        """Return the plan, with all problems.

        :param target: ``host:port`` of the server.
        """
        address = with_port(target)
        plan = Plan(
            kind=cls.kind,
            title=f"retirement of {address}",
            epoch=fleet.topology().epoch,
            arguments={"target": address},
            warnings=(_AFTERWARDS,),
        )
        return cls(fleet, plan).checked()

    def check(self) -> list[Problem]:
        """Look for sessions on the server."""
        target = str(self.plan.arguments["target"])
        if not is_address(target):
            text = f"{target!r} is not host:port of a server"
            return [Problem("target", text)]
        problems = [
            Problem(
                target,
                f"it is {role} in the topology; replace it, or fail over, before",
            )
            for role in roles_in(self.fleet.topology()).get(target, ())
        ]
        try:
            return [*problems, *self._users()]
        except FleetServerError as error:
            return [*problems, error.as_problem("is it lost?")]

    @as_list
    def _users(self) -> Iterator[Problem]:
        server = self._server
        standbys = followers(server)
        if standbys:
            yield Problem(
                str(server.admin),
                f"{standbys} servers replicate from it; attach them to "
                "their primary before",
            )
        deadline = time.monotonic() + _CLOSING
        while sessions := applications(server.admin, self.fleet.accounts.users):
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        if sessions:
            yield Problem(
                str(server.admin),
                f"{len(sessions)} sessions of others are open "
                f"({described(sessions.values())}); end them",
            )

    def undo(self) -> str | None:
        """Leave a server that was closed closed: nothing may write to it."""
        try:
            server = self._server
            if not server.is_read_only():
                return None
            replicates = server.status() is not None
        except FleetServerError as error:
            if not error.is_unanswered:
                raise
            # A server that is away must not keep the fleet locked.
            return f"{error}; look whether it is read-only"
        detached = "" if replicates else " and does not replicate"
        return f"{server.admin} stays read-only{detached}"

    def _do_close(self) -> None:
        self._server.close_writes()

    def _do_detach(self) -> Mapping[str, Any]:
        server = self._server
        server.detach()
        if not server.is_read_only() or server.status() is not None:
            raise server.admin.error(
                "it is writable or replicates again; who changes it?"
            )
        return {"position": server.committed()}

    @property
    def _server(self) -> Replication:
        # Its TLS options are those of the first server of the topology.
        first = all_pairs(self.fleet.topology())[0].primary
        url = url_at(first, str(self.plan.arguments["target"]))
        return replication_of(self.admin(url, "server"))
