"""Split: some shards of a server go to a new pair.

Moving all shards of a server is the same, after which the topology does not
have it any more.

The target replicates everything from the source, without filters.  Then
writes to the source stop for some tenths of a second: its databases that move
are fenced (:mod:`sqla_shard.fleet.fences`), the target applies the last write,
the topology is published, and both sides are opened.  Limits:

- Writes to the shards that stay stop, too, and all sessions of the
  application on the source are ended.
- A write of a late client to the old home is an error of the server, never
  lost.  For that the application must have no global privileges or roles.
- Each side has copies of the databases of the other, which are fenced;
  :mod:`sqla_shard.fleet.orphans` removes them.
- Databases that move have no views, triggers, events, or foreign keys to
  others.
- All rows that move are compared twice: at common points of replication before
  writes stop, and, at the moment of the cutover, in snapshots that are read
  afterwards.  See :mod:`~sqla_shard.fleet.compare`.  Meanwhile
  no other operation can run.
- The target must be a copy of the source, and a standby of it; if it is empty
  and the binary log of the source has everything, it is attached.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, ClassVar

from sqla_shard.exc import FleetServerError, OperationRefusedError, Problem
from sqla_shard.exc.base import shortened_list
from sqla_shard.fleet.clients import ended_note, late_note, Program, programs
from sqla_shard.fleet.compare import CutoverContents, fault_of, proof_of
from sqla_shard.fleet.fences import carry_fences, Fence
from sqla_shard.fleet.fleet import Fleet, pair_named, url_at
from sqla_shard.fleet.moves import Request, ShardMove
from sqla_shard.fleet.operation import FleetOperation, FleetPlan, PUBLISH, Step
from sqla_shard.fleet.replication import Replication, replication_of
from sqla_shard.fleet.requirements import (
    bypass_problems,
    long_work,
    prepared_problems,
    Requirements,
    schema_problems,
)
from sqla_shard.topology import Topology

#: Seconds in which the target must catch up before writes are stopped.
_WAIT_SECONDS = 600.0
#: Seconds that it may be behind at the fence.
_LAG_SECONDS = 0.1
#: Seconds until a standby has connected again.
_SETTLE_SECONDS = 30.0


class Split(FleetOperation):
    """Move shards of a server to a new pair.

    :param fleet: the fleet.
    :param plan: a plan of :meth:`planned`.
    """

    kind = "split"
    STEPS: ClassVar[tuple[Step, ...]] = (
        Step("attach", "let {target} replicate from {source}, if it is empty"),
        Step("compare", "compare the tables and rows of {target} and {source}"),
        Step(
            "prepare",
            "fence the copies of what stays on the target, and what moves on the "
            "standby of the source",
        ),
        Step("wait", "wait until {target} is less than 100 ms behind"),
        Step("fence", "stop writes on {source}, end its sessions", critical=True),
        Step("drain", "let {target} apply the last write", critical=True),
        Step(PUBLISH, "publish the topology", critical=True),
        Step("open", "let applications write to {target}", critical=True),
        Step(
            "reopen",
            "end receiving on {target}, let applications write to what stays on "
            "{source}",
            critical=True,
        ),
        Step("detach", "end the replication of {target} from {source}"),
        Step("shut", "forbid reading what has moved on {source}"),
        Step("verify", "look at both pairs, and compare the rows at the cutover"),
    )

    def __init__(self, fleet: Fleet, plan: FleetPlan) -> None:
        super().__init__(fleet, plan)
        arguments = plan.arguments
        asked = dict(arguments["request"])
        if asked["shards"] is not None:
            asked["shards"] = tuple(asked["shards"])
        self._request = Request(**asked)
        self._allowed = tuple(arguments["allowed_users"])
        self._patience = float(arguments["patience"])
        self._move = ShardMove.from_arguments(arguments["move"])
        self._fences: dict[tuple[str, bool], Fence] = {}
        self._compare_limit = arguments["compare_limit"]
        self._contents = self._contents_to_compare()
        #: Whether this process has inserted the fence of the source, which
        #: has no effect yet.
        self._is_prepared = False
        #: Programs of sessions of the source, before writes are stopped.
        self._programs: Mapping[int, Program] = {}

    @classmethod
    def planned(
        cls,
        fleet: Fleet,
        *,
        server: str,
        target: str,
        primary: str,
        standby: str | None = None,
        shards: Sequence[str] | None = None,
        weight: float | None = None,
        allowed_users: Sequence[str] = (),
        patience: float = 3.0,
        compare_limit: float | None = 3600.0,
    ) -> FleetPlan:
        """Plan a split.

        :param server: name of the server that has the shards.
        :param target: name of the new server.
        :param primary: address of its primary, ``host:port``; user and
            password are those of ``server``.
        :param standby: address of its standby; None if it has none.
        :param shards: ranges such as ``"8-15"`` or ``"objects:8-15"``; None
            for all shards of the server.
        :param weight: weight of the target; None for that of ``server``.
        :param allowed_users: users that may keep privileges which bypass the
            fence, since they do not write.
        :param patience: seconds that the target may need for the last
            writes, while writes are stopped; then everything is undone.
        :param compare_limit: seconds that the comparison of all rows may
            take, before the cutover and after it; None compares no rows.
        :raises OperationRefusedError: if the arguments do not fit the
            topology, with all problems of them.
        """
        request = Request(
            server=server,
            shards=None if shards is None else tuple(shards),
            target=target,
            primary=primary,
            standby=standby,
            weight=weight,
        )
        topology = fleet.topology()
        problems: list[Problem] = []
        move = request.resolve(topology, problems)
        title = request.title
        if move is None or not move.moving:
            raise OperationRefusedError(tuple(problems), operation=title)
        plan = FleetPlan(
            kind=cls.kind,
            title=title,
            epoch=topology.epoch,
            arguments={
                "request": asdict(request),
                "move": move.as_arguments(),
                "allowed_users": list(allowed_users),
                "patience": patience,
                "compare_limit": compare_limit,
            },
        )
        operation = cls(fleet, plan)
        costs = tuple(operation.costs(topology))
        return replace(operation.checked(), costs=costs)

    # -- checks -----------------------------------------------------------

    def check(self) -> list[Problem]:
        """Compare the arguments with the topology, and look at each server."""
        problems: list[Problem] = []
        self._request.resolve(self.fleet.topology(), problems)
        reached: dict[str, Replication] = {}
        for role in self._move.urls:
            try:
                reached[role] = self._at(role)
            except FleetServerError as error:
                problems.append(error.as_problem("its state is unknown"))
        try:
            problems += self._compare_servers(reached)
        except FleetServerError as error:
            problems.append(error.as_problem("its state is unknown"))
        if self._move.target_standby is None:
            self.warnings.append(
                f"{self._move.target} has no standby; until one is built "
                "its writes are on one server only"
            )
        if "source" in reached:
            # One that is lost since is a problem already.
            with suppress(FleetServerError):
                self.warnings.extend(long_work(reached["source"]))
        return problems

    def _compare_servers(self, reached: Mapping[str, Replication]) -> list[Problem]:
        """Check the servers that answer, by their role."""
        required = Requirements(self.fleet)
        found = required.settings(*reached.values())
        source, target = reached.get("source"), reached.get("target")
        if source is not None:
            fence = self._fence_of(source)
            found += required.source(self._move.server, source, fence)
        if source is not None and target is not None:
            found += required.copy(self._move.server, source, target, fence.databases)
            lacking = self._access_problems(source, target)
            if target.status() is None:
                # Accounts may be in the binary log of the source: the step
                # "compare" refuses those that are still missing then.
                self.warnings.extend(
                    f"{one}; unless it gets this by replication" for one in lacking
                )
            else:
                found += lacking
            found += bypass_problems(self.fleet.accounts, target)
        for primary, role in ((source, "source standby"), (target, "target standby")):
            standby = reached.get(role)
            if primary is None or standby is None:
                continue
            if standby.status() is None and primary is target:
                # The target is no pair of the topology yet.
                remedy = (
                    "leave out --standby, and build it after the split with: "
                    "sqla-shard fleet replica build"
                )
                found += required.empty(primary, standby, remedy=remedy)
            else:
                is_named = primary is source
                name = self._move.server if is_named else self._move.target
                found += required.standby(name, primary, standby, is_named=is_named)
        return found

    def costs(self, topology: Topology) -> list[str]:
        """Return sentences about pauses and space."""
        server = self._move.server
        moving = len(self._move.databases(topology))
        staying = len(self._move.staying_databases(topology))
        return [
            f"{moving} databases move, {staying} stay",
            f"writes to all shards of {server} stop for some tenths of 1 s",
            (
                f"after {self._patience:g} s without the last write on the "
                "target everything is undone"
            ),
            f"the sessions of the application on {server} end",
            (
                "no rows are compared"
                if self._compare_limit is None
                else "all rows that move are read on both servers, before and "
                f"after, for {self._compare_limit:g} s at most each time; "
                "meanwhile no other operation can run"
            ),
            (
                "each side has copies of the databases of the other, until "
                "they are removed with: sqla-shard fleet orphans"
                if staying
                else f"{server} stays read-only with copies of its databases; "
                "retire its servers with: sqla-shard fleet retire"
            ),
        ]

    # -- steps ------------------------------------------------------------

    def words(self) -> Mapping[str, Any]:
        """Return the names of both pairs."""
        return {"source": self._move.server, "target": self._move.target}

    def undo(self) -> str | None:
        """Let the source be written; the target goes on replicating."""
        # A session that was lost cannot be used again.
        self.forget(*self._move.urls.values())
        self._fences.clear()
        # First: until then no write is possible.
        try:
            self._fence_of(self._source).delete()
            self._source.open_writes()
        except FleetServerError as error:
            raise FleetServerError(
                server=error.server,
                number=error.number,
                reason=f"{error.reason}; it cannot be opened while it is "
                "away. When it responds, repeat: sqla-shard fleet undo",
            ) from error
        others = (role for role in self._move.urls if role != "source")
        left = self._lost_at(others, self._undo_at)
        return "; ".join(left) or None

    def _undo_at(self, role: str) -> None:
        server = self._at(role)
        if role == "source standby":
            self._fence_of(server).delete()
        else:
            self._staying_fence_of(server).delete()
        if role == "target" and server.status() is not None:
            server.start()

    def changed(self, topology: Topology) -> Topology:
        """Return the topology with the shards on the target."""
        return self._move.changed(topology)

    def is_published(self, topology: Topology) -> bool:
        """Check where the shards are."""
        return self._move.is_in(topology)

    def _do_attach(self) -> Mapping[str, Any] | None:
        attached = []
        accounts = self.fleet.accounts
        for primary, server in zip(
            (self._source, self._target), self._targets, strict=False
        ):
            if server.status() is None:
                server.close_writes()
                server.attach(
                    primary.admin.host, primary.admin.port, accounts.for_replication()
                )
                attached.append(str(server.admin))
        return {"attached": attached} if attached else None

    def _do_compare(self) -> Mapping[str, Any] | None:
        target = self._target
        self._catch_up(_WAIT_SECONDS, lag=1.0)
        problems = schema_problems(
            self._source, target, self._move.databases(self.fleet.topology())
        ) + self._access_problems(self._source, target)
        if problems:
            raise target.admin.error("; ".join(problem.message for problem in problems))
        if self._contents is None:
            return None
        report = self._contents.replicated()
        if not report.ok:
            raise target.admin.error(
                f"{fault_of(report)}; look at them with: {self._verify_command}; if "
                "rows differ, build the target again; what cannot be compared moves "
                "with --skip-compare only, and more time is given by --compare-limit"
            )
        return {
            "rows": report.rows,
            "seconds": round(report.seconds, 1),
            "proof": proof_of(report),
        }

    def _do_prepare(self) -> None:
        for server in self._targets:
            # It has copies of the orphans of the source, too.
            carry_fences(self._source.admin, server.admin)
            # Of an earlier move in the other direction.
            self._fence_of(server).delete()
            fence = self._staying_fence_of(server)
            fence.insert(readable=False)
            fence.flush()
        if "source standby" in self._move.urls:
            fence = self._fence_of(self._at("source standby"))
            fence.insert(readable=True)
            fence.flush()

    def _do_wait(self) -> Mapping[str, Any]:
        self._catch_up(_WAIT_SECONDS, lag=_LAG_SECONDS)
        self._fence_of(self._source).users()
        self._programs = programs(self._source.admin)
        self.prepare_publish()
        # Read now: the source may be lost when the target is opened.
        semi_sync = self._source.semi_sync()
        note = {
            "domain": self._source.domain(),
            "server_id": self._target.server_id(),
            "semi_sync": semi_sync is not None and semi_sync.source_enabled,
        }
        self._prepare_fence()
        return note

    def _prepare_fence(self) -> None:
        """Do what the fence needs, while applications write."""
        if self._contents is not None:
            self._contents.prepare()
        # The last: any GRANT would give the rows their effect.
        self._fence_of(self._source).insert(readable=True)
        self._is_prepared = True

    def _do_fence(self) -> Mapping[str, Any]:
        if not self._is_prepared:
            # Resumed: the sessions of the process before have ended.
            self._prepare_fence()
        self._is_prepared = False
        fence = self._fence_of(self._source)
        self._source.close_writes()
        fence.flush()
        ended = fence.kill_sessions(self._patience)
        return ended_note(self._source.admin, ended, self._programs)

    def _do_drain(self) -> Mapping[str, Any]:
        source = self._source
        prepared = prepared_problems(source)
        if prepared:
            raise source.admin.error(prepared[0].message)
        position = source.position()
        self._reach(position, self._patience)
        # Detects later writes of root or of an event.  The target is not
        # stopped before the step "detach": on MySQL that takes longer than
        # all of this.
        last = source.position()
        if last != position:
            raise source.admin.error(
                f"it was at {position} when writes were stopped, and "
                f"is at {last} now: a client bypasses read_only"
            )
        if self._contents is not None:
            self._contents.take(last)
        return {"position": last}

    def _do_open(self) -> Mapping[str, Any] | None:
        target = self._target
        waited = self.notes["wait"]
        there, own = waited["domain"], waited["server_id"]
        if target.domain() == there:
            target.set_domain(own)
        target.open_writes()

        def follow(role: str) -> None:
            standby = self._at(role)
            if standby.domain() == there:
                standby.set_domain(own)

        return self._if_reachable(
            (role for role in self._move.urls if role == "target standby"), follow
        )

    def _do_reopen(self) -> Mapping[str, Any] | None:
        def reopen(role: str) -> None:
            server = self._at(role)
            if role == "target":
                # What is written on the source from now on, past the fence,
                # would be replayed into shards that have moved, if this
                # process died before the next step.
                server.stop_receiver()
            else:
                server.open_writes()

        # Without shards that stay, nothing of the fleet is on the source.
        sources = ("source",) if self._move.staying else ()
        return self._if_reachable(("target", *sources), reopen)

    def _do_detach(self) -> Mapping[str, Any] | None:
        target = self._target
        target.detach()
        if not self.notes.get("wait", {}).get("semi_sync"):
            return None

        def acknowledge(role: str) -> None:
            standby = self._at(role)
            standby.set_semi_sync(source=False, replica=True)
            # The receiver asks for it when it connects.
            standby.stop()
            standby.start()
            if not standby.runs_within(_SETTLE_SECONDS):
                raise standby.admin.error(
                    "it does not replicate, so that the target stays without semi-sync"
                )
            # Not before: with no standby each COMMIT waits for the timeout.
            target.set_semi_sync(source=True, replica=False)

        return self._if_reachable(
            (role for role in self._move.urls if role == "target standby"), acknowledge
        )

    def _do_shut(self) -> Mapping[str, Any] | None:
        def shut(role: str) -> None:
            fence = self._fence_of(self._at(role))
            fence.insert(readable=False)
            fence.flush()

        return self._if_reachable(self._sources, shut)

    def _do_verify(self) -> Mapping[str, Any]:
        problems = self._wrong("target")
        reported: list[str] = []
        lost = {
            step
            for step in ("open", "reopen", "shut")
            if "problem" in self.notes.get(step, {})
        }

        def look(role: str) -> None:
            # A server that was lost meanwhile is reported, even if it is back.
            (reported if lost else problems).extend(self._wrong(role))

        reported += self._lost_at(
            (role for role in self._move.urls if role != "target"), look
        )
        if not problems:
            reported += self._differences()
        if problems:
            raise FleetServerError(
                server=self._move.target, number=0, reason="; ".join(problems)
            )
        notes: dict[str, Any] = {"domain": self._target.domain()}
        notes |= late_note(self.fleet)
        if reported:
            notes["problem"] = "; ".join(reported)
        return notes

    def _differences(self) -> Iterator[str]:
        """Compare the rows at the cutover; it is too late to undo."""
        if self._contents is None:
            return
        remedy = f"compare them with: {self._verify_command}"
        try:
            report = self._contents.after()
        except FleetServerError as error:
            yield f"rows at the cutover were not compared: {error}; {remedy}"
            return
        if report is None:
            yield (
                "the rows at the cutover were not compared, since the process "
                f"that had opened the snapshots has ended; {remedy}"
            )
        elif not report.ok:
            yield f"at the cutover {fault_of(report)}; {remedy}"

    @property
    def _verify_command(self) -> str:
        """The command that compares the source and the target."""
        move = self._move
        if not move.is_in(self.fleet.topology()):
            return (
                f"sqla-shard fleet verify {move.server} --against {move.target_primary}"
            )
        return (
            f"sqla-shard fleet verify {move.target} --against "
            f"{move.source_primary} (what was written since differs)"
        )

    def disconnect(self) -> None:
        """Close the sessions on all servers."""
        if self._is_prepared:
            # Without the journal nothing is undone, and a restart of the
            # source, or any GRANT, would stop writes to what moves.
            self._is_prepared = False
            with suppress(FleetServerError):
                self._fence_of(self._source).delete()
        if self._contents is not None:
            self._contents.close()
        super().disconnect()

    def _wrong(self, role: str) -> list[str]:
        """Return the problems of a server at the end.

        A standby may be connecting again: it is waited for.
        """
        server = self._at(role)
        is_standby = role.endswith("standby")
        fence = (
            self._staying_fence_of(server)
            if role.startswith("target")
            else self._fence_of(server)
        )
        found = []
        if open_ones := fence.missing():
            names = shortened_list(open_ones, 5)
            found.append(f"{server.admin} does not fence {names}")
        is_closed = is_standby or (role == "source" and not self._move.staying)
        if server.is_read_only() != is_closed:
            form = "writable" if is_closed else "read-only"
            found.append(f"{server.admin} is {form}")
        if not is_standby:
            if server.status() is not None:
                found.append(f"{server.admin} replicates")
            return found
        if server.status() is None or not server.runs_within(_SETTLE_SECONDS):
            found.append(f"{server.admin} does not replicate")
        return found

    def _if_reachable(
        self, roles: Iterable[str], work: Callable[[str], object]
    ) -> Mapping[str, Any] | None:
        """Do work on some servers; report those that fail.

        The target is open: another that is lost must not keep the operation,
        and with it the lock of the fleet, pending.
        """
        lost = self._lost_at(roles, work)
        return {"problem": "; ".join(lost)} if lost else None

    def _lost_at(
        self, roles: Iterable[str], work: Callable[[str], object]
    ) -> list[str]:
        """Do work on some servers; return sentences about those that fail."""
        lost = []
        for role in roles:
            try:
                work(role)
            except FleetServerError as error:
                lost.append(
                    f"{error}; its fences, read_only and replication may be "
                    "wrong: repair them before it is used"
                )
                self.forget(self._move.urls[role])
                self._fences.clear()
        return lost

    # -- servers ----------------------------------------------------------

    def _access_problems(
        self, source: Replication, target: Replication
    ) -> list[Problem]:
        """Return what applications could not do on the target."""
        topology = self.fleet.topology()
        # User and password of the target are those of the source.
        url = pair_named(topology, self._move.server).primary
        return Requirements(self.fleet).access(
            (source, url),
            (target, url_at(url, target.admin.address)),
            self._move.databases(topology),
        )

    def _at(self, role: str) -> Replication:
        return replication_of(self.admin(self._move.urls[role], self._name_of(role)))

    def _name_of(self, role: str) -> str:
        pair, _, place = role.partition(" ")
        name = self._move.server if pair == "source" else self._move.target
        return f"{name} {place or 'primary'}"

    def _contents_to_compare(self) -> CutoverContents | None:
        """Return the rows that move; None if they are not compared."""
        if self._compare_limit is None:
            return None
        return CutoverContents(
            self.opener(self._move.urls["source"], self._name_of("source")),
            self.opener(self._move.urls["target"], self._name_of("target")),
            lambda: self._move.databases(self.fleet.topology()),
            limit=float(self._compare_limit),
            operation=self,
        )

    @property
    def _source(self) -> Replication:
        return self._at("source")

    @property
    def _target(self) -> Replication:
        return self._at("target")

    @property
    def _sources(self) -> list[str]:
        """The roles of the servers of the source."""
        return [role for role in self._move.urls if role.startswith("source")]

    @property
    def _targets(self) -> list[Replication]:
        """The primary of the target, then its standby."""
        role = "target standby"
        standbys = [self._at(role)] if role in self._move.urls else []
        return [self._target, *standbys]

    def _fence_of(self, server: Replication) -> Fence:
        """Return the fence of the shards that move."""
        return self._fence(server, is_moving=True)

    def _staying_fence_of(self, server: Replication) -> Fence:
        """Return the fence of the shards that stay on the source."""
        return self._fence(server, is_moving=False)

    def _fence(self, server: Replication, *, is_moving: bool) -> Fence:
        key = server.admin.address, is_moving
        if key not in self._fences:
            topology = self.fleet.topology()
            self._fences[key] = Fence(
                server.admin,
                self._move.databases(topology)
                if is_moving
                else self._move.staying_databases(topology),
                exempt={*self.fleet.accounts.users, *self._allowed},
            )
        return self._fences[key]

    # -- waiting ----------------------------------------------------------

    def _catch_up(self, seconds: float, *, lag: float) -> None:
        """Wait until the target applies a position in less than ``lag``.

        :raises FleetServerError: after ``seconds``, or if it has stopped.
        """
        deadline = time.monotonic() + seconds
        while True:
            begin = time.monotonic()
            position = self._source.position()
            slow = next(
                (one for one in self._targets if not one.reaches(position, 1.0)), None
            )
            if slow is None and time.monotonic() < begin + lag:
                return
            if slow is not None:
                status = slow.status()
                if status is None or status.applier != "Yes":
                    raise slow.admin.error(
                        "it does not apply what the application writes: "
                        f"{(status and status.applier_error) or 'it was stopped'}"
                    )
            if time.monotonic() > deadline:
                late = slow or self._target
                raise late.admin.error(
                    f"it is still behind {self._move.server} after {seconds:g} s: "
                    "the application writes more than it applies, or a statement "
                    "is in its way (SHOW PROCESSLIST). Raise "
                    f"{late.APPLIERS}, or repeat this while less is written"
                )

    def _reach(self, position: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for server in self._targets:
            # No wait is longer than the timeout of the session.
            while not server.reaches(
                position, min(1.0, max(0.01, deadline - time.monotonic()))
            ):
                if time.monotonic() > deadline:
                    reason = f"it has not applied {position} within {seconds:g} s"
                    if server.status() is None:
                        reason += ": it does not replicate any more"
                    raise server.admin.error(reason)
