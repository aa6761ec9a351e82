"""Pauses and limits of queues, which all workers share.

They are rows of ``sqla_shard_queue`` on one shard: shard 0 of the first
keyspace with objects.  Workers read them every second.  If that server does
not respond, what was read last remains valid, and a queue with a limit waits.

A limit is a token bucket: the row has a number of tokens, which grows by the
clock of the server, up to those of two seconds.  A worker takes some before it
claims, and uses them for the jobs that it gets: a shard without jobs costs
none.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import asdict, dataclass
from math import inf
from time import monotonic
from typing import Any, TYPE_CHECKING

from sqlalchemy import bindparam, select, update
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.dialects.sql import InsertMissing, ServerTime
from sqla_shard.engine import Places
from sqla_shard.engine.rendering import Place
from sqla_shard.engine.unreachable import short
from sqla_shard.exc import JobOptionError
from sqla_shard.jobs.enqueue import check_queue
from sqla_shard.outbox.tables import QUEUES
from sqla_shard.session import ShardSession

if TYPE_CHECKING:
    from sqla_shard import Cluster

_log = logging.getLogger(__name__)

_HIGHEST = 1_000_000
#: Seconds between two reads of a worker.
_REFRESH = 1.0
#: Seconds of jobs that may be claimed at once: as long as a worker without
#: tokens waits at most, or the limit could not be reached.
_BURST = 2.0
#: Seconds for which a worker may use its tokens.
_VALID = 1.0


@dataclass(frozen=True, kw_only=True)
class QueueLimit:
    """The settings of a queue.

    :ivar queue: its name.
    :ivar is_paused: whether no jobs are claimed.
    :ivar per_second: maximum number of jobs that all workers claim in a
        second, on average; None for no limit.
    """

    queue: str
    is_paused: bool
    per_second: float | None

    @property
    def is_open(self) -> bool:
        """Whether jobs are claimed: a limit of 0 is a pause."""
        return not self.is_paused and self.per_second != 0

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes."""
        return asdict(self)


_queue = QUEUES.c
_this = _queue.queue == bindparam("the_queue")
_SELECT = select(_queue.queue, _queue.is_paused, _queue.per_second).order_by(
    _queue.queue
)
_INSERT = InsertMissing(QUEUES).values(
    queue=bindparam("the_queue"),
    is_paused=False,
    per_second=None,
    tokens=0,
    filled_at=ServerTime(),
)


def limits(cluster: Cluster) -> list[QueueLimit]:
    """Return the queues that are paused, or were, or have a limit.

    :raises SQLAlchemyError: if they cannot be read.
    """
    return cluster.run(_read)


def set_limit(cluster: Cluster, queue: str, per_second: float | None) -> QueueLimit:
    """Limit the jobs that all workers of a queue claim in a second.

    :param per_second: number of jobs on average; 0 claims none until another
        limit is set; None for no limit.
    :raises JobOptionError: if an argument is not valid.
    """
    given: Any = per_second
    if given is not None and (
        isinstance(given, bool)
        or not isinstance(given, int | float)
        or not 0 <= given <= _HIGHEST
    ):
        raise JobOptionError(
            f"must be a number from 0 to {_HIGHEST}, or None for no limit",
            option="per_second",
            value=per_second,
        )
    return _set(cluster, queue, per_second=per_second)


def pause(cluster: Cluster, queue: str) -> QueueLimit:
    """Let workers claim no more jobs of a queue; those that run go on.

    :raises JobOptionError: if the name is not valid.
    """
    return _set(cluster, queue, is_paused=True)


def resume(cluster: Cluster, queue: str) -> QueueLimit:
    """End the pause of a queue; its limit is as before.

    :raises JobOptionError: if the name is not valid.
    """
    return _set(cluster, queue, is_paused=False)


def _set(cluster: Cluster, queue: str, **values: Any) -> QueueLimit:
    return cluster.run(_change, check_queue(queue), values)


def _at(places: Places) -> dict[str, Place]:
    """Return the shard with the rows, as ``bind_arguments``."""
    for space in places.topology.keyspaces.values():
        if space.kind == "objects":
            return {"place": places.place(space, 0)}
    # Raises UnknownKeyspaceError.
    return {"place": places.place(places.keyspace(None, "objects"), 0)}


def _read(session: ShardSession) -> list[QueueLimit]:
    at = _at(session.places)
    return [
        QueueLimit(**row._mapping)
        for row in session.execute(_SELECT, bind_arguments=at)
    ]


