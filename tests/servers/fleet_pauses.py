"""The statements that applications wait for while an operation stops writes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine

from sqla_shard.fleet.operation import StepEvent

_EVENTS = ("before_cursor_execute", "after_cursor_execute")
_AVOIDABLE = re.compile(
    r"^(START|STOP) (SLAVE|REPLICA)|STATUS|^INSERT|information_schema"
)


@dataclass(frozen=True)
class Statement:
    """A statement on any server, without its numbers and spaces.

    :ivar seconds: until the response.
    """

    text: str
    seconds: float


class PauseLog:
    """Records what is executed from the begin of "fence" to the end of "open".

    ::

        with PauseLog() as log:
            apply(fleet, plan, progress=log.progress)
        log.statements
    """

    def __init__(self) -> None:
        self.statements: list[Statement] = []
        self._is_paused = False
        self._began = 0.0
        self._listeners = tuple(zip(_EVENTS, (self._before, self._after), strict=True))

    def __enter__(self) -> PauseLog:
        for name, listener in self._listeners:
            event.listen(Engine, name, listener)
        return self

    def __exit__(self, *details: object) -> None:
        for name, listener in self._listeners:
            event.remove(Engine, name, listener)

    def progress(self, step: StepEvent) -> None:
        """Follow the operation."""
        if (step.step, step.state) == ("fence", "begin"):
            self._is_paused = True
        elif (step.step, step.state) == ("open", "done"):
            self._is_paused = False

    def avoidable(self) -> list[str]:
        """Return the statements that can run while applications write.

        They wait for threads or for a disk, or make a temporary table.
        """
        return [one.text for one in self.statements if _AVOIDABLE.search(one.text)]

    def _before(self, *details: Any) -> None:
        self._began = perf_counter()

    def _after(self, connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if self._is_paused:
            text = re.sub(r"\s+", " ", re.sub(r"^KILL \d+", "KILL", statement))
            self.statements.append(Statement(text, perf_counter() - self._began))
