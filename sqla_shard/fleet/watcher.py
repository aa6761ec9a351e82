"""Automatic failover from primaries that are lost.

Several watchers run, on machines that fail independently; one leads.  The
leader promotes a standby if all of these hold, and otherwise does nothing and
says why:

* A majority of all watchers has not seen the primary for ``dead_after``
  seconds, and none that responds sees it.
* No other operation is pending, and the server had no failover within
  ``hold_off`` seconds.
* The checks of :class:`~sqla_shard.fleet.dead_failover.DeadFailover` find no
  problem; among them, the standby cannot connect to the primary either.
* Its loss statement is "none", or the policy allows losses.

Without ZooKeeper nothing is done.  If the leader dies in a failover, the next
one finishes it.  A primary that was restarted and is read-only is reported,
not opened.  A standby that can be written, as its primary can, is closed; so
is a former primary that is back and can be written, see
:mod:`~sqla_shard.fleet.write_access`.

A watcher goes on whatever the command does that pages an operator: one that
cannot be started, fails or takes too long is reported as a problem until a
later one succeeds.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, UTC
from typing import Any

from sqla_shard.exc import (
    FleetServerError,
    FleetSetupError,
    ShardError,
    TopologyUnavailableError,
)
from sqla_shard.fleet.admin import Admin
from sqla_shard.fleet.app_access import access_of, gaps
from sqla_shard.fleet.dead_failover import DeadFailover
from sqla_shard.fleet.failover import Failover
from sqla_shard.fleet.fleet import all_pairs, Fleet, Pair
from sqla_shard.fleet.loss import Acknowledgements, acknowledgements, NONE, receiving
from sqla_shard.fleet.operation import FleetOperation, FleetPlan, Progress, Result
from sqla_shard.fleet.replication import Replication, replication_of
from sqla_shard.fleet.runner import apply, resume
from sqla_shard.fleet.watch_votes import doubt, probe_of, Sight, Votes
from sqla_shard.fleet.write_access import CloseFormer, CloseStandby, writable_formers
from sqla_shard.topology.follow import source_at
from sqla_shard.topology.urls import address_of
from sqla_shard.util.logs import careful_log

_log = careful_log(__name__)

_STDERR = 2


class Hook:
    """A command that is run for each line of a report.

    The line is in the variable ``SQLA_SHARD_WATCH``; other variables of this
    package, such as passwords, are not passed.  The output of the command
    goes to standard error.

    :param command: program and arguments; empty to run nothing.
    :param seconds: time after which a command is killed.
    :raises FleetSetupError: if the program does not exist, or cannot be
        executed.
    """

    def __init__(self, command: Sequence[str], *, seconds: float) -> None:
        self._command = [*command]
        self._seconds = seconds
        self._running: list[tuple[subprocess.Popen[bytes], float]] = []
        #: Why the last command has failed; None if it has not.
        self.failure: str | None = None
        if command and shutil.which(command[0]) is None:
            raise FleetSetupError(
                f"the hook {command[0]!r} is not a program that can be executed; write "
                "its path, or install it in a directory of PATH"
            )

    def run(self, line: str) -> None:
        """Start the command for a line; does not wait for its end."""
        if not self._command:
            return
        environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("SQLA_SHARD_")
        }
        try:
            process = subprocess.Popen(
                self._command,
                env={**environ, "SQLA_SHARD_WATCH": line},
                stdin=subprocess.DEVNULL,
                # Standard output has the reports, which may be JSON.
                stdout=_STDERR,
                # Its children are killed with it.
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            # ValueError: the line or an argument has a NUL.
            self._fail(f"cannot be started: {error}")
            return
        self._running.append((process, time.monotonic() + self._seconds))

    def collect(self) -> None:
        """Collect the commands that have ended, and kill those too late."""
        running = []
        for process, deadline in self._running:
            status = process.poll()
            if status is None and time.monotonic() < deadline:
                running.append((process, deadline))
            elif status is None:
                _kill(process)
                self._fail(f"was killed after {self._seconds:g} s")
            elif status:
                self._fail(f"ended with status {status}")
            else:
                self.failure = None
        self._running = running

    def close(self) -> None:
        """Kill the commands that run: the next watcher reports again."""
        self.collect()
        for process, _ in self._running:
            _kill(process)
        self._running.clear()

    def _fail(self, reason: str) -> None:
        self.failure = f"the hook {shlex.join(self._command)} {reason}"
        _log.warning("%s", self.failure, extra={"action": "run watch hook"})


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


SESSION = 5.0
"""Seconds after which a leader that was killed is succeeded: its successor must
finish the failover before semi-sync would have stopped waiting."""

#: Pairs that are looked at simultaneously.
_THREADS = 16
_DURATION = re.compile(r"-?\d[\d.,]*+( s\b)?")
#: Seconds after an attempt that was undone before the next: otherwise they
#: would fill the history.
_RETRY_SECONDS = 60.0
#: The same, of one that was refused before it had done anything, such as
#: because the primary responded.
_REFUSED_SECONDS = 5.0
#: Operations of the history to look at.
_HISTORY_RECORDS = 100
#: Seconds between two looks at former primaries, which often do not respond.
_FORMER_SECONDS = 5.0
#: Seconds between two comparisons of the accounts of a pair.
_ACCESS_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class WatchPolicy:
    """The conditions under which a watcher acts.

    :ivar watchers: number of watchers that are run; a majority of them must
        agree.
    :ivar dead_after: seconds for which they must not have seen a primary.
    :ivar every: seconds between two looks.
    :ivar patience: seconds to wait for a response of a server.
    :ivar hold_off: seconds after a failover of a server before the next.
    :ivar allow_loss: whether to act if acknowledged writes may be lost.
    :ivar dry_run: whether to report only.
    :ivar hook: program and arguments that are run for each new line of a
        report, which is in the variable ``SQLA_SHARD_WATCH``.
    :ivar hook_seconds: seconds after which it is killed.
    """

    watchers: int = 3
    dead_after: float = 3.0
    every: float = 0.5
    patience: float = 1.0
    hold_off: float = 3600.0
    allow_loss: bool = False
    dry_run: bool = False
    hook: Sequence[str] = ()
    hook_seconds: float = 60.0


@dataclass(frozen=True, kw_only=True)
class WatchReport:
    """Report of one look: its findings and actions.

    :ivar is_leader: whether this watcher leads.
    :ivar lines: the problems, and the actions taken.
    :ivar troubles: why the watcher itself could not work.
    """

    is_leader: bool
    lines: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.lines and not self.troubles

    @property
    def state(self) -> tuple[str, ...]:
        """The lines and troubles without the durations in them.

        Otherwise "2.5 s ago" would be another line half a second later.
        """
        return tuple(
            _DURATION.sub(lambda found: "# s" if found[1] else found[0], line)
            for line in (*self.lines, *self.troubles)
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the report in JSON values."""
        return {
            "leader": self.is_leader,
            "lines": list(self.lines),
            "troubles": list(self.troubles),
        }

    def __str__(self) -> str:
        role = "leads" if self.is_leader else "follows"
        found = len(self.lines) + len(self.troubles)
        return f"{role}, {found} problems"


