"""The operation that a fleet runs, its process, and the next command."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, UTC
from typing import Any, TYPE_CHECKING

from sqla_shard.fleet.clients import Clients
from sqla_shard.fleet.journal import Pending
from sqla_shard.fleet.operation import UNDO

if TYPE_CHECKING:
    from sqla_shard.fleet.watch_votes import Watched

_RESUME = "sqla-shard fleet resume"
_UNDO = "sqla-shard fleet undo"


@dataclass(frozen=True, kw_only=True)
class FleetStatus:
    """The pending operation of a fleet, if there is one.

    :ivar fleet: location of the topology.
    :ivar epoch: epoch of the topology.
    :ivar pending: the pending operation; None if there is none.
    :ivar is_published: whether the pending operation has published its
        topology.
    :ivar watched: the watchers, and what they see; None if the topology is a
        file.
    :ivar clients: the processes that follow the topology, as far as they have
        registered; None if the topology is a file.
    """

    fleet: str
    epoch: int
    pending: Pending | None
    is_published: bool = False
    watched: Watched | None = None
    clients: Clients | None = None

    @property
    def is_interrupted(self) -> bool:
        """Whether an operation is pending that no process runs."""
        return self.pending is not None and not self.pending.running

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands to run now, of which one is enough."""
        if self.pending is None or self.pending.running:
            return ()
        if self.is_published:
            return (_RESUME,)
        if self.pending.record.step == UNDO:
            return (_UNDO,)
        return (_RESUME, _UNDO)

    def as_dict(self) -> dict[str, Any]:
        """Return the status in JSON values."""
        operation = None
        if self.pending is not None:
            record = self.pending.record
            operation = {
                "id": record.id,
                "title": record.title,
                "running": self.pending.running,
                "holder": record.holder,
                "started": _time(record.started),
                "token": record.token,
                "step": record.step,
                "done": list(record.done),
                "problem": record.problem,
                "published": self.is_published,
            }
        return {
            "fleet": self.fleet,
            "epoch": self.epoch,
            "operation": operation,
            "commands": list(self.commands),
            "watchers": None if self.watched is None else self.watched.as_dict(),
            "clients": None if self.clients is None else self.clients.as_dict(),
        }

    def __str__(self) -> str:
        parts = (self._operation(), self.watched, self.clients)
        return "\n".join(str(part) for part in parts if part is not None)

    def _operation(self) -> str:
        first = f"{self.fleet}: epoch {self.epoch}"
        if self.pending is None:
            return f"{first}, no operation is pending"
        record = self.pending.record
        lines = [
            first,
            f"operation: {record.title} ({record.id})",
            f"started: {_time(record.started)}",
            f"steps done: {', '.join(record.done) or '-'}",
            f"step: {record.step or '-'}",
            f"published: {'yes' if self.is_published else 'no'}",
        ]
        if record.problem is not None:
            lines.append(f"problem: {record.problem}")
        if self.pending.running:
            lines.append(f"running: {record.holder} holds the lock; wait")
        else:
            lines.append(
                f"interrupted: {record.holder} does not hold the lock any "
                "more; until it ends no other operation starts, and no server "
                f"is failed over; run: {' or: '.join(self.commands)}"
            )
        return "\n".join(lines)


def _time(seconds: float) -> str:
    found = datetime.fromtimestamp(seconds, UTC)
    return found.isoformat(" ", "seconds")
