"""Applies, resumes and undoes fleet operations.

:func:`apply` takes the lock of the fleet, checks again, and runs the steps;
each is written into the journal before and after it; critical steps, while
writes are stopped, only before the first and after the last.  The step
``publish`` is the commit point: an operation that fails before it is undone,
one that fails after it can only be finished.  If the process dies,
:func:`resume` or :func:`undo` continue from another one.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from typing import Literal

from sqla_shard.exc import FleetLockLostError
from sqla_shard.exc import FleetSetupError
from sqla_shard.exc import OperationFailedError
from sqla_shard.exc import OperationRefusedError
from sqla_shard.exc import Problem
from sqla_shard.exc import ShardError
from sqla_shard.exc import UndoRefusedError
from sqla_shard.fleet.failover import Failover
from sqla_shard.fleet.fleet import Fleet
from sqla_shard.fleet.journal import holder_name
from sqla_shard.fleet.journal import JournalHold
from sqla_shard.fleet.journal import Record
from sqla_shard.fleet.operation import Operation
from sqla_shard.fleet.operation import Progress
from sqla_shard.fleet.operation import PUBLISH
from sqla_shard.fleet.operation import Result
from sqla_shard.fleet.operation import StepEvent
from sqla_shard.fleet.plans import Plan
from sqla_shard.fleet.plans import Step

__all__ = ["KINDS", "apply", "operation_of", "resume", "undo"]

_log = logging.getLogger(__name__)

_CLASSES: tuple[type[Operation], ...] = (Failover,)

KINDS = {one.kind: one for one in _CLASSES}
"""Every kind of operation, by the name in plans and journals."""


def operation_of(fleet: Fleet, plan: Plan) -> Operation:
    """Return the operation of a plan.

    :raises FleetSetupError: if its kind is unknown.
    """
    try:
        kind = KINDS[plan.kind]
    except KeyError:
        raise FleetSetupError(
            f"{plan.kind!r} is not an operation of this version; it has "
            f"{', '.join(sorted(KINDS))}"
        ) from None
    return kind(fleet, plan)


def apply(
    fleet: Fleet, plan: Plan, *, progress: Progress | None = None
) -> Result:
    """Apply a plan.

    :param progress: is called before and after each step.
    :raises FleetLockedError: if another operation is pending.
    :raises OperationRefusedError: if a check finds a problem, or the topology
        has changed since the plan was made; nothing was changed.
    :raises OperationFailedError: if a step fails; says whether everything was
        undone.
    :raises FleetLockLostError: if another process has taken over.
    """
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
        with operation_of(fleet, plan) as operation:
            run = _Run(operation, hold, progress)
            try:
                run.refuse()
            except BaseException:
                # Nothing was done: no operation may stay pending.
                run.end("undone")
                raise
            return run.forward()
    finally:
        hold.release()


def resume(fleet: Fleet, *, progress: Progress | None = None) -> Result:
    """Finish the pending operation, which another process has started.

    :param progress: see :func:`apply`.
    :raises NoOperationError: if no operation is pending.
    :raises FleetLockedError: if the process that runs it is alive.
    :raises OperationFailedError: see :func:`apply`.
    """
    hold = fleet.journal.take_over()
    try:
        plan = Plan.from_dict(hold.record.plan)
        with operation_of(fleet, plan) as operation:
            return _Run(operation, hold, progress).forward()
    finally:
        hold.release()


def undo(fleet: Fleet, *, progress: Progress | None = None) -> Result:
    """Undo the pending operation, which another process has started.

    :param progress: see :func:`apply`.
    :raises NoOperationError: if no operation is pending.
    :raises UndoRefusedError: if its topology is published.
    :raises FleetLockedError: if the process that runs it is alive.
    """
    hold = fleet.journal.take_over()
    try:
        plan = Plan.from_dict(hold.record.plan)
        with operation_of(fleet, plan) as operation:
            run = _Run(operation, hold, progress)
            topology = fleet.topology()
            if PUBLISH in hold.record.done or operation.is_published(topology):
                raise UndoRefusedError(
                    operation=plan.title, epoch=topology.epoch
                )
            return run.back()
    finally:
        hold.release()


class _Run:
    """One process that applies, resumes or undoes an operation."""

    def __init__(
        self,
        operation: Operation,
        hold: JournalHold,
        progress: Progress | None,
    ) -> None:
        self._operation = operation
        self._hold = hold
        self._progress = progress
        self._begin = time.monotonic()
        self._begins: dict[str, float] = {}
        self._times: dict[str, float] = {}
        self._title = operation.plan.title
        operation.hold = hold

    def refuse(self) -> None:
        """Check the operation with the lock held."""
        plan = self._operation.plan
        problems = []
        epoch = self._operation.fleet.topology().epoch
        if epoch != plan.epoch:
            problems.append(
                Problem(
                    "epoch",
                    f"the plan was made for epoch {plan.epoch}, but epoch "
                    f"{epoch} is published; make a new plan",
                )
            )
        problems += self._operation.check()
        if problems:
            raise OperationRefusedError(tuple(problems), operation=plan.title)

    def forward(self) -> Result:
        """Run the steps that are not done."""
        steps = self._operation.steps()
        names = [step.name for step in steps]
        at = self._first(steps)
        commit = names.index(PUBLISH) if PUBLISH in names else len(names)
        for index in range(at, len(steps)):
            step = steps[index]
            inside = step.critical and index > at and steps[index - 1].critical
            after = steps[index + 1 : index + 2]
            goes_on = step.critical and any(one.critical for one in after)
            try:
                self._run(step, before=not inside, after=not goes_on)
            except FleetLockLostError:
                raise
            except Exception as error:
                if index <= commit and not self._has_published():
                    self._give_up(step, error)
                self._write(problem=str(error))
                raise OperationFailedError(
                    operation=self._title,
                    step=step.name,
                    reason=str(error),
                    undone=False,
                ) from error
        return self.end("finished")

    def back(self) -> Result:
        """Undo the steps."""
        self._tell("undo", "undo", "restore the state before the operation")
        self._hold.check()
        self._operation.undo()
        return self.end("undone")

    def end(self, state: Literal["finished", "undone"]) -> Result:
        """Write the end of the operation into the journal."""
        self._write(state=state)
        return Result(
            title=self._title,
            state=state,
            epoch=self._operation.fleet.topology().epoch,
            pause=self._pause(),
            notes=self._hold.record.notes,
            steps=self._times,
        )

    def _first(self, steps: Sequence[Step]) -> int:
        """Return the index of the step to begin with."""
        done = set(self._hold.record.done)
        names = [step.name for step in steps]
        if PUBLISH in names and (PUBLISH in done or self._has_published()):
            after = names.index(PUBLISH) + 1
            left = [
                index
                for index in range(after, len(names))
                if names[index] not in done
            ]
            return left[0] if left else len(names)
        critical = [i for i, step in enumerate(steps) if step.critical]
        left = [i for i, name in enumerate(names) if name not in done]
        first = left[0] if left else len(names)
        # What the fence has promised may be over: repeat it.
        return min([first, *critical[:1]]) if first in critical else first

    def _run(self, step: Step, *, before: bool, after: bool) -> None:
        """Run a step.

        :param before: whether to write its beginning into the journal.
        :param after: whether to write its end, and that of the steps before
            it whose end was not written.
        """
        if before:
            self._hold.check()
            self._write(step=step.name, problem=None)
        self._tell(step.name, "begin", step.text)
        self._begins[step.name] = time.monotonic() - self._begin
        notes = step.run()
        self._times[step.name] = time.monotonic() - self._begin
        record = self._hold.record
        self._hold.record = replace(
            record,
            step=step.name,
            done=(*(n for n in record.done if n != step.name), step.name),
            notes={**record.notes, **({step.name: notes} if notes else {})},
        )
        if after:
            self._write()
        self._tell(step.name, "done", step.text)

    def _give_up(self, step: Step, error: Exception) -> None:
        """Undo everything after an error before the commit point."""
        _log.warning(
            "%s: step %s failed, everything is undone: %s",
            self._title,
            step.name,
            error,
            extra={"action": "undo operation", "step": step.name},
        )
        try:
            self.back()
        except FleetLockLostError:
            raise
        except ShardError as second:
            self._write(problem=f"{error}; and the undo failed: {second}")
            raise OperationFailedError(
                operation=self._title,
                step=step.name,
                reason=f"{error}; and the undo failed: {second}",
                undone=False,
            ) from error
        raise OperationFailedError(
            operation=self._title,
            step=step.name,
            reason=str(error),
            undone=True,
        ) from error

    def _has_published(self) -> bool:
        operation = self._operation
        return operation.is_published(operation.fleet.topology())

    def _pause(self) -> float | None:
        """Return the time of ``fence``, ``open`` and the steps between."""
        if "fence" in self._begins and "open" in self._times:
            return self._times["open"] - self._begins["fence"]
        return None

    def _write(self, **changes: Any) -> None:
        self._hold.write(
            replace(self._hold.record, holder=holder_name(), **changes)
        )

    def _tell(
        self, step: str, state: Literal["begin", "done", "undo"], text: str
    ) -> None:
        _log.info(
            "%s: %s (%s)",
            self._title,
            step,
            state,
            extra={"action": "fleet step", "step": step, "state": state},
        )
        if self._progress is not None:
            self._progress(
                StepEvent(
                    operation=self._title,
                    step=step,
                    state=state,
                    text=text,
                    seconds=time.monotonic() - self._begin,
                )
            )