class Watcher:
    """One of several processes that watch a fleet.

    A context manager that ends its session.

    :param fleet: its topology must be in ZooKeeper.
    :param policy: the same for all watchers.
    :param progress: see :func:`~sqla_shard.fleet.apply`.
    :raises FleetSetupError: if the topology is a file, or the hook is not a
        program.
    """

    def __init__(
        self, fleet: Fleet, policy: WatchPolicy, *, progress: Progress | None = None
    ) -> None:
        self.fleet = fleet
        self.policy = policy
        self._progress = progress
        self._hook = Hook(policy.hook, seconds=policy.hook_seconds)
        self._votes = Votes(
            fleet, stale=max(3.0, 3 * (policy.every + 2 * policy.patience))
        )
        self._source = source_at(
            fleet.location,
            placeholders=fleet.placeholders,
            environ=dict.fromkeys(fleet.placeholders, ""),
        )
        self._views: dict[tuple[str, str, str | None], _View] = {}
        self._paged: set[str] = set()
        #: When the former primaries are looked at again, and the last result.
        self._next = 0.0
        self._formers: list[str] = []

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session with ZooKeeper, and those with the servers."""
        for view in self._views.values():
            view.close()
        self._views.clear()
        self._source.stop()
        self._votes.close()
        self._hook.close()

    def look(self) -> WatchReport:
        """Look at every server once, vote, and act if this watcher leads."""
        try:
            report = self._look()
        except TopologyUnavailableError as error:
            report = WatchReport(
                is_leader=False,
                troubles=(f"nothing is done without ZooKeeper: {error}",),
            )
        except ShardError as error:
            # Such as a topology that is not valid: it may be mended.
            report = WatchReport(
                is_leader=False, troubles=(f"nothing is done: {error}",)
            )
        self._page(report)
        if self._hook.failure is None:
            return report
        return replace(report, troubles=(*report.troubles, self._hook.failure))

    def _look(self) -> WatchReport:
        views = self._current()
        with ThreadPoolExecutor(_THREADS) as pool:
            found = list(pool.map(_View.look, views))
        lines = [line for part in found for line in part]
        self._votes.cast({view.address: view.sight() for view in views})
        votes, problems = self._votes.collect()
        is_leader = self._votes.leads()
        if not is_leader:
            pass
        elif self._votes.is_pending():
            lines += self._finish()
        else:
            lines += [
                f"{view.pair.name}: {done}"
                for view in views
                for done in self._act(view, votes)
            ]
            lines += self._close_formers()
        return WatchReport(
            is_leader=is_leader, lines=tuple(lines), troubles=tuple(problems)
        )

    def _current(self) -> list[_View]:
        """Return a view for each pair of the topology as it is now."""
        views = {}
        for pair in all_pairs(self._source.load()):
            key = pair.name, pair.primary, pair.standby
            view = self._views.pop(key, None)
            views[key] = view or _View(self.fleet, pair, self.policy.patience)
        for old in self._views.values():
            old.close()
        self._views = views
        return list(views.values())

    def _act(self, view: _View, votes: Sequence[Mapping[str, Sight]]) -> Iterator[str]:
        """Yield the actions on a pair."""
        if view.sight().lost_for is not None:
            address = view.address
            sights = [vote[address] for vote in votes if address in vote]
            yield self._decide(view.pair, sights)
        elif view.has_two_writers:
            yield self._close_standby(view.pair)

    def _close_standby(self, pair: Pair) -> str:
        closed = self._close(
            "two servers can be written",
            str(address_of(pair.primary)),
            CloseStandby,
            lambda: CloseStandby.planned(self.fleet, pair.name),
        )
        if isinstance(closed, str):
            return closed
        return (
            f"two servers could be written; {_line(closed)}; it may have "
            "writes of its own: sqla-shard fleet doctor"
        )

    def _close(
        self,
        text: str,
        address: str,
        kind: type[FleetOperation],
        planned: Callable[[], FleetPlan],
    ) -> Result | str:
        """Close a server; return a line with the reason if it is not closed.

        :param text: why it should be.
        :param address: see :meth:`_held_off`.
        """
        if self.policy.dry_run:
            return f"{text}; dry run: nothing is closed"
        reason = self._held_off(address, kind)
        if reason is not None:
            return f"{text}; nothing is closed: {reason}"
        try:
            return apply(self.fleet, planned(), progress=self._progress)
        except TopologyUnavailableError:
            raise
        except ShardError as error:
            return f"{text}; closing failed: {error}"

    def _close_formers(self) -> list[str]:
        """Return the actions on former primaries that are back."""
        if time.monotonic() >= self._next:
            found = writable_formers(
                self.fleet,
                self.fleet.journal.history(_HISTORY_RECORDS),
                timeout=self.policy.patience,
            )
            self._formers = [self._close_former(one) for one in found]
            self._next = time.monotonic() + _FORMER_SECONDS
        return self._formers

    def _close_former(self, address: str) -> str:
        closed = self._close(
            f"{address}, a former primary, can be written",
            address,
            CloseFormer,
            lambda: CloseFormer.planned(self.fleet, address),
        )
        if isinstance(closed, str):
            return closed
        return (
            f"{_line(closed)}; it may have writes of its own: save its binary log, "
            f"then rebuild it as a standby, or: sqla-shard fleet retire {address}"
        )

    def _decide(self, pair: Pair, sights: Sequence[Sight]) -> str:
        """Return the action on a lost primary, or the reason for none."""
        policy = self.policy
        reason = doubt(sights, watchers=policy.watchers, dead_after=policy.dead_after)
        reason = reason or self._held_off(
            str(address_of(pair.primary)), DeadFailover, Failover
        )
        if reason is not None:
            return f"the primary is lost; nothing is done: {reason}"
        probe = probe_of(sights, time.time())
        try:
            plan = DeadFailover.planned(
                self.fleet,
                pair.name,
                probe=probe,
                is_automatic=True,
                allow_loss=policy.allow_loss,
            )
            reason = self._reason_against(plan)
            if reason is not None:
                return f"the primary is lost; nothing is done: {reason}"
            if policy.dry_run:
                return f"the primary is lost; dry run of: {plan.title}"
            result = apply(self.fleet, plan, progress=self._progress)
        except TopologyUnavailableError:
            raise
        except ShardError as error:
            return f"the primary is lost; the failover failed: {error}"
        return _line(result)

    def _reason_against(self, plan: FleetPlan) -> str | None:
        if plan.problems:
            return "; ".join(map(str, plan.problems))
        loss = str(plan.arguments["loss"])
        if not loss.startswith(NONE) and not self.policy.allow_loss:
            return (
                f"acknowledged writes would be lost ({loss}); an operator may decide: "
                f"sqla-shard fleet failover {plan.arguments['server']} --dead"
            )
        return None

    def _held_off(self, primary: str, *kinds: type[FleetOperation]) -> str | None:
        """Return why no operation on a pair may be tried yet.

        :param primary: address of its primary now.
        """
        for record in self.fleet.journal.history(_HISTORY_RECORDS):
            arguments = record.plan.get("arguments", {})
            if record.plan.get("kind") not in {kind.kind for kind in kinds}:
                continue
            if record.state == "undone":
                is_same = arguments.get("old") == primary
                wait = _REFUSED_SECONDS if record.step is None else _RETRY_SECONDS
                seconds = min(self.policy.hold_off, wait)
                what = "attempt, which was undone,"
            else:
                is_same = arguments.get("new") == primary
                seconds, what = self.policy.hold_off, "failover"
            if is_same and time.time() - record.started < seconds:
                return (
                    f"the last {what} was at {_clock(record.started)}; the next is "
                    f"held off until {_clock(record.started + seconds)}"
                )
        return None

    def _finish(self) -> Iterator[str]:
        """Finish a failover whose watcher has died."""
        pending = self.fleet.journal.pending()
        if pending is None or pending.running:
            return
        plan = FleetPlan.from_dict(pending.record.plan)
        if not plan.arguments.get("is_automatic") or self.policy.dry_run:
            yield (
                f"{plan.title} is not finished, and no failover is possible: "
                "sqla-shard fleet status"
            )
            return
        try:
            result = resume(self.fleet, progress=self._progress)
        except TopologyUnavailableError:
            raise
        except ShardError as error:
            yield f"{plan.title} cannot be finished: {error}"
            return
        yield f"{_line(result)}; another watcher had started it"

    def _page(self, report: WatchReport) -> None:
        """Run the hook for new lines."""
        lines = (*report.lines, *report.troubles)
        for state, line in zip(report.state, lines, strict=True):
            if state not in self._paged:
                _log.warning("%s", line, extra={"action": "watch"})
                self._hook.run(line)
        self._hook.collect()
        self._paged = set(report.state)


def _line(result: Result) -> str:
    """Return a result on one line, as reports and pages have it."""
    return "; ".join(str(result).splitlines())


def _clock(seconds: float) -> str:
    found = datetime.fromtimestamp(seconds, UTC)
    return found.isoformat(" ", "seconds")


class _View:
    """The servers of a pair, as this watcher sees them."""

    def __init__(self, fleet: Fleet, pair: Pair, patience: float) -> None:
        self.pair = pair
        self.address = str(address_of(pair.primary))
        self._fleet = fleet
        self._patience = patience
        self._admins: dict[str, Admin] = {}
        self._seen: float | None = None
        self._lost: float | None = None
        self._acks = Acknowledgements(doubt="nobody has looked")
        #: When accounts are compared again, and what was found.
        self._next = 0.0
        self._gaps: list[str] = []
        #: URLs of the servers that could be written at the last look.
        self._writable: set[str] = set()

    def close(self) -> None:
        """Close the sessions."""
        for admin in self._admins.values():
            admin.close()
        self._admins.clear()

    @property
    def has_two_writers(self) -> bool:
        """Whether primary and standby could be written at the last look."""
        return len(self._writable) == 2

    def sight(self) -> Sight:
        """Return the facts about the primary."""
        now = time.monotonic()
        return Sight(
            lost_for=None if self._lost is None else now - self._lost,
            seen_ago=None if self._seen is None else now - self._seen,
            acks=self._acks,
        )

    def look(self) -> list[str]:
        """Look at both servers; return the problems."""
        name = self.pair.name
        self._writable.clear()
        lines = [*self._look_at_primary()]
        if self.pair.standby is None:
            lines.append(
                f"{name}: it has no standby; build one: sqla-shard fleet "
                f"replica build {name} HOST"
            )
            return lines
        lines += self._look_at_standby(self.pair.standby)
        return [*lines, *self._look_at_accounts(self.pair.standby)]

    def _look_at_primary(self) -> Iterator[str]:
        name = self.pair.name
        begin = time.monotonic()
        try:
            with suppress(FleetServerError):
                if self.pair.primary in self._admins:
                    yield from self._primary()
                    return
            # The session may have been ended by someone else.
            self._forget(self.pair.primary)
            yield from self._primary()
        except FleetServerError as error:
            self._forget(self.pair.primary)
            if not error.may_be_lost:
                # It responds.
                self._lost = None
                yield f"{name}: {error.server} refuses: {error.cause}"
            elif self._lost is None:
                self._lost = begin

    def _primary(self) -> Iterator[str]:
        begin = time.monotonic()
        found = replication_of(self._admin(self.pair.primary, "primary"))
        is_closed = found.is_read_only()
        # The time is that of the start: the rest may take long.
        acks = self._look_at_acks(found)
        self._acks, self._seen, self._lost = acks, begin, None
        if not is_closed:
            self._writable.add(self.pair.primary)
        else:
            yield (
                f"{self.pair.name}: {found.admin} is read-only; if it was "
                f"restarted: sqla-shard fleet reopen {self.pair.name}"
            )

    def _look_at_acks(self, primary: Replication) -> Acknowledgements:
        standby = None
        if self.pair.standby is not None:
            # Not an error of the primary.
            with suppress(FleetServerError):
                standby = receiving(
                    replication_of(self._admin(self.pair.standby, "standby"))
                )
        return acknowledgements(primary, standby)

    def _look_at_standby(self, url: str) -> Iterator[str]:
        name = self.pair.name
        try:
            found = replication_of(self._admin(url, "standby"))
            status = found.status()
            if not found.is_read_only():
                self._writable.add(url)
                yield (
                    f"{name}: {found.admin} is the standby and can be "
                    "written; on it: SET GLOBAL read_only = 1"
                )
            if status is None or not status.runs:
                yield (
                    f"{name}: {found.admin} does not replicate; see: "
                    "sqla-shard fleet doctor"
                )
        except FleetServerError as error:
            self._forget(url)
            yield f"{name}: the state of {error.server} is unknown: {error.cause}"

    def _look_at_accounts(self, url: str) -> list[str]:
        """Return what applications could not do on the standby."""
        both = {self.pair.primary: "primary", url: "standby"}
        if self._lost is None and time.monotonic() >= self._next:
            # Later again, also after an error: a look must not wait for it.
            self._next = time.monotonic() + _ACCESS_SECONDS
            with suppress(FleetServerError):
                one, other = (
                    access_of(
                        replication_of(self._admin(where, role)),
                        self._fleet,
                        where,
                        timeout=self._patience,
                    )
                    for where, role in both.items()
                )
                self._gaps = [
                    f"{self.pair.name}: {other.name} {gap.what}; {gap.remedy}"
                    for gap in gaps(
                        one,
                        other,
                        self.pair.databases(),
                        exempt=self._fleet.accounts.users,
                    )
                ]
        return self._gaps

    def _admin(self, url: str, role: str) -> Admin:
        if url not in self._admins:
            self._admins[url] = self._fleet.admin(
                url, name=f"{self.pair.name} {role}", timeout=self._patience
            )
        return self._admins[url]

    def _forget(self, url: str) -> None:
        admin = self._admins.pop(url, None)
        if admin is not None:
            admin.close()
