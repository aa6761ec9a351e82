"""Showing how far a run is: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from time import monotonic
from typing import Protocol
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn
from rich.progress import MofNCompleteColumn
from rich.progress import Progress as Bar
from rich.progress import TextColumn
from rich.progress import TimeRemainingColumn

from sqla_shard.schema.reports import Outcome
from sqla_shard.schema.reports import RunReport
from sqla_shard.schema.reports import State

__all__ = [
    "LineProgress",
    "Progress",
    "SilentProgress",
    "TerminalProgress",
    "progress_on",
]

_EVERY = 5.0
#: Left for the next run.  After Ctrl-C they would be counted as failures.
_LEFT = frozenset({State.INTERRUPTED, State.SKIPPED})


def _failures(outcomes: Iterable[Outcome]) -> int:
    return sum(
        not one.state.is_good and one.state not in _LEFT for one in outcomes
    )


_STOPPING = (
    "stopping: statements that run now are waited for; told a third time, "
    "processes are killed"
)
_KILLED = "stopped: processes were killed; the next run goes on"


class Progress(Protocol):
    """Told of each shard as it is done."""

    def begin(
        self,
        command: str,
        target: str,
        total: int,
        known: Iterable[Outcome],
    ) -> None:
        """Begin a run.

        :param total: how many shards the command is for.
        :param known: outcomes of those that nothing is done with.
        """
        ...

    def advance(self, outcome: Outcome) -> None:
        """Count a shard."""
        ...

    def stopping(self, kills: bool) -> None:
        """Say that the run was told to stop.

        :param kills: whether processes are killed now.
        """
        ...

    def end(self, report: RunReport) -> None:
        """End a run."""
        ...


class SilentProgress:
    """Shows nothing."""

    def begin(
        self,
        command: str,
        target: str,
        total: int,
        known: Iterable[Outcome],
    ) -> None:
        """Show nothing."""

    def advance(self, outcome: Outcome) -> None:
        """Show nothing."""

    def stopping(self, kills: bool) -> None:
        """Show nothing."""

    def end(self, report: RunReport) -> None:
        """Show nothing."""


class LineProgress:
    """A line every few seconds, and one for each failure, for logs."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._total = self._known = self._done = self._failed = 0
        self._began = self._shown = 0.0

    def begin(
        self,
        command: str,
        target: str,
        total: int,
        known: Iterable[Outcome],
    ) -> None:
        """Say what is begun."""
        self._began = self._shown = monotonic()
        self._total = total
        outcomes = list(known)
        # They took no time, and would make the rest look as quick.
        self._known = self._done = len(outcomes)
        self._failed = _failures(outcomes)
        self._print(
            f"{command} to {target}: {total - self._done} of {total} "
            "virtual shards to do"
        )

    def advance(self, outcome: Outcome) -> None:
        """Say what failed at once, and now and then how far it is."""
        if outcome.state in _LEFT:
            return
        self._done += 1
        if not outcome.state.is_good:
            self._failed += 1
            error = (outcome.error or "").splitlines()
            if error:
                self._print(
                    f"{outcome.database} on {outcome.server}: "
                    f"{outcome.state.value}: {error[0]}"
                )
        now = monotonic()
        if now - self._shown >= _EVERY:
            self._shown = now
            rate = (self._done - self._known) / (now - self._began)
            left = (self._total - self._done) / rate
            self._print(
                f"{self._done} of {self._total}, {self._failed} failed, "
                f"{rate:.0f} a second, {left:.0f} s left"
            )

    def stopping(self, kills: bool) -> None:
        """Say what is waited for."""
        self._print(_KILLED if kills else _STOPPING)

    def end(self, report: RunReport) -> None:
        """Show nothing: the report follows."""

    def _print(self, line: str) -> None:
        self._file.write(f"{line}\n")
        self._file.flush()


class TerminalProgress:
    """A bar with rate, time left and failures."""

    def __init__(self, console: Console) -> None:
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("[red]{task.fields[failed]}"),
            console=console,
            transient=True,
            # It is drawn when a shard is done.  A thread that draws would
            # be there when processes are forked.
            auto_refresh=False,
        )
        self._failed = 0
        self._began = 0.0

    def begin(
        self,
        command: str,
        target: str,
        total: int,
        known: Iterable[Outcome],
    ) -> None:
        """Show the bar."""
        outcomes = list(known)
        self._began = monotonic()
        self._done = 0
        self._failed = _failures(outcomes)
        self._task = self._bar.add_task(
            f"{command} to {target}",
            total=total,
            completed=len(outcomes),
            failed=self._told(),
            rate="",
        )
        self._bar.start()
        self._bar.refresh()

    def advance(self, outcome: Outcome) -> None:
        """Move the bar, and name what failed."""
        if outcome.state in _LEFT:
            return
        self._done += 1
        if not outcome.state.is_good:
            self._failed += 1
            if outcome.error:
                self._bar.console.print(
                    f"{outcome.database} on {outcome.server}: "
                    f"{outcome.state.value}: {outcome.error.splitlines()[0]}",
                    markup=False,
                    highlight=False,
                )
        rate = self._done / max(monotonic() - self._began, 1e-6)
        self._bar.update(
            self._task,
            advance=1,
            failed=self._told(),
            rate=f"{rate:.0f}/s",
            refresh=True,
        )

    def stopping(self, kills: bool) -> None:
        """Say what is waited for."""
        self._bar.console.print(
            _KILLED if kills else _STOPPING, markup=False, highlight=False
        )

    def end(self, report: RunReport) -> None:
        """Take the bar away; the report follows."""
        self._bar.stop()

    def _told(self) -> str:
        return f"{self._failed} failed" if self._failed else ""


def progress_on(file: TextIO | None = None) -> Progress:
    """Return what fits a stream, standard error by default."""
    file = sys.stderr if file is None else file
    if file.isatty():
        return TerminalProgress(Console(file=file))
    return LineProgress(file)
