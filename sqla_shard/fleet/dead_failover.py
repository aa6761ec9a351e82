"""Failover from a primary that is lost.

The standby applies everything that it has received and becomes the primary;
the topology then names no standby.  Limits:

* Acknowledged writes that the standby has not received are lost.  The plan
  says what is known about them: "none" only if semi-synchronous replication
  was on when somebody looked last, shortly before.
* That the primary is lost is proven from two places: this process and the
  standby cannot connect to it.  A primary that responds in any way is not
  lost.  A host that is silent, without closing its connections, is not
  distinguishable from a slow one: the operator must have switched it off, and
  say so.
* A primary that cannot be reached from here, but is reached by applications,
  goes on acknowledging writes, which are lost.
* A standby that was restarted has forgotten what it had received.  It is
  refused: starting its replication would delete the relay log, which may have
  the only copy of acknowledged writes.

AUTO_INCREMENT of every table is raised, so that the id of a lost row never
names another object.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from dataclasses import dataclass
from typing import Any

from sqla_shard.exc import FleetServerError
from sqla_shard.exc import Problem
from sqla_shard.fleet.events import enable_events
from sqla_shard.fleet.events import events_of
from sqla_shard.fleet.fleet import Fleet
from sqla_shard.fleet.fleet import pair_named
from sqla_shard.fleet.pair_checks import bypass_problems
from sqla_shard.fleet.pair_checks import form_problems
from sqla_shard.fleet.pair_checks import setting_problems
from sqla_shard.fleet.plans import Plan
from sqla_shard.fleet.plans import Step
from sqla_shard.fleet.replication import Replication
from sqla_shard.fleet.replication import ReplicationStatus
from sqla_shard.fleet.role_change import RoleChange
from sqla_shard.topology import Topology

__all__ = ["DeadFailover", "SemiSyncProbe", "loss_of", "responds"]

#: Seconds for a connection to the lost primary.
_PROOF = 3.0
#: Seconds for which the proof of this process is recent enough to publish.
_PROVED = 5.0
#: Seconds between two looks at a standby that is draining.
_LOOK = 2.0
#: Sessions that raise AUTO_INCREMENT at the same time.
_SESSIONS = 4
#: By how much AUTO_INCREMENT is raised, unless the column is too small.
_IDS = 100_000

_RESCUE = (
    "Do not start its replication: that would delete its relay log. See "
    '"A standby that was restarted" in the how-to guide "Fail over"'
)


@dataclass(frozen=True, kw_only=True)
class SemiSyncProbe:
    """What somebody saw of semi-synchronous replication before the loss.

    :ivar seen: seconds since the epoch of the last look that succeeded.
    :ivar lost: those of the first look that failed.
    :ivar on: whether COMMIT waited for a standby.
    :ivar timeout: seconds after which it stops waiting.
    :ivar standbys: number of standbys that acknowledged.
    """

    seen: float
    lost: float
    on: bool
    timeout: float
    standbys: int


def loss_of(probe: SemiSyncProbe | None) -> str:
    """Return what is known about lost writes: ``"none: ..."`` or else.

    :param probe: the last look at the primary, if there was one.
    """
    if probe is None:
        return (
            "unknown: nobody has looked whether semi-sync was on; writes "
            "that the standby had not received are lost"
        )
    seconds = max(0.0, probe.lost - probe.seen)
    when = f"at the last probe, {seconds:.1f} s before the primary was lost"
    if not probe.on:
        return (
            f"unknown: semi-sync was off {when}; writes that the standby had "
            "not received are lost"
        )
    if probe.standbys != 1:
        return (
            f"unknown: semi-sync was on {when}, but {probe.standbys} standbys "
            "acknowledged, and another one may have received more"
        )
    if seconds >= probe.timeout:
        return (
            f"unknown: semi-sync was on {when}, but it stops waiting after "
            f"{probe.timeout:g} s"
        )
    return f"none: semi-sync was on {when}"


def responds(admin_of: Fleet, url: str, name: str) -> str | None:
    """Return how a server responds; None if it cannot be connected to."""
    try:
        with admin_of.admin(url, name=name, timeout=_PROOF) as admin:
            return f"{admin} responds"
    except FleetServerError as error:
        # Numbers from 2000 to 2999 are those of the driver.
        if 2000 <= error.number < 3000 or error.number == 0:
            return None
        return str(error)


class DeadFailover(RoleChange):
    """Make a standby the primary whose primary is lost."""

    kind = "dead-failover"
    #: When this process has proved that the primary is lost.
    _proved_at: float | None = None

    @classmethod
    def planned(
        cls,
        fleet: Fleet,
        server: str,
        *,
        fenced: bool = False,
        probe: SemiSyncProbe | None = None,
        is_automatic: bool = False,
    ) -> Plan:
        """Return the plan, with everything that speaks against it.

        :param server: name of the server in the topology, or
            ``keyspace/name``.
        :param fenced: whether the operator has switched the old primary off,
            so that it need not be proven that it is lost.
        :param probe: the last look at the primary.
        :param is_automatic: whether a watcher plans it, so that another one
            may finish it.
        :raises UnknownServerError: if the topology has no such server.
        """
        loss = loss_of(probe)
        return cls.plan_of(
            fleet,
            server,
            title="failover of {server} from the lost {old} to {new}",
            costs=(
                f"acknowledged writes that are lost: {loss}",
                "the new primary has no standby until you build one",
            ),
            fenced=fenced,
            loss=loss,
            probe=None if probe is None else asdict(probe),
            is_automatic=is_automatic,
        )

    def check(self) -> list[Problem]:
        """Prove the loss, and look whether the standby can be drained."""
        if self.plan.arguments["new"] is None:
            return [self.lacks_standby()]
        found = self._proof()
        try:
            new = self.new
            found += setting_problems(new)
            found += form_problems(new)
            found += bypass_problems(self.fleet.accounts, new)
            status = new.status()
            found += self._still_receives(status)
            undrained = _not_drainable(new, status)
            if undrained is not None:
                found.append(Problem(new.admin.name, undrained))
        except FleetServerError as error:
            found.append(
                Problem(
                    error.server,
                    f"{error.reason} (error {error.number}); its state is "
                    "unknown",
                )
            )
        return found

    def steps(self) -> Sequence[Step]:
        """Return the steps."""
        new = self.plan.arguments["new"]
        return (
            Step(
                name="record",
                text=f"record what {new} has received",
                run=self._record,
            ),
            Step(
                name="drain",
                text=f"wait until {new} has applied everything received",
                run=self._drain,
            ),
            Step(
                name="stop",
                text="prove again that the primary is lost, stop replication",
                run=self._stop,
            ),
            Step(
                name="raise-ids",
                text=f"raise AUTO_INCREMENT of every table by {_IDS:,}",
                run=self._raise_ids,
            ),
            Step(
                name="publish",
                text=f"publish the topology with {new} as the primary",
                run=self._publish,
                critical=True,
            ),
            Step(
                name="open",
                text=f"let applications write to {new}",
                run=self._open_new,
                critical=True,
            ),
            Step(
                name="enable-events",
                text=f"enable the events on {new}",
                run=self._enable_events,
            ),
            Step(
                name="verify",
                text=f"check that {new} can be written",
                run=self._verify,
            ),
        )

    def undo(self) -> None:
        """Let the standby replicate again."""
        new = self.new
        status = new.status()
        if status is None or status.receiver != "No":
            return
        # Starting it deletes the relay log; before "stop" it was not stopped.
        if _not_drainable(new, status) is None:
            new.start()

    def changed(self, topology: Topology) -> Topology:
        """Make the standby the primary, which has no standby."""
        pair = pair_named(topology, self.server)
        return pair.changed(topology, primary=pair.standby, standby=None)

    # -- checks -----------------------------------------------------------

    def _proof(self) -> list[Problem]:
        old = self.plan.arguments["old"]
        answer = responds(self.fleet, self.url_of(old), self.role(old))
        if answer is None:
            return []
        return [
            Problem(
                self.role(old),
                f"it is not lost: {answer}. For a failover use: sqla-shard "
                f"fleet failover {self.server}; if it was restarted: "
                f"sqla-shard fleet reopen {self.server}; otherwise stop it",
            )
        ]

    def _still_receives(
        self, status: ReplicationStatus | None
    ) -> list[Problem]:
        if status is None or status.receiver != "Yes":
            return []
        if self.plan.arguments["fenced"]:
            return []
        return [
            Problem(
                self.role(self.plan.arguments["new"]),
                "it is still connected to the primary. If the machine of the "
                "primary is silent, switch it off, then use --fenced",
            )
        ]

    # -- steps ------------------------------------------------------------

    def _record(self) -> Mapping[str, Any]:
        status = self.new.status()
        text = _not_drainable(self.new, status)
        if status is None or text is not None:
            raise self._failed(text or "it does not replicate")
        return {"received": status.received}

    def _drain(self) -> None:
        new = self.new
        received = self.notes["record"]["received"]
        while not new.covers(new.applied(), received):
            status = new.status()
            text = _not_drainable(new, status)
            if status is None or text is not None:
                raise self._failed(text or "it does not replicate")
            if status.applier != "Yes":
                if status.applier_error:
                    raise self._failed(
                        f"its applier has stopped: {status.applier_error}"
                    )
                new.start_applier()
            if new.reaches(received, _LOOK):
                return
            if self.hold is not None:
                self.hold.check()

    def _stop(self) -> None:
        new = self.new
        received = self.notes["record"]["received"]
        problems = self._proof() + self._still_receives(new.status())
        if problems:
            raise self._failed(str(problems[0]))
        self._proved_at = time.monotonic()
        new.stop()
        status = new.status()
        applied = new.applied()
        if not new.covers(applied, received) or (
            status is not None
            and status.received
            and not new.covers(applied, status.received)
        ):
            raise self._failed(
                f"it has applied {applied}, but received {received}"
            )
        self.prepare_publish()

    def _publish(self) -> Mapping[str, Any]:
        if not self.is_published(self.fleet.topology()):
            self._prove_again()
        return self.publish()

    def _prove_again(self) -> None:
        """Repeat the proof, unless this process has just had it.

        After a crash in between the primary may be back, and written.
        """
        proved = self._proved_at
        if proved is not None and time.monotonic() < proved + _PROVED:
            return
        problems = self._proof()
        if problems:
            raise self._failed(str(problems[0]))
        status = self.new.status()
        if status is not None and {status.receiver, status.applier} != {"No"}:
            raise self._failed("its replication was started again")

    def _raise_ids(self) -> Mapping[str, Any]:
        pair = pair_named(self.fleet.topology(), self.server)
        databases = set(pair.databases())
        tables = [
            (f"{_quoted(one)}.{_quoted(table)}", _raised(number, highest))
            for one, table, number, highest in self.new.next_ids()
            if one in databases
        ]
        parts = [tables[first::_SESSIONS] for first in range(_SESSIONS)]
        with ThreadPoolExecutor(_SESSIONS) as pool:
            list(pool.map(self._raise, filter(None, parts)))
        return {"tables": len(tables)}

    def _raise(self, tables: Sequence[tuple[str, int]]) -> None:
        with self.new.admin.another() as admin, admin.unlogged():
            for name, number in tables:
                admin.run(f"ALTER TABLE {name} AUTO_INCREMENT = {number}")

    def _open_new(self) -> None:
        new = self.new
        semi_sync = new.semi_sync()
        if semi_sync is not None and (
            semi_sync.source_enabled or semi_sync.replica_on
        ):
            # With no standby each COMMIT would wait for the timeout.
            new.set_semi_sync(source=False, replica=False)
        new.open_writes()

    def _enable_events(self) -> Mapping[str, Any] | None:
        new = self.new
        new.detach()
        events = events_of(new.admin, status="SLAVESIDE_DISABLED")
        enable_events(new.admin, events)
        scheduler = new.admin.value("SELECT @@GLOBAL.event_scheduler")
        if events and scheduler != "ON":
            return {
                "events": len(events),
                "problem": f"{new.admin} has {len(events)} enabled events, "
                "but its event scheduler is off; if it was on at the old "
                "primary: SET GLOBAL event_scheduler = ON",
            }
        return {"events": len(events)}

    def _verify(self) -> Mapping[str, Any]:
        new = self.new
        if new.is_read_only() or new.status() is not None:
            raise self._failed("it is read-only or replicates")
        return {"loss": self.plan.arguments["loss"]}

    def _failed(self, reason: str) -> FleetServerError:
        return FleetServerError(
            server=self.full_name(self.plan.arguments["new"]),
            number=0,
            reason=reason,
        )


def _not_drainable(
    standby: Replication, status: ReplicationStatus | None
) -> str | None:
    """Return why a standby cannot apply what it has received; None if it can.

    It has if everything is applied, or its applier can go on.
    """
    if status is None:
        return "it does not replicate; promote a server that does"
    if not status.received:
        return f"what it had received is unknown: it was restarted. {_RESCUE}"
    if standby.covers(standby.applied(), status.received):
        return None
    if status.receiver == "No" and status.applier == "No":
        return f"it has received more than it has applied. {_RESCUE}"
    return None


def _raised(number: int, highest: int) -> int:
    """Return the next id of a table whose column holds at most ``highest``."""
    return number + min(_IDS, max(0, (highest - number) // 2))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``").replace("%", "%%") + "`"
