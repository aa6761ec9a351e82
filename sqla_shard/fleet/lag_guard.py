"""Runs that write many rows wait while replicas are behind.

A replica applies the commits of its primary, often more slowly than many
sessions write.  One that is minutes behind returns old rows, and cannot take
over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from threading import Event
from time import monotonic

from sqlalchemy.engine import URL

from sqla_shard.dialects.passwords import PasswordSource
from sqla_shard.engine.pools import server_name
from sqla_shard.exc import FleetServerError, FleetSetupError
from sqla_shard.fleet.server_states import (
    all_answers,
    read_state,
    reason_of,
    ServerState,
)

log = logging.getLogger(__name__)

Replicas = Mapping[str, tuple[URL, PasswordSource | None]]
"""URLs with the account, by names for messages, and the password of each; None
for that of the URL."""

#: Seconds between two looks at the replicas.
_EVERY = 1.0
#: Seconds for a replica to accept a connection, and to respond.
_TIMEOUT = 5.0
#: Errors of a server that has too many connections, or ends: it may accept
#: one later.
_PASSING = frozenset([1040, 1053, 1203, 1226, 1317, 1927])


@dataclass(frozen=True)
class _Behind:
    name: str
    reason: str
    seconds: int | None = None

    def __str__(self) -> str:
        known = "" if self.seconds is None else f" ({self.seconds} s)"
        return f"{self.name} {self.reason}{known}"


class LagGuard:
    """Waits while a replica is behind its primary.

    A replica that does not respond, or does not replicate, counts as one that
    is behind.  Each reason to wait is logged once.

    For one thread.

    :param replicas: returns the replicas of now.  The account needs the
        privilege ``SLAVE MONITOR`` (MySQL: ``REPLICATION CLIENT``).
    :param limit: seconds that each may be behind, as the replica reports it.
    """

    def __init__(self, replicas: Callable[[], Replicas], *, limit: float) -> None:
        self._replicas = replicas
        self._limit = limit
        self._next = monotonic()
        self._never = Event()

    def wait(self) -> None:
        """Return when no replica is behind; they are read once a second.

        :raises FleetSetupError: if the account may not see the lag of one, or
            it replicates from no primary.
        """
        if monotonic() < self._next:
            return
        # Without the seconds, which differ each time.
        known: set[tuple[str, str]] = set()
        while behind := self._behind():
            reasons = {(one.name, one.reason) for one in behind}
            if reasons != known:
                log.warning(
                    "waits until no replica is more than %g s behind: %s",
                    self._limit,
                    ", ".join(map(str, behind)),
                )
            known = reasons
            self._never.wait(_EVERY)
        self._next = monotonic() + _EVERY

    def _behind(self) -> list[_Behind]:
        """Return the replicas that are behind.

        :raises FleetSetupError: see :meth:`wait`.
        """
        replicas = self._replicas()
        states = all_answers(
            [
                partial(
                    read_state,
                    url,
                    name=name,
                    role="standby",
                    address=server_name(url),
                    timeout=_TIMEOUT,
                    password=password,
                )
                for name, (url, password) in replicas.items()
            ],
            _TIMEOUT,
        )
        found = [
            self._one_behind(name, state)
            for name, state in zip(replicas, states, strict=True)
        ]
        return [one for one in found if one is not None]

    def _one_behind(self, name: str, state: ServerState | Exception) -> _Behind | None:
        if isinstance(state, FleetServerError) and not (
            state.is_unanswered or state.number in _PASSING
        ):
            raise FleetSetupError(str(state)) from state
        if isinstance(state, Exception):
            return _Behind(name, f"does not respond: {reason_of(state)}")
        if state.unknown is not None:
            raise FleetSetupError(
                f"the lag of {name} cannot be read: {state.unknown}; grant "
                "SLAVE MONITOR (MySQL: REPLICATION CLIENT) to its account"
            )
        status = state.replication
        if status is None:
            raise FleetSetupError(
                f"{name} replicates from no primary, so it has no lag; start "
                "its replication, or do not name it as a replica"
            )
        if not status.runs or status.lag is None:
            return _Behind(name, f"does not replicate: {status.error or 'stopped'}")
        if status.lag > self._limit:
            return _Behind(name, "is behind", seconds=status.lag)
        return None
