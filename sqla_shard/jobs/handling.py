"""One transaction of a worker on a shard: outcomes go, new jobs come.

Acknowledgements ride with the next claim on their shard: a worker that is busy
sends one transaction for a batch of jobs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING

from sqlalchemy.exc import DataError, SQLAlchemyError

from sqla_shard.engine.unreachable import short
from sqla_shard.exc import CommitUnknownError, JobClaimLostError, UnsafeBinaryLogError
from sqla_shard.jobs.claims import acknowledge, claim, ClaimedJob, fail, release
from sqla_shard.jobs.health import windows_of
from sqla_shard.jobs.leases import confirm
from sqla_shard.jobs.periodic import is_periodic, repeat
from sqla_shard.jobs.running import Ending, Outcome
from sqla_shard.jobs.survey import DueGroup
from sqla_shard.outbox.apply import Address, place_at
from sqla_shard.session import ShardSession

if TYPE_CHECKING:
    from sqla_shard import Cluster

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """The result of a transaction.

    :ivar claimed: the new jobs.
    :ivar emptied: the groups that have had fewer jobs than asked for.
    :ivar lost: the jobs whose outcomes were refused: their claims are lost.
    """

    claimed: list[ClaimedJob]
    emptied: list[DueGroup]
    lost: list[str]


def exchange(
    session: ShardSession,
    address: Address,
    outcomes: Sequence[Outcome],
    groups: Iterable[DueGroup],
    limit: int,
    allowed: Mapping[str, int],
    lease: float,
) -> Exchange:
    """Write the outcomes of jobs of a shard, and claim others.

    :param groups: where to claim, in this order.
    :param limit: maximum number of claimed jobs.
    :param allowed: the same for each queue.
    :param lease: seconds until the claims expire.
    """
    place = place_at(session, address)
    place.backend.begin_skipping(session.root_connection(place))
    lost = _write(session, outcomes)
    claimed: list[ClaimedJob] = []
    emptied: list[DueGroup] = []
    left = dict(allowed)
    for group in groups:
        wanted = min(limit - len(claimed), left[group.queue])
        if wanted < 1:
            continue
        found = claim(session, place, group.queue, group.priority, wanted, lease=lease)
        claimed += found
        left[group.queue] -= len(found)
        if len(found) < wanted:
            emptied.append(group)
    return Exchange(claimed=claimed, emptied=emptied, lost=lost)


def _write(session: ShardSession, outcomes: Sequence[Outcome]) -> list[str]:
    """Write outcomes; return the jobs whose claims are lost."""
    lost: list[str] = []
    done = [
        one.job
        for one in outcomes
        if one.ending is Ending.SUCCEEDED and not is_periodic(one.job)
    ]
    try:
        acknowledge(session, done)
    except JobClaimLostError as error:
        lost += error.jobs
    # In one order: otherwise two workers could deadlock.
    for one in sorted(outcomes, key=lambda outcome: outcome.job.local_id):
        try:
            if is_periodic(one.job) and _ends(one):
                repeat(session, one.job, one.error or None)
            elif one.ending is Ending.FAILED:
                fail(session, one.job, one.error, one.delay, is_final=one.is_final)
            elif one.ending in (Ending.UNKNOWN, Ending.RELEASED):
                release(session, one.job, delay=one.delay, error=one.error)
        except JobClaimLostError as error:
            lost += error.jobs
    return lost


def _ends(outcome: Outcome) -> bool:
    """Return whether no attempt follows."""
    if outcome.ending is Ending.FAILED:
        return outcome.is_final or outcome.job.attempt >= outcome.job.max_attempts
    return outcome.ending is Ending.SUCCEEDED


#: Seconds after which no further attempt of a transaction begins: the worker
#: has other shards.
_TIMEOUT = 2.0
_PAUSE = 0.2
_REFUSED = "the server has refused the text of the error"


@dataclass(kw_only=True)
class _Doubt:
    """A transaction whose COMMIT has an unknown outcome.

    :ivar claimed: the jobs that it has claimed, if it was committed.
    :ivar outcomes: what else it has written.
    :ivar expires: when the claims expire, by the monotonic clock.
    """

    claimed: list[ClaimedJob]
    outcomes: list[Outcome]
    expires: float
    next_try: float = 0.0


class Exchanges:
    """The transactions of a worker, and the outcomes that they have to write.

    :param lease: seconds until claims expire.
    """

    def __init__(self, cluster: Cluster, lease: float) -> None:
        self._cluster = cluster
        self._lease = lease
        self._windows = windows_of(cluster)
        self._waiting: dict[Address, list[Outcome]] = {}
        self._doubts: list[_Doubt] = []
        self._oldest = 0.0

    @property
    def has_outcomes(self) -> bool:
        """Whether there are outcomes to be written."""
        return bool(self._waiting)

    @property
    def has_doubts(self) -> bool:
        """Whether the outcome of a transaction is unknown."""
        return bool(self._doubts)

    @property
    def age(self) -> float:
        """Seconds for which the oldest outcome has waited."""
        return monotonic() - self._oldest if self._waiting else 0.0

    def add(self, outcome: Outcome) -> None:
        """Let the next transaction on the shard write an outcome."""
        if not self._waiting:
            self._oldest = monotonic()
        self._waiting.setdefault(outcome.job.address, []).append(outcome)

    def _add_again(self, outcomes: Iterable[Outcome]) -> None:
        # Until its claim has expired, no other worker runs the job.
        for one in outcomes:
            self.add(one)

    def send(
        self,
        address: Address,
        groups: Sequence[DueGroup] = (),
        limit: int = 0,
        allowed: Mapping[str, int] = MappingProxyType({}),
    ) -> Exchange | None:
        """Send a transaction; return None if the shard cannot be used now.

        Outcomes that could not be written wait for another one.

        :param groups: where to claim.
        :param limit: maximum number of claimed jobs.
        :param allowed: the same for each queue.
        """
        places = self._cluster.places
        keyspace, shard_id = address
        outcomes = self._waiting.pop(address, [])
        tried: list[Exchange] = []

        def attempt(session: ShardSession) -> Exchange:
            tried[:] = [
                exchange(
                    session, *(address, outcomes, groups, limit, allowed, self._lease)
                )
            ]
            return tried[0]

        expires = monotonic() + self._lease
        failure: SQLAlchemyError | None = None
        try:
            space = places.topology.keyspace(keyspace)
            engine = places.place(space, shard_id).engine
            if not self._windows.allows(engine):
                self._add_again(outcomes)
                return None
            try:
                return self._cluster.run(attempt, timeout=_TIMEOUT)
            except SQLAlchemyError as error:
                failure = error
                raise
            finally:
                self._windows.record(engine, failure)
        except CommitUnknownError:
            if tried and tried[0].claimed:
                self._doubts.append(
                    _Doubt(claimed=tried[0].claimed, outcomes=outcomes, expires=expires)
                )
                return None
        except SQLAlchemyError as error:
            _log.warning(
                "shard %d of %s cannot be used now: %s",
                *(shard_id, keyspace, short(error)),
                extra={"action": "claim"},
            )
            if isinstance(error, DataError):
                # Otherwise one error's text would stop its shard for ever.
                outcomes = [
                    replace(one, error=one.error and _REFUSED) for one in outcomes
                ]
        self._add_again(outcomes)
        return None

    def send_all(self) -> tuple[list[str], int]:
        """Write all outcomes.

        :returns: the jobs whose claims are lost, and the number of shards
            that were written.
        """
        lost: list[str] = []
        count = 0
        for address in list(self._waiting):
            found = self.send(address)
            if found is not None:
                lost += found.lost
                count += 1
        # Do not retry immediately outcomes that could not be written.
        self._oldest = monotonic() + _PAUSE
        return lost, count

    def settle(self) -> list[tuple[list[ClaimedJob], float]]:
        """Look up the outcome of a COMMIT; return the jobs that were claimed.

        Without it they would wait until their claims expire.

        :returns: jobs, and when their claims expire.
        """
        found: list[tuple[list[ClaimedJob], float]] = []
        for doubt in list(self._doubts):
            now = monotonic()
            if now < doubt.next_try:
                continue
            doubt.next_try = now + _PAUSE
            try:
                claimed = self._cluster.run(confirm, doubt.claimed, attempts=1)
            except SQLAlchemyError as error:
                if now < doubt.expires:
                    continue
                _log.warning(
                    "whether %d jobs were claimed is unknown; they are run again: %s",
                    *(len(doubt.claimed), short(error)),
                    extra={"action": "claim"},
                )
                claimed = []
            self._doubts.remove(doubt)
            if claimed:
                found.append((claimed, doubt.expires))
            else:
                self._add_again(doubt.outcomes)
        return found


def check_binary_logs(cluster: Cluster) -> None:
    """Refuse servers with a binary log of statements.

    A server that does not respond is not checked.

    :raises UnsafeBinaryLogError: if a server has one.
    """
    for name, answer in cluster.health().servers.items():
        if answer is not None:
            _log.warning(
                "%s does not respond, and has no part in the work: %s",
                name,
                answer,
                extra={"action": "check", "server": name},
            )
            continue
        for server, place in cluster.places.servers():
            if server != name:
                continue
            try:
                with cluster.session() as session:
                    connection = session.root_connection(place)
                    is_unsafe = place.backend.logs_statements(connection)
            except SQLAlchemyError as error:
                # It went away after the first look, as in a failover.
                _log.warning(
                    *("the binary log of %s cannot be checked: %s", name),
                    short(error),
                    extra={"action": "check", "server": name},
                )
                continue
            if is_unsafe:
                raise UnsafeBinaryLogError(server=name)
