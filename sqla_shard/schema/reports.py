"""The report of a run, shard by shard, and its progress."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from time import monotonic
from typing import Any, TextIO

from rich.console import Console, JustifyMethod
from rich.progress import (
    BarColumn,
    Progress as Bars,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress_bar import ProgressBar
from rich.table import Column
from rich.text import Text

from sqla_shard.engine.unreachable import (
    Cause,
    each_once,
    unreachable_values,
    UnreachableServer,
)
from sqla_shard.exc.base import shortened_list
from sqla_shard.schema.selection import Shard
from sqla_shard.topology.keyspaces import as_ranges
from sqla_shard.util.json_values import JsonObject
from sqla_shard.util.masking import printable


class State(Enum):
    """The outcome of a command on a virtual shard."""

    CHANGED = "changed"
    CURRENT = "nothing to do"
    FAILED = "failed"
    IN_DOUBT = "in doubt"
    INTERRUPTED = "interrupted, the next run goes on"
    HELD = "another runner is at work"
    EMPTIED = "no revision, where others have one"
    NO_LEDGER = "no ledger"
    MISSING = "no such database"
    UNREACHABLE = "server not reached"
    READ_ONLY = "server is read-only"
    MOVED = "elsewhere in a newer topology"
    SKIPPED = "not attempted"

    @property
    def is_good(self) -> bool:
        """Whether the shard is in the state that the command requires."""
        return self in (State.CHANGED, State.CURRENT)


#: States of shards whose databases could not be read.
NOT_READ = (State.MISSING, State.UNREACHABLE)


@dataclass(frozen=True, kw_only=True)
class Outcome(JsonObject):
    """The outcome of a command on one virtual shard.

    :ivar steps: the revisions that were applied, such as ``"upgrade of
        1975ea83b712"``, in order.
    :ivar statements: number of statements that were executed.
    :ivar seconds: duration in seconds.
    :ivar error: the error, or None.
    :ivar step: the revision that failed, or None.
    :ivar done: the statements of that revision that have taken effect, since
        the server cannot roll back DDL; None if this is unknown.
    :ivar cause: why the server did not respond, or None.
    """

    shard_id: int
    server: str
    database: str
    state: State
    steps: tuple[str, ...] = ()
    statements: int = 0
    seconds: float = 0.0
    error: str | None = None
    step: str | None = None
    done: tuple[str, ...] | None = ()
    cause: Cause | None = None

    @classmethod
    def of(cls, shard: Shard, state: State, **more: Any) -> Outcome:
        """Return the outcome for a shard.

        :param more: further attributes.
        """
        return cls(
            shard_id=shard.shard_id,
            server=shard.server,
            database=shard.database,
            state=state,
            **more,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes but for the cause as JSON values."""
        values = super().as_dict()
        del values["cause"]
        return values


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """The outcomes of a command, shard by shard.

    ``str()`` of it has one line for each state, and a few for each failure.

    :ivar command: name of the command, such as ``"upgrade"``.
    :ivar target: the target revision.
    :ivar keyspace: name of the keyspace.
    :ivar outcomes: one for each selected shard, in order.
    :ivar seconds: duration of the run in seconds.
    :ivar interrupted: whether the run was stopped by a signal.
    :ivar topology_error: reason why the locations of the shards are
        uncertain, or None.
    """

    command: str
    target: str
    keyspace: str
    outcomes: tuple[Outcome, ...]
    seconds: float
    interrupted: bool = False
    topology_error: str | None = None

    @property
    def ok(self) -> bool:
        """Whether every shard is in the state that the command requires."""
        return self.topology_error is None and all(
            outcome.state.is_good for outcome in self.outcomes
        )

    @property
    def unreachable(self) -> tuple[UnreachableServer, ...]:
        """The servers of the shards that could not be read."""
        found = (one for one in self.outcomes if one.state in NOT_READ)
        return servers_of(self.keyspace, found)

    def of(self, state: State) -> list[Outcome]:
        """Return the outcomes with a state."""
        return [one for one in self.outcomes if one.state is state]

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        return {
            "command": self.command,
            "target": self.target,
            "keyspace": self.keyspace,
            "ok": self.ok,
            "interrupted": self.interrupted,
            "topology_error": self.topology_error,
            "seconds": round(self.seconds, 3),
            "counts": {state.value: len(self.of(state)) for state in State},
            "shards": [outcome.as_dict() for outcome in self.outcomes],
            "unreachable": unreachable_values(self.unreachable),
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        total = len(self.outcomes)
        yield (
            f"{self.command} to {self.target}: {total} virtual shard"
            f"{'' if total == 1 else 's'} of {self.keyspace} in "
            f"{self.seconds:.1f} s{' (interrupted)' * self.interrupted}"
        )
        lost = servers_of(self.keyspace, self.of(State.UNREACHABLE))
        yield from map(str, lost)
        for state in State:
            outcomes = self.of(state)
            if outcomes and state is not State.UNREACHABLE:
                ids = as_ranges(one.shard_id for one in outcomes)
                yield f"  {len(outcomes)} {state.value}: {ids}"
        yield from _failures(self.outcomes)
        if self.topology_error is not None:
            yield f"repeat the command: {self.topology_error}"


def servers_of(keyspace: str, shards: Iterable[Any]) -> tuple[UnreachableServer, ...]:
    """Return the servers of shards that could not be read.

    :param shards: the outcome or the status of each.
    """
    return each_once(
        UnreachableServer(
            server=one.server,
            cause=one.cause or Cause(State.MISSING.value),
            addresses=((keyspace, one.shard_id),),
        )
        for one in shards
    )


_SHOWN = 10


def _failures(outcomes: Iterable[Outcome]) -> Iterator[str]:
    """Yield each error once, with its shards and the completed statements."""
    groups: dict[tuple[object, ...], list[Outcome]] = {}
    for one in outcomes:
        # An outage has a line of its own, unless it left a revision open.
        is_outage = one.state is State.UNREACHABLE and one.step is None
        if one.error is not None and not is_outage:
            error = one.error.replace(one.database, "<database>")
            key = (error, one.state, one.step, one.done)
            groups.setdefault(key, []).append(one)
    for group in list(groups.values())[:_SHOWN]:
        first = group[0]
        names = shortened_list([f"{one.database} on {one.server}" for one in group], 3)
        yield f"{first.state.value}: {names}"
        for line in (first.error or "").splitlines():
            yield f"    {line}"
        if first.step is not None and first.done is not None:
            yield from _done(first.step, first.done)
    if len(groups) > _SHOWN:
        yield f"and {len(groups) - _SHOWN} other errors; see the JSON report"


def _done(step: str, done: Sequence[str]) -> Iterator[str]:
    if not done:
        yield f"    no statement of the {step} has taken effect"
        return
    yield (
        f"    {len(done)} statement(s) of the {step} have already taken "
        "effect; the next run resumes after them:"
    )
    for number, statement in enumerate(done, 1):
        yield f"      {number}. {statement}"


# -- The progress of a run: a bar for each server on a terminal, or lines.


class CommandProgress:
    """Receives the outcome of each shard as soon as it is known.

    This base class displays nothing.
    """

    def begin(
        self,
        command: str,
        target: str,
        totals: Mapping[str, int],
        known: Iterable[Outcome],
    ) -> None:
        """Begin a run.

        :param totals: number of selected shards by server.
        :param known: outcomes of shards that the run skips.
        """

    def advance(self, outcome: Outcome) -> None:
        """Count a shard."""

    def waiting(self) -> None:
        """Show all that is counted, since no shard ended for a moment."""

    def stopping(self, kills: bool) -> None:
        """Handle a request to stop.

        :param kills: whether worker processes are killed now.
        """

    def end(self) -> None:
        """End a run, also after an error; the report follows."""


#: Seconds between two lines.
_INTERVAL = 5.0

#: Seconds between two drawings of the bars, which take milliseconds.
_MOMENT = 0.1

#: Servers with a bar of their own, at most.
_MOST = 12

#: Columns of the terminal that the rate and the time require, and those that
#: the number of shards that are not attempted requires too.
_WIDE, _WIDEST = 60, 80

#: States of shards that are left for the next run; they are not failures.
_LEFT = frozenset({State.INTERRUPTED, State.SKIPPED})


@dataclass
class _Tally:
    """Counts of the shards of a server, or of several.

    :ivar done: shards with an outcome, including failures.
    :ivar left: shards that this run leaves as they are.
    """

    total: int = 0
    done: int = 0
    failed: int = 0
    left: int = 0

    def add(self, outcome: Outcome) -> None:
        if outcome.state in _LEFT:
            self.left += 1
            return
        self.done += 1
        self.failed += not outcome.state.is_good

    @property
    def is_over(self) -> bool:
        """Whether no further outcome follows."""
        return self.done + self.left == self.total

    @property
    def colour(self) -> str:
        """The colour of the bar."""
        if self.failed:
            return "red"
        if not self.is_over:
            return "cyan"
        return "yellow" if self.left else "green"


def _sum(tallies: Iterable[_Tally]) -> _Tally:
    total = _Tally()
    for one in tallies:
        total.total += one.total
        total.done += one.done
        total.failed += one.failed
        total.left += one.left
    return total


class _Display(CommandProgress):
    """Counts shards by server, and prints failures immediately."""

    _known = 0
    _began = 0.0

    def __init__(self) -> None:
        self._servers: dict[str, _Tally] = {}
        self._all = _Tally()
        # Servers whose outage was printed.
        self._lost: set[str] = set()

    def begin(
        self,
        command: str,
        target: str,
        totals: Mapping[str, int],
        known: Iterable[Outcome],
    ) -> None:
        self._servers = {name: _Tally(total=total) for name, total in totals.items()}
        for outcome in known:
            self._servers[outcome.server].add(outcome)
        self._all = _sum(self._servers.values())
        self._began = monotonic()
        # Including them in the rate would make the remaining time too short.
        self._known = self._all.done
        self._start(f"{command} to {target}")

    def advance(self, outcome: Outcome) -> None:
        self._servers[outcome.server].add(outcome)
        self._all.add(outcome)
        if outcome.state in _LEFT:
            return
        if not outcome.state.is_good:
            error = (outcome.error or "").splitlines()
            is_lost = outcome.state is State.UNREACHABLE
            if error and not (is_lost and outcome.server in self._lost):
                self._print(
                    f"{outcome.database} on {outcome.server}: "
                    f"{outcome.state.value}: {error[0]}"
                )
            if is_lost:
                # Its other shards would say the same.
                self._lost.add(outcome.server)
        self._show(monotonic())

    def stopping(self, kills: bool) -> None:
        self._print(
            "stopped: processes were killed; the next run resumes"
            if kills
            else "stopping: waiting for the statements in flight; interrupt "
            "a third time to kill the processes"
        )

    def _rate(self, now: float) -> float:
        """Return the number of shards per second."""
        return (self._all.done - self._known) / max(now - self._began, 1e-6)

    def _start(self, title: str) -> None:
        raise NotImplementedError

    def _show(self, now: float) -> None:
        """Show the counts."""
        raise NotImplementedError

    def _print(self, line: str) -> None:
        raise NotImplementedError


class LineProgress(_Display):
    """Prints a line every few seconds and for each failure, for logs."""

    def __init__(self, file: TextIO) -> None:
        super().__init__()
        self._file = file
        self._shown = 0.0

    def _start(self, title: str) -> None:
        self._shown = self._began
        count = self._all
        rest = f", {count.left} not attempted" if count.left else ""
        self._print(
            f"{title}: {count.total - count.done - count.left} of "
            f"{count.total} virtual shards to do{rest}"
        )

    def _show(self, now: float) -> None:
        if now - self._shown >= _INTERVAL:
            self._shown = now
            count, rate = self._all, self._rate(now)
            seconds = (count.total - count.done) / rate
            self._print(
                f"{count.done} of {count.total}, {count.failed} failed, "
                f"{rate:.0f} a second, {seconds:.0f} s left"
            )

    def _print(self, line: str) -> None:
        self._file.write(f"{printable(line)}\n")
        self._file.flush()


class _Bar(BarColumn):
    """A bar in the colour of its task."""

    def render(self, task: Task) -> ProgressBar:
        bar = super().render(task)
        bar.complete_style = bar.finished_style = task.fields["tally"].colour
        return bar


class _CountColumn(ProgressColumn):
    """The number of shards that are done, of all."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.completed:.0f}/{task.total:.0f}")


class _Time(TimeRemainingColumn):
    """The remaining time; at the end, the time that it took."""

    # A bar without a finished shard would stay as it was before it ended.
    max_refresh = 0.0

    def render(self, task: Task) -> Text:
        if task.fields["tally"].is_over and not task.finished:
            return Text("")
        return super().render(task)


class _Failures(ProgressColumn):
    """The number of failures."""

    def render(self, task: Task) -> Text:
        failed = task.fields["tally"].failed
        return Text(f"{failed} failed" if failed else "", "red")


class _Left(ProgressColumn):
    """The number of shards that are not attempted."""

    def render(self, task: Task) -> Text:
        seconds = task.fields["tally"].left
        return Text(f"{seconds} not attempted" if seconds else "", "yellow")


def _columns(width: int) -> Iterator[ProgressColumn]:
    """Yield the columns for the width of a terminal.

    Only the bars become shorter if it is too narrow: a line that is wrapped
    would not be drawn over.
    """

    def fixed(justify: JustifyMethod = "left") -> Column:
        return Column(no_wrap=True, justify=justify, max_width=width // 3)

    yield TextColumn("{task.description}", markup=False, table_column=fixed())
    yield _Bar()
    yield _CountColumn(table_column=fixed("right"))
    if width >= _WIDE:
        yield TextColumn("{task.fields[rate]}")
        yield _Time(elapsed_when_finished=True, table_column=fixed())
    yield _Failures(table_column=fixed())
    if width >= _WIDEST:
        yield _Left(table_column=fixed())


class TerminalProgress(_Display):
    """Shows bars with the rate, the remaining time and the failures.

    One bar is for all shards, and one for each server.  If there are too many
    servers, those with failures have bars, then those with shards to do; the
    last bar is for all others.  Bars end green, or red after a failure.
    """

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._bars = Bars(
            *_columns(console.width),
            console=console,
            # Draw the bars when a shard ends: a refresh thread could hold a
            # lock when worker processes are forked.
            auto_refresh=False,
        )
        self._drawn = 0.0
        self._is_stale = False
        self._tasks: dict[str, TaskID] = {}
        self._rows = min(_MOST, console.height - 4)

    def _start(self, title: str) -> None:
        if self._all.is_over:
            return
        self._title = self._add(title, self._all)
        if len(self._servers) > 1 and self._rows > 1:
            self._tasks = {
                name: self._add(f"  {name}", tally)
                for name, tally in self._servers.items()
            }
            self._others = self._add("", _Tally())
        self._count(self._began)
        self._bars.start()

    def _add(self, label: str, tally: _Tally) -> TaskID:
        return self._bars.add_task(label, total=tally.total, tally=tally)

    def _show(self, now: float) -> None:
        self._is_stale = True
        if now - self._drawn >= _MOMENT:
            self._draw(now)

    def waiting(self) -> None:
        """Draw the bars, unless the last drawing has all that is counted."""
        if self._is_stale:
            self._draw(monotonic())

    def _draw(self, now: float) -> None:
        self._count(now)
        self._bars.refresh()

    def _count(self, now: float) -> None:
        """Set the bars to what is counted."""
        self._drawn, self._is_stale = now, False
        rate = self._rate(now)
        text = f"{rate:.0f}/s" if rate else ""
        self._set(self._title, self._all, rate=text)
        shown = self._shown()
        for name, task in self._tasks.items():
            self._set(task, self._servers[name], visible=name in shown)
        if self._tasks:
            others = self._servers.keys() - shown
            tally = _sum(self._servers[name] for name in others)
            self._set(
                self._others,
                tally,
                total=tally.total,
                description=f"  {len(others)} other servers",
                visible=bool(others),
            )

    def _set(self, task: TaskID, tally: _Tally, rate: str = "", **more: Any) -> None:
        self._bars.update(task, completed=tally.done, tally=tally, rate=rate, **more)

    def _shown(self) -> Collection[str]:
        """Return the servers with a bar of their own.

        Their number is the same throughout a run: a worker process that
        prints something draws the bars again, and assumes this.
        """
        if len(self._servers) <= self._rows + 1:
            return self._servers
        ranked = sorted(
            self._servers.items(), key=lambda one: (not one[1].failed, one[1].is_over)
        )
        return {name for name, _ in ranked[: self._rows]}

    def _print(self, line: str) -> None:
        self._bars.console.print(printable(line), markup=False, highlight=False)

    def end(self) -> None:
        """Draw the bars for the last time."""
        if self._bars.live.is_started:
            self._count(monotonic())
            self._bars.stop()


def progress_on(file: TextIO | None = None) -> CommandProgress:
    """Return the progress display for a stream, by default stderr."""
    file = sys.stderr if file is None else file
    if file.isatty():
        console = Console(file=file)
        # A terminal without cursor addressing shows no bars.
        if console.is_interactive:
            return TerminalProgress(console)
    return LineProgress(file)
