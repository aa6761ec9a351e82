"""A model of a move, small enough to try every order of its steps.

One row is on both sides, and is a counter: each write raises it by one, so a
lost write and a doubled one both show.  Two writers, a copier and the tool
that changes stages take atomic steps, in every order; one step is one
statement or one COMMIT of the real system.  At any step a writer or the copier
may be killed.  What it knows of the stage may be as old as it likes.

The rules are those of :mod:`sqla_shard.migrate.stages`; :class:`Rules` breaks
one of them at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from sqla_shard.exc import StageRefusedError
from sqla_shard.migrate.stages import advanced, Progress, Stage, STAGES

LEGACY, SHARDS = 0, 1
_SIDES = {"legacy": LEGACY, "shards": SHARDS}


@dataclass(frozen=True)
class Rules:
    """The parts of the protocol that are followed.

    :ivar fenced: a transaction reads the fence of the database it writes.
    :ivar held: it holds the lock on the fence until it has ended.
    :ivar versions: a copy is applied only if its version is higher.
    :ivar conditions: a stage is left only when its conditions are met.
    :ivar waits: a stage is left only when every fence has it.
    :ivar rounds: marks of an earlier round do not count.
    :ivar bypass: the first write does not use the session: no fence, no mark.
    """

    fenced: bool = True
    held: bool = True
    versions: bool = True
    conditions: bool = True
    waits: bool = True
    rounds: bool = True
    bypass: bool = False


class Process(NamedTuple):
    """A writer, or the copier.

    :ivar left: writes that it will still make.
    :ivar known: number of the change of the stage that it has read last.
    :ivar phase: its last step.
    :ivar number: number of the change by which it acts.
    :ivar source: side that it writes, and copies from.
    :ivar version: version of the row that it copies.
    :ivar value: the row that it copies.
    """

    left: int
    known: int = 0
    phase: str = "idle"
    number: int = 0
    source: int = LEGACY
    version: int = 0
    value: int = 0

    def idle(self) -> Process:
        """Return the process without anything in its memory."""
        return Process(left=self.left, known=self.known)


class State(NamedTuple):
    """The stored state of both sides, and all processes."""

    number: int
    fences: tuple[int, int]
    value: tuple[int, int]
    version: tuple[int, int]
    copied: tuple[int, int]
    round: int
    acknowledged: int
    kills: int
    processes: tuple[Process, ...]


class ViolationError(AssertionError):
    """A state that must not be reachable, and the steps that lead to it."""


class Model:
    """All runs of a sequence of stages.

    :param path: names of the stages after the first one.
    :param writes: number of writes of each writer.
    :param kills: number of times that a process is killed.
    """

    def __init__(
        self,
        *path: str,
        rules: Rules = Rules(),
        writes: tuple[int, ...] = (2, 1),
        kills: int = 1,
    ) -> None:
        self.rules = rules
        self.steps = [Progress()]
        for name in path:
            old = self.steps[-1]
            # Checks that the stages are neighbours; conditions are checked
            # in each state.
            met = STAGES[old.stage].needs
            new = advanced(old, name, fences=[old.number], met=met)
            self.steps.append(new)
        self.first = State(
            number=0,
            fences=(0, 0),
            value=(0, 0),
            version=(0, 0),
            copied=(0, 0),
            round=0,
            acknowledged=0,
            kills=kills,
            processes=(*(Process(left=n) for n in writes), Process(left=0)),
        )

    def stage(self, number: int) -> Stage:
        return self.steps[number].rules

    def explore(self) -> tuple[int, int]:
        """Try every order of the steps.

        :returns: the number of states, and of those in which nothing is left
            to do.
        :raises ViolationError: for the first wrong state, by the shortest way.
        """
        came: dict[State, tuple[State, str] | None] = {self.first: None}
        queue = [self.first]
        ends = 0
        for state in queue:
            following = list(self.following(state))
            problem = self.problem(state)
            if not following:
                ends += 1
                problem = problem or self.problem_at_end(state)
            if problem:
                raise ViolationError(problem + _way(came, state))
            for label, new in following:
                if new not in came:
                    came[new] = state, label
                    queue.append(new)
        return len(came), ends

    def labels(self) -> set[str]:
        """Return the steps that are taken in any run."""
        seen, queue, labels = {self.first}, [self.first], set()
        for state in queue:
            for label, new in self.following(state):
                labels.add(label)
                if new not in seen:
                    seen.add(new)
                    queue.append(new)
        return labels

    # -- what must be true

    def problem(self, state: State) -> str | None:
        """Return the violations in a state."""
        open_sides = [
            side
            for side, number in enumerate(state.fences)
            if _side(self.stage(number).truth) == side
        ]
        if self.rules.waits and min(state.fences) < state.number - 1:
            return "a database is two stages behind"
        if len(open_sides) > 1:
            return "both sides accept writes"
        if self.rules == Rules() and self._differs(state):
            return "a row that was copied differs"
        for side in open_sides:
            if state.value[side] != state.acknowledged:
                return (
                    f"{state.acknowledged} writes were acknowledged, and side "
                    f"{side} has {state.value[side]}"
                )
        return None

    def problem_at_end(self, state: State) -> str | None:
        """Return the violations in a final state."""
        if state.number != len(self.steps) - 1:
            return f"the move is stuck in {self.stage(state.number).name}"
        if not self.rules.bypass and any(process.left for process in state.processes):
            return "a writer waits for ever"
        stage = self.stage(state.number)
        if stage.copies and state.value[LEGACY] != state.value[SHARDS]:
            return f"the sides differ: {state.value}"
        return None

    # -- steps

    def following(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield the states after one step of any process."""
        yield from self._tool(state)
        for index, process in enumerate(state.processes):
            is_copier = index == len(state.processes) - 1
            name = "copier" if is_copier else f"writer {index}"
            moves = self._copier if is_copier else self._writer
            for label, new, one in moves(state, process):
                yield f"{name}: {label}", _with(new, index, one)
            if process.phase != "idle" and state.kills:
                killed = state._replace(kills=state.kills - 1)
                yield f"{name}: killed", _with(killed, index, process.idle())

    def _tool(self, state: State) -> Iterator[tuple[str, State]]:
        progress = self.steps[state.number]
        for side, number in enumerate(state.fences):
            if number < state.number and not self._is_locked(state, side):
                fences = _at(state.fences, side, state.number)
                yield f"tool: fence {side}", state._replace(fences=fences)
        stage = progress.rules
        if stage.copies == "shards" and self._is_unclaimed(state):
            yield (
                "tool: claim",
                state._replace(
                    version=_at(state.version, LEGACY, state.version[0] + 1),
                    round=progress.round,
                ),
            )
        if stage.truth == "legacy" and self._differs(state):
            version = _at(state.version, LEGACY, state.version[LEGACY] + 1)
            yield "tool: repair", state._replace(version=version)
        if state.number + 1 == len(self.steps):
            return
        fences = state.fences if self.rules.waits else [state.number]
        met = self._met(state) if self.rules.conditions else stage.needs
        name = self.steps[state.number + 1].stage
        try:
            new = advanced(progress, name, fences=fences, met=met)
        except StageRefusedError:
            return
        yield f"tool: {name}", state._replace(number=new.number)

    def _is_locked(self, state: State, side: int) -> bool:
        return (
            self.rules.fenced
            and self.rules.held
            and any(
                one.phase == "open" and one.source == side for one in state.processes
            )
        )

    def _is_unclaimed(self, state: State) -> bool:
        if not self.rules.rounds:
            return state.round == 0
        return state.round < self.steps[state.number].round

    def _met(self, state: State) -> set[str]:
        stage = self.stage(state.number)
        source = _side(stage.source)
        met = set()
        if not self._is_unclaimed(state):
            met.add("claimed")
        if source is None or state.copied[source] == state.version[source]:
            met.add("drained")
            if not self._differs(state):
                met.add("equal")
        return met

    def _differs(self, state: State) -> bool:
        """Return whether a pass over the rows finds a difference.

        It compares rows that have the same version on both sides.
        """
        return (
            self.stage(state.number).copies is not None
            and not self._is_unclaimed(state)
            and state.version[LEGACY] == state.version[SHARDS]
            and state.value[LEGACY] != state.value[SHARDS]
        )

    def _writer(
        self, state: State, process: Process
    ) -> Iterator[tuple[str, State, Process]]:
        if process.phase != "idle" and process.phase != "open":
            yield from self._copying(state, process)
        elif process.phase == "open":
            yield from self._commit(state, process)
        elif process.left and self.rules.bypass and not process.known:
            # Once, until the shards are the truth: no fence stops it.
            if self.stage(state.number).truth != "shards":
                value = _at(state.value, LEGACY, state.value[LEGACY] + 1)
                new = state._replace(value=value, acknowledged=state.acknowledged + 1)
                one = process._replace(left=process.left - 1, known=1)
                yield "write that bypasses the session", new, one
        elif process.left:
            known = self._known(state.number)
            if process.known != known:
                yield "read stage", state, process._replace(known=known)
            side = _side(self.stage(process.known).truth)
            if side is None:
                return
            number = process.known
            if self.rules.fenced:
                number = state.fences[side]
                if _side(self.stage(number).truth) != side:
                    return
            one = process._replace(phase="open", number=number, source=side)
            yield f"begin on side {side}", state, one

    def _known(self, number: int) -> int:
        """Return the state that a process stores of a stage.

        With fences it is used only to choose a side, so numbers with the same
        truth are one; that makes the model smaller, and no run is left out.
        """
        if not self.rules.fenced:
            return number
        truth = self.stage(number).truth
        return next(
            index for index, step in enumerate(self.steps) if step.rules.truth == truth
        )

    def _commit(
        self, state: State, process: Process
    ) -> Iterator[tuple[str, State, Process]]:
        stage, side = self.stage(process.number), process.source
        new = state._replace(
            value=_at(state.value, side, state.value[side] + 1),
            acknowledged=state.acknowledged + 1,
        )
        if stage.marks:
            version = _at(state.version, side, state.version[side] + 1)
            new = new._replace(version=version)
            if side == LEGACY:
                found = self.steps[process.number].round
                new = new._replace(round=max(state.round, found))
        one = process._replace(left=process.left - 1, phase="committed")
        yield "commit", new, one if stage.copies else one.idle()

    def _copier(
        self, state: State, process: Process
    ) -> Iterator[tuple[str, State, Process]]:
        source = _side(self.stage(state.number).source)
        if process.phase != "idle":
            yield from self._copying(state, process)
        elif source is not None and state.copied[source] < state.version[source]:
            yield ("find", state, process._replace(phase="committed", source=source))

    def _copying(
        self, state: State, process: Process
    ) -> Iterator[tuple[str, State, Process]]:
        source, target = process.source, 1 - process.source
        if process.phase == "committed":
            yield (
                "read row",
                state,
                process._replace(
                    phase="read",
                    version=state.version[source],
                    value=state.value[source],
                ),
            )
        elif process.phase == "read":
            one = process._replace(phase="applied", value=0)
            is_newer = process.version > state.version[target]
            if is_newer or not self.rules.versions:
                version = _at(state.version, target, process.version)
                new = state._replace(
                    value=_at(state.value, target, process.value),
                    version=version,
                    copied=_at(state.copied, target, process.version),
                )
                yield "write copy", new, one
            else:
                yield "skip older copy", state, one
        else:
            most = max(state.copied[source], process.version)
            new = state._replace(copied=_at(state.copied, source, most))
            yield "mark as copied", new, process.idle()


def _side(name: str | None) -> int | None:
    return None if name is None else _SIDES[name]


def _at(pair: tuple[int, int], side: int, value: int) -> tuple[int, int]:
    return (value, pair[1]) if side == LEGACY else (pair[0], value)


def _with(state: State, index: int, process: Process) -> State:
    processes = list(state.processes)
    processes[index] = process
    return state._replace(processes=tuple(processes))


def _way(came: dict[State, tuple[State, str] | None], state: State) -> str:
    labels = []
    before = came[state]
    while before is not None:
        labels.append(before[1])
        before = came[before[0]]
    return "".join(f"\n  {label}" for label in reversed(labels))
