"""Opening and closing single servers.

:class:`Reopen` opens a primary that was restarted, :class:`CloseStandby` closes
a standby that can be written, :class:`CloseFormer` a former primary that has
come back, and :class:`Retire` takes a server out of service.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from sqla_shard.exc import (
    FleetServerError,
    FleetSetupError,
    Problem,
    UnknownServerError,
)
from sqla_shard.fleet.clients import (
    applications,
    AppSession,
    described,
    ended_note,
    programs,
)
from sqla_shard.fleet.dead_failover import DeadFailover
from sqla_shard.fleet.fleet import (
    all_pairs,
    Fleet,
    is_address,
    pair_named,
    roles_in,
    url_at,
    with_port,
)
from sqla_shard.fleet.journal import Record
from sqla_shard.fleet.operation import as_list, FleetOperation, FleetPlan, Step
from sqla_shard.fleet.replication import Replication, replication_of
from sqla_shard.fleet.requirements import followers
from sqla_shard.fleet.role_change import RoleChange
from sqla_shard.topology import Topology
from sqla_shard.topology.urls import address_of


class Reopen(RoleChange):
    """Make the primary of a pair writable again.

    Servers start read-only by their configuration, so that a former primary
    never takes a write.  The price is that the current primary stays closed
    after a restart.  It is opened only if the topology still names it and its
    standby has nothing, applied or only received, that it lacks.

    Once it is open, applications write to it.  Undoing the operation does not
    close it again, unless the topology names another primary.
    """

    kind = "reopen"
    STEPS: ClassVar[tuple[Step, ...]] = (
        Step("open", "let applications write to {old}"),
        Step("verify", "check that its standby replicates"),
    )

    @classmethod
    def planned(cls, fleet: Fleet, server: str) -> FleetPlan:
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


class CloseStandby(RoleChange):
    """Make the standby of a pair read-only.

    Two writable servers in a pair are the worst state that it can have: writes
    to the standby are lost with the next rebuild, and stop its replication.
    Watchers close the standby.  They do it as an operation, under the lock of
    the fleet: a failover that makes the standby the primary cannot run at the
    same time.  If the primary is lost or closed, nothing is done: the standby
    may be the only server that applications can write to.
    """

    kind = "close-standby"
    STEPS: ClassVar[tuple[Step, ...]] = (Step("close", "make {new} read-only"),)

    @classmethod
    def planned(cls, fleet: Fleet, server: str) -> FleetPlan:
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
        """Check whether both servers can be written."""
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


#: Seconds for which a server may list a session that its client has closed.
_CLOSING_SECONDS = 1.0
_AFTERWARDS = (
    "afterwards: save its binary log if you need it, stop the server, remove "
    "it from monitoring and backups, and delete its data some days later"
)


class Retire(FleetOperation):
    """Take a server that the topology does not name out of service.

    It is made read-only and forgets its primary.  Its content is not touched,
    and it is not stopped.
    """

    kind = "retire"
    STEPS: ClassVar[tuple[Step, ...]] = (
        Step("close", "make {target} read-only"),
        Step("detach", "stop replication on {target}, and forget its primary"),
    )

    @classmethod
    def planned(cls, fleet: Fleet, target: str) -> FleetPlan:
        """Return the plan, with all problems.

        :param target: ``host:port`` of the server.
        """
        address = with_port(target)
        plan = FleetPlan(
            kind=cls.kind,
            title=f"retirement of {address}",
            epoch=fleet.topology().epoch,
            arguments={"target": address},
            warnings=(_AFTERWARDS,),
        )
        return cls(fleet, plan).checked()

    def check(self) -> list[Problem]:
        """Check whether others have sessions on the server."""
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
        deadline = time.monotonic() + _CLOSING_SECONDS
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


class CloseFormer(FleetOperation):
    """Make a former primary read-only, and end the sessions there.

    A primary that was lost, but only unreachable, comes back open: processes
    that still use the old topology could write to it.  The topology does not
    name it any more; the journal does, until the server is retired or gets a
    role again.  Watchers close it, and the doctor looks at it.

    A session that waits for the acknowledgement of a standby in COMMIT must
    not have it acknowledged after a timeout.
    """

    kind = "close-former"
    STEPS: ClassVar[tuple[Step, ...]] = (
        Step("close", "make {old} read-only, and end its sessions"),
    )

    @classmethod
    def planned(cls, fleet: Fleet, address: str) -> FleetPlan:
        """Return the plan, with all problems.

        :param address: ``host:port`` of the server.
        """
        plan = FleetPlan(
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
        """Check whether the topology names it, and whether it is open."""
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
