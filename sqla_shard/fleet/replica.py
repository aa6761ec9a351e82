"""Builds, rebuilds and replaces the standby of a pair.

======= ===================================================================
action
======= ===================================================================
build   A new server becomes the standby of a pair that has none.  With
        ``publish=False`` it only replicates, for a split; the topology does
        not name it.
rebuild The standby gets all its content anew.  What it has is dropped first.
replace A new server becomes the standby; the old one is detached.
======= ===================================================================

Applications write meanwhile.  The content is copied from the standby of the
pair if it is healthy and not the target, otherwise from the primary, where
the begin of the copy stops writes for some milliseconds.

Limits:

* The free space of a server cannot be read with SQL; the plan says how much
  is copied.
* A rebuild that is undone does not bring the old content back, and says so:
  the standby stays marked as not complete until it is rebuilt.
* Migrations must not run while content is copied.
* All rows are compared at the end, which stops writes on the primary for some
  milliseconds every few minutes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from sqla_shard.exc import FleetServerError, Problem
from sqla_shard.fleet.compare import compare_servers, CompareOptions
from sqla_shard.fleet.copies import abandon_copy, Copy, copy_state, finish_copy
from sqla_shard.fleet.fences import carry_fences
from sqla_shard.fleet.fleet import (
    address_in,
    Fleet,
    is_address,
    pair_named,
    roles_in,
    url_at,
    with_port,
)
from sqla_shard.fleet.operation import as_list, FleetOperation, FleetPlan, PUBLISH, Step
from sqla_shard.fleet.replication import Replication, replication_of
from sqla_shard.fleet.requirements import bypass_problems, Requirements
from sqla_shard.fleet.row_copy import databases_of
from sqla_shard.topology import Topology

ACTIONS = ("build", "rebuild", "replace")

#: Seconds without progress after which a new standby is given up.
_PATIENCE_SECONDS = 60.0
#: Differences in a message.
_MAX_SHOWN = 5
_GIB = 2**30


class Replica(FleetOperation):
    """Build, rebuild or replace the standby of a pair."""

    kind = "replica"
    STEPS: ClassVar[tuple[Step, ...]] = (
        Step("copy", "copy all databases of {source} to {target}"),
        Step("attach", "let {target} replicate from {primary}"),
        Step("catch-up", "wait until {target} is less than 100 ms behind"),
        Step("verify", "compare all rows of {target} with {primary}"),
        Step(PUBLISH, "publish the topology with the standby {target}"),
        Step("finish", "remove the mark of the copy from {target}"),
        Step("detach", "stop replication on {standby}"),
    )

    def __init__(self, fleet: Fleet, plan: FleetPlan) -> None:
        super().__init__(fleet, plan)
        arguments = plan.arguments
        self.server: str = str(arguments["server"])
        self._action = str(arguments["action"])
        self._target = str(arguments["target"])
        self._publishes = bool(arguments["publish"])
        self._costs: list[str] = []

    @classmethod
    def planned(
        cls,
        fleet: Fleet,
        action: str,
        server: str,
        target: str | None = None,
        *,
        publish: bool = True,
        way: str = "rows",
        command: str | None = None,
        discard_errant: bool = False,
    ) -> FleetPlan:
        """Return the plan, with all problems.

        :param action: one of :data:`ACTIONS`.
        :param server: name of the server in the topology, or
            ``keyspace/name``.
        :param target: ``host:port`` of the new server; not for a rebuild,
            whose target is the standby.
        :param publish: whether a server that is built becomes the standby in
            the topology.
        :param way: how to copy, see :mod:`sqla_shard.fleet.copies`.
        :param command: the command, for that way; it is written into the
            journal, so it must not contain a password.
        :param discard_errant: whether a rebuild may drop transactions that
            the primary does not have.
        :raises UnknownServerError: if the topology has no such server.
        """
        topology = fleet.topology()
        pair = pair_named(topology, server)
        standby = None if pair.standby is None else address_in(pair.standby)
        rebuilds = action == "rebuild"
        wanted = standby if rebuilds and target is None else target
        plan = FleetPlan(
            kind=cls.kind,
            title=f"{action} of a standby of {server}"
            + (f" on {wanted}" if wanted else ""),
            epoch=topology.epoch,
            arguments={
                "action": action,
                "server": server,
                "primary": address_in(pair.primary),
                "standby": standby,
                "target": with_port(wanted) if wanted else "",
                "source": None,
                "publish": publish and not rebuilds,
                "way": way,
                "command": command,
                "discard_errant": discard_errant,
            },
        )
        operation = cls(fleet, plan)
        with operation:
            source = operation._choose()
        plan = replace(plan, arguments={**plan.arguments, "source": source})
        operation = cls(fleet, plan)
        return replace(operation.checked(), costs=tuple(operation._costs))

    # -- checks -----------------------------------------------------------

    def check(self) -> list[Problem]:
        """Check the requirements of a new standby on the servers."""
        problems = self._wrong_request()
        if problems:
            return problems
        try:
            return self._compare()
        except FleetServerError as error:
            return [error.as_problem("its state is unknown")]

    def _wrong_request(self) -> list[Problem]:
        standby = self.plan.arguments["standby"]
        if self._action not in ACTIONS:
            text = f"{self._action!r} is not one of {', '.join(ACTIONS)}"
            return [Problem("action", text)]
        if self._action != "build" and standby is None:
            text = (
                "the topology names no standby for it; build one on an empty "
                f"server: sqla-shard fleet replica build {self.server} "
                "HOST:PORT, or publish a topology that names a server with "
                "content, such as the former primary, and rebuild it"
            )
            return [Problem(self.server, text)]
        if self._action == "build" and self._publishes and standby:
            text = (
                f"it has the standby {standby}; replace it, or build without publishing"
            )
            return [Problem(self.server, text)]
        if not is_address(self._target):
            text = f"{self._target!r} is not host:port of a server"
            return [Problem("target", text)]
        if self._action == "rebuild" and self._target != standby:
            text = f"the standby of {self.server} is {standby}"
            return [Problem(self._target, text)]
        return self._role_problems()

    def _role_problems(self) -> list[Problem]:
        """Return other uses of the target in the topology."""
        topology = self.fleet.topology()
        others = roles_in(topology).get(self._target, [])
        if self._action == "rebuild":
            name = pair_named(topology, self.server).name
            others = [r for r in others if r != f"the standby of {name}"]
        return [
            Problem(
                self._target, f"it is {role} in the topology; its content would be lost"
            )
            for role in others
        ]

    def _compare(self) -> list[Problem]:
        primary, target, source = self._primary, self._new, self._source
        servers = {str(one.admin): one for one in (primary, target, source)}
        required = Requirements(self.fleet)
        found = required.settings(*servers.values())
        found += self._target_problems(target)
        found += self._id_problems(target)
        found += required.replication_account(primary, target)
        found += bypass_problems(self.fleet.accounts, target)
        found += self._copy().check()
        if self.plan.arguments["way"] == "rows":
            # The other ways copy the accounts, too.
            found += required.access(
                (primary, self._url(primary.admin.address)),
                (target, self._url(self._target)),
                databases_of(primary.admin),
                is_fenced=False,
            )
        if self.plan.arguments["source"] != self.plan.arguments["primary"]:
            found += required.standby(self.server, primary, source)
        else:
            self.warnings.append(
                f"it is copied from the primary {source.admin}, whose writes "
                "stop for some milliseconds at the start"
            )
        if self._action == "rebuild":
            found += self._rebuild_problems()
        self._costs.append(_size(source))
        return found

    @as_list
    def _target_problems(self, target: Replication) -> Iterator[Problem]:
        place = target.admin.name
        if not target.is_read_only():
            yield Problem(
                place, "it is writable; set read_only=1 there, in its configuration too"
            )
        if target.filters():
            yield Problem(
                place,
                f"it has replication filters ({target.filters()}), so it "
                "would lack data; remove them",
            )
        status = target.status()
        if status is not None and self._action != "rebuild":
            yield Problem(
                place,
                f"it replicates from {status.source}; detach it first, "
                "with: sqla-shard fleet retire",
            )

    def _id_problems(self, target: Replication) -> list[Problem]:
        """Compare the server_id with that of a standby that stays."""
        arguments = self.plan.arguments
        standby = arguments["standby"]
        if self._action != "build" or standby in (None, arguments["source"]):
            return []
        other = self._at(standby, "standby")
        return Requirements(self.fleet).server_ids(other, target)

    def _rebuild_problems(self) -> list[Problem]:
        target = self._new
        names = databases_of(target.admin)
        self.warnings.append(
            f"{len(names)} databases of {target.admin} are dropped: {', '.join(names)}"
        )
        self.warnings.append(
            f"{self.server} has no usable standby until the end; an undo "
            "does not bring the old content back"
        )
        errant = self._primary.errant(target.history())
        if not errant or self.plan.arguments["discard_errant"]:
            return []
        named = ", ".join(f"{n} of {origin}" for origin, n in errant.items())
        return [
            Problem(
                target.admin.name,
                f"it has transactions that the primary does not have "
                f"({named}); save its binary log, compare the data, and "
                "then discard them with --discard-errant",
            )
        ]

    def _choose(self) -> str:
        """Return the address of the server to copy."""
        standby = self.plan.arguments["standby"]
        primary = str(self.plan.arguments["primary"])
        if standby is None or standby == self._target:
            return primary
        try:
            problems = Requirements(self.fleet).standby(
                self.server, self._primary, self._at(standby, "standby")
            )
        except FleetServerError:
            # A server that does not respond may be why it is replaced.
            return primary
        return primary if problems else str(standby)

    # -- steps ------------------------------------------------------------

    def steps(self) -> Sequence[Step]:
        """Return the steps; none if there is no target."""
        left_out = set() if self._publishes else {PUBLISH}
        if self._action != "replace":
            left_out.add("detach")
        if not self._target:
            return ()
        return [step for step in super().steps() if step.name not in left_out]

    def undo(self) -> str | None:
        """Detach the target, and mark its content as not complete."""
        try:
            target = self._new
            if copy_state(target.admin) is None:
                return None
            target.detach()
            abandon_copy(target.admin)
        except FleetServerError as error:
            # The fleet must not stay locked until it responds.
            return f"{error}; look at it before it is used"
        if self._action == "rebuild":
            return f"the content of {target.admin} was dropped: rebuild it again"
        return None

    def changed(self, topology: Topology) -> Topology:
        """Name the target as the standby."""
        pair = pair_named(topology, self.server)
        return pair.changed(topology, standby=url_at(pair.primary, self._target))

    def is_published(self, topology: Topology) -> bool:
        """Check which server is the standby."""
        pair = pair_named(topology, self.server)
        return bool(
            self._publishes
            and topology.epoch > self.plan.epoch
            and pair.standby is not None
            and address_in(pair.standby) == self._target
        )

    def _do_copy(self) -> Mapping[str, Any]:
        # Resumed, it may be days after the check: what is copied over must
        # not have been opened meanwhile.
        problems = self._role_problems()
        if problems or not self._new.is_read_only():
            raise self._failed(problems[0].message if problems else "it is writable")
        try:
            return self._copy().run().as_dict()
        finally:
            # A command or CLONE restarts the server.
            self.forget(self._url(self._target))

    def _do_attach(self) -> None:
        target, primary = self._new, self._primary
        # Accounts are not copied with the rows.
        carry_fences(primary.admin, target.admin)
        semi_sync = primary.semi_sync()
        # A server that is only prepared must not acknowledge writes.
        if semi_sync is not None and semi_sync.source_enabled:
            target.set_semi_sync(
                source=False, replica=self._publishes or self._action == "rebuild"
            )
        target.attach(
            primary.admin.host,
            primary.admin.port,
            self.fleet.accounts.for_replication(),
        )

    def _do_catch_up(self) -> Mapping[str, Any]:
        target, primary = self._new, self._primary
        begin = last = time.monotonic()
        seen = ""
        while True:
            now = time.monotonic()
            position = primary.position()
            if target.reaches(position, 1.0) and time.monotonic() < now + 0.1:
                return self._settled(begin)
            applied, status = target.applied(), target.status()
            if status is None or status.applier != "Yes":
                raise self._failed(
                    "it does not apply the writes of its primary: "
                    f"{status.error if status else 'not attached'}"
                )
            if applied != seen:
                seen, last = applied, now
            elif now > last + _PATIENCE_SECONDS:
                raise self._failed(
                    f"it makes no progress for {_PATIENCE_SECONDS:g} s: "
                    f"{status.error or 'no error'}"
                )
            self.report(f"at {applied}, its primary at {position}")

    def _settled(self, begin: float) -> Mapping[str, Any]:
        """Wait until the target is healthy.

        A quiet primary is reached before the receiver has connected.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while problems := self._new_problems():
            if time.monotonic() > deadline:
                raise self._failed("; ".join(p.message for p in problems))
            time.sleep(0.05)
        return {"seconds": round(time.monotonic() - begin, 3)}

    def _do_verify(self) -> Mapping[str, Any]:
        primary = self._primary
        problems = self._new_problems()
        if problems:
            raise self._failed("; ".join(one.message for one in problems))
        report = compare_servers(
            self.opener(
                self._url(str(self.plan.arguments["primary"])), primary.admin.name
            ),
            self.opener(self._url(self._target), f"{self.server} new standby"),
            databases_of(primary.admin),
            replicates=True,
            options=CompareOptions(
                # An INSERT that is rolled back leaves the counter of the
                # primary ahead of that of every standby.
                counters=False,
                most=_MAX_SHOWN,
                on_progress=lambda event: self.report(str(event)),
            ),
        )
        if report.found:
            shown = "; ".join(map(str, report.differences[:_MAX_SHOWN]))
            raise self._failed(
                f"it differs from its primary in {report.found} places: {shown}"
            )
        notes = {
            "databases": report.databases,
            "tables": report.tables,
            "rows": report.rows,
            "seconds": round(report.seconds, 3),
        }
        if report.unread:
            unread = "; ".join(map(str, report.unread[:_MAX_SHOWN]))
            return {
                **notes,
                "problem": f"{len(report.unread)} places were not compared: {unread}",
            }
        return notes

    def _do_finish(self) -> Mapping[str, Any] | None:
        finish_copy(self._new.admin)
        if not self._publishes and self._action != "rebuild":
            return None
        primary = self._primary
        semi_sync = primary.semi_sync()
        if semi_sync is None or semi_sync.source_enabled:
            return None
        # As after a failover from a primary that was lost.
        return {
            "todo": "acknowledged writes can be lost with "
            f"{primary.admin}, where semi-sync is off; on it: SET GLOBAL "
            f"{primary.SEMI_SYNC[0]}_enabled = 1"
        }

    def _do_detach(self) -> Mapping[str, Any] | None:
        address = str(self.plan.arguments["standby"])
        try:
            old = self._at(address, "former standby")
            old.detach()
            old.close_writes()
        except FleetServerError as error:
            # It may be lost, which is why it was replaced.
            return {
                "problem": f"{error}; retire it, when it responds, with: "
                f"sqla-shard fleet retire {address}"
            }
        return None

    def _new_problems(self) -> list[Problem]:
        """Return why the target cannot be a standby."""
        return Requirements(self.fleet).standby(
            self.server, self._primary, self._new, is_named=self._action == "rebuild"
        )

    def _failed(self, reason: str) -> FleetServerError:
        return self._new.admin.error(reason)

    # -- servers ----------------------------------------------------------

    def _copy(self) -> Copy:
        arguments = self.plan.arguments
        owner = "" if self.hold is None else self.hold.record.id
        return Copy(
            self._source.admin,
            self._new.admin,
            owner=owner,
            way=arguments["way"],
            command=arguments["command"],
            clear=self._action == "rebuild",
            account=self.fleet.accounts.operator,
            progress=lambda event: self.report(str(event)),
            check=str if self.hold is None else self.hold.check,
        )

    @property
    def _primary(self) -> Replication:
        return self._at(str(self.plan.arguments["primary"]), "primary")

    @property
    def _new(self) -> Replication:
        role = "standby" if self._action == "rebuild" else "new standby"
        return self._at(self._target, role)

    @property
    def _source(self) -> Replication:
        source = str(self.plan.arguments["source"])
        if source == self.plan.arguments["primary"]:
            return self._primary
        return self._at(source, "standby")

    def _at(self, address: str, role: str) -> Replication:
        return replication_of(self.admin(self._url(address), f"{self.server} {role}"))

    def _url(self, address: str) -> str:
        # Its TLS options are those of the primary.
        pair = pair_named(self.fleet.topology(), self.server)
        return url_at(pair.primary, address)


def _size(source: Replication) -> str:
    size = sum(table.bytes for table in source.table_sizes(counters=False))
    return (
        f"about {size / _GIB:.2f} GiB are copied from {source.admin}; the "
        "free space of the target is not known here: compare it"
    )
