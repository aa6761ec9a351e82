"""A progress bar on stderr."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TextIO

_WIDTH = 30


class Progress:
    """A bar on a terminal; elsewhere, such as in a log, a line per quarter.

    :param label: name of the task.
    :param total: number of steps; 1 or more.
    :param stream: stderr by default.
    """

    def __init__(self, label: str, total: int, stream: TextIO | None = None) -> None:
        self._label = label
        self._total = total
        self._stream = stream or sys.stderr
        self._is_terminal = self._stream.isatty()
        self._done = 0

    def __enter__(self) -> Progress:
        self.advance(0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # The next line would be printed behind the bar.
        if self._is_terminal:
            print(file=self._stream)

    def advance(self, steps: int) -> None:
        """Count ``steps`` as done."""
        quarter = self._quarter()
        self._done += steps
        state = f"{self._done}/{self._total}"
        if self._is_terminal:
            bar = "#" * (_WIDTH * self._done // self._total)
            print(
                f"\r{self._label} [{bar:.<{_WIDTH}}] {state}",
                end="",
                file=self._stream,
                flush=True,
            )
        elif self._quarter() > quarter:
            print(self._label, state, file=self._stream, flush=True)

    def _quarter(self) -> int:
        return 4 * self._done // self._total
