"""The follower of a topology source, and the interface of sources."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Literal, Protocol

from sqla_shard.exc import Problem, ShardError, TopologyError
from sqla_shard.topology import diff, FileSource, to_json, Topology
from sqla_shard.topology.changes import check_newer
from sqla_shard.util.files import replace_file
from sqla_shard.util.logs import careful_log
from sqla_shard.util.pace import jittered
from sqla_shard.util.processes import in_children

#: Seconds to wait for the lock, and between two attempts.
_LONGEST_LOCK = 5.0

_SLICE = 0.01

_FOR_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def default_path(name: str) -> Path:
    """Return the default path of the snapshot of a source.

    :param name: name of the source.
    :returns: a path in ``$XDG_STATE_HOME``, or ``~/.local/state``.
    :raises TopologyError: if there is no home directory.
    """
    home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    try:
        folder = Path(home).expanduser()
    except RuntimeError as error:
        # A user in a container may have no name.
        message = (
            "this user has no home directory; set XDG_STATE_HOME, "
            "snapshot=PATH, or snapshot=False for no snapshot"
        )
        raise TopologyError([Problem("snapshot", message)], source=name) from error
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-")[:60]
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return folder / "sqla_shard" / f"{readable}-{digest}.json"


class Snapshot:
    """A file with the last good topology.

    It is an ordinary topology file, with unexpanded placeholders.  It is replaced
    atomically, so readers never see an incomplete file.

    Several processes may share it.

    :param path: path that ends in ``.json``; missing directories are created.
    :param mode: permissions of the file; by default only this user has access.
    :param placeholders: see :meth:`Topology.from_mapping`.
    :param environ: see :meth:`Topology.from_mapping`.
    :raises TopologyError: if the path has another suffix.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        mode: int = 0o600,
        placeholders: Collection[str],
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.path: Path = Path(path)
        self._mode = mode
        self._file = FileSource(self.path, placeholders=placeholders, environ=environ)
        if self.path.suffix.lower() != ".json":
            raise self._refusal("its name must end in .json")

    def load(self) -> Topology | None:
        """Return the topology; None if there is no file.

        :raises TopologyError: if the file cannot be read, is invalid, or other
            users can write it.
        """
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._refusal(f"cannot be read: {error.strerror or error}") from error
        if status.st_uid not in (0, os.geteuid()) or (status.st_mode & _FOR_OTHERS):
            # Another user could redirect this process and its passwords to
            # another server.
            raise self._refusal(
                "other users can write it; change its permissions (chmod "
                "600), or remove it"
            )
        return self._file.load()

    def age(self) -> float:
        """Return the seconds since the topology was written or confirmed."""
        try:
            return max(0.0, time.time() - os.stat(self.path).st_mtime)
        except OSError:
            return 0.0

    def save(self, topology: Topology) -> None:
        """Write a topology, unless the file has a newer one.

        :raises OSError: if the file cannot be written; it is not changed.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(self.path.parent):
            with contextlib.suppress(TopologyError):
                known = self.load()
                if known is not None and known.version > topology.version:
                    # Another process has written the file.
                    return
                if known == topology:
                    self.confirm()
                    return
            replace_file(self.path, to_json(topology), self._mode)

    def confirm(self) -> None:
        """Record that the topology is still the newest; resets its age."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(self.path)

    def _refusal(self, message: str) -> TopologyError:
        return TopologyError([Problem("snapshot", message)], source=str(self.path))


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Lock the directory while the file is read and replaced.

    Otherwise a concurrent process could overwrite a newer topology with an
    older one.
    """
    handle = os.open(directory, os.O_RDONLY)
    try:
        _lock(handle)
        yield
    finally:
        # Closing is not enough: a child process that was forked meanwhile
        # would hold the lock until it exits.
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def _lock(handle: int) -> None:
    """Wait for a lock, for a limited time.

    :raises OSError: if the lock is not free in time.
    """
    deadline = time.monotonic() + _LONGEST_LOCK
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise OSError(
                    error.errno,
                    "another process has locked its directory for "
                    f"{_LONGEST_LOCK:g} seconds",
                ) from error
            threading.Event().wait(_SLICE)
        except OSError:
            # Network file systems cannot lock directories; a snapshot that may
            # be older is better than none.
            return
        else:
            return


class FollowedSource(Protocol):
    """A source that can be followed.

    All methods are called from one thread; ``notify`` of :meth:`start` may be
    called from any.  The source is also read at intervals, since a
    notification may be missed.  A source may have one more method,
    ``announce(topology)``: it is called after each read with the topology
    that the process uses, and must not wait.

    :ivar interval: seconds between two polls; None if the source notifies of
        changes.
    """

    interval: float | None

    @property
    def name(self) -> str:
        """Name of the source for logs and errors, without passwords."""
        ...

    def start(self, notify: Callable[[], None]) -> None:
        """Start watching for changes.

        :param notify: called when the topology may have changed; returns
            immediately.
        """
        ...

    def load(self) -> Topology:
        """Return the current topology; this may take some seconds.

        :raises TopologyUnavailableError: if the source cannot be read, or
            has no topology.
        :raises TopologyError: if its topology is not valid.
        """
        ...

    def look(self) -> bool:
        """Return whether the topology may have changed; must be cheap."""
        ...

    def stop(self) -> None:
        """Stop watching; :meth:`start` can be called again."""
        ...

    def forked(self) -> None:
        """Drop the connections of the parent, in a child process.

        The method must not send anything over these connections.
        """
        ...


_log = careful_log(__name__)

State = Literal["fixed", "current", "stale", "closed"]

#: Minimum seconds between two reads.
_GAP = 0.05

#: Seconds until a failed read is repeated: first and longest.
_FIRST_PAUSE = 1.0

_LONGEST_PAUSE = 30.0

#: Seconds after which a callback that has not returned is reported.
_PATIENCE = 10.0


@dataclass(frozen=True, kw_only=True)
class SourceReport:
    """The state of a topology source.

    :ivar source: name of the source, without passwords.
    :ivar state: see :class:`Follower`; ``"fixed"`` if no source is
        followed.
    :ivar epoch: epoch of the topology in use.
    :ivar age: seconds since the source last confirmed the topology in use.
    :ivar last_error: the last error; None once the source confirms again.
    :ivar from_snapshot: whether the topology in use was read from the
        snapshot, and nothing newer was found since.
    """

    source: str
    state: State
    epoch: int
    age: float
    last_error: str | None = None
    from_snapshot: bool = False


class Follower:
    """Follows a source and provides its newest valid topology.

    States::

        begin() ──────────────▶ current ◀──────────┐
           │                       │                │
           │ source failed,        │ source failed, or has a
           │ snapshot used         │ topology that is refused
           │                       ▼                │
           └──────────────────▶  stale  ────────────┘
                                   │    source has the newest topology
          close(), from any state: ▼
                                closed

    ``current``: the last read of the source confirmed the topology in use.
    ``stale``: it did not; the topology remains in use indefinitely.  A
    topology is accepted if it is valid, has a higher epoch or more resets,
    and makes none of the changes in :func:`~sqla_shard.topology.refusals`.
    Other topologies are logged and reported by :meth:`report`, and ignored.
    A child process is ``stale`` until it has read the source; it uses the
    topology of its parent, or that of the snapshot if it is newer.  The epoch
    never decreases in a process, nor on a machine with a snapshot.

    Callbacks are called once for each new topology, in the thread of the
    follower, in the order of epochs; exceptions are logged.  While a callback
    runs, the source is not read: after ten seconds the state is ``stale``,
    with this as ``last_error``.

    :meth:`start` starts the thread, and again in a child process.

    :param source: the source; closed with this object.
    :param snapshot: file with the last good topology on this machine.
    :param reread: seconds after which the source is read again without a
        notification; randomized by 20 percent, so that many processes do not
        read it at the same time.
    """

    #: Whether the source may have newer topologies.
    is_live = True

    def __init__(
        self,
        source: FollowedSource,
        *,
        snapshot: Snapshot | None = None,
        reread: float = 60.0,
    ) -> None:
        self._source = source
        self._snapshot = snapshot
        self._reread = reread
        #: Raises an error for a topology that this process cannot use.
        self.admit: Callable[[Topology], None] = lambda topology: None
        #: Shows others which topology this process uses.
        self.announce: Callable[[Topology], object] = getattr(source, "announce", bool)
        #: The topology in the snapshot, if this process has written it.
        self.saved: Topology | None = None
        self._callbacks: list[Callable[[Topology, Topology], None]] = []
        self._topology: Topology | None = None
        #: The newest topology that all callbacks have received.
        self._announced: Topology | None = None
        self._closed = False
        self._state: State = "stale"
        self._confirmed = monotonic()
        self._last_error: str | None = None
        self._logged_error: str | None = None
        self._snapshot_error: str | None = None
        self._from_snapshot = False
        self._is_forked = False
        self._prepare()
        in_children(self)

    def _prepare(self) -> None:
        self._wake = threading.Event()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        #: Epoch and time of the running callback.
        self._call: tuple[int, float] | None = None
        self._logged_call: tuple[int, float] | None = None
        #: Whether the source was read in this process, even without success.
        self.has_read: bool = False

    def __repr__(self) -> str:
        return f"<Follower of {self._source.name}: {self._state}>"

    @property
    def topology(self) -> Topology:
        """The newest valid topology, after :meth:`begin`."""
        if self._topology is None:
            raise AssertionError("begin() was not called")
        return self._topology

    @property
    def epoch(self) -> int:
        """The newest epoch that all callbacks have received."""
        return self._announced.epoch if self._announced is not None else 0

    def begin(self) -> Topology:
        """Return the first topology, of the source or the snapshot.

        :raises TopologyUnavailableError: if neither has a topology.
        :raises TopologyError: if the topology of the source is not valid, and
            there is no snapshot.
        """
        topology: Topology | None = None
        failed: Exception | None = None
        try:
            topology = self._source.load()
        except Exception as error:  # use the snapshot after any error
            failed = error
        saved = self._saved()
        if saved is None and failed is not None:
            raise failed
        if saved is not None:
            self._topology, self._from_snapshot = saved, True
            self._announced = saved
            if self._snapshot is not None:
                self._confirmed = monotonic() - self._snapshot.age()
        if topology is not None:
            self._consider(topology)
        elif failed is not None:
            self._record_error(failed)
        self.has_read = True
        if self._from_snapshot:
            _log.warning(
                "%s: using the topology of epoch %d that was confirmed %.0f "
                "seconds ago",
                self._source.name,
                self.epoch,
                monotonic() - self._confirmed,
                extra={"action": "begin with a snapshot"},
            )
        return self.topology

    def add_callback(self, callback: Callable[[Topology, Topology], None]) -> None:
        """Call ``callback(old, new)`` for each new topology."""
        self._callbacks.append(callback)

    @property
    def is_running(self) -> bool:
        """Whether the thread was started in this process."""
        return self._thread is not None

    def start(self) -> None:
        """Start following in a thread; does not wait."""
        with self._changed:
            if self._thread is not None or self._closed:
                return
            thread = threading.Thread(
                target=self._run, name="sqla-shard-topology", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:
                # Too many threads, or the interpreter is shutting down: the
                # request must not fail.  The next request tries again.
                self._record_error(error)
            else:
                self._thread = thread

    def refresh(self) -> None:
        """Read the source soon, without waiting for it."""
        self._wake.set()

    def wait(self, epoch: int, timeout: float) -> bool:
        """Wait for a topology with another epoch.

        :param epoch: the known epoch.
        :param timeout: seconds.
        :returns: whether there is a newer one.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.epoch != epoch or self._closed, timeout)
            return self.epoch != epoch

    def wait_read(self, timeout: float) -> None:
        """Wait until the source was read in this process, after a fork.

        :param timeout: seconds.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self.has_read or self._closed or self._thread is None, timeout
            )

    def report(self) -> SourceReport:
        """Return the state of the source."""
        state = self._state
        last_error = self._last_error or self._snapshot_error
        blocked = self._blocked()
        if blocked is not None:
            last_error = blocked
            if state == "current":
                state = "stale"
        return SourceReport(
            source=self._source.name,
            state=state,
            epoch=self.topology.epoch,
            age=max(0.0, monotonic() - self._confirmed),
            last_error=last_error,
            from_snapshot=self._from_snapshot,
        )

    def _blocked(self) -> str | None:
        """Return a message if a callback blocks the thread."""
        call = self._call
        if call is None or monotonic() - call[1] < _PATIENCE:
            return None
        epoch, since = call
        text = (
            f"a listener (topology_changed) was called for epoch {epoch} "
            f"{monotonic() - since:.0f} seconds ago and has not returned; "
            "until it does, the source is not read"
        )
        if call != self._logged_call:
            self._logged_call = call
            _log.warning("%s", text, extra={"action": "tell of topology"})
        return text

    def close(self, timeout: float = 5.0) -> bool:
        """Stop following; the topology can still be used.

        :param timeout: seconds to wait for the thread.
        :returns: whether it has stopped.
        """
        thread = self.close_soon()
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout)
        return not thread.is_alive()

    def close_soon(self) -> threading.Thread | None:
        """Stop following without waiting; return the thread."""
        with self._changed:
            first = not self._closed
            self._closed, self._state = True, "closed"
            thread = self._thread
            self._changed.notify_all()
        self._wake.set()
        if first and thread is None:
            # begin() may have opened it.
            self._source.stop()
        return thread

    def _run(self) -> None:
        if self._is_forked:
            self._guarded(self._catch_up)
        self._guarded(lambda: self._source.start(self.refresh))
        pause, due = _FIRST_PAUSE, monotonic()
        while not self._closed:
            if self._wake.is_set() or monotonic() >= due or self._has_changed():
                self._wake.clear()
                self._guarded(self._read)
                with self._changed:
                    self.has_read = True
                    self._changed.notify_all()
                self._announce()
                if self._state == "current":
                    pause, wait = _FIRST_PAUSE, self._reread
                else:
                    wait = min(pause, self._reread)
                    pause = min(pause * 2, _LONGEST_PAUSE)
                due = monotonic() + jittered(wait, 0.2)
                self._throttle()
            self._sleep(max(due - monotonic(), 0.0))
        self._guarded(self._source.stop)

    def _sleep(self, seconds: float) -> None:
        interval = self._source.interval
        # Checked after the event was cleared, since close() sets it.
        if not self._closed:
            self._wake.wait(seconds if interval is None else min(seconds, interval))

    def _throttle(self) -> None:
        """Pause, so that many requests cause a single read."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed, _GAP)

    def _guarded(self, step: Callable[[], object]) -> None:
        try:
            step()
        except BaseException as error:  # the thread may have ended
            # If the thread ended, the process would use an old topology
            # forever.
            self._record_error(error)

    def _has_changed(self) -> bool:
        """Poll a source that does not notify of changes."""
        if self._source.interval is None:
            return False
        try:
            return self._source.look()
        except BaseException as error:  # errors are handled as in _guarded()
            self._record_error(error)
            return False

    def _announce(self) -> None:
        if self._announced is None or self._closed:
            return
        try:
            self.announce(self._announced)
        except Exception:  # following must go on
            _log.exception(
                "the topology of epoch %d is used, and could not be announced",
                self._announced.epoch,
                extra={"action": "announce topology"},
            )

    def _read(self) -> None:
        self._consider(self._source.load())

    def _consider(self, topology: Topology) -> None:
        """Accept a topology of the source, or record the error."""
        old = self._topology
        if old is None:
            self._accept(topology)
        elif topology == old:
            self._confirm()
        else:
            try:
                check_newer(old, topology, source=self._source.name)
                self.admit(topology)
            except ShardError as error:
                self._record_error(error)
            else:
                self._accept(topology)

    def _confirm(self) -> None:
        if self._state == "stale" and self._logged_error is not None:
            _log.info(
                "%s: the topology of epoch %d is confirmed again",
                self._source.name,
                self.epoch,
                extra={"action": "confirm topology", "epoch": self.epoch},
            )
        self._mark_current()
        if self._snapshot is not None:
            self._save(self.topology)

    def _mark_current(self) -> None:
        self._confirmed = monotonic()
        self._logged_error = self._last_error = None
        self._from_snapshot = False
        if not self._closed:
            self._state = "current"

    def _accept(self, new: Topology) -> None:
        self._mark_current()
        self._use(new)
        self._save(new)

    def _use(self, new: Topology) -> None:
        old, self._topology = self._topology, new
        if old is not None:
            self._notify(old, new)
        with self._changed:
            # After the callbacks: waiting transactions are repeated with this
            # topology.
            self._announced = new
            self._changed.notify_all()

    def _notify(self, old: Topology, new: Topology) -> None:
        _log.info(
            "%s: %s",
            self._source.name,
            # Write it on one line, for searches in the log.
            "; ".join(str(diff(old, new)).splitlines()),
            extra={
                "action": "change topology",
                "epoch": new.epoch,
                "old_epoch": old.epoch,
            },
        )
        for callback in list(self._callbacks):
            self._call = new.epoch, monotonic()
            try:
                callback(old, new)
            except BaseException:  # the other callbacks must run
                _log.exception(
                    "a callback has failed for the topology of epoch %d",
                    new.epoch,
                    extra={"action": "tell of topology", "epoch": new.epoch},
                )
            finally:
                self._call = None

    def _record_error(self, error: BaseException) -> None:
        """Record an error; the topology remains in use."""
        text = str(error) or type(error).__name__
        self._last_error = text
        if not self._closed:
            self._state = "stale"
        # Log each error once: a source may be unavailable for days.
        if text != self._logged_error:
            self._logged_error = text
            _log.warning(
                "the topology of epoch %s stays in use: %s",
                self._topology.epoch if self._topology else "none",
                " ".join(text.split()),
                extra={"action": "keep topology"},
            )

    def _catch_up(self) -> None:
        """Use the snapshot if it is newer than the topology of the parent."""
        # A parent that serves no requests does not follow the source: its
        # topology may be days old when it forks a new worker.
        saved, old = self._saved(), self.topology
        if self._snapshot is None or saved is None or saved.version <= old.version:
            return
        check_newer(old, saved, source=str(self._snapshot.path))
        self._confirmed = monotonic() - self._snapshot.age()
        self._from_snapshot = True
        self._use(saved)

    def _saved(self) -> Topology | None:
        if self._snapshot is None:
            return None
        try:
            return self._snapshot.load()
        except TopologyError as error:
            _log.warning(
                "the snapshot is not used: %s", error, extra={"action": "read snapshot"}
            )
            return None

    def _save(self, topology: Topology) -> None:
        if self._snapshot is None:
            return
        try:
            self._snapshot.save(topology)
        except OSError as error:
            text = (
                f"the snapshot {self._snapshot.path} cannot be written: "
                f"{error.strerror or error}"
            )
            if text != self._snapshot_error:
                self._snapshot_error = text
                _log.warning("%s", text, extra={"action": "write snapshot"})
        else:
            self._snapshot_error = None
            self.saved = topology

    def after_fork(self) -> None:
        """Discard the thread and the connections of the parent."""
        self._prepare()
        # The parent may have been calling callbacks; the remaining ones are
        # not called in this process.
        self._topology = self._announced
        self._is_forked = True
        if not self._closed:
            # The source was not read in this process.
            self._state, self._last_error = "stale", None
        self._source.forked()
