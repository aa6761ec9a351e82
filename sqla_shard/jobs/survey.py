"""The shards that have due jobs, and where a worker claims next."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache, partial
from time import monotonic
from typing import Any, TYPE_CHECKING
from weakref import WeakKeyDictionary

from sqlalchemy import BigInteger, bindparam, Engine, exists, func, literal, select
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.dialects.sql import ServerTime
from sqla_shard.engine import by_server, Places
from sqla_shard.engine.rendering import MOST_BRANCHES, Place
from sqla_shard.engine.unreachable import UnreachableServer
from sqla_shard.exc import (
    CommitUnknownError,
    NoHealthyShardsError,
    ServerFencedError,
    ServerUnreachableError,
    UnsafeBinaryLogError,
)
from sqla_shard.exc.base import summary
from sqla_shard.jobs.claims import JobState, PRIORITIES
from sqla_shard.outbox.apply import Address
from sqla_shard.outbox.scan import Read, scan
from sqla_shard.outbox.tables import JOBS
from sqla_shard.session import ShardSession
from sqla_shard.types.shard_bound import ShardNumber
from sqla_shard.util.pace import jittered

if TYPE_CHECKING:
    from sqla_shard import Cluster

#: Errors of a server.
UNHEALTHY = (CommitUnknownError, ServerFencedError, ServerUnreachableError)

_LAST_OUTCOMES = 20

#: A server has a rest after this many failures in its window, if they are
#: more than a quarter of it.
_FAILURES = 3

_REST_SECONDS = 5.0


class _Window:
    def __init__(self) -> None:
        self.outcomes: deque[bool] = deque(maxlen=_LAST_OUTCOMES)
        self.rests_until: float | None = None
        self.error = ""

    def rest(self) -> None:
        self.rests_until = monotonic() + jittered(_REST_SECONDS, 0.2)


class HealthWindows:
    """The windows of the servers of a cluster, for all threads.

    For each server there is a window of the last outcomes of enqueueing, claiming
    and acknowledging.  With too many failures the server has a rest; after that
    one transaction probes it, and its outcome ends the rest or begins another.
    Otherwise a server that does not respond would cost each of them a timeout.

    Errors of the caller, such as a deadlock or a missing table, do not count.

    They are of engines: a server with another address has a new window.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._windows: WeakKeyDictionary[Engine, _Window] = WeakKeyDictionary()

    def allows(self, engine: Engine) -> bool:
        """Return whether a transaction may be sent to a server now.

        Call it only before sending one: it may be the probe.
        """
        with self._lock:
            window = self._windows.get(engine)
            if window is None or window.rests_until is None:
                return True
            is_over = monotonic() >= window.rests_until
            if is_over:
                # This one is the probe; the others wait for its outcome.
                window.rest()
            return is_over

    def record(
        self, engine: Engine, error: Exception | None, *, is_further: bool = False
    ) -> None:
        """Record the outcome of a transaction.

        :param error: its error; None if it has succeeded.  An error that is
            not of the server is a success.
        :param is_further: whether it is a further part of one look for jobs, which
            counts as one success: those of thousands of shards would fill the window.
        """
        counted = error if isinstance(error, UNHEALTHY) else None
        with self._lock:
            window = self._windows.get(engine)
            if window is None:
                window = self._windows[engine] = _Window()
            if counted is None and window.rests_until is not None:
                window.rests_until = None
                window.outcomes.clear()
            elif counted is None and is_further:
                return
            window.outcomes.append(counted is None)
            if counted is None:
                return
            window.error = summary(counted)
            failures = window.outcomes.count(False)
            if window.rests_until is not None or (
                failures >= _FAILURES and 4 * failures > len(window.outcomes)
            ):
                window.rest()

    def last_error(self, engine: Engine) -> str:
        """Return the last error of a server, for messages."""
        with self._lock:
            window = self._windows.get(engine)
            return "" if window is None else window.error


_lock = threading.Lock()

_known: WeakKeyDictionary[Cluster, HealthWindows] = WeakKeyDictionary()


def windows_of(cluster: Cluster) -> HealthWindows:
    """Return the windows of a cluster in this process."""
    with _lock:
        windows = _known.get(cluster)
        if windows is None:
            windows = _known[cluster] = HealthWindows()
        return windows


# -- Survey of the shards with jobs that are due: one statement for a server.
#
# A statement reads up to 256 shards.  On each of them it reads, for each
# queue and priority, the first entry of the index with the state: not the
# backlog, and no job that is scheduled for later.  So it takes as long for
# a million jobs as for one.


@dataclass(frozen=True, kw_only=True)
class DueGroup:
    """Jobs of a shard with a state, a queue and a priority; one is due."""

    keyspace: str
    shard_id: int
    state: JobState
    queue: str
    priority: int

    @property
    def address(self) -> tuple[str, int]:
        """The keyspace and the number of the shard."""
        return self.keyspace, self.shard_id


