"""The journal of fleet operations, and their lock.

The journal is where the topology is: next to a file, or in ZooKeeper.  It has
at most one pending operation.  The process that runs it holds the lock; if it
dies, the operation stays pending until another process takes it over, to
resume or to undo it.  Every write is fenced: it fails with
:exc:`~sqla_shard.exc.FleetLockLostError` if another process has taken over in
the meantime, and so does the publication of a topology.

Next to a topology in a file, ``topology.json``, is the directory
``topology.json.fleet`` with ``lock``, ``operation.json``, ``history/`` and
``publications.json``.  The lock is that of the operating system (``flock``):
it ends with the process that holds it, and a process that sleeps still has
it.  It excludes processes on one machine only, and on file systems with such
locks.

A topology is written into a temporary file, which replaces the old one, so
that readers see one or the other.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import stat
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, UTC
from pathlib import Path
from typing import Any, IO, Literal, Protocol

from sqla_shard.exc import (
    FleetLockedError,
    FleetLockLostError,
    NoOperationError,
    TopologyConflictError,
    TopologyUnavailableError,
)
from sqla_shard.topology import DEFAULT_PLACEHOLDERS, FileSource, to_json, Topology
from sqla_shard.topology.changes import check_next
from sqla_shard.topology.generations import with_raised_generations
from sqla_shard.topology.history import (
    current_author,
    HistoryEntry,
    LONGEST_NOTE,
    PublicationNote,
)
from sqla_shard.util.files import replace_file
from sqla_shard.util.json_values import JsonObject, parsed_json

#: The step whose note has the pause: it ends the pause.
_PAUSED = "open"


@dataclass(frozen=True, kw_only=True)
class Record(JsonObject):
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


@dataclass(frozen=True, kw_only=True)
class PendingRecord:
    """The pending operation.

    :ivar record: its record.
    :ivar running: whether a process holds the lock now.
    """

    record: Record
    running: bool


class FleetJournal(Protocol):
    """The journal of a fleet."""

    @property
    def name(self) -> str:
        """Location of the topology, without credentials."""
        ...

    def pending(self) -> PendingRecord | None:
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


#: Seconds to wait for the lock: a process that only looks whether it is held
#: has it for a moment.
_PROBE_SECONDS = 0.5
#: Publications to keep.
_MAX_PUBLICATIONS = 50


class FileJournal:
    """The journal next to a topology file.

    :param path: path of the topology, a JSON file.
    :param placeholders: allowed names in ``${NAME}``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        placeholders: Collection[str] = DEFAULT_PLACEHOLDERS,
    ) -> None:
        self.path: Path = Path(path)
        self._source = FileSource(
            # As given: messages mask the password of a URL, which a Path is
            # not any more.
            path,
            placeholders=placeholders,
            environ=dict.fromkeys(placeholders, ""),
        )
        self._folder = self.path.with_name(f"{self.path.name}.fleet")
        self._operation = self._folder / "operation.json"
        self._published = self._folder / "publications.json"

    @property
    def name(self) -> str:
        """Path of the topology."""
        return str(self.path)

    def pending(self) -> PendingRecord | None:
        """Return the pending operation."""
        record = self._read(self._operation)
        if record is None:
            return None
        lock = self._locked(patience=0.0)
        if lock is None:
            return PendingRecord(record=record, running=True)
        try:
            # It may have ended before the lock was acquired.
            record = self._read(self._operation)
        finally:
            lock.close()
        return None if record is None else PendingRecord(record=record, running=False)

    def history(self, most: int = 20) -> list[Record]:
        """Return finished and undone operations, the latest first."""
        paths = sorted((self._folder / "history").glob("*.json"), reverse=True)
        found = [self._read(path) for path in paths[:most]]
        return [record for record in found if record is not None]

    def begin(self, record: Record) -> JournalHold:
        """Take the lock for a new operation and write its record."""
        lock = self._locked()
        try:
            pending = self._read(self._operation)
            if lock is None or pending is not None:
                raise self._is_locked(pending, running=lock is None)
            hold = _FileHold(self, record, lock)
            hold.write(record)
        except BaseException:
            if lock is not None:
                lock.close()
            raise
        return hold

    def take_over(self) -> JournalHold:
        """Take the lock of the pending operation, with the next token."""
        if self._read(self._operation) is None:
            raise NoOperationError(fleet=self.name)
        lock = self._locked()
        try:
            pending = self._read(self._operation)
            if lock is None:
                raise self._is_locked(pending, running=True)
            if pending is None:
                raise NoOperationError(fleet=self.name)
            hold = _FileHold(self, pending, lock)
            hold.write(replace(pending, token=pending.token + 1))
        except BaseException:
            if lock is not None:
                lock.close()
            raise
        return hold

    def save(self, record: Record) -> None:
        """Write a record; called with the lock."""
        data = json.dumps(record.as_dict(), indent=1).encode()
        if record.state == "pending":
            replace_file(self._operation, data, 0o600)
            return
        folder = self._folder / "history"
        folder.mkdir(exist_ok=True)
        replace_file(folder / f"{record.id}.json", data, 0o600)
        with suppress(FileNotFoundError):
            self._operation.unlink()

    def topology(self) -> Topology:
        """Return the topology as it is now."""
        return self._source.load()

    def publications(self) -> list[HistoryEntry]:
        """Return the topologies that operations published, newest first.

        Changes of the file by other means are not known.

        :raises TopologyError: if the topology cannot be read.
        :raises TopologyUnavailableError: if they cannot be read.
        """
        epoch = self.topology().epoch
        return [
            HistoryEntry(
                **{
                    **document,
                    "published": datetime.fromisoformat(document["published"]),
                }
            )
            for document in reversed(self._publications())
            # A process that was killed before it replaced the topology has
            # left a higher one.
            if document["epoch"] <= epoch
        ]

    def publish(
        self, topology: Topology, *, expected_epoch: int, note: PublicationNote
    ) -> Topology:
        """Replace the topology; called with the lock."""
        old = self.topology()
        new = with_raised_generations(old, topology, dict)
        if old == new:
            return old
        if old.epoch != expected_epoch:
            raise TopologyConflictError(
                source=self.name, expected=expected_epoch, found=old.epoch
            )
        check_next(old, new, source=self.name)
        mode = stat.S_IMODE(self.path.stat().st_mode)
        data = to_json(new)
        self._add_publication(new.epoch, len(data), note)
        replace_file(self.path, data, mode)
        return new

    def _add_publication(self, epoch: int, size: int, note: PublicationNote) -> None:
        earlier = [one for one in self._publications() if one["epoch"] != epoch]
        entry = {
            "epoch": epoch,
            "published": datetime.now(UTC).isoformat(),
            "size": size,
            **asdict(note),
        }
        data = json.dumps([*earlier[1 - _MAX_PUBLICATIONS :], entry], indent=1).encode()
        replace_file(self._published, data, 0o600)

    def _publications(self) -> list[dict[str, Any]]:
        """Return the documents of the publications, the oldest first."""
        try:
            found: list[dict[str, Any]] = parsed_json(self._published.read_bytes())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unavailable(error) from error
        except ValueError as error:
            raise self._damaged(self._published, error) from error
        return found

    def _locked(self, *, patience: float = _PROBE_SECONDS) -> IO[str] | None:
        """Return the locked file; None if another process has the lock.

        :param patience: seconds to wait for it.
        """
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            file = (self._folder / "lock").open("a")
        except OSError as error:
            raise self._unavailable(error) from error
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    file.close()
                    return None
                time.sleep(0.02)
            except OSError as error:
                file.close()
                raise self._unavailable(error) from error
            else:
                return file

    def _read(self, path: Path) -> Record | None:
        try:
            return Record.from_dict(parsed_json(path.read_bytes()))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unavailable(error) from error
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(path, error) from error

    @staticmethod
    def _damaged(path: Path, error: Exception) -> TopologyUnavailableError:
        return TopologyUnavailableError(
            source=str(path),
            reason=f"the journal is damaged ({error}); look at it, and "
            "remove it if no operation is pending",
        )

    def _is_locked(self, record: Record | None, *, running: bool) -> FleetLockedError:
        return FleetLockedError(
            fleet=self.name,
            operation="an operation" if record is None else record.title,
            holder="another process" if record is None else record.holder,
            running=running,
        )

    def _unavailable(self, error: OSError) -> TopologyUnavailableError:
        return TopologyUnavailableError(
            source=self.name,
            reason=f"the journal {self._folder} cannot be used: "
            f"{error.strerror or error}",
        )


