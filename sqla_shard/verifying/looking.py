"""Looking through tables, shard by shard, beside a live application.

What looks wrong may be something that is just being done: a key is given
away in several transactions.  So it is looked at a second time, and only what
is wrong then, in the same way, is a finding.  The run goes on meanwhile.

Servers are worked on one after another, by one thread.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from typing import Any
from typing import TypeVar

from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.cluster import Cluster
from sqla_shard.engines.troubles import message_of
from sqla_shard.engines.troubles import reason
from sqla_shard.exc import CommitUnknownError
from sqla_shard.exc import ServerUnreachableError
from sqla_shard.rendering import Place
from sqla_shard.session import ShardSession
from sqla_shard.verifying.contract import Check
from sqla_shard.verifying.findings import Finding
from sqla_shard.verifying.findings import Kind
from sqla_shard.verifying.findings import Outcome
from sqla_shard.verifying.position import PositionFile
from sqla_shard.verifying.position import State
from sqla_shard.verifying.position import Suspect
from sqla_shard.verifying.position import Unread
from sqla_shard.verifying.report import Tally
from sqla_shard.verifying.report import UnreadShard
from sqla_shard.verifying.report import VerifyReport

__all__ = ["Pace", "Run", "VerifyProgress", "kinds_of"]

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: Seconds for which the first transaction is repeated that a server fails.
PATIENCE = 30.0
#: How often a repair is tried whose COMMIT was lost.
_MOST_LOST = 3
#: Suspects that are kept until they are looked at again.  Where there are
#: more, the run waits for them: each is in memory, and in the file.
_MOST_SUSPECTS = 5000
#: Seconds after which the position is written even where shards are empty.
_SAVE = 1.0


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How fast a run may be.

    :ivar rate: rows a second at most; None for as many as it takes.
    :ivar grace: seconds between the two looks at what seems wrong.
    :ivar batch: rows that one transaction reads at most.
    :raises ValueError: when one makes no sense.
    """

    rate: float | None
    grace: float
    batch: int

    def __post_init__(self) -> None:
        if self.rate is not None and not self.rate > 0:
            raise ValueError(f"rate={self.rate!r}; it is above 0, or None")
        if not self.grace >= 0:
            raise ValueError(f"grace={self.grace!r}; it is a number, from 0")
        if type(self.batch) is not int or self.batch < 1:
            raise ValueError(f"batch={self.batch!r}; it is a number, from 1")

    @property
    def limit(self) -> int:
        """How many rows to read at once: of one second at most."""
        if self.rate is None:
            return self.batch
        return max(1, min(self.batch, int(self.rate)))


@dataclass(frozen=True, kw_only=True)
class VerifyProgress:
    """How far a run is.

    :ivar subject: the class that is looked through.
    :ivar unit: what is looked at: rows, or objects.
    :ivar shard_id: the shard that was looked through last.
    :ivar shards: how many there are.
    :ivar looked: how many rows or objects of the class so far.
    :ivar found: how many of all classes do not fit.
    :ivar waiting: how many are to be looked at a second time.
    """

    subject: str
    unit: str
    shard_id: int
    shards: int
    looked: int
    found: int
    waiting: int


