"""One transaction of a worker on a shard: outcomes go, new jobs come.

Acknowledgements ride with the next claim on their shard: a worker that is busy
sends one transaction for a batch of jobs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqla_shard.exc import JobClaimLostError
from sqla_shard.exc import UnsafeBinaryLogError
from sqla_shard.jobs.claims import acknowledge
from sqla_shard.jobs.claims import claim
from sqla_shard.jobs.claims import ClaimedJob
from sqla_shard.jobs.claims import fail
from sqla_shard.jobs.claims import release
from sqla_shard.jobs.running import Ending
from sqla_shard.jobs.running import Outcome
from sqla_shard.jobs.survey import DueGroup
from sqla_shard.outbox.apply import Address
from sqla_shard.outbox.apply import place_at
from sqla_shard.session import ShardSession

if TYPE_CHECKING:
    from sqla_shard import Cluster

__all__ = ["Exchange", "check_binary_logs", "exchange"]

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
        found = claim(
            session, place, group.queue, group.priority, wanted, lease=lease
        )
        claimed += found
        left[group.queue] -= len(found)
        if len(found) < wanted:
            emptied.append(group)
    return Exchange(claimed=claimed, emptied=emptied, lost=lost)


def _write(session: ShardSession, outcomes: Sequence[Outcome]) -> list[str]:
    """Write outcomes; return the jobs whose claims are lost."""
    lost: list[str] = []
    done = [one.job for one in outcomes if one.ending is Ending.SUCCEEDED]
    try:
        acknowledge(session, done)
    except JobClaimLostError as error:
        lost += error.jobs
    # In one order: otherwise two workers could deadlock.
    for one in sorted(outcomes, key=lambda outcome: outcome.job.local_id):
        try:
            if one.ending is Ending.FAILED:
                fail(session, one.job, one.error, one.delay)
            elif one.ending is Ending.UNKNOWN:
                release(session, one.job, delay=one.delay, error=one.error)
        except JobClaimLostError as error:
            lost += error.jobs
    return lost


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
            with cluster.session() as session:
                connection = session.root_connection(place)
                if place.backend.logs_statements(connection):
                    raise UnsafeBinaryLogError(server=name)