def _change(session: ShardSession, queue: str, values: dict[str, Any]) -> QueueLimit:
    at = _at(session.places)
    which = {"the_queue": queue}
    session.execute(_INSERT, which, bind_arguments=at)
    session.execute(
        update(QUEUES).where(_this).values(**values), which, bind_arguments=at
    )
    found = session.execute(_SELECT.where(_this), which, bind_arguments=at)
    return QueueLimit(**found.one()._mapping)


_BUCKET = (
    select(
        _queue.is_paused,
        _queue.per_second,
        _queue.tokens,
        _queue.filled_at,
        ServerTime().label("now"),
    )
    .where(_this)
    .with_for_update()
)
_FILL = (
    update(QUEUES)
    .where(_this)
    .values(tokens=bindparam("the_tokens"), filled_at=bindparam("now"))
)


def take_tokens(session: ShardSession, queue: str, wanted: int) -> int:
    """Take tokens of a queue for jobs to be claimed.

    :param wanted: maximum number.
    :returns: the number; ``wanted`` if the queue has no limit.
    """
    at = _at(session.places)
    which = {"the_queue": queue}
    row = session.execute(_BUCKET, which, bind_arguments=at).first()
    if row is None or row.is_paused or row.per_second is None:
        return 0 if row is not None and row.is_paused else wanted
    now = row.now.replace(tzinfo=None)
    # Not below 0 after the clock of the server was set back.
    seconds = max(0.0, (now - row.filled_at).total_seconds())
    # A limit of less than one job a second must reach a whole token.
    most = max(1.0, row.per_second * _BURST)
    tokens = min(most, row.tokens + seconds * row.per_second)
    taken = min(wanted, int(tokens)) if row.per_second else 0
    session.execute(
        _FILL, {**which, "the_tokens": tokens - taken, "now": now}, bind_arguments=at
    )
    return taken


class LimitedQueues:
    """The queues and numbers of jobs that a worker may claim.

    :param queues: names of its queues.
    """

    def __init__(self, cluster: Cluster, queues: Collection[str]) -> None:
        self._cluster = cluster
        self._queues = queues
        self._limits: dict[str, QueueLimit] = {}
        self._is_known = False
        self.error: SQLAlchemyError | None = None  #: of the last read
        self._next_read = 0.0
        #: Number of tokens, and until when they may be used, by queue.
        self._tokens: dict[str, tuple[int, float]] = {}

    def open_queues(self) -> list[str]:
        """Return the queues that are not paused.

        Without a first response there are none: a queue that is paused must
        not run because its server does not respond.
        """
        self._refresh()
        if not self._is_known:
            return []
        closed = {one.queue for one in self._limits.values() if not one.is_open}
        return [name for name in self._queues if name not in closed]

    def allowance(self, queue: str, wanted: int) -> int:
        """Return how many jobs of a queue may be claimed now.

        :param wanted: maximum number.
        """
        self._refresh()
        limit = self._limits.get(queue)
        if limit is None or (limit.is_open and limit.per_second is None):
            return wanted
        if not limit.is_open:
            return 0
        tokens, end = self._tokens.get(queue, (0, -inf))
        if monotonic() >= end:
            found = self._call(self._cluster.run, take_tokens, queue, wanted)
            tokens, end = found or 0, monotonic() + _VALID
            if found == 0 and limit.per_second:
                # Others have them; do not ask before there is one again.
                end = monotonic() + min(_VALID, 1 / limit.per_second)
            self._tokens[queue] = tokens, end
        return min(tokens, wanted)

    def _refresh(self) -> None:
        """Read the settings again if it is time to."""
        if monotonic() >= self._next_read:
            self._next_read = monotonic() + _REFRESH
            found = self._call(limits, self._cluster)
            if found is not None:
                self._limits = {one.queue: one for one in found}
                self._is_known = True

    def use(self, queue: str, count: int) -> None:
        """Record that jobs of a queue were claimed."""
        if queue in self._tokens:
            tokens, end = self._tokens[queue]
            left = tokens - count
            self._tokens[queue] = left, end if left > 0 else -inf

    def _call(self, function: Any, *arguments: Any) -> Any:
        """Return the result of a function; None if the server has failed."""
        try:
            found = function(*arguments)
        except SQLAlchemyError as error:
            if self.error is None:
                _log.warning(
                    "the limits of queues cannot be read: %s",
                    short(error),
                    extra={"action": "read limits"},
                )
            self.error = error
            return None
        self.error = None
        return found
