"""The journal of fleet operations, and their lock.

The journal is where the topology is: next to a file, or in ZooKeeper.  It has
at most one pending operation.  The process that runs it holds the lock; if it
dies, the operation stays pending until another process takes it over, to
resume or to undo it.  Every write is fenced: it fails with
:exc:`~sqla_shard.exc.FleetLockLostError` if another process has taken over in
the meantime, and so does the publication of a topology.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Protocol

from sqla_shard.topology import Topology
from sqla_shard.topology.publication_notes import (
    current_author,
    LONGEST_NOTE,
    PublicationNote,
)

#: The step whose note has the pause: it ends the pause.
_PAUSED = "open"


@dataclass(frozen=True, kw_only=True)
class Record:
    """One operation in the journal; all values are JSON.

    :ivar id: unique name of the operation, which begins with its time.
    :ivar plan: document of the plan.
    :ivar token: fencing token: number of times that the operation has been
        taken over.
    :ivar holder: host and process that wrote the record.
    :ivar started: seconds since the epoch at which it was started.
    :ivar state: ``"pending"``, ``"finished"`` or ``"undone"``.
    :ivar step: the step that was started last; None if none was.
    :ivar done: names of the steps that are finished, in order.
    :ivar notes: results of steps, by name.
    :ivar problem: message of the last error; None if there is none.
    """

    id: str
    plan: Mapping[str, Any]
    token: int
    holder: str
    started: float
    state: Literal["pending", "finished", "undone"] = "pending"
    step: str | None = None
    done: tuple[str, ...] = ()
    notes: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None

    @property
    def title(self) -> str:
        """Title of the plan."""
        return str(self.plan.get("title"))

    @property
    def pause(self) -> float | None:
        """Seconds for which no write was possible, as measured.

        None if they are unknown, or writes were not stopped.
        """
        note = self.notes.get(_PAUSED)
        return None if note is None else note.get("pause")

    def with_pause(self, seconds: float) -> Record:
        """Return the record of an operation that has stopped the writes."""
        note = {**(self.notes.get(_PAUSED) or {}), "pause": seconds}
        return replace(self, notes={**self.notes, _PAUSED: note})

    def publication_note(self) -> PublicationNote:
        """Return the note about a publication by this process."""
        return PublicationNote(
            author=current_author(), message=f"{self.title} ({self.id})"[:LONGEST_NOTE]
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return {**asdict(self), "done": list(self.done)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Record:
        """Return the record of a document of :meth:`as_dict`."""
        return cls(**{**document, "done": tuple(document["done"])})


@dataclass(frozen=True, kw_only=True)
class Pending:
    """The pending operation.

    :ivar record: its record.
    :ivar running: whether a process holds the lock now.
    """

    record: Record
    running: bool


class Journal(Protocol):
    """The journal of a fleet."""

    @property
    def name(self) -> str:
        """Location of the topology, without credentials."""
        ...

    def pending(self) -> Pending | None:
        """Return the pending operation.

        :raises TopologyUnavailableError: if the journal cannot be read.
        """
        ...

    def history(self, most: int = 20) -> list[Record]:
        """Return finished and undone operations, the latest first."""
        ...

    def begin(self, record: Record) -> JournalHold:
        """Take the lock for a new operation and write its record.

        :raises FleetLockedError: if another operation is pending.
        """
        ...

    def take_over(self) -> JournalHold:
        """Take the lock of the pending operation, with the next token.

        :raises NoOperationError: if no operation is pending.
        :raises FleetLockedError: if the process that runs it is alive.
        """
        ...


class JournalHold(Protocol):
    """The lock of the pending operation, held by this process.

    :ivar record: the record as written last; the runner adds the results of
        steps, which are written with the next step.
    """

    record: Record

    def check(self) -> None:
        """Ask the journal whether this process still holds the lock.

        :raises FleetLockLostError: if it does not.
        """
        ...

    def write(self, record: Record) -> None:
        """Replace the record; one that is not pending goes to the history.

        :raises FleetLockLostError: if another process has taken over;
            nothing was written.
        """
        ...

    def topology(self) -> Topology:
        """Return the topology as it is now, with the session of the lock.

        :raises TopologyError: if it is not valid.
        :raises TopologyUnavailableError: if it cannot be read.
        """
        ...

    def publish(self, topology: Topology, *, expected_epoch: int) -> Topology:
        """Publish a topology, on the condition that the lock is held.

        Repeated with the same topology, it does nothing.

        :returns: the published topology, whose generations may be raised.
        :raises FleetLockLostError: if another process has taken over.
        :raises TopologyConflictError: if another epoch is published.
        """
        ...

    def release(self) -> None:
        """Release the lock; a pending operation stays pending."""
        ...


def holder_name() -> str:
    """Return the host and the process, for messages."""
    return f"{socket.gethostname()} pid {os.getpid()}"


def paused(seconds: float | None) -> str:
    """Return the text of a message about a pause; empty if unknown."""
    if seconds is None:
        return ""
    return f", writes paused for {1000 * seconds:.0f} ms"