_AGO = timedelta(microseconds=-1)

#: How long a state has lasted at least, for a row to be due.
Ages = Mapping[JobState, timedelta]


def due_jobs(
    cluster: Cluster, queues: Collection[str]
) -> tuple[list[DueGroup], list[UnreachableServer]]:
    """Return the pending jobs that are due, by shard, queue and priority.

    :param queues: names of queues.
    :returns: the groups, and the servers that were not read.
    """
    return due_rows(cluster, queues, {JobState.PENDING: timedelta(0)})


def due_rows(
    cluster: Cluster, queues: Collection[str], ages: Ages, *, checks_logs: bool = False
) -> tuple[list[DueGroup], list[UnreachableServer]]:
    """Return the due rows of some states, by shard, queue and priority.

    :param queues: names of queues.
    :param ages: the states, and how long rows must have been due.
    :param checks_logs: whether servers with a binary log of statements are
        refused.
    :returns: the groups, and the servers that were not read.
    :raises UnsafeBinaryLogError: if a server has such a log.
    """
    if not queues or not ages:
        return [], []
    groups = [
        (state, name, priority)
        for state in ages
        for name in sorted(set(queues))
        for priority in PRIORITIES
    ]
    parameters: dict[str, Any] = {}
    for number, (state, name, priority) in enumerate(groups):
        parameters[f"state{number}"] = state.value
        parameters[f"queue{number}"] = name
        parameters[f"priority{number}"] = priority
        parameters[f"since{number}"] = ages[state] // _AGO
    read = partial(_read, ages, groups, parameters, checks_logs)
    rows, unreachable = scan(
        cluster, _watched(windows_of(cluster), read), purpose="jobs", kinds=("objects",)
    )
    for one in unreachable:
        if isinstance(one.error, UnsafeBinaryLogError):
            raise one.error
    return rows, unreachable


def _watched(windows: HealthWindows, read: Read[DueGroup]) -> Read[DueGroup]:
    """Return a function that does not read a server which has a rest."""
    read_before: set[Engine] = set()

    def watched(session: ShardSession, places: Sequence[Place]) -> list[DueGroup]:
        first = places[0]
        if not windows.allows(first.engine):
            last = windows.last_error(first.engine)
            raise NoHealthyShardsError(
                keyspace=first.keyspace,
                servers={first.server: f"has failed repeatedly: {last}"},
            )
        failure: SQLAlchemyError | None = None
        try:
            return read(session, places)
        except SQLAlchemyError as error:
            failure = error
            raise
        finally:
            is_further = first.engine in read_before
            windows.record(first.engine, failure, is_further=is_further)
            read_before.add(first.engine)

    return watched


_job = JOBS.c
_shard_id = literal(ShardNumber(), BigInteger()).label("shard_id")


# The server reads the end of an index while it plans the statement.  Of thousands
# of shards most have no work: an EXISTS for each state would take several times as
# long as opening their tables.
_LOWEST = select(_shard_id, func.min(_job.state))
_HIGHEST = select(_shard_id, func.max(_job.state))


@lru_cache(maxsize=64)
def _statement(count: int) -> Any:
    """Return a SELECT that tells of each of some groups whether one is due.

    Each is a subquery with constants, which reads one entry of the index.
    The server would answer a GROUP BY by reading all entries, if it takes the
    backlog for small.
    """
    due = [
        exists()
        .where(
            _job.state == bindparam(f"state{number}"),
            _job.queue == bindparam(f"queue{number}"),
            _job.priority == bindparam(f"priority{number}"),
            _job.due_at <= ServerTime(bindparam(f"since{number}", type_=BigInteger())),
        )
        .label(f"due{number}")
        for number in range(count)
    ]
    return select(_shard_id, *due)


def _read(
    ages: Ages,
    groups: Sequence[tuple[JobState, str, int]],
    parameters: dict[str, Any],
    checks_logs: bool,
    session: ShardSession,
    places: Sequence[Place],
) -> list[DueGroup]:
    first = places[0]
    if checks_logs and first.backend.logs_statements(session.root_connection(first)):
        raise UnsafeBinaryLogError(server=first.server)
    is_low = JobState.PENDING in ages
    ends = session.execute(
        _LOWEST if is_low else _HIGHEST, bind_arguments={"places": places}
    )
    numbers = {
        shard_id
        for shard_id, state in ends
        if state is not None and (state <= max(ages) if is_low else state >= min(ages))
    }
    places = [place for place in places if place.shard_id in numbers]
    if not places:
        return []
    rows = session.execute(
        _statement(len(groups)), parameters, bind_arguments={"places": places}
    )
    return [
        DueGroup(
            keyspace=first.keyspace,
            shard_id=shard_id,
            state=state,
            queue=name,
            priority=priority,
        )
        for shard_id, *due in rows
        for (state, name, priority), is_due in zip(groups, due, strict=True)
        if is_due
    ]


