"""What is accepted of a source, and from when on it is used."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Literal

from sqla_shard.exc import ShardError
from sqla_shard.exc import StaleTopologyError
from sqla_shard.exc import TopologyError
from sqla_shard.exc import TopologyRefusedError
from sqla_shard.following.contract import FollowedSource
from sqla_shard.following.snapshots import Snapshot
from sqla_shard.forking import in_children
from sqla_shard.jitter import jittered
from sqla_shard.topology import diff
from sqla_shard.topology import refusals
from sqla_shard.topology import Topology
from sqla_shard.topology.admission import leaps

__all__ = ["Follower", "SourceReport", "State", "check_newer"]

_log = logging.getLogger(__name__)

State = Literal["fixed", "current", "stale", "closed"]

#: Seconds between two questions at least, however many ask for one.
_GAP = 0.05
#: Seconds until a source that has failed is asked again: first, at most.
_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 30.0
#: Seconds that a callback may take before it is said that it does not return.
_PATIENCE = 10.0


@dataclass(frozen=True, kw_only=True)
class SourceReport:
    """How things stand with the source of a topology.

    :ivar source: what it is; no password is part of it.
    :ivar state: see :class:`Follower`; ``"fixed"`` where nothing is
        followed.
    :ivar epoch: of the topology in use.
    :ivar age: seconds since the source has last said that it is the newest.
    :ivar last_error: what is the matter; None once it is over.
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
    """Keeps the newest good topology of a source.

    States::

        begin() ──────────────▶ current ◀──────────┐
           │                       │                │
           │ source has none,      │ cannot be asked, or shows
           │ snapshot has          │ what may not be used
           │                       ▼                │
           └──────────────────▶  stale  ────────────┘
                                   │    says the newest, or what is in use
        close(), from every state: ▼
                                closed

    ``current``: the source has confirmed what is in use when it was asked
    last, and is watched.  ``stale``: it was not; what is in use stays in
    use, for as long as that takes.  A topology is accepted when it can be
    read, is valid, has a higher epoch, or more resets, and loses nothing that
    the one in use has (:func:`~sqla_shard.topology.refusals`).  Everything
    else leaves the topology as it is, and is told in the log and by
    :meth:`report`.  A child
    process begins ``stale``, with the topology of its parent, or the
    snapshot where that is newer, until its source has answered.  An
    epoch never goes back in a process, nor on a machine with a snapshot.

    Whoever is told of a new topology is told once for each, in a thread of
    this class, in the order of epochs; what a callback raises is logged.
    While one does not return nothing newer is looked for: after ten seconds
    the state is ``stale``, and ``last_error`` says so.

    The thread begins with :meth:`start`, in a child process again.

    :param source: the source; it belongs to this object.
    :param snapshot: keeps the last good topology on this machine.
    :param reread: seconds after which the source is asked again even if it
        has told of nothing; up to a fifth more or less, so that many
        processes do not ask at the same time.
    """

    #: A topology can change.
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
        #: Refuses a newer topology that cannot be used here, by an error.
        self.admit: Callable[[Topology], None] = _nothing_to_say
        self._callbacks: list[Callable[[Topology, Topology], None]] = []
        self._topology: Topology | None = None
        #: The one that all callbacks were told of.
        self._shared: Topology | None = None
        self._closed = False
        self._state: State = "stale"
        self._confirmed = monotonic()
        self._last_error: str | None = None
        self._told: str | None = None
        self._told_of_snapshot: str | None = None
        self._from_snapshot = False
        self._is_forked = False
        self._prepare()
        in_children(self)

    def _prepare(self) -> None:
        self._wake = threading.Event()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        #: The epoch with which a callback was called, and when.
        self._call: tuple[int, float] | None = None
        self._logged_call: tuple[int, float] | None = None
        #: Whether the source was asked in this process, with any outcome.
        self.has_asked = False

    def __repr__(self) -> str:
        return f"<Follower of {self._source.name}: {self._state}>"

    # -- what others ask

    @property
    def topology(self) -> Topology:
        """The newest good one; :meth:`begin` comes first."""
        if self._topology is None:
            raise AssertionError("begin() was not called")
        return self._topology

    @property
    def epoch(self) -> int:
        """The epoch of the newest topology that all have been told of."""
        return self._shared.epoch if self._shared is not None else 0

    def begin(self) -> Topology:
        """Return the first topology: of the source, or of the snapshot.

        :raises TopologyUnavailableError: when there is neither.
        :raises TopologyError: when that of the source cannot be used, and
            there is no snapshot.
        """
        found: Topology | None = None
        failed: Exception | None = None
        try:
            found = self._source.load()
        except Exception as error:  # whatever it is, the snapshot serves
            failed = error
        saved = self._saved()
        if saved is None and failed is not None:
            raise failed
        if saved is not None:
            self._topology, self._from_snapshot = saved, True
            self._shared = saved
            if self._snapshot is not None:
                self._confirmed = monotonic() - self._snapshot.age()
        if found is not None:
            self._judge(found)
        elif failed is not None:
            self._failed(failed)
        self.has_asked = True
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

    def add_callback(
        self, callback: Callable[[Topology, Topology], None]
    ) -> None:
        """Have ``callback(old, new)`` called for each new topology."""
        self._callbacks.append(callback)

    @property
    def is_running(self) -> bool:
        """Whether this process follows; not after a fork."""
        return self._thread is not None

    def start(self) -> None:
        """Follow from now on, in a thread; does not wait."""
        with self._changed:
            if self._thread is not None or self._closed:
                return
            thread = threading.Thread(
                target=self._run, name="sqla-shard-topology", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:
                # There are as many as may be, or the process is ending: no
                # reason for a request to fail.  The next one tries again.
                self._failed(error)
            else:
                self._thread = thread

    def refresh(self) -> None:
        """Have the source asked now; does not wait for the answer."""
        self._wake.set()

    def wait(self, epoch: int, timeout: float) -> bool:
        """Wait for another topology than one.

        :param epoch: of that one.
        :param timeout: seconds.
        :returns: whether there is one; it is newer.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self.epoch != epoch or self._closed, timeout
            )
            return self.epoch != epoch

    def wait_asked(self, timeout: float) -> None:
        """Wait until the source was asked in this process.

        That is so from the beginning, but not after a fork.

        :param timeout: seconds.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self.has_asked or self._closed or self._thread is None,
                timeout,
            )

    def report(self) -> SourceReport:
        """Return how things stand."""
        state = self._state
        last_error = self._last_error or self._told_of_snapshot
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
        """Return what keeps the thread from asking the source, if anything."""
        call = self._call
        if call is None or monotonic() - call[1] < _PATIENCE:
            return None
        epoch, since = call
        text = (
            f"a listener (topology_changed) was called for epoch {epoch} "
            f"{monotonic() - since:.0f} seconds ago and has not returned; "
            "until it does nothing newer is looked for"
        )
        if call != self._logged_call:
            self._logged_call = call
            _log.warning("%s", text, extra={"action": "tell of topology"})
        return text

    def close(self, timeout: float = 5.0) -> bool:
        """End following; the topology stays.

        :param timeout: seconds to wait for the thread.
        :returns: whether it has ended.
        """
        thread = self.close_soon()
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout)
        return not thread.is_alive()

    def close_soon(self) -> threading.Thread | None:
        """End following, without waiting; return the thread that ends."""
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

    # -- the thread

    def _run(self) -> None:
        if self._is_forked:
            self._attempt(self._catch_up)
        self._attempt(lambda: self._source.start(self.refresh))
        pause, due = _FIRST_PAUSE, monotonic()
        while not self._closed:
            if self._wake.is_set() or monotonic() >= due or self._looks():
                self._wake.clear()
                self._attempt(self._ask)
                with self._changed:
                    self.has_asked = True
                    self._changed.notify_all()
                if self._state == "current":
                    pause, wait = _FIRST_PAUSE, self._reread
                else:
                    wait = min(pause, self._reread)
                    pause = min(pause * 2, _LONGEST_PAUSE)
                due = monotonic() + jittered(wait, 0.2)
                self._rest()
            self._sleep(max(due - monotonic(), 0.0))
        self._attempt(self._source.stop)

    def _sleep(self, seconds: float) -> None:
        interval = self._source.interval
        # Looked at after the event was cleared: close() may have set it.
        if not self._closed:
            self._wake.wait(
                seconds if interval is None else min(seconds, interval)
            )

    def _rest(self) -> None:
        """Let those who ask all at once be answered by one question."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed, _GAP)

    def _attempt(self, step: Callable[[], object]) -> None:
        try:
            step()
        except BaseException as error:  # see below
            # A thread that ends would leave the process with an old
            # topology for ever, whatever the source has raised.
            self._failed(error)

    def _looks(self) -> bool:
        """Ask a source that says nothing by itself whether to read it."""
        if self._source.interval is None:
            return False
        try:
            return self._source.look()
        except BaseException as error:  # as in _attempt()
            self._failed(error)
            return False

    def _ask(self) -> None:
        self._judge(self._source.load())

    def _judge(self, found: Topology) -> None:
        """Take what the source has said, or note why not."""
        old = self._topology
        if old is None:
            self._accept(found)
        elif found == old:
            self._confirm()
        else:
            try:
                check_newer(old, found, source=self._source.name)
                self.admit(found)
            except ShardError as error:
                self._failed(error)
            else:
                self._accept(found)

    def _confirm(self) -> None:
        if self._state == "stale" and self._told is not None:
            _log.info(
                "%s: the topology of epoch %d is confirmed again",
                self._source.name,
                self.epoch,
                extra={"action": "confirm topology", "epoch": self.epoch},
            )
        self._is_current()
        if self._snapshot is not None:
            self._save(self.topology)

    def _is_current(self) -> None:
        self._confirmed = monotonic()
        self._told = self._last_error = None
        self._from_snapshot = False
        if not self._closed:
            self._state = "current"

    def _accept(self, new: Topology) -> None:
        self._is_current()
        self._use(new)
        self._save(new)

    def _use(self, new: Topology) -> None:
        old, self._topology = self._topology, new
        if old is not None:
            self._tell(old, new)
        with self._changed:
            # Not before: who waits for it begins again with what is in use.
            self._shared = new
            self._changed.notify_all()

    def _tell(self, old: Topology, new: Topology) -> None:
        _log.info(
            "%s: %s",
            self._source.name,
            # One line, so that whoever looks for the source finds all of it.
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
            except BaseException:  # one must not stop the others
                _log.exception(
                    "a callback has failed for the topology of epoch %d",
                    new.epoch,
                    extra={"action": "tell of topology", "epoch": new.epoch},
                )
            finally:
                self._call = None

    def _failed(self, error: BaseException) -> None:
        """Stay with what is in use."""
        text = str(error) or type(error).__name__
        self._last_error = text
        if not self._closed:
            self._state = "stale"
        # Once for each thing that is the matter: sources are asked for days.
        if text != self._told:
            self._told = text
            _log.warning(
                "the topology stays that of epoch %s: %s",
                self._topology.epoch if self._topology else "none",
                " ".join(text.split()),
                extra={"action": "keep topology"},
            )

    # -- the snapshot

    def _catch_up(self) -> None:
        """Take what others of this machine have found since the parent."""
        # A parent that serves nothing itself does not follow: what it had
        # may be days old when a worker is replaced while the source is away.
        saved, old = self._saved(), self.topology
        if (
            self._snapshot is None
            or saved is None
            or saved.version <= old.version
        ):
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
                "the snapshot is not used: %s",
                error,
                extra={"action": "read snapshot"},
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
            if text != self._told_of_snapshot:
                self._told_of_snapshot = text
                _log.warning(
                    "%s",
                    text,
                    extra={"action": "write snapshot"},
                )
        else:
            self._told_of_snapshot = None

    def after_fork(self) -> None:
        """Forget, in a child process, the thread and what it had open."""
        self._prepare()
        # What the parent's thread was just telling of has not come to all;
        # here nobody would go on with it.
        self._topology = self._shared
        self._is_forked = True
        if not self._closed:
            # Nobody has asked in this process.
            self._state, self._last_error = "stale", None
        self._source.forked()


def _nothing_to_say(topology: Topology) -> None:
    """Refuse no topology."""


def check_newer(old: Topology, new: Topology, *, source: str) -> None:
    """Refuse what may not replace a topology.

    :param source: where the new one comes from.
    :raises StaleTopologyError: when its epoch is not higher.
    :raises TopologyRefusedError: when it would lose what the old one has, or
        leaves no epochs for those that follow.
    """
    if new.version <= old.version:
        raise StaleTopologyError(
            source=source,
            epoch=new.epoch,
            current=old.epoch,
            resets=old.resets if old.resets > new.resets else 0,
        )
    problems = (*leaps(old, new), *refusals(old, new))
    if problems:
        raise TopologyRefusedError(
            problems, source=source, epoch=new.epoch, current=old.epoch
        )
