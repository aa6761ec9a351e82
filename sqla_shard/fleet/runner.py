"""Applies, resumes and undoes fleet operations, and says which is pending.

:func:`apply` takes the lock of the fleet, checks again, and runs the steps.
Before each step one write into the journal records it, with the results of
the steps before; it fails if another process has taken over.  Critical steps,
while writes are stopped, are recorded as one: the publication and the servers
themselves refuse a process that has lost the lock.  The step
``publish`` is the commit point: an operation that fails before it, or is
interrupted, is undone; one that fails after it can only be finished.  If the
process dies, :func:`resume` or :func:`undo` continue from another one.

A step whose process died may have had its effect or not, so it is repeated.
An operation that was being undone can only be undone.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import Any, Literal, NoReturn, TYPE_CHECKING, TypeVar

from sqla_shard.exc import (
    FleetLockLostError,
    FleetSetupError,
    OperationFailedError,
    OperationRefusedError,
    Problem,
    TopologyUnavailableError,
    UndoRefusedError,
)
from sqla_shard.fleet.clients import known_clients
from sqla_shard.fleet.fleet import Fleet
from sqla_shard.fleet.journal import holder_name, JournalHold, Record
from sqla_shard.fleet.operation import (
    FleetOperation,
    FleetPlan,
    FleetStatus,
    Progress,
    PUBLISH,
    Result,
    Step,
    StepEvent,
    UNDO,
)
from sqla_shard.topology import Topology
from sqla_shard.topology.follow import is_zookeeper
from sqla_shard.util.logs import careful_log

if TYPE_CHECKING:
    from sqla_shard.fleet.watch_votes import Watched

_log = careful_log(__name__)

#: Seconds to wait for a journal that cannot be reached.
_PATIENCE_SECONDS = 30.0

T = TypeVar("T")


@cache
def kinds() -> dict[str, type[FleetOperation]]:
    """Return every kind of operation, by the name in plans and journals."""
    # Imported when it is used: `fleet status` and the doctor rarely need one.
    from sqla_shard.fleet.dead_failover import DeadFailover
    from sqla_shard.fleet.failover import Failover
    from sqla_shard.fleet.orphans import OrphanChange
    from sqla_shard.fleet.replica import Replica
    from sqla_shard.fleet.restore import Restore
    from sqla_shard.fleet.split import Split
    from sqla_shard.fleet.write_access import CloseFormer, CloseStandby, Reopen, Retire

    classes: tuple[type[FleetOperation], ...] = (
        *(CloseFormer, CloseStandby, DeadFailover, Failover, OrphanChange),
        *(Reopen, Replica, Restore, Retire, Split),
    )
    return {one.kind: one for one in classes}


def operation_of(fleet: Fleet, plan: FleetPlan) -> FleetOperation:
    """Return the operation of a plan.

    :raises FleetSetupError: if its kind is unknown.
    """
    try:
        kind = kinds()[plan.kind]
    except KeyError:
        raise FleetSetupError(
            f"{plan.kind!r} is not an operation of this version; it has "
            f"{', '.join(sorted(kinds()))}"
        ) from None
    return kind(fleet, plan)


def apply(fleet: Fleet, plan: FleetPlan, *, progress: Progress | None = None) -> Result:
    """Apply a plan.

    :param progress: is called before and after each step.
    :raises FleetLockedError: if another operation is pending.
    :raises OperationRefusedError: if a check finds a problem, or the topology
        has changed since the plan was made; nothing was changed.
    :raises OperationFailedError: if a step fails; says whether everything was
        undone.
    :raises FleetLockLostError: if another process has taken over.
    """
    # Do this first: a plan of an unknown kind must not stay pending.
    operation = operation_of(fleet, plan)
    record = Record(
        id=f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-"
        f"{plan.kind}-{uuid.uuid4().hex[:6]}",
        plan=plan.as_dict(),
        token=1,
        holder=holder_name(),
        started=time.time(),
    )
    hold = fleet.journal.begin(record)
    try:
        with operation:
            run = _OperationRun(operation, hold, progress)
            run.refuse()
            return run.forward()
    finally:
        hold.release()


def resume(fleet: Fleet, *, progress: Progress | None = None) -> Result:
    """Finish the pending operation, which another process has started.

    If that process was undoing it, the undoing is finished.

    :param progress: see :func:`apply`.
    :raises NoOperationError: if no operation is pending.
    :raises FleetLockedError: if the process that runs it is alive.
    :raises OperationFailedError: see :func:`apply`; so if another topology
        was published in the meantime.
    """
    with _taken_over(fleet, progress) as run:
        return run.again()


def undo(fleet: Fleet, *, progress: Progress | None = None) -> Result:
    """Undo the pending operation, which another process has started.

    :param progress: see :func:`apply`.
    :raises NoOperationError: if no operation is pending.
    :raises UndoRefusedError: if its topology is published.
    :raises FleetLockedError: if the process that runs it is alive.
    :raises OperationFailedError: if the undoing fails; it can be repeated.
    """
    with _taken_over(fleet, progress) as run:
        run.refuse_undo()
        return run.back()


def status(fleet: Fleet) -> FleetStatus:
    """Return the status of a fleet; connects to no database.

    :raises TopologyUnavailableError: if the journal or the topology cannot be
        read.
    """
    journal = fleet.journal
    pending = journal.pending()
    topology = fleet.topology()
    return FleetStatus(
        fleet=journal.name,
        epoch=topology.epoch,
        pending=pending,
        is_published=pending is not None
        and _is_published(fleet, pending.record, topology),
        watched=_watched(fleet),
        clients=known_clients(fleet, topology),
    )


def _watched(fleet: Fleet) -> Watched | None:
    if not is_zookeeper(fleet.location):
        return None
    # kazoo is needed for this alone.
    from sqla_shard.fleet.watch_votes import watched

    return watched(fleet)


def _is_published(fleet: Fleet, record: Record, topology: Topology) -> bool:
    if PUBLISH in record.done:
        return True
    try:
        operation = operation_of(fleet, FleetPlan.from_dict(record.plan))
    except FleetSetupError:
        # An operation of another version, which is asked to continue it.
        return topology.epoch != record.plan.get("epoch")
    return operation.is_published(topology)


@contextmanager
def _taken_over(fleet: Fleet, progress: Progress | None) -> Iterator[_OperationRun]:
    hold = fleet.journal.take_over()
    try:
        plan = FleetPlan.from_dict(hold.record.plan)
        with operation_of(fleet, plan) as operation:
            yield _OperationRun(operation, hold, progress)
    finally:
        hold.release()


class _OperationRun:
    """One process that applies, resumes or undoes an operation."""

    def __init__(
        self, operation: FleetOperation, hold: JournalHold, progress: Progress | None
    ) -> None:
        self._operation = operation
        self._hold = hold
        self._progress = progress
        self._steps = operation.steps()
        self._names = [step.name for step in self._steps]
        self._begin = time.monotonic()
        self._began: dict[str, float] = {}
        self._times: dict[str, float] = {}
        self._title = operation.plan.title
        #: Steps that this process found done, or in progress.
        self._found = {*hold.record.done, hold.record.step}
        #: Changes that the undo could not restore.
        self._left = ""
        operation.hold = hold
        operation.report = self._report

    def refuse(self) -> None:
        """Check the operation with the lock held, before the first step."""
        title = self._title
        try:
            problems = [*self._other_epoch(), *self._operation.check()]
            if problems:
                raise OperationRefusedError(tuple(problems), operation=title)
        except BaseException as error:
            # Nothing was done: no operation may stay pending.
            self._write(state="undone", problem=_text(error))
            raise

    def refuse_undo(self) -> None:
        """Check that the topology is not published."""
        topology = _patiently(self._hold.topology)
        if PUBLISH in self._hold.record.done or self._operation.is_published(topology):
            raise self._undo_refused(topology)

    def _undo_refused(self, topology: Topology) -> UndoRefusedError:
        return UndoRefusedError(operation=self._title, epoch=topology.epoch)

    def again(self) -> Result:
        """Continue the operation of another process."""
        record = self._hold.record
        if record.step == UNDO and not self._has_published():
            return self.back()
        if record.step is None:
            # That process may have died before it had checked.
            self.refuse()
        elif PUBLISH in self._names and not self._has_published():
            other = self._other_epoch()
            if other:
                self._give_up(record.step, FleetSetupError(str(other[0])))
        elif PUBLISH not in self._names and self._first() < len(self._names):
            # Neither going on nor undoing is right by itself: a server may
            # have another role now.
            other = self._other_epoch()
            if other:
                self._write(problem=str(other[0]))
                raise self._failure(record.step, other[0], undone=False)
        return self.forward()

    def forward(self) -> Result:
        """Run the steps that are not done."""
        is_critical = False
        for step in self._steps[self._first() :]:
            try:
                self._run(step, is_recorded=is_critical and step.critical)
            except BaseException as error:
                self._fail(step.name, error)
            is_critical = step.critical
        return self._end("finished")

    def back(self) -> Result:
        """Undo the steps.

        :raises UndoRefusedError: if the topology is published after all.
        """
        if self._hold.record.step is None:
            # Nothing was done: there is nothing that may be touched.
            return self._end("undone")
        # From here on the steps in the journal may be undone: the operation
        # cannot be finished any more.
        self._write(step=UNDO)
        # Again: after this write no process can publish it, but until then
        # one that had lost the lock could.
        topology = _patiently(self._hold.topology)
        if self._operation.is_published(topology):
            self._write(step=PUBLISH)
            raise self._undo_refused(topology)
        self._tell(UNDO, "undo", "restore the state before the operation")
        try:
            # The sessions themselves may have failed.
            self._operation.disconnect()
            self._left = self._operation.undo() or ""
        except Exception as error:
            self._hold.check()
            self._write(problem=f"the undoing failed: {error}")
            raise self._failure(UNDO, error, undone=False) from error
        if self._left:
            notes = {**self._hold.record.notes, UNDO: {"problem": self._left}}
            self._hold.record = replace(self._hold.record, notes=notes)
        return self._end("undone")

    def _end(self, state: Literal["finished", "undone"]) -> Result:
        """Write the end of the operation into the journal."""
        # Before the write: after it the operation is over, whatever happens.
        epoch = _patiently(self._hold.topology).epoch
        pause = self._pause()
        if pause is not None:
            self._hold.record = self._hold.record.with_pause(pause)
        self._write(state=state)
        return Result(
            title=self._title,
            state=state,
            epoch=epoch,
            pause=pause,
            notes=self._hold.record.notes,
            steps=self._times,
        )

    def _first(self) -> int:
        """Return the index of the step to begin with."""
        done = set(self._hold.record.done)
        names = self._names
        left = [index for index, name in enumerate(names) if name not in done]
        if PUBLISH in names and (PUBLISH in done or self._has_published()):
            after = names.index(PUBLISH) + 1
            left = [index for index in left if index >= after]
            return left[0] if left else len(names)
        first = left[0] if left else len(names)
        fence = [i for i, step in enumerate(self._steps) if step.critical][:1]
        is_fenced = first < len(names) and (
            self._steps[first].critical or names[first] == PUBLISH
        )
        # The guarantee of the fence may be over: repeat it.
        return min([first, *fence]) if is_fenced else first

    def _run(self, step: Step, *, is_recorded: bool) -> None:
        """Run a step.

        :param is_recorded: whether the journal says enough about it: it
            follows another critical step.
        """
        if not is_recorded:
            # This also proves that no other process has taken over.
            self._write(step=step.name, problem=None)
        self._began[step.name] = self._seconds()
        self._tell(step.name, "begin", step.text)
        notes = self._operation.run(step.name)
        self._times[step.name] = self._seconds()
        record = self._hold.record
        # It is written before the next step that is recorded.
        self._hold.record = replace(
            record,
            done=(*(n for n in record.done if n != step.name), step.name),
            notes={**record.notes, **({step.name: notes} if notes else {})},
        )
        self._tell(step.name, "done", step.text)

    def _fail(self, step: str, error: BaseException) -> NoReturn:
        """Undo everything after an error, unless it is too late."""
        if isinstance(error, FleetLockLostError):
            raise error
        try:
            # The error may be the work of a process that has taken over.
            _patiently(self._hold.check)
            steps = self._names
            after = steps[steps.index(PUBLISH) + 1 :] if PUBLISH in steps else ()
            if step in after or self._has_published():
                self._write(problem=_text(error))
                self._raise(step, error, undone=False)
        except TopologyUnavailableError as second:
            raise self._failure(
                step, f"{_text(error)}; and then: {second}", undone=False
            ) from error
        self._give_up(step, error)

    def _give_up(self, step: str, error: BaseException) -> NoReturn:
        """Undo everything after an error before the commit point."""
        _log.warning(
            "%s: step %s failed, everything is undone: %s",
            self._title,
            step,
            _text(error),
            extra={"action": "undo operation", "step": step},
        )
        try:
            self._write(problem=_text(error))
            self.back()
        except FleetLockLostError:
            raise
        except OperationFailedError as second:
            reason = f"{_text(error)}; and the undo failed: {second.reason}"
            raise self._failure(step, reason, undone=False) from error
        except Exception as second:
            reason = f"{_text(error)}; and the undo failed: {second}"
            raise self._failure(step, reason, undone=False) from error
        self._raise(step, error, undone=True)

    def _raise(self, step: str, error: BaseException, *, undone: bool) -> NoReturn:
        if not isinstance(error, Exception):
            # KeyboardInterrupt and SystemExit end the program as always.
            raise error
        raise self._failure(step, error, undone=undone) from error

    def _failure(
        self, step: str, reason: object, *, undone: bool
    ) -> OperationFailedError:
        return OperationFailedError(
            operation=self._title,
            step=step,
            reason=str(reason),
            undone=undone,
            left=self._left,
        )

    def _has_published(self) -> bool:
        return self._operation.is_published(_patiently(self._hold.topology))

    def _other_epoch(self) -> list[Problem]:
        """Return a problem if another topology was published."""
        planned = self._operation.plan.epoch
        epoch = _patiently(self._hold.topology).epoch
        if epoch == planned:
            return []
        return [
            Problem(
                "epoch",
                f"the plan was made for epoch {planned}, but epoch {epoch} "
                "is published; make a new plan",
            )
        ]

    def _pause(self) -> float | None:
        """Return the time from the begin of ``fence`` to the end of ``open``.

        It is unknown if another process had stopped the writes.
        """
        critical = {step.name for step in self._steps if step.critical}
        if critical & self._found or "fence" not in self._began:
            return None
        end = self._times.get("open")
        return None if end is None else end - self._began["fence"]

    def _write(self, **changes: Any) -> None:
        record = replace(self._hold.record, holder=holder_name(), **changes)
        _patiently(partial(self._hold.write, record))

    def _seconds(self) -> float:
        return time.monotonic() - self._begin

    def _report(self, text: str) -> None:
        """Tell how far the step is; see :attr:`FleetOperation.report`."""
        self._tell(list(self._began)[-1], "progress", text)

    def _tell(
        self, step: str, state: Literal["begin", "progress", "done", "undo"], text: str
    ) -> None:
        _log.info(
            "%s: %s (%s)",
            self._title,
            step,
            state,
            extra={"action": "fleet step", "step": step, "state": state},
        )
        if self._progress is None:
            return
        event = StepEvent(
            operation=self._title,
            step=step,
            state=state,
            text=text,
            seconds=self._seconds(),
        )
        try:
            self._progress(event)
        except Exception as error:
            # A closed terminal must not stop an operation half way.
            self._progress = None
            _log.warning(
                "%s: progress is not reported any more: %s",
                self._title,
                error,
                extra={"action": "report progress"},
            )


def _patiently(call: Callable[[], T]) -> T:
    """Call the journal again while it cannot be reached."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return call()
        except TopologyUnavailableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
