"""The health of a cluster, for monitoring."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from time import monotonic
from typing import Any, TypeVar

from sqla_shard.engine import Places
from sqla_shard.exc import ServerRetiredError
from sqla_shard.topology.follow import SourceReport

T = TypeVar("T")

#: Highest timeout of a health check, in seconds.
_MAX_TIMEOUT_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True)
class Health(SourceReport):
    """The state of a cluster in one process.

    :ivar source: where the topology comes from.
    :ivar state: ``"current"``: the source has confirmed the topology;
        ``"stale"``: the last good topology is in use, because the source
        cannot be read, has no valid topology, or is not read while a
        listener of ``topology_changed`` runs; ``"fixed"``: there is no
        source; ``"closed"``.
    :ivar epoch: epoch of the topology in use.
    :ivar age: seconds since the source last confirmed it.
    :ivar last_error: the last error of the source; None once it has
        confirmed the topology.
    :ivar from_snapshot: whether the topology was read from the snapshot,
        and the source has not confirmed it since the process began.
    :ivar servers: by name of the server, which is its name in the first
        keyspace, or ``keyspace/name`` if keyspaces have different servers of
        that name: None, or the error, such as
        ``"TimeoutError: no response within 2 s"``.
    :ivar process_id: id of this process.
    """

    servers: Mapping[str, str | None]
    process_id: int

    @property
    def down(self) -> list[str]:
        """The names of the servers that do not respond."""
        return [name for name, wrong in self.servers.items() if wrong]

    @property
    def ok(self) -> bool:
        """Whether every server responds and the topology is not stale."""
        return self.state in ("current", "fixed") and not self.down

    is_good = ok

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes, and :attr:`down`, as JSON values."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {
            **values,
            "age": round(self.age, 3),
            "servers": dict(self.servers),
            "down": self.down,
        }


def health_of(report: SourceReport, answers: Mapping[str, Exception | None]) -> Health:
    """Return the health of a cluster.

    :param report: report of the topology source.
    :param answers: by server name: None, or the error.
    """
    return Health(
        **vars(report),
        process_id=os.getpid(),
        servers={
            name: None if error is None else f"{type(error).__name__}: {error}"
            for name, error in answers.items()
        },
    )


def of_newest(current: Callable[[], Places], ask: Callable[[Places], T]) -> T:
    """Ask the servers of the current topology.

    If a newer one removes a server meanwhile, its servers are asked instead:
    a server that the cluster does not use any more is neither down nor an
    error of the caller.

    :param current: returns the current shard locations.
    """
    while True:
        places = current()
        try:
            return ask(places)
        except ServerRetiredError:
            if current() is places:
                raise


def deadline(timeout: float) -> float:
    """Return the time by the monotonic clock at which a timeout ends.

    :param timeout: seconds.
    :raises ValueError: if the timeout is not above 0 and at most 3600.
    """
    if not 0 < timeout <= _MAX_TIMEOUT_SECONDS:
        raise ValueError(
            f"timeout must be above 0 and at most {_MAX_TIMEOUT_SECONDS:g} seconds, "
            f"not {timeout!r}"
        )
    return monotonic() + timeout
