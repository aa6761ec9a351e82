"""Commands that make one pass after another, until they are ended."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from datetime import timezone
from typing import Any
from typing import Generic
from typing import Protocol
from typing import TypeVar

import click

from sqla_shard.cli.ending import End
from sqla_shard.cli.printing import echo
from sqla_shard.cli.printing import end
from sqla_shard.cli.settings import FiniteRange

__all__ = [
    "Passes",
    "interval_option",
    "lines_option",
    "make_passes",
    "once_option",
]


class _Report(Protocol):
    """What a pass has done; its text is one line."""

    @property
    def is_clean(self) -> bool: ...

    @property
    def troubles(self) -> tuple[str, ...]: ...

    def as_dict(self) -> dict[str, Any]: ...


R = TypeVar("R", bound=_Report)
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class Passes(Generic[R]):
    """A pass, and what its report means.

    :param make: makes one.
    :param goes_on: whether there may be more to do at once.
    :param has_done: whether it is to be told anyway.
    :param wrong: lines about what could not be done.
    :param trouble: what of that is told again where it has changed.
    """

    make: Callable[[], R]
    goes_on: Callable[[R], bool]
    has_done: Callable[[R], bool]
    wrong: Callable[[R], Sequence[str]]
    trouble: Callable[[R], Sequence[str]]


def make_passes(
    passes: Passes[R], until: End, interval: float | None, as_json: bool
) -> None:
    """Make one pass after another.

    Where it ends by itself, that is with the status that is due.

    :param interval: seconds between them; None ends where one has found
        nothing to do.
    """
    is_clean = is_read = True
    told: Sequence[str] = ()
    while True:
        report = passes.make()
        is_clean = is_clean and report.is_clean
        is_read = is_read and not report.troubles
        trouble = tuple(passes.trouble(report))
        # What stays wrong is told when it begins.
        if passes.has_done(report) or trouble != told:
            _say(report, passes.wrong(report), as_json)
        told = trouble
        goes_on = passes.goes_on(report)
        if interval is None and not goes_on:
            break
        if until.wait(0.0 if goes_on else interval):
            break
    if interval is None:
        end(is_good=is_clean, is_read=is_read)


def _say(report: _Report, wrong: Sequence[str], as_json: bool) -> None:
    """Print what a pass has done; at once, for it may go into a pipe."""
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    if as_json:
        echo(json.dumps({"time": now, **report.as_dict()}))
    else:
        echo(f"{now} {report}")
        for line in wrong:
            echo(f"  {' '.join(line.split())}")
    sys.stdout.flush()


def interval_option(command: F) -> F:
    """Give a command the option ``--interval``."""
    return click.option(
        "--interval",
        metavar="S",
        default=5.0,
        show_default=True,
        type=FiniteRange(least=0.1),
        help="Seconds between two passes, where the first has found nothing.",
    )(command)


def once_option(command: F) -> F:
    """Give a command the option ``--once``."""
    return click.option(
        "--once",
        is_flag=True,
        help="Do what there is to do, and end.",
    )(command)


def lines_option(command: F) -> F:
    """Give a command the option ``--json``, as its argument ``as_json``."""
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="Print JSON: one document, or one on each line.",
    )(command)
