"""Planned failover: the standby of a pair becomes its primary.

The old primary becomes the standby.  No acknowledged write is lost, and
writes stop for about the time that the standby is behind, plus some tens of
milliseconds.  Limits:

* Both servers must be reachable; for a primary that is lost, see
  :mod:`sqla_shard.fleet.dead_failover`.
* A statement that writes for more than 1 s makes the fence give up, and
  everything is undone.
* Transactions that are open at the fence are rolled back.  All sessions on
  the old primary are ended afterwards, except those of replication and of the
  operator.
* Writes between the steps ``open`` and ``attach`` are on one server only.
* Rows are compared before and after, within a time limit; see
  :mod:`sqla_shard.fleet.compare`.
* Further standbys of the old primary are not attached to the new one; they
  follow it through the old primary.

The fence is a global read lock, which ends with the session of the operation:
if the process dies before the old primary is read-only, just before
``publish``, writes go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from sqla_shard.exc import (
    ApplierStoppedError,
    FleetServerError,
    OperationRefusedError,
    Problem,
)
from sqla_shard.fleet.clients import (
    applications,
    end_sessions,
    ended_note,
    late_note,
    programs,
)
from sqla_shard.fleet.compare import CutoverContents, fault_of, proof_of
from sqla_shard.fleet.fleet import Fleet, pair_named
from sqla_shard.fleet.operation import FleetPlan, Step
from sqla_shard.fleet.replication import Replication
from sqla_shard.fleet.requirements import (
    bypass_problems,
    followers,
    LAG,
    long_work,
    Requirements,
)
from sqla_shard.fleet.role_change import (
    disable_events,
    enable_events,
    events_of,
    Promotion,
    set_scheduler,
)
from sqla_shard.topology import Topology

#: Seconds that it may need for the last writes, when all others wait.
_CATCH_UP_SECONDS = 3
#: Seconds after which a server ends the fence of an operation that hangs.
_FENCE_SECONDS = 5
#: Seconds until the former primary replicates, or its sessions are gone.
_PATIENCE_SECONDS = 30.0

COMPARE_LIMIT = 60.0
"""Seconds that a comparison of rows may take by default."""


class Failover(Promotion):
    """Exchange the roles of a primary and its standby."""

    kind = "failover"
    STEPS: ClassVar[tuple[Step, ...]] = (
        Step("compare", "compare the rows of {new} with those of {old}"),
        # Here, before the last wait, an operation can wait for a hook.
        Step("prepare", "wait until the standby is less than 100 ms behind"),
        Step("stop-events", "stop the event scheduler of {old}"),
        Step(
            "fence", "stop writes on {old} and let {new} apply the last", critical=True
        ),
        *Promotion.CUTOVER,
        Step("attach", "let {old} replicate from {new}"),
        Step("kill", "end the sessions of applications on {old}"),
        Step("move-events", "enable the events on {new} and disable them on {old}"),
        Step(
            "verify", "check that only {new} can be written, and compare the rows again"
        ),
    )

    def __init__(self, fleet: Fleet, plan: FleetPlan) -> None:
        super().__init__(fleet, plan)
        self._is_fenced = False
        self._compare_limit = plan.arguments["compare_limit"]

    @classmethod
    def planned(
        cls, fleet: Fleet, server: str, *, compare_limit: float | None = COMPARE_LIMIT
    ) -> FleetPlan:
        """Return the plan, with all problems.

        :param server: name of the server in the topology, or
            ``keyspace/name``.
        :param compare_limit: seconds for the comparison of all rows, before
            the cutover and after it; what was not compared by then is named,
            and not refused.  None compares no rows.
        :raises UnknownServerError: if the topology has no such server.
        """
        return cls.plan_of(
            fleet,
            server,
            title="failover of {server} from {old} to {new}",
            costs=(
                "writes stop for about 0.1 s, plus the lag of the standby",
                "transactions that are open then are rolled back",
                "all sessions on the old primary are ended",
                "new writes are on one server only until it replicates",
                "no rows are compared"
                if compare_limit is None
                else "rows are read on both servers, before and after, for "
                f"{compare_limit:g} s at most each time; meanwhile no other "
                "operation can run",
            ),
            compare_limit=compare_limit,
        )

    def check(self) -> list[Problem]:
        """Check the requirements of a failover on both servers."""
        if self.plan.arguments["new"] is None:
            return [self.lacks_standby()]
        try:
            return self._compare(self.old, self.new)
        except FleetServerError as error:
            consequence = "its state is unknown"
            if error.may_be_lost:
                is_old = error.server == self.full_name(self.plan.arguments["old"])
                consequence += (
                    ". If the primary is lost, use: "
                    f"sqla-shard fleet failover {self.server} --dead"
                    if is_old
                    else ". If the standby is lost, use: "
                    f"sqla-shard fleet replica replace {self.server} HOST:PORT"
                )
            return [error.as_problem(consequence)]

    def _compare(self, old: Replication, new: Replication) -> list[Problem]:
        required = Requirements(self.fleet)
        found = required.settings(old, new)
        found += required.primary(self.server, old)
        found += required.standby(self.server, old, new)
        found += required.fences(old, new)
        found += required.replication_account(old, new)
        pair = pair_named(self.fleet.topology(), self.server)
        urls = (old, pair.primary), (new, str(pair.standby))
        found += required.replication_login(*urls)
        found += required.access(*urls, pair.databases())
        found += bypass_problems(self.fleet.accounts, old)
        found += bypass_problems(self.fleet.accounts, new)
        self.warnings.extend(long_work(old))
        others = followers(old) - 1
        if others > 0:
            self.warnings.append(
                f"{others} more servers replicate from {old.admin}; they will follow "
                "the new primary through it until they are attached to the new one"
            )
        events = events_of(old.admin)
        if events:
            self.warnings.append(
                f"{len(events)} events move to {new.admin}; events that are "
                "due during the failover do not run"
            )
        return found

    def undo(self) -> str | None:
        """Let the old primary be written, and the standby replicate."""
        self._is_fenced = False
        # First: until then no write is possible, and the standby may be lost.
        self.old.open_writes()
        prepared = self.notes.get("prepare", {})
        if prepared.get("scheduler"):
            set_scheduler(self.old.admin, on=True)
        try:
            self.new.start()
        except FleetServerError as error:
            return f"the standby does not replicate: {error}"
        return None

    def changed(self, topology: Topology) -> Topology:
        """Exchange the URLs of the pair."""
        pair = pair_named(topology, self.server)
        return pair.changed(topology, primary=pair.standby, standby=pair.primary)

    # -- steps ------------------------------------------------------------

    def _do_compare(self) -> Mapping[str, Any] | None:
        if self._compare_limit is None:
            return None
        # A process that was killed in this step has left its applier stopped.
        self.new.start()
        report = self._contents("old", "new").replicated()
        if report.found:
            raise self.new.admin.error(
                f"{fault_of(report)}; look at them with: sqla-shard fleet "
                f"verify {self.server}, then rebuild the standby; a failover "
                "with these differences takes --skip-compare"
            )
        # The server may have ended sessions that were idle meanwhile.
        self.disconnect()
        return {"rows": report.rows, "proof": proof_of(report)}

    def _compare_after(self) -> Mapping[str, Any]:
        """Compare the former primary with the new one; it replicates."""
        remedy = (
            f"compare them with: sqla-shard fleet verify {self.server}; the former "
            "primary may have rows that the new one lacks: do not rebuild it before"
        )
        try:
            self.old.start()
            report = self._contents("new", "old").replicated()
        except (ApplierStoppedError, FleetServerError, OperationRefusedError) as error:
            return {"problem": f"rows were not compared: {error}; {remedy}"}
        if report.found:
            return {"problem": f"after the failover {fault_of(report)}; {remedy}"}
        return {"rows": report.rows, "proof": proof_of(report)}

    def _contents(self, first: str, second: str) -> CutoverContents:
        """Return the comparison of the contents.

        :param first: argument of the plan with the primary of the moment.
        :param second: the one with the standby.
        """
        pair = pair_named(self.fleet.topology(), self.server)
        one, two = self.plan.arguments[first], self.plan.arguments[second]
        return CutoverContents(
            self.opener(self.url_of(one), self.role(one)),
            self.opener(self.url_of(two), self.role(two)),
            pair.databases,
            limit=float(self._compare_limit or COMPARE_LIMIT),
            operation=self,
        )

    def _do_prepare(self) -> Mapping[str, Any]:
        old, new = self.old, self.new
        deadline = time.monotonic() + LAG
        while True:
            begin = time.monotonic()
            position = old.position()
            caught_up = new.reaches(position, 1.0)
            if caught_up and time.monotonic() < begin + 0.1:
                break
            if time.monotonic() > deadline:
                # A COMMIT that hangs on a full disk, or a standby that waits.
                raise new.admin.behind(old.admin, LAG)
        self.prepare_publish()
        semi_sync = old.semi_sync(), new.semi_sync()
        return {
            "scheduler": old.admin.value("SELECT @@GLOBAL.event_scheduler") == "ON",
            "events": events_of(old.admin),
            "semi_sync": any(
                one is not None and (one.source_enabled or one.replica_on)
                for one in semi_sync
            ),
        }

    def _do_stop_events(self) -> None:
        set_scheduler(self.old.admin, on=False)

    def _do_fence(self) -> Mapping[str, Any]:
        old = self.old
        old.freeze(_FENCE_SECONDS)
        self._catch_up(position := old.position())
        # In the session of the fence: one that was lost is an error here, and
        # what was written since is seen.
        old.close_writes()
        last = old.position()
        if last != position:
            self._catch_up(last)
        self._is_fenced = True
        # The standby is not stopped before the step "attach": on MySQL that
        # takes longer than all of this.
        return {"position": last}

    def _catch_up(self, position: str) -> None:
        """Wait until the standby has applied a position of the fence."""
        if not self.new.reaches(position, _CATCH_UP_SECONDS):
            raise self.new.admin.error(
                f"it has not applied {position} within {_CATCH_UP_SECONDS} s"
            )

    def _do_open(self) -> Mapping[str, Any] | None:
        found: Mapping[str, Any] | None = None
        if not self._holds_fence():
            # It may have been restarted with a configuration that lets it be
            # written.
            try:
                self.old.close_writes()
            except FleetServerError as error:
                # One that answers may still be written: then two servers of
                # the pair could be.
                if not error.may_be_lost:
                    raise
                found = {"problem": f"{error}; look at the old primary"}
        self.new.open_writes()
        if self._is_fenced:
            found = self._if_reachable(
                lambda: self.old.thaw(),
                "its session was closed, which ends the read lock",
            )
        return found

    def _holds_fence(self) -> bool:
        """Return whether the old primary is closed since the fence.

        It is not known if another process has fenced it, or the session has
        ended.
        """
        if not self._is_fenced:
            return False
        try:
            self._is_fenced = self.old.is_read_only()
        except FleetServerError:
            self.forget(self.url_of(self.plan.arguments["old"]))
            self._is_fenced = False
        return self._is_fenced

    def _do_attach(self) -> Mapping[str, Any] | None:
        self.new.detach()
        return self._if_reachable(self._attach_old)

    def _attach_old(self) -> Mapping[str, Any] | None:
        old, new = self.old, self.new
        errant = new.errant(old.history())
        if errant:
            return {
                "problem": f"{old.admin} has transactions that the new "
                f"primary has not, by origin: {errant}; it is not attached. "
                "Compare the data of both, then rebuild it with: sqla-shard "
                "fleet replica"
            }
        semi_sync = self.notes.get("prepare", {}).get("semi_sync")
        if semi_sync:
            old.set_semi_sync(source=False, replica=True)
        old.attach(
            new.admin.host,
            new.admin.port,
            self.fleet.accounts.for_replication(),
            demoted=True,
        )
        if not old.runs_within(_PATIENCE_SECONDS):
            status = old.status()
            raise old.admin.error(
                "it does not replicate from the new primary: "
                f"{status.error if status else 'not attached'}"
            )
        if semi_sync:
            # Not before: with no standby each COMMIT waits for the timeout.
            new.set_semi_sync(source=True, replica=False)
        return None

    def _do_kill(self) -> Mapping[str, Any] | None:
        return self._if_reachable(self._kill_applications)

    def _kill_applications(self) -> Mapping[str, Any]:
        accounts = self.fleet.accounts
        admin = self.old.admin
        users = {accounts.operator.user, accounts.for_replication().user}
        known = programs(admin)
        ended, left = end_sessions(
            admin, lambda: applications(admin, users), _PATIENCE_SECONDS
        )
        note = ended_note(admin, ended.values(), known)
        if left:
            note["problem"] = (
                f"{admin}: {len(left)} sessions were killed and do not end; "
                "they may read old data"
            )
        return note

    def _do_move_events(self) -> Mapping[str, Any] | None:
        prepared = self.notes.get("prepare", {})
        events = prepared.get("events", ())
        enable_events(self.new.admin, events)
        if prepared.get("scheduler"):
            set_scheduler(self.new.admin, on=True)
        return self._if_reachable(lambda: disable_events(self.old.admin, events))

    def _do_verify(self) -> Mapping[str, Any]:
        self.check_promoted()
        note = self._if_reachable(self._verify_old)
        if note is None and self._compare_limit is not None:
            note = self._compare_after()
        return {**late_note(self.fleet), **(note or {})}

    def _verify_old(self) -> Mapping[str, Any] | None:
        old, new = self.old, self.new
        if not old.is_read_only():
            return {
                "problem": f"{old.admin} can be written, although it is no "
                "longer the primary; stop it"
            }
        position = new.position()
        if not old.reaches(position, self.fleet.timeout / 2):
            return {"problem": f"{old.admin} has not reached {position}"}
        return None

    def _if_reachable(
        self,
        work: Callable[[], Mapping[str, Any] | None],
        remedy: str = "attach or rebuild it with: sqla-shard fleet replica",
    ) -> Mapping[str, Any] | None:
        """Do work on the old primary; report one that fails.

        The new primary is open: an old one that is lost must not keep the
        operation, and with it the lock of the fleet, pending.

        :param remedy: the message about the failure.
        """
        try:
            return work()
        except FleetServerError as error:
            if error.server != self.full_name(self.plan.arguments["old"]):
                raise
            self.disconnect()
            return {"problem": f"{error}; {remedy}"}
