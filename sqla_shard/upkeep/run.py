"""A run of checks on tables, shard by shard, while the application runs.

A finding of the first check can be a change in progress, such as a key that
moved in several transactions.  So the row is checked a second time after
``grace`` seconds, and the finding counts only if it is the same.  The scan
continues meanwhile.

One thread reads the servers one after another.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.engine.rendering import Place
from sqla_shard.engine.unreachable import (
    Cause,
    cause_of,
    each_once,
    reason,
    UnreachableServer,
)
from sqla_shard.exc import (
    CommitUnknownError,
    ServerUnreachableError,
    VerifyPositionError,
)
from sqla_shard.session import ShardSession
from sqla_shard.upkeep.checks import (
    Check,
    CheckedPage,
    Finding,
    RepairOutcome,
    Tally,
    VerifyReport,
)
from sqla_shard.util.files import replace_file
from sqla_shard.util.json_values import JsonObject, parsed_json
from sqla_shard.util.logs import careful_log
from sqla_shard.util.pace import Pace

_FORMAT = 2

#: Mode of the file, since lookup keys may be e-mail addresses.
_MODE = 0o600


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A finding that is to be checked a second time.

    :ivar check: index of the check.
    :ivar finding: the finding of the first check.
    :ivar seen: time of the first check, in seconds since 1970.
    """

    check: int
    finding: Finding
    seen: float


@dataclass(frozen=True, kw_only=True)
class UnreachableShard:
    """A shard that could not be read completely.

    :ivar check: index of the check.
    :ivar shard_id: the shard.
    :ivar after: position of the last row that was read, or None.
    :ivar server: the server that did not respond or lacks the shard.
    :ivar cause: the error.
    """

    check: int
    shard_id: int
    after: Any
    server: str
    cause: Cause


