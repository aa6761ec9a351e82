"""Operations of the fleet: the pending one, its steps, and the past ones."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, UTC
from typing import Literal

from sqla_shard.exc import FleetSetupError
from sqla_shard.fleet import Fleet, FleetStatus, Plan, status
from sqla_shard.fleet.journal import Record
from sqla_shard.fleet.runner import operation_of

_PAST = 10


@dataclass(frozen=True, kw_only=True)
class StepView:
    """A step of an operation.

    :ivar is_critical: whether writes are stopped while it runs.
    """

    name: str
    text: str
    state: Literal["done", "current", "waiting"]
    is_critical: bool


@dataclass(frozen=True, kw_only=True)
class OperationView:
    """An operation of the journal.

    :ivar is_paused: whether its server takes no writes now; of a pending
        operation only.
    :ivar pause: seconds for which no write was possible, as measured; None if
        unknown, or not stopped.
    """

    id: str
    title: str
    state: str
    holder: str
    started: datetime
    problem: str | None
    steps: tuple[StepView, ...]
    costs: tuple[str, ...]
    is_paused: bool = False
    pause: float | None = None


@dataclass(frozen=True, kw_only=True)
class OperationsView:
    """The operations of a fleet.

    :ivar pending: the pending one; None if there is none.
    :ivar past: those that have ended, the latest first.
    """

    status: FleetStatus
    pending: OperationView | None
    past: tuple[OperationView, ...]


def read_operations(fleet: Fleet) -> OperationsView:
    """Return the operations of a fleet; connects to no database.

    :raises TopologyUnavailableError: if the journal cannot be read.
    """
    found = status(fleet)
    pending = None
    if found.pending is not None:
        pending = _view(fleet, found.pending.record, is_pending=True)
    return OperationsView(
        status=found,
        pending=pending,
        past=tuple(
            _view(fleet, one, is_pending=False) for one in fleet.journal.history(_PAST)
        ),
    )


def _view(fleet: Fleet, record: Record, *, is_pending: bool) -> OperationView:
    plan = Plan.from_dict(record.plan)
    critical = _critical(fleet, plan)
    steps = tuple(
        StepView(
            name=name,
            text=text,
            state=_state(record, name, is_pending),
            is_critical=name in critical,
        )
        for name, text in plan.steps
    )
    return OperationView(
        id=record.id,
        title=record.title,
        state=record.state,
        holder=record.holder,
        started=datetime.fromtimestamp(record.started, UTC),
        problem=record.problem,
        steps=steps,
        costs=plan.costs,
        pause=record.pause,
        # Critical steps are written into the journal as one: the first.
        is_paused=is_pending
        and any(one.state == "current" and one.is_critical for one in steps),
    )


def _state(
    record: Record, name: str, is_pending: bool
) -> Literal["done", "current", "waiting"]:
    if name in record.done:
        return "done"
    if is_pending and name == record.step:
        return "current"
    return "waiting"


def _critical(fleet: Fleet, plan: Plan) -> frozenset[str]:
    """Return the names of the steps during which writes are stopped."""
    try:
        with operation_of(fleet, plan) as operation:
            steps = operation.steps()
    except FleetSetupError:
        # An operation of another version of this package.
        return frozenset()
    return frozenset(one.name for one in steps if one.critical)