#: How often each priority comes first.
_CHANCES = {1: 7, 2: 2, 3: 1}

_FIRST_PAUSE = 0.05

#: Maximum pause in seconds, unless there are many shards.
_LONGEST_PAUSE = 1.0

#: Maximum SELECTs a second of an idle worker, on average; each has a ROLLBACK.
_STATEMENTS = 4.0


class Schedule:
    """The shards that are known to have work.

    For each claim the priority that comes first is drawn: 1 in seven of ten, 2 in
    two, 3 in one; and then the order of the queues.  The next shard is one that has
    what comes first; those that have are taken in a random order.  So an urgent job
    seldom waits, however many shards have a backlog, and no backlog of urgent jobs
    can hold back the others for ever.

    Without work the pauses between two surveys grow, to a time that depends on
    the number of statements of a survey: for any number of shards an idle worker
    sends at most a few statements a second.  A busy one looks as often as one that
    has found nothing for long: otherwise urgent jobs, other queues and retries
    would wait until the backlog is done.

    :param rng: random number generator.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        #: By queue and priority, and by shard, in the order of claims.
        self._groups: dict[tuple[str, int], dict[Address, DueGroup]] = {}
        self.is_empty: bool = False  #: whether the last survey has found nothing
        self._pause = _FIRST_PAUSE
        self._next_survey = 0.0
        self._next_look = 0.0  # while there is work
        #: Those of the last survey, and the longest pause with them.
        self._places: Places | None = None
        self._longest = _LONGEST_PAUSE

    def reset(self) -> None:
        """Look for work again now."""
        self.is_empty = False
        self._pause = _FIRST_PAUSE
        self._next_survey = 0.0

    def look_now(self) -> None:
        """Look for work now, also while there is some."""
        self.reset()
        self._next_look = 0.0

    def add(self, groups: Iterable[DueGroup]) -> None:
        """Take over groups that are said to have a due job."""
        for group in groups:
            self._add(group)
            self.is_empty = False

    def _add(self, group: DueGroup) -> None:
        kind = group.queue, group.priority
        self._groups.setdefault(kind, {}).setdefault(group.address, group)

    @property
    def has_work(self) -> bool:
        """Whether any shard is known to have work."""
        return bool(self._groups)

    def is_survey_due(self) -> bool:
        """Return whether it is time to look for work."""
        due = self._next_look if self._groups else self._next_survey
        return monotonic() >= due

    def until_survey(self) -> float:
        """Return the seconds until the next survey."""
        return max(0.0, self._next_survey - monotonic())

    def surveyed(self, groups: Iterable[DueGroup], places: Places) -> None:
        """Take over the result of a survey."""
        shuffled = list(groups)
        self._rng.shuffle(shuffled)
        self._groups = {}
        for group in shuffled:
            self._add(group)
        self.is_empty = not shuffled
        if places is not self._places:
            self._places = places
            self._longest = max(_LONGEST_PAUSE, _statements(places) / _STATEMENTS)
        if shuffled:
            self._pause = _FIRST_PAUSE
        else:
            self._pause = min(self._pause * 2, self._longest)
        now = monotonic()
        self._next_survey = now + jittered(self._pause, 0.2)
        self._next_look = now + jittered(self._longest, 0.2)

    def next_groups(self) -> list[DueGroup]:
        """Return the groups of the next shard, in the order of the next claim.

        :returns: the groups; none if no shard is known to have work.
        """
        kinds = list(self._groups)
        self._rng.shuffle(kinds)
        (first,) = self._rng.choices(list(_CHANCES), list(_CHANCES.values()))
        # Then the most urgent first.
        kinds.sort(key=lambda kind: (kind[1] != first, kind[1]))
        for address in self._groups[kinds[0]] if kinds else ():
            some = (self._groups[kind].get(address) for kind in kinds)
            return [group for group in some if group is not None]
        return []

    def emptied(self, address: Address, groups: Sequence[DueGroup]) -> None:
        """Forget groups without due jobs; the other shards come first."""
        for group in self._taken(address):
            if group not in groups:
                self._add(group)

    def drop(self, address: Address) -> None:
        """Forget a shard until the next survey, which is not made soon."""
        self._taken(address)
        self._next_survey = monotonic() + jittered(_LONGEST_PAUSE, 0.2)

    def _taken(self, address: Address) -> list[DueGroup]:
        """Return the groups of a shard, which are known no more."""
        taken = []
        for kind, by_address in list(self._groups.items()):
            if address in by_address:
                taken.append(by_address.pop(address))
                if not by_address:
                    del self._groups[kind]
        return taken


def _statements(places: Places) -> int:
    """Return the number of statements of a survey."""
    return sum(
        -(-len(group) // MOST_BRANCHES) if group[0].backend.waits else 0
        for space in places.topology.keyspaces.values()
        if space.kind == "objects"
        for group in by_server(places.all_places(space))
    )
