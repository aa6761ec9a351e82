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
not opened.  Two writable servers in a pair are reported at every look, not
closed: the topology that a watcher has may be older than a failover.
"""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sqla_shard.exc import FleetServerError
from sqla_shard.exc import ShardError
from sqla_shard.exc import TopologyUnavailableError
from sqla_shard.fleet.admin import Admin
from sqla_shard.fleet.dead_failover import DeadFailover
from sqla_shard.fleet.failover import Failover
from sqla_shard.fleet.fleet import all_pairs
from sqla_shard.fleet.fleet import Fleet
from sqla_shard.fleet.fleet import Pair
from sqla_shard.fleet.operation import Progress
from sqla_shard.fleet.plans import Plan
from sqla_shard.fleet.replication import replication_of
from sqla_shard.fleet.runner import apply
from sqla_shard.fleet.runner import resume
from sqla_shard.fleet.watch_votes import doubt
from sqla_shard.fleet.watch_votes import probe_of
from sqla_shard.fleet.watch_votes import Sight
from sqla_shard.fleet.watch_votes import Votes
from sqla_shard.topology.follow import source_at

__all__ = ["WatchPolicy", "WatchReport", "Watcher"]

_log = logging.getLogger(__name__)

#: Pairs that are looked at simultaneously.
_THREADS = 16
_KINDS = (DeadFailover.kind, Failover.kind)


@dataclass(frozen=True, kw_only=True)
class WatchPolicy:
    """When a watcher acts.

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
    """

    watchers: int = 3
    dead_after: float = 3.0
    every: float = 0.5
    patience: float = 1.0
    hold_off: float = 3600.0
    allow_loss: bool = False
    dry_run: bool = False
    hook: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class WatchReport:
    """What one look has found and done.

    :ivar is_leader: whether this watcher leads.
    :ivar lines: what is wrong, and what was done about it.
    :ivar troubles: why the watcher itself could not work.
    """

    is_leader: bool
    lines: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.lines and not self.troubles

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
    :raises FleetSetupError: if the topology is a file.
    """

    def __init__(
        self,
        fleet: Fleet,
        policy: WatchPolicy,
        *,
        progress: Progress | None = None,
    ) -> None:
        self.fleet = fleet
        self.policy = policy
        self._progress = progress
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
        self._hooks: list[subprocess.Popen[bytes]] = []

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

    def look(self) -> WatchReport:
        """Look at every server once, vote, and act if this watcher leads."""
        try:
            report = self._look()
        except TopologyUnavailableError as error:
            report = WatchReport(
                is_leader=False,
                troubles=(f"nothing is done without ZooKeeper: {error}",),
            )
        self._page({*report.lines, *report.troubles})
        return report

    def _look(self) -> WatchReport:
        views = self._current()
        with ThreadPoolExecutor(_THREADS) as pool:
            found = list(pool.map(_View.look, views))
        lines = [line for part in found for line in part]
        self._votes.cast({view.pair.name: view.sight() for view in views})
        votes = self._votes.collect()
        if not self._votes.leads():
            return WatchReport(is_leader=False, lines=tuple(lines))
        if self._votes.is_pending():
            lines += self._finish()
        else:
            for view in views:
                name = view.pair.name
                if view.sight().lost_for is not None:
                    sights = [vote[name] for vote in votes if name in vote]
                    lines.append(f"{name}: {self._decide(name, sights)}")
        return WatchReport(is_leader=True, lines=tuple(lines))

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

    def _decide(self, name: str, sights: Sequence[Sight]) -> str:
        """Return what was done about a lost primary, or why nothing was."""
        policy = self.policy
        reason = doubt(
            sights, watchers=policy.watchers, dead_after=policy.dead_after
        )
        reason = reason or self._held_off(name)
        if reason is not None:
            return f"the primary is lost; nothing is done: {reason}"
        probe = probe_of(sights, time.time())
        try:
            plan = DeadFailover.planned(
                self.fleet, name, probe=probe, is_automatic=True
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
        return f"{result}; lost writes: {plan.arguments['loss']}"

    def _reason_against(self, plan: Plan) -> str | None:
        if plan.problems:
            return "; ".join(map(str, plan.problems))
        loss = str(plan.arguments["loss"])
        if not loss.startswith("none") and not self.policy.allow_loss:
            return (
                f"acknowledged writes would be lost ({loss}); an operator may "
                "decide: sqla-shard fleet failover --dead"
            )
        return None

    def _held_off(self, name: str) -> str | None:
        """Return whether a pair had a failover a short time ago."""
        for record in self.fleet.journal.history():
            age = time.time() - record.started
            if (
                record.plan.get("kind") in _KINDS
                and record.state == "finished"
                and record.plan["arguments"].get("server") == name
                and age < self.policy.hold_off
            ):
                return (
                    f"it had a failover {age / 60:.0f} min ago, and the next "
                    f"is held off for {self.policy.hold_off / 60:g} min"
                )
        return None

    def _finish(self) -> Iterator[str]:
        """Finish a failover whose watcher has died."""
        pending = self.fleet.journal.pending()
        if pending is None or pending.running:
            return
        plan = Plan.from_dict(pending.record.plan)
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
        yield f"{result}; another watcher had started it"

    def _page(self, lines: set[str]) -> None:
        """Run the hook for what is new."""
        self._hooks = [one for one in self._hooks if one.poll() is None]
        for line in sorted(lines - self._paged):
            _log.warning("%s", line, extra={"action": "watch"})
            if self.policy.hook:
                # Without the passwords of the accounts.
                environ = {
                    name: value
                    for name, value in os.environ.items()
                    if not name.startswith("SQLA_SHARD_")
                }
                environ["SQLA_SHARD_WATCH"] = line
                self._hooks.append(
                    subprocess.Popen([*self.policy.hook], env=environ)
                )
        self._paged = lines


class _View:
    """The servers of a pair, as this watcher sees them."""

    def __init__(self, fleet: Fleet, pair: Pair, patience: float) -> None:
        self.pair = pair
        self._fleet = fleet
        self._patience = patience
        self._admins: dict[str, Admin] = {}
        self._seen: float | None = None
        self._lost: float | None = None
        self._semi_sync: Mapping[str, Any] = {}

    def close(self) -> None:
        """Close the sessions."""
        for admin in self._admins.values():
            admin.close()
        self._admins.clear()

    def sight(self) -> Sight:
        """Return what is known about the primary."""
        now = time.monotonic()
        return Sight(
            lost_for=None if self._lost is None else now - self._lost,
            seen_ago=None if self._seen is None else now - self._seen,
            **self._semi_sync,
        )

    def look(self) -> list[str]:
        """Look at both servers; return what is wrong."""
        name = self.pair.name
        lines = [*self._look_at_primary()]
        if self.pair.standby is None:
            return [*lines, f"{name}: it has no standby"]
        return [*lines, *self._look_at_standby(self.pair.standby)]

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
            if 1000 <= error.number < 2000:
                # It responds.
                self._lost = None
                yield f"{name}: {error.server} refuses: error {error.number}"
            elif self._lost is None:
                self._lost = begin

    def _primary(self) -> Iterator[str]:
        found = replication_of(self._admin(self.pair.primary, "primary"))
        is_closed = found.is_read_only()
        semi_sync = found.semi_sync()
        self._semi_sync = {}
        if semi_sync is not None:
            self._semi_sync = {
                "semi_sync": semi_sync.source_on,
                "timeout": semi_sync.timeout,
                "standbys": semi_sync.standbys,
            }
        self._seen, self._lost = time.monotonic(), None
        if is_closed:
            yield (
                f"{self.pair.name}: {found.admin} is read-only; if it was "
                f"restarted: sqla-shard fleet reopen {self.pair.name}"
            )

    def _look_at_standby(self, url: str) -> Iterator[str]:
        name = self.pair.name
        try:
            found = replication_of(self._admin(url, "standby"))
            status = found.status()
            if not found.is_read_only():
                yield f"{name}: {found.admin} can be written; close it"
            if status is None or not status.runs:
                yield f"{name}: {found.admin} does not replicate"
        except FleetServerError as error:
            self._forget(url)
            yield (
                f"{name}: the state of {error.server} is unknown: error "
                f"{error.number}"
            )

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