class _FileHold:
    """The lock of the operation, which ends with this process."""

    def __init__(self, journal: FileJournal, record: Record, lock: IO[str]) -> None:
        self.record = record
        self._journal = journal
        self._lock = lock

    def check(self) -> None:
        """Check that the lock file is still the one that is locked."""
        lost = None
        if self._lock.closed:
            lost = "it was released"
        else:
            try:
                now = os.stat(self._lock.name)
            except FileNotFoundError:
                lost = "its file was removed"
            else:
                mine = os.fstat(self._lock.fileno())
                if (now.st_dev, now.st_ino) != (mine.st_dev, mine.st_ino):
                    lost = "its file was replaced"
        if lost is not None:
            raise FleetLockLostError(
                fleet=self._journal.name, operation=self.record.title, reason=lost
            )

    def write(self, record: Record) -> None:
        """Replace the record."""
        self.check()
        self._journal.save(record)
        self.record = record

    def topology(self) -> Topology:
        """Return the topology as it is now."""
        return self._journal.topology()

    def publish(self, topology: Topology, *, expected_epoch: int) -> Topology:
        """Replace the topology file."""
        self.check()
        return self._journal.publish(
            topology, expected_epoch=expected_epoch, note=self.record.publication_note()
        )

    def release(self) -> None:
        """Release the lock."""
        self._lock.close()
