"""The progress of a run: a bar for each server on a terminal, or lines."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
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

from sqla_shard.schema.reports import Outcome, State
from sqla_shard.util.masking import printable


class Progress:
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
    found = _Tally()
    for one in tallies:
        found.total += one.total
        found.done += one.done
        found.failed += one.failed
        found.left += one.left
    return found


class _Display(Progress):
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
            left = (count.total - count.done) / rate
            self._print(
                f"{count.done} of {count.total}, {count.failed} failed, "
                f"{rate:.0f} a second, {left:.0f} s left"
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


class _Count(ProgressColumn):
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
        left = task.fields["tally"].left
        return Text(f"{left} not attempted" if left else "", "yellow")


def _columns(width: int) -> Iterator[ProgressColumn]:
    """Yield the columns for the width of a terminal.

    Only the bars become shorter if it is too narrow: a line that is wrapped
    would not be drawn over.
    """

    def fixed(justify: JustifyMethod = "left") -> Column:
        return Column(no_wrap=True, justify=justify, max_width=width // 3)

    yield TextColumn("{task.description}", markup=False, table_column=fixed())
    yield _Bar()
    yield _Count(table_column=fixed("right"))
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


def progress_on(file: TextIO | None = None) -> Progress:
    """Return the progress display for a stream, by default stderr."""
    file = sys.stderr if file is None else file
    if file.isatty():
        console = Console(file=file)
        # A terminal without cursor addressing shows no bars.
        if console.is_interactive:
            return TerminalProgress(console)
    return LineProgress(file)