class Run:
    """One run of some checks.

    :param cluster: where the rows are.
    :param checks: what to look through, in this order.
    :param repair: the kinds that are to be repaired; empty for a dry run.
    :param pace: how fast it may be.
    :param command: what tells it from others with the same checks.
    :param position: the file that keeps how far it is; None for none.
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
        self._file: PositionFile | None = None
        if position is not None:
            what = _what_it_is(command, cluster, checks, repair)
            self._file = PositionFile(position, what)
        self._on_progress = on_progress
        self._kinds = kinds_of(checks)
        self._never = threading.Event()
        self._state = State()
        self._counted = self._saved = self._next = 0.0
        #: The first error of a server, if any.
        self.error: Exception | None = None
        #: By name, the servers that do not answer, and why.
        self._down: dict[str, str] = {}
        self._is_patient = True
        #: Suspects that could not be looked at again.
        self._unconfirmed: list[Suspect] = []
        #: The shards of those, and of repairs that a server has failed.
        self._unlooked: list[Unread] = []

    def run(self, skipped: Mapping[str, str]) -> VerifyReport:
        """Look through everything that is not done yet.

        :param skipped: for the report: what could not be looked for.
        :raises VerifyPositionError: when the file is that of another run.
        """
        if self._file is not None:
            self._state = self._file.load() or State()
        state = self._state
        for check in self._checks:
            state.tallies.setdefault(check.subject, Tally())
        self._counted = self._next = time.monotonic()
        while state.check < len(self._checks):
            self._walk(self._checks[state.check])
            state.check, state.shard_id = state.check + 1, 0
        self._read_the_rest()
        while state.suspects:
            self._wait_for_suspects()
        state.suspects = self._unconfirmed
        self._count_time()
        if self._file is not None:
            if state.unread or state.suspects:
                self._file.save(state)
            else:
                self._file.remove()
        return VerifyReport(
            tallies=state.tallies,
            kinds=self._kinds,
            repair=frozenset(self._repair),
            skipped=dict(skipped),
            seconds=state.seconds,
            unread=tuple(
                self._shown(one) for one in (*state.unread, *self._unlooked)
            ),
        )

    # -- the first look

    def _walk(self, check: Check) -> None:
        state = self._state
        space = check.keyspace(self._cluster.places)
        while state.shard_id < space.shards:
            shard_id, limit = state.shard_id, self._pace.limit
            count, state.after = self._page(
                check, shard_id, state.after, limit
            )
            if count < limit:
                state.shard_id, state.after = shard_id + 1, None
            self._go_on(check, shard_id, count)
            self._tell(check, shard_id, space.shards)

    def _go_on(self, check: Check, shard_id: int, count: int) -> None:
        """Do what there is to do between two pages."""
        self._look_again(time.time())
        while len(self._state.suspects) > _MOST_SUSPECTS:
            self._wait_for_suspects()
        self._save(must=count > 0)
        self._slow_down(count)

    def _page(
        self, check: Check, shard_id: int, after: Any, limit: int
    ) -> tuple[int, Any]:
        """Look at some rows; return how many, and the position of the last.

        A shard that cannot be read has no more rows.
        """
        place = self._place(check, shard_id)
        down = self._down.get(place.server)
        if down is not None:
            self._state.unread.append(
                Unread(
                    check=self._checks.index(check),
                    shard_id=shard_id,
                    after=after,
                    server=place.server,
                    reason=down,
                )
            )
            return 0, after
        try:
            count, last, found = self._patiently(
                _read, check, shard_id, after, limit
            )
        except SQLAlchemyError as error:
            unread = self._met(check, place, error, after)
            self._state.unread.append(unread)
            return 0, after
        self._tally(check).looked[check.unit] += count
        self._take(check, found)
        return count, last

    def _patiently(self, fn: Callable[..., T], *args: Any) -> T:
        """Run a transaction, which is repeated until something was unread.

        A failover is waited for once, and not for each of the thousands of
        shards that are on the server.
        """
        if not self._is_patient:
            return self._cluster.run(fn, *args, attempts=1)
        return self._cluster.run(fn, *args, timeout=PATIENCE)

    def _place(self, check: Check, shard_id: int) -> Place:
        places = self._cluster.places
        return places.place(check.keyspace(places), shard_id)

    def _met(
        self, check: Check, place: Place, error: Exception, after: Any = None
    ) -> Unread:
        """Take note of an error of a server; return what was not read.

        :raises SQLAlchemyError: when the error is another one.
        """
        found = reason(error)
        if found is None:
            raise error
        self.error = self.error or error
        self._is_patient = False
        if isinstance(found, ServerUnreachableError):
            # One that has several names is one server.
            for name in found.server.split(", "):
                self._down[name] = message_of(found)
        return Unread(
            check=self._checks.index(check),
            shard_id=place.shard_id,
            after=after,
            server=found.server,
            reason=message_of(found),
        )

    def _read_the_rest(self) -> None:
        """Read what could not be read, of this run or an earlier one."""
        left, self._state.unread = self._state.unread, []
        self._down.clear()
        while left:
            one = left.pop(0)
            check, limit = self._checks[one.check], self._pace.limit
            after, count = one.after, limit
            while count == limit:
                count, after = self._page(check, one.shard_id, after, limit)
                self._go_on(check, one.shard_id, count)

    def _shown(self, one: Unread) -> UnreadShard:
        check = self._checks[one.check]
        return UnreadShard(
            subject=check.subject,
            keyspace=check.keyspace(self._cluster.places).name,
            shard_id=one.shard_id,
            server=one.server,
            reason=one.reason,
        )

    def _take(self, check: Check, found: Iterable[Finding]) -> None:
        now = time.time()
        number = self._checks.index(check)
        for finding in found:
            if self._kinds[finding.kind].settled:
                self._conclude(check, finding)
            else:
                self._state.suspects.append(
                    Suspect(check=number, finding=finding, seen=now)
                )

    # -- the second look

    def _wait_for_suspects(self) -> None:
        """Wait until the first can be looked at again, and do that."""
        due = self._due(self._state.suspects[0], time.time())
        self._never.wait(max(0.0, due - time.time()))
        self._look_again(due)
        self._save(must=True)

    def _due(self, suspect: Suspect, now: float) -> float:
        # A clock that was put back must not make it wait for hours.
        return min(suspect.seen, now) + self._pace.grace

    def _look_again(self, now: float) -> None:
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
        self._slow_down(count)

    def _confirm(
        self, check: Check, shard_id: int, findings: list[Finding]
    ) -> None:
        before = {_row(one): one.kind for one in findings}
        others = []
        try:
            found = self._patiently(_read_again, check, shard_id, findings)
        except SQLAlchemyError as error:
            place = self._place(check, shard_id)
            self._unlooked.append(self._met(check, place, error))
            number, seen = self._checks.index(check), time.time()
            self._unconfirmed += [
                Suspect(check=number, finding=one, seen=seen)
                for one in findings
            ]
            return
        for now in found:
            kind = before.get(_row(now))
            if kind == now.kind:
                self._conclude(check, now)
            elif kind is not None:
                # Something else is wrong with it, for the first time.
                others.append(now)
        self._take(check, others)

    def _conclude(self, check: Check, finding: Finding) -> None:
        """Count what is wrong indeed, and repair it if that is wanted."""
        counted: Finding | None = finding
        if finding.kind in self._repair:
            outcome = self._mend(check, finding)
            counted = outcome.left
            if outcome.repaired:
                counted = replace(finding, repaired=True)
        if counted is not None:
            self._tally(check).count(counted)

    def _mend(self, check: Check, finding: Finding) -> Outcome:
        """Put a row right, again where nobody knows whether that was done.

        It looks at the row under a lock, so that twice does no harm.
        """
        lost: CommitUnknownError | None = None
        if self._down:
            # Each of thousands would wait until it gives up.
            down = "; ".join(dict.fromkeys(self._down.values()))
            return Outcome.not_done(replace(finding, detail=down))
        for _ in range(_MOST_LOST):
            try:
                outcome = check.mend(self._cluster, finding)
            except CommitUnknownError as error:
                lost = error
                _log.warning(
                    "%s is looked at again: %s",
                    finding,
                    error,
                    extra={"action": "verify"},
                )
                continue
            except SQLAlchemyError as error:
                place = self._place(check, finding.shard_id)
                unread = self._met(check, place, error)
                self._unlooked.append(unread)
                return Outcome.not_done(replace(finding, detail=unread.reason))
            if lost is not None and outcome.left is None:
                return Outcome.done()
            return outcome
        # The thousands that may follow do not have to wait for it.
        return Outcome.not_done(replace(finding, detail=str(lost)))

    # -- pace and position

    def _tally(self, check: Check) -> Tally:
        return self._state.tallies[check.subject]

    def _slow_down(self, count: int) -> None:
        if self._pace.rate is None:
            return
        # What was slow is not made up for: the rate is there to spare
        # servers that have enough to do.
        now = time.monotonic()
        self._next = max(self._next + count / self._pace.rate, now)
        self._never.wait(self._next - now)

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

    def _tell(self, check: Check, shard_id: int, shards: int) -> None:
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
            )
        )


def _what_it_is(
    command: str,
    cluster: Cluster,
    checks: Sequence[Check],
    repair: Collection[str],
) -> dict[str, Any]:
    """Return what tells one run from another, for its file."""
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


def kinds_of(checks: Iterable[Check]) -> dict[str, Kind]:
    """Return all that some checks can find, by name."""
    found: dict[str, Kind] = {}
    for check in checks:
        found.update(check.kinds)
    return found


def _row(finding: Finding) -> tuple[Any, ...]:
    return tuple(sorted(finding.row.items()))


def _read(
    session: ShardSession, check: Check, shard_id: int, after: Any, limit: int
) -> tuple[int, Any, list[Finding]]:
    rows = check.page(session, shard_id, after, limit)
    last = check.position(rows[-1]) if rows else after
    return len(rows), last, check.judge(session, shard_id, rows)


def _read_again(
    session: ShardSession,
    check: Check,
    shard_id: int,
    findings: Sequence[Finding],
) -> list[Finding]:
    rows = check.again(session, shard_id, findings)
    return check.judge(session, shard_id, rows)