@dataclass(kw_only=True)
class VerifyState(JsonObject):
    """The position and the findings of a run.

    :ivar check: index of the next check.
    :ivar shard_id: the next shard.
    :ivar after: position of the last row that was read on this shard; None at
        its start.
    :ivar suspects: findings to check a second time, the oldest first.
    :ivar unconfirmed: those that could not be checked a second time; the next
        run does that.
    :ivar repairs: findings to repair.  A run that was interrupted may have
        repaired some of them.
    :ivar unreachable: shards that could not be read, to retry at the end.
    :ivar tallies: the findings so far.
    :ivar seconds: duration so far in seconds.
    """

    check: int = 0
    shard_id: int = 0
    after: Any = None
    suspects: list[Suspect] = field(default_factory=list)
    unconfirmed: list[Suspect] = field(default_factory=list)
    repairs: list[Suspect] = field(default_factory=list)
    unreachable: list[UnreachableShard] = field(default_factory=list)
    tallies: dict[str, Tally] = field(default_factory=dict)
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values, for :meth:`from_dict`."""
        return {
            "check": self.check,
            "shard_id": self.shard_id,
            "after": self.after,
            "suspects": _findings(self.suspects + self.unconfirmed),
            "repairs": _findings(self.repairs),
            "unreachable": [vars(one) for one in self.unreachable],
            "tallies": {
                name: {**vars(tally), "findings": [vars(one) for one in tally.findings]}
                for name, tally in self.tallies.items()
            },
            "seconds": self.seconds,
        }


def _findings(suspects: Iterable[Suspect]) -> list[dict[str, Any]]:
    return [{**vars(one), "finding": vars(one.finding)} for one in suspects]


class AnyState(Protocol):
    """The state of a run."""

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        ...


S = TypeVar("S", bound=AnyState)


class PositionFile(Generic[S]):
    """The position file of one run.

    The file is replaced after each batch, and removed at the end of the run.

    :param path: the file; its directory is created if needed.
    :param run: JSON values that identify the run.
    :param read: returns the state of a run for the result of its
        ``as_dict()``; for other data, it raises an error of a built-in type.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        run: Mapping[str, Any],
        read: Callable[[Mapping[str, Any]], S],
    ) -> None:
        self.path: Path = Path(path)
        self._run = {"format": _FORMAT, **run}
        self._read = read

    def load(self) -> S | None:
        """Return the state of the run, or None if there is no file.

        :raises VerifyPositionError: if it is the file of another run.
        :raises OSError: if it cannot be read.
        """
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            data = parsed_json(text)
            position = dict(data["run"])
            state = self._read(data["state"])
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise self._refusal("it is not the position file of a run") from error
        for name, wanted in self._run.items():
            if position.get(name) != wanted:
                raise self._refusal(
                    f"{name} was {position.get(name)!r} and is {wanted!r} now"
                )
        return state

    def save(self, state: S) -> None:
        """Write the state of the run.

        :raises OSError: if it cannot be written; the old file remains.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        data = {"run": self._run, "state": state.as_dict()}
        replace_file(self.path, json.dumps(data).encode(), _MODE)

    def remove(self) -> None:
        """Remove the file."""
        self.path.unlink(missing_ok=True)

    def _refusal(self, reason: str) -> VerifyPositionError:
        return VerifyPositionError(path=str(self.path), reason=reason)


T = TypeVar("T")

_log = careful_log(__name__)

#: Maximum number of seconds to retry the first failed transaction.
PATIENCE = 30.0

#: Maximum number of attempts of a repair with an unknown outcome.
_MOST_LOST = 3

#: Maximum number of findings that wait for their second check, in memory and
#: in the file.  If there are more, the run pauses until they are due.
_MOST_SUSPECTS = 5000

#: Seconds between two writes of the position if shards are empty.
_SAVE = 1.0


@dataclass(frozen=True, kw_only=True)
class VerifyProgress:
    """The progress of a run.

    :ivar subject: name of the class.
    :ivar unit: unit of the counts: rows, objects or claims.
    :ivar shard_id: the shard that was read last.
    :ivar shards: number of shards.
    :ivar looked: number of checked rows or objects of the class so far.
    :ivar found: number of findings in all classes so far.
    :ivar waiting: number of findings that wait for their second check.
    :ivar counts: all numbers of the class so far, by unit.
    """

    subject: str
    unit: str
    shard_id: int
    shards: int
    looked: int
    found: int
    waiting: int
    counts: Counter[str]


class Run:
    """One run of the given checks.

    :param checks: the checks, in the order of the run.
    :param repair: the kinds to repair; empty for a dry run.
    :param pace: the limits of the run.
    :param command: name that distinguishes the run from other runs with the
        same checks.
    :param position: the position file, or None.
    :param on_progress: called after each batch.
    """

    def __init__(
        self,
        cluster: Cluster,
        checks: Sequence[Check],
        *,
        repair: Collection[str],
        pace: Pace,
        command: str,
        position: str | os.PathLike[str] | None,
        on_progress: Callable[[VerifyProgress], object] | None = None,
    ) -> None:
        self._cluster = cluster
        self._checks = checks
        self._repair = repair
        self._pace = pace
        self._throttle = pace.throttle()
        self._file: PositionFile[VerifyState] | None = None
        if position is not None:
            what = _run_identity(command, cluster, checks, repair)
            self._file = PositionFile(position, what, VerifyState.from_dict)
        self._on_progress = on_progress
        self._kinds = {
            name: kind for check in checks for name, kind in check.kinds.items()
        }
        self._never = threading.Event()
        self._state = VerifyState()
        self._counted = self._saved = 0.0
        #: The first error of a server, if any.
        self.error: Exception | None = None
        #: The errors of servers that do not respond, by server.
        self._down: dict[str, Cause] = {}
        self._waits = True
        #: The shards of findings that could not be checked a second time, and
        #: of repairs that failed.
        self._unrepaired: list[UnreachableShard] = []

    def run(self, skipped: Mapping[str, str] | None = None) -> VerifyReport:
        """Run all checks, from the position of an interrupted run if any.

        :param skipped: checks that a class does not support, by class.
        :raises VerifyPositionError: if the file belongs to another run.
        """
        if self._file is not None:
            self._state = self._file.load() or VerifyState()
        state = self._state
        for check in self._checks:
            state.tallies.setdefault(check.subject, Tally())
        self._counted = time.monotonic()
        self._throttle = self._pace.throttle()
        self._repair_all(are_new=False)
        while state.check < len(self._checks):
            self._scan(self._checks[state.check])
            state.check, state.shard_id = state.check + 1, 0
        self._read_the_rest()
        while state.suspects:
            self._wait_for_suspects()
        self._count_time()
        if self._file is not None:
            if state.unreachable or state.unconfirmed:
                self._file.save(state)
            else:
                self._file.remove()
        return VerifyReport(
            tallies=state.tallies,
            kinds=self._kinds,
            repair=frozenset(self._repair),
            skipped=dict(skipped or {}),
            seconds=state.seconds,
            unreachable=each_once(
                map(self._server, (*state.unreachable, *self._unrepaired))
            ),
        )

    def _scan(self, check: Check) -> None:
        state = self._state
        space = check.keyspace(self._cluster.places)
        while state.shard_id < space.shards:
            shard_id, limit = state.shard_id, self._pace.limit
            count, state.after = self._page(check, shard_id, state.after, limit)
            if count < limit:
                state.shard_id, state.after = shard_id + 1, None
            self._after_page(check, shard_id, count)
            self._report_progress(check, shard_id, space.shards)

    def _after_page(self, check: Check, shard_id: int, count: int) -> None:
        """Run due second checks, write the position and limit the rate."""
        self._check_again(time.time())
        while len(self._state.suspects) > _MOST_SUSPECTS:
            self._wait_for_suspects()
        self._repair_all()
        self._save(must=count > 0)
        self._throttle.take(count)

    def _page(
        self, check: Check, shard_id: int, after: Any, limit: int
    ) -> tuple[int, Any]:
        """Check one page of rows; return their number and the last position.

        The number is 0 if the shard cannot be read.
        """
        place = self._place(check, shard_id)
        down = self._down.get(place.server)
        if down is not None:
            self._state.unreachable.append(
                UnreachableShard(
                    check=self._checks.index(check),
                    shard_id=shard_id,
                    after=after,
                    server=place.server,
                    cause=down,
                )
            )
            return 0, after
        try:
            page: CheckedPage = self._with_retries(_read, check, shard_id, after, limit)
        except SQLAlchemyError as error:
            unreachable = self._record_error(check, place, error, after)
            self._state.unreachable.append(unreachable)
            return 0, after
        self._tally(check).looked.update({check.unit: page.rows, **page.counts})
        self._add_findings(check, page.findings)
        return page.rows, page.after

    def _with_retries(self, fn: Callable[..., T], *args: Any) -> T:
        """Run a transaction, with retries until a server is considered down.

        The run waits for a failover once, not for each of the thousands of
        shards of a server.
        """
        if not self._waits:
            return self._cluster.run(fn, *args, attempts=1)
        return self._cluster.run(fn, *args, timeout=PATIENCE)

    def _place(self, check: Check, shard_id: int) -> Place:
        places = self._cluster.places
        return places.place(check.keyspace(places), shard_id)

    def _record_error(
        self, check: Check, place: Place, error: Exception, after: Any = None
    ) -> UnreachableShard:
        """Record the error of a server; return the shard as unreachable.

        :raises SQLAlchemyError: if it is not an error of a server.
        """
        cause = reason(error)
        if cause is None:
            raise error
        self.error = self.error or error
        self._waits = False
        if isinstance(cause, ServerUnreachableError):
            # The server may have several names in the topology.
            for name in cause.server.split(", "):
                self._down[name] = cause_of(cause)
        return UnreachableShard(
            check=self._checks.index(check),
            shard_id=place.shard_id,
            after=after,
            server=cause.server,
            cause=cause_of(cause),
        )

    def _read_the_rest(self) -> None:
        """Retry the unreachable shards of this run and of an earlier one."""
        # A shard remains in the position until it is read.
        left = self._state.unreachable
        self._down.clear()
        for _ in range(len(left)):
            one, limit = left[0], self._pace.limit
            check, after, count = self._checks[one.check], one.after, limit
            while count == limit:
                count, after = self._page(check, one.shard_id, after, limit)
                left[0] = replace(one, after=after)
                if count < limit:
                    del left[0]
                self._after_page(check, one.shard_id, count)

    def _server(self, one: UnreachableShard) -> UnreachableServer:
        keyspace = self._checks[one.check].keyspace(self._cluster.places).name
        return UnreachableServer(
            server=one.server, cause=one.cause, addresses=((keyspace, one.shard_id),)
        )

    def _add_findings(self, check: Check, found: Iterable[Finding]) -> None:
        now = time.time()
        number = self._checks.index(check)
        for finding in found:
            if self._kinds[finding.kind].settled:
                self._conclude(check, finding)
            else:
                self._state.suspects.append(
                    Suspect(check=number, finding=finding, seen=now)
                )

    def _wait_for_suspects(self) -> None:
        """Wait until the oldest finding is due, and check it again."""
        due = self._due(self._state.suspects[0], time.time())
        self._never.wait(max(0.0, due - time.time()))
        self._check_again(due)
        self._repair_all()
        self._save(must=True)

    def _due(self, suspect: Suspect, now: float) -> float:
        # A clock that was set back must not cause a wait of hours.
        return min(suspect.seen, now) + self._pace.grace

    def _check_again(self, now: float) -> None:
        suspects = self._state.suspects
        count = 0
        while (
            count < min(len(suspects), self._pace.batch)
            and self._due(suspects[count], now) <= now
        ):
            count += 1
        groups: dict[tuple[int, int], list[Finding]] = {}
        for one in suspects[:count]:
            where = one.check, one.finding.shard_id
            groups.setdefault(where, []).append(one.finding)
        del suspects[:count]
        for (number, shard_id), findings in groups.items():
            self._confirm(self._checks[number], shard_id, findings)
        self._throttle.take(count)

    def _confirm(self, check: Check, shard_id: int, findings: list[Finding]) -> None:
        before = {_row(one): one.kind for one in findings}
        others = []
        try:
            remaining = self._with_retries(_read_again, check, shard_id, findings)
        except SQLAlchemyError as error:
            place = self._place(check, shard_id)
            self._unrepaired.append(self._record_error(check, place, error))
            number, seen = self._checks.index(check), time.time()
            self._state.unconfirmed += [
                Suspect(check=number, finding=one, seen=seen) for one in findings
            ]
            return
        for now in remaining:
            kind = before.get(_row(now))
            if kind == now.kind:
                self._conclude(check, now)
            elif kind is not None:
                # The kind has changed: this is the first check of the new one.
                others.append(now)
        self._add_findings(check, others)

    def _conclude(self, check: Check, finding: Finding) -> None:
        """Count a confirmed finding, or repair it soon if its kind is selected."""
        if finding.kind in self._repair:
            self._state.repairs.append(
                Suspect(
                    check=self._checks.index(check), finding=finding, seen=time.time()
                )
            )
        else:
            self._tally(check).count(finding)

    def _repair_all(self, *, are_new: bool = True) -> None:
        """Repair the confirmed findings, and count them.

        They are in the position before: what is repaired is not found again.

        :param are_new: whether no other run has begun to repair them.
        """
        repairs = self._state.repairs
        if repairs:
            self._save(must=True)
        for one in repairs:
            check = self._checks[one.check]
            outcome = self._repair_row(check, one.finding, is_new=are_new)
            counted = outcome.left
            if outcome.repaired:
                counted = replace(one.finding, repaired=True)
            if counted is not None:
                self._tally(check).count(counted)
        repairs.clear()

    def _repair_row(
        self, check: Check, finding: Finding, *, is_new: bool
    ) -> RepairOutcome:
        """Repair a row, with retries while the outcome is unknown.

        A repair checks the row under a lock, so it is idempotent.
        """
        lost: CommitUnknownError | None = None
        if self._down:
            # Otherwise each of thousands of repairs would wait for its
            # timeout.
            down = (f"{name}: {cause.reason}" for name, cause in self._down.items())
            return RepairOutcome.needs_decision(
                replace(finding, detail="; ".join(down))
            )
        for _ in range(_MOST_LOST):
            try:
                outcome = check.repair(self._cluster, finding)
            except CommitUnknownError as error:
                lost = error
                _log.warning(
                    "%s is checked again: %s",
                    finding,
                    error,
                    extra={"action": "verify"},
                )
                continue
            except SQLAlchemyError as error:
                place = self._place(check, finding.shard_id)
                unreachable = self._record_error(check, place, error)
                self._unrepaired.append(unreachable)
                return RepairOutcome.needs_decision(
                    replace(
                        finding,
                        detail=f"{unreachable.server}: {unreachable.cause.reason}",
                    )
                )
            if (lost is not None or not is_new) and outcome.left is None:
                return RepairOutcome.succeeded()
            return outcome
        # The run continues: other rows can be repaired.
        return RepairOutcome.needs_decision(replace(finding, detail=str(lost)))

    def _tally(self, check: Check) -> Tally:
        return self._state.tallies[check.subject]

    def _count_time(self) -> None:
        now = time.monotonic()
        self._state.seconds += now - self._counted
        self._counted = now

    def _save(self, *, must: bool) -> None:
        now = time.monotonic()
        if self._file is not None and (must or now - self._saved >= _SAVE):
            self._count_time()
            self._file.save(self._state)
            self._saved = now

    def _report_progress(self, check: Check, shard_id: int, shards: int) -> None:
        if self._on_progress is None:
            return
        state = self._state
        self._on_progress(
            VerifyProgress(
                subject=check.subject,
                unit=check.unit,
                shard_id=shard_id,
                shards=shards,
                looked=self._tally(check).looked[check.unit],
                found=sum(one.found.total() for one in state.tallies.values()),
                waiting=len(state.suspects),
                counts=self._tally(check).looked,
            )
        )


def _run_identity(
    command: str, cluster: Cluster, checks: Sequence[Check], repair: Collection[str]
) -> dict[str, Any]:
    """Return the JSON values that identify a run, for its position file."""
    places = cluster.places
    spaces = {
        space.name: space.shards
        for space in (check.keyspace(places) for check in checks)
    }
    return {
        "command": command,
        "classes": [f"{check.subject} {check.unit}" for check in checks],
        "keyspaces": spaces,
        "repair": sorted(repair),
    }


def _row(finding: Finding) -> tuple[Any, ...]:
    return tuple(sorted(finding.row.items()))


def _read(
    session: ShardSession, check: Check, shard_id: int, after: Any, limit: int
) -> CheckedPage:
    return check.read(session, shard_id, after, limit)


def _read_again(
    session: ShardSession, check: Check, shard_id: int, findings: Sequence[Finding]
) -> list[Finding]:
    rows = check.again(session, shard_id, findings)
    return check.judge(session, shard_id, rows)
