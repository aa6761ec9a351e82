"""The shape of every fleet operation: plan, check, apply, verify, finish.

An operation is a class with a name, checks and a table of steps, each with a
method: ``_do_stop_events`` does ``stop-events`` and returns results for the
journal.  It can be repeated after a crash in any place of it.
:mod:`sqla_shard.fleet.runner` applies it.  The step ``publish``, if there is
one, is the commit point.

A hook of an operator is one more step, in the place where the operation is to
wait for it.  An error of it before ``publish`` undoes everything.  It must not
be critical, nor stand among critical steps: writes are stopped there, and a
server ends the fence of a failover after 5 s.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime, UTC
from functools import partial, wraps
from typing import Any, ClassVar, Literal, NamedTuple, ParamSpec, TYPE_CHECKING, TypeVar

from sqla_shard.exc import FleetSetupError, Problem
from sqla_shard.fleet.admin import Admin
from sqla_shard.fleet.clients import Clients, ended_lines, late_lines
from sqla_shard.fleet.fleet import Fleet
from sqla_shard.fleet.journal import JournalHold, paused, PendingRecord
from sqla_shard.topology import Topology
from sqla_shard.util.json_values import JsonObject

if TYPE_CHECKING:
    from sqla_shard.fleet.watch_votes import Watched

P = ParamSpec("P")
T = TypeVar("T")

_VERSION = 1


class Step(NamedTuple):
    """A step of an operation, which its method ``_do_NAME`` does.

    :ivar name: short and stable; it is written into the journal.
    :ivar text: one sentence for people; ``{word}`` is one of
        :meth:`.FleetOperation.words`.
    :ivar critical: whether writes are stopped from this step on.  After a
        crash in a critical step that was not the commit point, an operation
        continues with the first critical step.  The journal is not written
        between critical steps, since that would take longer than they do.
    """

    name: str
    text: str
    critical: bool = False


@dataclass(frozen=True, kw_only=True)
class FleetPlan(JsonObject):
    """Plan of an operation.

    :ivar kind: the operation, such as ``"failover"``.
    :ivar title: a phrase, such as ``"failover of sharddb001"``.
    :ivar epoch: epoch of the topology that it was made for.
    :ivar arguments: what the operator has asked for; JSON values without
        passwords.
    :ivar steps: name and sentence of each step.
    :ivar costs: sentences about time, space and pauses.
    :ivar warnings: findings for the operator that do not prevent the plan.
    :ivar problems: why it would be refused now; empty if it can be applied.
    """

    kind: str
    title: str
    epoch: int
    arguments: Mapping[str, Any]
    steps: tuple[tuple[str, str], ...] = ()
    costs: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        """Return the document of the plan, in JSON values."""
        return {"plan": _VERSION, **super().as_dict()}

    @classmethod
    def from_dict(cls, document: Any) -> FleetPlan:
        """Return the plan of a document of :meth:`as_dict`.

        :raises FleetSetupError: if it is not the document of a plan.
        """
        if not isinstance(document, Mapping) or (document.get("plan") != _VERSION):
            raise FleetSetupError(
                "the document is not a plan of this version; make one with "
                "--plan-only --json"
            )
        try:
            values = {key: one for key, one in document.items() if key != "plan"}
            return super().from_dict(values)
        except (TypeError, ValueError) as error:
            raise FleetSetupError(
                f"the plan is damaged ({type(error).__name__}: {error}); make "
                "it again with --plan-only --json"
            ) from error

    def __str__(self) -> str:
        lines = [f"{self.title} (epoch {self.epoch})"]
        lines += [f"  {name}: {text}" for name, text in self.steps]
        lines += [f"cost: {text}" for text in self.costs]
        lines += [f"warning: {text}" for text in self.warnings]
        lines += [f"refused: {problem}" for problem in self.problems]
        return "\n".join(lines)


def as_list(generator: Callable[P, Iterator[T]]) -> Callable[P, list[T]]:
    """Let a function that yields problems return a list of them."""

    @wraps(generator)
    def listed(*args: P.args, **kwargs: P.kwargs) -> list[T]:
        return list(generator(*args, **kwargs))

    return listed


PUBLISH = "publish"
"""Name of the step that is the commit point."""

UNDO = "undo"
"""Name in the journal while an operation is undone; no step has it."""


@dataclass(frozen=True, kw_only=True)
class StepEvent:
    """Progress of an operation.

    :ivar operation: title of the operation.
    :ivar step: name of the step.
    :ivar state: whether the step begins, goes on, is done, or is being
        undone.
    :ivar text: sentence of the step, or how far it is.
    :ivar seconds: time since the operation was started in this process.
    """

    operation: str
    step: str
    state: Literal["begin", "progress", "done", "undo"]
    text: str
    seconds: float


#: Is called for each event, in the thread of the operation.
Progress = Callable[[StepEvent], object]


@dataclass(frozen=True, kw_only=True)
class Result(JsonObject):
    """An operation that has ended.

    :ivar title: title of the operation.
    :ivar state: ``"finished"`` or ``"undone"``.
    :ivar epoch: epoch of the topology now.
    :ivar pause: seconds for which no write was possible; None if unknown or
        not stopped.
    :ivar notes: results of the steps, by name.
    :ivar steps: seconds at which each step was done.
    """

    title: str
    state: Literal["finished", "undone"]
    epoch: int
    pause: float | None
    notes: Mapping[str, Any]
    steps: Mapping[str, float]

    @property
    def problems(self) -> tuple[str, ...]:
        """Problems of steps after the commit point."""
        return self._texts("problem")

    @property
    def loss(self) -> str | None:
        """Writes that a failover from a lost primary has lost."""
        return self._noted().get("verify", {}).get("loss")

    @property
    def todo(self) -> tuple[str, ...]:
        """Lines about what the operator has to do next."""
        return self._texts("todo")

    @property
    def ended(self) -> tuple[str, ...]:
        """Lines about the sessions that were ended, by their clients."""
        return tuple(line for n in self._noted().values() for line in ended_lines(n))

    @property
    def late(self) -> tuple[str, ...]:
        """Lines about the processes that still used an older topology."""
        return tuple(line for n in self._noted().values() for line in late_lines(n))

    @property
    def proofs(self) -> tuple[str, ...]:
        """The comparisons before the cutover, and after it."""
        return tuple(
            f"{name}: {note['proof']}"
            for name, note in self._noted().items()
            if note.get("proof")
        )

    def _noted(self) -> dict[str, Mapping[str, Any]]:
        """Return the results of the steps that have named ones."""
        return {
            name: note for name, note in self.notes.items() if isinstance(note, Mapping)
        }

    def _texts(self, word: str) -> tuple[str, ...]:
        return tuple(str(n[word]) for n in self._noted().values() if n.get(word))

    def __str__(self) -> str:
        pause = paused(self.pause)
        return "\n".join(
            [
                f"{self.title}: {self.state}, epoch {self.epoch}{pause}",
                *([] if self.loss is None else [f"lost writes: {self.loss}"]),
                *self.proofs,
                *self.ended,
                *self.late,
                *(f"problem: {text}" for text in self.problems),
                *(f"next: {text}" for text in self.todo),
            ]
        )


class FleetOperation(ABC):
    """A kind of operation on a fleet.

    Subclasses take their arguments from the plan, and connect on first use.

    :param plan: a plan of this kind.
    """

    #: Name of the kind, in plans and journals.
    kind: ClassVar[str]
    #: Its steps, in order.
    STEPS: ClassVar[tuple[Step, ...]]

    def __init__(self, fleet: Fleet, plan: FleetPlan) -> None:
        self.fleet = fleet
        self.plan = plan
        #: The journal, while the operation is applied.
        self.hold: JournalHold | None = None
        #: Warnings of the last check.
        self.warnings: list[str] = []
        self._next: Topology | None = None
        #: Reports how far a step is, in any thread.
        self.report: Callable[[str], object] = str
        self._open = ExitStack()
        self._admins: dict[str, Admin] = {}

    def __enter__(self) -> FleetOperation:
        return self

    def __exit__(self, *details: object) -> None:
        self.disconnect()

    # -- methods of subclasses --------------------------------------------

    @abstractmethod
    def check(self) -> list[Problem]:
        """Return all problems; change nothing.

        Less severe findings are added to :attr:`warnings`.
        """

    @abstractmethod
    def undo(self) -> str | None:
        """Undo the changes of the steps before ``publish``.

        It can be called after a crash in any place of them, and repeated.  It
        has sessions of its own, since an error may have ended the others.

        :returns: what could not be restored, in a few words; None if all is
            as before.
        """

    def words(self) -> Mapping[str, Any]:
        """Return the words in the texts of :attr:`STEPS`."""
        return self.plan.arguments

    def changed(self, topology: Topology) -> Topology:
        """Return the topology to publish, if there is a step ``publish``.

        :param topology: the topology for which it was planned.
        """
        return topology

    def is_published(self, topology: Topology) -> bool:
        """Return whether a topology is that of this operation, or a later."""
        return False

    def steps(self) -> Sequence[Step]:
        """Return the steps of the plan, in order; connects to nothing."""
        words = self.words()
        return [step._replace(text=step.text.format(**words)) for step in self.STEPS]

    def run(self, step: str) -> Mapping[str, Any] | None:
        """Do a step, and return its results for the journal."""
        method = getattr(self, f"_do_{step.replace('-', '_')}")
        note: Mapping[str, Any] | None = method()
        return note

    # -- methods for subclasses -------------------------------------------

    def checked(self) -> FleetPlan:
        """Return the plan with its steps, and the findings of the checks."""
        self.warnings.clear()
        with self:
            problems = tuple(self.check())
        return replace(
            self.plan,
            steps=tuple((step.name, step.text) for step in self.steps()),
            warnings=(*self.plan.warnings, *self.warnings),
            problems=problems,
        )

    @property
    def notes(self) -> Mapping[str, Any]:
        """The results of the steps so far, from the journal."""
        return {} if self.hold is None else self.hold.record.notes

    def check_hold(self, _: bool = False) -> None:
        """Check that this process still has the lock, while it is applied.

        :raises FleetLockLostError: if another process has taken over.
        """
        if self.hold is not None:
            self.hold.check()

    def admin(self, url: str, name: str) -> Admin:
        """Return the session of this operation on a server.

        While the operation is applied, it holds the lock of operations on
        that server: a process that has lost the lock of the fleet has no
        session any more.

        :param url: URL of the topology.
        :param name: name of the server for messages.
        """
        if url not in self._admins:
            admin = self.fleet.admin(url, name=name)
            self._open.callback(admin.close)
            if self.hold is not None:
                # One that has lost the lock must not end the sessions of the
                # process that has it.
                self.hold.check()
                admin.claim()
                # A later owner kills this session; an earlier loss of the
                # lock is noticed here.
                self.hold.check()
            self._admins[url] = admin
        return self._admins[url]

    def opener(self, url: str, name: str) -> Callable[[], Admin]:
        """Return a function that opens other sessions on a server.

        :param url: URL of the topology.
        :param name: name of the server for messages.
        """
        return partial(self.fleet.admin, url, name=name)

    def forget(self, *urls: str) -> None:
        """Close the sessions on servers; :meth:`admin` opens others.

        Their locks and settings end with them.
        """
        for url in urls:
            admin = self._admins.pop(url, None)
            if admin is not None:
                admin.close()

    def disconnect(self) -> None:
        """Close the sessions on all servers; see :meth:`forget`."""
        self.forget(*self._admins)

    def prepare_publish(self) -> None:
        """Read the topology for :meth:`_do_publish`, before writes are stopped."""
        now = self.fleet.topology()
        if now.epoch == self.plan.epoch:
            self._next = self.changed(now)

    def _do_publish(self) -> Mapping[str, Any]:
        """Publish :meth:`changed` of the current topology, by compare-and-set.

        :returns: the note of the step: the new epoch.
        """
        if self.hold is None:
            raise FleetSetupError(f"{self.plan.title} is not being applied")
        if self._next is None:
            now = self.hold.topology()
            if self.is_published(now):
                return {"epoch": now.epoch}
            self._next = self.changed(now)
        published = self.hold.publish(self._next, expected_epoch=self.plan.epoch)
        return {"epoch": published.epoch}


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
    pending: PendingRecord | None
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
