"""Commands that make one pass after another until they are terminated."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, UTC
from time import monotonic
from typing import Any, Generic, Protocol, TypeVar

from sqla_shard.cli.options import FiniteRange
from sqla_shard.cli.output import Decorator, echo, end, option, print_data
from sqla_shard.util.masking import printable
from sqla_shard.util.processes import ENDING, waking


class StopFlag:
    """A flag that SIGTERM and Ctrl-C set.

    They write to a pipe, see :func:`.waking`.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._waking = waking(self._write, _ignore)

    def __enter__(self) -> StopFlag:
        self._waking.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._waking.__exit__(None, None, None)
        os.close(self._read)
        os.close(self._write)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a signal; return whether one was received.

        :param timeout: seconds; None waits without a limit.
        """
        deadline = None if timeout is None else monotonic() + timeout
        while not self._is_set:
            left = None if deadline is None else max(deadline - monotonic(), 0)
            if not select.select([self._read], [], [], left)[0]:
                return False
            # Other signals with a handler are written, too.
            numbers = os.read(self._read, 4096)
            self._is_set = any(one in numbers for one in ENDING)
        return True


def _ignore(*signal_arguments: object) -> None:
    """Do nothing: the interpreter has written to the pipe."""


class LineFormatter(logging.Formatter):
    """Formats records whose texts, such as those of errors, are of others.

    Their control characters are escaped, and all lines but the first are
    indented: they could forge records otherwise.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record."""
        return printable(super().format(record)).replace("\n", "\n  ")


@contextlib.contextmanager
def log_to_stderr(
    level: int = logging.INFO, *, without: str | None = None
) -> Iterator[None]:
    """Write the log of this package to standard error.

    :param without: name of a logger to omit.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(message)s"))
    if without is not None:
        left_out = logging.Filter(without)
        handler.addFilter(lambda record: not left_out.filter(record))
    logger = logging.getLogger("sqla_shard")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


class _Report(Protocol):
    """Report of a pass; ``str()`` of it is one line."""

    @property
    def ok(self) -> bool: ...

    def as_dict(self) -> dict[str, Any]: ...


R = TypeVar("R", bound=_Report)


@dataclass(frozen=True, kw_only=True)
class Passes(Generic[R]):
    """Functions that make a pass and evaluate its report.

    :param make: makes a pass and returns its report.
    :param has_more: returns whether to make the next pass without a pause.
    :param has_changes: returns whether to print the report in any case.
    :param is_read: returns whether all servers have responded.
    :param problems: returns one line for each problem of the pass.
    :param state: returns the problems without details that change in each
        pass; the report is also printed if these have changed.
    """

    make: Callable[[], R]
    has_more: Callable[[R], bool]
    has_changes: Callable[[R], bool]
    is_read: Callable[[R], bool]
    problems: Callable[[R], Sequence[str]]
    state: Callable[[R], Sequence[str]]


def make_passes(
    passes: Passes[R], until: StopFlag, interval: float | None, as_data: bool
) -> None:
    """Make one pass after another until a signal is received.

    :param interval: seconds between two passes; None exits, with the status
        of all passes, after the first one that has nothing to do.
    """
    is_clean = is_read = True
    printed: Sequence[str] = ()
    while True:
        report = passes.make()
        is_clean = is_clean and report.ok
        is_read = is_read and passes.is_read(report)
        state = tuple(passes.state(report))
        # Print a problem that persists only once.
        if passes.has_changes(report) or state != printed:
            _print_pass(report, passes.problems(report), as_data)
        printed = state
        has_more = passes.has_more(report)
        if interval is None and not has_more:
            break
        if until.wait(0.0 if has_more else interval):
            break
    if interval is None:
        end(is_good=is_clean, is_read=is_read)


def _print_pass(report: _Report, problems: Sequence[str], as_data: bool) -> None:
    """Print the report of a pass, and flush it for readers of a pipe."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    if as_data:
        print_data({"time": now, **report.as_dict()}, is_line=True)
    else:
        echo(f"{now} {report}")
        for line in problems:
            echo(f"  {' '.join(line.split())}")
    sys.stdout.flush()


interval_option: Decorator = option(
    "--interval S",
    "Seconds to wait after a pass with nothing to do.",
    FiniteRange(0.1),
    default=5.0,
)
once_option: Decorator = option("--once", "Exit when there is nothing left to do.")
