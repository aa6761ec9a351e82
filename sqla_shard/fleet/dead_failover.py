"""Failover from a primary that is lost.

The standby applies everything that it has received and becomes the primary;
the topology then names no standby.  Limits:

* Acknowledged writes that the standby has not received are lost.  The plan
  and the result say what is known about them; see
  :mod:`sqla_shard.fleet.loss`.
* That the primary is lost is proven from two places: this process and the
  standby cannot connect to it.  A primary that responds in any way is not
  lost.  A host that is silent, without closing its connections, is not
  distinguishable from a slow one: the operator must have switched it off, and
  say so.
* A primary that cannot be reached from here, but is reached by applications,
  goes on acknowledging writes, which are lost.
* A standby of MariaDB that was restarted has forgotten what it had received.
  It is refused: starting its replication would delete the relay log, which may
  have the only copy of acknowledged writes.  One of MySQL applies it, and is
  refused if it could not read it.

AUTO_INCREMENT of every table is raised, and the clock of every shard whose ids
begin with the time, so that the id of a lost row never names another object.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import chain
from typing import Any, ClassVar

from sqla_shard.exc import FleetServerError, Problem
from sqla_shard.fleet.admin import marked
from sqla_shard.fleet.clients import late_note
from sqla_shard.fleet.fleet import Fleet, pair_named
from sqla_shard.fleet.loss import loss_of, NONE, SemiSyncProbe
from sqla_shard.fleet.operation import FleetPlan, Step
from sqla_shard.fleet.replication import Replication, replication_of, ReplicationStatus
from sqla_shard.fleet.requirements import bypass_problems, Requirements
from sqla_shard.fleet.role_change import enable_events, Promotion, replicated_events_of
from sqla_shard.ids import TimeLayout
from sqla_shard.topology import Topology

DRAIN = 600.0
"""Seconds for which a standby that is draining may apply nothing."""

#: Seconds for a connection to the lost primary: if its machine is silent, they
#: pass while semi-sync may stop waiting.
_PROOF_SECONDS = 3.0
#: The same, of a process that has just waited for so long.  After 1 s Linux
#: repeats a SYN that was lost.
_SECOND_PROOF_SECONDS = 1.5
#: Seconds for which the proof of this process is recent enough to publish.
_PROVED_SECONDS = 5.0
#: Seconds between two looks at a standby that is draining.
_LOOK_SECONDS = 2.0
#: Sessions that raise AUTO_INCREMENT at the same time.
_SESSIONS = 4
#: By how much AUTO_INCREMENT is raised, unless the column is too small.
_IDS = 100_000

_RESCUE = 'See "A standby that was restarted" in the how-to guide "Fail over"'


def responds(
    admin_of: Fleet, url: str, name: str, *, timeout: float = _PROOF_SECONDS
) -> str | None:
    """Return how a server responds; None if it cannot be connected to."""
    try:
        with admin_of.admin(url, name=name, timeout=timeout) as admin:
            return f"{admin} responds"
    except FleetServerError as error:
        return None if error.may_be_lost else str(error)


class DeadFailover(Promotion):
    """Make a standby the primary whose primary is lost."""

    kind = "dead-failover"
    STEPS: ClassVar[tuple[Step, ...]] = (
        Step("record", "record what {new} has received"),
        Step("drain", "wait until {new} has applied everything received"),
        Step("stop", "prove again that the primary is lost, stop replication"),
        Step("raise-ids", f"raise AUTO_INCREMENT of every table by {_IDS:,}"),
        # Here for a hook; then it is proved again that the primary is lost.
        *Promotion.CUTOVER,
        Step("enable-events", "enable the events on {new}"),
        Step("verify", "check that {new} can be written"),
    )
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
        allow_loss: bool = True,
        drain_timeout: float = DRAIN,
    ) -> FleetPlan:
        """Return the plan, with all problems.

        :param server: name of the server in the topology, or
            ``keyspace/name``.
        :param fenced: whether the operator has switched the old primary off,
            so that it need not be proven that it is lost.
        :param probe: the last look at the primary.
        :param is_automatic: whether a watcher plans it, so that another one
            may finish it.
        :param allow_loss: whether to go on if acknowledged writes may be
            lost.
        :param drain_timeout: seconds for which the standby may apply nothing,
            although it has received more.
        :raises UnknownServerError: if the topology has no such server.
        """
        if probe is not None:
            probe = _compared(fleet, server, probe)
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
            allow_loss=allow_loss,
            drain_timeout=drain_timeout,
        )

    def check(self) -> list[Problem]:
        """Prove the loss, and look whether the standby can be drained."""
        if self.plan.arguments["new"] is None:
            return [self.lacks_standby()]
        with ThreadPoolExecutor(1) as pool:
            proof = pool.submit(self._proof)
            found = self._standby_problems()
        return [*proof.result(), *found]

    def _standby_problems(self) -> list[Problem]:
        found: list[Problem] = []
        try:
            new = self.new
            required = Requirements(self.fleet)
            found += required.settings(new)
            found += required.lost_primary(self.server, new)
            found += bypass_problems(self.fleet.accounts, new)
            url = self.url_of(self.plan.arguments["new"])
            pair = pair_named(self.fleet.topology(), self.server)
            found += required.access_alone(new, url, pair.databases())
            status = new.status()
            found += self._still_receives(status)
            undrained = _not_drainable(new, status)
            if undrained is not None:
                found.append(Problem(new.admin.name, undrained))
        except FleetServerError as error:
            found.append(error.as_problem("its state is unknown"))
        return found

    def undo(self) -> str | None:
        """Let the standby replicate again."""
        new = self.new
        status = new.status()
        if status is None:
            return f"{new.admin} does not replicate; look at it"
        if status.receiver != "No":
            return None
        # Starting one of MariaDB could delete the relay log.
        undrained = _not_drainable(new, status)
        if undrained is not None and not new.RECEIVED_SURVIVES:
            return f"replication of {new.admin} stays stopped: {undrained}"
        new.start()
        return None

    def changed(self, topology: Topology) -> Topology:
        """Make the standby the primary, which has no standby."""
        pair = pair_named(topology, self.server)
        return pair.changed(topology, primary=pair.standby, standby=None)

    # -- checks -----------------------------------------------------------

    def _proof(self) -> list[Problem]:
        if self.hold is None and self.plan.arguments["is_automatic"]:
            # The watcher that makes the plan has just failed to connect.
            return []
        old = self.plan.arguments["old"]
        answer = responds(
            self.fleet,
            self.url_of(old),
            self.role(old),
            timeout=_SECOND_PROOF_SECONDS if self._is_proved() else _PROOF_SECONDS,
        )
        if answer is None:
            self._proved_at = time.monotonic()
            return []
        return [
            Problem(
                self.role(old),
                f"it is not lost: {answer}. For a failover use: sqla-shard "
                f"fleet failover {self.server}; if it was restarted: "
                f"sqla-shard fleet reopen {self.server}; otherwise stop it",
            )
        ]

    def _is_proved(self) -> bool:
        """Return whether this process has just proved it."""
        proved = self._proved_at
        return proved is not None and time.monotonic() < proved + _PROVED_SECONDS

    def _still_receives(self, status: ReplicationStatus | None) -> list[Problem]:
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

    def _do_record(self) -> Mapping[str, Any]:
        status = self.new.status()
        text = _not_drainable(self.new, status)
        if status is None or text is not None:
            raise self._failed(text or "it does not replicate")
        probe = self._probe()
        if probe is not None:
            self._state_loss(probe.compared(self.new.receiver()))
        return {"received": status.received}

    def _do_drain(self) -> None:
        self._apply_all(self.notes["record"]["received"])

    def _apply_all(self, received: str) -> None:
        """Wait until the standby has applied its relay log."""
        new = self.new
        limit = self.plan.arguments["drain_timeout"]
        last, since = "", time.monotonic()
        while not new.covers(applied := new.applied(), received):
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
            now = time.monotonic()
            if applied != last:
                last, since = applied, now
            elif now >= since + limit:
                raise self._failed(
                    f"it has applied {applied} of {received}, and nothing more for "
                    f"{limit:g} s; end the session that its applier waits for (SHOW "
                    "PROCESSLIST), or wait longer with --drain-timeout"
                )
            if new.reaches(received, min(_LOOK_SECONDS, limit)):
                return
            if self.hold is not None:
                self.hold.check()

    def _do_stop(self) -> Mapping[str, Any]:
        new = self.new
        received = self.notes["record"]["received"]
        problems = self._proof() + self._still_receives(new.status())
        if problems:
            raise self._failed(str(problems[0]))
        probe = self._probe()
        loss = self.plan.arguments["loss"]
        if probe is not None:
            loss = self._state_loss(replace(probe, lost=time.time()))
        # The receiver first: what it receives until then must be applied, and
        # cannot be any more when both are stopped.
        new.stop_receiver()
        status = new.status()
        if status is not None and status.received:
            self._apply_all(status.received)
        new.abandon()
        self._refuse_unapplied(new.status(), received)
        self.prepare_publish()
        return {"loss": loss}

    def _do_publish(self) -> Mapping[str, Any]:
        if not self.is_published(self.fleet.topology()):
            self._prove_again()
        return super()._do_publish()

    def _prove_again(self) -> None:
        """Repeat the proof, unless this process has just had it.

        After a crash in between the primary may be back, and written.
        """
        if self._is_proved():
            return
        problems = self._proof()
        if problems:
            raise self._failed(str(problems[0]))
        status = self.new.status()
        if status is not None and {status.receiver, status.applier} != {"No"}:
            raise self._failed("its replication was started again")
        self._refuse_unapplied(status, self.notes["record"]["received"])

    def _refuse_unapplied(
        self, status: ReplicationStatus | None, received: str
    ) -> None:
        """Fail if it lacks anything that it had received, then or now."""
        if status is None:
            # RESET has deleted the relay log.
            raise self._failed("it does not replicate any more")
        applied = self.new.applied()
        for position in filter(None, (received, status.received)):
            if not self.new.covers(applied, position):
                raise self._failed(f"it has applied {applied}, but received {position}")

    def _probe(self) -> SemiSyncProbe | None:
        probe = self.plan.arguments["probe"]
        return None if probe is None else SemiSyncProbe.from_dict(probe)

    def _state_loss(self, probe: SemiSyncProbe) -> str:
        """Return the loss statement; fail if that loss is not allowed."""
        loss = loss_of(probe)
        if not self.plan.arguments["allow_loss"] and not loss.startswith(NONE):
            raise self._failed(f"acknowledged writes may be lost ({loss})")
        return loss

    def _do_raise_ids(self) -> Mapping[str, Any]:
        pair = pair_named(self.fleet.topology(), self.server)
        databases = set(pair.databases())
        tables = [
            (
                f"{marked(one)}.{marked(table)}",
                # The column may be too small.
                number + min(_IDS, max(0, (highest - number) // 2)),
            )
            for one, table, number, highest in self.new.next_ids()
            if one in databases
        ]
        parts = [tables[first::_SESSIONS] for first in range(_SESSIONS)]
        with ThreadPoolExecutor(_SESSIONS) as pool:
            list(pool.map(self._raise, filter(None, parts)))
        return {"tables": len(tables)}

    def _raise(self, tables: Sequence[tuple[str, int]]) -> None:
        with self.new.admin.another() as admin, admin.unlogged():
            admin.run_each(
                f"ALTER TABLE {name} AUTO_INCREMENT = {number}"
                for name, number in tables
            )

    def _raise_clocks(self) -> None:
        """Raise the clocks of ids that begin with the time.

        The process that has issued the last ids may have a clock that is
        ahead of the others.
        """
        # Its package takes as long as the other imports of `fleet status`.
        from sqla_shard.outbox.tables import CLOCKS

        admin = self.new.admin
        there = admin.rows(
            "SELECT table_schema FROM information_schema.tables WHERE table_name = %s",
            CLOCKS.name,
        )
        pair = pair_named(self.fleet.topology(), self.server)
        wanted = {
            keyspace.database_for(shard_id)
            for keyspace, server in pair.members
            if isinstance(keyspace.id_layout, TimeLayout)
            for shard_id in chain.from_iterable(server.shards)
        }
        admin.write_while_closed()
        # One transaction: each COMMIT waits for the disk, while nobody can
        # write.
        admin.run("START TRANSACTION")
        admin.run_each(
            f"UPDATE {marked(database)}.{CLOCKS.name}"  # noqa: S608
            f" SET last_id = last_id + {_IDS}"
            for (database,) in there
            if database in wanted
        )
        admin.run("COMMIT")

    def _do_open(self) -> None:
        new = self.new
        # After the publication: a standby whose rows differ from those of its
        # primary must not remain if the operation is undone.
        self._raise_clocks()
        semi_sync = new.semi_sync()
        if semi_sync is not None and (semi_sync.source_enabled or semi_sync.replica_on):
            # With no standby each COMMIT would wait for the timeout.
            new.set_semi_sync(source=False, replica=False)
        new.open_writes()

    def _do_enable_events(self) -> Mapping[str, Any] | None:
        new = self.new
        new.detach()
        events = replicated_events_of(new.admin)
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

    def _do_verify(self) -> Mapping[str, Any]:
        self.check_promoted()
        return {
            **late_note(self.fleet),
            "loss": self.notes["stop"]["loss"],
            "todo": f"{self.new.admin} has no standby, and its COMMITs wait for none: "
            f"sqla-shard fleet replica build {self.server} HOST; or name the old "
            "primary as the standby in the next topology, and: sqla-shard fleet "
            f"replica rebuild {self.server} --discard-errant",
        }

    def _failed(self, reason: str) -> FleetServerError:
        return FleetServerError(
            server=self.full_name(self.plan.arguments["new"]), number=0, reason=reason
        )


def _not_drainable(
    standby: Replication, status: ReplicationStatus | None
) -> str | None:
    """Return why a standby cannot apply what it has received; None if it can.

    It has if everything is applied, or its applier can go on.
    """
    if status is None:
        return "it does not replicate; promote a server that does"
    rescue = f"{standby.RESCUE}. {_RESCUE}"
    # On MySQL it is empty before the first transaction, too, when it runs;
    # and after a restart that cannot read the relay log, or deletes it.
    if not status.received and (
        status.receiver == "No" or not standby.RECEIVED_SURVIVES
    ):
        return f"what it had received is unknown: it was restarted. {rescue}"
    if standby.RECEIVED_SURVIVES:
        return None
    if standby.covers(standby.applied(), status.received):
        return None
    if status.receiver == "No" and status.applier == "No":
        return f"it has received more than it has applied. {rescue}"
    return None


def _compared(fleet: Fleet, server: str, probe: SemiSyncProbe) -> SemiSyncProbe:
    """Compare a probe with the standby as it is now."""
    standby = pair_named(fleet.topology(), server).standby
    if standby is None:
        return probe
    receiver = None
    # A standby that does not respond is a problem of the plan.
    with (
        suppress(FleetServerError),
        fleet.admin(standby, name=f"{server} standby") as admin,
    ):
        receiver = replication_of(admin).receiver()
    return probe.compared(receiver)
